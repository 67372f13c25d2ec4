//! Search for the codebook entries and scales of IQ2 and IQ3 blocks.
//!
//! For a vector `x` with error weights `w`, the entry `g` at scale `s` has the error `Σwx² − 2s·a + s²·b`,
//! where `a = Σwxg` and `b = Σwg²` do not depend on the scale. They are computed once for the whole codebook.
//! After that, one pass over both lists finds the largest gain `a − s/2·b` at four scales, exactly and not
//! only among the neighbors of an approximation. The index of the entry is looked up only for the best of the
//! scales.

use std::cell::RefCell;

use bytemuck::{Pod, Zeroable};

use super::scale::{best_scale, inverse_or_zero, level, max_abs_signed};
use crate::quant::fields::F16Le;

/// Entries per vector.
const LANES: usize = 16;

/// Entries per step of the search for an index.
const CHUNK: usize = 4 * LANES;

type Lanes = [f32; LANES];

/// Sixteen floats aligned to a cache line: loads across two lines cost twice as much.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([f32; LANES]);

/// A codebook of `D`-element entries, transposed in chunks of sixteen entries.
pub(crate) struct Grid<const D: usize> {
    chunks: Vec<[CacheLine; D]>,
}

impl<const D: usize> Grid<D> {
    /// Creates the codebook from entries whose number is a multiple of 64.
    pub(crate) fn new(entries: impl ExactSizeIterator<Item = [i8; D]>) -> Grid<D> {
        let mut chunks = vec![[CacheLine([0.0; LANES]); D]; entries.len() / LANES];
        for (n, entry) in entries.enumerate() {
            for (i, element) in entry.into_iter().enumerate() {
                chunks[n / LANES][i].0[n % LANES] = f32::from(element);
            }
        }
        Grid { chunks }
    }

    fn len(&self) -> usize {
        self.chunks.len() * LANES
    }
}

/// Parameters of the search of a format.
pub(crate) struct Search<'a, const D: usize> {
    pub(crate) grid: &'a Grid<D>,
    /// Number of vectors that share a scale.
    pub(crate) per_scale: usize,
    /// A group's scale is `unit · (2 l + 1)` times the block's, with `l` in `0..=last`.
    pub(crate) last: i32,
    pub(crate) unit: f32,
    /// Codebook magnitudes that are tried for the largest element of a group.
    pub(crate) peaks: [f32; 8],
}

impl<'a, const D: usize> Search<'a, D> {
    /// Creates the search for a codebook of magnitudes with 4-bit scales.
    pub(crate) fn of_magnitudes(
        grid: &'a Grid<D>,
        per_scale: usize,
        unit: f32,
        peaks: [f32; 8],
    ) -> Self {
        Search {
            grid,
            per_scale,
            last: 15,
            unit,
            peaks,
        }
    }
}

/// Result of a search: the scale of the block, `l` of each group, and the entry of each vector.
pub(crate) struct Found {
    pub(crate) d: F16Le,
    pub(crate) scales: [u8; 16],
    pub(crate) entries: [u16; 64],
}

impl Found {
    /// Creates a result with the scale of a block.
    #[inline(always)]
    pub(crate) fn new(d: F16Le) -> Found {
        Found {
            d,
            scales: [0; 16],
            entries: [0; 64],
        }
    }
}

/// Returns the block scale for which `unit · (2 l + 1)` times it, with `l` in `0..=last`, is closest to
/// `scales`.
#[inline(always)]
pub(super) fn block_scale(scales: &[f32; 16], costs: &[f32; 16], last: i32, unit: f32) -> F16Le {
    // Sub-scales are odd: the nearest to x is 2 l + 1.
    let last = (2 * last + 1) as f32;
    let odd = |x: f32| 2.0 * ((x - 1.0) * 0.5).round_ties_even().max(0.0).min(last) + 1.0;
    let odd = |x: f32| odd(x).min(last);
    let (d, _) = best_scale(scales, costs, &[last], odd);
    F16Le::from_f32(d / unit)
}

