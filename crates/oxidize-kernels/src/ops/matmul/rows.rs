//! [`QuantizedRows`]: activations as integers, in a buffer that is used again.

use std::marker::PhantomData;
use std::ops::Range;

use super::WeightRows;
use crate::quant::TensorType;

/// Elements that share a scale.
pub(crate) const GROUP: usize = 32;

/// Elements that share a scale where activations are rounded coarsely: those of a block of most formats.
const COARSE_GROUP: usize = 256;

/// Elements of 16 bits that share a scale.
pub(crate) const WORD_GROUP: usize = 64;

/// The largest word: the sum of [`WORD_GROUP`] products of two such still fits into 32 bits.
pub(crate) const WORD_MAX: f32 = 5792.0;

/// What a product with weights that were moved up by 128, so that they have no sign, is too large by: so much
/// for each of the activations, with the sign turned round.
pub(crate) const MOVED: i32 = -128;

/// How activations are rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precision {
    /// To 8 bits, 32 to a scale, for quantised weights.
    #[default]
    Bytes,
    /// To 8 bits, 256 to a scale: what other engines have for weights in blocks of as many.
    Coarse,
    /// To 8 bits, with one scale for a token, for weights that have one scale a row.
    Tokens,
    /// To 13 bits and a sign, for weights of 16-bit floats, which are rounded in the same way. The
    /// products of a batch then are those of integers, of which a processor does twice as many as of
    /// floats. Together the two roundings cost less than one to half precision.
    Words,
}

impl Precision {
    /// Whether these are bytes, whatever their scales.
    pub(crate) fn is_bytes(self) -> bool {
        self != Precision::Words
    }

    /// What products of weights of these types want, if not floats; `words` says whether those of 16-bit
    /// floats want words. What quantised weights need comes first: floats can do without.
    pub(crate) fn of(
        types: impl IntoIterator<Item = TensorType>,
        words: bool,
        rounding: ActivationRounding,
    ) -> Option<Precision> {
        let of_one = |ty: TensorType| match ty {
            _ if rounding == ActivationRounding::Float => None,
            TensorType::INT8 => Some(Precision::Tokens),
            _ if rounding == ActivationRounding::Coarse && ty.block_len() == COARSE_GROUP => {
                Some(Precision::Coarse)
            }
            _ if ty.is_quantized() => Some(Precision::Bytes),
            TensorType::F16 | TensorType::BF16 if words => Some(Precision::Words),
            _ => None,
        };
        types.into_iter().filter_map(of_one).min()
    }
}

/// How far activations may be rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActivationRounding {
    /// As is fast and close: 32 share a scale where weights are quantised.
    #[default]
    Fine,
    /// Where all weights that they meet come in blocks of 256, as many share a scale: what llama.cpp does.
    Coarse,
    /// Not at all.
    Float,
}

/// Rows of activations quantised to integers: `x ≈ scale · q`, one scale for 32 bytes or 64 words.
///
/// Beside bytes lie, for formats whose weights have an offset, the sums of each group already
/// multiplied by its scale; for kernels that multiply weights as `w + 128`, what takes the 128 back; and
/// the sum of a row. Where more elements share a scale, each group of 32 has it.
/// Quantise with [`crate::Kernels::quantize_rows`].
#[derive(Default)]
pub struct QuantizedRows {
    rows: usize,
    k: usize,
    precision: Precision,
    quants: Vec<i8>,
    words: Vec<i16>,
    scales: Vec<f32>,
    sums: Vec<f32>,
    half_sums: Vec<f32>,
    moved: Vec<i32>,
    totals: Vec<i32>,
}

