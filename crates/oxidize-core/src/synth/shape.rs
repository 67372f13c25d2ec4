//! [`Shape`]: the dimensions of a model, and those of models that people run.

use super::SynthesisError;
use crate::mix::{Family, Traits};

/// The dimensions of a Llama.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// What people call it.
    pub name: &'static str,
    /// Layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Width of the feed-forward layers.
    pub n_ff: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Tokens.
    pub n_vocab: usize,
    /// Context that the model claims to be trained for.
    pub n_ctx: usize,
    /// Base of the rotary embedding.
    pub rope_base: f32,
    /// Whether the embeddings also make the logits, instead of a matrix of their own.
    pub tied: bool,
}

/// Every shape that has a name.
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
    /// What a mix wants to know of it.
    pub fn traits(&self) -> Traits {
        Traits {
            n_layers: self.n_layers,
            heads_per_kv: self.n_heads / self.n_kv_heads.max(1),
            tied: self.tied,
            family: Family::Llama,
            ..Traits::default()
        }
    }

    /// The shape called `name`.
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

    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.n_embd / self.n_heads.max(1)
    }

    /// Refuses dimensions that no model can have.
    pub(super) fn check(&self) -> Result<(), SynthesisError> {
        let wrong = |problem: String| Err(SynthesisError::Shape(problem));
        for (what, number) in [
            ("layers", self.n_layers),
            ("embedding width", self.n_embd),
            ("feed-forward width", self.n_ff),
            ("heads", self.n_heads),
            ("key and value heads", self.n_kv_heads),
            ("vocabulary", self.n_vocab),
        ] {
            if !(1..=1 << 24).contains(&number) {
                return wrong(format!("{what}: {number}"));
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
                "{n_heads} heads of equal, even width in {n_embd} elements"
            ));
        }
        if !n_heads.is_multiple_of(n_kv_heads) {
            return wrong(format!(
                "{n_heads} heads share {n_kv_heads} key and value heads"
            ));
        }
        let least = super::vocabulary::RESERVED;
        if self.n_vocab < least {
            return wrong(format!(
                "{} tokens, bytes and control tokens alone are {least}",
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
