//! [`WeightLoader`]: finds tensors by role, checks their shapes, and splits tensors that contain
//! several matrices.
//!
//! Slices of rows are not copied; transposed and gathered matrices are stored in memory.

use super::mxfp4;
use super::stored::{RowSlice, Stored, pick};
use super::{LinearWeights, NormWeights, Weights};
use crate::arch::{Arch, ModelError, QkvLayout, TensorRole, names::*};
use crate::error::{Error, Result};
use crate::file::{Format, ModelFile, TensorBytes, TensorInfo};
use crate::graph::{ExpertWeights, NormKind, WeightId};
use crate::io::SharedBytes;
use oxidize_kernels::quant::{self, TensorType};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Loads weights from a file for a builder.
pub struct WeightLoader<'a> {
    file: &'a ModelFile,
    arch: &'a Arch,
    pub(super) weights: Weights,
    /// Names of the tensors that were used.
    used: RefCell<BTreeSet<&'a str>>,
}

/// True for tensors that are computed at run time, or that have no use.
pub(crate) fn is_computed(name: &str) -> bool {
    const COMPUTED: [&str; 8] = [
        ".inv_freq",
        ".attn.bias",
        ".masked_bias",
        ".attention.bias",
        ".attn_rot_embd.weight",
        ".rope_freqs.weight",
        // Parts of BERT's pre-training head, which are unused without a classifier.
        "pooler.dense.weight",
        "pooler.dense.bias",
    ];
    COMPUTED.iter().any(|ending| name.ends_with(ending))
}

/// Widths of the query, key and value projections.
#[derive(Clone, Copy, Debug)]
pub struct QkvShape {
    /// Width of the input.
    pub inputs: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of all queries.
    pub q: usize,
    /// Width of all keys.
    pub k: usize,
    /// Width of all values.
    pub v: usize,
}

