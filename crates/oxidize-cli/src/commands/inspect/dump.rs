//! `--dump`: writes one tensor as an f32 NumPy file.

use std::path::Path;

use oxidize_core::Error;
use oxidize_core::file::ModelFile;

use crate::npy;

/// Writes the tensor `name` to `output` in pieces.
pub(super) fn write_npy(model: &ModelFile, name: &str, output: &Path) -> anyhow::Result<()> {
    let missing = || Error::NoTensor {
        path: model.path().to_path_buf(),
        name: name.to_owned(),
    };
    let tensor = model.tensor(name).ok_or_else(missing)?;
    Ok(npy::write_rows(output, &tensor.dims(), |write| {
        model.for_each_f32(tensor, |floats| write(floats))
    })?)
}
