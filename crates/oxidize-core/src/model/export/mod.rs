//! Converts the tensors of a Hugging Face model to GGUF: other names, and another order of rows
//! where the formats differ. Data is read on request. A [`mapping`] describes the sources of a tensor.

mod gguf_to_hf;
mod header;
mod mapping;

pub use gguf_to_hf::{HuggingFaceModel, huggingface_model};

use self::mapping::{Change, Form, TensorMapping, bytes_of, is_packed, matrix};
use crate::arch::hparams::RecurrentParams;
use crate::arch::names::*;
use crate::arch::{ARCHS, Arch, Hparams, QkvLayout, RecurrentKind, TensorRole};
use crate::error::Result;
use crate::file::{Format, ModelFile, TensorBytes, TensorInfo};
use crate::graph::rope::{RopeFactors, RopeScaling};
use crate::graph::{AttentionMask, KeySharing, RopeLayout};
use crate::weights::{WeightLoader, is_computed};
use oxidize_kernels::quant::TensorType;
use std::collections::HashSet;

/// Tensor of the output file.
pub struct ExportedTensor<'a> {
    /// Name.
    pub name: String,
    /// Type.
    pub ty: TensorType,
    /// Shape, fastest-varying dimension first.
    pub shape: Vec<u64>,
    /// Elements.
    pub data: ExportedData<'a>,
    /// Source tensors; empty if the tensor is computed from hyper-parameters.
    pub parts: Vec<&'a TensorInfo>,
}

/// Elements of an [`ExportedTensor`].
pub enum ExportedData<'a> {
    /// Unchanged bytes of one or several concatenated source tensors.
    Stored(Vec<&'a TensorInfo>),
    /// Computed on request.
    Made(Box<dyn Fn() -> Result<TensorBytes> + Send + Sync + 'a>),
}

/// Tensors of the GGUF file for the model in `file`.
pub fn gguf_tensors<'a>(
    file: &'a ModelFile,
    arch: &'static Arch,
    hparams: &Hparams,
) -> Vec<ExportedTensor<'a>> {
    let tensor = |mapping: TensorMapping<'a>| ExportedTensor {
        name: mapping.name.clone(),
        ty: mapping.ty(),
        shape: gguf_shape(&mapping.dims),
        parts: mapping.parts.clone(),
        data: match mapping.is_plain() {
            true => ExportedData::Stored(mapping.parts),
            false => ExportedData::Made(Box::new(move || mapping.make(file))),
        },
    };
    let mut tensors: Vec<ExportedTensor<'a>> = mappings(file, arch, hparams)
        .into_iter()
        .map(tensor)
        .collect();
    rope_factors(file, hparams, &mut tensors);
    tensors
}

/// Sources of a tensor of a GGUF file.
pub struct Origin<'a> {
    /// Name.
    pub name: String,
    /// Shape, fastest-varying dimension first.
    pub shape: Vec<u64>,
    /// Source tensors.
    pub parts: Vec<&'a TensorInfo>,
    /// Source columns in the order of the GGUF tensor, if they differ.
    pub columns: Option<Vec<usize>>,
}

/// Sources of all tensors of the GGUF file for the model in `file`.
pub fn gguf_origins<'a>(
    file: &'a ModelFile,
    arch: &'static Arch,
    hparams: &Hparams,
) -> Vec<Origin<'a>> {
    let mappings = mappings(file, arch, hparams).into_iter();
    let origin = |mapping: TensorMapping<'a>| Origin {
        name: mapping.name,
        shape: gguf_shape(&mapping.dims),
        parts: mapping.parts,
        columns: mapping.form.columns,
    };
    mappings.map(origin).collect()
}

