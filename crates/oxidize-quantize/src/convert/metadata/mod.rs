//! The metadata keys of a GGUF file, from a model's hyperparameters and the files beside its weights.

mod general;
mod recurrent;

use oxidize_core::arch::names::{
    FFN_XIELU_ALPHA_N, FFN_XIELU_ALPHA_P, FFN_XIELU_BETA, FFN_XIELU_EPSILON,
};
use oxidize_core::arch::{Arch, Hparams, LayerParams, Scales, TensorRole, Windows};
use oxidize_core::embedding::Pooling;
use oxidize_core::file::ModelFile;
use oxidize_core::gguf::{ArrayBuf, Value as Gguf, ValueBuf, ValueType};
use oxidize_core::graph::rope::{RopeFactors, RopeScaling};
use oxidize_core::graph::{AttentionMask, Gating, Window};
use serde_json::Value;

pub(super) use general::{SAMPLING, general, readme};

use crate::output::Output;
use crate::tensor::Tensor;

/// Writer of keys with the architecture's prefix.
struct Keys<'o> {
    output: &'o mut Output,
    prefix: &'static str,
}

impl Keys<'_> {
    fn set(&mut self, name: &str, value: ValueBuf) {
        self.output.set(&format!("{}.{name}", self.prefix), value);
    }

    fn count(&mut self, name: &str, n: usize) {
        self.set(name, ValueBuf::U32(u32::try_from(n).unwrap_or(u32::MAX)));
    }

    fn float(&mut self, name: &str, x: f32) {
        self.set(name, ValueBuf::F32(x));
    }

    fn flag(&mut self, name: &str, flag: bool) {
        self.set(name, ValueBuf::Bool(flag));
    }

    /// Writes one number if all layers agree, else an array.
    fn per_layer(&mut self, name: &str, values: impl Iterator<Item = usize> + Clone) {
        let mut all = values.clone();
        let first = all.next().unwrap_or(0);
        if all.all(|n| n == first) {
            self.count(name, first);
        } else {
            let list = values.map(|n| i32::try_from(n).unwrap_or(i32::MAX));
            self.set(name, ValueBuf::Array(ArrayBuf::i32s(list)));
        }
    }
}

