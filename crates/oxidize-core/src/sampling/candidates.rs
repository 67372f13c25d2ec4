//! Candidate tokens of a sampling step with their logits. The stages of the chain filter or
//! reweight this list, which starts as the whole vocabulary. Filtering takes linear time: no stage
//! sorts the vocabulary, and nothing is allocated after the first step.

use oxidize_kernels::select;

use super::SamplingError;
use super::rng::Rng;
use super::select::{Cut, MassSelect, sort_descending};

/// Largest k for which the buffer of [`Candidates::retain_top`] fits in the cache.
const SMALL_TOP: usize = 1024;

/// Logits examined together where most are skipped.
const CHUNK: usize = 16;
/// Logit distance from the maximum beyond which a token has less than 0.04% of its probability.
const NEAR: f32 = 8.0;
/// exp(−NEAR).
const NEAR_WEIGHT: f32 = 3.354_626_3e-4;
/// Number of weights that a draw skips at a time by their sum.
const SUM_CHUNK: usize = 256;

/// Candidate tokens: parallel arrays of ids and logits.
#[derive(Debug, Clone, Default)]
pub struct Candidates {
    logits: Vec<f32>,
    /// Token ids, valid only after the first filtering; before that, a position is its token id.
    /// May be longer than the list.
    ids: Vec<u32>,
    whole_vocabulary: bool,
    sorted: bool,
    /// Scratch: `exp(logit − max)` per candidate, computed by [`Candidates::exp_sum`].
    weights: Vec<f32>,
    exp_max: f32,
    top: Vec<(f32, u32)>,
    /// Scratch: logits in descending order.
    order: Vec<f32>,
    select: MassSelect,
}

impl Candidates {
    /// Starts a step with the whole vocabulary. Fails if a logit is NaN or +∞.
    pub fn load(&mut self, logits: &[f32]) -> Result<(), SamplingError> {
        check_logits(logits)?;
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.whole_vocabulary = true;
        self.sorted = false;
        Ok(())
    }

    /// Number of candidates.
    pub fn len(&self) -> usize {
        self.logits.len()
    }

    /// True if there are no candidates.
    pub fn is_empty(&self) -> bool {
        self.logits.is_empty()
    }

    /// Token id at a position of the list.
    pub fn id(&self, position: usize) -> u32 {
        if self.whole_vocabulary {
            position as u32
        } else {
            self.ids[position]
        }
    }

    /// Logits, in list order.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Mutable logits. The list may no longer be sorted afterwards.
    pub fn logits_mut(&mut self) -> &mut [f32] {
        self.sorted = false;
        &mut self.logits
    }

    /// Multiplies all logits by a positive factor, which preserves their order.
    pub fn scale(&mut self, factor: f32) {
        self.logits.iter_mut().for_each(|logit| *logit *= factor);
    }

    /// Logit of a token, if it is in the list. Takes constant time before the first filtering.
    pub fn logit_of_mut(&mut self, token: u32) -> Option<&mut f32> {
        self.sorted = false;
        let position = if self.whole_vocabulary {
            token as usize
        } else {
            self.ids
                .iter()
                .take(self.logits.len())
                .position(|&id| id == token)?
        };
        self.logits.get_mut(position)
    }

    /// Largest logit; −∞ if there are no candidates.
    pub fn max(&self) -> f32 {
        if self.sorted {
            return self.logits.first().copied().unwrap_or(f32::NEG_INFINITY);
        }
        max_of(&self.logits)
    }

    /// Most likely token, the lowest id among ties. `None` if every token is excluded.
    pub fn argmax(&self) -> Option<u32> {
        argmax(&self.logits).map(|position| self.id(position))
    }

    /// Computes the weights `exp(logit − max)` and returns their sum. A weight divided by the sum
    /// is the probability of its token.
    pub fn exp_sum(&mut self) -> f64 {
        self.exp_max = self.max();
        self.weights.resize(self.logits.len(), 0.0);
        select().exp_sum(&self.logits, self.exp_max, &mut self.weights)
    }

