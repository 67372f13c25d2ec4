//! Finds the weights of a model that an adapter changes, independent of file formats.

use super::{Adapter, Form, LoraError, Pair};
use crate::arch::names::{
    ATTN_K, ATTN_Q, ATTN_QKV, FFN_DOWN_EXPERTS, FFN_GATE_EXPERTS, FFN_GATE_UP_EXPERTS,
    FFN_UP_EXPERTS, OUTPUT, PER_LAYER_EMBEDDING, ROLES, TOKEN_EMBEDDING,
};
use crate::arch::{ARCHS, QkvLayout, TensorRole};
use crate::error::Result;
use crate::file::{Format, TensorInfo};
use crate::graph::{ExpertProjection, ExpertsOp, Op, Plan, RopeLayout, WeightId};
use crate::model::Model;
use crate::weights::RowSlice;
use std::collections::HashSet;

/// Target of a pair.
pub(super) enum Target {
    /// Multiplications with matrices.
    Matrices(Matrices),
    /// Lookups in an embedding table.
    Table(WeightId),
    /// Matrices of experts.
    Experts {
        /// Stacks, with the rows of the pair for each.
        weights: Vec<(WeightId, RowSlice)>,
        /// Expert, or `None` if the adapter contains all experts of the layer.
        expert: Option<usize>,
    },
}

/// Matrices that are one tensor in the file.
pub(super) struct Matrices {
    /// Matrices, with the rows of the file's tensor for each.
    pub(super) weights: Vec<(WeightId, RowSlice)>,
    /// Role of the tensor, if the name had to be translated.
    role: Option<TensorRole>,
}

