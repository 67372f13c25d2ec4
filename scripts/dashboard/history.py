"""The history of measurements: its schema, and reading, checking and writing it.

A record is one JSON file of docs/dashboard/history, with everything measured of one commit on one machine:

    {
      "format": 1,
      "commit": 40 hexadecimal digits,
      "date": time of the commit in UTC, such as "2026-11-16T05:34:25Z",
      "machine": {"processor": text, "cores": number, "isa": name of OXIDIZE_ISA, "os": text, "note": text},
      "runs": [
        {
          "kind": a key of KINDS, which also gives the unit and the labels of the results,
          "title": the experiment; a line joins only runs of the same title,
          "threads": number,
          "command": command that repeats it,
          "source": page and anchor, or script, that the figures are from,
          "note": text,
          "results": [{labels of the kind, "values": {name: number}, "limit": number}]
        }
      ]
    }

`cores`, `isa`, `os`, `note`, `threads`, `command` and `limit` may be missing. The names of the values are engines, or
what was counted (`lines`, `functions`). No text may hold an absolute path. The file is called DATE-COMMIT-MACHINE.json.
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

FORMAT = 1
# A machine that a page did not name. Two of them may be different machines.
NOT_RECORDED = "not recorded"
# Fields that tell machines apart.
IDENTITY = ("processor", "cores", "isa", "os")

COMMIT = re.compile(r"[0-9a-f]{40}")
DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ")
ABSOLUTE_PATH = re.compile(r"(?:^|[\s=:'\"(])(?:/(?=\w)|~/|[A-Za-z]:\\|file://)")


class HistoryError(Exception):
    """A fault in a record, with its file and field."""


@dataclass(frozen=True)
class Kind:
    """One kind of measurement."""

    heading: str
    unit: str
    labels: dict[str, type]


KINDS = {
    "speed": Kind("Speed", "tokens/s", {"model": str, "test": str}),
    "memory": Kind("Memory", "bytes", {"model": str, "test": str}),
    "startup": Kind("Start-up", "seconds", {"model": str}),
    "size": Kind("Binary size", "bytes", {"target": str, "profile": str}),
    "kl": Kind("KL divergence", "nats", {"model": str, "type": str, "importance": str}),
    "coverage": Kind("Coverage", "percent", {"crate": str}),
    "instructions": Kind("Instruction counts", "instructions", {"kernel": str, "tokens": int}),
}


class Fields:
    """An object of a record while it is checked; errors name the file and the path of the field."""

    def __init__(self, file: str, path: str, value: object, required: set[str], optional: set[str] = frozenset()):
        self.file, self.path = file, path
        if not isinstance(value, dict):
            self.fail("", f"expected an object, found {kind_of(value)}")
        self.value = value
        if missing := sorted(required - value.keys()):
            self.fail(missing[0], "the field is missing")
        if unknown := sorted(value.keys() - required - optional):
            self.fail(unknown[0], f"unknown field; known are {', '.join(sorted(required | optional))}")

    def fail(self, name: str, message: str) -> None:
        field = f"{self.path}.{name}" if self.path and name else self.path or name or "the file"
        raise HistoryError(f"{self.file}: {field}: {message}")

    def text(self, name: str) -> str | None:
        value = self.value.get(name)
        if name not in self.value:
            return None
        if not isinstance(value, str) or not value.strip():
            self.fail(name, f"expected a text that is not empty, found {kind_of(value)}")
        if ABSOLUTE_PATH.search(value):
            self.fail(name, f"{value!r} has an absolute path; name files relative to the repository")
        return value

    def matching(self, name: str, pattern: re.Pattern[str], example: str) -> str:
        value = self.value[name]
        if not isinstance(value, str) or not pattern.fullmatch(value):
            self.fail(name, f"expected {example}, found {value!r}")
        return value

    def count(self, name: str) -> int | None:
        value = self.value.get(name)
        if name in self.value and (type(value) is not int or value < 1):
            self.fail(name, f"expected a whole number from 1, found {value!r}")
        return value

    def number(self, name: str) -> float | None:
        value = self.value.get(name)
        if name not in self.value:
            return None
        if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
            self.fail(name, f"expected a finite number from 0, found {value!r}")
        return value

    def items(self, name: str) -> list:
        value = self.value[name]
        if not isinstance(value, list) or not value:
            self.fail(name, f"expected a list that is not empty, found {kind_of(value)}")
        return value


def kind_of(value: object) -> str:
    """A value of JSON in words."""
    if value in ("", [], {}) and not isinstance(value, bool):
        return f"an empty {kind_of_type(value)}"
    return kind_of_type(value)


def kind_of_type(value: object) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "true or false", int: "number", float: "number"}
    return names.get(type(value), "null")


def check(record: object, file: str) -> dict:
    """The record itself, if it follows the schema."""
    top = Fields(file, "", record, {"format", "commit", "date", "machine", "runs"})
    if record["format"] != FORMAT or type(record["format"]) is not int:
        top.fail("format", f"expected {FORMAT}, found {record['format']!r}")
    top.matching("commit", COMMIT, "40 hexadecimal digits")
    top.matching("date", DATE, "a time such as 2026-11-16T05:34:25Z")
    machine = Fields(file, "machine", record["machine"], {"processor"}, {"cores", "isa", "os", "note"})
    machine.count("cores")
    for name in ("processor", "isa", "os", "note"):
        machine.text(name)
    seen: dict[tuple, str] = {}
    for index, run in enumerate(top.items("runs")):
        check_run(file, f"runs[{index}]", run, seen)
    return record


def check_run(file: str, path: str, value: object, seen: dict[tuple, str]) -> None:
    """Checks a run; `seen` has the results so far, since each may be there only once."""
    run = Fields(file, path, value, {"kind", "title", "source", "results"}, {"threads", "command", "note"})
    kind = value["kind"]
    if not isinstance(kind, str) or kind not in KINDS:
        run.fail("kind", f"unknown kind {kind!r}; known are {', '.join(KINDS)}")
    for name in ("title", "source", "command", "note"):
        run.text(name)
    run.count("threads")
    labels = KINDS[kind].labels
    for index, item in enumerate(run.items("results")):
        result = Fields(file, f"{path}.results[{index}]", item, {*labels, "values"}, {"limit"})
        for name, label_type in labels.items():
            result.text(name) if label_type is str else result.count(name)
        result.number("limit")
        values = Fields(file, f"{result.path}.values", item["values"], set(), set(item["values"]))
        if not item["values"]:
            values.fail("", "expected at least one value")
        for name in item["values"]:
            values.number(name)
        key = (kind, value["title"], value.get("threads"), *(item[name] for name in labels))
        if key in seen:
            result.fail("", f"the same measurement as {seen[key]}")
        seen[key] = result.path


def parse(text: str, file: str) -> dict:
    """A record from JSON."""

    def pairs(items: list[tuple[str, object]]) -> dict:
        names = [name for name, _ in items]
        if twice := [name for name in names if names.count(name) > 1]:
            raise HistoryError(f"{file}: {twice[0]}: the field is there twice")
        return dict(items)

    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise HistoryError(f"{file}:{error.lineno}: not JSON: {error.msg}") from None
    return check(value, file)


def load(directory: Path) -> list[dict]:
    """All records of a directory, in the order of their commits; none if it does not exist."""
    records = []
    for path in sorted(directory.glob("*.json")):
        record = parse(path.read_text(encoding="utf-8"), path.name)
        if path.name != file_name(record):
            raise HistoryError(f"{path.name}: the name of this commit and machine is {file_name(record)}")
        records.append(record)
    return sorted(records, key=lambda record: (record["date"], record["commit"], machine_name(record["machine"])))


def machine_key(record: dict) -> tuple:
    """Identity of the machine of a record. One that was not recorded is the same only within its commit."""
    machine = record["machine"]
    key = tuple(machine.get(name) for name in IDENTITY)
    return (*key, record["commit"]) if machine["processor"] == NOT_RECORDED else key


def machine_name(machine: dict) -> str:
    """A machine in a few words."""
    name = "Machine not recorded" if machine["processor"] == NOT_RECORDED else machine["processor"]
    cores = machine.get("cores")
    details = [f"{cores} core{'s' * (cores > 1)}" if cores else "", machine.get("isa", ""), machine.get("os", "")]
    return ", ".join([name, *filter(None, details)])


def file_name(record: dict) -> str:
    machine = re.sub(r"[^a-z0-9]+", "-", machine_name(record["machine"]).lower()).strip("-")
    return f"{record['date'][:10]}-{record['commit'][:8]}-{machine}.json"


def dump(record: dict) -> str:
    """A record as JSON with one result per line, so that changes read well."""

    def line(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    head = [f"  {line(name)}: {line(record[name])}," for name in ("format", "commit", "date", "machine")]
    runs = []
    for run in record["runs"]:
        fields = [f"      {line(name)}: {line(value)}," for name, value in run.items() if name != "results"]
        results = ",\n".join(f"        {line(result)}" for result in run["results"])
        runs.append("\n".join(["    {", *fields, '      "results": [', results, "      ]", "    }"]))
    return "\n".join(["{", *head, '  "runs": [', ",\n".join(runs), "  ]", "}", ""])


def merge(record: dict, runs: list[dict]) -> None:
    """Adds runs to a record. A result that is there already is replaced, others of the same run stay."""
    identity = lambda run: (run["kind"], run["title"], run.get("threads"))
    for run in runs:
        before = next((other for other in record["runs"] if identity(other) == identity(run)), None)
        if before is None:
            record["runs"].append(run)
            continue
        labels = KINDS[run["kind"]].labels
        results = {tuple(result[name] for name in labels): result for result in before["results"] + run["results"]}
        before.clear()
        before.update(run, results=list(results.values()))


@dataclass(frozen=True)
class Point:
    """One value of a series."""

    value: float
    record: dict
    run: dict
    result: dict


# Machine, kind, title, threads, labels and name of the value.
SeriesKey = tuple[tuple, str, str, int | None, tuple, str]


def series(records: list[dict]) -> dict[SeriesKey, list[Point]]:
    """Values that a line may join, in the order of commits: one machine, experiment, set of labels and name."""
    found: dict[SeriesKey, list[Point]] = {}
    for record in records:
        for run in record["runs"]:
            labels = KINDS[run["kind"]].labels
            for result in run["results"]:
                at = tuple(result[name] for name in labels)
                for name, value in result["values"].items():
                    key = (machine_key(record), run["kind"], run["title"], run.get("threads"), at, name)
                    found.setdefault(key, []).append(Point(value, record, run, result))
    return found
