//! Inserts an adapter's operations into a plan.

use crate::graph::{ExpertAdapter, ExpertProjection, Op, Plan, ValueId, ValueInfo, WeightId};

/// Adapter of one weight.
pub(super) struct Insertion {
    pub(super) usage: Use,
    /// Adapted weight.
    pub(super) weight: WeightId,
    /// Rank × inputs; for embeddings, a row of `rank` elements per token.
    pub(super) down: WeightId,
    pub(super) rank: usize,
    /// Outputs × rank.
    pub(super) up: WeightId,
    pub(super) factor: f32,
}

/// Use of a weight. One table may serve both embeddings and logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Multiplication with a matrix.
    Linear,
    /// Lookup of rows.
    Lookup,
    /// Multiplication with the matrices of a stack.
    Experts,
}

/// Adds `insertions` to `plan`. Projections of the same input, including the down-projections of
/// the adapter, stay adjacent, so that a backend can fuse them.
pub(super) fn insert(plan: &mut Plan, adapter: usize, insertions: &[Insertion]) {
    let insertions = Insertions {
        adapter,
        list: insertions,
    };
    let ops = std::mem::take(&mut plan.ops);
    // New index of each op, for updating the ranges of layers.
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
        insertions.emit(plan, projections);
        rest = after;
    }
    places.push(plan.ops.len());
    let place = |op: usize| places.get(op).copied().unwrap_or_default();
    plan.n_encoder_ops = place(plan.n_encoder_ops);
    for layer in &mut plan.layers {
        *layer = place(layer.start)..place(layer.end);
    }
}

/// Insertions of one adapter.
struct Insertions<'a> {
    adapter: usize,
    list: &'a [Insertion],
}

/// Product or lookup with an adapter.
struct Sum<'a> {
    insertion: &'a Insertion,
    /// Input of the down-projection; `None` for lookups.
    x: Option<ValueId>,
    base: ValueId,
    out: ValueId,
}

impl<'a> Insertions<'a> {
    fn find(&self, usage: Use, weight: WeightId) -> Option<&'a Insertion> {
        let mut list = self.list.iter();
        list.find(|insertion| insertion.usage == usage && insertion.weight == weight)
    }

    /// Emits the ops and the adapter's down-projections, followed by its up-projections.
    fn emit(&self, plan: &mut Plan, ops: &[Op]) {
        let mut sums = Vec::new();
        for op in ops {
            let (op, sum) = self.with_base(plan, op.clone());
            plan.ops.push(op);
            sums.extend(sum);
        }
        let mut lows = Vec::new();
        for sum in sums {
            let Insertion { rank, down, .. } = *sum.insertion;
            let rows = plan.value(sum.out).rows;
            let out = new_value(plan, ValueInfo { rows, width: rank });
            plan.ops.push(match sum.x {
                Some(x) => Op::Linear {
                    x,
                    weight: down,
                    bias: None,
                    out,
                },
                None => Op::Embed { table: down, out },
            });
            lows.push((sum, out));
        }
        for (sum, low) in lows {
            let scaled = new_value(plan, plan.value(low));
            plan.ops.push(Op::AdapterScale {
                x: low,
                adapter: self.adapter,
                factor: sum.insertion.factor,
                out: scaled,
            });
            let change = new_value(plan, plan.value(sum.out));
            plan.ops.push(Op::Linear {
                x: scaled,
                weight: sum.insertion.up,
                bias: None,
                out: change,
            });
            plan.ops.push(Op::Add {
                a: sum.base,
                b: change,
                out: sum.out,
            });
        }
    }

    /// Redirects the output of an adapted op, and returns what has to be added to it.
    fn with_base(&self, plan: &mut Plan, mut op: Op) -> (Op, Option<Sum<'a>>) {
        let (usage, weight) = match &mut op {
            Op::Linear { weight, .. } => (Use::Linear, *weight),
            Op::Embed { table, .. } => (Use::Lookup, *table),
            Op::Experts { spec, .. } => {
                for projection in ExpertProjection::ALL {
                    let stack = spec.stack(projection);
                    let found = stack.and_then(|stack| self.find(Use::Experts, stack.weight));
                    spec.adapters.extend(found.map(|insertion| ExpertAdapter {
                        projection,
                        adapter: self.adapter,
                        factor: insertion.factor,
                        down: insertion.down,
                        up: insertion.up,
                    }));
                }
                return (op, None);
            }
            _ => return (op, None),
        };
        let Some(insertion) = self.find(usage, weight) else {
            return (op, None);
        };
        let (Op::Linear { out, .. } | Op::Embed { out, .. }) = &mut op else {
            return (op, None);
        };
        let sum = *out;
        *out = new_value(plan, plan.value(sum));
        let base = *out;
        let x = match op {
            Op::Linear { x, .. } => Some(x),
            _ => None,
        };
        let sum = Sum {
            insertion,
            x,
            base,
            out: sum,
        };
        (op, Some(sum))
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
