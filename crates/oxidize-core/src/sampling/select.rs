//! Selection by mass: finds the smallest keys whose weights reach a target, without sorting all
//! keys. Used for top-p and typical sampling of a whole vocabulary, and for top-k with a large k.
//! Tail-free sampling, whose rule needs every pair of neighbors, uses a linear-time sort.

/// Histogram buckets over the keys.
const BUCKETS: usize = 512;
/// Interleaved histograms, so that an addition need not wait for the previous one to the same
/// bucket.
const LANES: usize = 4;
/// Items processed together.
const BLOCK: usize = 32;
/// Range of the first histogram above the smallest key. Keys are differences of logits; items
/// beyond the range have a weight of at most e⁻³⁰.
const FIRST_SPAN: f32 = 30.0;
/// Buckets up to this size are sorted instead of divided again.
const SORT_LIMIT: usize = 2048;

/// Scratch buffers for finding a cut.
#[derive(Debug, Clone, Default)]
pub(crate) struct MassSelect {
    histogram: Vec<[f64; LANES]>,
    /// Positions not yet decided.
    open: Vec<u32>,
    open_keys: Vec<f32>,
    open_weights: Vec<f32>,
}

/// End of a selection: all smaller keys are selected, and the first `ties` of those equal to the
/// threshold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cut {
    pub(crate) threshold: f32,
    pub(crate) ties: usize,
}

impl MassSelect {
    /// Finds the shortest prefix, in order of ascending keys, whose weights reach `target`. No key
    /// is below `smallest`. Items without weight are never needed. Equal keys are in item order.
    pub(crate) fn cut(
        &mut self,
        items: &[f32],
        weights: &[f32],
        target: f64,
        smallest: f32,
        key: impl Fn(f32) -> f32,
    ) -> Cut {
        // The histogram determines the bucket in which the target lies; only that bucket is
        // examined further.
        let range = Range::new(smallest, FIRST_SPAN);
        let bucket = |item: f32| range.bucket(key(item));
        let mut reached = fill(&mut self.histogram, items, weights, target, bucket);
        let mut open = std::mem::take(&mut self.open);
        open.clear();
        for (chunk, start) in items.chunks(BLOCK).zip((0u32..).step_by(BLOCK)) {
            let is_inside = |item: &f32| bucket(*item) == reached.bucket;
            if chunk
                .iter()
                .map(|item| u32::from(is_inside(item)))
                .sum::<u32>()
                > 0
            {
                let chunk = (start..).zip(chunk).filter(|(_, item)| is_inside(item));
                open.extend(chunk.map(|(i, _)| i));
            }
        }
        open.retain(|&i| weights[i as usize] > 0.0);

        let key_at = |&i: &u32| key(items[i as usize]);
        while open.len() > SORT_LIMIT {
            let low = open.iter().map(key_at).fold(f32::INFINITY, f32::min);
            let high = open.iter().map(key_at).fold(f32::NEG_INFINITY, f32::max);
            if low == high {
                break;
            }
            let range = Range::new(low, high - low);
            self.open_keys.clear();
            self.open_keys.extend(open.iter().map(key_at));
            self.open_weights.clear();
            self.open_weights
                .extend(open.iter().map(|&i| weights[i as usize]));
            let left = target - reached.mass;
            let (keys, weights) = (&self.open_keys, &self.open_weights);
            let inner = fill(&mut self.histogram, keys, weights, left, |key| {
                range.bucket(key)
            });
            reached = BucketPosition {
                bucket: inner.bucket,
                mass: reached.mass + inner.mass,
            };
            open.retain(|i| range.bucket(key_at(i)) == inner.bucket);
        }
        open.sort_unstable_by(|a, b| key_at(a).total_cmp(&key_at(b)).then(a.cmp(b)));

        let mut mass = reached.mass;
        let mut cut = Cut {
            threshold: smallest,
            ties: 0,
        };
        for i in &open {
            let key = key_at(i);
            cut = Cut {
                threshold: key,
                ties: if key == cut.threshold {
                    cut.ties + 1
                } else {
                    1
                },
            };
            mass += f64::from(weights[*i as usize]);
            if mass >= target {
                break;
            }
        }
        self.open = open;
        cut
    }
}

