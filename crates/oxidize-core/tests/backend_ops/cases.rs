//! One case for each kind of op. The list below is all there is to add to for a new op: the match
//! in `kind` does not compile without its name, nor the one in `build` without its case.

use crate::net::{Net, VOCAB, weight_types};
use oxidize_core::backend::KvType;
use oxidize_core::file::TensorType;
use oxidize_core::graph::rope::{RopeFactors, RopeScaling};
use oxidize_core::graph::{
    Activation, AttentionOp, CacheInfo, ExpertGroups, ExpertWeights, ExpertsOp, Gating, GroupScore,
    NormKind, Op, Rope, RopeLayout, Routing, Rows, Temperature, ValueId, Window, Xielu,
};

macro_rules! kinds {
    ($($name:ident,)*) => {
        /// The kinds of ops.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Kind {
            $($name,)*
        }

        /// Every kind.
        pub(crate) const ALL: &[Kind] = &[$(Kind::$name,)*];

        /// The kind of an op.
        pub(crate) fn kind(op: &Op) -> Kind {
            match op {
                $(Op::$name { .. } => Kind::$name,)*
            }
        }
    };
}

kinds! {
    Embed,
    EmbedPosition,
    RopeTable,
    Norm,
    Linear,
    HeadLinear,
    Rope,
    StoreKv,
    Attention,
    Activate,
    Xielu,
    Sparsify,
    Glu,
    Add,
    Scale,
    ScaleBy,
    Temperature,
    Clamp,
    WeightedSum,
    MatchMagnitude,
    Slice,
    Concat,
    Softcap,
    Experts,
    SelectOutputs,
}

const ACTIVATIONS: [Activation; 8] = [
    Activation::Silu,
    Activation::GeluTanh,
    Activation::GeluErf,
    Activation::GeluQuick,
    Activation::Relu,
    Activation::ReluSquared,
    Activation::Tanh,
    Activation::Sigmoid,
];

/// What float arithmetic in another order, and approximations of exp and tanh, may cost.
const FLOATS: f64 = 1e-11;

/// The error of a product with weights of this type: quantised ones meet 8-bit activations.
pub(crate) fn product_bound(ty: TensorType) -> f64 {
    if ty.is_quantized() { 1e-4 } else { FLOATS }
}

/// The error of attention over a cache of this type. Queries may be rounded as keys are.
pub(crate) fn cache_bound(ty: KvType) -> f64 {
    match ty {
        KvType::F32 => 1e-10,
        KvType::F16 => 1e-6,
        KvType::Q8_0 | KvType::Q4_0 => 1e-4,
    }
}