/// Tensors of `file` that are not exported although they matter to the model.
pub fn left_out<'a>(file: &'a ModelFile, tensors: &[ExportedTensor<'a>]) -> Vec<&'a TensorInfo> {
    let parts = tensors.iter().flat_map(|tensor| &tensor.parts);
    let used: HashSet<&str> = parts.map(|part| part.name.as_str()).collect();
    // Scales belong to the values of the same weight.
    let is_scale = |name: &str| {
        let stem = name.strip_suffix("_scales");
        stem.is_some_and(|stem| used.contains(format!("{stem}_blocks").as_str()))
    };
    let all = file.tensors().iter();
    all.filter(|tensor| !used.contains(tensor.name.as_str()))
        .filter(|tensor| !is_computed(&tensor.name) && !is_scale(&tensor.name))
        .collect()
}

/// Mappings of all tensors of the GGUF file.
fn mappings<'a>(
    file: &'a ModelFile,
    arch: &'static Arch,
    hparams: &Hparams,
) -> Vec<TensorMapping<'a>> {
    let mut exporter = Exporter::new(file, arch, hparams);
    if let Some(encoder) = arch.encoder {
        let own = hparams.of_encoder();
        let mut other = Exporter::new(file, encoder, &own);
        other.gguf_arch = encoder;
        other.run(own.layers.len(), belongs_to_encoder);
        exporter.mappings = other.mappings;
    }
    exporter.run(hparams.n_layers_in_file, |_| true);
    exporter.mappings
}

/// True if an encoder has its own tensor of the role, in addition to the decoder's.
fn belongs_to_encoder(role: &TensorRole) -> bool {
    ![TOKEN_EMBEDDING, OUTPUT].contains(role) && !role.gguf.starts_with("dec.")
}

/// Collects mappings, role by role.
struct Exporter<'a, 'h> {
    loader: WeightLoader<'a>,
    arch: &'static Arch,
    /// First descriptor with the GGUF name, because readers use its tensor names.
    gguf_arch: &'static Arch,
    hparams: &'h Hparams,
    mappings: Vec<TensorMapping<'a>>,
}

impl<'a, 'h> Exporter<'a, 'h> {
    fn new(file: &'a ModelFile, arch: &'static Arch, hparams: &'h Hparams) -> Exporter<'a, 'h> {
        let gguf_arch = ARCHS.iter().find(|other| other.name == arch.name);
        Exporter {
            loader: WeightLoader::new(file, arch),
            arch,
            gguf_arch: gguf_arch.copied().unwrap_or(arch),
            hparams,
            mappings: Vec::new(),
        }
    }

    fn run(&mut self, n_layers: usize, wanted: impl Fn(&TensorRole) -> bool) {
        for role in ROLES.iter().filter(|role| wanted(role)) {
            let n = match role.is_per_layer(self.arch) {
                true => n_layers,
                false => 1,
            };
            for layer in 0..n {
                self.role(role, layer);
            }
        }
    }

    /// GGUF name of a tensor, without suffix.
    fn name(&self, role: &TensorRole, layer: usize) -> Option<String> {
        let format = Format::Gguf { version: 3 };
        role.names(self.gguf_arch, format, layer).into_iter().next()
    }

    fn role(&mut self, role: &TensorRole, layer: usize) {
        if self.is_part_of_another(role, layer) {
            return;
        }
        let form = &self.arch.gguf_form;
        match *role {
            ATTN_QKV => self.qkv(layer),
            ATTN_KV => self.halves(role, layer, &[ATTN_K, ATTN_V]),
            ATTN_KV_B if form.absorbed_kv => self.absorbed(layer),
            FFN_GATE_UP if form.split_gate_up => self.halves(role, layer, &[FFN_GATE, FFN_UP]),
            FFN_GATE_UP_SHARED if form.split_gate_up => {
                self.halves(role, layer, &[FFN_GATE_SHARED, FFN_UP_SHARED]);
            }
            FFN_GATE_UP_EXPERTS if !form.fused_experts => self.expert_halves(layer),
            DELTA_QKVZ => self.delta_projections(layer),
            TIME_MIX_LERP_FUSED => self.token_shifts(layer),
            OUTPUT if form.folded_multipliers => self.folded_output(),
            _ => {
                // The first layer of RWKV 7 does not mix in values of an earlier one, but readers
                // require the tensors.
                let placeholder = RWKV7_PLACEHOLDERS
                    .iter()
                    .find(|(for_role, _)| for_role == role);
                let stands_in = layer == 0 && self.shifts() == RWKV7_SHIFTS;
                let from = placeholder
                    .filter(|_| stands_in)
                    .map_or(role, |(_, from)| from);
                self.plain(role, from, layer);
            }
        }
    }

