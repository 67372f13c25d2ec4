//! The tokens still in the running during one sampling step, with their logits.
//! Every stage of the chain narrows or reweighs this list. It starts as the whole vocabulary and is
//! narrowed in linear time: no stage sorts the vocabulary, and nothing is allocated after the first step.

use oxidize_kernels::select;

use super::SamplingError;
use super::rng::Rng;
use super::select::{Cut, MassSelect, sort_descending};

/// Above this the bounded buffer of [`Candidates::retain_top`] would outgrow the cache.
const SMALL_TOP: usize = 1024;

/// Logits looked at together where most are not wanted.
const CHUNK: usize = 16;
/// Tokens whose logit is this far below the largest have less than 0.04% of its probability.
const NEAR: f32 = 8.0;
/// exp(−NEAR)
const NEAR_WEIGHT: f32 = 3.354_626_3e-4;
/// A draw skips so many weights at a time by their sum.
const SUM_CHUNK: usize = 256;

/// Candidate tokens: parallel arrays of token ids and logits.
#[derive(Debug, Clone, Default)]
pub struct Candidates {
    logits: Vec<f32>,
    /// Valid only once the list has been narrowed; before that a position is its token id. May be longer than the list.
    ids: Vec<u32>,
    whole_vocabulary: bool,
    sorted: bool,
    /// Scratch: `exp(logit − max)`, one a candidate, after [`Candidates::weigh`].
    weights: Vec<f32>,
    weighed_max: f32,
    top: Vec<(f32, u32)>,
    /// Scratch: the logits from the largest down.
    order: Vec<f32>,
    select: MassSelect,
}

impl Candidates {
    /// Starts a step: every token of the vocabulary, refused when a logit is NaN or +∞.
    pub fn load(&mut self, logits: &[f32]) -> Result<(), SamplingError> {
        check_logits(logits)?;
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.whole_vocabulary = true;
        self.sorted = false;
        Ok(())
    }

    /// How many tokens are left.
    pub fn len(&self) -> usize {
        self.logits.len()
    }

    /// True when no token is left.
    pub fn is_empty(&self) -> bool {
        self.logits.is_empty()
    }

    /// The token at a position of the list.
    pub fn id(&self, position: usize) -> u32 {
        if self.whole_vocabulary {
            position as u32
        } else {
            self.ids[position]
        }
    }

    /// The logits, in the order of the list.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// The logits for changing. The order may no longer hold afterwards.
    pub fn logits_mut(&mut self) -> &mut [f32] {
        self.sorted = false;
        &mut self.logits
    }

    /// Multiplies all logits by a positive factor, which keeps their order.
    pub fn scale(&mut self, factor: f32) {
        self.logits.iter_mut().for_each(|logit| *logit *= factor);
    }

    /// The logit of a token, if it is still in the list. Constant time before the first narrowing.
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

    /// The largest logit, −∞ when nothing is left.
    pub fn max(&self) -> f32 {
        if self.sorted {
            return self.logits.first().copied().unwrap_or(f32::NEG_INFINITY);
        }
        max_of(&self.logits)
    }

    /// The most likely token; the lowest id among equals. `None` when every token is ruled out.
    pub fn argmax(&self) -> Option<u32> {
        argmax(&self.logits).map(|position| self.id(position))
    }

    /// Computes the weights `exp(logit − max)` and returns their sum. A weight divided by the sum
    /// is the probability of the token at the same position.
    pub fn weigh(&mut self) -> f64 {
        self.weighed_max = self.max();
        self.weights.resize(self.logits.len(), 0.0);
        select().weigh(&self.logits, self.weighed_max, &mut self.weights)
    }

    /// The largest logit at the last [`Candidates::weigh`].
    pub fn weighed_max(&self) -> f32 {
        self.weighed_max
    }

    /// The weights of the last [`Candidates::weigh`].
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Keeps the `k` largest logits (the lower id among equals), sorted from the largest down when `k` is small.
    pub fn retain_top(&mut self, k: usize) {
        if k >= self.len() {
            return;
        }
        if self.sorted {
            self.truncate(k);
        } else if k > SMALL_TOP {
            // Every token weighs the same, so that mass is a count.
            self.weights.clear();
            self.weights.resize(self.logits.len(), 1.0);
            let smallest = -self.max();
            self.retain_first_mass(k as f64, smallest, |logit| -logit);
        } else {
            self.find_top(k);
            self.keep_top();
        }
    }

    /// Top-k for small k: one pass that looks closely only at what beats the k-th best so far.
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

    /// Keeps the tokens whose logit is at least `threshold`.
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

    /// Keeps the most likely tokens that together hold at least the share `p` of the probability.
    pub fn retain_likely_mass(&mut self, p: f64) {
        let total = self.weigh();
        if self.sorted {
            let mut mass = 0.0;
            let enough = self.weights.iter().position(|&weight| {
                mass += f64::from(weight);
                mass >= p * total
            });
            if let Some(last) = enough {
                self.truncate(last + 1);
            }
            return;
        }
        // Most of a vocabulary is unlikely: where few tokens near the maximum hold the mass alone, the others go first.
        let max = self.weighed_max;
        let n_near =
            |weights: &[f32]| -> u32 { weights.iter().map(|&w| u32::from(w >= NEAR_WEIGHT)).sum() };
        if 4 * n_near(&self.weights) as usize <= self.len() && near_mass(&self.weights) >= p * total
        {
            self.retain_at_least(max - NEAR);
            self.weigh();
        }
        self.retain_first_mass(p * total, -max, |logit| -logit);
    }

