//! Liquid's LFM2: short convolutions, with attention in some layers.

use super::names::*;
use super::{Arch, BASE, MOE, MoeSpec, RECURRENT, RecurrentKind, RecurrentSpec};
use crate::graph::Gating;

const SHORT_CONV: RecurrentSpec = RecurrentSpec {
    kind: RecurrentKind::ShortConv,
    ..RECURRENT
};

/// The GGUF name of the final norm suggests a norm of the embeddings.
const GGUF_NAMES: &[(TensorRole, &str)] = &[
    (OUTPUT_NORM, "token_embd_norm"),
    (OUTPUT_NORM, "output_norm"),
    (TOKEN_EMBEDDING_NORM, ""),
];

const HF_NAMES: &[(TensorRole, &str)] = &[
    (OUTPUT_NORM, "model.embedding_norm"),
    (ATTN_NORM, "model.layers.{}.operator_norm"),
    (ATTN_Q_NORM, "model.layers.{}.self_attn.q_layernorm"),
    (ATTN_K_NORM, "model.layers.{}.self_attn.k_layernorm"),
    (ATTN_OUTPUT, "model.layers.{}.self_attn.out_proj"),
    (FFN_NORM, "model.layers.{}.ffn_norm"),
    (FFN_GATE, "model.layers.{}.feed_forward.w1"),
    (FFN_UP, "model.layers.{}.feed_forward.w3"),
    (FFN_DOWN, "model.layers.{}.feed_forward.w2"),
    (FFN_ROUTER, "model.layers.{}.feed_forward.gate"),
    (
        FFN_SELECTION_BIAS,
        "model.layers.{}.feed_forward.expert_bias",
    ),
    (
        FFN_GATE_EXPERTS,
        "model.layers.{}.feed_forward.experts.{e}.w1",
    ),
    (
        FFN_UP_EXPERTS,
        "model.layers.{}.feed_forward.experts.{e}.w3",
    ),
    (
        FFN_DOWN_EXPERTS,
        "model.layers.{}.feed_forward.experts.{e}.w2",
    ),
];

const HF_KEYS: &[(&str, &str)] = &[
    ("rms_norm_eps", "norm_eps"),
    ("first_k_dense_replace", "num_dense_layers"),
];

/// LFM2, dense.
pub(super) static LFM2: Arch = Arch {
    name: "lfm2",
    hf_classes: &["Lfm2ForCausalLM"],
    hf_keys: HF_KEYS,
    recurrent: Some(SHORT_CONV),
    gguf_names: GGUF_NAMES,
    hf_names: HF_NAMES,
    ..BASE
};

/// LFM2 with experts.
pub(super) static LFM2MOE: Arch = Arch {
    name: "lfm2moe",
    hf_classes: &["Lfm2MoeForCausalLM"],
    hf_keys: HF_KEYS,
    recurrent: Some(SHORT_CONV),
    moe: MoeSpec {
        gating: Gating::Sigmoid,
        ..MOE
    },
    gguf_names: GGUF_NAMES,
    hf_names: HF_NAMES,
    ..BASE
};
