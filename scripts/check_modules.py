#!/usr/bin/env python3
"""Check that the top-level modules of a crate have no dependency cycle.

    check_modules.py [--source crates/oxidize-core/src] [--edges] [--edge A B] [--self-test]

A module is a directory or a file directly under the source directory. There is an edge a -> b when
code of module a names module b, as `crate::b::...`, `use crate::{b, ...}` or through enough
`super::`. A name that lib.rs re-exports (`pub use error::Error`) counts for the module that defines
it. Comments, strings and code under `#[cfg(test)]` do not count, and neither do edges out of the
modules in AGGREGATES.

Prints every strongly connected component of more than one module and the edges in it, and exits
with 1 if there is any. `--edges` prints all edges with their counts, `--edge A B` every line that
makes the edge A -> B.
"""

import argparse
import contextlib
import io
import random
import re
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Comments, literals, lifetimes, identifiers, paths and single characters, in the order that they are tried.
TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*)
  | (?P<raw>b?c?r(?P<hashes>\#*)")
  | (?P<string>[bc]?"(?:\\.|[^"\\])*")
  | (?P<char>b?'(?:\\(?:x..|u\{[^}]*\}|.)|[^\\'])')
  | (?P<lifetime>'[A-Za-z_]\w*)
  | (?P<word>(?:r\#)?[A-Za-z_]\w*|\d\w*)
  | (?P<colons>::)
  | (?P<newline>\n)
  | (?P<mark>\S)
    """,
    re.VERBOSE | re.DOTALL,
)

# Modules that depend on all others and may be used by all: `error` combines the errors of all modules, and every
# module returns it.
AGGREGATES = {"error"}

CLOSING = {"{": "}", "(": ")", "[": "]"}


@dataclass(frozen=True)
class Token:
    text: str
    line: int


def tokenize(source: str) -> list[Token]:
    """Words, `::` and punctuation, without comments and literals."""
    tokens, at, line = [], 0, 1
    while match := TOKEN.search(source, at):
        kind, start, at = match.lastgroup, match.start(), match.end()
        if match.group("raw"):
            end = source.find('"' + match.group("hashes"), at)
            at = len(source) if end < 0 else end + 1 + len(match.group("hashes"))
        elif kind == "comment" and match.group() == "/*":
            depth = 1
            while depth and (mark := re.compile(r"/\*|\*/").search(source, at)):
                depth += 1 if mark.group() == "/*" else -1
                at = mark.end()
            if depth:
                at = len(source)
        elif kind in ("word", "colons", "mark"):
            tokens.append(Token(match.group().removeprefix("r#"), line))
        line += source.count("\n", start, at)
    return tokens


def skip_group(tokens: list[Token], at: int) -> int:
    """The index after the bracket that closes the one at `at`."""
    depth = 0
    while at < len(tokens):
        depth += (tokens[at].text in CLOSING) - (tokens[at].text in CLOSING.values())
        at += 1
        if depth == 0:
            break
    return at


def skip_item(tokens: list[Token], at: int) -> int:
    """The index after the item, statement or field that starts at `at`."""
    while at < len(tokens):
        text = tokens[at].text
        if text in (";", ","):
            return at + 1
        if text == "{":
            return skip_group(tokens, at)
        if text in CLOSING.values():
            return at
        at = skip_group(tokens, at) if text in CLOSING else at + 1
    return at


def is_test_only(attribute: list[str]) -> bool:
    """True for `cfg(test)` and `cfg(all(test, ...))`, not for `cfg(any(test, ...))` or `cfg(not(test))`."""
    return attribute[:3] == ["cfg", "(", "test"] or attribute[:5] == ["cfg", "(", "all", "(", "test"]


def without_tests(tokens: list[Token]) -> tuple[list[Token], set[str]]:
    """The tokens that are compiled outside tests, and the names of `#[cfg(test)] mod name;`."""
    kept, test_files, at = [], set(), 0
    while at < len(tokens):
        if tokens[at].text != "#" or at + 1 >= len(tokens) or tokens[at + 1].text not in ("[", "!"):
            kept.append(tokens[at])
            at += 1
            continue
        bracket = at + 1 + (tokens[at + 1].text == "!")
        end = skip_group(tokens, bracket)
        if is_test_only([token.text for token in tokens[bracket + 1 : end]]):
            while end < len(tokens) and tokens[end].text == "#":
                end = skip_group(tokens, end + 1)
            item = skip_item(tokens, end)
            texts = [token.text for token in tokens[end:item]]
            if "mod" in texts[:5] and texts[-1] == ";":
                test_files.add(texts[-2])
            end = item
        at = end
    return kept, test_files


@dataclass(frozen=True)
class Reference:
    """A path after `crate::` (no levels) or `super::super::` (two levels), within `depth` inline modules."""

    levels: int | None
    names: tuple[str, ...]
    line: int
    depth: int


def expand(tokens: list[Token], at: int) -> list[tuple[tuple[str, ...], int]]:
    """The paths that start at `at` with their lines: `a::{b, c}` is `a::b` and `a::c`."""
    names = []
    while at < len(tokens):
        token = tokens[at]
        if token.text == "{":
            found, end, at = [], skip_group(tokens, at), at + 1
            while at < end - 1:
                found += [((*names, *rest), line) for rest, line in expand(tokens, at)]
                while at < end - 1 and tokens[at].text != ",":
                    at = skip_group(tokens, at) if tokens[at].text == "{" else at + 1
                at += 1
            return found
        names.append(token.text)
        if at + 1 >= len(tokens) or tokens[at + 1].text != "::":
            break
        at += 2
    return [(tuple(names), token.line)]


def references(tokens: list[Token]) -> list[Reference]:
    """Every path after `crate::` and `super::`."""
    found, at, braces, inline = [], 0, 0, []
    while at < len(tokens):
        text = tokens[at].text
        after = tokens[at + 1].text if at + 1 < len(tokens) else ""
        before = tokens[at - 1].text if at else ""
        if text == "{":
            braces += 1
            if at > 1 and tokens[at - 2].text == "mod":
                inline.append(braces)
        elif text == "}":
            if inline and inline[-1] == braces:
                inline.pop()
            braces -= 1
        elif text in ("crate", "super") and after == "::" and before not in ("in", "::"):
            levels = None if text == "crate" else 1
            at += 2
            while levels is not None and tokens[at].text == "super" and tokens[at + 1].text == "::":
                levels, at = levels + 1, at + 2
            found += [Reference(levels, names, line, len(inline)) for names, line in expand(tokens, at)]
            continue
        at += 1
    return found


def reexports(tokens: list[Token]) -> dict[str, str]:
    """Names that lib.rs re-exports: name -> module, from `pub use module::{names}`."""
    names = {}
    for at, token in enumerate(tokens):
        if token.text != "use":
            continue
        end = next(i for i in range(at, len(tokens)) if tokens[i].text == ";")
        parts = [t.text for t in tokens[at + 1 : end] if t.text not in ("crate", "self")]
        words = [part for part in parts if re.match(r"\w", part) and part != "as"]
        if words:
            names |= {word: words[0] for word in words[1:]}
    return names


class Crate:
    """The edges between the top-level modules of one crate."""

    def __init__(self, source: Path, shown_from: Path):
        self.source = source
        self.edges: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.modules = {
            path.stem
            for path in source.iterdir()
            if path.is_dir() or path.suffix == ".rs" and path.stem not in ("lib", "main")
        }
        root = source / "lib.rs"
        self.names = reexports(without_tests(tokenize(root.read_text()))[0]) if root.exists() else {}
        files, tests = [], set()
        for path in sorted(source.rglob("*.rs")):
            tokens, names = without_tests(tokenize(path.read_text()))
            home = path.parent if path.stem in ("mod", "lib", "main") else path.with_suffix("")
            tests |= {home / name for name in names}
            if path.stem != "tests" and home != source:
                files.append((path, home, tokens))
        for path, home, tokens in files:
            is_aggregate = home.relative_to(source).parts[0] in AGGREGATES
            if not is_aggregate and tests.isdisjoint((home, *home.parents)):
                self.add_file(str(path.relative_to(shown_from)), home.relative_to(source).parts, tokens)
        self.counts = {pair: len(lines) for pair, lines in self.edges.items()}

    def add_file(self, shown: str, module: tuple[str, ...], tokens: list[Token]) -> None:
        """Record the edges of one file, whose path within the crate is `module`."""
        for reference in references(tokens):
            if reference.levels is not None and reference.levels < len(module) + reference.depth:
                continue
            first = reference.names[0]
            target = first if first in self.modules else self.names.get(first)
            if target in self.modules and target != module[0]:
                self.edges[module[0], target].append(f"{shown}:{reference.line}: {'::'.join(reference.names)}")

    def components(self) -> list[list[str]]:
        """The strongly connected components of more than one module (Tarjan's algorithm)."""
        after = defaultdict(set)
        for a, b in self.edges:
            after[a].add(b)
        index, low, stack, found = {}, {}, [], []

        def visit(node: str) -> None:
            index[node] = low[node] = len(index)
            stack.append(node)
            for other in sorted(after[node]):
                if other not in index:
                    visit(other)
                    low[node] = min(low[node], low[other])
                elif other in stack:
                    low[node] = min(low[node], index[other])
            if low[node] == index[node]:
                component = stack[stack.index(node) :]
                del stack[stack.index(node) :]
                if len(component) > 1:
                    found.append(sorted(component))

        for node in sorted(self.modules):
            if node not in index:
                visit(node)
        return found

    def order(self, component: list[str]) -> list[str]:
        """An order of the modules, lowest layer first, with few uses against it."""
        chance, best = random.Random(0), component
        for _ in range(20):
            order = chance.sample(component, len(component))
            # Move one module at a time until nothing improves; finding the best order is NP-hard.
            improved = True
            while improved:
                improved = False
                for module in component:
                    rest = [other for other in order if other != module]
                    places = [rest[:at] + [module] + rest[at:] for at in range(len(component))]
                    moved = min(places, key=self.against)
                    if self.against(moved) < self.against(order):
                        order, improved = moved, True
            best = min(best, order, key=self.against)
        return best

    def against(self, order: list[str]) -> int:
        """Number of uses of a higher module by a lower one."""
        rank = {module: at for at, module in enumerate(order)}
        return sum(n for (a, b), n in self.counts.items() if rank.get(b, -1) > rank.get(a, len(rank)))

    def report(self) -> bool:
        """Print the cycles; True if there are none."""
        components = self.components()
        for component in components:
            order = self.order(component)
            rank = {module: at for at, module in enumerate(order)}
            print(f"dependency cycle among {len(component)} modules")
            print(f"  an order with few uses against it, lowest first: {' '.join(order)}")
            print("  edges against that order:")
            within = sorted((n, pair) for pair, n in self.counts.items() if pair[0] in rank and pair[1] in rank)
            for n, (a, b) in within:
                if rank[b] > rank[a]:
                    print(f"  {a} -> {b}: {n}", *self.edges[a, b], sep="\n    ")
            print("  edges along it:")
            for n, (a, b) in within:
                if rank[b] < rank[a]:
                    print(f"  {a} -> {b}: {n}")
        if not components:
            print(f"{len(self.modules)} modules, {len(self.edges)} edges, no cycle")
        return not components


def self_test() -> None:
    """Check the parsing and that a cycle is found."""
    files = {
        "lib.rs": "pub mod a; mod b; pub mod c;\npub use a::{Thing, other as Name};\n",
        "a/mod.rs": "mod inner; #[cfg(test)] mod far;\n// crate::c::X\n/* crate::c /* crate::c */ crate::c */\n"
        'const S: &str = "crate::c"; const R: &str = r#"crate::c "x" "#; const C: char = \'"\';\n'
        "pub(in crate::a) fn f<'a>(x: &'a str) {}\n#[cfg(test)]\nmod tests { use crate::c; fn f() { crate::c::x() } }\n"
        "#[cfg(test)] use crate::c::X;\n",
        "a/inner.rs": "use super::super::b::X;\nmod deep { use super::super::super::b; use super::super::c; }\n",
        "a/far.rs": "use crate::c;",
        "b.rs": "use super::c::{X, y::{Y, Z}}; use crate::error;\n",
        "c/mod.rs": "fn f() { d::crate_like::x() }\n",
        "c/tests.rs": "use crate::a;\n",
        "error.rs": "use crate::b::X;\n",
    }
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory)
        for name, text in files.items():
            (source / name).parent.mkdir(exist_ok=True)
            (source / name).write_text(text)
        crate = Crate(source, source)
        assert {pair: [line.split()[0] for line in lines] for pair, lines in crate.edges.items()} == {
            ("a", "b"): ["a/inner.rs:1:", "a/inner.rs:2:"],
            ("b", "c"): ["b.rs:1:"] * 3,
            ("b", "error"): ["b.rs:1:"],
        }, dict(crate.edges)
        assert crate.components() == []
        (source / "c/mod.rs").write_text("use crate::{\n    b::{self, Y},\n    Name,\n};\n")
        crate = Crate(source, source)
        assert crate.edges["c", "a"] == ["c/mod.rs:3: Name"], crate.edges
        assert crate.edges["c", "b"] == ["c/mod.rs:2: b::self", "c/mod.rs:2: b::Y"], crate.edges
        assert crate.components() == [["a", "b", "c"]]
        assert crate.against(crate.order(["a", "b", "c"])) == 3
        with contextlib.redirect_stdout(io.StringIO()) as output:
            assert not crate.report()
        assert "b -> c: 3\n    b.rs:1: c::X\n" in output.getvalue(), output.getvalue()
    print("self-test passed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=ROOT / "crates/oxidize-core/src")
    parser.add_argument("--edges", action="store_true", help="print every edge and its count")
    parser.add_argument("--edge", nargs=2, metavar=("A", "B"), help="print every line that makes the edge A -> B")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        self_test()
        return 0
    source = args.source.resolve()
    crate = Crate(source, ROOT if source.is_relative_to(ROOT) else source)
    if args.edge:
        print(*crate.edges.get(tuple(args.edge), []), sep="\n")
        return 0
    if args.edges:
        for (a, b), lines in sorted(crate.edges.items()):
            print(f"{a} -> {b}: {len(lines)}")
    return 0 if crate.report() else 1


if __name__ == "__main__":
    sys.exit(main())