impl QuantizedRows {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for `rows` rows of `k` elements; what they hold is unspecified until quantised.
    ///
    /// # Panics
    /// If `k` is 0, or not a multiple of 32 for bytes.
    pub fn resize(&mut self, precision: Precision, rows: usize, k: usize) {
        let whole = precision == Precision::Words || k.is_multiple_of(GROUP);
        assert!(k > 0 && whole, "rows of {k} elements");
        (self.precision, self.rows, self.k) = (precision, rows, k);
        let (quants, groups) = (rows * self.quant_stride(), rows * self.group_stride());
        super::grown(&mut self.scales, groups);
        match precision {
            Precision::Bytes | Precision::Coarse | Precision::Tokens => {
                super::grown(&mut self.totals, rows);
                super::grown(&mut self.quants, quants);
                super::grown(&mut self.sums, groups);
                super::grown(&mut self.half_sums, 2 * groups);
                super::grown(&mut self.moved, 2 * groups);
            }
            Precision::Words => {
                super::grown(&mut self.words, quants);
            }
        }
    }

    /// How the rows are rounded.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements in a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// All rows, to be quantised.
    pub fn rows_mut(&mut self) -> QuantizedRowsMut<'_> {
        let rows = 0..self.rows;
        // SAFETY: the only part that is taken while `self` is borrowed.
        unsafe { self.shared().rows(rows) }
    }

    /// A handle from which several threads each take rows of their own to quantise.
    pub fn shared(&mut self) -> SharedRows<'_> {
        SharedRows {
            rows: self.rows,
            k: self.k,
            precision: self.precision,
            quant_stride: self.quant_stride(),
            group_stride: self.group_stride(),
            quants: self.quants.as_mut_ptr(),
            words: self.words.as_mut_ptr(),
            scales: self.scales.as_mut_ptr(),
            sums: self.sums.as_mut_ptr(),
            half_sums: self.half_sums.as_mut_ptr(),
            moved: self.moved.as_mut_ptr(),
            totals: self.totals.as_mut_ptr(),
            borrow: PhantomData,
        }
    }

    /// Whether products with this weight add up integers over a whole row: both sides have one scale a
    /// row, and the sum fits.
    pub(crate) fn is_one_scale_with(&self, weight: &WeightRows<'_>) -> bool {
        /// So many products of 255 and 128 fit into 32 bits.
        const MAX_K: usize = 1 << 16;
        self.precision == Precision::Tokens && weight.ty() == TensorType::INT8 && self.k < MAX_K
    }

    /// The integers of one row.
    pub fn quants(&self, row: usize) -> &[i8] {
        assert!(row < self.rows && self.precision.is_bytes());
        &self.quants[row * self.quant_stride()..][..self.k]
    }

    /// The same rounded to words, with zeros up to the end of the last group.
    pub fn words(&self, row: usize) -> &[i16] {
        assert!(row < self.rows && self.precision == Precision::Words);
        &self.words[row * self.quant_stride()..][..self.group_stride() * WORD_GROUP]
    }

    /// The scales of one row, one for 32 elements, or for 64 words.
    pub fn scales(&self, row: usize) -> &[f32] {
        assert!(row < self.rows);
        let scales = &self.scales[row * self.group_stride()..][..self.group_stride()];
        match self.precision {
            Precision::Bytes | Precision::Coarse | Precision::Tokens => &scales[..self.k / GROUP],
            Precision::Words => scales,
        }
    }

    /// The sums of each 32 elements of one row: scale × Σ quants.
    pub fn sums(&self, row: usize) -> &[f32] {
        assert!(row < self.rows && self.precision.is_bytes());
        &self.sums[row * self.group_stride()..][..self.k / GROUP]
    }

    /// The same for each 16 elements.
    pub fn half_sums(&self, row: usize) -> &[f32] {
        assert!(row < self.rows && self.precision.is_bytes());
        &self.half_sums[2 * row * self.group_stride()..][..2 * self.k / GROUP]
    }

    /// One row as floats.
    pub(crate) fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        let groups = self.quants(row).chunks_exact(GROUP).zip(self.scales(row));
        for ((quants, scale), out) in groups.zip(out.chunks_exact_mut(GROUP)) {
            quants
                .iter()
                .zip(out)
                .for_each(|(&q, out)| *out = scale * f32::from(q));
        }
    }

    /// The buffers as they are.
    pub(crate) fn raw(&self) -> RawRows {
        RawRows {
            k: self.k,
            quants: self.quants.as_ptr(),
            words: self.words.as_ptr(),
            quant_stride: self.quant_stride(),
            scales: self.scales.as_ptr(),
            sums: self.sums.as_ptr(),
            half_sums: self.half_sums.as_ptr(),
            moved: self.moved.as_ptr(),
            totals: self.totals.as_ptr(),
            group_stride: self.group_stride(),
        }
    }

    /// Integers from one row to the next: never a power of two, so that the rows which a tile kernel
    /// walks side by side do not fall into the same sets of the cache.
    pub(crate) fn quant_stride(&self) -> usize {
        self.k.next_multiple_of(64) + 64
    }

    /// Scales from one row to the next: whole vectors of eight, ending in zeros.
    pub(crate) fn group_stride(&self) -> usize {
        match self.precision {
            Precision::Bytes | Precision::Coarse | Precision::Tokens => {
                (self.k / GROUP).next_multiple_of(8)
            }
            Precision::Words => self.k.div_ceil(WORD_GROUP),
        }
    }
}

