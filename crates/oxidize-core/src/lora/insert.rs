//! Puts an adapter's products into a plan.

use crate::graph::{ExpertAdapter, ExpertHalf, Op, Plan, ValueId, ValueInfo, WeightId};

/// What an adapter adds to what is made of one weight.
pub(super) struct Insertion {
    pub(super) place: Place,
    /// The weight.
    pub(super) weight: WeightId,
    /// Rank × inputs; for lookups, a row of the rank for each token.
    pub(super) down: WeightId,
    pub(super) rank: usize,
    /// Outputs × rank.
    pub(super) up: WeightId,
    pub(super) factor: f32,
}

/// What of a weight is adapted: one table may serve for both embeddings and logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Products with a matrix.
    Products,
    /// Rows that are looked up.
    Lookups,
    /// Products with the matrices of a stack.
    Experts,
}

/// Adds `insertions` to `plan`. Projections of one input stay side by side, those that go down to
/// the rank among them, so that a backend can still do them in one go.
pub(super) fn insert(plan: &mut Plan, adapter: usize, insertions: &[Insertion]) {
    let insertions = Insertions {
        adapter,
        list: insertions,
    };
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

/// All that one adapter adds.
struct Insertions<'a> {
    adapter: usize,
    list: &'a [Insertion],
}

/// A product or lookup that something is added to.
struct Sum<'a> {
    insertion: &'a Insertion,
    /// What goes down to the rank; none where that is looked up, too.
    x: Option<ValueId>,
    base: ValueId,
    out: ValueId,
}

impl<'a> Insertions<'a> {
    fn find(&self, place: Place, weight: WeightId) -> Option<&'a Insertion> {
        let mut list = self.list.iter();
        list.find(|insertion| insertion.place == place && insertion.weight == weight)
    }

    /// The ops, the ones down to the rank, then what comes of those.
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

    /// The op as it is where something is added to its result, and what that is.
    fn with_base(&self, plan: &mut Plan, mut op: Op) -> (Op, Option<Sum<'a>>) {
        let (place, weight) = match &mut op {
            Op::Linear { weight, .. } => (Place::Products, *weight),
            Op::Embed { table, .. } => (Place::Lookups, *table),
            Op::Experts { spec, .. } => {
                for half in ExpertHalf::ALL {
                    let stack = spec.stack(half);
                    let found = stack.and_then(|stack| self.find(Place::Experts, stack.weight));
                    spec.adapters.extend(found.map(|insertion| ExpertAdapter {
                        half,
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
        let Some(insertion) = self.find(place, weight) else {
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
