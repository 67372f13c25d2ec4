//! Selection by mass: which keys come first until their weights reach a target, without sorting them all.
//! Top-p and typical sampling over a whole vocabulary rest on it, and top-k for a large k.

/// Buckets of a histogram over the keys.
const BUCKETS: usize = 1024;
/// Histograms filled in turn, so that one addition need not wait for the last one to the same bucket.
const LANES: usize = 4;
/// The first histogram spans this much above the smallest key: of the keys in use, differences of logits, what is
/// further away has a weight of e⁻³⁰ at most.
const FIRST_SPAN: f32 = 30.0;
/// A bucket as small as this is sorted instead of divided again.
const SORTED: usize = 2048;

/// Scratch memory to find a cut.
#[derive(Debug, Clone, Default)]
pub(crate) struct MassSelect {
    histogram: Vec<[f64; LANES]>,
    /// The bucket of each item.
    buckets: Vec<u16>,
    /// Positions still in question.
    open: Vec<u32>,
    open_weights: Vec<f32>,
}

/// Where a selection ends: smaller keys are in, and so many of those equal to the threshold, the first ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cut {
    threshold: f32,
    ties: usize,
}

impl MassSelect {
    /// The cut after which the items with the smallest keys weigh at least `target` together, and not more than needed.
    /// No key is below `smallest`. Items without weight are never needed. Equal keys count in their order.
    pub(crate) fn cut(
        &mut self,
        items: &[f32],
        weights: &[f32],
        target: f64,
        smallest: f32,
        key: impl Fn(f32) -> f32,
    ) -> Cut {
        // The histogram tells in which bucket the target falls; only that bucket is looked at further.
        let range = Range {
            low: smallest,
            span: FIRST_SPAN,
        };
        self.buckets.clear();
        self.buckets
            .extend(items.iter().map(|&item| range.bucket(key(item))));
        let mut reached = fill(&mut self.histogram, &self.buckets, weights, target);
        self.open.clear();
        for (start, chunk) in self.buckets.chunks(32).enumerate() {
            if chunk.contains(&reached.bucket) {
                let inside = (0u32..)
                    .zip(chunk)
                    .filter(|&(_, &bucket)| bucket == reached.bucket);
                self.open.extend(inside.map(|(i, _)| start as u32 * 32 + i));
            }
        }
        self.open.retain(|&i| weights[i as usize] > 0.0);

        let mut open = std::mem::take(&mut self.open);
        let key_at = |&i: &u32| key(items[i as usize]);
        while open.len() > SORTED {
            let low = open.iter().map(key_at).fold(f32::INFINITY, f32::min);
            let high = open.iter().map(key_at).fold(f32::NEG_INFINITY, f32::max);
            if low == high {
                break;
            }
            let range = Range {
                low,
                span: high - low,
            };
            self.buckets.clear();
            self.buckets
                .extend(open.iter().map(|i| range.bucket(key_at(i))));
            self.open_weights.clear();
            self.open_weights
                .extend(open.iter().map(|&i| weights[i as usize]));
            let left = target - reached.mass;
            let inner = fill(&mut self.histogram, &self.buckets, &self.open_weights, left);
            reached = Reached {
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

/// Adds up the weights by bucket and returns the bucket in which they reach the target: where rounding leaves
/// the target just out of reach, the last one that holds any.
fn fill(
    histogram: &mut Vec<[f64; LANES]>,
    buckets: &[u16],
    weights: &[f32],
    target: f64,
) -> Reached {
    histogram.clear();
    histogram.resize(BUCKETS, [0.0; LANES]);
    // As an array its length is known, and no index needs a check.
    if let Some(histogram) = histogram.first_chunk_mut::<BUCKETS>() {
        let mut add = |lane: usize, bucket: u16, weight: f32| {
            histogram[usize::from(bucket) % BUCKETS][lane] += f64::from(weight);
        };
        let (bucket_chunks, bucket_rest) = buckets.as_chunks::<LANES>();
        let (weight_chunks, weight_rest) = weights.as_chunks::<LANES>();
        for (buckets, weights) in bucket_chunks.iter().zip(weight_chunks) {
            for lane in 0..LANES {
                add(lane, buckets[lane], weights[lane]);
            }
        }
        for (&bucket, &weight) in bucket_rest.iter().zip(weight_rest) {
            add(0, bucket, weight);
        }
    }
    let mut reached = Reached {
        bucket: 0,
        mass: 0.0,
    };
    let mut sum = 0.0;
    for (bucket, lanes) in (0..).zip(&*histogram) {
        let mass: f64 = lanes.iter().sum();
        if mass > 0.0 {
            reached = Reached { bucket, mass: sum };
            sum += mass;
            if sum >= target {
                break;
            }
        }
    }
    reached
}

impl Cut {
    /// False when an item with this key is certainly not kept.
    pub(crate) fn may_keep(&self, key: f32) -> bool {
        key <= self.threshold
    }

    /// True when an item with this key is kept or not by how many of its like came before.
    pub(crate) fn is_tie(&self, key: f32) -> bool {
        key == self.threshold
    }

    /// True when an item with this key is kept. To be asked in order; `ties_seen` starts at 0.
    pub(crate) fn keeps(&self, key: f32, ties_seen: &mut usize) -> bool {
        let tie = key == self.threshold;
        *ties_seen += usize::from(tie);
        (key < self.threshold) | (tie & (*ties_seen <= self.ties))
    }
}

/// A bucket, and the weight of all before it.
#[derive(Debug, Clone, Copy)]
struct Reached {
    bucket: u16,
    mass: f64,
}

/// The keys a histogram spans; what lies beyond falls into its last bucket.
#[derive(Debug, Clone, Copy)]
struct Range {
    low: f32,
    span: f32,
}

impl Range {
    /// Rises with the key. Made of additions and bit operations alone, so that it vectorises.
    fn bucket(self, key: f32) -> u16 {
        // Adding 2²³ leaves a whole number in the low bits.
        const ROUND: f32 = 8_388_608.0;
        const LAST: f32 = (BUCKETS - 1) as f32;
        let place = (key - self.low) * (LAST / self.span);
        let place = if place < LAST { place } else { LAST };
        (place + ROUND).to_bits() as u16 & (BUCKETS - 1) as u16
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
            // Wide and narrow spreads, many ties, and clusters far from the smallest key.
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
}
