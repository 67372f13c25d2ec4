//! [`convert`]: makes a GGUF model of a Hugging Face directory, by the one table of names.
//!
//! [`metadata`] writes down the numbers, the tokenizer writes its vocabulary, and the tensors
//! stream from one file to the other, renamed and where needed put in another order.

pub mod directory;
mod metadata;
mod sentence;

use std::path::{Path, PathBuf};

use oxidize_core::arch::{Arch, Hparams, LayerParams};
use oxidize_core::file::{Format, ModelFile};
use oxidize_core::gguf::ValueBuf;
use oxidize_core::mix::{Mix, Traits};
use oxidize_core::model::{ExportedData, ExportedTensor, Model, chat_template_of, gguf_tensors};
use oxidize_core::tokenizer::VocabSpec;
use oxidize_kernels::quant::TensorType;

use crate::error::{Error, Result};
use crate::output::Output;
use crate::plan::{Plan, Wishes, is_quantizable};
use crate::quantize::{Options, Progress, Recipe, quantize};
use crate::report::Report;
use crate::tensor::Tensor;

/// Makes a GGUF file at `path` of the model in `file`, with matrices of the wished types.
pub fn convert(
    file: &ModelFile,
    path: &Path,
    wishes: &Wishes,
    options: &Options<'_>,
    progress: impl FnMut(Progress<'_>),
) -> Result<(Report, Vec<PathBuf>)> {
    let recipe = recipe(file, wishes, options.importance.is_some())?;
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

/// What a GGUF file of a Hugging Face model consists of.
pub fn recipe<'a>(file: &'a ModelFile, wishes: &Wishes, importance: bool) -> Result<Recipe<'a>> {
    if matches!(file.format(), Format::Gguf { .. }) {
        return Err(Error::Unfit {
            file: file.path().to_path_buf(),
            problem: "it is a GGUF file already; `oxidize quantize` changes its types".into(),
        });
    }
    let arch = Arch::detect(file).map_err(oxidize_core::Error::from)?;
    let hparams = Hparams::read(file, arch).map_err(oxidize_core::Error::from)?;
    let tensors = tensors(file, arch, &hparams);
    let named = |name: &str| tensors.iter().find(|tensor| tensor.name == name);
    let n_vocab = named("token_embd.weight").map_or(0, |table| table.rows() as usize);
    let traits = Traits {
        n_layers: hparams.layers.len(),
        heads_per_kv: hparams
            .layers
            .first()
            .map_or(1, |layer| layer.n_heads / layer.n_kv_heads.max(1)),
        n_experts: hparams.moe.as_ref().map_or(0, |moe| moe.n_experts),
        tied: !tensors.iter().any(|tensor| tensor.name == "output.weight"),
        importance,
        family: arch.mix_family,
    };
    let mut plan = Plan::new(&tensors, wishes, &traits);
    for (tensor, ty) in tensors.iter().zip(&mut plan.types) {
        if !is_quantizable(tensor) {
            // Vectors and small matrices are kept in full.
            *ty = TensorType::F32;
        }
    }
    let mut output = Output::default();
    metadata::general(&mut output, file, arch, &tensors, &wishes.mix);
    metadata::numbers(&mut output, file, (arch, &hparams), &tensors, n_vocab);
    vocabulary(&mut output, file, n_vocab)?;
    if let Some(template) = chat_template_of(file)? {
        output.set("tokenizer.chat_template", ValueBuf::Str(template));
    }
    Ok(Recipe {
        tensors,
        output,
        metadata: None,
        plan,
        mix: wishes.mix.name.to_owned(),
        verify: Some(Box::new(move |made| check(made, &hparams))),
    })
}

/// Reads a file back: it has to be a model of the same shape as the one it was made of.
fn check(made: ModelFile, hparams: &Hparams) -> Result<()> {
    let path = made.path().to_path_buf();
    let failed = |problem: String| Error::Unfit {
        file: path.clone(),
        problem: format!("what was made is no such model: {problem}"),
    };
    let made = Model::from_file(made);
    let made = made.map_err(|error| failed(error.to_string()))?;
    let ours = made.hparams();
    if (ours.n_embd, ours.layers.len()) != (hparams.n_embd, hparams.layers.len()) {
        return Err(failed("it comes back with another width or depth".into()));
    }
    let layers = ours.layers.iter().zip(&hparams.layers).enumerate();
    for (i, (ours, theirs)) in layers {
        // Where there are experts, the width of dense layers need not mean anything.
        let n_ff = |layer: &LayerParams| hparams.moe.is_none().then_some(layer.n_ff);
        let shape = |layer: &LayerParams| (layer.n_heads, layer.key_dim, n_ff(layer), layer.window);
        if shape(ours) != shape(theirs) {
            return Err(failed(format!("layer {i} comes back with another shape")));
        }
    }
    Ok(())
}

/// The tensors as GGUF has them.
fn tensors<'a>(file: &'a ModelFile, arch: &'static Arch, hparams: &Hparams) -> Vec<Tensor<'a>> {
    let list = gguf_tensors(file, arch, hparams);
    list.into_iter()
        .map(|tensor| as_tensor(file, tensor))
        .collect()
}

/// A tensor to be, ready to be read.
fn as_tensor<'a>(file: &'a ModelFile, tensor: ExportedTensor<'a>) -> Tensor<'a> {
    match tensor.data {
        ExportedData::Stored(parts) => {
            Tensor::stacked(file, parts, tensor.name, tensor.ty, tensor.shape)
        }
        ExportedData::Made(make) => {
            let make = Box::new(move || Ok(make()?));
            Tensor::made(tensor.name, tensor.ty, tensor.shape, file.path(), make)
        }
    }
}

/// The vocabulary, if the directory has one: models for tests may lack it.
fn vocabulary(output: &mut Output, file: &ModelFile, n_vocab: usize) -> Result<()> {
    let spec = match VocabSpec::of_file(file) {
        Ok(spec) => spec,
        Err(oxidize_core::Error::Tokenizer {
            error: oxidize_core::tokenizer::TokenizerError::Missing(_),
            ..
        }) => {
            output.set("tokenizer.ggml.model", "no_vocab".into());
            return Ok(());
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
    Ok(())
}

/// The mix for a conversion to one type.
pub fn plain_mix(name: &str) -> Result<Mix> {
    Mix::named(name).ok_or_else(|| Error::UnknownMix {
        name: name.to_owned(),
    })
}
