//! Weights of recurrent layers: fused projections, convolutions, decay rates and token-shift
//! weights.

use super::loader::{WEIGHT, WeightLoader};
use super::stored::RowSlice;
use super::{LinearWeights, NormWeights};
use crate::arch::TensorRole;
use crate::arch::names::TIME_MIX_LERP_FUSED;
use crate::error::Result;
use crate::graph::{NormKind, WeightId};

impl WeightLoader<'_> {
    /// Several projections from one matrix of `rows` rows.
    pub fn split<const N: usize>(
        &mut self,
        role: &TensorRole,
        layer: usize,
        (inputs, rows): (usize, usize),
        parts: [RowSlice; N],
    ) -> Result<[LinearWeights; N]> {
        let stored = self.matrix(role, layer, rows, inputs)?;
        let bias = self.bias(role, layer, rows)?;
        let mut list = Vec::with_capacity(N);
        for part in parts {
            list.push(self.linear_part(&stored, bias.as_deref(), part)?);
        }
        Ok(std::array::from_fn(|i| list[i]))
    }

    /// Adds a separately stored vector to the bias of a projection.
    pub fn add_bias(
        &mut self,
        linear: &mut LinearWeights,
        role: &TensorRole,
        layer: usize,
    ) -> Result<()> {
        let vector = self.vector(role, layer, linear.outputs)?;
        let mut sum = vector.ok_or_else(|| self.missing(role, layer))?;
        if let Some(bias) = linear.bias {
            let own = self.weights.get(bias).as_f32();
            sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        linear.bias = Some(self.constant(role.gguf, sum));
        Ok(())
    }

    /// Weights of some channels of a convolution, ordered by tap, and their biases.
    pub fn conv(
        &mut self,
        role: &TensorRole,
        layer: usize,
        (n_channels, kernel): (usize, usize),
        channels: std::ops::Range<usize>,
    ) -> Result<(WeightId, Option<WeightId>)> {
        let info = self.required(role, layer)?;
        let floats = self.floats(info, &[n_channels, kernel])?;
        let tap = |tap: usize| channels.clone().map(move |c| c * kernel + tap);
        let taps = (0..kernel).flat_map(tap).map(|at| floats[at]).collect();
        let weight = self.constant(&info.name, taps);
        let bias = self.bias(role, layer, n_channels)?;
        let bias = bias.map(|bias| self.constant(&info.name, bias[channels].to_vec()));
        Ok((weight, bias))
    }

    /// Negative decay rates, each of `len` rates repeated `repeat` times. Hugging Face files store
    /// the logarithms of their absolute values.
    pub fn decay_rates(
        &mut self,
        role: &TensorRole,
        layer: usize,
        shape: &[usize],
        repeat: usize,
    ) -> Result<WeightId> {
        let info = self.required(role, layer)?;
        let mut floats = self.floats(info, shape)?;
        if !self.is_gguf() {
            floats.iter_mut().for_each(|a| *a = -a.exp());
        }
        let repeated = floats.iter().flat_map(|&a| std::iter::repeat_n(a, repeat));
        Ok(self.constant(&info.name, repeated.collect()))
    }

    /// Required vector.
    pub fn required_vector(
        &mut self,
        role: &TensorRole,
        layer: usize,
        len: usize,
    ) -> Result<WeightId> {
        let vector = self.vector_weight(role, layer, len)?;
        vector.ok_or_else(|| self.missing(role, layer))
    }

    /// Required vector, which the file may store with a dimension for heads.
    pub fn flat_vector(&mut self, role: &TensorRole, layer: usize, len: usize) -> Result<WeightId> {
        let floats = self.flat_floats(role, layer, len)?;
        Ok(self.constant(role.gguf, floats))
    }

    /// Vector of heads × dim as a stack of one-row matrices.
    pub fn head_rows(
        &mut self,
        role: &TensorRole,
        layer: usize,
        (n_heads, dim): (usize, usize),
    ) -> Result<WeightId> {
        let floats = self.flat_floats(role, layer, n_heads * dim)?;
        Ok(self.weights.push_stack(role.gguf, floats, n_heads))
    }

    fn flat_floats(&mut self, role: &TensorRole, layer: usize, len: usize) -> Result<Vec<f32>> {
        let info = self.required(role, layer)?;
        let dims = info.dims();
        match dims.iter().product::<usize>() == len {
            true => self.floats(info, &dims),
            false => self.floats(info, &[len]),
        }
    }

    /// Rank of a projection from `inputs`, from the shape of its tensor.
    pub fn low_rank(&self, role: &TensorRole, layer: usize, inputs: usize) -> Result<usize> {
        let shape = self.shape(role, layer);
        let rank = match (self.is_transposed(role), shape.as_slice()) {
            (true, [n, rank]) if *n == inputs => Some(*rank),
            (false, [rank, n]) if *n == inputs => Some(*rank),
            _ => None,
        };
        let rank = rank.filter(|&rank| rank > 0);
        rank.ok_or_else(|| match self.required(role, layer) {
            Ok(info) => self.bad_shape(info, &[1, inputs]),
            Err(missing) => missing,
        })
    }

    /// Norm of `groups` groups, with weights for all of them, and biases if the file contains them.
    pub fn group_norm(
        &mut self,
        role: &TensorRole,
        layer: usize,
        kind: NormKind,
        (groups, width): (usize, usize),
        epsilon: f32,
    ) -> Result<NormWeights> {
        let mut norm = NormWeights::unweighted(kind, width, epsilon);
        let info = self.required(role, layer)?;
        let dims = info.dims();
        let flat = [groups * width];
        let shape: &[usize] = match dims.iter().filter(|&&d| d != 1).count() {
            2 => &[groups, width],
            _ => &flat,
        };
        let floats = self.floats(info, shape)?;
        norm.weight = Some(self.constant(&info.name, floats));
        let bias = self.bias(role, layer, groups * width)?;
        norm.bias = bias.map(|bias| self.constant(&info.name, bias));
        Ok(norm)
    }

    /// Token-shift weights, from one tensor or from several.
    pub fn shift_weights(
        &mut self,
        roles: &[TensorRole],
        layer: usize,
        width: usize,
    ) -> Result<Vec<WeightId>> {
        let Some(info) = self.find(&TIME_MIX_LERP_FUSED, layer, WEIGHT) else {
            let own = roles.iter();
            return own
                .map(|role| self.required_vector(role, layer, width))
                .collect();
        };
        let all = self.floats(info, &[roles.len(), width])?;
        let own = all.chunks_exact(width);
        Ok(own
            .map(|own| self.constant(&info.name, own.to_vec()))
            .collect())
    }

    /// Marks a tensor that has no use as used.
    pub fn ignore(&mut self, role: &TensorRole, layer: usize) -> Result<()> {
        if let Some(info) = self.find(role, layer, WEIGHT) {
            self.data(info)?;
        }
        Ok(())
    }
}
