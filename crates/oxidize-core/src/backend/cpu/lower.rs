//! From the ops of a plan to the steps of the CPU: what shares an input or a buffer is fused.
//!
//! Projections of the same input become one step, a gated unit is computed with its two
//! projections, and a residual is added by the projection that feeds it.

use crate::graph::{
    Activation, AttentionOp, ExpertsOp, NormKind, Op, Plan, RopeFrequencies, RopeLayout, ValueId,
    WeightId,
};

/// What the CPU does between two looks at the plan.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Embed {
        table: WeightId,
        out: ValueId,
    },
    RopeTable {
        frequencies: RopeFrequencies,
        out: ValueId,
    },
    Norm(NormStep),
    /// Several projections of one input, in one sharing-out of rows.
    Project {
        x: ValueId,
        parts: Vec<Projection>,
    },
    /// `out = activation(gate · x) · (up · x)`.
    GatedProject {
        x: ValueId,
        gate: Linear,
        up: Linear,
        activation: Activation,
        out: ValueId,
    },
    Rope {
        x: ValueId,
        table: ValueId,
        head_dim: usize,
        layout: RopeLayout,
        out: ValueId,
    },
    StoreKv {
        layer: usize,
        k: ValueId,
        v: ValueId,
    },
    Attention {
        q: ValueId,
        spec: AttentionOp,
        out: ValueId,
    },
    Activate {
        x: ValueId,
        activation: Activation,
        out: ValueId,
    },
    Glu {
        gate: ValueId,
        up: ValueId,
        activation: Activation,
        out: ValueId,
    },
    Add {
        a: ValueId,
        b: ValueId,
        out: ValueId,
    },
    Scale {
        x: ValueId,
        factor: f32,
        out: ValueId,
    },
    Softcap {
        x: ValueId,
        cap: f32,
        out: ValueId,
    },
    Experts {
        x: ValueId,
        router: ValueId,
        spec: ExpertsOp,
        out: ValueId,
    },
    SelectOutputs {
        x: ValueId,
        out: ValueId,
    },
}

/// A norm and its constants.
#[derive(Clone, Debug)]
pub(super) struct NormStep {
    pub(super) kind: NormKind,
    pub(super) x: ValueId,
    pub(super) weight: Option<WeightId>,
    pub(super) bias: Option<WeightId>,
    pub(super) epsilon: f32,
    pub(super) width: usize,
    pub(super) out: ValueId,
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
    /// The product is added to this value, whose buffer becomes the output's.
    pub(super) residual: Option<ValueId>,
    pub(super) out: ValueId,
}

impl Step {
    pub(super) fn inputs(&self) -> Vec<ValueId> {
        match self {
            Step::Embed { .. } | Step::RopeTable { .. } => vec![],
            Step::Norm(NormStep { x, .. })
            | Step::GatedProject { x, .. }
            | Step::Activate { x, .. }
            | Step::Scale { x, .. }
            | Step::Softcap { x, .. }
            | Step::SelectOutputs { x, .. } => vec![*x],
            Step::Project { x, parts } => std::iter::once(*x)
                .chain(parts.iter().filter_map(|part| part.residual))
                .collect(),
            Step::Rope { x, table, .. } => vec![*x, *table],
            Step::StoreKv { k, v, .. } => vec![*k, *v],
            Step::Attention { q, .. } => vec![*q],
            Step::Glu { gate, up, .. } => vec![*gate, *up],
            Step::Add { a, b, .. } => vec![*a, *b],
            Step::Experts { x, router, .. } => vec![*x, *router],
        }
    }

    pub(super) fn outputs(&self) -> Vec<ValueId> {
        match self {
            Step::StoreKv { .. } => vec![],
            Step::Project { parts, .. } => parts.iter().map(|part| part.out).collect(),
            Step::Norm(NormStep { out, .. })
            | Step::Embed { out, .. }
            | Step::RopeTable { out, .. }
            | Step::GatedProject { out, .. }
            | Step::Rope { out, .. }
            | Step::Attention { out, .. }
            | Step::Activate { out, .. }
            | Step::Glu { out, .. }
            | Step::Add { out, .. }
            | Step::Scale { out, .. }
            | Step::Softcap { out, .. }
            | Step::Experts { out, .. }
            | Step::SelectOutputs { out, .. } => vec![*out],
        }
    }

    /// The input that the first output may be written over.
    pub(super) fn overwrites(&self) -> Option<ValueId> {
        match self {
            Step::Norm(NormStep { x, .. })
            | Step::Rope { x, .. }
            | Step::Activate { x, .. }
            | Step::Scale { x, .. }
            | Step::Softcap { x, .. } => Some(*x),
            Step::Glu { gate, .. } => Some(*gate),
            Step::Add { a, .. } => Some(*a),
            Step::Project { parts, .. } => parts.first().and_then(|part| part.residual),
            _ => None,
        }
    }
}

/// Lowers a plan.
pub(super) fn lower(plan: &Plan) -> Vec<Step> {
    let mut uses = vec![0usize; plan.values.len()];
    for value in plan.ops.iter().flat_map(Op::inputs).chain(plan.result) {
        uses[value.0 as usize] += 1;
    }
    let last_uses = plan.last_uses();
    let mut steps = Vec::with_capacity(plan.ops.len());
    let mut at = 0;
    while at < plan.ops.len() {
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
            steps.push(single(&plan.ops[at]));
            1
        };
        at += used;
    }
    steps
}

/// Two projections whose outputs only meet in a gated unit.
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

/// A projection whose only use is to be added to a value that then is dead.
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

/// As many projections of the same input as follow one another.
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

fn single(op: &Op) -> Step {
    match op.clone() {
        Op::Embed { table, out } => Step::Embed { table, out },
        Op::RopeTable { frequencies, out } => Step::RopeTable { frequencies, out },
        Op::Norm {
            kind,
            x,
            weight,
            bias,
            epsilon,
            width,
            out,
        } => Step::Norm(NormStep {
            kind,
            x,
            weight,
            bias,
            epsilon,
            width,
            out,
        }),
        Op::Linear {
            x,
            weight,
            bias,
            out,
        } => {
            let linear = Linear { weight, bias };
            Step::Project {
                x,
                parts: vec![Projection {
                    linear,
                    residual: None,
                    out,
                }],
            }
        }
        Op::Rope {
            x,
            table,
            head_dim,
            layout,
            out,
        } => Step::Rope {
            x,
            table,
            head_dim,
            layout,
            out,
        },
        Op::StoreKv { layer, k, v } => Step::StoreKv { layer, k, v },
        Op::Attention { q, spec, out } => Step::Attention { q, spec, out },
        Op::Activate { x, activation, out } => Step::Activate { x, activation, out },
        Op::Glu {
            gate,
            up,
            activation,
            out,
        } => Step::Glu {
            gate,
            up,
            activation,
            out,
        },
        Op::Add { a, b, out } => Step::Add { a, b, out },
        Op::Scale { x, factor, out } => Step::Scale { x, factor, out },
        Op::Softcap { x, cap, out } => Step::Softcap { x, cap, out },
        Op::Experts {
            x,
            router,
            spec,
            out,
        } => Step::Experts {
            x,
            router,
            spec,
            out,
        },
        Op::SelectOutputs { x, out } => Step::SelectOutputs { x, out },
    }
}
