//! [`convert`]: converts a Hugging Face directory to GGUF, using the tensor names of the architecture
//! descriptors.
//!
//! [`metadata`] writes the hyperparameters, the tokenizer its vocabulary. Tensors are streamed from one file
//! to the other, renamed and permuted where needed.

pub mod directory;
mod metadata;
mod sentence_transformers;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use oxidize_core::arch::{Arch, Hparams, LayerParams};
use oxidize_core::file::{Format, ModelFile, TensorInfo};
use oxidize_core::gguf::ValueBuf;
use oxidize_core::model::{
    ExportedData, ExportedTensor, Model, chat_template_of, gguf_tensors, left_out,
};
use oxidize_core::recipe::{ModelInfo, QuantRecipe};
use oxidize_core::tokenizer::VocabSpec;
use oxidize_kernels::quant::TensorType;

use crate::error::{Error, Result};
use crate::importance::Importance;
use crate::output::{Output, check_differs, check_replaceable};
use crate::plan::{Plan, QuantizeParams, is_quantizable};
use crate::plural::count;
use crate::quantize::{Options, Progress, QuantJob, quantize};
use crate::report::Report;
use crate::source::Source;
use crate::tensor::Tensor;

/// Converts the model in `file` to a GGUF file at `path` with the requested types.
pub fn convert(
    file: &ModelFile,
    path: &Path,
    params: &QuantizeParams,
    options: &Options<'_>,
    progress: impl FnMut(Progress<'_>),
) -> Result<(Report, Vec<PathBuf>)> {
    let source = Source::from(Conversion::new(file)?);
    let plan = source.plan(params, options.importance)?;
    let job = source.into_job(plan, &params.recipe, options.importance);
    write(file, job, path, options, progress)
}

/// Writes the GGUF file of a job to `path`.
pub fn write(
    file: &ModelFile,
    job: QuantJob<'_>,
    path: &Path,
    options: &Options<'_>,
    progress: impl FnMut(Progress<'_>),
) -> Result<(Report, Vec<PathBuf>)> {
    check_output(path, file.path())?;
    check_replaceable(path)?;
    let options = Options {
        importance: options.importance,
        // 4- and 8-bit weights of directories are unpacked, since GGUF has no lossless type for them.
        allow_requantize: true,
        parts: options.parts.clone(),
        workers: options.workers,
        report: None,
    };
    quantize(file, job, path, &options, progress)
}

/// Replaces the empty parent directory of a bare file name by `.`.
fn dot_if_empty(directory: &Path) -> &Path {
    match directory == Path::new("") {
        true => Path::new("."),
        false => directory,
    }
}

/// Returns an error if `output` would replace a file of the source's directory, or be taken for a part of the
/// model. GGUF files are allowed, as they may be the output of an earlier run.
pub fn check_output(output: &Path, source: &Path) -> Result<()> {
    let directory = match source.is_dir() {
        true => source,
        false => source.parent().unwrap_or(source),
    };
    let directory = dot_if_empty(directory);
    let entries = |directory: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let mut files = entries(directory);
    // sentence-transformers modules have directories of their own.
    let inner = files.iter().filter(|path| path.is_dir());
    let inner: Vec<PathBuf> = inner.flat_map(|directory| entries(directory)).collect();
    files.extend(inner);
    files.retain(|path| path.extension().is_none_or(|ending| ending != "gguf"));
    files.extend(source.is_file().then(|| source.to_path_buf()));
    check_differs(output, files.iter().map(PathBuf::as_path))?;
    // A new file could be taken for a part of the model too.
    let ending = output.extension().and_then(|ending| ending.to_str());
    let place = |directory: &Path| dot_if_empty(directory).canonicalize().ok();
    let parent = output.parent().and_then(place);
    let inside = parent.is_some() && parent == place(directory);
    if inside && !matches!(ending, Some("gguf" | "html")) {
        return Err(Error::Unfit {
            file: output.to_path_buf(),
            problem: "in the directory of the source, the output could be taken for a part of it; use the extension .gguf or another directory".into(),
        });
    }
    Ok(())
}

/// A Hugging Face model and the contents of its GGUF file, except for the tensor types.
pub struct Conversion<'a> {
    /// Tensors of the GGUF file, with their current types.
    pub tensors: Vec<Tensor<'a>>,
    /// The model properties that a quantization recipe depends on.
    pub info: ModelInfo,
    /// Messages about tensors and files of the source that are left out or missing.
    pub notes: Vec<String>,
    output: Output,
    hparams: Hparams,
    source: PathBuf,
}

impl<'a> Conversion<'a> {
    /// Prepares the conversion of the model in `file`.
    pub fn new(file: &'a ModelFile) -> Result<Conversion<'a>> {
        if matches!(file.format(), Format::Gguf { .. }) {
            return Err(Error::Unfit {
                file: file.path().to_path_buf(),
                problem: "the input is already GGUF; use `oxidize quantize` to change its types"
                    .into(),
            });
        }
        let arch = Arch::detect(file).map_err(oxidize_core::Error::from)?;
        let hparams = Hparams::read(file, arch).map_err(oxidize_core::Error::from)?;
        let exported = gguf_tensors(file, arch, &hparams);
        let mut notes = left_out_notes(file, &exported);
        let mut tensors: Vec<Tensor<'a>> = exported
            .into_iter()
            .map(|tensor| as_tensor(file, tensor))
            .collect();
        for tensor in &mut tensors {
            if !is_quantizable(tensor) {
                // Vectors and small matrices stay in f32.
                tensor.unquantized_type = TensorType::F32;
            }
        }
        let named = |name: &str| tensors.iter().find(|tensor| tensor.name == name);
        let n_vocab = named("token_embd.weight").map_or(0, |table| table.rows() as usize);
        let info = ModelInfo {
            n_layers: hparams.layers.len(),
            heads_per_kv: hparams
                .layers
                .first()
                .map_or(1, |layer| layer.n_heads / layer.n_kv_heads.max(1)),
            n_experts: hparams.moe.as_ref().map_or(0, |moe| moe.n_experts),
            tied: named("output.weight").is_none(),
            importance: false,
            family: arch.recipe_family,
        };
        let mut output = Output::default();
        let unreadable = metadata::general(&mut output, file, arch, &tensors);
        notes.extend(unreadable);
        metadata::numbers(&mut output, file, (arch, &hparams), &tensors, n_vocab);
        let source = source_of(file);
        if !vocabulary(&mut output, file, n_vocab)? {
            notes.push(format!(
                "{}: no tokenizer found; the GGUF file has none",
                source.display()
            ));
        }
        if let Some(template) = chat_template_of(file)? {
            output.set("tokenizer.chat_template", ValueBuf::Str(template));
        }
        Ok(Conversion {
            tensors,
            info,
            notes,
            output,
            hparams,
            source,
        })
    }

    /// The job that writes the GGUF file with the planned types and checks that it loads as the same model.
    pub fn into_job(
        self,
        plan: Plan,
        recipe: &QuantRecipe,
        importance: Option<&Importance>,
    ) -> QuantJob<'a> {
        let Conversion {
            tensors,
            output,
            hparams,
            source,
            ..
        } = self;
        let origins = tensors.iter();
        let origins: HashMap<String, Vec<String>> = origins
            .map(|tensor| (tensor.name.clone(), tensor.origins.clone()))
            .collect();
        let described = (recipe.name, recipe.file_type);
        QuantJob {
            verify: Some(Box::new(move |made| {
                check(made.clone(), &hparams).map_err(|problem| Error::Unfit {
                    file: source.clone(),
                    problem: format!(
                        "the weights do not match config.json: {}",
                        describe_problem(problem, &made, &origins)
                    ),
                })
            })),
            ..QuantJob::new(tensors, output, plan, described, importance)
        }
    }
}

/// The source for messages: its directory, or the file if the path has none.
fn source_of(file: &ModelFile) -> PathBuf {
    let directory = file.path().parent();
    let directory = directory.filter(|directory| *directory != Path::new(""));
    directory.unwrap_or(file.path()).to_path_buf()
}

/// The name of the directory that contains a model. Links to files are not followed: the Hugging Face cache
/// consists of them.
pub(crate) fn directory_name(file: &ModelFile) -> Option<String> {
    let directory = dot_if_empty(file.path().parent()?);
    let name = match directory.file_name() {
        Some(name) => name.to_owned(),
        None => directory.canonicalize().ok()?.file_name()?.to_owned(),
    };
    Some(name.to_string_lossy().into_owned())
}

/// Rewrites a problem with temporary files: removes their paths and adds the names of the source tensors.
fn describe_problem(
    mut problem: String,
    made: &ModelFile,
    origins: &HashMap<String, Vec<String>>,
) -> String {
    for (path, _) in made.files() {
        let place = path.display().to_string();
        problem = problem.replace(&format!("{place}: "), "");
        problem = problem.replace(&place, "the new file");
    }
    let quoted = problem.split('"').nth(1).and_then(|name| origins.get(name));
    match quoted.map(Vec::as_slice) {
        None | Some([]) => problem,
        Some([one]) => format!("{problem} (`{one}` in the source)"),
        Some([first, .., last]) => {
            format!("{problem} (`{first}` to `{last}` in the source)")
        }
    }
}

/// Messages about source tensors that have no place in the GGUF file.
fn left_out_notes(file: &ModelFile, tensors: &[ExportedTensor<'_>]) -> Vec<String> {
    // Number of layers used, by the name prefix before the layer index.
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for part in tensors.iter().flat_map(|tensor| &tensor.parts) {
        if let Some((stack, layer)) = layer_of(&part.name) {
            let count = counts.entry(stack).or_default();
            *count = layer.saturating_add(1).max(*count);
        }
    }
    let is_beyond = |tensor: &&&TensorInfo| {
        let place = layer_of(&tensor.name);
        place.is_some_and(|(stack, layer)| counts.get(stack).is_some_and(|n| layer >= *n))
    };
    let mut left = left_out(file, tensors);
    left.retain(|tensor| !metadata::is_key(&tensor.name));
    let beyond: Vec<_> = left.iter().filter(is_beyond).collect();
    let others: Vec<_> = left.iter().filter(|tensor| !is_beyond(tensor)).collect();
    let note = |tensors: &[&&TensorInfo], what: &str| {
        let first = tensors.first()?;
        let n = count(tensors.len(), "tensor", "tensors");
        Some(format!("left out: {n} {what}, such as {}", first.name))
    };
    let beyond = note(&beyond, "of layers beyond the layer count in config.json");
    let others = note(&others, "outside the text model");
    beyond.into_iter().chain(others).collect()
}

/// The name prefix before a tensor's layer index, and the index.
fn layer_of(name: &str) -> Option<(&str, usize)> {
    let mut at = 0;
    for part in name.split('.') {
        if let Ok(layer) = part.parse() {
            return Some((name.get(..at)?, layer));
        }
        at += part.len() + 1;
    }
    None
}

/// Loads a written file and compares its hyperparameters with the source's. Returns the mismatch as an error.
fn check(made: ModelFile, hparams: &Hparams) -> Result<(), String> {
    let made = Model::from_file(made).map_err(|error| error.to_string())?;
    let ours = made.hparams();
    if (ours.n_embd, ours.layers.len()) != (hparams.n_embd, hparams.layers.len()) {
        return Err("the width or the number of layers changed".into());
    }
    let layers = ours.layers.iter().zip(&hparams.layers).enumerate();
    for (i, (ours, theirs)) in layers {
        // In models with experts, the dense feed-forward width may be meaningless.
        let n_ff = |layer: &LayerParams| hparams.moe.is_none().then_some(layer.n_ff);
        let shape = |layer: &LayerParams| (layer.n_heads, layer.key_dim, n_ff(layer), layer.window);
        if shape(ours) != shape(theirs) {
            return Err(format!("the shape of layer {i} changed"));
        }
    }
    Ok(())
}

/// Wraps an exported tensor for reading.
fn as_tensor<'a>(file: &'a ModelFile, tensor: ExportedTensor<'a>) -> Tensor<'a> {
    let origins = tensor.parts.iter().map(|part| part.name.clone());
    let origins = origins.collect();
    let mut made = match tensor.data {
        ExportedData::Stored(parts) => {
            Tensor::stacked(file, parts, tensor.name, tensor.ty, tensor.shape)
        }
        ExportedData::Made(make) => {
            let make = Box::new(move || Ok(make()?));
            Tensor::computed(tensor.name, tensor.ty, tensor.shape, file.path(), make)
        }
    };
    made.origins = origins;
    made
}

/// Writes the vocabulary and returns true if the directory has one; test models may lack it.
fn vocabulary(output: &mut Output, file: &ModelFile, n_vocab: usize) -> Result<bool> {
    let spec = match VocabSpec::of_file(file) {
        Ok(spec) => spec,
        Err(oxidize_core::Error::Tokenizer {
            error: oxidize_core::tokenizer::TokenizerError::Missing(_),
            ..
        }) => {
            output.set("tokenizer.ggml.model", "no_vocab".into());
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    };
    let keys = spec.gguf_keys(n_vocab).map_err(|error| {
        Error::from(oxidize_core::Error::Tokenizer {
            path: file.path().to_path_buf(),
            error,
        })
    })?;
    for (key, value) in keys {
        output.set(&key, value);
    }
    Ok(true)
}

/// Returns the recipe of this name.
pub fn named_recipe(name: &str) -> Result<QuantRecipe> {
    QuantRecipe::named(name).ok_or_else(|| Error::UnknownRecipe {
        name: name.to_owned(),
    })
}
