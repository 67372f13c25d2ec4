//! Test helpers for all formats: random data and the checks that every format passes.

use super::{Block, Dot, Quantize};

/// Repetitions of a check on random blocks. One under Miri, which is slow and checks for undefined behavior.
pub(super) const ROUNDS: usize = if cfg!(miri) { 1 } else { 100 };

/// SplitMix64 generator: the same numbers on every machine.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns an approximately normal number: the sum of twelve uniform ones (Irwin–Hall).
    pub(super) fn normal(&mut self) -> f32 {
        (0..12)
            .map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32)
            .sum::<f32>()
            - 6.0
    }

    pub(super) fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }

    /// Returns a random importance; in odd rounds some are zero, very large or very small.
    pub(super) fn weight(&mut self, round: usize) -> f32 {
        match self.next() % 8 {
            0 if round % 2 == 1 => 0.0,
            1 if round % 2 == 1 => 1e20,
            2 if round % 2 == 1 => 1e-20,
            _ => self.normal().abs(),
        }
    }

    /// Returns normal numbers mixed with infinities, NaN and extreme values. The number of the latter depends
    /// on `round`; every tenth round has only one value.
    pub(super) fn extreme_floats(&mut self, round: usize) -> [f32; 256] {
        let kinds = [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            f32::MIN_POSITIVE,
            1e-45,
            1e30,
            0.0,
        ];
        let mut floats = [kinds[self.next() as usize % kinds.len()]; 256];
        if round % 10 < 9 {
            floats.fill_with(|| self.normal());
            for _ in 0..1 << (round % 9) {
                let at = self.next() as usize % floats.len();
                floats[at] = kinds[self.next() as usize % kinds.len()];
            }
        }
        floats
    }

    pub(super) fn block<B: Block>(&mut self) -> B {
        let mut block = B::zeroed();
        bytemuck::bytes_of_mut(&mut block).fill_with(|| self.next() as u8);
        block
    }
}

/// Unpacks the entries of a table of 8 magnitudes each.
pub(super) fn entries_of_8(table: &[u64]) -> Vec<[i8; 8]> {
    let entries = table.iter().map(|entry| entry.to_le_bytes());
    entries.map(|entry| entry.map(|m| m as i8)).collect()
}

/// Returns exactly `2^exponent`; Miri's `powi` is deliberately inexact.
pub(super) fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// Returns the dequantized elements of a block.
pub(super) fn floats<B: Block>(block: &B) -> Vec<f32> {
    let mut out = vec![f32::NAN; B::LEN];
    block.dequantize(&mut out);
    out
}

/// Checks that the dot product equals that of the dequantized operands, up to rounding.
pub(super) fn check_dot<B: Dot>()
where
    B::Activation: Quantize,
{
    let mut random = Random::new(B::LEN as u64);
    let mut checked = 0;
    while checked < ROUNDS {
        let block: B = random.block();
        let weights = floats(&block);
        if !weights.iter().all(|w| w.abs() < 1e30) {
            continue;
        }
        let source = random.normals(B::LEN);
        let activations: Vec<B::Activation> = source
            .chunks(B::Activation::LEN)
            .map(Quantize::quantize)
            .collect();
        let factors: Vec<f32> = activations.iter().flat_map(floats).collect();
        let products = weights
            .iter()
            .zip(&factors)
            .map(|(w, a)| f64::from(*w) * f64::from(*a));
        let expected: f64 = products.sum();
        let largest = weights.iter().fold(0.0f32, |m, w| m.max(w.abs()));
        let bound = f64::from(largest) * factors.iter().map(|a| f64::from(a.abs())).sum::<f64>();
        // Q8_1 stores its sums in half precision; everything else is exact integers and f32.
        let tolerance = if B::Activation::TYPE == super::TensorType::Q8_1 {
            2e-3
        } else {
            2e-6
        };
        let got = f64::from(block.dot(&activations));
        assert!(
            (got - expected).abs() <= tolerance * bound + 1e-40,
            "{}: {got} instead of {expected}, bound {bound}",
            B::TYPE,
        );
        checked += 1;
    }
}

/// Checks that normal numbers have at most this root-mean-square error after a round trip, relative to
/// their standard deviation, that zeros stay zeros, and that extreme floats do not panic.
pub(super) fn check_quantize<B: Quantize>(max_error: f64) {
    if !cfg!(miri) {
        check_error::<B>(max_error);
    }
    check_zeros_and_extremes::<B>();
}

fn check_error<B: Quantize>(max_error: f64) {
    let mut random = Random::new(7);
    let (mut error, mut n) = (0.0, 0.0);
    for _ in 0..2048 / B::LEN {
        let source = random.normals(B::LEN);
        for (x, y) in source.iter().zip(floats(&B::quantize(&source))) {
            error += f64::from(x - y).powi(2);
            n += 1.0;
        }
    }
    let error = (error / n).sqrt();
    assert!(error <= max_error, "{}: error {error}", B::TYPE);
    assert!(
        error >= max_error * 0.8,
        "{}: error {error}, tighten the bound",
        B::TYPE
    );
}

fn check_zeros_and_extremes<B: Quantize>() {
    assert!(
        floats(&B::quantize(&vec![0.0; B::LEN]))
            .iter()
            .all(|x| *x == 0.0),
        "{}",
        B::TYPE
    );

    let extremes = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        1e-45,
        -1e-45,
        0.0,
        -0.0,
        1.0,
        1e30,
    ];
    let extremes = if cfg!(miri) {
        &extremes[..1]
    } else {
        &extremes[..]
    };
    for a in extremes {
        B::quantize(&vec![*a; B::LEN]);
        for b in extremes {
            let source: Vec<f32> = (0..B::LEN)
                .map(|i| *if i % 3 == 0 { a } else { b })
                .collect();
            B::quantize(&source);
            let spike: Vec<f32> = (0..B::LEN).map(|i| *if i == 5 { a } else { b }).collect();
            B::quantize(&spike);
        }
    }
}
