//! Llama and families that differ little from it.

use super::Family;
use super::names::*;
use super::{
    ActivationRule, Alibi, Arch, BASE, DEFAULT_FORM, DefaultFf, GgufForm, INTERLEAVED, MOE,
    MoeSpec, PERMUTED, QkNorm, QkvLayout, RopeLayers, TemperatureRule, WindowKind, Windows,
};
use crate::graph::{Activation, Gating, NormKind};

/// Llama 1 to 3; in GGUF also Mistral and Mixtral.
pub(super) static LLAMA: Arch = Arch {
    name: "llama",
    recipe_family: Family::Llama,
    hf_classes: &["LlamaForCausalLM"],
    rope: PERMUTED,
    gguf_names: &[
        // Old files number the experts instead of stacking them.
        (FFN_GATE_EXPERTS, "blk.{}.ffn_gate_exps"),
        (FFN_GATE_EXPERTS, "blk.{}.ffn_gate.{e}"),
        (FFN_UP_EXPERTS, "blk.{}.ffn_up_exps"),
        (FFN_UP_EXPERTS, "blk.{}.ffn_up.{e}"),
        (FFN_DOWN_EXPERTS, "blk.{}.ffn_down_exps"),
        (FFN_DOWN_EXPERTS, "blk.{}.ffn_down.{e}"),
    ],
    ..BASE
};

/// Mistral in Hugging Face directories, which contain the sliding window.
pub(super) static MISTRAL: Arch = Arch {
    name: "llama",
    recipe_family: Family::Llama,
    hf_classes: &["MistralForCausalLM"],
    rope: PERMUTED,
    windows: Windows::All,
    ..BASE
};

