#!/usr/bin/env python3
"""Checks that no test can pass without running, and that none depends on speed.

A test that returns early counts as passed, and nobody reads what it prints. Tests therefore ask the crate
oxidize-testing for data that may be missing; it ends them as ignored. Usage: check_tests.py [--self-test]
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Pattern of the code without line breaks, and what to do instead.
RULES = [
    (
        re.compile(r"\be?print(?:ln)?!\(\s*\"[^\"]*\bskip(?:ped|ping|s)?\b", re.IGNORECASE),
        "end the test with oxidize_testing::skip or missing",
    ),
    (
        re.compile(r"var(?:_os)?\(\s*\"OXIDIZE_(?:TEST_CACHE|SHARED)\""),
        "find data with oxidize_testing::cached or beside, which skip the test where it is missing",
    ),
    (
        re.compile(r"oxidize_testing::main!.*?#\[test\]", re.DOTALL),
        "add the function to the list of main!, which runs nothing else",
    ),
    (re.compile(r"#\[ignore\s*\]"), "give the reason: #[ignore = \"…\"]"),
    (
        re.compile(r"(?:elapsed\(\)|took|spent)\s*<=?\s*(?:[\w:]*::)?Duration::from_(?:millis|micros|secs\(\s*[1-5]?\d\s*\))"),
        "wait for an event, or allow a minute or more",
    ),
]


def test_code(path: Path, text: str) -> tuple[str, int]:
    """The part of a file that is compiled for tests only, and the line before it."""
    if "tests" in path.parts or path.name == "tests.rs":
        return text, 0
    start = text.find("#[cfg(test)]")
    if start < 0:
        return "", 0
    return text[start:], text.count("\n", 0, start)


def faults(path: Path, text: str) -> list[str]:
    code, line = test_code(path, text)
    found = []
    for pattern, advice in RULES:
        for match in pattern.finditer(code):
            at = line + code.count("\n", 0, match.start()) + 1
            found.append(f"{path}:{at}: {advice}")
    return found


def self_test() -> None:
    bad = [
        'eprintln!("SKIPPED: no model")',
        'println!(\n  "skipping {name}"\n)',
        'std::env::var_os("OXIDIZE_TEST_CACHE")',
        "#[ignore]\nfn large() {}",
        "oxidize_testing::main!(a);\n#[test]\nfn b() {}",
        "assert!(start.elapsed() < Duration::from_millis(50));",
        "assert!(took < std::time::Duration::from_secs(5));",
    ]
    for code in bad:
        assert len(faults(Path("crates/a/tests/b.rs"), code)) == 1, code
        assert faults(Path("crates/a/src/b.rs"), code) == [], code
        assert faults(Path("crates/a/src/b.rs"), f"#[cfg(test)]\nmod tests {{{code}}}"), code
    good = [
        'command.env("OXIDIZE_TEST_CACHE", directory)',
        'println!("{n} skips of a list")'.replace("skips", "jumps"),
        '#[ignore = "large: make test-models"]',
        "start.elapsed() < Duration::from_secs(60)",
        "start.elapsed() < TIMEOUT",
    ]
    for code in good:
        assert faults(Path("crates/a/tests/b.rs"), code) == [], code


def main() -> None:
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return
    files = sorted((ROOT / "crates").rglob("*.rs"))
    files = [path for path in files if path.relative_to(ROOT).parts[1] != "oxidize-testing"]
    found = [fault for path in files for fault in faults(path.relative_to(ROOT), path.read_text())]
    if found:
        sys.exit("\n".join(found))
    print(f"{len(files)} files: no test skips in silence or depends on speed")


if __name__ == "__main__":
    main()