/// The buffers of a [`QuantizedRows`], for kernels.
#[derive(Clone, Copy)]
pub(crate) struct RawRows {
    pub(crate) k: usize,
    pub(crate) quants: *const i8,
    pub(crate) words: *const i16,
    /// Quants, or words, from one row to the next.
    pub(crate) quant_stride: usize,
    pub(crate) scales: *const f32,
    pub(crate) sums: *const f32,
    pub(crate) half_sums: *const f32,
    /// −128 times the sum of each 16 quants: see [`MOVED`].
    pub(crate) moved: *const i32,
    /// The sum of the quants of each row.
    pub(crate) totals: *const i32,
    /// Scales, sums and pairs of half sums and of `moved` from one row to the next.
    pub(crate) group_stride: usize,
}

/// Exclusive access to some rows of a [`QuantizedRows`].
pub struct QuantizedRowsMut<'a> {
    shared: SharedRows<'a>,
    range: Range<usize>,
}

/// One row to be quantised.
pub(crate) enum QuantizedRow<'a> {
    Bytes(ByteRow<'a>),
    Words(WordRow<'a>),
}

/// A row of words: whole groups, whose scales are all there are.
pub(crate) struct WordRow<'a> {
    pub(crate) words: &'a mut [i16],
    pub(crate) scales: &'a mut [f32],
}

impl WordRow<'_> {
    /// The scale of a group whose largest magnitude is `max`, and its inverse.
    pub(crate) fn scale_of(max: f32) -> (f32, f32) {
        let scale = max * (1.0 / WORD_MAX);
        // A scale too small to be inverted stands for a group of zeros.
        let inverse = if scale > f32::MIN_POSITIVE {
            WORD_MAX / max
        } else {
            0.0
        };
        (scale, inverse)
    }
}

/// A row of bytes. The slices of scales and sums have the zeros at their end too.
pub(crate) struct ByteRow<'a> {
    pub(crate) quants: &'a mut [i8],
    pub(crate) scales: &'a mut [f32],
    pub(crate) sums: &'a mut [f32],
    pub(crate) half_sums: &'a mut [f32],
    pub(crate) moved: &'a mut [i32],
    pub(crate) total: &'a mut i32,
    /// So many elements, whole groups, get the scale of the largest of them.
    pub(crate) sharing: usize,
}

