//! The Gemma family: scaled embeddings, GeGLU, norms before and after attention and feed-forward
//! layer.

use super::names::*;
use super::{ActivationRule, Arch, BASE, DEFAULT_FORM, GgufForm, QueryScale, Scales, Windows};
use crate::graph::Activation;
use serde_json::Value;

/// Llama's name for the norm before the feed-forward layer is "post attention"; here the name is
/// literal.
const SANDWICH_NAMES: &[(TensorRole, &str)] = &[
    (ATTN_POST_NORM, "model.layers.{}.post_attention_layernorm"),
    (FFN_NORM, "model.layers.{}.pre_feedforward_layernorm"),
    (FFN_POST_NORM, "model.layers.{}.post_feedforward_layernorm"),
    (FFN_ROUTER, "model.layers.{}.router.proj"),
    (FFN_GATE_UP_EXPERTS, "model.layers.{}.experts.gate_up_proj"),
    (FFN_DOWN_EXPERTS, "model.layers.{}.experts.down_proj"),
];

const GEMMA_BASE: Arch = Arch {
    hf_norm_offset: 1.0,
    // Early configurations contain "gelu" where the approximation is meant.
    activation: ActivationRule::Always(Activation::GeluTanh),
    scales: Scales::SqrtWidth,
    ..BASE
};

/// Gemma 1.
pub(super) static GEMMA: Arch = Arch {
    name: "gemma",
    hf_classes: &["GemmaForCausalLM"],
    ..GEMMA_BASE
};

/// Gemma 2: post-norms, soft caps on scores and logits, every second layer windowed.
pub(super) static GEMMA2: Arch = Arch {
    name: "gemma2",
    hf_classes: &["Gemma2ForCausalLM"],
    windows: Windows::AllButEvery(2),
    query_scale: QueryScale::HeadDimUnlessLayers(46),
    hf_names: SANDWICH_NAMES,
    ..GEMMA_BASE
};

/// Gemma 3: norms of q and k, every sixth layer full and the others windowed, with a RoPE base for
/// each kind.
const GEMMA3_BASE: Arch = Arch {
    name: "gemma3",
    hf_classes: &[
        "Gemma3ForCausalLM",
        "Gemma3TextModel",
        "Gemma3ForConditionalGeneration",
    ],
    hf_keys: &[("hidden_act", "hidden_activation")],
    windows: Windows::AllButEvery(6),
    window_rope_base: Some(10_000.0),
    query_scale: QueryScale::HeadDimUnlessLayers(62),
    hf_names: SANDWICH_NAMES,
    ..GEMMA_BASE
};

/// Gemma 3.
pub(super) static GEMMA3: Arch = GEMMA3_BASE;

/// EmbeddingGemma: Gemma 3 with bidirectional attention.
pub(super) static GEMMA_EMBEDDING: Arch = Arch {
    name: "gemma-embedding",
    hf_classes: &["Gemma3TextModel"],
    hf_when: Some(|config| {
        let both_ways = config.get("use_bidirectional_attention");
        both_ways.and_then(Value::as_bool) == Some(true)
    }),
    causal: false,
    ..GEMMA3_BASE
};

/// VaultGemma: Gemma 2 without post-norms.
pub(super) static VAULTGEMMA: Arch = Arch {
    name: "vaultgemma",
    hf_classes: &["VaultGemmaForCausalLM"],
    windows: Windows::AllButEvery(2),
    hf_names: &[(FFN_NORM, "model.layers.{}.pre_feedforward_layernorm")],
    ..GEMMA_BASE
};

/// Gemma 3n and later: norm weights without offset, normalized values, and layers that reuse the
/// keys and values of earlier ones.
const GEMMA_N_BASE: Arch = Arch {
    hf_keys: &[
        ("hidden_act", "hidden_activation"),
        ("num_experts_per_tok", "top_k_experts"),
        ("enable_moe_block", "enable_moe_block"),
        ("attention_k_eq_v", "attention_k_eq_v"),
    ],
    hf_norm_offset: 0.0,
    query_scale: QueryScale::One,
    value_norm: true,
    hf_names: SANDWICH_NAMES,
    ..GEMMA_BASE
};

/// Gemma 3n: AltUp, per-layer embeddings, sparse activations.
const GEMMA3N_BASE: Arch = Arch {
    name: "gemma3n",
    windows: Windows::AllButEvery(5),
    window_rope_base: Some(10_000.0),
    ..GEMMA_N_BASE
};

/// Gemma 3n as in GGUF files.
pub(super) static GEMMA3N: Arch = Arch {
    unbiased_sparsity: true,
    ..GEMMA3N_BASE
};

/// Gemma 3n as trained.
pub(super) static GEMMA3N_HF: Arch = Arch {
    hf_classes: &["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
    ..GEMMA3N_BASE
};

/// Gemma 4: wider heads in full layers, where keys may serve as values; some models have experts in
/// addition to dense layers, others per-layer embeddings.
pub(super) static GEMMA4: Arch = Arch {
    name: "gemma4",
    hf_classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    windows: Windows::AllButEvery(6),
    keys_as_values: true,
    gguf_form: GgufForm {
        fused_experts: true,
        ..DEFAULT_FORM
    },
    ..GEMMA_N_BASE
};
