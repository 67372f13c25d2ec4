//! Results that are smaller than all logits: [`TopK`] and the tokens of greedy sampling.

use super::BackendError;
use std::cmp::Ordering;

/// A token id and its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Token id.
    pub id: u32,
    /// Logit of the token.
    pub logit: f32,
}

/// The largest logits of an output, and what their probabilities are computed from:
/// `p = exp(logit − log_sum_exp)`.
///
/// Filled by [`Session::top_k`](super::Session::top_k). Its buffer is reused from call to call.
#[derive(Clone, Debug, Default)]
pub struct TopK {
    /// The candidates, largest logit first; of equal logits, the lowest id first.
    pub candidates: Vec<Candidate>,
    /// Natural logarithm of the sum of `exp(logit)` over the whole vocabulary.
    pub log_sum_exp: f32,
}

impl TopK {
    /// Selects the `k` largest of the `logits` of output `output`; all of them where there are fewer.
    pub fn select(&mut self, logits: &[f32], k: usize, output: usize) -> Result<(), BackendError> {
        let max = finite_max(logits).ok_or(BackendError::NotFinite { output })?;
        self.log_sum_exp = (f64::from(max) + exp_sum(logits, max).ln()) as f32;
        let list = &mut self.candidates;
        list.clear();
        if k == 0 {
            return Ok(());
        }
        let k = k.min(logits.len());
        // The list grows to twice `k` before it is cut to `k`, so a cut is paid for by `k` insertions.
        let mut threshold = f32::NEG_INFINITY;
        for (id, &logit) in (0..).zip(logits) {
            // A later token of the same logit comes after all that were kept.
            if list.len() >= k && logit <= threshold {
                continue;
            }
            list.push(Candidate { id, logit });
            if list.len() == 2 * k {
                threshold = cut(list, k);
            } else if list.len() == k {
                threshold = list.iter().fold(logit, |min, c| min.min(c.logit));
            }
        }
        if list.len() > k {
            cut(list, k);
        }
        list.sort_unstable_by(order);
        Ok(())
    }
}

/// Keeps the first `k` candidates of a longer list, and returns the smallest logit among them.
fn cut(list: &mut Vec<Candidate>, k: usize) -> f32 {
    let (_, &mut Candidate { logit, .. }, _) = list.select_nth_unstable_by(k - 1, order);
    list.truncate(k);
    logit
}

/// Largest logit first, then lowest id.
fn order(a: &Candidate, b: &Candidate) -> Ordering {
    // No logit is NaN.
    let by_logit = b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal);
    by_logit.then(a.id.cmp(&b.id))
}

/// The largest logit; `None` if any is NaN or +∞, or all are −∞.
fn finite_max(logits: &[f32]) -> Option<f32> {
    let mut max = f32::NEG_INFINITY;
    for &logit in logits {
        if logit.is_nan() {
            return None;
        }
        max = max.max(logit);
    }
    max.is_finite().then_some(max)
}

/// `Σ exp(logit − max)`.
fn exp_sum(logits: &[f32], max: f32) -> f64 {
    const CHUNK: usize = 1024;
    let kernels = oxidize_kernels::select();
    let mut weights = [0.0; CHUNK];
    let sum = |chunk: &[f32]| kernels.exp_sum(chunk, max, &mut weights[..chunk.len()]);
    logits.chunks(CHUNK).map(sum).sum()
}

/// Set in an entry of [`Batch::tokens`](super::Batch::tokens) that refers to a sampled token.
const SAMPLED: u32 = 1 << 31;

/// The entry of [`Batch::tokens`](super::Batch::tokens) that stands for the token which
/// [`Session::sample_greedy`](super::Session::sample_greedy) has chosen at output `output`.
///
/// # Panics
/// If `output` is not below 2³¹.
pub const fn sampled_token(output: usize) -> u32 {
    assert!(output < SAMPLED as usize);
    SAMPLED | output as u32
}

