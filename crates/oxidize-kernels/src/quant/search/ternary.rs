//! Search for the codebook entries and scales of IQ1_S and IQ1_M blocks.
//!
//! The codebook is large: 2048 entries of 8 ternary elements, each shifted up or down by an eighth. At scale
//! `s`, the entry `g` has the error `Σwx² − 2s · (a − h·b)` for a vector `x` with error weights `w`, where
//! `a = Σwxg`, `b = Σwg²` and `h = s / 2`. The nearest entry is the one with the largest gain `a − h·b`. The
//! search for it is exact, by branch and bound:
//!
//! - Each element is rounded to the nearest level, for all vectors of a block at once. No entry has a larger
//!   gain than these levels, and often they are an entry.
//! - A scale at which this bound is below the gain of another scale is skipped.
//! - Otherwise the search combines halves of entries. The gain of an entry is the sum of those of its halves,
//!   of which there are only 3⁴, so all of these are computed. A left half is tried only if its gain and that
//!   of the best right half exceed the best gain so far.

use std::cell::RefCell;

use super::grid::{Found, block_scale};
use super::scale::{inverse_or_zero, level, max_abs_signed};
use crate::quant::fields::F16Le;

/// Halves of entries, or vectors of a block, per SIMD vector.
const LANES: usize = 16;

type Lanes = [f32; LANES];

/// Elements per entry.
const D: usize = 8;
/// Levels per element.
const K: usize = 3;

/// SIMD vectors that hold one number for each of the 81 halves of entries.
const HALVES: usize = 6;

/// SIMD vectors that hold one number for each of the 32 vectors of a block.
const VECTORS: usize = 2;

/// Marks pairs of halves that are not an entry.
const NONE: u16 = u16::MAX;

/// The codebook, indexed by halves of entries.
///
/// The index of a half has its levels as base-3 digits, the first element in the lowest digit.
pub(crate) struct Grid {
    len: usize,
    /// SIMD vectors that are needed for all halves. Not a constant: LLVM unrolls loops of constant length
    /// first and then does not vectorize them.
    chunks: usize,
    /// Levels in ascending order.
    levels: [f32; K],
    /// Elements of all halves.
    halves: [[Lanes; HALVES]; 4],
    /// For each left half: 0 for the right halves that form an entry with it, −∞ for others.
    penalties: Vec<[Lanes; HALVES]>,
    /// For each left half, the entries that the right halves form with it, or [`NONE`].
    entries: Vec<[u16; HALVES * LANES]>,
    /// Bit set of the left halves that occur in entries.
    left: [u32; HALVES / 2],
    /// Halves of the first entry.
    first: [u8; 2],
}

impl Grid {
    /// Elements per half.
    const HALF: usize = D / 2;
    /// Number of possible halves.
    const COUNT: usize = K.pow(Self::HALF as u32);

    pub(crate) fn new(table: impl Iterator<Item = [i8; D]>) -> Grid {
        let table: Vec<[i8; D]> = table.collect();
        let mut known: Vec<i8> = table.iter().flatten().copied().collect();
        known.sort_unstable();
        known.dedup();
        let mut grid = Grid {
            len: table.len(),
            chunks: Self::COUNT.div_ceil(LANES),
            levels: std::array::from_fn(|k| f32::from(known[k])),
            halves: [[[0.0; LANES]; HALVES]; 4],
            penalties: vec![[[f32::NEG_INFINITY; LANES]; HALVES]; Self::COUNT],
            entries: vec![[NONE; HALVES * LANES]; Self::COUNT],
            left: [0; HALVES / 2],
            first: [0; 2],
        };
        for (i, halves) in grid.halves[..Self::HALF].iter_mut().enumerate() {
            let halves = halves.as_flattened_mut()[..Self::COUNT].iter_mut();
            for (half, element) in halves.enumerate() {
                *element = grid.levels[half / K.pow(i as u32) % K];
            }
        }
        for (n, entry) in table.iter().enumerate() {
            let half = |elements: &[i8]| {
                let digits = elements.iter().rev();
                digits.fold(0, |half, e| {
                    half * K + known.iter().take_while(|k| *k < e).count()
                })
            };
            let (l, r) = (half(&entry[..Self::HALF]), half(&entry[Self::HALF..]));
            grid.penalties[l].as_flattened_mut()[r] = 0.0;
            grid.entries[l][r] = n as u16;
            grid.left[l / 32] |= 1 << (l % 32);
            if n == 0 {
                grid.first = [l as u8, r as u8];
            }
        }
        grid
    }
}

