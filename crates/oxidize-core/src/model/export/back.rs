//! The way back: the tensors of a GGUF model as a Hugging Face directory has them.
//!
//! Nothing here knows how tensors change on the way. A directory is made up that has no bytes, only a
//! `config.json` and a table of tensors; what GGUF would make of it ([`super::links`]) has to be
//! the file at hand, tensor by tensor, and is then walked backwards.

use super::link::{Link, bytes_of, matrix};
use super::{ExportedData, ExportedTensor, is_stack, links};
use crate::arch::config::{ConfigFacts, class_of, config, difference, is_bare};
use crate::arch::names::*;
use crate::arch::{ARCHS, Arch, Hparams, RecurrentKind, TensorRole};
use crate::error::{Error, Result};
use crate::file::{Contents, DimOrder, Format, ModelFile, OpenOptions, TensorBytes, TensorInfo};
use crate::graph::rope::{RopeFactors, RopeScaling};
use crate::model::ModelError;
use oxidize_kernels::quant::TensorType;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};

/// A GGUF model in Hugging Face's terms.
pub struct HuggingFaceModel<'a> {
    /// Its `config.json`.
    pub config: Value,
    /// Its tensors, in the order of its layers.
    pub tensors: Vec<ExportedTensor<'a>>,
}

/// `file`, a GGUF model, as a directory of safetensors has it. An error where its family, or what this
/// model makes of it, cannot be said there.
pub fn huggingface_model<'a>(
    file: &'a ModelFile,
    facts: &ConfigFacts,
) -> Result<HuggingFaceModel<'a>> {
    let gguf_arch = Arch::detect(file)?;
    let hparams = with_factors(file, Hparams::read(file, gguf_arch)?)?;
    let unfit = |problem: String| {
        Error::from(ModelError::NotInHuggingFace {
            file: file.path().to_path_buf(),
            name: gguf_arch.name.to_owned(),
            problem,
        })
    };
    let mut candidates: Vec<&'static Arch> = ARCHS
        .iter()
        .filter(|arch| arch.name == gguf_arch.name && !arch.hf_classes.is_empty())
        .copied()
        .collect();
    // Where there are experts, a family that has names of its own for them is meant.
    let names_experts = |arch: &&Arch| arch.hf_names.iter().any(|(role, _)| *role == FFN_ROUTER);
    // RoBERTa is a BERT with another kind of vocabulary. And who has fewer names for things says more.
    let wordpiece = file.metadata().str("tokenizer.ggml.model") == Some("bert");
    let says_less = |arch: &Arch| arch.hf_keys.iter().all(|(_, own)| !own.is_empty());
    candidates.sort_by_key(|arch| {
        (
            names_experts(arch) != hparams.moe.is_some(),
            (arch.position_offset == 0) != wordpiece,
            says_less(arch),
        )
    });
    let mut problem = None;
    for arch in candidates {
        match attempt(file, arch, gguf_arch, &hparams, facts) {
            Ok(model) => return Ok(model),
            // What speaks against the likeliest is the reason.
            Err(why) => drop(problem.get_or_insert(why)),
        }
    }
    let unknown = || "no class of models there is known to be it".to_owned();
    Err(unfit(problem.unwrap_or_else(unknown)))
}

/// The same numbers with the factors of the rotary embedding, which GGUF keeps as tensors.
fn with_factors(file: &ModelFile, mut hparams: Hparams) -> Result<Hparams> {
    let n_ctx = hparams.rope_original_context;
    let Some(rope) = hparams.ropes.first_mut() else {
        return Ok(hparams);
    };
    let vector = |role: &TensorRole| -> Result<Option<Vec<f32>>> {
        let info = file.tensor(&format!("{}.weight", role.gguf));
        info.map(|info| floats(file, info)).transpose()
    };
    if let (Some(short), Some(long)) = (vector(&ROPE_FACTORS_SHORT)?, vector(&ROPE_FACTORS_LONG)?) {
        rope.factors = RopeFactors::ByContext {
            short,
            long,
            original_context: n_ctx,
        };
    } else if let Some(mut factors) = vector(&ROPE_FREQS)? {
        // GGUF has no infinity here, but numbers that are as good.
        for factor in factors.iter_mut().filter(|factor| **factor > 1e28) {
            *factor = f32::INFINITY;
        }
        // Llama 3's ramp, if it is one: its factor is the largest, the rest is the same in all files
        // but for the context.
        let factor = factors.iter().copied().fold(1.0, f32::max);
        let ramp = |original_context: f32| RopeScaling::Llama3 {
            factor,
            low: 1.0,
            high: 4.0,
            original_context,
        };
        let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4 * b.abs();
        let contexts = (4..24).map(|power| f32::from(2u8).powi(power));
        let found = contexts.map(ramp).find(|scaling| {
            let mut turned = rope.clone();
            turned.scaling = scaling.clone();
            let divisors = turned.divisors();
            divisors.len() == factors.len() && divisors.iter().zip(&factors).all(close)
        });
        match found {
            Some(scaling) => rope.scaling = scaling,
            None => rope.factors = RopeFactors::Fixed(factors),
        }
    }
    Ok(hparams)
}