/// Writes the hyperparameters.
pub(super) fn numbers(
    output: &mut Output,
    file: &ModelFile,
    (arch, hp): (&'static Arch, &Hparams),
    tensors: &[Tensor<'_>],
    n_vocab: usize,
) {
    let config = file
        .config()
        .map(|config| config.get("text_config").unwrap_or(config));
    let config = config.unwrap_or(&Value::Null);
    let mut keys = Keys {
        output,
        prefix: arch.name,
    };
    let n_layers = match arch.encoder {
        Some(_) => hp.n_encoder_layers,
        None => hp.n_layers_in_file,
    };
    keys.count("block_count", n_layers);
    // Learned positions are limited by the rows of their table.
    let table = tensors.iter().find(|t| t.name == "position_embd.weight");
    let positions = table.map_or(usize::MAX, |table| table.rows() as usize);
    keys.count("context_length", hp.n_ctx_train.min(positions));
    keys.count("embedding_length", hp.n_embd);
    let both = if arch.ff_counts_both { 2 } else { 1 };
    // Granite's intermediate size is that of the shared experts; GGUF readers expect that of the routed ones.
    let shared = config.get("shared_intermediate_size").is_some();
    let moe = hp.moe.as_ref().filter(|_| shared);
    let width = |layer: &LayerParams| moe.map_or(both * layer.n_ff, |moe| moe.n_ff);
    keys.per_layer("feed_forward_length", hp.layers.iter().map(width));
    // Layers without attention are marked by their number of KV heads, not of query heads.
    let most = hp.layers.iter().map(|layer| layer.n_heads).max();
    let heads = |layer: &LayerParams| match arch.recurrent {
        Some(_) => most.unwrap_or(0),
        None => layer.n_heads,
    };
    keys.per_layer("attention.head_count", hp.layers.iter().map(heads));
    keys.count("vocab_size", n_vocab);
    // Readers differ in which of the two keys they use.
    keys.float("attention.layer_norm_rms_epsilon", hp.epsilon);
    keys.float("attention.layer_norm_epsilon", hp.epsilon);
    attention(&mut keys, arch, hp);
    encoder(&mut keys, file, (arch, hp), config, tensors);
    recurrent::write(&mut keys, arch, hp, tensors);
    rope(&mut keys, arch, hp, config);
    experts(&mut keys, hp, config, tensors);
    scales(&mut keys, arch, hp, config);
    if hp.parallel != arch.parallel || config.get("use_parallel_residual").is_some() {
        keys.flag("use_parallel_residual", hp.parallel);
    }
    if hp.value_scale != 1.0 {
        keys.float("attention.value_scale", hp.value_scale);
    }
    if let Some(temperature) = hp
        .temperature
        .filter(|_| config.get("attn_scale").is_none())
    {
        keys.float("attention.temperature_scale", temperature.scale);
    }
    xielu(keys.output, file, arch, hp);
    let per_layer = config.get("hidden_size_per_layer_input").is_some();
    if hp.n_embd_per_layer > 0 || per_layer {
        keys.count("embedding_length_per_layer_input", hp.n_embd_per_layer);
    }
    if let Some(altup) = &hp.altup {
        keys.count("altup.active_idx", altup.active);
        keys.count("altup.num_inputs", altup.n_streams);
    }
    let shared = hp.layers.iter().enumerate();
    let shared = shared.filter(|(i, layer)| layer.kv_layer != *i).count();
    if config.get("num_kv_shared_layers").is_some() {
        keys.count("attention.shared_kv_layers", shared);
    }
    if hp.layers.iter().any(|layer| layer.sparsity.is_some()) {
        let list = hp.layers.iter().map(|layer| layer.sparsity.unwrap_or(0.0));
        let list = ArrayBuf::f32s(list);
        keys.set("activation_sparsity_scale", ValueBuf::Array(list));
    }
}

const XIELU: &[(&str, TensorRole)] = &[
    ("xielu.alpha_p", FFN_XIELU_ALPHA_P),
    ("xielu.alpha_n", FFN_XIELU_ALPHA_N),
    ("xielu.beta", FFN_XIELU_BETA),
    ("xielu.eps", FFN_XIELU_EPSILON),
];

/// True if a tensor of a directory becomes a key in GGUF.
pub(super) fn is_key(tensor: &str) -> bool {
    let ending = |role: &TensorRole| role.hf.rsplit("{}").next().unwrap_or(role.hf);
    let mut roles = XIELU.iter().map(|(_, role)| role);
    roles.any(|role| tensor.ends_with(ending(role)))
}

/// Writes the xIELU parameters, which are tensors in directories and keys in GGUF.
fn xielu(output: &mut Output, file: &ModelFile, arch: &Arch, hp: &Hparams) {
    for (key, role) in XIELU {
        let of_layer = |layer: usize| {
            let names = role.names(arch, file.format(), layer);
            let info = names.iter().find_map(|name| file.tensor(name))?;
            let mut first = None;
            let read = file.for_each_f32::<oxidize_core::Error>(info, |floats| {
                first = first.or(floats.first().copied());
                Ok(())
            });
            read.ok().and(first)
        };
        let values: Option<Vec<f32>> = (0..hp.layers.len()).map(of_layer).collect();
        if let Some(values) = values.filter(|values| !values.is_empty()) {
            output.set(key, ValueBuf::Array(ArrayBuf::f32s(values)));
        }
    }
}

fn attention(keys: &mut Keys<'_>, arch: &Arch, hp: &Hparams) {
    let layers = &hp.layers;
    let listed = recurrent::lists_attention(arch, hp);
    let kv_heads = |layer: &LayerParams| match listed || arch.pruned || layer.n_heads > 0 {
        true => layer.n_kv_heads,
        // If another key marks the attention layers, all layers have the same number.
        false => layers.iter().map(|l| l.n_kv_heads).max().unwrap_or(0),
    };
    if let Some(mla) = &hp.mla {
        let absorbed = arch.gguf_form.absorbed_kv;
        if let Some(rank) = mla.q_rank {
            keys.count("attention.q_lora_rank", rank);
        }
        keys.count("attention.kv_lora_rank", mla.kv_rank);
        if absorbed {
            let one = |layer: &LayerParams| usize::from(layer.n_heads > 0);
            keys.per_layer("attention.head_count_kv", layers.iter().map(one));
            keys.count("attention.key_length", mla.kv_rank + mla.rope_dim);
            keys.count("attention.value_length", mla.kv_rank);
            keys.count("attention.key_length_mla", mla.nope_dim + mla.rope_dim);
            keys.count("attention.value_length_mla", mla.value_dim);
        } else {
            keys.per_layer("attention.head_count_kv", layers.iter().map(kv_heads));
            keys.count("attention.key_length", mla.nope_dim + mla.rope_dim);
            keys.count("attention.value_length", mla.value_dim);
        }
    } else {
        keys.per_layer("attention.head_count_kv", layers.iter().map(kv_heads));
        let layers = || layers.iter().filter(|layer| layer.n_heads > 0);
        let of = |windowed: bool| layers().find(|l| l.window.is_some() == windowed);
        let full = of(false).or(layers().next());
        if let Some(layer) = full {
            keys.count("attention.key_length", layer.key_dim);
            keys.count("attention.value_length", layer.value_dim);
        }
        if let (Some(full), Some(windowed)) = (full, of(true))
            && (full.key_dim, full.value_dim) != (windowed.key_dim, windowed.value_dim)
        {
            keys.count("attention.key_length_swa", windowed.key_dim);
            keys.count("attention.value_length_swa", windowed.value_dim);
        }
    }
    let window = layers.iter().find_map(|layer| layer.window);
    let window = window.map(|window| match window {
        Window::Sliding(size) | Window::Chunk(size) => size,
        Window::Around(reach) => 2 * reach,
    });
    if let Some(size) = window {
        keys.count("attention.sliding_window", size);
        let all = layers.iter().all(|layer| layer.window.is_some());
        // Readers that ignore the window size alone need the pattern.
        if !all || arch.windows == Windows::Never || readers_ignore_windows(arch) {
            let flags = layers
                .iter()
                .map(|layer| Gguf::Bool(layer.window.is_some()));
            if let Some(list) = ArrayBuf::values(ValueType::Bool, flags) {
                keys.set("attention.sliding_window_pattern", ValueBuf::Array(list));
            }
        }
    }
    if let Some(bias) = hp.max_alibi_bias {
        keys.float("attention.max_alibi_bias", bias);
    }
    if let Some(limit) = hp.qkv_limit {
        keys.float("attention.clamp_kqv", limit);
    }
    if let Some(cap) = hp.attention_softcap {
        keys.float("attn_logit_softcapping", cap);
    }
    if let Some(cap) = hp.logit_softcap {
        keys.float("final_logit_softcapping", cap);
    }
}

/// True if the first descriptor of this name, which reads the file, has no windows by default.
fn readers_ignore_windows(arch: &Arch) -> bool {
    let reader = oxidize_core::arch::ARCHS
        .iter()
        .find(|a| a.name == arch.name);
    reader.is_some_and(|reader| reader.windows == Windows::Never)
}

/// Writes the keys of encoders.
fn encoder(
    keys: &mut Keys<'_>,
    file: &ModelFile,
    (arch, hp): (&Arch, &Hparams),
    config: &Value,
    tensors: &[Tensor<'_>],
) {
    if hp.mask == AttentionMask::Full {
        keys.flag("attention.causal", false);
        let name = config.get("hidden_activation").and_then(Value::as_str);
        if let Some(name) = name {
            keys.set("hidden_activation", name.into());
        }
    }
    for dense in ["dense_2", "dense_3"] {
        let name = format!("{dense}.weight");
        if let Some(tensor) = tensors.iter().find(|tensor| tensor.name == name) {
            keys.count(&format!("{dense}_feat_in"), tensor.columns() as usize);
            keys.count(&format!("{dense}_feat_out"), tensor.rows() as usize);
        }
    }
    let scores = tensors.iter().any(|t| t.name == "cls.output.weight");
    let pooling = Pooling::of_file(file, arch.name).or(scores.then_some(Pooling::Rank));
    if let Some(pooling) = pooling {
        keys.count("pooling_type", pooling.gguf_number());
    }
    if let Some(labels) = config.get("id2label").and_then(Value::as_object)
        && scores
    {
        let number = |key: &String| key.parse().unwrap_or(usize::MAX);
        let mut labels: Vec<_> = labels
            .iter()
            .map(|(key, name)| (number(key), name))
            .collect();
        labels.sort_by_key(|(number, _)| *number);
        let names = labels.iter().filter_map(|(_, name)| name.as_str());
        let names = ArrayBuf::strings(names);
        keys.set("classifier.output_labels", ValueBuf::Array(names));
    }
    if let Some(types) = tensors.iter().find(|t| t.name == "token_types.weight") {
        let n = u32::try_from(types.rows()).unwrap_or(u32::MAX);
        let key = "tokenizer.ggml.token_type_count";
        keys.output.set(key, ValueBuf::U32(n));
    }
    if arch.encoder.is_some() {
        keys.count("decoder_block_count", hp.layers.len());
    }
    if let Some(start) = hp.decoder_start {
        keys.count("decoder_start_token_id", start as usize);
    }
    if let Some(relative) = hp.relative {
        keys.count("attention.relative_buckets_count", relative.n_buckets);
    }
}

fn rope(keys: &mut Keys<'_>, arch: &Arch, hp: &Hparams, config: &Value) {
    let attends = hp.layers.iter().any(|layer| layer.n_heads > 0);
    let has_rope = hp.layers.iter().any(|layer| layer.rope.is_some());
    if arch.recurrent.is_some() && attends {
        // Attention layers of hybrid models often have no RoPE.
        keys.flag("rope.scaling.finetuned", has_rope);
    } else if !has_rope {
        return;
    }
    let Some(rope) = hp.ropes.first().filter(|_| attends) else {
        return;
    };
    sections(keys, arch, rope.dims / 2, config);
    keys.count("rope.dimension_count", rope.dims);
    keys.float("rope.freq_base", rope.base);
    if let Some(windowed) = hp.ropes.get(1) {
        keys.float("rope.freq_base_swa", windowed.base);
        if windowed.dims != rope.dims {
            keys.count("rope.dimension_count_swa", windowed.dims);
        }
    }
    match &rope.scaling {
        RopeScaling::Linear(factor) => {
            keys.set("rope.scaling.type", "linear".into());
            keys.float("rope.scaling.factor", *factor);
        }
        RopeScaling::Yarn(yarn) => {
            keys.set("rope.scaling.type", "yarn".into());
            keys.float("rope.scaling.factor", yarn.factor);
            keys.count(
                "rope.scaling.original_context_length",
                yarn.original_context as usize,
            );
            keys.float("rope.scaling.yarn_beta_fast", yarn.beta_fast);
            keys.float("rope.scaling.yarn_beta_slow", yarn.beta_slow);
            let object = |name: &str| config.get(name);
            let parameters = object("rope_parameters").or_else(|| object("rope_scaling"));
            let number = |name: &str| parameters?.get(name)?.as_f64();
            if let Some(all) = number("mscale_all_dim") {
                let latent = hp.mla.is_some();
                let weight = if latent { 0.1 * all } else { all };
                keys.float("rope.scaling.yarn_log_multiplier", weight as f32);
            }
        }
        // GGUF stores Llama 3 scaling as a tensor of frequency factors.
        RopeScaling::None | RopeScaling::Dynamic { .. } | RopeScaling::Llama3 { .. } => {}
    }
    if let RopeFactors::ByContext {
        original_context, ..
    } = rope.factors
    {
        keys.count("rope.scaling.original_context_length", original_context);
        keys.float("rope.scaling.attn_factor", rope.magnitude);
    }
}

/// Writes the M-RoPE sections of a head: pairs rotated by time, height and width.
fn sections(keys: &mut Keys<'_>, arch: &Arch, pairs: usize, config: &Value) {
    let listed = |name: &str| config.get(name)?.get("mrope_section")?.as_array();
    let number = |value: &Value| value.as_i64().and_then(|n| i32::try_from(n).ok());
    let given = listed("rope_parameters").or_else(|| listed("rope_scaling"));
    let given = given.map(|list| list.iter().filter_map(number).collect::<Vec<i32>>());
    // The sections of the family's default head, scaled to this head size.
    let default = arch.rope_sections.map(|sections| {
        let all: usize = sections.iter().sum();
        let share = |end: usize| (2 * end * pairs + all) / (2 * all);
        let mut end = 0;
        let section = |n: &usize| {
            end += n;
            share(end) - share(end - n)
        };
        let sections = sections.iter().map(section);
        sections.map(|n| i32::try_from(n).unwrap_or(0)).collect()
    });
    if let Some(sections) = given.or(default) {
        let padded = sections.into_iter().chain([0; 4]).take(4);
        let list = ValueBuf::Array(ArrayBuf::i32s(padded));
        keys.set("rope.dimension_sections", list);
    }
}

fn experts(keys: &mut Keys<'_>, hp: &Hparams, config: &Value, tensors: &[Tensor<'_>]) {
    // Some configurations have a list with one entry per layer.
    let first = |value: &Value| value.get(0).unwrap_or(value).as_u64();
    let number = |names: &[&str]| names.iter().find_map(|name| first(config.get(name)?));
    let routed = tensors.iter().any(|t| t.name.contains(".ffn_gate_inp."));
    let Some(moe) = hp.moe.as_ref().filter(|_| routed) else {
        // A model without experts in a family that has them.
        if number(&["num_local_experts"]) == Some(0) {
            keys.count("expert_count", 0);
            keys.count("expert_used_count", 0);
            let width = number(&["shared_intermediate_size"]).unwrap_or(0);
            keys.count("expert_shared_feed_forward_length", width as usize);
        }
        return;
    };
    keys.count("expert_count", moe.n_experts);
    keys.count("expert_used_count", moe.n_expert_used);
    keys.count("expert_feed_forward_length", moe.n_ff);
    let shared = number(&[
        "n_shared_experts",
        "num_shared_experts",
        "num_shared_expert",
        "moe_num_shared_experts",
    ]);
    if let Some(shared) = shared {
        keys.count("expert_shared_count", shared as usize);
    }
    let width = number(&[
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
    ]);
    let of_tensor = tensors
        .iter()
        .find(|tensor| tensor.name.contains("ffn_up_shexp"));
    let of_tensor = of_tensor.and_then(|tensor| tensor.shape.get(1).copied());
    if let Some(width) = width.or(of_tensor) {
        keys.count("expert_shared_feed_forward_length", width as usize);
    }
    let dense = number(&[
        "first_k_dense_replace",
        "moe_layer_start_index",
        "num_dense_layers",
    ]);
    let kinds = config.get("mlp_layer_types").and_then(Value::as_array);
    let leading = |kinds: &Vec<Value>| kinds.iter().take_while(|kind| *kind == "dense").count();
    if let Some(dense) = dense.map(|n| n as usize).or(kinds.map(leading)) {
        keys.count("leading_dense_block_count", dense);
    }
    if let Some(step) = number(&["interleave_moe_layer_step", "moe_layer_interval"]) {
        keys.count("interleave_moe_layer_step", step as usize);
    }
    if moe.scale != 1.0 {
        keys.float("expert_weights_scale", moe.scale);
    }
    keys.flag("expert_weights_norm", moe.renormalize);
    let gating = match moe.gating {
        Gating::Softmax => Some(1),
        Gating::Sigmoid => Some(2),
        Gating::SoftmaxChosen => Some(3),
        _ => None,
    };
    if let Some(gating) = gating {
        keys.count("expert_gating_func", gating);
    }
    let groups = number(&["n_group", "num_expert_group"]);
    if let (Some(groups), Some(used)) = (groups, number(&["topk_group"])) {
        keys.count("expert_group_count", groups as usize);
        keys.count("expert_group_used_count", used as usize);
    }
}

/// Writes the scale factors of the family.
fn scales(keys: &mut Keys<'_>, arch: &Arch, hp: &Hparams, config: &Value) {
    let number = |name: &str| config.get(name).and_then(Value::as_f64).map(|x| x as f32);
    match arch.scales {
        _ if arch.gguf_form.folded_multipliers => {}
        Scales::Given | Scales::GivenMultiply => {
            for (name, key) in [
                ("logits_scaling", "logit_scale"),
                ("logit_scale", "logit_scale"),
                ("embedding_multiplier", "embedding_scale"),
                ("residual_multiplier", "residual_scale"),
                ("attention_multiplier", "attention.scale"),
            ] {
                if let Some(factor) = number(name) {
                    keys.float(key, factor);
                }
            }
        }
        Scales::MiniCpm => {
            keys.float("embedding_scale", hp.embedding_scale);
            keys.float("residual_scale", hp.residual_scale);
            keys.float("logit_scale", 1.0 / hp.logit_scale);
        }
        Scales::SqrtWidth => {}
    }
}
