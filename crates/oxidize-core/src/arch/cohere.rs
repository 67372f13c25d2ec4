//! Cohere's Command models and OLMo.

use super::names::*;
use super::{Arch, BASE, INTERLEAVED, MOE, MoeSpec, PERMUTED, RopeLayers, Scales, Windows};
use crate::graph::NormKind;

const COHERE_BASE: Arch = Arch {
    norm: NormKind::Layer,
    parallel: true,
    rope: INTERLEAVED,
    scales: Scales::GivenMultiply,
    hf_names: &[(FFN_NORM, "")],
    ..BASE
};

/// Command R: attention and feed-forward layer in parallel, under one layer norm.
pub(super) static COMMAND_R: Arch = Arch {
    name: "command-r",
    hf_classes: &["CohereForCausalLM"],
    ..COHERE_BASE
};

/// Command R7B and A: every fourth layer full and without RoPE, the others windowed.
pub(super) static COHERE2: Arch = Arch {
    name: "cohere2",
    hf_classes: &["Cohere2ForCausalLM"],
    windows: Windows::AllButEvery(4),
    rope_layers: RopeLayers::Windowed,
    ..COHERE_BASE
};

/// OLMo 1: layer norms without weights, and a bound on q, k and v.
pub(super) static OLMO: Arch = Arch {
    name: "olmo",
    hf_classes: &["OlmoForCausalLM"],
    norm: NormKind::Layer,
    norm_weights: false,
    rope: PERMUTED,
    ..BASE
};

/// OLMo 2 and 3: norms after attention and feed-forward layer only; q and k are normalized over all
/// heads.
pub(super) static OLMO2: Arch = Arch {
    name: "olmo2",
    hf_classes: &["Olmo2ForCausalLM", "Olmo3ForCausalLM"],
    pre_norm: false,
    windows: Windows::AllButEvery(4),
    hf_names: &[
        (ATTN_POST_NORM, "model.layers.{}.post_attention_layernorm"),
        (FFN_POST_NORM, "model.layers.{}.post_feedforward_layernorm"),
        (FFN_NORM, ""),
    ],
    ..BASE
};

/// OLMoE.
pub(super) static OLMOE: Arch = Arch {
    name: "olmoe",
    hf_classes: &["OlmoeForCausalLM"],
    hf_keys: &[("moe_intermediate_size", "intermediate_size")],
    moe: MoeSpec {
        renormalize: false,
        ..MOE
    },
    ..BASE
};
