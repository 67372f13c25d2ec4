//! Matrix product of weights in any format with a batch of activations: arguments and reference
//! implementation.
//!
//! Quantized weights are multiplied in integers, with activations quantized to 8 bits ([`QuantizedRows`]), 32
//! to a scale unless [`ActivationQuant`] says otherwise. Weights of 16-bit floats are multiplied in floats
//! with few tokens, and with many in 16-bit integers; weights of other floats always in floats. One call
//! computes some rows of the weight for every token; threads divide the rows among them.

mod rows;

pub use rows::{ActivationFormat, ActivationQuant, QuantizedRows, QuantizedRowsMut, SharedRows};
pub(crate) use rows::{
    GROUP, I8Row, I16_GROUP, I16_LIMIT, I16Row, QuantizedRow, RawRows, ZERO_POINT,
    quantize_activation_row,
};

use crate::out::TileMut;
use crate::quant::{self, TensorType};

/// Some rows of a weight matrix, in the format of the file.
#[derive(Clone, Copy)]
pub struct WeightRows<'a> {
    ty: TensorType,
    k: usize,
    row_bytes: usize,
    data: &'a [u8],
}

impl<'a> WeightRows<'a> {
    /// Rows of `k` elements of type `ty`, or `None` if a row is not whole blocks or `data` is not whole rows.
    pub fn new(ty: TensorType, k: usize, data: &'a [u8]) -> Option<Self> {
        let row_bytes = usize::try_from(ty.bytes_for(k as u64)?).ok()?;
        let whole = row_bytes > 0 && data.len().is_multiple_of(row_bytes);
        whole.then_some(Self {
            ty,
            k,
            row_bytes,
            data,
        })
    }

    /// The format.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Elements in a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.data.len() / self.row_bytes
    }

    /// Bytes in a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The bytes of all rows.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// The bytes of one row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &'a [u8] {
        &self.data[row * self.row_bytes..][..self.row_bytes]
    }

    /// Some of the rows.
    ///
    /// # Panics
    /// If they are not all there.
    pub fn slice(&self, rows: std::ops::Range<usize>) -> WeightRows<'a> {
        let data = &self.data[rows.start * self.row_bytes..rows.end * self.row_bytes];
        Self { data, ..*self }
    }
}

/// Input of a matrix product: rows (tokens) of `k` elements, as floats and, if quantized weights need them,
/// as integers.
#[derive(Clone, Copy)]
pub struct Activations<'a> {
    floats: &'a [f32],
    k: usize,
    quantized: Option<&'a QuantizedRows>,
    batch_invariant: bool,
}

impl<'a> Activations<'a> {
    /// For weights of floats, and for formats without an integer kernel.
    ///
    /// # Panics
    /// If `floats` is not whole rows of `k`.
    pub fn floats(floats: &'a [f32], k: usize) -> Self {
        assert!(
            k > 0 && floats.len().is_multiple_of(k),
            "{} / {k}",
            floats.len()
        );
        Self {
            floats,
            k,
            quantized: None,
            batch_invariant: false,
        }
    }

    /// For any weight: `quantized` holds the same rows.
    ///
    /// # Panics
    /// If the two differ in shape.
    pub fn new(floats: &'a [f32], quantized: &'a QuantizedRows) -> Self {
        let k = quantized.k();
        assert_eq!(floats.len(), quantized.rows() * k);
        Self {
            floats,
            k,
            quantized: Some(quantized),
            batch_invariant: false,
        }
    }

    /// Makes the products of each row the same, to the last bit, as if it were the only row. Slower for many
    /// rows: tiles add in another order than the product of a single row.
    pub fn batch_invariant(self, batch_invariant: bool) -> Self {
        Self {
            batch_invariant,
            ..self
        }
    }

    /// Number of rows (tokens).
    pub fn rows(&self) -> usize {
        self.floats.len() / self.k
    }

    /// Elements in a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// True if rows are multiplied by the kernel for single rows: up to `max_tokens` of them, or any number
    /// if the product must be batch invariant.
    pub(crate) fn uses_gemv(&self, max_tokens: usize) -> bool {
        self.batch_invariant || self.rows() <= max_tokens
    }

    /// True if the products of each row must be the same as if it were the only row.
    pub(crate) fn is_batch_invariant(&self) -> bool {
        self.batch_invariant
    }

    /// Some of the rows, as floats.
    pub(crate) fn float_rows(&self, rows: std::ops::Range<usize>) -> Activations<'a> {
        Activations::floats(&self.floats[rows.start * self.k..rows.end * self.k], self.k)
    }

    /// One row as floats.
    pub(crate) fn float_row(&self, row: usize) -> &'a [f32] {
        &self.floats[row * self.k..][..self.k]
    }

    /// All rows as floats, one after the other.
    pub(crate) fn all_floats(&self) -> &'a [f32] {
        self.floats
    }

    /// The rows quantized to 8 bits, if they are.
    pub(crate) fn quantized_i8(&self) -> Option<&'a QuantizedRows> {
        self.quantized.filter(|rows| rows.format().is_i8())
    }

    /// The rows quantized to 16 bits, if they are.
    pub(crate) fn quantized_i16(&self) -> Option<&'a QuantizedRows> {
        self.quantized
            .filter(|rows| rows.format() == ActivationFormat::I16Block64)
    }
}

