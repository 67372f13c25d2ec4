//! [`Tensor`]: one tensor on its way from a file to another, read a few rows at a time.

use std::ops::Range;
use std::path::{Path, PathBuf};

use oxidize_core::file::{DimOrder, ModelFile, TensorBytes, TensorInfo};
use oxidize_kernels::quant::{self, TensorType};

use crate::error::{Error, Result};

/// A tensor that will be written.
pub struct Tensor<'a> {
    /// Its name in the output.
    pub name: String,
    /// How its elements are stored now.
    pub ty: TensorType,
    /// What it is written as where it is not one that is quantised.
    pub kept_as: TensorType,
    /// Its dimensions, the fastest-varying first.
    pub shape: Vec<u64>,
    /// What it is made of is called otherwise in the file it comes from: for messages.
    pub origins: Vec<String>,
    data: Data<'a>,
    /// The file it comes from, for messages.
    file: PathBuf,
}

/// Makes the elements of a tensor that no file has as such.
pub type Make<'a> = Box<dyn Fn() -> Result<TensorBytes> + Send + Sync + 'a>;

enum Data<'a> {
    /// In a file as it is: whole, or in parts of the same size that lie under each other.
    File(&'a ModelFile, Vec<&'a TensorInfo>),
    /// Put together when it is needed.
    Made(Make<'a>),
}

impl<'a> Tensor<'a> {
    /// A tensor of a file, unchanged.
    pub fn of_file(file: &'a ModelFile, info: &'a TensorInfo) -> Tensor<'a> {
        let shape = match info.order {
            DimOrder::FastestFirst => info.shape.clone(),
            DimOrder::FastestLast => info.shape.iter().rev().copied().collect(),
        };
        Tensor {
            name: info.name.clone(),
            ty: info.ty,
            kept_as: info.ty,
            shape,
            origins: Vec::new(),
            data: Data::File(file, vec![info]),
            file: file.path().to_path_buf(),
        }
    }

    /// Tensors of a file, of one type and size, under each other as one.
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
            kept_as: ty,
            shape,
            origins: Vec::new(),
            data: Data::File(file, parts),
            file: file.path().to_path_buf(),
        }
    }

    /// A tensor that `make` puts together; `file` is where its parts are from.
    pub fn made(
        name: String,
        ty: TensorType,
        shape: Vec<u64>,
        file: &Path,
        make: Make<'a>,
    ) -> Tensor<'a> {
        Tensor {
            name,
            ty,
            kept_as: ty,
            shape,
            origins: Vec::new(),
            data: Data::Made(make),
            file: file.to_path_buf(),
        }
    }

    /// Elements of a row.
    pub fn columns(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Rows, of all matrices of a stack.
    pub fn rows(&self) -> u64 {
        self.shape.iter().skip(1).product()
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Matrices of a stack: one unless these are experts.
    pub fn matrices(&self) -> u64 {
        self.shape.iter().skip(2).product()
    }

    /// The file it comes from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// What it is called, here and in the file it comes from, where one of its elements is to be named.
    fn called(&self, element: u64) -> String {
        // Those under each other are of the same size.
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

    /// Opens it for reading. Of a tensor in a file nothing is read yet.
    pub fn open(&self) -> Result<Reader<'_>> {
        let made = match &self.data {
            // Unpacked once, not for each few rows.
            Data::File(file, parts) if parts.iter().any(|part| file.is_packed(part)) => {
                let bytes = parts.iter().map(|part| part.bytes).sum();
                Some(read_across(file, parts, 0..bytes)?)
            }
            Data::File(..) => None,
            Data::Made(make) => Some(make()?),
        };
        Ok(Reader { tensor: self, made })
    }
}

/// Reads rows of a tensor.
pub struct Reader<'a> {
    tensor: &'a Tensor<'a>,
    /// All of it, where it had to be put together.
    made: Option<TensorBytes>,
}

impl Reader<'_> {
    /// The bytes of some rows.
    pub fn bytes(&self, rows: Range<u64>) -> Result<TensorBytes> {
        let tensor = self.tensor;
        let row = tensor.ty.bytes_for(tensor.columns());
        let range =
            row.and_then(|row| Some(rows.start.checked_mul(row)?..rows.end.checked_mul(row)?));
        let outside =
            || oxidize_core::Error::io(tensor.file())(std::io::ErrorKind::UnexpectedEof.into());
        let range = range.ok_or_else(outside)?;
        match (&self.made, &tensor.data) {
            (Some(bytes), _) => {
                let part = || {
                    let start = usize::try_from(range.start).ok()?;
                    bytes.slice(start..usize::try_from(range.end).ok()?)
                };
                Ok(part().ok_or_else(outside)?)
            }
            (None, Data::File(file, parts)) => Ok(read_across(file, parts, range)?),
            (None, Data::Made(_)) => Err(outside().into()),
        }
    }

    /// Turns bytes of rows into floats, and refuses what is no number. `first` is the number of the
    /// first element, for the message.
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
                tensor: self.tensor.called(first + at as u64),
                element: first + at as u64,
                value: out[at],
            });
        }
        Ok(())
    }
}

/// The place of the first float that is no number, or infinite. Almost always there is none, so many are looked
/// at together.
fn first_not_finite(floats: &[f32]) -> Option<usize> {
    const TOGETHER: usize = 64;
    const EXPONENT: u32 = 0x7f80_0000;
    const ONE: u32 = 0x0080_0000;
    // The exponent of such a float is all ones: one more, and it is carried into the place of the sign.
    let is_odd = |floats: &[f32]| {
        let carried = |float: &f32| (float.to_bits() & EXPONENT) + ONE;
        floats.iter().fold(0, |all, float| all | carried(float)) >> 31 == 1
    };
    let start = TOGETHER * floats.chunks(TOGETHER).position(is_odd)?;
    let at = floats[start..].iter().position(|float| !float.is_finite());
    at.map(|at| start + at)
}

/// Bytes of tensors that lie under each other, counted from the start of the first.
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
    fn what_is_no_number_is_found() {
        let usual = [0.0, -0.0, 1.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45];
        let mut floats: Vec<f32> = usual.iter().copied().cycle().take(200).collect();
        assert_eq!(first_not_finite(&floats), None);
        assert_eq!(first_not_finite(&[]), None);
        for odd in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 63, 64, 130, 199] {
                let before = std::mem::replace(&mut floats[at], odd);
                assert_eq!(first_not_finite(&floats), Some(at), "{odd} at {at}");
                floats[at] = before;
            }
        }
    }
}
