//! Families that are mixtures of experts.

use super::names::*;
use super::{
    ActivationRule, Arch, BASE, DEFAULT_FORM, GgufForm, MOE, MoeSpec, RopeLayers, Scales, Windows,
    llama,
};
use crate::graph::{Activation, Gating, NormKind};

/// gpt-oss: attention sinks, every second layer windowed, experts with biases and clamped gates.
pub(super) static GPT_OSS: Arch = Arch {
    name: "gpt-oss",
    hf_classes: &["GptOssForCausalLM"],
    hf_keys: &[
        ("num_experts", "num_local_experts"),
        ("moe_intermediate_size", "intermediate_size"),
    ],
    windows: Windows::AllButEvery(2),
    activation: ActivationRule::Always(Activation::GeluQuick),
    glu_limit: Some(7.0),
    moe: MoeSpec {
        gating: Gating::SoftmaxChosen,
        ..MOE
    },
    gguf_names: &[
        (FFN_NORM, "blk.{}.post_attention_norm"),
        (FFN_NORM, "blk.{}.ffn_norm"),
        (ATTN_POST_NORM, ""),
    ],
    hf_names: &[
        (FFN_ROUTER, "model.layers.{}.mlp.router"),
        (FFN_DOWN_EXPERTS, "model.layers.{}.mlp.experts.down_proj"),
    ],
    hf_transposed: &[FFN_GATE_UP_EXPERTS, FFN_DOWN_EXPERTS],
    hf_gate_up_alternate: true,
    ..BASE
};

/// DBRX: bounded q, k and v; layer norms.
pub(super) static DBRX: Arch = Arch {
    name: "dbrx",
    hf_classes: &["DbrxForCausalLM"],
    norm: NormKind::Layer,
    gguf_names: &[(FFN_NORM, "blk.{}.attn_output_norm")],
    hf_names: &[
        (TOKEN_EMBEDDING, "transformer.wte"),
        (OUTPUT_NORM, "transformer.norm_f"),
        (ATTN_NORM, "transformer.blocks.{}.norm_attn_norm.norm_1"),
        (ATTN_QKV, "transformer.blocks.{}.norm_attn_norm.attn.Wqkv"),
        (
            ATTN_OUTPUT,
            "transformer.blocks.{}.norm_attn_norm.attn.out_proj",
        ),
        (FFN_NORM, "transformer.blocks.{}.norm_attn_norm.norm_2"),
        (FFN_ROUTER, "transformer.blocks.{}.ffn.router.layer"),
        (FFN_GATE_EXPERTS, "transformer.blocks.{}.ffn.experts.mlp.w1"),
        (FFN_UP_EXPERTS, "transformer.blocks.{}.ffn.experts.mlp.v1"),
        (FFN_DOWN_EXPERTS, "transformer.blocks.{}.ffn.experts.mlp.w2"),
    ],
    hf_transposed: &[FFN_DOWN_EXPERTS],
    ..BASE
};

/// MiniMax M2: q and k normalized over all heads, experts selected with a bias.
pub(super) static MINIMAX_M2: Arch = Arch {
    name: "minimax-m2",
    hf_classes: &["MiniMaxM2ForCausalLM"],
    hf_keys: &[
        ("num_experts", "num_local_experts"),
        ("moe_intermediate_size", "intermediate_size"),
    ],
    moe: MoeSpec {
        gating: Gating::Sigmoid,
        ..MOE
    },
    hf_names: llama::BLOCK_SPARSE_NAMES,
    ..BASE
};

/// AFMoE: gated attention, norms before and after attention and feed-forward layer, full layers
/// without RoPE.
pub(super) static AFMOE: Arch = Arch {
    name: "afmoe",
    hf_classes: &["AfmoeForCausalLM"],
    windows: Windows::AllButEvery(4),
    rope_layers: RopeLayers::Windowed,
    scales: Scales::SqrtWidth,
    moe: MoeSpec {
        gating: Gating::Sigmoid,
        ..MOE
    },
    hf_names: &[
        (ATTN_POST_NORM, "model.layers.{}.post_attention_layernorm"),
        (FFN_NORM, "model.layers.{}.pre_mlp_layernorm"),
        (FFN_POST_NORM, "model.layers.{}.post_mlp_layernorm"),
        (FFN_ROUTER, "model.layers.{}.mlp.router.gate"),
        (FFN_SELECTION_BIAS, "model.layers.{}.mlp.expert_bias"),
    ],
    ..BASE
};

/// Exaone with experts.
pub(super) static EXAONE_MOE: Arch = Arch {
    name: "exaone-moe",
    hf_classes: &["ExaoneMoeForCausalLM"],
    windows: Windows::AllButEvery(4),
    rope_layers: RopeLayers::Windowed,
    moe: MoeSpec {
        gating: Gating::Sigmoid,
        ..MOE
    },
    hf_names: &[(
        FFN_SELECTION_BIAS,
        "model.layers.{}.mlp.e_score_correction_bias",
    )],
    ..BASE
};

/// Laguna: every fourth layer full and the others windowed, a gate per attention head.
pub(super) static LAGUNA: Arch = Arch {
    name: "laguna",
    hf_classes: &["LagunaForCausalLM"],
    hf_keys: &[
        ("mlp_layer_types", "mlp_layer_types"),
        ("routed_scaling_factor", "moe_routed_scaling_factor"),
    ],
    windows: Windows::FullFirst(4),
    attention_gate: Activation::Softplus,
    moe: MoeSpec {
        gating: Gating::Sigmoid,
        ..MOE
    },
    hf_names: &[
        (ATTN_GATE, "model.layers.{}.self_attn.g_proj"),
        (
            FFN_SELECTION_BIAS,
            "model.layers.{}.mlp.experts.e_score_correction_bias",
        ),
        (
            FFN_GATE_SHARED,
            "model.layers.{}.mlp.shared_expert.gate_proj",
        ),
        (FFN_UP_SHARED, "model.layers.{}.mlp.shared_expert.up_proj"),
        (
            FFN_DOWN_SHARED,
            "model.layers.{}.mlp.shared_expert.down_proj",
        ),
    ],
    ..BASE
};

/// Hunyuan 3.
pub(super) static HY_V3: Arch = Arch {
    name: "hy_v3",
    hf_classes: &["HYV3ForCausalLM"],
    gguf_form: GgufForm {
        bare: &[FFN_SELECTION_BIAS],
        ..DEFAULT_FORM
    },
    moe: MoeSpec {
        gating: Gating::Sigmoid,
        ..MOE
    },
    hf_names: &[
        (FFN_ROUTER, "model.layers.{}.mlp.router.gate"),
        (FFN_SELECTION_BIAS, "model.layers.{}.mlp.expert_bias"),
        (FFN_GATE_SHARED, "model.layers.{}.mlp.shared_mlp.gate_proj"),
        (FFN_UP_SHARED, "model.layers.{}.mlp.shared_mlp.up_proj"),
        (FFN_DOWN_SHARED, "model.layers.{}.mlp.shared_mlp.down_proj"),
    ],
    ..BASE
};
