//! Finds the entries of the table of an IQ2 or IQ3 format, and the scales, that come closest to a block.
//!
//! For a vector `x` with weights `w`, an entry `g` at scale `s` leaves the error
//! `Σwx² − 2s·a + s²·b` with `a = Σwxg` and `b = Σwg²`, which do not depend on the scale. So they are
//! computed once for the whole table; after that, trying four scales is one pass over two lists, and the
//! nearest entry is found exactly, not looked for among neighbours. Which one it is, is asked only at the
//! best of the scales.

use std::cell::RefCell;

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;
use super::scale_search::{best_scale, inverse_or_zero, largest, level};

/// Entries that are compared side by side.
const LANES: usize = 16;

/// Entries that are looked through at once for a certain one.
const MANY: usize = 4 * LANES;

type Lanes = [f32; LANES];

/// Sixteen floats in a cache line of their own: vectors that lie in two cost twice as much.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([f32; LANES]);

/// A table of `D`-element entries, element by element for sixteen entries at a time.
pub(super) struct Grid<const D: usize> {
    chunks: Vec<[Line; D]>,
}

impl<const D: usize> Grid<D> {
    /// A table of entries whose number is a multiple of sixty-four.
    pub(super) fn new(entries: impl ExactSizeIterator<Item = [i8; D]>) -> Grid<D> {
        let mut chunks = vec![[Line([0.0; LANES]); D]; entries.len() / LANES];
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

/// How a format uses its table.
pub(super) struct Search<'a, const D: usize> {
    pub(super) grid: &'a Grid<D>,
    /// Vectors that share a scale.
    pub(super) per_scale: usize,
    /// The scale is `unit · (2 l + 1)` times the block's, with `l` in `0..=last`.
    pub(super) last: i32,
    pub(super) unit: f32,
    /// Where the largest element of a scale's vectors may lie, in units of the table.
    pub(super) tops: [f32; 8],
}

impl<'a, const D: usize> Search<'a, D> {
    /// For tables of magnitudes under scales of 4 bits.
    pub(super) fn of_magnitudes(
        grid: &'a Grid<D>,
        per_scale: usize,
        unit: f32,
        tops: [f32; 8],
    ) -> Self {
        Search {
            grid,
            per_scale,
            last: 15,
            unit,
            tops,
        }
    }
}

/// What was found: the block's scale, the scales' `l`, and each vector's entry.
pub(super) struct Found {
    pub(super) d: F16Le,
    pub(super) scales: [u8; 16],
    pub(super) entries: [u16; 64],
}

impl Found {
    /// The scale of a block, of which nothing else is known yet.
    #[inline(always)]
    pub(super) fn new(d: F16Le) -> Found {
        Found {
            d,
            scales: [0; 16],
            entries: [0; 64],
        }
    }
}

/// The scale of a block whose own `scales` are to be `unit · (2 l + 1)` times as much, with `l` in `0..=last`.
#[inline(always)]
pub(super) fn block_scale(scales: &[f32; 16], costs: &[f32; 16], last: i32, unit: f32) -> F16Le {
    // Odd multiples: the nearest to x is 2 l + 1.
    let last = (2 * last + 1) as f32;
    let odd = |x: f32| 2.0 * ((x - 1.0) * 0.5).round_ties_even().max(0.0).min(last) + 1.0;
    let odd = |x: f32| odd(x).min(last);
    let (d, _) = best_scale(scales, costs, &[last], odd);
    F16Le::from_f32(d / unit)
}

thread_local! {
    /// `a` and `b` of all vectors of a block, kept from one block to the next.
    static PRODUCTS: RefCell<[Vec<Line>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// `a` and `b` of some vectors: one of each for every entry and vector.
#[derive(Clone, Copy)]
struct Products<'a> {
    a: &'a [f32],
    b: &'a [f32],
    entries: usize,
}

/// Sums of `a` and `b` over the chosen entries of some vectors.
#[derive(Clone, Copy, Default)]
struct Fit {
    a: f32,
    b: f32,
}

impl Fit {
    /// The scale that fits these entries best, if there is one.
    #[inline(always)]
    fn scale(&self) -> Option<f32> {
        let scale = self.a / self.b;
        (scale.is_finite() && scale > 0.0).then_some(scale)
    }
}

/// The best of four scales.
#[derive(Clone, Copy)]
struct Best {
    /// Which it is.
    scale: usize,
    /// Half of what is gained with it.
    gain: f32,
    /// The largest `a − s/2 · b` of each vector.
    most: [f32; 8],
}

impl Best {
    const NONE: Best = Best {
        scale: 0,
        gain: f32::NEG_INFINITY,
        most: [0.0; 8],
    };
}

impl<const D: usize> Search<'_, D> {
    /// The best block for `x`, which has 256 elements; where signs are stored apart, `x` has none
    /// but those that the format cannot express.
    #[inline(always)]
    pub(super) fn run(&self, x: &[f32; 256], w: &[f32; 256]) -> Found {
        let entries = self.grid.len();
        let vectors = 256 / D;
        let group = D * self.per_scale;
        let mut lists = PRODUCTS.take();
        for list in &mut lists {
            list.resize(vectors * entries / LANES, Line([0.0; LANES]));
        }
        let [a, b] = &mut lists;
        let a: &mut [f32] = bytemuck::cast_slice_mut(a);
        let b: &mut [f32] = bytemuck::cast_slice_mut(b);
        let tables = a.chunks_exact_mut(entries).zip(b.chunks_exact_mut(entries));
        let (xs, ws) = (x.as_chunks::<D>().0, w.as_chunks::<D>().0);
        for ((x, w), (a, b)) in xs.iter().zip(ws).zip(tables) {
            self.products(x, w, a, b);
        }

        let of_group = |i: usize| {
            let range = i * self.per_scale * entries..(i + 1) * self.per_scale * entries;
            Products {
                a: &a[range.clone()],
                b: &b[range],
                entries,
            }
        };
        let (mut scales, mut costs) = ([0.0f32; 16], [0.0f32; 16]);
        for (i, x) in x.chunks_exact(group).enumerate() {
            (scales[i], costs[i]) = self.best_scale(of_group(i), largest(x).abs());
        }
        let mut found = Found::new(block_scale(&scales, &costs, self.last, self.unit));
        let d = found.d.to_f32();
        let mut fit = Fit::default();
        for i in 0..256 / group {
            let multiple = scales[i] * inverse_or_zero(d * self.unit);
            let nearby = level(multiple - 1.0, 0.5, 0, self.last);
            // Four scales go together: one of them twice.
            let levels = [
                nearby,
                (nearby - 1).max(0),
                (nearby + 1).min(self.last),
                nearby,
            ];
            let scales = levels.map(|l| d * self.unit * (2 * l + 1) as f32);
            let best = self.best_of(of_group(i), scales);
            let chosen = &mut found.entries[i * self.per_scale..(i + 1) * self.per_scale];
            let chosen = self.choose(of_group(i), scales[best.scale], &best.most, chosen);
            let level = levels[best.scale];
            found.scales[i] = level as u8;
            let multiple = self.unit * (2 * level + 1) as f32;
            fit.a += multiple * chosen.a;
            fit.b += multiple * multiple * chosen.b;
        }
        // With all entries chosen, the block's scale itself has a best value.
        if let Some(fitted) = fit.scale().filter(|_| d > 0.0) {
            found.d = F16Le::from_f32(fitted);
        }
        PRODUCTS.set(lists);
        found
    }

    /// `a` and `b` of a vector for every entry.
    #[inline(always)]
    fn products(&self, x: &[f32; D], w: &[f32; D], a: &mut [f32], b: &mut [f32]) {
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

    /// The best scale of some vectors, and what it costs to miss it.
    #[inline(always)]
    fn best_scale(&self, products: Products<'_>, largest: f32) -> (f32, f32) {
        if largest == 0.0 || !largest.is_finite() {
            return (0.0, 0.0);
        }
        let (mut scale, mut best) = (0.0, Best::NONE);
        for tops in self.tops.as_chunks::<4>().0 {
            let scales = tops.map(|top| largest / top);
            let these = self.best_of(products, scales);
            if these.gain > best.gain {
                (scale, best) = (scales[these.scale], these);
            }
        }
        // The scale that fits the entries is good enough: it becomes a multiple of the block's, whose
        // neighbours are tried too, with entries of their own.
        let mut chosen = [0; 8];
        let chosen = &mut chosen[..self.per_scale];
        let fit = self.choose(products, scale, &best.most, chosen);
        (fit.scale().unwrap_or(scale), fit.b)
    }

    /// The scale at which the nearest entries of some vectors gain most.
    #[inline(always)]
    fn best_of(&self, products: Products<'_>, scales: [f32; 4]) -> Best {
        let mut most = [[0.0; 8]; 4];
        let mut gains = [0.0; 4];
        for v in 0..self.per_scale {
            let (a, b) = products.lists(v);
            let of_scales = greatest_at_four(a, b, scales.map(|s| 0.5 * s));
            for k in 0..4 {
                most[k][v] = of_scales[k];
                gains[k] += scales[k] * of_scales[k];
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
            most: most[scale],
        }
    }

    /// The entries of some vectors that gain `most` at a scale.
    #[inline(always)]
    fn choose(
        &self,
        products: Products<'_>,
        scale: f32,
        most: &[f32; 8],
        chosen: &mut [u16],
    ) -> Fit {
        let mut fit = Fit::default();
        for (v, chosen) in chosen.iter_mut().enumerate() {
            let (a, b) = products.lists(v);
            let at = place(a, b, 0.5 * scale, most[v]);
            fit.a += a[at];
            fit.b += b[at];
            *chosen = at as u16;
        }
        fit
    }
}

impl<'a> Products<'a> {
    /// The lists of vector `v`.
    #[inline(always)]
    fn lists(&self, v: usize) -> (&'a [f32], &'a [f32]) {
        let start = v * self.entries;
        let range = start..start + self.entries;
        (&self.a[range.clone()], &self.b[range])
    }
}

/// The largest `a − h · b` of a list, for four `h` at once.
#[inline(always)]
fn greatest_at_four(a: &[f32], b: &[f32], h: [f32; 4]) -> [f32; 4] {
    let none = [f32::NEG_INFINITY; LANES];
    let [mut first, mut second, mut third, mut fourth] = [none; 4];
    let chunks = a.as_chunks::<LANES>().0.iter();
    for (a, b) in chunks.zip(b.as_chunks::<LANES>().0) {
        first = raised(first, *a, *b, h[0]);
        second = raised(second, *a, *b, h[1]);
        third = raised(third, *a, *b, h[2]);
        fourth = raised(fourth, *a, *b, h[3]);
    }
    [
        of_lanes(first),
        of_lanes(second),
        of_lanes(third),
        of_lanes(fourth),
    ]
}

/// The larger of `most` and `a − h · b`, lane by lane.
#[inline(always)]
fn raised(most: Lanes, a: Lanes, b: Lanes, h: f32) -> Lanes {
    // A loop for each step: of a single one, the compiler may make vectors with lanes in another order.
    let [mut hb, mut gain, mut raised] = [[0.0; LANES]; 3];
    for lane in 0..LANES {
        hb[lane] = h * b[lane];
    }
    for lane in 0..LANES {
        gain[lane] = a[lane] - hb[lane];
    }
    for lane in 0..LANES {
        raised[lane] = larger(most[lane], gain[lane]);
    }
    raised
}

/// Not `f32::max`, whose care for NaN costs as much as all the rest.
#[inline(always)]
fn larger(x: f32, y: f32) -> f32 {
    if y > x { y } else { x }
}

/// The largest of all lanes.
#[inline(always)]
fn of_lanes(lanes: [f32; LANES]) -> f32 {
    // The compiler shall not see where they come from: it would take the vectors apart, the sooner to
    // have single lanes to compare.
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

/// The first place where `a − h · b` is `most`; the last of all if there is none.
#[inline(always)]
fn place(a: &[f32], b: &[f32], h: f32, most: f32) -> usize {
    // First whether it is among so many, only then where.
    let chunks = a.as_chunks::<MANY>().0.iter().zip(b.as_chunks::<MANY>().0);
    for (n, (a, b)) in chunks.enumerate() {
        let mut found = false;
        for lane in 0..MANY {
            found |= a[lane] - h * b[lane] == most;
        }
        if found {
            return MANY * n + place_among(a, b, h, most);
        }
    }
    a.len() - 1
}

/// The first place where `a − h · b` is `most`, which is one of them.
#[inline(always)]
fn place_among(a: &[f32; MANY], b: &[f32; MANY], h: f32, most: f32) -> usize {
    let mut first = u32::MAX;
    for ((a, b), place) in a.iter().zip(b).zip(0..) {
        // All bits set: a mask does where other numbers would have to be blended in.
        let here = if a - h * b == most { place } else { u32::MAX };
        first = if here < first { here } else { first };
    }
    first as usize
}

/// Signs and magnitudes of a block: bit `i` of byte `n` is the sign of element `8 n + i`.
///
/// Where the format keeps only seven signs of eight, and the number of minuses `even`, the element
/// that matters least changes its sign; its magnitude then is negative.
#[inline(always)]
pub(super) fn split_signs(x: &[f32], w: &[f32; 256], even: bool) -> ([u8; 32], [f32; 256]) {
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
    use crate::quant::testing::{ROUNDS, Random, eights};

    fn fours(table: &[u32]) -> Vec<[i8; 4]> {
        let entries = table.iter().map(|entry| entry.to_le_bytes());
        entries.map(|entry| entry.map(|m| m as i8)).collect()
    }

    /// A table, and how it is used.
    struct Tried<const D: usize> {
        table: Vec<[i8; D]>,
        grid: Grid<D>,
        per_scale: usize,
        /// The largest number of the table.
        top: f32,
    }

    impl<const D: usize> Tried<D> {
        fn new(table: Vec<[i8; D]>, per_scale: usize) -> Self {
            Tried {
                grid: Grid::new(table.iter().copied()),
                per_scale,
                top: f32::from(*table.iter().flatten().max().unwrap()),
                table,
            }
        }

        fn search(&self) -> Search<'_, D> {
            let tops = [0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.8].map(|t| t * self.top);
            Search::of_magnitudes(&self.grid, self.per_scale, 1.0, tops)
        }

        /// The error of an entry of a vector, and the size of what it is summed up from.
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

        /// Every vector gets the nearest of all entries, at any scale and with any weights; of several
        /// scales the best is taken.
        fn check_nearest(&self) {
            let (search, len) = (self.search(), self.table.len());
            let mut random = Random::new(len as u64);
            for round in 0..ROUNDS {
                let mut part = |of: &mut dyn FnMut(&mut Random) -> f32| -> Vec<[f32; D]> {
                    let vectors = 0..self.per_scale;
                    let vectors = vectors.map(|_| std::array::from_fn(|_| of(&mut random)));
                    vectors.collect()
                };
                let x = part(&mut |random| 0.5 * self.top * random.normal().abs());
                let w = part(&mut |random| random.weight(round));
                let mut lists = [vec![0.0; x.len() * len], vec![0.0; x.len() * len]];
                let [a, b] = &mut lists;
                let of_vectors = a.chunks_exact_mut(len).zip(b.chunks_exact_mut(len));
                for ((x, w), (a, b)) in x.iter().zip(&w).zip(of_vectors) {
                    search.products(x, w, a, b);
                }
                let products = Products {
                    a: &lists[0],
                    b: &lists[1],
                    entries: len,
                };

                let scales = [1.0, 0.05, 0.3 + random.normal().abs(), 30.0];
                let mut least = [0.0; 4];
                for (scale, least) in scales.into_iter().zip(&mut least) {
                    let most = search.best_of(products, [scale; 4]).most;
                    let mut chosen = [0; 8];
                    search.choose(products, scale, &most, &mut chosen[..x.len()]);
                    for ((x, w), chosen) in x.iter().zip(&w).zip(chosen) {
                        let all = (0..len).map(|n| self.error(n, x, w, scale)[0]);
                        let nearest = all.fold(f64::INFINITY, f64::min);
                        let [found, size] = self.error(chosen.into(), x, w, scale);
                        assert!(found <= nearest + 1e-5 * size, "{found} {nearest} {scale}");
                        *least += nearest;
                    }
                }

                let best = search.best_of(products, scales);
                let mut chosen = [0; 8];
                let chosen = &mut chosen[..x.len()];
                search.choose(products, scales[best.scale], &best.most, chosen);
                let vectors = x.iter().zip(&w).zip(chosen);
                let errors =
                    vectors.map(|((x, w), n)| self.error((*n).into(), x, w, scales[best.scale]));
                let [found, size] = errors.fold([0.0; 2], |sum, e| [sum[0] + e[0], sum[1] + e[1]]);
                let least = least.into_iter().fold(f64::INFINITY, f64::min);
                assert!(found <= least + 1e-5 * size, "{found} {least}");
            }
        }

        /// Whatever is in a block, what comes back can be stored.
        fn check_odd_values(&self) {
            let search = self.search();
            let mut random = Random::new(5);
            for round in 0..ROUNDS {
                let x = random.odd_floats(round).map(f32::abs);
                let w = random.odd_floats(round).map(f32::abs);
                let found = search.run(&x, &w);
                let len = self.table.len();
                assert!(found.entries.iter().all(|n| usize::from(*n) < len));
                assert!(found.scales.iter().all(|l| i32::from(*l) <= search.last));
            }
        }

        fn check(&self) {
            self.check_nearest();
            self.check_odd_values();
        }
    }

    #[test]
    fn no_entry_of_iq2_is_nearer() {
        Tried::new(eights(&IQ2_XXS_GRID), 4).check();
        Tried::new(eights(&IQ2_XS_GRID), 2).check();
        Tried::new(eights(&IQ2_S_GRID), 2).check();
    }

    #[test]
    fn no_entry_of_iq3_is_nearer() {
        Tried::new(fours(&IQ3_XXS_GRID), 8).check();
        Tried::new(fours(&IQ3_S_GRID), 8).check();
    }

    #[test]
    fn signs_are_made_even_where_it_costs_least() {
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
