//! The Qwen family and similar ones.

use super::names::*;
use super::{
    Arch, BASE, MOE, MoeSpec, RECURRENT, RecurrentKind, RecurrentLayers, RecurrentSpec, Windows,
};
use crate::graph::{Gating, KeySharing};

/// Qwen 1: q, k and v in one matrix with a bias.
pub(super) static QWEN: Arch = Arch {
    name: "qwen",
    hf_classes: &["QWenLMHeadModel"],
    ff_counts_both: true,
    hf_names: &[
        (TOKEN_EMBEDDING, "transformer.wte"),
        (OUTPUT_NORM, "transformer.ln_f"),
        (ATTN_NORM, "transformer.h.{}.ln_1"),
        (ATTN_QKV, "transformer.h.{}.attn.c_attn"),
        (ATTN_OUTPUT, "transformer.h.{}.attn.c_proj"),
        (FFN_NORM, "transformer.h.{}.ln_2"),
        (FFN_GATE, "transformer.h.{}.mlp.w2"),
        (FFN_UP, "transformer.h.{}.mlp.w1"),
        (FFN_DOWN, "transformer.h.{}.mlp.c_proj"),
    ],
    ..BASE
};

/// Qwen 2 and 2.5: Llama with biases of q, k and v.
pub(super) static QWEN2: Arch = Arch {
    name: "qwen2",
    hf_classes: &["Qwen2ForCausalLM", "Qwen2Model"],
    ..BASE
};

/// Language model of Qwen 2-VL and 2.5-VL. Text has the same position in all sections of RoPE.
pub(super) static QWEN2VL: Arch = Arch {
    name: "qwen2vl",
    hf_classes: &[
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
    ],
    rope_sections: Some([16, 24, 24]),
    ..BASE
};

const SHARED_EXPERT: &[(TensorRole, &str)] = &[
    (
        FFN_GATE_SHARED,
        "model.layers.{}.mlp.shared_expert.gate_proj",
    ),
    (FFN_UP_SHARED, "model.layers.{}.mlp.shared_expert.up_proj"),
    (
        FFN_DOWN_SHARED,
        "model.layers.{}.mlp.shared_expert.down_proj",
    ),
];

/// Qwen 2 with experts, including a gated shared expert.
pub(super) static QWEN2MOE: Arch = Arch {
    name: "qwen2moe",
    hf_classes: &["Qwen2MoeForCausalLM"],
    moe: MoeSpec {
        renormalize: false,
        ..MOE
    },
    hf_names: SHARED_EXPERT,
    ..BASE
};

/// Qwen 3: norms of each head of q and k instead of biases.
pub(super) static QWEN3: Arch = Arch {
    name: "qwen3",
    hf_classes: &["Qwen3ForCausalLM", "Qwen3Model"],
    ..BASE
};

/// Qwen 3 with experts.
pub(super) static QWEN3MOE: Arch = Arch {
    name: "qwen3moe",
    hf_classes: &["Qwen3MoeForCausalLM"],
    ..BASE
};

/// Language model of Qwen 3-VL.
pub(super) static QWEN3VL: Arch = Arch {
    name: "qwen3vl",
    hf_classes: &["Qwen3VLForConditionalGeneration"],
    rope_sections: Some([24, 20, 20]),
    ..BASE
};

/// Language model of Qwen 3-VL with experts.
pub(super) static QWEN3VLMOE: Arch = Arch {
    name: "qwen3vlmoe",
    hf_classes: &["Qwen3VLMoeForConditionalGeneration"],
    rope_sections: Some([24, 20, 20]),
    hf_transposed: &[FFN_GATE_UP_EXPERTS, FFN_DOWN_EXPERTS],
    hf_names: &[
        (
            FFN_DOWN_EXPERTS,
            "model.layers.{}.mlp.experts.{e}.down_proj",
        ),
        (FFN_DOWN_EXPERTS, "model.layers.{}.mlp.experts.down_proj"),
    ],
    ..BASE
};

