//! Splits a GGUF model into parts or joins its parts. Tensors and keys are copied unchanged.

use std::path::{Path, PathBuf};

use oxidize_core::file::ModelFile;

use crate::error::Result;
use crate::output::{Output, Parts, check_not_input};
use crate::quantize::{Progress, tensors_of};
use crate::workers::Workers;

/// Writes a model to `path`, divided as `parts` says.
pub fn rewrite(
    file: &ModelFile,
    path: &Path,
    parts: &Parts,
    workers: &Workers<'_>,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Vec<PathBuf>> {
    let tensors = tensors_of(file);
    let mut output = Output::default();
    output.copy_keys(file);
    for tensor in &tensors {
        output.tensor(&tensor.name, tensor.ty, &tensor.shape);
    }
    check_not_input(path, file)?;
    for path in output.paths(path, parts, Some(file.metadata()))? {
        check_not_input(&path, file)?;
    }
    let total = output.bytes();
    let mut done = 0;
    let written = output.write(path, parts, Some(file.metadata()), |index, planned, out| {
        progress(Progress::Writing {
            tensor: &planned.name,
            done,
            total,
        });
        done += planned.bytes;
        workers.copy(&tensors[index], out)
    })?;
    workers.check()?;
    written.publish()
}