impl<'a> WeightLoader<'a> {
    /// Creates a loader for `file`.
    pub fn new(file: &'a ModelFile, arch: &'a Arch) -> WeightLoader<'a> {
        WeightLoader {
            file,
            arch,
            weights: Weights::default(),
            used: RefCell::default(),
        }
    }

    /// Uses the tensor names of another architecture from now on.
    pub(crate) fn set_arch(&mut self, arch: &'a Arch) {
        self.arch = arch;
    }

    /// Returns the weights, and the names of unused tensors.
    pub fn finish(self) -> (Weights, Vec<String>) {
        let used = self.used.into_inner();
        let tensors = self.file.tensors().iter().map(|tensor| &tensor.name);
        let unused = tensors
            .filter(|name| !used.contains(name.as_str()))
            .filter(|name| !is_computed(name));
        (self.weights, unused.cloned().collect())
    }

    /// True if the file contains the tensor, or the first of its parts.
    pub fn has(&self, role: &TensorRole, layer: usize) -> bool {
        let names = role.names(self.arch, self.file.format(), layer);
        names
            .iter()
            .any(|name| self.lookup(&name.replace("{e}", "0"), WEIGHT).is_some())
    }

    /// Shape of a tensor, rows first; empty if the file does not contain it.
    pub fn shape(&self, role: &TensorRole, layer: usize) -> Vec<usize> {
        let info = self.find(role, layer, WEIGHT);
        info.map(TensorInfo::dims).unwrap_or_default()
    }

    /// Embedding table, with a row per token or per position.
    pub fn embedding(&mut self, role: &TensorRole, width: usize) -> Result<LinearWeights> {
        let info = self.required(role, 0)?;
        let outputs = info.dims().first().copied().unwrap_or(0);
        if outputs == 0 || outputs > 1 << 26 {
            return Err(self.bad_shape(info, &[outputs.max(1), width]));
        }
        self.check_shape(info, &[outputs, width])?;
        let bytes = self.data(info)?;
        let weight = self
            .weights
            .push_matrix(&info.name, info.ty, outputs, width, vec![bytes], 1);
        Ok(LinearWeights {
            weight,
            bias: None,
            outputs,
        })
    }

    /// Matrix with its bias, if the file contains one.
    pub fn linear(
        &mut self,
        role: &TensorRole,
        layer: usize,
        inputs: usize,
        outputs: usize,
    ) -> Result<LinearWeights> {
        let stored = self.matrix(role, layer, outputs, inputs)?;
        let bias = self.bias(role, layer, outputs)?;
        self.linear_part(&stored, bias.as_deref(), RowSlice::range(0, outputs))
    }

    /// As [`linear`](WeightLoader::linear), but `None` if the file does not contain the matrix.
    pub fn optional_linear(
        &mut self,
        role: &TensorRole,
        layer: usize,
        inputs: usize,
        outputs: usize,
    ) -> Result<Option<LinearWeights>> {
        self.has(role, layer)
            .then(|| self.linear(role, layer, inputs, outputs))
            .transpose()
    }

    /// Query, key and value projections, from one matrix or from three. Values are `None` if the
    /// layer has none.
    pub fn qkv(
        &mut self,
        layer: usize,
        shape: QkvShape,
    ) -> Result<(LinearWeights, LinearWeights, Option<LinearWeights>)> {
        let QkvShape {
            inputs,
            n_kv_heads,
            q,
            k,
            v,
        } = shape;
        if self.has(&ATTN_QKV, layer) {
            let rows = q + k + v;
            let stored = self.matrix(&ATTN_QKV, layer, rows, inputs)?;
            let bias = self.bias(&ATTN_QKV, layer, rows)?;
            let parts = if self.is_gguf() || self.arch.hf_qkv == QkvLayout::Concatenated {
                [(0, q), (q, k), (q + k, v)].map(|(start, len)| RowSlice::range(start, len))
            } else {
                let (q, k, v) = (q / n_kv_heads, k / n_kv_heads, v / n_kv_heads);
                [(0, q), (q, k), (q + k, v)].map(|(start, len)| RowSlice {
                    start,
                    len,
                    stride: q + k + v,
                    runs: n_kv_heads,
                })
            };
            let mut part = |part| self.linear_part(&stored, bias.as_deref(), part);
            return Ok((part(parts[0])?, part(parts[1])?, Some(part(parts[2])?)));
        }
        if self.has(&ATTN_KV, layer) {
            let stored = self.matrix(&ATTN_KV, layer, k + v, inputs)?;
            let bias = self.bias(&ATTN_KV, layer, k + v)?;
            let queries = self.linear(&ATTN_Q, layer, inputs, q)?;
            let mut part = |start, len| {
                self.linear_part(&stored, bias.as_deref(), RowSlice::range(start, len))
            };
            return Ok((queries, part(0, k)?, Some(part(k, v)?)));
        }
        let v = match self.optional_linear(&ATTN_V, layer, inputs, v)? {
            None if !self.arch.keys_as_values => return Err(self.missing(&ATTN_V, layer)),
            v => v,
        };
        Ok((
            self.linear(&ATTN_Q, layer, inputs, q)?,
            self.linear(&ATTN_K, layer, inputs, k)?,
            v,
        ))
    }

    /// Gate and up-projection of a feed-forward layer, from one matrix or from two. The gate is
    /// `None` if the layer has none.
    pub fn gate_up(
        &mut self,
        [gate, up, both]: [&TensorRole; 3],
        layer: usize,
        inputs: usize,
        n_ff: usize,
    ) -> Result<(Option<LinearWeights>, LinearWeights)> {
        if self.has(gate, layer) {
            let gate = self.linear(gate, layer, inputs, n_ff)?;
            return Ok((Some(gate), self.linear(up, layer, inputs, n_ff)?));
        }
        if self.shape(both, layer).first() != Some(&(2 * n_ff)) {
            return Ok((None, self.linear(up, layer, inputs, n_ff)?));
        }
        let stored = self.matrix(both, layer, 2 * n_ff, inputs)?;
        let bias = self.bias(both, layer, 2 * n_ff)?;
        let [gate, up] = self.halves(n_ff);
        let mut part = |part| self.linear_part(&stored, bias.as_deref(), part);
        Ok((Some(part(gate)?), part(up)?))
    }

    /// Stacked matrices of all experts of a layer, with biases if the file contains them.
    pub fn experts(
        &mut self,
        role: &TensorRole,
        layer: usize,
        n_experts: usize,
        inputs: usize,
        outputs: usize,
    ) -> Result<ExpertWeights> {
        let names = role.names(self.arch, self.file.format(), layer);
        let separate = names.iter().find(|name| {
            let first = name.replace("{e}", "0");
            name.contains("{e}") && self.lookup(&first, WEIGHT).is_some()
        });
        if let Some(name) = separate {
            let weight = self.separate_experts(name, n_experts, inputs, outputs)?;
            return Ok(ExpertWeights { weight, bias: None });
        }
        let stored = self.stack(role, layer, n_experts, outputs, inputs)?;
        let pieces = vec![stored.bytes];
        let weight =
            self.weights
                .push_matrix(&stored.name, stored.ty, outputs, inputs, pieces, n_experts);
        let bias = self.expert_bias(role, layer, n_experts, outputs)?;
        let bias = bias.map(|bias| self.weights.push_vector(&stored.name, bias));
        Ok(ExpertWeights { weight, bias })
    }

    /// Gate and up-projections of all experts, from one stack or from two. Gates are `None` if the
    /// experts have none.
    pub fn expert_gate_up(
        &mut self,
        layer: usize,
        n_experts: usize,
        inputs: usize,
        n_ff: usize,
    ) -> Result<(Option<ExpertWeights>, ExpertWeights)> {
        let both = &FFN_GATE_UP_EXPERTS;
        if !self.has(both, layer) {
            let up = self.experts(&FFN_UP_EXPERTS, layer, n_experts, inputs, n_ff)?;
            let gated = self.has(&FFN_GATE_EXPERTS, layer);
            let gate = gated
                .then(|| self.experts(&FFN_GATE_EXPERTS, layer, n_experts, inputs, n_ff))
                .transpose()?;
            return Ok((gate, up));
        }
        let stored = self.stack(both, layer, n_experts, 2 * n_ff, inputs)?;
        let bias = self.expert_bias(both, layer, n_experts, 2 * n_ff)?;
        let [gate, up] = self.halves(n_ff);
        let mut half = |half: RowSlice| -> Result<ExpertWeights> {
            let of = |expert: usize| RowSlice {
                start: half.start + expert * 2 * n_ff,
                ..half
            };
            let pieces = (0..n_experts).map(|expert| self.cut(&stored, of(expert)));
            let pieces = pieces.collect::<Result<_>>()?;
            let bias = bias.as_ref().map(|bias| {
                let picked = (0..n_experts).flat_map(|expert| pick(bias, of(expert)));
                self.weights.push_vector(&stored.name, picked.collect())
            });
            let weight =
                self.weights
                    .push_matrix(&stored.name, stored.ty, n_ff, inputs, pieces, n_experts);
            Ok(ExpertWeights { weight, bias })
        };
        Ok((Some(half(gate)?), half(up)?))
    }

    /// Several matrices, which the file stores as a stack or under numbered names.
    pub fn numbered(
        &mut self,
        role: &TensorRole,
        n: usize,
        inputs: usize,
        outputs: usize,
    ) -> Result<Vec<LinearWeights>> {
        let names = role.names(self.arch, self.file.format(), 0);
        if !names.iter().any(|name| name.contains("{e}")) {
            let stored = self.stack(role, 0, n, outputs, inputs)?;
            let part = |i: usize| RowSlice::range(i * outputs, outputs);
            return (0..n)
                .map(|i| self.linear_part(&stored, None, part(i)))
                .collect();
        }
        let numbered = |i: usize| {
            let mut names = names.iter().map(|name| name.replace("{e}", &i.to_string()));
            let found = names.find_map(|name| self.lookup(&name, WEIGHT));
            let info = found.ok_or_else(|| self.missing(role, 0))?;
            self.check_shape(info, &[outputs, inputs])?;
            Ok(Stored {
                name: info.name.clone(),
                ty: info.ty,
                cols: inputs,
                bytes: self.data(info)?,
            })
        };
        let stored: Vec<Stored> = (0..n).map(numbered).collect::<Result<_>>()?;
        stored
            .iter()
            .map(|stored| self.linear_part(stored, None, RowSlice::range(0, outputs)))
            .collect()
    }

    /// MLA: up-projections of compressed keys and values in the absorbed form, for keys heads ×
    /// rank × dim and for values heads × dim × rank.
    pub fn latent_heads(
        &mut self,
        layer: usize,
        n_heads: usize,
        rank: usize,
        (key_dim, value_dim): (usize, usize),
    ) -> Result<(WeightId, WeightId)> {
        if self.has(&ATTN_K_B, layer) {
            let k = self.experts(&ATTN_K_B, layer, n_heads, key_dim, rank)?;
            let v = self.experts(&ATTN_V_B, layer, n_heads, rank, value_dim)?;
            // Some files contain both forms.
            if let Some(both) = self.find(&ATTN_KV_B, layer, WEIGHT) {
                self.used.borrow_mut().insert(&both.name);
            }
            return Ok((k.weight, v.weight));
        }
        let head = key_dim + value_dim;
        let stored = self.matrix(&ATTN_KV_B, layer, n_heads * head, rank)?;
        let (mut k, mut v) = (Vec::new(), Vec::new());
        let mut k_ty = stored.ty;
        for h in 0..n_heads {
            let keys = Stored {
                name: stored.name.clone(),
                ty: stored.ty,
                cols: rank,
                bytes: self.cut(&stored, RowSlice::range(h * head, key_dim))?,
            };
            let keys = self.transpose(&keys, 1, key_dim)?;
            k_ty = keys.ty;
            k.push(keys.bytes);
            v.push(self.cut(&stored, RowSlice::range(h * head + key_dim, value_dim))?);
        }
        let k = self
            .weights
            .push_matrix(&stored.name, k_ty, rank, key_dim, k, n_heads);
        let v = self
            .weights
            .push_matrix(&stored.name, stored.ty, value_dim, rank, v, n_heads);
        Ok((k, v))
    }

    /// Weight of a norm, with its bias if the file contains one.
    pub fn norm(
        &mut self,
        role: &TensorRole,
        layer: usize,
        width: usize,
        epsilon: f32,
    ) -> Result<NormWeights> {
        self.grouped_norm(role, layer, 1, width, epsilon)
    }

    /// Norm of heads: common to all, one per head, or over all heads.
    pub fn head_norm(
        &mut self,
        role: &TensorRole,
        layer: usize,
        (n_heads, dim): (usize, usize),
        epsilon: f32,
    ) -> Result<NormWeights> {
        let names = role.names(self.arch, self.file.format(), layer);
        if let Some(name) = names.iter().find(|name| name.contains("{e}")) {
            return self.separate_head_norms(name, n_heads, dim, epsilon);
        }
        match *self.shape(role, layer).as_slice() {
            [whole] if whole == n_heads * dim => self.grouped_norm(role, layer, 1, whole, epsilon),
            [n, _] if n == n_heads && n > 1 => {
                self.grouped_norm(role, layer, n_heads, dim, epsilon)
            }
            _ => self.grouped_norm(role, layer, 1, dim, epsilon),
        }
    }

    /// Norms of heads that are stored as a tensor per head.
    fn separate_head_norms(
        &mut self,
        name: &str,
        n_heads: usize,
        dim: usize,
        epsilon: f32,
    ) -> Result<NormWeights> {
        let mut all = Vec::new();
        for head in 0..n_heads {
            let name = name.replace("{e}", &head.to_string());
            let info = self.lookup(&name, WEIGHT);
            let info = info.ok_or_else(|| self.missing_name(format!("{name}.weight")))?;
            all.extend(self.floats(info, &[dim])?);
        }
        let mut norm = NormWeights::unweighted(self.arch.norm, dim, epsilon);
        norm.weight = Some(self.weights.push_vector(name, all));
        Ok(norm)
    }

    /// Norm of groups of `width` elements, with weights for `groups` of them.
    fn grouped_norm(
        &mut self,
        role: &TensorRole,
        layer: usize,
        groups: usize,
        width: usize,
        epsilon: f32,
    ) -> Result<NormWeights> {
        let mut norm = NormWeights::unweighted(self.arch.norm, width, epsilon);
        if !self.arch.norm_weights {
            return Ok(norm);
        }
        let info = self.required(role, layer)?;
        let shape: &[usize] = if groups > 1 {
            &[groups, width]
        } else {
            &[width]
        };
        let mut floats = self.floats(info, shape)?;
        if !self.is_gguf() && self.arch.hf_norm_offset != 0.0 {
            floats
                .iter_mut()
                .for_each(|x| *x += self.arch.hf_norm_offset);
        }
        norm.weight = Some(self.weights.push_vector(&info.name, floats));
        if let Some(info) = self.find(role, layer, BIAS) {
            let floats = self.floats(info, shape)?;
            norm.bias = Some(self.weights.push_vector(&info.name, floats));
        }
        Ok(norm)
    }

    /// Elements of a small vector that the builder needs; `None` if the file does not contain it.
    pub fn vector(&self, role: &TensorRole, layer: usize, len: usize) -> Result<Option<Vec<f32>>> {
        self.find(role, layer, VECTOR)
            .map(|info| self.floats(info, &[len]))
            .transpose()
    }

    /// Elements of a small table that the builder needs; `None` if the file does not contain it.
    pub fn table(
        &self,
        role: &TensorRole,
        layer: usize,
        shape: [usize; 2],
    ) -> Result<Option<Vec<f32>>> {
        self.find(role, layer, WEIGHT)
            .map(|info| self.floats(info, &shape))
            .transpose()
    }

    /// First rows of a small table, at most `most`; `None` if the file does not contain it.
    pub fn first_rows(
        &self,
        role: &TensorRole,
        width: usize,
        most: usize,
    ) -> Result<Option<Vec<f32>>> {
        let Some(info) = self.find(role, 0, WEIGHT) else {
            return Ok(None);
        };
        let rows = match *info.dims().as_slice() {
            [rows, _] if (1..=1024).contains(&rows) => rows,
            _ => 1,
        };
        let mut floats = self.floats(info, &[rows, width])?;
        floats.truncate(most * width);
        Ok(Some(floats))
    }

    /// Vector as a weight; `None` if the file does not contain it.
    pub fn vector_weight(
        &mut self,
        role: &TensorRole,
        layer: usize,
        len: usize,
    ) -> Result<Option<WeightId>> {
        let floats = self.vector(role, layer, len)?;
        Ok(floats.map(|floats| self.weights.push_vector(role.gguf, floats)))
    }

    /// Adds a vector that is not in the file.
    pub fn constant(&mut self, name: &str, floats: Vec<f32>) -> WeightId {
        self.weights.push_vector(name, floats)
    }

    /// Error for a missing required tensor.
    pub fn missing(&self, role: &TensorRole, layer: usize) -> Error {
        let names = role.names(self.arch, self.file.format(), layer);
        let name = names.first().map_or(role.gguf, String::as_str);
        self.missing_name(format!("{name}.weight"))
    }

    /// Tensor of a role, with any suffix.
    pub(crate) fn weight_of(&self, role: &TensorRole, layer: usize) -> Option<&'a TensorInfo> {
        self.find(role, layer, WEIGHT)
    }

    /// Bias of a role.
    pub(crate) fn bias_of(&self, role: &TensorRole, layer: usize) -> Option<&'a TensorInfo> {
        self.find(role, layer, BIAS)
    }

    /// Tensors of a role that the file stores under numbered names, in order.
    pub(crate) fn numbered_parts(
        &self,
        role: &TensorRole,
        layer: usize,
    ) -> Option<Vec<&'a TensorInfo>> {
        let names = role.names(self.arch, self.file.format(), layer);
        let numbered = names.iter().filter(|name| name.contains("{e}"));
        numbered
            .map(|name| {
                let part = |i: usize| self.lookup(&name.replace("{e}", &i.to_string()), WEIGHT);
                (0..).map_while(part).collect::<Vec<_>>()
            })
            .find(|parts| !parts.is_empty())
    }

    /// True if the file is GGUF.
    pub(crate) fn is_gguf(&self) -> bool {
        matches!(self.file.format(), Format::Gguf { .. })
    }

    /// True if the file stores this tensor as inputs × outputs.
    pub(super) fn is_transposed(&self, role: &TensorRole) -> bool {
        !self.is_gguf() && self.arch.hf_transposed.contains(role)
    }

    pub(super) fn required(&self, role: &TensorRole, layer: usize) -> Result<&'a TensorInfo> {
        self.find(role, layer, WEIGHT)
            .ok_or_else(|| self.missing(role, layer))
    }

    pub(crate) fn find(
        &self,
        role: &TensorRole,
        layer: usize,
        endings: &[&str],
    ) -> Option<&'a TensorInfo> {
        let names = role.names(self.arch, self.file.format(), layer);
        names.iter().find_map(|name| self.lookup(name, endings))
    }

    /// Tensor with this name before its suffix.
    fn lookup(&self, name: &str, endings: &[&str]) -> Option<&'a TensorInfo> {
        let with_endings = |name: &str| {
            let mut named = endings.iter().map(|ending| format!("{name}{ending}"));
            named.find_map(|name| self.file.tensor(&name))
        };
        let found = with_endings(name);
        if found.is_some() || self.is_gguf() {
            return found;
        }
        // Multimodal models nest the language model, in one of two places; models without a head
        // lack the prefix.
        let (first, rest) = name.split_once('.')?;
        with_endings(&format!("{first}.language_model.{rest}"))
            .or_else(|| with_endings(&format!("language_model.{name}")))
            .or_else(|| with_endings(rest))
    }

    pub(crate) fn matrix(
        &self,
        role: &TensorRole,
        layer: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Stored> {
        self.stack(role, layer, 1, rows, cols)
    }

    /// Stack of `n` matrices of rows × cols. Transposes them if the file stores them as inputs ×
    /// outputs.
    pub(crate) fn stack(
        &self,
        role: &TensorRole,
        layer: usize,
        n: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Stored> {
        let info = self.required(role, layer)?;
        if info.name.ends_with(PACKED) {
            return self.packed_stack(info, n, rows, cols);
        }
        let transposed = self.is_transposed(role);
        let (stored_rows, stored_cols) = if transposed {
            (cols, rows)
        } else {
            (rows, cols)
        };
        let shape = [n, stored_rows, stored_cols];
        // Some files concatenate the matrices of a stack by rows.
        let flat = [n * stored_rows, stored_cols];
        if n == 1 || info.dims() == flat {
            self.check_shape(info, &flat)?;
        } else {
            self.check_shape(info, &shape)?;
        }
        let stored = Stored {
            name: info.name.clone(),
            ty: info.ty,
            cols: stored_cols,
            bytes: self.data(info)?,
        };
        if transposed {
            self.transpose(&stored, n, stored_rows)
        } else {
            Ok(stored)
        }
    }

    /// Stack of MXFP4 matrices whose values and scales are separate tensors.
    fn packed_stack(
        &self,
        nibbles: &'a TensorInfo,
        n: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Stored> {
        let blocks = cols / mxfp4::BLOCK;
        let name = nibbles.name.trim_end_matches(PACKED);
        let scales_name = format!("{name}_scales");
        let scales = self
            .file
            .tensor(&scales_name)
            .ok_or_else(|| self.missing_name(scales_name))?;
        self.check_dims(nibbles, &[n, rows, blocks, mxfp4::BLOCK / 2])?;
        self.check_dims(scales, &[n, rows, blocks])?;
        if [nibbles.ty, scales.ty] != [TensorType::U8; 2] || !cols.is_multiple_of(mxfp4::BLOCK) {
            return Err(self.bad_type(
                nibbles,
                "packed MXFP4 weights must be u8 tensors of whole blocks",
            ));
        }
        let (nibble_bytes, scale_bytes) = (self.data(nibbles)?, self.data(scales)?);
        let ty = TensorType::MXFP4;
        let io = Error::io(self.file.path());
        let bytes = SharedBytes::build(scale_bytes.len() * ty.block_bytes(), |out| {
            mxfp4::pack(&nibble_bytes, &scale_bytes, out);
            Ok::<_, std::io::Error>(())
        });
        Ok(Stored {
            name: name.to_owned(),
            ty,
            cols,
            bytes: bytes.map_err(io)?,
        })
    }

    /// Bytes of a tensor, which is marked as used.
    pub(crate) fn data(&self, info: &'a TensorInfo) -> Result<TensorBytes> {
        self.used.borrow_mut().insert(&info.name);
        self.file.data(info)
    }

    fn separate_experts(
        &mut self,
        name: &str,
        n_experts: usize,
        inputs: usize,
        outputs: usize,
    ) -> Result<WeightId> {
        let mut pieces = Vec::with_capacity(n_experts);
        let mut first: Option<&TensorInfo> = None;
        for expert in 0..n_experts {
            let name = name.replace("{e}", &expert.to_string());
            let info = self
                .lookup(&name, WEIGHT)
                .ok_or_else(|| self.missing_name(format!("{name}.weight")))?;
            self.check_shape(info, &[outputs, inputs])?;
            let ty = first.get_or_insert(info).ty;
            if info.ty != ty {
                return Err(self.bad_type(info, &format!("the layer's other experts are {ty}")));
            }
            pieces.push(self.data(info)?);
        }
        let info = first.ok_or_else(|| self.missing_name(name.to_owned()))?;
        Ok(self
            .weights
            .push_matrix(&info.name, info.ty, outputs, inputs, pieces, n_experts))
    }

    /// Rows of gate and up in a matrix that contains both.
    fn halves(&self, n_ff: usize) -> [RowSlice; 2] {
        if self.is_gguf() || !self.arch.hf_gate_up_alternate {
            return [RowSlice::range(0, n_ff), RowSlice::range(n_ff, n_ff)];
        }
        [0, 1].map(|start| RowSlice {
            start,
            len: 1,
            stride: 2,
            runs: n_ff,
        })
    }

    pub(crate) fn bias(
        &self,
        role: &TensorRole,
        layer: usize,
        len: usize,
    ) -> Result<Option<Vec<f32>>> {
        self.find(role, layer, BIAS)
            .map(|info| self.floats(info, &[len]))
            .transpose()
    }

    fn expert_bias(
        &self,
        role: &TensorRole,
        layer: usize,
        n_experts: usize,
        len: usize,
    ) -> Result<Option<Vec<f32>>> {
        self.find(role, layer, BIAS)
            .map(|info| self.floats(info, &[n_experts, len]))
            .transpose()
    }

    pub(super) fn linear_part(
        &mut self,
        stored: &Stored,
        bias: Option<&[f32]>,
        part: RowSlice,
    ) -> Result<LinearWeights> {
        let (outputs, pieces) = (part.rows(), vec![self.cut(stored, part)?]);
        let (name, cols) = (&stored.name, stored.cols);
        let weight = self
            .weights
            .push_matrix(name, stored.ty, outputs, cols, pieces, 1);
        self.weights.set_part(weight, part);
        let bias = bias.map(|bias| {
            let bias = pick(bias, part).collect();
            self.weights.push_vector(name, bias)
        });
        Ok(LinearWeights {
            weight,
            bias,
            outputs,
        })
    }

    /// Bytes of some rows of a matrix.
    fn cut(&self, stored: &Stored, part: RowSlice) -> Result<TensorBytes> {
        stored.cut(part).map_err(Error::io(self.file.path()))
    }

    /// Transposes each of `n` matrices of `rows` rows, in memory.
    fn transpose(&self, stored: &Stored, n: usize, rows: usize) -> Result<Stored> {
        let transposed = stored.transposed(n, rows);
        transposed.map_err(Error::io(self.file.path()))
    }

    /// Elements of a small vector as f32.
    pub(crate) fn floats(&self, info: &'a TensorInfo, shape: &[usize]) -> Result<Vec<f32>> {
        self.check_shape(info, shape)?;
        let bytes = self.data(info)?;
        let mut floats = vec![0.0; shape.iter().product()];
        quant::dequantize(info.ty, &bytes, &mut floats)
            .map_err(|error| self.bad_type(info, &error.to_string()))?;
        if let Some(at) = floats.iter().position(|x| !x.is_finite()) {
            return Err(Error::from(ModelError::NotFinite {
                file: self.file.path().to_path_buf(),
                tensor: info.name.clone(),
                element: at,
            }));
        }
        Ok(floats)
    }

    /// Returns an error unless the tensor has the expected shape.
    fn check_dims(&self, info: &TensorInfo, expected: &[usize]) -> Result<()> {
        let dims = info.dims();
        // Dimensions of one are ignored, because files differ in them.
        let wide =
            |dims: &[usize]| -> Vec<usize> { dims.iter().copied().filter(|&d| d != 1).collect() };
        if wide(&dims) != wide(expected) {
            return Err(self.bad_shape(info, expected));
        }
        Ok(())
    }

    /// As [`check_dims`](WeightLoader::check_dims); in addition, rows must be whole blocks and the
    /// type one of weights.
    fn check_shape(&self, info: &TensorInfo, expected: &[usize]) -> Result<()> {
        self.check_dims(info, expected)?;
        let cols = expected.last().copied().unwrap_or(0);
        if !cols.is_multiple_of(info.ty.block_len()) {
            let block = info.ty.block_len();
            return Err(self.bad_type(
                info,
                &format!("rows of {cols} elements are not whole blocks of {block}"),
            ));
        }
        if !holds_weights(info.ty) {
            return Err(self.bad_type(info, "not a type of weights"));
        }
        Ok(())
    }

    pub(super) fn bad_shape(&self, info: &TensorInfo, expected: &[usize]) -> Error {
        Error::from(ModelError::TensorShape {
            file: self.file.path().to_path_buf(),
            tensor: info.name.clone(),
            shape: info.dims(),
            expected: expected.to_vec(),
        })
    }

    fn bad_type(&self, info: &TensorInfo, problem: &str) -> Error {
        Error::from(ModelError::TensorType {
            file: self.file.path().to_path_buf(),
            tensor: info.name.clone(),
            ty: info.ty,
            problem: problem.to_owned(),
        })
    }

    fn missing_name(&self, tensor: String) -> Error {
        Error::from(ModelError::MissingTensor {
            file: self.file.path().to_path_buf(),
            tensor,
        })
    }
}

/// Suffix of the values of MXFP4 matrices with separate scales.
const PACKED: &str = "_blocks";
/// Suffixes of weights, of biases, and of vectors that have either.
pub(super) const WEIGHT: &[&str] = &[".weight", "", PACKED];
const BIAS: &[&str] = &[".bias", "_bias"];
const VECTOR: &[&str] = &[".weight", "", ".bias"];

impl NormWeights {
    /// Norm without weight and bias.
    pub fn unweighted(kind: NormKind, width: usize, epsilon: f32) -> NormWeights {
        NormWeights {
            kind,
            weight: None,
            bias: None,
            epsilon,
            width,
        }
    }
}

/// True if `ty` is a type of weights: not an integer, nor a type of quantized activations.
pub(crate) fn holds_weights(ty: TensorType) -> bool {
    use TensorType::{Bool, I8, I16, I32, I64, Q8_1, Q8_K, U8, U16, U32, U64};
    !matches!(
        ty,
        Bool | I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64 | Q8_1 | Q8_K
    )
}
