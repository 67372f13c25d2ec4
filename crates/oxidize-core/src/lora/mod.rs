//! Low-rank adapters (LoRA, Hu et al. 2021): `y = W·x + strength · factor · B·(A·x)`.
//!
//! An [`Adapter`] is a file ([`read`] takes GGUF adapters and PEFT directories). [`add`] puts its
//! products into a plan beside those of the base, whose weights stay as they are, whatever their
//! type; how strongly each adapter takes part is said sequence by sequence when the plan is run.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod error;
mod insert;
mod read;
mod target;

pub use error::LoraError;

use crate::error::{Error, Result};
use crate::file::{ModelFile, OpenOptions, TensorInfo};
use crate::graph::Plan;
use crate::model::{Model, Stored, Weights};
use insert::{Insertion, insert};
use oxidize_kernels::quant::dequantize;
use std::path::Path;
use std::sync::Arc;

/// An adapter as it is in its file. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Adapter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: ModelFile,
    pairs: Vec<Pair>,
}

/// What an adapter adds to one matrix of the base.
#[derive(Clone, Debug)]
struct Pair {
    /// The matrix, by the name it has in files of the adapter's format.
    target: String,
    /// Rank × inputs.
    a: TensorInfo,
    /// Outputs × rank.
    b: TensorInfo,
    /// What training divided out.
    factor: f32,
}

impl Adapter {
    /// Opens a GGUF adapter, or a PEFT directory (or the safetensors file in it).
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Adapter> {
        let (file, pairs) = read::open(path.as_ref(), options)?;
        Ok(Adapter(Arc::new(Inner { file, pairs })))
    }

    /// The file it is in.
    pub fn path(&self) -> &Path {
        self.0.file.path()
    }

    /// How many matrices it changes.
    pub fn n_targets(&self) -> usize {
        self.0.pairs.len()
    }

    /// The largest of its ranks.
    pub fn rank(&self) -> usize {
        let ranks = self.0.pairs.iter().map(Pair::rank);
        ranks.max().unwrap_or(0)
    }

    /// What it adds to the matrices of `model`, tensor by tensor of the model's file.
    pub fn deltas(&self, model: &Model) -> Result<Vec<Delta>> {
        let delta = |pair: &Pair| -> Result<Delta> {
            let found = target::find(model, model.plan(), self, pair)?;
            let mut b = self.stored(&pair.b)?;
            if let Some(order) = found.row_order(model, self) {
                b = b.reordered(order).map_err(Error::io(self.path()))?;
            }
            let tensor = found
                .weights
                .first()
                .map(|(id, _)| model.weights().get(*id));
            Ok(Delta {
                tensor: tensor.map(|weight| weight.name.clone()).unwrap_or_default(),
                a: self.floats(&self.stored(&pair.a)?)?,
                b: self.floats(&b)?,
                rank: pair.rank(),
                factor: pair.factor,
            })
        };
        self.0.pairs.iter().map(delta).collect()
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

    fn stored(&self, tensor: &TensorInfo) -> Result<Stored> {
        Ok(Stored {
            name: tensor.name.clone(),
            ty: tensor.ty,
            cols: tensor.dims().last().copied().unwrap_or(0),
            bytes: self.0.file.data(tensor)?,
        })
    }
}

/// What an adapter adds to one tensor of a model: `factor · B·A`.
#[derive(Clone, Debug)]
pub struct Delta {
    /// The tensor, by its name in the model's file.
    pub tensor: String,
    /// Rank × inputs.
    pub a: Vec<f32>,
    /// Outputs × rank, the rows in the order of the model's file.
    pub b: Vec<f32>,
    /// Rows of `a`.
    pub rank: usize,
    /// What training divided out.
    pub factor: f32,
}

impl Pair {
    fn rank(&self) -> usize {
        self.a.dims().first().copied().unwrap_or(0)
    }
}

/// Makes `adapter` the `index`-th adapter of a plan of `model`.
pub(crate) fn add(
    plan: &mut Plan,
    weights: &mut Weights,
    model: &Model,
    adapter: &Adapter,
    index: usize,
) -> Result<()> {
    let mut insertions = Vec::new();
    for pair in &adapter.0.pairs {
        let found = target::find(model, plan, adapter, pair)?;
        let a = adapter.stored(&pair.a)?;
        let down = weights.push_matrix(&a.name, a.ty, pair.rank(), a.cols, vec![a.bytes], 1);
        let mut b = adapter.stored(&pair.b)?;
        if let Some(order) = found.row_order(model, adapter) {
            b = b.reordered(order).map_err(Error::io(adapter.path()))?;
        }
        for (weight, part) in found.weights {
            let bytes = b.cut(part).map_err(Error::io(adapter.path()))?;
            let up = weights.push_matrix(&b.name, b.ty, part.rows(), b.cols, vec![bytes], 1);
            insertions.push(Insertion {
                weight,
                down,
                rank: pair.rank(),
                up,
                factor: pair.factor,
            });
        }
    }
    insert(plan, index, &insertions);
    Ok(())
}
