//! [`QuantizedRows`]: activations quantized to integers, in buffers that are reused.

use std::marker::PhantomData;
use std::ops::Range;

use super::WeightRows;
use crate::quant::TensorType;

/// Elements that share a scale.
pub(crate) const GROUP: usize = 32;

/// Elements that share a scale in [`ActivationFormat::I8Block256`]: those of a block of most weight formats.
const WIDE_GROUP: usize = 256;

/// 16-bit elements that share a scale.
pub(crate) const I16_GROUP: usize = 64;

/// The largest 16-bit element: the sum of [`I16_GROUP`] of its squares still fits into 32 bits.
pub(crate) const I16_LIMIT: f32 = 5792.0;

/// Factor of the zero-point compensation: weights `w` that are stored as `w + 128`, unsigned, make a dot
/// product too large by 128 times the sum of the activations.
pub(crate) const ZERO_POINT: i32 = -128;

/// Storage format of quantized activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ActivationFormat {
    /// 8-bit integers, one scale per 32 elements: for quantized weights.
    #[default]
    I8Block32,
    /// 8-bit integers, one scale per 256 elements: llama.cpp's choice for K-quants and IQ types.
    I8Block256,
    /// 8-bit integers, one scale per token: for weights with one scale per row.
    I8PerToken,
    /// 14-bit integers in `i16`, one scale per 64 elements: for F16 and BF16 weights, which are quantized
    /// the same way. A CPU multiplies twice as many 16-bit integers as floats per cycle, and the combined
    /// error is smaller than that of quant to half format.
    I16Block64,
}

impl ActivationFormat {
    /// True for the 8-bit formats.
    pub(crate) fn is_i8(self) -> bool {
        self != ActivationFormat::I16Block64
    }

    /// Format of the activations for products with weights of these types, or `None` for floats.
    /// `quantize_floats` permits 16-bit integers for weights of 16-bit floats. If the types need different
    /// formats, quantized weights decide, and among them the finest scales.
    pub(crate) fn of(
        types: impl IntoIterator<Item = TensorType>,
        quantize_floats: bool,
        quant: ActivationQuant,
    ) -> Option<ActivationFormat> {
        let of_one = |ty: TensorType| match ty {
            _ if quant == ActivationQuant::F32 => None,
            TensorType::INT8 => Some(ActivationFormat::I8PerToken),
            _ if quant == ActivationQuant::Block256 && ty.block_len() == WIDE_GROUP => {
                Some(ActivationFormat::I8Block256)
            }
            _ if ty.is_quantized() => Some(ActivationFormat::I8Block32),
            TensorType::F16 | TensorType::BF16 if quantize_floats => {
                Some(ActivationFormat::I16Block64)
            }
            _ => None,
        };
        types.into_iter().filter_map(of_one).min()
    }
}

/// Granularity at which activations are quantized before they are multiplied with quantized weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActivationQuant {
    /// One scale per 32 elements: fast and accurate.
    #[default]
    Block32,
    /// One scale per 256 elements where the weights come in blocks of 256, as in llama.cpp.
    Block256,
    /// No quantization: products are computed in f32.
    F32,
}

/// Rows of activations quantized to integers: `x ≈ scale · q`, in an [`ActivationFormat`].
///
/// 8-bit formats also store the sum of each group times its scale, for weights with minima; zero-point
/// compensation, for kernels that multiply weights as `w + 128`; and the sum of each row. Each group of 32
/// has a copy of its scale even if more elements share it. Quantize with
/// [`crate::Kernels::quantize_activations`].
#[derive(Default)]
pub struct QuantizedRows {
    rows: usize,
    k: usize,
    format: ActivationFormat,
    quants: Vec<i8>,
    quants_i16: Vec<i16>,
    scales: Vec<f32>,
    sums: Vec<f32>,
    half_sums: Vec<f32>,
    zero_point_sums: Vec<i32>,
    totals: Vec<i32>,
}

impl QuantizedRows {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for `rows` rows of `k` elements, whose contents are unspecified until they are quantized.
    ///
    /// # Panics
    /// If `k` is 0, or not a multiple of 32 for an 8-bit format.
    pub fn resize(&mut self, format: ActivationFormat, rows: usize, k: usize) {
        let whole = format == ActivationFormat::I16Block64 || k.is_multiple_of(GROUP);
        assert!(k > 0 && whole, "rows of {k} elements");
        (self.format, self.rows, self.k) = (format, rows, k);
        let (quants, groups) = (rows * self.quant_stride(), rows * self.group_stride());
        super::grown(&mut self.scales, groups);
        match format {
            ActivationFormat::I8Block32
            | ActivationFormat::I8Block256
            | ActivationFormat::I8PerToken => {
                super::grown(&mut self.totals, rows);
                super::grown(&mut self.quants, quants);
                super::grown(&mut self.sums, groups);
                super::grown(&mut self.half_sums, 2 * groups);
                super::grown(&mut self.zero_point_sums, 2 * groups);
            }
            ActivationFormat::I16Block64 => {
                super::grown(&mut self.quants_i16, quants);
            }
        }
    }

