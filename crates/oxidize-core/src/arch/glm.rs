//! GLM: partial RoPE, fused gate and up; later models with post-norms or experts.

use super::names::*;
use super::{Arch, BASE, INTERLEAVED, MOE, MoeSpec};
use crate::graph::Gating;

/// ChatGLM 3 and GLM 4 of 2024.
pub(super) static CHATGLM: Arch = Arch {
    name: "chatglm",
    hf_classes: &["GlmForCausalLM"],
    rope: INTERLEAVED,
    ..BASE
};

/// ChatGLM 3 and GLM 4 in Hugging Face directories.
pub(super) static CHATGLM_HF: Arch = Arch {
    name: "chatglm",
    hf_classes: &["ChatGLMModel", "ChatGLMForConditionalGeneration"],
    rope: INTERLEAVED,
    hf_rotary_share: 0.5,
    hf_names: &[
        (TOKEN_EMBEDDING, "transformer.embedding.word_embeddings"),
        (OUTPUT_NORM, "transformer.encoder.final_layernorm"),
        (OUTPUT, "transformer.output_layer"),
        (ATTN_NORM, "transformer.encoder.layers.{}.input_layernorm"),
        (
            ATTN_QKV,
            "transformer.encoder.layers.{}.self_attention.query_key_value",
        ),
        (
            ATTN_OUTPUT,
            "transformer.encoder.layers.{}.self_attention.dense",
        ),
        (
            FFN_NORM,
            "transformer.encoder.layers.{}.post_attention_layernorm",
        ),
        (
            FFN_GATE_UP,
            "transformer.encoder.layers.{}.mlp.dense_h_to_4h",
        ),
        (FFN_DOWN, "transformer.encoder.layers.{}.mlp.dense_4h_to_h"),
    ],
    ..BASE
};

/// GLM 4 of 2025: norms before and after attention and feed-forward layer.
pub(super) static GLM4: Arch = Arch {
    name: "glm4",
    hf_classes: &["Glm4ForCausalLM"],
    rope: INTERLEAVED,
    hf_names: &[
        (ATTN_POST_NORM, "model.layers.{}.post_self_attn_layernorm"),
        (FFN_POST_NORM, "model.layers.{}.post_mlp_layernorm"),
    ],
    ..BASE
};

/// GLM 4.5 and later: experts selected with a bias, after leading dense layers.
pub(super) static GLM4MOE: Arch = Arch {
    name: "glm4moe",
    hf_classes: &["Glm4MoeForCausalLM"],
    hf_keys: &[("num_experts", "n_routed_experts")],
    moe: MoeSpec {
        gating: Gating::Sigmoid,
        ..MOE
    },
    gguf_names: &[
        (FFN_NORM, "blk.{}.post_attention_norm"),
        (ATTN_POST_NORM, ""),
    ],
    ..BASE
};
