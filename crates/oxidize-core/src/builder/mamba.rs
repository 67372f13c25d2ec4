//! Selective state spaces: Mamba (Gu & Dao 2023) and Mamba 2 (Dao & Gu 2024).

use super::decoder::Block;
use crate::arch::hparams::RecurrentParams;
use crate::arch::names::*;
use crate::error::Result;
use crate::graph::{Activation, Op, SelectiveScanOp, ValueId};
use crate::weights::{NormWeights, RowSlice};

impl Block<'_, '_> {
    /// Mamba 1: a low-rank step size for each channel.
    pub(super) fn mamba(&mut self, h: ValueId, params: &RecurrentParams) -> Result<ValueId> {
        let (inner, n_state) = (params.inner, params.state_dim);
        let n_embd = self.hp.n_embd;
        let parts = [RowSlice::range(0, inner), RowSlice::range(inner, inner)];
        let [x, z] = self
            .weights
            .split(&SSM_IN, self.layer, (n_embd, 2 * inner), parts)?;
        let (x, z) = (self.g.linear(h, &x), self.g.linear(h, &z));
        let shape = (inner, params.kernel);
        let x = self.conv(x, &SSM_CONV, shape, 0..inner, Some(Activation::Silu))?;

        let rank = self.weights.shape(&SSM_DT, self.layer);
        let rank = rank.last().copied().unwrap_or(0).min(inner);
        let rows = rank + 2 * n_state;
        let parts = [
            RowSlice::range(0, rank),
            RowSlice::range(rank, n_state),
            RowSlice::range(rank + n_state, n_state),
        ];
        let [dt, b, c] = self
            .weights
            .split(&SSM_X, self.layer, (inner, rows), parts)?;
        let (dt, b) = (self.g.linear(x, &dt), self.g.linear(x, &b));
        let c = self.g.linear(x, &c);
        let dt = self.inner_norm(dt, &SSM_DT_NORM, params)?;
        let b = self.inner_norm(b, &SSM_B_NORM, params)?;
        let c = self.inner_norm(c, &SSM_C_NORM, params)?;
        let dt = self.linear(dt, &SSM_DT, inner)?;
        let dt = self.g.activate(dt, Activation::Softplus);

        let a = [inner, n_state];
        let spec = SelectiveScanOp {
            state: self.g.state(inner, n_state),
            n_heads: inner,
            head_dim: 1,
            n_groups: 1,
            n_state,
            a: self.weights.decay_rates(&SSM_A, self.layer, &a, 1)?,
            skip: self.weights.required_vector(&SSM_D, self.layer, inner)?,
        };
        let y = self.scan([x, dt, b, c], spec);
        let y = self.g.glu(z, y, Activation::Silu);
        self.linear(y, &SSM_OUT, n_embd)
    }

    /// Norm inside the mixer. It has weights if the file contains them; some families use it
    /// without weights.
    fn inner_norm(
        &mut self,
        x: ValueId,
        role: &TensorRole,
        params: &RecurrentParams,
    ) -> Result<ValueId> {
        let width = self.g.width(x);
        if self.weights.has(role, self.layer) {
            let norm = self.weights.norm(role, self.layer, width, params.epsilon)?;
            return Ok(self.g.norm(x, &norm));
        }
        if !params.inner_norms {
            return Ok(x);
        }
        let norm = NormWeights::unweighted(self.arch.norm, width, params.epsilon);
        Ok(self.g.norm(x, &norm))
    }

    /// Mamba 2: a step size and a decay rate for each head.
    pub(super) fn mamba2(&mut self, h: ValueId, params: &RecurrentParams) -> Result<ValueId> {
        let RecurrentParams {
            inner,
            n_heads,
            n_groups,
            state_dim: n_state,
            ..
        } = *params;
        let (n_embd, shared) = (self.hp.n_embd, n_groups * n_state);
        let multipliers = self.hp.multipliers.clone();
        let h = self.g.scale(h, multipliers.ssm_in);
        // Gate, input, B, C, steps.
        let widths = params.mamba2_rows();
        let mut rows = 0;
        let parts = widths.map(|len| {
            rows += len;
            RowSlice::range(rows - len, len)
        });
        let mut linears = self
            .weights
            .split(&SSM_IN, self.layer, (n_embd, rows), parts)?;
        self.weights
            .add_bias(&mut linears[4], &SSM_DT_BIAS, self.layer)?;
        let mut values = [h; 5];
        for ((value, linear), factor) in values.iter_mut().zip(&linears).zip(multipliers.ssm) {
            let scaled = self.g.scale(h, factor);
            *value = self.g.linear(scaled, linear);
        }
        let [z, x, b, c, dt] = values;

        let channels = inner + 2 * shared;
        let mut conv = |x: ValueId, start: usize, len: usize| {
            let (shape, range) = ((channels, params.kernel), start..start + len);
            self.conv(x, &SSM_CONV, shape, range, Some(Activation::Silu))
        };
        let x = conv(x, 0, inner)?;
        let b = conv(b, inner, shared)?;
        let c = conv(c, inner + shared, shared)?;
        let dt = self.g.activate(dt, Activation::Softplus);

        let head_dim = inner / n_heads;
        let spec = SelectiveScanOp {
            state: self.g.state(n_heads, head_dim * n_state),
            n_heads,
            head_dim,
            n_groups,
            n_state,
            a: self
                .weights
                .decay_rates(&SSM_A, self.layer, &[n_heads], 1)?,
            skip: self.weights.required_vector(&SSM_D, self.layer, n_heads)?,
        };
        let mut y = self.scan([x, dt, b, c], spec);
        if params.norm_before_gate {
            y = self.group_norm(y, params)?;
            y = self.g.glu(z, y, Activation::Silu);
        } else {
            y = self.g.glu(z, y, Activation::Silu);
            y = self.group_norm(y, params)?;
        }
        let out = self.linear(y, &SSM_OUT, n_embd)?;
        Ok(self.g.scale(out, multipliers.ssm_out))
    }

    fn group_norm(&mut self, y: ValueId, params: &RecurrentParams) -> Result<ValueId> {
        if !self.weights.has(&SSM_NORM, self.layer) {
            return Ok(y);
        }
        let groups = params.norm_groups;
        let shape = (groups, params.inner / groups);
        let kind = self.arch.norm;
        let norm = self
            .weights
            .group_norm(&SSM_NORM, self.layer, kind, shape, self.hp.epsilon)?;
        Ok(self.g.norm(y, &norm))
    }

    fn scan(&mut self, [x, dt, b, c]: [ValueId; 4], spec: SelectiveScanOp) -> ValueId {
        self.g.map(x, |out| Op::SelectiveScan {
            x,
            dt,
            b,
            c,
            spec,
            out,
        })
    }
}