/// The output whose sampled token an entry of a batch refers to; `None` for a token id.
pub fn sampled_output(token: u32) -> Option<usize> {
    (token & SAMPLED != 0).then_some((token & !SAMPLED) as usize)
}

/// The tokens of the last greedy sampling, for backends that sample on the host.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// By output; `None` where the logits were not finite.
    tokens: Vec<Option<u32>>,
}

impl Samples {
    /// Room for the outputs of a batch.
    pub(super) fn new(max_outputs: usize) -> Samples {
        Samples {
            tokens: Vec::with_capacity(max_outputs),
        }
    }

    /// Number of outputs that were sampled.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Chooses the token with the largest logit in each row of `rows`; of equal logits, the lowest id.
    pub(super) fn sample_greedy<'a>(&mut self, rows: impl Iterator<Item = &'a [f32]>) {
        let argmax = |logits: &[f32]| {
            let max = finite_max(logits)?;
            let position = logits.iter().position(|&logit| logit == max)?;
            u32::try_from(position).ok()
        };
        self.tokens.clear();
        self.tokens.extend(rows.map(argmax));
    }

    /// The token of an output.
    pub(super) fn get(&self, output: usize) -> Result<u32, BackendError> {
        let token = self.tokens.get(output).ok_or_else(|| {
            let n = self.tokens.len();
            BackendError::Malformed(format!("sampled token {output} of {n}"))
        })?;
        token.ok_or(BackendError::NotFinite { output })
    }

    /// The token id that an entry of a batch stands for; 0 where the logits were not finite.
    pub(super) fn resolve(&self, token: u32) -> u32 {
        match sampled_output(token) {
            Some(output) => self.tokens.get(output).copied().flatten().unwrap_or(0),
            None => token,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_k_matches_a_full_sort() {
        // Few distinct values, so that many logits are equal.
        let logit = |i: u32| (i.wrapping_mul(2_654_435_761) >> 27) as f32 / 4.0 - 3.0;
        let logits: Vec<f32> = (0..500).map(logit).collect();
        let mut sorted: Vec<Candidate> = (0..)
            .zip(&logits)
            .map(|(id, &logit)| Candidate { id, logit })
            .collect();
        sorted.sort_by(order);
        let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let mut top = TopK::default();
        for k in [0, 1, 2, 7, 40, 250, 499, 500, 1000] {
            top.select(&logits, k, 0).unwrap();
            assert_eq!(top.candidates, sorted[..k.min(500)], "{k}");
            assert!((f64::from(top.log_sum_exp) - sum.ln()).abs() < 1e-5);
        }
    }

    #[test]
    fn masked_logits_are_selected_last() {
        let mut top = TopK::default();
        let logits = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 2.0];
        top.select(&logits, 3, 0).unwrap();
        let ids: Vec<u32> = top.candidates.iter().map(|c| c.id).collect();
        assert_eq!(ids, [3, 1, 0]);
        assert!((top.log_sum_exp - (1f32.exp() + 2f32.exp()).ln()).abs() < 1e-6);
    }

    #[test]
    fn logits_that_are_not_finite_are_refused() {
        let (mut top, mut samples) = (TopK::default(), Samples::default());
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let rows: [&[f32]; 2] = [&[bad; 3], &[1.0, 3.0, 3.0]];
            let error = top.select(rows[0], 1, 4).unwrap_err();
            assert!(matches!(error, BackendError::NotFinite { output: 4 }));
            samples.sample_greedy(rows.into_iter());
            assert!(matches!(
                samples.get(0),
                Err(BackendError::NotFinite { output: 0 })
            ));
            assert_eq!(samples.get(1).unwrap(), 1);
            assert!(samples.get(2).is_err());
            let resolved = [0, 1].map(|output| samples.resolve(sampled_token(output)));
            assert_eq!((resolved, samples.resolve(7)), ([0, 1], 7));
        }
    }
}
