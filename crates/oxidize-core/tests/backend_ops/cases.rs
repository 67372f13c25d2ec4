//! One case for each kind of op. The list below is all there is to add to for a new op: the match
//! in `kind` does not compile without its name, nor the one in `build` without its case.

use crate::net::{Net, VOCAB, weight_types};
use oxidize_core::backend::KvType;
use oxidize_core::file::TensorType;
use oxidize_core::graph::{
    Activation, AttentionOp, CacheInfo, ExpertsOp, Gating, NormKind, Op, RopeFrequencies,
    RopeLayout, Rows, ValueId,
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
    RopeTable,
    Norm,
    Linear,
    Rope,
    StoreKv,
    Attention,
    Activate,
    Glu,
    Add,
    Scale,
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
        Kind::RopeTable => (rope_table(net, width.div_ceil(2)), FLOATS),
        Kind::Norm => {
            let (groups, width) = (net.random.within(1..=5), net.random.within(2..=100));
            let x = net.input(groups * width);
            let (weight, bias) = (net.maybe_vector(width), net.maybe_vector(width));
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
            let window = net.random.chance(0.5).then(|| net.random.within(1..=40));
            let softcap = net.random.chance(0.3).then_some(2.0);
            let out = attention(net, &shape, window, softcap);
            (out, cache_bound(KvType::F32))
        }
        Kind::Activate => {
            let x = wide_input(net, width);
            let (activation, out) = (net.random.pick(&ACTIVATIONS), net.like(x));
            (net.push(Op::Activate { x, activation, out }), FLOATS)
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

/// Random queries, keys and values, stored and attended to.
pub(crate) fn attention(
    net: &mut Net,
    shape: &HeadShape,
    window: Option<usize>,
    softcap: Option<f32>,
) -> ValueId {
    let &HeadShape {
        n_heads,
        n_kv_heads,
        key_dim,
        value_dim,
    } = shape;
    let q = wide_input(net, n_heads * key_dim);
    let (k, v) = (
        net.input(n_kv_heads * key_dim),
        net.input(n_kv_heads * value_dim),
    );
    let layer = net.plan.caches.len();
    net.plan.caches.push(CacheInfo {
        n_kv_heads,
        key_dim,
        value_dim,
    });
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
    let spec = ExpertsOp {
        gate: net.stack(gate_ty, n_ff, width, n_experts),
        up: net.stack(gate_ty, n_ff, width, n_experts),
        down: net.stack(down_ty, width, n_ff, n_experts),
        n_experts,
        n_used: net.random.within(1..=n_experts),
        gating: net.random.pick(&[Gating::Softmax, Gating::Sigmoid]),
        renormalize: net.random.chance(0.5),
        activation: net.random.pick(&ACTIVATIONS),
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

fn rope_table(net: &mut Net, pairs: usize) -> ValueId {
    let radians = net.random.floats(pairs, 1.0);
    let magnitude = net.random.pick(&[1.0, 1.3]);
    let out = net.value(Rows::Tokens, 2 * pairs);
    net.push(Op::RopeTable {
        frequencies: RopeFrequencies { radians, magnitude },
        out,
    })
}

fn any_type(net: &mut Net) -> TensorType {
    let types: Vec<TensorType> = weight_types().collect();
    net.random.pick(&types)
}
