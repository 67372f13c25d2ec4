//! Random-weight models of known shapes, for measuring and testing where no real weights are at hand.
//!
//! [`Synthesis`] writes a Llama of a [`Shape`] whose matrices are stored as a [`Mix`] says: valid
//! blocks from [`blocks`], a vocabulary from [`vocabulary`], so that any engine that reads GGUF runs it.

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
use crate::gguf::{ArrayBuf, Value, WriteError, Writer};
use crate::io::save_atomically;
use blocks::{Random, Tile};

pub use crate::mix::{MIXES, Mix};
pub use shape::{SHAPES, Shape};

/// A model to be made up. The same one is made up every time.
#[derive(Clone, Debug)]
pub struct Synthesis {
    /// Its dimensions.
    pub shape: Shape,
    /// How its matrices are stored.
    pub mix: Mix,
    /// Where the random numbers start.
    pub seed: u64,
}

/// Why a model cannot be made up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SynthesisError {
    /// The dimensions contradict one another.
    #[error("the shape is impossible: {0}")]
    Shape(String),
    /// Nobody stores weights like that.
    #[error(
        "{name} is neither a mix nor a type of weights; known mixes are {}",
        crate::mix::names()
    )]
    UnknownMix {
        /// What was asked for.
        name: String,
    },
    /// There is no such shape.
    #[error("there is no shape {name}; known shapes are {}", shape::names())]
    UnknownShape {
        /// What was asked for.
        name: String,
    },
}

impl Synthesis {
    /// Writes the model to `path`, which changes only once it is whole. `progress` hears the bytes
    /// written so far and in all.
    pub fn save(&self, path: &Path, mut progress: impl FnMut(u64, u64)) -> Result<()> {
        save_atomically(path, |out| {
            self.write(out, &mut progress).map_err(|error| match error {
                // The system's complaint makes sense only with the file it complains of.
                Error::GgufWrite(WriteError::Io(error)) => Error::io(path)(error),
                error => error,
            })
        })
    }

    /// Writes the model.
    pub fn write(&self, out: impl Write, mut progress: impl FnMut(u64, u64)) -> Result<()> {
        self.shape.check()?;
        let file = self.header()?;
        let total: u64 = file.tensors().iter().map(|tensor| tensor.bytes).sum();
        let mut random = Random::new(self.seed);
        let mut tiles: HashMap<TensorType, Tile> = HashMap::new();
        let mut done = 0;
        file.write(out, |tensor, out| {
            if let [n] = *tensor.shape {
                // Norms keep what they are given.
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

    /// Keys and tensors.
    fn header(&self) -> Result<Writer> {
        let shape = &self.shape;
        let mut file = Writer::new();
        let name = format!("synthetic {}", shape.name);
        file.key("general.architecture", &Value::Str("llama"))?;
        file.key("general.name", &Value::Str(&name))?;
        file.key("general.file_type", &Value::U32(self.mix.file_type))?;
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
        let traits = shape.traits();
        let mut matrix = |role: TensorRole, layer, inputs: usize, outputs: usize| {
            let ty = self.mix.tensor_type(role, layer, &traits, inputs);
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
