#!/usr/bin/env python3
"""Writes the figures of `cargo llvm-cov report --json --summary-only` into the table of CONTRIBUTING.md.

Usage: coverage.py SUMMARY [--check | --self-test]. With --check, fails if a figure is below its bar.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- coverage: written by make coverage -->", "<!-- end of coverage -->"

# Crates that only tests use.
LEFT_OUT = {"oxidize-golden", "oxidize-testing"}
# Parts with a bar of their own, as prefixes of paths.
MODULES = {
    "gguf": "crates/oxidize-core/src/file/gguf/",
    "safetensors": "crates/oxidize-core/src/file/safetensors/",
    "scheduler": "crates/oxidize-core/src/scheduler/",
    "kv": "crates/oxidize-core/src/kv/",
    "grammar": "crates/oxidize-core/src/grammar/",
    "sampling": "crates/oxidize-core/src/sampling/",
}
BAR, MODULE_BAR = 88.0, 95.0


class Total:
    """Counted and covered lines and functions."""

    def __init__(self) -> None:
        self.numbers = {"lines": [0, 0], "functions": [0, 0]}

    def add(self, summary: dict) -> None:
        for kind, total in self.numbers.items():
            total[0] += summary[kind]["count"]
            total[1] += summary[kind]["covered"]

    def percent(self, kind: str) -> float:
        count, covered = self.numbers[kind]
        return 100 * covered / count if count else 100.0


def totals(report: dict) -> dict[str, Total]:
    """Totals of the workspace, of each crate, and of the modules."""
    found: dict[str, Total] = {}
    for file in report["data"][0]["files"]:
        match = re.search(r"crates/([\w-]+)/src/.*", file["filename"])
        if not match or match[1] in LEFT_OUT:
            continue
        names = ["workspace", match[1]]
        names += [name for name, prefix in MODULES.items() if match[0].startswith(prefix)]
        for name in names:
            found.setdefault(name, Total()).add(file["summary"])
    return found


def table(found: dict[str, Total]) -> str:
    def rows(names: list[str]) -> list[str]:
        figures = [(name, found[name]) for name in names]
        return [f"| {name} | {it.percent('lines'):.1f}% | {it.percent('functions'):.1f}% |" for name, it in figures]

    crates = sorted(set(found) - set(MODULES) - {"workspace"})
    modules = [name for name in MODULES if name in found]
    lines = ["| part | lines | functions |", "|---|---|---|"]
    return "\n".join(lines + rows(["workspace"]) + rows(crates) + rows(modules))


def below_the_bar(found: dict[str, Total]) -> list[str]:
    bars = {"workspace": BAR, **dict.fromkeys(MODULES, MODULE_BAR)}
    low = [(name, found[name].percent("lines"), bar) for name, bar in bars.items() if name in found]
    return [f"{name}: {lines:.1f}% of lines, the bar is {bar:.0f}%" for name, lines, bar in low if lines < bar]


def replace(page: str, text: str) -> str:
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return f"{page[:start]}\n\n{text}\n\n{page[end:]}"


def self_test() -> None:
    def file(path: str, count: int, covered: int) -> dict:
        part = {"count": count, "covered": covered}
        return {"filename": f"/somewhere/crates/{path}", "summary": {"lines": part, "functions": part}}

    files = [
        file("oxidize-core/src/kv/mod.rs", 10, 9),
        file("oxidize-core/src/model/mod.rs", 90, 81),
        file("oxidize-cli/src/main.rs", 100, 50),
        file("oxidize-testing/src/lib.rs", 1000, 0),
        file("oxidize-core/tests/a.rs", 1000, 0),
    ]
    found = totals({"data": [{"files": files}]})
    assert round(found["workspace"].percent("lines")) == 70, found["workspace"].numbers
    assert set(found) == {"workspace", "oxidize-core", "oxidize-cli", "kv"}, found
    assert below_the_bar(found) == [
        "workspace: 70.0% of lines, the bar is 88%",
        "kv: 90.0% of lines, the bar is 95%",
    ]
    assert "| oxidize-cli | 50.0% | 50.0% |" in table(found)
    assert replace(f"a {BEGIN} old {END} b", "new") == f"a {BEGIN}\n\nnew\n\n{END} b"
    assert replace(PAGE.read_text(), "x"), "CONTRIBUTING.md has no place for the table"


def main() -> None:
    if "--self-test" in sys.argv:
        self_test()
        return
    found = totals(json.loads(Path(sys.argv[1]).read_text()))
    print(table(found))
    if "--check" in sys.argv:
        if low := below_the_bar(found):
            sys.exit("\n".join(low))
        return
    PAGE.write_text(replace(PAGE.read_text(), table(found)))


if __name__ == "__main__":
    main()
