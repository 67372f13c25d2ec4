#!/usr/bin/env python3
"""Recompute the golden fixtures with PyTorch and compare them with what is stored.

    scripts/golden/golden.py [NAME…]                 # verify; all without a name
    scripts/golden/golden.py --write [NAME…]         # replace the stored outputs
    scripts/golden/golden.py --from DIR NAME         # make a fixture from a Hugging Face directory

`make golden` runs it in a Python environment of its own; README.md here has the format and the options.
"""

import argparse
import hashlib
import json
import pathlib
import sys
import tempfile

import numpy as np
import transformers
from safetensors import safe_open
from safetensors.numpy import load_file

import fixtures
import references
import weights

# Largest difference from the stored outputs, relative to their spread.
LIMIT = 2e-5
# Positions of the outputs that are kept, for inputs of 5, 24 and 80 tokens; windows are 16 wide.
POSITIONS = {5: [0, 2, 4], 24: [15, 16, 23], 80: [31, 47, 79]}
JSON_FILES = ("config.json", "tokenizer_config.json", "modules.json", "1_Pooling/config.json")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="replace the stored outputs")
    parser.add_argument("--from", dest="source", type=pathlib.Path, help="directory with config.json, and perhaps weights")
    parser.add_argument("--reference", help="class of transformers or stand-in, if not the one in config.json")
    parser.add_argument("--only", choices=("directory", "gguf"), help="the only form that the outputs hold for")
    parser.add_argument("--notes", help="reason of --reference or --only")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    weights.check()
    if args.source:
        (name,) = args.names
        make(name, args)
    names = args.names or sorted(path.stem for path in fixtures.GOLDEN.glob("*.json"))
    failed = 0
    for name in names:
        fixture = fixtures.load(name)
        try:
            difference = check(fixture, args.write or args.source)
        except (AssertionError, RuntimeError, ValueError, KeyError) as error:
            difference, failed = f"{type(error).__name__}: {error}", failed + 1
        else:
            failed += difference > LIMIT and not args.write
            if args.write or args.source:
                fixtures.save(name, fixture)
        print(name, difference if isinstance(difference, str) else f"{difference:.1e}", flush=True)
    print(f"{len(names)} fixtures, {failed} failed")
    sys.exit(failed > 0 or not names)


def check(fixture, write):
    """Largest difference between PyTorch's outputs and the stored ones, which are replaced if `write`."""
    worst = 0.0
    for case, found in zip(fixture["cases"], references.outputs(fixture), strict=True):
        kept = selected(case, found)
        for name, array in kept.items():
            assert np.isfinite(array).all(), f"{name} is not finite"
            spread = float(np.linalg.norm(array - array.mean()))
            assert array.size < 8 or spread / array.size**0.5 > 1e-2, f"{name} hardly varies"
            if name in case and not write:
                stored = fixtures.decoded(case[name])
                worst = max(worst, float(np.linalg.norm(stored - array.ravel())) / max(spread, 1e-3))
            elif not write:
                raise ValueError(f"no {name} is stored")
            case[name] = fixtures.encoded(array)
    return worst


def selected(case, found):
    """The outputs at the positions of a case; all of an embedding or of scores."""
    rows = {"logits", "hidden"}
    return {
        name: array[case["positions"]] if name in rows and len(array) > 1 else array for name, array in found.items()
    }


def make(name, args):
    """Writes the fixture of a directory, without outputs."""
    files = {file: json.loads((args.source / file).read_text()) for file in JSON_FILES if (args.source / file).exists()}
    config = files["config.json"]
    config.pop("transformers_version", None)
    reference = args.reference or config["architectures"][0]
    path = args.source / "model.safetensors"
    with tempfile.TemporaryDirectory() as directory:
        entries = stored(path) if path.exists() else initial(reference, config, directory)
    fixture = {
        "reference": reference,
        **({"only": args.only} if args.only else {}),
        **({"notes": args.notes} if args.notes else {}),
        "files": files,
        "tokenizer": tokenizer_files(args.source),
        "tensors": fixtures.compact(entries),
        "cases": cases(name, args.source, config, reference),
    }
    check_names(fixture, entries)
    fixtures.save(name, fixture)


def stored(path):
    """Names, shapes, types and statistics of the tensors of a file."""
    found = []
    with safe_open(path, "pt") as file:
        for name in file.keys():
            tensor = file.get_tensor(name)
            assert tensor.is_floating_point(), f"{name} has integers"
            dtype = {"torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16"}[str(tensor.dtype)]
            tensor = tensor.double()
            found.append((name, tensor.shape, dtype, tensor.mean().item(), tensor.std(correction=0).item()))
    return found


def initial(reference, config, directory):
    """The same for a new model of a class: weights around their initial mean, none of them trivial."""
    model_class = getattr(transformers, reference)
    model = model_class(model_class.config_class.from_dict(config))
    model.save_pretrained(directory)
    found = []
    for name, shape, _, mean, _ in stored(pathlib.Path(directory) / "model.safetensors"):
        center, deviation = (mean, 0.2) if len(shape) < 2 else (0.0, 0.3 if "embed" in name else 0.15)
        found.append((name, shape, "BF16", center, deviation))
    return found


def tokenizer_files(source):
    """Which file of fixtures/tokenizers stands for each tokenizer file of a directory."""
    known = {hashlib.md5(path.read_bytes()).digest(): path.name for path in (fixtures.ROOT / "fixtures/tokenizers").iterdir()}
    found = {}
    for name in ("tokenizer.json", "tokenizer.model", "sentencepiece.bpe.model"):
        if (source / name).exists():
            found[name] = known[hashlib.md5((source / name).read_bytes()).digest()]
    return found


def cases(name, source, config, reference):
    """Inputs: those of the directory's references, or random ones."""
    path = source / "ref.safetensors"
    given = load_file(path) if path.exists() else {}
    random = np.random.default_rng(list(name.encode()))
    found = []
    for i, length in enumerate((5, 24, 80)):
        tokens = given.get(f"tokens_{i}", random.integers(4, config.get("vocab_size", 256), length))
        case = {"tokens": tokens.tolist()}
        if "T5ForConditionalGeneration" == reference:
            decoder = given.get(f"decoder_tokens_{i}")
            case["decoder_tokens"] = decoder.tolist() if decoder is not None else [0] + case["tokens"][:11]
        length = len(case.get("decoder_tokens", case["tokens"]))
        case["positions"] = POSITIONS.get(length) or sorted({length // 4, length // 2, length - 1})
        found.append(case)
    return found


def check_names(fixture, entries):
    """The compact list stands for exactly the tensors of the model, and f16 holds what is stored as f16."""
    listed = {name for entry in fixture["tensors"] for name in fixtures.names(entry["name"])}
    assert listed == {entry[0] for entry in entries}
    types = {name: entry["dtype"] for entry in fixture["tensors"] for name in fixtures.names(entry["name"])}
    for name, array in fixtures.tensors(fixture).items():
        assert types[name] != "F16" or (array.astype(np.float16) == array).all(), f"{name} is not exact in f16"


if __name__ == "__main__":
    main()
