#!/usr/bin/env python3
"""Write test vectors of the `gguf` Python package: dequantized random blocks and quantized random floats.

The test `gguf_python` of oxidize-kernels reads them. For each type that the package supports:

    OUT/dequant/TYPE.blocks    random blocks         OUT/dequant/TYPE.f32   their floats
    OUT/quant/input.f32        floats for all        OUT/quant/TYPE.blocks  these floats, quantized

Usage: gguf_vectors.py [OUT]    (default: vectors/ in $OXIDIZE_TEST_CACHE or ~/.cache/oxidize)
"""

import os
import sys
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

ELEMENTS = 1 << 15


def main() -> None:
    cache = os.environ.get("OXIDIZE_TEST_CACHE", Path.home() / ".cache" / "oxidize")
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(cache) / "vectors"
    for directory in ("dequant", "quant"):
        (out / directory).mkdir(parents=True, exist_ok=True)

    source = floats()
    source.tofile(out / "quant" / "input.f32")
    for ty in GGMLQuantizationType:
        try:
            blocks, values = random_blocks(ty)
            blocks.tofile(out / "dequant" / f"{ty.name}.blocks")
            values.tofile(out / "dequant" / f"{ty.name}.f32")
            quants.quantize(source, ty).tofile(out / "quant" / f"{ty.name}.blocks")
        except NotImplementedError:
            pass


def random_blocks(ty: GGMLQuantizationType) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of random bits, without those that contain a float that is not finite."""
    block_len, block_bytes = GGML_QUANT_SIZES[ty]
    random = np.random.default_rng(int(ty))
    blocks = random.integers(0, 256, (2 * ELEMENTS // block_len, block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        values = quants.dequantize(blocks, ty).astype(np.float32)
    finite = np.isfinite(values).all(axis=-1)
    return blocks[finite], values[finite]


def floats() -> np.ndarray:
    """Weights of several sizes and shapes, in rows of 256: normal, ternary, shifted, zero, tiny."""
    random = np.random.default_rng(1)
    rows = random.standard_normal((ELEMENTS // 256, 256)).astype(np.float32)
    rows *= np.float32(2.0) ** random.integers(-10, 8, (len(rows), 1)).astype(np.float32)
    rows[1::16] = np.round(np.clip(rows[1::16], -1, 1))
    rows[2::16] += 3
    rows[3::16] = np.abs(rows[3::16])
    rows[4] = 0
    rows[5] = -2.5
    rows[6::32, ::2] = 0
    # Without -0: of two zeros, the package keeps the first and ggml the positive one.
    return rows + np.float32(0)


if __name__ == "__main__":
    main()
