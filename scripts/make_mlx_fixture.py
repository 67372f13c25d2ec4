"""Make fixtures/mlx with MLX itself: a small quantized model and its dequantized weights.

Run with `pip install "mlx[cpu]"`; the result is checked in.
"""

import json
import pathlib

import mlx.core as mx

OUT = pathlib.Path(__file__).parent.parent / "fixtures" / "mlx"
DEFAULT = {"group_size": 64, "bits": 4}
# name: (shape, bits, group size, type of the scales)
LAYERS = {
    "model.embed_tokens": ((6, 128), 4, 64, mx.float16),
    "model.layers.0.q": ((4, 128), 8, 64, mx.bfloat16),
    "model.layers.0.k": ((4, 64), 2, 32, mx.float32),
    "model.layers.0.v": ((4, 64), 3, 32, mx.float32),
    "model.layers.0.o": ((4, 64), 5, 32, mx.float32),
    "model.layers.0.gate": ((4, 64), 6, 64, mx.bfloat16),
    "model.layers.0.experts": ((3, 4, 128), 4, 64, mx.bfloat16),
}

mx.random.seed(7)
config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "quantization": dict(DEFAULT)}
stored, expected = {}, {}
for name, (shape, bits, group_size, dtype) in LAYERS.items():
    weight = mx.random.normal(shape).astype(dtype)
    codes, scales, biases = mx.quantize(weight, group_size, bits)
    stored |= {f"{name}.weight": codes, f"{name}.scales": scales, f"{name}.biases": biases}
    # Computed in f32 and rounded once; MLX itself computes in the type of the scales.
    exact = mx.dequantize(codes, scales.astype(mx.float32), biases.astype(mx.float32), group_size, bits)
    expected[f"{name}.weight"] = exact.astype(dtype)
    if (group_size, bits) != (DEFAULT["group_size"], DEFAULT["bits"]):
        config["quantization"][name] = {"group_size": group_size, "bits": bits}
stored["model.norm.weight"] = expected["model.norm.weight"] = mx.ones((64,), mx.bfloat16)

OUT.mkdir(parents=True, exist_ok=True)
mx.save_safetensors(str(OUT / "model.safetensors"), stored, {"format": "mlx"})
mx.save_safetensors(str(OUT / "expected.safetensors"), expected)
(OUT / "config.json").write_text(json.dumps(config, indent=2) + "\n")
