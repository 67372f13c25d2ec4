#!/usr/bin/env python3
"""Write the Homebrew formula of a release from the template and the checksums of its archives.

    homebrew_formula.py --repository https://github.com/OWNER/NAME --version 1.2.3 --sums SHA256SUMS [-o oxidize.rb]
    homebrew_formula.py --self-test

Without -o, prints the formula. `--sums` is the output of sha256sum for the archives.
"""

import argparse
import re
import sys
from pathlib import Path

TEMPLATE = Path(__file__).resolve().parent.parent / "packaging/homebrew/oxidize.rb"


class FormulaError(Exception):
    """A checksum is missing, or the template has an unknown field."""


def checksums(text: str) -> dict[str, str]:
    """Checksums by file name, from the output of sha256sum."""
    found = {}
    for line in text.splitlines():
        digest, _, name = line.partition(" ")
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise FormulaError(f"not a line of sha256sum: {line!r}")
        found[name.strip().lstrip("*")] = digest
    return found


def formula(template: str, repository: str, version: str, sums: dict[str, str]) -> str:
    """The formula of one version."""
    repository = repository.removesuffix("/").removesuffix(".git")

    def field(match: re.Match[str]) -> str:
        kind, _, target = match.group(1).partition(" ")
        archive = f"oxidize-{version}-{target}.tar.gz"
        if target and archive not in sums:
            raise FormulaError(f"no checksum of {archive}")
        match kind:
            case "homepage":
                return repository
            case "version":
                return version
            case "url":
                return f"{repository}/releases/download/v{version}/{archive}"
            case "sha256":
                return sums[archive]
        raise FormulaError(f"unknown field of the template: {kind}")

    # The comment at the top is about the template.
    return re.sub(r"@([\w -]+)@", field, template.partition("\n")[2])


def self_test() -> None:
    targets = [f"{cpu}-{system}" for cpu in ("x86_64", "aarch64") for system in ("apple-darwin", "unknown-linux-gnu")]
    lines = [f"{at:064x}  oxidize-1.2.3-{target}.tar.gz" for at, target in enumerate(targets)]
    template = TEMPLATE.read_text()
    text = formula(template, "https://github.com/o/n.git", "1.2.3", checksums("\n".join(lines)))
    assert "@" not in text and text.startswith("class Oxidize < Formula"), text
    assert 'url "https://github.com/o/n/releases/download/v1.2.3/oxidize-1.2.3-aarch64-apple-darwin.tar.gz"' in text
    assert len(set(re.findall(r'sha256 "([0-9a-f]{64})"', text))) == 4
    for sums, wrong_template in [(lines[1:], template), (lines, template + "@gone@")]:
        try:
            formula(wrong_template, "https://github.com/o/n", "1.2.3", checksums("\n".join(sums)))
        except FormulaError:
            continue
        raise AssertionError("accepted")
    print("self-test passed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", help="address of the repository")
    parser.add_argument("--version", help="version without the v")
    parser.add_argument("--sums", type=Path, help="the SHA256SUMS of the release")
    parser.add_argument("-o", "--output", type=Path, help="default: standard output")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        self_test()
        return
    if not (args.repository and args.version and args.sums):
        parser.error("--repository, --version and --sums are needed")
    try:
        text = formula(TEMPLATE.read_text(), args.repository, args.version, checksums(args.sums.read_text()))
    except FormulaError as error:
        sys.exit(f"homebrew_formula: error: {error}")
    if args.output:
        args.output.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