/// Granularity at which the direction of the shift by an eighth is chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shift {
    /// Each vector has its own direction.
    EachVector,
    /// All vectors of a group share a direction.
    EachScale,
}

/// Shift of entries for either direction.
const SHIFTS: [f32; 2] = [0.125, -0.125];

/// Parameters of the search of a format.
pub(crate) struct Search<'a> {
    pub(crate) grid: &'a Grid,
    /// Number of vectors that share a scale.
    pub(crate) per_scale: usize,
    /// A group's scale is `unit · (2 l + 1)` times the block's, with `l` in `0..=last`.
    pub(crate) last: i32,
    pub(crate) unit: f32,
    /// Codebook magnitudes that are tried for the largest element of a group.
    pub(crate) peaks: [f32; PEAKS],
    pub(crate) shift: Shift,
}

/// Number of magnitudes that are tried for the largest element of a group.
const PEAKS: usize = 8;

/// The vectors of a block, transposed: each lane is a vector.
struct Vectors {
    x: [[Lanes; D]; VECTORS],
    w: [[Lanes; D]; VECTORS],
    wx: [[Lanes; D]; VECTORS],
}

/// Each element of a block rounded to the nearest level: the resulting halves, their gain, which bounds that
/// of entries, and their `a` and `b`.
#[derive(Clone, Copy)]
struct NearestLevels {
    gain: [Lanes; VECTORS],
    a: [Lanes; VECTORS],
    b: [Lanes; VECTORS],
    halves: [[[i32; LANES]; VECTORS]; 2],
}

/// `a` and `b` of all halves of entries for a vector: first those of left halves, then those of right halves.
#[derive(Clone, Copy)]
struct EntrySums {
    a: [[Lanes; HALVES]; 2],
    b: [[Lanes; HALVES]; 2],
}

/// Large buffers that are reused between blocks.
#[derive(Default)]
struct Workspace {
    /// Sums of each of the 64 pairs of a vector and a direction, computed on demand.
    sums: Vec<EntrySums>,
    /// Bit set of the computed sums.
    filled: u64,
    /// Halves of the last nearest entry of each pair.
    hints: Vec<[u8; 2]>,
    /// Nearest levels of each tried scale and direction.
    nearest: Vec<NearestLevels>,
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::default();
}

/// A scale to try for a group.
#[derive(Clone, Copy, Default)]
struct Trial {
    scale: f32,
    /// Directions that each vector may choose from.
    directions: [usize; 2],
    /// Index into [`Workspace::nearest`] for each direction.
    nearest: [usize; 2],
}

/// The chosen entry of a vector.
#[derive(Clone, Copy, Default)]
struct Pick {
    gain: f32,
    a: f32,
    b: f32,
    /// Index of the entry, plus the length of the codebook if shifted down.
    entry: u16,
}

/// The chosen entries of a group.
#[derive(Clone, Copy, Default)]
struct Choice {
    /// Index of the trial.
    trial: usize,
    /// Sums over the vectors of the group.
    a: f32,
    b: f32,
    entries: [u16; 8],
}

