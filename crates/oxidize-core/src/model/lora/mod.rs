//! LoRA adapters (Hu et al. 2021): `y = W·x + scale · factor · B·(A·x)`.
//!
//! An [`Adapter`] is a GGUF file or a PEFT directory ([`read`]). [`add`] inserts its products into
//! a plan; the base weights are unchanged and may have any type. Each sequence of a batch has its
//! own scale. Matrices, including those of experts ([`experts`]), and embeddings can be adapted.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod error;
mod experts;
mod insert;
mod read;
mod target;

pub use error::LoraError;

use crate::error::{Error, Result};
use crate::file::{ModelFile, OpenOptions, TensorInfo};
use crate::graph::Plan;
use crate::model::Model;
use crate::weights::{Stored, Weights};
use experts::Stacks;
use insert::{Insertion, Use, insert};
use oxidize_kernels::quant::dequantize;
use std::path::Path;
use std::sync::Arc;
use target::{Matrices, Target};

/// LoRA adapter, in GGUF or PEFT format. Cheap to clone.
///
/// ```no_run
/// use oxidize::{Adapter, Engine, Model, OpenOptions, Request};
///
/// let adapter = Adapter::open("adapter.gguf", &OpenOptions::default())?;
/// let model = Model::load("model.gguf")?.with_adapters(vec![(adapter, 1.0)])?;
/// let engine = Engine::new(model)?;
/// // Requests with other scales share the steps of the engine.
/// let request = Request::chat("Hello").adapters([0.5]);
/// println!("{}", engine.submit(request)?.text()?);
/// # Ok::<(), oxidize::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Adapter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: ModelFile,
    pairs: Vec<Pair>,
}

/// Matrices A and B for one matrix of the base model.
#[derive(Clone, Debug)]
struct Pair {
    /// Name of the base matrix, as in files of the adapter's format.
    target: String,
    form: Form,
    rank: usize,
    /// Rank × inputs.
    a: TensorInfo,
    /// Outputs × rank.
    b: TensorInfo,
    /// Factor from training: `alpha / rank`.
    factor: f32,
}

/// Form of the matrices A and B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Two matrices.
    Matrix,
    /// Two stacks with this number of matrices, one per expert.
    Stack(usize),
    /// Two matrices for embeddings.
    Table {
        /// Rows of the embedding table.
        tokens: usize,
        /// True if A has a row per token; otherwise it has a column per token.
        by_token: bool,
    },
}

impl Adapter {
    /// Opens a GGUF adapter, or a PEFT directory (or the safetensors file in it).
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Adapter> {
        let (file, pairs) = read::open(path.as_ref(), options)?;
        Ok(Adapter(Arc::new(Inner { file, pairs })))
    }

    /// Opens a GGUF adapter in memory. Errors name it by `path`.
    pub fn from_bytes(
        path: impl AsRef<Path>,
        bytes: Vec<u8>,
        options: &OpenOptions,
    ) -> Result<Adapter> {
        let parts = vec![(path.as_ref().to_path_buf(), bytes)];
        let (file, pairs) = read::of_file(ModelFile::from_parts(parts, options)?, options)?;
        Ok(Adapter(Arc::new(Inner { file, pairs })))
    }

    /// Path of the adapter.
    pub fn path(&self) -> &Path {
        self.0.file.path()
    }

    /// Number of matrices that the adapter changes.
    pub fn n_targets(&self) -> usize {
        self.0.pairs.len()
    }

    /// Largest rank.
    pub fn rank(&self) -> usize {
        let ranks = self.0.pairs.iter().map(|pair| pair.rank);
        ranks.max().unwrap_or(0)
    }

