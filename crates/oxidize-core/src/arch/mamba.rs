//! Mamba, and hybrids of Mamba and attention.

use super::names::*;
use super::{
    ActivationRule, Arch, BASE, DEFAULT_FORM, GgufForm, MOE, MoeSpec, PERMUTED, RECURRENT,
    RecurrentKind, RecurrentLayers, RecurrentSpec, RopeLayers,
};
use crate::graph::{Activation, Gating};
use serde_json::Value;

const MAMBA_1: RecurrentSpec = RecurrentSpec {
    kind: RecurrentKind::Mamba,
    ..RECURRENT
};

const HF_NAMES: &[(TensorRole, &str)] = &[
    (TOKEN_EMBEDDING, "backbone.embeddings"),
    (OUTPUT_NORM, "backbone.norm_f"),
    (ATTN_NORM, "backbone.layers.{}.norm"),
    (SSM_IN, "backbone.layers.{}.mixer.in_proj"),
    (SSM_CONV, "backbone.layers.{}.mixer.conv1d"),
    (SSM_X, "backbone.layers.{}.mixer.x_proj"),
    (SSM_DT, "backbone.layers.{}.mixer.dt_proj"),
    (SSM_DT_BIAS, "backbone.layers.{}.mixer.dt_bias"),
    (SSM_A, "backbone.layers.{}.mixer.A_log"),
    (SSM_D, "backbone.layers.{}.mixer.D"),
    (SSM_NORM, "backbone.layers.{}.mixer.norm"),
    (SSM_OUT, "backbone.layers.{}.mixer.out_proj"),
    // Other layers of Nemotron-H.
    (ATTN_Q, "backbone.layers.{}.mixer.q_proj"),
    (ATTN_K, "backbone.layers.{}.mixer.k_proj"),
    (ATTN_V, "backbone.layers.{}.mixer.v_proj"),
    (ATTN_OUTPUT, "backbone.layers.{}.mixer.o_proj"),
    (FFN_NORM, "backbone.layers.{}.norm"),
    (FFN_UP, "backbone.layers.{}.mixer.up_proj"),
    (FFN_DOWN, "backbone.layers.{}.mixer.down_proj"),
    (FFN_ROUTER, "backbone.layers.{}.mixer.gate"),
    (
        FFN_SELECTION_BIAS,
        "backbone.layers.{}.mixer.gate.e_score_correction_bias",
    ),
    (
        FFN_UP_EXPERTS,
        "backbone.layers.{}.mixer.experts.{e}.up_proj",
    ),
    (
        FFN_DOWN_EXPERTS,
        "backbone.layers.{}.mixer.experts.{e}.down_proj",
    ),
    (
        FFN_UP_SHARED,
        "backbone.layers.{}.mixer.shared_experts.up_proj",
    ),
    (
        FFN_DOWN_SHARED,
        "backbone.layers.{}.mixer.shared_experts.down_proj",
    ),
];

/// Field names in `config.json` of models without attention.
const HF_KEYS: &[(&str, &str)] = &[
    ("rms_norm_eps", "layer_norm_epsilon"),
    ("d_inner", "intermediate_size"),
    ("mamba_d_state", "state_size"),
    ("mamba_d_conv", "conv_kernel"),
    ("mamba_expand", "expand"),
    ("mamba_dt_rank", "time_step_rank"),
    ("mamba_n_heads", "num_heads"),
    ("mamba_d_head", "head_dim"),
    ("mamba_n_groups", "n_groups"),
];

/// Mamba.
pub(super) static MAMBA: Arch = Arch {
    name: "mamba",
    hf_classes: &["MambaForCausalLM"],
    hf_keys: HF_KEYS,
    recurrent: Some(RecurrentSpec {
        layers: RecurrentLayers::Exclusive,
        ..MAMBA_1
    }),
    hf_names: HF_NAMES,
    ..BASE
};

/// Falcon Mamba: norms without weights inside the mixer.
pub(super) static FALCON_MAMBA: Arch = Arch {
    name: "mamba",
    hf_classes: &["FalconMambaForCausalLM"],
    hf_keys: HF_KEYS,
    recurrent: Some(RecurrentSpec {
        layers: RecurrentLayers::Exclusive,
        inner_norms: true,
        ..MAMBA_1
    }),
    hf_names: HF_NAMES,
    ..BASE
};

/// Mamba 2.
pub(super) static MAMBA2: Arch = Arch {
    name: "mamba2",
    hf_classes: &["Mamba2ForCausalLM"],
    hf_keys: HF_KEYS,
    recurrent: Some(RecurrentSpec {
        layers: RecurrentLayers::Exclusive,
        ..RECURRENT
    }),
    hf_names: HF_NAMES,
    ..BASE
};