/// Sums the weights by bucket and returns the bucket in which they reach the target. If rounding
/// leaves the target just out of reach, returns the last bucket with weight.
fn fill(
    histogram: &mut Vec<[f64; LANES]>,
    items: &[f32],
    weights: &[f32],
    target: f64,
    bucket: impl Fn(f32) -> u32,
) -> BucketPosition {
    histogram.clear();
    histogram.resize(BUCKETS, [0.0; LANES]);
    // The length of an array is known, so no index is checked.
    if let Some(histogram) = histogram.first_chunk_mut::<BUCKETS>() {
        let mut buckets = [0; BLOCK];
        for (items, weights) in items.chunks(BLOCK).zip(weights.chunks(BLOCK)) {
            // First all buckets of a block, which vectorizes, then the additions, which do not.
            for (position, &item) in buckets.iter_mut().zip(items) {
                *position = bucket(item);
            }
            for ((i, &bucket), &weight) in buckets.iter().enumerate().zip(weights) {
                histogram[bucket as usize % BUCKETS][i % LANES] += f64::from(weight);
            }
        }
    }
    let mut reached = BucketPosition {
        bucket: 0,
        mass: 0.0,
    };
    let mut sum = 0.0;
    for (bucket, lanes) in (0..).zip(&*histogram) {
        let mass: f64 = lanes.iter().sum();
        if mass > 0.0 {
            reached = BucketPosition { bucket, mass: sum };
            sum += mass;
            if sum >= target {
                break;
            }
        }
    }
    reached
}

impl Cut {
    /// False if an item with this key is not selected.
    pub(crate) fn may_keep(&self, key: f32) -> bool {
        key <= self.threshold
    }

    /// True if the selection of an item with this key depends on its rank among ties.
    pub(crate) fn is_tie(&self, key: f32) -> bool {
        key == self.threshold
    }

    /// True if an item with this key is selected. Call it in item order; `ties_seen` starts at 0.
    pub(crate) fn keeps(&self, key: f32, ties_seen: &mut usize) -> bool {
        let tie = key == self.threshold;
        *ties_seen += usize::from(tie);
        (key < self.threshold) | (tie & (*ties_seen <= self.ties))
    }
}

/// Bucket, and total weight of all buckets before it.
#[derive(Debug, Clone, Copy)]
struct BucketPosition {
    bucket: u32,
    mass: f64,
}

/// Range of keys of a histogram; larger keys fall into the last bucket.
#[derive(Debug, Clone, Copy)]
struct Range {
    low: f32,
    buckets_per_unit: f32,
}

impl Range {
    const LAST: f32 = (BUCKETS - 1) as f32;

    fn new(low: f32, span: f32) -> Self {
        let buckets_per_unit = Self::LAST / span;
        Self {
            low,
            buckets_per_unit,
        }
    }

    /// Bucket of a key, monotonic. Uses only additions and bit operations, so that it vectorizes.
    fn bucket(self, key: f32) -> u32 {
        // Adding 2²³ leaves the rounded value in the low bits.
        const ROUND: f32 = 8_388_608.0;
        let position = (key - self.low) * self.buckets_per_unit;
        let position = if position < Self::LAST {
            position
        } else {
            Self::LAST
        };
        (position + ROUND).to_bits() & (BUCKETS - 1) as u32
    }
}

/// Bits per digit of [`sort_descending`], which sorts by two digits.
const DIGIT_BITS: u32 = 11;
const DIGITS: usize = 1 << DIGIT_BITS;
/// Range of the two digits below the maximum; values beyond it have a weight of at most e⁻³².
const SORT_SPAN: f32 = 32.0;
/// Shorter lists are sorted by comparison.
const SMALL_SORT: usize = 4096;

/// Sorts `values`, of which `max` is the largest, in descending order.
///
/// Two stable radix passes over a fixed-point representation put nearly all values in place; an
/// insertion sort handles values that share both digits.
pub(super) fn sort_descending(values: &mut [f32], max: f32, scratch: &mut Vec<f32>) {
    if values.len() < SMALL_SORT || max == f32::NEG_INFINITY {
        return values.sort_unstable_by(|a, b| b.total_cmp(a));
    }
    let position = |value: f32| {
        // Adding 2²³ leaves the rounded value in the low bits.
        const ROUND: f32 = 8_388_608.0;
        const LAST: f32 = (DIGITS * DIGITS - 1) as f32;
        let position = (max - value) * (LAST / SORT_SPAN);
        let position = if position < LAST { position } else { LAST };
        (position + ROUND).to_bits()
    };
    let low = |value: f32| position(value) as usize % DIGITS;
    let high = |value: f32| (position(value) >> DIGIT_BITS) as usize % DIGITS;
    let mut starts = [[0u32; DIGITS]; 2];
    for &value in &*values {
        starts[0][low(value)] += 1;
        starts[1][high(value)] += 1;
    }
    for starts in &mut starts {
        let mut next = 0;
        for start in starts.iter_mut() {
            next += std::mem::replace(start, next);
        }
    }
    scratch.resize(values.len(), 0.0);
    scatter(values, scratch, &mut starts[0], low);
    scatter(scratch, values, &mut starts[1], high);
    insertion_sort(values);
}

