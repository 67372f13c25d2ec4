//! `config.json` of a model, from its numbers: what [`super::hparams`] reads, written. Names are
//! Llama's; a family's own are in its [`Arch::hf_keys`]. Whether a family can be said this way at all
//! is found out by reading the result back: [`difference`].

use super::{Arch, Hparams, Scales};
use crate::graph::rope::{Rope, RopeFactors, RopeScaling};
use crate::graph::{Activation, Gating, NormKind, Sees, Window};
use serde_json::{Map, Value, json};

/// What a `config.json` says besides the numbers of the graph.
#[derive(Clone, Debug, Default)]
pub struct ConfigFacts {
    /// Rows of the embeddings.
    pub n_vocab: usize,
    /// Whether embeddings serve as the projection to logits.
    pub tied: bool,
    /// Whether queries, keys and values have biases.
    pub attention_bias: bool,
    /// YaRN: the weight of the temperature in all dimensions (DeepSeek).
    pub mscale_all_dim: Option<f32>,
    /// Leading layers without experts.
    pub n_dense_layers: Option<usize>,
    /// Width of the experts that all tokens share.
    pub shared_ff: Option<usize>,
    /// How many of them there are.
    pub n_shared: Option<usize>,
    /// The tokens that begin and end a text, and fill up a batch.
    pub tokens: [Option<u32>; 3],
    /// What weights are stored as, in PyTorch's words.
    pub dtype: &'static str,
}

/// The configuration of a model of this family with these numbers.
pub fn config(arch: &Arch, hp: &Hparams, facts: &ConfigFacts) -> Value {
    let mut config = Config {
        arch,
        map: Map::new(),
    };
    let class = arch.hf_classes.first().copied().unwrap_or_default();
    config.set("architectures", json!([class]));
    config.set("model_type", Value::from(model_type(class)));
    config.set("torch_dtype", Value::from(facts.dtype));
    config.set("vocab_size", Value::from(facts.n_vocab));
    config.set("tie_word_embeddings", Value::from(facts.tied));
    let names = ["bos_token_id", "eos_token_id", "pad_token_id"];
    for (name, id) in names.into_iter().zip(facts.tokens) {
        if let Some(id) = id {
            config.set(name, Value::from(id));
        }
    }
    config.set("hidden_size", Value::from(hp.n_embd));
    config.set("num_hidden_layers", Value::from(hp.layers.len()));
    config.set("max_position_embeddings", Value::from(hp.n_ctx_train));
    let epsilon = match arch.norm {
        NormKind::Rms => "rms_norm_eps",
        NormKind::Layer => "layer_norm_eps",
    };
    config.float(epsilon, hp.epsilon);
    if let Some(name) = activation_name(hp.activation) {
        config.set("hidden_act", Value::from(name));
    }
    if hp.sees == Sees::All && arch.hf_when.is_some() {
        config.set("use_bidirectional_attention", Value::from(true));
    }
    config.attention(hp, facts);
    config.windows(hp);
    config.ropes(hp, facts);
    config.experts(hp, facts);
    config.scales(hp);
    Value::Object(config.map)
}

/// The first thing that two readings of a model differ in.
pub fn difference(ours: &Hparams, theirs: &Hparams) -> Option<String> {
    macro_rules! differing {
        ($($field:ident),*) => {
            $(
                let (a, b) = (format!("{:?}", ours.$field), format!("{:?}", theirs.$field));
                if a != b {
                    return Some(format!("{} is {a}, not {b}", stringify!($field)));
                }
            )*
        };
    }
    differing!(
        n_embd,
        epsilon,
        parallel,
        embedding_scale,
        residual_scale,
        logit_scale,
        attention_softcap,
        logit_softcap,
        value_scale,
        qkv_limit,
        max_alibi_bias,
        sees,
        relative,
        n_encoder_layers,
        temperature,
        unweighted_qk_norm,
        mla,
        recurrent,
        activation,
        moe,
        n_embd_per_layer,
        altup
    );
    let layers = ours.layers.iter().zip(&theirs.layers).enumerate();
    for (i, (a, b)) in layers {
        if a != b {
            return Some(format!("layer {i} is {a:?}, not {b:?}"));
        }
    }
    // Not all layers turn, and of those that do none may differ.
    let turning = |hp: &Hparams| {
        let used = hp.layers.iter().filter_map(|layer| layer.rope);
        let used = used.filter_map(|rope| hp.ropes.get(rope)).cloned();
        used.collect::<Vec<Rope>>()
    };
    let (a, b) = (turning(ours), turning(theirs));
    let same = |(a, b): (&Rope, &Rope)| {
        let close = (a.magnitude - b.magnitude).abs() < 1e-5 * b.magnitude;
        let plain = |rope: &Rope| Rope {
            magnitude: 1.0,
            ..rope.clone()
        };
        close && plain(a) == plain(b)
    };
    let other = a.iter().zip(&b).find(|pair| !same(*pair));
    other.map(|(a, b)| format!("the rotary embedding is {a:?}, not {b:?}"))
}