impl ByteRow<'_> {
    /// Those of a row that share their scale from this group on, if they are more than the group.
    #[inline(always)]
    pub(crate) fn shared_from<'x>(&self, group: usize, x: &'x [f32]) -> Option<&'x [f32]> {
        let first = group * GROUP;
        let wide = self.sharing > GROUP && first.is_multiple_of(self.sharing);
        wide.then(|| &x[first..x.len().min(first + self.sharing)])
    }

    /// Writes the zeros after the last group.
    pub(crate) fn clear_padding(&mut self, groups: usize) {
        self.scales[groups..].fill(0.0);
        self.sums[groups..].fill(0.0);
        self.half_sums[2 * groups..].fill(0.0);
    }
}

impl QuantizedRowsMut<'_> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.range.len()
    }

    /// Elements in a row.
    pub fn k(&self) -> usize {
        self.shared.k
    }

    /// The parts of one row.
    pub(crate) fn row(&mut self, row: usize) -> QuantizedRow<'_> {
        assert!(row < self.range.len());
        let SharedRows {
            k,
            precision,
            quant_stride,
            group_stride,
            quants,
            words,
            scales,
            sums,
            half_sums,
            moved,
            totals,
            ..
        } = self.shared;
        let row = self.range.start + row;
        // SAFETY: the row is one of those this value has exclusive access to, and `resize` made
        // every buffer long enough for it.
        unsafe {
            use std::slice::from_raw_parts_mut as slice;
            let scales = slice(scales.add(row * group_stride), group_stride);
            match precision {
                Precision::Bytes | Precision::Coarse | Precision::Tokens => {
                    QuantizedRow::Bytes(ByteRow {
                        quants: slice(quants.add(row * quant_stride), k),
                        scales,
                        sums: slice(sums.add(row * group_stride), group_stride),
                        half_sums: slice(half_sums.add(2 * row * group_stride), 2 * group_stride),
                        moved: slice(moved.add(2 * row * group_stride), 2 * group_stride),
                        total: &mut *totals.add(row),
                        sharing: match precision {
                            Precision::Tokens => k,
                            Precision::Coarse => COARSE_GROUP,
                            _ => GROUP,
                        },
                    })
                }
                Precision::Words => QuantizedRow::Words(WordRow {
                    words: slice(words.add(row * quant_stride), group_stride * WORD_GROUP),
                    scales,
                }),
            }
        }
    }
}

/// A [`QuantizedRows`] that several threads fill at once, each in rows of its own.
#[derive(Clone, Copy)]
pub struct SharedRows<'a> {
    rows: usize,
    k: usize,
    precision: Precision,
    quant_stride: usize,
    group_stride: usize,
    quants: *mut i8,
    words: *mut i16,
    scales: *mut f32,
    sums: *mut f32,
    half_sums: *mut f32,
    moved: *mut i32,
    totals: *mut i32,
    borrow: PhantomData<&'a mut QuantizedRows>,
}

// SAFETY: elements are only reached through `rows`, whose caller promises disjoint ranges.
unsafe impl Send for SharedRows<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedRows<'_> {}

impl<'a> SharedRows<'a> {
    /// Exclusive access to `range` of the rows.
    ///
    /// # Safety
    /// While it lives, no other access to any of these rows may exist.
    ///
    /// # Panics
    /// If the rows are not all there.
    pub unsafe fn rows(&self, range: Range<usize>) -> QuantizedRowsMut<'a> {
        assert!(range.start <= range.end && range.end <= self.rows);
        QuantizedRowsMut {
            shared: *self,
            range,
        }
    }
}

/// Quantises one row.
pub(crate) fn quantize_row(x: &[f32], out: QuantizedRow<'_>) {
    match out {
        QuantizedRow::Bytes(out) => quantize_bytes(x, out),
        QuantizedRow::Words(out) => quantize_words(x, out),
    }
}

/// Each 64 elements so that the largest becomes ±[`WORD_MAX`]; zeros after the last.
fn quantize_words(x: &[f32], out: WordRow<'_>) {
    out.words[x.len()..].fill(0);
    for (g, (x, words)) in x
        .chunks(WORD_GROUP)
        .zip(out.words.chunks_exact_mut(WORD_GROUP))
        .enumerate()
    {
        let max = x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        let (scale, inverse) = WordRow::scale_of(max);
        out.scales[g] = scale;
        for (&x, word) in x.iter().zip(words) {
            *word = (x * inverse).round_ties_even() as i16;
        }
    }
}

