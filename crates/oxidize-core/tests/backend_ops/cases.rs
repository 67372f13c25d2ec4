//! Test cases, one for each kind of op. A new op needs a name in the list below and a case in `build`; without
//! them the matches in `kind` and `build` do not compile.

use crate::net::{Net, VOCAB, weight_types};
use oxidize_core::backend::KvType;
use oxidize_core::file::TensorType;
use oxidize_core::graph::rope::{RopeFactors, RopeScaling, Yarn};
use oxidize_core::graph::{
    Activation, AttentionMask, AttentionOp, CacheInfo, ExpertAdapter, ExpertGroups,
    ExpertProjection, ExpertWeights, ExpertsOp, Gating, GroupScore, KeySharing, LinearAttentionOp,
    NormKind, Op, Rope, RopeLayout, Routing, Rows, SelectiveScanOp, ShortConvOp, StateInfo,
    StateUpdate, Temperature, ValueId, Window, Xielu,
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
    Glu,
    Xielu,
    Sparsify,
    Add,
    Mul,
    Scale,
    AdapterScale,
    ScaleBy,
    AddVector,
    AddSegment,
    Temperature,
    Clamp,
    WeightedSum,
    MatchMagnitude,
    Slice,
    Concat,
    Softcap,
    Experts,
    ShortConv,
    SelectiveScan,
    LinearAttention,
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

/// Error bound for f32 arithmetic in another order and for approximations of exp and tanh.
const FLOATS: f64 = 1e-11;

/// Error bound for products with weights of this type. Activations of quantized weights have 8 bits; 16-bit float
/// weights and their activations are rounded to 13 bits and a sign.
pub(crate) fn product_bound(ty: TensorType) -> f64 {
    match ty {
        _ if ty.is_quantized() => 1e-4,
        TensorType::F16 | TensorType::BF16 => 1e-7,
        _ => FLOATS,
    }
}

/// Error bound for attention over a cache of this type. Queries may be rounded as keys are.
pub(crate) fn cache_bound(ty: KvType) -> f64 {
    match ty {
        KvType::F32 => 1e-10,
        KvType::F16 => 1e-6,
        KvType::Q8_0 | KvType::Q4_0 => 1e-4,
    }
}

/// Adds an op of this kind and its inputs; returns its output and the error bound.
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
            let x = net.input(width);
            let (ty, offset) = (TensorType::F32, net.random.within(0..=3));
            let table = net.matrix(ty, 64 + offset, width);
            let positions = net.like(x);
            let b = net.push(Op::EmbedPosition {
                table,
                offset,
                out: positions,
            });
            let out = net.like(x);
            (net.push(Op::Add { a: x, b, out }), 0.0)
        }
        Kind::RopeTable => (rope_table(net, width.div_ceil(2)), FLOATS),
        Kind::Norm => {
            let (groups, width) = (net.random.within(1..=5), net.random.within(2..=100));
            let x = net.input(groups * width);
            // One vector for all groups, or one for the whole row.
            let len = net.random.pick(&[width, groups * width]);
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
            let (ty, n_heads) = (any_type(net), net.random.within(1..=4));
            let inputs = net.random.within(1..=2) * ty.block_len();
            let outputs = net.random.within(1..=60);
            let x = net.input(n_heads * inputs);
            let weight = net.stack(ty, outputs, inputs, n_heads);
            let out = net.value(Rows::Tokens, n_heads * outputs);
            (
                net.push(Op::HeadLinear { x, weight, out }),
                product_bound(ty),
            )
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
        // Attention reads what was stored.
        Kind::StoreKv | Kind::Attention => {
            let n_kv_heads = net.random.within(1..=3);
            let key_dim = net.random.within(1..=80);
            let values_in_keys = net.random.chance(0.2);
            let most = if values_in_keys { key_dim } else { 80 };
            let shape = HeadShape {
                n_heads: n_kv_heads * net.random.within(1..=5),
                n_kv_heads,
                key_dim,
                value_dim: net.random.within(1..=most),
            };
            let span = net.random.within(1..=40);
            let windows = [None, Some(Window::Sliding(span)), Some(Window::Chunk(span))];
            let variant = Variant {
                window: net.random.pick(&windows),
                softcap: net.random.chance(0.3).then_some(2.0),
                sinks: net.random.chance(0.3),
                alibi: net.random.chance(0.3),
                values_in_keys,
                relative: net.random.chance(0.3),
                mask: AttentionMask::Causal,
            };
            (attention(net, &shape, variant), cache_bound(KvType::F32))
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
        Kind::Xielu => {
            let x = wide_input(net, width);
            let (alpha_p, alpha_n) = (net.random.float(2.0), net.random.float(2.0));
            let spec = Xielu::from_stored(alpha_p, alpha_n, 0.5, -1e-6);
            let out = net.like(x);
            (net.push(Op::Xielu { x, spec, out }), FLOATS)
        }
        Kind::Sparsify => {
            let x = net.input(width + 8);
            let out = net.like(x);
            let op = Op::Sparsify {
                x,
                deviations: net.random.pick(&[0.0, 0.5, 1.6]),
                unbiased: net.random.chance(0.5),
                out,
            };
            (net.push(op), FLOATS)
        }
        Kind::Add => {
            let (a, b) = (net.input(width), net.input(width));
            let out = net.like(a);
            (net.push(Op::Add { a, b, out }), 0.0)
        }
        Kind::Mul => {
            // An element of the second factor multiplies several of the first.
            let (a, b) = (net.input(width * 3), net.random.pick(&[width, width * 3]));
            let (b, out) = (net.input(b), net.like(a));
            (net.push(Op::Mul { a, b, out }), 0.0)
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
        Kind::AddSegment => {
            let (x, table) = (net.input(width), net.vector(2 * width));
            let out = net.like(x);
            (net.push(Op::AddSegment { x, table, out }), 0.0)
        }
        Kind::AddVector => {
            let (x, weight) = (net.input(width), net.vector(width));
            let out = net.like(x);
            (net.push(Op::AddVector { x, weight, out }), 0.0)
        }
        Kind::Temperature => {
            let x = net.input(width);
            let spec = Temperature {
                scale: 0.3,
                period: net.random.pick(&[1.0, 7.0, 30.0]),
                offset: net.random.pick(&[0.0, 1.0]),
            };
            let out = net.like(x);
            (net.push(Op::Temperature { x, spec, out }), FLOATS)
        }
        Kind::AdapterScale => {
            let x = net.input(width);
            // Scales differ between sequences, also among rows that are selected.
            let kept = net
                .random
                .chance(0.5)
                .then(|| net.value(Rows::Outputs, width));
            let x = kept.map_or(x, |out| net.push(Op::SelectOutputs { x, out }));
            let (adapter, out) = (net.random.within(0..=3), net.like(x));
            let factor = 1.5;
            let op = Op::AdapterScale {
                x,
                adapter,
                factor,
                out,
            };
            (net.push(op), FLOATS)
        }
        Kind::Clamp => {
            let x = wide_input(net, width);
            let out = net.like(x);
            (net.push(Op::Clamp { x, limit: 2.5, out }), 0.0)
        }
        Kind::WeightedSum => {
            let n = net.random.within(1..=5);
            let terms: Vec<ValueId> = (0..n).map(|_| net.input(width)).collect();
            let (offset, spare) = (net.random.within(0..=3), net.random.within(0..=3));
            let weights = net.input(offset + n + spare);
            let out = net.value(Rows::Tokens, width);
            let op = Op::WeightedSum {
                terms,
                weights,
                offset,
                out,
            };
            (net.push(op), FLOATS)
        }
        Kind::MatchMagnitude => {
            let (x, like) = (wide_input(net, width), net.input(width));
            let out = net.like(x);
            (net.push(Op::MatchMagnitude { x, like, out }), FLOATS)
        }
        Kind::Slice => {
            let (groups, group) = (net.random.within(1..=4), net.random.within(1..=40));
            let x = net.input(groups * group);
            let start = net.random.within(0..=group - 1);
            let len = net.random.within(1..=group - start);
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
            let (a_len, b_len) = (net.random.within(1..=30), net.random.within(1..=30));
            let (a, b) = (net.input(groups * a_len), net.input(groups * b_len));
            let out = net.value(Rows::Tokens, groups * (a_len + b_len));
            (net.push(Op::Concat { a, b, groups, out }), 0.0)
        }
        Kind::Softcap => {
            let x = wide_input(net, width);
            let (cap, out) = (net.random.pick(&[0.5, 5.0, 50.0]), net.like(x));
            (net.push(Op::Softcap { x, cap, out }), FLOATS)
        }
        Kind::Experts => experts(net),
        Kind::ShortConv => {
            let x = net.input(width);
            let (kernel, out) = (net.random.within(1..=5), net.like(x));
            let activation = net.random.chance(0.5).then_some(Activation::Silu);
            let spec = ShortConvOp {
                state: state(net, 1, (kernel - 1) * width),
                kernel,
                weight: net.vector(kernel * width),
                bias: net.maybe_vector(width),
                activation,
            };
            (net.push(Op::ShortConv { x, spec, out }), FLOATS)
        }
        Kind::SelectiveScan => selective_scan(net),
        Kind::LinearAttention => linear_attention(net),
        Kind::SelectOutputs => {
            let x = net.input(width);
            let out = net.value(Rows::Outputs, width);
            (net.push(Op::SelectOutputs { x, out }), 0.0)
        }
    }
}

/// Shape of the heads of an attention.
pub(crate) struct HeadShape {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
}

/// Optional parts of an attention.
#[derive(Clone, Copy)]
pub(crate) struct Variant {
    pub(crate) window: Option<Window>,
    pub(crate) softcap: Option<f32>,
    pub(crate) sinks: bool,
    pub(crate) alibi: bool,
    pub(crate) values_in_keys: bool,
    pub(crate) relative: bool,
    pub(crate) mask: AttentionMask,
}

impl Default for Variant {
    fn default() -> Variant {
        Variant {
            window: None,
            softcap: None,
            sinks: false,
            alibi: false,
            values_in_keys: false,
            relative: false,
            mask: AttentionMask::Causal,
        }
    }
}

/// Stores random keys and values, and attends to them with random queries.
pub(crate) fn attention(net: &mut Net, shape: &HeadShape, variant: Variant) -> ValueId {
    let &HeadShape {
        n_heads,
        n_kv_heads,
        key_dim,
        value_dim,
    } = shape;
    let q = wide_input(net, n_heads * key_dim);
    let k = net.input(n_kv_heads * key_dim);
    let v = (!variant.values_in_keys).then(|| net.input(n_kv_heads * value_dim));
    let layer = net.plan.caches.len();
    net.plan.caches.push(CacheInfo {
        n_kv_heads,
        key_dim,
        value_dim,
        values_in_keys: variant.values_in_keys,
    });
    net.push(Op::StoreKv { layer, k, v });
    let out = net.value(Rows::Tokens, n_heads * value_dim);
    let slopes = net.random.floats(n_heads, 0.2);
    let spec = AttentionOp {
        layer,
        n_heads,
        n_kv_heads,
        key_dim,
        value_dim,
        scale: 1.0 / (key_dim as f32).sqrt(),
        mask: variant.mask,
        window: variant.window,
        softcap: variant.softcap,
        sinks: variant.sinks.then(|| net.vector(n_heads)),
        slopes: variant
            .alibi
            .then(|| slopes.iter().map(|x| x.abs()).collect()),
        relative: variant.relative.then(|| net.vector(n_heads * 15)),
    };
    net.push(Op::Attention { q, spec, out })
}

fn experts(net: &mut Net) -> (ValueId, f64) {
    let (gate_ty, down_ty) = (any_type(net), any_type(net));
    // Input and hidden layer are whole blocks of both types.
    let unit = gate_ty.block_len().max(down_ty.block_len());
    let width = unit * net.random.within(1..=2);
    let n_ff = unit * net.random.within(1..=3);
    let n_groups = net.random.within(1..=4);
    let n_experts = n_groups * net.random.within(2..=3);
    let (x, router) = (net.input(width), wide_input(net, n_experts));
    let stack = |net: &mut Net, ty: TensorType, outputs: usize, inputs: usize| ExpertWeights {
        weight: net.stack(ty, outputs, inputs, n_experts),
        bias: net.maybe_vector(n_experts * outputs),
    };
    let gated = net.random.chance(0.7);
    let gatings = [
        Gating::Softmax,
        Gating::Sigmoid,
        Gating::SoftmaxChosen,
        Gating::SparseMixer { jitter: 0.1 },
    ];
    let used_groups = net.random.within(1..=n_groups);
    let groups = ExpertGroups {
        n_groups,
        n_groups_used: used_groups,
        score: net.random.pick(&[GroupScore::Best, GroupScore::TwoBest]),
    };
    let groups = net.random.chance(0.4).then_some(groups);
    let choice = groups.map_or(n_experts, |_| used_groups * n_experts / n_groups);
    let n_adapters = net.random.within(0..=2);
    let adapters = (0..n_adapters).map(|adapter| {
        let projection = net.random.pick(&ExpertProjection::ALL);
        let (inputs, outputs) = match projection {
            ExpertProjection::Down => (n_ff, width),
            ExpertProjection::Gate | ExpertProjection::Up => (width, n_ff),
        };
        let rank = net.random.within(1..=4);
        ExpertAdapter {
            projection,
            adapter,
            factor: 0.5,
            down: net.stack(TensorType::F32, rank, inputs, n_experts),
            up: net.stack(TensorType::F32, outputs, rank, n_experts),
        }
    });
    let adapters = adapters.collect();
    let spec = ExpertsOp {
        adapters,
        gate: gated.then(|| stack(net, gate_ty, n_ff, width)),
        up: stack(net, gate_ty, n_ff, width),
        down: stack(net, down_ty, width, n_ff),
        activation: net.random.pick(&ACTIVATIONS),
        glu_limit: (gated && net.random.chance(0.3)).then_some(1.5),
        routing: Routing {
            n_experts,
            n_expert_used: net.random.within(1..=choice),
            gating: net.random.pick(&gatings),
            selection_bias: net.maybe_vector(n_experts),
            groups,
            renormalize: net.random.chance(0.5),
            scale: net.random.pick(&[1.0, 2.5]),
            expert_scale: net.maybe_vector(n_experts),
            apply_router_weight_on_input: net.random.chance(0.3),
        },
    };
    let out = net.like(x);
    let op = Op::Experts {
        x,
        router,
        spec,
        out,
    };
    // Three products, the last of which has inputs with the errors of the others.
    let bound = 10.0 * (product_bound(gate_ty) + product_bound(down_ty));
    (net.push(op), bound)
}

fn state(net: &mut Net, n_heads: usize, len: usize) -> usize {
    net.plan.states.push(StateInfo { n_heads, len });
    net.plan.states.len() - 1
}

fn selective_scan(net: &mut Net) -> (ValueId, f64) {
    let n_groups = net.random.within(1..=3);
    let n_heads = n_groups * net.random.within(1..=4);
    let (head_dim, n_state) = (net.random.within(1..=9), net.random.within(1..=40));
    let x = net.input(n_heads * head_dim);
    let dt = positive(net, n_heads);
    let (b, c) = (net.input(n_groups * n_state), net.input(n_groups * n_state));
    let rates = net.random.pick(&[1, n_state]);
    let a = net.random.floats(n_heads * rates, 2.0);
    let a = a.iter().map(|a| -a.abs()).collect();
    let spec = SelectiveScanOp {
        state: state(net, n_heads, head_dim * n_state),
        n_heads,
        head_dim,
        n_groups,
        n_state,
        a: net.weights.push_vector("a", a),
        skip: net.vector(n_heads),
    };
    let out = net.like(x);
    let op = Op::SelectiveScan {
        x,
        dt,
        b,
        c,
        spec,
        out,
    };
    (net.push(op), FLOATS)
}

fn linear_attention(net: &mut Net) -> (ValueId, f64) {
    let n_key_heads = net.random.within(1..=3);
    let (key_dim, value_dim) = (net.random.within(1..=40), net.random.within(1..=40));
    let (which, bonus) = (net.random.within(0..=2), net.random.chance(0.3));
    // Only the gated delta rule has key heads that several value heads share.
    let shared = if which == 1 {
        net.random.within(1..=3)
    } else {
        1
    };
    let n_heads = n_key_heads * shared;
    let key_width = n_heads * key_dim;
    let (q, k) = (
        net.input(n_key_heads * key_dim),
        net.input(n_key_heads * key_dim),
    );
    let v = net.input(n_heads * value_dim);
    let factors = net.random.pick(&[n_heads, key_width]);
    let decay = positive(net, factors);
    let update = match which {
        0 => StateUpdate::Add,
        1 => StateUpdate::Delta {
            beta: positive(net, n_heads),
        },
        _ => StateUpdate::Rewrite {
            remove: net.input(key_width),
            add: net.input(key_width),
        },
    };
    let spec = LinearAttentionOp {
        state: state(net, n_heads, key_dim * value_dim),
        n_heads,
        n_key_heads,
        sharing: net
            .random
            .pick(&[KeySharing::Grouped, KeySharing::Interleaved]),
        key_dim,
        value_dim,
        update,
        bonus: bonus.then(|| net.vector(key_width)),
    };
    let out = net.like(v);
    let op = Op::LinearAttention {
        q,
        k,
        v,
        decay,
        spec,
        out,
    };
    (net.push(op), 10.0 * FLOATS)
}

/// Inputs between 0 and 1.
fn positive(net: &mut Net, width: usize) -> ValueId {
    let x = net.input(width);
    let (activation, out) = (Activation::Sigmoid, net.like(x));
    net.push(Op::Activate { x, activation, out })
}

/// Inputs of up to ±6, where activation functions are not linear.
fn wide_input(net: &mut Net, width: usize) -> ValueId {
    let x = net.input(width);
    let out = net.like(x);
    net.push(Op::Scale {
        x,
        factor: 6.0 / (3.0 / width as f32).sqrt(),
        out,
    })
}

/// Cosines and sines, with every kind of context scaling.
pub(crate) fn rope_table(net: &mut Net, pairs: usize) -> ValueId {
    let scalings = [
        RopeScaling::None,
        RopeScaling::Linear(4.0),
        RopeScaling::Dynamic {
            factor: 4.0,
            original_context: 16.0,
        },
        RopeScaling::Yarn(Yarn {
            factor: 4.0,
            original_context: 64.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: net.random.chance(0.5),
            extrapolation: 1.0,
        }),
        RopeScaling::Llama3 {
            factor: 8.0,
            low: 1.0,
            high: 4.0,
            original_context: 64.0,
        },
    ];
    let mut factors = || (0..pairs).map(|_| 1.0 + net.random.float(0.5)).collect();
    let factors = [
        RopeFactors::None,
        RopeFactors::Fixed(factors()),
        RopeFactors::ByContext {
            short: factors(),
            long: factors(),
            original_context: 20,
        },
    ];
    let rope = Rope {
        dims: 2 * pairs,
        base: net.random.pick(&[100.0, 10_000.0]),
        scaling: scalings[net.random.within(0..=scalings.len() - 1)].clone(),
        factors: factors[net.random.within(0..=factors.len() - 1)].clone(),
        magnitude: net.random.pick(&[1.0, 1.3]),
    };
    let out = net.value(Rows::Tokens, 2 * pairs);
    net.push(Op::RopeTable { rope, out })
}

fn any_type(net: &mut Net) -> TensorType {
    let types: Vec<TensorType> = weight_types().collect();
    net.random.pick(&types)
}
