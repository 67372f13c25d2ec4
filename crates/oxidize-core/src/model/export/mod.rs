//! The tensors of a Hugging Face model as GGUF has them: the same roles under other names, with rows
//! in another order where the two formats disagree. [`super::loader`] finds and reads them; nothing
//! is read here before it is asked for.

use super::loader::WeightLoader;
use super::stored::pick_rows;
use crate::arch::names::*;
use crate::arch::{ARCHS, Arch, Hparams, QkvLayout, TensorRole};
use crate::error::Result;
use crate::file::{Format, ModelFile, TensorBytes, TensorInfo};
use crate::graph::RopeLayout;
use crate::graph::rope::{RopeFactors, RopeScaling};
use crate::io::SharedBytes;
use oxidize_kernels::quant::TensorType;

/// A tensor of a GGUF file to be.
pub struct GgufTensor<'a> {
    /// Its name.
    pub name: String,
    /// How its elements are stored.
    pub ty: TensorType,
    /// Its dimensions, the fastest-varying first.
    pub shape: Vec<u64>,
    /// Where its elements come from.
    pub data: GgufData<'a>,
}

/// The elements of a [`GgufTensor`].
pub enum GgufData<'a> {
    /// As they are in the file.
    Stored(&'a TensorInfo),
    /// Put together on request.
    Made(Box<dyn Fn() -> Result<TensorBytes> + Send + Sync + 'a>),
}

/// The tensors of `file` as a GGUF file of the same model has them.
pub fn gguf_tensors<'a>(
    file: &'a ModelFile,
    arch: &'static Arch,
    hparams: &Hparams,
) -> Result<Vec<GgufTensor<'a>>> {
    // A GGUF file is read by the first descriptor with its name, so that one's names count.
    let gguf_arch = ARCHS.iter().find(|other| other.name == arch.name);
    let exporter = Exporter {
        file,
        arch,
        gguf_arch: gguf_arch.copied().unwrap_or(arch),
        hparams,
    };
    let mut out = Vec::new();
    for role in ROLES {
        let layers = if role.gguf.contains("{}") || role.hf.contains("{}") {
            hparams.n_layers_in_file
        } else {
            1
        };
        for layer in 0..layers {
            exporter.role(role, layer, &mut out)?;
        }
    }
    exporter.rope_factors(&mut out);
    Ok(out)
}

struct Exporter<'a, 'h> {
    file: &'a ModelFile,
    arch: &'static Arch,
    gguf_arch: &'static Arch,
    hparams: &'h Hparams,
}