impl Search<'_> {
    const VECTORS: usize = 256 / D;

    /// Returns the best entries and scales for a block. The indices of entries that are shifted down follow
    /// those of all entries that are shifted up.
    #[inline(always)]
    pub(crate) fn run(&self, x: &[f32; 256], w: &[f32; 256]) -> Found {
        let vectors = Vectors::new(x, w);
        let groups = Self::VECTORS / self.per_scale;
        let mut workspace = WORKSPACE.take();
        workspace.prepare(self.grid.first);

        let mut largest = [0.0; 16];
        for (largest, x) in largest.iter_mut().zip(x.chunks_exact(256 / groups)) {
            let magnitude = max_abs_signed(x).abs();
            *largest = if magnitude.is_finite() {
                magnitude
            } else {
                0.0
            };
        }
        let (mut scales, mut costs) = self.best_scales(&vectors, &mut workspace, &largest);
        for i in 0..groups {
            if largest[i] == 0.0 {
                (scales[i], costs[i]) = (0.0, 0.0);
            }
        }
        let mut found = Found::new(block_scale(&scales, &costs, self.last, self.unit));
        let d = found.d.to_f32();
        let mut nearby = [0; 16];
        for (nearby, scale) in nearby.iter_mut().zip(scales) {
            let multiple = scale * inverse_or_zero(d * self.unit);
            *nearby = level(multiple - 1.0, 0.5, 0, self.last);
        }
        for step in 0..3 {
            let scales = nearby.map(|l| d * self.unit * (2 * (l + step as i32 - 1) + 1) as f32);
            let scales = self.broadcast(&scales);
            for direction in 0..2 {
                let shifts = [[SHIFTS[direction]; LANES]; VECTORS];
                let nearest = &mut workspace.nearest[step * 2 + direction];
                self.nearest_levels(&vectors, &scales, &shifts, nearest);
            }
        }
        let (mut a, mut b) = (0.0, 0.0);
        for (i, nearby) in nearby[..groups].iter().enumerate() {
            let (mut trials, mut levels, mut n) = ([Trial::default(); 6], [0; 6], 0);
            for step in 0..3 {
                let l = nearby + step as i32 - 1;
                if l < 0 || l > self.last {
                    continue;
                }
                let scale = d * self.unit * (2 * l + 1) as f32;
                let tried = self.trials(scale, [step * 2, step * 2 + 1]);
                for trial in tried.into_iter().take(self.alternatives()) {
                    (trials[n], levels[n]) = (trial, l);
                    n += 1;
                }
            }
            let choice = self.best_of(&vectors, &mut workspace, i, &trials[..n]);
            let l = levels[choice.trial];
            found.scales[i] = l as u8;
            found.entries[i * self.per_scale..(i + 1) * self.per_scale]
                .copy_from_slice(&choice.entries[..self.per_scale]);
            let multiple = self.unit * (2 * l + 1) as f32;
            a += multiple * choice.a;
            b += multiple * multiple * choice.b;
        }
        // Refit the block's scale to the chosen entries and sub-scales.
        let fitted = a / b;
        if d > 0.0 && fitted.is_finite() && fitted > 0.0 {
            found.d = F16Le::from_f32(fitted);
        }
        WORKSPACE.set(workspace);
        found
    }

    /// Number of trials per scale: one per direction if all vectors of a group share it.
    #[inline(always)]
    fn alternatives(&self) -> usize {
        match self.shift {
            Shift::EachScale => 2,
            _ => 1,
        }
    }

    /// Returns the trials at a scale, of which the first [`Search::alternatives`] are valid. `nearest` has
    /// the index into [`Workspace::nearest`] for each direction.
    #[inline(always)]
    fn trials(&self, scale: f32, nearest: [usize; 2]) -> [Trial; 2] {
        let [up, down] = nearest;
        let trial = |directions, nearest| Trial {
            scale,
            directions,
            nearest,
        };
        match self.shift {
            Shift::EachVector => [trial([0, 1], nearest); 2],
            Shift::EachScale => [trial([0, 0], [up, up]), trial([1, 1], [down, down])],
        }
    }

    /// Repeats the number of each group for all of its vectors.
    #[inline(always)]
    fn broadcast(&self, groups: &[f32; 16]) -> [Lanes; VECTORS] {
        let mut out = [[0.0; LANES]; VECTORS];
        let vectors = out.as_flattened_mut()[..Self::VECTORS].chunks_exact_mut(self.per_scale);
        for (vectors, x) in vectors.zip(groups) {
            vectors.fill(*x);
        }
        out
    }

    /// Returns the best scale of each group and the weight of an error in it, given the largest magnitudes.
    #[inline(always)]
    fn best_scales(
        &self,
        vectors: &Vectors,
        workspace: &mut Workspace,
        largest: &[f32; 16],
    ) -> ([f32; 16], [f32; 16]) {
        let groups = Self::VECTORS / self.per_scale;
        for (n, peak) in self.peaks.iter().enumerate() {
            let scales = self.broadcast(&largest.map(|largest| largest / peak));
            for direction in 0..2 {
                let shifts = [[SHIFTS[direction]; LANES]; VECTORS];
                let nearest = &mut workspace.nearest[n * 2 + direction];
                self.nearest_levels(vectors, &scales, &shifts, nearest);
            }
        }
        let (mut scales, mut costs) = ([0.0; 16], [0.0; 16]);
        let (mut chosen, mut shifts) = ([Trial::default(); 16], [0.0; 16]);
        for i in 0..groups {
            let (mut trials, mut n) = ([Trial::default(); 2 * PEAKS], 0);
            for (at, peak) in self.peaks.iter().enumerate() {
                let tried = self.trials(largest[i] / peak, [at * 2, at * 2 + 1]);
                for trial in tried.into_iter().take(self.alternatives()) {
                    trials[n] = trial;
                    n += 1;
                }
            }
            let choice = self.best_of(vectors, workspace, i, &trials[..n]);
            chosen[i] = trials[choice.trial];
            shifts[i] = SHIFTS[chosen[i].directions[0]];
            (scales[i], costs[i]) = (fitted(&choice, chosen[i].scale), choice.b);
        }
        // At the refitted scales, other entries may be better.
        let at_vectors = self.broadcast(&scales);
        if self.shift == Shift::EachVector {
            for direction in 0..2 {
                let shifts = [[SHIFTS[direction]; LANES]; VECTORS];
                let nearest = &mut workspace.nearest[direction];
                self.nearest_levels(vectors, &at_vectors, &shifts, nearest);
            }
        } else {
            let shifts = self.broadcast(&shifts);
            self.nearest_levels(vectors, &at_vectors, &shifts, &mut workspace.nearest[0]);
        }
        for i in 0..groups {
            let trial = Trial {
                scale: scales[i],
                directions: chosen[i].directions,
                nearest: if self.shift == Shift::EachVector {
                    [0, 1]
                } else {
                    [0, 0]
                },
            };
            let choice = self.best_of(vectors, workspace, i, &[trial]);
            (scales[i], costs[i]) = (fitted(&choice, scales[i]), choice.b);
        }
        (scales, costs)
    }

    /// Returns the trial with the largest gain for group `i`, and its entries.
    #[inline(always)]
    fn best_of(
        &self,
        vectors: &Vectors,
        workspace: &mut Workspace,
        i: usize,
        trials: &[Trial],
    ) -> Choice {
        let members = i * self.per_scale..(i + 1) * self.per_scale;
        // The gains of the nearest levels bound those of entries.
        let mut limits = [f32::NEG_INFINITY; 2 * PEAKS];
        let mut likely = 0;
        for (n, trial) in trials.iter().enumerate() {
            let [one, two] = trial
                .nearest
                .map(|at| workspace.nearest[at].gain.as_flattened());
            let mut sum = 0.0;
            for v in members.clone() {
                sum += larger(one[v], two[v]);
            }
            limits[n] = 2.0 * trial.scale * sum;
            if limits[n] > limits[likely] {
                likely = n;
            }
        }
        let (mut best, mut best_gain) = (Choice::default(), f32::NEG_INFINITY);
        for n in 0..=trials.len() {
            // The most promising trial first: then the limits exclude most others.
            let n = match n {
                0 => likely,
                n if n - 1 == likely => continue,
                n => n - 1,
            };
            let trial = &trials[n];
            let mut limit = limits[n];
            let mut choice = Choice {
                trial: n,
                ..Choice::default()
            };
            let mut sum = 0.0;
            for (chosen, v) in choice.entries.iter_mut().zip(members.clone()) {
                if limit <= best_gain {
                    break;
                }
                let (pick, bound) = self.pick(vectors, workspace, trial, v);
                limit -= 2.0 * trial.scale * (bound - pick.gain);
                sum += pick.gain;
                choice.a += pick.a;
                choice.b += pick.b;
                *chosen = pick.entry;
            }
            let gain = 2.0 * trial.scale * sum;
            if limit > best_gain && gain > best_gain {
                (best_gain, best) = (gain, choice);
            }
        }
        best
    }

    /// Computes the nearest levels of all vectors at their scales and shifts.
    #[inline(always)]
    fn nearest_levels(
        &self,
        vectors: &Vectors,
        scales: &[Lanes; VECTORS],
        shifts: &[Lanes; VECTORS],
        out: &mut NearestLevels,
    ) {
        let levels = &self.grid.levels;
        for c in 0..Self::VECTORS / LANES {
            let (x, w, wx) = (&vectors.x[c], &vectors.w[c], &vectors.wx[c]);
            let (scale, shift) = (&scales[c], &shifts[c]);
            // Thresholds above which an element is nearer to level k than to the one below.
            let mut thresholds = [[0.0; LANES]; K];
            for k in 1..K {
                let midpoint = 0.5 * (levels[k - 1] + levels[k]);
                for lane in 0..LANES {
                    thresholds[k][lane] = (midpoint + shift[lane]) * scale[lane];
                }
            }
            let (mut a, mut b) = ([0.0; LANES], [0.0; LANES]);
            let mut halves = [[0i32; LANES]; 2];
            for i in 0..D {
                let half = &mut halves[i / (D / 2)];
                let digit = K.pow((i % (D / 2)) as u32) as i32;
                let mut g = [0.0; LANES];
                for lane in 0..LANES {
                    g[lane] = levels[0] + shift[lane];
                }
                for k in 1..K {
                    let step = levels[k] - levels[k - 1];
                    for lane in 0..LANES {
                        let above = x[i][lane] > thresholds[k][lane];
                        g[lane] += if above { step } else { 0.0 };
                        half[lane] += if above { digit } else { 0 };
                    }
                }
                for lane in 0..LANES {
                    a[lane] += wx[i][lane] * g[lane];
                    b[lane] += w[i][lane] * g[lane] * g[lane];
                }
            }
            for lane in 0..LANES {
                out.gain[c][lane] = a[lane] - 0.5 * scale[lane] * b[lane];
            }
            (out.a[c], out.b[c]) = (a, b);
            (out.halves[0][c], out.halves[1][c]) = (halves[0], halves[1]);
        }
    }

    /// Returns the best entry of vector `v` and an upper bound of the gain of all entries.
    #[inline(always)]
    fn pick(
        &self,
        vectors: &Vectors,
        workspace: &mut Workspace,
        trial: &Trial,
        v: usize,
    ) -> (Pick, f32) {
        let gains = trial
            .nearest
            .map(|at| workspace.nearest[at].gain.as_flattened()[v]);
        let [one, two] = trial.directions;
        // The direction with the larger bound first.
        let first = usize::from(gains[1] > gains[0]);
        let mut best = Pick {
            gain: f32::NEG_INFINITY,
            ..Pick::default()
        };
        for which in [first, 1 - first] {
            let is_first = which == first;
            if !is_first && (one == two || gains[which] <= best.gain) {
                break;
            }
            let pick = self.nearest(vectors, workspace, trial, which, v, best.gain);
            if is_first || pick.gain > best.gain {
                best = pick;
            }
        }
        (best, gains[first])
    }

    /// Returns the best entry of vector `v` in a direction, or any entry if none has a gain above
    /// `threshold`.
    #[inline(always)]
    fn nearest(
        &self,
        vectors: &Vectors,
        workspace: &mut Workspace,
        trial: &Trial,
        which: usize,
        v: usize,
        threshold: f32,
    ) -> Pick {
        let direction = trial.directions[which];
        let nearest = &workspace.nearest[trial.nearest[which]];
        let rounded = [0, 1].map(|side: usize| nearest.halves[side].as_flattened()[v] as usize);
        let base = (direction * self.grid.len) as u16;
        let entry = self.grid.entries[rounded[0]][rounded[1]];
        if entry != NONE {
            return Pick {
                gain: nearest.gain.as_flattened()[v],
                a: nearest.a.as_flattened()[v],
                b: nearest.b.as_flattened()[v],
                entry: base + entry,
            };
        }
        let at = direction * Self::VECTORS + v;
        if workspace.filled >> at & 1 == 0 {
            workspace.filled |= 1 << at;
            self.fill(vectors, v, SHIFTS[direction], &mut workspace.sums[at]);
        }
        let (gain, halves) = self.grid.search(
            &workspace.sums[at],
            0.5 * trial.scale,
            rounded,
            workspace.hints[at],
            threshold,
        );
        workspace.hints[at] = halves;
        let sums = &workspace.sums[at];
        let [l, r] = halves.map(usize::from);
        let [[al, ar], [bl, br]] = [&sums.a, &sums.b].map(|p| {
            let [left, right] = p;
            [left.as_flattened()[l], right.as_flattened()[r]]
        });
        Pick {
            gain,
            a: al + ar,
            b: bl + br,
            entry: base + self.grid.entries[l][r],
        }
    }

    /// Computes `a` and `b` of vector `v` for all halves.
    #[inline(always)]
    fn fill(&self, vectors: &Vectors, v: usize, shift: f32, out: &mut EntrySums) {
        let (chunk, lane) = (v / LANES, v % LANES);
        for side in 0..2 {
            let (mut w, mut wx) = ([0.0; 4], [0.0; 4]);
            for i in 0..D / 2 {
                w[i] = vectors.w[chunk][side * (D / 2) + i][lane];
                wx[i] = vectors.wx[chunk][side * (D / 2) + i][lane];
            }
            for c in 0..self.grid.chunks {
                let (mut a, mut b) = ([0.0; LANES], [0.0; LANES]);
                for i in 0..D / 2 {
                    for lane in 0..LANES {
                        let g = self.grid.halves[i][c][lane] + shift;
                        a[lane] += wx[i] * g;
                        b[lane] += w[i] * g * g;
                    }
                }
                (out.a[side][c], out.b[side][c]) = (a, b);
            }
        }
    }
}

