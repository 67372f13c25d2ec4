"""Checks of the dashboard: lines stay on one machine, wrong records are refused, recording and comparing."""

import copy
import json
import re
import tempfile
from html.parser import HTMLParser
from pathlib import Path

from . import comparison, history, measurements, page

COMMITS = [f"{digit}" * 40 for digit in "abcd"]
MACHINES = [{"processor": "First", "cores": 2, "isa": "avx2"}, {"processor": "First", "cores": 4, "isa": "avx2"}]


def sample(at: int, machine: dict, speed: float = 100.0) -> dict:
    """A record with a speed and a count."""
    speeds = [{"model": "1B", "test": "pp512", "values": {"oxidize": speed, "llama.cpp": 50}, "limit": 200}]
    counts = [{"kernel": "Q4_K", "tokens": 4, "values": {"oxidize": round(1000 * speed)}}]
    return {
        "format": 1,
        "commit": COMMITS[at],
        "date": f"2026-01-0{at + 1}T00:00:00Z",
        "machine": machine,
        "runs": [
            {"kind": "speed", "title": "T", "threads": 2, "command": "make <x>", "source": "s", "results": speeds},
            {"kind": "instructions", "title": "T", "source": "s", "results": counts},
        ],
    }


class Html(HTMLParser):
    """Lines, ids, text and what the page would load."""

    VOID = {"meta", "br", "link", "img", "input"}

    def __init__(self, text: str):
        super().__init__()
        self.lines: list[list[int]] = []
        self.points: list[int] = []
        self.loads: list[str] = []
        self.open: list[str] = []
        self.runs: list[dict] = []
        self.text = ""
        self.feed(text)
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if tag not in self.VOID:
            self.open.append(tag)
        if "line" in (values.get("class") or "").split():
            runs = [int(run) for run in values["data-runs"].split()]
            assert values["d"].count("L") + 1 == len(runs), values
            self.lines.append(runs)
        if "point" in (values.get("class") or "").split():
            self.points.append(int(values["data-run"]))
        self.loads += [value for name, value in attributes if name in ("src", "srcset") or name == "href" and tag == "link"]

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> in {self.open}"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script" and data.startswith("["):
            self.runs = json.loads(data)
        elif not self.open or self.open[-1] not in ("script", "style"):
            self.text += data


def check_lines() -> None:
    """Points of two machines in turn make lines of one machine each, and commits of unknown machines no line."""
    records = [sample(at, MACHINES[at % 2], 100.0 + at) for at in range(4)]
    html = Html(page.render(records))
    assert html.loads == [], html.loads
    # Two engines and one kernel, on two machines.
    assert len(html.lines) == 6 and len(html.points) == 12, (html.lines, html.points)
    for runs in html.lines:
        machines = {html.runs[run]["machine"] for run in runs}
        assert len(runs) == 2 and len(machines) == 1, machines
        assert machines <= {history.machine_name(machine) for machine in MACHINES}
    dates = [[html.runs[run]["date"] for run in runs] for runs in html.lines]
    assert all(pair == sorted(pair) for pair in dates), dates
    for machine in MACHINES:
        assert history.machine_name(machine) in html.text
    assert "2.04×" in html.text and "make <x>" in html.text and html.runs[0]["command"] == "make <x>"

    unknown = [sample(at, {"processor": history.NOT_RECORDED}) for at in range(2)]
    assert Html(page.render(unknown)).lines == []
    other = [sample(0, MACHINES[0]), sample(1, MACHINES[0])]
    other[1]["runs"][0]["title"], other[1]["runs"][1]["threads"] = "Another", 4
    assert Html(page.render(other)).lines == []
    # A note says nothing about which machine it is.
    noted = [sample(0, MACHINES[0]), sample(1, {**MACHINES[0], "note": "busy"})]
    assert len(Html(page.render(noted)).lines) == 3


def check_empty() -> None:
    with tempfile.TemporaryDirectory() as directory:
        records = history.load(Path(directory)) + history.load(Path(directory) / "missing")
    html = Html(page.render(records))
    assert "The history is empty" in html.text and html.text.count("No measurements yet") == len(history.KINDS), html.text
    linked = page.render([sample(0, MACHINES[0])], "https://example.org/o/n.git")
    assert f'href="https://example.org/o/n/commit/{COMMITS[0]}"' in linked


