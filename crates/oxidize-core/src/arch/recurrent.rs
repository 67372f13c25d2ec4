//! Hyper-parameters of recurrent layers, and their indices, from GGUF metadata or `config.json`.

use super::ModelError;
use super::hparams::{FF, MAX_FF, MAX_HEADS, MAX_WIDTH};
use super::layers::{HEADS, KV_HEADS};
use super::source::{Key, MAX_LAYERS, Source, key};
use super::{Arch, RecurrentKind, RecurrentLayers, RecurrentSpec};
use crate::graph::KeySharing;
use serde_json::Value;

/// Parameters of a recurrent part.
#[derive(Clone, Debug, PartialEq)]
pub struct RecurrentParams {
    /// Kind of recurrence.
    pub kind: RecurrentKind,
    /// Kernel width of the convolution, in tokens.
    pub kernel: usize,
    /// Elements of all value heads.
    pub inner: usize,
    /// Value heads.
    pub n_heads: usize,
    /// Key heads, or groups of heads that share B and C.
    pub n_groups: usize,
    /// Elements of a key, or state elements per channel.
    pub state_dim: usize,
    /// Assignment of value heads to key heads.
    pub sharing: KeySharing,
    /// Mamba: true if steps, B and C are normalized without weights.
    pub inner_norms: bool,
    /// Epsilon of those norms.
    pub epsilon: f32,
    /// Mamba 2: groups that are normalized separately.
    pub norm_groups: usize,
    /// Mamba 2: true if the norm precedes the gate.
    pub norm_before_gate: bool,
}

impl RecurrentParams {
    /// Mamba 2: rows of the input projection for gate, input, B, C and steps.
    pub fn mamba2_rows(&self) -> [usize; 5] {
        let shared = self.n_groups * self.state_dim;
        [self.inner, self.inner, shared, shared, self.n_heads]
    }
}

/// Multipliers of Falcon-H1. In GGUF files they are folded into the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Multipliers {
    /// Of the input of attention.
    pub attention_in: f32,
    /// Of the output of attention.
    pub attention_out: f32,
    /// Of keys.
    pub key: f32,
    /// Of the input of the recurrent part.
    pub ssm_in: f32,
    /// Of gate, input, B, C and steps of the recurrent part.
    pub ssm: [f32; 5],
    /// Of the output of the recurrent part.
    pub ssm_out: f32,
    /// Of the gate of the feed-forward layer.
    pub ffn_gate: f32,
    /// Of the output of the feed-forward layer.
    pub ffn_down: f32,
}

/// Kind of token mixer in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerKind {
    Attention,
    Recurrent,
    /// Attention and a recurrent part in parallel.
    Both,
    /// No mixer, only a feed-forward layer.
    FeedForward,
}

/// Kind of each layer, by name.
const TYPES: Key = key("", &["layer_types", "layers_block_type", "block_types"]);
/// Kind of each layer, by letter.
const PATTERN: Key = key("", &["hybrid_override_pattern"]);

const N_HEADS: Key = key(
    "ssm.time_step_rank",
    &[
        "mamba_n_heads",
        "mamba_num_heads",
        "linear_num_value_heads",
        "num_heads",
    ],
);
const HEAD_DIM: Key = key(
    "",
    &[
        "mamba_d_head",
        "mamba_head_dim",
        "linear_value_head_dim",
        "head_dim",
    ],
);
const INNER: Key = key("ssm.inner_size", &["mamba_d_ssm", "d_inner"]);
const GROUPS: Key = key(
    "ssm.group_count",
    &["mamba_n_groups", "n_groups", "linear_num_key_heads"],
);

