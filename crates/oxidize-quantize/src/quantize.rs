//! [`quantize`]: writes a model with its tensors in other types.
//!
//! [`crate::plan`] has chosen the types; here the tensors are streamed through
//! [`crate::encode`] into the output, and what was lost becomes a [`Report`].

use std::io::Write;
use std::path::{Path, PathBuf};

use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::gguf::{Metadata, ValueBuf};
use oxidize_core::model::Model;
use oxidize_kernels::quant::TensorType;

use crate::compare::{self, compare};
use crate::encode::{Loss, Workers};
use crate::error::{Error, Result};
use crate::importance::Importance;
use crate::output::{Output, Parts, check_differs, check_not_input};
use crate::plan::Plan;
use crate::report::{Report, TensorReport};
use crate::tensor::Tensor;
use crate::text::Text;

/// How a model is written, beside the types of its tensors.
#[derive(Default)]
pub struct Options<'a> {
    /// What is important.
    pub importance: Option<&'a Importance>,
    /// Whether tensors that are quantised already may be quantised again.
    pub allow_requantize: bool,
    /// One file or several.
    pub parts: Parts,
    /// Threads, and who may stop them.
    pub workers: Workers<'a>,
    /// Whether the output gets a report.
    pub report: Option<ReportOptions<'a>>,
}

/// What a report contains.
#[derive(Default)]
pub struct ReportOptions<'a> {
    /// The command that made the file.
    pub command: String,
    /// A text over which the output is compared with the source.
    pub text: Option<&'a Text>,
    /// How.
    pub compare: compare::Options,
}

/// A model's tensors and keys, and what is to become of them.
pub struct Recipe<'a> {
    /// The tensors, in the order of the output.
    pub tensors: Vec<Tensor<'a>>,
    /// The keys and tensors of the output.
    pub output: Output,
    /// Where copied keys come from.
    pub metadata: Option<&'a Metadata>,
    /// The type of each tensor.
    pub plan: Plan,
    /// What people call the mix of types.
    pub mix: String,
    /// Looks at the file before it gets its name.
    pub verify: Option<Verify<'a>>,
}

/// Refuses a file that is not what it should be.
pub type Verify<'a> = Box<dyn Fn(ModelFile) -> Result<()> + 'a>;

/// What is under way while a model is made.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// Types were tried on so many of all tensors.
    Trying {
        /// Tensors so far.
        done: u64,
        /// Tensors in all.
        total: u64,
    },
    /// A tensor is written.
    Writing {
        /// Its name.
        tensor: &'a str,
        /// Bytes before it.
        done: u64,
        /// Bytes of all tensors.
        total: u64,
    },
    /// The source and what became of it have read so much of a text.
    Comparing {
        /// The mean divergence so far.
        divergence: f64,
        /// Chunks so far.
        done: u64,
        /// Chunks in all.
        total: u64,
    },
}

/// The tensors of a GGUF file.
pub fn tensors_of(file: &ModelFile) -> Vec<Tensor<'_>> {
    let tensors = file.tensors().iter();
    tensors.map(|info| Tensor::of_file(file, info)).collect()
}

/// The recipe for a GGUF model with other types.
pub fn recipe<'a>(
    file: &'a ModelFile,
    tensors: Vec<Tensor<'a>>,
    plan: Plan,
    mix: (&str, u32),
    importance: Option<&Importance>,
) -> Recipe<'a> {
    let mut output = Output::default();
    output.copy_keys(file);
    output.forget_making();
    output.set("general.quantization_version", ValueBuf::U32(2));
    Recipe {
        metadata: Some(file.metadata()),
        ..Recipe::new(tensors, output, plan, mix, importance)
    }
}

impl<'a> Recipe<'a> {
    /// Tensors and keys, to which those are added that tell of the types.
    pub(crate) fn new(
        tensors: Vec<Tensor<'a>>,
        mut output: Output,
        plan: Plan,
        (mix, file_type): (&str, u32),
        importance: Option<&Importance>,
    ) -> Recipe<'a> {
        output.set("general.file_type", ValueBuf::U32(file_type));
        if let Some(importance) = importance {
            set_importance(&mut output, importance);
        }
        for (tensor, ty) in tensors.iter().zip(&plan.types) {
            output.tensor(&tensor.name, *ty, &tensor.shape);
        }
        Recipe {
            tensors,
            output,
            metadata: None,
            plan,
            mix: mix.to_owned(),
            verify: None,
        }
    }
}

