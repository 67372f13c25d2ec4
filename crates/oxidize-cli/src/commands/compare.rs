//! `oxidize compare`: what a model's predictions have lost against another's, both side by side.

use std::path::PathBuf;

use clap::Args;
use oxidize_quantize::commands::progress::{Meter, Unit};
use oxidize_quantize::commands::quantize::describe;
use oxidize_quantize::compare::{Options, compare};
use oxidize_quantize::evaluate::check_asked;
use oxidize_quantize::say;
use oxidize_quantize::text::Text;

use crate::model_args::{MeasureArgs, ModelArgs, find_model, size_of_chunks};

/// Compare two models over a text: KL divergence, agreement, perplexity
#[derive(Args)]
#[command(mut_arg("ctx_size", size_of_chunks))]
// What files have lost, on whatever machine they will be run.
#[command(mut_arg("activations", |arg| arg.default_value("float")))]
pub(crate) struct Compare {
    /// The model to measure by
    #[arg(value_name = "A")]
    first: PathBuf,
    /// The model to measure; --quantize, --lora and --lora-scaled change it and not A
    #[arg(value_name = "B")]
    second: PathBuf,
    /// The text
    #[arg(short = 'f', long, value_name = "FILE")]
    file: PathBuf,
    /// Most chunks to read [default: all]
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    measure_args: MeasureArgs,
    #[command(flatten)]
    model_args: ModelArgs,
}

impl Compare {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        check_asked(self.model_args.ctx_size, self.chunks)?;
        let text = Text::load(&self.file)?;
        let first = self
            .model_args
            .as_it_is()
            .load(&find_model(Some(self.first))?)?;
        let second = self.model_args.load(&find_model(Some(self.second))?)?;
        let options = Options {
            n_ctx: self.model_args.ctx_size,
            chunks: self.chunks,
            settings: self.measure_args.settings(&self.model_args),
        };
        let meter = Meter::new();
        let result = compare(&first, &second, &text, &options, |done, total, kl| {
            let state = format!("mean KL divergence {kl:.6}");
            meter.set(Unit::Pieces("chunks"), done as u64, total as u64, &state);
            Ok(())
        })?;
        meter.finish();
        if self.json {
            say!("{}", serde_json::to_string(&result)?)?;
        } else {
            say!("{}", describe(&result))?;
        }
        Ok(())
    }
}
