#!/usr/bin/env python3
"""Run `oxidize logits` on all golden models and fixtures, from GGUF and from safetensors, and print a table of
‖ours − reference‖ ÷ ‖reference − mean(reference)‖, which must be below 1e-4.

    scripts/check-golden.py [--bin target/release/oxidize] [--extra] [NAME…]

Models that the index marks as `hf-only` are checked only from their directory, and models whose reference follows
the GGUF implementation of the family (`*-lcsem`) only from their GGUF file. Needs numpy.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 1e-4


def main():
    shared = pathlib.Path(os.environ.get("OXIDIZE_SHARED", ROOT.parent / "shared"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "target/release/oxidize", help="path of oxidize")
    parser.add_argument("--shared", type=pathlib.Path, default=shared, help="directory that contains golden/")
    parser.add_argument("--extra", action="store_true", help="check golden-extra/, too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("names", nargs="*", help="only models whose names contain one of these")
    args = parser.parse_args()

    directories = [args.shared / "golden", ROOT / "fixtures/encoders"] + [args.shared / "golden-extra"] * args.extra
    models = [model for directory in directories for model in index(directory, args.names)]
    with ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(lambda model: check(args.bin, *model), models))

    width = max((len(name) for name, _, _ in rows), default=0)
    print(f"{'model':{width}}  {'GGUF':>9}  {'safetensors':>11}")
    failed = checked = 0
    for name, results, notes in rows:
        checked += sum(result is not None for result in results)
        failed += sum(isinstance(result, str) or (result is not None and not result < LIMIT) for result in results)
        print(f"{name:{width}}  {shown(results[0]):>9}  {shown(results[1]):>11}  {notes}".rstrip())
    print(f"{len(rows)} models, {checked} forms, {failed} failed")
    sys.exit(failed > 0 or checked == 0)


def index(directory, names):
    lines = (directory / "INDEX.tsv").read_text().splitlines()
    header = lines[0].split("\t")
    for line in lines[1:]:
        row = dict(zip(header, line.split("\t")))
        if not names or any(name in row["name"] for name in names):
            yield directory / row["name"], row


def check(program, directory, row):
    """The errors of both forms: a number, `error` if it does not run, or `None` if the index does not list it as valid."""
    reference = load_safetensors(directory / "ref.safetensors")
    gguf = directory / "model.gguf" if row["status"] == "gold" else None
    is_directory = (directory / "model.safetensors").exists() and not row["name"].endswith("-lcsem")
    safetensors = directory if is_directory else None
    results, notes = [], []
    for form in (gguf, safetensors):
        if form is None or not form.exists():
            results.append(None)
            continue
        try:
            results.append(max(compare(program, form, reference)))
        except subprocess.CalledProcessError as error:
            results.append("error")
            notes.append(error.stderr.strip().splitlines()[-1])
    return row["name"], results, "; ".join(notes)


def compare(program, form, reference):
    """The error of each result in the reference: hidden states, logits or scores."""
    for i in range(3):
        tokens = reference[f"tokens_{i}"]
        if f"hidden_{i}" in reference:
            yield distance(run(program, form, tokens, "--hidden"), reference[f"hidden_{i}"])
        if f"decoder_tokens_{i}" in reference:
            decoder = ids(reference[f"decoder_tokens_{i}"])
            ours = run(program, form, tokens, "--decoder-tokens", decoder)
            yield distance(ours, reference[f"logits_{i}"])
        elif (scores := reference.get(f"logits_{i}")) is not None and scores.ndim == 1:
            # GGUF files lack a part of BERT's classifiers, and a single score has no spread.
            if form.is_dir():
                yield float(np.abs(run(program, form, tokens)[0] - scores).max())
        elif scores is not None:
            yield distance(run(program, form, tokens), scores)


def run(program, form, tokens, *options):
    with tempfile.TemporaryDirectory() as directory:
        out = pathlib.Path(directory) / "out.npy"
        command = [program, "logits", "-m", form, "--tokens", ids(tokens), "-ctk", "f32", "-ctv", "f32", "-t", "1"]
        subprocess.run([*command, *options, "-o", out], check=True, capture_output=True, text=True)
        return np.load(out).astype(np.float64)


def ids(tokens):
    return ",".join(map(str, tokens))


def distance(ours, reference):
    if ours.shape != reference.shape:
        return float("inf")
    reference = reference.astype(np.float64)
    return float(np.linalg.norm(ours - reference) / np.linalg.norm(reference - reference.mean()))


def load_safetensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    types = {"F32": np.float32, "I32": np.int32, "I64": np.int64}
    tensors = {}
    for name, tensor in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            start, end = (8 + size + offset for offset in tensor["data_offsets"])
            tensors[name] = np.frombuffer(data[start:end], types[tensor["dtype"]]).reshape(tensor["shape"])
    return tensors


def shown(result):
    return "-" if result is None else result if isinstance(result, str) else f"{result:.2e}"


if __name__ == "__main__":
    main()