thread_local! {
    /// Buffers for `a` and `b` of all vectors of a block, reused between blocks.
    static ENTRY_SUMS: RefCell<[Vec<CacheLine>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// `a` and `b` of the vectors of a group, for every entry.
#[derive(Clone, Copy)]
struct EntrySums<'a> {
    a: &'a [f32],
    b: &'a [f32],
    entries: usize,
}

/// Sums of `a` and `b` over the chosen entries of a group.
#[derive(Clone, Copy, Default)]
struct Fit {
    a: f32,
    b: f32,
}

impl Fit {
    /// Returns the scale with the least error for these entries, if there is one.
    #[inline(always)]
    fn scale(&self) -> Option<f32> {
        let scale = self.a / self.b;
        (scale.is_finite() && scale > 0.0).then_some(scale)
    }
}

/// Best of four scales.
#[derive(Clone, Copy)]
struct Best {
    /// Index of the scale.
    scale: usize,
    /// Half of the error reduction.
    gain: f32,
    /// Largest `a − s/2 · b` of each vector.
    vector_gains: [f32; 8],
}

impl Best {
    const NONE: Best = Best {
        scale: 0,
        gain: f32::NEG_INFINITY,
        vector_gains: [0.0; 8],
    };
}

impl<const D: usize> Search<'_, D> {
    /// Returns the best entries and scales for a block. For formats with separate signs, `x` has magnitudes;
    /// elements whose sign the format cannot express are negative.
    #[inline(always)]
    pub(crate) fn run(&self, x: &[f32; 256], w: &[f32; 256]) -> Found {
        let entries = self.grid.len();
        let vectors = 256 / D;
        let group = D * self.per_scale;
        let mut lists = ENTRY_SUMS.take();
        for list in &mut lists {
            list.resize(vectors * entries / LANES, CacheLine([0.0; LANES]));
        }
        let [a, b] = &mut lists;
        let a: &mut [f32] = bytemuck::cast_slice_mut(a);
        let b: &mut [f32] = bytemuck::cast_slice_mut(b);
        let tables = a.chunks_exact_mut(entries).zip(b.chunks_exact_mut(entries));
        let (xs, ws) = (x.as_chunks::<D>().0, w.as_chunks::<D>().0);
        for ((x, w), (a, b)) in xs.iter().zip(ws).zip(tables) {
            self.entry_sums(x, w, a, b);
        }

        let group_sums = |i: usize| {
            let range = i * self.per_scale * entries..(i + 1) * self.per_scale * entries;
            EntrySums {
                a: &a[range.clone()],
                b: &b[range],
                entries,
            }
        };
        let (mut scales, mut costs) = ([0.0f32; 16], [0.0f32; 16]);
        for (i, x) in x.chunks_exact(group).enumerate() {
            (scales[i], costs[i]) = self.best_scale(group_sums(i), max_abs_signed(x).abs());
        }
        let mut found = Found::new(block_scale(&scales, &costs, self.last, self.unit));
        let d = found.d.to_f32();
        let mut fit = Fit::default();
        for i in 0..256 / group {
            let multiple = scales[i] * inverse_or_zero(d * self.unit);
            let nearby = level(multiple - 1.0, 0.5, 0, self.last);
            // The search takes four scales, so one of three is passed twice.
            let levels = [
                nearby,
                (nearby - 1).max(0),
                (nearby + 1).min(self.last),
                nearby,
            ];
            let scales = levels.map(|l| d * self.unit * (2 * l + 1) as f32);
            let best = self.best_of(group_sums(i), scales);
            let chosen = &mut found.entries[i * self.per_scale..(i + 1) * self.per_scale];
            let chosen = self.choose(
                group_sums(i),
                scales[best.scale],
                &best.vector_gains,
                chosen,
            );
            let level = levels[best.scale];
            found.scales[i] = level as u8;
            let multiple = self.unit * (2 * level + 1) as f32;
            fit.a += multiple * chosen.a;
            fit.b += multiple * multiple * chosen.b;
        }
        // Refit the block's scale to the chosen entries and sub-scales.
        if let Some(fitted) = fit.scale().filter(|_| d > 0.0) {
            found.d = F16Le::from_f32(fitted);
        }
        ENTRY_SUMS.set(lists);
        found
    }

    /// Computes `a` and `b` of a vector for every entry.
    #[inline(always)]
    fn entry_sums(&self, x: &[f32; D], w: &[f32; D], a: &mut [f32], b: &mut [f32]) {
        let mut wx = [0.0; D];
        for i in 0..D {
            wx[i] = w[i] * x[i];
        }
        let lists = a.as_chunks_mut::<LANES>().0.iter_mut();
        let lists = lists.zip(b.as_chunks_mut::<LANES>().0);
        for (g, (a, b)) in self.grid.chunks.iter().zip(lists) {
            let (mut wxg, mut wgg) = ([0.0; LANES], [0.0; LANES]);
            for i in 0..D {
                for lane in 0..LANES {
                    let g = g[i].0[lane];
                    wxg[lane] += wx[i] * g;
                    wgg[lane] += w[i] * g * g;
                }
            }
            (*a, *b) = (wxg, wgg);
        }
    }

    /// Returns the best scale of a group and the weight of an error in it.
    #[inline(always)]
    fn best_scale(&self, sums: EntrySums<'_>, largest: f32) -> (f32, f32) {
        if largest == 0.0 || !largest.is_finite() {
            return (0.0, 0.0);
        }
        let (mut scale, mut best) = (0.0, Best::NONE);
        for peaks in self.peaks.as_chunks::<4>().0 {
            let scales = peaks.map(|peak| largest / peak);
            let these = self.best_of(sums, scales);
            if these.gain > best.gain {
                (scale, best) = (scales[these.scale], these);
            }
        }
        // Refitting to the entries is enough: the scale is quantized to a multiple of the block's later, and
        // the adjacent multiples are tried then, each with its own entries.
        let mut chosen = [0; 8];
        let chosen = &mut chosen[..self.per_scale];
        let fit = self.choose(sums, scale, &best.vector_gains, chosen);
        (fit.scale().unwrap_or(scale), fit.b)
    }

    /// Returns the scale at which the nearest entries of a group reduce the error most.
    #[inline(always)]
    fn best_of(&self, sums: EntrySums<'_>, scales: [f32; 4]) -> Best {
        let mut vector_gains = [[0.0; 8]; 4];
        let mut gains = [0.0; 4];
        for v in 0..self.per_scale {
            let (a, b) = sums.lists(v);
            let at_scales = max_gains_x4(a, b, scales.map(|s| 0.5 * s));
            for k in 0..4 {
                vector_gains[k][v] = at_scales[k];
                gains[k] += scales[k] * at_scales[k];
            }
        }
        let mut scale = 0;
        for k in 1..4 {
            if gains[k] > gains[scale] {
                scale = k;
            }
        }
        Best {
            scale,
            gain: gains[scale],
            vector_gains: vector_gains[scale],
        }
    }

    /// Looks up the entries of a group that have the given gains at a scale.
    #[inline(always)]
    fn choose(
        &self,
        sums: EntrySums<'_>,
        scale: f32,
        vector_gains: &[f32; 8],
        chosen: &mut [u16],
    ) -> Fit {
        let mut fit = Fit::default();
        for (v, chosen) in chosen.iter_mut().enumerate() {
            let (a, b) = sums.lists(v);
            let at = find_gain(a, b, 0.5 * scale, vector_gains[v]);
            fit.a += a[at];
            fit.b += b[at];
            *chosen = at as u16;
        }
        fit
    }
}

