//! Puts an adapter's products into a plan.

use crate::graph::{Op, Plan, ValueId, ValueInfo, WeightId};

/// What an adapter adds to the products of one matrix.
pub(super) struct Insertion {
    /// The matrix.
    pub(super) weight: WeightId,
    /// Rank × inputs.
    pub(super) down: WeightId,
    pub(super) rank: usize,
    /// Outputs × rank.
    pub(super) up: WeightId,
    pub(super) factor: f32,
}

/// Adds `insertions` to `plan`. Projections of one input stay side by side, those that go down to
/// the rank among them, so that a backend can still do them in one go.
pub(super) fn insert(plan: &mut Plan, adapter: usize, insertions: &[Insertion]) {
    let ops = std::mem::take(&mut plan.ops);
    // Where each op goes: layers are ranges of ops.
    let mut places = Vec::with_capacity(ops.len() + 1);
    let mut rest = ops.as_slice();
    while let Some(first) = rest.first() {
        let run = rest
            .iter()
            .take_while(|op| same_input(first, op))
            .count()
            .max(1);
        let (projections, after) = rest.split_at(run);
        places.extend(std::iter::repeat_n(plan.ops.len(), run));
        emit(plan, adapter, projections, insertions);
        rest = after;
    }
    places.push(plan.ops.len());
    let place = |op: usize| places.get(op).copied().unwrap_or_default();
    plan.n_encoder_ops = place(plan.n_encoder_ops);
    for layer in &mut plan.layers {
        *layer = place(layer.start)..place(layer.end);
    }
}

/// The projections, the ones down to the rank, then what comes of those.
fn emit(plan: &mut Plan, adapter: usize, projections: &[Op], insertions: &[Insertion]) {
    let mut adapted = Vec::new();
    for op in projections {
        let Op::Linear {
            x,
            weight,
            bias,
            out,
        } = *op
        else {
            plan.ops.push(op.clone());
            continue;
        };
        match insertions
            .iter()
            .find(|insertion| insertion.weight == weight)
        {
            None => plan.ops.push(op.clone()),
            Some(insertion) => {
                let base = new_value(plan, plan.value(out));
                plan.ops.push(Op::Linear {
                    x,
                    weight,
                    bias,
                    out: base,
                });
                adapted.push((insertion, x, base, out));
            }
        }
    }
    let narrow = |plan: &mut Plan, x: ValueId, rank: usize| {
        let rows = plan.value(x).rows;
        new_value(plan, ValueInfo { rows, width: rank })
    };
    let mut parts = Vec::new();
    for (insertion, x, base, sum) in adapted {
        let out = narrow(plan, x, insertion.rank);
        plan.ops.push(Op::Linear {
            x,
            weight: insertion.down,
            bias: None,
            out,
        });
        parts.push((insertion, out, base, sum));
    }
    for (insertion, low, base, sum) in parts {
        let scaled = narrow(plan, low, insertion.rank);
        let factor = insertion.factor;
        plan.ops.push(Op::AdapterScale {
            x: low,
            adapter,
            factor,
            out: scaled,
        });
        let change = new_value(plan, plan.value(sum));
        let (weight, bias) = (insertion.up, None);
        plan.ops.push(Op::Linear {
            x: scaled,
            weight,
            bias,
            out: change,
        });
        plan.ops.push(Op::Add {
            a: base,
            b: change,
            out: sum,
        });
    }
}

fn new_value(plan: &mut Plan, info: ValueInfo) -> ValueId {
    plan.values.push(info);
    ValueId(plan.values.len() as u32 - 1)
}

fn same_input(first: &Op, other: &Op) -> bool {
    match (first, other) {
        (Op::Linear { x, .. }, Op::Linear { x: other, .. }) => x == other,
        _ => false,
    }
}