/// Moves each value to the next place of its digit.
fn scatter(from: &[f32], to: &mut [f32], starts: &mut [u32; DIGITS], digit: impl Fn(f32) -> usize) {
    for &value in from {
        let start = &mut starts[digit(value) % DIGITS];
        to[*start as usize] = value;
        *start += 1;
    }
}

/// Insertion sort of nearly sorted values.
fn insertion_sort(order: &mut [f32]) {
    // With more moves than this, the list was not nearly sorted: many values share both digits.
    let mut moves_left = 4 * order.len();
    for i in 1..order.len() {
        let value = order[i];
        let mut at = i;
        while at > 0 && order[at - 1] < value {
            order[at] = order[at - 1];
            at -= 1;
        }
        order[at] = value;
        moves_left = moves_left.saturating_sub(i - at);
        if moves_left == 0 {
            return order.sort_unstable_by(|a, b| b.total_cmp(a));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::rng::Rng;

    #[test]
    fn cut_is_the_shortest_sorted_prefix_that_reaches_the_target() {
        let mut rng = Rng::new(3);
        let mut select = MassSelect::default();
        for round in 0..400 {
            let n = 1 + (rng.next_u64() % [300, 9000][round % 2]) as usize;
            // Wide and narrow ranges, many ties, and clusters far from the smallest key.
            let key = |bits: u64| match round % 5 {
                0 => (bits % 1_000_000) as f32 / 50_000.0,
                1 => (bits % 3) as f32,
                2 => {
                    if bits.is_multiple_of(50) {
                        0.0
                    } else {
                        20.0 + (bits % 1000) as f32 * 1e-5
                    }
                }
                3 => (bits % 100_000) as f32,
                _ => -5.0,
            };
            let keys: Vec<f32> = (0..n).map(|_| key(rng.next_u64() >> 8)).collect();
            // Weights are multiples of 1/64, so that sums are exact in any order.
            let weights: Vec<f32> = (0..n)
                .map(|_| (1 + rng.next_u64() % 64) as f32 / 64.0)
                .collect();
            let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
            let target = rng.next_f64() * total;

            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|&a, &b| keys[a].total_cmp(&keys[b]).then(a.cmp(&b)));
            let mut mass = 0.0;
            let mut want = Vec::new();
            for i in order {
                want.push(i);
                mass += f64::from(weights[i]);
                if mass >= target {
                    break;
                }
            }
            want.sort_unstable();

            let smallest = keys.iter().copied().fold(f32::INFINITY, f32::min);
            let cut = select.cut(&keys, &weights, target, smallest, |key| key);
            let mut ties = 0;
            let got: Vec<usize> = (0..n).filter(|&i| cut.keeps(keys[i], &mut ties)).collect();
            assert_eq!(got, want, "round {round}");
        }
    }

    #[test]
    fn radix_sort_matches_comparison_sort() {
        let mut rng = Rng::new(8);
        let mut scratch = Vec::new();
        for round in 0..7 {
            let values: Vec<f32> = (0..20_000u32)
                .map(|i| match (round, i % 7) {
                    (0, _) => 0.5,
                    (1, 0) => f32::NEG_INFINITY,
                    (2, _) => (rng.next_u64() % 50) as f32 - 25.0,
                    (3, _) => f32::from_bits(rng.next_u64() as u32 & 0xBF7F_FFFF),
                    // All but one value cluster at the far end.
                    (4, _) => rng.next_f64() as f32 - if i == 5 { 0.0 } else { 1e4 },
                    _ => (rng.next_f64() * 60.0 - 30.0) as f32,
                })
                .collect();
            let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut order = values.clone();
            sort_descending(&mut order, max, &mut scratch);
            let mut want = values;
            want.sort_by(|a, b| b.total_cmp(a));
            assert!(order == want, "round {round}");
        }
    }
}
