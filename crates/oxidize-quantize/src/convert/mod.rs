//! [`convert`]: makes a GGUF model of a Hugging Face directory, by the one table of names.
//!
//! [`metadata`] writes down the numbers, the tokenizer writes its vocabulary, and the tensors
//! stream from one file to the other, renamed and where needed put in another order.

pub mod directory;
mod metadata;
mod sentence;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use oxidize_core::arch::{Arch, Hparams, LayerParams};
use oxidize_core::file::{Format, ModelFile, TensorInfo};
use oxidize_core::gguf::ValueBuf;
use oxidize_core::mix::{Mix, Traits};
use oxidize_core::model::{
    ExportedData, ExportedTensor, Model, chat_template_of, gguf_tensors, left_out,
};
use oxidize_core::tokenizer::VocabSpec;
use oxidize_kernels::quant::TensorType;

use crate::error::{Error, Result};
use crate::importance::Importance;
use crate::output::{Output, check_differs, check_replaceable};
use crate::plan::{Plan, Wishes, is_quantizable};
use crate::quantize::{Options, Progress, Recipe, quantize};
use crate::report::Report;
use crate::source::Source;
use crate::tensor::Tensor;
use crate::wording::count;

/// Makes a GGUF file at `path` of the model in `file`, with matrices of the wished types.
pub fn convert(
    file: &ModelFile,
    path: &Path,
    wishes: &Wishes,
    options: &Options<'_>,
    progress: impl FnMut(Progress<'_>),
) -> Result<(Report, Vec<PathBuf>)> {
    let source = Source::from(Conversion::new(file)?);
    let plan = source.plan(wishes, options.importance)?;
    let recipe = source.recipe(plan, &wishes.mix, options.importance);
    write(file, recipe, path, options, progress)
}

/// Makes a GGUF file at `path` as a recipe says.
pub fn write(
    file: &ModelFile,
    recipe: Recipe<'_>,
    path: &Path,
    options: &Options<'_>,
    progress: impl FnMut(Progress<'_>),
) -> Result<(Report, Vec<PathBuf>)> {
    check_output(path, file.path())?;
    check_replaceable(path)?;
    let options = Options {
        importance: options.importance,
        // Weights that came in 4 or 8 bits are unpacked: there is no other way to keep them.
        allow_requantize: true,
        parts: options.parts.clone(),
        workers: options.workers,
        report: None,
    };
    quantize(file, recipe, path, &options, progress)
}

/// The folder of a bare file name is empty.
fn here_if_empty(folder: &Path) -> &Path {
    match folder == Path::new("") {
        true => Path::new("."),
        false => folder,
    }
}

/// Refuses to write over what lies beside `source` and may be part of it. GGUF files may be what an earlier
/// run has made.
pub fn check_output(output: &Path, source: &Path) -> Result<()> {
    let folder = match source.is_dir() {
        true => source,
        false => source.parent().unwrap_or(source),
    };
    let folder = here_if_empty(folder);
    let entries = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let mut files = entries(folder);
    // Projections and poolings have folders of their own.
    let inner = files.iter().filter(|path| path.is_dir());
    let inner: Vec<PathBuf> = inner.flat_map(|folder| entries(folder)).collect();
    files.extend(inner);
    files.retain(|path| path.extension().is_none_or(|ending| ending != "gguf"));
    files.extend(source.is_file().then(|| source.to_path_buf()));
    check_differs(output, files.iter().map(PathBuf::as_path))?;
    // A new file may be taken for part of the model too.
    let ending = output.extension().and_then(|ending| ending.to_str());
    let place = |folder: &Path| here_if_empty(folder).canonicalize().ok();
    let parent = output.parent().and_then(place);
    let inside = parent.is_some() && parent == place(folder);
    if inside && !matches!(ending, Some("gguf" | "html")) {
        return Err(Error::Unfit {
            file: output.to_path_buf(),
            problem: "beside the files of the source, it could be taken for one of them: call it .gguf, or write it elsewhere".into(),
        });
    }
    Ok(())
}

/// A Hugging Face model, and what a GGUF file of it consists of but for the types of its tensors.
pub struct Conversion<'a> {
    /// The tensors of the file, as they are stored now.
    pub tensors: Vec<Tensor<'a>>,
    /// What a mix wants to know of it.
    pub traits: Traits,
    /// What the source has that the file will not, and what it lacks, each in a line for people.
    pub remarks: Vec<String>,
    output: Output,
    hparams: Hparams,
    source: PathBuf,
}

impl<'a> Conversion<'a> {
    /// Looks at the model in `file`.
    pub fn new(file: &'a ModelFile) -> Result<Conversion<'a>> {
        if matches!(file.format(), Format::Gguf { .. }) {
            return Err(Error::Unfit {
                file: file.path().to_path_buf(),
                problem: "it is a GGUF file already; `oxidize quantize` changes its types".into(),
            });
        }
        let arch = Arch::detect(file).map_err(oxidize_core::Error::from)?;
        let hparams = Hparams::read(file, arch).map_err(oxidize_core::Error::from)?;
        let exported = gguf_tensors(file, arch, &hparams);
        let mut remarks = left_out_remarks(file, &exported);
        let mut tensors: Vec<Tensor<'a>> = exported
            .into_iter()
            .map(|tensor| as_tensor(file, tensor))
            .collect();
        for tensor in &mut tensors {
            if !is_quantizable(tensor) {
                // Vectors and small matrices are kept in full.
                tensor.kept_as = TensorType::F32;
            }
        }
        let named = |name: &str| tensors.iter().find(|tensor| tensor.name == name);
        let n_vocab = named("token_embd.weight").map_or(0, |table| table.rows() as usize);
        let traits = Traits {
            n_layers: hparams.layers.len(),
            heads_per_kv: hparams
                .layers
                .first()
                .map_or(1, |layer| layer.n_heads / layer.n_kv_heads.max(1)),
            n_experts: hparams.moe.as_ref().map_or(0, |moe| moe.n_experts),
            tied: named("output.weight").is_none(),
            importance: false,
            family: arch.mix_family,
        };
        let mut output = Output::default();
        let unread = metadata::general(&mut output, file, arch, &tensors);
        remarks.extend(unread);
        metadata::numbers(&mut output, file, (arch, &hparams), &tensors, n_vocab);
        let source = source_of(file);
        if !vocabulary(&mut output, file, n_vocab)? {
            remarks.push(format!(
                "{}: there is no tokenizer, and the new file has none",
                source.display()
            ));
        }
        if let Some(template) = chat_template_of(file)? {
            output.set("tokenizer.chat_template", ValueBuf::Str(template));
        }
        Ok(Conversion {
            tensors,
            traits,
            remarks,
            output,
            hparams,
            source,
        })
    }

    /// What the file consists of, with tensors of the planned types. It is looked at before it gets its
    /// name.
    pub fn recipe(self, plan: Plan, mix: &Mix, importance: Option<&Importance>) -> Recipe<'a> {
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
        let described = (mix.name, mix.file_type);
        Recipe {
            verify: Some(Box::new(move |made| {
                check(made.clone(), &hparams).map_err(|problem| Error::Unfit {
                    file: source.clone(),
                    problem: format!(
                        "its weights and config.json do not make a model: {}",
                        in_words(problem, &made, &origins)
                    ),
                })
            })),
            ..Recipe::new(tensors, output, plan, described, importance)
        }
    }
}

/// What people call the source: the directory, or a file that has none.
fn source_of(file: &ModelFile) -> PathBuf {
    let folder = file.path().parent();
    let folder = folder.filter(|folder| *folder != Path::new(""));
    folder.unwrap_or(file.path()).to_path_buf()
}

/// The name of the folder that a model is in, by whatever path. That of a link is its own: the files of a hub's
/// cache are links to others.
pub(crate) fn folder_name(file: &ModelFile) -> Option<String> {
    let folder = here_if_empty(file.path().parent()?);
    let name = match folder.file_name() {
        Some(name) => name.to_owned(),
        None => folder.canonicalize().ok()?.file_name()?.to_owned(),
    };
    Some(name.to_string_lossy().into_owned())
}

/// What is wrong with files that have no names yet: without the places they are at, and with the names
/// that their tensors have in the source.
fn in_words(
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
        Some([one]) => format!("{problem} (it is `{one}` in the source)"),
        Some([first, .., last]) => {
            format!("{problem} (it is made of `{first}` to `{last}` of the source)")
        }
    }
}

