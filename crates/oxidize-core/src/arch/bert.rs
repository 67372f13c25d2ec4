//! BERT and its successors: bidirectional encoders. They compute embeddings or, with a classifier,
//! scores.

use super::names::*;
use super::{ActivationRule, Alibi, Arch, BASE, HALVES, MOE, MoeSpec, RopeLayers, Windows};
use crate::graph::{Activation, NormKind};

/// Post-norm: layer norms after each residual connection, none before.
const ENCODER: Arch = Arch {
    norm: NormKind::Layer,
    pre_norm: false,
    causal: false,
    rope_layers: RopeLayers::None,
    activation: ActivationRule::Named(Activation::GeluErf),
    ..BASE
};

/// Hugging Face names. In models with a head, they begin with the name of the family.
macro_rules! bert_names {
    ($family:literal, $head:literal, $scores:literal) => {
        &[
            (
                TOKEN_EMBEDDING,
                concat!($family, ".embeddings.word_embeddings"),
            ),
            (
                POSITION_EMBEDDING,
                concat!($family, ".embeddings.position_embeddings"),
            ),
            (
                TOKEN_TYPES,
                concat!($family, ".embeddings.token_type_embeddings"),
            ),
            (
                TOKEN_EMBEDDING_NORM,
                concat!($family, ".embeddings.LayerNorm"),
            ),
            (
                ATTN_Q,
                concat!($family, ".encoder.layer.{}.attention.self.query"),
            ),
            (
                ATTN_K,
                concat!($family, ".encoder.layer.{}.attention.self.key"),
            ),
            (
                ATTN_V,
                concat!($family, ".encoder.layer.{}.attention.self.value"),
            ),
            (
                ATTN_OUTPUT,
                concat!($family, ".encoder.layer.{}.attention.output.dense"),
            ),
            (
                ATTN_SUM_NORM,
                concat!($family, ".encoder.layer.{}.attention.output.LayerNorm"),
            ),
            (
                FFN_UP,
                concat!($family, ".encoder.layer.{}.intermediate.dense"),
            ),
            (
                FFN_GATE_UP,
                concat!($family, ".encoder.layer.{}.mlp.gated_layers"),
            ),
            (FFN_DOWN, concat!($family, ".encoder.layer.{}.output.dense")),
            (FFN_DOWN, concat!($family, ".encoder.layer.{}.mlp.wo")),
            (
                FFN_SUM_NORM,
                concat!($family, ".encoder.layer.{}.output.LayerNorm"),
            ),
            (
                FFN_SUM_NORM,
                concat!($family, ".encoder.layer.{}.mlp.layernorm"),
            ),
            (CLASSIFIER, $head),
            (CLASSIFIER_OUTPUT, $scores),
        ]
    };
}

/// BERT: learned positions.
pub(super) static BERT: Arch = Arch {
    name: "bert",
    hf_classes: &[
        "BertModel",
        "BertForMaskedLM",
        "BertForSequenceClassification",
    ],
    hf_names: bert_names!("bert", "bert.pooler.dense", "classifier"),
    ..ENCODER
};

/// RoBERTa: positions begin at 2; GGUF files omit the rows before.
pub(super) static ROBERTA: Arch = Arch {
    name: "bert",
    hf_classes: &[
        "RobertaModel",
        "XLMRobertaModel",
        "RobertaForSequenceClassification",
        "XLMRobertaForSequenceClassification",
    ],
    position_offset: 2,
    hf_extra_positions: 2,
    hf_names: bert_names!("roberta", "classifier.dense", "classifier.out_proj"),
    ..ENCODER
};

/// Jina BERT 2: ALiBi, gated feed-forward layers.
pub(super) static JINA_BERT_V2: Arch = Arch {
    name: "jina-bert-v2",
    hf_classes: &["JinaBertModel", "JinaBertForMaskedLM"],
    alibi: Alibi::Always(8.0),
    hf_names: bert_names!("bert", "", ""),
    ..ENCODER
};

