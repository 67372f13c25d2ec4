//! [`TensorMapping`]: a tensor of a GGUF file, the Hugging Face tensors that it consists of, and the
//! transformations of their elements. Mappings are data, so that [`super::gguf_to_hf`] can invert
//! them.

use crate::error::{Error, Result};
use crate::file::{ModelFile, TensorBytes, TensorInfo};
use crate::io::SharedBytes;
use crate::weights::mxfp4;
use crate::weights::stored::{Stored, pick_rows};
use oxidize_kernels::quant::{self, TensorType};

/// GGUF tensor and its sources.
#[derive(Clone, Debug)]
pub(super) struct TensorMapping<'a> {
    /// Name in GGUF.
    pub(super) name: String,
    /// Shape in GGUF, slowest-varying first.
    pub(super) dims: Vec<usize>,
    /// Source tensors, which are concatenated by rows.
    pub(super) parts: Vec<&'a TensorInfo>,
    /// Elements of a source row; 1 if rows are single elements.
    pub(super) cols: usize,
    /// Transformation.
    pub(super) form: Form,
}

/// Transformation of the elements, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Form {
    /// Number of matrices that are transposed first, because the file stores inputs × outputs.
    pub(super) transposed: Option<usize>,
    /// Selected rows, in this order.
    pub(super) rows: Option<Vec<usize>>,
    /// Selected columns, in this order.
    pub(super) columns: Option<Vec<usize>>,
    /// Number of matrices that are transposed last.
    pub(super) transposed_last: Option<usize>,
    /// Transformation of each element.
    pub(super) change: Change,
}

/// Transformation of an element.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Change {
    /// Unchanged.
    #[default]
    None,
    /// Adds a constant, which files may omit from norms.
    Plus(f32),
    /// `−e^x`, for decay rates stored as logarithms.
    NegExp,
    /// Multiplies by a constant.
    Times(f32),
    /// Multiplies by a factor of the row.
    TimesRow(Vec<f32>),
}

impl Change {
    /// Applies the transformation to rows of `cols` elements.
    pub(super) fn apply(&self, floats: &mut [f32], cols: usize) {
        match self {
            Change::None => {}
            Change::Plus(offset) => floats.iter_mut().for_each(|x| *x += offset),
            Change::NegExp => floats.iter_mut().for_each(|x| *x = -x.exp()),
            Change::Times(factor) => floats.iter_mut().for_each(|x| *x *= factor),
            Change::TimesRow(factors) => {
                for (row, factor) in floats.chunks_mut(cols.max(1)).zip(factors) {
                    row.iter_mut().for_each(|x| *x *= factor);
                }
            }
        }
    }

    /// Applies the inverse transformation.
    pub(super) fn undo(&self, floats: &mut [f32], cols: usize) {
        match self {
            Change::None => {}
            Change::Plus(offset) => Change::Plus(-offset).apply(floats, cols),
            Change::NegExp => floats.iter_mut().for_each(|x| *x = (-*x).ln()),
            Change::Times(factor) => floats.iter_mut().for_each(|x| *x /= factor),
            Change::TimesRow(factors) => {
                let inverse = factors.iter().map(|factor| 1.0 / factor).collect();
                Change::TimesRow(inverse).apply(floats, cols);
            }
        }
    }
}

