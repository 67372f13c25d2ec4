//! Adapters of experts. GGUF adapters contain a stack per layer, PEFT adapters a pair per expert.
//! Both become two stacks per layer; experts without a pair are zero.

use super::insert::{Insertion, Use};
use super::{Adapter, Form, LoraError, Pair};
use crate::error::{Error, Result};
use crate::file::TensorBytes;
use crate::graph::WeightId;
use crate::model::Model;
use crate::weights::{RowSlice, Stored, Weights};
use oxidize_kernels::quant::TensorType;
use std::collections::BTreeMap;

/// Adapter stacks, by the stack of experts that they change.
#[derive(Default)]
pub(super) struct Stacks(BTreeMap<WeightId, Stack>);

/// Adapter matrices of all experts of a layer.
struct Stack {
    name: String,
    rank: usize,
    factor: f32,
    inputs: usize,
    outputs: usize,
    /// Matrices A (rank × inputs) and B (outputs × rank) of each expert as f32, if it has them.
    matrices: Vec<Option<[TensorBytes; 2]>>,
}

impl Stacks {
    /// Adds the pair of one expert, or of all if `expert` is `None`.
    pub(super) fn add(
        &mut self,
        adapter: &Adapter,
        model: &Model,
        pair: &Pair,
        weights: &[(WeightId, RowSlice)],
        expert: Option<usize>,
    ) -> Result<()> {
        let (a, b) = (adapter.as_f32(&pair.a)?, adapter.as_f32(&pair.b)?);
        let n_pairs = match pair.form {
            Form::Stack(n) => n,
            _ => 1,
        };
        let n_rows = b.bytes.len() / b.row_bytes().max(1) / n_pairs.max(1);
        let first = expert.unwrap_or(0);
        for &(id, part) in weights {
            let weight = model.weights().get(id);
            let stack = self.0.entry(id).or_insert_with(|| Stack {
                name: pair.target.clone(),
                rank: pair.rank,
                factor: pair.factor,
                inputs: a.cols,
                outputs: part.rows(),
                matrices: vec![None; weight.n_experts],
            });
            let differs = match (stack.rank == pair.rank, stack.factor == pair.factor) {
                (false, _) => Some("rank"),
                (_, false) => Some("factor"),
                _ => None,
            };
            if let Some(what) = differs {
                return Err(LoraError::Experts {
                    file: adapter.path().to_path_buf(),
                    target: pair.target.clone(),
                    what,
                }
                .into());
            }
            for (nth, pair_of_expert) in stack
                .matrices
                .iter_mut()
                .skip(first)
                .take(n_pairs)
                .enumerate()
            {
                let own = RowSlice {
                    start: nth * n_rows + part.start,
                    ..part
                };
                let cut = |stored: &Stored, part| {
                    let bytes = stored.cut(part);
                    bytes.map_err(Error::io(adapter.path()))
                };
                let low = RowSlice::range(nth * pair.rank, pair.rank);
                *pair_of_expert = Some([cut(&a, low)?, cut(&b, own)?]);
            }
        }
        Ok(())
    }

    /// Adds the stacks to the weights, and returns their insertions into the plan.
    pub(super) fn finish(self, weights: &mut Weights) -> Vec<Insertion> {
        let mut insertions = Vec::new();
        for (weight, stack) in self.0 {
            let Stack {
                name,
                rank,
                inputs,
                outputs,
                ..
            } = &stack;
            let mut push = |which: usize, rows: usize, cols: usize| {
                let zeros = TensorBytes::from(vec![0; rows * cols * size_of::<f32>()]);
                let own = |matrices: &Option<[TensorBytes; 2]>| {
                    let own = matrices.as_ref().and_then(|matrices| matrices.get(which));
                    own.unwrap_or(&zeros).clone()
                };
                let pieces: Vec<TensorBytes> = stack.matrices.iter().map(own).collect();
                let n = pieces.len();
                weights.push_matrix(name, TensorType::F32, rows, cols, pieces, n)
            };
            let (down, up) = (push(0, *rank, *inputs), push(1, *outputs, *rank));
            insertions.push(Insertion {
                usage: Use::Experts,
                weight,
                down,
                rank: *rank,
                up,
                factor: stack.factor,
            });
        }
        insertions
    }
}

impl Adapter {
    /// Adapter tensor as f32.
    fn as_f32(&self, tensor: &crate::file::TensorInfo) -> Result<Stored> {
        let stored = self.stored(tensor)?;
        if stored.ty == TensorType::F32 {
            return Ok(stored);
        }
        let floats = self.floats(&stored)?;
        let bytes: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        Ok(Stored {
            ty: TensorType::F32,
            bytes: bytes.into(),
            ..stored
        })
    }
}
