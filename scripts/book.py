#!/usr/bin/env python3
"""Build docs/ as a book with mdBook, put rustdoc's pages beside it, and check every link.

    book.py [--repository https://github.com/OWNER/NAME] [--doc target/doc] [--book target/book]

The API documentation is copied to api/ in the book. Links of a page to files outside docs/ become
links to the repository, if its address is known (`--repository`, or `repository` in Cargo.toml), and
links into this checkout otherwise. Fails if a link within the book leads nowhere.
"""

import argparse
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from os.path import relpath
from pathlib import Path
from posixpath import normpath
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"""(?P<before><(?:a|img)\b[^>]*?\b(?:href|src)=")(?P<target>[^"]*)(?=")""")
# Where the API documentation starts, in the order of preference.
CRATES = ["oxidize", "oxidize_core"]


def repository() -> str | None:
    """The address in Cargo.toml."""
    match = re.search(r'^repository = "([^"]+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    return match.group(1) if match else None


def add_api(doc: Path, book: Path) -> None:
    """Copy rustdoc's pages, and let api/index.html lead to the main crate."""
    crate = next((crate for crate in CRATES if (doc / crate / "index.html").exists()), None)
    if crate is None:
        sys.exit(f"book: error: no API documentation in {doc}; run make docs")
    shutil.copytree(
        doc,
        book / "api",
        ignore=shutil.ignore_patterns("*.json", ".lock", ".rustdoc_fingerprint.json"),
        dirs_exist_ok=True,
    )
    page = f'<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={crate}/index.html">'
    (book / "api/index.html").write_text(f'{page}<a href="{crate}/index.html">API documentation</a>\n')


def outside(page: str, target: str) -> str | None:
    """The path in the repository that a link of a page leads to, if that is outside docs/."""
    if not target or target.startswith(("/", "#")) or urlsplit(target).scheme:
        return None
    path = normpath(f"docs/{Path(page).parent.as_posix()}/{unquote(urlsplit(target).path)}")
    if path == "docs" or path.startswith("docs/"):
        return None
    # mdBook takes every page of Markdown for one of its own.
    markdown = re.sub(r"\.html$", ".md", path)
    return markdown if (ROOT / markdown).exists() else path


def lead_outside(book: Path, page: str, address: str | None) -> None:
    """Rewrite the links of one page to files outside docs/."""

    def replace(match: re.Match[str]) -> str:
        path = outside(page, match.group("target"))
        if path is None:
            return match.group()
        fragment = urlsplit(match.group("target")).fragment
        if address:
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            base = f"{address.removesuffix('/').removesuffix('.git')}/{kind}/main/"
        else:
            base = f"{relpath(ROOT, (book / page).parent)}/"
        return match.group("before") + base + path + (f"#{fragment}" if fragment else "")

    text = (book / page).read_text(encoding="utf-8")
    (book / page).write_text(LINK.sub(replace, text), encoding="utf-8")


class Html(HTMLParser):
    """The links and ids of one page."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[tuple[int, str]] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if value and (name == "id" or name == "name" and tag == "a"):
                self.ids.add(value)
            elif value and name in ("href", "src"):
                self.links.append((self.getpos()[0], value))


def broken_links(book: Path, pages: list[str]) -> list[str]:
    """Links of the pages that lead to no file or no id."""
    parsed = {page: Html((book / page).read_text(encoding="utf-8")) for page in pages}
    broken = []
    for page, html in parsed.items():
        # print.html repeats the other pages with all their links; 404.html is served from any directory.
        if page in ("print.html", "404.html"):
            continue
        for line, target in html.links:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = normpath((Path(page).parent / unquote(parts.path)).as_posix()) if parts.path else page
            if not (book / path).exists():
                broken.append(f"{page}:{line}: {target}: no such file")
            elif parts.fragment and path in parsed and unquote(parts.fragment) not in parsed[path].ids:
                broken.append(f"{page}:{line}: {target}: no such anchor")
    return broken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", default=repository(), help="address of the repository")
    parser.add_argument("--doc", type=Path, default=ROOT / "target/doc", help="rustdoc's pages")
    parser.add_argument("--book", type=Path, default=ROOT / "target/book", help="the directory for the book")
    parser.add_argument("--without-api", action="store_true", help="leave the API documentation out")
    args = parser.parse_args()

    book = args.book.resolve()
    subprocess.run(["mdbook", "build", ROOT / "docs", "--dest-dir", book], check=True)
    pages = sorted(
        path.relative_to(book).as_posix() for path in book.rglob("*.html") if "api" not in path.relative_to(book).parts
    )
    if not args.without_api:
        add_api(args.doc, book)
    for page in pages:
        lead_outside(book, page, args.repository)
    broken = broken_links(book, pages)
    print(*broken, sep="\n", end="\n" * bool(broken))
    print(f"book: {len(pages)} pages, {book}/index.html")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