/// Names of Mixtral's experts, also used by other families.
pub(super) const BLOCK_SPARSE_NAMES: &[(TensorRole, &str)] = &[
    (FFN_ROUTER, "model.layers.{}.block_sparse_moe.gate"),
    (
        FFN_SELECTION_BIAS,
        "model.layers.{}.block_sparse_moe.e_score_correction_bias",
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
];

/// Mixtral in Hugging Face directories.
pub(super) static MIXTRAL: Arch = Arch {
    name: "llama",
    recipe_family: Family::Llama,
    hf_classes: &["MixtralForCausalLM"],
    hf_keys: &[
        ("num_experts", "num_local_experts"),
        ("moe_intermediate_size", "intermediate_size"),
    ],
    rope: PERMUTED,
    windows: Windows::All,
    hf_names: BLOCK_SPARSE_NAMES,
    ..BASE
};

/// Mistral 3: YaRN and temperature tuning.
pub(super) static MISTRAL3: Arch = Arch {
    name: "mistral3",
    hf_classes: &[
        "Ministral3ForCausalLM",
        "Mistral3ForConditionalGeneration",
        "Ministral3ForConditionalGeneration",
    ],
    rope: PERMUTED,
    windows: Windows::All,
    ..BASE
};

/// Llama 4: chunked attention, every fourth layer full and without RoPE, one routed and one shared
/// expert per token.
pub(super) static LLAMA4: Arch = Arch {
    name: "llama4",
    hf_classes: &["Llama4ForConditionalGeneration", "Llama4ForCausalLM"],
    rope: INTERLEAVED,
    rope_layers: RopeLayers::AllButEvery(4),
    windows: Windows::AllButEvery(4),
    window_kind: WindowKind::Chunk(8192),
    qk_norm: QkNorm::UnweightedAfterRope(128),
    temperature: TemperatureRule::WithoutRope(0.1, 8192),
    moe: MoeSpec {
        gating: Gating::Sigmoid,
        renormalize: false,
        apply_router_weight_on_input: true,
        ..MOE
    },
    hf_names: &[
        (FFN_GATE, "model.layers.{}.feed_forward.gate_proj"),
        (FFN_UP, "model.layers.{}.feed_forward.up_proj"),
        (FFN_DOWN, "model.layers.{}.feed_forward.down_proj"),
        (FFN_ROUTER, "model.layers.{}.feed_forward.router"),
        (
            FFN_GATE_UP_EXPERTS,
            "model.layers.{}.feed_forward.experts.gate_up_proj",
        ),
        (
            FFN_DOWN_EXPERTS,
            "model.layers.{}.feed_forward.experts.down_proj",
        ),
        (
            FFN_GATE_SHARED,
            "model.layers.{}.feed_forward.shared_expert.gate_proj",
        ),
        (
            FFN_UP_SHARED,
            "model.layers.{}.feed_forward.shared_expert.up_proj",
        ),
        (
            FFN_DOWN_SHARED,
            "model.layers.{}.feed_forward.shared_expert.down_proj",
        ),
    ],
    hf_transposed: &[FFN_GATE_UP_EXPERTS, FFN_DOWN_EXPERTS],
    ..BASE
};

/// SmolLM 3: no RoPE in every fourth layer.
pub(super) static SMOLLM3: Arch = Arch {
    name: "smollm3",
    hf_classes: &["SmolLM3ForCausalLM"],
    rope: PERMUTED,
    rope_layers: RopeLayers::AllButEvery(4),
    ..BASE
};

/// Seed-OSS: biases on q, k and v.
pub(super) static SEED_OSS: Arch = Arch {
    name: "seed_oss",
    hf_classes: &["SeedOssForCausalLM"],
    gguf_names: &[
        (FFN_NORM, "blk.{}.post_attention_norm"),
        (ATTN_POST_NORM, ""),
    ],
    ..BASE
};

/// Arcee: ungated feed-forward layers.
pub(super) static ARCEE: Arch = Arch {
    name: "arcee",
    hf_classes: &["ArceeForCausalLM"],
    rope: PERMUTED,
    activation: ActivationRule::Named(Activation::ReluSquared),
    ..BASE
};

/// Apertus: norms of q and k, and an activation with learned parameters.
pub(super) static APERTUS: Arch = Arch {
    name: "apertus",
    hf_classes: &["ApertusForCausalLM"],
    activation: ActivationRule::Xielu,
    hf_names: &[
        (ATTN_NORM, "model.layers.{}.attention_layernorm"),
        (FFN_NORM, "model.layers.{}.feedforward_layernorm"),
    ],
    ..BASE
};

/// Baichuan: q, k and v in one matrix; the larger model uses ALiBi instead of RoPE.
pub(super) static BAICHUAN: Arch = Arch {
    name: "baichuan",
    hf_classes: &["BaichuanForCausalLM", "BaiChuanForCausalLM"],
    rope: PERMUTED,
    alibi: Alibi::IfLayers(40, 8.0),
    gguf_form: GgufForm {
        split_qkv: true,
        ..DEFAULT_FORM
    },
    hf_names: &[(ATTN_QKV, "model.layers.{}.self_attn.W_pack")],
    ..BASE
};

/// InternLM 2: different names; q, k and v are grouped by key head.
pub(super) static INTERNLM2: Arch = Arch {
    name: "internlm2",
    hf_classes: &["InternLM2ForCausalLM"],
    rope: PERMUTED,
    hf_qkv: QkvLayout::Grouped,
    gguf_form: GgufForm {
        split_qkv: true,
        ..DEFAULT_FORM
    },
    hf_names: &[
        (TOKEN_EMBEDDING, "model.tok_embeddings"),
        (OUTPUT, "output"),
        (ATTN_NORM, "model.layers.{}.attention_norm"),
        (ATTN_QKV, "model.layers.{}.attention.wqkv"),
        (ATTN_OUTPUT, "model.layers.{}.attention.wo"),
        (FFN_NORM, "model.layers.{}.ffn_norm"),
        (FFN_GATE, "model.layers.{}.feed_forward.w1"),
        (FFN_UP, "model.layers.{}.feed_forward.w3"),
        (FFN_DOWN, "model.layers.{}.feed_forward.w2"),
    ],
    ..BASE
};

/// EXAONE 3: Llama with names similar to GPT-2's.
pub(super) static EXAONE: Arch = Arch {
    name: "exaone",
    hf_classes: &["ExaoneForCausalLM"],
    hf_names: &[
        (TOKEN_EMBEDDING, "transformer.wte"),
        (OUTPUT_NORM, "transformer.ln_f"),
        (ATTN_NORM, "transformer.h.{}.ln_1"),
        (ATTN_Q, "transformer.h.{}.attn.attention.q_proj"),
        (ATTN_K, "transformer.h.{}.attn.attention.k_proj"),
        (ATTN_V, "transformer.h.{}.attn.attention.v_proj"),
        (ATTN_OUTPUT, "transformer.h.{}.attn.attention.out_proj"),
        (FFN_NORM, "transformer.h.{}.ln_2"),
        (FFN_GATE, "transformer.h.{}.mlp.c_fc_0"),
        (FFN_UP, "transformer.h.{}.mlp.c_fc_1"),
        (FFN_DOWN, "transformer.h.{}.mlp.c_proj"),
    ],
    ..BASE
};

/// EXAONE 4: post-norms only; in models with windows, full layers have no RoPE.
pub(super) static EXAONE4: Arch = Arch {
    name: "exaone4",
    hf_classes: &["Exaone4ForCausalLM"],
    pre_norm: false,
    windows: Windows::AllButEvery(4),
    rope_layers: RopeLayers::Windowed,
    hf_names: &[
        (ATTN_POST_NORM, "model.layers.{}.post_attention_layernorm"),
        (FFN_POST_NORM, "model.layers.{}.post_feedforward_layernorm"),
        (FFN_NORM, ""),
    ],
    ..BASE
};

/// Xverse.
pub(super) static XVERSE: Arch = Arch {
    name: "xverse",
    hf_classes: &["XverseForCausalLM"],
    rope: PERMUTED,
    ..BASE
};

/// Refact: Llama with ALiBi; Hugging Face directories use GPT-2's names.
pub(super) static REFACT: Arch = Arch {
    name: "refact",
    hf_classes: &["GPTRefactForCausalLM"],
    alibi: Alibi::Always(8.0),
    rope_layers: RopeLayers::None,
    default_ff: DefaultFf::TwoThirds,
    hf_names: &[
        (TOKEN_EMBEDDING, "transformer.wte"),
        (OUTPUT_NORM, "transformer.ln_f"),
        (ATTN_NORM, "transformer.h.{}.ln_1"),
        (ATTN_Q, "transformer.h.{}.attn.q"),
        (ATTN_KV, "transformer.h.{}.attn.kv"),
        (FFN_NORM, "transformer.h.{}.ln_2"),
        (ATTN_OUTPUT, "transformer.h.{}.attn.c_proj"),
        (FFN_GATE_UP, "transformer.h.{}.mlp.gate_up_proj"),
        (FFN_DOWN, "transformer.h.{}.mlp.c_proj"),
    ],
    ..BASE
};

/// Deci (Nemotron's pruned Llamas): heads and widths differ between layers and may be zero.
pub(super) static DECI: Arch = Arch {
    name: "deci",
    hf_classes: &["DeciLMForCausalLM"],
    rope: PERMUTED,
    pruned: true,
    hf_names: &[
        (ATTN_OUTPUT, "model.layers.{}.self_attn.o_proj"),
        // Instead of attention.
        (ATTN_OUTPUT, "model.layers.{}.self_attn.linear_attn"),
    ],
    ..BASE
};

/// BitNet: norms before the output projection of attention and before the down-projection.
pub(super) static BITNET: Arch = Arch {
    name: "bitnet",
    hf_classes: &["BitNetForCausalLM", "BitnetForCausalLM"],
    ..BASE
};

/// Orion: Llama with layer norms.
pub(super) static ORION: Arch = Arch {
    name: "orion",
    hf_classes: &["OrionForCausalLM"],
    norm: NormKind::Layer,
    ..BASE
};

/// ERNIE 4.5.
pub(super) static ERNIE4_5: Arch = Arch {
    name: "ernie4_5",
    hf_classes: &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"],
    rope: INTERLEAVED,
    ..BASE
};

/// ERNIE 4.5 with experts, selected with a bias.
pub(super) static ERNIE4_5_MOE: Arch = Arch {
    name: "ernie4_5-moe",
    hf_classes: &["Ernie4_5_MoeForCausalLM"],
    rope: INTERLEAVED,
    hf_names: &[(
        FFN_SELECTION_BIAS,
        "model.layers.{}.mlp.moe_statics.e_score_correction_bias",
    )],
    ..BASE
};

/// Hunyuan: norms of q and k after RoPE.
const HUNYUAN_BASE: Arch = Arch {
    qk_norm: QkNorm::AfterRope,
    hf_names: &[
        (ATTN_Q_NORM, "model.layers.{}.self_attn.query_layernorm"),
        (ATTN_K_NORM, "model.layers.{}.self_attn.key_layernorm"),
        (FFN_ROUTER, "model.layers.{}.mlp.gate.wg"),
        (FFN_GATE_SHARED, "model.layers.{}.mlp.shared_mlp.gate_proj"),
        (FFN_UP_SHARED, "model.layers.{}.mlp.shared_mlp.up_proj"),
        (FFN_DOWN_SHARED, "model.layers.{}.mlp.shared_mlp.down_proj"),
    ],
    ..BASE
};

/// Hunyuan, dense.
pub(super) static HUNYUAN_DENSE: Arch = Arch {
    name: "hunyuan-dense",
    hf_classes: &["HunYuanDenseV1ForCausalLM"],
    ..HUNYUAN_BASE
};

/// Hunyuan with experts.
pub(super) static HUNYUAN_MOE: Arch = Arch {
    name: "hunyuan-moe",
    hf_classes: &["HunYuanMoEV1ForCausalLM", "HunYuanForCausalLM"],
    ..HUNYUAN_BASE
};

/// Helium.
pub(super) static HELIUM: Arch = Arch {
    name: "helium",
    hf_classes: &["HeliumForCausalLM"],
    rope: INTERLEAVED,
    ..BASE
};
