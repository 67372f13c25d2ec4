//! Finds the entries of the table of IQ1_S and IQ1_M, and the scales, that come closest to a block.
//!
//! That table is large: 2048 entries of 8 ternary elements, each moved up or down by an eighth. At scale `s` an entry
//! `g` leaves of a vector `x` with weights `w` the error `Σwx² − 2s · (a − h·b)` with `a = Σwxg`, `b = Σwg²` and
//! `h = s / 2`: the nearest entry is the one with the largest gain `a − h·b`. It is found exactly, in steps that each
//! spare most of the next:
//!
//! - Every element gets the level nearest to it, for all vectors of a block side by side. No entry gains
//!   more than these levels, and often they are an entry.
//! - A scale at which even these gain less than another's entries is out.
//! - Otherwise the entry is looked for by halves. The gain of an entry is the sum of those of its halves, of
//!   which there are only 3⁴, so they are computed for all of them; of the left halves, only those
//!   are tried to which the best right half would add enough.

use std::cell::RefCell;

use super::fields::F16Le;
use super::grid_search::{Found, block_scale};
use super::scale_search::{inverse_or_zero, largest, level};

/// Halves of entries, or vectors, that are worked on side by side.
const LANES: usize = 16;

type Lanes = [f32; LANES];

/// Elements of an entry.
const D: usize = 8;
/// Levels of an element.
const K: usize = 3;

/// Room for all halves of entries, of which there are 81.
const HALVES: usize = 6;

/// Room for something for each of the 32 vectors of a block.
const VECTORS: usize = 2;

/// Two halves that make no entry.
const NONE: u16 = u16::MAX;

/// The table.
///
/// Half an entry is known by the number whose digits are its levels, the first the lowest.
pub(super) struct Grid {
    len: usize,
    /// Halves that can be thought of, in lanes. No constant: loops to a number that is known are unrolled
    /// first, and then not made of vectors.
    chunks: usize,
    /// From the lowest up.
    levels: [f32; K],
    /// The elements of all halves.
    halves: [[Lanes; HALVES]; 4],
    /// For each left half: 0 for a right half that makes an entry with it, −∞ for others.
    gaps: Vec<[Lanes; HALVES]>,
    /// For each left half, the entries that the right halves make with it, or [`NONE`].
    entries: Vec<[u16; HALVES * LANES]>,
    /// Which left halves there are entries with, a bit for each.
    left: [u32; HALVES / 2],
    /// The halves of the first entry.
    first: [u8; 2],
}

impl Grid {
    /// Elements of half an entry.
    const HALF: usize = D / 2;
    /// Halves that can be thought of.
    const COUNT: usize = K.pow(Self::HALF as u32);

    pub(super) fn new(table: impl Iterator<Item = [i8; D]>) -> Grid {
        let table: Vec<[i8; D]> = table.collect();
        let mut known: Vec<i8> = table.iter().flatten().copied().collect();
        known.sort_unstable();
        known.dedup();
        let mut grid = Grid {
            len: table.len(),
            chunks: Self::COUNT.div_ceil(LANES),
            levels: std::array::from_fn(|k| f32::from(known[k])),
            halves: [[[0.0; LANES]; HALVES]; 4],
            gaps: vec![[[f32::NEG_INFINITY; LANES]; HALVES]; Self::COUNT],
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
            grid.gaps[l].as_flattened_mut()[r] = 0.0;
            grid.entries[l][r] = n as u16;
            grid.left[l / 32] |= 1 << (l % 32);
            if n == 0 {
                grid.first = [l as u8, r as u8];
            }
        }
        grid
    }
}

/// Who chooses whether an entry is moved up or down by an eighth.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shift {
    /// Each vector has its own direction.
    EachVector,
    /// All vectors of a scale share a direction.
    EachScale,
}

/// How far up entries are moved in either direction.
const SHIFTS: [f32; 2] = [0.125, -0.125];

/// How a format uses its table.
pub(super) struct Search<'a> {
    pub(super) grid: &'a Grid,
    /// Vectors that share a scale.
    pub(super) per_scale: usize,
    /// The scale is `unit · (2 l + 1)` times the block's, with `l` in `0..=last`.
    pub(super) last: i32,
    pub(super) unit: f32,
    /// Where the largest element of a scale's vectors may lie, in units of the table.
    pub(super) tops: [f32; TOPS],
    pub(super) shift: Shift,
}

const TOPS: usize = 8;