    /// True if the tensor is exported as part of another role, or not at all.
    fn is_part_of_another(&self, role: &TensorRole, layer: usize) -> bool {
        let found = |role: &TensorRole| self.loader.weight_of(role, layer);
        let same = |a: &TensorRole, b: &TensorRole| {
            found(a)
                .zip(found(b))
                .is_some_and(|(a, b)| a.name == b.name)
        };
        let has_experts = || found(&FFN_ROUTER).is_some();
        let one_name = || self.name(&ATTN_NORM, layer) == self.name(&FFN_NORM, layer);
        let feeds = self.hparams.layers.get(layer).is_some_and(|l| l.n_ff > 0);
        match *role {
            // A fused gate and up-projection has the GGUF name of the up-projection.
            FFN_GATE_UP if same(role, &FFN_GATE_UP_SHARED) => has_experts(),
            FFN_DOWN if same(role, &FFN_DOWN_SHARED) => has_experts(),
            FFN_GATE_UP_SHARED if same(role, &FFN_GATE_UP) => !has_experts(),
            FFN_DOWN_SHARED if same(role, &FFN_DOWN) => !has_experts(),
            // A norm shared by attention and feed-forward layer is exported once.
            ATTN_NORM => same(role, &FFN_NORM) && (one_name() || feeds),
            FFN_NORM => same(role, &ATTN_NORM) && !one_name() && !feeds,
            // Only embedding models have these layers.
            EMBEDDING_DENSE_2 | EMBEDDING_DENSE_3 => self.hparams.mask != AttentionMask::Full,
            // BERT's pooler is unused without a classifier.
            CLASSIFIER => found(&CLASSIFIER_OUTPUT).is_none(),
            _ => self.shifts().contains(role),
        }
    }

