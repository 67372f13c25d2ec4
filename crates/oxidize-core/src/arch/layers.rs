//! Hyper-parameters of each layer: heads, widths, windows, RoPE, and sharing of keys and values
//! with earlier layers.

use super::ModelError;
use super::hparams::{
    FF, KEY_DIM, LayerParams, MAX_CONTEXT, MAX_FF, MAX_HEADS, MAX_WIDTH, MlaParams, VALUE_DIM,
};
use super::recurrent::LayerKind;
use super::source::{Key, Source, key};
use super::{Arch, QueryScale, RecurrentLayers, RopeLayers, WindowKind, Windows};
use crate::graph::{AttentionMask, Rope, Window, Xielu};
use serde_json::Value;

pub(super) const HEADS: Key = key(
    "attention.head_count",
    &[
        "num_attention_heads_per_layer",
        "num_attention_heads",
        "n_head",
        "n_heads",
        "num_heads",
    ],
);

pub(super) const KV_HEADS: Key = key(
    "attention.head_count_kv",
    &[
        "num_key_value_heads",
        "num_kv_heads",
        "attn_config.kv_n_heads",
        "multi_query_group_num",
        "num_query_groups",
    ],
);

const WINDOW: Key = key(
    "attention.sliding_window",
    &["sliding_window", "attention_chunk_size", "local_attention"],
);

const ROPE_DIMS: Key = key("rope.dimension_count", &["partial_rotary_factor"]);

