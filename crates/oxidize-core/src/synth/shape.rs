//! [`Shape`]: the dimensions of a model, and those of common models.

use super::SynthesisError;
use crate::recipe::{Family, ModelInfo};

/// Dimensions of a Llama model.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Name, such as `8b`.
    pub name: &'static str,
    /// Layers.
    pub n_layers: usize,
    /// Embedding size.
    pub n_embd: usize,
    /// Feed-forward size.
    pub n_ff: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Vocabulary size.
    pub n_vocab: usize,
    /// Context length of the training.
    pub n_ctx: usize,
    /// Base frequency of the rotary position embedding.
    pub rope_base: f32,
    /// True if the embeddings are also the output matrix.
    pub tied: bool,
}

/// All shapes.
pub static SHAPES: &[Shape] = &[
    shape("tiny", 2, 256, 768, 4, 2, 1024).with(2048, 1e4, true),
    // SmolLM2
    shape("135m", 30, 576, 1536, 9, 3, 49152).with(8192, 1e5, true),
    shape("360m", 32, 960, 2560, 15, 5, 49152).with(8192, 1e5, true),
    // Llama 3.2
    shape("1b", 16, 2048, 8192, 32, 8, 128_256).with(131_072, 5e5, true),
    // TinyLlama
    shape("1.1b", 22, 2048, 5632, 32, 4, 32000).with(2048, 1e4, false),
    // SmolLM2
    shape("1.7b", 24, 2048, 8192, 32, 32, 49152).with(8192, 1.3e5, true),
    // Llama 3.2
    shape("3b", 28, 3072, 8192, 24, 8, 128_256).with(131_072, 5e5, true),
    // Llama 2
    shape("7b", 32, 4096, 11008, 32, 32, 32000).with(4096, 1e4, false),
    // Llama 3
    shape("8b", 32, 4096, 14336, 32, 8, 128_256).with(131_072, 5e5, false),
    // Llama 2
    shape("13b", 40, 5120, 13824, 40, 40, 32000).with(4096, 1e4, false),
    // Llama 3
    shape("70b", 80, 8192, 28672, 64, 8, 128_256).with(131_072, 5e5, false),
];

const fn shape(
    name: &'static str,
    n_layers: usize,
    n_embd: usize,
    n_ff: usize,
    n_heads: usize,
    n_kv_heads: usize,
    n_vocab: usize,
) -> Shape {
    Shape {
        name,
        n_layers,
        n_embd,
        n_ff,
        n_heads,
        n_kv_heads,
        n_vocab,
        n_ctx: 0,
        rope_base: 0.0,
        tied: false,
    }
}

impl Shape {
    /// Properties that quantization recipes depend on.
    pub fn model_info(&self) -> ModelInfo {
        ModelInfo {
            n_layers: self.n_layers,
            heads_per_kv: self.n_heads / self.n_kv_heads.max(1),
            tied: self.tied,
            family: Family::Llama,
            ..ModelInfo::default()
        }
    }

    /// Shape with this name.
    pub fn named(name: &str) -> Result<Shape, SynthesisError> {
        let mut known = SHAPES.iter();
        let found = known.find(|shape| shape.name.eq_ignore_ascii_case(name));
        found.cloned().ok_or_else(|| SynthesisError::UnknownShape {
            name: name.to_owned(),
        })
    }

    const fn with(self, n_ctx: usize, rope_base: f32, tied: bool) -> Shape {
        Shape {
            n_ctx,
            rope_base,
            tied,
            ..self
        }
    }

    /// Head dimension.
    pub fn head_dim(&self) -> usize {
        self.n_embd / self.n_heads.max(1)
    }

    /// Returns an error if no model can have these dimensions.
    pub(super) fn check(&self) -> Result<(), SynthesisError> {
        let wrong = |problem: String| Err(SynthesisError::Shape(problem));
        for (name, number) in [
            ("layers", self.n_layers),
            ("embedding width", self.n_embd),
            ("feed-forward width", self.n_ff),
            ("heads", self.n_heads),
            ("key and value heads", self.n_kv_heads),
            ("vocabulary", self.n_vocab),
        ] {
            if !(1..=1 << 24).contains(&number) {
                return wrong(format!("{name}: {number}"));
            }
        }
        let Shape {
            n_embd,
            n_heads,
            n_kv_heads,
            ..
        } = *self;
        if !n_embd.is_multiple_of(n_heads) || !self.head_dim().is_multiple_of(2) {
            return wrong(format!(
                "an embedding size of {n_embd} is not {n_heads} times an even head dimension"
            ));
        }
        if !n_heads.is_multiple_of(n_kv_heads) {
            return wrong(format!(
                "the number of heads, {n_heads}, is not a multiple of the key and value heads, {n_kv_heads}"
            ));
        }
        let min = super::vocabulary::RESERVED;
        if self.n_vocab < min {
            return wrong(format!(
                "a vocabulary of {} tokens is smaller than the {min} byte and control tokens",
                self.n_vocab
            ));
        }
        Ok(())
    }
}

pub(super) fn names() -> String {
    let names: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
    names.join(", ")
}
