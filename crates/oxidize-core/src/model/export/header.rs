//! [`HfLayout`]: names and shapes of a GGUF model's tensors in a Hugging Face directory, from the
//! table of names. [`super::gguf_to_hf`] fills in the data.

use super::is_stack;
use super::mapping::matrix;
use crate::arch::names::*;
use crate::arch::{Arch, Hparams, RecurrentKind, TensorRole};
use crate::file::{DimOrder, Format, ModelFile, TensorInfo};
use oxidize_kernels::quant::TensorType;
use std::collections::{BTreeMap, HashSet};

/// GGUF model that is converted to a Hugging Face directory.
pub(super) struct HfLayout<'a, 'h> {
    pub(super) file: &'a ModelFile,
    pub(super) arch: &'static Arch,
    pub(super) gguf_arch: &'static Arch,
    pub(super) hparams: &'h Hparams,
    /// True if tensor names lack the model's prefix.
    pub(super) headless: bool,
}

impl<'a> HfLayout<'a, '_> {
    /// Table of the directory's tensors.
    pub(super) fn header(&self, wanted: impl Fn(&TensorRole) -> bool) -> Vec<TensorInfo> {
        let mut tensors: BTreeMap<(usize, usize, usize), TensorInfo> = BTreeMap::new();
        let mut names = HashSet::new();
        for (place, role) in ROLES.iter().enumerate().filter(|(_, role)| wanted(role)) {
            let layered = role.is_per_layer(self.arch);
            let n_layers = if layered {
                self.hparams.layers.len()
            } else {
                1
            };
            for layer in 0..n_layers {
                for (i, (name, dims)) in self.names_of(role, layer).into_iter().enumerate() {
                    if names.insert(name.clone()) {
                        let at = if layered { layer + 1 } else { 0 };
                        tensors.insert((at, place, i), header_only(name, &dims));
                    }
                }
            }
        }
        tensors.into_values().collect()
    }

    /// Values that are tensors in a directory and metadata in GGUF: the parameters of xIELU per
    /// layer.
    pub(super) fn constants(&self) -> BTreeMap<String, f32> {
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

    /// True if attention and feed-forward layer share a norm.
    fn shares_norm(&self, layer: usize) -> bool {
        let norm = |role| self.find(role, layer).map(|info| info.name.as_str());
        norm(&ATTN_NORM).is_some() && norm(&ATTN_NORM) == norm(&FFN_NORM)
    }

    /// Tensors of a role, with their shapes.
    fn names_of(&self, role: &TensorRole, layer: usize) -> Vec<(String, Vec<usize>)> {
        let patterns = role.names(self.arch, Format::Safetensors, layer);
        let stacked = !self.joined(&FFN_GATE_UP_EXPERTS).is_empty()
            || self.find(&FFN_GATE_UP_EXPERTS, layer).is_some();
        let pattern = match *role {
            // If there are several names, the first is for layers with a gate.
            FFN_UP if self.find(&FFN_GATE, layer).is_none() => patterns.last(),
            // Experts are either stacked or separate.
            FFN_DOWN_EXPERTS if stacked => patterns.iter().find(|name| !name.contains("{e}")),
            // Name of a norm that attention and feed-forward layer share.
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

    /// Tensor of a role in the file.
    pub(super) fn find(&self, role: &TensorRole, layer: usize) -> Option<&'a TensorInfo> {
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

    /// Roles of the file's tensors that are fused in a directory.
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

    /// True if a role's tensor is part of another one in the directory, or belongs to another role.
    fn is_fused_or_renamed(&self, role: &TensorRole, layer: usize) -> bool {
        const FUSED_ROLES: [TensorRole; 7] = [
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
        let lacks = |gate: &TensorRole| self.find(gate, layer).is_none();
        if FUSED_ROLES
            .iter()
            .any(|fused| self.joined(fused).contains(role))
        {
            return true;
        }
        match *role {
            // The same GGUF name is used for up-projections and for fused gate and up-projections.
            FFN_UP => lacks(&FFN_GATE) && rows(&FFN_UP) == 2 * n_ff,
            FFN_GATE_UP => !(lacks(&FFN_GATE) && rows(&FFN_UP) == 2 * n_ff),
            FFN_UP_SHARED => lacks(&FFN_GATE_SHARED) && self.has_shared_halves(layer),
            FFN_GATE_UP_SHARED => !(lacks(&FFN_GATE_SHARED) && self.has_shared_halves(layer)),
            DELTA_QKV | DELTA_GATE => !recurrent,
            ATTN_QKV | ATTN_GATE => recurrent,
            SSM_IN => self.is_delta_net(),
            DELTA_QKVZ => true,
            SSM_DT_BIAS => self.find(&SSM_DT, layer).is_some(),
            // In the first layer, these tensors exist only for the sake of readers.
            TIME_MIX_V0 | TIME_MIX_V1 | TIME_MIX_V2 => layer == 0,
            _ => false,
        }
    }

    /// True if the shared experts' up-projection also contains the gate.
    fn has_shared_halves(&self, layer: usize) -> bool {
        let (up, down) = (
            self.find(&FFN_UP_SHARED, layer),
            self.find(&FFN_DOWN_SHARED, layer),
        );
        up.zip(down)
            .is_some_and(|(up, down)| matrix(up).0 == 2 * matrix(down).1)
    }

    /// Shape of a role's tensor in a directory.
    fn dims(&self, role: &TensorRole, layer: usize) -> Option<Vec<usize>> {
        let joined = self.joined(role);
        if !joined.is_empty() {
            return self.joined_dims(role, joined, layer);
        }
        if self.is_fused_or_renamed(role, layer) {
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
                // Rows of unused positions are zero.
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
        // These tensors are biases themselves.
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
}

/// Parameters of xIELU: metadata keys in GGUF, tensors in a directory.
const XIELU_KEYS: [(&str, TensorRole); 4] = [
    ("xielu.alpha_p", FFN_XIELU_ALPHA_P),
    ("xielu.alpha_n", FFN_XIELU_ALPHA_N),
    ("xielu.beta", FFN_XIELU_BETA),
    ("xielu.eps", FFN_XIELU_EPSILON),
];

/// RWKV: vectors that a directory stores with dimensions for batch and time.
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

/// Tensor info without data.
pub(super) fn header_only(name: String, dims: &[usize]) -> TensorInfo {
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

/// Name of a tensor in a model without a head.
fn without_head(name: &str) -> &str {
    let heads = ["model.", "bert.", "roberta.", "transformer."];
    let rest = heads.iter().find_map(|head| name.strip_prefix(head));
    rest.unwrap_or(name)
}

/// True if the experts of this name are concatenated by rows into one matrix (DBRX).
fn is_flat(pattern: &str) -> bool {
    pattern.contains(".experts.mlp.")
}

/// True if the Hugging Face name of a role has no suffix: parameters outside of linear layers.
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
    // In RWKV, `time_maa_x`, `x_k` and `w0` are parameters, but `ln_x` is a norm.
    let last = pattern.rsplit('.').next().unwrap_or_default();
    let rwkv =
        last.starts_with("time_") || (last.len() <= 3 && last.contains(['_', '0', '1', '2']));
    stacked || vectors.contains(role) || (role.gguf.contains("_mix_") && rwkv)
}
