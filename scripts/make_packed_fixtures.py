"""Make fixtures/packed: small models with packed weights, and the weights that NumPy unpacks.

There is a directory per format: 8-bit floats with scales per matrix, per row and per block, GPTQ and AWQ.
Run with `pip install numpy ml_dtypes safetensors`; the result is checked in.
"""

import json
import pathlib

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

OUT = pathlib.Path(__file__).parent.parent / "fixtures" / "packed"
RNG = np.random.default_rng(11)
FP8 = ml_dtypes.float8_e4m3fn
BF16 = ml_dtypes.bfloat16


def write(name, config, stored, expected):
    directory = OUT / name
    directory.mkdir(parents=True, exist_ok=True)
    norm = np.ones(16, dtype=BF16)
    save_file(stored | {"model.norm.weight": norm}, directory / "model.safetensors")
    save_file(expected | {"model.norm.weight": norm}, directory / "expected.safetensors")
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"} | config
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def fp8():
    stored, expected = {}, {}
    # Blocks of 4 × 8, of which the last ones are partial.
    for name, shape in {"model.a": (10, 20), "model.stack": (2, 8, 16)}.items():
        codes = RNG.normal(0, 30, shape).astype(FP8)
        blocks = (*shape[:-2], -(-shape[-2] // 4), -(-shape[-1] // 8))
        scales = RNG.uniform(0.01, 0.1, blocks).astype(np.float32)
        wide = np.repeat(np.repeat(scales, 4, -2), 8, -1)[..., : shape[-2], : shape[-1]]
        stored |= {f"{name}.weight": codes, f"{name}.weight_scale_inv": scales}
        expected[f"{name}.weight"] = (codes.astype(np.float32) * wide).astype(BF16)
    for name, scale_shape in {"model.whole": (), "model.one": (1,), "model.rows": (6, 1)}.items():
        codes = RNG.normal(0, 30, (6, 12)).astype(FP8)
        scales = RNG.uniform(0.01, 0.1, scale_shape).astype(np.float32)
        stored |= {f"{name}.weight": codes, f"{name}.weight_scale": np.asarray(scales)}
        stored[f"{name}.input_scale"] = np.float32([1.5])
        expected[f"{name}.weight"] = (codes.astype(np.float32) * scales).astype(BF16)
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 8]}}
    write("fp8", config, stored, expected)


def pack(codes, axis, order=range(8)):
    """Eight 4-bit codes of an axis in a word; `order` says which of them is in which nibble."""
    codes = np.moveaxis(codes, axis, -1).astype(np.uint32)
    groups = codes.reshape(*codes.shape[:-1], -1, 8)
    words = np.zeros(groups.shape[:-1], dtype=np.uint32)
    for nibble, which in enumerate(order):
        words |= groups[..., which] << np.uint32(4 * nibble)
    # save_file writes the memory as it is, so the array must be contiguous.
    return np.ascontiguousarray(np.moveaxis(words, -1, axis).astype(np.int32))


def int4():
    inputs, outputs, group = 32, 16, 8
    codes = RNG.integers(0, 16, (inputs, outputs))
    zeros = RNG.integers(1, 16, (inputs // group, outputs))
    scales = RNG.uniform(0.01, 0.1, zeros.shape).astype(np.float16)

    def weight(groups):
        exact = scales.astype(np.float32)[groups] * (codes - zeros[groups])
        return np.ascontiguousarray(exact.T.astype(np.float16))

    runs = np.arange(inputs) // group
    shuffled = RNG.permutation(runs)
    parts = {"scales": scales, "qzeros": pack(zeros - 1, 1), "qweight": pack(codes, 0)}
    stored = {f"model.a.{part}": data for part, data in parts.items()}
    stored |= {f"model.b.{part}": data for part, data in parts.items()}
    stored["model.b.g_idx"] = shuffled.astype(np.int32)
    config = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": group}}
    write("gptq", config, stored, {"model.a.weight": weight(runs), "model.b.weight": weight(shuffled)})

    order = [0, 2, 4, 6, 1, 3, 5, 7]
    parts = {"scales": scales, "qzeros": pack(zeros, 1, order), "qweight": pack(codes, 1, order)}
    stored = {f"model.a.{part}": data for part, data in parts.items()}
    config = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"}}
    write("awq", config, stored, {"model.a.weight": weight(runs)})


fp8()
int4()