impl TensorMapping<'_> {
    /// True if the bytes of the sources are used unchanged.
    pub(super) fn is_plain(&self) -> bool {
        self.form == Form::default() && !self.parts.iter().any(|part| is_packed(part))
    }

    /// Type of the result.
    pub(super) fn ty(&self) -> TensorType {
        let form = &self.form;
        let Some(first) = self.parts.first() else {
            return TensorType::F32;
        };
        let ty = if is_packed(first) {
            TensorType::MXFP4
        } else {
            first.ty
        };
        let reordered =
            form.transposed.is_some() || form.columns.is_some() || form.transposed_last.is_some();
        match form.change {
            // Quantized blocks run along rows and have to be converted for reordered columns.
            Change::None if reordered && ty.is_quantized() => TensorType::F16,
            Change::None => ty,
            _ => TensorType::F32,
        }
    }

    /// Computes the tensor.
    pub(super) fn make(&self, file: &ModelFile) -> Result<TensorBytes> {
        let io = |error| Error::io(file.path())(error);
        let mut stored = self.stored(file)?;
        if let Some(n) = self.form.transposed {
            let rows = stored.n_rows() / n.max(1);
            stored = stored.transposed(n, rows).map_err(io)?;
        }
        if let Some(rows) = &self.form.rows {
            stored.bytes = pick_rows(&stored, rows).map_err(io)?;
        }
        if let Some(columns) = &self.form.columns {
            stored = stored.with_columns(columns).map_err(io)?;
        }
        if let Some(n) = self.form.transposed_last {
            let rows = stored.n_rows() / n.max(1);
            stored = stored.transposed(n, rows).map_err(io)?;
        }
        if self.form.change == Change::None {
            return Ok(stored.bytes);
        }
        let mut floats = vec![0.0; stored.n_rows() * stored.cols];
        let ty = stored.ty;
        quant::dequantize(ty, &stored.bytes, &mut floats).map_err(|error| Error::Dequantize {
            path: file.path().to_path_buf(),
            name: stored.name.clone(),
            error,
        })?;
        self.form.change.apply(&mut floats, stored.cols);
        bytes_of(file, &floats)
    }

    /// Concatenated sources as stored in the file.
    fn stored(&self, file: &ModelFile) -> Result<Stored> {
        let mut all = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            all.push(match is_packed(part) {
                true => unpacked(file, part)?,
                false => file.data(part)?,
            });
        }
        let bytes = match all.as_slice() {
            [one] => one.clone(),
            several => TensorBytes::from(
                several
                    .iter()
                    .flat_map(|b| b.iter().copied())
                    .collect::<Vec<u8>>(),
            ),
        };
        let first = self.parts.first();
        let ty = match first {
            Some(part) if is_packed(part) => TensorType::MXFP4,
            Some(part) => part.ty,
            None => TensorType::F32,
        };
        Ok(Stored {
            name: first.map(|part| part.name.clone()).unwrap_or_default(),
            ty,
            cols: self.cols,
            bytes,
        })
    }
}

/// True for the values of MXFP4 weights whose scales are a separate tensor.
pub(super) fn is_packed(info: &TensorInfo) -> bool {
    info.name.ends_with("_blocks") && info.ty == TensorType::U8
}

/// Rows and columns of a tensor. A vector is a matrix of one column.
pub(super) fn matrix(info: &TensorInfo) -> (usize, usize) {
    let mut dims = info.dims();
    if is_packed(info) {
        // Dimensions are experts, rows, blocks of a row, bytes of a block.
        let half = dims.pop().unwrap_or(1);
        let blocks = dims.pop().unwrap_or(1);
        dims.push(2 * half * blocks);
    }
    let cols = if dims.len() > 1 {
        dims.pop().unwrap_or(1)
    } else {
        1
    };
    (dims.iter().product(), cols)
}

/// Combines MXFP4 values and scales to blocks.
fn unpacked(file: &ModelFile, nibbles: &TensorInfo) -> Result<TensorBytes> {
    let name = format!("{}_scales", nibbles.name.trim_end_matches("_blocks"));
    let scales = file.tensor(&name).ok_or_else(|| Error::NoTensor {
        path: file.path().to_path_buf(),
        name: name.clone(),
    })?;
    let (nibbles, scales) = (file.data(nibbles)?, file.data(scales)?);
    let bytes = scales.len() * TensorType::MXFP4.block_bytes();
    SharedBytes::build(bytes, |out| {
        mxfp4::pack(&nibbles, &scales, out);
        Ok::<_, std::io::Error>(())
    })
    .map_err(Error::io(file.path()))
}

/// Converts floats to bytes.
pub(super) fn bytes_of(file: &ModelFile, floats: &[f32]) -> Result<TensorBytes> {
    let bytes: &[u8] = bytemuck::cast_slice(floats);
    SharedBytes::build(bytes.len(), |out| {
        out.copy_from_slice(bytes);
        Ok::<_, std::io::Error>(())
    })
    .map_err(Error::io(file.path()))
}
