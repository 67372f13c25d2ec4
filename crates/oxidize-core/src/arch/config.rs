//! Writes the `config.json` of a model, the reverse of [`super::hparams`].
//!
//! Field names are Llama's; a family's own are in its [`Arch::hf_keys`]. To verify that a model
//! can be expressed, the result is read back and compared with [`difference`].

mod recurrent;
mod ropes;

use super::hparams::RecurrentParams;
use super::{
    ActivationRule, Alibi, Arch, Hparams, LayerParams, RecurrentLayers, RecurrentSpec, Scales,
};
use crate::graph::rope::Rope;
use crate::graph::{Activation, AttentionMask, Gating, KeySharing, NormKind, Window};
use serde_json::{Map, Value, json};

/// Facts in a `config.json` beside the hyper-parameters.
#[derive(Clone, Debug, Default)]
pub struct ConfigFacts {
    /// Rows of the embedding matrix.
    pub n_vocab: usize,
    /// True if the embeddings serve as the output projection.
    pub tied: bool,
    /// True if queries, keys and values have biases.
    pub attention_bias: bool,
    /// YaRN: weight of the temperature in all dimensions (DeepSeek).
    pub mscale_all_dim: Option<f32>,
    /// Leading layers without experts.
    pub n_dense_layers: Option<usize>,
    /// Width of the shared experts.
    pub shared_ff: Option<usize>,
    /// Number of shared experts.
    pub n_shared: Option<usize>,
    /// True for each layer with experts.
    pub expert_layers: Vec<bool>,
    /// True if feed-forward layers have a gate.
    pub gated: bool,
    /// True if the model computes text embeddings.
    pub pooled: bool,
    /// True if the model has a classifier.
    pub classifies: bool,
    /// True if a layer has separate norms for attention and feed-forward layer.
    pub two_norms: bool,
    /// True if keys serve as values in layers without values.
    pub keys_as_values: bool,
    /// Mamba: rank of the steps.
    pub step_rank: Option<usize>,
    /// Mamba 2: true if the output is normalized.
    pub recurrent_norm: bool,
    /// Gemma 3n: rank of the LAuReL layers.
    pub laurel_rank: Option<usize>,
    /// Gemma 3n and 4: rows of the per-layer embeddings.
    pub n_vocab_per_layer: Option<usize>,
    /// BOS, EOS and padding tokens.
    pub tokens: [Option<u32>; 3],
    /// Type of the weights, as PyTorch names it.
    pub dtype: &'static str,
}

/// Returns the configuration of a model.
pub fn config(arch: &Arch, hp: &Hparams, facts: &ConfigFacts) -> Value {
    let mut config = Config {
        arch,
        map: Map::new(),
    };
    let class = class_of(arch, facts);
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
    match arch.encoder {
        None => config.set("num_hidden_layers", Value::from(hp.layers.len())),
        Some(_) => {
            config.set("num_hidden_layers", Value::from(hp.n_encoder_layers));
            config.set("num_decoder_layers", Value::from(hp.layers.len()));
            config.set("is_encoder_decoder", Value::from(true));
        }
    }
    if let Some(token) = hp.decoder_start {
        config.set("decoder_start_token_id", Value::from(token));
    }
    let positions = hp.n_ctx_train.saturating_add(arch.hf_extra_positions);
    config.set("max_position_embeddings", Value::from(positions));
    let epsilon = match arch.norm {
        NormKind::Rms => "rms_norm_eps",
        NormKind::Layer => "layer_norm_eps",
    };
    config.float(epsilon, hp.epsilon);
    match (arch.activation, activation_name(hp.activation)) {
        (ActivationRule::Xielu, _) => config.set("hidden_act", Value::from("xielu")),
        (ActivationRule::ReluOrGatedGelu, _) => {
            let name = if facts.gated { "gated-gelu" } else { "relu" };
            config.set("feed_forward_proj", Value::from(name));
        }
        (_, Some(name)) => config.set("hidden_act", Value::from(name)),
        (_, None) => {}
    }
    if hp.mask == AttentionMask::Full && arch.hf_when.is_some() {
        config.set("use_bidirectional_attention", Value::from(true));
    }
    config.set_own("new_decoder_architecture", Value::from(facts.two_norms));
    config.attention(hp, facts);
    config.feed_forward(hp, facts);
    config.recurrent(hp, facts);
    config.windows(hp);
    config.ropes(hp, facts);
    config.experts(hp, facts);
    config.scales(hp);
    config.per_layer_inputs(hp, facts);
    Value::Object(config.map)
}

