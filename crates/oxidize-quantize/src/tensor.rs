//! [`Tensor`]: a tensor to write, read from its source a few rows at a time.

use std::ops::Range;
use std::path::{Path, PathBuf};

use oxidize_core::file::{DimOrder, ModelFile, TensorBytes, TensorInfo};
use oxidize_kernels::quant::{self, TensorType};

use crate::error::{Error, Result};

/// A tensor to write.
pub struct Tensor<'a> {
    /// Name in the output.
    pub name: String,
    /// Type in the source.
    pub ty: TensorType,
    /// Type in the output if the tensor is not quantized.
    pub unquantized_type: TensorType,
    /// Dimensions, fastest-varying first.
    pub shape: Vec<u64>,
    /// Names of the source tensors if they differ, for error messages.
    pub origins: Vec<String>,
    data: Data<'a>,
    /// The source file, for error messages.
    file: PathBuf,
}

/// Computes the elements of a tensor that is not stored in this form.
pub type Compute<'a> = Box<dyn Fn() -> Result<TensorBytes> + Send + Sync + 'a>;

enum Data<'a> {
    /// Stored in a file: one tensor, or parts of equal size stacked along the rows.
    File(&'a ModelFile, Vec<&'a TensorInfo>),
    /// Computed on demand.
    Computed(Compute<'a>),
}

impl<'a> Tensor<'a> {
    /// A tensor stored in a file.
    pub fn of_file(file: &'a ModelFile, info: &'a TensorInfo) -> Tensor<'a> {
        let shape = match info.order {
            DimOrder::FastestFirst => info.shape.clone(),
            DimOrder::FastestLast => info.shape.iter().rev().copied().collect(),
        };
        Tensor {
            name: info.name.clone(),
            ty: info.ty,
            unquantized_type: info.ty,
            shape,
            origins: Vec::new(),
            data: Data::File(file, vec![info]),
            file: file.path().to_path_buf(),
        }
    }

    /// Tensors of one type and size, stacked along the rows.
    pub fn stacked(
        file: &'a ModelFile,
        parts: Vec<&'a TensorInfo>,
        name: String,
        ty: TensorType,
        shape: Vec<u64>,
    ) -> Tensor<'a> {
        Tensor {
            name,
            ty,
            unquantized_type: ty,
            shape,
            origins: Vec::new(),
            data: Data::File(file, parts),
            file: file.path().to_path_buf(),
        }
    }

    /// A tensor computed by `compute` from tensors of `file`.
    pub fn computed(
        name: String,
        ty: TensorType,
        shape: Vec<u64>,
        file: &Path,
        compute: Compute<'a>,
    ) -> Tensor<'a> {
        Tensor {
            name,
            ty,
            unquantized_type: ty,
            shape,
            origins: Vec::new(),
            data: Data::Computed(compute),
            file: file.to_path_buf(),
        }
    }

    /// Elements per row.
    pub fn columns(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Number of rows of all matrices.
    pub fn rows(&self) -> u64 {
        self.shape.iter().skip(1).product()
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Number of matrices, more than one for stacked experts.
    pub fn matrices(&self) -> u64 {
        self.shape.iter().skip(2).product()
    }

    /// The source file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Name for an error about an element, with the name of the source tensor if it differs.
    fn name_for_error(&self, element: u64) -> String {
        // Stacked parts have the same size.
        let parts = self.origins.len() as u64;
        let part = u128::from(element) * u128::from(parts) / u128::from(self.elements().max(1));
        let origin = usize::try_from(part).ok();
        match origin.and_then(|part| self.origins.get(part)) {
            Some(origin) if *origin != self.name => {
                format!("{}`, in the source `{origin}", self.name)
            }
            _ => self.name.clone(),
        }
    }

    /// Opens the tensor for reading. A stored tensor is not read yet.
    pub fn open(&self) -> Result<Reader<'_>> {
        let computed = match &self.data {
            // Unpacked once rather than for each window of rows.
            Data::File(file, parts) if parts.iter().any(|part| file.is_packed(part)) => {
                let bytes = parts.iter().map(|part| part.bytes).sum();
                Some(read_across(file, parts, 0..bytes)?)
            }
            Data::File(..) => None,
            Data::Computed(compute) => Some(compute()?),
        };
        Ok(Reader {
            tensor: self,
            computed,
        })
    }
}

