//! The Gemma family: scaled embeddings, GeGLU, and norms on both sides of each half-layer.

use super::names::{ATTN_POST_NORM, FFN_NORM, FFN_POST_NORM};
use super::{Arch, BASE, EmbeddingScale, QueryScale, TensorRole, Windows};
use crate::graph::Activation;

/// Llama calls the norm before the feed-forward layer "post attention"; here it is what it says.
const SANDWICH_NAMES: &[(TensorRole, &str)] = &[
    (ATTN_POST_NORM, "model.layers.{}.post_attention_layernorm"),
    (FFN_NORM, "model.layers.{}.pre_feedforward_layernorm"),
    (FFN_POST_NORM, "model.layers.{}.post_feedforward_layernorm"),
];

const GEMMA_BASE: Arch = Arch {
    hf_norm_offset: 1.0,
    activation: Activation::GeluTanh,
    embedding_scale: EmbeddingScale::SqrtWidth,
    ..BASE
};

/// Gemma 1.
pub(super) static GEMMA: Arch = Arch {
    name: "gemma",
    hf_classes: &["GemmaForCausalLM"],
    ..GEMMA_BASE
};

/// Gemma 2: sandwich norms, capped scores and logits, every second layer windowed.
pub(super) static GEMMA2: Arch = Arch {
    name: "gemma2",
    hf_classes: &["Gemma2ForCausalLM"],
    windows: Windows::AllButEvery(2),
    query_scale: QueryScale::HeadDimUnlessLayers(46),
    hf_names: SANDWICH_NAMES,
    ..GEMMA_BASE
};

/// Gemma 3: norms on q and k, five windowed layers to a full one, each kind with its own RoPE base.
pub(super) static GEMMA3: Arch = Arch {
    name: "gemma3",
    hf_classes: &["Gemma3ForCausalLM", "Gemma3TextModel"],
    windows: Windows::AllButEvery(6),
    window_rope_base: Some(10_000.0),
    query_scale: QueryScale::HeadDimUnlessLayers(62),
    hf_names: SANDWICH_NAMES,
    ..GEMMA_BASE
};
