#!/usr/bin/env python3
"""Count the instructions of the main kernels with callgrind and compare them with the stored counts.

The counts do not depend on the load of the machine, unlike times.

    bench_check.py PROGRAM [--update | --json FILE]

PROGRAM is the example `instructions` of oxidize-kernels. Valgrind does not support AVX-512, so the
counts are those of the AVX2 kernels. A count may grow by 3%, because compilers differ. `--json` writes
the counts and the compiler for scripts/dashboard.py instead of comparing them.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

COUNTS = Path(__file__).parent / "instruction_counts.json"
TOLERANCE = 1.03

TYPES = ["Q4_K", "Q6_K", "Q8_0", "Q4_0", "Q5_K", "IQ4_XS", "IQ2_XXS", "IQ3_S", "F16", "BF16"]
TOKENS = [1, 4, 32]


def collected(program: Path, arguments: list[str]) -> int:
    """Number of instructions of a run."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    done = subprocess.run(
        [*command, str(program), *arguments], capture_output=True, text=True, check=False
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or not found:
        sys.exit(f"{program} {' '.join(arguments)} failed:\n{done.stderr}")
    return int(found.group(1))


def count(program: Path, tensor_type: str, tokens: int) -> int:
    """Number of instructions of one product: the difference between two products and one, without startup."""
    once, twice = (collected(program, [tensor_type, str(tokens), str(n)]) for n in (1, 2))
    return twice - once


def compiler() -> str | None:
    """Version of the Rust compiler, if there is one."""
    if not shutil.which("rustc"):
        return None
    return subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=False).stdout.strip() or None


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare instruction counts of the kernels.")
    parser.add_argument("program", type=Path)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--update", action="store_true", help="store the counts of this build")
    action.add_argument("--json", type=Path, metavar="FILE", help="write the counts and the compiler to FILE")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        sys.exit("valgrind not found")
    counts = {
        f"{ty} x{tokens}": count(options.program, ty, tokens) for ty in TYPES for tokens in TOKENS
    }
    if options.update:
        COUNTS.write_text(json.dumps(counts, indent=2) + "\n")
        return
    if options.json:
        options.json.write_text(json.dumps({"compiler": compiler(), "counts": counts}, indent=2) + "\n")
        return
    kept = json.loads(COUNTS.read_text())
    worse = []
    for name, now in counts.items():
        before = kept.get(name)
        ratio = now / before if before else float("inf")
        print(f"{name:14} {now:>12,} {ratio:>8.3f}")
        if ratio > TOLERANCE:
            worse.append(name)
    if worse:
        sys.exit(f"more instructions than stored: {', '.join(worse)} (use --update if this is intended)")


if __name__ == "__main__":
    main()