impl Source<'_> {
    /// Number of layers in a list of kinds, for files without an explicit count.
    pub(super) fn listed_layers(&self) -> Option<usize> {
        let n = match (self.get(&TYPES), self.get(&PATTERN)) {
            (Some(Value::Array(types)), _) => types.len(),
            (_, Some(Value::String(pattern))) => pattern.len(),
            _ => return None,
        };
        (1..=MAX_LAYERS).contains(&n).then_some(n)
    }

    /// Kind of each layer.
    pub(super) fn layer_kinds(
        &self,
        arch: &Arch,
        count: (usize, usize),
    ) -> Result<Vec<LayerKind>, ModelError> {
        let n_layers = count.0;
        let Some(spec) = arch.recurrent else {
            return Ok(vec![LayerKind::Attention; n_layers]);
        };
        if spec.layers == RecurrentLayers::Parallel {
            return Ok(vec![LayerKind::Both; n_layers]);
        }
        if let Some(kinds) = self.kinds_by_name(count)? {
            return Ok(kinds);
        }
        if let Some(attention) = self.attention_layers(count)? {
            let feeds = match (spec.layers, self.per_layer(&FF, count, 0, MAX_FF)?) {
                (RecurrentLayers::Exclusive, Some(n_ff)) => n_ff,
                _ => vec![0; n_layers],
            };
            let kinds = attention.iter().zip(feeds);
            return Ok(kinds
                .map(|kind| match kind {
                    (true, _) => LayerKind::Attention,
                    (false, 0) => LayerKind::Recurrent,
                    (false, _) => LayerKind::FeedForward,
                })
                .collect());
        }
        const INTERVAL: Key = key("full_attention_interval", &["full_attention_interval"]);
        let usual = match spec.layers {
            RecurrentLayers::AllButEvery(n) => Some(n),
            _ => None,
        };
        let interval = self.optional(&INTERVAL, 1, MAX_LAYERS)?.or(usual);
        let kind = |i: usize| match interval {
            Some(n) if (i + 1).is_multiple_of(n) => LayerKind::Attention,
            _ => LayerKind::Recurrent,
        };
        Ok((0..n_layers).map(kind).collect())
    }

    fn kinds_by_name(
        &self,
        (n_layers, n_listed): (usize, usize),
    ) -> Result<Option<Vec<LayerKind>>, ModelError> {
        if let Some(Value::String(pattern)) = self.get(&PATTERN) {
            if pattern.len() != n_listed {
                let problem = format!("{} letters for {n_listed} layers", pattern.len());
                return Err(self.bad(&PATTERN, problem));
            }
            let kind = |letter: u8| match letter {
                b'M' => Ok(LayerKind::Recurrent),
                b'*' => Ok(LayerKind::Attention),
                b'-' | b'E' => Ok(LayerKind::FeedForward),
                other => Err(self.bad(&PATTERN, format!("{:?}", char::from(other)))),
            };
            let kinds = pattern.bytes().take(n_layers).map(kind);
            return kinds.collect::<Result<_, _>>().map(Some);
        }
        let Some(Value::Array(types)) = self.get(&TYPES) else {
            return Ok(None);
        };
        self.check_list(&TYPES, &types, n_listed)?;
        let kind = |name: &Value| match name.as_str() {
            Some("full_attention" | "attention" | "sliding_attention") => Ok(LayerKind::Attention),
            Some("linear_attention" | "mamba" | "conv" | "recurrent") => Ok(LayerKind::Recurrent),
            Some("mlp" | "moe") => Ok(LayerKind::FeedForward),
            _ => Err(self.bad(&TYPES, format!("{name} is not supported"))),
        };
        let kinds = types.iter().take(n_layers).map(kind);
        kinds.collect::<Result<_, _>>().map(Some)
    }

    /// True for each layer with attention, if the file lists them.
    fn attention_layers(&self, count: (usize, usize)) -> Result<Option<Vec<bool>>, ModelError> {
        const LISTED: Key = key("", &["attn_layer_indices", "full_attn_idxs"]);
        const FROM_ONE: Key = key("", &["linear_attn_config.full_attn_layers"]);
        const PERIOD: Key = key("", &["attn_layer_period"]);
        const OFFSET: Key = key("", &["attn_layer_offset"]);
        let all = 0..count.0;
        for (list, first) in [(LISTED, 0), (FROM_ONE, 1)] {
            if let Some(Value::Array(indexes)) = self.get(&list) {
                let listed = |i: usize| {
                    indexes
                        .iter()
                        .any(|n| n.as_u64() == Some((i + first) as u64))
                };
                return Ok(Some(all.map(listed).collect()));
            }
        }
        if let Some(period) = self.optional(&PERIOD, 1, MAX_LAYERS)? {
            let offset = self.optional(&OFFSET, 0, MAX_LAYERS)?.unwrap_or(0);
            return Ok(Some(all.map(|i| i % period == offset).collect()));
        }
        if let Some(Value::Array(_)) = self.get(&KV_HEADS) {
            let heads = self.per_layer(&KV_HEADS, count, 0, MAX_HEADS)?;
            return Ok(heads.map(|heads| heads.iter().map(|&n| n > 0).collect()));
        }
        Ok(None)
    }

    /// Parameters of the recurrent parts.
    pub(super) fn recurrent(
        &self,
        spec: RecurrentSpec,
        n_embd: usize,
        epsilon: f32,
    ) -> Result<RecurrentParams, ModelError> {
        const NORMS: Key = key("ssm.dt_b_c_rms", &[]);
        const EPSILON: Key = key("", &["mixer_rms_eps"]);
        const NORM_FIRST: Key = key("", &["mamba_norm_before_gate"]);
        let kind = spec.kind;
        let (inner, n_heads, n_groups, state_dim) = match kind {
            RecurrentKind::ShortConv => (n_embd, 1, 1, 1),
            RecurrentKind::Rwkv4 => (n_embd, n_embd, n_embd, 1),
            RecurrentKind::Mamba => {
                let inner = self.mamba_width(n_embd)?;
                (inner, inner, 1, self.state_dim()?)
            }
            RecurrentKind::Mamba2 | RecurrentKind::DeltaNet => {
                let n_heads = self.required(&N_HEADS, 1, MAX_HEADS)?;
                // The value may be "auto".
                let head_dim = match self.get(&HEAD_DIM) {
                    Some(Value::Number(_)) => self.optional(&HEAD_DIM, 1, MAX_WIDTH)?,
                    _ => None,
                };
                let inner = match head_dim {
                    Some(dim) => n_heads * dim,
                    None => self.mamba_width(n_embd)?,
                };
                let n_groups = self.optional(&GROUPS, 1, MAX_HEADS)?.unwrap_or(1);
                (inner, n_heads, n_groups, self.state_dim()?)
            }
            RecurrentKind::KimiDelta => {
                const OWN: Key = key("", &["linear_num_heads", "linear_attn_config.num_heads"]);
                const DIM: Key = key(
                    "kda.head_dim",
                    &["linear_head_dim", "linear_attn_config.head_dim"],
                );
                let n_heads = match self.optional(&OWN, 1, MAX_HEADS)? {
                    Some(n_heads) => n_heads,
                    None => self.required(&HEADS, 1, MAX_HEADS)?,
                };
                let dim = self.required(&DIM, 1, MAX_WIDTH)?;
                (n_heads * dim, n_heads, n_heads, dim)
            }
            RecurrentKind::Rwkv6 | RecurrentKind::Rwkv7 => {
                const DIM: Key = key("wkv.head_size", &["head_size", "head_dim"]);
                let dim = self.required(&DIM, 1, n_embd)?;
                if !n_embd.is_multiple_of(dim) {
                    return Err(self.bad(&DIM, format!("{dim} does not divide {n_embd}")));
                }
                (n_embd, n_embd / dim, n_embd / dim, dim)
            }
        };
        if inner > MAX_WIDTH || !inner.is_multiple_of(n_heads) {
            return Err(self.bad(&N_HEADS, format!("{n_heads} heads of {inner} elements")));
        }
        if !n_heads.is_multiple_of(n_groups) || !inner.is_multiple_of(n_groups) {
            return Err(self.bad(&GROUPS, format!("{n_groups} groups of {n_heads} heads")));
        }
        if n_groups * state_dim > MAX_WIDTH || (inner / n_heads).saturating_mul(state_dim) > 1 << 24
        {
            return Err(self.bad(
                &GROUPS,
                format!("{n_groups} groups of {state_dim} elements"),
            ));
        }
        let by_group = self.config.is_none() || spec.hf_norm_groups;
        Ok(RecurrentParams {
            kind,
            kernel: self.kernel(kind)?,
            inner,
            n_heads,
            n_groups,
            state_dim,
            sharing: match self.config {
                Some(_) => KeySharing::Grouped,
                None => spec.gguf_sharing,
            },
            inner_norms: self.flag(&NORMS)?.unwrap_or(spec.inner_norms),
            epsilon: self.positive(&EPSILON)?.unwrap_or(epsilon),
            norm_groups: if by_group { n_groups } else { 1 },
            norm_before_gate: self.flag(&NORM_FIRST)?.unwrap_or(false),
        })
    }

    /// Width of a Mamba's inner stream.
    fn mamba_width(&self, n_embd: usize) -> Result<usize, ModelError> {
        const EXPAND: Key = key("", &["mamba_expand", "expand"]);
        if let Some(inner) = self.optional(&INNER, 1, MAX_WIDTH)? {
            return Ok(inner);
        }
        let expand = self.number(&EXPAND)?.unwrap_or(2.0);
        let inner = (expand * n_embd as f64) as usize;
        match (1..=MAX_WIDTH).contains(&inner) {
            true => Ok(inner),
            false => Err(self.bad(&EXPAND, format!("{expand} times {n_embd}"))),
        }
    }

    fn state_dim(&self) -> Result<usize, ModelError> {
        const STATE: Key = key(
            "ssm.state_size",
            &[
                "mamba_d_state",
                "ssm_state_size",
                "state_size",
                "linear_key_head_dim",
            ],
        );
        self.required(&STATE, 1, MAX_WIDTH)
    }

    fn kernel(&self, kind: RecurrentKind) -> Result<usize, ModelError> {
        const CONV: Key = key("shortconv.l_cache", &["conv_L_cache"]);
        const SSM: Key = key(
            "ssm.conv_kernel",
            &[
                "mamba_d_conv",
                "conv_kernel",
                "linear_conv_kernel_dim",
                "linear_attn_config.short_conv_kernel_size",
            ],
        );
        const MAX_KERNEL: usize = 1024;
        match kind {
            RecurrentKind::ShortConv => self.required(&CONV, 1, MAX_KERNEL),
            RecurrentKind::Rwkv4 | RecurrentKind::Rwkv6 | RecurrentKind::Rwkv7 => Ok(2),
            _ => self.required(&SSM, 1, MAX_KERNEL),
        }
    }

    pub(super) fn multipliers(&self) -> Result<Multipliers, ModelError> {
        let one = |name: &'static [&'static str]| -> Result<f32, ModelError> {
            Ok(self.positive(&key("", name))?.unwrap_or(1.0))
        };
        const SSM: Key = key("", &["ssm_multipliers"]);
        const FFN: Key = key("", &["mlp_multipliers"]);
        let list = |key: &Key, n: usize| -> Result<Vec<f32>, ModelError> {
            let numbers = self.numbers(key)?.unwrap_or_else(|| vec![1.0; n]);
            if numbers.len() != n {
                return Err(self.bad(key, format!("{} numbers, not {n}", numbers.len())));
            }
            Ok(numbers)
        };
        let (ssm, ffn) = (list(&SSM, 5)?, list(&FFN, 2)?);
        Ok(Multipliers {
            attention_in: one(&["attention_in_multiplier"])?,
            attention_out: one(&["attention_out_multiplier"])?,
            key: one(&["key_multiplier"])?,
            ssm_in: one(&["ssm_in_multiplier"])?,
            ssm: std::array::from_fn(|i| ssm[i]),
            ssm_out: one(&["ssm_out_multiplier"])?,
            ffn_gate: ffn[0],
            ffn_down: ffn[1],
        })
    }
}
