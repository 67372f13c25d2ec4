#!/usr/bin/env python3
"""Write the address of the repository into the manifests of all crates, before they are published.

    set_repository.py URL [--root DIRECTORY]

The release workflow calls it with the address that it runs at. `cargo binstall` reads it from the published crate:
`{ repo }` in the metadata of oxidize-cli. Fails if a manifest has another address.
"""

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def with_repository(manifest: str, url: str) -> str:
    """The manifest with the address at the end of [package]."""
    package = tomllib.loads(manifest)["package"]
    known = package.get("repository")
    if known == url:
        return manifest
    if known is not None:
        raise ValueError(f"the repository is {known}, not {url}")
    changed, n = re.subn(r"(?ms)^(\[package\]\n.*?)\n*(?=^\[|\Z)", lambda m: f'{m.group(1)}\nrepository = "{url}"\n\n', manifest, count=1)
    if n != 1 or tomllib.loads(changed)["package"].get("repository") != url:
        raise ValueError("there is no [package] that can be changed")
    return changed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", metavar="URL")
    parser.add_argument("--root", type=Path, default=ROOT)
    arguments = parser.parse_args()
    if not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", arguments.url):
        parser.error(f"{arguments.url}: not the address of a repository, such as https://example.com/owner/name")
    manifests = sorted(arguments.root.glob("crates/*/Cargo.toml"))
    if not manifests:
        parser.error(f"{arguments.root}: no crates")
    for path in manifests:
        try:
            path.write_text(with_repository(path.read_text(encoding="utf-8"), arguments.url), encoding="utf-8")
        except ValueError as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