/// Those that share a scale so that the largest becomes ±127.
fn quantize_bytes(x: &[f32], mut out: ByteRow<'_>) {
    let largest = |x: &[f32]| x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let mut common = None;
    *out.total = 0;
    for (g, group) in x.chunks_exact(GROUP).enumerate() {
        common = out.shared_from(g, x).map(largest).or(common);
        let max = common.unwrap_or_else(|| largest(group));
        let scale = max / 127.0;
        // A scale too small to be inverted stands for a group of zeros.
        let inverse = if scale > f32::MIN_POSITIVE {
            1.0 / scale
        } else {
            0.0
        };
        out.scales[g] = scale;
        let quants = &mut out.quants[g * GROUP..][..GROUP];
        for (&x, q) in group.iter().zip(quants.iter_mut()) {
            *q = (x * inverse).round_ties_even() as i8;
        }
        let mut sum = 0;
        for (half, quants) in quants.chunks_exact(GROUP / 2).enumerate() {
            let half_sum: i32 = quants.iter().map(|&q| i32::from(q)).sum();
            out.half_sums[2 * g + half] = scale * half_sum as f32;
            out.moved[2 * g + half] = MOVED * half_sum;
            sum += half_sum;
        }
        out.sums[g] = scale * sum as f32;
        *out.total += sum;
    }
    out.clear_padding(x.len() / GROUP);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_within_half_a_step() {
        let x: Vec<f32> = (0..64).map(|i| ((i * 37) % 64) as f32 - 31.5).collect();
        let mut rows = QuantizedRows::new();
        rows.resize(Precision::Bytes, 1, 64);
        quantize_row(&x, rows.rows_mut().row(0));
        let mut back = [0.0; 64];
        rows.dequantize_row(0, &mut back);
        for (x, y) in x.iter().zip(back) {
            assert!((x - y).abs() <= 31.5 / 127.0 * 0.500_1, "{x} {y}");
        }
        let sum: f32 = back[32..].iter().sum();
        assert!((rows.sums(0)[1] - sum).abs() < 1e-3);
        assert!((rows.half_sums(0)[2] + rows.half_sums(0)[3] - sum).abs() < 1e-3);
    }

    /// Inputs that several matrices share are rounded as the one that wants it most exact would have it.
    #[test]
    fn only_blocks_of_256_take_coarse_activations() {
        use TensorType::{F16, INT8, IQ2_XXS, IQ4_NL, Q4_K, Q6_K, Q8_0};
        let coarse = |types: &[TensorType]| {
            Precision::of(types.iter().copied(), true, ActivationRounding::Coarse)
        };
        assert_eq!(coarse(&[Q4_K, Q6_K, IQ2_XXS]), Some(Precision::Coarse));
        assert_eq!(coarse(&[Q4_K, Q8_0]), Some(Precision::Bytes));
        assert_eq!(coarse(&[IQ4_NL]), Some(Precision::Bytes));
        assert_eq!(coarse(&[INT8]), Some(Precision::Tokens));
        assert_eq!(coarse(&[F16]), Some(Precision::Words));
        for ty in [Q4_K, Q8_0, INT8, F16] {
            let of = |rounding| Precision::of([ty], true, rounding);
            assert_eq!(of(ActivationRounding::Float), None);
            assert_ne!(of(ActivationRounding::Fine), Some(Precision::Coarse));
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        let mut rows = QuantizedRows::new();
        rows.resize(Precision::Bytes, 2, 32);
        let mut part = rows.rows_mut();
        quantize_row(&[0.0; 32], part.row(1));
        assert!(rows.quants(1).iter().all(|&q| q == 0) && rows.scales(1) == [0.0]);
    }
}
