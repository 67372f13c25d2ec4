//! Llama and the families that are Llama under another name.

use super::names::{FFN_DOWN_EXPERTS, FFN_GATE_EXPERTS, FFN_ROUTER, FFN_UP_EXPERTS};
use super::{Arch, BASE, RopeLayouts, Windows};
use crate::graph::RopeLayout;

/// GGUF's converter permutes the rows of q and k so that pairs are neighbours.
const PERMUTED: RopeLayouts = RopeLayouts {
    gguf: RopeLayout::Interleaved,
    hf: RopeLayout::Halves,
};

/// Llama 1 to 3, and, in GGUF, Mistral and Mixtral.
pub(super) static LLAMA: Arch = Arch {
    name: "llama",
    hf_classes: &["LlamaForCausalLM"],
    rope: PERMUTED,
    ..BASE
};

/// Mistral in Hugging Face's layout, where the sliding window is still known.
pub(super) static MISTRAL: Arch = Arch {
    name: "llama",
    hf_classes: &["MistralForCausalLM"],
    rope: PERMUTED,
    windows: Windows::All,
    ..BASE
};

/// Mixtral in Hugging Face's layout.
pub(super) static MIXTRAL: Arch = Arch {
    name: "llama",
    hf_classes: &["MixtralForCausalLM"],
    rope: PERMUTED,
    windows: Windows::All,
    hf_names: &[
        (FFN_ROUTER, "model.layers.{}.block_sparse_moe.gate"),
        (
            FFN_GATE_EXPERTS,
            "model.layers.{}.block_sparse_moe.experts.{e}.w1",
        ),
        (
            FFN_UP_EXPERTS,
            "model.layers.{}.block_sparse_moe.experts.{e}.w3",
        ),
        (
            FFN_DOWN_EXPERTS,
            "model.layers.{}.block_sparse_moe.experts.{e}.w2",
        ),
    ],
    ..BASE
};
