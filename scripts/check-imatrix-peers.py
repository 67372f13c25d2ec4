#!/usr/bin/env python3
"""Compare importance matrices of `oxidize imatrix` and llama.cpp's llama-imatrix over the same text.

    scripts/check-imatrix-peers.py --oxidize target/quick/oxidize --llama LLAMA.CPP [MODEL.gguf …] [--text FILE]

LLAMA.CPP is a checkout with llama-imatrix built in `build/`. By default, golden models are compared: dense models,
and models with experts, shared experts and latent attention. Both matrices must have the same tensors, with the same
counts per expert, and sums whose relative difference is at most --limit. Needs numpy and gguf.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from gguf import GGUFReader

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ["llama2", "qwen3", "gemma2", "mixtral", "qwen3-moe", "olmoe", "granitemoe", "qwen2-moe", "deepseek-v2"]


def entries(path):
    return {tensor.name: np.array(tensor.data, dtype=np.float64).ravel() for tensor in GGUFReader(path).tensors}


def compare(ours, theirs):
    """The largest relative difference of sums, and a list of other problems."""
    problems, worst = [], 0.0
    for name, expected in theirs.items():
        found = ours.get(name)
        if found is None:
            problems.append(f"{name} is missing")
        elif found.size != expected.size:
            problems.append(f"{name} has {found.size} elements, not {expected.size}")
        elif name.endswith(".counts"):
            if not np.array_equal(found, expected):
                problems.append(f"{name}: {found}, not {expected}")
        elif name.endswith(".in_sum2"):
            worst = max(worst, np.linalg.norm(found - expected) / np.linalg.norm(expected))
    return worst, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=pathlib.Path)
    parser.add_argument("--oxidize", type=pathlib.Path, default=ROOT / "target" / "release" / "oxidize")
    parser.add_argument("--llama", type=pathlib.Path, required=True, help="a built checkout of llama.cpp")
    parser.add_argument("--text", type=pathlib.Path)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--ctx", type=int, default=128)
    parser.add_argument("--limit", type=float, default=2e-3)
    arguments = parser.parse_args()
    program = arguments.llama / "build" / "bin" / "llama-imatrix"
    if not program.exists():
        print(f"SKIPPED: no {program}; `cmake --build {arguments.llama}/build --target llama-imatrix` makes it")
        return 0
    shared = pathlib.Path(os.environ.get("OXIDIZE_SHARED", ROOT.parent / "shared"))
    text = arguments.text or shared / "eval" / "wiki.test.raw"
    models = arguments.models or [shared / "golden" / name / "model.gguf" for name in GOLDEN]
    failures = 0
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(temporary)
        ours, theirs = directory / "ours.gguf", directory / "theirs.gguf"
        excerpt = directory / "text.txt"
        # Enough text for the chunks with any tokenizer, but not all: llama.cpp tokenizes the whole file first.
        excerpt.write_bytes(text.read_bytes()[: 16 * arguments.chunks * arguments.ctx])
        for model in models:
            if not model.exists():
                print(f"SKIPPED: no {model}")
                continue
            common = ["-m", model, "-f", excerpt, "--chunks", str(arguments.chunks), "-c", str(arguments.ctx)]
            common += ["-ctk", "f32", "-ctv", "f32"]
            for command in (
                [arguments.oxidize, "imatrix", *common, "-o", ours],
                [program, *common, "-o", theirs, "--no-ppl", "-fa", "off"],
            ):
                run = subprocess.run(command, capture_output=True, text=True)
                if run.returncode != 0:
                    sys.exit(f"{command[0]}: {run.stderr.strip().splitlines()[-1]}")
            worst, problems = compare(entries(ours), entries(theirs))
            if worst > arguments.limit:
                problems.append("ABOVE LIMIT")
            failures += bool(problems)
            name = model.parent.name if model.stem == "model" else model.stem
            print(f"{name:24} {len(entries(theirs)) // 2:4} matrices  sums {worst:.1e}  {'; '.join(problems[:3])}")
    print("all agree" if failures == 0 else f"{failures} do not agree")
    return failures != 0


if __name__ == "__main__":
    sys.exit(main())