/// The model as one of the family `arch`, or what speaks against it.
fn attempt<'a>(
    file: &'a ModelFile,
    arch: &'static Arch,
    gguf_arch: &'static Arch,
    hparams: &Hparams,
    facts: &ConfigFacts,
) -> Result<HuggingFaceModel<'a>, String> {
    let config = config(arch, hparams, facts);
    let class = class_of(arch, facts);
    let back = Back {
        file,
        arch,
        gguf_arch,
        hparams,
        headless: is_bare(class),
    };
    let mut tensors = back.header(|_| true);
    if let Some(encoder) = arch.encoder {
        let own = hparams.of_encoder();
        let stack = Back {
            file,
            arch: encoder,
            gguf_arch: encoder,
            hparams: &own,
            headless: false,
        };
        let others = stack.header(super::belongs_to_encoder);
        tensors.splice(..0, others);
    }
    let constants = back.constants();
    let is_vector = |name: &str| name.ends_with("alpha_p") || name.ends_with("alpha_n");
    for name in constants.keys() {
        let dims: &[usize] = if is_vector(name) { &[1] } else { &[] };
        tensors.push(made_up(name.clone(), dims));
    }
    let contents = Contents {
        format: Format::Safetensors,
        config: Some(config.clone()),
        tensors,
        ..Contents::default()
    };
    let directory = ModelFile::new(contents, &OpenOptions::default()).map_err(|e| e.to_string())?;
    let detected = Arch::detect(&directory).map_err(|e| e.to_string())?;
    if !std::ptr::eq(detected, arch) {
        return Err(format!("{class} would be taken for {}", detected.name));
    }
    let mut read = Hparams::read(&directory, arch).map_err(|e| e.to_string())?;
    for (layer, (own, other)) in read.layers.iter_mut().zip(&hparams.layers).enumerate() {
        // A width beside that of experts is nobody's.
        if back.find(&FFN_ROUTER, layer).is_some() {
            own.n_ff = other.n_ff;
        }
    }
    if let Some(difference) = difference(&read, hparams) {
        return Err(format!(
            "its configuration reads back otherwise: {difference}"
        ));
    }
    let links = links(&directory, arch, &read);
    back.check(&links)?;
    let mut of_tensor: HashMap<&str, Vec<(Link<'static>, usize, usize)>> = HashMap::new();
    for link in &links {
        for (i, part) in link.parts.iter().enumerate() {
            let own = Link {
                name: link.name.clone(),
                dims: link.dims.clone(),
                parts: Vec::new(),
                cols: link.cols,
                form: link.form.clone(),
            };
            let all = of_tensor.entry(&part.name).or_default();
            // What is written twice is taken from where it was written first.
            let whole = |link: &Link<'_>| link.form.rows.is_none();
            if all.is_empty() || !whole(&own) {
                all.push((own, i, link.parts.len()));
            }
        }
    }
    let mut out = Vec::new();
    for info in directory.tensors() {
        if let Some(&value) = constants.get(&info.name) {
            out.push(back.constant(info, value));
            continue;
        }
        let sources = of_tensor.remove(info.name.as_str());
        let sources = sources.ok_or_else(|| format!("nothing becomes {}", info.name))?;
        out.push(back.tensor(info, sources)?);
    }
    Ok(HuggingFaceModel {
        config,
        tensors: out,
    })
}

struct Back<'a, 'h> {
    file: &'a ModelFile,
    arch: &'static Arch,
    gguf_arch: &'static Arch,
    hparams: &'h Hparams,
    /// Whether names of tensors lack the model's own, with which they otherwise begin.
    headless: bool,
}

