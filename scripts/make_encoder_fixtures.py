#!/usr/bin/env python3
"""Make tiny random models of encoders without a golden model, and NumPy's results for them.

    scripts/make_encoder_fixtures.py        # writes fixtures/encoders/

`jina-bert-v2` follows jinaai/jina-bert-implementation (symmetric ALiBi, GEGLU, post-norm). `nomic-bert-moe` follows
nomic-ai/nomic-bert-2048 with experts (RoPE over halves; every second layer has ungated experts whose softmax weights
are not normalized). `bert-pair` is a classifier of two segments.
The forward passes below are in double precision and share no code with the engine. Needs numpy and gguf.
"""

import json
import math
import pathlib

import gguf
import numpy as np

OUT = pathlib.Path(__file__).resolve().parent.parent / "fixtures/encoders"
VOCAB, WIDTH, HEADS, FF, LAYERS, EXPERTS, USED, EPSILON = 96, 32, 4, 48, 2, 4, 2, 1e-12
INDEX = "name\thf_class\tgguf_arch\tstatus\tmax_rel_diff\tkind\tparams\tweights\tnotes\n"


def main():
    random = np.random.default_rng(20)
    inputs = [random.integers(4, VOCAB, n) for n in (5, 24, 60)]
    rows = []
    for name, hf_class, make in (
        ("jina-bert-v2", "JinaBertForMaskedLM", jina),
        ("nomic-bert-moe", "-", nomic),
        ("bert-pair", "BertForSequenceClassification", pair),
    ):
        directory = OUT / name
        directory.mkdir(parents=True, exist_ok=True)
        references = make(directory, random, inputs)
        save_safetensors(directory / "ref.safetensors", references)
        weights = "+".join(p for p in ("gguf", "safetensors") if (directory / f"model.{p}").exists())
        arch = {"bert-pair": "bert"}.get(name, name)
        status = "gold" if "gguf" in weights else "hf-only"
        rows.append(f"{name}\t{hf_class}\t{arch}\t{status}\t-\tencoder\t-\t{weights}\tNumPy, double precision\n")
    (OUT / "INDEX.tsv").write_text(INDEX + "".join(rows))


