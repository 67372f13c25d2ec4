//! `oxidize logits`: what a model computes at every position, for comparing engines.

use std::ops::Range;
use std::path::PathBuf;

use clap::Args;
use oxidize_core::backend::Backend;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::reference::Reference;
use oxidize_core::embedding::Pooling;
use oxidize_core::graph::Gives;
use oxidize_core::model::Model;
use oxidize_quantize::evaluate::{Evaluator, Results};
use oxidize_quantize::output::check_not_input;
use oxidize_quantize::remark;

use crate::model_args::{MeasureArgs, ModelArgs, find_model};
use crate::{npy, style};

/// Write the logits at every position of an input
///
/// Models that are made for embeddings give their hidden states instead, and classifiers the scores
/// of the whole input.
#[derive(Args)]
pub(crate) struct Logits {
    /// The model
    #[arg(short = 'm', long, value_name = "MODEL", env = "OXIDIZE_MODEL")]
    model: Option<PathBuf>,
    /// Token ids of the input; of an encoder-decoder, what the encoder reads
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', required = true)]
    tokens: Vec<u32>,
    /// Token ids of the decoder behind an encoder, whose positions have the logits
    #[arg(long, value_name = "1,2,3", value_delimiter = ',')]
    decoder_tokens: Vec<u32>,
    /// NumPy file for the result: tokens × vocabulary, or tokens × width of hidden states, f32
    #[arg(short, long, value_name = "FILE.npy")]
    output: PathBuf,
    /// Write the hidden states that logits or scores are made of
    #[arg(long)]
    hidden: bool,
    /// Computes with the plain reference backend
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
                true => "the model has an encoder: --decoder-tokens says what follows its input",
                false =>
                    "the model has no encoder before its decoder: --decoder-tokens is not for it",
            });
        }
        let results = match self.hidden || gives_hidden_states(&model) {
            true => Results::Hidden,
            false => Results::Own,
        };
        let n_ctx = self.tokens.len() + self.decoder_tokens.len();
        let trained = model.hparams().n_ctx_train;
        if n_ctx > trained {
            let dim = style::for_stderr().dim;
            remark!("{dim}{n_ctx} tokens; the model was trained on up to {trained}{dim:#}");
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
            Results::Own => (rows(&model, input.len()), plan.result),
            Results::Hidden => (0..input.len(), plan.hidden),
        };
        let width = value.map_or(0, |value| plan.value(value).width);
        let dims = [rows.len(), width];
        check_not_input(&self.output, model.file())?;
        Ok(npy::write_rows(&self.output, &dims, |write| {
            evaluator.each_logits(input, rows.start, |position, row| {
                if rows.contains(&position) {
                    write(row)?;
                }
                Ok(())
            })
        })?)
    }
}

/// Whether a model ends with hidden states: it has nothing after them, or its files say how they
/// become the embedding of a text.
fn gives_hidden_states(model: &Model) -> bool {
    match model.plan().gives {
        Gives::Hidden => true,
        Gives::Logits => Pooling::of(model).is_some(),
        Gives::Scores => false,
    }
}

/// The positions of an input that have results: all, but of a classifier the one that has seen all.
fn rows(model: &Model, n_tokens: usize) -> Range<usize> {
    match (model.plan().gives, model.plan().is_bidirectional()) {
        (Gives::Scores, true) => 0..1,
        (Gives::Scores, false) => n_tokens.saturating_sub(1)..n_tokens,
        _ => 0..n_tokens,
    }
}
