//! Models with random weights, for benchmarks and tests without real weights.
//!
//! [`Synthesis`] writes a Llama model of a [`Shape`] with matrices stored according to a [`QuantRecipe`]:
//! valid blocks from [`blocks`] and a vocabulary from [`vocabulary`], so that any engine that reads GGUF can
//! run it.

mod blocks;
mod shape;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use oxidize_kernels::quant::TensorType;

use crate::arch::TensorRole;
use crate::arch::names::*;
use crate::error::{Error, Result};
use crate::file::gguf::{ArrayBuf, Value, WriteError, Writer};
use crate::io::save_atomically;
use blocks::{Random, Tile};

pub use crate::recipe::{QuantRecipe, RECIPES};
pub use shape::{SHAPES, Shape};

/// A model with random weights. The same parameters always give the same file.
#[derive(Clone, Debug)]
pub struct Synthesis {
    /// Dimensions.
    pub shape: Shape,
    /// Quantization recipe of the matrices.
    pub recipe: QuantRecipe,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Reason why a model cannot be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SynthesisError {
    /// The dimensions contradict one another.
    #[error("impossible shape: {0}")]
    Shape(String),
    /// There is no recipe and no type with this name.
    #[error(
        "unknown quantization recipe {name}; known recipes are {}",
        crate::recipe::names()
    )]
    UnknownRecipe {
        /// Requested name.
        name: String,
    },
    /// There is no shape with this name.
    #[error("unknown shape {name}; known shapes are {}", shape::names())]
    UnknownShape {
        /// Requested name.
        name: String,
    },
}

impl Synthesis {
    /// Writes the model to `path` atomically. Calls `progress` with the bytes written so far and in all.
    pub fn save(&self, path: &Path, mut progress: impl FnMut(u64, u64)) -> Result<()> {
        save_atomically(path, |out| {
            self.write(out, &mut progress).map_err(|error| match error {
                // An I/O error needs the path of the file.
                Error::GgufWrite(WriteError::Io(error)) => Error::io(path)(error),
                error => error,
            })
        })
    }

    /// Writes the model as a GGUF file.
    pub fn write(&self, out: impl Write, mut progress: impl FnMut(u64, u64)) -> Result<()> {
        self.shape.check()?;
        let file = self.header()?;
        let total: u64 = file.tensors().iter().map(|tensor| tensor.bytes).sum();
        let mut random = Random::new(self.seed);
        let mut tiles: HashMap<TensorType, Tile> = HashMap::new();
        let mut done = 0;
        file.write(out, |tensor, out| {
            if let [n] = *tensor.shape {
                // Norm weights of one.
                for _ in 0..n {
                    out.write_all(&1f32.to_le_bytes()).map_err(WriteError::Io)?;
                }
            } else {
                let tile = tiles
                    .entry(tensor.ty)
                    .or_insert_with(|| Tile::new(tensor.ty, &mut random));
                tile.write(tensor.bytes, &mut random, out, |bytes| {
                    progress(done + bytes, total);
                })
                .map_err(WriteError::Io)?;
            }
            done += tensor.bytes;
            progress(done, total);
            Ok(())
        })
    }

    /// GGUF header: metadata and tensors.
    fn header(&self) -> Result<Writer> {
        let shape = &self.shape;
        let mut file = Writer::new();
        let name = format!("synthetic {}", shape.name);
        file.key("general.architecture", &Value::Str("llama"))?;
        file.key("general.name", &Value::Str(&name))?;
        file.key("general.file_type", &Value::U32(self.recipe.file_type))?;
        file.key("general.quantization_version", &Value::U32(2))?;
        for (key, number) in [
            ("block_count", shape.n_layers),
            ("context_length", shape.n_ctx),
            ("embedding_length", shape.n_embd),
            ("feed_forward_length", shape.n_ff),
            ("attention.head_count", shape.n_heads),
            ("attention.head_count_kv", shape.n_kv_heads),
            ("rope.dimension_count", shape.head_dim()),
            ("vocab_size", shape.n_vocab),
        ] {
            let number = u32::try_from(number)
                .map_err(|_| SynthesisError::Shape(format!("{key} is {number}")))?;
            file.key(&format!("llama.{key}"), &Value::U32(number))?;
        }
        let epsilon = "llama.attention.layer_norm_rms_epsilon";
        file.key(epsilon, &Value::F32(1e-5))?;
        file.key("llama.rope.freq_base", &Value::F32(shape.rope_base))?;
        self.add_vocabulary(&mut file)?;
        self.add_tensors(&mut file)?;
        Ok(file)
    }

    fn add_vocabulary(&self, file: &mut Writer) -> Result<(), WriteError> {
        let tokens = vocabulary::tokens(self.shape.n_vocab);
        let scores = ArrayBuf::f32s((0..tokens.len()).map(|i| -(i as f32)));
        let kinds = ArrayBuf::i32s((0..tokens.len()).map(vocabulary::kind));
        let tokens = ArrayBuf::strings(tokens);
        file.key("tokenizer.ggml.model", &Value::Str("llama"))?;
        for (key, array) in [
            ("tokens", &tokens),
            ("scores", &scores),
            ("token_type", &kinds),
        ] {
            file.key(
                &format!("tokenizer.ggml.{key}"),
                &Value::Array(array.as_array()),
            )?;
        }
        for (key, token) in [
            ("unknown", vocabulary::UNKNOWN),
            ("bos", vocabulary::BEGIN),
            ("eos", vocabulary::END),
        ] {
            file.key(
                &format!("tokenizer.ggml.{key}_token_id"),
                &Value::U32(token),
            )?;
        }
        file.key("tokenizer.ggml.add_bos_token", &Value::Bool(true))
    }

    fn add_tensors(&self, file: &mut Writer) -> Result<(), WriteError> {
        let shape = &self.shape;
        let (embd, ff) = (shape.n_embd, shape.n_ff);
        let kv = shape.n_kv_heads * shape.head_dim();
        let info = shape.model_info();
        let mut matrix = |role: TensorRole, layer, inputs: usize, outputs: usize| {
            let ty = self.recipe.tensor_type(role, layer, &info, inputs);
            file.tensor(&name(role, layer), ty, &[inputs as u64, outputs as u64])
        };
        matrix(TOKEN_EMBEDDING, 0, embd, shape.n_vocab)?;
        if !shape.tied {
            matrix(OUTPUT, 0, embd, shape.n_vocab)?;
        }
        for layer in 0..shape.n_layers {
            matrix(ATTN_Q, layer, embd, embd)?;
            matrix(ATTN_K, layer, embd, kv)?;
            matrix(ATTN_V, layer, embd, kv)?;
            matrix(ATTN_OUTPUT, layer, embd, embd)?;
            matrix(FFN_GATE, layer, embd, ff)?;
            matrix(FFN_UP, layer, embd, ff)?;
            matrix(FFN_DOWN, layer, ff, embd)?;
        }
        let mut norm =
            |role, layer| file.tensor(&name(role, layer), TensorType::F32, &[embd as u64]);
        norm(OUTPUT_NORM, 0)?;
        for layer in 0..shape.n_layers {
            norm(ATTN_NORM, layer)?;
            norm(FFN_NORM, layer)?;
        }
        Ok(())
    }
}

fn name(role: TensorRole, layer: usize) -> String {
    let pattern = role.gguf.replacen("{}", &layer.to_string(), 1);
    format!("{pattern}.weight")
}
