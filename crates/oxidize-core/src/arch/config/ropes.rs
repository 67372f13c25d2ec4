//! Rotary embeddings in a `config.json`: one for all layers under Llama's names, or separate ones
//! for full and windowed layers if they differ in more than their base.

use super::{Config, ConfigFacts, number};
use crate::arch::{Hparams, TemperatureRule};
use crate::graph::rope::{Rope, RopeFactors, RopeScaling};
use serde_json::{Map, Value};

impl Config<'_> {
    pub(super) fn ropes(&mut self, hp: &Hparams, facts: &ConfigFacts) {
        if hp.layers.iter().all(|layer| layer.rope.is_none()) {
            return;
        }
        let [rope, rest @ ..] = hp.ropes.as_slice() else {
            return;
        };
        let head = |windowed: bool| {
            let mut kind = hp.layers.iter().filter(|l| l.window.is_some() == windowed);
            kind.find(|layer| layer.rope.is_some()).map(|l| l.key_dim)
        };
        let head_full = head(false).or(head(true)).unwrap_or(1);
        let rotary_fraction =
            |rope: &Rope, head: usize| rotary_fraction(rope, head).filter(|_| hp.mla.is_none());
        if let Some(windowed) = rest.first() {
            let head_windowed = head(true).unwrap_or(head_full);
            let own_fraction = rotary_fraction(windowed, head_windowed);
            let separate = own_fraction != rotary_fraction(rope, head_full)
                || matches!(rope.factors, RopeFactors::Fixed(_))
                || matches!(rope.scaling, RopeScaling::Yarn(_));
            if separate {
                let mut both = Map::new();
                for (name, rope, head) in [
                    ("full_attention", rope, head_full),
                    ("sliding_attention", windowed, head_windowed),
                ] {
                    let mut map = scaling(rope, facts);
                    map.entry("rope_type").or_insert(Value::from("default"));
                    map.insert("rope_theta".into(), number(rope.base));
                    if let Some(rotary_fraction) = rotary_fraction(rope, head) {
                        map.insert("partial_rotary_factor".into(), Value::from(rotary_fraction));
                    }
                    both.insert(name.into(), Value::Object(map));
                }
                self.set("rope_parameters", Value::Object(both));
                return;
            }
            self.float("rope_local_base_freq", windowed.base);
        }
        self.float("rope_theta", rope.base);
        if let Some(rotary_fraction) = rotary_fraction(rope, head_full) {
            self.set("partial_rotary_factor", Value::from(rotary_fraction));
        }
        self.set_own("position_embedding_type", Value::from("rope"));
        let mut map = scaling(rope, facts);
        // Parameters of the temperature are in the same object as those of position scaling.
        match (hp.temperature, self.arch.temperature) {
            (Some(temperature), TemperatureRule::IfGiven) => {
                map.insert("llama_4_scaling_beta".into(), number(temperature.scale));
                let period = number(temperature.period);
                map.insert("original_max_position_embeddings".into(), period);
                self.set("rope_parameters", Value::Object(map));
            }
            _ if !map.is_empty() => self.set("rope_scaling", Value::Object(map)),
            _ => {}
        }
    }
}

/// Fraction of a head that RoPE rotates, if it is not all of it.
fn rotary_fraction(rope: &Rope, head: usize) -> Option<f64> {
    if let Some(pairs) = proportional(rope) {
        return Some(2.0 * pairs as f64 / head as f64);
    }
    (rope.dims != head).then(|| rope.dims as f64 / head as f64)
}

/// Number of rotated pairs, if the others have frequency zero.
fn proportional(rope: &Rope) -> Option<usize> {
    let RopeFactors::Fixed(factors) = &rope.factors else {
        return None;
    };
    let rotated = factors.iter().take_while(|factor| **factor == 1.0).count();
    let unrotated = factors.get(rotated..).unwrap_or_default();
    unrotated
        .iter()
        .all(|factor| factor.is_infinite())
        .then_some(rotated)
}

/// Parameters of position scaling.
fn scaling(rope: &Rope, facts: &ConfigFacts) -> Map<String, Value> {
    let mut scaling = Map::new();
    let mut set = |name: &str, value: Value| scaling.insert(name.to_owned(), value);
    match &rope.scaling {
        RopeScaling::None => {}
        RopeScaling::Linear(factor) => {
            set("rope_type", Value::from("linear"));
            set("factor", number(*factor));
        }
        RopeScaling::Dynamic { factor, .. } => {
            set("rope_type", Value::from("dynamic"));
            set("factor", number(*factor));
        }
        RopeScaling::Yarn(yarn) => {
            set("rope_type", Value::from("yarn"));
            set("factor", number(yarn.factor));
            let original = number(yarn.original_context);
            set("original_max_position_embeddings", original);
            set("beta_fast", number(yarn.beta_fast));
            set("beta_slow", number(yarn.beta_slow));
            match facts.mscale_all_dim {
                Some(weight) => {
                    set("mscale", number(weight));
                    set("mscale_all_dim", number(weight));
                }
                None => drop(set("attention_factor", number(rope.magnitude))),
            }
            if !yarn.truncate {
                set("truncate", Value::from(false));
            }
        }
        RopeScaling::Llama3 {
            factor,
            low,
            high,
            original_context,
        } => {
            set("rope_type", Value::from("llama3"));
            set("factor", number(*factor));
            set("low_freq_factor", number(*low));
            set("high_freq_factor", number(*high));
            let original = number(*original_context);
            set("original_max_position_embeddings", original);
        }
    }
    if let RopeFactors::ByContext {
        short,
        long,
        original_context,
    } = &rope.factors
    {
        set("rope_type", Value::from("longrope"));
        set("short_factor", short.iter().map(|x| number(*x)).collect());
        set("long_factor", long.iter().map(|x| number(*x)).collect());
        set("attention_factor", number(rope.magnitude));
        let original = Value::from(*original_context);
        set("original_max_position_embeddings", original);
    }
    if proportional(rope).is_some() {
        set("rope_type", Value::from("proportional"));
    }
    scaling
}
