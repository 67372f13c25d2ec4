//! A loaded model: its file, its numbers, its plan and its weights.
//!
//! Loading reads only metadata; weights stay in the file until a backend touches them.

mod companions;
mod error;
mod export;
mod loader;
mod memory;
mod mxfp4;
mod recurrent;
mod spell;
mod stored;
mod text;
mod weights;

pub use error::ModelError;
pub use export::{
    ExportedData, ExportedTensor, HuggingFaceModel, Origin, gguf_origins, gguf_tensors,
    huggingface_model, left_out,
};
pub(crate) use loader::holds_weights;
pub use loader::{QkvShape, WeightLoader};
pub use memory::{MemoryPlan, available_memory};
pub use stored::Part;
pub(crate) use stored::Stored;
pub use text::chat_template_of;
pub(crate) use text::sidecar_json;
pub use weights::{LinearWeights, NormWeights, Weight, Weights};

use crate::arch::{Arch, Hparams};
use crate::backend::{Backend, Session, SessionConfig};
use crate::error::Result;
use crate::file::{Format, ModelFile, OpenOptions};
use crate::graph::{Gives, Op, Plan, WeightId, decoder};
use crate::lora::{self, Adapter};
use crate::tokenizer::Tokenizer;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;

/// A model that is ready to be run. Cheap to clone.
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
    adapters: Vec<Adapter>,
    strengths: Vec<f32>,
}

impl Model {
    /// Opens a GGUF file or a directory of safetensors, and builds its plan.
    pub fn load(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Model> {
        Model::from_file(ModelFile::open(path, options)?)
    }

    /// Builds the plan of a file that is already open.
    pub fn from_file(file: ModelFile) -> Result<Model> {
        let arch = Arch::detect(&file)?;
        let hparams = Hparams::read(&file, arch)?;
        let mut loader = WeightLoader::new(&file, arch);
        let plan = decoder::build(arch, &hparams, &mut loader)?;
        let (mut weights, unused) = loader.finish();
        weights.plan_spelling(&plan, file.spell_out(), file.is_read());
        check_unused(&file, &hparams, &unused)?;
        check_lost(&file, &unused)?;
        if let Some(first) = unused.first() {
            let n = unused.len();
            tracing::warn!("{n} tensors are not part of the text model, such as {first}");
        }
        let n_vocab = match plan.gives {
            Gives::Logits => plan.result.map_or(0, |result| plan.value(result).width),
            // What has no logits still has an embedding for each token.
            _ => plan
                .ops
                .iter()
                .find_map(embedded)
                .map_or(0, |table| weights.get(table).rows),
        };
        let tokenizer = OnceLock::new();
        Ok(Model(Arc::new(Inner {
            file,
            arch,
            hparams,
            plan,
            weights,
            n_vocab,
            unused,
            tokenizer,
            adapters: Vec::new(),
            strengths: Vec::new(),
        })))
    }

    /// The same model with further low-rank adapters, each with the strength it has where a request
    /// does not say otherwise. The weights stay as they are, and shared with this one.
    pub fn with_adapters(&self, adapters: Vec<(Adapter, f32)>) -> Result<Model> {
        let mut inner = (*self.0).clone();
        for (adapter, strength) in adapters {
            let index = inner.adapters.len();
            lora::add(&mut inner.plan, &mut inner.weights, self, &adapter, index)?;
            inner.adapters.push(adapter);
            inner.strengths.push(strength);
        }
        Ok(Model(Arc::new(inner)))
    }

    /// Its adapters.
    pub fn adapters(&self) -> &[Adapter] {
        &self.0.adapters
    }

    /// How strongly each adapter takes part where a request does not say.
    pub fn adapter_strengths(&self) -> &[f32] {
        &self.0.strengths
    }

    /// The file it came from.
    pub fn file(&self) -> &ModelFile {
        &self.0.file
    }

    /// Its architecture.
    pub fn arch(&self) -> &'static Arch {
        self.0.arch
    }

    /// Its numbers.
    pub fn hparams(&self) -> &Hparams {
        &self.0.hparams
    }

    /// What it computes.
    pub fn plan(&self) -> &Plan {
        &self.0.plan
    }

    /// What it computes with.
    pub fn weights(&self) -> &Weights {
        &self.0.weights
    }

    /// Tensors of the file that the plan does not use.
    pub fn unused_tensors(&self) -> &[String] {
        &self.0.unused
    }

    /// Width of the logits.
    pub fn n_vocab(&self) -> usize {
        self.0.n_vocab
    }

    /// Prepares `backend` to run the model.
    pub fn session(
        &self,
        backend: &dyn Backend,
        config: &SessionConfig,
    ) -> Result<Box<dyn Session>> {
        self.compile(&self.0.plan, backend, config)
    }

    /// Prepares `backend` to give out hidden states instead of logits.
    pub fn embedding_session(
        &self,
        backend: &dyn Backend,
        config: &SessionConfig,
    ) -> Result<Box<dyn Session>> {
        let plan = self.0.plan.for_embeddings();
        let plan = plan.ok_or_else(|| ModelError::NoHiddenStates {
            file: self.file().path().to_path_buf(),
        })?;
        self.compile(&plan, backend, config)
    }

    fn compile(
        &self,
        plan: &Plan,
        backend: &dyn Backend,
        config: &SessionConfig,
    ) -> Result<Box<dyn Session>> {
        if let Some(op) = plan.ops.iter().find(|op| !backend.supports(op)) {
            return Err(crate::backend::BackendError::Unsupported {
                backend: backend.name(),
                op: format!("{op:?}"),
            }
            .into());
        }
        Ok(backend.compile(plan, &self.0.weights, config)?)
    }

    /// The first weight with an element that is no number, for explaining why logits are none.
    pub fn find_not_finite(&self) -> Option<String> {
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

/// A GGUF file has no tensors in its layers that the plan could do without: whoever put them there
/// meant another graph. Layers that guess further tokens are left alone.
fn check_unused(file: &ModelFile, hparams: &Hparams, unused: &[String]) -> Result<()> {
    let layer = |name: &str| -> Option<usize> {
        // Of either stack, where there are two.
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

/// Refuses a model some of whose layers lack what the others have; see [`companions`].
fn check_lost(file: &ModelFile, unused: &[String]) -> Result<(), ModelError> {
    let others: HashSet<&str> = unused.iter().map(String::as_str).collect();
    let ours = file.tensors().iter().map(|tensor| tensor.name.as_str());
    match companions::lost(ours.filter(|name| !others.contains(name))) {
        Some(tensor) => Err(ModelError::MissingTensor {
            file: file.path().to_path_buf(),
            tensor,
        }),
        None => Ok(()),
    }
}