    /// Token shifts that GGUF stores in one tensor.
    fn shifts(&self) -> &'static [TensorRole] {
        match self.recurrent().map(|params| params.kind) {
            Some(RecurrentKind::Rwkv6) => RWKV6_SHIFTS,
            Some(RecurrentKind::Rwkv7) => RWKV7_SHIFTS,
            _ => &[],
        }
    }

    fn recurrent(&self) -> Option<&'h RecurrentParams> {
        self.hparams.recurrent.as_ref()
    }

    /// Exports a tensor with the same meaning in both formats, its bias, or a stack of numbered
    /// tensors. `from` is the role in the source, `role` the one in GGUF.
    fn plain(&mut self, role: &TensorRole, from: &TensorRole, layer: usize) {
        let Some(name) = self.name(role, layer) else {
            return;
        };
        if let Some(parts) = self.loader.numbered_parts(from, layer) {
            let mut dims = parts.first().map(|part| part.dims()).unwrap_or_default();
            dims.insert(0, parts.len());
            let cols = parts.first().map_or(1, |part| matrix(part).1);
            let form = Form::default();
            self.push(role, name, dims, parts, cols, form);
            return;
        }
        let Some(info) = self.loader.weight_of(from, layer) else {
            return;
        };
        let (rows, cols) = matrix(info);
        let n = self.n_matrices(role, info);
        let transposed = self.arch.hf_transposed.contains(role) && !is_packed(info);
        let form = Form {
            transposed: transposed.then_some(n),
            rows: self.rows(role, layer, rows),
            columns: self.columns(role, cols),
            transposed_last: None,
            change: self.change(role, layer),
        };
        let dims = self.dims(role, info, n, &form);
        self.push(role, name.clone(), dims, vec![info], cols, form);
        if let Some(info) = self.loader.bias_of(from, layer) {
            let len = info.dims().iter().product();
            let rows = self.rows(role, layer, len);
            let dims = rows
                .as_ref()
                .map_or_else(|| info.dims(), |rows| vec![rows.len()]);
            self.bias(name, dims, info, rows);
        }
    }

    /// Adds a weight with the GGUF suffix of its role.
    fn push(
        &mut self,
        role: &TensorRole,
        name: String,
        dims: Vec<usize>,
        parts: Vec<&'a TensorInfo>,
        cols: usize,
        form: Form,
    ) {
        let bare = self.gguf_arch.gguf_form.bare.contains(role);
        let ending = if bare { "" } else { role.gguf_ending() };
        self.mappings.push(TensorMapping {
            name: format!("{name}{ending}"),
            dims,
            parts,
            cols,
            form,
        });
    }

    fn bias(
        &mut self,
        name: String,
        dims: Vec<usize>,
        info: &'a TensorInfo,
        rows: Option<Vec<usize>>,
    ) {
        self.mappings.push(TensorMapping {
            name: format!("{name}.bias"),
            dims,
            parts: vec![info],
            cols: 1,
            form: Form {
                rows,
                ..Form::default()
            },
        });
    }

    /// Exports selected rows of a matrix and its bias as a separate matrix.
    fn selected(
        &mut self,
        role: &TensorRole,
        (from, info): (&TensorRole, &'a TensorInfo),
        layer: usize,
        rows: Vec<usize>,
        dims: impl Fn(&[usize]) -> Vec<usize>,
    ) {
        let Some(name) = self.name(role, layer) else {
            return;
        };
        let n = self.n_matrices(from, info);
        let transposed = self.arch.hf_transposed.contains(from) && !is_packed(info);
        let (stored_rows, cols) = matrix(info);
        let inputs = if transposed { stored_rows / n } else { cols };
        let form = Form {
            transposed: transposed.then_some(n),
            rows: Some(rows.clone()),
            change: self.change(role, layer),
            ..Form::default()
        };
        let weight_dims = dims(&[rows.len(), inputs]);
        self.push(role, name.clone(), weight_dims, vec![info], cols, form);
        if let Some(bias) = self.loader.bias_of(from, layer) {
            let dims = dims(&[rows.len()]);
            self.bias(name, dims, bias, Some(rows));
        }
    }

    /// Number of matrices in a stack, which some files concatenate by rows.
    fn n_matrices(&self, role: &TensorRole, info: &TensorInfo) -> usize {
        let dims = info.dims();
        let n_experts = self.hparams.moe.as_ref().map_or(1, |moe| moe.n_experts);
        match dims.len() {
            0..=2 if is_stack(role) && dims.len() == 2 => n_experts.max(1),
            0..=2 => 1,
            _ if is_packed(info) => dims.first().copied().unwrap_or(1),
            n => dims.iter().take(n - 2).product(),
        }
    }

    /// Shape of a tensor in GGUF.
    fn dims(&self, role: &TensorRole, info: &TensorInfo, n: usize, form: &Form) -> Vec<usize> {
        let dims = info.dims();
        let all: usize = dims.iter().product();
        let kind = self.recurrent().map(|params| params.kind);
        match (*role, kind) {
            (SSM_CONV | SHORTCONV_CONV, _) => {
                let (rows, cols) = matrix(info);
                return vec![rows, cols];
            }
            (KIMI_Q_CONV | KIMI_K_CONV | KIMI_V_CONV, _) => {
                let (rows, cols) = matrix(info);
                return vec![1, rows, 1, cols];
            }
            (SSM_A | SSM_D, Some(RecurrentKind::Mamba2)) => return vec![all, 1],
            (SSM_NORM, Some(RecurrentKind::Mamba2)) => {
                let groups = self.recurrent().map_or(1, |params| params.n_groups);
                return vec![groups, all / groups.max(1)];
            }
            (TIME_MIX_R_K, _) => return vec![all],
            // Vectors with dimensions for batch and time.
            (_, Some(_)) if dims.len() == 3 && dims.starts_with(&[1, 1]) => return vec![all],
            _ => {}
        }
        let (mut rows, mut cols) = matrix(info);
        if dims.len() < 2 {
            return match &form.rows {
                Some(rows) => vec![rows.len()],
                None => dims,
            };
        }
        rows /= n;
        if form.transposed.is_some() {
            (rows, cols) = (cols, rows);
        }
        if let Some(selected) = &form.rows {
            rows = selected.len() / n;
        }
        match n {
            1 if !is_stack(role) && dims.len() == 2 => vec![rows, cols],
            n if is_stack(role) || form.transposed.is_some() || is_packed(info) => {
                vec![n, rows, cols]
            }
            _ => dims,
        }
    }

    /// Rows of a tensor in GGUF's order, if it differs.
    fn rows(&self, role: &TensorRole, layer: usize, n_rows: usize) -> Option<Vec<usize>> {
        match *role {
            ATTN_Q | ATTN_K => self
                .rope_order(role, layer)
                .filter(|rows| rows.len() == n_rows),
            POSITION_EMBEDDING => {
                let kept = self.gguf_arch.position_offset;
                let skipped = self.arch.position_offset.saturating_sub(kept);
                (skipped > 0).then(|| (skipped..n_rows).collect())
            }
            DELTA_QKV | SSM_CONV | DELTA_GATE | DELTA_BETA | DELTA_ALPHA | SSM_A | SSM_DT_BIAS => {
                self.value_heads(n_rows)
            }
            _ => None,
        }
    }

    /// Columns of a tensor in GGUF's order, if it differs.
    fn columns(&self, role: &TensorRole, n_columns: usize) -> Option<Vec<usize>> {
        (*role == SSM_OUT)
            .then(|| self.value_heads(n_columns))
            .flatten()
    }

    /// Row order of queries or keys, if RoPE pairs are neighbors in GGUF and halves in the source.
    fn rope_order(&self, role: &TensorRole, layer: usize) -> Option<Vec<usize>> {
        let params = self.hparams.layers.get(layer)?;
        let heads = match *role {
            ATTN_Q => params.n_heads,
            ATTN_K => params.n_kv_heads,
            _ => return None,
        };
        let layouts = self.arch.rope;
        if layouts.gguf == layouts.hf || layouts.hf != RopeLayout::Halves {
            return None;
        }
        let rope = params.rope.and_then(|rope| self.hparams.ropes.get(rope));
        let rotated = rope.map_or(params.key_dim, |rope| rope.dims);
        Some(interleaved(heads, params.key_dim, rotated))
    }

    /// Row order of matrices that end with value heads, if GGUF orders these heads differently:
    /// first one of each key head, then the next.
    fn value_heads(&self, n_rows: usize) -> Option<Vec<usize>> {
        let params = self.recurrent()?;
        let spec = self.arch.recurrent?;
        if spec.kind != RecurrentKind::DeltaNet || spec.gguf_sharing != KeySharing::Interleaved {
            return None;
        }
        let (heads, groups) = (params.n_heads, params.n_groups);
        // Rows of a head, after the rows of keys.
        let keys = 2 * groups * params.state_dim;
        let (before, dim) = match n_rows {
            n if n == heads => (0, 1),
            n if n == params.inner => (0, n / heads),
            n if n == keys + params.inner => (keys, params.inner / heads),
            _ => return None,
        };
        let each = heads / groups;
        let head = |nth: usize, group: usize| before + (group * each + nth) * dim;
        let heads_in_order =
            (0..each).flat_map(|nth| (0..groups).map(move |group| head(nth, group)));
        let values = heads_in_order.flat_map(|start| start..start + dim);
        Some((0..before).chain(values).collect())
    }

    /// Transformation of a tensor's elements.
    fn change(&self, role: &TensorRole, layer: usize) -> Change {
        let offset = self.arch.hf_norm_offset;
        let is_norm = role.gguf.contains("norm") && *role != SSM_NORM;
        if is_norm && offset != 0.0 {
            return Change::Plus(offset);
        }
        if *role == SSM_A {
            return Change::NegExp;
        }
        if let (TIME_MIX_OUTPUT | CHANNEL_MIX_VALUE, Some(every)) =
            (*role, self.hparams.halve_every)
        {
            let halvings = i32::try_from(layer / every).unwrap_or(0);
            return match halvings {
                0 => Change::None,
                n => Change::Times(0.5f32.powi(n)),
            };
        }
        if self.arch.gguf_form.folded_multipliers {
            return self.multiplier(role);
        }
        Change::None
    }

    /// Multiplier that is folded into the weights in GGUF (Falcon-H1).
    fn multiplier(&self, role: &TensorRole) -> Change {
        let factors = &self.hparams.multipliers;
        let factor = match *role {
            TOKEN_EMBEDDING => self.hparams.embedding_scale,
            OUTPUT => self.hparams.logit_scale,
            ATTN_Q | ATTN_V => factors.attention_in,
            ATTN_K => factors.attention_in * factors.key,
            ATTN_OUTPUT => factors.attention_out,
            SSM_OUT => factors.ssm_out,
            FFN_GATE => factors.ffn_gate,
            FFN_DOWN => factors.ffn_down,
            SSM_IN => {
                let Some(params) = self.recurrent() else {
                    return Change::None;
                };
                let rows = params.mamba2_rows().into_iter().zip(factors.ssm);
                let rows = rows.flat_map(|(n, x)| std::iter::repeat_n(factors.ssm_in * x, n));
                return Change::TimesRow(rows.collect());
            }
            _ => return Change::None,
        };
        Change::Times(factor)
    }

    /// Output projection with its multiplier. Shared embeddings are copied, because they do not
    /// have the multiplier.
    fn folded_output(&mut self) {
        let from = match self.loader.weight_of(&OUTPUT, 0) {
            Some(_) => OUTPUT,
            None => TOKEN_EMBEDDING,
        };
        self.plain(&OUTPUT, &from, 0);
    }

    /// Queries, keys and values of a fused matrix, either fused in GGUF's order or separate.
    fn qkv(&mut self, layer: usize) {
        let (Some(info), Some(params)) = (
            self.loader.weight_of(&ATTN_QKV, layer),
            self.hparams.layers.get(layer),
        ) else {
            return;
        };
        let [q, k, v] = [
            params.n_heads * params.key_dim,
            params.n_kv_heads * params.key_dim,
            params.n_kv_heads * params.value_dim,
        ];
        let groups = params.n_kv_heads.max(1);
        let part = |start: usize, len: usize, all: usize| -> Vec<usize> {
            match self.arch.hf_qkv {
                QkvLayout::Concatenated => (start..start + len).collect(),
                QkvLayout::Grouped => {
                    let (start, len, all) = (start / groups, len / groups, all / groups);
                    let of_group = |group| group * all + start..group * all + start + len;
                    (0..groups).flat_map(of_group).collect()
                }
            }
        };
        let all = q + k + v;
        let orders = [part(0, q, all), part(q, k, all), part(q + k, v, all)];
        if self.arch.gguf_form.split_qkv {
            for (role, order) in [ATTN_Q, ATTN_K, ATTN_V].iter().zip(orders) {
                let order = self.rope_rows(role, layer, order);
                self.selected(role, (&ATTN_QKV, info), layer, order, <[usize]>::to_vec);
            }
        } else if self.arch.hf_qkv == QkvLayout::Concatenated {
            self.plain(&ATTN_QKV, &ATTN_QKV, layer);
        } else {
            let order = orders.concat();
            self.selected(
                &ATTN_QKV,
                (&ATTN_QKV, info),
                layer,
                order,
                <[usize]>::to_vec,
            );
        }
    }

    /// Rows of a part of a matrix, in GGUF's order.
    fn rope_rows(&self, role: &TensorRole, layer: usize, order: Vec<usize>) -> Vec<usize> {
        match self.rope_order(role, layer) {
            Some(rope_order) => rope_order
                .iter()
                .filter_map(|&i| order.get(i))
                .copied()
                .collect(),
            None => order,
        }
    }

    /// Splits a matrix into two.
    fn halves(&mut self, role: &TensorRole, layer: usize, halves: &[TensorRole; 2]) {
        let Some(info) = self.loader.weight_of(role, layer) else {
            return;
        };
        let (rows, _) = matrix(info);
        for (half, role_of_half) in halves.iter().enumerate() {
            let order = (half * rows / 2..(half + 1) * rows / 2).collect();
            let order = self.rope_rows(role_of_half, layer, order);
            self.selected(role_of_half, (role, info), layer, order, <[usize]>::to_vec);
        }
    }

    /// Splits the fused gate and up-projections of all experts.
    fn expert_halves(&mut self, layer: usize) {
        let both = &FFN_GATE_UP_EXPERTS;
        let Some(info) = self.loader.weight_of(both, layer) else {
            return;
        };
        let n = self.n_matrices(both, info);
        let (stored_rows, cols) = matrix(info);
        let transposed = self.arch.hf_transposed.contains(both) && !is_packed(info);
        let rows = if transposed { cols } else { stored_rows / n };
        let n_ff = rows / 2;
        let alternate = self.arch.hf_gate_up_alternate;
        for (half, role) in [FFN_GATE_EXPERTS, FFN_UP_EXPERTS].iter().enumerate() {
            let row = |expert: usize, i: usize| {
                let within = if alternate {
                    2 * i + half
                } else {
                    half * n_ff + i
                };
                expert * rows + within
            };
            let order = (0..n).flat_map(|expert| (0..n_ff).map(move |i| row(expert, i)));
            self.selected(role, (both, info), layer, order.collect(), |dims| {
                let mut dims = dims.to_vec();
                dims.splice(..1, [n, n_ff]);
                dims
            });
        }
    }

    /// Projections of a delta net, which the source stores grouped by key head.
    fn delta_projections(&mut self, layer: usize) {
        let (Some(info), Some(params)) =
            (self.loader.weight_of(&DELTA_QKVZ, layer), self.recurrent())
        else {
            return;
        };
        let (groups, key_dim) = (params.n_groups, params.state_dim);
        let values = params.inner / groups.max(1);
        let stride = 2 * key_dim + 2 * values;
        let part = |start: usize, len: usize| {
            (0..groups).flat_map(move |g| g * stride + start..g * stride + start + len)
        };
        let (q, k) = (part(0, key_dim), part(key_dim, key_dim));
        let v = part(2 * key_dim, values);
        let z = part(2 * key_dim + values, values);
        for (role, rows) in [
            (DELTA_QKV, q.chain(k).chain(v).collect()),
            (DELTA_GATE, z.collect()),
        ] {
            self.selected(&role, (&DELTA_QKVZ, info), layer, rows, <[usize]>::to_vec);
        }
    }

    /// Token-shift weights, combined into one tensor.
    fn token_shifts(&mut self, layer: usize) {
        let roles = self.shifts().iter();
        let parts = roles.map(|role| self.loader.weight_of(role, layer));
        let parts: Option<Vec<&TensorInfo>> = parts.collect();
        let (Some(name), Some(parts)) = (
            self.name(&TIME_MIX_LERP_FUSED, layer),
            parts.filter(|parts| !parts.is_empty()),
        ) else {
            return;
        };
        let dims = vec![parts.len(), 1, 1, self.hparams.n_embd];
        self.push(&TIME_MIX_LERP_FUSED, name, dims, parts, 1, Form::default());
    }

    /// MLA: splits the up-projection of compressed keys and values into two stacks of heads, with
    /// keys transposed (absorbed form).
    fn absorbed(&mut self, layer: usize) {
        let (Some(info), Some(mla), Some(params)) = (
            self.loader.weight_of(&ATTN_KV_B, layer),
            &self.hparams.mla,
            self.hparams.layers.get(layer),
        ) else {
            return;
        };
        let (n_heads, rank) = (params.n_heads, mla.kv_rank);
        let (key, value) = (mla.nope_dim, mla.value_dim);
        let head = key + value;
        let rows = |start: usize, len: usize| {
            let of_head = move |h: usize| h * head + start..h * head + start + len;
            Some((0..n_heads).flat_map(of_head).collect())
        };
        for (role, rows, transposed_last, dims) in [
            (ATTN_K_B, rows(0, key), Some(n_heads), [n_heads, rank, key]),
            (ATTN_V_B, rows(key, value), None, [n_heads, value, rank]),
        ] {
            let Some(name) = self.name(&role, layer) else {
                continue;
            };
            let form = Form {
                rows,
                transposed_last,
                ..Form::default()
            };
            self.push(&role, name, dims.to_vec(), vec![info], rank, form);
        }
    }
}