impl Grid {
    /// Returns the gain of the nearest entry and its halves. `rounded` are the best halves, which do not form
    /// an entry; `hint` is an entry that may be near, which is returned if no gain exceeds `threshold`.
    #[inline(always)]
    fn search(
        &self,
        sums: &EntrySums,
        h: f32,
        rounded: [usize; 2],
        hint: [u8; 2],
        threshold: f32,
    ) -> (f32, [u8; 2]) {
        let (mut left_gains, mut right_gains) = ([[0.0; LANES]; HALVES], [[0.0; LANES]; HALVES]);
        let [left_a, right_a] = &sums.a;
        let [left_b, right_b] = &sums.b;
        gains(
            &left_a[..self.chunks],
            &left_b[..self.chunks],
            h,
            &mut left_gains,
        );
        gains(
            &right_a[..self.chunks],
            &right_b[..self.chunks],
            h,
            &mut right_gains,
        );
        let right_gains = &right_gains[..self.chunks];
        let left = left_gains.as_flattened();
        let best_right = right_gains.as_flattened()[rounded[1]];
        let [l, r] = hint.map(usize::from);
        let hint_gain = left[l] + right_gains.as_flattened()[r];
        let mut best = larger(hint_gain, threshold);

        let l = rounded[0];
        let (mut at, mut right) = (l, f32::NEG_INFINITY);
        let first = max_sum(right_gains, &self.penalties[l][..self.chunks]);
        if left[l] + first > best {
            (best, right) = (left[l] + first, first);
        }
        // Bit set of the other left halves that could exceed the best gain together with the best right half.
        let mut candidates = [0; HALVES / 2];
        let pairs = left_gains[..self.chunks].as_chunks::<2>().0;
        for (candidates, [low, high]) in candidates.iter_mut().zip(pairs) {
            for lane in 0..LANES {
                let low = if low[lane] + best_right > best { 1 } else { 0 };
                let high = if high[lane] + best_right > best {
                    1 << LANES
                } else {
                    0
                };
                *candidates |= (low | high) << lane;
            }
        }
        candidates[l / 32] &= !(1 << (l % 32));
        for (n, (candidates, in_entries)) in candidates.iter().zip(&self.left).enumerate() {
            let mut remaining: u32 = candidates & in_entries;
            while remaining != 0 {
                let l = n * 2 * LANES + remaining.trailing_zeros() as usize;
                remaining &= remaining - 1;
                if left[l] + best_right <= best {
                    continue;
                }
                let gain = max_sum(right_gains, &self.penalties[l][..self.chunks]);
                if left[l] + gain > best {
                    best = left[l] + gain;
                    (at, right) = (l, gain);
                }
            }
        }
        if right == f32::NEG_INFINITY {
            return (hint_gain, hint);
        }
        let r = find_sum(right_gains, &self.penalties[at][..self.chunks], right);
        (best, [at as u8, r as u8])
    }
}

