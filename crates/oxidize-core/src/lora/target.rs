//! Which matrices of a model an adapter's pair changes, whatever the formats of the two.

use super::{Adapter, LoraError, Pair};
use crate::arch::names::{ATTN_K, ATTN_Q, ATTN_QKV, ROLES};
use crate::arch::{QkvLayout, TensorRole};
use crate::error::Result;
use crate::file::Format;
use crate::graph::{Op, Plan, RopeLayout, WeightId};
use crate::model::{Model, Part};
use std::collections::HashSet;

/// What a pair changes.
pub(super) struct Target {
    /// The matrices, and the rows that each is of the tensor in the file.
    pub(super) weights: Vec<(WeightId, Part)>,
    /// What the tensor is for, where the name had to be looked up.
    role: Option<TensorRole>,
}

/// Finds what `pair` changes in `model`, and checks that it fits.
pub(super) fn find(model: &Model, plan: &Plan, adapter: &Adapter, pair: &Pair) -> Result<Target> {
    check_architecture(model, adapter)?;
    let (ours, theirs) = (model.file().format(), adapter.0.file.format());
    let names: Vec<(String, Option<TensorRole>)> = if is_gguf(ours) == is_gguf(theirs) {
        vec![(bare(&pair.target).to_owned(), None)]
    } else {
        translations(model, theirs, ours, bare(&pair.target))
    };
    let mut multiplied: HashSet<WeightId> = plan.ops.iter().filter_map(multiplies).collect();
    // A table of embeddings that also makes the logits would have to change in both places.
    let looked_up = plan.ops.iter().filter_map(looks_up);
    looked_up.for_each(|table| {
        multiplied.remove(&table);
    });
    let found = names.into_iter().find_map(|(name, role)| {
        let weights = model.weights().numbered();
        let named = weights.filter(|(id, weight)| {
            multiplied.contains(id) && weight.n_experts == 1 && bare(&weight.name) == name
        });
        let weights: Vec<(WeightId, Part)> = named.map(|(id, weight)| (id, weight.part)).collect();
        (!weights.is_empty()).then_some(Target { weights, role })
    });
    let found = found.ok_or_else(|| LoraError::NoTarget {
        file: adapter.path().to_path_buf(),
        target: pair.target.clone(),
        model: model.file().path().to_path_buf(),
    })?;
    let inputs = found
        .weights
        .first()
        .map_or(0, |(id, _)| model.weights().get(*id).cols);
    let size = |tensor: &crate::file::TensorInfo, dim| tensor.dims().get(dim).copied().unwrap_or(0);
    let (theirs, ours) = ([size(&pair.b, 0), size(&pair.a, 1)], [found.rows(), inputs]);
    if theirs != ours {
        return Err(LoraError::Shape {
            file: adapter.path().to_path_buf(),
            target: pair.target.clone(),
            adapter: theirs,
            model: ours,
        }
        .into());
    }
    Ok(found)
}

impl Target {
    /// Outputs of all the matrices together.
    pub(super) fn rows(&self) -> usize {
        self.weights.iter().map(|(_, part)| part.rows()).sum()
    }

    /// Where the rows of the model's tensor are in the adapter's, if not in the same order: GGUF
    /// files of some families have the halves of each rotated pair beside each other.
    pub(super) fn row_order(
        &self,
        model: &Model,
        adapter: &Adapter,
    ) -> Option<impl Iterator<Item = usize> + use<>> {
        let layouts = model.arch().rope;
        let rotated = self
            .role
            .is_some_and(|role| role == ATTN_Q || role == ATTN_K);
        if !rotated || layouts.gguf == layouts.hf {
            return None;
        }
        let head = model.hparams().layers.first()?.key_dim;
        let to_gguf = !is_gguf(adapter.0.file.format());
        let interleave = to_gguf == (layouts.gguf == RopeLayout::Interleaved);
        Some((0..self.rows()).map(move |row| {
            let (start, at) = (row / head * head, row % head);
            start
                + if interleave {
                    at % 2 * (head / 2) + at / 2
                } else {
                    at % (head / 2) * 2 + at / (head / 2)
                }
        }))
    }
}

/// The names in files of format `to` of whatever is called `name` in files of format `from`.
fn translations(
    model: &Model,
    from: Format,
    to: Format,
    name: &str,
) -> Vec<(String, Option<TensorRole>)> {
    let arch = model.arch();
    let mut found = Vec::new();
    for layer in 0..model.hparams().layers.len() {
        for role in ROLES {
            // One file has heads' queries, keys and values side by side, the other apart.
            let moved = *role == ATTN_QKV && arch.hf_qkv != QkvLayout::Concatenated;
            let named = |theirs: &String| bare(theirs) == name;
            if !moved && role.names(arch, from, layer).iter().any(named) {
                let ours = role.names(arch, to, layer).into_iter();
                found.extend(ours.map(|ours| (bare(&ours).to_owned(), Some(*role))));
            }
        }
    }
    found
}

fn check_architecture(model: &Model, adapter: &Adapter) -> Result<(), LoraError> {
    let made_for = adapter.0.file.metadata().str("general.architecture");
    match made_for.filter(|name| *name != model.arch().name) {
        None => Ok(()),
        Some(name) => Err(LoraError::Architecture {
            file: adapter.path().to_path_buf(),
            adapter: name.to_owned(),
            model: model.arch().name,
        }),
    }
}

/// The matrix that a projection multiplies by.
fn multiplies(op: &Op) -> Option<WeightId> {
    match op {
        Op::Linear { weight, .. } => Some(*weight),
        _ => None,
    }
}

/// The table that embeddings are taken from.
fn looks_up(op: &Op) -> Option<WeightId> {
    match op {
        Op::Embed { table, .. } => Some(*table),
        _ => None,
    }
}

/// A name without its ending, and without the levels that wrappers put before it.
fn bare(name: &str) -> &str {
    let mut name = name.strip_suffix(".weight").unwrap_or(name);
    while let Some(rest) = ["model.", "language_model."]
        .iter()
        .find_map(|level| name.strip_prefix(level))
    {
        name = rest;
    }
    name
}

fn is_gguf(format: Format) -> bool {
    matches!(format, Format::Gguf { .. })
}
