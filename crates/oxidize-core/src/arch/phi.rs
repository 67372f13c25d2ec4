//! Microsoft's Phi.

use super::names::*;
use super::{ActivationRule, Arch, BASE, MOE, MoeSpec, Windows, llama};
use crate::graph::{Activation, Gating, NormKind};

/// Phi 1 and 2: layer norms, biases, attention and feed-forward layer in parallel.
pub(super) static PHI2: Arch = Arch {
    name: "phi2",
    hf_classes: &["PhiForCausalLM"],
    norm: NormKind::Layer,
    parallel: true,
    activation: ActivationRule::Named(Activation::GeluTanh),
    hf_names: &[
        (OUTPUT_NORM, "model.final_layernorm"),
        (ATTN_OUTPUT, "model.layers.{}.self_attn.dense"),
        (FFN_NORM, ""),
        (FFN_UP, "model.layers.{}.mlp.fc1"),
        (FFN_DOWN, "model.layers.{}.mlp.fc2"),
    ],
    ..BASE
};

/// Phi 3 and 4: Llama with fused matrices and LongRoPE. The window in GGUF metadata is ignored, as
/// in llama.cpp.
pub(super) static PHI3: Arch = Arch {
    name: "phi3",
    ..BASE
};

/// Phi 3 and 4 in Hugging Face directories.
pub(super) static PHI3_HF: Arch = Arch {
    name: "phi3",
    hf_classes: &["Phi3ForCausalLM", "Phi4MMForCausalLM"],
    windows: Windows::All,
    ..BASE
};

/// Phi 3.5 MoE as in GGUF files: RMS norms with biases, the default router.
pub(super) static PHIMOE: Arch = Arch {
    name: "phimoe",
    ..BASE
};

/// Phi 3.5 MoE as trained: layer norms, SparseMixer as the router.
pub(super) static PHIMOE_HF: Arch = Arch {
    name: "phimoe",
    hf_classes: &["PhimoeForCausalLM", "PhiMoEForCausalLM"],
    hf_keys: &[
        ("num_experts", "num_local_experts"),
        ("moe_intermediate_size", "intermediate_size"),
    ],
    norm: NormKind::Layer,
    windows: Windows::All,
    moe: MoeSpec {
        gating: Gating::SparseMixer { jitter: 0.01 },
        ..MOE
    },
    hf_names: llama::BLOCK_SPARSE_NAMES,
    ..BASE
};