impl Vectors {
    #[inline(always)]
    fn new(x: &[f32; 256], w: &[f32; 256]) -> Vectors {
        let zeros = [[[0.0; LANES]; D]; VECTORS];
        let mut vectors = Vectors {
            x: zeros,
            w: zeros,
            wx: zeros,
        };
        for v in 0..256 / D {
            for i in 0..D {
                let (x, w) = (x[v * D + i], w[v * D + i]);
                vectors.x[v / LANES][i][v % LANES] = x;
                vectors.w[v / LANES][i][v % LANES] = w;
                vectors.wx[v / LANES][i][v % LANES] = w * x;
            }
        }
        vectors
    }
}

impl Workspace {
    /// Resets the workspace for a new block.
    #[inline(always)]
    fn prepare(&mut self, first: [u8; 2]) {
        if self.sums.is_empty() {
            let zeros = [[0.0; LANES]; VECTORS];
            self.nearest = vec![
                NearestLevels {
                    gain: zeros,
                    a: zeros,
                    b: zeros,
                    halves: [[[0; LANES]; VECTORS]; 2],
                };
                2 * PEAKS
            ];
            let zeros = [[[0.0; LANES]; HALVES]; 2];
            self.sums = vec![EntrySums { a: zeros, b: zeros }; 64];
            self.hints = vec![first; 64];
        }
        self.hints.fill(first);
        self.filled = 0;
    }
}