struct Config<'a> {
    arch: &'a Arch,
    map: Map<String, Value>,
}

impl Config<'_> {
    /// Sets a field, under the family's name for it.
    fn set(&mut self, name: &str, value: Value) {
        let own = self.arch.hf_keys.iter().find(|(usual, _)| *usual == name);
        let name = own.map_or(name, |(_, own)| *own);
        let mut parts: Vec<&str> = name.split('.').collect();
        let Some(last) = parts.pop().filter(|last| !last.is_empty()) else {
            return;
        };
        let mut at = &mut self.map;
        for part in parts {
            let inner = at.entry(part).or_insert_with(|| json!({}));
            match inner {
                Value::Object(map) => at = map,
                _ => return,
            }
        }
        at.insert(last.to_owned(), value);
    }

    fn float(&mut self, name: &str, x: f32) {
        self.set(name, number(x));
    }

    fn attention(&mut self, hp: &Hparams, facts: &ConfigFacts) {
        let attending = || hp.layers.iter().filter(|layer| layer.n_heads > 0);
        let Some(first) = attending().next() else {
            return;
        };
        self.set("num_attention_heads", Value::from(first.n_heads));
        let kv = hp.layers.iter().map(|layer| layer.n_kv_heads);
        self.set("num_key_value_heads", per_layer(kv));
        let both = if self.arch.ff_counts_both { 2 } else { 1 };
        let n_ff = hp.layers.iter().map(|layer| both * layer.n_ff);
        self.set("intermediate_size", per_layer(n_ff));
        self.set("attention_bias", Value::from(facts.attention_bias));
        if let Some(mla) = &hp.mla {
            self.set("q_lora_rank", Value::from(mla.q_rank));
            self.set("kv_lora_rank", Value::from(mla.kv_rank));
            self.set("qk_nope_head_dim", Value::from(mla.nope_dim));
            self.set("qk_rope_head_dim", Value::from(mla.rope_dim));
            self.set("v_head_dim", Value::from(mla.value_dim));
        } else {
            self.set("head_dim", Value::from(first.key_dim));
            if first.value_dim != first.key_dim {
                self.set("v_head_dim", Value::from(first.value_dim));
            }
            let usual = 1.0 / (first.key_dim as f32).sqrt();
            if first.query_scale != usual && self.arch.scales == Scales::SqrtWidth {
                let width = f64::from(first.query_scale).powi(-2).round();
                self.set("query_pre_attn_scalar", Value::from(width));
            } else if first.query_scale != usual {
                self.float("attention_multiplier", first.query_scale);
            }
        }
        for (name, limit) in [
            ("attn_logit_softcapping", hp.attention_softcap),
            ("final_logit_softcapping", hp.logit_softcap),
            ("clip_qkv", hp.qkv_limit),
        ] {
            if let Some(limit) = limit {
                self.float(name, limit);
            }
        }
        if hp.parallel != self.arch.parallel {
            self.set("use_parallel_residual", Value::from(hp.parallel));
        }
    }

    fn windows(&mut self, hp: &Hparams) {
        let window = hp.layers.iter().find_map(|layer| layer.window);
        let (name, size, kind) = match window {
            None => return,
            Some(Window::Sliding(size)) => ("sliding_window", size, "sliding_attention"),
            Some(Window::Around(reach)) => ("sliding_window", 2 * reach, "sliding_attention"),
            Some(Window::Chunk(size)) => ("attention_chunk_size", size, "chunked_attention"),
        };
        self.set(name, Value::from(size));
        self.set("use_sliding_window", Value::from(true));
        let kinds = hp.layers.iter().map(|layer| match layer.window {
            Some(_) => kind,
            None => "full_attention",
        });
        self.set("layer_types", kinds.collect());
    }

    fn ropes(&mut self, hp: &Hparams, facts: &ConfigFacts) {
        if hp.layers.iter().all(|layer| layer.rope.is_none()) {
            return;
        }
        let [rope, rest @ ..] = hp.ropes.as_slice() else {
            return;
        };
        self.float("rope_theta", rope.base);
        let head = hp.layers.iter().map(|layer| layer.key_dim).max();
        let head = head.unwrap_or(1).max(1);
        if hp.mla.is_none() && rope.dims != head {
            let share = rope.dims as f64 / head as f64;
            self.set("partial_rotary_factor", Value::from(share));
        }
        if let Some(windowed) = rest.first() {
            self.float("rope_local_base_freq", windowed.base);
        }
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
        if !scaling.is_empty() {
            self.set("rope_scaling", Value::Object(scaling));
        }
    }

    fn experts(&mut self, hp: &Hparams, facts: &ConfigFacts) {
        let Some(moe) = &hp.moe else {
            return;
        };
        self.set("num_experts", Value::from(moe.n_experts));
        self.set("num_experts_per_tok", Value::from(moe.n_used));
        self.set("moe_intermediate_size", Value::from(moe.n_ff));
        self.set("norm_topk_prob", Value::from(moe.renormalize));
        if moe.scale != 1.0 {
            self.float("routed_scaling_factor", moe.scale);
        }
        let gating = match moe.gating {
            Gating::Softmax => Some("softmax"),
            Gating::Sigmoid => Some("sigmoid"),
            _ => None,
        };
        if let Some(gating) = gating.filter(|_| moe.gating != self.arch.moe.gating) {
            self.set("scoring_func", Value::from(gating));
        }
        if let Some(groups) = &moe.groups {
            self.set("n_group", Value::from(groups.n_groups));
            self.set("topk_group", Value::from(groups.n_used));
        }
        if let Some(n) = facts.n_dense_layers {
            self.set("first_k_dense_replace", Value::from(n));
        }
        if let Some(width) = facts.shared_ff {
            self.set("shared_expert_intermediate_size", Value::from(width));
        }
        if let Some(n) = facts.n_shared {
            self.set("n_shared_experts", Value::from(n));
        }
    }

    fn scales(&mut self, hp: &Hparams) {
        match self.arch.scales {
            Scales::SqrtWidth => {}
            Scales::MiniCpm => {
                self.float("scale_emb", hp.embedding_scale);
                let depth = hp.residual_scale * (hp.layers.len() as f32).sqrt();
                self.float("scale_depth", depth);
                self.float("dim_model_base", hp.n_embd as f32 * hp.logit_scale);
            }
            Scales::Given | Scales::GivenMultiply => {
                let multiplies = self.arch.scales == Scales::GivenMultiply;
                let logits = match multiplies {
                    true => ("logit_scale", hp.logit_scale),
                    false => ("logits_scaling", 1.0 / hp.logit_scale),
                };
                for (name, scale) in [
                    ("embedding_multiplier", hp.embedding_scale),
                    ("residual_multiplier", hp.residual_scale),
                    logits,
                ] {
                    if scale != 1.0 {
                        self.float(name, scale);
                    }
                }
            }
        }
    }
}

