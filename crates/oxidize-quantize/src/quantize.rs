//! [`quantize`]: writes a model with other tensor types.
//!
//! [`crate::plan`] chooses the types. This module streams the tensors through [`crate::workers`] into the
//! output and collects the quantization errors in a [`Report`].

use std::io::Write;
use std::path::{Path, PathBuf};

use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::gguf::{Metadata, ValueBuf};
use oxidize_core::model::Model;
use oxidize_kernels::quant::TensorType;

use crate::compare::{self, compare};
use crate::error::{Error, Result};
use crate::importance::Importance;
use crate::output::{Output, Parts, check_differs, check_not_input};
use crate::plan::Plan;
use crate::report::{Report, TensorReport};
use crate::tensor::Tensor;
use crate::text::Text;
use crate::workers::{Loss, Workers};

/// Options of writing a model, besides the tensor types.
#[derive(Default)]
pub struct Options<'a> {
    /// The importance matrix.
    pub importance: Option<&'a Importance>,
    /// Allow quantizing tensors that are already quantized.
    pub allow_requantize: bool,
    /// Division into files.
    pub parts: Parts,
    /// Threads and their stop flag.
    pub workers: Workers<'a>,
    /// Write a report into the metadata.
    pub report: Option<ReportOptions<'a>>,
}

/// Options of a report.
#[derive(Default)]
pub struct ReportOptions<'a> {
    /// The command line, recorded in the report.
    pub command: String,
    /// Text on which the output is compared with the source.
    pub text: Option<&'a Text>,
    /// Options of the comparison.
    pub compare: compare::Options,
}

/// A model to write: tensors, metadata keys and the type of each tensor.
pub struct QuantJob<'a> {
    /// Source tensors in output order.
    pub tensors: Vec<Tensor<'a>>,
    /// Keys and tensors of the output.
    pub output: Output,
    /// Source of copied keys.
    pub metadata: Option<&'a Metadata>,
    /// Type of each tensor.
    pub plan: Plan,
    /// Name of the quantization recipe.
    pub recipe: String,
    /// Check of the written file before it gets its final name.
    pub verify: Option<Verify<'a>>,
}

/// A check that returns an error if a written file is not valid.
pub type Verify<'a> = Box<dyn Fn(ModelFile) -> Result<()> + 'a>;

/// Progress of quantizing, writing or comparing a model.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// The errors of candidate types are measured.
    Measuring {
        /// Tensors done.
        done: u64,
        /// Number of tensors.
        total: u64,
    },
    /// A tensor is written.
    Writing {
        /// Tensor name.
        tensor: &'a str,
        /// Bytes written before it.
        done: u64,
        /// Bytes of all tensors.
        total: u64,
    },
    /// The output is compared with the source.
    Comparing {
        /// Mean KL divergence of the chunks done.
        mean_kl: f64,
        /// Chunks done.
        done: u64,
        /// Number of chunks.
        total: u64,
    },
}

/// Tensors of a GGUF file.
pub fn tensors_of(file: &ModelFile) -> Vec<Tensor<'_>> {
    let tensors = file.tensors().iter();
    tensors.map(|info| Tensor::of_file(file, info)).collect()
}

impl<'a> QuantJob<'a> {
    /// Creates the job that writes a GGUF model with other types.
    pub fn of_gguf(
        file: &'a ModelFile,
        tensors: Vec<Tensor<'a>>,
        plan: Plan,
        recipe: (&str, u32),
        importance: Option<&Importance>,
    ) -> QuantJob<'a> {
        let mut output = Output::default();
        output.copy_keys(file);
        output.remove_provenance();
        output.set("general.quantization_version", ValueBuf::U32(2));
        QuantJob {
            metadata: Some(file.metadata()),
            ..QuantJob::new(tensors, output, plan, recipe, importance)
        }
    }

    /// Creates a job and adds the keys that describe the quantization.
    pub(crate) fn new(
        tensors: Vec<Tensor<'a>>,
        mut output: Output,
        plan: Plan,
        (recipe, file_type): (&str, u32),
        importance: Option<&Importance>,
    ) -> QuantJob<'a> {
        output.set("general.file_type", ValueBuf::U32(file_type));
        if let Some(importance) = importance {
            set_importance(&mut output, importance);
        }
        for (tensor, ty) in tensors.iter().zip(&plan.types) {
            output.tensor(&tensor.name, *ty, &tensor.shape);
        }
        QuantJob {
            tensors,
            output,
            metadata: None,
            plan,
            recipe: recipe.to_owned(),
            verify: None,
        }
    }
}

/// Sets the `quantize.imatrix.*` keys.
fn set_importance(output: &mut Output, importance: &Importance) {
    let entries = u32::try_from(importance.entries.len()).unwrap_or(u32::MAX);
    let text = |text: &str| ValueBuf::Str(text.to_owned());
    // A matrix collected by --calibrate has no file.
    if let Some(file) = importance.file.file_name() {
        output.set("quantize.imatrix.file", text(&file.to_string_lossy()));
    }
    let dataset = importance.datasets.join(", ");
    output.set("quantize.imatrix.dataset", text(&dataset));
    output.set("quantize.imatrix.entries_count", ValueBuf::U32(entries));
    let chunks = ValueBuf::U32(importance.chunks);
    output.set("quantize.imatrix.chunks_count", chunks);
}

/// The division of a file into parts.
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