/// The vectors of a block, one to a lane: element by element for sixteen of them at a time.
struct Vectors {
    x: [[Lanes; D]; VECTORS],
    w: [[Lanes; D]; VECTORS],
    wx: [[Lanes; D]; VECTORS],
}

/// The nearest levels of the vectors of a block, each element by itself: the halves that they make, and
/// what these gain.
#[derive(Clone, Copy)]
struct Rough {
    gain: [Lanes; VECTORS],
    a: [Lanes; VECTORS],
    b: [Lanes; VECTORS],
    halves: [[[i32; LANES]; VECTORS]; 2],
}

/// `a` and `b` of all halves of entries for a vector: the left halves', then the right halves'.
#[derive(Clone, Copy)]
struct Products {
    a: [[Lanes; HALVES]; 2],
    b: [[Lanes; HALVES]; 2],
}

/// What is kept from one block to the next: it is large.
#[derive(Default)]
struct Room {
    /// One for each vector and direction, of which there are 64 together, and which of them are filled.
    products: Vec<Products>,
    filled: u64,
    /// The entries that were nearest last, by their halves.
    hints: Vec<[u8; 2]>,
    rough: Vec<Rough>,
}

thread_local! {
    static ROOM: RefCell<Room> = RefCell::default();
}

/// A scale to try for some vectors that share it.
#[derive(Clone, Copy, Default)]
struct Trial {
    scale: f32,
    /// Directions that each of the vectors may choose from.
    directions: [usize; 2],
    /// Where their nearest levels are, for each direction.
    rough: [usize; 2],
}

/// The entry of a vector.
#[derive(Clone, Copy, Default)]
struct Pick {
    gain: f32,
    a: f32,
    b: f32,
    /// With its direction.
    entry: u16,
}

/// The entries of some vectors that share a scale.
#[derive(Clone, Copy, Default)]
struct Choice {
    /// Which of the trials it is.
    trial: usize,
    /// Sums over all vectors.
    a: f32,
    b: f32,
    entries: [u16; 8],
}

