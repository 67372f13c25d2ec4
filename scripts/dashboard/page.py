"""The page: one HTML file with its style, script and charts inside, which loads nothing."""

import json
import statistics
from html import escape
from pathlib import Path

from .charts import BarRow, Dot, Line, amount, axis_unit, bar_card, card_columns, color, dot_card, line_chart, table
from .history import KINDS, Point, machine_key, machine_name, series

ASSETS = Path(__file__).parent
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
TESTS = (
    "pp512 is a prompt of 512 tokens, tg64 the generation of 64, tg16 @ d4096 generation after 4096 tokens, and "
    "tg32 × 16 that of 16 sequences together."
)
# Introduction of each section, and what `dashboard.py record` needs to add to it.
SECTIONS = {
    "speed": (
        f"Tokens per second; higher is better. {TESTS} Ratios are oxidize ÷ the other engine.",
        "peers target/bench-peers/results.json",
    ),
    "memory": (
        "Peak resident memory; lower is better. A mark is the limit: file, KV cache and 200 MiB. "
        "Ratios are the other engine ÷ oxidize.",
        "peers target/bench-peers/results.json",
    ),
    "startup": (
        "Time until a new process has its first token; lower is better.",
        "peers target/bench-peers/results.json",
    ),
    "size": ("Size of the program; lower is better.", "size target/release/oxidize"),
    "kl": (
        "Mean KL divergence of quantized files from their source, on a logarithmic axis; lower is better. "
        "Filled dots are oxidize's files, hollow ones llama.cpp's.",
        "quantize kl.json",
    ),
    "coverage": ("Share of lines and functions that the tests run.", "coverage coverage.json"),
    "instructions": (
        "Instructions of one matrix product with 1, 4 and 32 tokens, counted by callgrind; lower is better. "
        "The first commit of a line is 100 %.",
        "instructions counts.json",
    ),
}


