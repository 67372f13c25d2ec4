//! `--dump`: one tensor as a NumPy file of f32.

use std::path::Path;

use oxidize_core::Error;
use oxidize_core::file::ModelFile;

use crate::npy;

/// Writes the tensor called `name` to `output`, a piece at a time.
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