    /// Format of the rows.
    pub fn format(&self) -> ActivationFormat {
        self.format
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements in a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// All rows, to be quantized.
    pub fn rows_mut(&mut self) -> QuantizedRowsMut<'_> {
        let rows = 0..self.rows;
        // SAFETY: the result borrows `self` mutably, and no other access to its rows is created meanwhile.
        unsafe { self.shared().rows(rows) }
    }

    /// A handle from which several threads take rows to quantize, each its own.
    pub fn shared(&mut self) -> SharedRows<'_> {
        SharedRows {
            rows: self.rows,
            k: self.k,
            format: self.format,
            quant_stride: self.quant_stride(),
            group_stride: self.group_stride(),
            quants: self.quants.as_mut_ptr(),
            quants_i16: self.quants_i16.as_mut_ptr(),
            scales: self.scales.as_mut_ptr(),
            sums: self.sums.as_mut_ptr(),
            half_sums: self.half_sums.as_mut_ptr(),
            zero_point_sums: self.zero_point_sums.as_mut_ptr(),
            totals: self.totals.as_mut_ptr(),
            borrow: PhantomData,
        }
    }

    /// True if products with this weight add up integers over a whole row: both sides have one scale per row,
    /// and the sum fits into 32 bits.
    pub(crate) fn uses_row_scales(&self, weight: &WeightRows<'_>) -> bool {
        /// Number of products of 255 and 128 whose sum fits into 32 bits.
        const MAX_K: usize = 1 << 16;
        self.format == ActivationFormat::I8PerToken
            && weight.ty() == TensorType::INT8
            && self.k < MAX_K
    }

    /// The 8-bit integers of one row.
    pub fn quants(&self, row: usize) -> &[i8] {
        assert!(row < self.rows && self.format.is_i8());
        &self.quants[row * self.quant_stride()..][..self.k]
    }

    /// The 16-bit integers of one row, padded with zeros to the end of the last group.
    pub fn quants_i16(&self, row: usize) -> &[i16] {
        assert!(row < self.rows && self.format == ActivationFormat::I16Block64);
        &self.quants_i16[row * self.quant_stride()..][..self.group_stride() * I16_GROUP]
    }

    /// The scales of one row, one per 32 elements, or per 64 of 16 bits.
    pub fn scales(&self, row: usize) -> &[f32] {
        assert!(row < self.rows);
        let scales = &self.scales[row * self.group_stride()..][..self.group_stride()];
        match self.format {
            ActivationFormat::I8Block32
            | ActivationFormat::I8Block256
            | ActivationFormat::I8PerToken => &scales[..self.k / GROUP],
            ActivationFormat::I16Block64 => scales,
        }
    }

    /// Scale × Σ quants of each 32 elements of one row.
    pub fn sums(&self, row: usize) -> &[f32] {
        assert!(row < self.rows && self.format.is_i8());
        &self.sums[row * self.group_stride()..][..self.k / GROUP]
    }

    /// Scale × Σ quants of each 16 elements of one row.
    pub fn half_sums(&self, row: usize) -> &[f32] {
        assert!(row < self.rows && self.format.is_i8());
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

    /// Pointers to the buffers.
    pub(crate) fn raw(&self) -> RawRows {
        RawRows {
            k: self.k,
            quants: self.quants.as_ptr(),
            quants_i16: self.quants_i16.as_ptr(),
            quant_stride: self.quant_stride(),
            scales: self.scales.as_ptr(),
            sums: self.sums.as_ptr(),
            half_sums: self.half_sums.as_ptr(),
            zero_point_sums: self.zero_point_sums.as_ptr(),
            totals: self.totals.as_ptr(),
            group_stride: self.group_stride(),
        }
    }

    /// Integers from one row to the next: never a power of two, so that the rows that a tile kernel reads in
    /// parallel do not fall into the same sets of the cache.
    pub(crate) fn quant_stride(&self) -> usize {
        self.k.next_multiple_of(64) + 64
    }

    /// Scales from one row to the next: for 8-bit formats a multiple of eight, padded with zeros.
    pub(crate) fn group_stride(&self) -> usize {
        match self.format {
            ActivationFormat::I8Block32
            | ActivationFormat::I8Block256
            | ActivationFormat::I8PerToken => (self.k / GROUP).next_multiple_of(8),
            ActivationFormat::I16Block64 => self.k.div_ceil(I16_GROUP),
        }
    }
}

