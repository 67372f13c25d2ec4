//! [`QuantizedRows`]: activations as 8-bit integers, in a buffer that is used again.

use std::marker::PhantomData;
use std::ops::Range;

/// Elements that share a scale.
pub(crate) const GROUP: usize = 32;

/// Rows of activations quantised to 8 bits: `x ≈ scale · q`, one scale for 32 elements.
///
/// Beside them lie, for formats whose weights have an offset, the sums of each group already
/// multiplied by its scale. Quantise with [`crate::Kernels::quantize_rows`].
#[derive(Default)]
pub struct QuantizedRows {
    rows: usize,
    k: usize,
    quants: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<f32>,
    half_sums: Vec<f32>,
}

impl QuantizedRows {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for `rows` rows of `k` elements; what they hold is unspecified until quantised.
    ///
    /// # Panics
    /// If `k` is not a multiple of 32.
    pub fn resize(&mut self, rows: usize, k: usize) {
        assert!(k > 0 && k.is_multiple_of(GROUP), "rows of {k} elements");
        (self.rows, self.k) = (rows, k);
        let (quants, groups) = (rows * self.quant_stride(), rows * self.group_stride());
        super::grown(&mut self.quants, quants);
        super::grown(&mut self.scales, groups);
        super::grown(&mut self.sums, groups);
        super::grown(&mut self.half_sums, 2 * groups);
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
            quant_stride: self.quant_stride(),
            group_stride: self.group_stride(),
            quants: self.quants.as_mut_ptr(),
            scales: self.scales.as_mut_ptr(),
            sums: self.sums.as_mut_ptr(),
            half_sums: self.half_sums.as_mut_ptr(),
            borrow: PhantomData,
        }
    }

    /// The integers of one row.
    pub fn quants(&self, row: usize) -> &[i8] {
        assert!(row < self.rows);
        &self.quants[row * self.quant_stride()..][..self.k]
    }

    /// The scales of one row, one for 32 elements.
    pub fn scales(&self, row: usize) -> &[f32] {
        assert!(row < self.rows);
        &self.scales[row * self.group_stride()..][..self.k / GROUP]
    }

    /// The sums of each 32 elements of one row: scale × Σ quants.
    pub fn sums(&self, row: usize) -> &[f32] {
        assert!(row < self.rows);
        &self.sums[row * self.group_stride()..][..self.k / GROUP]
    }

    /// The same for each 16 elements.
    pub fn half_sums(&self, row: usize) -> &[f32] {
        assert!(row < self.rows);
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
            quant_stride: self.quant_stride(),
            scales: self.scales.as_ptr(),
            sums: self.sums.as_ptr(),
            half_sums: self.half_sums.as_ptr(),
            group_stride: self.group_stride(),
        }
    }

    /// Bytes from one row to the next: never a power of two, so that the rows which a tile kernel
    /// walks side by side do not fall into the same sets of the cache.
    pub(crate) fn quant_stride(&self) -> usize {
        self.k.next_multiple_of(64) + 64
    }

    /// Scales from one row to the next: whole vectors of eight, ending in zeros.
    pub(crate) fn group_stride(&self) -> usize {
        (self.k / GROUP).next_multiple_of(8)
    }
}

/// The buffers of a [`QuantizedRows`], for kernels.
#[derive(Clone, Copy)]
pub(crate) struct RawRows {
    pub(crate) k: usize,
    pub(crate) quants: *const i8,
    /// Bytes from one row of quants to the next.
    pub(crate) quant_stride: usize,
    pub(crate) scales: *const f32,
    pub(crate) sums: *const f32,
    pub(crate) half_sums: *const f32,
    /// Scales, sums and pairs of half sums from one row to the next.
    pub(crate) group_stride: usize,
}

/// Exclusive access to some rows of a [`QuantizedRows`].
pub struct QuantizedRowsMut<'a> {
    shared: SharedRows<'a>,
    range: Range<usize>,
}

/// One row to be quantised. The slices of scales and sums have the zeros at their end too.
pub(crate) struct QuantizedRow<'a> {
    pub(crate) quants: &'a mut [i8],
    pub(crate) scales: &'a mut [f32],
    pub(crate) sums: &'a mut [f32],
    pub(crate) half_sums: &'a mut [f32],
}

impl QuantizedRow<'_> {
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
            quant_stride,
            group_stride,
            quants,
            scales,
            sums,
            half_sums,
            ..
        } = self.shared;
        let row = self.range.start + row;
        // SAFETY: the row is one of those this value has exclusive access to, and `resize` made
        // every buffer long enough for it.
        unsafe {
            use std::slice::from_raw_parts_mut as slice;
            QuantizedRow {
                quants: slice(quants.add(row * quant_stride), k),
                scales: slice(scales.add(row * group_stride), group_stride),
                sums: slice(sums.add(row * group_stride), group_stride),
                half_sums: slice(half_sums.add(2 * row * group_stride), 2 * group_stride),
            }
        }
    }
}

/// A [`QuantizedRows`] that several threads fill at once, each in rows of its own.
#[derive(Clone, Copy)]
pub struct SharedRows<'a> {
    rows: usize,
    k: usize,
    quant_stride: usize,
    group_stride: usize,
    quants: *mut i8,
    scales: *mut f32,
    sums: *mut f32,
    half_sums: *mut f32,
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

/// Quantises one row: each 32 elements so that the largest becomes ±127.
pub(crate) fn quantize_row(x: &[f32], mut out: QuantizedRow<'_>) {
    for (g, x) in x.chunks_exact(GROUP).enumerate() {
        let max = x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        let scale = max / 127.0;
        // A scale too small to be inverted stands for a group of zeros.
        let inverse = if scale > f32::MIN_POSITIVE {
            1.0 / scale
        } else {
            0.0
        };
        out.scales[g] = scale;
        let quants = &mut out.quants[g * GROUP..][..GROUP];
        for (&x, q) in x.iter().zip(quants.iter_mut()) {
            *q = (x * inverse).round_ties_even() as i8;
        }
        let mut sum = 0;
        for (half, quants) in quants.chunks_exact(GROUP / 2).enumerate() {
            let half_sum: i32 = quants.iter().map(|&q| i32::from(q)).sum();
            out.half_sums[2 * g + half] = scale * half_sum as f32;
            sum += half_sum;
        }
        out.sums[g] = scale * sum as f32;
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
        rows.resize(1, 64);
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

    #[test]
    fn zeros_stay_zeros() {
        let mut rows = QuantizedRows::new();
        rows.resize(2, 32);
        let mut part = rows.rows_mut();
        quantize_row(&[0.0; 32], part.row(1));
        assert!(rows.quants(1).iter().all(|&q| q == 0) && rows.scales(1) == [0.0]);
    }
}
