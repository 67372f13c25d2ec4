//! GPT-2 and similar families: layer norms, biases, ungated feed-forward layers.

use super::Family;
use super::names::*;
use super::{ActivationRule, Alibi, Arch, BASE, INTERLEAVED, QkvLayout, RopeLayers};
use crate::graph::{Activation, NormKind};

const GPT_BASE: Arch = Arch {
    norm: NormKind::Layer,
    activation: ActivationRule::Named(Activation::GeluTanh),
    ..BASE
};

const GPT2_NAMES: &[(TensorRole, &str)] = &[
    (TOKEN_EMBEDDING, "transformer.wte"),
    (POSITION_EMBEDDING, "transformer.wpe"),
    (OUTPUT_NORM, "transformer.ln_f"),
    (ATTN_NORM, "transformer.h.{}.ln_1"),
    (ATTN_QKV, "transformer.h.{}.attn.c_attn"),
    (ATTN_OUTPUT, "transformer.h.{}.attn.c_proj"),
    (FFN_NORM, "transformer.h.{}.ln_2"),
    (FFN_UP, "transformer.h.{}.mlp.c_fc"),
    (FFN_DOWN, "transformer.h.{}.mlp.c_proj"),
];

/// GPT-2: learned positions. Hugging Face files store its matrices transposed.
pub(super) static GPT2: Arch = Arch {
    name: "gpt2",
    hf_classes: &["GPT2LMHeadModel"],
    hf_keys: &[
        ("hidden_size", "n_embd"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("max_position_embeddings", "n_positions"),
        ("intermediate_size", "n_inner"),
        ("layer_norm_eps", "layer_norm_epsilon"),
        ("hidden_act", "activation_function"),
        ("num_key_value_heads", ""),
        ("head_dim", ""),
    ],
    rope_layers: RopeLayers::None,
    hf_names: GPT2_NAMES,
    hf_transposed: &[ATTN_QKV, ATTN_OUTPUT, FFN_UP, FFN_DOWN],
    ..GPT_BASE
};

/// StarCoder: GPT-2 with one key head (multi-query attention).
pub(super) static STARCODER: Arch = Arch {
    name: "starcoder",
    hf_classes: &["GPTBigCodeForCausalLM"],
    rope_layers: RopeLayers::None,
    hf_names: GPT2_NAMES,
    ..GPT_BASE
};

/// CodeShell: StarCoder with RoPE.
pub(super) static CODESHELL: Arch = Arch {
    name: "codeshell",
    hf_classes: &["CodeShellForCausalLM"],
    gguf_names: &[(TOKEN_EMBEDDING, "token_embd"), (TOKEN_EMBEDDING, "output")],
    hf_names: GPT2_NAMES,
    ..GPT_BASE
};

/// StarCoder 2.
pub(super) static STARCODER2: Arch = Arch {
    name: "starcoder2",
    hf_classes: &["Starcoder2ForCausalLM"],
    hf_names: &[
        (FFN_UP, "model.layers.{}.mlp.c_fc"),
        (FFN_DOWN, "model.layers.{}.mlp.c_proj"),
    ],
    ..GPT_BASE
};

/// GPT-J: attention and feed-forward layer in parallel, interleaved RoPE.
pub(super) static GPTJ: Arch = Arch {
    name: "gptj",
    hf_classes: &["GPTJForCausalLM"],
    parallel: true,
    rope: INTERLEAVED,
    hf_names: &[
        (TOKEN_EMBEDDING, "transformer.wte"),
        (OUTPUT_NORM, "transformer.ln_f"),
        (ATTN_NORM, "transformer.h.{}.ln_1"),
        (ATTN_Q, "transformer.h.{}.attn.q_proj"),
        (ATTN_K, "transformer.h.{}.attn.k_proj"),
        (ATTN_V, "transformer.h.{}.attn.v_proj"),
        (ATTN_OUTPUT, "transformer.h.{}.attn.out_proj"),
        (FFN_NORM, ""),
        (FFN_UP, "transformer.h.{}.mlp.fc_in"),
        (FFN_DOWN, "transformer.h.{}.mlp.fc_out"),
    ],
    ..GPT_BASE
};

/// GPT-NeoX: attention and feed-forward layer in parallel in most models, each with its own norm.
pub(super) static GPTNEOX: Arch = Arch {
    name: "gptneox",
    hf_classes: &["GPTNeoXForCausalLM"],
    parallel: true,
    activation: ActivationRule::Named(Activation::GeluErf),
    hf_qkv: QkvLayout::Grouped,
    hf_names: &[
        (TOKEN_EMBEDDING, "gpt_neox.embed_in"),
        (OUTPUT_NORM, "gpt_neox.final_layer_norm"),
        (OUTPUT, "embed_out"),
        (ATTN_NORM, "gpt_neox.layers.{}.input_layernorm"),
        (ATTN_QKV, "gpt_neox.layers.{}.attention.query_key_value"),
        (ATTN_OUTPUT, "gpt_neox.layers.{}.attention.dense"),
        (FFN_NORM, "gpt_neox.layers.{}.post_attention_layernorm"),
        (FFN_UP, "gpt_neox.layers.{}.mlp.dense_h_to_4h"),
        (FFN_DOWN, "gpt_neox.layers.{}.mlp.dense_4h_to_h"),
    ],
    ..GPT_BASE
};

const TRANSFORMER_NAMES: &[(TensorRole, &str)] = &[
    (TOKEN_EMBEDDING, "transformer.word_embeddings"),
    (
        TOKEN_EMBEDDING_NORM,
        "transformer.word_embeddings_layernorm",
    ),
    (OUTPUT_NORM, "transformer.ln_f"),
    (ATTN_NORM, "transformer.h.{}.input_layernorm"),
    (ATTN_QKV, "transformer.h.{}.self_attention.query_key_value"),
    (ATTN_OUTPUT, "transformer.h.{}.self_attention.dense"),
    (FFN_NORM, "transformer.h.{}.post_attention_layernorm"),
    (FFN_UP, "transformer.h.{}.mlp.dense_h_to_4h"),
    (FFN_DOWN, "transformer.h.{}.mlp.dense_4h_to_h"),
];

/// BLOOM: ALiBi, and a norm of the embeddings.
pub(super) static BLOOM: Arch = Arch {
    name: "bloom",
    hf_classes: &["BloomForCausalLM", "BloomModel"],
    alibi: Alibi::Always(8.0),
    rope_layers: RopeLayers::None,
    activation: ActivationRule::Always(Activation::GeluTanh),
    hf_qkv: QkvLayout::Grouped,
    hf_names: TRANSFORMER_NAMES,
    ..GPT_BASE
};

/// Falcon: attention and feed-forward layer in parallel, with one common norm in the small model
/// and two in the large one.
pub(super) static FALCON: Arch = Arch {
    name: "falcon",
    recipe_family: Family::Falcon,
    hf_classes: &["FalconForCausalLM", "RWForCausalLM"],
    hf_keys: &[
        ("num_key_value_heads", "num_kv_heads"),
        ("hidden_act", "activation"),
        ("intermediate_size", "ffn_hidden_size"),
        ("layer_norm_eps", "layer_norm_epsilon"),
        ("use_parallel_residual", "parallel_attn"),
        ("multi_query", "multi_query"),
        ("new_decoder_architecture", "new_decoder_architecture"),
        ("attn_config.alibi", "alibi"),
        ("attn_config.alibi_bias_max", ""),
    ],
    parallel: true,
    activation: ActivationRule::Named(Activation::GeluErf),
    hf_qkv: QkvLayout::Grouped,
    gguf_names: &[
        (ATTN_NORM, "blk.{}.attn_norm_2"),
        (ATTN_NORM, "blk.{}.attn_norm"),
        (FFN_NORM, "blk.{}.attn_norm"),
    ],
    hf_names: &[
        (TOKEN_EMBEDDING, "transformer.word_embeddings"),
        (OUTPUT_NORM, "transformer.ln_f"),
        (ATTN_NORM, "transformer.h.{}.ln_attn"),
        (ATTN_NORM, "transformer.h.{}.input_layernorm"),
        (ATTN_QKV, "transformer.h.{}.self_attention.query_key_value"),
        (ATTN_OUTPUT, "transformer.h.{}.self_attention.dense"),
        (FFN_NORM, "transformer.h.{}.ln_mlp"),
        (FFN_NORM, "transformer.h.{}.post_attention_layernorm"),
        (FFN_NORM, "transformer.h.{}.input_layernorm"),
        (FFN_UP, "transformer.h.{}.mlp.dense_h_to_4h"),
        (FFN_DOWN, "transformer.h.{}.mlp.dense_4h_to_h"),
    ],
    ..GPT_BASE
};

/// MPT: ALiBi, no biases.
pub(super) static MPT: Arch = Arch {
    name: "mpt",
    hf_classes: &["MPTForCausalLM", "MptForCausalLM"],
    hf_keys: &[
        ("expansion_ratio", "expansion_ratio"),
        ("layer_norm_eps", "layer_norm_epsilon"),
    ],
    rope_layers: RopeLayers::None,
    activation: ActivationRule::Always(Activation::GeluErf),
    hf_names: &[
        (TOKEN_EMBEDDING, "transformer.wte"),
        (POSITION_EMBEDDING, "transformer.wpe"),
        (OUTPUT_NORM, "transformer.norm_f"),
        (ATTN_NORM, "transformer.blocks.{}.norm_1"),
        (ATTN_QKV, "transformer.blocks.{}.attn.Wqkv"),
        (ATTN_Q_NORM, "transformer.blocks.{}.attn.q_ln"),
        (ATTN_K_NORM, "transformer.blocks.{}.attn.k_ln"),
        (ATTN_OUTPUT, "transformer.blocks.{}.attn.out_proj"),
        (FFN_NORM, "transformer.blocks.{}.norm_2"),
        (FFN_UP, "transformer.blocks.{}.ffn.up_proj"),
        (FFN_DOWN, "transformer.blocks.{}.ffn.down_proj"),
    ],
    ..GPT_BASE
};

/// OPT: learned positions, of which the first two are unused.
pub(super) static OPT: Arch = Arch {
    name: "opt",
    hf_classes: &["OPTForCausalLM"],
    rope_layers: RopeLayers::None,
    position_offset: 2,
    activation: ActivationRule::Named(Activation::Relu),
    hf_names: &[
        (TOKEN_EMBEDDING, "model.decoder.embed_tokens"),
        (POSITION_EMBEDDING, "model.decoder.embed_positions"),
        (OUTPUT_NORM, "model.decoder.final_layer_norm"),
        (ATTN_NORM, "model.decoder.layers.{}.self_attn_layer_norm"),
        (ATTN_Q, "model.decoder.layers.{}.self_attn.q_proj"),
        (ATTN_K, "model.decoder.layers.{}.self_attn.k_proj"),
        (ATTN_V, "model.decoder.layers.{}.self_attn.v_proj"),
        (ATTN_OUTPUT, "model.decoder.layers.{}.self_attn.out_proj"),
        (FFN_NORM, "model.decoder.layers.{}.final_layer_norm"),
        (FFN_UP, "model.decoder.layers.{}.fc1"),
        (FFN_DOWN, "model.decoder.layers.{}.fc2"),
    ],
    ..GPT_BASE
};

/// StableLM: Llama with layer norms; one size computes attention and feed-forward layer in
/// parallel.
pub(super) static STABLELM: Arch = Arch {
    name: "stablelm",
    hf_classes: &["StableLmForCausalLM", "StableLMEpochForCausalLM"],
    hf_keys: &[("model_type", "stablelm")],
    norm: NormKind::Layer,
    hf_names: &[
        (
            ATTN_Q_NORM,
            "model.layers.{}.self_attn.q_layernorm.norms.{e}",
        ),
        (
            ATTN_K_NORM,
            "model.layers.{}.self_attn.k_layernorm.norms.{e}",
        ),
    ],
    ..BASE
};

/// Nemotron: layer norms with weights stored minus one, ungated ReLU².
pub(super) static NEMOTRON: Arch = Arch {
    name: "nemotron",
    hf_classes: &["NemotronForCausalLM"],
    norm: NormKind::Layer,
    hf_norm_offset: 1.0,
    activation: ActivationRule::Named(Activation::ReluSquared),
    ..BASE
};
