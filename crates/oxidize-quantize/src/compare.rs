//! [`compare`]: two models side by side over a text, in one process and without a file of logits.
//!
//! The second model is measured by the first: how far its predictions are from the first's (KL
//! divergence), how often both would say the same token, and what became of the perplexity.

use oxidize_core::backend::ActivationRounding;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::model::Model;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::evaluate::{
    Chunks, Evaluator, Settings, check_asked, check_predicts, chunk_size, not_numbers, pieces,
};
use crate::text::Text;

/// What the second model makes of a text, compared with the first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Chunks of text that were read.
    pub chunks: usize,
    /// Tokens of a chunk.
    pub n_ctx: usize,
    /// Tokens that were scored.
    pub tokens: usize,
    /// Mean of the KL divergence from the first model's predictions, in nats.
    pub mean_kl: f64,
    /// Its standard error.
    pub mean_kl_stderr: f64,
    /// The KL divergence that half of the tokens stay below.
    pub median_kl: f64,
    /// That 90 in 100 stay below.
    pub kl_90: f64,
    /// That 99 in 100 stay below.
    pub kl_99: f64,
    /// That 999 in 1000 stay below.
    pub kl_999: f64,
    /// The largest.
    pub max_kl: f64,
    /// The share of tokens where both find the same one the likeliest.
    pub top1_agreement: f64,
    /// The root of the mean square of how much the probability of the right token changed.
    pub rms_delta_p: f64,
    /// Perplexity of the first model.
    pub perplexity_a: f64,
    /// Perplexity of the second.
    pub perplexity_b: f64,
    /// The second by the first.
    pub perplexity_ratio: f64,
}

/// How a comparison is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Tokens of a chunk, as [`chunk_size`] takes them.
    pub n_ctx: Option<usize>,
    /// Most chunks to read; all where nothing is said.
    pub chunks: Option<usize>,
    /// How the models are run.
    pub settings: Settings,
}

impl Default for Options {
    /// All of the text, and activations as they are: what the weights have lost is the same wherever a model is
    /// run, what rounding activations adds is not.
    fn default() -> Options {
        Options {
            n_ctx: None,
            chunks: None,
            settings: Settings {
                activations: ActivationRounding::Float,
                ..Settings::default()
            },
        }
    }
}

/// Cuts a text as [`compare`] reads it, or says why it cannot be: before a model to compare with is made.
pub fn chunks(model: &Model, text: &Text, options: &Options) -> Result<Chunks> {
    check_asked(options.n_ctx, options.chunks)?;
    check_predicts(model)?;
    let n_ctx = chunk_size(model, options.n_ctx);
    Chunks::new(model, text, n_ctx, options.chunks)
}

/// Compares `b` with `a` over `text`. `each` hears of every finished chunk, and may end it.
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
                "a vocabulary of {} tokens, that of {} has {}",
                b.n_vocab(),
                a.file().path().display(),
                a.n_vocab()
            ),
        });
    }
    // Where nothing is asked for, both models have to have room.
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
                        return Err(not_numbers(model));
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

/// The logarithms of the probabilities that logits stand for; whether they are numbers.
fn log_softmax(logits: &[f32], out: &mut Vec<f32>) -> bool {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Lanes, so that the sum is vectorised; in f64, so that a large vocabulary does not blur it.
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
    surprise_a: f64,
    surprise_b: f64,
}

impl Scores {
    fn add(&mut self, p: &[f32], q: &[f32], next: usize) {
        let mut kl = 0.0f64;
        for (&p, &q) in p.iter().zip(q) {
            // What has no probability to speak of adds nothing.
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
        self.surprise_a -= f64::from(p);
        self.surprise_b -= f64::from(q);
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
        let (a, b) = ((self.surprise_a / n).exp(), (self.surprise_b / n).exp());
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
    fn a_known_divergence() {
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
