//! `oxidize synth`: writes a model with random weights, for benchmarks.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use oxidize_core::synth::{QuantRecipe, RECIPES, SHAPES, Shape, Synthesis, SynthesisError};

use crate::console::status;
use crate::progress::{ProgressReporter, Unit};

/// Write a model with random weights, for benchmarks
///
/// The model is a Llama model that any GGUF engine can load. Its output is random, but it needs the same
/// computation and memory as a trained model of the same shape.
#[derive(Args)]
pub(crate) struct Synth {
    /// GGUF file to write
    #[arg(short = 'o', long, value_name = "FILE.gguf")]
    output: PathBuf,
    #[arg(long, default_value = "1b", help = shape_help())]
    shape: String,
    #[arg(long = "type", value_name = "TYPE", default_value = "Q4_K_M", help = type_help())]
    recipe: String,
    /// Use the base type of --type for every matrix, including embeddings and output
    #[arg(long)]
    pure: bool,
    /// Override the number of layers
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Override the embedding size
    #[arg(long, value_name = "N")]
    embd: Option<usize>,
    /// Override the feed-forward size
    #[arg(long, value_name = "N")]
    ff: Option<usize>,
    /// Override the number of query heads
    #[arg(long, value_name = "N")]
    heads: Option<usize>,
    /// Override the number of KV heads
    #[arg(long, value_name = "N")]
    kv_heads: Option<usize>,
    /// Override the vocabulary size
    #[arg(long, value_name = "N")]
    vocab: Option<usize>,
    /// Override whether the embeddings are tied to the output matrix
    #[arg(long, value_name = "BOOL")]
    tied: Option<bool>,
    /// Set the random seed
    #[arg(short = 's', long, default_value_t = 0)]
    seed: u64,
}

fn shape_help() -> String {
    let mut help = String::from("Model shape: ");
    for shape in SHAPES {
        let tied = if shape.tied { ", tied" } else { "" };
        help += &format!(
            "{} ({} layers × {}, feed-forward {}, {}/{} heads, {} tokens{tied}); ",
            shape.name,
            shape.n_layers,
            shape.n_embd,
            shape.n_ff,
            shape.n_heads,
            shape.n_kv_heads,
            shape.n_vocab
        );
    }
    help.truncate(help.trim_end_matches("; ").len());
    help
}

fn type_help() -> String {
    let names: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
    format!("Quantization type: {}", names.join(", "))
}

impl Synth {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let named = Shape::named(&self.shape).map_err(oxidize_core::Error::from)?;
        let shape = Shape {
            n_layers: self.layers.unwrap_or(named.n_layers),
            n_embd: self.embd.unwrap_or(named.n_embd),
            n_ff: self.ff.unwrap_or(named.n_ff),
            n_heads: self.heads.unwrap_or(named.n_heads),
            n_kv_heads: self.kv_heads.unwrap_or(named.n_kv_heads),
            n_vocab: self.vocab.unwrap_or(named.n_vocab),
            tied: self.tied.unwrap_or(named.tied),
            ..named
        };
        let name = self.recipe;
        let recipe = QuantRecipe::named(&name).ok_or(SynthesisError::UnknownRecipe { name })?;
        let synthesis = Synthesis {
            shape,
            recipe: if self.pure { recipe.pure() } else { recipe },
            seed: self.seed,
        };
        let (progress, start) = (ProgressReporter::new(), Instant::now());
        let mut written = 0;
        synthesis.save(&self.output, |done, total| {
            written = total;
            progress.set(Unit::Bytes, done, total, "");
        })?;
        progress.finish();
        status!(
            "{}: {:.2} GB of weights in {:.1} s",
            self.output.display(),
            written as f64 / 1e9,
            start.elapsed().as_secs_f64()
        );
        Ok(())
    }
}
