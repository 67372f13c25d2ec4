"""Golden fixtures: `fixtures/golden/NAME.json`, described in README.md of this directory."""

import base64
import itertools
import json
import pathlib
import re

import numpy as np
from safetensors.numpy import save_file

from weights import weights

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "fixtures/golden"
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": None}
OUTPUTS = ("logits", "hidden", "pooled", "pair")


def names(pattern):
    """Names of a pattern: `a.{0-2}.b` stands for a.0.b, a.1.b and a.2.b, `{0,2}` for a list."""
    parts = re.split(r"\{([0-9,-]+)\}", pattern)
    choices = [numbers(part) if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


def numbers(text):
    """Numbers of a list such as `0-2,5`."""
    ranges = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return [str(n) for ends in ranges for n in range(ends[0], ends[-1] + 1)]


def braces(indices):
    """The inverse of `numbers`, in braces."""
    runs = []
    for n in sorted(indices):
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return "{" + ",".join(f"{a}-{b}" if a < b else str(a) for a, b in runs) + "}"


def tensors(fixture):
    """Weights of a fixture, by name, in f32."""
    found = {}
    for entry in fixture["tensors"]:
        shape, center, spread = entry["shape"], entry["center"], entry["spread"]
        for name in names(entry["name"]):
            assert name not in found, f"{name} is listed twice"
            found[name] = weights(name, int(np.prod(shape)), center, spread).reshape(shape)
    return found


def write_directory(fixture, directory, files=None):
    """Writes the model as `transformers` reads it: JSON files and weights in f32."""
    for name, contents in (files or fixture["files"]).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(contents))
    save_file(tensors(fixture), directory / "model.safetensors", {"format": "pt"})


def compact(found):
    """Tensor entries of a model from `(name, shape, dtype, mean, deviation)` of each tensor."""
    groups = {}
    for name, shape, dtype, mean, deviation in found:
        index = tuple(int(n) for n in re.findall(r"(?<=\.)\d+(?=\.|$)", name))
        pattern = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)
        groups.setdefault((pattern, tuple(shape), dtype), []).append((index, mean, deviation))
    entries = []
    for (pattern, shape, dtype), members in groups.items():
        count = int(np.prod(shape))
        mean = float(np.mean([m for _, m, _ in members]))
        square = np.mean([d * d + (m - mean) ** 2 for _, m, d in members])
        center, spread = rounded(mean, float(square) ** 0.5, count * len(members))
        for name in patterns(pattern, [index for index, _, _ in members]):
            entry = {"name": name, "shape": list(shape), "center": center, "spread": spread}
            entries.append(entry | ({"dtype": dtype} if dtype else {}))
    return entries


def patterns(pattern, indices):
    """Patterns that together have the given indices in the places of `*`."""
    if not indices[0]:
        return [pattern]
    columns = [sorted(set(column)) for column in zip(*indices)]
    if len(indices) == int(np.prod([len(column) for column in columns])):
        return [fill(pattern, [braces(column) if len(column) > 1 else str(column[0]) for column in columns])]
    firsts = {}
    for index in indices:
        firsts.setdefault(tuple(sorted(i[1:] for i in indices if i[0] == index[0])), set()).add(index[0])
    found = []
    for rest, first in firsts.items():
        head = fill(pattern, [braces(first) if len(first) > 1 else str(min(first))], 1)
        found += patterns(head, list(rest))
    return found


def fill(pattern, values, count=0):
    values = iter(values)
    return re.sub(r"\*", lambda _: next(values), pattern, count=count)


def rounded(mean, deviation, count):
    """Center and spread of an even distribution with about this mean and deviation."""
    is_centered = abs(mean) < max(4 * deviation / count**0.5, 0.1 * deviation)
    center = 0 if is_centered and count > 1 else float(f"{mean:.2g}")
    spread = float(f"{deviation * 3**0.5:.2g}")
    return tuple(int(x) if x == int(x) else x for x in (center, spread))


def encoded(array):
    """Numbers as f32, little-endian, in base64."""
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode()


def decoded(text):
    """The inverse of `encoded`."""
    return np.frombuffer(base64.b64decode(text), dtype="<f4")


def load(name):
    """Reads a fixture."""
    return json.loads((GOLDEN / f"{name}.json").read_text())


def save(name, fixture):
    """Writes a fixture, with each tensor entry and each list of numbers in one line."""
    def line(value):
        return json.dumps(value, ensure_ascii=False)

    def block(items, indent):
        pad = "\n" + " " * (indent + 1)
        return pad + ("," + pad).join(items) + "\n" + " " * indent

    parts = []
    for key, value in fixture.items():
        if key == "tensors":
            text = "[" + block([line(entry) for entry in value], 1) + "]"
        elif key == "files":
            files = [f"{line(name)}: {line(contents)}" for name, contents in value.items()]
            text = "{" + block(files, 1) + "}"
        elif key == "cases":
            cases = [block([f"{line(k)}: {line(v)}" for k, v in case.items()], 2) for case in value]
            text = "[" + block(["{" + case + "}" for case in cases], 1) + "]"
        else:
            text = line(value)
        parts.append(f"{line(key)}: {text}")
    GOLDEN.mkdir(parents=True, exist_ok=True)
    (GOLDEN / f"{name}.json").write_text("{" + block(parts, 0) + "}\n")
