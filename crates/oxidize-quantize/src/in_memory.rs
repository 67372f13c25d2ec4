//! [`quantized`]: a model quantised on the way in, without a file.

use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::mix::Mix;

use crate::encode::Workers;
use crate::error::Result;
use crate::importance::Importance;
use crate::plan::Wishes;
use crate::quantize::{Progress, check_types, write_tensor};
use crate::source::Source;

/// The model of `file` with its matrices as `mix` says, all of it in memory. What is quantised already may be
/// quantised again.
pub fn quantized(
    file: &ModelFile,
    mix: Mix,
    importance: Option<&Importance>,
    workers: &Workers<'_>,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<ModelFile> {
    let source = Source::new(file)?;
    let plan = source.plan(&Wishes::new(mix), importance)?;
    let recipe = source.recipe(plan, &mix, importance);
    check_types(&recipe, importance, true)?;
    let (mut done, total) = (0, recipe.output.bytes());
    let mut bytes = Vec::new();
    let metadata = recipe.metadata;
    recipe
        .output
        .write_to(&mut bytes, metadata, |index, planned, out| {
            progress(Progress::Writing {
                tensor: &planned.name,
                done,
                total,
            });
            done += planned.bytes;
            write_tensor(&recipe, index, importance, *workers, out).map(drop)
        })?;
    let options = OpenOptions {
        spell_out: file.spell_out(),
        ..OpenOptions::default()
    };
    Ok(ModelFile::from_bytes(bytes, &options)?)
}
