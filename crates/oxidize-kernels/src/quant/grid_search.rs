//! Finds the entries of the table of an IQ2 or IQ3 format, and the scales, that come closest to a block.
//!
//! For a vector `x` with weights `w`, an entry `g` at scale `s` leaves the error
//! `Σwx² − 2s·a + s²·b` with `a = Σwxg` and `b = Σwg²`, which do not depend on the scale. So they are
//! computed once for the whole table; after that, trying a scale is one pass over two lists, and the
//! nearest entry is found exactly, not looked for among neighbours.

use std::cell::RefCell;

use super::fields::F16Le;
use super::scale_search::{best_scale, inverse_or_zero, largest, level};

/// Entries that are compared side by side.
const LANES: usize = 16;

/// A table of `D`-element entries, element by element for sixteen entries at a time.
pub(super) struct Grid<const D: usize> {
    chunks: Vec<[[f32; LANES]; D]>,
}

impl<const D: usize> Grid<D> {
    /// A table of entries whose number is a multiple of sixteen.
    pub(super) fn new(entries: impl ExactSizeIterator<Item = [i8; D]>) -> Grid<D> {
        let mut chunks = vec![[[0.0; LANES]; D]; entries.len() / LANES];
        for (n, entry) in entries.enumerate() {
            for (i, element) in entry.into_iter().enumerate() {
                chunks[n / LANES][i][n % LANES] = f32::from(element);
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
    static PRODUCTS: RefCell<(Vec<f32>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
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

impl<const D: usize> Search<'_, D> {
    /// The best block for `x`, which has 256 elements; where signs are stored apart, `x` has none
    /// but those that the format cannot express.
    #[inline(always)]
    pub(super) fn run(&self, x: &[f32; 256], w: &[f32; 256]) -> Found {
        let entries = self.grid.len();
        let vectors = 256 / D;
        let group = D * self.per_scale;
        let (mut a, mut b) = PRODUCTS.take();
        a.resize(vectors * entries, 0.0);
        b.resize(vectors * entries, 0.0);
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
            let chosen = &mut found.entries[i * self.per_scale..(i + 1) * self.per_scale];
            let multiple = scales[i] * inverse_or_zero(d * self.unit);
            let nearby = level(multiple - 1.0, 0.5, 0, self.last);
            let mut best = (f32::NEG_INFINITY, nearby, Fit::default());
            for l in (nearby - 1).max(0)..=(nearby + 1).min(self.last) {
                let scale = d * self.unit * (2 * l + 1) as f32;
                let mut these = [0; 8];
                let these = &mut these[..self.per_scale];
                let fit = self.choose(of_group(i), scale, these);
                let gain = scale * (2.0 * fit.a - scale * fit.b);
                if gain > best.0 {
                    best = (gain, l, fit);
                    chosen.copy_from_slice(these);
                }
            }
            found.scales[i] = best.1 as u8;
            let multiple = self.unit * (2 * best.1 + 1) as f32;
            fit.a += multiple * best.2.a;
            fit.b += multiple * multiple * best.2.b;
        }
        // With all entries chosen, the block's scale itself has a best value.
        let fitted = fit.a / fit.b;
        if d > 0.0 && fitted.is_finite() && fitted > 0.0 {
            found.d = F16Le::from_f32(fitted);
        }
        PRODUCTS.set((a, b));
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
                    let g = g[i][lane];
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
        let mut best = (f32::NEG_INFINITY, 0.0);
        for tops in self.tops.as_chunks::<4>().0 {
            let scales = tops.map(|top| largest / top);
            let mut gains = [0.0; 4];
            for v in 0..self.per_scale {
                let (a, b) = products.lists(v);
                let most = greatest(a, b, scales.map(|s| 0.5 * s));
                for k in 0..4 {
                    gains[k] += scales[k] * most[k];
                }
            }
            for k in 0..4 {
                if gains[k] > best.0 {
                    best = (gains[k], scales[k]);
                }
            }
        }
        let (_, mut scale) = best;
        let mut fit = Fit::default();
        for _ in 0..2 {
            let mut chosen = [0; 8];
            fit = self.choose(products, scale, &mut chosen[..self.per_scale]);
            let fitted = fit.a / fit.b;
            if !(fitted.is_finite() && fitted > 0.0) {
                break;
            }
            scale = fitted;
        }
        (scale, fit.b)
    }

    /// The best entries of some vectors at a scale.
    #[inline(always)]
    fn choose(&self, products: Products<'_>, scale: f32, chosen: &mut [u16]) -> Fit {
        let mut fit = Fit::default();
        for (v, chosen) in chosen.iter_mut().enumerate() {
            let (a, b) = products.lists(v);
            let at = nearest(a, b, 0.5 * scale);
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

/// The largest `2 (a − h · b)` of a list, for four `h` at once.
#[inline(always)]
fn greatest(a: &[f32], b: &[f32], h: [f32; 4]) -> [f32; 4] {
    let mut most = [[f32::NEG_INFINITY; LANES]; 4];
    let [first, second, third, fourth] = &mut most;
    for (a, b) in a
        .as_chunks::<LANES>()
        .0
        .iter()
        .zip(b.as_chunks::<LANES>().0)
    {
        raise(first, a, b, h[0]);
        raise(second, a, b, h[1]);
        raise(third, a, b, h[2]);
        raise(fourth, a, b, h[3]);
    }
    most.map(|lanes| 2.0 * lanes.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x)))
}

/// Raises `most` to `a − h · b` where that is more.
#[inline(always)]
fn raise(most: &mut [f32; LANES], a: &[f32; LANES], b: &[f32; LANES], h: f32) {
    for lane in 0..LANES {
        let gain = a[lane] - h * b[lane];
        // Not `f32::max`, whose care for NaN costs as much as all the rest.
        most[lane] = if gain > most[lane] { gain } else { most[lane] };
    }
}

/// Where `a − h · b` is largest; the first place if it is nowhere a number.
#[inline(always)]
fn nearest(a: &[f32], b: &[f32], h: f32) -> usize {
    let (mut most, mut chunk) = ([f32::NEG_INFINITY; LANES], [0u32; LANES]);
    let lists = a
        .as_chunks::<LANES>()
        .0
        .iter()
        .zip(b.as_chunks::<LANES>().0);
    for (n, (a, b)) in lists.enumerate() {
        for lane in 0..LANES {
            let gain = a[lane] - h * b[lane];
            let better = gain > most[lane];
            most[lane] = if better { gain } else { most[lane] };
            chunk[lane] = if better { n as u32 } else { chunk[lane] };
        }
    }
    let mut best = 0;
    for lane in 1..LANES {
        if most[lane] > most[best] {
            best = lane;
        }
    }
    chunk[best] as usize * LANES + best
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
    use crate::quant::grids::IQ3_S_GRID;
    use crate::quant::testing::Random;

    fn grid() -> Grid<4> {
        Grid::new(
            IQ3_S_GRID
                .iter()
                .map(|entry| entry.to_le_bytes().map(|m| m as i8)),
        )
    }

    fn search(grid: &Grid<4>) -> Search<'_, 4> {
        Search {
            grid,
            per_scale: 8,
            last: 15,
            unit: 1.0,
            tops: [9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 17.0],
        }
    }

    /// The entry that is found is the nearest of all.
    #[test]
    fn no_entry_is_nearer() {
        let grid = grid();
        let search = search(&grid);
        let mut random = Random::new(1);
        for _ in 0..50 {
            let x: [f32; 4] = std::array::from_fn(|_| random.normal().abs());
            let w: [f32; 4] = std::array::from_fn(|_| random.normal().abs());
            let scale = 0.05 + random.normal().abs() / 5.0;
            let (mut a, mut b) = (vec![0.0; 512], vec![0.0; 512]);
            search.products(&x, &w, &mut a, &mut b);
            let found = nearest(&a, &b, 0.5 * scale);
            let error = |n: usize| -> f32 {
                let g = IQ3_S_GRID[n].to_le_bytes();
                (0..4)
                    .map(|i| w[i] * (x[i] - scale * f32::from(g[i])).powi(2))
                    .sum()
            };
            let least = (0..512).map(error).fold(f32::INFINITY, f32::min);
            assert!(error(found) <= least * 1.0001 + 1e-6, "{found}");
        }
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