    /// Largest logit at the last call of [`Candidates::exp_sum`].
    pub fn exp_max(&self) -> f32 {
        self.exp_max
    }

    /// Weights of the last call of [`Candidates::exp_sum`].
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Keeps the `k` largest logits (the lower id among ties), sorted in descending order if `k` is
    /// small.
    pub fn retain_top(&mut self, k: usize) {
        if k >= self.len() {
            return;
        }
        if self.sorted {
            self.truncate(k);
        } else if k > SMALL_TOP {
            // With equal weights, mass is a count.
            self.weights.clear();
            self.weights.resize(self.logits.len(), 1.0);
            let smallest = -self.max();
            self.retain_first_mass(k as f64, smallest, |logit| -logit);
        } else {
            self.find_top(k);
            self.keep_top();
        }
    }

    /// Top-k for small k: one pass that examines only logits above the k-th largest so far.
    fn find_top(&mut self, k: usize) {
        let capacity = (4 * k).max(64);
        let mut threshold = f32::NEG_INFINITY;
        self.top.clear();
        for (chunk_index, chunk) in self.logits.chunks(CHUNK).enumerate() {
            if self.top.len() >= k && max_of(chunk) <= threshold {
                continue;
            }
            for (offset, &logit) in chunk.iter().enumerate() {
                if self.top.len() < k || logit > threshold {
                    let position = chunk_index * CHUNK + offset;
                    let id = if self.whole_vocabulary {
                        position as u32
                    } else {
                        self.ids[position]
                    };
                    self.top.push((logit, id));
                }
            }
            if self.top.len() >= capacity {
                self.top.select_nth_unstable_by(k - 1, by_rank);
                self.top.truncate(k);
                threshold = self.top[k - 1].0;
            }
        }
        self.top.sort_unstable_by(by_rank);
        self.top.truncate(k);
    }

    /// Keeps tokens whose logit is at least `threshold`.
    pub fn retain_at_least(&mut self, threshold: f32) {
        if self.sorted {
            let keep = self.logits.partition_point(|&logit| logit >= threshold);
            self.truncate(keep);
        } else {
            self.retain_chunks(
                |chunk| max_of(chunk) >= threshold,
                |_, logit| logit >= threshold,
            );
        }
    }

    /// Keeps the fewest most likely tokens whose total probability is at least `p`.
    pub fn retain_likely_mass(&mut self, p: f64) {
        let total = self.exp_sum();
        if self.sorted {
            let mut mass = 0.0;
            let last_needed = self.weights.iter().position(|&weight| {
                mass += f64::from(weight);
                mass >= p * total
            });
            if let Some(last) = last_needed {
                self.truncate(last + 1);
            }
            return;
        }
        // Most of a vocabulary is unlikely: if a few tokens near the maximum have enough mass, drop
        // the others first.
        let max = self.exp_max;
        let n_near =
            |weights: &[f32]| -> u32 { weights.iter().map(|&w| u32::from(w >= NEAR_WEIGHT)).sum() };
        if 4 * n_near(&self.weights) as usize <= self.len() && near_mass(&self.weights) >= p * total
        {
            self.retain_at_least(max - NEAR);
            self.exp_sum();
        }
        self.retain_first_mass(p * total, -max, |logit| -logit);
    }

    /// Keeps tokens in ascending order of `distance(logit)`, which is not negative, until their
    /// total probability is at least `p`. Uses the weights of [`Candidates::exp_sum`].
    pub fn retain_nearest_mass(&mut self, p: f64, total: f64, distance: impl Fn(f32) -> f32) {
        self.retain_first_mass(p * total, 0.0, distance);
    }

    /// Keeps the tokens with the smallest keys until their weights reach `target`. No key is below
    /// `smallest`.
    fn retain_first_mass(&mut self, target: f64, smallest: f32, key: impl Fn(f32) -> f32) {
        let mut select = std::mem::take(&mut self.select);
        let cut = select.cut(&self.logits, &self.weights, target, smallest, &key);
        self.select = select;
        self.retain_cut(cut, key);
    }