impl<'a> EntrySums<'a> {
    /// Returns `a` and `b` of vector `v`.
    #[inline(always)]
    fn lists(&self, v: usize) -> (&'a [f32], &'a [f32]) {
        let start = v * self.entries;
        let range = start..start + self.entries;
        (&self.a[range.clone()], &self.b[range])
    }
}

/// Returns the largest `a − h · b`, for four `h` at once.
#[inline(always)]
fn max_gains_x4(a: &[f32], b: &[f32], h: [f32; 4]) -> [f32; 4] {
    let none = [f32::NEG_INFINITY; LANES];
    let [mut first, mut second, mut third, mut fourth] = [none; 4];
    let chunks = a.as_chunks::<LANES>().0.iter();
    for (a, b) in chunks.zip(b.as_chunks::<LANES>().0) {
        first = max_with_gain(first, *a, *b, h[0]);
        second = max_with_gain(second, *a, *b, h[1]);
        third = max_with_gain(third, *a, *b, h[2]);
        fourth = max_with_gain(fourth, *a, *b, h[3]);
    }
    [
        horizontal_max(first),
        horizontal_max(second),
        horizontal_max(third),
        horizontal_max(fourth),
    ]
}

/// Returns the maximum of `max` and `a − h · b` in each lane.
#[inline(always)]
fn max_with_gain(max: Lanes, a: Lanes, b: Lanes, h: f32) -> Lanes {
    // A loop per step: LLVM may vectorize a single loop with lanes in another order.
    let [mut hb, mut gain, mut result] = [[0.0; LANES]; 3];
    for lane in 0..LANES {
        hb[lane] = h * b[lane];
    }
    for lane in 0..LANES {
        gain[lane] = a[lane] - hb[lane];
    }
    for lane in 0..LANES {
        result[lane] = larger(max[lane], gain[lane]);
    }
    result
}

/// Returns the larger number. `f32::max` handles NaN, which would double the time of the search.
#[inline(always)]
fn larger(x: f32, y: f32) -> f32 {
    if y > x { y } else { x }
}

