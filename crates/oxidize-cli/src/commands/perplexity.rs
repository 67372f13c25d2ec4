//! `oxidize perplexity`: perplexity of a model on a text, comparable with llama.cpp: the text is divided into
//! chunks, the second half of each is scored, and by default activations are quantized as in llama.cpp.

use std::path::PathBuf;

use clap::Args;
use oxidize_core::backend::cpu::Cpu;
use oxidize_quantize::evaluate::{
    Chunks, Evaluator, check_chunk_args, check_predicts, chunk_size, logits_not_finite,
};
use oxidize_quantize::plural::count;
use oxidize_quantize::text::Text;

use crate::console::outln;
use crate::model_args::{MeasureArgs, ModelArgs, chunk_size_help};
use crate::model_path::find_model;
use crate::progress::{ProgressReporter, Unit};

/// Compute the perplexity of a model on a text
#[derive(Args)]
#[command(mut_arg("ctx_size", chunk_size_help))]
// The default of llama.cpp, for comparable results.
#[command(mut_arg("activations", |arg| arg.default_value("block256")))]
pub(crate) struct Perplexity {
    /// Model to evaluate
    #[arg(short = 'm', long, value_name = "MODEL", env = "OXIDIZE_MODEL")]
    model: Option<PathBuf>,
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

impl Perplexity {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        check_chunk_args(self.model_args.ctx_size, self.chunks)?;
        let text = Text::load(&self.file)?;
        let model = self.model_args.load(&find_model(self.model)?)?;
        check_predicts(&model)?;
        let n_ctx = chunk_size(&model, self.model_args.ctx_size);
        let chunks = Chunks::new(&model, &text, n_ctx, self.chunks)?;
        let n_chunks = chunks.n_chunks;
        let settings = self.measure_args.settings(&self.model_args);
        let mut evaluator = Evaluator::new(&model, &Cpu::default(), &settings, n_ctx)?;
        let mut score = Score::default();
        let progress = ProgressReporter::new();
        for (done, (input, chunk)) in chunks.iter().enumerate() {
            let scored = chunks.scored();
            evaluator.for_each_logits(&input, scored.start, |position, logits| {
                if scored.contains(&position) {
                    score.add(negative_log_likelihood(logits, chunk[position + 1]));
                }
                Ok(())
            })?;
            if !score.sum.is_finite() {
                return Err(logits_not_finite(&model).into());
            }
            let state = format!("perplexity {:.4}", score.perplexity());
            progress.set(
                Unit::Items("chunks"),
                done as u64 + 1,
                n_chunks as u64,
                &state,
            );
        }
        progress.finish();
        if self.json {
            let report = serde_json::json!({
                "perplexity": score.perplexity(), "stderr": score.stderr(), "chunks": n_chunks, "n_ctx": n_ctx, "tokens": score.n,
                "activations": self.measure_args.activations,
            });
            outln!("{report}")?;
        } else {
            outln!(
                "perplexity: {:.4} ± {:.4} ({} of {n_ctx})",
                score.perplexity(),
                score.stderr(),
                count(n_chunks, "chunk", "chunks")
            )?;
        }
        Ok(())
    }
}

/// Negative log probability of `token`.
fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|&logit| f64::from((logit - max).exp()))
        .sum();
    let logit = logits
        .get(token as usize)
        .copied()
        .unwrap_or(f32::NEG_INFINITY);
    sum.ln() - f64::from(logit - max)
}

#[derive(Default)]
struct Score {
    n: usize,
    sum: f64,
    squares: f64,
}

impl Score {
    fn add(&mut self, nll: f64) {
        self.n += 1;
        self.sum += nll;
        self.squares += nll * nll;
    }

    fn mean(&self) -> f64 {
        self.sum / self.n as f64
    }

    fn perplexity(&self) -> f64 {
        self.mean().exp()
    }

    /// Standard error of the perplexity.
    fn stderr(&self) -> f64 {
        let variance = self.squares / self.n as f64 - self.mean().powi(2);
        (variance.max(0.0) / (self.n as f64 - 1.0).max(1.0)).sqrt() * self.perplexity()
    }
}
