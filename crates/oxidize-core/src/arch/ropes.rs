//! Rotary embeddings (RoPE) of a model, from GGUF metadata or `config.json`.

use super::ModelError;
use super::hparams::{CONTEXT, MAX_CONTEXT};
use super::source::{Key, Source, key};
use super::{Arch, Mixer};
use crate::graph::Rope;
use crate::graph::rope::{RopeFactors, RopeScaling, Yarn, yarn_magnitude};
use serde_json::Value;

const ROPE: Key = key("rope", &["rope_parameters"]);
const ORIGINAL: Key = key(
    "rope.scaling.original_context_length",
    &[
        "rope_parameters.original_max_position_embeddings",
        "rope_scaling.original_max_position_embeddings",
        "original_max_position_embeddings",
    ],
);

impl Source<'_> {
    /// Context length before RoPE scaling.
    pub(super) fn rope_original_context(&self, n_ctx_train: usize) -> Result<usize, ModelError> {
        let context = self.optional(&ORIGINAL, 0, MAX_CONTEXT)?;
        Ok(context.filter(|&n| n > 0).unwrap_or(n_ctx_train))
    }

    /// Returns the RoPE of full layers, followed by that of windowed layers if it differs, and the
    /// YaRN factor of queries and keys in latent attention. `dims` are the head widths.
    pub(super) fn ropes(
        &self,
        arch: &Arch,
        dims: &[usize],
    ) -> Result<(Vec<Rope>, f32), ModelError> {
        match self.config {
            Some(config) => self.config_ropes(arch, config, dims),
            None => self.gguf_ropes(arch, dims),
        }
    }

    fn gguf_ropes(&self, arch: &Arch, dims: &[usize]) -> Result<(Vec<Rope>, f32), ModelError> {
        const DIMS: Key = key("rope.dimension_count", &[]);
        const DIMS_SWA: Key = key("rope.dimension_count_swa", &[]);
        const BASE: Key = key("rope.freq_base", &[]);
        const BASE_SWA: Key = key("rope.freq_base_swa", &[]);
        const KIND: Key = key("rope.scaling.type", &[]);
        const FACTOR: Key = key("rope.scaling.factor", &[]);
        const OLD_FACTOR: Key = key("rope.scale_linear", &[]);
        const MAGNITUDE: Key = key("rope.scaling.attn_factor", &[]);
        const FAST: Key = key("rope.scaling.yarn_beta_fast", &[]);
        const SLOW: Key = key("rope.scaling.yarn_beta_slow", &[]);
        const WEIGHT: Key = key("rope.scaling.yarn_log_multiplier", &[]);

        let rotated = |key: &Key, width: usize| -> Result<usize, ModelError> {
            let dims = self.optional(key, 0, width)?;
            Ok(dims.filter(|&d| d > 0).unwrap_or(width))
        };
        let (width, windowed_width) = (dims[0], dims[dims.len() - 1]);
        let base = self.positive(&BASE)?.unwrap_or(10_000.0);
        let factor = match self.positive(&FACTOR)? {
            Some(factor) => factor,
            None => self.positive(&OLD_FACTOR)?.unwrap_or(1.0),
        };
        let mut magnitude = self.positive(&MAGNITUDE)?.unwrap_or(1.0);
        let mut query_magnitude = 1.0;
        let scaling = match self.get(&KIND).as_ref().and_then(Value::as_str) {
            Some("yarn") => {
                let weight = self.positive(&WEIGHT)?;
                // DeepSeek's converter writes a tenth of the weight, which applies to the numerator
                // as well.
                let latent = arch.mixer == Mixer::Mla;
                let weight = weight.map(|w| if latent { 10.0 * w } else { w });
                magnitude *= match weight {
                    Some(_) if latent => 1.0,
                    Some(w) => yarn_magnitude(factor, 1.0) / yarn_magnitude(factor, w),
                    None => yarn_magnitude(factor, 1.0),
                };
                if let (true, Some(weight)) = (latent, weight) {
                    query_magnitude = yarn_magnitude(factor, weight);
                }
                RopeScaling::Yarn(Yarn {
                    factor,
                    original_context: match self.positive(&ORIGINAL)? {
                        Some(context) => context,
                        None => self.required(&CONTEXT, 1, MAX_CONTEXT)? as f32,
                    },
                    beta_fast: self.positive(&FAST)?.unwrap_or(32.0),
                    beta_slow: self.positive(&SLOW)?.unwrap_or(1.0),
                    truncate: true,
                    extrapolation: 1.0,
                })
            }
            Some("linear") | None if factor != 1.0 => RopeScaling::Linear(factor),
            Some("linear" | "none" | "longrope") | None => RopeScaling::None,
            Some(other) => return Err(self.bad(&KIND, format!("{other:?} is not supported"))),
        };
        let full = Rope {
            dims: rotated(&DIMS, width)?,
            base,
            scaling,
            factors: RopeFactors::None,
            magnitude,
        };
        let windowed_base = self.positive(&BASE_SWA)?.or(arch.window_rope_base);
        let windowed = match windowed_base {
            Some(base) => Some(Rope {
                dims: match self.optional(&DIMS_SWA, 0, windowed_width)? {
                    Some(dims) if dims > 0 => dims,
                    _ => full.dims.min(windowed_width),
                },
                base,
                scaling: RopeScaling::None,
                factors: RopeFactors::None,
                magnitude: 1.0,
            }),
            None => None,
        };
        let ropes = [Some(full), windowed].into_iter().flatten().collect();
        Ok((ropes, query_magnitude))
    }

    fn config_ropes(
        &self,
        arch: &Arch,
        config: &Value,
        dims: &[usize],
    ) -> Result<(Vec<Rope>, f32), ModelError> {
        let (width, windowed_width) = (dims[0], dims[dims.len() - 1]);
        let empty = Value::Object(serde_json::Map::new());
        let object = |name: &str| config.get(name).filter(|value| value.is_object());
        let parameters = object("rope_parameters").or_else(|| object("rope_scaling"));
        let parameters = parameters.unwrap_or(&empty);
        if let Some(full) = parameters.get("full_attention") {
            let (full, query_magnitude) = self.config_rope(arch, config, full, width)?;
            let windowed = parameters
                .get("sliding_attention")
                .map(|windowed| self.config_rope(arch, config, windowed, windowed_width))
                .transpose()?;
            let windowed = windowed.map(|(rope, _)| rope);
            let ropes = [Some(full), windowed].into_iter().flatten().collect();
            return Ok((ropes, query_magnitude));
        }
        let (full, query_magnitude) = self.config_rope(arch, config, parameters, width)?;
        let windowed = self
            .positive(&key(
                "",
                &["rope_local_base_freq", "swa_rope_theta", "local_rope_theta"],
            ))?
            .map(|base| Rope {
                dims: full.dims,
                base,
                scaling: RopeScaling::None,
                factors: RopeFactors::None,
                magnitude: 1.0,
            });
        let ropes = [Some(full), windowed].into_iter().flatten().collect();
        Ok((ropes, query_magnitude))
    }

    /// Reads one RoPE from its JSON object; missing fields come from the top level.
    fn config_rope(
        &self,
        arch: &Arch,
        config: &Value,
        rope: &Value,
        width: usize,
    ) -> Result<(Rope, f32), ModelError> {
        let find = |name: &str| {
            let found = rope.get(name).or_else(|| config.get(name));
            found.filter(|value| !value.is_null())
        };
        let number = |name: &str| -> Result<Option<f32>, ModelError> {
            let Some(value) = find(name) else {
                return Ok(None);
            };
            let positive = |n: &f64| n.is_finite() && *n > 0.0 && *n <= f64::from(f32::MAX);
            let problem = || self.bad(&ROPE, format!("{name}: {value} is not a positive number"));
            value
                .as_f64()
                .filter(positive)
                .map(|n| Some(n as f32))
                .ok_or_else(problem)
        };
        let required =
            |name: &str| number(name)?.ok_or_else(|| self.bad(&ROPE, format!("{name} is missing")));
        let original_context = || match number("original_max_position_embeddings")? {
            Some(context) => Ok(context),
            None => required("max_position_embeddings"),
        };
        let list = |name: &str, len: usize| -> Result<Vec<f32>, ModelError> {
            let factor = |v: &Value| v.as_f64().map(|v| v as f32).filter(|v| *v > 0.0);
            let values = find(name).and_then(Value::as_array);
            let factors: Option<Vec<f32>> =
                values.and_then(|values| values.iter().map(factor).collect());
            factors
                .filter(|factors| factors.len() == len)
                .ok_or_else(|| self.bad(&ROPE, format!("{name}: not {len} positive numbers")))
        };
        let rotary_fraction = match number("partial_rotary_factor")? {
            Some(rotary_fraction) => Some(rotary_fraction),
            None => number("rotary_pct")?,
        };
        if rotary_fraction.is_some_and(|rotary_fraction| rotary_fraction > 1.0) {
            return Err(self.bad(
                &ROPE,
                format!("{rotary_fraction:?} is not a fraction of a head"),
            ));
        }
        let mut dims = match (rotary_fraction, number("rotary_dim")?) {
            (Some(rotary_fraction), _) => (width as f32 * rotary_fraction) as usize,
            (None, Some(dims)) => (dims as usize).min(width),
            (None, None) => (width as f32 * arch.hf_rotary_share) as usize,
        };
        let (mut magnitude, mut query_magnitude) = (1.0, 1.0);
        let mut factors = RopeFactors::None;
        let kind = rope.get("rope_type").or_else(|| rope.get("type"));
        let scaling = match kind.and_then(Value::as_str) {
            // Multi-section RoPE: text has the same position in all sections.
            None | Some("default" | "mrope") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear(required("factor")?),
            Some("dynamic") => RopeScaling::Dynamic {
                factor: required("factor")?,
                original_context: required("max_position_embeddings")?,
            },
            Some("yarn") => {
                let factor = required("factor")?;
                let weights = (number("mscale")?, number("mscale_all_dim")?);
                magnitude = match (number("attention_factor")?, weights) {
                    (Some(magnitude), _) => magnitude,
                    (None, (Some(a), Some(b))) => {
                        yarn_magnitude(factor, a) / yarn_magnitude(factor, b)
                    }
                    (None, _) => yarn_magnitude(factor, 1.0),
                };
                if let Some(weight) = weights.1 {
                    query_magnitude = yarn_magnitude(factor, weight);
                }
                RopeScaling::Yarn(Yarn {
                    factor,
                    original_context: original_context()?,
                    beta_fast: number("beta_fast")?.unwrap_or(32.0),
                    beta_slow: number("beta_slow")?.unwrap_or(1.0),
                    truncate: find("truncate").and_then(Value::as_bool).unwrap_or(true),
                    extrapolation: 1.0,
                })
            }
            Some("llama3") => RopeScaling::Llama3 {
                factor: required("factor")?,
                low: required("low_freq_factor")?,
                high: required("high_freq_factor")?,
                original_context: original_context()?,
            },
            Some("longrope" | "su") => {
                let original = original_context()?;
                let stretch = match number("factor")? {
                    Some(factor) => factor,
                    None => required("max_position_embeddings")? / original,
                };
                magnitude = match number("attention_factor")? {
                    Some(magnitude) => magnitude,
                    None if stretch <= 1.0 => 1.0,
                    None => (1.0 + stretch.ln() / original.ln()).sqrt(),
                };
                factors = RopeFactors::ByContext {
                    short: list("short_factor", dims / 2)?,
                    long: list("long_factor", dims / 2)?,
                    original_context: original as usize,
                };
                RopeScaling::None
            }
            // All pairs use the frequencies of a full head, but the later ones are not rotated.
            Some("proportional") => {
                let rotated = dims / 2;
                dims = width;
                let factor = |pair| if pair < rotated { 1.0 } else { f32::INFINITY };
                factors = RopeFactors::Fixed((0..width / 2).map(factor).collect());
                match number("factor")? {
                    Some(factor) => RopeScaling::Linear(factor),
                    None => RopeScaling::None,
                }
            }
            Some(other) => return Err(self.bad(&ROPE, format!("type {other:?} is not supported"))),
        };
        let base = match number("rope_theta")? {
            Some(base) => base,
            None => match number("rotary_emb_base")? {
                Some(base) => base,
                None => number("global_rope_theta")?.unwrap_or(10_000.0),
            },
        };
        let base = base * number("rope_ratio")?.unwrap_or(1.0);
        let rope = Rope {
            dims,
            base,
            scaling,
            factors,
            magnitude,
        };
        Ok((rope, query_magnitude))
    }
}
