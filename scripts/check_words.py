#!/usr/bin/env python3
"""Check that no word of scripts/banned_words.txt is in code, documentation, help texts or scripts.

    check_words.py [--count] [--self-test]

Prints file:line, the word and what to write instead, and exits with 1 if there is any. `--count`
prints only how often each rule is broken. The format of the list is described at its top.
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = "scripts/banned_words.txt"
SUFFIXES = {".rs", ".md", ".py", ".sh", ".toml", ".html", ".css", ".js", ".mjs", ".yml", ".yaml", ".rb", ".service"}
# Scripts and Dockerfiles have no suffix; licenses and data have none either.
NAMES = {"Makefile", "Dockerfile"}
EXCLUDED = {LIST, "scripts/check_words.py", "LICENSE-APACHE", "LICENSE-MIT"}


class ListError(Exception):
    """A mistake in the list of words."""


@dataclass
class Rule:
    """One banned pattern."""

    pattern: re.Pattern[str]
    use: str = ""
    only: list[str] = field(default_factory=list)
    allow: list[tuple[str, re.Pattern[str] | None]] = field(default_factory=list)

    def applies(self, file: str) -> bool:
        return not self.only or any(fnmatch(file, glob) for glob in self.only)

    def allows(self, file: str, line: str) -> bool:
        return any(fnmatch(file, glob) and (needed is None or needed.search(line)) for glob, needed in self.allow)


def parse(text: str) -> list[Rule]:
    """The rules of a list."""
    rules: list[Rule] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            if not line.startswith(" "):
                rules.append(Rule(re.compile(line.rstrip(), re.MULTILINE)))
                continue
            key, _, value = line.strip().partition(":")
            value = value.strip()
            if not rules or not value:
                raise ListError(f"{LIST}:{number}: expected a pattern before, and a value after {key!r}")
            if key == "use":
                rules[-1].use = value
            elif key == "only":
                rules[-1].only += value.split()
            elif key == "allow":
                glob, _, needed = value.partition(" ")
                rules[-1].allow.append((glob, re.compile(needed.strip()) if needed.strip() else None))
            else:
                raise ListError(f"{LIST}:{number}: unknown key {key!r}")
        except re.error as error:
            raise ListError(f"{LIST}:{number}: {error}") from error
    for rule in rules:
        if not rule.use:
            raise ListError(f"{LIST}: {rule.pattern.pattern} has no 'use'")
    return rules


def findings(rules: list[Rule], file: str, text: str) -> list[tuple[int, str, Rule]]:
    """Line, word and rule of each banned word in a file."""
    found = []
    for rule in rules:
        if not rule.applies(file) or not rule.pattern.search(text):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if (match := rule.pattern.search(line)) and not rule.allows(file, line):
                found.append((number, match.group().strip(), rule))
    return sorted(found, key=lambda item: item[0])


def checked_files() -> list[str]:
    """Tracked files, and new ones that are not ignored, of the checked types."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted({name for name in names if name and name not in EXCLUDED and is_checked(ROOT / name)})


def is_checked(path: Path) -> bool:
    if not path.is_file():
        return False
    if path.suffix in SUFFIXES or path.name in NAMES:
        return True
    return not path.suffix and path.open("rb").read(2) == b"#!"


def self_test() -> None:
    """Check that the list is sound, that banned words are found and that allowed ones are not."""
    rules = parse(
        "\\bold_name\\b\n  use: new_name\n  only: *.rs\n  allow: src/alias.rs hidden\n# comment\n\n(?i)colour\n  use: color\n"
    )
    text = "let x = old_name;\n// hidden old_name\nColours\n"
    found = [(line, word) for line, word, _ in findings(rules, "src/a.rs", text)]
    assert found == [(1, "old_name"), (2, "old_name"), (3, "Colour")], found
    assert [line for line, _, _ in findings(rules, "src/alias.rs", text)] == [1, 3]
    assert [line for line, _, _ in findings(rules, "a.md", text)] == [3]
    for bad in ["(", "word\n", "  use: x\n", "word\n  use: x\n  what: y\n"]:
        try:
            parse(bad)
        except ListError:
            continue
        raise AssertionError(f"accepted: {bad!r}")
    rules = parse((ROOT / LIST).read_text(encoding="utf-8"))
    banned = {
        "a.rs": "spell_out|SpellOut|OnTheWayIn|customary|side_by_side|each_alone|half_layer|Payoff|Mailbox|remark!(|say!(|quantised|requantise"
        "|Quantisation|/// What it is.|    //! How it works|/// Whether it is|/// Names it.|Wishes|Gives::Logits|Sees::Past|ExpertMatrix"
        "|Telling|DIRECTIONS|feed_back|Levelled|CENTRED|normalised|behaviour|Colours|centred|licence|folder",
        "a.md": "`--spell-out 100`|oxidize choice|--activations fine|optimise",
    }
    for file, words in banned.items():
        for word in words.split("|"):
            assert findings(rules, file, word), f"not found in {file}: {word}"
    sound = "repack|quantize|quantization|optimistic|organism|/// Returns how|// What follows is a comment|behavior|colors|analyses|essay!|precise"
    for word in sound.split("|"):
        assert not findings(rules, "a.rs", word), f"found by mistake: {word}"
    print(f"self-test passed: {len(rules)} rules")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", action="store_true", help="print only how often each rule is broken")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        self_test()
        return 0
    try:
        rules = parse((ROOT / LIST).read_text(encoding="utf-8"))
    except ListError as error:
        sys.exit(str(error))
    files = checked_files()
    total, counts = 0, {id(rule): 0 for rule in rules}
    for file in files:
        for line, word, rule in findings(rules, file, (ROOT / file).read_text(encoding="utf-8")):
            total += 1
            counts[id(rule)] += 1
            if not args.count:
                print(f"{file}:{line}: {word!r}: write {rule.use}")
    if args.count:
        for rule in rules:
            print(f"{counts[id(rule)]:6} {rule.pattern.pattern[:100]}")
    print(f"{len(files)} files, {len(rules)} rules, {total} banned words")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
