//! [`Model`]: a loaded model with its file, hyper-parameters, plan and weights.
//!
//! Loading reads only metadata; weights stay in the file until a backend uses them.

mod export;
pub mod lora;
mod missing_tensors;
mod rope_override;
mod text;

pub use crate::arch::ModelError;
pub use export::{
    ExportedData, ExportedTensor, HuggingFaceModel, Origin, gguf_origins, gguf_tensors,
    huggingface_model, left_out,
};
pub use rope_override::{RopeOverride, ScalingKind};
pub use text::chat_template_of;
pub(crate) use text::sidecar_json;

use crate::arch::{Arch, Hparams};
use crate::builder;
use crate::chat::ChatTemplate;
use crate::error::Result;
use crate::file::{Format, ModelFile, OpenOptions};
use crate::graph::{Op, OutputKind, Plan, WeightId};
use crate::tokenizer::Tokenizer;
use crate::weights::{WeightLoader, Weights};
use lora::Adapter;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;

/// A loaded model: weights, tokenizer, chat template. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Model(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    file: ModelFile,
    arch: &'static Arch,
    hparams: Hparams,
    plan: Plan,
    weights: Weights,
    n_vocab: usize,
    unused: Vec<String>,
    tokenizer: OnceLock<Tokenizer>,
    chat_template: OnceLock<Arc<ChatTemplate>>,
    adapters: Vec<Adapter>,
    scales: Vec<f32>,
}

impl Model {
    /// Loads a GGUF file (any part of a split one) or a Hugging Face directory of safetensors.
    ///
    /// Only metadata is read; weights are memory-mapped and read when they are first used.
    ///
    /// ```no_run
    /// let model = oxidize::Model::load("model.gguf")?;
    /// println!("{} with {} tokens of context", model.architecture(), model.context_length());
    /// # Ok::<(), oxidize::Error>(())
    /// ```
    pub fn load(path: impl AsRef<Path>) -> Result<Model> {
        Model::load_with(path, &OpenOptions::default())
    }

    /// Loads a model with [`OpenOptions`]: without memory mapping, with other limits, with a progress callback.
    pub fn load_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Model> {
        Model::from_file(ModelFile::open(path, options)?)
    }