/// Names in families with a feed-forward layer after the mixer.
pub(super) const FEED_FORWARD_NAMES: &[(TensorRole, &str)] = &[
    (OUTPUT_NORM, "model.final_layernorm"),
    (FFN_NORM, "model.layers.{}.pre_ff_layernorm"),
    (FFN_GATE, "model.layers.{}.feed_forward.gate_proj"),
    (FFN_UP, "model.layers.{}.feed_forward.up_proj"),
    (FFN_DOWN, "model.layers.{}.feed_forward.down_proj"),
    (FFN_ROUTER, "model.layers.{}.feed_forward.router"),
    (
        FFN_GATE_EXPERTS,
        "model.layers.{}.feed_forward.experts.{e}.gate_proj",
    ),
    (
        FFN_UP_EXPERTS,
        "model.layers.{}.feed_forward.experts.{e}.up_proj",
    ),
    (
        FFN_DOWN_EXPERTS,
        "model.layers.{}.feed_forward.experts.{e}.down_proj",
    ),
];

/// Falcon-H1: attention and Mamba 2 in parallel, with multipliers.
pub(super) static FALCON_H1: Arch = Arch {
    name: "falcon-h1",
    hf_classes: &["FalconH1ForCausalLM"],
    hf_keys: &[
        ("mamba_d_ssm", "mamba_d_ssm"),
        ("mamba_rms_norm", "mamba_rms_norm"),
        ("mamba_norm_before_gate", "mamba_norm_before_gate"),
    ],
    recurrent: Some(RecurrentSpec {
        layers: RecurrentLayers::Parallel,
        hf_norm_groups: true,
        ..RECURRENT
    }),
    gguf_form: GgufForm {
        folded_multipliers: true,
        bare: &[FFN_NORM],
        ..DEFAULT_FORM
    },
    hf_names: FEED_FORWARD_NAMES,
    ..BASE
};

/// Jamba: Mamba with inner norms, attention in some layers, experts in others.
pub(super) static JAMBA: Arch = Arch {
    name: "jamba",
    hf_classes: &["JambaForCausalLM"],
    hf_keys: &[
        ("layer_types", ""),
        ("attn_layer_period", "attn_layer_period"),
        ("attn_layer_offset", "attn_layer_offset"),
        ("expert_layer_period", "expert_layer_period"),
        ("expert_layer_offset", "expert_layer_offset"),
        ("moe_intermediate_size", "intermediate_size"),
    ],
    recurrent: Some(MAMBA_1),
    rope_layers: RopeLayers::None,
    moe: MoeSpec {
        renormalize: false,
        ..MOE
    },
    hf_names: FEED_FORWARD_NAMES,
    ..BASE
};

const NEMOTRON: Arch = Arch {
    hf_keys: &[
        ("rms_norm_eps", "layer_norm_epsilon"),
        ("hidden_act", "mlp_hidden_act"),
        ("layer_types", "layers_block_type"),
        ("hybrid_override_pattern", "hybrid_override_pattern"),
        ("mamba_n_heads", "mamba_num_heads"),
        ("mamba_d_head", "mamba_head_dim"),
        ("mamba_d_state", "ssm_state_size"),
        ("mamba_d_conv", "conv_kernel"),
        ("mamba_n_groups", "n_groups"),
        ("mamba_expand", "expand"),
        ("num_experts", "n_routed_experts"),
        (
            "shared_expert_intermediate_size",
            "moe_shared_expert_intermediate_size",
        ),
    ],
    recurrent: Some(RecurrentSpec {
        layers: RecurrentLayers::Exclusive,
        hf_norm_groups: true,
        ..RECURRENT
    }),
    rope_layers: RopeLayers::None,
    // There is no RoPE, but GGUF's converter permutes q and k nevertheless.
    rope: PERMUTED,
    activation: ActivationRule::Always(Activation::ReluSquared),
    moe: MoeSpec {
        gating: Gating::Sigmoid,
        ..MOE
    },
    gguf_names: &[(FFN_NORM, "blk.{}.attn_norm")],
    hf_names: HF_NAMES,
    ..BASE
};

/// Nemotron-H: each layer is Mamba 2, attention or a feed-forward layer.
pub(super) static NEMOTRON_H: Arch = Arch {
    name: "nemotron_h",
    hf_classes: &["NemotronHForCausalLM"],
    ..NEMOTRON
};

/// Nemotron-H with experts.
pub(super) static NEMOTRON_H_MOE: Arch = Arch {
    name: "nemotron_h_moe",
    hf_classes: &["NemotronHForCausalLM"],
    hf_when: Some(|config| {
        let types = config.get("layers_block_type").and_then(Value::as_array);
        let pattern = config
            .get("hybrid_override_pattern")
            .and_then(Value::as_str);
        types.is_some_and(|types| types.iter().any(|kind| kind == "moe"))
            || pattern.is_some_and(|pattern| pattern.contains('E'))
    }),
    ..NEMOTRON
};