/// Mellum: Qwen 3 with experts; every fourth layer full and the others windowed.
pub(super) static MELLUM: Arch = Arch {
    name: "mellum",
    hf_classes: &["MellumForCausalLM"],
    windows: Windows::AllButEvery(4),
    ..BASE
};

/// MiMo V2: windows with attention sinks, values narrower than keys.
pub(super) static MIMO2: Arch = Arch {
    name: "mimo2",
    hf_classes: &["MiMoV2FlashForCausalLM"],
    hf_keys: &[
        ("num_experts", "n_routed_experts"),
        ("mlp_layer_types", "mlp_layer_types"),
        ("swa_num_key_value_heads", "swa_num_key_value_heads"),
    ],
    windows: Windows::AllButEvery(6),
    moe: MoeSpec {
        gating: Gating::Sigmoid,
        ..MOE
    },
    hf_names: &[(ATTN_SINKS, "model.layers.{}.self_attn.attention_sink_bias")],
    ..BASE
};

const DELTA_NET: RecurrentSpec = RecurrentSpec {
    kind: RecurrentKind::DeltaNet,
    layers: RecurrentLayers::AllButEvery(4),
    ..RECURRENT
};

const DELTA_NET_GGUF_NAMES: &[(TensorRole, &str)] = &[
    (FFN_NORM, "blk.{}.post_attention_norm"),
    (ATTN_POST_NORM, ""),
];

const DELTA_NET_HF_NAMES: &[(TensorRole, &str)] = &[
    (SSM_CONV, "model.layers.{}.linear_attn.conv1d"),
    (SSM_DT_BIAS, "model.layers.{}.linear_attn.dt_bias"),
    (SSM_A, "model.layers.{}.linear_attn.A_log"),
    (SSM_NORM, "model.layers.{}.linear_attn.norm"),
    (SSM_OUT, "model.layers.{}.linear_attn.out_proj"),
    (
        FFN_GATE_SHARED,
        "model.layers.{}.mlp.shared_expert.gate_proj",
    ),
    (FFN_UP_SHARED, "model.layers.{}.mlp.shared_expert.up_proj"),
    (
        FFN_DOWN_SHARED,
        "model.layers.{}.mlp.shared_expert.down_proj",
    ),
    (
        FFN_DOWN_EXPERTS,
        "model.layers.{}.mlp.experts.{e}.down_proj",
    ),
    (FFN_DOWN_EXPERTS, "model.layers.{}.mlp.experts.down_proj"),
];

const DELTA_NET_BASE: Arch = Arch {
    hf_keys: &[("full_attention_interval", "full_attention_interval")],
    recurrent: Some(DELTA_NET),
    gated_queries: true,
    hf_norm_offset: 1.0,
    hf_rotary_share: 0.25,
    gguf_names: DELTA_NET_GGUF_NAMES,
    hf_names: DELTA_NET_HF_NAMES,
    ..BASE
};

/// Qwen 3-Next: gated delta nets, gated attention in every fourth layer, experts.
pub(super) static QWEN3NEXT: Arch = Arch {
    name: "qwen3next",
    hf_classes: &["Qwen3NextForCausalLM"],
    ..DELTA_NET_BASE
};

/// Qwen 3.5, dense. GGUF's converter reorders the value heads.
pub(super) static QWEN35: Arch = Arch {
    name: "qwen35",
    hf_classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    recurrent: Some(RecurrentSpec {
        gguf_sharing: KeySharing::Interleaved,
        ..DELTA_NET
    }),
    ..DELTA_NET_BASE
};

/// Qwen 3.5 with experts.
pub(super) static QWEN35MOE: Arch = Arch {
    name: "qwen35moe",
    hf_classes: &[
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    ],
    recurrent: Some(RecurrentSpec {
        gguf_sharing: KeySharing::Interleaved,
        ..DELTA_NET
    }),
    ..DELTA_NET_BASE
};