/// Writes a model. The output appears at `path` when it is complete.
pub fn quantize(
    source: &ModelFile,
    mut job: QuantJob<'_>,
    path: &Path,
    options: &Options<'_>,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<(Report, Vec<PathBuf>)> {
    check(&job, source, path, options)?;
    let compared = comparison(source, options)?;
    let mut report = Report::new(&job, source);
    if let Some(wanted) = &options.report {
        report.command.clone_from(&wanted.command);
        let room = report.max_len();
        job.output
            .set(Report::KEY, ValueBuf::Str(report.padded(room)));
    }
    let total = job.output.bytes();
    let mut done = 0;
    let metadata = job.metadata;
    let mut workers = options.workers;
    workers.measure |= options.report.is_some();
    let written = job
        .output
        .write(path, &options.parts, metadata, |index, planned, out| {
            progress(Progress::Writing {
                tensor: &planned.name,
                done,
                total,
            });
            let loss = write_tensor(&job, index, options.importance, workers, out)?;
            done += planned.bytes;
            if let (Some(loss), Some(entry)) = (loss, report.tensors.get_mut(index)) {
                entry.measured(&loss);
            }
            Ok(())
        })?;
    if let Some(wanted) = &options.report {
        if let Some((original, text)) = compared {
            let made = Model::from_file(written.open()?)?;
            let each_chunk = |done: usize, total: usize, mean_kl| {
                progress(Progress::Comparing {
                    mean_kl,
                    done: done as u64,
                    total: total as u64,
                });
                workers.check()
            };
            let result = compare(&original, &made, text, &wanted.compare, each_chunk)?;
            report.comparison = Some(result);
        }
        let room = report.max_len();
        job.output
            .set(Report::KEY, ValueBuf::Str(report.padded(room)));
        job.output.rewrite_headers(&written, metadata)?;
    }
    if let Some(verify) = &job.verify {
        verify(written.open()?)?;
    }
    workers.check()?;
    Ok((report, written.publish()?))
}

/// Upper bound of the bytes of the written file besides tensor data, for any types. `report` is the command
/// line of a report, if one is written.
pub fn overhead(job: &QuantJob<'_>, source: &ModelFile, report: Option<&str>) -> Result<u64> {
    let mut output = job.output.clone();
    if let Some(command) = report {
        /// Maximum length of a type name.
        const NAME: usize = 8;
        let mut report = Report::new(job, source);
        report.command = command.to_owned();
        let room = report.max_len() + NAME * job.tensors.len();
        output.set(Report::KEY, ValueBuf::Str(report.padded(room)));
    }
    output.overhead(job.metadata)
}

/// Loads the source for the comparison and checks the text, before anything is written.
fn comparison<'a>(source: &ModelFile, options: &Options<'a>) -> Result<Option<(Model, &'a Text)>> {
    let Some(wanted) = &options.report else {
        return Ok(None);
    };
    let Some(text) = wanted.text else {
        return Ok(None);
    };
    // Mapped, so that it takes no memory while the output is written.
    let mapped = OpenOptions {
        huge_pages: false,
        ..OpenOptions::default()
    };
    let original = Model::load_with(source.path(), &mapped)?;
    compare::chunks(&original, text, &wanted.compare)?;
    Ok(Some((original, text)))
}

/// Checks paths, types and importance of a job before anything is written.
pub fn check(
    job: &QuantJob<'_>,
    source: &ModelFile,
    path: &Path,
    options: &Options<'_>,
) -> Result<()> {
    check_not_input(path, source)?;
    for path in job.output.paths(path, &options.parts, job.metadata)? {
        check_not_input(&path, source)?;
        check_differs(&path, options.importance.map(|known| known.file.as_path()))?;
    }
    check_types(job, options.importance, options.allow_requantize)
}

/// Checks that the types fit the tensors and that the importance matrix belongs to the model.
pub(crate) fn check_types(
    job: &QuantJob<'_>,
    importance: Option<&Importance>,
    allow_requantize: bool,
) -> Result<()> {
    // INT8 is stored as Q8_0 with a key for the whole file.
    let of_type = |wanted: TensorType| {
        let mut types = job.tensors.iter().zip(&job.plan.types);
        types
            .find(|(_, ty)| **ty == wanted)
            .map(|(tensor, _)| tensor)
    };
    if let (Some(int8), Some(other)) = (of_type(TensorType::INT8), of_type(TensorType::Q8_0)) {
        return Err(Error::Unfit {
            file: int8.file().to_path_buf(),
            problem: format!(
                "tensor `{}` is INT8 and `{}` is Q8_0; one file cannot contain both",
                int8.name, other.name
            ),
        });
    }
    if let Some(importance) = importance {
        importance.check(&job.tensors)?;
    }
    for (tensor, &ty) in job.tensors.iter().zip(&job.plan.types) {
        if let Some(importance) = importance {
            // Token embeddings have no inputs; with tied embeddings their entry is that of the output matrix.
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

/// Writes a tensor of a job as its planned type and returns the loss if `workers` measures it.
pub(crate) fn write_tensor(
    job: &QuantJob<'_>,
    index: usize,
    importance: Option<&Importance>,
    workers: Workers<'_>,
    out: &mut dyn Write,
) -> Result<Option<Loss>> {
    let (tensor, ty) = (&job.tensors[index], job.plan.types[index]);
    if ty == tensor.ty {
        workers.copy(tensor, out)?;
        return Ok(None);
    }
    let inputs = match importance {
        Some(importance) => importance.of(tensor).unwrap_or(None),
        None => None,
    };
    let loss = workers.quantize(tensor, ty, inputs.as_ref(), out)?;
    Ok(workers.measure.then_some(loss))
}

impl TensorReport {
    fn measured(&mut self, loss: &Loss) {
        self.error = Some(loss.relative());
    }
}