/// Name of the `transformers` class for a model with these facts.
pub fn class_of(arch: &Arch, facts: &ConfigFacts) -> &'static str {
    let mut classes = arch.hf_classes.iter().copied();
    let first = classes.clone().next().unwrap_or_default();
    let fitting = match facts {
        facts if facts.classifies => classes.find(|class| class.contains("ForSequence")),
        facts if facts.pooled => classes.find(|class| is_bare(class)),
        _ => None,
    };
    fitting.unwrap_or(first)
}

/// True for a class without a head, whose tensor names lack the model's prefix.
pub fn is_bare(class: &str) -> bool {
    class.ends_with("Model") && !class.ends_with("LMHeadModel")
}

/// Describes the first difference between two sets of hyper-parameters.
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
        mask,
        relative,
        n_encoder_layers,
        temperature,
        unweighted_qk_norm,
        mla,
        activation,
        n_embd_per_layer,
        altup
    );
    let (a, b) = (recurrent_parts(ours), recurrent_parts(theirs));
    if a != b {
        return Some(format!("recurrent parts are {a:?}, not {b:?}"));
    }
    // A gating function that GGUF cannot express is the family's default.
    let mut moe = theirs.moe.clone();
    if let (Some(a), Some(b)) = (&ours.moe, &mut moe)
        && matches!(a.gating, Gating::SparseMixer { .. })
    {
        b.gating = a.gating;
    }
    if ours.moe != moe {
        return Some(format!("experts are {:?}, not {moe:?}", ours.moe));
    }
    let layers = ours.layers.iter().zip(&theirs.layers).enumerate();
    for (i, (a, b)) in layers {
        if !same_layer(a, b) {
            return Some(format!("layer {i} is {a:?}, not {b:?}"));
        }
    }
    // Layers without RoPE are ignored; all others must agree.
    let with_rope = |hp: &Hparams| {
        let used = hp.layers.iter().filter_map(|layer| layer.rope);
        let used = used.filter_map(|rope| hp.ropes.get(rope)).cloned();
        used.collect::<Vec<Rope>>()
    };
    let (a, b) = (with_rope(ours), with_rope(theirs));
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

/// Recurrent parameters without those that follow from the file format: the sharing of key heads
/// and the norm groups.
fn recurrent_parts(hp: &Hparams) -> Option<RecurrentParams> {
    let params = hp.recurrent.as_ref()?;
    Some(RecurrentParams {
        sharing: KeySharing::Grouped,
        norm_groups: 1,
        ..params.clone()
    })
}

/// Compares layers. Parameters of xIELU are tensors in a Hugging Face directory, and sparsity is a
/// fraction there, which has fewer digits.
fn same_layer(a: &LayerParams, b: &LayerParams) -> bool {
    let rest = |layer: &LayerParams| LayerParams {
        xielu: None,
        sparsity: None,
        ..layer.clone()
    };
    let close = match (a.sparsity, b.sparsity) {
        (Some(a), Some(b)) => (a - b).abs() < 1e-4 * b.abs(),
        (a, b) => a.is_none() == b.is_none(),
    };
    close && rest(a) == rest(b)
}

struct Config<'a> {
    arch: &'a Arch,
    map: Map<String, Value>,
}