/// Operation on the results of a matrix product: adds a bias, and stores them or adds them to the output.
#[derive(Clone, Copy, Default)]
pub struct Epilogue<'a> {
    /// One number per row of the weight.
    pub bias: Option<&'a [f32]>,
    /// Adds the product to the output (a residual) instead of replacing it.
    pub accumulate: bool,
}

impl Epilogue<'_> {
    /// Replaces the output by the product.
    pub const STORE: Epilogue<'static> = Epilogue {
        bias: None,
        accumulate: false,
    };
    /// Adds the product to the output.
    pub const ACCUMULATE: Epilogue<'static> = Epilogue {
        bias: None,
        accumulate: true,
    };

    /// Writes one element of the result.
    #[inline(always)]
    pub(crate) fn write(&self, out: &mut f32, weight_row: usize, value: f32) {
        let value = value + self.bias.map_or(0.0, |bias| bias[weight_row]);
        *out = if self.accumulate { *out + value } else { value };
    }

    /// Writes the products of weight rows from `first` on, as many as `out` has room for.
    #[inline(always)]
    pub(crate) fn write_rows<const N: usize>(
        &self,
        out: &mut [f32],
        first: usize,
        values: &[f32; N],
    ) {
        let out = &mut out[first..];
        // The common case of all `N` and no bias has a constant length, which needs no call to copy.
        if let (Some(out), None) = (out.first_chunk_mut::<N>(), self.bias) {
            if self.accumulate {
                out.iter_mut()
                    .zip(values)
                    .for_each(|(out, value)| *out += value);
            } else {
                *out = *values;
            }
            return;
        }
        let n = out.len().min(values.len());
        for (i, (out, &value)) in out[..n].iter_mut().zip(&values[..n]).enumerate() {
            self.write(out, first + i, value);
        }
    }
}

/// Working memory of a thread, which grows as needed and is reused.
#[derive(Default)]
pub struct Scratch {
    pub(crate) floats: Vec<f32>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) scales: Vec<f32>,
    pub(crate) part: Vec<f32>,
}

impl Scratch {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// `n` floats of unspecified value.
    pub(crate) fn floats(&mut self, n: usize) -> &mut [f32] {
        grown(&mut self.floats, n)
    }
}

/// The first `n` elements of a buffer, which grows if it is too short.
pub(crate) fn grown<T: Default + Clone>(buffer: &mut Vec<T>, n: usize) -> &mut [T] {
    if buffer.len() < n {
        buffer.resize(n, T::default());
    }
    &mut buffer[..n]
}

/// Dequantizes whole blocks, of as many elements as `out`.
pub(crate) fn dequantize(ty: TensorType, bytes: &[u8], out: &mut [f32]) {
    quant::dequantize(ty, bytes, out).expect("as many whole blocks as the output has elements");
}

/// `out[t][r] = weight row r · activation row t`, for shapes that have been checked.
///
/// Quantized weights use the quantized activations if there are any, as the SIMD kernels do, but in float
/// arithmetic.
pub(crate) fn matmul(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    /// Weight rows that are dequantized together and multiplied with each token.
    const PANEL: usize = 16;
    let k = weight.k();
    let quantized = acts.quantized_i8().filter(|_| weight.ty().is_quantized());
    let (panel, act) = scratch.floats((PANEL + 1) * k).split_at_mut(PANEL * k);
    for first in (0..weight.rows()).step_by(PANEL) {
        let rows = first..weight.rows().min(first + PANEL);
        for (r, unpacked) in rows.clone().zip(panel.chunks_exact_mut(k)) {
            dequantize(weight.ty(), weight.row(r), unpacked);
        }
        for t in 0..acts.rows() {
            let act = match quantized {
                Some(quantized) => {
                    quantized.dequantize_row(t, act);
                    &*act
                }
                None => acts.float_row(t),
            };
            for (r, row) in rows.clone().zip(panel.chunks_exact(k)) {
                epilogue.write(&mut out.row(t)[r], r, super::elementwise::dot(row, act));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applies_bias_and_accumulates() {
        let weight: Vec<u8> = [1.0f32, 2.0, 3.0, -1.0, 0.5, 0.0]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        let weight = WeightRows::new(TensorType::F32, 3, &weight).unwrap();
        let input = [1.0, 1.0, 1.0, 2.0, 0.0, -1.0];
        let acts = Activations::floats(&input, 3);
        let mut out = [100.0; 4];
        let epilogue = Epilogue {
            bias: Some(&[10.0, 20.0]),
            accumulate: true,
        };
        matmul(
            weight,
            &acts,
            epilogue,
            TileMut::new(&mut out, 2),
            &mut Scratch::new(),
        );
        assert_eq!(out, [116.0, 119.5, 109.0, 118.0]);
    }

    #[test]
    fn partial_blocks_and_rows_are_rejected() {
        assert!(WeightRows::new(TensorType::Q4_K, 255, &[0; 144]).is_none());
        assert!(WeightRows::new(TensorType::Q4_K, 256, &[0; 145]).is_none());
        assert_eq!(
            WeightRows::new(TensorType::Q4_K, 256, &[0; 288])
                .unwrap()
                .rows(),
            2
        );
    }
}