/// RoPE frequency factors, which GGUF stores as tensors.
fn rope_factors<'a>(file: &'a ModelFile, hparams: &Hparams, out: &mut Vec<ExportedTensor<'a>>) {
    let Some(rope) = hparams.ropes.first() else {
        return;
    };
    let mut vector = |name: &str, floats: Vec<f32>| {
        out.push(ExportedTensor {
            name: format!("{name}.weight"),
            ty: TensorType::F32,
            shape: vec![floats.len() as u64],
            data: ExportedData::Made(Box::new(move || bytes_of(file, &floats))),
            parts: Vec::new(),
        });
    };
    match &rope.factors {
        RopeFactors::ByContext { short, long, .. } => {
            vector(ROPE_FACTORS_LONG.gguf, long.clone());
            vector(ROPE_FACTORS_SHORT.gguf, short.clone());
        }
        RopeFactors::Fixed(factors) => {
            // GGUF represents infinity by a large number.
            let finite = |x: &f32| if x.is_finite() { *x } else { 1e30 };
            vector(ROPE_FREQS.gguf, factors.iter().map(finite).collect());
        }
        RopeFactors::None => {
            if matches!(rope.scaling, RopeScaling::Llama3 { .. }) {
                vector(ROPE_FREQS.gguf, rope.divisors());
            }
        }
    }
}

