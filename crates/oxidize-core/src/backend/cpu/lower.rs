//! Lowers the ops of a plan to the steps of the CPU backend, and fuses ops that share an input or a buffer.
//!
//! Projections of the same input become one step, a gated linear unit is computed together with its two
//! projections, and a residual is added by the projection before it.

use crate::graph::{Activation, Op, Plan, RopeFrequencies, ValueId, WeightId};

/// One op, or several fused into one.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// An op that is not fused. Never an [`Op::RopeTable`] or an [`Op::Linear`].
    Op(Op),
    /// Cosines and sines, with the frequencies for the maximum context of the session.
    RopeTable {
        frequencies: RopeFrequencies,
        out: ValueId,
    },
    /// Several projections of one input, whose rows are distributed over threads together.
    Project { x: ValueId, parts: Vec<Projection> },
    /// `out = activation(gate · x) · (up · x)`.
    GatedProject {
        x: ValueId,
        gate: Linear,
        up: Linear,
        activation: Activation,
        out: ValueId,
    },
}

/// A matrix and its bias.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linear {
    pub(super) weight: WeightId,
    pub(super) bias: Option<WeightId>,
}

/// One output of a [`Step::Project`].
#[derive(Clone, Debug)]
pub(super) struct Projection {
    pub(super) linear: Linear,
    /// A value that the product is added to. Its buffer becomes that of the output.
    pub(super) residual: Option<ValueId>,
    pub(super) out: ValueId,
}

impl Step {
    pub(super) fn inputs(&self) -> Vec<ValueId> {
        match self {
            Step::Op(op) => op.inputs(),
            Step::RopeTable { .. } => vec![],
            Step::GatedProject { x, .. } => vec![*x],
            Step::Project { x, parts } => std::iter::once(*x)
                .chain(parts.iter().filter_map(|part| part.residual))
                .collect(),
        }
    }

    pub(super) fn outputs(&self) -> Vec<ValueId> {
        match self {
            Step::Op(op) => op.output().into_iter().collect(),
            Step::RopeTable { out, .. } | Step::GatedProject { out, .. } => vec![*out],
            Step::Project { parts, .. } => parts.iter().map(|part| part.out).collect(),
        }
    }

    /// The input whose buffer the first output may take.
    pub(super) fn overwrites(&self) -> Option<ValueId> {
        match self {
            Step::Op(
                Op::Norm { x, .. }
                | Op::Rope { x, .. }
                | Op::Activate { x, .. }
                | Op::Xielu { x, .. }
                | Op::Sparsify { x, .. }
                | Op::Scale { x, .. }
                | Op::AdapterScale { x, .. }
                | Op::ScaleBy { x, .. }
                | Op::AddVector { x, .. }
                | Op::AddSegment { x, .. }
                | Op::Temperature { x, .. }
                | Op::Clamp { x, .. }
                | Op::MatchMagnitude { x, .. }
                | Op::Softcap { x, .. },
            ) => Some(*x),
            Step::Op(Op::Glu { gate, .. }) => Some(*gate),
            Step::Op(Op::Add { a, .. } | Op::Mul { a, .. }) => Some(*a),
            Step::Project { parts, .. } => parts.first().and_then(|part| part.residual),
            _ => None,
        }
    }
}

/// The steps of a plan.
pub(super) struct Lowered {
    pub(super) steps: Vec<Step>,
    /// Number of steps, the first ones, that are the encoder's.
    pub(super) n_encoder_steps: usize,
}

/// Lowers a plan for sequences of at most `max_context` tokens.
pub(super) fn lower(plan: &Plan, max_context: usize) -> Lowered {
    let mut uses = vec![0usize; plan.values.len()];
    for value in plan.ops.iter().flat_map(Op::inputs).chain(plan.result) {
        uses[value.0 as usize] += 1;
    }
    let last_uses = plan.last_uses();
    let mut steps = Vec::with_capacity(plan.ops.len());
    let (mut at, mut n_encoder_steps) = (0, 0);
    while at < plan.ops.len() {
        // Fusion does not cross the end of the encoder: its last op is no product.
        if at == plan.n_encoder_ops {
            n_encoder_steps = steps.len();
        }
        let used = if let Some((step, used)) = gated(&plan.ops[at..], &uses) {
            steps.push(step);
            used
        } else if let Some((step, used)) = residual(&plan.ops, at, &uses, &last_uses) {
            steps.push(step);
            used
        } else if let Some((step, used)) = project(&plan.ops[at..]) {
            steps.push(step);
            used
        } else {
            steps.push(match plan.ops[at].clone() {
                Op::RopeTable { rope, out } => Step::RopeTable {
                    frequencies: rope.frequencies(max_context),
                    out,
                },
                op => Step::Op(op),
            });
            1
        };
        at += used;
    }
    Lowered {
        steps,
        n_encoder_steps,
    }
}

/// Two projections whose outputs are used only by one gated linear unit.
fn gated(ops: &[Op], uses: &[usize]) -> Option<(Step, usize)> {
    let [
        Op::Linear {
            x,
            weight,
            bias,
            out: first,
        },
        Op::Linear {
            x: x2,
            weight: weight2,
            bias: bias2,
            out: second,
        },
        Op::Glu {
            gate,
            up,
            activation,
            out,
        },
        ..,
    ] = ops
    else {
        return None;
    };
    let once = |value: &ValueId| uses[value.0 as usize] == 1;
    if x != x2 || gate != first || up != second || !once(first) || !once(second) {
        return None;
    }
    let gate = Linear {
        weight: *weight,
        bias: *bias,
    };
    let up = Linear {
        weight: *weight2,
        bias: *bias2,
    };
    Some((
        Step::GatedProject {
            x: *x,
            gate,
            up,
            activation: *activation,
            out: *out,
        },
        3,
    ))
}

/// A projection that is used only by an addition, to a value that is not used afterwards.
fn residual(ops: &[Op], at: usize, uses: &[usize], last_uses: &[usize]) -> Option<(Step, usize)> {
    let [
        Op::Linear {
            x,
            weight,
            bias,
            out: product,
        },
        Op::Add { a, b, out },
        ..,
    ] = &ops[at..]
    else {
        return None;
    };
    if b != product || a == x || uses[product.0 as usize] != 1 || last_uses[a.0 as usize] != at + 1
    {
        return None;
    }
    let linear = Linear {
        weight: *weight,
        bias: *bias,
    };
    let parts = vec![Projection {
        linear,
        residual: Some(*a),
        out: *out,
    }];
    Some((Step::Project { x: *x, parts }, 2))
}

/// Projections of the same input that follow one another.
fn project(ops: &[Op]) -> Option<(Step, usize)> {
    let Some(Op::Linear { x: shared, .. }) = ops.first() else {
        return None;
    };
    let parts: Vec<Projection> = ops
        .iter()
        .take(super::pool::MAX_MATRICES)
        .map_while(|op| match op {
            Op::Linear {
                x,
                weight,
                bias,
                out,
            } if x == shared => {
                let linear = Linear {
                    weight: *weight,
                    bias: *bias,
                };
                Some(Projection {
                    linear,
                    residual: None,
                    out: *out,
                })
            }
            _ => None,
        })
        .collect();
    let used = parts.len();
    Some((Step::Project { x: *shared, parts }, used))
}
