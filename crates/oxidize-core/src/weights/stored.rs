//! Matrices as stored in a file. Slices of rows are not copied; gathered and transposed matrices
//! are stored in memory.

use crate::file::TensorBytes;
use crate::io::SharedBytes;
use oxidize_kernels::quant::{self, TensorType};
use std::io;
use std::ops::Range;

/// Matrix or stack of matrices, in rows of `cols` elements.
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    pub(crate) cols: usize,
    pub(crate) bytes: TensorBytes,
}

/// Rows of a matrix: `runs` runs of `len` rows, with starts `stride` rows apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSlice {
    /// First row.
    pub start: usize,
    /// Rows of a run.
    pub len: usize,
    /// Distance between the starts of runs.
    pub stride: usize,
    /// Number of runs.
    pub runs: usize,
}

impl RowSlice {
    /// Consecutive rows.
    pub fn range(start: usize, len: usize) -> RowSlice {
        RowSlice {
            start,
            len,
            stride: len,
            runs: 1,
        }
    }

    fn ranges(self) -> impl Iterator<Item = Range<usize>> {
        (0..self.runs).map(move |run| {
            let start = self.start + run * self.stride;
            start..start + self.len
        })
    }

    /// Total number of rows.
    pub(crate) fn rows(self) -> usize {
        self.len * self.runs
    }
}

impl Stored {
    pub(crate) fn row_bytes(&self) -> usize {
        self.cols / self.ty.block_len() * self.ty.block_bytes()
    }

    /// Bytes of some rows: a slice if they are consecutive, else a copy.
    pub(crate) fn cut(&self, part: RowSlice) -> io::Result<TensorBytes> {
        let row = self.row_bytes();
        let outside = || io::Error::from(io::ErrorKind::UnexpectedEof);
        if part.runs == 1 {
            let bytes = part.start * row..(part.start + part.len) * row;
            return self.bytes.slice(bytes).ok_or_else(outside);
        }
        SharedBytes::build(part.rows() * row, |out| {
            let runs = out.chunks_exact_mut((part.len * row).max(1));
            for (out, rows) in runs.zip(part.ranges()) {
                let bytes = self.bytes.get(rows.start * row..rows.end * row);
                out.copy_from_slice(bytes.ok_or_else(outside)?);
            }
            Ok(())
        })
    }

    /// Copy with rows in another order.
    pub(crate) fn reordered(&self, order: impl Iterator<Item = usize>) -> io::Result<Stored> {
        let row = self.row_bytes();
        let outside = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let bytes = SharedBytes::build(self.bytes.len(), |out| {
            for (out, from) in out.chunks_exact_mut(row.max(1)).zip(order) {
                let bytes = self.bytes.get(from * row..(from + 1) * row);
                out.copy_from_slice(bytes.ok_or_else(outside)?);
            }
            Ok::<_, io::Error>(())
        })?;
        Ok(Stored {
            name: self.name.clone(),
            bytes,
            ..*self
        })
    }

    /// Transposes each of `n` matrices of `rows` rows, in memory.
    pub(crate) fn transposed(&self, n: usize, rows: usize) -> io::Result<Stored> {
        let cols = self.cols;
        // Quantization blocks run along rows, so quantized matrices are converted to f16.
        let (ty, bytes) = if self.ty.is_quantized() {
            (TensorType::F16, self.to_f16(n * rows)?)
        } else {
            (self.ty, self.bytes.clone())
        };
        let size = ty.block_bytes();
        let matrix = (rows * cols * size).max(1);
        let transposed = SharedBytes::build(bytes.len(), |out| {
            let matrices = bytes.chunks_exact(matrix);
            for (from, to) in matrices.zip(out.chunks_exact_mut(matrix)) {
                for row in 0..rows {
                    for col in 0..cols {
                        let element = &from[(row * cols + col) * size..][..size];
                        to[(col * rows + row) * size..][..size].copy_from_slice(element);
                    }
                }
            }
            Ok::<_, io::Error>(())
        })?;
        Ok(Stored {
            name: self.name.clone(),
            ty,
            cols: rows,
            bytes: transposed,
        })
    }

    /// Number of rows.
    pub(crate) fn n_rows(&self) -> usize {
        self.bytes.len() / self.row_bytes().max(1)
    }

    /// Copy with columns in another order.
    pub(crate) fn with_columns(&self, order: &[usize]) -> io::Result<Stored> {
        let rows = self.n_rows();
        let by_column = self.transposed(1, rows)?;
        let picked = Stored {
            name: by_column.name.clone(),
            bytes: pick_rows(&by_column, order)?,
            ..by_column
        };
        picked.transposed(1, order.len())
    }

    fn to_f16(&self, rows: usize) -> io::Result<TensorBytes> {
        let mut floats = vec![0.0; self.cols];
        SharedBytes::build(2 * rows * self.cols, |out| {
            let stored = self.bytes.chunks_exact(self.row_bytes().max(1));
            for (row, out) in stored.zip(out.chunks_exact_mut((2 * self.cols).max(1))) {
                quant::dequantize(self.ty, row, &mut floats)
                    .and_then(|()| quant::quantize(TensorType::F16, &floats, out))
                    .map_err(io::Error::other)?;
            }
            Ok(())
        })
    }
}

/// Bytes of the given rows, in this order.
pub(crate) fn pick_rows(stored: &Stored, order: &[usize]) -> io::Result<TensorBytes> {
    let row = stored.row_bytes();
    SharedBytes::build(order.len() * row, |out| {
        for (out, &from) in out.chunks_exact_mut(row.max(1)).zip(order) {
            let bytes = stored.bytes.get(from * row..(from + 1) * row);
            out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        }
        Ok(())
    })
}

/// Elements of a vector for the given rows.
pub(super) fn pick(vector: &[f32], part: RowSlice) -> impl Iterator<Item = f32> {
    part.ranges()
        .flat_map(move |rows| vector[rows].iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of two elements that encode row and column.
    fn stored(rows: u8) -> Stored {
        let floats: Vec<f32> = (0..rows)
            .flat_map(|row| [f32::from(row), f32::from(row) + 0.5])
            .collect();
        Stored {
            name: "matrix".into(),
            ty: TensorType::F32,
            cols: 2,
            bytes: bytemuck::cast_slice::<f32, u8>(&floats).to_vec().into(),
        }
    }

    fn floats(bytes: &TensorBytes) -> Vec<f32> {
        let number = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        bytes.chunks_exact(4).map(number).collect()
    }

    #[test]
    fn rows_are_cut_and_gathered() {
        let matrix = stored(6);
        let cut = matrix.cut(RowSlice::range(2, 2)).unwrap();
        assert_eq!(floats(&cut), [2.0, 2.5, 3.0, 3.5]);
        let every_third = RowSlice {
            start: 1,
            len: 1,
            stride: 3,
            runs: 2,
        };
        let gathered = matrix.cut(every_third).unwrap();
        assert_eq!(floats(&gathered), [1.0, 1.5, 4.0, 4.5]);
        let picked: Vec<f32> = pick(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], every_third).collect();
        assert_eq!(picked, [1.0, 4.0]);
        assert!(matrix.cut(RowSlice::range(5, 2)).is_err());
    }

    #[test]
    fn transposes_each_matrix_of_a_stack() {
        let transposed = stored(4).transposed(2, 2).unwrap();
        let expected = [0.0, 1.0, 0.5, 1.5, 2.0, 3.0, 2.5, 3.5];
        assert_eq!(floats(&transposed.bytes), expected);
    }
}
