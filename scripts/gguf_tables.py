"""Print the content of GGUF files as read by the gguf Python package, in the format of `oxidize inspect --json`.

Prints one line of JSON per file on the command line.
"""

import json
import math
import sys

import gguf
import numpy

HEAD = 64

# The reader creates several views of the file per string. Views of a memmap are far slower than views of an
# array, and a vocabulary has 150,000 strings.
numpy.memmap = lambda path, mode: numpy.fromfile(path, dtype=numpy.uint8)


def text(part):
    return bytes(part).decode("utf-8", errors="replace")


def number(value):
    value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def scalar(field, part, value_type):
    if value_type == gguf.GGUFValueType.STRING:
        return text(field.parts[part])
    return number(field.parts[part][0])


def value(field):
    if field.types[0] != gguf.GGUFValueType.ARRAY:
        return scalar(field, field.data[-1], field.types[0])
    element = field.types[-1]
    entries = [scalar(field, part, element) for part in field.data[:HEAD]]
    if len(field.data) <= HEAD:
        return entries
    return {"type": element.name.lower(), "len": len(field.data), "head": entries}


def table(path):
    reader = gguf.GGUFReader(path)
    own = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"}
    return {
        "version": int(reader.fields["GGUF.version"].parts[0][0]),
        "metadata": {key: value(field) for key, field in reader.fields.items() if key not in own},
        "tensors": [
            {
                "name": tensor.name,
                "type": tensor.tensor_type.name,
                "shape": [int(dim) for dim in tensor.shape],
                "bytes": int(tensor.n_bytes),
                "offset": int(tensor.data_offset),
            }
            for tensor in reader.tensors
        ],
    }


for path in sys.argv[1:]:
    print(json.dumps(table(path)), flush=True)