/// A plan with an op of this kind: its result, and how far that may be off.
pub(crate) fn build(kind: Kind, net: &mut Net) -> (ValueId, f64) {
    let width = net.random.within(1..=130);
    match kind {
        Kind::Embed => {
            let ty = any_type(net);
            let width = net.random.within(1..=3) * ty.block_len();
            let table = net.matrix(ty, VOCAB, width);
            let out = net.value(Rows::Tokens, width);
            (net.push(Op::Embed { table, out }), 0.0)
        }
        Kind::EmbedPosition => {
            let offset = net.random.within(0..=2);
            let table = net.matrix(TensorType::F32, 64 + offset, width);
            let out = net.value(Rows::Tokens, width);
            (net.push(Op::EmbedPosition { table, offset, out }), 0.0)
        }
        Kind::RopeTable => (rope_table(net, width.div_ceil(2)), FLOATS),
        Kind::Norm => {
            let (groups, width) = (net.random.within(1..=5), net.random.within(2..=100));
            let x = net.input(groups * width);
            // Groups share their weights, or each has its own.
            let len = net.random.pick(&[1, groups]) * width;
            let (weight, bias) = (net.maybe_vector(len), net.maybe_vector(len));
            let kind = net.random.pick(&[NormKind::Rms, NormKind::Layer]);
            let epsilon = net.random.pick(&[1e-6, 1e-5, 0.1]);
            let out = net.like(x);
            let op = Op::Norm {
                kind,
                x,
                weight,
                bias,
                epsilon,
                width,
                out,
            };
            (net.push(op), FLOATS)
        }
        Kind::Linear => {
            let ty = any_type(net);
            let width = net.random.within(1..=4) * ty.block_len();
            let x = net.input(width);
            let outputs = net.random.within(1..=200);
            (net.linear(x, ty, outputs), product_bound(ty))
        }
        Kind::HeadLinear => {
            let ty = any_type(net);
            let inputs = net.random.within(1..=2) * ty.block_len();
            let (n_heads, outputs) = (net.random.within(1..=5), net.random.within(1..=40));
            let x = net.input(n_heads * inputs);
            let weight = net.stack(ty, outputs, inputs, n_heads);
            let out = net.value(Rows::Tokens, n_heads * outputs);
            let op = Op::HeadLinear { x, weight, out };
            (net.push(op), product_bound(ty))
        }
        Kind::Rope => {
            let (n_heads, head_dim) = (net.random.within(1..=6), net.random.within(2..=70));
            let pairs = net.random.within(1..=head_dim / 2);
            let x = net.input(n_heads * head_dim);
            let table = rope_table(net, pairs);
            let out = net.like(x);
            let layouts = [RopeLayout::Interleaved, RopeLayout::Halves];
            let layout = net.random.pick(&layouts);
            let op = Op::Rope {
                x,
                table,
                head_dim,
                layout,
                out,
            };
            (net.push(op), FLOATS)
        }
        // What was stored is seen by who attends to it.
        Kind::StoreKv | Kind::Attention => {
            let n_kv_heads = net.random.within(1..=3);
            let shape = HeadShape {
                n_heads: n_kv_heads * net.random.within(1..=5),
                n_kv_heads,
                key_dim: net.random.within(1..=80),
                value_dim: net.random.within(1..=80),
            };
            let size = net.random.within(1..=40);
            let kinds = [Window::Sliding(size), Window::Chunk(size)];
            let window = net.random.chance(0.5).then(|| net.random.pick(&kinds));
            let softcap = net.random.chance(0.3).then_some(2.0);
            let out = attention(net, &shape, window, softcap);
            (out, cache_bound(KvType::F32))
        }
        Kind::Activate => {
            let x = wide_input(net, width);
            let (activation, out) = (net.random.pick(&ACTIVATIONS), net.like(x));
            (net.push(Op::Activate { x, activation, out }), FLOATS)
        }
        Kind::Xielu => {
            let x = wide_input(net, width);
            let spec = Xielu::from_stored(net.random.float(1.0), net.random.float(1.0), 0.5, -1e-6);
            let out = net.like(x);
            (net.push(Op::Xielu { x, spec, out }), FLOATS)
        }
        Kind::Sparsify => {
            let (x, unbiased) = (net.input(width.max(2)), net.random.chance(0.5));
            let (deviations, out) = (net.random.pick(&[0.0, 0.5, 1.6]), net.like(x));
            let op = Op::Sparsify {
                x,
                deviations,
                unbiased,
                out,
            };
            (net.push(op), FLOATS)
        }
        Kind::Glu => {
            let (gate, up) = (wide_input(net, width), net.input(width));
            let (activation, out) = (net.random.pick(&ACTIVATIONS), net.like(gate));
            let op = Op::Glu {
                gate,
                up,
                activation,
                out,
            };
            (net.push(op), FLOATS)
        }
        Kind::Add => {
            let (a, b) = (net.input(width), net.input(width));
            let out = net.like(a);
            (net.push(Op::Add { a, b, out }), 0.0)
        }
        Kind::Scale => {
            let (x, factor) = (net.input(width), net.random.float(20.0));
            let out = net.like(x);
            (net.push(Op::Scale { x, factor, out }), FLOATS)
        }
        Kind::ScaleBy => {
            let (x, weight) = (net.input(width), net.vector(width));
            let out = net.like(x);
            (net.push(Op::ScaleBy { x, weight, out }), FLOATS)
        }
        Kind::Temperature => {
            let (x, spec) = (
                net.input(width),
                Temperature {
                    scale: 0.1,
                    period: net.random.pick(&[4.0, 16.0]),
                    offset: net.random.pick(&[0.0, 1.0]),
                },
            );
            let out = net.like(x);
            (net.push(Op::Temperature { x, spec, out }), FLOATS)
        }
        Kind::Clamp => {
            let (x, limit) = (wide_input(net, width), net.random.pick(&[0.5, 2.0]));
            let out = net.like(x);
            (net.push(Op::Clamp { x, limit, out }), 0.0)
        }
        Kind::WeightedSum => {
            let terms: Vec<ValueId> = (0..net.random.within(1..=4))
                .map(|_| net.input(width))
                .collect();
            let offset = net.random.within(0..=3);
            let weights = net.input(offset + terms.len());
            let out = net.like(terms[0]);
            let op = Op::WeightedSum {
                terms,
                weights,
                offset,
                out,
            };
            (net.push(op), FLOATS)
        }
        Kind::MatchMagnitude => {
            let (x, like) = (net.input(width), wide_input(net, width));
            let out = net.like(x);
            (net.push(Op::MatchMagnitude { x, like, out }), FLOATS)
        }
        Kind::Slice => {
            let (group, groups) = (net.random.within(1..=40), net.random.within(1..=4));
            let start = net.random.within(0..=group - 1);
            let len = net.random.within(1..=group - start);
            let x = net.input(groups * group);
            let out = net.value(Rows::Tokens, groups * len);
            let op = Op::Slice {
                x,
                group,
                start,
                len,
                out,
            };
            (net.push(op), 0.0)
        }
        Kind::Concat => {
            let groups = net.random.within(1..=4);
            let (a_width, b_width) = (
                groups * net.random.within(1..=30),
                groups * net.random.within(1..=30),
            );
            let (a, b) = (net.input(a_width), net.input(b_width));
            let out = net.value(Rows::Tokens, a_width + b_width);
            (net.push(Op::Concat { a, b, groups, out }), 0.0)
        }
        Kind::Softcap => {
            let x = wide_input(net, width);
            let (cap, out) = (net.random.pick(&[0.5, 5.0, 50.0]), net.like(x));
            (net.push(Op::Softcap { x, cap, out }), FLOATS)
        }
        Kind::Experts => experts(net),
        Kind::SelectOutputs => {
            let x = net.input(width);
            let out = net.value(Rows::Outputs, width);
            (net.push(Op::SelectOutputs { x, out }), 0.0)
        }
    }
}

