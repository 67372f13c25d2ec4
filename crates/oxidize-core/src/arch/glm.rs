//! GLM: partial rotary embeddings, fused gate and up; later with sandwich norms or experts.

use super::names::*;
use super::{Arch, BASE, INTERLEAVED, MOE, MoeSpec};
use crate::graph::Gating;

/// ChatGLM 3 and GLM 4 of 2024, under the names of both of its lives.
pub(super) static CHATGLM: Arch = Arch {
    name: "chatglm",
    hf_classes: &["GlmForCausalLM"],
    rope: INTERLEAVED,
    ..BASE
};

/// GLM 4 of 2025: norms on both sides of each half-layer.
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

/// GLM 4.5 and later: experts chosen with a bias, after some dense layers.
pub(super) static GLM4MOE: Arch = Arch {
    name: "glm4moe",
    hf_classes: &["Glm4MoeForCausalLM"],
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