/// Returns the scale with the least error for the chosen entries, or `scale` if there is none.
#[inline(always)]
fn fitted(choice: &Choice, scale: f32) -> f32 {
    let fitted = choice.a / choice.b;
    if fitted.is_finite() && fitted > 0.0 {
        fitted
    } else {
        scale
    }
}

/// Returns the larger number. `f32::max` handles NaN, which would double the time of the search.
#[inline(always)]
fn larger(x: f32, y: f32) -> f32 {
    if y > x { y } else { x }
}

/// Computes `a − h · b` of all halves.
#[inline(always)]
fn gains(a: &[Lanes], b: &[Lanes], h: f32, out: &mut [Lanes]) {
    for ((a, b), out) in a.iter().zip(b).zip(out) {
        for lane in 0..LANES {
            out[lane] = a[lane] - h * b[lane];
        }
    }
}

/// Returns the largest sum of a gain and its penalty.
#[inline(always)]
fn max_sum(gains: &[Lanes], penalties: &[Lanes]) -> f32 {
    let mut max = [f32::NEG_INFINITY; LANES];
    for (gains, penalties) in gains.iter().zip(penalties) {
        for lane in 0..LANES {
            max[lane] = larger(max[lane], gains[lane] + penalties[lane]);
        }
    }
    let (mut eight, mut four) = ([0.0; 8], [0.0; 4]);
    for i in 0..8 {
        eight[i] = larger(max[i], max[i + 8]);
    }
    for i in 0..4 {
        four[i] = larger(eight[i], eight[i + 4]);
    }
    larger(larger(four[0], four[2]), larger(four[1], four[3]))
}