impl<'a> Exporter<'a, '_> {
    fn loader(&self) -> WeightLoader<'a> {
        WeightLoader::new(self.file, self.arch)
    }

    /// The name of a tensor in GGUF, without its ending.
    fn name(&self, role: &TensorRole, layer: usize) -> Option<String> {
        let format = Format::Gguf { version: 3 };
        role.names(self.gguf_arch, format, layer).into_iter().next()
    }

    fn role(&self, role: &TensorRole, layer: usize, out: &mut Vec<GgufTensor<'a>>) -> Result<()> {
        let loader = self.loader();
        let is_both = [FFN_GATE_UP, FFN_GATE_UP_SHARED].contains(role);
        // Both halves in one matrix share a name with the second half alone.
        if is_both && loader.has_own(role, layer).is_none() {
            return Ok(());
        }
        // Where one norm serves both halves of a layer, it is written once.
        let same_norm = *role == ATTN_NORM && {
            let (ours, other) = (
                loader.weight_of(role, layer),
                loader.weight_of(&FFN_NORM, layer),
            );
            ours.zip(other).is_some_and(|(a, b)| a.name == b.name)
        };
        if same_norm {
            return Ok(());
        }
        match *role {
            ATTN_QKV => self.qkv(layer, out),
            ATTN_KV => self.split(role, layer, &[ATTN_K, ATTN_V], out),
            ATTN_KV_B if self.arch.gguf_form.absorbed_kv => self.absorbed(layer, out),
            FFN_GATE_UP_EXPERTS => self.expert_halves(layer, out),
            _ => self.plain(role, layer, out),
        }
    }

    /// A tensor with the same meaning in both formats, its bias, or a stack of what a file keeps
    /// under numbered names.
    fn plain(&self, role: &TensorRole, layer: usize, out: &mut Vec<GgufTensor<'a>>) -> Result<()> {
        let loader = self.loader();
        let Some(name) = self.name(role, layer) else {
            return Ok(());
        };
        if let Some(parts) = loader.numbered_parts(role, layer) {
            self.stacked(name, parts, out);
            return Ok(());
        }
        if let Some(info) = loader.weight_of(role, layer) {
            let ending = if role.gguf.ends_with(".scale") {
                ""
            } else {
                ".weight"
            };
            let ending = if *role == FFN_SELECTION_BIAS {
                ".bias"
            } else {
                ending
            };
            let name = format!("{name}{ending}");
            match self.order(role, layer, info) {
                _ if self.is_norm(role) => self.norm(name, info, out),
                Some(order) => self.gathered(name, role, layer, info, order, out),
                None => self.as_stored(name, role, layer, info, out),
            }
        }
        if let Some(info) = loader.bias_of(role, layer) {
            let order = self.order(role, layer, info).unwrap_or_default();
            self.bias(format!("{name}.bias"), info, order, out);
        }
        Ok(())
    }

    /// A norm's weight is a vector of floats; some files leave a constant out of it.
    fn norm(&self, name: String, info: &'a TensorInfo, out: &mut Vec<GgufTensor<'a>>) {
        let (offset, file) = (self.arch.hf_norm_offset, self.file);
        let arch = self.arch;
        let make = move || {
            let mut floats = WeightLoader::new(file, arch).all_floats(info)?;
            floats.iter_mut().for_each(|x| *x += offset);
            bytes_of(file, &floats)
        };
        out.push(made(name, TensorType::F32, gguf_shape(&info.dims()), make));
    }

    fn bias(
        &self,
        name: String,
        info: &'a TensorInfo,
        order: Vec<usize>,
        out: &mut Vec<GgufTensor<'a>>,
    ) {
        let (file, arch) = (self.file, self.arch);
        let dims = match order.len() {
            0 => info.dims(),
            n => vec![n],
        };
        let make = move || {
            let floats = WeightLoader::new(file, arch).all_floats(info)?;
            if order.is_empty() {
                return bytes_of(file, &floats);
            }
            let picked: Vec<f32> = order
                .iter()
                .filter_map(|&i| floats.get(i).copied())
                .collect();
            bytes_of(file, &picked)
        };
        out.push(made(name, TensorType::F32, gguf_shape(&dims), make));
    }

    /// A matrix, or a stack, whose rows keep their order.
    fn as_stored(
        &self,
        name: String,
        role: &TensorRole,
        layer: usize,
        info: &'a TensorInfo,
        out: &mut Vec<GgufTensor<'a>>,
    ) {
        let packed = info.name.ends_with("_blocks");
        let (n, rows, cols) = self.stack_dims(role, info);
        if !packed && !self.arch.hf_transposed.contains(role) {
            let shape = match is_stack(role) {
                true => gguf_shape(&[n, rows, cols]),
                false => gguf_shape(&info.dims()),
            };
            out.push(GgufTensor {
                name,
                ty: info.ty,
                shape,
                data: GgufData::Stored(info),
            });
            return;
        }
        let (file, arch, role) = (self.file, self.arch, *role);
        let ty = if packed {
            TensorType::MXFP4
        } else {
            unpacked(info.ty)
        };
        let make = move || {
            let loader = WeightLoader::new(file, arch);
            Ok(loader.stack(&role, layer, n, rows, cols)?.bytes)
        };
        let mut dims = vec![rows, cols];
        if info.dims().len() > 2 || is_stack(&role) {
            dims.insert(0, n);
        }
        out.push(made(name, ty, gguf_shape(&dims), make));
    }

    /// A matrix whose rows come in another order, or only some of them.
    fn gathered(
        &self,
        name: String,
        role: &TensorRole,
        layer: usize,
        info: &'a TensorInfo,
        order: Vec<usize>,
        out: &mut Vec<GgufTensor<'a>>,
    ) {
        let (n, rows, cols) = self.stack_dims(role, info);
        let (file, arch, role) = (self.file, self.arch, *role);
        let packed = info.name.ends_with("_blocks");
        let ty = if packed {
            TensorType::MXFP4
        } else {
            unpacked(info.ty)
        };
        let dims = match n {
            1 => vec![order.len(), cols],
            n => vec![n, order.len() / n, cols],
        };
        let make = move || {
            let loader = WeightLoader::new(file, arch);
            let stored = loader.stack(&role, layer, n, rows, cols)?;
            pick_rows(&stored, &order).map_err(crate::Error::io(file.path()))
        };
        out.push(made(name, ty, gguf_shape(&dims), make));
    }

    /// Matrices, rows and columns of a tensor as GGUF has them.
    fn stack_dims(&self, role: &TensorRole, info: &TensorInfo) -> (usize, usize, usize) {
        let mut dims = info.dims();
        if info.name.ends_with("_blocks") {
            // Blocks of nibbles: experts, rows, blocks of a row, bytes of a block.
            let half = dims.pop().unwrap_or(1);
            let blocks = dims.pop().unwrap_or(1);
            dims.push(2 * half * blocks);
        }
        let cols = dims.pop().unwrap_or(1);
        let rows = dims.pop().unwrap_or(1);
        let mut n: usize = dims.iter().product();
        let mut rows = rows;
        // Some files lay the matrices of a stack under each other.
        let n_experts = self.hparams.moe.as_ref().map_or(1, |moe| moe.n_experts);
        if dims.is_empty() && is_stack(role) && n_experts > 0 && rows.is_multiple_of(n_experts) {
            (n, rows) = (n_experts, rows / n_experts);
        }
        if self.arch.hf_transposed.contains(role) {
            (n, cols, rows)
        } else {
            (n, rows, cols)
        }
    }

    /// Experts, or heads, that a file keeps apart.
    fn stacked(&self, name: String, parts: Vec<&'a TensorInfo>, out: &mut Vec<GgufTensor<'a>>) {
        let Some(&first) = parts.first() else {
            return;
        };
        let mut dims = first.dims();
        dims.insert(0, parts.len());
        let file = self.file;
        let is_vector = dims.len() == 2;
        let arch = self.arch;
        let make = move || {
            if is_vector {
                let mut floats = Vec::new();
                for part in &parts {
                    floats.extend(WeightLoader::new(file, arch).all_floats(part)?);
                }
                return bytes_of(file, &floats);
            }
            let mut all = Vec::new();
            for part in &parts {
                all.extend_from_slice(&file.data(part)?);
            }
            Ok(TensorBytes::from(all))
        };
        let ty = if is_vector { TensorType::F32 } else { first.ty };
        out.push(made(format!("{name}.weight"), ty, gguf_shape(&dims), make));
    }

    /// Whether a role is a norm, whose weight the loader corrects.
    fn is_norm(&self, role: &TensorRole) -> bool {
        role.gguf.contains("norm") && role.gguf != "norm"
    }

    /// The rows of a tensor in GGUF's order, where it is another: queries and keys of some families
    /// turn neighbours, not halves.
    fn order(&self, role: &TensorRole, layer: usize, info: &TensorInfo) -> Option<Vec<usize>> {
        let params = self.hparams.layers.get(layer)?;
        let permuted =
            self.arch.rope.gguf != self.arch.rope.hf && self.arch.rope.hf == RopeLayout::Halves;
        let heads = match *role {
            ATTN_Q => params.n_heads,
            ATTN_K => params.n_kv_heads,
            _ => return None,
        };
        if !permuted {
            return None;
        }
        let (dim, rows) = (params.key_dim, *info.dims().first()?);
        (rows == heads * dim).then(|| neighbours(heads, dim, 0))
    }

    /// Queries, keys and values in one matrix: all of each, one after the other, or apart.
    fn qkv(&self, layer: usize, out: &mut Vec<GgufTensor<'a>>) -> Result<()> {
        let loader = self.loader();
        let (Some(info), Some(params)) = (
            loader.weight_of(&ATTN_QKV, layer),
            self.hparams.layers.get(layer),
        ) else {
            return Ok(());
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
        let mut orders = [part(0, q, all), part(q, k, all), part(q + k, v, all)];
        let roles = [ATTN_Q, ATTN_K, ATTN_V];
        let bias = loader.bias_of(&ATTN_QKV, layer);
        if self.arch.gguf_form.split_qkv {
            for (role, order) in roles.iter().zip(&mut orders) {
                if let Some(turned) = self.turned(role, layer) {
                    *order = turned.iter().map(|&i| order[i]).collect();
                }
                let Some(name) = self.name(role, layer) else {
                    continue;
                };
                let weight = format!("{name}.weight");
                self.gathered(weight, &ATTN_QKV, layer, info, order.clone(), out);
                if let Some(bias) = bias {
                    self.bias(format!("{name}.bias"), bias, order.clone(), out);
                }
            }
            return Ok(());
        }
        let Some(name) = self.name(&ATTN_QKV, layer) else {
            return Ok(());
        };
        let weight = format!("{name}.weight");
        let order = orders.concat();
        let bias_name = format!("{name}.bias");
        if self.arch.hf_qkv == QkvLayout::Concatenated {
            self.as_stored(weight, &ATTN_QKV, layer, info, out);
        } else {
            self.gathered(weight, &ATTN_QKV, layer, info, order.clone(), out);
        }
        if let Some(bias) = bias {
            self.bias(bias_name, bias, order, out);
        }
        Ok(())
    }

    /// The order of the rows of queries or keys, where GGUF has another.
    fn turned(&self, role: &TensorRole, layer: usize) -> Option<Vec<usize>> {
        let params = self.hparams.layers.get(layer)?;
        let heads = match *role {
            ATTN_Q => params.n_heads,
            ATTN_K => params.n_kv_heads,
            _ => return None,
        };
        let differs = self.arch.rope.gguf != self.arch.rope.hf;
        differs.then(|| neighbours(heads, params.key_dim, 0))
    }

    /// A matrix of which GGUF makes two halves.
    fn split(
        &self,
        role: &TensorRole,
        layer: usize,
        halves: &[TensorRole; 2],
        out: &mut Vec<GgufTensor<'a>>,
    ) -> Result<()> {
        let loader = self.loader();
        let Some(info) = loader.weight_of(role, layer) else {
            return Ok(());
        };
        let (_, rows, _) = self.stack_dims(role, info);
        for (half, role_of_half) in halves.iter().enumerate() {
            let Some(name) = self.name(role_of_half, layer) else {
                continue;
            };
            let mut order: Vec<usize> = (half * rows / 2..(half + 1) * rows / 2).collect();
            if let Some(turned) = self.turned(role_of_half, layer) {
                order = turned.iter().map(|&i| order[i]).collect();
            }
            let weight = format!("{name}.weight");
            self.gathered(weight, role, layer, info, order.clone(), out);
            if let Some(bias) = loader.bias_of(role, layer) {
                self.bias(format!("{name}.bias"), bias, order, out);
            }
        }
        Ok(())
    }

    /// Both halves of all experts in one stack: one for each half, unless GGUF keeps them together.
    fn expert_halves(&self, layer: usize, out: &mut Vec<GgufTensor<'a>>) -> Result<()> {
        let loader = self.loader();
        let both = &FFN_GATE_UP_EXPERTS;
        let Some(info) = loader.weight_of(both, layer) else {
            return Ok(());
        };
        if self.arch.gguf_form.fused_experts {
            return self.plain(both, layer, out);
        }
        let (n, rows, _) = self.stack_dims(both, info);
        let n_ff = rows / 2;
        let alternate = self.arch.hf_gate_up_alternate;
        for (half, role) in [FFN_GATE_EXPERTS, FFN_UP_EXPERTS].iter().enumerate() {
            let Some(name) = self.name(role, layer) else {
                continue;
            };
            let row = |expert: usize, i: usize| {
                let within = if alternate {
                    2 * i + half
                } else {
                    half * n_ff + i
                };
                expert * rows + within
            };
            let order = (0..n).flat_map(|expert| (0..n_ff).map(move |i| row(expert, i)));
            let order: Vec<usize> = order.collect();
            self.gathered(
                format!("{name}.weight"),
                both,
                layer,
                info,
                order.clone(),
                out,
            );
            if let Some(bias) = loader.bias_of(both, layer) {
                let at = out.len();
                self.bias(format!("{name}.bias"), bias, order, out);
                if let Some(tensor) = out.get_mut(at) {
                    tensor.shape = gguf_shape(&[n, n_ff]);
                }
            }
        }
        Ok(())
    }

    /// The up-projection of compressed keys and values as two stacks of heads, the keys' transposed
    /// so that it can be applied to queries.
    fn absorbed(&self, layer: usize, out: &mut Vec<GgufTensor<'a>>) -> Result<()> {
        let loader = self.loader();
        let (Some(info), Some(mla), Some(params)) = (
            loader.weight_of(&ATTN_KV_B, layer),
            &self.hparams.mla,
            self.hparams.layers.get(layer),
        ) else {
            return Ok(());
        };
        let (n_heads, rank) = (params.n_heads, mla.kv_rank);
        let (key, value) = (mla.nope_dim, mla.value_dim);
        let head = key + value;
        let (file, arch, ty) = (self.file, self.arch, unpacked(info.ty));
        let io = move |error| crate::Error::io(file.path())(error);
        if let Some(name) = self.name(&ATTN_K_B, layer) {
            let make = move || {
                let loader = WeightLoader::new(file, arch);
                let stored = loader.stack(&ATTN_KV_B, layer, 1, n_heads * head, rank)?;
                let rows = (0..n_heads).flat_map(|h| h * head..h * head + key);
                let keys = stored.with_rows(&rows.collect::<Vec<_>>()).map_err(io)?;
                Ok(keys.transposed(n_heads, key).map_err(io)?.bytes)
            };
            let shape = gguf_shape(&[n_heads, rank, key]);
            out.push(made(format!("{name}.weight"), ty, shape, make));
        }
        if let Some(name) = self.name(&ATTN_V_B, layer) {
            let make = move || {
                let loader = WeightLoader::new(file, arch);
                let stored = loader.stack(&ATTN_KV_B, layer, 1, n_heads * head, rank)?;
                let rows = (0..n_heads).flat_map(|h| h * head + key..(h + 1) * head);
                pick_rows(&stored, &rows.collect::<Vec<_>>()).map_err(io)
            };
            let shape = gguf_shape(&[n_heads, value, rank]);
            out.push(made(format!("{name}.weight"), ty, shape, make));
        }
        Ok(())
    }

    /// Factors of the rotary embedding, which GGUF keeps as tensors.
    fn rope_factors(&self, out: &mut Vec<GgufTensor<'a>>) {
        let Some(rope) = self.hparams.ropes.first() else {
            return;
        };
        let file = self.file;
        let mut vector = |name: &str, floats: Vec<f32>| {
            let shape = vec![floats.len() as u64];
            let make = move || bytes_of(file, &floats);
            out.push(made(format!("{name}.weight"), TensorType::F32, shape, make));
        };
        match &rope.factors {
            RopeFactors::ByContext { short, long, .. } => {
                vector("rope_factors_long", long.clone());
                vector("rope_factors_short", short.clone());
            }
            RopeFactors::Fixed(factors) => {
                // GGUF has no infinity here; this is as good as none.
                let finite = |x: &f32| if x.is_finite() { *x } else { 1e30 };
                vector("rope_freqs", factors.iter().map(finite).collect());
            }
            RopeFactors::None => {
                if matches!(rope.scaling, RopeScaling::Llama3 { .. }) {
                    vector("rope_freqs", rope.divisors());
                }
            }
        }
    }
}