    /// Keeps the tokens that come first by `distance(logit)` (not negative, smallest first) until they
    /// hold at least the share `p` of the probability. Needs the weights of [`Candidates::weigh`].
    pub fn retain_nearest_mass(&mut self, p: f64, total: f64, distance: impl Fn(f32) -> f32) {
        self.retain_first_mass(p * total, 0.0, distance);
    }

    /// Keeps the tokens with the smallest keys until their weights reach `target`. No key is below `smallest`.
    fn retain_first_mass(&mut self, target: f64, smallest: f32, key: impl Fn(f32) -> f32) {
        let mut select = std::mem::take(&mut self.select);
        let cut = select.cut(&self.logits, &self.weights, target, smallest, &key);
        self.select = select;
        self.retain_cut(cut, key);
    }

    /// Keeps what lies before a cut by `key`.
    fn retain_cut(&mut self, cut: Cut, key: impl Fn(f32) -> f32) {
        let kept = self.logits.iter().map(|&x| u32::from(cut.may_keep(key(x))));
        if self.whole_vocabulary && 16 * kept.sum::<u32>() as usize > self.len() {
            // Many stay: ruling the others out is faster than moving what stays.
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

    /// Removes the tokens for whose position and weight (of the last [`Candidates::weigh`]) `remove` holds.
    pub fn remove_where(&mut self, mut remove: impl FnMut(usize, f32) -> bool) {
        let weights = std::mem::take(&mut self.weights);
        self.retain_positions(|position, _| !remove(position, weights[position]));
        self.weights = weights;
    }

    /// Removes the tokens at these positions, which ascend.
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

    /// Sorts the list from the largest logit down and drops what is ruled out. Only for stages whose
    /// rule needs the full order.
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

    /// How many logits are above `floor`.
    pub(super) fn count_above(&self, floor: f32) -> usize {
        let above = self.logits.iter().map(|&logit| u32::from(logit > floor));
        above.sum::<u32>() as usize
    }

    /// The logits above `floor` from the largest down, without changing the list.
    pub(super) fn descending(&mut self, floor: f32) -> &[f32] {
        let max = self.max();
        // Writes first and counts after: no branch to mispredict.
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

    /// Keeps the first `n` tokens of the order that the last [`Candidates::descending`] found.
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

    /// The `k` largest logits from the largest down, without changing the list; `k` is small.
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

    /// The list becomes what the buffer holds.
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

    /// Draws a token by its probability. `None` when every token is ruled out.
    pub fn draw(&mut self, rng: &mut Rng) -> Option<u32> {
        let total = self.weigh();
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
        // Rounding may carry the draw past the end: then the last possible token is meant.
        let last = || self.weights.iter().rposition(|&weight| weight > 0.0);
        drawn
            .map(|offset| start + offset)
            .or_else(last)
            .map(|position| self.id(position))
    }

    /// Narrows the list in place, keeping its order.
    fn retain_positions(&mut self, keep: impl FnMut(usize, f32) -> bool) {
        self.retain_chunks(|_| true, keep);
    }

    /// The same, looking only into those chunks of logits for which `look` holds.
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
                // Writes first and counts after: no branch to mispredict.
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

/// From the largest logit down, the lower id first among equals.
fn by_rank(a: &(f32, u32), b: &(f32, u32)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// The sum of the weights of tokens near the maximum.
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

/// Refuses logits that no distribution can be made of, naming the first such token.
pub(crate) fn check_logits(logits: &[f32]) -> Result<(), SamplingError> {
    // `x < ∞` is false for NaN and for +∞ alike.
    let sound = logits.chunks(64).all(|chunk| {
        chunk
            .iter()
            .fold(true, |sound, &x| sound & (x < f32::INFINITY))
    });
    if sound {
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

/// Position of the largest value, the first among equals; `None` when all are −∞ or there is none.
pub(crate) fn argmax(values: &[f32]) -> Option<usize> {
    let max = max_of(values);
    if max == f32::NEG_INFINITY {
        None
    } else {
        values.iter().position(|&value| value == max)
    }
}

/// The largest value, over eight lanes so that it vectorises.
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
    fn nan_and_infinity_are_refused_by_token() {
        let mut candidates = Candidates::default();
        let error = candidates.load(&[0.0, f32::NAN]).unwrap_err();
        assert!(matches!(error, SamplingError::BadLogit { token: 1, .. }));
        assert!(candidates.load(&[f32::INFINITY]).is_err());
        assert!(candidates.load(&[f32::NEG_INFINITY, 0.0]).is_ok());
    }

    #[test]
    fn top_k_is_the_head_of_a_sort_for_small_and_large_k() {
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
                // What is ruled out may stay in the list.
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
    fn ascending_logits_do_not_break_the_buffer() {
        let logits: Vec<f32> = (0..10_000).map(|i| i as f32).collect();
        let mut candidates = loaded(&logits);
        candidates.retain_top(3);
        assert_eq!(
            [candidates.id(0), candidates.id(1), candidates.id(2)],
            [9999, 9998, 9997]
        );
    }

    #[test]
    fn all_ruled_out_gives_no_token() {
        let mut candidates = loaded(&[f32::NEG_INFINITY; 10]);
        assert_eq!(candidates.draw(&mut Rng::new(1)), None);
        assert_eq!(candidates.argmax(), None);
    }
}