class Page:
    """The page of some records."""

    def __init__(self, records: list[dict], repository: str | None):
        self.records = records
        self.repository = repository.removesuffix("/").removesuffix(".git") if repository else None
        self.series = series(records)
        self.runs = [(record, run) for record in records for run in record["runs"]]
        self.numbers = {id(run): number for number, (_, run) in enumerate(self.runs)}
        newest_first = list(dict.fromkeys(machine_key(record) for record in reversed(records)))
        self.machines = {key: number for number, key in enumerate(newest_first)}

    def commit(self, commit: str) -> str:
        code = f"<code>{commit[:8]}</code>"
        return f'<a href="{escape(self.repository)}/commit/{commit}">{code}</a>' if self.repository else code

    def run_number(self, point: Point) -> int:
        return self.numbers[id(point.run)]

    def of_machine(self, key: tuple, kind: str) -> list[tuple[dict, dict]]:
        """Runs of a kind on a machine, newest first."""
        return [(record, run) for record, run in reversed(self.runs) if run["kind"] == kind and machine_key(record) == key]

    def newest_record(self, key: tuple) -> dict:
        return next(record for record in reversed(self.records) if machine_key(record) == key)

    def render(self) -> str:
        style, script = ((ASSETS / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
        links = "".join(f'<a href="#{kind}">{escape(KINDS[kind].heading)}</a>' for kind in KINDS)
        sections = "".join(self.section(kind) for kind in KINDS)
        runs = json.dumps([self.told(record, run) for record, run in self.runs], ensure_ascii=False).replace("<", "\\u003c")
        return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>oxidize: measurements by commit</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#speed">Skip to the measurements</a>
<header>
<div class="top"><h1>oxidize <span>measurements by commit</span></h1>{self.controls()}</div>
{self.summary()}
</header>
<nav aria-label="Sections">{links}<a href="#machines">Machines</a></nav>
<main>
{self.tiles()}{sections}{self.machine_section()}
</main>
<div id="tip" role="status" hidden></div>
<script type="application/json" id="runs">{runs}</script>
<script>
{script}</script>
</body>
</html>
"""

    def told(self, record: dict, run: dict) -> dict:
        """What a tooltip says of a run."""
        text = {"commit": record["commit"][:8], "date": record["date"][:10], "machine": machine_name(record["machine"])}
        threads = f", {run['threads']} threads" if run.get("threads", 1) > 1 else ""
        return text | {"title": run["title"] + threads, "command": run.get("command", "not recorded"), "note": run.get("note", "")}

    def controls(self) -> str:
        options = "".join(
            f'<option value="{number}">{escape(machine_name(self.newest_record(key)["machine"]))}</option>'
            for key, number in self.machines.items()
            if "not recorded" not in key[0]
        )
        machine = f'<label>Machine <select id="machine"><option value="">all</option>{options}</select></label>' if options else ""
        return (
            f'<form class="controls">{machine}<label>Theme <select id="theme"><option value="">as the system</option>'
            '<option value="light">light</option><option value="dark">dark</option></select></label></form>'
        )

    def summary(self) -> str:
        if not self.records:
            return "<p>The history is empty: nothing has been recorded yet.</p>"
        values = sum(len(result["values"]) for _, run in self.runs for result in run["results"])
        commits = len({record["commit"] for record in self.records})
        first, last = self.records[0], self.records[-1]
        return (
            f"<p>{values:,} figures of {commits} commits, from {self.commit(first['commit'])} ({first['date'][:10]}) to "
            f"{self.commit(last['commit'])} ({last['date'][:10]}). Lines join figures of one machine and one experiment only. "
            "Figures that pages of the documentation state carry the commit that added them there.</p>"
        )

    def tiles(self) -> str:
        """Mean ratios of the speed run that compares most."""
        compared = lambda run: sum(len(result["values"]) - 1 for result in run["results"] if "oxidize" in result["values"])
        runs = [(record, run) for record, run in self.runs if run["kind"] == "speed" and compared(run) > 0]
        if not runs:
            return ""
        most = max(compared(run) for _, run in runs)
        record, run = next((record, run) for record, run in reversed(runs) if compared(run) >= 0.8 * most)
        tiles = []
        for test in dict.fromkeys(result["test"] for result in run["results"]):
            ratios: dict[str, list[float]] = {}
            for result in run["results"]:
                ours = result["values"].get("oxidize")
                if result["test"] == test and ours:
                    for name, value in result["values"].items():
                        if name != "oxidize" and value:
                            ratios.setdefault(name, []).append(ours / value)
            lines = "".join(
                f"<p><strong>{statistics.geometric_mean(values):.2f}×</strong> {escape(name)}</p>" for name, values in ratios.items()
            )
            models = max(map(len, ratios.values()), default=0)
            if lines:
                tiles.append(f'<div class="tile"><h3>{escape(test)}</h3>{lines}<small>{models} models</small></div>')
        return (
            f'<section class="machine" data-machine="{self.machines[machine_key(record)]}" aria-label="Speed relative to other engines">'
            f'<div class="tiles">{"".join(tiles)}</div><p class="meta">Speed relative to other engines, geometric mean over models; '
            f"{escape(machine_name(record['machine']))}; {self.commit(record['commit'])}, {record['date'][:10]}.</p></section>"
        )

    def section(self, kind: str) -> str:
        introduction, record_command = SECTIONS[kind]
        blocks = "".join(self.machine_block(key, kind) for key in self.machines)
        if not blocks:
            blocks = f'<p class="empty">No measurements yet. Add some with <code>scripts/dashboard.py record {record_command}</code>.</p>'
        return f'<section id="{kind}"><h2>{KINDS[kind].heading}</h2><p>{escape(introduction)}</p>{blocks}</section>'

    def machine_block(self, key: tuple, kind: str) -> str:
        runs = self.of_machine(key, kind)
        if not runs:
            return ""
        machine = runs[0][0]["machine"]
        # Machines that were not recorded are told apart by their commit.
        which = f" ({runs[0][0]['commit'][:8]})" if machine_name(machine).startswith("Machine not recorded") else ""
        note = f'<p class="meta">{escape(machine["note"])}</p>' if "note" in machine else ""
        # The largest run of the newest commit comes first, then its past, then everything else.
        figures = lambda run: sum(len(result["values"]) for result in run["results"])
        first = max(runs, key=lambda pair: (pair[0]["date"], figures(pair[1])))[1]
        runs.sort(key=lambda pair: pair[1] is not first)
        main, *others = (self.run_block(record, run, run is first) for record, run in runs)
        heading = f"<h3>{escape(machine_name(machine))}{which}</h3>{note}"
        charts = self.charts(key, kind, first)
        # Counts change little, so their course says more than the last of them.
        start = charts + main if kind == "instructions" else main + charts
        blocks = f"{heading}{start}{''.join(others)}"
        return f'<div class="machine" data-machine="{self.machines[key]}">{blocks}</div>'

    def charts(self, key: tuple, kind: str, first: dict) -> str:
        """Line charts of everything that was measured at two commits or more, by experiment, that of `first` first."""
        groups: dict[tuple, dict[tuple, list[Line]]] = {}
        for (machine, of_kind, title, threads, labels, name), points in self.series.items():
            if machine != key or of_kind != kind:
                continue
            charts = groups.setdefault((title, threads), {})
            if kind == "instructions":
                kernel, tokens = labels
                lines = charts.setdefault((kernel,), [])
                lines.append(Line(f"{tokens} token{'s' * (tokens > 1)}", len(lines) % 6, points))
            else:
                charts.setdefault(labels, []).append(Line(name, color(name, len(charts.get(labels, []))), points))
        parts = []
        for (title, threads), charts in groups.items():
            drawn = {labels: lines for labels, lines in charts.items() if any(len(line.points) > 1 for line in lines)}
            if not drawn:
                continue
            names = list(dict.fromkeys((line.name, line.color) for lines in drawn.values() for line in lines))
            legend = "".join(f'<span><i class="key c{number}"></i>{escape(name)}</span>' for name, number in names)
            cards = "".join(
                line_chart(", ".join(map(str, labels)), lines, kind, self.run_number, relative=kind == "instructions")
                for labels, lines in drawn.items()
            )
            heading = escape(title) + (f", {threads} threads" if threads else "")
            unit = "" if kind == "instructions" else f"vertical: {axis_unit(kind)}"
            newest = max(line.points[-1].record["date"] for lines in drawn.values() for line in lines)
            block = (
                f'<details><summary>By commit: {heading} <small>{len(drawn)} charts</small></summary>'
                f'<p class="legend">{legend}<span>{unit}</span></p><div class="grid">{cards}</div></details>'
            )
            parts.append((title == first["title"], newest, len(drawn), block))
        parts.sort(key=lambda part: part[:3], reverse=True)
        return "".join(block for *_, block in parts).replace("<details>", "<details open>", 1)

    def run_block(self, record: dict, run: dict, opened: bool) -> str:
        kind, number = run["kind"], self.numbers[id(run)]
        threads = f", {run['threads']} thread{'s' * (run['threads'] > 1)}" if "threads" in run else ""
        meta = [f"Commit {self.commit(record['commit'])}, {record['date'][:10]}"]
        if "command" in run:
            meta.append(f"<code>{escape(run['command'])}</code>")
        meta.append(f"from {escape(run['source'])}")
        note = f'<p class="meta">{escape(run["note"])}</p>' if "note" in run else ""
        figures = sum(len(result["values"]) for result in run["results"])
        when = f"{record['commit'][:8]}, {record['date'][:10]}, {figures} figure{'s' * (figures > 1)}"
        summary = f"<summary>{escape(run['title'])}{threads} <small>{when}</small></summary>"
        body = f'<p class="meta">{" · ".join(meta)}</p>{note}{self.results(record, run, number)}'
        return f"<details{' open' * opened}>{summary}{body}</details>"

    def results(self, record: dict, run: dict, number: int) -> str:
        kind = run["kind"]
        if kind == "instructions":
            return self.counts_table(record, run)
        if kind == "kl":
            return self.divergences(run, number)
        group, row = grouping(run)
        cards: dict[str, list[BarRow]] = {}
        for result in run["results"]:
            heading = result[group] if group else KINDS[kind].heading
            label = result[row] if row else ", ".join(str(result[name]) for name in KINDS[kind].labels)
            cards.setdefault(heading, []).append(BarRow(label, result["values"], result.get("limit")))
        better = kind not in ("speed", "coverage")
        height = lambda rows: 3 + sum(2 + len(row.values) for row in rows)
        return card_columns([(height(rows), bar_card(title, rows, kind, number, better)) for title, rows in cards.items()])

    def divergences(self, run: dict, number: int) -> str:
        importances = list(dict.fromkeys(result["importance"] for result in run["results"]))
        legend = "".join(
            f'<span><i class="key c{index % 6}"></i>{escape("no importance" if name == "none" else name)}</span>'
            for index, name in enumerate(importances)
        )
        engines = list(dict.fromkeys(name for result in run["results"] for name in result["values"]))
        parts = []
        for model in dict.fromkeys(result["model"] for result in run["results"]):
            results = [result for result in run["results"] if result["model"] == model]
            dots: dict[str, list[Dot]] = {}
            cells: dict[str, dict[tuple[str, str], str]] = {}
            for result in results:
                importance = result["importance"]
                named = "no importance" if importance == "none" else importance
                for name, value in result["values"].items():
                    dot = Dot(f"{name}, {named}", value, importances.index(importance) % 6, name != "oxidize")
                    dots.setdefault(result["type"], []).append(dot)
                    cells.setdefault(result["type"], {})[importance, name] = amount("kl", value)
            columns = [(importance, name) for importance in importances for name in engines]
            columns = [column for column in columns if any(column in row for row in cells.values())]
            head = ["Type"] + [f"{name}, {'none' if importance == 'none' else importance}" for importance, name in columns]
            rows = [[type_, *(row.get(column, "") for column in columns)] for type_, row in cells.items()]
            card = dot_card(model, list(dots.items()), "kl", number)
            parts.append((len(dots) + 3, f"{card}<details><summary>Table of {escape(model)}</summary>{table(head, rows)}</details>"))
        return f'<p class="legend">{legend}</p>{card_columns(parts)}'

    def counts_table(self, record: dict, run: dict) -> str:
        """Counts beside those of the commit before on the same machine."""
        rows = []
        for result in run["results"]:
            labels = (result["kernel"], result["tokens"])
            points = self.series[machine_key(record), "instructions", run["title"], run.get("threads"), labels, "oxidize"]
            at = next(index for index, point in enumerate(points) if point.run is run)
            before = points[at - 1].value if at else None
            change = f"{100 * (result['values']['oxidize'] / before - 1):+.1f} %".replace("-", "−") if before else ""
            count = amount("instructions", result["values"]["oxidize"])
            rows.append([f"{result['kernel']} × {result['tokens']}", count, amount("instructions", before) if before else "", change])
        return table(["Kernel × tokens", "Instructions", "Before", "Change"], rows)

    def machine_section(self) -> str:
        rows = []
        for key in self.machines:
            record = self.newest_record(key)
            runs = [run for other, run in self.runs if machine_key(other) == key]
            kinds = ", ".join(KINDS[kind].heading for kind in dict.fromkeys(run["kind"] for run in runs))
            commits = sorted({other["date"][:10] for other in self.records if machine_key(other) == key})
            when = commits[0] if len(commits) == 1 else f"{commits[0]} to {commits[-1]}"
            rows.append([machine_name(record["machine"]), record["machine"].get("note", ""), kinds, when])
        body = table(["Machine", "Note", "Measured", "Commits of"], rows) if rows else '<p class="empty">No machines yet.</p>'
        return f'<section id="machines"><h2>Machines</h2>{body}</section>'


def grouping(run: dict) -> tuple[str | None, str | None]:
    """The labels of the cards and of their rows: of model and test, the one with fewer values is that of the cards."""
    if "test" not in KINDS[run["kind"]].labels:
        return None, None
    models, tests = ({result[name] for result in run["results"]} for name in ("model", "test"))
    return ("model", "test") if len(models) < len(tests) else ("test", "model")


def render(records: list[dict], repository: str | None = None) -> str:
    """The page of some records, in the order that `history.load` gives them."""
    return Page(records, repository).render()
