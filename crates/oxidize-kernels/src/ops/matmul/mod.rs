//! Matrix product of weights in any format with a batch of activations: its arguments and its
//! reference.
//!
//! Quantised weights meet activations quantised to 8 bits ([`QuantizedRows`]), 32 to a scale unless
//! [`ActivationRounding`] says otherwise, so that the multiplication is one of integers. Weights of
//! 16-bit floats meet a few activations as they are, and many rounded to words; others always as they are.
//! One call computes some rows of the weight for every token; threads share out the rows.

mod rows;

pub use rows::{ActivationRounding, Precision, QuantizedRows, QuantizedRowsMut, SharedRows};
pub(crate) use rows::{
    ByteRow, GROUP, MOVED, QuantizedRow, RawRows, WORD_GROUP, WORD_MAX, WordRow, quantize_row,
};

use crate::out::TileMut;
use crate::quant::{self, TensorType};

/// Some rows of a weight matrix, as they lie in the file.
#[derive(Clone, Copy)]
pub struct WeightRows<'a> {
    ty: TensorType,
    k: usize,
    row_bytes: usize,
    data: &'a [u8],
}

impl<'a> WeightRows<'a> {
    /// Rows of `k` elements of type `ty`. `None` if a row is not whole blocks or `data` not whole rows.
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

/// The input of a matrix product: `m` rows of `k`, as floats and, where quantised weights need
/// them, as integers.
#[derive(Clone, Copy)]
pub struct Activations<'a> {
    floats: &'a [f32],
    k: usize,
    quantized: Option<&'a QuantizedRows>,
    each_alone: bool,
}

impl<'a> Activations<'a> {
    /// For float weights, and for formats the kernels have no integer path for.
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
            each_alone: false,
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
            each_alone: false,
        }
    }

    /// Asks that the products of each row be, to the last bit, those it has when it is the only one.
    /// Slower for many rows: tiles add in another order than the product of a single row.
    pub fn each_alone(self, each_alone: bool) -> Self {
        Self { each_alone, ..self }
    }

    /// Number of rows (tokens).
    pub fn rows(&self) -> usize {
        self.floats.len() / self.k
    }

    /// Elements in a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Whether up to `direct` rows at a time are to be multiplied as a single one is, whatever their number.
    pub(crate) fn is_direct(&self, direct: usize) -> bool {
        self.each_alone || self.rows() <= direct
    }

    /// Whether each row is to have the products that it has when it is the only one.
    pub(crate) fn are_alone(&self) -> bool {
        self.each_alone
    }

    /// Some of the rows, as floats.
    pub(crate) fn floats_of(&self, rows: std::ops::Range<usize>) -> Activations<'a> {
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

    /// The rows quantised to bytes, where there are any.
    pub(crate) fn bytes(&self) -> Option<&'a QuantizedRows> {
        self.quantized.filter(|rows| rows.precision().is_bytes())
    }

    /// The rows rounded to words, where there are any.
    pub(crate) fn words(&self) -> Option<&'a QuantizedRows> {
        self.quantized
            .filter(|rows| rows.precision() == Precision::Words)
    }
}

/// What a matrix product does besides: the bias it adds, and whether to what was there.
#[derive(Clone, Copy, Default)]
pub struct Epilogue<'a> {
    /// One number per row of the weight.
    pub bias: Option<&'a [f32]>,
    /// Adds the product to the output (a residual) and does not replace it.
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

    /// Writes the products of weight rows from `first` on, as many of them as `out` has room for.
    #[inline(always)]
    pub(crate) fn write_rows<const N: usize>(
        &self,
        out: &mut [f32],
        first: usize,
        values: &[f32; N],
    ) {
        let out = &mut out[first..];
        // All of them, most often: the compiler then needs no call for so short a copy.
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

/// Working memory of a thread; grows to what it needs and stays.
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

    /// At least `n` floats, of any value.
    pub(crate) fn floats(&mut self, n: usize) -> &mut [f32] {
        grown(&mut self.floats, n)
    }
}

/// The first `n` elements of a buffer that grows when it is too short.
pub(crate) fn grown<T: Default + Clone>(buffer: &mut Vec<T>, n: usize) -> &mut [T] {
    if buffer.len() < n {
        buffer.resize(n, T::default());
    }
    &mut buffer[..n]
}

/// Whole blocks, of as many elements as `out`, as floats.
pub(crate) fn dequantize(ty: TensorType, bytes: &[u8], out: &mut [f32]) {
    quant::dequantize(ty, bytes, out).expect("the caller has counted the blocks");
}

/// `out[t][r] = weight row r · activation row t`, with the shapes already checked.
///
/// Quantised weights use the quantised activations where there are any, as the fast kernels do,
/// but in float arithmetic.
pub(crate) fn matmul(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    /// Weight rows that are unpacked together and meet each token once.
    const PANEL: usize = 16;
    let k = weight.k();
    let quantized = acts.bytes().filter(|_| weight.ty().is_quantized());
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
    fn multiplies_and_finishes() {
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
    fn rows_that_are_not_whole_are_refused() {
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
