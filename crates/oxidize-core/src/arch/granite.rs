//! Granite and MiniCPM: Llama with scales of embeddings, residuals, scores and logits.

use super::mamba::FEED_FORWARD_NAMES;
use super::names::*;
use super::{Arch, BASE, DEFAULT_FORM, GgufForm, PERMUTED, RECURRENT, RopeLayers, Scales, Windows};

/// Granite 3, dense.
pub(super) static GRANITE: Arch = Arch {
    name: "granite",
    hf_classes: &["GraniteForCausalLM"],
    rope: PERMUTED,
    ..BASE
};

const GRANITE_EXPERTS: &[(TensorRole, &str)] = &[
    (FFN_ROUTER, "model.layers.{}.block_sparse_moe.router.layer"),
    (
        FFN_GATE_UP_EXPERTS,
        "model.layers.{}.block_sparse_moe.input_linear",
    ),
    (
        FFN_DOWN_EXPERTS,
        "model.layers.{}.block_sparse_moe.output_linear",
    ),
    (
        FFN_GATE_UP_SHARED,
        "model.layers.{}.shared_mlp.input_linear",
    ),
    (FFN_DOWN_SHARED, "model.layers.{}.shared_mlp.output_linear"),
    // Without experts, the shared expert is the feed-forward layer.
    (FFN_GATE_UP, "model.layers.{}.shared_mlp.input_linear"),
    (FFN_DOWN, "model.layers.{}.shared_mlp.output_linear"),
];

/// GGUF stores gate and up separately.
const SPLIT_HALVES: GgufForm = GgufForm {
    split_gate_up: true,
    ..DEFAULT_FORM
};

/// Granite with experts and, in some models, a shared expert.
pub(super) static GRANITEMOE: Arch = Arch {
    name: "granitemoe",
    hf_classes: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
    hf_keys: &[
        ("num_experts", "num_local_experts"),
        ("moe_intermediate_size", "intermediate_size"),
        (
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
        ),
    ],
    rope: PERMUTED,
    gguf_form: SPLIT_HALVES,
    hf_names: GRANITE_EXPERTS,
    ..BASE
};

/// Names of the experts in the model with windows.
const SWA_EXPERTS: &[(TensorRole, &str)] = &[
    (FFN_ROUTER, "model.layers.{}.block_sparse_moe.router"),
    (
        FFN_GATE_UP_EXPERTS,
        "model.layers.{}.block_sparse_moe.experts.gate_up_proj",
    ),
    (
        FFN_DOWN_EXPERTS,
        "model.layers.{}.block_sparse_moe.experts.down_proj",
    ),
    (
        FFN_GATE_UP_SHARED,
        "model.layers.{}.shared_mlp.input_linear",
    ),
    (FFN_DOWN_SHARED, "model.layers.{}.shared_mlp.output_linear"),
];

/// Granite with experts, attention sinks and windows.
pub(super) static GRANITE_SWA: Arch = Arch {
    name: "granite_swa",
    hf_classes: &["GraniteMoeSWAForCausalLM"],
    rope: PERMUTED,
    windows: Windows::AllButEvery(4),
    hf_names: SWA_EXPERTS,
    gguf_form: GgufForm {
        fused_experts: true,
        ..DEFAULT_FORM
    },
    ..BASE
};

/// Granite 4: Mamba 2, attention without positions in some layers, optional experts.
pub(super) static GRANITEHYBRID: Arch = Arch {
    name: "granitehybrid",
    hf_classes: &["GraniteMoeHybridForCausalLM"],
    hf_keys: &[
        ("num_experts", "num_local_experts"),
        ("moe_intermediate_size", "intermediate_size"),
        (
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
        ),
        ("position_embedding_type", "position_embedding_type"),
    ],
    recurrent: Some(RECURRENT),
    rope: PERMUTED,
    rope_layers: RopeLayers::IfGiven,
    gguf_form: SPLIT_HALVES,
    hf_names: GRANITE_EXPERTS,
    ..BASE
};

/// Bamba: Granite 4 with positions and without scales. GGUF files use the name of Granite.
pub(super) static BAMBA: Arch = Arch {
    name: "granitehybrid",
    hf_classes: &["BambaForCausalLM"],
    hf_keys: &[
        ("layer_types", ""),
        ("attn_layer_indices", "attn_layer_indices"),
        // Granite has these fields; Bamba does not.
        ("embedding_multiplier", ""),
        ("residual_multiplier", ""),
        ("attention_multiplier", ""),
        ("logits_scaling", ""),
    ],
    recurrent: Some(RECURRENT),
    rope: PERMUTED,
    hf_names: FEED_FORWARD_NAMES,
    ..BASE
};

/// MiniCPM 1 and 2.
pub(super) static MINICPM: Arch = Arch {
    name: "minicpm",
    hf_classes: &["MiniCPMForCausalLM"],
    rope: PERMUTED,
    scales: Scales::MiniCpm,
    ..BASE
};