/// One number where all layers agree, else a list.
fn per_layer(values: impl Iterator<Item = usize> + Clone) -> Value {
    let mut all = values.clone();
    let first = all.next().unwrap_or(0);
    match all.all(|n| n == first) {
        true => Value::from(first),
        false => values.collect(),
    }
}

/// A float as people write it: the shortest digits that mean it.
fn number(x: f32) -> Value {
    let shortest = x.to_string().parse().unwrap_or(f64::from(x));
    match shortest.fract() == 0.0 && shortest.abs() < 1e9 {
        true => Value::from(shortest as i64),
        false => Value::from(shortest),
    }
}

/// What `transformers` calls a family, from the name of its class: `Qwen3MoeForCausalLM` is
/// `qwen3_moe`.
fn model_type(class: &str) -> String {
    let ends = [
        "ForCausalLM",
        "LMHeadModel",
        "ForConditionalGeneration",
        "Model",
    ];
    let stem = ends.iter().find_map(|end| class.strip_suffix(end));
    let mut name = String::new();
    let mut before = '_';
    for c in stem.unwrap_or(class).chars() {
        if c.is_ascii_uppercase() && (before.is_ascii_lowercase() || before.is_ascii_digit()) {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
        before = c;
    }
    name
}

fn activation_name(activation: Activation) -> Option<&'static str> {
    Some(match activation {
        Activation::Silu => "silu",
        Activation::GeluErf => "gelu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
        Activation::GeluQuick => "quick_gelu",
        Activation::Relu => "relu",
        Activation::ReluSquared => "relu2",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_called_what_transformers_call_them() {
        for (class, name) in [
            ("LlamaForCausalLM", "llama"),
            ("Qwen3MoeForCausalLM", "qwen3_moe"),
            ("GPT2LMHeadModel", "gpt2"),
            ("DeepseekV3ForCausalLM", "deepseek_v3"),
            ("GptOssForCausalLM", "gpt_oss"),
        ] {
            assert_eq!(model_type(class), name);
        }
    }

    #[test]
    fn numbers_are_written_short() {
        assert_eq!(number(1e-5).to_string(), "0.00001");
        assert_eq!(number(0.1).to_string(), "0.1");
        assert_eq!(number(10_000.0).to_string(), "10000");
    }
}