/// Tensors that readers of RWKV 7 require in the first layer but do not use.
const RWKV7_PLACEHOLDERS: [(TensorRole, TensorRole); 3] = [
    (TIME_MIX_V0, TIME_MIX_A0),
    (TIME_MIX_V1, TIME_MIX_A1),
    (TIME_MIX_V2, TIME_MIX_A2),
];

/// True if a role is a stack of experts.
fn is_stack(role: &TensorRole) -> bool {
    let stacks = [
        FFN_GATE_EXPERTS,
        FFN_UP_EXPERTS,
        FFN_DOWN_EXPERTS,
        FFN_GATE_UP_EXPERTS,
    ];
    stacks.contains(role)
}

/// Order that interleaves the halves of the part of each head with RoPE.
fn interleaved(heads: usize, dim: usize, rotated: usize) -> Vec<usize> {
    let of_head = |h: usize| {
        (0..dim).map(move |i| match i < rotated {
            true => h * dim + i % 2 * (rotated / 2) + i / 2,
            false => h * dim + i,
        })
    };
    (0..heads).flat_map(of_head).collect()
}

/// Reverses the dimensions: fastest-varying first.
fn gguf_shape(dims: &[usize]) -> Vec<u64> {
    let mut shape: Vec<u64> = dims.iter().rev().map(|&dim| dim as u64).collect();
    if shape.is_empty() {
        shape.push(1);
    }
    shape
}