    /// Keeps the tokens before a cut by `key`.
    fn retain_cut(&mut self, cut: Cut, key: impl Fn(f32) -> f32) {
        let kept = self.logits.iter().map(|&x| u32::from(cut.may_keep(key(x))));
        if self.whole_vocabulary && 16 * kept.sum::<u32>() as usize > self.len() {
            // Many tokens stay: excluding the others is faster than moving those that stay.
            for logit in &mut self.logits {
                let keeps = cut.may_keep(key(*logit));
                *logit = if keeps { *logit } else { f32::NEG_INFINITY };
            }
            let mut ties = 0;
            for chunk in self.logits.chunks_mut(CHUNK) {
                let is_tie = |any, &logit: &f32| any | cut.is_tie(key(logit));
                if chunk.iter().fold(false, is_tie) {
                    let surplus = |logit: &&mut f32| !cut.keeps(key(**logit), &mut ties);
                    let chunk = chunk.iter_mut().filter(surplus);
                    chunk.for_each(|logit| *logit = f32::NEG_INFINITY);
                }
            }
            return;
        }
        let mut ties = 0;
        self.retain_chunks(
            |chunk| {
                chunk
                    .iter()
                    .fold(false, |any, &logit| any | cut.may_keep(key(logit)))
            },
            |_, logit| cut.keeps(key(logit), &mut ties),
        );
    }

    /// Removes tokens for which `remove` returns true, given position and weight (of the last
    /// [`Candidates::exp_sum`]).
    pub fn remove_where(&mut self, mut remove: impl FnMut(usize, f32) -> bool) {
        let weights = std::mem::take(&mut self.weights);
        self.retain_positions(|position, _| !remove(position, weights[position]));
        self.weights = weights;
    }

    /// Removes the tokens at these ascending positions.
    pub fn remove(&mut self, positions: &[usize]) {
        if self.whole_vocabulary {
            for &position in positions {
                self.logits[position] = f32::NEG_INFINITY;
            }
            return;
        }
        let mut left = positions.iter().peekable();
        self.retain_positions(|position, _| left.next_if(|&&next| next == position).is_none());
    }

    /// Sorts the list by descending logit and removes excluded tokens. Only for stages that need
    /// the full order.
    pub fn sort(&mut self) {
        if self.sorted {
            return;
        }
        self.top.clear();
        for (position, &logit) in self.logits.iter().enumerate() {
            let id = if self.whole_vocabulary {
                position as u32
            } else {
                self.ids[position]
            };
            if logit > f32::NEG_INFINITY {
                self.top.push((logit, id));
            }
        }
        self.top.sort_unstable_by(by_rank);
        self.keep_top();
    }

    /// Number of logits above `floor`.
    pub(super) fn count_above(&self, floor: f32) -> usize {
        let above = self.logits.iter().map(|&logit| u32::from(logit > floor));
        above.sum::<u32>() as usize
    }

    /// Logits above `floor` in descending order. The list is unchanged.
    pub(super) fn descending(&mut self, floor: f32) -> &[f32] {
        let max = self.max();
        // Always write, then advance conditionally: no branch to mispredict.
        self.order.resize(self.logits.len(), 0.0);
        let mut kept = 0;
        for &logit in &self.logits {
            self.order[kept] = logit;
            kept += usize::from(logit > floor);
        }
        self.order.truncate(kept);
        if !self.sorted {
            sort_descending(&mut self.order, max, &mut self.weights);
        }
        &self.order
    }

    /// Keeps the first `n` tokens in the order of the last [`Candidates::descending`].
    pub(super) fn retain_first(&mut self, n: usize) {
        let Some(&last) = n.checked_sub(1).and_then(|last| self.order.get(last)) else {
            return;
        };
        let first = self.order.partition_point(|&logit| logit > last);
        let cut = Cut {
            threshold: -last,
            ties: n - first,
        };
        self.retain_cut(cut, |logit| -logit);
    }