/// Finds the target of `pair` in `model`, and checks the shapes.
pub(super) fn find(model: &Model, plan: &Plan, adapter: &Adapter, pair: &Pair) -> Result<Target> {
    check_architecture(model, adapter)?;
    let found = match pair.form {
        Form::Table { .. } => table(model, plan, adapter, pair).map(Target::Table),
        Form::Stack(_) => experts(model, plan, adapter, pair),
        Form::Matrix => match matrices(model, plan, adapter, pair) {
            Some(found) => Some(Target::Matrices(found)),
            None => experts(model, plan, adapter, pair),
        },
    };
    let found = found.ok_or_else(|| LoraError::NoTarget {
        file: adapter.path().to_path_buf(),
        target: pair.target.clone(),
        model: model.file().path().to_path_buf(),
    })?;
    let (theirs, ours) = (pair.shape(), found.shape(model, pair));
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

impl Pair {
    /// Shape of the product: experts if any, outputs (rows of a table), inputs (width of a row).
    fn shape(&self) -> Vec<usize> {
        let size = |tensor: &TensorInfo, from_end: usize| {
            let dims = tensor.dims();
            let at = dims.len().checked_sub(from_end);
            at.and_then(|at| dims.get(at)).copied().unwrap_or(0)
        };
        match self.form {
            Form::Table { tokens, .. } => vec![tokens, size(&self.b, 2)],
            Form::Matrix => vec![size(&self.b, 2), size(&self.a, 1)],
            Form::Stack(n) => vec![n, size(&self.b, 2), size(&self.a, 1)],
        }
    }
}

impl Target {
    /// Shape of the target, in the same form.
    fn shape(&self, model: &Model, pair: &Pair) -> Vec<usize> {
        let of = |weights: &[(WeightId, RowSlice)]| {
            let first = weights.first().map(|(id, _)| model.weights().get(*id));
            let (n, inputs) = first.map_or((0, 0), |weight| (weight.n_experts, weight.cols));
            (n, weights.iter().map(|(_, part)| part.rows()).sum(), inputs)
        };
        match self {
            Target::Matrices(found) => {
                let (_, outputs, inputs) = of(&found.weights);
                vec![outputs, inputs]
            }
            Target::Table(id) => {
                let table = model.weights().get(*id);
                vec![table.rows, table.cols]
            }
            Target::Experts { weights, .. } => {
                let (n, outputs, inputs) = of(weights);
                match pair.form {
                    Form::Stack(_) => vec![n, outputs, inputs],
                    _ => vec![outputs, inputs],
                }
            }
        }
    }
}

/// Finds the matrices with the name of the pair.
fn matrices(model: &Model, plan: &Plan, adapter: &Adapter, pair: &Pair) -> Option<Matrices> {
    let (ours, theirs) = (model.file().format(), adapter.0.file.format());
    let target = bare(&pair.target);
    let names: Vec<(String, Option<TensorRole>)> = if is_gguf(ours) == is_gguf(theirs) {
        vec![(target.to_owned(), None)]
    } else {
        translations(model, theirs, ours, target)
    };
    let multiplied: HashSet<WeightId> = plan.ops.iter().filter_map(matrix_of).collect();
    let tables: HashSet<WeightId> = plan.ops.iter().filter_map(table_of).collect();
    let found = names.into_iter().find_map(|(name, role)| {
        // An embedding table that also serves as the output projection is found as a table.
        let named = model.weights().numbered().filter(|(id, weight)| {
            multiplied.contains(id)
                && !tables.contains(id)
                && weight.n_experts == 1
                && bare(&weight.name) == name
        });
        let weights: Vec<(WeightId, RowSlice)> =
            named.map(|(id, weight)| (id, weight.part)).collect();
        (!weights.is_empty()).then_some(Matrices { weights, role })
    });
    let tied = || {
        let names = name_variants(model, &OUTPUT, theirs, 0);
        let is_output = names.iter().any(|name| bare(name) == target);
        let table = multiplied
            .intersection(&tables)
            .next()
            .filter(|_| is_output)?;
        Some(Matrices {
            weights: vec![(*table, model.weights().get(*table).part)],
            role: None,
        })
    };
    found.or_else(tied)
}

/// Finds the embedding table with the name of the pair.
fn table(model: &Model, plan: &Plan, adapter: &Adapter, pair: &Pair) -> Option<WeightId> {
    let (ours, theirs) = (model.file().format(), adapter.0.file.format());
    let named = |role: &TensorRole, format, name: &str| {
        let names = name_variants(model, role, format, 0);
        names.iter().any(|own| bare(own) == bare(name))
    };
    let roles = [TOKEN_EMBEDDING, PER_LAYER_EMBEDDING].into_iter();
    let role = roles
        .clone()
        .find(|role| named(role, theirs, &pair.target))?;
    let mut tables = plan.ops.iter().filter_map(table_of);
    tables.find(|id| named(&role, ours, &model.weights().get(*id).name))
}

/// Finds the stacks of experts with the name of the pair, and the expert, if the name contains one.
fn experts(model: &Model, plan: &Plan, adapter: &Adapter, pair: &Pair) -> Option<Target> {
    const STACKS: [(TensorRole, &[ExpertProjection]); 4] = [
        (FFN_GATE_EXPERTS, &[ExpertProjection::Gate]),
        (FFN_UP_EXPERTS, &[ExpertProjection::Up]),
        (FFN_DOWN_EXPERTS, &[ExpertProjection::Down]),
        (
            FFN_GATE_UP_EXPERTS,
            &[ExpertProjection::Gate, ExpertProjection::Up],
        ),
    ];
    let (format, target) = (adapter.0.file.format(), bare(&pair.target));
    let is_stack = matches!(pair.form, Form::Stack(_));
    for (layer, ops) in plan.layers.iter().enumerate() {
        let mut ops = plan.ops.get(ops.clone())?.iter();
        let Some(spec) = ops.find_map(experts_of) else {
            continue;
        };
        for (role, halves) in STACKS {
            let names = name_variants(model, &role, format, layer);
            let mut found = names.iter().filter_map(|name| numbered(bare(name), target));
            let Some(expert) = found.find(|expert| expert.is_none() == is_stack) else {
                continue;
            };
            if expert.is_some_and(|expert| expert >= spec.routing.n_experts) {
                return None;
            }
            let mut start = 0;
            let mut weights = Vec::new();
            for projection in halves {
                let id = spec.stack(*projection)?.weight;
                let rows = model.weights().get(id).rows;
                weights.push((id, RowSlice::range(start, rows)));
                start += rows;
            }
            return Some(Target::Experts { weights, expert });
        }
    }
    None
}

/// Matches `name` with `pattern`; returns the number in place of `{e}`.
fn numbered(pattern: &str, name: &str) -> Option<Option<usize>> {
    match pattern.split_once("{e}") {
        None => (pattern == name).then_some(None),
        Some((before, after)) => {
            let number = name.strip_prefix(before)?.strip_suffix(after)?;
            number.parse().ok().map(Some)
        }
    }
}

impl Matrices {
    /// Number of outputs of all matrices.
    fn rows(&self) -> usize {
        self.weights.iter().map(|(_, part)| part.rows()).sum()
    }

    /// Row order of the adapter's tensor for the rows of the model's tensor, if it differs: in GGUF
    /// files of some families, the elements of a RoPE pair are neighbors.
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

/// Possible names in format `to` of the tensor called `name` in format `from`.
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
            // The row orders of fused query, key and value projections may differ between formats.
            let is_reordered = *role == ATTN_QKV && arch.hf_qkv != QkvLayout::Concatenated;
            let named = |theirs: &String| bare(theirs) == name;
            if !is_reordered && name_variants(model, role, from, layer).iter().any(named) {
                let ours = role.names(arch, to, layer).into_iter();
                found.extend(ours.map(|ours| (bare(&ours).to_owned(), Some(*role))));
            }
        }
    }
    found
}

/// Possible names of a tensor in any family with the GGUF name of the model, such as Mixtral for
/// `llama`.
fn name_variants(model: &Model, role: &TensorRole, format: Format, layer: usize) -> Vec<String> {
    let (own, name) = (model.arch(), model.arch().name);
    let related = ARCHS.iter().filter(|arch| arch.name == name);
    std::iter::once(own)
        .chain(related.copied())
        .flat_map(|arch| role.names(arch, format, layer))
        .collect()
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

/// Matrix of a projection.
fn matrix_of(op: &Op) -> Option<WeightId> {
    match op {
        Op::Linear { weight, .. } => Some(*weight),
        _ => None,
    }
}

/// Table of an embedding lookup.
fn table_of(op: &Op) -> Option<WeightId> {
    match op {
        Op::Embed { table, .. } => Some(*table),
        _ => None,
    }
}

/// Mixture of experts.
fn experts_of(op: &Op) -> Option<&ExpertsOp> {
    match op {
        Op::Experts { spec, .. } => Some(spec),
        _ => None,
    }
}

/// Name without suffix and without prefixes of wrapper modules.
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
