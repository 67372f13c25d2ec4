//! `oxidize logits`: the outputs of a model at every position, for comparison with other engines.

use std::ops::Range;
use std::path::PathBuf;

use clap::Args;
use oxidize_core::backend::Backend;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::reference::Reference;
use oxidize_core::embedding::Pooling;
use oxidize_core::graph::OutputKind;
use oxidize_core::model::Model;
use oxidize_quantize::evaluate::{Evaluator, Results};
use oxidize_quantize::output::check_not_input;

use crate::console::status;
use crate::model_args::{MeasureArgs, ModelArgs};
use crate::model_path::find_model;
use crate::{npy, style};

/// Write the logits at every position of an input to a NumPy file
///
/// For embedding models, the output is the hidden states; for classifiers, the scores of the whole input.
#[derive(Args)]
pub(crate) struct Logits {
    /// Model to run
    #[arg(short = 'm', long, value_name = "MODEL", env = "OXIDIZE_MODEL")]
    model: Option<PathBuf>,
    /// Token ids of the input; for an encoder-decoder model, those of the encoder
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', required = true)]
    tokens: Vec<u32>,
    /// Token ids of the decoder of an encoder-decoder model, at whose positions logits are written
    #[arg(long, value_name = "1,2,3", value_delimiter = ',')]
    decoder_tokens: Vec<u32>,
    /// NumPy file to write: f32, tokens × vocabulary or tokens × hidden size
    #[arg(short, long, value_name = "FILE.npy")]
    output: PathBuf,
    /// Write the hidden states instead of logits or scores
    #[arg(long)]
    hidden: bool,
    /// Use the reference backend
    #[arg(long)]
    reference: bool,
    #[command(flatten)]
    measure_args: MeasureArgs,
    #[command(flatten)]
    model_args: ModelArgs,
}

impl Logits {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let model = self.model_args.load(&find_model(self.model)?)?;
        let backend: Box<dyn Backend> = if self.reference {
            Box::new(Reference)
        } else {
            Box::<Cpu>::default()
        };
        let has_encoder = model.plan().n_encoder_ops > 0;
        if has_encoder == self.decoder_tokens.is_empty() {
            anyhow::bail!(match has_encoder {
                true => "the model is an encoder-decoder: --decoder-tokens is required",
                false => "the model has no encoder: --decoder-tokens is not supported",
            });
        }
        let results = match self.hidden || outputs_hidden_states(&model) {
            true => Results::Hidden,
            false => Results::Final,
        };
        let n_ctx = self.tokens.len() + self.decoder_tokens.len();
        let trained = model.hparams().n_ctx_train;
        if n_ctx > trained {
            let dim = style::for_stderr().dim;
            status!("{dim}{n_ctx} tokens; the model was trained on up to {trained}{dim:#}");
        }
        let settings = self.measure_args.settings(&self.model_args);
        let backend = backend.as_ref();
        let mut evaluator = Evaluator::for_results(&model, backend, &settings, n_ctx, results)?;
        let input = if has_encoder {
            evaluator.encode(&self.tokens)?;
            &self.decoder_tokens
        } else {
            &self.tokens
        };
        let plan = model.plan();
        let (rows, value) = match results {
            Results::Final => (rows(&model, input.len()), plan.result),
            Results::Hidden => (0..input.len(), plan.hidden),
        };
        let width = value.map_or(0, |value| plan.value(value).width);
        let dims = [rows.len(), width];
        check_not_input(&self.output, model.file())?;
        Ok(npy::write_rows(&self.output, &dims, |write| {
            evaluator.for_each_logits(input, rows.start, |position, row| {
                if rows.contains(&position) {
                    write(row)?;
                }
                Ok(())
            })
        })?)
    }
}

/// True if a model's output is hidden states: it has no output matrix, or its files define a pooling.
fn outputs_hidden_states(model: &Model) -> bool {
    match model.plan().output {
        OutputKind::Hidden => true,
        OutputKind::Logits => Pooling::of(model).is_some(),
        OutputKind::Scores => false,
    }
}

/// The positions that have results: all of them, or for a classifier the one that attends to the whole input.
fn rows(model: &Model, n_tokens: usize) -> Range<usize> {
    match (model.plan().output, model.plan().is_bidirectional()) {
        (OutputKind::Scores, true) => 0..1,
        (OutputKind::Scores, false) => n_tokens.saturating_sub(1)..n_tokens,
        _ => 0..n_tokens,
    }
}