def check_records() -> int:
    """A sound record survives writing and reading; each fault is refused with file and field."""
    sound = sample(0, MACHINES[0])
    text = history.dump(sound)
    assert history.parse(text, "f.json") == sound
    assert max(map(len, text.splitlines())) < 200, text

    def fault(change) -> str:
        record = copy.deepcopy(sound)
        change(record, record["runs"][0], record["runs"][0]["results"][0])
        return json.dumps(record)

    faults = [
        (lambda record, run, result: record.pop("commit"), "commit: the field is missing"),
        (lambda record, run, result: record.update(commit="abc"), "commit: expected 40 hexadecimal digits"),
        (lambda record, run, result: record.update(date="2026-13-01T00:00:00Z"), "date: expected a time"),
        (lambda record, run, result: record.update(format=2), "format: expected 1, found 2"),
        (lambda record, run, result: record.update(host="x"), "host: unknown field"),
        (lambda record, run, result: record["machine"].pop("processor"), "machine.processor: the field is missing"),
        (lambda record, run, result: record["machine"].update(hostname="x"), "machine.hostname: unknown field"),
        (lambda record, run, result: record["machine"].update(cores=0), "machine.cores: expected a whole number from 1"),
        (lambda record, run, result: record["machine"].update(cores=True), "machine.cores: expected a whole number"),
        (lambda record, run, result: record.update(machine="x"), "machine: expected an object, found text"),
        (lambda record, run, result: record.update(runs=[]), "runs: expected a list that is not empty"),
        (lambda record, run, result: run.update(kind="sped"), "runs[0].kind: unknown kind 'sped'"),
        (lambda record, run, result: run.update(kind=[]), "runs[0].kind: unknown kind"),
        (lambda record, run, result: run.update(title=" "), "runs[0].title: expected a text"),
        (lambda record, run, result: run.pop("source"), "runs[0].source: the field is missing"),
        (lambda record, run, result: run.update(command="bench -m /home/x/m.gguf"), "runs[0].command: '"),
        (lambda record, run, result: run.update(note="in ~/models"), "runs[0].note: '"),
        (lambda record, run, result: result.pop("test"), "runs[0].results[0].test: the field is missing"),
        (lambda record, run, result: result.update(type="x"), "runs[0].results[0].type: unknown field"),
        (lambda record, run, result: result.update(values={}), "runs[0].results[0].values: expected at least one"),
        (lambda record, run, result: result.update(values=[1]), "runs[0].results[0].values: expected an object"),
        (lambda record, run, result: result["values"].update(oxidize=-1), "results[0].values.oxidize: expected a finite"),
        (lambda record, run, result: result["values"].update(oxidize="1"), "results[0].values.oxidize: expected a finite"),
        (lambda record, run, result: result["values"].update(oxidize=float("nan")), "values.oxidize: expected a finite"),
        (lambda record, run, result: result.update(limit=None), "results[0].limit: expected a finite"),
        (lambda record, run, result: run["results"].append(copy.deepcopy(result)), "runs[0].results[1]: the same measurement as"),
    ]
    texts = [(fault(change), message) for change, message in faults]
    texts += [("[]", "the file: expected an object"), ("{", ":1: not JSON"), ('{"a": 1, "a": 2}', "a: the field is there twice")]
    for text, message in texts:
        try:
            history.parse(text, "f.json")
        except history.HistoryError as error:
            assert str(error).startswith("f.json") and message in str(error), (message, str(error))
            continue
        raise AssertionError(f"accepted, although {message}")
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "wrong.json").write_text(history.dump(sound), encoding="utf-8")
        try:
            history.load(Path(directory))
        except history.HistoryError as error:
            assert history.file_name(sound) in str(error), error
        else:
            raise AssertionError("a wrong name was accepted")
    return len(texts)