/// Heads of an attention.
pub(crate) struct HeadShape {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
}

/// Random queries, keys and values, stored and attended to, some with sinks or biases by distance.
pub(crate) fn attention(
    net: &mut Net,
    shape: &HeadShape,
    window: Option<Window>,
    softcap: Option<f32>,
) -> ValueId {
    let &HeadShape {
        n_heads,
        n_kv_heads,
        key_dim,
        value_dim,
    } = shape;
    let q = wide_input(net, n_heads * key_dim);
    let values_in_keys = value_dim <= key_dim && net.random.chance(0.2);
    let k = net.input(n_kv_heads * key_dim);
    let v = (!values_in_keys).then(|| net.input(n_kv_heads * value_dim));
    let layer = net.plan.caches.len();
    net.plan.caches.push(CacheInfo {
        n_kv_heads,
        key_dim,
        value_dim,
        values_in_keys,
    });
    let sinks = net.random.chance(0.3).then(|| net.vector(n_heads));
    let with_slopes = net.random.chance(0.3);
    net.push(Op::StoreKv { layer, k, v });
    let out = net.value(Rows::Tokens, n_heads * value_dim);
    let spec = AttentionOp {
        layer,
        n_heads,
        n_kv_heads,
        key_dim,
        value_dim,
        scale: 1.0 / (key_dim as f32).sqrt(),
        window,
        softcap,
        sinks,
        slopes: with_slopes.then(|| (0..n_heads).map(|i| 0.5 / (i + 1) as f32).collect()),
    };
    net.push(Op::Attention { q, spec, out })
}

