//! `oxidize synth`: a random-weight model of a known shape, for measuring.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use oxidize_core::synth::{MIXES, Mix, SHAPES, Shape, Synthesis, SynthesisError};
use oxidize_quantize::commands::progress::{Meter, Unit};
use oxidize_quantize::remark;

/// Write a random-weight model of a known shape
///
/// The model is a Llama that any engine reading GGUF can load. It talks nonsense, but computes and
/// reads memory exactly as a trained one does, so that speed can be measured without weights.
#[derive(Args)]
pub(crate) struct Synth {
    /// The file to write
    #[arg(short = 'o', long, value_name = "FILE.gguf")]
    output: PathBuf,
    #[arg(long, default_value = "1b", help = shape_help())]
    shape: String,
    #[arg(long = "type", value_name = "TYPE", default_value = "Q4_K_M", help = type_help())]
    mix: String,
    /// Stores every matrix as the mix's main type, embeddings and output too
    #[arg(long)]
    pure: bool,
    /// Layers, instead of the shape's
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Width of the residual stream, instead of the shape's
    #[arg(long, value_name = "N")]
    embd: Option<usize>,
    /// Width of the feed-forward layers, instead of the shape's
    #[arg(long, value_name = "N")]
    ff: Option<usize>,
    /// Query heads, instead of the shape's
    #[arg(long, value_name = "N")]
    heads: Option<usize>,
    /// Key and value heads, instead of the shape's
    #[arg(long, value_name = "N")]
    kv_heads: Option<usize>,
    /// Tokens of the vocabulary, instead of the shape's
    #[arg(long, value_name = "N")]
    vocab: Option<usize>,
    /// Whether the embeddings also make the logits, instead of what the shape says
    #[arg(long, value_name = "BOOL")]
    tied: Option<bool>,
    /// Where the random numbers start
    #[arg(short = 's', long, default_value_t = 0)]
    seed: u64,
}

fn shape_help() -> String {
    let mut help = String::from("The model's dimensions: ");
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
    let names: Vec<&str> = MIXES.iter().map(|mix| mix.name).collect();
    format!("How the weights are stored: {}", names.join(", "))
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
        let name = self.mix;
        let mix = Mix::named(&name).ok_or(SynthesisError::UnknownMix { name })?;
        let synthesis = Synthesis {
            shape,
            mix: if self.pure { mix.pure() } else { mix },
            seed: self.seed,
        };
        let (meter, start) = (Meter::new(), Instant::now());
        let mut written = 0;
        synthesis.save(&self.output, |done, total| {
            written = total;
            meter.set(Unit::Bytes, done, total, "");
        })?;
        meter.finish();
        remark!(
            "{}: {:.2} GB of weights in {:.1} s",
            self.output.display(),
            written as f64 / 1e9,
            start.elapsed().as_secs_f64()
        );
        Ok(())
    }
}
