"""References of families that `transformers` has no class for, or whose GGUF form computes something else.

Each function takes the configuration and the weights of a fixture and returns a function from a case to outputs.
Most families are a class of `transformers` under other names.
"""

import contextlib
import importlib
import os
import tempfile

import torch

import references


def renamed(weights, renames):
    """Weights under other names: `renames` gives for each part of a name its replacement."""
    found = {}
    for name, weight in weights.items():
        for old, new in renames:
            name = name.replace(old, new)
        found[name] = weight
    return found


def llama(config, weights, class_name="LlamaForCausalLM", model_type="llama", **changes):
    """A class of `transformers` with this configuration."""
    config = config | {"architectures": [class_name], "model_type": model_type} | changes
    config.pop("auto_map", None)
    return references.load(class_name, config, weights)


def replace_fused(weights, suffix, parts):
    """Replaces each weight (and bias) that ends with `suffix` by its rows: `parts` gives names and row indices."""
    found = {}
    for name, weight in weights.items():
        for kind in (".weight", ".bias"):
            if name.endswith(suffix + kind):
                base = name.removesuffix(suffix + kind)
                found |= {base + part + kind: weight[rows].contiguous() for part, rows in parts.items()}
                break
        else:
            found[name] = weight
    return found


def consecutive(**sizes):
    """Rows of parts that follow each other."""
    at, parts = 0, {}
    for part, size in sizes.items():
        parts[part] = torch.arange(at, at + size)
        at += size
    return parts


def qkv(config, kv_heads=None):
    """Rows of q, k and v, one after the other."""
    heads, width = config["num_attention_heads"], config["hidden_size"]
    head_dim = config.get("head_dim") or width // heads
    kv = (kv_heads or config.get("num_key_value_heads", heads)) * head_dim
    return consecutive(q_proj=heads * head_dim, k_proj=kv, v_proj=kv)


