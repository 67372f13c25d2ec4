//! The numbers of one model: read from GGUF metadata or `config.json`, checked against each other.
//!
//! Everything that may differ between layers is resolved here, so that the graph only looks it up.

use super::{Arch, EmbeddingScale, QueryScale, Windows};
use crate::file::{Format, ModelFile};
use crate::graph::RopeLayout;
use crate::graph::rope::{RopeScaling, Yarn};
use crate::model::ModelError;
use serde_json::Value;
use std::path::PathBuf;

/// The shape of a model.
#[derive(Clone, Debug)]
pub struct Hparams {
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Context the model was trained on.
    pub n_ctx_train: usize,
    /// Added to variances.
    pub epsilon: f32,
    /// Elements of a query or key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// Factor on embeddings.
    pub embedding_scale: f32,
    /// Factor on attention scores.
    pub query_scale: f32,
    /// Bound on attention scores.
    pub attention_softcap: Option<f32>,
    /// Bound on logits.
    pub logit_softcap: Option<f32>,
    /// Which elements of a head turn together.
    pub rope_layout: RopeLayout,
    /// The kinds of rotary embedding that layers choose from.
    pub ropes: Vec<RopeParams>,
    /// Experts of a layer; zero where it is dense.
    pub n_experts: usize,
    /// Experts that a token uses.
    pub n_experts_used: usize,
    /// What differs from layer to layer.
    pub layers: Vec<LayerParams>,
}

/// The shape of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerParams {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of the feed-forward layer.
    pub n_ff: usize,
    /// Positions that attention sees; all where `None`.
    pub window: Option<usize>,
    /// Index into [`Hparams::ropes`].
    pub rope: usize,
}

/// A rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeParams {
    /// Elements of a head that turn.
    pub dims: usize,
    /// Base of the geometric series of frequencies.
    pub base: f32,
    /// How the context is stretched.
    pub scaling: RopeScaling,
}

/// A hyper-parameter's names: behind `ARCH.` in GGUF; the ones that `config.json` files use.
struct Key {
    gguf: &'static str,
    hf: &'static [&'static str],
}