/// Writes down what was important, and how that is known.
fn set_importance(output: &mut Output, importance: &Importance) {
    let entries = u32::try_from(importance.entries.len()).unwrap_or(u32::MAX);
    let text = |text: &str| ValueBuf::Str(text.to_owned());
    // What was learned on the way has none.
    if let Some(file) = importance.file.file_name() {
        output.set("quantize.imatrix.file", text(&file.to_string_lossy()));
    }
    let dataset = importance.datasets.join(", ");
    output.set("quantize.imatrix.dataset", text(&dataset));
    output.set("quantize.imatrix.entries_count", ValueBuf::U32(entries));
    let chunks = ValueBuf::U32(importance.chunks);
    output.set("quantize.imatrix.chunks_count", chunks);
}

/// Parts of the output as those of the input.
pub fn parts_of(file: &ModelFile) -> Parts {
    let n_files = file.files().len();
    if n_files < 2 {
        return Parts::One;
    }
    let mut counts = vec![0; n_files];
    for tensor in file.tensors() {
        if let Some(count) = counts.get_mut(tensor.file) {
            *count += 1;
        }
    }
    Parts::Counts(counts)
}

/// Writes a model. Nothing appears at `path` before all of it is on disk.
pub fn quantize(
    source: &ModelFile,
    mut recipe: Recipe<'_>,
    path: &Path,
    options: &Options<'_>,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<(Report, Vec<PathBuf>)> {
    check(&recipe, source, path, options)?;
    let compared = comparison(source, options)?;
    let mut report = Report::new(&recipe, source);
    if let Some(wanted) = &options.report {
        report.command.clone_from(&wanted.command);
        let room = report.room();
        recipe
            .output
            .set(Report::KEY, ValueBuf::Str(report.padded(room)));
    }
    let total = recipe.output.bytes();
    let mut done = 0;
    let metadata = recipe.metadata;
    let mut workers = options.workers;
    workers.measure |= options.report.is_some();
    let written = recipe
        .output
        .write(path, &options.parts, metadata, |index, planned, out| {
            progress(Progress::Writing {
                tensor: &planned.name,
                done,
                total,
            });
            let loss = write_tensor(&recipe, index, options.importance, workers, out)?;
            done += planned.bytes;
            if let (Some(loss), Some(entry)) = (loss, report.tensors.get_mut(index)) {
                entry.measured(&loss);
            }
            Ok(())
        })?;
    if let Some(wanted) = &options.report {
        if let Some((original, text)) = compared {
            let made = Model::from_file(written.open()?)?;
            let each = |done: usize, total: usize, divergence| {
                progress(Progress::Comparing {
                    divergence,
                    done: done as u64,
                    total: total as u64,
                });
                workers.check()
            };
            let result = compare(&original, &made, text, &wanted.compare, each)?;
            report.comparison = Some(result);
        }
        let room = report.room();
        recipe
            .output
            .set(Report::KEY, ValueBuf::Str(report.padded(room)));
        recipe.output.rewrite_headers(&written, metadata)?;
    }
    if let Some(verify) = &recipe.verify {
        verify(written.open()?)?;
    }
    workers.check()?;
    Ok((report, written.publish()?))
}

/// Most bytes that the file of a recipe takes beside the data of its tensors, with a report or
/// without, whatever the types.
pub fn overhead(recipe: &Recipe<'_>, source: &ModelFile, report: Option<&str>) -> Result<u64> {
    let mut output = recipe.output.clone();
    if let Some(command) = report {
        /// Letters of a type's name.
        const NAME: usize = 8;
        let mut report = Report::new(recipe, source);
        report.command = command.to_owned();
        let room = report.room() + NAME * recipe.tensors.len();
        output.set(Report::KEY, ValueBuf::Str(report.padded(room)));
    }
    output.overhead(recipe.metadata)
}