def InternLM2(config, weights):
    """InternLM 2: Llama; rows of q, k and v are grouped by key head."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim, group = config["hidden_size"] // heads, heads // kv_heads
    rows = torch.arange((heads + 2 * kv_heads) * head_dim).view(kv_heads, group + 2, head_dim)
    parts = {
        "self_attn.q_proj": rows[:, :group].flatten(),
        "self_attn.k_proj": rows[:, group].flatten(),
        "self_attn.v_proj": rows[:, group + 1].flatten(),
    }
    weights = replace_fused(weights, "attention.wqkv", parts)
    weights = renamed(weights, [
        ("tok_embeddings", "embed_tokens"), ("attention.wo", "self_attn.o_proj"),
        ("attention_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"),
        ("feed_forward.w1", "mlp.gate_proj"), ("feed_forward.w3", "mlp.up_proj"),
        ("feed_forward.w2", "mlp.down_proj"),
    ])
    weights["lm_head.weight"] = weights.pop("output.weight")
    return references.runner(llama(config, weights))


def QWen(config, weights):
    """Qwen 1: Qwen 2 with other names; the width of the feed-forward layer counts two matrices."""
    parts = {f"self_attn.{name}": rows for name, rows in qkv(config).items()}
    weights = replace_fused(weights, "attn.c_attn", parts)
    weights = renamed(weights, [
        ("transformer.h.", "model.layers."), ("transformer.wte", "model.embed_tokens"),
        ("transformer.ln_f", "model.norm"), (".attn.c_proj", ".self_attn.o_proj"),
        ("ln_1", "input_layernorm"), ("ln_2", "post_attention_layernorm"),
        ("mlp.w1", "mlp.up_proj"), ("mlp.w2", "mlp.gate_proj"), ("mlp.c_proj", "mlp.down_proj"),
    ])
    half = config["intermediate_size"] // 2
    return references.runner(llama(config, weights, "Qwen2ForCausalLM", "qwen2", intermediate_size=half))


def MiniCpm(config, weights):
    """MiniCPM 1 and 2: Granite with its multipliers under other names."""
    return references.runner(llama(
        config, weights, "GraniteForCausalLM", "granite",
        embedding_multiplier=config["scale_emb"],
        residual_multiplier=config["scale_depth"] / config["num_hidden_layers"] ** 0.5,
        logits_scaling=config["hidden_size"] / config["dim_model_base"],
        attention_multiplier=(config["hidden_size"] / config["num_attention_heads"]) ** -0.5,
    ))


def Gemma3nUnbiased(config, weights):
    """Gemma 3n as GGUF engines compute it: the deviation of sparse activations divides by n - 1."""
    model = references.load("Gemma3nForCausalLM", config, weights)

    def topk(self, inputs):
        probability = torch.tensor(self.activation_sparsity)
        cutoff = torch.distributions.Normal(0, 1).icdf(probability) * inputs.std(-1, keepdim=True)
        return torch.relu(inputs - inputs.mean(-1, keepdim=True) - cutoff)

    for layer in model.model.layers:
        layer.mlp._gaussian_topk = topk.__get__(layer.mlp)
    return references.runner(model)


def PhimoeRms(config, weights):
    """Phi 3.5 MoE as GGUF engines compute it: RMS norms with a bias, and renormalized softmax weights."""
    model = references.load("PhimoeForCausalLM", config, weights)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
    for norm in norms:
        norm.forward = lambda x, norm=norm: torch.nn.functional.rms_norm(
            x, norm.normalized_shape, norm.weight, norm.eps
        ) + norm.bias
    routers = [module for module in model.modules() if type(module).__name__ == "PhimoeTopKRouter"]
    assert norms and routers

    for router in routers:
        def route(hidden, router=router):
            hidden = hidden.reshape(-1, hidden.shape[-1])
            scores = torch.nn.functional.linear(hidden, router.weight).softmax(-1)
            top, index = scores.topk(config["num_experts_per_tok"], -1)
            return scores, top / top.sum(-1, keepdim=True), index

        router.forward = route
    return references.runner(model)


def Rwkv(config, weights):
    """RWKV 6 and 7 by the package `rwkv` of its authors."""
    os.environ["RWKV_V7_ON"] = str(int(config["model_type"] == "rwkv7"))
    os.environ["RWKV_JIT_ON"] = "0"
    # The package prints a banner.
    with contextlib.redirect_stdout(None):
        import rwkv.model

        # The version is chosen when the module is read.
        engine = importlib.reload(rwkv.model).RWKV
    weights = renamed(weights, [
        ("rwkv.", ""), ("model.", ""), ("embeddings.", "emb."), ("pre_ln.", "blocks.0.ln0."),
        ("blocks.0.blocks.0.", "blocks.0."), (".attention.", ".att."), (".feed_forward.", ".ffn."),
    ])
    with tempfile.NamedTemporaryFile(suffix=".pth") as file, contextlib.redirect_stdout(None):
        # The package finds version and number of heads from the order of the names.
        torch.save(dict(sorted(weights.items())), file.name)
        model = engine(file.name.removesuffix(".pth"), "cpu fp32")
    return lambda case: {"logits": model.forward(case["tokens"], None, full_output=True)[0]}


def Baichuan(config, weights):
    """Baichuan: Llama with one matrix for q, k and v; the model of 40 layers has ALiBi instead of RoPE."""
    parts = {f"self_attn.{name}": rows for name, rows in qkv(config).items()}
    model = llama(config, replace_fused(weights, "self_attn.W_pack", parts))
    return with_alibi(model) if config["num_hidden_layers"] == 40 else references.runner(model)


def with_alibi(model):
    """Runs a Llama with linear biases (ALiBi) instead of rotary embeddings."""
    model.model.rotary_emb.inv_freq.zero_()
    heads = model.config.num_attention_heads
    assert heads & (heads - 1) == 0
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)

    def run(case):
        at = torch.arange(len(case["tokens"]))
        bias = slopes[:, None, None] * (at[None, :] - at[:, None])
        mask = bias.masked_fill(at[None, :] > at[:, None], torch.finfo(torch.float32).min)
        return references.runner(model, attention_mask=mask[None])(case)

    return run


def Xverse(config, weights):
    """Xverse: Llama."""
    return references.runner(llama(config, weights))


def Exaone(config, weights):
    """EXAONE 3: Llama under GPT-2's names."""
    weights = renamed(weights, [
        ("transformer.h.", "model.layers."), ("transformer.wte", "model.embed_tokens"),
        ("transformer.ln_f", "model.norm"), ("attn.attention.out_proj", "self_attn.o_proj"),
        ("attn.attention.", "self_attn."), ("ln_1", "input_layernorm"), ("ln_2", "post_attention_layernorm"),
        ("mlp.c_fc_0", "mlp.gate_proj"), ("mlp.c_fc_1", "mlp.up_proj"), ("mlp.c_proj", "mlp.down_proj"),
    ])
    return references.runner(llama(
        config, weights,
        num_hidden_layers=config["num_layers"], rms_norm_eps=config["layer_norm_epsilon"], hidden_act="silu",
    ))