    /// The `k` largest logits in descending order, for small `k`. The list is unchanged.
    pub fn largest(&mut self, k: usize) -> impl ExactSizeIterator<Item = f32> {
        if !self.sorted {
            self.find_top(k);
        } else {
            self.top.clear();
            self.top
                .extend(self.logits.iter().take(k).map(|&logit| (logit, 0)));
        }
        self.top.iter().map(|&(logit, _)| logit)
    }

    /// Replaces the list by the contents of `top`.
    fn keep_top(&mut self) {
        self.ids.clear();
        self.ids.extend(self.top.iter().map(|&(_, id)| id));
        self.logits.clear();
        self.logits.extend(self.top.iter().map(|&(logit, _)| logit));
        self.whole_vocabulary = false;
        self.sorted = true;
    }

    /// Keeps the first `n` tokens of the list.
    pub fn truncate(&mut self, n: usize) {
        if n >= self.len() {
            return;
        }
        if self.whole_vocabulary {
            self.ids.clear();
            self.ids.extend(0..n as u32);
            self.whole_vocabulary = false;
        }
        self.logits.truncate(n);
    }

    /// Draws a token by probability. Returns `None` if every token is excluded.
    pub fn draw(&mut self, rng: &mut Rng) -> Option<u32> {
        let total = self.exp_sum();
        if total <= 0.0 {
            return None;
        }
        let mut left = rng.next_f64() * total;
        let mut start = 0;
        for chunk in self.weights.chunks(SUM_CHUNK) {
            let sum = select().sum(chunk);
            if left < sum {
                break;
            }
            left -= sum;
            start += chunk.len();
        }
        let rest = self.weights.get(start..).unwrap_or(&[]);
        let drawn = rest.iter().position(|&weight| {
            left -= f64::from(weight);
            left < 0.0
        });
        // Rounding may move the draw past the end; take the last possible token.
        let last = || self.weights.iter().rposition(|&weight| weight > 0.0);
        drawn
            .map(|offset| start + offset)
            .or_else(last)
            .map(|position| self.id(position))
    }

    /// Filters the list in place, keeping its order.
    fn retain_positions(&mut self, keep: impl FnMut(usize, f32) -> bool) {
        self.retain_chunks(|_| true, keep);
    }

    /// Like [`Candidates::retain_positions`], skipping chunks of logits for which `look` returns
    /// false.
    fn retain_chunks(
        &mut self,
        look: impl Fn(&[f32]) -> bool,
        mut keep: impl FnMut(usize, f32) -> bool,
    ) {
        let n = self.logits.len();
        if self.ids.len() < n {
            self.ids.resize(n, 0);
        }
        let mut kept = 0;
        for start in (0..n).step_by(CHUNK) {
            let end = n.min(start + CHUNK);
            if !look(&self.logits[start..end]) {
                continue;
            }
            for position in start..end {
                // Always write, then advance conditionally: no branch to mispredict.
                let logit = self.logits[position];
                self.ids[kept] = if self.whole_vocabulary {
                    position as u32
                } else {
                    self.ids[position]
                };
                self.logits[kept] = logit;
                kept += usize::from(keep(position, logit));
            }
        }
        self.whole_vocabulary = false;
        self.logits.truncate(kept);
    }
}

