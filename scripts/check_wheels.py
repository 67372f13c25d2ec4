#!/usr/bin/env python3
"""Check the names, the tags and the sizes of Python wheels.

    check_wheels.py DIRECTORY KIND [KIND...]

A KIND is the part of a name that says which Pythons a wheel is for, such as `cp39-abi3`, with a platform if that matters:
`cp39-abi3-manylinux_2_28_x86_64`. There must be one wheel of each kind and no other. A builder without the right
interpreter makes a wheel for another one without saying so, which only its name shows.
"""

import re
import sys
import zipfile
from pathlib import Path

# The package index takes files of 100 MB; a larger wheel than this has something in it that it need not have.
MAX_BYTES = 60_000_000
NAME = re.compile(r"oxidize-(?P<version>[^-]+)-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl")
FILES = ("oxidize/__init__.py", "oxidize/py.typed", "oxidize/_oxidize.pyi", "oxidize/llama_cpp/llama.py")


def problems_of(wheel: Path) -> list[str]:
    """What is wrong with a wheel, apart from its kind."""
    name = NAME.fullmatch(wheel.name)
    if name is None:
        return ["its name is not oxidize-VERSION-PYTHON-ABI-PLATFORM.whl"]
    problems = []
    size = wheel.stat().st_size
    if size > MAX_BYTES:
        problems.append(f"it has {size} bytes; at most {MAX_BYTES} are allowed")
    with zipfile.ZipFile(wheel) as archive:
        files = archive.namelist()
        problems += [f"{file} is missing" for file in FILES if file not in files]
        modules = [file for file in files if re.fullmatch(r"oxidize/_oxidize\.[^/]*(so|pyd)", file)]
        if len(modules) != 1:
            problems.append(f"it has {len(modules)} modules instead of one")
        about = next((file for file in files if file.endswith(".dist-info/WHEEL")), None)
        text = archive.read(about).decode() if about else ""
        tags = set(re.findall(r"^Tag: (.*)$", text, re.MULTILINE))
        parts = [name[part].split(".") for part in ("python", "abi", "platform")]
        expected = {f"{python}-{abi}-{platform}" for python in parts[0] for abi in parts[1] for platform in parts[2]}
        if tags != expected:
            problems.append(f"its metadata have the tags {sorted(tags)}, its name {sorted(expected)}")
    return problems


def matches(wheel: Path, kind: str) -> bool:
    """True if the wheel is of this kind."""
    name = NAME.fullmatch(wheel.name)
    if name is None:
        return False
    python, abi, *platform = kind.split("-", 2)
    return (name["python"], name["abi"]) == (python, abi) and all(part in name["platform"].split(".") for part in platform)


def check(directory: Path, kinds: list[str]) -> list[str]:
    """Everything that is wrong with the wheels of a directory."""
    wheels = sorted(directory.glob("*.whl"))
    problems = [f"{wheel.name}: {problem}" for wheel in wheels for problem in problems_of(wheel)]
    for kind in kinds:
        found = [wheel for wheel in wheels if matches(wheel, kind)]
        if len(found) != 1:
            problems.append(f"{directory}: {len(found)} wheels of kind {kind} instead of one")
    others = [wheel.name for wheel in wheels if not any(matches(wheel, kind) for kind in kinds)]
    problems += [f"{name}: of no expected kind ({', '.join(kinds)})" for name in others]
    return problems


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    problems = check(Path(sys.argv[1]), sys.argv[2:])
    for problem in problems:
        print(f"check_wheels: error: {problem}", file=sys.stderr)
    if problems:
        sys.exit(1)
    for wheel in sorted(Path(sys.argv[1]).glob("*.whl")):
        print(f"{wheel.name}: {wheel.stat().st_size} bytes")


if __name__ == "__main__":
    main()