/// Returns the maximum of all lanes.
#[inline(always)]
fn horizontal_max(lanes: [f32; LANES]) -> f32 {
    // Hides the origin of the lanes from LLVM, which would otherwise split the vectors into scalars early.
    let lanes = std::hint::black_box(lanes);
    let [mut eight, mut four] = [[0.0; LANES / 2]; 2];
    for lane in 0..LANES / 2 {
        eight[lane] = larger(lanes[lane], lanes[lane + LANES / 2]);
    }
    for lane in 0..LANES / 4 {
        four[lane] = larger(eight[lane], eight[lane + LANES / 4]);
    }
    larger(larger(four[0], four[2]), larger(four[1], four[3]))
}

/// Returns the first index where `a − h · b` equals `gain`; the last index if there is none.
#[inline(always)]
fn find_gain(a: &[f32], b: &[f32], h: f32, gain: f32) -> usize {
    // Finds the chunk first, then the index within it.
    let chunks = a
        .as_chunks::<CHUNK>()
        .0
        .iter()
        .zip(b.as_chunks::<CHUNK>().0);
    for (n, (a, b)) in chunks.enumerate() {
        let mut found = false;
        for lane in 0..CHUNK {
            found |= a[lane] - h * b[lane] == gain;
        }
        if found {
            return CHUNK * n + find_in_chunk(a, b, h, gain);
        }
    }
    a.len() - 1
}

/// Returns the first index where `a − h · b` equals `gain`; there must be one.
#[inline(always)]
fn find_in_chunk(a: &[f32; CHUNK], b: &[f32; CHUNK], h: f32, gain: f32) -> usize {
    let mut first = u32::MAX;
    for ((a, b), index) in a.iter().zip(b).zip(0..) {
        // u32::MAX has all bits set, so LLVM uses a mask instead of a blend.
        let here = if a - h * b == gain { index } else { u32::MAX };
        first = if here < first { here } else { first };
    }
    first as usize
}