/// Descending by logit, ascending by id among ties.
fn by_rank(a: &(f32, u32), b: &(f32, u32)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Total weight of tokens near the maximum.
fn near_mass(weights: &[f32]) -> f64 {
    let near = |weight: f32| if weight >= NEAR_WEIGHT { weight } else { 0.0 };
    let chunks = weights.chunks(SUM_CHUNK).map(|chunk| {
        let (vectors, rest) = chunk.as_chunks::<8>();
        let mut lanes = [0.0f32; 8];
        for vector in vectors {
            lanes = std::array::from_fn(|i| lanes[i] + near(vector[i]));
        }
        let rest = rest.iter().map(|&weight| near(weight));
        lanes.into_iter().chain(rest).map(f64::from).sum::<f64>()
    });
    chunks.sum()
}

/// Rejects logits that define no distribution, reporting the first such token.
pub(crate) fn check_logits(logits: &[f32]) -> Result<(), SamplingError> {
    // `x < ∞` is false for both NaN and +∞.
    let finite = logits.chunks(64).all(|chunk| {
        chunk
            .iter()
            .fold(true, |finite, &x| finite & (x < f32::INFINITY))
    });
    if finite {
        return Ok(());
    }
    match logits
        .iter()
        .position(|&x| x.is_nan() || x == f32::INFINITY)
    {
        Some(token) => Err(SamplingError::BadLogit {
            token,
            value: logits[token],
        }),
        None => Ok(()),
    }
}

/// Position of the largest value, the first among ties. `None` if there is no value above −∞.
pub(crate) fn argmax(values: &[f32]) -> Option<usize> {
    let max = max_of(values);
    if max == f32::NEG_INFINITY {
        None
    } else {
        values.iter().position(|&value| value == max)
    }
}

/// Largest value, in eight lanes so that it vectorizes.
pub(crate) fn max_of(values: &[f32]) -> f32 {
    let (chunks, rest) = values.as_chunks::<8>();
    let mut lanes = [f32::NEG_INFINITY; 8];
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    lanes.iter().chain(rest).fold(
        f32::NEG_INFINITY,
        |max, &value| if value > max { value } else { max },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(logits: &[f32]) -> Candidates {
        let mut candidates = Candidates::default();
        candidates.load(logits).unwrap();
        candidates
    }

    #[test]
    fn nan_and_infinity_are_rejected() {
        let mut candidates = Candidates::default();
        let error = candidates.load(&[0.0, f32::NAN]).unwrap_err();
        assert!(matches!(error, SamplingError::BadLogit { token: 1, .. }));
        assert!(candidates.load(&[f32::INFINITY]).is_err());
        assert!(candidates.load(&[f32::NEG_INFINITY, 0.0]).is_ok());
    }

    #[test]
    fn top_k_matches_sorting_for_small_and_large_k() {
        let mut rng = Rng::new(1);
        for n in [1, 2, 63, 1000, 20_000] {
            // Rounded, so that ties occur.
            let logits: Vec<f32> = (0..n)
                .map(|_| (rng.next_f64() * 200.0).round() as f32 / 10.0)
                .collect();
            let mut sorted: Vec<u32> = (0..n as u32).collect();
            sorted.sort_by(|&a, &b| {
                logits[b as usize]
                    .total_cmp(&logits[a as usize])
                    .then(a.cmp(&b))
            });
            for k in [1, 5, 40, 1024, 1500] {
                let mut candidates = loaded(&logits);
                candidates.retain_top(k);
                // Excluded tokens may remain in the list.
                let left = |i: &usize| candidates.logits()[*i] > f32::NEG_INFINITY;
                let left = (0..candidates.len()).filter(left);
                let mut got: Vec<u32> = left.map(|i| candidates.id(i)).collect();
                let mut want: Vec<u32> = sorted[..k.min(n)].to_vec();
                got.sort_unstable();
                want.sort_unstable();
                assert_eq!(got, want, "n = {n}, k = {k}");
            }
        }
    }

    #[test]
    fn top_k_handles_ascending_logits() {
        let logits: Vec<f32> = (0..10_000).map(|i| i as f32).collect();
        let mut candidates = loaded(&logits);
        candidates.retain_top(3);
        assert_eq!(
            [candidates.id(0), candidates.id(1), candidates.id(2)],
            [9999, 9998, 9997]
        );
    }

    #[test]
    fn no_token_if_all_are_excluded() {
        let mut candidates = loaded(&[f32::NEG_INFINITY; 10]);
        assert_eq!(candidates.draw(&mut Rng::new(1)), None);
        assert_eq!(candidates.argmax(), None);
    }
}
