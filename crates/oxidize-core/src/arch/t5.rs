//! T5: an encoder that reads the prompt and a decoder with cross-attention to it; positions are
//! relative biases.

use super::names::*;
use super::{ActivationRule, Arch, BASE, QueryScale, RopeLayers};

/// Names of one of the two stacks. The number of the feed-forward layer differs between them.
macro_rules! gguf_names {
    ($stack:literal) => {
        &[
            (ATTN_NORM, concat!($stack, ".blk.{}.attn_norm")),
            (ATTN_Q, concat!($stack, ".blk.{}.attn_q")),
            (ATTN_K, concat!($stack, ".blk.{}.attn_k")),
            (ATTN_V, concat!($stack, ".blk.{}.attn_v")),
            (ATTN_OUTPUT, concat!($stack, ".blk.{}.attn_o")),
            (ATTN_RELATIVE, concat!($stack, ".blk.{}.attn_rel_b")),
            (FFN_NORM, concat!($stack, ".blk.{}.ffn_norm")),
            (FFN_GATE, concat!($stack, ".blk.{}.ffn_gate")),
            (FFN_UP, concat!($stack, ".blk.{}.ffn_up")),
            (FFN_DOWN, concat!($stack, ".blk.{}.ffn_down")),
            (OUTPUT_NORM, concat!($stack, ".output_norm")),
        ]
    };
}

macro_rules! hf_names {
    ($stack:literal, $ffn:literal) => {
        &[
            (TOKEN_EMBEDDING, "shared"),
            (TOKEN_EMBEDDING, concat!($stack, ".embed_tokens")),
            (ATTN_NORM, concat!($stack, ".block.{}.layer.0.layer_norm")),
            (ATTN_Q, concat!($stack, ".block.{}.layer.0.SelfAttention.q")),
            (ATTN_K, concat!($stack, ".block.{}.layer.0.SelfAttention.k")),
            (ATTN_V, concat!($stack, ".block.{}.layer.0.SelfAttention.v")),
            (
                ATTN_OUTPUT,
                concat!($stack, ".block.{}.layer.0.SelfAttention.o"),
            ),
            (
                ATTN_RELATIVE,
                concat!(
                    $stack,
                    ".block.{}.layer.0.SelfAttention.relative_attention_bias"
                ),
            ),
            (
                FFN_NORM,
                concat!($stack, ".block.{}.layer.", $ffn, ".layer_norm"),
            ),
            (
                FFN_GATE,
                concat!($stack, ".block.{}.layer.", $ffn, ".DenseReluDense.wi_0"),
            ),
            (
                FFN_UP,
                concat!($stack, ".block.{}.layer.", $ffn, ".DenseReluDense.wi_1"),
            ),
            (
                FFN_UP,
                concat!($stack, ".block.{}.layer.", $ffn, ".DenseReluDense.wi"),
            ),
            (
                FFN_DOWN,
                concat!($stack, ".block.{}.layer.", $ffn, ".DenseReluDense.wo"),
            ),
            (OUTPUT_NORM, concat!($stack, ".final_layer_norm")),
        ]
    };
}

const STACK: Arch = Arch {
    hf_keys: &[
        ("hidden_size", "d_model"),
        ("intermediate_size", "d_ff"),
        ("head_dim", "d_kv"),
        ("num_attention_heads", "num_heads"),
        ("num_hidden_layers", "num_layers"),
        ("num_key_value_heads", ""),
        ("max_position_embeddings", "n_positions"),
        ("rms_norm_eps", "layer_norm_epsilon"),
        ("attention_bias", ""),
    ],
    rope_layers: RopeLayers::None,
    query_scale: QueryScale::One,
    activation: ActivationRule::ReluOrGatedGelu,
    ..BASE
};

/// Encoder only.
pub(super) static T5_ENCODER: Arch = Arch {
    name: "t5encoder",
    hf_classes: &["T5EncoderModel"],
    causal: false,
    gguf_names: gguf_names!("enc"),
    hf_names: hf_names!("encoder", "1"),
    ..STACK
};

/// Encoder and decoder.
pub(super) static T5: Arch = Arch {
    name: "t5",
    hf_classes: &["T5ForConditionalGeneration", "T5WithLMHeadModel"],
    encoder: Some(&T5_ENCODER),
    gguf_names: gguf_names!("dec"),
    hf_names: hf_names!("decoder", "2"),
    ..STACK
};