/// Whether a role is a stack of experts.
fn is_stack(role: &TensorRole) -> bool {
    let stacks = [
        FFN_GATE_EXPERTS,
        FFN_UP_EXPERTS,
        FFN_DOWN_EXPERTS,
        FFN_GATE_UP_EXPERTS,
    ];
    stacks.contains(role)
}

/// The order that makes neighbours of what were halves of a head.
fn neighbours(heads: usize, dim: usize, start: usize) -> Vec<usize> {
    let of_head = |h: usize| (0..dim).map(move |i| start + h * dim + i % 2 * (dim / 2) + i / 2);
    (0..heads).flat_map(of_head).collect()
}

/// What a type becomes when rows are moved or turned: blocks that run along rows are taken apart.
fn unpacked(ty: TensorType) -> TensorType {
    if ty.is_quantized() {
        TensorType::F16
    } else {
        ty
    }
}

/// The fastest-varying dimension first.
fn gguf_shape(dims: &[usize]) -> Vec<u64> {
    let mut shape: Vec<u64> = dims.iter().rev().map(|&dim| dim as u64).collect();
    if shape.is_empty() {
        shape.push(1);
    }
    shape
}

fn made<'a>(
    name: String,
    ty: TensorType,
    shape: Vec<u64>,
    make: impl Fn() -> Result<TensorBytes> + Send + Sync + 'a,
) -> GgufTensor<'a> {
    GgufTensor {
        name,
        ty,
        shape,
        data: GgufData::Made(Box::new(make)),
    }
}

fn bytes_of(file: &ModelFile, floats: &[f32]) -> Result<TensorBytes> {
    let bytes: &[u8] = bytemuck::cast_slice(floats);
    SharedBytes::build(bytes.len(), |out| {
        out.copy_from_slice(bytes);
        Ok::<_, std::io::Error>(())
    })
    .map_err(crate::Error::io(file.path()))
}
