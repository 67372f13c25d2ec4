//! Selection by mass: which keys come first until their weights reach a target, without sorting.
//! Top-p and typical sampling over a whole vocabulary rest on it, and top-k for a large k.

/// Digits of the key, from the most significant: shift and width.
const DIGITS: [(u32, u32); 3] = [(21, 11), (10, 11), (0, 10)];

/// Keys with weights, and the scratch memory to find the cut.
#[derive(Debug, Clone, Default)]
pub(crate) struct MassSelect {
    keys: Vec<u32>,
    weights: Vec<f32>,
    histogram: Vec<f64>,
}

impl MassSelect {
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.weights.clear();
    }

    pub(crate) fn extend(&mut self, items: impl Iterator<Item = (u32, f32)>) {
        for (key, weight) in items {
            self.keys.push(key);
            self.weights.push(weight);
        }
    }

    /// The cut after which the smallest keys weigh at least `target` together, and not more than needed.
    ///
    /// A radix selection: a histogram of weights over the leading digit of the keys tells in which
    /// digit the target falls; the next pass looks inside that digit alone.
    pub(crate) fn cut(&mut self, target: f64) -> Cut<'_> {
        let mut prefix = 0u32;
        let mut mask = 0u32;
        let mut before = 0.0f64;
        for (shift, width) in DIGITS {
            let digits = 1usize << width;
            self.histogram.clear();
            self.histogram.resize(digits, 0.0);
            for (&key, &weight) in self.keys.iter().zip(&self.weights) {
                if key & mask == prefix {
                    self.histogram[(key >> shift) as usize & (digits - 1)] += f64::from(weight);
                }
            }
            // Rounding may leave the target just out of reach: then the last digit that holds weight is the one.
            let mut chosen = 0;
            let mut chosen_before = before;
            let mut sum = before;
            for (digit, &mass) in self.histogram.iter().enumerate() {
                if mass > 0.0 {
                    chosen = digit;
                    chosen_before = sum;
                    sum += mass;
                    if sum >= target {
                        break;
                    }
                }
            }
            before = chosen_before;
            prefix |= (chosen as u32) << shift;
            mask |= ((digits - 1) as u32) << shift;
        }
        // Candidates with equal keys need not have equal weights of 0 before them: take ties one by one.
        let mut ties = 0;
        for (&key, &weight) in self.keys.iter().zip(&self.weights) {
            if key == prefix && before < target {
                before += f64::from(weight);
                ties += 1;
            }
        }
        Cut {
            keys: &self.keys,
            threshold: prefix,
            ties: ties.max(1),
        }
    }
}

/// Where a [`MassSelect`] ends.
pub(crate) struct Cut<'a> {
    keys: &'a [u32],
    threshold: u32,
    ties: usize,
}

impl Cut<'_> {
    /// True when the item at `position` is kept. To be asked in order; `ties_seen` starts at 0.
    pub(crate) fn keeps(&self, position: usize, ties_seen: &mut usize) -> bool {
        let key = self.keys[position];
        let tie = key == self.threshold;
        *ties_seen += usize::from(tie);
        key < self.threshold || (tie && *ties_seen <= self.ties)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::rng::Rng;

    #[test]
    fn cut_is_the_shortest_sorted_prefix_that_reaches_the_target() {
        let mut rng = Rng::new(3);
        for round in 0..200 {
            let n = 1 + (rng.next_u64() % 300) as usize;
            let spread = [u64::from(u32::MAX), 1000, 3][round % 3];
            // Weights are multiples of 1/64, so that sums are exact in any order.
            let items: Vec<(u32, f32)> = (0..n)
                .map(|_| {
                    (
                        (rng.next_u64() % spread) as u32,
                        (1 + rng.next_u64() % 64) as f32 / 64.0,
                    )
                })
                .collect();
            let total: f64 = items.iter().map(|item| f64::from(item.1)).sum();
            let target = rng.next_f64() * total;

            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by_key(|&i| (items[i].0, i));
            let mut mass = 0.0;
            let mut want = Vec::new();
            for i in order {
                want.push(i);
                mass += f64::from(items[i].1);
                if mass >= target {
                    break;
                }
            }
            want.sort_unstable();

            let mut select = MassSelect::default();
            select.extend(items.iter().copied());
            let cut = select.cut(target);
            let mut ties = 0;
            let got: Vec<usize> = (0..n).filter(|&i| cut.keeps(i, &mut ties)).collect();
            assert_eq!(got, want, "round {round}");
        }
    }
}
