//! [`Link`]: one tensor of a GGUF file, the Hugging Face tensors that it is made of, and what happens
//! to their elements on the way. It is data, so that [`super::back`] can walk it backwards.

use super::super::mxfp4;
use super::super::stored::{Stored, pick_rows};
use crate::error::{Error, Result};
use crate::file::{ModelFile, TensorBytes, TensorInfo};
use crate::io::SharedBytes;
use oxidize_kernels::quant::{self, TensorType};

/// A tensor of a GGUF file and its origin.
#[derive(Clone, Debug)]
pub(super) struct Link<'a> {
    /// Its name in GGUF.
    pub(super) name: String,
    /// Its dimensions there, slowest first.
    pub(super) dims: Vec<usize>,
    /// The tensors it is made of; several lie under each other.
    pub(super) parts: Vec<&'a TensorInfo>,
    /// Elements of a row of theirs; one where rows are single elements.
    pub(super) cols: usize,
    /// What is done to them.
    pub(super) form: Form,
}

/// What happens to the elements of a tensor, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Form {
    /// So many matrices are each transposed: the file keeps inputs × outputs.
    pub(super) transposed: Option<usize>,
    /// Only these rows, in this order.
    pub(super) rows: Option<Vec<usize>>,
    /// These columns, in this order.
    pub(super) columns: Option<Vec<usize>>,
    /// So many matrices are each transposed, of what is left.
    pub(super) flipped: Option<usize>,
    /// What becomes of each element.
    pub(super) change: Change,
}

/// What becomes of an element.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Change {
    /// Nothing.
    #[default]
    None,
    /// It is added to: files may leave a constant out of norms.
    Plus(f32),
    /// Minus its exponential: files may keep logarithms of rates.
    NegExp,
    /// It is multiplied.
    Times(f32),
    /// It is multiplied by its row's factor.
    TimesRow(Vec<f32>),
}

impl Change {
    /// Changes elements in rows of `cols`.
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

    /// What undoes it, element by element.
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

impl Link<'_> {
    /// Whether elements are where the file has them, as it has them.
    pub(super) fn is_plain(&self) -> bool {
        self.form == Form::default() && !self.parts.iter().any(|part| is_packed(part))
    }

    /// How its elements are stored.
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
        let moved = form.transposed.is_some() || form.columns.is_some() || form.flipped.is_some();
        match form.change {
            // Blocks that run along rows are taken apart.
            Change::None if moved && ty.is_quantized() => TensorType::F16,
            Change::None => ty,
            _ => TensorType::F32,
        }
    }

    /// Puts it together.
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
        if let Some(n) = self.form.flipped {
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

    /// The parts under each other, as the file has them.
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

/// Whether a tensor is the nibbles of packed weights, whose scales are in another.
pub(super) fn is_packed(info: &TensorInfo) -> bool {
    info.name.ends_with("_blocks") && info.ty == TensorType::U8
}

/// Rows and columns of a tensor: a vector is a matrix of one column.
pub(super) fn matrix(info: &TensorInfo) -> (usize, usize) {
    let mut dims = info.dims();
    if is_packed(info) {
        // Blocks of nibbles: experts, rows, blocks of a row, bytes of a block.
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

/// Nibbles and scales as blocks.
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

/// Floats as bytes.
pub(super) fn bytes_of(file: &ModelFile, floats: &[f32]) -> Result<TensorBytes> {
    let bytes: &[u8] = bytemuck::cast_slice(floats);
    SharedBytes::build(bytes.len(), |out| {
        out.copy_from_slice(bytes);
        Ok::<_, std::io::Error>(())
    })
    .map_err(Error::io(file.path()))
}
