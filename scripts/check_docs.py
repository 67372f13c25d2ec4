#!/usr/bin/env python3
"""Check the pages under docs/ and the pages at the root, without a network and without mdBook.

    check_docs.py [--self-test]

Fails, with file and line, when

- a page under docs/ is missing from docs/SUMMARY.md, or is listed twice;
- a relative link, an image or a #anchor of a page does not resolve (anchors are the heading slugs of
  GitHub and mdBook, which agree, and `<a id="...">`);
- a page of the book links to a directory inside docs/, which GitHub shows and mdBook does not;
- a file anywhere in the repository mentions a page or image under docs/ that is not there;
- a page names a source file in `code` that is not there, by its path or the end of its path. Names with placeholders in capitals, and files that the page tells the reader to add ("new"), pass.
"""

import argparse
import html
import re
import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath
from posixpath import normpath
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
SUMMARY = "docs/SUMMARY.md"
# Files that are read for mentions such as "see docs/serve.md".
MENTIONING = {".rs", ".py", ".sh", ".toml", ".yml", ".yaml", ".html", ".js", ".mjs", ".service", ".md", ""}

FENCE = re.compile(r"\s*(?:>\s*)*(?:(?:[-*+]|\d+[.)])\s+)?(`{3,}|~{3,})")
HEADING = re.compile(r" {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
# Text may hold one level of brackets: [`a[0]`](x) or [![image](y)](x).
INLINE = re.compile(
    r"\[(?:[^\[\]]|\[[^\[\]]*\](?:\([^()]*\))?)*\]\(\s*(<[^<>]*>|(?:[^\s()]|\([^\s()]*\))*)(?:\s+(?:\"[^\"]*\"|'[^']*'))?\s*\)"
)
IMAGE = re.compile(r"!\[[^\[\]]*\]\(\s*(<[^<>]*>|(?:[^\s()]|\([^\s()]*\))*)(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r" {0,3}\[([^\[\]^][^\[\]]*)\]:\s+(<[^<>]*>|\S+)")
FULL_REFERENCE = re.compile(r"\[([^\[\]]+)\]\[([^\[\]]*)\]")
HTML_TARGET = re.compile(
    r"<(?:a|img|source|video)\b[^>]*?\b(?:href|src|srcset)\s*=\s*[\"']([^\"']*)[\"']", re.IGNORECASE
)
HTML_ID = re.compile(r"<\w+\b[^>]*?\b(?:id|name)\s*=\s*[\"']([^\"']+)[\"']", re.IGNORECASE)
MENTION = re.compile(r"(?<![\w/.-])docs/[\w./-]*\w\.(?:md|svg|png)\b")
# Source files in inline code. A path of one part, such as `lib.rs`, says nothing about its place.
SOURCE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:rs|py|toml|txt|tsv|yml|service))`")
# Files of models and of the reader's project.
FOREIGN = re.compile(r"[A-Z]{2,}|foo|mydevice|\.oxidize|/etc/|(^|/)\d_")
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def slug(heading: str) -> str:
    """The anchor of a heading: lower case, spaces as hyphens, punctuation dropped."""
    heading = re.sub(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\](?:\([^()]*\)|\[[^\[\]]*\])", r"\1", heading)
    heading = re.sub(r"<[^<>]*>", "", heading)
    heading = html.unescape(heading)
    # Emphasis goes away, underscores inside words stay.
    heading = re.sub(r"(?<!\w)(_{1,3})(?=\S)(.+?)(?<=\S)\1(?!\w)", r"\2", heading.replace("*", ""))
    return "".join("-" if c == " " else c for c in heading.lower() if c.isalnum() or c in " -_")


class Page:
    """The links and anchors of one Markdown page."""

    def __init__(self, text: str):
        self.links: list[tuple[int, str]] = []
        self.undefined: list[tuple[int, str]] = []
        self.anchors: set[str] = set()
        lines = self.prose(text)
        definitions = {}
        for number, line in lines:
            if match := DEFINITION.match(line):
                definitions[" ".join(match.group(1).lower().split())] = match.group(2)
                self.links.append((number, match.group(2)))
        counts: dict[str, int] = {}
        for at, (number, line) in enumerate(lines):
            match = HEADING.match(line)
            heading = match.group(2) if match else None
            following = lines[at + 1][1] if at + 1 < len(lines) and lines[at + 1][0] == number + 1 else ""
            if heading is None and line.strip() and re.fullmatch(r" {0,3}(=+|-+)\s*", following):
                heading = line.strip()
            if heading is not None:
                # Code in a heading counts with its text, unlike code in a paragraph.
                name = slug(self.raw[number - 1].strip().lstrip("#").strip().rstrip("#").replace("`", ""))
                counts[name] = counts.get(name, -1) + 1
                self.anchors.add(f"{name}-{counts[name]}" if counts[name] else name)
            self.anchors.update(HTML_ID.findall(line))
            targets = [m.group(1) for m in INLINE.finditer(line)] + [m.group(1) for m in IMAGE.finditer(line)]
            targets += [
                part.split()[0] for m in HTML_TARGET.finditer(line) for part in m.group(1).split(",") if part.split()
            ]
            self.links += [(number, target) for target in dict.fromkeys(targets)]
            for match in FULL_REFERENCE.finditer(INLINE.sub("", line)):
                name = " ".join((match.group(2) or match.group(1)).lower().split())
                if name not in definitions:
                    self.undefined.append((number, name))

    def prose(self, text: str) -> list[tuple[int, str]]:
        """Numbered lines without code blocks, inline code and comments."""
        self.raw = text.splitlines()
        text = re.sub(r"<!--.*?-->", lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL)
        lines, fence, previous_blank = [], None, True
        for number, line in enumerate(text.splitlines(), 1):
            match = FENCE.match(line)
            if fence:
                if match and match.group(1).startswith(fence) and not line[match.end() :].strip():
                    fence = None
                continue
            if match:
                fence = match.group(1)
                continue
            indented = line.startswith(("    ", "\t")) and not re.match(r"\s+([-*+]|\d+[.)])\s", line)
            if indented and previous_blank and not self.in_list(lines):
                continue
            previous_blank = not line.strip() or indented and previous_blank
            lines.append((number, line))
        # Inline code may span lines, so it is blanked in the text as a whole.
        joined = "\n".join(line for _, line in lines)
        joined = re.sub(
            r"(?<!`)(`+)(?!`)((?:[^\n]|\n(?!\s*\n))+?)(?<!`)\1(?!`)", lambda m: re.sub(r"[^\n]", "x", m.group()), joined
        )
        # So may the text of a link; its line is the one where the link ends.
        numbers = [number for number, _ in lines]
        joined = re.sub(r"(\[[^\[\]]*)\n([^\[\]\n]*\]\()", lambda m: f"\n{m.group(1)} {m.group(2)}", joined)
        return list(zip(numbers, joined.split("\n"), strict=True))

    @staticmethod
    def in_list(lines: list[tuple[int, str]]) -> bool:
        """True if the last line that is not indented starts a list item."""
        for _, line in reversed(lines):
            if line.strip() and not line.startswith((" ", "\t")):
                return re.match(r"([-*+]|\d+[.)])\s", line) is not None
        return False