def check_recording() -> None:
    """The output of each program becomes a sound record, and recording again replaces only what was measured again."""
    measured = {"prompt": 20.0, "generate": 10.0, "deep": 0.0, "together": 0.0, "peak_bytes": 7}
    row = {
        "file": "target/bench-peers/models/1b-Q4_K_M.gguf",
        "bytes_per_token": 10**9,
        "engines": {"oxidize": measured, "llama.cpp": {**measured, "generate": 5.0}},
        "startup_seconds": 0.5,
        "run_peak_bytes": 100,
        "run_allowed_bytes": 200,
    }
    peers = {
        "machine": {"processor": "x", "bandwidth_gb_s": 30.0},
        "settings": {"threads": 2},
        "tests": {"prompt": "pp512", "generate": "tg64", "deep": "tg16 @ d4096"},
        "results": [row, {**row, "file": "m.gguf", "startup_seconds": None, "run_peak_bytes": None}],
    }
    speed, memory, startup = measurements.peers(peers)
    assert speed["results"][1] == {
        "model": "1B Q4_K_M",
        "test": "tg64",
        "values": {"oxidize": 10.0, "llama.cpp": 5.0},
        "limit": 30.0,
    }
    assert len(speed["results"]) == 4 and len(memory["results"]) == 3 and len(startup["results"]) == 1
    stream = {"rate": 5.0, "memory": 9}
    serve = {
        "settings": {"model": "1b-Q8_0.gguf", "threads": 2, "words": 20, "tokens": 32},
        "streams": {"oxidize/1": stream, "oxidize/16": {"rate": 8.0, "memory": 11}, "llama-server/16": stream},
        "idle": {"oxidize": 3},
    }
    together, resident = measurements.serve(serve)
    assert together["results"][1]["values"] == {"oxidize": 8.0, "llama-server": 5.0}
    assert resident["results"][1]["values"] == {"oxidize": 11, "llama-server": 9}
    summary = lambda covered, count: {"covered": covered, "count": count}
    files = [
        ("/x/crates/oxidize-core/src/a.rs", 3, 4),
        ("/x/crates/oxidize-core/src/b/c.rs", 0, 4),
        ("C:\\x\\crates\\oxidize-cli\\src\\main.rs", 1, 1),
        ("/x/other.rs", 1, 1),
    ]
    report = {
        "type": "llvm.coverage.json.export",
        "data": [{"files": [{"filename": name, "summary": {"lines": summary(a, b), "functions": summary(0, 0)}} for name, a, b in files]}],
    }
    (coverage,) = measurements.coverage(report)
    assert {result["crate"]: result["values"] for result in coverage["results"]} == {
        "oxidize-cli": {"lines": 100.0},
        "oxidize-core": {"lines": 37.5},
        "workspace": {"lines": 50.0},
    }
    compared = measurements.compare({"mean_kl": 0.01, "chunks": 4, "n_ctx": 512}, "M", "Q4_K_M", "none")
    rows = [{"type": "Q8_0", "importance": "none", "oxidize": 0.1, "llama.cpp": 0.2}]
    quantized = measurements.quantize({"settings": {"model": "M.gguf", "ctx": 512, "chunks": 4}, "results": rows})
    counted = measurements.instructions({"compiler": "rustc 1.0.0", "counts": {"Q4_K x4": 5}})
    size = measurements.size(3 << 20, "oxidize", "x86_64-unknown-linux-gnu", "release")
    record = {**sample(0, MACHINES[0]), "runs": []}
    for runs in ([speed, memory, startup], [together, resident], [coverage], compared, quantized, counted, size):
        history.merge(record, copy.deepcopy(runs))
    history.check(record, "recorded")
    assert {run["kind"] for run in record["runs"]} == set(history.KINDS)
    # Both divergences are of one experiment, and another value of one of them replaces it.
    history.merge(record, measurements.compare({"mean_kl": 0.02, "chunks": 4, "n_ctx": 512}, "M", "Q4_K_M", "none"))
    divergences = [run for run in record["runs"] if run["kind"] == "kl"]
    assert [result["values"]["oxidize"] for run in divergences for result in run["results"]] == [0.02, 0.1], divergences
    assert Html(page.render([record])).text.count("No measurements yet") == 0

    for reader, data in [("instructions", {"counts": {"Q4_K": 5}}), ("instructions", {"x x1": 0.5}), ("coverage", {})]:
        try:
            measurements.READERS[reader](data)
        except measurements.MeasurementError:
            continue
        raise AssertionError(f"{reader} accepted {data}")


def check_comparison() -> None:
    old = {"A x1": 1000, "B x1": 1000, "C x1": 1000, "D x1": 1000, "E x1": 5}
    new = {"A x1": 1010, "B x1": 1011, "C x1": 900, "D x1": 2000, "F x1": 5}
    text = comparison.markdown(old, new)
    rows = re.findall(r"^\| (\w x1) .*\| \**([+-][\d.]+ %)", text, re.MULTILINE)
    assert rows == [("D x1", "+100.0 %"), ("B x1", "+1.1 %"), ("C x1", "-10.0 %")], text
    assert "2 of 4 kernels take more instructions than before, 1 fewer" in text, text
    assert "New: F x1." in text and "Gone: E x1." in text, text
    assert "No change above 1 % in 5 kernels." in comparison.markdown(old, old)
    assert comparison.counts(sample(0, MACHINES[0])) == {"Q4_K x4": 100000}
    assert comparison.counts({"counts": old}) == comparison.counts(old) == old


def run() -> None:
    check_lines()
    check_empty()
    faults = check_records()
    check_recording()
    check_comparison()
    print(f"self-test passed: {faults} faults found")