    /// Changes of the tensors of `model`, by name.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn deltas(&self, model: &Model) -> Result<Vec<Delta>> {
        let delta = |pair: &Pair| -> Result<Delta> {
            let refuse = |what| LoraError::OnlyBeside {
                file: self.path().to_path_buf(),
                target: pair.target.clone(),
                what,
            };
            let found = match target::find(model, model.plan(), self, pair)? {
                Target::Matrices(found) => found,
                Target::Table(_) => return Err(refuse("embeddings").into()),
                Target::Experts { .. } => return Err(refuse("experts").into()),
            };
            let b = self.in_model_order(&found, model, pair)?;
            let tensor = found
                .weights
                .first()
                .map(|(id, _)| model.weights().get(*id));
            Ok(Delta {
                tensor: tensor.map(|weight| weight.name.clone()).unwrap_or_default(),
                a: self.floats(&self.stored(&pair.a)?)?,
                b: self.floats(&b)?,
                rank: pair.rank,
                factor: pair.factor,
            })
        };
        self.0.pairs.iter().map(delta).collect()
    }

    /// Matrix B with its rows in the order of the model's file.
    fn in_model_order(&self, found: &Matrices, model: &Model, pair: &Pair) -> Result<Stored> {
        let b = self.stored(&pair.b)?;
        match found.row_order(model, self) {
            Some(order) => b.reordered(order).map_err(Error::io(self.path())),
            None => Ok(b),
        }
    }

    fn floats(&self, stored: &Stored) -> Result<Vec<f32>> {
        let n = stored.bytes.len() / stored.ty.block_bytes() * stored.ty.block_len();
        let mut floats = vec![0.0; n];
        dequantize(stored.ty, &stored.bytes, &mut floats).map_err(|error| Error::Dequantize {
            path: self.path().to_path_buf(),
            name: stored.name.clone(),
            error,
        })?;
        Ok(floats)
    }

    /// Matrix A of embeddings, with a row per token.
    fn by_token(&self, pair: &Pair) -> Result<Stored> {
        let a = self.stored(&pair.a)?;
        match pair.form {
            Form::Table { by_token: true, .. } => Ok(a),
            _ => a.transposed(1, pair.rank).map_err(Error::io(self.path())),
        }
    }

    fn stored(&self, tensor: &TensorInfo) -> Result<Stored> {
        Ok(Stored {
            name: tensor.name.clone(),
            ty: tensor.ty,
            cols: tensor.dims().last().copied().unwrap_or(0),
            bytes: self.0.file.data(tensor)?,
        })
    }
}

/// Change of one tensor of a model: `factor · B·A`.
#[derive(Clone, Debug)]
pub struct Delta {
    /// Name of the tensor in the model's file.
    pub tensor: String,
    /// Rank × inputs.
    pub a: Vec<f32>,
    /// Outputs × rank, with rows in the order of the model's file.
    pub b: Vec<f32>,
    /// Rows of `a`.
    pub rank: usize,
    /// Factor from training.
    pub factor: f32,
}

/// Adds `adapter` to a plan of `model` as its `index`-th adapter.
pub(crate) fn add(
    plan: &mut Plan,
    weights: &mut Weights,
    model: &Model,
    adapter: &Adapter,
    index: usize,
) -> Result<()> {
    let mut insertions = Vec::new();
    let mut stacks = Stacks::default();
    for pair in &adapter.0.pairs {
        match target::find(model, plan, adapter, pair)? {
            Target::Matrices(found) => {
                let a = adapter.stored(&pair.a)?;
                let down = weights.push_matrix(&a.name, a.ty, pair.rank, a.cols, vec![a.bytes], 1);
                let b = adapter.in_model_order(&found, model, pair)?;
                for (weight, part) in found.weights {
                    let bytes = b.cut(part).map_err(Error::io(adapter.path()))?;
                    let rows = part.rows();
                    let up = weights.push_matrix(&b.name, b.ty, rows, b.cols, vec![bytes], 1);
                    insertions.push(Insertion {
                        usage: Use::Linear,
                        weight,
                        down,
                        rank: pair.rank,
                        up,
                        factor: pair.factor,
                    });
                }
            }
            Target::Table(table) => {
                let (a, b) = (adapter.by_token(pair)?, adapter.stored(&pair.b)?);
                let (tokens, width) = (
                    model.weights().get(table).rows,
                    b.bytes.len() / b.row_bytes().max(1),
                );
                let down = weights.push_matrix(&a.name, a.ty, tokens, a.cols, vec![a.bytes], 1);
                let up = weights.push_matrix(&b.name, b.ty, width, b.cols, vec![b.bytes], 1);
                insertions.push(Insertion {
                    usage: Use::Lookup,
                    weight: table,
                    down,
                    rank: pair.rank,
                    up,
                    factor: pair.factor,
                });
            }
            Target::Experts { weights, expert } => {
                stacks.add(adapter, model, pair, &weights, expert)?;
            }
        }
    }
    insertions.extend(stacks.finish(weights));
    insert(plan, index, &insertions);
    Ok(())
}