def Orion(config, weights):
    """Orion: StableLM that rotates whole heads."""
    return references.runner(llama(
        config, weights, "StableLmForCausalLM", "stablelm",
        partial_rotary_factor=1.0, layer_norm_eps=config["rms_norm_eps"], use_parallel_residual=False,
    ))


def Refact(config, weights):
    """Refact: Llama with ALiBi and one key head, under GPT-2's names."""
    width, heads = config["n_embd"], config["n_head"]
    inner = next(w.shape[1] for name, w in weights.items() if name.endswith("mlp.c_proj.weight"))
    kv = consecutive(**{"self_attn.k_proj": width // heads, "self_attn.v_proj": width // heads})
    weights = replace_fused(weights, "attn.kv", kv)
    gate_up = consecutive(**{"mlp.gate_proj": inner, "mlp.up_proj": inner})
    weights = replace_fused(weights, "mlp.gate_up_proj", gate_up)
    weights = renamed(weights, [
        ("transformer.h.", "model.layers."), ("transformer.wte", "model.embed_tokens"),
        ("transformer.ln_f", "model.norm"), (".attn.q.", ".self_attn.q_proj."),
        (".attn.c_proj", ".self_attn.o_proj"), ("ln_1", "input_layernorm"),
        ("ln_2", "post_attention_layernorm"), ("mlp.c_proj", "mlp.down_proj"),
    ])
    return with_alibi(llama(
        config, weights,
        hidden_size=width, num_attention_heads=heads, num_key_value_heads=1, intermediate_size=inner,
        num_hidden_layers=config["n_layer"], rms_norm_eps=config["layer_norm_epsilon"], hidden_act="silu",
        max_position_embeddings=config["n_positions"], tie_word_embeddings=False,
    ))


def Deci(config, weights):
    """Deci: Llama whose layers differ in heads and width, and may have a linear map or nothing instead of a part."""
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaConfig, LlamaForCausalLM, LlamaMLP

    class Linear(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.linear_attn = torch.nn.Linear(width, width, bias=False)

        def forward(self, hidden_states, **_):
            return self.linear_attn(hidden_states), None

    class Nothing(torch.nn.Module):
        def forward(self, x=None, hidden_states=None, **_):
            return torch.zeros_like(x) if x is not None else (torch.zeros_like(hidden_states), None)

    numbers = {"model_type": "llama", "num_key_value_heads": config["num_attention_heads"], "intermediate_size": 1}

    def new_config():
        return LlamaConfig.from_dict(config | numbers, attn_implementation="eager")

    model = LlamaForCausalLM(new_config())
    width, heads, unused = config["hidden_size"], config["num_attention_heads"], set()
    for i, block in enumerate(config["block_configs"]):
        layer, attention, ffn = model.model.layers[i], block["attention"], block["ffn"]
        own = new_config()
        if attention["n_heads_in_group"]:
            own.num_key_value_heads = heads // attention["n_heads_in_group"]
            layer.self_attn = LlamaAttention(own, i)
        elif attention["replace_with_linear"]:
            layer.self_attn = Linear(width)
        else:
            layer.self_attn = Nothing()
            unused.add(f"model.layers.{i}.input_layernorm.weight")
        if ffn["ffn_mult"]:
            own.intermediate_size = -(-int(2 * ffn["ffn_mult"] * width / 3) // 256) * 256
            layer.mlp = LlamaMLP(own)
        else:
            layer.mlp = Nothing()
            unused.add(f"model.layers.{i}.post_attention_layernorm.weight")
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert set(missing) == unused and not unexpected, (missing, unexpected)
    return references.runner(model.eval())


def Qwen3Vl(config, weights):
    """The text half of Qwen 3-VL: Qwen 3, as all coordinates of a text position are equal."""
    weights = renamed(weights, [("model.language_model.", "model.")])
    text = {name: value for name, value in config["text_config"].items() if name != "rope_scaling"}
    return references.runner(llama(text, weights, "Qwen3ForCausalLM", "qwen3"))


def ChatGlm(config, weights):
    """ChatGLM 3: GLM under other names."""
    heads, groups, head_dim = config["num_attention_heads"], config["multi_query_group_num"], config["kv_channels"]
    sizes = zip(("q_proj", "k_proj", "v_proj"), (heads, groups, groups))
    parts = consecutive(**{f"self_attn.{name}": count * head_dim for name, count in sizes})
    weights = replace_fused(weights, "self_attention.query_key_value", parts)
    weights = renamed(weights, [
        ("transformer.encoder.layers.", "model.layers."), ("transformer.encoder.final_layernorm", "model.norm"),
        ("transformer.embedding.word_embeddings", "model.embed_tokens"), ("transformer.output_layer", "lm_head"),
        ("self_attention.dense", "self_attn.o_proj"), ("mlp.dense_h_to_4h", "mlp.gate_up_proj"),
        ("mlp.dense_4h_to_h", "mlp.down_proj"),
    ])
    return references.runner(llama(
        config, weights, "GlmForCausalLM", "glm",
        num_hidden_layers=config["num_layers"], num_key_value_heads=groups, head_dim=head_dim,
        intermediate_size=config["ffn_hidden_size"], rms_norm_eps=config["layernorm_epsilon"],
        attention_bias=True, vocab_size=config["padded_vocab_size"], pad_token_id=0, hidden_act="silu",
        max_position_embeddings=config["seq_length"], partial_rotary_factor=0.5, tie_word_embeddings=False,
    ))


def CodeShell(config, weights):
    """CodeShell: StarCoder 2 under GPT-2's names."""
    names = {"hidden_size": config["n_embd"], "num_attention_heads": config["n_head"]}
    parts = {f"self_attn.{name}": rows for name, rows in qkv(names, config["num_query_groups"]).items()}
    weights = replace_fused(weights, "attn.c_attn", parts)
    weights = renamed(weights, [
        ("transformer.h.", "model.layers."), ("transformer.wte", "model.embed_tokens"),
        ("transformer.ln_f", "model.norm"), (".attn.c_proj", ".self_attn.o_proj"),
        ("ln_1", "input_layernorm"), ("ln_2", "post_attention_layernorm"),
    ])
    return references.runner(llama(
        config, weights, "Starcoder2ForCausalLM", "starcoder2", **names,
        num_hidden_layers=config["n_layer"], num_key_value_heads=config["num_query_groups"],
        intermediate_size=config["n_inner"], hidden_act="gelu_pytorch_tanh",
        norm_epsilon=config["layer_norm_epsilon"], use_bias=True, tie_word_embeddings=True,
        max_position_embeddings=config["n_positions"], sliding_window=None,
    ))


def with_shared_expert(config, weights, **changes):
    """Qwen 2 with experts, and a shared expert without a gate: a gate of 1/2, and twice the output."""
    weights = renamed(weights, [("mlp.shared_experts", "mlp.shared_expert")])
    for name in list(weights):
        if name.endswith("shared_expert.down_proj.weight"):
            layer = name.removesuffix(".down_proj.weight")
            weights[name] = 2 * weights[name]
            weights[f"{layer}_gate.weight"] = torch.zeros(1, config["hidden_size"])
    dense = config.get("first_k_dense_replace", 0)
    return references.runner(llama(
        config, weights, "Qwen2MoeForCausalLM", "qwen2_moe", qkv_bias=False, decoder_sparse_step=1,
        mlp_only_layers=list(range(dense)), **changes,
    ))


def Deepseek(config, weights):
    """DeepSeek MoE 1."""
    return with_shared_expert(
        config, weights, num_experts=config["n_routed_experts"],
        shared_expert_intermediate_size=config["n_shared_experts"] * config["moe_intermediate_size"],
    )


def bailing(config, weights):
    """Weights of Ling under usual names."""
    parts = {f"self_attn.{name}": rows for name, rows in qkv(config).items()}
    weights = replace_fused(weights, "attention.query_key_value", parts)
    return renamed(weights, [
        ("word_embeddings", "embed_tokens"), ("attention.dense", "self_attn.o_proj"),
        ("attention.query_layernorm", "self_attn.q_norm"), ("attention.key_layernorm", "self_attn.k_norm"),
        ("gate.expert_bias", "gate.e_score_correction_bias"),
    ])


def Bailing(config, weights):
    """Ling 1."""
    return with_shared_expert(
        config, bailing(config, weights),
        shared_expert_intermediate_size=config["num_shared_experts"] * config["moe_intermediate_size"],
    )


def Bailing2(config, weights):
    """Ling 2: GLM 4.5 under other names."""
    return references.runner(llama(
        config, bailing(config, weights), "Glm4MoeForCausalLM", "glm4_moe", use_qk_norm=True,
        n_routed_experts=config["num_experts"], n_shared_experts=config["num_shared_experts"],
        attention_bias=False,
    ))