const fn key(gguf: &'static str, hf: &'static [&'static str]) -> Key {
    Key { gguf, hf }
}

const LAYERS: Key = key("block_count", &["num_hidden_layers", "n_layer"]);
const EMBD: Key = key("embedding_length", &["hidden_size", "n_embd"]);
const CONTEXT: Key = key(
    "context_length",
    &["max_position_embeddings", "n_positions"],
);
const HEADS: Key = key("attention.head_count", &["num_attention_heads", "n_head"]);
const KV_HEADS: Key = key("attention.head_count_kv", &["num_key_value_heads"]);
const KEY_DIM: Key = key("attention.key_length", &["head_dim"]);
const VALUE_DIM: Key = key("attention.value_length", &["head_dim"]);
const FF: Key = key("feed_forward_length", &["intermediate_size", "n_inner"]);
const RMS_EPSILON: Key = key("attention.layer_norm_rms_epsilon", &["rms_norm_eps"]);
const EXPERTS: Key = key("expert_count", &["num_local_experts", "num_experts"]);
const EXPERTS_USED: Key = key("expert_used_count", &["num_experts_per_tok"]);
const WINDOW: Key = key("attention.sliding_window", &["sliding_window"]);
const ATTN_SOFTCAP: Key = key("attn_logit_softcapping", &["attn_logit_softcapping"]);
const LOGIT_SOFTCAP: Key = key("final_logit_softcapping", &["final_logit_softcapping"]);

/// Bounds on what a file may claim; generous, so that only nonsense is refused.
const MAX_LAYERS: usize = 4096;
const MAX_WIDTH: usize = 1 << 20;
const MAX_HEADS: usize = 1 << 14;
const MAX_CONTEXT: usize = 1 << 30;
const MAX_EXPERTS: usize = 4096;

impl Hparams {
    /// Reads and checks the numbers of `file`.
    pub fn read(file: &ModelFile, arch: &Arch) -> Result<Hparams, ModelError> {
        let source = Source::new(file, arch);
        let n_layers = source.required(&LAYERS, 1, MAX_LAYERS)?;
        let n_embd = source.required(&EMBD, 1, MAX_WIDTH)?;
        let n_heads = source
            .per_layer(&HEADS, n_layers, 1, MAX_HEADS)?
            .ok_or_else(|| source.missing(&HEADS))?;
        let n_kv_heads = source
            .per_layer(&KV_HEADS, n_layers, 1, MAX_HEADS)?
            .unwrap_or_else(|| n_heads.clone());
        let n_ff = source
            .per_layer(&FF, n_layers, 1, 1 << 24)?
            .ok_or_else(|| source.missing(&FF))?;
        for (layer, (&heads, &kv_heads)) in n_heads.iter().zip(&n_kv_heads).enumerate() {
            if !heads.is_multiple_of(kv_heads) {
                return Err(source.bad(
                    &KV_HEADS,
                    format!("{kv_heads} does not divide the {heads} heads of layer {layer}"),
                ));
            }
        }
        let key_dim = match source.optional(&KEY_DIM, 1, MAX_WIDTH)? {
            Some(dim) => dim,
            None if n_embd.is_multiple_of(n_heads[0]) => n_embd / n_heads[0],
            None => {
                return Err(source.bad(
                    &HEADS,
                    format!("{} does not divide the width {n_embd}", n_heads[0]),
                ));
            }
        };
        let value_dim = source
            .optional(&VALUE_DIM, 1, MAX_WIDTH)?
            .unwrap_or(key_dim);
        let n_experts = source.optional(&EXPERTS, 0, MAX_EXPERTS)?.unwrap_or(0);
        let n_experts_used = source.optional(&EXPERTS_USED, 0, MAX_EXPERTS)?.unwrap_or(0);
        if n_experts > 0 && !(1..=n_experts).contains(&n_experts_used) {
            return Err(source.bad(
                &EXPERTS_USED,
                format!("{n_experts_used} of {n_experts} experts"),
            ));
        }
        let windows = source.windows(arch, n_layers)?;
        let ropes = source.ropes(arch, key_dim)?;
        let layers = (0..n_layers)
            .map(|i| LayerParams {
                n_heads: n_heads[i],
                n_kv_heads: n_kv_heads[i],
                n_ff: n_ff[i],
                window: windows[i],
                rope: usize::from(windows[i].is_some()).min(ropes.len() - 1),
            })
            .collect();
        let query_width = match (
            source.number(&key("", &["query_pre_attn_scalar"]))?,
            arch.query_scale,
        ) {
            (Some(width), _) if width > 0.0 => width,
            (_, QueryScale::HeadDimUnlessLayers(n)) if n == n_layers => {
                (n_embd / n_heads[0]) as f64
            }
            _ => key_dim as f64,
        };
        Ok(Hparams {
            n_embd,
            n_ctx_train: source.required(&CONTEXT, 1, MAX_CONTEXT)?,
            epsilon: source.positive(&RMS_EPSILON)?.unwrap_or(1e-6),
            key_dim,
            value_dim,
            embedding_scale: match arch.embedding_scale {
                EmbeddingScale::One => 1.0,
                EmbeddingScale::SqrtWidth => (n_embd as f32).sqrt(),
            },
            query_scale: (1.0 / query_width.sqrt()) as f32,
            attention_softcap: source.positive(&ATTN_SOFTCAP)?,
            logit_softcap: source.positive(&LOGIT_SOFTCAP)?,
            rope_layout: match file.format() {
                Format::Gguf { .. } => arch.rope.gguf,
                _ => arch.rope.hf,
            },
            ropes,
            n_experts,
            n_experts_used,
            layers,
        })
    }
}

/// Where hyper-parameters come from.
struct Source<'a> {
    file: &'a ModelFile,
    prefix: &'a str,
    config: Option<&'a Value>,
}