/// Splits a block into signs and magnitudes: bit `i` of byte `n` is the sign of element `8 n + i`.
///
/// Formats that store seven of eight signs need an `even` number of negative elements. If it is odd, the
/// element with the least weighted square changes its sign and gets a negative magnitude.
#[inline(always)]
pub(crate) fn split_signs(x: &[f32], w: &[f32; 256], even: bool) -> ([u8; 32], [f32; 256]) {
    let (mut signs, mut magnitudes) = ([0; 32], [0.0; 256]);
    let groups = x.chunks_exact(8).zip(w.chunks_exact(8));
    for (n, ((x, w), out)) in groups.zip(magnitudes.chunks_exact_mut(8)).enumerate() {
        for i in 0..8 {
            out[i] = x[i].abs();
            signs[n] |= u8::from(x[i] < 0.0) << i;
        }
        if even && !signs[n].count_ones().is_multiple_of(2) {
            let cost = |i: usize| w[i] * x[i] * x[i];
            let least = (1..8).fold(0, |least, i| if cost(i) < cost(least) { i } else { least });
            signs[n] ^= 1 << least;
            out[least] = -out[least];
        }
    }
    (signs, magnitudes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::grids::{IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_XXS_GRID};
    use crate::quant::testing::{ROUNDS, Random, entries_of_8};

    fn entries_of_4(table: &[u32]) -> Vec<[i8; 4]> {
        let entries = table.iter().map(|entry| entry.to_le_bytes());
        entries.map(|entry| entry.map(|m| m as i8)).collect()
    }

    /// A codebook with its search, for tests.
    struct Codebook<const D: usize> {
        table: Vec<[i8; D]>,
        grid: Grid<D>,
        per_scale: usize,
        /// Largest magnitude of the codebook.
        peak: f32,
    }

    impl<const D: usize> Codebook<D> {
        fn new(table: Vec<[i8; D]>, per_scale: usize) -> Self {
            Codebook {
                grid: Grid::new(table.iter().copied()),
                per_scale,
                peak: f32::from(*table.iter().flatten().max().unwrap()),
                table,
            }
        }

        fn search(&self) -> Search<'_, D> {
            let peaks = [0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.8].map(|t| t * self.peak);
            Search::of_magnitudes(&self.grid, self.per_scale, 1.0, peaks)
        }

        /// Returns the error of an entry for a vector and the sum of the magnitudes of its terms.
        fn error(&self, entry: usize, x: &[f32; D], w: &[f32; D], s: f32) -> [f64; 2] {
            let (mut error, mut size) = (0.0, 0.0);
            for i in 0..D {
                let y = f64::from(s) * f64::from(self.table[entry][i]);
                let (x, w) = (f64::from(x[i]), f64::from(w[i]));
                error += w * (x - y) * (x - y);
                size += w * (x * x + y * y);
            }
            [error, size]
        }

        /// Checks that each vector gets the nearest entry, at any scale and with any weights, and that the
        /// best of several scales is chosen.
        fn check_nearest(&self) {
            let (search, len) = (self.search(), self.table.len());
            let mut random = Random::new(len as u64);
            for round in 0..ROUNDS {
                let mut part = |of: &mut dyn FnMut(&mut Random) -> f32| -> Vec<[f32; D]> {
                    let vectors = 0..self.per_scale;
                    let vectors = vectors.map(|_| std::array::from_fn(|_| of(&mut random)));
                    vectors.collect()
                };
                let x = part(&mut |random| 0.5 * self.peak * random.normal().abs());
                let w = part(&mut |random| random.weight(round));
                let mut lists = [vec![0.0; x.len() * len], vec![0.0; x.len() * len]];
                let [a, b] = &mut lists;
                let per_vector = a.chunks_exact_mut(len).zip(b.chunks_exact_mut(len));
                for ((x, w), (a, b)) in x.iter().zip(&w).zip(per_vector) {
                    search.entry_sums(x, w, a, b);
                }
                let sums = EntrySums {
                    a: &lists[0],
                    b: &lists[1],
                    entries: len,
                };

                let scales = [1.0, 0.05, 0.3 + random.normal().abs(), 30.0];
                let mut least = [0.0; 4];
                for (scale, least) in scales.into_iter().zip(&mut least) {
                    let gains = search.best_of(sums, [scale; 4]).vector_gains;
                    let mut chosen = [0; 8];
                    search.choose(sums, scale, &gains, &mut chosen[..x.len()]);
                    for ((x, w), chosen) in x.iter().zip(&w).zip(chosen) {
                        let all = (0..len).map(|n| self.error(n, x, w, scale)[0]);
                        let nearest = all.fold(f64::INFINITY, f64::min);
                        let [found, size] = self.error(chosen.into(), x, w, scale);
                        assert!(found <= nearest + 1e-5 * size, "{found} {nearest} {scale}");
                        *least += nearest;
                    }
                }

                let best = search.best_of(sums, scales);
                let mut chosen = [0; 8];
                let chosen = &mut chosen[..x.len()];
                search.choose(sums, scales[best.scale], &best.vector_gains, chosen);
                let vectors = x.iter().zip(&w).zip(chosen);
                let errors =
                    vectors.map(|((x, w), n)| self.error((*n).into(), x, w, scales[best.scale]));
                let [found, size] = errors.fold([0.0; 2], |sum, e| [sum[0] + e[0], sum[1] + e[1]]);
                let least = least.into_iter().fold(f64::INFINITY, f64::min);
                assert!(found <= least + 1e-5 * size, "{found} {least}");
            }
        }

        /// Checks that the result is valid for extreme elements and weights.
        fn check_extreme_values(&self) {
            let search = self.search();
            let mut random = Random::new(5);
            for round in 0..ROUNDS {
                let x = random.extreme_floats(round).map(f32::abs);
                let w = random.extreme_floats(round).map(f32::abs);
                let found = search.run(&x, &w);
                let len = self.table.len();
                assert!(found.entries.iter().all(|n| usize::from(*n) < len));
                assert!(found.scales.iter().all(|l| i32::from(*l) <= search.last));
            }
        }

        fn check(&self) {
            self.check_nearest();
            self.check_extreme_values();
        }
    }

    #[test]
    fn iq2_search_is_exact() {
        Codebook::new(entries_of_8(&IQ2_XXS_GRID), 4).check();
        Codebook::new(entries_of_8(&IQ2_XS_GRID), 2).check();
        Codebook::new(entries_of_8(&IQ2_S_GRID), 2).check();
    }

    #[test]
    fn iq3_search_is_exact() {
        Codebook::new(entries_of_4(&IQ3_XXS_GRID), 8).check();
        Codebook::new(entries_of_4(&IQ3_S_GRID), 8).check();
    }

    #[test]
    fn split_signs_flips_least_important_sign() {
        let mut x = [1.0; 256];
        (x[3], x[5]) = (-1.0, 0.1);
        let (signs, magnitudes) = split_signs(&x, &[1.0; 256], true);
        assert_eq!(
            (signs[0], magnitudes[3], magnitudes[5]),
            (0b10_1000, 1.0, -0.1)
        );
        let (signs, magnitudes) = split_signs(&x, &[1.0; 256], false);
        assert_eq!((signs[0], magnitudes[5]), (0b1000, 0.1));
    }
}