impl Search<'_> {
    const VECTORS: usize = 256 / D;

    /// The best block for `x`. Entries that are moved down are counted after all those that are moved up.
    #[inline(always)]
    pub(super) fn run(&self, x: &[f32; 256], w: &[f32; 256]) -> Found {
        let vectors = Vectors::new(x, w);
        let groups = Self::VECTORS / self.per_scale;
        let mut room = ROOM.take();
        room.prepare(self.grid.first);

        let mut most = [0.0; 16];
        for (most, x) in most.iter_mut().zip(x.chunks_exact(256 / groups)) {
            let largest = largest(x).abs();
            *most = if largest.is_finite() { largest } else { 0.0 };
        }
        let (mut scales, mut costs) = self.best_scales(&vectors, &mut room, &most);
        for i in 0..groups {
            if most[i] == 0.0 {
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
            let scales = self.spread(&scales);
            for direction in 0..2 {
                let shifts = [[SHIFTS[direction]; LANES]; VECTORS];
                let rough = &mut room.rough[step * 2 + direction];
                self.nearest_levels(&vectors, &scales, &shifts, rough);
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
            let choice = self.best_of(&vectors, &mut room, i, &trials[..n]);
            let l = levels[choice.trial];
            found.scales[i] = l as u8;
            found.entries[i * self.per_scale..(i + 1) * self.per_scale]
                .copy_from_slice(&choice.entries[..self.per_scale]);
            let multiple = self.unit * (2 * l + 1) as f32;
            a += multiple * choice.a;
            b += multiple * multiple * choice.b;
        }
        // With all entries chosen, the block's scale itself has a best value.
        let fitted = a / b;
        if d > 0.0 && fitted.is_finite() && fitted > 0.0 {
            found.d = F16Le::from_f32(fitted);
        }
        ROOM.set(room);
        found
    }

    /// Trials at a scale: one for each direction where all vectors share it.
    #[inline(always)]
    fn alternatives(&self) -> usize {
        match self.shift {
            Shift::EachScale => 2,
            _ => 1,
        }
    }

    /// What is to be tried at a scale: as many as there are [`Search::alternatives`]. `rough` says where the
    /// nearest levels of each direction are.
    #[inline(always)]
    fn trials(&self, scale: f32, rough: [usize; 2]) -> [Trial; 2] {
        let [up, down] = rough;
        let trial = |directions, rough| Trial {
            scale,
            directions,
            rough,
        };
        match self.shift {
            Shift::EachVector => [trial([0, 1], rough); 2],
            Shift::EachScale => [trial([0, 0], [up, up]), trial([1, 1], [down, down])],
        }
    }

    /// The numbers of the scales for each vector.
    #[inline(always)]
    fn spread(&self, of_scales: &[f32; 16]) -> [Lanes; VECTORS] {
        let mut spread = [[0.0; LANES]; VECTORS];
        let of_vectors =
            spread.as_flattened_mut()[..Self::VECTORS].chunks_exact_mut(self.per_scale);
        for (of_vectors, x) in of_vectors.zip(of_scales) {
            of_vectors.fill(*x);
        }
        spread
    }

    /// The best scales, and what it costs to miss them; `most` are the largest magnitudes.
    #[inline(always)]
    fn best_scales(
        &self,
        vectors: &Vectors,
        room: &mut Room,
        most: &[f32; 16],
    ) -> ([f32; 16], [f32; 16]) {
        let groups = Self::VECTORS / self.per_scale;
        for (n, top) in self.tops.iter().enumerate() {
            let scales = self.spread(&most.map(|most| most / top));
            for direction in 0..2 {
                let shifts = [[SHIFTS[direction]; LANES]; VECTORS];
                let rough = &mut room.rough[n * 2 + direction];
                self.nearest_levels(vectors, &scales, &shifts, rough);
            }
        }
        let (mut scales, mut costs) = ([0.0; 16], [0.0; 16]);
        let (mut chosen, mut shifts) = ([Trial::default(); 16], [0.0; 16]);
        for i in 0..groups {
            let (mut trials, mut n) = ([Trial::default(); 2 * TOPS], 0);
            for (at, top) in self.tops.iter().enumerate() {
                let tried = self.trials(most[i] / top, [at * 2, at * 2 + 1]);
                for trial in tried.into_iter().take(self.alternatives()) {
                    trials[n] = trial;
                    n += 1;
                }
            }
            let choice = self.best_of(vectors, room, i, &trials[..n]);
            chosen[i] = trials[choice.trial];
            shifts[i] = SHIFTS[chosen[i].directions[0]];
            (scales[i], costs[i]) = (fitted(&choice, chosen[i].scale), choice.b);
        }
        // At the scales that fit the entries there may be better entries still.
        let spread = self.spread(&scales);
        if self.shift == Shift::EachVector {
            for direction in 0..2 {
                let shifts = [[SHIFTS[direction]; LANES]; VECTORS];
                self.nearest_levels(vectors, &spread, &shifts, &mut room.rough[direction]);
            }
        } else {
            let shifts = self.spread(&shifts);
            self.nearest_levels(vectors, &spread, &shifts, &mut room.rough[0]);
        }
        for i in 0..groups {
            let trial = Trial {
                scale: scales[i],
                directions: chosen[i].directions,
                rough: if self.shift == Shift::EachVector {
                    [0, 1]
                } else {
                    [0, 0]
                },
            };
            let choice = self.best_of(vectors, room, i, &[trial]);
            (scales[i], costs[i]) = (fitted(&choice, scales[i]), choice.b);
        }
        (scales, costs)
    }

    /// The trial that gains most for the vectors of scale `i`, and its entries.
    #[inline(always)]
    fn best_of(&self, vectors: &Vectors, room: &mut Room, i: usize, trials: &[Trial]) -> Choice {
        let members = i * self.per_scale..(i + 1) * self.per_scale;
        // No entries gain more than the nearest levels do.
        let mut limits = [f32::NEG_INFINITY; 2 * TOPS];
        let mut likely = 0;
        for (n, trial) in trials.iter().enumerate() {
            let [one, two] = trial.rough.map(|at| room.rough[at].gain.as_flattened());
            let mut sum = 0.0;
            for v in members.clone() {
                sum += larger(one[v], two[v]);
            }
            limits[n] = 2.0 * trial.scale * sum;
            if limits[n] > limits[likely] {
                likely = n;
            }
        }
        let (mut best, mut most) = (Choice::default(), f32::NEG_INFINITY);
        for n in 0..=trials.len() {
            // The likeliest first: then most others are out by their limits.
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
                if limit <= most {
                    break;
                }
                let (pick, at_most) = self.pick(vectors, room, trial, v);
                limit -= 2.0 * trial.scale * (at_most - pick.gain);
                sum += pick.gain;
                choice.a += pick.a;
                choice.b += pick.b;
                *chosen = pick.entry;
            }
            let gain = 2.0 * trial.scale * sum;
            if limit > most && gain > most {
                (most, best) = (gain, choice);
            }
        }
        best
    }

    /// The nearest levels of all vectors at their scales, moved by their shifts.
    #[inline(always)]
    fn nearest_levels(
        &self,
        vectors: &Vectors,
        scales: &[Lanes; VECTORS],
        shifts: &[Lanes; VECTORS],
        out: &mut Rough,
    ) {
        let levels = &self.grid.levels;
        for c in 0..Self::VECTORS / LANES {
            let (x, w, wx) = (&vectors.x[c], &vectors.w[c], &vectors.wx[c]);
            let (scale, shift) = (&scales[c], &shifts[c]);
            // Above which an element is nearer to level k than to the one below.
            let mut middles = [[0.0; LANES]; K];
            for k in 1..K {
                let middle = 0.5 * (levels[k - 1] + levels[k]);
                for lane in 0..LANES {
                    middles[k][lane] = (middle + shift[lane]) * scale[lane];
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
                        let above = x[i][lane] > middles[k][lane];
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

    /// The best entry of vector `v`, and what no entry gains more than.
    #[inline(always)]
    fn pick(&self, vectors: &Vectors, room: &mut Room, trial: &Trial, v: usize) -> (Pick, f32) {
        let gains = trial.rough.map(|at| room.rough[at].gain.as_flattened()[v]);
        let [one, two] = trial.directions;
        // First the direction that promises more.
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
            let pick = self.nearest(vectors, room, trial, which, v, best.gain);
            if is_first || pick.gain > best.gain {
                best = pick;
            }
        }
        (best, gains[first])
    }

    /// The best entry of vector `v` in a direction; one that gains no more than `enough` may be any.
    #[inline(always)]
    fn nearest(
        &self,
        vectors: &Vectors,
        room: &mut Room,
        trial: &Trial,
        which: usize,
        v: usize,
        enough: f32,
    ) -> Pick {
        let direction = trial.directions[which];
        let rough = &room.rough[trial.rough[which]];
        let likely = [0, 1].map(|side: usize| rough.halves[side].as_flattened()[v] as usize);
        let base = (direction * self.grid.len) as u16;
        let entry = self.grid.entries[likely[0]][likely[1]];
        if entry != NONE {
            return Pick {
                gain: rough.gain.as_flattened()[v],
                a: rough.a.as_flattened()[v],
                b: rough.b.as_flattened()[v],
                entry: base + entry,
            };
        }
        let at = direction * Self::VECTORS + v;
        if room.filled >> at & 1 == 0 {
            room.filled |= 1 << at;
            self.fill(vectors, v, SHIFTS[direction], &mut room.products[at]);
        }
        let products = &room.products[at];
        let (gain, halves) =
            self.grid
                .search(products, 0.5 * trial.scale, likely, room.hints[at], enough);
        room.hints[at] = halves;
        let [l, r] = halves.map(usize::from);
        let [[al, ar], [bl, br]] = [&products.a, &products.b].map(|p| {
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

    /// `a` and `b` of vector `v` for all halves.
    #[inline(always)]
    fn fill(&self, vectors: &Vectors, v: usize, shift: f32, out: &mut Products) {
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
    /// What the nearest entry gains, and its halves. `likely` are the best halves, which make no entry; `hint`
    /// is an entry that may be near; if none gains more than `enough`, it is what comes back.
    #[inline(always)]
    fn search(
        &self,
        products: &Products,
        h: f32,
        likely: [usize; 2],
        hint: [u8; 2],
        enough: f32,
    ) -> (f32, [u8; 2]) {
        let (mut left_gains, mut right_gains) = ([[0.0; LANES]; HALVES], [[0.0; LANES]; HALVES]);
        let [left_a, right_a] = &products.a;
        let [left_b, right_b] = &products.b;
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
        let of_left = left_gains.as_flattened();
        let to_add = right_gains.as_flattened()[likely[1]];
        let [l, r] = hint.map(usize::from);
        let known = of_left[l] + right_gains.as_flattened()[r];
        let mut best = larger(known, enough);

        let l = likely[0];
        let (mut at, mut rest) = (l, f32::NEG_INFINITY);
        let first = most(right_gains, &self.gaps[l][..self.chunks]);
        if of_left[l] + first > best {
            (best, rest) = (of_left[l] + first, first);
        }
        // Other left halves to which the best right half adds enough, a bit for each.
        let mut worth = [0; HALVES / 2];
        let pairs = left_gains[..self.chunks].as_chunks::<2>().0;
        for (worth, [low, high]) in worth.iter_mut().zip(pairs) {
            for lane in 0..LANES {
                let low = if low[lane] + to_add > best { 1 } else { 0 };
                let high = if high[lane] + to_add > best {
                    1 << LANES
                } else {
                    0
                };
                *worth |= (low | high) << lane;
            }
        }
        worth[l / 32] &= !(1 << (l % 32));
        for (n, (worth, left)) in worth.iter().zip(&self.left).enumerate() {
            let mut worth: u32 = worth & left;
            while worth != 0 {
                let l = n * 2 * LANES + worth.trailing_zeros() as usize;
                worth &= worth - 1;
                if of_left[l] + to_add <= best {
                    continue;
                }
                let most = most(right_gains, &self.gaps[l][..self.chunks]);
                if of_left[l] + most > best {
                    best = of_left[l] + most;
                    (at, rest) = (l, most);
                }
            }
        }
        if rest == f32::NEG_INFINITY {
            return (known, hint);
        }
        let r = place(right_gains, &self.gaps[at][..self.chunks], rest);
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

impl Room {
    /// For a new block.
    #[inline(always)]
    fn prepare(&mut self, first: [u8; 2]) {
        if self.products.is_empty() {
            let zeros = [[0.0; LANES]; VECTORS];
            self.rough = vec![
                Rough {
                    gain: zeros,
                    a: zeros,
                    b: zeros,
                    halves: [[[0; LANES]; VECTORS]; 2],
                };
                2 * TOPS
            ];
            let zeros = [[[0.0; LANES]; HALVES]; 2];
            self.products = vec![Products { a: zeros, b: zeros }; 64];
            self.hints = vec![first; 64];
        }
        self.hints.fill(first);
        self.filled = 0;
    }
}

/// The scale that fits the chosen entries best, if any does.
#[inline(always)]
fn fitted(choice: &Choice, scale: f32) -> f32 {
    let fitted = choice.a / choice.b;
    if fitted.is_finite() && fitted > 0.0 {
        fitted
    } else {
        scale
    }
}

/// Not `f32::max`, whose care for NaN costs as much as all the rest.
#[inline(always)]
fn larger(x: f32, y: f32) -> f32 {
    if y > x { y } else { x }
}

/// `a − h · b` of all halves.
#[inline(always)]
fn gains(a: &[Lanes], b: &[Lanes], h: f32, out: &mut [Lanes]) {
    for ((a, b), out) in a.iter().zip(b).zip(out) {
        for lane in 0..LANES {
            out[lane] = a[lane] - h * b[lane];
        }
    }
}

/// The largest sum of a gain and its gap.
#[inline(always)]
fn most(gains: &[Lanes], gaps: &[Lanes]) -> f32 {
    let mut most = [f32::NEG_INFINITY; LANES];
    for (gains, gaps) in gains.iter().zip(gaps) {
        for lane in 0..LANES {
            most[lane] = larger(most[lane], gains[lane] + gaps[lane]);
        }
    }
    let (mut eight, mut four) = ([0.0; 8], [0.0; 4]);
    for i in 0..8 {
        eight[i] = larger(most[i], most[i + 8]);
    }
    for i in 0..4 {
        four[i] = larger(eight[i], eight[i + 4]);
    }
    larger(larger(four[0], four[2]), larger(four[1], four[3]))
}

/// The first place where a gain and its gap make `most`.
#[inline(always)]
fn place(gains: &[Lanes], gaps: &[Lanes], most: f32) -> usize {
    let mut places = [i32::MAX; LANES];
    for (c, (gains, gaps)) in gains.iter().zip(gaps).enumerate().rev() {
        for lane in 0..LANES {
            let is_it = gains[lane] + gaps[lane] == most;
            let place = (c * LANES + lane) as i32;
            places[lane] = if is_it { place } else { places[lane] };
        }
    }
    let mut first = i32::MAX;
    for place in places {
        first = if place < first { place } else { first };
    }
    first as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::grids::IQ1_GRID;
    use crate::quant::testing::{ROUNDS, Random, eights};

    /// A table, all that is known about it, and searches with it.
    struct Tried {
        table: Vec<[i8; D]>,
        grid: Grid,
    }

    impl Tried {
        fn new(table: Vec<[i8; D]>) -> Self {
            let grid = Grid::new(table.iter().copied());
            Tried { table, grid }
        }

        fn search(&self, per_scale: usize, shift: Shift) -> Search<'_> {
            let top = f32::from(*self.table.iter().flatten().max().unwrap());
            Search {
                grid: &self.grid,
                per_scale,
                last: 7,
                unit: 1.0,
                tops: [0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.8].map(|t| t * top),
                shift,
            }
        }

        fn shift(round: usize) -> Shift {
            match round % 2 {
                0 => Shift::EachVector,
                _ => Shift::EachScale,
            }
        }

        /// Elements as large as those of the table.
        fn block(&self, random: &mut Random) -> [f32; 256] {
            std::array::from_fn(|_| random.normal() * self.grid.levels[K - 1] * 0.6)
        }

        /// The error of an entry of a vector, and the size of what it is summed up from.
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

        /// Every vector gets the nearest of all entries, at any scale and with any weights.
        fn check_nearest(&self) {
            let mut random = Random::new(self.table.len() as u64);
            for round in 0..ROUNDS.min(12) {
                let search = self.search(2, Self::shift(round));
                let x = self.block(&mut random);
                let w: [f32; 256] = std::array::from_fn(|_| random.weight(round));
                let vectors = Vectors::new(&x, &w);
                let mut room = Room::default();
                room.prepare(self.grid.first);
                for scale in [1.0, 0.8, 0.05, 30.0, 1.3] {
                    let scales = [[scale; LANES]; VECTORS];
                    for direction in 0..2 {
                        let shifts = [[SHIFTS[direction]; LANES]; VECTORS];
                        let rough = &mut room.rough[direction];
                        search.nearest_levels(&vectors, &scales, &shifts, rough);
                    }
                    let trials = search.trials(scale, [0, 1]);
                    for trial in trials.into_iter().take(search.alternatives()) {
                        let [one, two] = trial.directions;
                        let len = self.table.len();
                        let entries = one * len..(two + 1) * len;
                        for v in (0..256 / D).step_by(if cfg!(miri) { 16 } else { 1 }) {
                            let (x, w) = (&x[v * D..][..D], &w[v * D..][..D]);
                            let (pick, limit) = search.pick(&vectors, &mut room, &trial, v);
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

        /// What bounds spare would not have been better.
        fn check_trials(&self) {
            let mut random = Random::new(3);
            for round in 0..ROUNDS.min(9) {
                let search = self.search(4, Self::shift(round));
                let (x, w) = (self.block(&mut random), self.block(&mut random));
                let w = w.map(f32::abs);
                let vectors = Vectors::new(&x, &w);
                let mut room = Room::default();
                room.prepare(self.grid.first);
                let mut trials = Vec::new();
                for n in 0..TOPS {
                    let scale = 0.5 + 0.15 * n as f32;
                    for direction in 0..2 {
                        let shifts = [[SHIFTS[direction]; LANES]; VECTORS];
                        let rough = &mut room.rough[2 * n + direction];
                        search.nearest_levels(&vectors, &[[scale; LANES]; VECTORS], &shifts, rough);
                    }
                    let tried = search.trials(scale, [2 * n, 2 * n + 1]);
                    trials.extend(tried.into_iter().take(search.alternatives()));
                }
                for i in 0..256 / D / 4 {
                    let gain = |trial: &Trial, room: &mut Room| {
                        let picks =
                            (4 * i..4 * i + 4).map(|v| search.pick(&vectors, room, trial, v).0);
                        let picks: Vec<Pick> = picks.collect();
                        2.0 * trial.scale * picks.iter().map(|pick| pick.gain).sum::<f32>()
                    };
                    let choice = search.best_of(&vectors, &mut room, i, &trials);
                    let found = gain(&trials[choice.trial], &mut room);
                    for trial in &trials {
                        let other = gain(trial, &mut room);
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

        /// Whatever is in a block, what comes back can be stored.
        fn check_odd_values(&self) {
            let mut random = Random::new(5);
            for round in 0..ROUNDS.min(60) {
                let shift = Self::shift(round);
                let search = self.search(2 + round % 2 * 2, shift);
                let x = random.odd_floats(round);
                let w = random.odd_floats(round).map(f32::abs);
                let found = search.run(&x, &w);
                let len = self.table.len() * 2;
                assert!(found.entries.iter().all(|n| usize::from(*n) < len));
                assert!(found.scales.iter().all(|l| i32::from(*l) <= search.last));
            }
        }

        fn check(&self) {
            self.check_nearest();
            self.check_trials();
            self.check_odd_values();
        }
    }

    #[test]
    fn no_entry_of_iq1_is_nearer() {
        Tried::new(eights(&IQ1_GRID)).check();
    }
}