impl Source<'_> {
    /// Parameters of all layers except their RoPE.
    pub(super) fn layers(
        &self,
        arch: &Arch,
        n_embd: usize,
        count: (usize, usize),
        mla: Option<&MlaParams>,
    ) -> Result<Vec<LayerParams>, ModelError> {
        let n_layers = count.0;
        let kinds = self.layer_kinds(arch, count)?;
        let attends = |kind: LayerKind| matches!(kind, LayerKind::Attention | LayerKind::Both);
        let any_attention = kinds.iter().any(|&kind| attends(kind));
        let least = usize::from(!arch.pruned && arch.recurrent.is_none());
        let n_heads = match self.per_layer(&HEADS, count, least, MAX_HEADS)? {
            Some(n_heads) if any_attention => n_heads,
            None if any_attention => return Err(self.missing(&HEADS)),
            _ => vec![0; n_layers],
        };
        let n_kv_heads = self.kv_heads(count, least, &n_heads)?;
        // In models with experts, the width of dense layers is optional.
        let n_ff = self
            .per_layer(&FF, count, 0, MAX_FF)?
            .unwrap_or_else(|| vec![arch.default_ff.of(n_embd); n_layers]);
        let n_ff = self.adjusted_ff(n_ff)?;
        let exclusive = arch
            .recurrent
            .is_some_and(|spec| spec.layers == RecurrentLayers::Exclusive);
        let windows = self.windows(arch, count)?;
        let most_heads = n_heads.iter().copied().max().unwrap_or(0);
        if most_heads == 0 && any_attention {
            return Err(self.bad(&HEADS, "zero in all layers".into()));
        }
        let dims = match any_attention {
            true => self.dims(n_embd, most_heads, mla)?,
            false => HeadDims::NONE,
        };
        if arch.gated_queries && dims.full.0 != dims.full.1 {
            let problem = format!("not supported with value heads of {} elements", dims.full.1);
            return Err(self.bad(&KEY_DIM, problem));
        }
        let scale = self.query_scale(arch, n_embd, n_layers, most_heads)?;
        let first_shared = self.first_shared_layer(n_layers)?;
        let sparsity = self.sparsity(n_layers)?;
        let xielu = self.xielu(n_layers)?;
        let double = self.flag(&key("", &["use_double_wide_mlp"]))?;
        let mut layers: Vec<LayerParams> = Vec::with_capacity(n_layers);
        for i in 0..n_layers {
            let own = self.own_config(i, n_embd);
            let windowed = windows[i].is_some();
            let (key_dim, value_dim) = match own.head_dim {
                Some(dim) => (dim, dim),
                None if windowed => dims.windowed,
                None => dims.full,
            };
            let mut heads = own.n_heads.unwrap_or(n_heads[i]);
            let mut kv_heads = own.n_kv_heads.unwrap_or(n_kv_heads[i]);
            if !attends(kinds[i]) {
                (heads, kv_heads) = (0, 0);
            } else if arch.recurrent.is_some() && kv_heads == 0 {
                return Err(self.bad(&KV_HEADS, format!("zero in layer {i}, which has attention")));
            }
            if kv_heads > 0 && (heads == 0 || !heads.is_multiple_of(kv_heads)) {
                let problem = format!("{kv_heads} does not divide the {heads} heads of layer {i}");
                return Err(self.bad(&KV_HEADS, problem));
            }
            let kv_layer = if i < first_shared {
                i
            } else {
                const SHARED: Key = key("attention.shared_kv_layers", &["num_kv_shared_layers"]);
                let owner = (0..first_shared)
                    .rev()
                    .find(|&l| windows[l].is_some() == windowed);
                let fits = |&l: &usize| {
                    let owner: &LayerParams = &layers[l];
                    (owner.n_kv_heads, owner.key_dim, owner.value_dim)
                        == (kv_heads, key_dim, value_dim)
                };
                let problem = || format!("no earlier layer has keys of the shape of layer {i}");
                owner
                    .filter(fits)
                    .ok_or_else(|| self.bad(&SHARED, problem()))?
            };
            let mut n_ff = own.n_ff.unwrap_or(n_ff[i]);
            if exclusive && kinds[i] != LayerKind::FeedForward {
                n_ff = 0;
            }
            if arch.ff_counts_both {
                n_ff /= 2;
            }
            if double == Some(true) && i >= first_shared {
                n_ff *= 2;
            }
            layers.push(LayerParams {
                recurrent: matches!(kinds[i], LayerKind::Recurrent | LayerKind::Both),
                n_heads: heads,
                n_kv_heads: kv_heads,
                key_dim,
                value_dim,
                query_scale: scale.unwrap_or_else(|| 1.0 / (key_dim as f32).sqrt()),
                n_ff,
                window: windows[i],
                rope: None,
                temperature: false,
                kv_layer,
                sparsity: sparsity.as_ref().and_then(|s| s[i]),
                xielu: xielu.as_ref().map(|x| x[i]),
            });
        }
        Ok(layers)
    }

    /// LFM2: `config.json` may contain the width before a factor of 2/3, a multiplier and rounding
    /// up.
    fn adjusted_ff(&self, mut n_ff: Vec<usize>) -> Result<Vec<usize>, ModelError> {
        const ADJUST: Key = key("", &["block_auto_adjust_ff_dim"]);
        const FACTOR: Key = key("", &["block_ffn_dim_multiplier"]);
        const MULTIPLE: Key = key("", &["block_multiple_of"]);
        if self.flag(&ADJUST)? != Some(true) {
            return Ok(n_ff);
        }
        let factor = self.positive(&FACTOR)?.unwrap_or(1.0);
        let multiple = self.optional(&MULTIPLE, 1, MAX_FF)?.unwrap_or(256);
        for n in &mut n_ff {
            let scaled = (f64::from(factor) * (2 * *n / 3) as f64) as usize;
            if scaled > MAX_FF {
                return Err(self.bad(&FACTOR, format!("{factor} times {n}")));
            }
            *n = scaled.next_multiple_of(multiple);
        }
        Ok(n_ff)
    }

    fn kv_heads(
        &self,
        count: (usize, usize),
        least: usize,
        n_heads: &[usize],
    ) -> Result<Vec<usize>, ModelError> {
        const ONE: Key = key("", &["multi_query"]);
        const NEW: Key = key("", &["new_decoder_architecture"]);
        if self.flag(&ONE)? == Some(true) && self.flag(&NEW)? != Some(true) {
            // ChatGLM counts the remaining key heads; in other files such a flag means one.
            let groups = self.optional(&key("", &["multi_query_group_num"]), 1, MAX_HEADS)?;
            return Ok(vec![groups.unwrap_or(1); count.0]);
        }
        let listed = self.per_layer(&KV_HEADS, count, least, MAX_HEADS)?;
        let n_kv_heads = listed.unwrap_or_else(|| n_heads.to_vec());
        // Windowed layers may have a different number.
        let own = self.optional(&key("", &["swa_num_key_value_heads"]), 1, MAX_HEADS)?;
        let Some(own) = own else {
            return Ok(n_kv_heads);
        };
        let windowed = self.layer_types(count)?.unwrap_or_default();
        let pick = |(i, &heads): (usize, &usize)| match windowed.get(i) {
            Some(true) => own,
            _ => heads,
        };
        Ok(n_kv_heads.iter().enumerate().map(pick).collect())
    }

    /// Widths of key and value heads in full and in windowed layers.
    fn dims(
        &self,
        n_embd: usize,
        n_heads: usize,
        mla: Option<&MlaParams>,
    ) -> Result<HeadDims, ModelError> {
        const GLOBAL: Key = key("", &["global_head_dim"]);
        const KEY_SWA: Key = key("attention.key_length_swa", &["swa_head_dim", "head_dim"]);
        const VALUE_SWA: Key = key(
            "attention.value_length_swa",
            &["swa_v_head_dim", "v_head_dim", "head_dim"],
        );
        if let Some(mla) = mla {
            let dims = (mla.nope_dim + mla.rope_dim, mla.value_dim);
            return Ok(HeadDims {
                full: dims,
                windowed: dims,
            });
        }
        let key_dim = match self.optional(&KEY_DIM, 1, MAX_WIDTH)? {
            Some(dim) => dim,
            None if n_embd.is_multiple_of(n_heads) => n_embd / n_heads,
            None => {
                let problem = format!("{n_heads} does not divide the width {n_embd}");
                return Err(self.bad(&HEADS, problem));
            }
        };
        let value_dim = self.optional(&VALUE_DIM, 1, MAX_WIDTH)?.unwrap_or(key_dim);
        let windowed = (
            self.optional(&KEY_SWA, 1, MAX_WIDTH)?.unwrap_or(key_dim),
            self.optional(&VALUE_SWA, 1, MAX_WIDTH)?
                .unwrap_or(value_dim),
        );
        let full = match self.optional(&GLOBAL, 1, MAX_WIDTH)? {
            Some(dim) => (dim, dim),
            None => (key_dim, value_dim),
        };
        Ok(HeadDims { full, windowed })
    }

    /// Scale of attention scores; `None` if it follows from the head width.
    fn query_scale(
        &self,
        arch: &Arch,
        n_embd: usize,
        n_layers: usize,
        n_heads: usize,
    ) -> Result<Option<f32>, ModelError> {
        const SCALE: Key = key("attention.scale", &["attention_multiplier"]);
        const WIDTH: Key = key("", &["query_pre_attn_scalar"]);
        let by_width = |width: f64| Some((1.0 / width.sqrt()) as f32);
        if arch.query_scale == QueryScale::One {
            return Ok(Some(1.0));
        }
        if let Some(scale) = self.positive(&SCALE)? {
            return Ok(Some(scale));
        }
        Ok(match (self.positive(&WIDTH)?, arch.query_scale) {
            (Some(width), _) => by_width(f64::from(width)),
            (_, QueryScale::HeadDimUnlessLayers(n)) if n == n_layers => {
                by_width((n_embd / n_heads).max(1) as f64)
            }
            _ => None,
        })
    }

    /// Layers with a window, if the file lists them.
    fn layer_types(
        &self,
        (n_layers, n_listed): (usize, usize),
    ) -> Result<Option<Vec<bool>>, ModelError> {
        const TYPES: Key = key("attention.sliding_window_pattern", &["layer_types"]);
        let Some(Value::Array(types)) = self.get(&TYPES) else {
            return Ok(None);
        };
        self.check_list(&TYPES, &types, n_listed)?;
        let windowed = |kind: &Value| match kind {
            Value::String(kind) => kind == "sliding_attention" || kind == "chunked_attention",
            Value::Bool(flag) => *flag,
            other => other.as_u64() == Some(1),
        };
        Ok(Some(types.iter().take(n_layers).map(windowed).collect()))
    }

    /// Window of each layer.
    fn windows(
        &self,
        arch: &Arch,
        count: (usize, usize),
    ) -> Result<Vec<Option<Window>>, ModelError> {
        const ENABLED: Key = key("", &["use_sliding_window"]);
        let n_layers = count.0;
        let given = match (self.optional(&WINDOW, 0, MAX_CONTEXT)?, arch.window_kind) {
            (None, WindowKind::Chunk(usual)) if self.config.is_none() => Some(usual),
            (given, _) => given,
        };
        let enabled = self.flag(&ENABLED)?.unwrap_or(true);
        let Some(size) = given.filter(|&w| w > 0 && enabled) else {
            return Ok(vec![None; n_layers]);
        };
        let window = match arch.window_kind {
            WindowKind::Sliding if self.attention_mask(arch)? == AttentionMask::Full => {
                Window::Around(size / 2)
            }
            WindowKind::Sliding => Window::Sliding(size),
            WindowKind::Chunk(_) => Window::Chunk(size),
        };
        let by_rule = |layer: usize| match arch.windows {
            Windows::Never => false,
            Windows::All => true,
            Windows::AllButEvery(n) => !(layer + 1).is_multiple_of(n),
            Windows::FullFirst(n) => !layer.is_multiple_of(n),
        };
        let windowed = match self.layer_types(count)? {
            // A list in the file takes precedence over the family's default.
            Some(windowed) => windowed,
            None => (0..n_layers).map(by_rule).collect(),
        };
        Ok(windowed
            .into_iter()
            .map(|windowed| windowed.then_some(window))
            .collect())
    }

    /// Per-layer overrides in `config.json` (Gemma 4, Deci).
    fn own_config(&self, layer: usize, n_embd: usize) -> OwnConfig {
        let Some(config) = self.config else {
            return OwnConfig::default();
        };
        let count = |value: Option<&Value>, max: usize| {
            let number = value.and_then(Value::as_u64);
            number
                .and_then(|n| usize::try_from(n).ok())
                .filter(|n| (1..=max).contains(n))
        };
        if let Some(own) = config
            .get("per_layer_config")
            .and_then(|all| all.get(layer.to_string()))
        {
            return OwnConfig {
                head_dim: count(own.get("head_dim"), MAX_WIDTH),
                n_kv_heads: count(own.get("num_key_value_heads"), MAX_HEADS),
                ..OwnConfig::default()
            };
        }
        let Some(own) = config.get("block_configs").and_then(|all| all.get(layer)) else {
            return OwnConfig::default();
        };
        let part = |half: &str, name: &str| own.get(half).and_then(|half| half.get(name));
        let linear = part("attention", "replace_with_linear").and_then(Value::as_bool);
        let in_group = count(part("attention", "n_heads_in_group"), MAX_HEADS);
        let all_heads = count(config.get("num_attention_heads"), MAX_HEADS).unwrap_or(0);
        let multiple = part("ffn", "ffn_mult").and_then(Value::as_f64);
        let width = |multiple: f64| (2.0 * multiple * n_embd as f64 / 3.0) as usize;
        OwnConfig {
            head_dim: None,
            n_heads: (in_group.is_none() && linear != Some(true)).then_some(0),
            n_kv_heads: Some(in_group.map_or(0, |n| all_heads / n)),
            n_ff: Some(multiple.map_or(0, |m| width(m).min(MAX_FF).next_multiple_of(256))),
        }
    }

    /// First layer that uses the keys and values of an earlier one.
    fn first_shared_layer(&self, n_layers: usize) -> Result<usize, ModelError> {
        const SHARED: Key = key("attention.shared_kv_layers", &["num_kv_shared_layers"]);
        let shared = self.optional(&SHARED, 0, n_layers - 1)?;
        Ok(n_layers - shared.unwrap_or(0))
    }

    /// Head widths for RoPE: of full layers, then of windowed ones.
    pub(super) fn head_dims(&self, layers: &[LayerParams]) -> Vec<usize> {
        let of = |windowed: bool| {
            let mut kind = layers.iter().filter(|l| l.window.is_some() == windowed);
            kind.next().map(|layer| layer.key_dim)
        };
        let full = of(false).or(of(true)).unwrap_or(1);
        vec![full, of(true).unwrap_or(full)]
    }

    /// Index of the RoPE of each layer.
    pub(super) fn rope_layers(
        &self,
        arch: &Arch,
        layers: &mut [LayerParams],
        ropes: &[Rope],
        alibi: bool,
    ) -> Result<(), ModelError> {
        // Despite its name, the list contains 1 for layers with RoPE and 0 for those without.
        const LISTED: Key = key("", &["no_rope_layers"]);
        let any_window = layers.iter().any(|layer| layer.window.is_some());
        let listed = match self.get(&LISTED) {
            Some(Value::Array(values)) if !values.is_empty() => {
                self.check_list(&LISTED, &values, layers.len())?;
                Some(values)
            }
            _ => None,
        };
        const USES_ROPE: Key = key("rope.scaling.finetuned", &[]);
        const POSITION: Key = key("", &["position_embedding_type"]);
        let given = match self.config {
            Some(_) => self.get(&POSITION).is_some_and(|kind| kind == "rope"),
            None => self.flag(&USES_ROPE)?.unwrap_or(false),
        };
        // Llama 4 files without chunked attention use RoPE in all layers.
        let chunks_off = matches!(arch.window_kind, WindowKind::Chunk(_)) && !any_window;
        for (i, layer) in layers.iter_mut().enumerate() {
            let rotates = match (arch.rope_layers, &listed) {
                (RopeLayers::None, _) => false,
                (RopeLayers::IfGiven, _) => given,
                (_, Some(values)) => values[i].as_u64() != Some(0),
                (RopeLayers::All, None) => true,
                (RopeLayers::AllButEvery(n), None) => chunks_off || !(i + 1).is_multiple_of(n),
                (RopeLayers::Windowed, None) => layer.window.is_some() || !any_window,
            };
            let index = usize::from(layer.window.is_some()).min(ropes.len() - 1);
            let dims = ropes[index].dims;
            layer.rope = (rotates && !alibi).then_some(index);
            let fits = (2..=layer.key_dim).contains(&dims) && dims.is_multiple_of(2);
            if layer.rope.is_some() && !fits {
                let width = layer.key_dim;
                let problem =
                    format!("RoPE rotates {dims} elements of layer {i}, whose heads have {width}");
                return Err(self.bad(&ROPE_DIMS, problem));
            }
        }
        Ok(())
    }

    /// Sparsity threshold of the activations of each layer.
    fn sparsity(&self, n_layers: usize) -> Result<Option<Vec<Option<f32>>>, ModelError> {
        const SPARSITY: Key = key(
            "activation_sparsity_scale",
            &["activation_sparsity_pattern"],
        );
        let Some(values) = self.numbers(&SPARSITY)? else {
            return Ok(None);
        };
        if values.len() != n_layers || values.iter().any(|&v| v < 0.0) {
            return Err(self.bad(&SPARSITY, format!("{} values: {values:?}", values.len())));
        }
        // GGUF contains standard deviations, `config.json` the fraction of activations below the
        // threshold.
        let deviations = |v: f32| match self.config {
            Some(_) if v < 1.0 => Ok(crate::math::normal_quantile(f64::from(v)) as f32),
            Some(_) => Err(self.bad(&SPARSITY, format!("{v} is not between 0 and 1"))),
            None => Ok(v),
        };
        values
            .into_iter()
            .map(|v| (v > 0.0).then(|| deviations(v)).transpose())
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// Parameters of xIELU from the metadata. Hugging Face directories store them as tensors.
    fn xielu(&self, n_layers: usize) -> Result<Option<Vec<Xielu>>, ModelError> {
        const KEYS: [Key; 4] = [
            key("/xielu.alpha_p", &[]),
            key("/xielu.alpha_n", &[]),
            key("/xielu.beta", &[]),
            key("/xielu.eps", &[]),
        ];
        let mut lists: [Vec<f32>; 4] = Default::default();
        for (list, key) in lists.iter_mut().zip(&KEYS) {
            *list = match self.get(key) {
                None => return Ok(None),
                Some(Value::Array(_)) => self.numbers(key)?.unwrap_or_default(),
                Some(_) => vec![self.number(key)?.unwrap_or(0.0) as f32; n_layers],
            };
            if list.len() != n_layers {
                let problem = format!("{} values for {n_layers} layers", list.len());
                return Err(self.bad(key, problem));
            }
        }
        let [alpha_p, alpha_n, beta, epsilon] = lists;
        let layer = |i: usize| Xielu::from_stored(alpha_p[i], alpha_n[i], beta[i], epsilon[i]);
        Ok(Some((0..n_layers).map(layer).collect()))
    }
}

/// Widths of key and value heads.
struct HeadDims {
    full: (usize, usize),
    windowed: (usize, usize),
}

impl HeadDims {
    /// Widths in a model without attention.
    const NONE: HeadDims = HeadDims {
        full: (2, 2),
        windowed: (2, 2),
    };
}

/// Overrides of one layer.
#[derive(Default)]
struct OwnConfig {
    head_dim: Option<usize>,
    n_heads: Option<usize>,
    n_kv_heads: Option<usize>,
    n_ff: Option<usize>,
}