/// Pointers to the buffers of a [`QuantizedRows`], for kernels. Those of another format than the rows' may
/// dangle.
#[derive(Clone, Copy)]
pub(crate) struct RawRows {
    pub(crate) k: usize,
    pub(crate) quants: *const i8,
    pub(crate) quants_i16: *const i16,
    /// Integers from one row to the next.
    pub(crate) quant_stride: usize,
    pub(crate) scales: *const f32,
    pub(crate) sums: *const f32,
    pub(crate) half_sums: *const f32,
    /// Zero-point compensation: [`ZERO_POINT`] times the sum of each 16 quants.
    pub(crate) zero_point_sums: *const i32,
    /// The sum of the quants of each row.
    pub(crate) totals: *const i32,
    /// Scales, sums and pairs of half sums and of `zero_point_sums` from one row to the next.
    pub(crate) group_stride: usize,
}

/// Exclusive access to some rows of a [`QuantizedRows`].
pub struct QuantizedRowsMut<'a> {
    shared: SharedRows<'a>,
    range: Range<usize>,
}

/// One row to be quantized.
pub(crate) enum QuantizedRow<'a> {
    I8(I8Row<'a>),
    I16(I16Row<'a>),
}

/// A row of 16-bit integers, in whole groups.
pub(crate) struct I16Row<'a> {
    pub(crate) quants: &'a mut [i16],
    pub(crate) scales: &'a mut [f32],
}

impl I16Row<'_> {
    /// The scale of a group with largest magnitude `max`, and its inverse.
    pub(crate) fn scale_of(max: f32) -> (f32, f32) {
        let scale = max * (1.0 / I16_LIMIT);
        // A scale too small to be inverted makes a group of zeros.
        let inverse = if scale > f32::MIN_POSITIVE {
            I16_LIMIT / max
        } else {
            0.0
        };
        (scale, inverse)
    }
}

/// A row of 8-bit integers. The slices of scales and sums include the padding at their end.
pub(crate) struct I8Row<'a> {
    pub(crate) quants: &'a mut [i8],
    pub(crate) scales: &'a mut [f32],
    pub(crate) sums: &'a mut [f32],
    pub(crate) half_sums: &'a mut [f32],
    pub(crate) zero_point_sums: &'a mut [i32],
    pub(crate) total: &'a mut i32,
    /// Number of elements, a multiple of [`GROUP`], that share the scale of the largest of them.
    pub(crate) sharing: usize,
}

impl I8Row<'_> {
    /// The elements of a row that share a scale from this group on, if the group is their first and they are
    /// more than the group.
    #[inline(always)]
    pub(crate) fn shared_from<'x>(&self, group: usize, x: &'x [f32]) -> Option<&'x [f32]> {
        let first = group * GROUP;
        let wide = self.sharing > GROUP && first.is_multiple_of(self.sharing);
        wide.then(|| &x[first..x.len().min(first + self.sharing)])
    }

    /// Fills the padding after the last group with zeros.
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

    /// One row, to be quantized.
    pub(crate) fn row(&mut self, row: usize) -> QuantizedRow<'_> {
        assert!(row < self.range.len());
        let SharedRows {
            k,
            format,
            quant_stride,
            group_stride,
            quants,
            quants_i16,
            scales,
            sums,
            half_sums,
            zero_point_sums,
            totals,
            ..
        } = self.shared;
        let row = self.range.start + row;
        // SAFETY: `row` is below the end of a range to which this value has exclusive access, which
        // `SharedRows::rows` checked against the number of rows; `resize` made every buffer of the format
        // long enough for that number.
        unsafe {
            use std::slice::from_raw_parts_mut as slice;
            let scales = slice(scales.add(row * group_stride), group_stride);
            match format {
                ActivationFormat::I8Block32
                | ActivationFormat::I8Block256
                | ActivationFormat::I8PerToken => QuantizedRow::I8(I8Row {
                    quants: slice(quants.add(row * quant_stride), k),
                    scales,
                    sums: slice(sums.add(row * group_stride), group_stride),
                    half_sums: slice(half_sums.add(2 * row * group_stride), 2 * group_stride),
                    zero_point_sums: slice(
                        zero_point_sums.add(2 * row * group_stride),
                        2 * group_stride,
                    ),
                    total: &mut *totals.add(row),
                    sharing: match format {
                        ActivationFormat::I8PerToken => k,
                        ActivationFormat::I8Block256 => WIDE_GROUP,
                        _ => GROUP,
                    },
                }),
                ActivationFormat::I16Block64 => QuantizedRow::I16(I16Row {
                    quants: slice(quants_i16.add(row * quant_stride), group_stride * I16_GROUP),
                    scales,
                }),
            }
        }
    }
}

