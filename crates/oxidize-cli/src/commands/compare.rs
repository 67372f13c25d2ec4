//! `oxidize compare`: compares the predictions of a model with those of a reference model.

use std::path::PathBuf;

use clap::Args;
use oxidize_quantize::compare::{Options, compare};
use oxidize_quantize::evaluate::check_chunk_args;
use oxidize_quantize::text::Text;

use crate::console::outln;
use crate::model_args::{MeasureArgs, ModelArgs, chunk_size_help};
use crate::model_path::find_model;
use crate::progress::{ProgressReporter, Unit};

/// Compare two models on a text: KL divergence, agreement of top tokens, perplexity
#[derive(Args)]
#[command(mut_arg("ctx_size", chunk_size_help))]
// The error of the weights alone, which does not depend on the machine.
#[command(mut_arg("activations", |arg| arg.default_value("f32")))]
pub(crate) struct Compare {
    /// Reference model
    #[arg(value_name = "A")]
    first: PathBuf,
    /// Model to compare; --quantize, --lora and --lora-scaled apply to it only
    #[arg(value_name = "B")]
    second: PathBuf,
    /// Text file
    #[arg(short = 'f', long, value_name = "FILE")]
    file: PathBuf,
    /// Maximum number of chunks [default: all]
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    measure_args: MeasureArgs,
    #[command(flatten)]
    model_args: ModelArgs,
}

impl Compare {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        check_chunk_args(self.model_args.ctx_size, self.chunks)?;
        let text = Text::load(&self.file)?;
        let first = self
            .model_args
            .without_modifications()
            .load(&find_model(Some(self.first))?)?;
        let second = self.model_args.load(&find_model(Some(self.second))?)?;
        let options = Options {
            n_ctx: self.model_args.ctx_size,
            chunks: self.chunks,
            settings: self.measure_args.settings(&self.model_args),
        };
        let progress = ProgressReporter::new();
        let result = compare(&first, &second, &text, &options, |done, total, kl| {
            let state = format!("mean KL divergence {kl:.6}");
            progress.set(Unit::Items("chunks"), done as u64, total as u64, &state);
            Ok(())
        })?;
        progress.finish();
        if self.json {
            outln!("{}", serde_json::to_string(&result)?)?;
        } else {
            outln!("{result}")?;
        }
        Ok(())
    }
}
