//! The keys of a GGUF file, from the numbers of a model and the files beside it.

use oxidize_core::arch::{Arch, Hparams, Scales};
use oxidize_core::file::ModelFile;
use oxidize_core::gguf::{ArrayBuf, Value as Gguf, ValueBuf, ValueType};
use oxidize_core::graph::rope::{RopeFactors, RopeScaling};
use oxidize_core::graph::{Gating, Window};
use oxidize_core::mix::Mix;
use serde_json::Value;

use crate::output::Output;
use crate::tensor::Tensor;

/// What the model is and who made it.
pub(super) fn general(
    output: &mut Output,
    file: &ModelFile,
    arch: &Arch,
    tensors: &[Tensor<'_>],
    mix: &Mix,
) {
    output.set("general.architecture", arch.name.into());
    output.set("general.type", "model".into());
    let folder = file.path().parent().and_then(|folder| folder.file_name());
    let card = model_card(file);
    let name = card
        .get("model_name")
        .cloned()
        .or_else(|| Some(folder?.to_string_lossy().into_owned()));
    if let Some(name) = name {
        output.set("general.name", ValueBuf::Str(name));
    }
    let elements = tensors.iter().map(Tensor::elements).sum();
    output.set("general.size_label", ValueBuf::Str(size_label(elements)));
    for (field, key) in [
        ("license", "general.license"),
        ("license_name", "general.license.name"),
        ("license_link", "general.license.link"),
        ("author", "general.author"),
        ("model_creator", "general.organization"),
    ] {
        if let Some(value) = card.get(field) {
            output.set(key, ValueBuf::Str(value.clone()));
        }
    }
    output.set("general.file_type", ValueBuf::U32(mix.file_type));
    output.set("general.quantization_version", ValueBuf::U32(2));
    sampling(output, file);
}

/// How the authors would have tokens chosen.
fn sampling(output: &mut Output, file: &ModelFile) {
    let Some(config) = json(file, "generation_config.json") else {
        return;
    };
    for (field, key) in [
        ("temperature", "temp"),
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("repetition_penalty", "penalty_repeat"),
    ] {
        if let Some(number) = config.get(field).and_then(Value::as_f64) {
            output.set(
                &format!("general.sampling.{key}"),
                ValueBuf::F32(number as f32),
            );
        }
    }
    if let Some(n) = config.get("top_k").and_then(Value::as_i64) {
        let n = i32::try_from(n).unwrap_or(i32::MAX);
        output.set("general.sampling.top_k", ValueBuf::I32(n));
    }
}

fn json(file: &ModelFile, name: &str) -> Option<Value> {
    let text = std::fs::read_to_string(file.sidecar(name)?).ok()?;
    serde_json::from_str(&text).ok()
}

/// The plain fields at the head of a README, between lines of dashes.
fn model_card(file: &ModelFile) -> std::collections::HashMap<String, String> {
    let text = file
        .sidecar("README.md")
        .and_then(|path| std::fs::read_to_string(path).ok());
    let text = text.unwrap_or_default();
    let head = text
        .strip_prefix("---")
        .and_then(|rest| rest.split_once("\n---"))
        .map_or("", |(head, _)| head);
    let field = |line: &str| {
        let (key, value) = line.split_once(':')?;
        let value = value.trim().trim_matches(['"', '\'']);
        let plain = !key.starts_with([' ', '-', '#']) && !value.is_empty();
        plain.then(|| (key.trim().to_owned(), value.to_owned()))
    };
    head.lines().filter_map(field).collect()
}

/// A number of parameters as people say it.
fn size_label(elements: u64) -> String {
    let n = elements as f64;
    let (scaled, unit) = match elements {
        1_000_000_000_000.. => (n / 1e12, "T"),
        1_000_000_000.. => (n / 1e9, "B"),
        1_000_000.. => (n / 1e6, "M"),
        _ => (n / 1e3, "K"),
    };
    if scaled < 10.0 && unit != "K" && unit != "M" {
        format!("{scaled:.1}{unit}")
    } else {
        format!("{scaled:.0}{unit}")
    }
}

/// Writes under the architecture's prefix.
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

    /// One number where all layers agree, else a list.
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

/// The model's numbers.
pub(super) fn numbers(
    output: &mut Output,
    file: &ModelFile,
    arch: &'static Arch,
    hp: &Hparams,
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
    keys.count("block_count", hp.n_layers_in_file);
    keys.count("context_length", hp.n_ctx_train);
    keys.count("embedding_length", hp.n_embd);
    let both = if arch.ff_counts_both { 2 } else { 1 };
    keys.per_layer(
        "feed_forward_length",
        hp.layers.iter().map(|layer| both * layer.n_ff),
    );
    keys.per_layer(
        "attention.head_count",
        hp.layers.iter().map(|layer| layer.n_heads),
    );
    keys.count("vocab_size", n_vocab);
    // Readers differ in which of the two they ask for.
    keys.float("attention.layer_norm_rms_epsilon", hp.epsilon);
    keys.float("attention.layer_norm_epsilon", hp.epsilon);
    attention(&mut keys, arch, hp);
    rope(&mut keys, hp, config);
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
    let listed = |name: &str| config.get(name)?.get("mrope_section")?.as_array().cloned();
    if let Some(sections) = listed("rope_parameters").or_else(|| listed("rope_scaling")) {
        let number = |value: &Value| value.as_i64().and_then(|n| i32::try_from(n).ok());
        let padded = sections.iter().filter_map(number).chain([0; 4]).take(4);
        keys.set(
            "rope.dimension_sections",
            ValueBuf::Array(ArrayBuf::i32s(padded)),
        );
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

/// xIELU's parameters, which are tensors in one format and keys in the other.
fn xielu(output: &mut Output, file: &ModelFile, arch: &Arch, hp: &Hparams) {
    use oxidize_core::arch::names::{
        FFN_XIELU_ALPHA_N, FFN_XIELU_ALPHA_P, FFN_XIELU_BETA, FFN_XIELU_EPSILON,
    };
    for (key, role) in [
        ("xielu.alpha_p", FFN_XIELU_ALPHA_P),
        ("xielu.alpha_n", FFN_XIELU_ALPHA_N),
        ("xielu.beta", FFN_XIELU_BETA),
        ("xielu.eps", FFN_XIELU_EPSILON),
    ] {
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
    if let Some(mla) = &hp.mla {
        let absorbed = arch.gguf_form.absorbed_kv;
        if let Some(rank) = mla.q_rank {
            keys.count("attention.q_lora_rank", rank);
        }
        keys.count("attention.kv_lora_rank", mla.kv_rank);
        if absorbed {
            keys.count("attention.head_count_kv", 1);
            keys.count("attention.key_length", mla.kv_rank + mla.rope_dim);
            keys.count("attention.value_length", mla.kv_rank);
            keys.count("attention.key_length_mla", mla.nope_dim + mla.rope_dim);
            keys.count("attention.value_length_mla", mla.value_dim);
        } else {
            keys.per_layer(
                "attention.head_count_kv",
                layers.iter().map(|l| l.n_kv_heads),
            );
            keys.count("attention.key_length", mla.nope_dim + mla.rope_dim);
            keys.count("attention.value_length", mla.value_dim);
        }
    } else {
        keys.per_layer(
            "attention.head_count_kv",
            layers.iter().map(|l| l.n_kv_heads),
        );
        let of = |windowed: bool| layers.iter().find(|l| l.window.is_some() == windowed);
        let full = of(false).or(layers.first());
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
    if let Some(Window::Sliding(size) | Window::Chunk(size)) = window {
        keys.count("attention.sliding_window", size);
        let all = layers.iter().all(|layer| layer.window.is_some());
        if !all {
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

fn rope(keys: &mut Keys<'_>, hp: &Hparams, config: &Value) {
    if hp.layers.iter().all(|layer| layer.rope.is_none()) {
        return;
    }
    let Some(rope) = hp.ropes.first() else {
        return;
    };
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
        // Llama 3's ramp is a tensor of factors in GGUF.
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

fn experts(keys: &mut Keys<'_>, hp: &Hparams, config: &Value, tensors: &[Tensor<'_>]) {
    let Some(moe) = &hp.moe else {
        return;
    };
    let number = |names: &[&str]| names.iter().find_map(|name| config.get(name)?.as_u64());
    keys.count("expert_count", moe.n_experts);
    keys.count("expert_used_count", moe.n_used);
    keys.count("expert_feed_forward_length", moe.n_ff);
    let shared = number(&[
        "n_shared_experts",
        "num_shared_experts",
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
    if let Some(dense) = dense {
        keys.count("leading_dense_block_count", dense as usize);
    }
    if let Some(step) = number(&["interleave_moe_layer_step", "moe_layer_interval"]) {
        keys.count("interleave_moe_layer_step", step as usize);
    }
    if moe.scale != 1.0 {
        keys.float("expert_weights_scale", moe.scale);
    }
    if config.get("norm_topk_prob").is_some() || config.get("route_norm").is_some() {
        keys.flag("expert_weights_norm", moe.renormalize);
    }
    let gating = match moe.gating {
        Gating::Softmax => Some(1),
        Gating::Sigmoid => Some(2),
        Gating::SoftmaxChosen => Some(3),
        _ => None,
    };
    if let Some(gating) = gating {
        keys.count("expert_gating_func", gating);
    }
    if let (Some(groups), Some(used)) = (number(&["n_group"]), number(&["topk_group"])) {
        keys.count("expert_group_count", groups as usize);
        keys.count("expert_group_used_count", used as usize);
    }
}

/// Factors that a family's files state.
fn scales(keys: &mut Keys<'_>, arch: &Arch, hp: &Hparams, config: &Value) {
    let number = |name: &str| config.get(name).and_then(Value::as_f64).map(|x| x as f32);
    match arch.scales {
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
