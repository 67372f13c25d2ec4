//! [`quantized`]: quantization at load, in memory.

use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::recipe::QuantRecipe;

use crate::error::Result;
use crate::importance::Importance;
use crate::plan::QuantizeParams;
use crate::quantize::{Progress, check_types, write_tensor};
use crate::source::Source;
use crate::workers::Workers;

/// Quantizes the model of `file` in memory. Tensors that are already quantized may be quantized again.
pub fn quantized(
    file: &ModelFile,
    recipe: QuantRecipe,
    importance: Option<&Importance>,
    workers: &Workers<'_>,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<ModelFile> {
    let source = Source::new(file)?;
    let plan = source.plan(&QuantizeParams::new(recipe), importance)?;
    let job = source.into_job(plan, &recipe, importance);
    check_types(&job, importance, true)?;
    let (mut done, total) = (0, job.output.bytes());
    let mut bytes = Vec::new();
    let metadata = job.metadata;
    job.output
        .write_to(&mut bytes, metadata, |index, planned, out| {
            progress(Progress::Writing {
                tensor: &planned.name,
                done,
                total,
            });
            done += planned.bytes;
            write_tensor(&job, index, importance, *workers, out).map(drop)
        })?;
    Ok(ModelFile::from_bytes(bytes, &OpenOptions::default())?)
}
