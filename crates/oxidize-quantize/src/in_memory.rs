//! [`quantized`]: a model quantised on the way in, without a file.

use oxidize_core::file::{Format, ModelFile, OpenOptions};
use oxidize_core::mix::Mix;

use crate::convert;
use crate::encode::Workers;
use crate::error::Result;
use crate::importance::Importance;
use crate::plan::{Plan, Wishes, traits_of};
use crate::quantize::{Progress, check_types, recipe, tensors_of, write_tensor};

/// The model of `file` with its matrices as `mix` says, all of it in memory. What is quantised already may be
/// quantised again.
pub fn quantized(
    file: &ModelFile,
    mix: Mix,
    importance: Option<&Importance>,
    workers: &Workers<'_>,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<ModelFile> {
    let wishes = Wishes::new(mix);
    let is_gguf = matches!(file.format(), Format::Gguf { .. });
    let recipe = if is_gguf {
        let tensors = tensors_of(file);
        let plan = Plan::new(&tensors, &wishes, &traits_of(file, importance.is_some()));
        plan.check_importance(&tensors, &mix, importance)?;
        recipe(file, tensors, plan, (mix.name, mix.file_type), importance)
    } else {
        convert::recipe(file, &wishes, importance)?.recipe
    };
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
    Ok(ModelFile::from_bytes(bytes, &OpenOptions::default())?)
}