/// A [`QuantizedRows`] that several threads fill at the same time, each in its own rows.
#[derive(Clone, Copy)]
pub struct SharedRows<'a> {
    rows: usize,
    k: usize,
    format: ActivationFormat,
    quant_stride: usize,
    group_stride: usize,
    quants: *mut i8,
    quants_i16: *mut i16,
    scales: *mut f32,
    sums: *mut f32,
    half_sums: *mut f32,
    zero_point_sums: *mut i32,
    totals: *mut i32,
    borrow: PhantomData<&'a mut QuantizedRows>,
}

// SAFETY: elements are only reached through `rows`, whose caller guarantees disjoint ranges; the buffers are
// plain numbers.
unsafe impl Send for SharedRows<'_> {}
// SAFETY: a shared handle gives access to elements only through `rows`, whose caller guarantees disjoint
// ranges.
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

/// Quantizes one row.
pub(crate) fn quantize_activation_row(x: &[f32], out: QuantizedRow<'_>) {
    match out {
        QuantizedRow::I8(out) => quantize_i8(x, out),
        QuantizedRow::I16(out) => quantize_i16(x, out),
    }
}

/// Quantizes each 64 elements so that the largest becomes ±[`I16_LIMIT`], and pads with zeros.
fn quantize_i16(x: &[f32], out: I16Row<'_>) {
    out.quants[x.len()..].fill(0);
    for (g, (x, quants)) in x
        .chunks(I16_GROUP)
        .zip(out.quants.chunks_exact_mut(I16_GROUP))
        .enumerate()
    {
        let max = x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        let (scale, inverse) = I16Row::scale_of(max);
        out.scales[g] = scale;
        for (&x, q) in x.iter().zip(quants) {
            *q = (x * inverse).round_ties_even() as i16;
        }
    }
}

/// Quantizes the elements that share a scale so that the largest becomes ±127.
fn quantize_i8(x: &[f32], mut out: I8Row<'_>) {
    let largest = |x: &[f32]| x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let mut common = None;
    *out.total = 0;
    for (g, group) in x.chunks_exact(GROUP).enumerate() {
        common = out.shared_from(g, x).map(largest).or(common);
        let max = common.unwrap_or_else(|| largest(group));
        let scale = max / 127.0;
        // A scale too small to be inverted makes a group of zeros.
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
            out.zero_point_sums[2 * g + half] = ZERO_POINT * half_sum;
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
    fn quantization_error_is_at_most_half_a_step() {
        let x: Vec<f32> = (0..64).map(|i| ((i * 37) % 64) as f32 - 31.5).collect();
        let mut rows = QuantizedRows::new();
        rows.resize(ActivationFormat::I8Block32, 1, 64);
        quantize_activation_row(&x, rows.rows_mut().row(0));
        let mut back = [0.0; 64];
        rows.dequantize_row(0, &mut back);
        for (x, y) in x.iter().zip(back) {
            assert!((x - y).abs() <= 31.5 / 127.0 * 0.500_1, "{x} {y}");
        }
        let sum: f32 = back[32..].iter().sum();
        assert!((rows.sums(0)[1] - sum).abs() < 1e-3);
        assert!((rows.half_sums(0)[2] + rows.half_sums(0)[3] - sum).abs() < 1e-3);
    }

    /// Of matrices that share an input, the one that needs the finest scales decides.
    #[test]
    fn only_blocks_of_256_use_block256_activations() {
        use TensorType::{F16, INT8, IQ2_XXS, IQ4_NL, Q4_K, Q6_K, Q8_0};
        let block256 = |types: &[TensorType]| {
            ActivationFormat::of(types.iter().copied(), true, ActivationQuant::Block256)
        };
        assert_eq!(
            block256(&[Q4_K, Q6_K, IQ2_XXS]),
            Some(ActivationFormat::I8Block256)
        );
        assert_eq!(block256(&[Q4_K, Q8_0]), Some(ActivationFormat::I8Block32));
        assert_eq!(block256(&[IQ4_NL]), Some(ActivationFormat::I8Block32));
        assert_eq!(block256(&[INT8]), Some(ActivationFormat::I8PerToken));
        assert_eq!(block256(&[F16]), Some(ActivationFormat::I16Block64));
        for ty in [Q4_K, Q8_0, INT8, F16] {
            let of = |quant| ActivationFormat::of([ty], true, quant);
            assert_eq!(of(ActivationQuant::F32), None);
            assert_ne!(
                of(ActivationQuant::Block32),
                Some(ActivationFormat::I8Block256)
            );
        }
    }

    #[test]
    fn zeros_quantize_to_zeros() {
        let mut rows = QuantizedRows::new();
        rows.resize(ActivationFormat::I8Block32, 2, 32);
        let mut part = rows.rows_mut();
        quantize_activation_row(&[0.0; 32], part.row(1));
        assert!(rows.quants(1).iter().all(|&q| q == 0) && rows.scales(1) == [0.0]);
    }
}