class Checker:
    """Checks one tree of files."""

    def __init__(self, root: Path, files: list[str]):
        self.root = root
        self.files = set(files)
        self.directories = {str(parent) for file in files for parent in PurePosixPath(file).parents}
        self.book = sorted(file for file in files if file.startswith("docs/") and file.endswith(".md"))
        self.pages = {name: Page(self.text(name)) for name in [*ROOT_PAGES, *self.book] if name in self.files}
        self.errors: list[str] = []

    def text(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8")

    def error(self, file: str, line: int, message: str) -> None:
        self.errors.append(f"{file}:{line}: {message}")

    def run(self) -> list[str]:
        """Every error found."""
        self.check_summary()
        for name, page in self.pages.items():
            for line, target in page.links:
                self.check_link(name, line, target.strip("<>"))
            for line, reference in page.undefined:
                self.error(name, line, f"no definition of the link reference [{reference}]")
            self.check_sources(name, page)
        for name in sorted(self.files):
            self.check_mentions(name)
        return self.errors

    def check_summary(self) -> None:
        if SUMMARY not in self.pages:
            self.error(SUMMARY, 1, "the list of pages is missing")
            return
        listed: dict[str, int] = {}
        for line, target in self.pages[SUMMARY].links:
            page = normpath(f"docs/{unquote(target)}")
            if page in listed:
                self.error(SUMMARY, line, f"{target} is listed twice, first in line {listed[page]}")
            listed[page] = line
        for page in self.book:
            if page not in listed and page != SUMMARY:
                self.error(page, 1, f"the page is not listed in {SUMMARY}")

    def check_link(self, name: str, line: int, target: str) -> None:
        if SCHEME.match(target) or target.startswith("//"):
            return
        address, _, anchor = target.partition("#")
        address = unquote(address.partition("?")[0])
        if address.startswith("/"):
            self.error(name, line, f"{target}: a link within the repository has to be relative")
            return
        path = normpath(f"{PurePosixPath(name).parent}/{address}") if address else name
        if path in self.directories and path != name:
            if path == "docs" or path.startswith("docs/") and name.startswith("docs/"):
                self.error(name, line, f"{target}: mdBook cannot link to a directory; link to a page in it")
            elif anchor:
                self.error(name, line, f"{target}: a directory has no anchors")
        elif path not in self.files:
            self.error(name, line, f"{target}: no such file")
        elif anchor and path.endswith(".md"):
            page = self.pages[path] if path in self.pages else Page(self.text(path))
            if unquote(anchor) not in page.anchors:
                self.error(name, line, f"{target}: no heading of {path} has this anchor")
        elif match := re.fullmatch(r"L(\d+)(?:-L(\d+))?", anchor):
            if int(match.group(2) or match.group(1)) > len(self.text(path).splitlines()):
                self.error(name, line, f"{target}: {path} is shorter")

    def check_sources(self, name: str, page: Page) -> None:
        if name == "CHANGELOG.md":
            return
        new = {
            match.group(1)
            for line in page.raw
            if re.search(r"\|\s*new\b", line)
            for match in SOURCE.finditer(line)
        }
        for number, line in enumerate(page.raw, 1):
            for match in SOURCE.finditer(line):
                path = match.group(1)
                if path in new or FOREIGN.search(path) or self.is_source(path):
                    continue
                self.error(name, number, f"{path}: no such source file")

    def is_source(self, path: str) -> bool:
        """True if this is the path of a file, the end of one, or `core/x` for crates/oxidize-core/src/x."""
        crate, _, rest = path.partition("/")
        shortened = f"crates/oxidize-{crate}/src/{rest}"
        return bool(self.files & {path, shortened}) or any(file.endswith(f"/{path}") for file in self.files)

    def check_mentions(self, name: str) -> None:
        path = self.root / name
        if path.suffix not in MENTIONING or name == "scripts/check_docs.py" or not path.is_file():
            return
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return
        if "docs/" not in text:
            return
        for line, content in enumerate(text.splitlines(), 1):
            for mention in MENTION.findall(content):
                if mention not in self.files:
                    self.error(name, line, f"{mention}: no such file")


def repository_files() -> list[str]:
    """Tracked files, and new ones that are not ignored, as far as they exist."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [name for name in dict.fromkeys(names) if name and (ROOT / name).exists()]


def self_test() -> None:
    """Check that a sound tree passes and that every kind of fault is found."""
    good = {
        "README.md": "# Project\n\n[The `serve` page](docs/serve.md#keys-and-limits), [a table](docs/README.md)\n"
        "![plot](docs/images/p.svg) <img src='docs/images/p.svg'> [out](https://example.com/x.md#y)\n"
        "[source](src/lib.rs#L2), [sources](src), [one][ref] `[code](gone.md)` `src/lib.rs` `src/NAME.rs`\n\n[ref]: docs/serve.md\n"
        "\n```sh\n[fenced](gone.md)\n```\n\n    [indented](gone.md)\n\n- item\n\n    [in a list](docs/serve.md)\n",
        "src/lib.rs": "// See docs/serve.md.\n\n",
        "docs/SUMMARY.md": "# Summary\n\n[Intro](README.md)\n- [Serve](serve.md)\n  - [Deep](contributing/deep.md)\n",
        "docs/README.md": "Setext\n======\n\n[up](../README.md#project) [self](#setext) [text over\ntwo lines](serve.md#keys-and-limits-1)\n",
        "docs/serve.md": '# Serve\n## Keys *and* `limits`\n## Keys and limits!\n## `--batch_size`: how\n<a id="old"></a>\n'
        "[a](#--batch_size-how) [b](#old) [c](contributing/deep.md#top)\n",
        "docs/contributing/deep.md": '# [Top](../serve.md)\n[s](<../serve.md> "title") <!-- [x](gone.md) -->\n',
        "docs/images/p.svg": "<svg/>",
    }
    faults = [
        ("docs/lost.md", "# Lost\n", "docs/lost.md:1: the page is not listed"),
        (
            "docs/SUMMARY.md",
            good["docs/SUMMARY.md"] + "- [Again](serve.md)\n",
            "SUMMARY.md:6: serve.md is listed twice, first in line 4",
        ),
        ("docs/SUMMARY.md", None, "SUMMARY.md:1: the list of pages is missing"),
        ("docs/README.md", "a\n\n[x](gone.md)\n", "docs/README.md:3: gone.md: no such file"),
        ("docs/README.md", "[x](#gone)\n", "docs/README.md:1: #gone: no heading"),
        ("docs/README.md", "[x](serve.md#keys-and-limits-2)\n", "README.md:1: serve.md#keys-and-limits-2: no heading"),
        ("docs/README.md", "![x](images/gone.svg)\n", "docs/README.md:1: images/gone.svg: no such file"),
        ("docs/README.md", "[![x](images/gone.svg)](serve.md)\n", "docs/README.md:1: images/gone.svg: no such file"),
        ("docs/README.md", "<img alt='x' src='gone.svg'>\n", "docs/README.md:1: gone.svg: no such file"),
        ("docs/README.md", "[x](contributing)\n", "docs/README.md:1: contributing: mdBook cannot"),
        ("docs/README.md", "[x](/docs/serve.md)\n", "docs/README.md:1: /docs/serve.md: a link within"),
        ("docs/README.md", "[x][gone]\n", "docs/README.md:1: no definition of the link reference [gone]"),
        ("docs/README.md", "[x]: gone.md\n", "docs/README.md:1: gone.md: no such file"),
        ("README.md", "[x](src/lib.rs#L3)\n", "README.md:1: src/lib.rs#L3: src/lib.rs is shorter"),
        ("CHANGELOG.md", "[x](docs/gone.md)\n", "CHANGELOG.md:1: docs/gone.md: no such file"),
        ("src/lib.rs", "\n// See docs/gone.md.\n", "src/lib.rs:2: docs/gone.md: no such file"),
        ("docs/README.md", "a\n\nIn `src/gone.rs`.\n", "docs/README.md:3: src/gone.rs: no such source file"),
    ]

    def check(files: dict[str, str]) -> list[str]:
        with tempfile.TemporaryDirectory() as directory:
            for name, text in files.items():
                path = Path(directory) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return Checker(Path(directory), list(files)).run()

    assert check(good) == [], check(good)
    for name, text, message in faults:
        changed = {file: content for file, content in {**good, name: text}.items() if content is not None}
        errors = check(changed)
        assert any(message in error for error in errors), (message, errors)
    print(f"self-test passed: {len(faults)} faults found")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--self-test", action="store_true")
    if parser.parse_args().self_test:
        self_test()
        return 0
    checker = Checker(ROOT, repository_files())
    errors = checker.run()
    for error in dict.fromkeys(errors):
        print(error)
    links = sum(len(page.links) for page in checker.pages.values())
    print(f"{len(checker.pages)} pages, {links} links, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