def jina(directory, random, inputs):
    w = {
        "embeddings.word_embeddings.weight": draw(random, VOCAB, WIDTH),
        "embeddings.token_type_embeddings.weight": draw(random, 2, WIDTH),
        **norm(random, "embeddings.LayerNorm"),
    }
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            w |= linear(random, f"{layer}.attention.{part}", WIDTH, WIDTH)
        w |= norm(random, f"{layer}.attention.output.LayerNorm")
        w[f"{layer}.mlp.gated_layers.weight"] = draw(random, 2 * FF, WIDTH)
        w |= linear(random, f"{layer}.mlp.wo", WIDTH, FF)
        w |= norm(random, f"{layer}.mlp.layernorm")
    config = {
        "architectures": ["JinaBertForMaskedLM"],
        "model_type": "bert",
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
        **numbers(),
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    save_safetensors(directory / "model.safetensors", {f"bert.{name}": tensor for name, tensor in w.items()})

    tensors = {
        "token_embd.weight": w["embeddings.word_embeddings.weight"],
        "token_types.weight": w["embeddings.token_type_embeddings.weight"],
        **renamed(w, "embeddings.LayerNorm", "token_embd_norm"),
    }
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        for theirs, ours in (
            ("attention.self.query", "attn_q"),
            ("attention.self.key", "attn_k"),
            ("attention.self.value", "attn_v"),
            ("attention.output.dense", "attn_output"),
            ("attention.output.LayerNorm", "attn_output_norm"),
            ("mlp.wo", "ffn_down"),
            ("mlp.layernorm", "layer_output_norm"),
        ):
            tensors |= renamed(w, f"{layer}.{theirs}", f"blk.{i}.{ours}")
        gate, up = np.split(w[f"{layer}.mlp.gated_layers.weight"], 2)
        tensors |= {f"blk.{i}.ffn_gate.weight": gate, f"blk.{i}.ffn_up.weight": up}
    save_gguf(directory / "model.gguf", "jina-bert-v2", {}, tensors)

    slopes = 2.0 ** (-8.0 / HEADS * np.arange(1, HEADS + 1))

    def forward(tokens):
        x = w["embeddings.word_embeddings.weight"][tokens] + w["embeddings.token_type_embeddings.weight"][0]
        x = layer_norm(w, "embeddings.LayerNorm", x)
        positions = np.arange(len(tokens))
        bias = -slopes[:, None, None] * np.abs(positions[:, None] - positions)
        for i in range(LAYERS):
            layer = f"encoder.layer.{i}"
            q, k, v = (apply(w, f"{layer}.attention.self.{part}", x) for part in ("query", "key", "value"))
            attended = apply(w, f"{layer}.attention.output.dense", attention(q, k, v, bias))
            x = layer_norm(w, f"{layer}.attention.output.LayerNorm", attended + x)
            gate, up = np.split(x @ w[f"{layer}.mlp.gated_layers.weight"].T, 2, axis=-1)
            fed = apply(w, f"{layer}.mlp.wo", gelu(gate) * up)
            x = layer_norm(w, f"{layer}.mlp.layernorm", fed + x)
        return x

    return references_of(forward, inputs)


def nomic(directory, random, inputs):
    w = {
        "token_embd.weight": draw(random, VOCAB, WIDTH),
        "token_types.weight": draw(random, 1, WIDTH),
        **norm(random, "token_embd_norm"),
    }
    for i in range(LAYERS):
        w |= linear(random, f"blk.{i}.attn_qkv", 3 * WIDTH, WIDTH)
        w |= linear(random, f"blk.{i}.attn_output", WIDTH, WIDTH)
        w |= norm(random, f"blk.{i}.attn_output_norm") | norm(random, f"blk.{i}.layer_output_norm")
        if i % 2 == 1:
            w[f"blk.{i}.ffn_gate_inp.weight"] = draw(random, EXPERTS, WIDTH)
            w[f"blk.{i}.ffn_up_exps.weight"] = draw(random, EXPERTS, FF, WIDTH)
            w[f"blk.{i}.ffn_down_exps.weight"] = draw(random, EXPERTS, WIDTH, FF)
        else:
            w |= linear(random, f"blk.{i}.ffn_up", FF, WIDTH) | linear(random, f"blk.{i}.ffn_down", WIDTH, FF)
    keys = {"rope.freq_base": 1000.0, "expert_count": EXPERTS, "expert_used_count": USED, "moe_every_n_layers": 2}
    save_gguf(directory / "model.gguf", "nomic-bert-moe", keys, w)

    def rotated(x):
        half = WIDTH // HEADS // 2
        angles = np.arange(len(x))[:, None] * 1000.0 ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        heads = x.reshape(len(x), HEADS, 2 * half)
        a, b = heads[..., :half], heads[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).reshape(len(x), WIDTH)

    def experts(i, x):
        weights = softmax(x @ w[f"blk.{i}.ffn_gate_inp.weight"].T)
        out = np.zeros_like(x)
        for row, (token, probabilities) in enumerate(zip(x, weights)):
            for e in np.argsort(-probabilities)[:USED]:
                hidden = gelu(w[f"blk.{i}.ffn_up_exps.weight"][e] @ token)
                out[row] += probabilities[e] * (w[f"blk.{i}.ffn_down_exps.weight"][e] @ hidden)
        return out

    def forward(tokens):
        x = layer_norm(w, "token_embd_norm", w["token_embd.weight"][tokens] + w["token_types.weight"][0])
        for i in range(LAYERS):
            q, k, v = np.split(apply(w, f"blk.{i}.attn_qkv", x), 3, axis=-1)
            attended = apply(w, f"blk.{i}.attn_output", attention(rotated(q), rotated(k), v, 0.0))
            x = layer_norm(w, f"blk.{i}.attn_output_norm", attended + x)
            dense = lambda x: apply(w, f"blk.{i}.ffn_down", gelu(apply(w, f"blk.{i}.ffn_up", x)))
            fed = experts(i, x) if i % 2 == 1 else dense(x)
            x = layer_norm(w, f"blk.{i}.layer_output_norm", fed + x)
        return x

    return references_of(forward, inputs)


def pair(directory, random, inputs):
    w = {
        "embeddings.word_embeddings.weight": draw(random, VOCAB, WIDTH),
        "embeddings.position_embeddings.weight": draw(random, 64, WIDTH),
        "embeddings.token_type_embeddings.weight": draw(random, 2, WIDTH),
        **norm(random, "embeddings.LayerNorm"),
        **linear(random, "pooler.dense", WIDTH, WIDTH),
    }
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            w |= linear(random, f"{layer}.{part}", WIDTH, WIDTH)
        w |= linear(random, f"{layer}.intermediate.dense", FF, WIDTH)
        w |= linear(random, f"{layer}.output.dense", WIDTH, FF)
        w |= norm(random, f"{layer}.attention.output.LayerNorm") | norm(random, f"{layer}.output.LayerNorm")
    head = linear(random, "classifier", 1, WIDTH)
    config = {"architectures": ["BertForSequenceClassification"], "model_type": "bert", **numbers()}
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    save_safetensors(directory / "model.safetensors", {f"bert.{name}": tensor for name, tensor in w.items()} | head)

    def forward(tokens, second=None):
        types = np.arange(len(tokens)) >= (len(tokens) if second is None else second)
        x = w["embeddings.word_embeddings.weight"][tokens]
        x = x + w["embeddings.position_embeddings.weight"][: len(tokens)]
        x = x + w["embeddings.token_type_embeddings.weight"][types.astype(int)]
        x = layer_norm(w, "embeddings.LayerNorm", x)
        for i in range(LAYERS):
            layer = f"encoder.layer.{i}"
            q, k, v = (apply(w, f"{layer}.attention.self.{part}", x) for part in ("query", "key", "value"))
            attended = apply(w, f"{layer}.attention.output.dense", attention(q, k, v, 0.0))
            x = layer_norm(w, f"{layer}.attention.output.LayerNorm", attended + x)
            fed = apply(w, f"{layer}.output.dense", gelu(apply(w, f"{layer}.intermediate.dense", x)))
            x = layer_norm(w, f"{layer}.output.LayerNorm", fed + x)
        return x

    references = references_of(forward, inputs)
    for i, tokens in enumerate(inputs):
        # The first third of the tokens is one text, the rest another.
        score = lambda second: apply(head, "classifier", np.tanh(apply(w, "pooler.dense", forward(tokens, second)[0])))
        references[f"logits_{i}"] = score(None)
        references[f"pair_{i}"] = score(len(tokens) // 3)
        del references[f"pooled_{i}"]
    return references


def references_of(forward, inputs):
    references = {}
    for i, tokens in enumerate(inputs):
        hidden = forward(tokens)
        references |= {f"tokens_{i}": tokens, f"hidden_{i}": hidden, f"pooled_{i}": hidden.mean(axis=0)}
    return references


def numbers():
    return {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": FF,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
        "layer_norm_eps": EPSILON,
        "hidden_act": "gelu",
    }


def draw(random, *shape):
    """Random numbers that are exact in half precision, so that files may store them as such."""
    return (random.standard_normal(shape) * 0.3).astype(np.float16).astype(np.float64)


def linear(random, name, outputs, inputs):
    return {f"{name}.weight": draw(random, outputs, inputs), f"{name}.bias": draw(random, outputs)}


def norm(random, name):
    return {f"{name}.weight": draw(random, WIDTH) + 1.0, f"{name}.bias": draw(random, WIDTH)}


def apply(w, name, x):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def layer_norm(w, name, x):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def gelu(x):
    return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def attention(q, k, v, bias):
    q, k, v = (x.reshape(len(x), HEADS, -1).transpose(1, 0, 2) for x in (q, k, v))
    scores = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1]) + bias)
    return (scores @ v).transpose(1, 0, 2).reshape(q.shape[1], -1)


def renamed(w, theirs, ours):
    return {f"{ours}.{part}": w[f"{theirs}.{part}"] for part in ("weight", "bias")}


def save_gguf(path, arch, keys, tensors):
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {
        "vocab_size": VOCAB,
        "context_length": 64,
        "embedding_length": WIDTH,
        "feed_forward_length": FF,
        "block_count": LAYERS,
        "attention.head_count": HEADS,
        "attention.layer_norm_epsilon": EPSILON,
        "attention.causal": False,
        "pooling_type": 1,
        **keys,
    }.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(f"{arch}.{key}", value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def save_safetensors(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        is_ids = tensor.dtype.kind == "i"
        piece = tensor.astype(np.int32 if is_ids else np.float32).tobytes()
        entry = {"dtype": "I32" if is_ids else "F32", "shape": list(tensor.shape)}
        header[name] = entry | {"data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    header = json.dumps(header).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


if __name__ == "__main__":
    main()
