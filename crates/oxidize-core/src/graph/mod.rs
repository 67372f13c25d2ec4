//! The plan: the computation of a model as a flat list of [`Op`]s, which a backend compiles.
//!
//! [`op`] defines the operations and [`rope`] the rotary embeddings. [`crate::builder`] builds plans.

pub mod op;
pub mod rope;

pub use op::{
    Activation, AttentionMask, AttentionOp, ExpertAdapter, ExpertGroups, ExpertProjection,
    ExpertWeights, ExpertsOp, Gating, GroupScore, KeySharing, LinearAttentionOp, NormKind, Op,
    RopeFrequencies, RopeLayout, Routing, SelectiveScanOp, ShortConvOp, StateUpdate, Temperature,
    Window, Xielu,
};
pub use rope::Rope;

/// Value of a plan: an index into [`Plan::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// Weight of the model: an index into [`crate::weights::Weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// Number of rows of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One row per token of the batch.
    Tokens,
    /// One row per output of the batch.
    Outputs,
}

/// Shape of a value. Only the number of rows depends on the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueInfo {
    /// Kind of rows.
    pub rows: Rows,
    /// Elements of a row.
    pub width: usize,
}

/// Shape of a layer's KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheInfo {
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Elements of a key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// True if values are the first elements of the keys and not stored separately (MLA).
    pub values_in_keys: bool,
}

impl CacheInfo {
    /// Elements of a value head that are stored in addition to the key.
    pub fn kept_value_dim(&self) -> usize {
        if self.values_in_keys {
            0
        } else {
            self.value_dim
        }
    }
}

/// Shape of a recurrent state. It has a constant size per sequence and is zero before the first
/// token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateInfo {
    /// Independent heads.
    pub n_heads: usize,
    /// Elements of a head.
    pub len: usize,
}

/// Kind of the result of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputKind {
    /// Logits of the next token.
    #[default]
    Logits,
    /// Hidden states, from which embeddings are computed.
    Hidden,
    /// Classifier scores.
    Scores,
}

/// Computation of a model for one batch. Only the number of tokens and the context length are
/// unknown.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Operations in the order of execution.
    pub ops: Vec<Op>,
    /// Shapes of the values.
    pub values: Vec<ValueInfo>,
    /// KV caches, which ops reference by index.
    pub caches: Vec<CacheInfo>,
    /// Recurrent states, which ops reference by index.
    pub states: Vec<StateInfo>,
    /// Number of leading ops that belong to the encoder. The decoder reads their results from the
    /// caches.
    pub n_encoder_ops: usize,
    /// Ops of each layer, for splitting a model across devices.
    pub layers: Vec<std::ops::Range<usize>>,
    /// Value that contains the result.
    pub result: Option<ValueId>,
    /// Kind of the result.
    pub output: OutputKind,
    /// Value before the output projection, from which embeddings are computed.
    pub hidden: Option<ValueId>,
}

impl Plan {
    /// Returns the plan that ends with the hidden states; `None` if the model has none.
    pub fn for_embeddings(&self) -> Option<Plan> {
        let hidden = self.hidden?;
        let makes_hidden = |op: &Op| op.output() == Some(hidden);
        let n_ops = self.ops.iter().rposition(makes_hidden)? + 1;
        let ops = self.ops[..n_ops].to_vec();
        let used = ops
            .iter()
            .flat_map(|op| op.inputs().into_iter().chain(op.output()));
        let n_values = used.map(|value| value.0 as usize + 1).max()?;
        Some(Plan {
            ops,
            values: self.values[..n_values].to_vec(),
            result: Some(hidden),
            output: OutputKind::Hidden,
            ..self.clone()
        })
    }

    /// True if tokens see later tokens, so that a sequence must be computed in one batch.
    pub fn is_bidirectional(&self) -> bool {
        let ops = self.ops.iter().skip(self.n_encoder_ops);
        ops.into_iter()
            .any(|op| matches!(op, Op::Attention { spec, .. } if spec.mask == AttentionMask::Full))
    }

    /// Window of each cache: the one of all attention that reads it. `None` if a later token may see any
    /// position.
    pub fn cache_windows(&self) -> Vec<Option<Window>> {
        let of_cache = |cache: usize| {
            let mut windows = self.ops.iter().filter_map(|op| match op {
                Op::Attention { spec, .. } if spec.layer == cache => Some(spec.causal_window()),
                _ => None,
            });
            let first = windows.next()??;
            windows.all(|window| window == Some(first)).then_some(first)
        };
        (0..self.caches.len()).map(of_cache).collect()
    }

    /// Shape of `value`.
    pub fn value(&self, value: ValueId) -> ValueInfo {
        self.values[value.0 as usize]
    }

    /// Index of the last op that uses each value; `ops.len()` for the result.
    pub fn last_uses(&self) -> Vec<usize> {
        let mut last = vec![0; self.values.len()];
        for (index, op) in self.ops.iter().enumerate() {
            for value in op.inputs().into_iter().chain(op.output()) {
                last[value.0 as usize] = index;
            }
        }
        if let Some(result) = self.result {
            last[result.0 as usize] = self.ops.len();
        }
        last
    }
}
