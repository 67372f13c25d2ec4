//! [`compare`]: compares the predictions of two models on a text, in one process and without a file of
//! logits.
//!
//! The first model is the reference. The result contains the KL divergence of the second model's predictions,
//! the agreement of top tokens, and both perplexities.

use std::fmt;

use oxidize_core::backend::ActivationQuant;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::model::Model;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::evaluate::{
    Chunks, Evaluator, Settings, check_chunk_args, check_predicts, chunk_size, logits_not_finite,
    pieces,
};
use crate::plural::count;
use crate::text::Text;

/// Comparison of a model's predictions with those of a reference model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Number of chunks.
    pub chunks: usize,
    /// Tokens per chunk.
    pub n_ctx: usize,
    /// Number of scored tokens.
    pub tokens: usize,
    /// Mean KL divergence from the reference, in nats.
    pub mean_kl: f64,
    /// Standard error of the mean.
    pub mean_kl_stderr: f64,
    /// Median KL divergence.
    pub median_kl: f64,
    /// 90th percentile of the KL divergence.
    pub kl_90: f64,
    /// 99th percentile of the KL divergence.
    pub kl_99: f64,
    /// 99.9th percentile of the KL divergence.
    pub kl_999: f64,
    /// Maximum KL divergence.
    pub max_kl: f64,
    /// Fraction of tokens with the same most likely prediction.
    pub top1_agreement: f64,
    /// Root mean square of the change in the probability of the correct token.
    pub rms_delta_p: f64,
    /// Perplexity of the reference model.
    pub perplexity_a: f64,
    /// Perplexity of the compared model.
    pub perplexity_b: f64,
    /// `perplexity_b / perplexity_a`.
    pub perplexity_ratio: f64,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "KL divergence     mean {:.6} ± {:.6}, median {:.6}, 90% {:.5}, 99% {:.4}, 99.9% {:.4}, max {:.3}",
            self.mean_kl,
            self.mean_kl_stderr,
            self.median_kl,
            self.kl_90,
            self.kl_99,
            self.kl_999,
            self.max_kl
        )?;
        writeln!(f, "same top token    {:.2}%", 100.0 * self.top1_agreement)?;
        writeln!(
            f,
            "probability shift {:.3}% (root mean square)",
            100.0 * self.rms_delta_p
        )?;
        writeln!(
            f,
            "perplexity        {:.4} -> {:.4} ({:.4}×)",
            self.perplexity_a, self.perplexity_b, self.perplexity_ratio
        )?;
        write!(
            f,
            "scored            {} tokens in {} of {}",
            self.tokens,
            count(self.chunks, "chunk", "chunks"),
            self.n_ctx
        )
    }
}

/// Options of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Requested tokens per chunk, see [`chunk_size`].
    pub n_ctx: Option<usize>,
    /// Maximum number of chunks; all if `None`.
    pub chunks: Option<usize>,
    /// Settings of the model runs.
    pub settings: Settings,
}

impl Default for Options {
    /// The whole text, and f32 activations: the error of quantized weights does not depend on the machine,
    /// that of quantized activations does.
    fn default() -> Options {
        Options {
            n_ctx: None,
            chunks: None,
            settings: Settings {
                activations: ActivationQuant::F32,
                ..Settings::default()
            },
        }
    }
}

/// Divides a text into the chunks of [`compare`]. Called before quantization to report an unusable text
/// early.
pub fn chunks(model: &Model, text: &Text, options: &Options) -> Result<Chunks> {
    check_chunk_args(options.n_ctx, options.chunks)?;
    check_predicts(model)?;
    let n_ctx = chunk_size(model, options.n_ctx);
    Chunks::new(model, text, n_ctx, options.chunks)
}

/// Compares `b` with the reference `a` on `text`. `each` receives the chunks done, their total number and the
/// mean KL divergence; an error from it stops the comparison.
pub fn compare(
    a: &Model,
    b: &Model,
    text: &Text,
    options: &Options,
    mut each: impl FnMut(usize, usize, f64) -> Result<()>,
) -> Result<Comparison> {
    check_predicts(a)?;
    check_predicts(b)?;
    if a.n_vocab() != b.n_vocab() {
        return Err(Error::Unfit {
            file: b.file().path().to_path_buf(),
            problem: format!(
                "vocabulary of {} tokens, but {} has {}",
                b.n_vocab(),
                a.file().path().display(),
                a.n_vocab()
            ),
        });
    }
    // The default chunk size has to fit both models.
    let least = chunk_size(a, None).min(chunk_size(b, None));
    let options = Options {
        n_ctx: Some(options.n_ctx.unwrap_or(least)),
        ..*options
    };
    let chunks = chunks(a, text, &options)?;
    let cpu = Cpu::default();
    let mut first = Evaluator::new(a, &cpu, &options.settings, chunks.n_ctx)?;
    let mut second = Evaluator::new(b, &cpu, &options.settings, chunks.n_ctx)?;
    let mut scores = Scores::default();
    let (mut p, mut q) = (Vec::new(), Vec::new());
    let scored = chunks.scored();
    for (done, (input, chunk)) in chunks.iter().enumerate() {
        for piece in pieces(&input, scored.start, first.step().min(second.step())) {
            first.run(piece.tokens, piece.start, &piece.outputs)?;
            second.run(piece.tokens, piece.start, &piece.outputs)?;
            for (nth, &output) in piece.outputs.iter().enumerate() {
                let position = piece.start + output as usize;
                let Some(&next) = chunk.get(position + 1) else {
                    continue;
                };
                let reference = log_softmax(first.output(nth)?, &mut p);
                let other = log_softmax(second.output(nth)?, &mut q);
                for (model, finite) in [(a, reference), (b, other)] {
                    if !finite {
                        return Err(logits_not_finite(model));
                    }
                }
                scores.add(&p, &q, next as usize);
            }
        }
        each(done + 1, chunks.n_chunks, scores.mean_kl())?;
    }
    let mut comparison = scores.finish();
    (comparison.chunks, comparison.n_ctx) = (chunks.n_chunks, chunks.n_ctx);
    Ok(comparison)
}