fn experts(net: &mut Net) -> (ValueId, f64) {
    let (gate_ty, down_ty) = (any_type(net), any_type(net));
    // What both the input and the hidden layer are whole blocks of.
    let unit = gate_ty.block_len().max(down_ty.block_len());
    let width = unit * net.random.within(1..=2);
    let n_ff = unit * net.random.within(1..=3);
    let n_experts = net.random.within(1..=8);
    let (x, router) = (net.input(width), wide_input(net, n_experts));
    let matrix = |net: &mut Net, ty, rows, cols| ExpertWeights {
        weight: net.stack(ty, rows, cols, n_experts),
        bias: net.maybe_vector(n_experts * rows),
    };
    let gated = net.random.chance(0.8);
    let spec = ExpertsOp {
        gate: gated.then(|| matrix(net, gate_ty, n_ff, width)),
        up: matrix(net, gate_ty, n_ff, width),
        down: matrix(net, down_ty, width, n_ff),
        activation: net.random.pick(&ACTIVATIONS),
        glu_limit: net.random.chance(0.3).then_some(2.0),
        routing: routing(net, n_experts),
    };
    let out = net.like(x);
    let op = Op::Experts {
        x,
        router,
        spec,
        out,
    };
    // Three products, one of them of the others' errors.
    let bound = 5.0 * (product_bound(gate_ty) + product_bound(down_ty));
    (net.push(op), bound)
}

fn routing(net: &mut Net, n_experts: usize) -> Routing {
    let gating = net.random.pick(&[
        Gating::Softmax,
        Gating::Sigmoid,
        Gating::SoftmaxChosen,
        Gating::SparseMixer { jitter: 0.1 },
    ]);
    let grouped = n_experts.is_multiple_of(2) && net.random.chance(0.3);
    let most = if grouped { n_experts / 2 } else { n_experts };
    Routing {
        n_experts,
        n_used: net.random.within(1..=most),
        gating,
        selection_bias: net.maybe_vector(n_experts),
        groups: grouped.then_some(ExpertGroups {
            n_groups: 2,
            n_used: 1,
            score: net.random.pick(&[GroupScore::Best, GroupScore::TwoBest]),
        }),
        renormalize: net.random.chance(0.5),
        scale: net.random.pick(&[1.0, 2.5]),
        expert_scale: net.maybe_vector(n_experts),
        weigh_input: net.random.chance(0.3),
    }
}

/// Inputs of up to ±6, where the activations bend and flatten.
fn wide_input(net: &mut Net, width: usize) -> ValueId {
    let x = net.input(width);
    let out = net.like(x);
    net.push(Op::Scale {
        x,
        factor: 6.0 / (3.0 / width as f32).sqrt(),
        out,
    })
}

/// Cosines and sines of frequencies that are all over the place.
pub(crate) fn rope_table(net: &mut Net, pairs: usize) -> ValueId {
    let rope = Rope {
        dims: 2 * pairs,
        base: 1.5,
        scaling: RopeScaling::None,
        factors: RopeFactors::Fixed(net.random.floats(pairs, 3.0)),
        magnitude: net.random.pick(&[1.0, 1.3]),
    };
    let out = net.value(Rows::Tokens, 2 * pairs);
    net.push(Op::RopeTable { rope, out })
}

fn any_type(net: &mut Net) -> TensorType {
    let types: Vec<TensorType> = weight_types().collect();
    net.random.pick(&types)
}