impl Config<'_> {
    /// Sets a field under the family's name for it.
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

    /// Sets a field that only families with a name for it have.
    fn set_own(&mut self, name: &str, value: Value) {
        if self.arch.hf_keys.iter().any(|(usual, _)| *usual == name) {
            self.set(name, value);
        }
    }

    fn float(&mut self, name: &str, x: f32) {
        self.set(name, number(x));
    }

    fn attention(&mut self, hp: &Hparams, facts: &ConfigFacts) {
        let attending = || hp.layers.iter().filter(|layer| layer.n_heads > 0);
        let Some(first) = attending().next() else {
            return;
        };
        let heads = attending().map(|layer| layer.n_heads);
        self.set("num_attention_heads", per_layer(heads));
        self.key_heads(hp, first);
        self.set("attention_bias", Value::from(facts.attention_bias));
        if let Some(mla) = &hp.mla {
            self.set("q_lora_rank", Value::from(mla.q_rank));
            self.set("kv_lora_rank", Value::from(mla.kv_rank));
            self.set("qk_nope_head_dim", Value::from(mla.nope_dim));
            self.set("qk_rope_head_dim", Value::from(mla.rope_dim));
            self.set("v_head_dim", Value::from(mla.value_dim));
        } else {
            let usual_head = self.usual_layer(hp).unwrap_or(first);
            self.set("head_dim", Value::from(usual_head.key_dim));
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

    /// Layer that defines the number of heads in configurations without per-layer values: a
    /// windowed one, if there is any.
    fn usual_layer<'h>(&self, hp: &'h Hparams) -> Option<&'h LayerParams> {
        let mut attending = hp.layers.iter().filter(|layer| layer.n_heads > 0);
        let windowed = attending.clone().find(|layer| layer.window.is_some());
        windowed.or_else(|| attending.next())
    }

    /// Sets the number of key heads, and what differs between full and windowed layers.
    fn key_heads(&mut self, hp: &Hparams, first: &LayerParams) {
        // Recurrent layers are listed as such; pruned layers have no heads.
        let hybrid = self.arch.recurrent.is_some();
        let attending = || {
            let all = hp.layers.iter();
            all.filter(move |layer| layer.n_heads > 0 || !hybrid)
        };
        let usual = self.usual_layer(hp).unwrap_or(first);
        let same_width = attending().all(|layer| layer.key_dim == usual.key_dim);
        let is_own = |name: &str| self.arch.hf_keys.iter().any(|(known, _)| *known == name);
        if same_width && is_own("swa_num_key_value_heads") {
            let full = attending().find(|layer| layer.window.is_none());
            let full = full.unwrap_or(usual);
            self.set("num_key_value_heads", Value::from(full.n_kv_heads));
            self.set("swa_num_key_value_heads", Value::from(usual.n_kv_heads));
        } else if same_width {
            let kv = attending().map(|layer| layer.n_kv_heads);
            self.set("num_key_value_heads", per_layer(kv));
            let one = usual.n_kv_heads == 1 && usual.n_heads > 1 && !self.has_two_norms();
            self.set_own("multi_query", Value::from(one));
        } else {
            self.set("num_key_value_heads", Value::from(usual.n_kv_heads));
            let mut own = Map::new();
            for (i, layer) in hp.layers.iter().enumerate() {
                if (layer.key_dim, layer.n_kv_heads) != (usual.key_dim, usual.n_kv_heads) {
                    let mut map = Map::new();
                    map.insert("head_dim".into(), Value::from(layer.key_dim));
                    map.insert("num_key_value_heads".into(), Value::from(layer.n_kv_heads));
                    own.insert(i.to_string(), Value::Object(map));
                }
            }
            self.set("per_layer_config", Value::Object(own));
        }
        let n_shared = hp.layers.iter().enumerate();
        let n_shared = n_shared.filter(|(i, layer)| layer.kv_layer != *i).count();
        if n_shared > 0 {
            self.set("num_kv_shared_layers", Value::from(n_shared));
        }
        if hp.value_scale != 1.0 {
            self.float("attention_value_scale", hp.value_scale);
        }
        if let (Alibi::IfGiven, Some(bias)) = (self.arch.alibi, hp.max_alibi_bias) {
            self.set("attn_config.alibi", Value::from(true));
            self.float("attn_config.alibi_bias_max", bias);
        }
        if let Some(relative) = hp.relative {
            let buckets = Value::from(relative.n_buckets);
            self.set("relative_attention_num_buckets", buckets);
            let distance = Value::from(relative.max_distance);
            self.set("relative_attention_max_distance", distance);
        }
    }

    /// True if layers have separate norms for attention and feed-forward layer, as set before.
    fn has_two_norms(&self) -> bool {
        self.map.get("new_decoder_architecture") == Some(&Value::Bool(true))
    }

    fn feed_forward(&mut self, hp: &Hparams, facts: &ConfigFacts) {
        let both = if self.arch.ff_counts_both { 2 } else { 1 };
        // If layers are either mixers or feed-forward layers, mixers have no width.
        let exclusive = |spec: RecurrentSpec| spec.layers == RecurrentLayers::Exclusive;
        let exclusive = self.arch.recurrent.is_some_and(exclusive);
        let with_feed_forward = hp
            .layers
            .iter()
            .filter(|layer| layer.n_ff > 0 || !exclusive);
        let n_ff = with_feed_forward.map(|layer| both * layer.n_ff);
        let first = n_ff.clone().next();
        if first.is_some() {
            self.set("intermediate_size", per_layer(n_ff));
        }
        // Without experts, the field of the shared expert holds the width of the feed-forward
        // layer.
        if let (Some(n_ff), None) = (first, &hp.moe) {
            self.set_own("shared_expert_intermediate_size", Value::from(n_ff));
            self.set_own("num_experts", Value::from(0));
        }
        let ratio = first.unwrap_or(0) / hp.n_embd.max(1);
        self.set_own("expansion_ratio", Value::from(ratio));
        if hp.layers.iter().any(|layer| layer.sparsity.is_some()) {
            let fractions = hp.layers.iter().map(|layer| number(sparse_fraction(layer)));
            self.set("activation_sparsity_pattern", fractions.collect());
        }
        let has_experts = |i: usize| facts.expert_layers.get(i) == Some(&true);
        let kinds = (0..hp.layers.len()).map(|i| match has_experts(i) {
            true => "sparse",
            false => "dense",
        });
        self.set_own("mlp_layer_types", kinds.collect());
        if let Some((period, offset)) = every(&facts.expert_layers) {
            self.set_own("expert_layer_period", Value::from(period));
            self.set_own("expert_layer_offset", Value::from(offset));
        }
        self.set_own("attention_k_eq_v", Value::from(facts.keys_as_values));
        self.set_own("enable_moe_block", Value::from(hp.moe.is_some()));
    }

    fn per_layer_inputs(&mut self, hp: &Hparams, facts: &ConfigFacts) {
        if hp.n_embd_per_layer > 0 {
            let width = Value::from(hp.n_embd_per_layer);
            self.set("hidden_size_per_layer_input", width);
        }
        if let Some(n) = facts.n_vocab_per_layer {
            self.set("vocab_size_per_layer_input", Value::from(n));
        }
        if let Some(altup) = hp.altup {
            self.set("altup_num_inputs", Value::from(altup.n_streams));
            self.set("altup_active_idx", Value::from(altup.active));
        }
        if let Some(rank) = facts.laurel_rank {
            self.set("laurel_rank", Value::from(rank));
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

    fn experts(&mut self, hp: &Hparams, facts: &ConfigFacts) {
        let Some(moe) = &hp.moe else {
            return;
        };
        self.set("num_experts", Value::from(moe.n_experts));
        self.set("num_experts_per_tok", Value::from(moe.n_expert_used));
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
            self.set("topk_group", Value::from(groups.n_groups_used));
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
        if let Gating::SparseMixer { jitter } = self.arch.moe.gating {
            self.float("router_jitter_noise", jitter);
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

/// A number if all layers agree, else a list.
fn per_layer(values: impl Iterator<Item = usize> + Clone) -> Value {
    let mut all = values.clone();
    let first = all.next().unwrap_or(0);
    match all.all(|n| n == first) {
        true => Value::from(first),
        false => values.collect(),
    }
}

/// Period and first index, if the marked elements are every n-th.
fn every(marked: &[bool]) -> Option<(usize, usize)> {
    let indexes: Vec<usize> = (0..marked.len()).filter(|&i| marked[i]).collect();
    let &first = indexes.first()?;
    let period = match indexes.get(1) {
        Some(second) => second - first,
        None => marked.len(),
    };
    let recurs = (0..marked.len()).all(|i| marked[i] == (i % period == first));
    recurs.then_some((period, first))
}

/// Fraction of activations that a sparse layer drops, with the fewest digits that give the same
/// threshold.
fn sparse_fraction(layer: &LayerParams) -> f32 {
    let Some(deviations) = layer.sparsity else {
        return 0.0;
    };
    let fraction = crate::math::normal_cdf(f64::from(deviations));
    let rounded = |digits: i32| {
        let unit = 10f64.powi(digits);
        (fraction * unit).round() / unit
    };
    let means_it = |fraction: &f64| {
        let again = crate::math::normal_quantile(*fraction);
        (again - f64::from(deviations)).abs() < 1e-5 * f64::from(deviations)
    };
    let short = (1..7).map(rounded).find(means_it);
    short.unwrap_or(fraction) as f32
}

/// Float with the shortest digits that represent it.
fn number(x: f32) -> Value {
    let shortest = x.to_string().parse().unwrap_or(f64::from(x));
    match shortest.fract() == 0.0 && shortest.abs() < 1e9 {
        true => Value::from(shortest as i64),
        false => Value::from(shortest),
    }
}

/// Model type of `transformers`, from the name of its class: `Qwen3MoeForCausalLM` is `qwen3_moe`.
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
    fn model_type_matches_transformers() {
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
    fn numbers_use_shortest_digits() {
        assert_eq!(number(1e-5).to_string(), "0.00001");
        assert_eq!(number(0.1).to_string(), "0.1");
        assert_eq!(number(10_000.0).to_string(), "10000");
    }
}