/// Reads rows of a tensor.
pub struct Reader<'a> {
    tensor: &'a Tensor<'a>,
    /// All bytes of a computed or unpacked tensor.
    computed: Option<TensorBytes>,
}

impl Reader<'_> {
    /// Returns the bytes of rows.
    pub fn bytes(&self, rows: Range<u64>) -> Result<TensorBytes> {
        let tensor = self.tensor;
        let row = tensor.ty.bytes_for(tensor.columns());
        let range =
            row.and_then(|row| Some(rows.start.checked_mul(row)?..rows.end.checked_mul(row)?));
        let outside =
            || oxidize_core::Error::io(tensor.file())(std::io::ErrorKind::UnexpectedEof.into());
        let range = range.ok_or_else(outside)?;
        match (&self.computed, &tensor.data) {
            (Some(bytes), _) => {
                let part = || {
                    let start = usize::try_from(range.start).ok()?;
                    bytes.slice(start..usize::try_from(range.end).ok()?)
                };
                Ok(part().ok_or_else(outside)?)
            }
            (None, Data::File(file, parts)) => Ok(read_across(file, parts, range)?),
            (None, Data::Computed(_)) => Err(outside().into()),
        }
    }

    /// Dequantizes rows. Returns an error for NaN or infinity; `first` is the index of the first element, for
    /// the message.
    pub fn floats(&self, bytes: &[u8], first: u64, out: &mut [f32]) -> Result<()> {
        let (file, tensor) = (self.tensor.file(), &self.tensor.name);
        quant::dequantize(self.tensor.ty, bytes, out).map_err(|error| Error::Encode {
            file: file.to_path_buf(),
            tensor: tensor.clone(),
            error,
        })?;
        if let Some(at) = first_not_finite(out) {
            return Err(Error::NotFinite {
                file: file.to_path_buf(),
                tensor: self.tensor.name_for_error(first + at as u64),
                element: first + at as u64,
                value: out[at],
            });
        }
        Ok(())
    }
}

/// Index of the first NaN or infinity. Tests many floats at a time, since almost all tensors have none.
fn first_not_finite(floats: &[f32]) -> Option<usize> {
    const LANES: usize = 64;
    const EXPONENT: u32 = 0x7f80_0000;
    const ONE: u32 = 0x0080_0000;
    // NaN and infinity have an exponent of all ones; adding one carries into the sign bit.
    let any_not_finite = |floats: &[f32]| {
        let carried = |float: &f32| (float.to_bits() & EXPONENT) + ONE;
        floats.iter().fold(0, |all, float| all | carried(float)) >> 31 == 1
    };
    let start = LANES * floats.chunks(LANES).position(any_not_finite)?;
    let at = floats[start..].iter().position(|float| !float.is_finite());
    at.map(|at| start + at)
}

/// Bytes of stacked tensors; the range counts from the start of the first.
fn read_across(
    file: &ModelFile,
    parts: &[&TensorInfo],
    range: Range<u64>,
) -> oxidize_core::Result<TensorBytes> {
    if let [one] = parts {
        return file.data_range(one, range);
    }
    let mut bytes = Vec::new();
    let mut start = 0u64;
    for part in parts {
        let end = start.saturating_add(part.bytes);
        let (from, to) = (range.start.max(start), range.end.min(end));
        if from < to {
            bytes.extend_from_slice(&file.data_range(part, from - start..to - start)?);
        }
        start = end;
    }
    Ok(TensorBytes::from(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_not_finite_finds_nan_and_infinity() {
        let usual = [0.0, -0.0, 1.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45];
        let mut floats: Vec<f32> = usual.iter().copied().cycle().take(200).collect();
        assert_eq!(first_not_finite(&floats), None);
        assert_eq!(first_not_finite(&[]), None);
        for value in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 63, 64, 130, 199] {
                let before = std::mem::replace(&mut floats[at], value);
                assert_eq!(first_not_finite(&floats), Some(at), "{value} at {at}");
                floats[at] = before;
            }
        }
    }
}