impl<'a> Back<'a, '_> {
    /// The table of tensors that a directory of this model would have.
    fn header(&self, wanted: impl Fn(&TensorRole) -> bool) -> Vec<TensorInfo> {
        let mut tensors: BTreeMap<(usize, usize, usize), TensorInfo> = BTreeMap::new();
        let mut names = HashSet::new();
        for (place, role) in ROLES.iter().enumerate().filter(|(_, role)| wanted(role)) {
            let layered = role.gguf.contains("{}") || role.hf.contains("{}");
            let n_layers = if layered {
                self.hparams.layers.len()
            } else {
                1
            };
            for layer in 0..n_layers {
                for (i, (name, dims)) in self.names_of(role, layer).into_iter().enumerate() {
                    if names.insert(name.clone()) {
                        let at = if layered { layer + 1 } else { 0 };
                        tensors.insert((at, place, i), made_up(name, &dims));
                    }
                }
            }
        }
        tensors.into_values().collect()
    }

    /// Numbers that are tensors in a directory and keys in GGUF: xIELU's, layer by layer.
    fn constants(&self) -> BTreeMap<String, f32> {
        let mut constants = BTreeMap::new();
        for (key, role) in XIELU_KEYS {
            let values = self.file.metadata().get(key);
            let values = values.and_then(|value| match value.as_array() {
                Some(list) => list.iter_f32().map(Iterator::collect),
                None => value.as_f32().map(|x| vec![x; self.hparams.layers.len()]),
            });
            let values: Vec<f32> = values.unwrap_or_default();
            for (layer, value) in values.into_iter().enumerate() {
                let names = role.names(self.arch, Format::Safetensors, layer);
                constants.extend(names.into_iter().next().map(|name| (name, value)));
            }
        }
        constants
    }

    fn constant(&self, info: &TensorInfo, value: f32) -> ExportedTensor<'a> {
        let file = self.file;
        let shape = info.dims().iter().map(|&dim| dim as u64).collect();
        ExportedTensor {
            name: info.name.clone(),
            ty: TensorType::F32,
            shape,
            data: ExportedData::Made(Box::new(move || bytes_of(file, &[value]))),
        }
    }

    /// Whether one norm of the file serves both halves of a layer.
    fn shares_norm(&self, layer: usize) -> bool {
        let norm = |role| self.find(role, layer).map(|info| info.name.as_str());
        norm(&ATTN_NORM).is_some() && norm(&ATTN_NORM) == norm(&FFN_NORM)
    }

    /// The tensors of a role and their dimensions.
    fn names_of(&self, role: &TensorRole, layer: usize) -> Vec<(String, Vec<usize>)> {
        let patterns = role.names(self.arch, Format::Safetensors, layer);
        let stacked = !self.joined(&FFN_GATE_UP_EXPERTS).is_empty()
            || self.find(&FFN_GATE_UP_EXPERTS, layer).is_some();
        let pattern = match *role {
            // Of several names, layers with a gate have the first.
            FFN_UP if self.find(&FFN_GATE, layer).is_none() => patterns.last(),
            // Experts are all together, or all apart.
            FFN_DOWN_EXPERTS if stacked => patterns.iter().find(|name| !name.contains("{e}")),
            // A norm that serves both halves has a name that stands for either.
            ATTN_NORM if self.shares_norm(layer) => {
                let others = FFN_NORM.names(self.arch, Format::Safetensors, layer);
                let both = patterns.iter().find(|name| others.contains(name));
                both.or(patterns.first())
            }
            FFN_NORM if self.shares_norm(layer) => None,
            _ => patterns.first(),
        };
        let (Some(pattern), Some(mut dims)) = (pattern, self.dims(role, layer)) else {
            return Vec::new();
        };
        let pattern = match self.headless {
            true => without_head(pattern),
            false => pattern.as_str(),
        };
        if let (true, [n, rows, cols]) = (is_flat(pattern), dims.as_slice()) {
            dims = vec![n * rows, *cols];
        }
        let mut list = Vec::new();
        if pattern.contains("{e}") {
            let Some((&n, each)) = dims.split_first() else {
                return Vec::new();
            };
            let numbered = |i: usize| pattern.replace("{e}", &i.to_string());
            list.extend((0..n).map(|i| (format!("{}.weight", numbered(i)), each.to_vec())));
            return list;
        }
        let bare = is_bare_name(role, pattern);
        let ending = if bare { "" } else { ".weight" };
        list.push((format!("{pattern}{ending}"), dims));
        if let Some(dims) = self.bias_dims(role, layer) {
            let ending = if bare { "_bias" } else { ".bias" };
            list.push((format!("{pattern}{ending}"), dims));
        }
        list
    }

    /// A role's tensor in the file.
    fn find(&self, role: &TensorRole, layer: usize) -> Option<&'a TensorInfo> {
        let names = role.names(self.gguf_arch, Format::Gguf { version: 3 }, layer);
        let endings = [role.gguf_ending(), ""];
        names.iter().find_map(|name| {
            let mut named = endings.iter().map(|ending| format!("{name}{ending}"));
            named.find_map(|name| self.file.tensor(&name))
        })
    }

    fn find_bias(&self, role: &TensorRole, layer: usize) -> Option<&'a TensorInfo> {
        let names = role.names(self.gguf_arch, Format::Gguf { version: 3 }, layer);
        let biased = names.iter().map(|name| format!("{name}.bias"));
        biased.into_iter().find_map(|name| self.file.tensor(&name))
    }

    /// Which of the file's tensors a directory has in one, where it does.
    fn joined(&self, role: &TensorRole) -> &'static [TensorRole] {
        let form = &self.arch.gguf_form;
        let own = |role: &TensorRole| {
            let named = self.arch.hf_names.iter().any(|(r, _)| r == role);
            named || self.arch.hf_transposed.contains(role)
        };
        match *role {
            ATTN_QKV if form.split_qkv => &[ATTN_Q, ATTN_K, ATTN_V],
            ATTN_KV if own(&ATTN_KV) => &[ATTN_K, ATTN_V],
            ATTN_KV_B if form.absorbed_kv => &[ATTN_K_B, ATTN_V_B],
            FFN_GATE_UP if form.split_gate_up => &[FFN_GATE, FFN_UP],
            FFN_GATE_UP_SHARED if form.split_gate_up => &[FFN_GATE_SHARED, FFN_UP_SHARED],
            FFN_GATE_UP_EXPERTS if !form.fused_experts && own(&FFN_GATE_UP_EXPERTS) => {
                &[FFN_GATE_EXPERTS, FFN_UP_EXPERTS]
            }
            DELTA_QKVZ if self.is_delta_net() => &[DELTA_QKV, DELTA_GATE],
            _ => &[],
        }
    }

    fn is_delta_net(&self) -> bool {
        let kind = self.hparams.recurrent.as_ref().map(|params| params.kind);
        kind == Some(RecurrentKind::DeltaNet) && self.find(&DELTA_BETA_ALPHA, 0).is_some()
    }

    /// Whether a role's tensor is part of another in a directory, or belongs to another role here.
    fn is_elsewhere(&self, role: &TensorRole, layer: usize) -> bool {
        const WHOLES: [TensorRole; 7] = [
            ATTN_QKV,
            ATTN_KV,
            ATTN_KV_B,
            FFN_GATE_UP,
            FFN_GATE_UP_SHARED,
            FFN_GATE_UP_EXPERTS,
            DELTA_QKVZ,
        ];
        let recurrent = self.hparams.layers.get(layer).is_some_and(|l| l.recurrent);
        let n_ff = self.hparams.layers.get(layer).map_or(0, |layer| layer.n_ff);
        let rows = |role: &TensorRole| self.find(role, layer).map_or(0, |info| matrix(info).0);
        let alone = |gate: &TensorRole| self.find(gate, layer).is_none();
        if WHOLES.iter().any(|whole| self.joined(whole).contains(role)) {
            return true;
        }
        match *role {
            // One name for the second half and for both.
            FFN_UP => alone(&FFN_GATE) && rows(&FFN_UP) == 2 * n_ff,
            FFN_GATE_UP => !(alone(&FFN_GATE) && rows(&FFN_UP) == 2 * n_ff),
            FFN_UP_SHARED => alone(&FFN_GATE_SHARED) && self.has_shared_halves(layer),
            FFN_GATE_UP_SHARED => !(alone(&FFN_GATE_SHARED) && self.has_shared_halves(layer)),
            DELTA_QKV | DELTA_GATE => !recurrent,
            ATTN_QKV | ATTN_GATE => recurrent,
            SSM_IN => self.is_delta_net(),
            DELTA_QKVZ => true,
            SSM_DT_BIAS => self.find(&SSM_DT, layer).is_some(),
            // What readers want to see in the first layer is there only for them.
            TIME_MIX_V0 | TIME_MIX_V1 | TIME_MIX_V2 => layer == 0,
            _ => false,
        }
    }

    /// Whether the shared experts' way in is twice as wide as their way out.
    fn has_shared_halves(&self, layer: usize) -> bool {
        let (up, down) = (
            self.find(&FFN_UP_SHARED, layer),
            self.find(&FFN_DOWN_SHARED, layer),
        );
        up.zip(down)
            .is_some_and(|(up, down)| matrix(up).0 == 2 * matrix(down).1)
    }

    /// The dimensions of a role's tensor in a directory.
    fn dims(&self, role: &TensorRole, layer: usize) -> Option<Vec<usize>> {
        let joined = self.joined(role);
        if !joined.is_empty() {
            return self.joined_dims(role, joined, layer);
        }
        if self.is_elsewhere(role, layer) {
            return None;
        }
        let recurrent = self.hparams.recurrent.as_ref();
        let (shifts, vectors) = match recurrent.map(|params| params.kind) {
            Some(RecurrentKind::Rwkv4) if *role != TIME_MIX_DECAY => (&[][..], RWKV_VECTORS),
            Some(RecurrentKind::Rwkv6) => (RWKV6_SHIFTS, RWKV_VECTORS),
            Some(RecurrentKind::Rwkv7) => (RWKV7_SHIFTS, RWKV_VECTORS),
            _ => (&[][..], &[][..]),
        };
        if shifts.contains(role) {
            self.find(&TIME_MIX_LERP_FUSED, layer)?;
            return Some(vec![1, 1, self.hparams.n_embd]);
        }
        let info = self.find(role, layer)?;
        let mut dims = info.dims();
        let all: usize = dims.iter().product();
        let n = dims.len();
        match *role {
            SSM_CONV | SHORTCONV_CONV | KIMI_Q_CONV | KIMI_K_CONV | KIMI_V_CONV => {
                let kernel = dims.last().copied().unwrap_or(1);
                return Some(vec![all / kernel.max(1), 1, kernel]);
            }
            role if vectors.contains(&role) => return Some(vec![1, 1, all]),
            TIME_MIX_R_K => {
                let head = recurrent.map_or(1, |params| params.state_dim);
                return Some(vec![all / head.max(1), head]);
            }
            POSITION_EMBEDDING => {
                // Rows for positions that do not exist are empty.
                let skipped = self.arch.position_offset;
                let skipped = skipped.saturating_sub(self.gguf_arch.position_offset);
                if let Some(rows) = dims.first_mut() {
                    *rows += skipped;
                }
            }
            SSM_D | SSM_NORM => return Some(vec![all]),
            SSM_A if dims.last() == Some(&1) && n == 2 => return Some(vec![all]),
            _ if self.arch.hf_transposed.contains(role) && n >= 2 => dims.swap(n - 2, n - 1),
            _ => {}
        }
        Some(dims)
    }

    fn joined_dims(
        &self,
        role: &TensorRole,
        parts: &[TensorRole],
        layer: usize,
    ) -> Option<Vec<usize>> {
        let infos = parts.iter().map(|part| self.find(part, layer));
        let infos: Option<Vec<&TensorInfo>> = infos.collect();
        let infos = infos?;
        let first = infos.first()?.dims();
        if *role == ATTN_KV_B {
            let mla = self.hparams.mla.as_ref()?;
            let heads = self.hparams.layers.get(layer)?.n_heads;
            return Some(vec![heads * (mla.nope_dim + mla.value_dim), mla.kv_rank]);
        }
        let row_axis = first.len().checked_sub(2)?;
        let rows: usize = infos
            .iter()
            .filter_map(|info| info.dims().get(row_axis).copied())
            .sum();
        let mut dims = first;
        *dims.get_mut(row_axis)? = rows;
        if self.arch.hf_transposed.contains(role) {
            dims.swap(row_axis, row_axis + 1);
        }
        Some(dims)
    }

    fn bias_dims(&self, role: &TensorRole, layer: usize) -> Option<Vec<usize>> {
        // These are biases themselves.
        if [SSM_DT_BIAS, FFN_SELECTION_BIAS].contains(role) {
            return None;
        }
        let joined = self.joined(role);
        if joined.is_empty() {
            return Some(self.find_bias(role, layer)?.dims());
        }
        let biases = joined.iter().map(|part| self.find_bias(part, layer));
        let biases: Option<Vec<&TensorInfo>> = biases.collect();
        let biases = biases?;
        let mut dims = biases.first()?.dims();
        let last = |info: &&TensorInfo| info.dims().last().copied().unwrap_or(0);
        *dims.last_mut()? = biases.iter().map(last).sum();
        Some(dims)
    }

    /// The file has to be what GGUF makes of the directory, tensor by tensor.
    fn check(&self, links: &[Link<'_>]) -> Result<(), String> {
        let mut left: HashMap<&str, &TensorInfo> = HashMap::new();
        for tensor in self.file.tensors() {
            left.insert(&tensor.name, tensor);
        }
        for role in [ROPE_FREQS, ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG] {
            left.remove(format!("{}.weight", role.gguf).as_str());
        }
        let wide = |dims: &[usize]| dims.iter().filter(|&&n| n != 1).count();
        for link in links {
            let Some(info) = left.remove(link.name.as_str()) else {
                return Err(format!("{} is not in the file", link.name));
            };
            let dims = info.dims();
            let same = wide(&dims) == wide(&link.dims)
                && dims.iter().product::<usize>() == link.dims.iter().product::<usize>();
            if !same {
                let problem = format!("{} is {dims:?}, not {:?}", link.name, link.dims);
                return Err(problem);
            }
        }
        match left.keys().min() {
            Some(name) => Err(format!("{name} has no name there")),
            None => Ok(()),
        }
    }

    /// A tensor of the directory, from the tensors that it would become.
    fn tensor(
        &self,
        info: &TensorInfo,
        sources: Vec<(Link<'static>, usize, usize)>,
    ) -> Result<ExportedTensor<'a>, String> {
        let file = self.file;
        let found = |link: &Link<'_>| {
            let missing = || format!("{} is not in the file", link.name);
            file.tensor(&link.name).ok_or_else(missing)
        };
        if let [(link, part, parts)] = sources.as_slice()
            && link.form == super::link::Form::default()
        {
            let stored = found(link)?;
            let (part, bytes) = (*part as u64, stored.bytes / *parts as u64);
            let data = match *parts {
                1 => ExportedData::Stored(vec![stored]),
                _ => ExportedData::Made(Box::new(move || {
                    file.data_range(stored, part * bytes..(part + 1) * bytes)
                })),
            };
            return Ok(ExportedTensor {
                name: info.name.clone(),
                ty: stored.ty,
                shape: super::gguf_shape(&info.dims()),
                data,
            });
        }
        let dims = info.dims();
        let mut stored = Vec::with_capacity(sources.len());
        for (link, part, parts) in sources {
            stored.push((found(&link)?, link, part, parts));
        }
        let make = move || unmade(file, &dims, &stored);
        Ok(ExportedTensor {
            name: info.name.clone(),
            ty: TensorType::F32,
            shape: super::gguf_shape(&info.dims()),
            data: ExportedData::Made(Box::new(make)),
        })
    }
}