/// Log-softmax of logits. Returns false if they are NaN or infinite.
fn log_softmax(logits: &[f32], out: &mut Vec<f32>) -> bool {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Several partial sums, so that the loop vectorizes; f64, so that large vocabularies keep precision.
    let mut lanes = [0.0f64; 8];
    for chunk in logits.chunks(8) {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from((logit - max).exp());
        }
    }
    let log_sum = lanes.iter().sum::<f64>().ln() as f32;
    out.clear();
    out.extend(logits.iter().map(|&logit| logit - max - log_sum));
    max.is_finite() && log_sum.is_finite()
}

#[derive(Default)]
struct Scores {
    kl: Vec<f32>,
    agreed: usize,
    delta_squares: f64,
    nll_a: f64,
    nll_b: f64,
}

impl Scores {
    fn add(&mut self, p: &[f32], q: &[f32], next: usize) {
        let mut kl = 0.0f64;
        for (&p, &q) in p.iter().zip(q) {
            // Probabilities below e⁻⁴⁰ contribute nothing.
            if p > -40.0 {
                kl += f64::from(p.exp()) * f64::from(p - q);
            }
        }
        self.kl.push(kl.max(0.0) as f32);
        self.agreed += usize::from(argmax(p) == argmax(q));
        let (p, q) = (
            p.get(next).copied().unwrap_or(f32::NEG_INFINITY),
            q.get(next).copied().unwrap_or(f32::NEG_INFINITY),
        );
        self.delta_squares += f64::from(p.exp() - q.exp()).powi(2);
        self.nll_a -= f64::from(p);
        self.nll_b -= f64::from(q);
    }

    fn mean_kl(&self) -> f64 {
        self.kl.iter().copied().map(f64::from).sum::<f64>() / self.kl.len().max(1) as f64
    }

    fn finish(mut self) -> Comparison {
        let n = self.kl.len().max(1) as f64;
        let mean = self.mean_kl();
        let variance = self
            .kl
            .iter()
            .map(|&kl| (f64::from(kl) - mean).powi(2))
            .sum::<f64>()
            / n;
        self.kl.sort_by(f32::total_cmp);
        let at = |share: f64| {
            let index = (share * (n - 1.0)).round() as usize;
            self.kl.get(index).copied().map_or(0.0, f64::from)
        };
        let (a, b) = ((self.nll_a / n).exp(), (self.nll_b / n).exp());
        Comparison {
            chunks: 0,
            n_ctx: 0,
            tokens: self.kl.len(),
            mean_kl: mean,
            mean_kl_stderr: (variance / (n - 1.0).max(1.0)).sqrt(),
            median_kl: at(0.5),
            kl_90: at(0.9),
            kl_99: at(0.99),
            kl_999: at(0.999),
            max_kl: at(1.0),
            top1_agreement: self.agreed as f64 / n,
            rms_delta_p: (self.delta_squares / n).sqrt(),
            perplexity_a: a,
            perplexity_b: b,
            perplexity_ratio: b / a,
        }
    }
}

fn argmax(x: &[f32]) -> usize {
    oxidize_kernels::select().argmax(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kl_divergence_matches_closed_form() {
        let (mut p, mut q) = (Vec::new(), Vec::new());
        // ½, ½ and ¾, ¼.
        assert!(log_softmax(&[1.0, 1.0], &mut p));
        assert!(log_softmax(&[3f32.ln(), 0.0], &mut q));
        let mut scores = Scores::default();
        scores.add(&p, &q, 0);
        let result = scores.finish();
        let expected = 0.5 * (0.5f64 / 0.75).ln() + 0.5 * (0.5f64 / 0.25).ln();
        assert!((result.mean_kl - expected).abs() < 1e-6);
        assert!((result.perplexity_ratio - 0.5 / 0.75).abs() < 1e-6);
        assert!((result.rms_delta_p - 0.25).abs() < 1e-6);
        assert_eq!((result.top1_agreement, result.tokens), (1.0, 1));
        assert!(!log_softmax(&[f32::NAN, 0.0], &mut p));
    }
}
