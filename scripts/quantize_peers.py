#!/usr/bin/env python3
"""Compare `oxidize quantize` with llama.cpp's quantizer: KL divergence from the source, and time.

    quantize_peers.py SOURCE.gguf --text FILE [--imatrix FILE] [--types Q4_K_M,IQ3_S] [--draws 4] [--json FILE]

oxidize evaluates both files on the same text. On small models, the KL divergence of one file varies by about 10%,
depending on the rounding of single weights. With --draws N, N further sources are made by random changes of 2% to each
weight, far less than the error of any type below eight bits, and the mean ratio shows which quantizer is better.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import identify

TYPES = (
    "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q2_K_S Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ4_NL IQ4_XS "
    "IQ3_XXS IQ3_XS IQ3_S IQ3_M IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ1_S IQ1_M TQ1_0 TQ2_0"
).split()


def perturbed(source: Path, to: Path, seed: int) -> None:
    """Copies a model of floats with random changes of about 2% to each matrix element."""
    import numpy
    from gguf import GGUFReader

    shutil.copy(source, to)
    rng = numpy.random.default_rng(seed)
    with open(to, "r+b") as file:
        for tensor in GGUFReader(source).tensors:
            data = tensor.data
            if len(tensor.shape) < 2 or data.dtype not in (numpy.float32, numpy.float16):
                continue
            noise = 1 + 0.02 * rng.standard_normal(data.shape, dtype=numpy.float32)
            file.seek(tensor.data_offset)
            file.write((data * noise).astype(data.dtype).tobytes())


class Bench:
    def __init__(self, args: argparse.Namespace, directory: Path):
        self.args, self.directory = args, directory

    def kl_divergence(self, file: Path) -> float:
        a = self.args
        command = [a.oxidize, "compare", a.source, file, "-f", a.text, "-c", str(a.ctx), "--chunks", str(a.chunks), "--json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["mean_kl"]

    def make(self, ours: bool, source: Path, kind: str, imatrix: bool) -> tuple[float, float] | None:
        """KL divergence of a quantized file and the seconds that quantizing took; `None` if the type is not supported."""
        out = self.directory / "made.gguf"
        out.unlink(missing_ok=True)
        flags = ["--imatrix", self.args.imatrix] if imatrix else []
        threads = str(self.args.threads)
        command = (
            [self.args.oxidize, "quantize", source, out, kind, "--threads", threads, *flags, *self.args.ours.split()]
            if ours
            else [self.args.llama_quantize, *flags, source, out, kind, threads]
        )
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True)
        elapsed = time.perf_counter() - start
        return (self.kl_divergence(out), elapsed) if done.returncode == 0 else None

    def row(self, kind: str, imatrix: bool) -> dict | None:
        """KL divergence and seconds of both quantizers; `None` if one of them does not support the type."""
        source = Path(self.args.source)
        made = [self.make(ours, source, kind, imatrix) for ours in (True, False)]
        if None in made:
            return None
        (a, time_a), (b, time_b) = made
        ratios = []
        for draw in range(self.args.draws):
            other = self.directory / "other.gguf"
            perturbed(source, other, draw)
            x, y = (self.make(ours, other, kind, imatrix)[0] for ours in (True, False))
            ratios.append(x / y)
        importance = self.args.importance if imatrix else "none"
        row = {"type": kind, "importance": importance, "oxidize": a, "llama.cpp": b}
        row |= {"oxidize_seconds": time_a, "llama.cpp_seconds": time_b}
        return row | ({"mean_ratio": statistics.mean(ratios)} if ratios else {})


def line(row: dict) -> str:
    """A row of the Markdown table."""
    a, b = row["oxidize"], row["llama.cpp"]
    imatrix = "no" if row["importance"] == "none" else "yes"
    cells = [row["type"], imatrix, f"{a:.6f}", f"{b:.6f}", f"{a / b:.3f}" if b else "1.000"]
    if "mean_ratio" in row:
        cells.append(f"{row['mean_ratio']:.3f}")
    return "| " + " | ".join([*cells, f"{row['llama.cpp_seconds'] / row['oxidize_seconds']:.1f}"]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--text", required=True)
    parser.add_argument("--imatrix")
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--draws", type=int, default=0)
    parser.add_argument("--ctx", type=int, default=256)
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--ours", default="", help="further flags of oxidize quantize, such as --ours=--calibrate")
    parser.add_argument("--importance", default="imatrix", help="name of the matrix in --json, such as llama-imatrix")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE, for scripts/dashboard.py")
    parser.add_argument("--oxidize", default="target/release/oxidize")
    parser.add_argument("--llama-quantize", default=os.environ.get("LLAMA_QUANTIZE") or shutil.which("llama-quantize"))
    args = parser.parse_args()
    if not args.llama_quantize:
        sys.exit("llama-quantize not found; set --llama-quantize or LLAMA_QUANTIZE")

    head = ["type", "imatrix", "oxidize", "llama.cpp", "ratio"] + ["ratio, mean"] * bool(args.draws) + ["time, llama.cpp ÷ oxidize"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * 2 + "---:|" * (len(head) - 2), flush=True)
    rows = []
    settings = {"model": Path(args.source).name, "ctx": args.ctx, "chunks": args.chunks, "threads": args.threads}
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(args, Path(directory))
        for kind in args.types.split(","):
            for imatrix in (False, True) if args.imatrix else (False,):
                if row := bench.row(kind, imatrix):
                    rows.append(row)
                    print(line(row), flush=True)
    if args.json:
        data = {"machine": identify(), "settings": settings, "results": rows}
        args.json.write_text(json.dumps(data, indent=2) + "\n")


if __name__ == "__main__":
    main()