/// xIELU's parameters: keys in GGUF, tensors in a directory.
const XIELU_KEYS: [(&str, TensorRole); 4] = [
    ("xielu.alpha_p", FFN_XIELU_ALPHA_P),
    ("xielu.alpha_n", FFN_XIELU_ALPHA_N),
    ("xielu.beta", FFN_XIELU_BETA),
    ("xielu.eps", FFN_XIELU_EPSILON),
];

/// RWKV: vectors that a directory keeps with room for batch and time.
const RWKV_VECTORS: &[TensorRole] = &[
    TIME_MIX_LERP_X,
    TIME_MIX_LERP_K,
    TIME_MIX_LERP_V,
    TIME_MIX_LERP_R,
    TIME_MIX_DECAY,
    TIME_MIX_W0,
    TIME_MIX_A0,
    TIME_MIX_V0,
    TIME_MIX_K_K,
    TIME_MIX_K_A,
    CHANNEL_MIX_LERP_K,
    CHANNEL_MIX_LERP_R,
];

/// A tensor of `dims`, put together from what it would become, each walked backwards.
fn unmade(
    file: &ModelFile,
    dims: &[usize],
    sources: &[(&TensorInfo, Link<'static>, usize, usize)],
) -> Result<TensorBytes> {
    let outside = || Error::io(file.path())(std::io::ErrorKind::UnexpectedEof.into());
    let all: usize = dims.iter().product();
    let mut whole = vec![0.0; all];
    let mut turned = None;
    for (stored, link, part, parts) in sources {
        let mut piece = floats(file, stored)?;
        let len = piece.len() / parts;
        piece = piece
            .get(part * len..(part + 1) * len)
            .ok_or_else(outside)?
            .to_vec();
        let form = &link.form;
        // Rows of the whole, as its matrices stand before they are transposed.
        let cols = match form.transposed {
            Some(n) => all / n.max(1) / link.cols.max(1),
            None => link.cols,
        };
        turned = form.transposed.map(|n| (n, link.cols));
        let kept = form.columns.as_ref().map_or(cols, Vec::len);
        let last = match form.flipped {
            Some(n) => piece.len() / n.max(1) / kept.max(1),
            None => kept,
        };
        form.change.undo(&mut piece, last);
        if let Some(n) = form.flipped {
            piece = transposed(&piece, n, last);
        }
        let row = |i: usize| {
            form.rows
                .as_ref()
                .map_or(Some(i), |rows| rows.get(i).copied())
        };
        for (i, values) in piece.chunks(kept.max(1)).enumerate() {
            let start = row(i).ok_or_else(outside)? * cols;
            let out = whole.get_mut(start..start + cols).ok_or_else(outside)?;
            match &form.columns {
                None => out.copy_from_slice(values),
                Some(columns) => {
                    for (&column, value) in columns.iter().zip(values) {
                        *out.get_mut(column).ok_or_else(outside)? = *value;
                    }
                }
            }
        }
    }
    if let Some((n, stored_cols)) = turned {
        whole = transposed(&whole, n, all / n.max(1) / stored_cols.max(1));
    }
    bytes_of(file, &whole)
}

/// Each of `n` matrices, with rows of `cols`, transposed.
fn transposed(floats: &[f32], n: usize, cols: usize) -> Vec<f32> {
    let matrix = (floats.len() / n.max(1)).max(1);
    let rows = matrix / cols.max(1);
    let mut out = Vec::with_capacity(floats.len());
    for from in floats.chunks_exact(matrix) {
        for col in 0..cols {
            out.extend((0..rows).map(|row| from[row * cols + col]));
        }
    }
    out
}

fn floats(file: &ModelFile, info: &TensorInfo) -> Result<Vec<f32>> {
    let mut floats = Vec::with_capacity(usize::try_from(info.elements()).unwrap_or(0));
    file.for_each_f32::<Error>(info, |piece| {
        floats.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(floats)
}

/// A line of a table for bytes that are nowhere.
fn made_up(name: String, dims: &[usize]) -> TensorInfo {
    TensorInfo {
        name,
        ty: TensorType::F32,
        shape: dims.iter().map(|&dim| dim as u64).collect(),
        file: 0,
        offset: 0,
        bytes: 4 * dims.iter().product::<usize>() as u64,
        order: DimOrder::FastestLast,
    }
}

/// A tensor's name in a model without a head.
fn without_head(name: &str) -> &str {
    let heads = ["model.", "bert.", "roberta.", "transformer."];
    let rest = heads.iter().find_map(|head| name.strip_prefix(head));
    rest.unwrap_or(name)
}

/// Whether experts of this name lie under each other in one matrix (DBRX).
fn is_flat(pattern: &str) -> bool {
    pattern.contains(".experts.mlp.")
}

/// Whether a directory's name of a role has no ending: parameters that belong to no linear layer.
fn is_bare_name(role: &TensorRole, pattern: &str) -> bool {
    let stacked = is_stack(role) && (pattern.ends_with("_proj") || is_flat(pattern));
    let vectors = [
        SSM_A,
        SSM_D,
        SSM_DT_BIAS,
        ATTN_SINKS,
        FFN_SELECTION_BIAS,
        FFN_ROUTER_SCALE,
        FFN_EXPERT_SCALE,
        LAYER_SCALE,
        ALTUP_CORRECT_SCALE,
    ];
    // RWKV's: `time_maa_x`, `x_k`, `w0`, but `ln_x` is a norm.
    let last = pattern.rsplit('.').next().unwrap_or_default();
    let rwkv =
        last.starts_with("time_") || (last.len() <= 3 && last.contains(['_', '0', '1', '2']));
    stacked || vectors.contains(role) || (role.gguf.contains("_mix_") && rwkv)
}
