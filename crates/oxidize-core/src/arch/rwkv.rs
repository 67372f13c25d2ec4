//! RWKV 4, 6 and 7.

use super::names::*;
use super::{Arch, BASE, RECURRENT, RecurrentKind, RecurrentSpec, RopeLayers};
use crate::graph::NormKind;

const HF_KEYS: &[(&str, &str)] = &[("layer_norm_eps", "layer_norm_epsilon")];

/// RWKV 4 (Dove): each channel is a separate head.
pub(super) static RWKV4: Arch = Arch {
    name: "rwkv4",
    hf_classes: &["RwkvForCausalLM"],
    hf_keys: HF_KEYS,
    norm: NormKind::Layer,
    recurrent: Some(RecurrentSpec {
        kind: RecurrentKind::Rwkv4,
        ..RECURRENT
    }),
    rope_layers: RopeLayers::None,
    hf_names: &[
        (TOKEN_EMBEDDING, "rwkv.embeddings"),
        (TOKEN_EMBEDDING_NORM, "rwkv.blocks.0.pre_ln"),
        (OUTPUT_NORM, "rwkv.ln_out"),
        (OUTPUT, "head"),
        (ATTN_NORM, "rwkv.blocks.{}.ln1"),
        (FFN_NORM, "rwkv.blocks.{}.ln2"),
        (TIME_MIX_LERP_K, "rwkv.blocks.{}.attention.time_mix_key"),
        (TIME_MIX_LERP_V, "rwkv.blocks.{}.attention.time_mix_value"),
        (
            TIME_MIX_LERP_R,
            "rwkv.blocks.{}.attention.time_mix_receptance",
        ),
        (TIME_MIX_FIRST, "rwkv.blocks.{}.attention.time_first"),
        (TIME_MIX_RECEPTANCE, "rwkv.blocks.{}.attention.receptance"),
        (TIME_MIX_KEY, "rwkv.blocks.{}.attention.key"),
        (TIME_MIX_VALUE, "rwkv.blocks.{}.attention.value"),
        (TIME_MIX_OUTPUT, "rwkv.blocks.{}.attention.output"),
        (
            CHANNEL_MIX_LERP_K,
            "rwkv.blocks.{}.feed_forward.time_mix_key",
        ),
        (
            CHANNEL_MIX_LERP_R,
            "rwkv.blocks.{}.feed_forward.time_mix_receptance",
        ),
        (CHANNEL_MIX_KEY, "rwkv.blocks.{}.feed_forward.key"),
        (CHANNEL_MIX_VALUE, "rwkv.blocks.{}.feed_forward.value"),
    ],
    ..BASE
};

/// RWKV 6 (Finch).
pub(super) static RWKV6: Arch = Arch {
    name: "rwkv6",
    hf_classes: &["Rwkv6ForCausalLM"],
    hf_keys: HF_KEYS,
    norm: NormKind::Layer,
    recurrent: Some(RecurrentSpec {
        kind: RecurrentKind::Rwkv6,
        ..RECURRENT
    }),
    rope_layers: RopeLayers::None,
    gguf_names: &[(FFN_NORM, "blk.{}.attn_norm_2")],
    hf_names: &[
        (TOKEN_EMBEDDING, "rwkv.embeddings"),
        (TOKEN_EMBEDDING_NORM, "rwkv.blocks.0.pre_ln"),
        (OUTPUT_NORM, "rwkv.ln_out"),
        (OUTPUT, "head"),
        (ATTN_NORM, "rwkv.blocks.{}.ln1"),
        (FFN_NORM, "rwkv.blocks.{}.ln2"),
        (TIME_MIX_LERP_W, "rwkv.blocks.{}.attention.time_maa_w"),
        (TIME_MIX_LERP_K, "rwkv.blocks.{}.attention.time_maa_k"),
        (TIME_MIX_LERP_V, "rwkv.blocks.{}.attention.time_maa_v"),
        (TIME_MIX_LERP_R, "rwkv.blocks.{}.attention.time_maa_r"),
        (TIME_MIX_LERP_G, "rwkv.blocks.{}.attention.time_maa_g"),
        (TIME_MIX_W1, "rwkv.blocks.{}.attention.time_maa_w1"),
        (TIME_MIX_W2, "rwkv.blocks.{}.attention.time_maa_w2"),
        (TIME_MIX_RECEPTANCE, "rwkv.blocks.{}.attention.receptance"),
        (TIME_MIX_KEY, "rwkv.blocks.{}.attention.key"),
        (TIME_MIX_VALUE, "rwkv.blocks.{}.attention.value"),
        (TIME_MIX_GATE, "rwkv.blocks.{}.attention.gate"),
        (TIME_MIX_NORM, "rwkv.blocks.{}.attention.ln_x"),
        (TIME_MIX_OUTPUT, "rwkv.blocks.{}.attention.output"),
        (CHANNEL_MIX_LERP_K, "rwkv.blocks.{}.feed_forward.time_maa_k"),
        (CHANNEL_MIX_KEY, "rwkv.blocks.{}.feed_forward.key"),
        (CHANNEL_MIX_VALUE, "rwkv.blocks.{}.feed_forward.value"),
    ],
    hf_transposed: &[
        TIME_MIX_W1,
        TIME_MIX_W2,
        TIME_MIX_DECAY_W1,
        TIME_MIX_DECAY_W2,
    ],
    ..BASE
};

/// RWKV 7 (Goose).
pub(super) static RWKV7: Arch = Arch {
    name: "rwkv7",
    hf_classes: &["Rwkv7ForCausalLM", "RWKV7ForCausalLM"],
    hf_keys: HF_KEYS,
    norm: NormKind::Layer,
    recurrent: Some(RecurrentSpec {
        kind: RecurrentKind::Rwkv7,
        ..RECURRENT
    }),
    rope_layers: RopeLayers::None,
    gguf_names: &[(FFN_NORM, "blk.{}.attn_norm_2")],
    hf_names: &[
        (TOKEN_EMBEDDING, "model.embeddings"),
        (TOKEN_EMBEDDING_NORM, "model.pre_ln"),
        (OUTPUT_NORM, "model.ln_out"),
        (OUTPUT, "head"),
        (ATTN_NORM, "model.blocks.{}.ln1"),
        (FFN_NORM, "model.blocks.{}.ln2"),
    ],
    hf_transposed: &[
        TIME_MIX_W1,
        TIME_MIX_W2,
        TIME_MIX_A1,
        TIME_MIX_A2,
        TIME_MIX_V1,
        TIME_MIX_V2,
        TIME_MIX_G1,
        TIME_MIX_G2,
    ],
    ..BASE
};