impl<'a> Source<'a> {
    fn new(file: &'a ModelFile, arch: &'a Arch) -> Source<'a> {
        let config = match file.format() {
            Format::Gguf { .. } => None,
            // Models that also see pictures keep the language model's numbers one level down.
            _ => file
                .config()
                .map(|config| config.get("text_config").unwrap_or(config)),
        };
        Source {
            file,
            prefix: arch.name,
            config,
        }
    }

    /// The value as JSON, whichever file it came from; `null` counts as missing.
    fn get(&self, key: &Key) -> Option<Value> {
        if let Some(config) = self.config {
            return key
                .hf
                .iter()
                .find_map(|name| config.get(name))
                .filter(|v| !v.is_null())
                .cloned();
        }
        use crate::gguf::Value as Gguf;
        let array = |array: crate::gguf::Array<'_>| -> Value {
            if let Some(values) = array.iter_i64() {
                return values.take(MAX_LAYERS + 1).map(Value::from).collect();
            }
            array
                .iter_f32()
                .into_iter()
                .flatten()
                .take(MAX_LAYERS + 1)
                .map(Value::from)
                .collect()
        };
        let name = format!("{}.{}", self.prefix, key.gguf);
        let metadata = self.file.metadata();
        match metadata.get(&name)? {
            Gguf::Str(text) => Some(Value::from(text)),
            Gguf::Bool(flag) => Some(Value::from(flag)),
            Gguf::Array(values) => Some(array(values)),
            Gguf::F32(_) | Gguf::F64(_) => metadata.f32(&name).map(Value::from),
            _ => metadata.i64(&name).map(Value::from),
        }
    }

    /// The file and the key's name in it, for messages.
    fn place(&self, key: &Key) -> (PathBuf, String) {
        match self.config {
            Some(_) => (
                self.file.path().with_file_name("config.json"),
                key.hf.first().copied().unwrap_or(key.gguf).to_owned(),
            ),
            None => (
                self.file.path().to_path_buf(),
                format!("{}.{}", self.prefix, key.gguf),
            ),
        }
    }

    fn missing(&self, key: &Key) -> ModelError {
        let (file, key) = self.place(key);
        ModelError::MissingKey { file, key }
    }

    fn bad(&self, key: &Key, problem: String) -> ModelError {
        let (file, key) = self.place(key);
        ModelError::BadValue { file, key, problem }
    }

    fn count(&self, key: &Key, value: &Value, min: usize, max: usize) -> Result<usize, ModelError> {
        value
            .as_u64()
            .and_then(|n| usize::try_from(n).ok())
            .filter(|n| (min..=max).contains(n))
            .ok_or_else(|| self.bad(key, format!("{value} is not a number from {min} to {max}")))
    }

    fn optional(&self, key: &Key, min: usize, max: usize) -> Result<Option<usize>, ModelError> {
        self.get(key)
            .map(|value| self.count(key, &value, min, max))
            .transpose()
    }

    fn required(&self, key: &Key, min: usize, max: usize) -> Result<usize, ModelError> {
        self.optional(key, min, max)?
            .ok_or_else(|| self.missing(key))
    }

    /// A number for each layer: the file gives one for all, or a list.
    fn per_layer(
        &self,
        key: &Key,
        n_layers: usize,
        min: usize,
        max: usize,
    ) -> Result<Option<Vec<usize>>, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let Value::Array(values) = &value else {
            return Ok(Some(vec![self.count(key, &value, min, max)?; n_layers]));
        };
        if values.len() != n_layers {
            return Err(self.bad(
                key,
                format!("{} values for {n_layers} layers", values.len()),
            ));
        }
        values
            .iter()
            .map(|value| self.count(key, value, min, max))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    fn number(&self, key: &Key) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) if number.is_finite() => Ok(Some(number)),
            _ => Err(self.bad(key, format!("{value} is not a number"))),
        }
    }

    /// A number above zero; zero counts as not given.
    fn positive(&self, key: &Key) -> Result<Option<f32>, ModelError> {
        match self.number(key)? {
            Some(number) if number < 0.0 || number > f64::from(f32::MAX) => {
                Err(self.bad(key, format!("{number} is out of range")))
            }
            number => Ok(number.filter(|&n| n > 0.0).map(|n| n as f32)),
        }
    }

    /// The window of each layer.
    fn windows(&self, arch: &Arch, n_layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
        const TYPES: Key = key("attention.sliding_window_pattern", &["layer_types"]);
        const ENABLED: Key = key("", &["use_sliding_window"]);
        let enabled = !matches!(self.get(&ENABLED), Some(Value::Bool(false)));
        let window = self
            .optional(&WINDOW, 0, MAX_CONTEXT)?
            .filter(|&w| w > 0 && enabled);
        let Some(window) = window else {
            return Ok(vec![None; n_layers]);
        };
        if let Some(Value::Array(types)) = self.get(&TYPES) {
            if types.len() != n_layers {
                return Err(self.bad(
                    &TYPES,
                    format!("{} values for {n_layers} layers", types.len()),
                ));
            }
            let windowed = |kind: &Value| match kind {
                Value::String(kind) => kind == "sliding_attention",
                Value::Bool(flag) => *flag,
                other => other.as_u64() == Some(1),
            };
            return Ok(types
                .iter()
                .map(|kind| windowed(kind).then_some(window))
                .collect());
        }
        let windowed = |layer: usize| match arch.windows {
            Windows::Never => false,
            Windows::All => true,
            Windows::AllButEvery(n) => !(layer + 1).is_multiple_of(n),
        };
        Ok((0..n_layers)
            .map(|layer| windowed(layer).then_some(window))
            .collect())
    }

    /// The rotary embedding of full layers, then that of windowed ones where it differs.
    fn ropes(&self, arch: &Arch, key_dim: usize) -> Result<Vec<RopeParams>, ModelError> {
        match self.config {
            Some(config) => self.config_ropes(config, key_dim),
            None => self.gguf_ropes(arch, key_dim),
        }
    }

    fn gguf_ropes(&self, arch: &Arch, key_dim: usize) -> Result<Vec<RopeParams>, ModelError> {
        const DIMS: Key = key("rope.dimension_count", &[]);
        const BASE: Key = key("rope.freq_base", &[]);
        const BASE_SWA: Key = key("rope.freq_base_swa", &[]);
        const KIND: Key = key("rope.scaling.type", &[]);
        const FACTOR: Key = key("rope.scaling.factor", &[]);
        const ORIGINAL: Key = key("rope.scaling.original_context_length", &[]);
        const MAGNITUDE: Key = key("rope.scaling.attn_factor", &[]);
        const FAST: Key = key("rope.scaling.yarn_beta_fast", &[]);
        const SLOW: Key = key("rope.scaling.yarn_beta_slow", &[]);

        let dims = self
            .optional(&DIMS, 0, key_dim)?
            .filter(|&d| d > 0)
            .unwrap_or(key_dim);
        let base = self.positive(&BASE)?.unwrap_or(10_000.0);
        let factor = self.positive(&FACTOR)?.unwrap_or(1.0);
        let scaling = match self.get(&KIND).as_ref().and_then(Value::as_str) {
            Some("yarn") => RopeScaling::Yarn(Yarn {
                factor,
                original_context: match self.positive(&ORIGINAL)? {
                    Some(context) => context,
                    None => self.required(&CONTEXT, 1, MAX_CONTEXT)? as f32,
                },
                beta_fast: self.positive(&FAST)?.unwrap_or(32.0),
                beta_slow: self.positive(&SLOW)?.unwrap_or(1.0),
                // The file's factor comes on top of the paper's.
                magnitude: self
                    .positive(&MAGNITUDE)?
                    .map(|m| m * (0.1 * factor.ln() + 1.0)),
            }),
            Some("none") => RopeScaling::None,
            Some("linear") | None if factor != 1.0 => RopeScaling::Linear(factor),
            Some("linear") | None => RopeScaling::None,
            Some(other) => return Err(self.bad(&KIND, format!("{other:?} is not supported"))),
        };
        let full = RopeParams {
            dims,
            base,
            scaling,
        };
        let windowed = self
            .positive(&BASE_SWA)?
            .or(arch.window_rope_base)
            .map(|base| RopeParams {
                dims,
                base,
                scaling: RopeScaling::None,
            });
        Ok([Some(full), windowed].into_iter().flatten().collect())
    }

    fn config_ropes(&self, config: &Value, key_dim: usize) -> Result<Vec<RopeParams>, ModelError> {
        let parameters = config.get("rope_parameters").filter(|p| p.is_object());
        if let Some(parameters) = parameters {
            if let Some(full) = parameters.get("full_attention") {
                let full = self.config_rope(config, full, key_dim)?;
                return match parameters.get("sliding_attention") {
                    Some(windowed) => Ok(vec![full, self.config_rope(config, windowed, key_dim)?]),
                    None => Ok(vec![full]),
                };
            }
            return Ok(vec![self.config_rope(config, parameters, key_dim)?]);
        }
        let empty = Value::Object(serde_json::Map::new());
        let scaling = config
            .get("rope_scaling")
            .filter(|s| s.is_object())
            .unwrap_or(&empty);
        let full = self.config_rope(config, scaling, key_dim)?;
        let windowed = self
            .positive(&key("", &["rope_local_base_freq"]))?
            .map(|base| RopeParams {
                dims: full.dims,
                base,
                scaling: RopeScaling::None,
            });
        Ok([Some(full), windowed].into_iter().flatten().collect())
    }

    /// One rotary embedding from the object that describes it, with the top level as fallback.
    fn config_rope(
        &self,
        config: &Value,
        rope: &Value,
        key_dim: usize,
    ) -> Result<RopeParams, ModelError> {
        const ROPE: Key = key("rope", &["rope_parameters"]);
        let number = |name: &str| -> Result<Option<f32>, ModelError> {
            match rope
                .get(name)
                .or_else(|| config.get(name))
                .filter(|v| !v.is_null())
            {
                None => Ok(None),
                Some(value) => match value.as_f64() {
                    Some(n) if n.is_finite() && n > 0.0 => Ok(Some(n as f32)),
                    _ => Err(self.bad(&ROPE, format!("{name}: {value} is not a positive number"))),
                },
            }
        };
        let required =
            |name: &str| number(name)?.ok_or_else(|| self.bad(&ROPE, format!("{name} is missing")));
        let kind = rope
            .get("rope_type")
            .or_else(|| rope.get("type"))
            .and_then(Value::as_str);
        let original_context = || match number("original_max_position_embeddings")? {
            Some(context) => Ok(context),
            None => required("max_position_embeddings"),
        };
        let scaling = match kind {
            None | Some("default") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear(required("factor")?),
            Some("yarn") => RopeScaling::Yarn(Yarn {
                factor: required("factor")?,
                original_context: original_context()?,
                beta_fast: number("beta_fast")?.unwrap_or(32.0),
                beta_slow: number("beta_slow")?.unwrap_or(1.0),
                magnitude: number("attention_factor")?,
            }),
            Some("llama3") => RopeScaling::Llama3 {
                factor: required("factor")?,
                low: required("low_freq_factor")?,
                high: required("high_freq_factor")?,
                original_context: original_context()?,
            },
            Some(other) => return Err(self.bad(&ROPE, format!("type {other:?} is not supported"))),
        };
        let share = number("partial_rotary_factor")?.unwrap_or(1.0);
        if share > 1.0 {
            return Err(self.bad(&ROPE, format!("partial_rotary_factor: {share} is over 1")));
        }
        Ok(RopeParams {
            dims: (key_dim as f32 * share) as usize,
            base: number("rope_theta")?.unwrap_or(10_000.0),
            scaling,
        })
    }
}