    /// Name of the architecture, as in GGUF's `general.architecture`.
    pub fn architecture(&self) -> &'static str {
        self.0.arch.name
    }

    /// Context length that the model was trained for, in tokens.
    pub fn context_length(&self) -> usize {
        self.0.hparams.n_ctx_train
    }

    /// Path of the model file or directory.
    pub fn path(&self) -> &Path {
        self.0.file.path()
    }

    /// Number of parameters.
    pub fn n_params(&self) -> u64 {
        let tensors = self.0.file.tensors().iter();
        tensors
            .map(|tensor| tensor.shape.iter().product::<u64>())
            .sum()
    }

    /// Builds the plan of an open file.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn from_file(file: ModelFile) -> Result<Model> {
        Model::from_file_with_rope(file, RopeOverride::default())
    }

    /// Builds the plan of an open file, with other parameters of RoPE than its own.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn from_file_with_rope(file: ModelFile, rope: RopeOverride) -> Result<Model> {
        let arch = Arch::detect(&file)?;
        let mut hparams = Hparams::read(&file, arch)?;
        rope.apply(&mut hparams, &file)?;
        let mut loader = WeightLoader::new(&file, arch);
        let plan = builder::build(arch, &hparams, &mut loader)?;
        let (mut weights, unused) = loader.finish();
        if file.is_on_disk() {
            weights.make_releasable(&file);
        }
        check_unused(&file, &hparams, &unused)?;
        check_missing(&file, &unused)?;
        if let Some(first) = unused.first() {
            let n = unused.len();
            tracing::warn!("{n} tensors are not part of the text model, such as {first}");
        }
        let n_vocab = match plan.output {
            OutputKind::Logits => plan.result.map_or(0, |result| plan.value(result).width),
            // Models without logits have an embedding for each token.
            _ => plan
                .ops
                .iter()
                .find_map(embedded)
                .map_or(0, |table| weights.get(table).rows),
        };
        Ok(Model(Arc::new(Inner {
            file,
            arch,
            hparams,
            plan,
            weights,
            n_vocab,
            unused,
            tokenizer: OnceLock::new(),
            chat_template: OnceLock::new(),
            adapters: Vec::new(),
            scales: Vec::new(),
        })))
    }

    /// Adds LoRA adapters, each with its default scale. A [`Request`](crate::engine::Request) may set other scales. The
    /// weights stay unchanged and are shared with this model.
    pub fn with_adapters(&self, adapters: Vec<(Adapter, f32)>) -> Result<Model> {
        let mut inner = (*self.0).clone();
        for (adapter, scale) in adapters {
            let index = inner.adapters.len();
            lora::add(&mut inner.plan, &mut inner.weights, self, &adapter, index)?;
            inner.adapters.push(adapter);
            inner.scales.push(scale);
        }
        Ok(Model(Arc::new(inner)))
    }

    /// LoRA adapters of the model.
    pub fn adapters(&self) -> &[Adapter] {
        &self.0.adapters
    }

    /// Default scale of each adapter.
    pub fn adapter_scales(&self) -> &[f32] {
        &self.0.scales
    }

    /// The model file.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn file(&self) -> &ModelFile {
        &self.0.file
    }

    /// Architecture descriptor.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn arch(&self) -> &'static Arch {
        self.0.arch
    }

    /// Hyper-parameters.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn hparams(&self) -> &Hparams {
        &self.0.hparams
    }

    /// The plan: operations and values.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn plan(&self) -> &Plan {
        &self.0.plan
    }

    /// Weights by id.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn weights(&self) -> &Weights {
        &self.0.weights
    }

    /// Tensors of the file that the plan does not use.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn unused_tensors(&self) -> &[String] {
        &self.0.unused
    }

    /// Vocabulary size: the width of the logits.
    pub fn n_vocab(&self) -> usize {
        self.0.n_vocab
    }

    /// First weight with an element that is not finite, to explain logits that are not finite.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn find_not_finite(&self) -> Option<String> {
        self.0
            .weights
            .iter()
            .find(|weight| weight.has_not_finite())
            .map(|w| w.name.clone())
    }
}

fn embedded(op: &Op) -> Option<WeightId> {
    match op {
        Op::Embed { table, .. } => Some(*table),
        _ => None,
    }
}

/// Returns an error if a GGUF file contains layer tensors that the plan does not use, because the
/// model would be computed incorrectly. Layers for multi-token prediction are ignored.
fn check_unused(file: &ModelFile, hparams: &Hparams, unused: &[String]) -> Result<()> {
    let layer = |name: &str| -> Option<usize> {
        // Matches layers of the encoder and of the decoder.
        let (_, rest) = name.split_once("blk.")?;
        let (layer, _) = rest.split_once('.')?;
        layer.parse().ok()
    };
    let further = hparams.layers.len()..hparams.n_layers_in_file;
    let wrong = |name: &&String| layer(name).is_some_and(|layer| !further.contains(&layer));
    match unused.iter().find(wrong) {
        Some(name) if matches!(file.format(), Format::Gguf { .. }) => {
            let (file, tensor) = (file.path().to_path_buf(), name.clone());
            Err(ModelError::UnusedTensor { file, tensor }.into())
        }
        _ => Ok(()),
    }
}

/// Returns an error if some layers lack tensors that others have; see [`missing_tensors`].
fn check_missing(file: &ModelFile, unused: &[String]) -> Result<(), ModelError> {
    let unused: HashSet<&str> = unused.iter().map(String::as_str).collect();
    let ours = file.tensors().iter().map(|tensor| tensor.name.as_str());
    match missing_tensors::find(ours.filter(|name| !unused.contains(name))) {
        Some(tensor) => Err(ModelError::MissingTensor {
            file: file.path().to_path_buf(),
            tensor,
        }),
        None => Ok(()),
    }
}