/// The source as a model, and the text that it and the output are to be compared over. What stands in
/// the way of that is found before anything is written.
fn comparison<'a>(source: &ModelFile, options: &Options<'a>) -> Result<Option<(Model, &'a Text)>> {
    let Some(wanted) = &options.report else {
        return Ok(None);
    };
    let Some(text) = wanted.text else {
        return Ok(None);
    };
    // Mapped: nothing of it is in memory while the output is written.
    let mapped = OpenOptions {
        huge_pages: false,
        ..OpenOptions::default()
    };
    let original = Model::load(source.path(), &mapped)?;
    compare::chunks(&original, text, &wanted.compare)?;
    Ok(Some((original, text)))
}

/// Refuses what cannot be done before anything is written.
pub(crate) fn check(
    recipe: &Recipe<'_>,
    source: &ModelFile,
    path: &Path,
    options: &Options<'_>,
) -> Result<()> {
    check_not_input(path, source)?;
    for path in recipe.output.paths(path, &options.parts, recipe.metadata)? {
        check_not_input(&path, source)?;
        check_differs(&path, options.importance.map(|known| known.file.as_path()))?;
    }
    check_types(recipe, options.importance, options.allow_requantize)
}

/// Refuses types that tensors cannot become, and importance that is not theirs.
pub(crate) fn check_types(
    recipe: &Recipe<'_>,
    importance: Option<&Importance>,
    allow_requantize: bool,
) -> Result<()> {
    // A file's mark says that all of its Q8_0 is INT8.
    let of_type = |wanted: TensorType| {
        let mut types = recipe.tensors.iter().zip(&recipe.plan.types);
        types
            .find(|(_, ty)| **ty == wanted)
            .map(|(tensor, _)| tensor)
    };
    if let (Some(int8), Some(other)) = (of_type(TensorType::INT8), of_type(TensorType::Q8_0)) {
        return Err(Error::Unfit {
            file: int8.file().to_path_buf(),
            problem: format!(
                "tensor `{}` is to be INT8 and `{}` Q8_0, which one file cannot tell apart",
                int8.name, other.name
            ),
        });
    }
    if let Some(importance) = importance {
        importance.check(&recipe.tensors)?;
    }
    for (tensor, &ty) in recipe.tensors.iter().zip(&recipe.plan.types) {
        if let Some(importance) = importance {
            // Embeddings are looked up, not multiplied, so their importance may be of the output.
            if tensor.name != "token_embd.weight" {
                importance.of(tensor)?;
            }
        }
        if ty == tensor.ty {
            continue;
        }
        if tensor.ty.is_quantized() && !allow_requantize {
            return Err(Error::Requantize {
                file: tensor.file().to_path_buf(),
                tensor: tensor.name.clone(),
                ty: tensor.ty,
            });
        }
        if !tensor.columns().is_multiple_of(ty.block_len() as u64) {
            return Err(Error::Blocks {
                file: tensor.file().to_path_buf(),
                tensor: tensor.name.clone(),
                columns: tensor.columns(),
                ty,
            });
        }
    }
    Ok(())
}

/// Writes a tensor of a recipe as its plan says, and measures what was lost where that is wanted.
pub(crate) fn write_tensor(
    recipe: &Recipe<'_>,
    index: usize,
    importance: Option<&Importance>,
    workers: Workers<'_>,
    out: &mut dyn Write,
) -> Result<Option<Loss>> {
    let (tensor, ty) = (&recipe.tensors[index], recipe.plan.types[index]);
    if ty == tensor.ty {
        workers.copy(tensor, out)?;
        return Ok(None);
    }
    let inputs = match importance {
        Some(importance) => importance.of(tensor).unwrap_or(None),
        None => None,
    };
    let loss = workers.encode(tensor, ty, inputs.as_ref(), out)?;
    Ok(workers.measure.then_some(loss))
}

impl TensorReport {
    fn measured(&mut self, loss: &Loss) {
        self.error = Some(loss.relative());
    }
}