/// Names in models with RoPE.
const ROTARY_NAMES: &[(TensorRole, &str)] = &[
    (TOKEN_EMBEDDING, "model.embeddings.word_embeddings"),
    (TOKEN_TYPES, "model.embeddings.token_type_embeddings"),
    (TOKEN_EMBEDDING_NORM, "emb_ln"),
    (ATTN_QKV, "model.encoder.layers.{}.attn.Wqkv"),
    (ATTN_OUTPUT, "model.encoder.layers.{}.attn.out_proj"),
    (ATTN_SUM_NORM, "model.encoder.layers.{}.norm1"),
    (FFN_UP, "model.encoder.layers.{}.mlp.fc11"),
    (FFN_UP, "model.encoder.layers.{}.mlp.fc1"),
    (FFN_GATE, "model.encoder.layers.{}.mlp.fc12"),
    (FFN_DOWN, "model.encoder.layers.{}.mlp.fc2"),
    (FFN_SUM_NORM, "model.encoder.layers.{}.norm2"),
];

/// Names in Jina BERT 3, where attention is called a mixer and feed-forward layers have no gate.
const MIXER_NAMES: &[(TensorRole, &str)] = &[
    (TOKEN_EMBEDDING, "model.embeddings.word_embeddings"),
    (TOKEN_TYPES, "model.embeddings.token_type_embeddings"),
    (TOKEN_EMBEDDING_NORM, "emb_ln"),
    (ATTN_QKV, "model.encoder.layers.{}.mixer.Wqkv"),
    (ATTN_OUTPUT, "model.encoder.layers.{}.mixer.out_proj"),
    (ATTN_SUM_NORM, "model.encoder.layers.{}.norm1"),
    (FFN_UP, "model.encoder.layers.{}.mlp.fc1"),
    (FFN_DOWN, "model.encoder.layers.{}.mlp.fc2"),
    (FFN_SUM_NORM, "model.encoder.layers.{}.norm2"),
];

const ROTARY: Arch = Arch {
    rope: HALVES,
    rope_layers: RopeLayers::All,
    hf_names: ROTARY_NAMES,
    ..ENCODER
};

/// Nomic BERT: RoPE, SiLU-gated feed-forward layers.
pub(super) static NOMIC_BERT: Arch = Arch {
    name: "nomic-bert",
    hf_classes: &["NomicBertModel"],
    activation: ActivationRule::Named(Activation::Silu),
    ..ROTARY
};

/// Nomic BERT with experts in every second layer, without gates.
pub(super) static NOMIC_BERT_MOE: Arch = Arch {
    name: "nomic-bert-moe",
    moe: MoeSpec {
        renormalize: false,
        ..MOE
    },
    ..ROTARY
};

/// Jina BERT 3.
pub(super) static JINA_BERT_V3: Arch = Arch {
    name: "jina-bert-v3",
    hf_classes: &["JinaEmbeddingsV3Model"],
    hf_names: MIXER_NAMES,
    ..ROTARY
};

/// ModernBERT: pre-norm, every third layer full and the others windowed.
pub(super) static MODERN_BERT: Arch = Arch {
    name: "modern-bert",
    hf_classes: &["ModernBertModel"],
    pre_norm: true,
    rope_layers: RopeLayers::All,
    windows: Windows::FullFirst(3),
    window_rope_base: Some(10_000.0),
    hf_names: &[
        (TOKEN_EMBEDDING, "model.embeddings.tok_embeddings"),
        (TOKEN_EMBEDDING_NORM, "model.embeddings.norm"),
        (OUTPUT_NORM, "model.final_norm"),
        (ATTN_NORM, "model.layers.{}.attn_norm"),
        (ATTN_QKV, "model.layers.{}.attn.Wqkv"),
        (ATTN_OUTPUT, "model.layers.{}.attn.Wo"),
        (FFN_NORM, "model.layers.{}.mlp_norm"),
        (FFN_GATE_UP, "model.layers.{}.mlp.Wi"),
        (FFN_DOWN, "model.layers.{}.mlp.Wo"),
    ],
    ..ENCODER
};