/// Returns the first index where the sum of a gain and its penalty equals `sum`.
#[inline(always)]
fn find_sum(gains: &[Lanes], penalties: &[Lanes], sum: f32) -> usize {
    let mut found = [i32::MAX; LANES];
    for (c, (gains, penalties)) in gains.iter().zip(penalties).enumerate().rev() {
        for lane in 0..LANES {
            let equal = gains[lane] + penalties[lane] == sum;
            let index = (c * LANES + lane) as i32;
            found[lane] = if equal { index } else { found[lane] };
        }
    }
    let mut first = i32::MAX;
    for index in found {
        first = if index < first { index } else { first };
    }
    first as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::grids::IQ1_GRID;
    use crate::quant::testing::{ROUNDS, Random, entries_of_8};

    /// A codebook with its search, for tests.
    struct Codebook {
        table: Vec<[i8; D]>,
        grid: Grid,
    }

    impl Codebook {
        fn new(table: Vec<[i8; D]>) -> Self {
            let grid = Grid::new(table.iter().copied());
            Codebook { table, grid }
        }

        fn search(&self, per_scale: usize, shift: Shift) -> Search<'_> {
            let peak = f32::from(*self.table.iter().flatten().max().unwrap());
            Search {
                grid: &self.grid,
                per_scale,
                last: 7,
                unit: 1.0,
                peaks: [0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.8].map(|t| t * peak),
                shift,
            }
        }

        fn shift(round: usize) -> Shift {
            match round % 2 {
                0 => Shift::EachVector,
                _ => Shift::EachScale,
            }
        }

        /// Returns a block of elements as large as those of the codebook.
        fn block(&self, random: &mut Random) -> [f32; 256] {
            std::array::from_fn(|_| random.normal() * self.grid.levels[K - 1] * 0.6)
        }

        /// Returns the error of an entry for a vector and the sum of the magnitudes of its terms.
        fn error(&self, entry: usize, x: &[f32], w: &[f32], s: f32) -> [f64; 2] {
            let (down, entry) = (entry / self.table.len(), entry % self.table.len());
            let (mut error, mut size) = (0.0, 0.0);
            for i in 0..D {
                let g = f64::from(self.table[entry][i]) + f64::from(SHIFTS[down]);
                let (x, w, y) = (f64::from(x[i]), f64::from(w[i]), f64::from(s) * g);
                error += w * (x - y) * (x - y);
                size += w * (x * x + y * y);
            }
            [error, size]
        }

        /// Checks that each vector gets the nearest entry, at any scale and with any weights.
        fn check_nearest(&self) {
            let mut random = Random::new(self.table.len() as u64);
            for round in 0..ROUNDS.min(12) {
                let search = self.search(2, Self::shift(round));
                let x = self.block(&mut random);
                let w: [f32; 256] = std::array::from_fn(|_| random.weight(round));
                let vectors = Vectors::new(&x, &w);
                let mut workspace = Workspace::default();
                workspace.prepare(self.grid.first);
                for scale in [1.0, 0.8, 0.05, 30.0, 1.3] {
                    let scales = [[scale; LANES]; VECTORS];
                    for direction in 0..2 {
                        let shifts = [[SHIFTS[direction]; LANES]; VECTORS];
                        let nearest = &mut workspace.nearest[direction];
                        search.nearest_levels(&vectors, &scales, &shifts, nearest);
                    }
                    let trials = search.trials(scale, [0, 1]);
                    for trial in trials.into_iter().take(search.alternatives()) {
                        let [one, two] = trial.directions;
                        let len = self.table.len();
                        let entries = one * len..(two + 1) * len;
                        for v in (0..256 / D).step_by(if cfg!(miri) { 16 } else { 1 }) {
                            let (x, w) = (&x[v * D..][..D], &w[v * D..][..D]);
                            let (pick, limit) = search.pick(&vectors, &mut workspace, &trial, v);
                            assert!(entries.contains(&usize::from(pick.entry)));
                            let error = |n| self.error(n, x, w, scale);
                            let [found, size] = error(pick.entry.into());
                            let all = entries.clone().map(|n| error(n)[0]);
                            let least = all.fold(f64::INFINITY, f64::min);
                            assert!(found <= least + 1e-5 * size, "{found} {least} {scale}");
                            assert!(pick.gain <= limit + 1e-5 * limit.abs());
                        }
                    }
                }
            }
        }

        /// Checks that no trial excluded by its bound is better.
        fn check_trials(&self) {
            let mut random = Random::new(3);
            for round in 0..ROUNDS.min(9) {
                let search = self.search(4, Self::shift(round));
                let (x, w) = (self.block(&mut random), self.block(&mut random));
                let w = w.map(f32::abs);
                let vectors = Vectors::new(&x, &w);
                let mut workspace = Workspace::default();
                workspace.prepare(self.grid.first);
                let mut trials = Vec::new();
                for n in 0..PEAKS {
                    let scale = 0.5 + 0.15 * n as f32;
                    for direction in 0..2 {
                        let shifts = [[SHIFTS[direction]; LANES]; VECTORS];
                        let nearest = &mut workspace.nearest[2 * n + direction];
                        search.nearest_levels(
                            &vectors,
                            &[[scale; LANES]; VECTORS],
                            &shifts,
                            nearest,
                        );
                    }
                    let tried = search.trials(scale, [2 * n, 2 * n + 1]);
                    trials.extend(tried.into_iter().take(search.alternatives()));
                }
                for i in 0..256 / D / 4 {
                    let gain = |trial: &Trial, workspace: &mut Workspace| {
                        let picks = (4 * i..4 * i + 4)
                            .map(|v| search.pick(&vectors, workspace, trial, v).0);
                        let picks: Vec<Pick> = picks.collect();
                        2.0 * trial.scale * picks.iter().map(|pick| pick.gain).sum::<f32>()
                    };
                    let choice = search.best_of(&vectors, &mut workspace, i, &trials);
                    let found = gain(&trials[choice.trial], &mut workspace);
                    for trial in &trials {
                        let other = gain(trial, &mut workspace);
                        assert!(other <= found + 1e-5 * found.abs(), "{other} {found}");
                    }
                    let s = trials[choice.trial].scale;
                    let again = s * (2.0 * choice.a - s * choice.b);
                    assert!(
                        (again - found).abs() <= 1e-4 * found.abs(),
                        "{again} {found}"
                    );
                }
            }
        }

        /// Checks that the result is valid for extreme elements and weights.
        fn check_extreme_values(&self) {
            let mut random = Random::new(5);
            for round in 0..ROUNDS.min(60) {
                let shift = Self::shift(round);
                let search = self.search(2 + round % 2 * 2, shift);
                let x = random.extreme_floats(round);
                let w = random.extreme_floats(round).map(f32::abs);
                let found = search.run(&x, &w);
                let len = self.table.len() * 2;
                assert!(found.entries.iter().all(|n| usize::from(*n) < len));
                assert!(found.scales.iter().all(|l| i32::from(*l) <= search.last));
            }
        }

        fn check(&self) {
            self.check_nearest();
            self.check_trials();
            self.check_extreme_values();
        }
    }

    #[test]
    fn iq1_search_is_exact() {
        Codebook::new(entries_of_8(&IQ1_GRID)).check();
    }
}
