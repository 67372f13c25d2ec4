//! DeepSeek and other families with latent attention or DeepSeek's kind of experts.

use super::names::*;
use super::{
    Arch, BASE, DEFAULT_FORM, GgufForm, INTERLEAVED, MOE, Mixer, MoeSpec, PERMUTED, RECURRENT,
    RecurrentKind, RecurrentSpec, RopeLayers, Scales,
};
use crate::graph::{Gating, GroupScore};

/// DeepSeek MoE 1.
pub(super) static DEEPSEEK: Arch = Arch {
    name: "deepseek",
    hf_classes: &["DeepseekForCausalLM"],
    rope: PERMUTED,
    moe: MoeSpec {
        renormalize: false,
        ..MOE
    },
    ..BASE
};

/// GGUF stores the up-projection in the absorbed form, which is applied to queries.
const ABSORBED: GgufForm = GgufForm {
    absorbed_kv: true,
    ..DEFAULT_FORM
};

const LATENT_BASE: Arch = Arch {
    mixer: Mixer::Mla,
    rope: INTERLEAVED,
    moe: MoeSpec {
        renormalize: false,
        ..MOE
    },
    ..BASE
};

/// DeepSeek V2 and V3, Kimi K2 and GLM 4.7 Flash in GGUF files.
pub(super) static DEEPSEEK2: Arch = Arch {
    name: "deepseek2",
    gguf_form: ABSORBED,
    ..LATENT_BASE
};

/// DeepSeek V2: the score of a group of experts is its maximum.
pub(super) static DEEPSEEK_V2: Arch = Arch {
    name: "deepseek2",
    hf_classes: &["DeepseekV2ForCausalLM"],
    hf_keys: &[("num_experts", "n_routed_experts")],
    moe: MoeSpec {
        renormalize: false,
        group_score: GroupScore::Best,
        ..MOE
    },
    gguf_form: ABSORBED,
    ..LATENT_BASE
};

/// DeepSeek V3, R1 and models with the same structure.
pub(super) static DEEPSEEK_V3: Arch = Arch {
    name: "deepseek2",
    hf_classes: &[
        "DeepseekV3ForCausalLM",
        "KimiK2ForCausalLM",
        "Glm4MoeLiteForCausalLM",
    ],
    hf_keys: &[("num_experts", "n_routed_experts")],
    moe: MoeSpec {
        gating: Gating::Sigmoid,
        ..MOE
    },
    gguf_form: ABSORBED,
    ..LATENT_BASE
};

/// MiniCPM 3: latent attention, and MiniCPM's scales.
pub(super) static MINICPM3: Arch = Arch {
    name: "minicpm3",
    hf_classes: &["MiniCPM3ForCausalLM"],
    mixer: Mixer::Mla,
    scales: Scales::MiniCpm,
    ..BASE
};

/// dots.llm1: softmax attention, DeepSeek's experts.
pub(super) static DOTS1: Arch = Arch {
    name: "dots1",
    hf_classes: &["Dots1ForCausalLM"],
    hf_keys: &[("num_experts", "n_routed_experts")],
    moe: MoeSpec {
        gating: Gating::Sigmoid,
        ..MOE
    },
    ..BASE
};

const BAILING_NAMES: &[(TensorRole, &str)] = &[
    (TOKEN_EMBEDDING, "model.word_embeddings"),
    (ATTN_QKV, "model.layers.{}.attention.query_key_value"),
    (ATTN_Q_NORM, "model.layers.{}.attention.query_layernorm"),
    (ATTN_K_NORM, "model.layers.{}.attention.key_layernorm"),
    (ATTN_OUTPUT, "model.layers.{}.attention.dense"),
    (FFN_SELECTION_BIAS, "model.layers.{}.mlp.gate.expert_bias"),
];

/// Ling 1.
pub(super) static BAILINGMOE: Arch = Arch {
    name: "bailingmoe",
    hf_classes: &["BailingMoeForCausalLM"],
    rope: PERMUTED,
    gguf_form: GgufForm {
        split_qkv: true,
        ..DEFAULT_FORM
    },
    hf_names: BAILING_NAMES,
    ..BASE
};

/// Ling 2: norms of q and k, experts selected with a bias.
pub(super) static BAILINGMOE2: Arch = Arch {
    name: "bailingmoe2",
    hf_classes: &["BailingMoeV2ForCausalLM"],
    moe: MoeSpec {
        gating: Gating::Sigmoid,
        ..MOE
    },
    hf_names: BAILING_NAMES,
    ..BASE
};

/// Kimi Linear: delta nets with a decay per channel, latent attention without positions.
pub(super) static KIMI_LINEAR: Arch = Arch {
    name: "kimi-linear",
    hf_classes: &["KimiLinearForCausalLM"],
    hf_keys: &[
        ("max_position_embeddings", "model_max_length"),
        ("mlp_layer_types", "mlp_layer_types"),
        ("num_experts_per_tok", "num_experts_per_token"),
        ("n_shared_experts", "num_shared_experts"),
        ("norm_topk_prob", "moe_renormalize"),
        ("n_group", "num_expert_group"),
    ],
    mixer: Mixer::Mla,
    gguf_form: ABSORBED,
    recurrent: Some(RecurrentSpec {
        kind: RecurrentKind::KimiDelta,
        ..RECURRENT
    }),
    rope_layers: RopeLayers::None,
    moe: MoeSpec {
        gating: Gating::Sigmoid,
        ..MOE
    },
    hf_names: &[
        (DELTA_BETA, "model.layers.{}.self_attn.b_proj"),
        (SSM_DT_BIAS, "model.layers.{}.self_attn.dt_bias"),
        (SSM_A, "model.layers.{}.self_attn.A_log"),
        (SSM_NORM, "model.layers.{}.self_attn.o_norm"),
        (FFN_ROUTER, "model.layers.{}.block_sparse_moe.gate"),
        (
            FFN_SELECTION_BIAS,
            "model.layers.{}.block_sparse_moe.gate.e_score_correction_bias",
        ),
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
        (
            FFN_GATE_SHARED,
            "model.layers.{}.block_sparse_moe.shared_experts.gate_proj",
        ),
        (
            FFN_UP_SHARED,
            "model.layers.{}.block_sparse_moe.shared_experts.up_proj",
        ),
        (
            FFN_DOWN_SHARED,
            "model.layers.{}.block_sparse_moe.shared_experts.down_proj",
        ),
    ],
    ..BASE
};