/// What the GGUF file will not have of the source.
fn left_out_remarks(file: &ModelFile, tensors: &[ExportedTensor<'_>]) -> Vec<String> {
    // How many layers of a stack are used, by what stands before their numbers.
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
    let remark = |tensors: &[&&TensorInfo], what: &str| {
        let first = tensors.first()?;
        let n = count(tensors.len(), "tensor", "tensors");
        Some(format!("left out: {n} {what}, such as {}", first.name))
    };
    let beyond = remark(&beyond, "of layers beyond those that config.json counts");
    let others = remark(&others, "outside the text model");
    beyond.into_iter().chain(others).collect()
}

/// What stands before the number of a tensor's layer, and the number.
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

/// Reads a file back: it has to be a model of the same shape as the one it was made of. Otherwise, what is wrong.
fn check(made: ModelFile, hparams: &Hparams) -> Result<(), String> {
    let made = Model::from_file(made).map_err(|error| error.to_string())?;
    let ours = made.hparams();
    if (ours.n_embd, ours.layers.len()) != (hparams.n_embd, hparams.layers.len()) {
        return Err("it comes back with another width or depth".into());
    }
    let layers = ours.layers.iter().zip(&hparams.layers).enumerate();
    for (i, (ours, theirs)) in layers {
        // Where there are experts, the width of dense layers need not mean anything.
        let n_ff = |layer: &LayerParams| hparams.moe.is_none().then_some(layer.n_ff);
        let shape = |layer: &LayerParams| (layer.n_heads, layer.key_dim, n_ff(layer), layer.window);
        if shape(ours) != shape(theirs) {
            return Err(format!("layer {i} comes back with another shape"));
        }
    }
    Ok(())
}

/// A tensor to be, ready to be read.
fn as_tensor<'a>(file: &'a ModelFile, tensor: ExportedTensor<'a>) -> Tensor<'a> {
    let origins = tensor.parts.iter().map(|part| part.name.clone());
    let origins = origins.collect();
    let mut made = match tensor.data {
        ExportedData::Stored(parts) => {
            Tensor::stacked(file, parts, tensor.name, tensor.ty, tensor.shape)
        }
        ExportedData::Made(make) => {
            let make = Box::new(move || Ok(make()?));
            Tensor::made(tensor.name, tensor.ty, tensor.shape, file.path(), make)
        }
    };
    made.origins = origins;
    made
}

/// Writes the vocabulary, if the directory has one: models for tests may lack it. Whether it has.
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

/// The mix for a conversion to one type.
pub fn plain_mix(name: &str) -> Result<Mix> {
    Mix::named(name).ok_or_else(|| Error::UnknownMix {
        name: name.to_owned(),
    })
}
