//! Ops that compute each row of their output from the same row of their inputs, and lookups in tables.

use super::pool::{Matrix, Pool};
use super::session::{CpuSession, Worker};
use crate::backend::{BackendError, Batch};
use crate::graph::{NormKind, RopeFrequencies, RopeLayout, ValueId, WeightId};
use crate::weights::Weight;

/// Elements below which distributing work costs more than it saves.
const SERIAL: usize = 1 << 14;

impl CpuSession {
    pub(super) fn embed(
        &mut self,
        table: WeightId,
        out: ValueId,
        batch: &Batch<'_>,
    ) -> Result<(), BackendError> {
        let table = self.weights.get(table);
        let mut taken = self.buffers.take(out);
        for (row, &token) in taken.rows().chunks_exact_mut(table.cols).zip(batch.tokens) {
            let token = self.samples.resolve(token);
            read_row(table, token as usize, row)?;
        }
        self.buffers.put(taken);
        Ok(())
    }

    pub(super) fn embed_position(
        &mut self,
        table: WeightId,
        offset: usize,
        out: ValueId,
        batch: &Batch<'_>,
    ) -> Result<(), BackendError> {
        let table = self.weights.get(table);
        let mut taken = self.buffers.take(out);
        let rows = taken.rows().chunks_exact_mut(table.cols);
        for (row, &position) in rows.zip(batch.positions) {
            read_row(table, position as usize + offset, row)?;
        }
        self.buffers.put(taken);
        Ok(())
    }

    pub(super) fn rope_table(
        &mut self,
        frequencies: &RopeFrequencies,
        out: ValueId,
        batch: &Batch<'_>,
    ) {
        let RopeFrequencies { radians, magnitude } = frequencies;
        self.each_row(None, out, |row, out| {
            let position = batch.positions[row] as f32;
            let (cos, sin) = out.split_at_mut(radians.len());
            for ((cos, sin), radians) in cos.iter_mut().zip(sin).zip(radians) {
                let (s, c) = (position * radians).sin_cos();
                (*cos, *sin) = (c * magnitude, s * magnitude);
            }
        });
    }

    pub(super) fn norm(
        &mut self,
        kind: NormKind,
        x: ValueId,
        vectors: [Option<WeightId>; 2],
        epsilon: f32,
        width: usize,
        out: ValueId,
    ) {
        let (kernels, weights) = (self.kernels, self.weights.clone());
        let [weight, bias] = vectors.map(|id| id.map(|id| weights.get(id).as_f32()));
        self.map(x, out, |x| {
            for (index, group) in x.chunks_exact_mut(width).enumerate() {
                let [weight, bias] = [weight, bias].map(|vector| {
                    // A vector is as long as one group, or as a whole row.
                    let vector = vector?;
                    let start = index % (vector.len() / width) * width;
                    Some(&vector[start..start + width])
                });
                match kind {
                    NormKind::Rms => {
                        kernels.rms_norm_in_place(group, weight, epsilon);
                        if let Some(bias) = bias {
                            kernels.add(group, bias);
                        }
                    }
                    NormKind::Layer => kernels.layer_norm_in_place(group, weight, bias, epsilon),
                }
            }
        });
    }

    pub(super) fn add_segment(
        &mut self,
        x: ValueId,
        table: WeightId,
        out: ValueId,
        batch: &Batch<'_>,
    ) {
        let (kernels, weights) = (self.kernels, self.weights.clone());
        let (width, table) = (self.buffers.width(x), weights.get(table).as_f32());
        let mut segments = std::mem::take(&mut self.segments);
        segments.clear();
        segments.extend(batch.segments());
        self.each_row(Some(x), out, |row, x| {
            kernels.add(x, &table[segments[row] * width..][..width]);
        });
        self.segments = segments;
    }

    pub(super) fn select_outputs(&mut self, x: ValueId, out: ValueId, batch: &Batch<'_>) {
        let width = self.buffers.width(x);
        let mut taken = self.buffers.take(out);
        let x = self.buffers.get(x);
        for (out, &row) in taken.rows().chunks_exact_mut(width).zip(batch.outputs) {
            out.copy_from_slice(&x[row as usize * width..][..width]);
        }
        self.buffers.put(taken);
    }

    pub(super) fn weighted_sum(
        &mut self,
        terms: &[ValueId],
        weights: ValueId,
        offset: usize,
        out: ValueId,
    ) {
        let (width, n_weights) = (self.buffers.width(out), self.buffers.width(weights));
        let mut taken = self.buffers.take(out);
        let factors = self.buffers.get(weights);
        for (row, out) in taken.rows().chunks_exact_mut(width).enumerate() {
            out.fill(0.0);
            for (i, &term) in terms.iter().enumerate() {
                let term = &self.buffers.get(term)[row * width..(row + 1) * width];
                let factor = factors[row * n_weights + offset + i];
                self.kernels.add_scaled(out, term, factor);
            }
        }
        self.buffers.put(taken);
    }

    /// Multiplies the low-rank activations of an adapter by its scale for each sequence. Rows are as short as
    /// the rank.
    pub(super) fn adapter_scale(
        &mut self,
        x: ValueId,
        adapter: usize,
        factor: f32,
        out: ValueId,
        batch: &Batch<'_>,
    ) {
        let (kernels, width) = (self.kernels, self.buffers.width(out));
        let mut taken = self.buffers.take(out);
        if let Some(source) = self.buffers.source(x, out) {
            taken.rows().copy_from_slice(source);
        }
        let scales = batch.scales(self.buffers.row_kind(out), adapter);
        for (row, scale) in taken.rows().chunks_exact_mut(width).zip(scales) {
            kernels.scale(row, factor * scale);
        }
        self.buffers.put(taken);
    }

    /// `out = a · b`, where each element of `b` multiplies a group of neighboring elements of `a`.
    pub(super) fn mul(&mut self, a: ValueId, b: ValueId, out: ValueId) {
        let (kernels, width) = (self.kernels, self.buffers.width(a));
        let b_width = self.buffers.width(b);
        let mut taken = self.buffers.take(out);
        let (source, b) = (self.buffers.source(a, out), self.buffers.get(b));
        let (pool, workers) = (&self.pool, &mut self.workers);
        parallel_rows(pool, workers, source, taken.rows(), width, |row, a| {
            let b = &b[row * b_width..(row + 1) * b_width];
            if b_width == width {
                return kernels.mul(a, b);
            }
            let groups = a.chunks_exact_mut(width / b_width).zip(b);
            groups.for_each(|(group, &factor)| kernels.scale(group, factor));
        });
        self.buffers.put(taken);
    }

    /// Computes each row of `out` from a row of `x` that may be wider.
    pub(super) fn gather(
        &mut self,
        out: ValueId,
        x: ValueId,
        f: impl Fn(&[f32], &mut [f32]) + Sync,
    ) {
        let x_width = self.buffers.width(x);
        let width = self.buffers.width(out);
        let mut taken = self.buffers.take(out);
        let x = self.buffers.get(x);
        let (pool, workers) = (&self.pool, &mut self.workers);
        parallel_rows(pool, workers, None, taken.rows(), width, |row, out| {
            f(&x[row * x_width..(row + 1) * x_width], out);
        });
        self.buffers.put(taken);
    }

    pub(super) fn concat(&mut self, a: ValueId, b: ValueId, groups: usize, out: ValueId) {
        let (a_len, b_len) = (
            self.buffers.width(a) / groups,
            self.buffers.width(b) / groups,
        );
        let width = self.buffers.width(out);
        let mut taken = self.buffers.take(out);
        let (a, b) = (self.buffers.get(a), self.buffers.get(b));
        let (pool, workers) = (&self.pool, &mut self.workers);
        parallel_rows(pool, workers, None, taken.rows(), width, |row, out| {
            for (group, out) in out.chunks_exact_mut(a_len + b_len).enumerate() {
                let index = row * groups + group;
                let (first, second) = out.split_at_mut(a_len);
                first.copy_from_slice(&a[index * a_len..(index + 1) * a_len]);
                second.copy_from_slice(&b[index * b_len..(index + 1) * b_len]);
            }
        });
        self.buffers.put(taken);
    }

    pub(super) fn rope(
        &mut self,
        x: ValueId,
        table: ValueId,
        head_dim: usize,
        layout: RopeLayout,
        out: ValueId,
    ) {
        let (kernels, dims) = (self.kernels, self.buffers.width(table));
        let width = self.buffers.width(out);
        let mut taken = self.buffers.take(out);
        let (source, table) = (self.buffers.source(x, out), self.buffers.get(table));
        let (pool, workers) = (&self.pool, &mut self.workers);
        parallel_rows(pool, workers, source, taken.rows(), width, |row, x| {
            let (cos, sin) = table[row * dims..(row + 1) * dims].split_at(dims / 2);
            kernels.rope(x, head_dim, cos, sin, layout);
        });
        self.buffers.put(taken);
    }

    /// `out = f(x)`, row by row.
    pub(super) fn map(&mut self, x: ValueId, out: ValueId, f: impl Fn(&mut [f32]) + Sync) {
        self.each_row(Some(x), out, |_, row| f(row));
    }

    /// Computes `out` row by row, from a copy of `x` if given.
    pub(super) fn each_row(
        &mut self,
        x: Option<ValueId>,
        out: ValueId,
        f: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let width = self.buffers.width(out);
        let mut taken = self.buffers.take(out);
        let source = x.and_then(|x| self.buffers.source(x, out));
        let (pool, workers) = (&self.pool, &mut self.workers);
        parallel_rows(pool, workers, source, taken.rows(), width, f);
        self.buffers.put(taken);
    }

    /// `out = f(a, b)`, row by row.
    pub(super) fn zip(
        &mut self,
        a: ValueId,
        b: ValueId,
        out: ValueId,
        f: impl Fn(&mut [f32], &[f32]) + Sync,
    ) {
        let width = self.buffers.width(out);
        let mut taken = self.buffers.take(out);
        let (source, b) = (self.buffers.source(a, out), self.buffers.get(b));
        let (pool, workers) = (&self.pool, &mut self.workers);
        parallel_rows(pool, workers, source, taken.rows(), width, |row, a| {
            f(a, &b[row * width..(row + 1) * width]);
        });
        self.buffers.put(taken);
    }
}

fn read_row(table: &Weight, row: usize, out: &mut [f32]) -> Result<(), BackendError> {
    let problem = |error| BackendError::Malformed(format!("{}: {error}", table.name));
    table.read_row(row, out).map_err(problem)
}

/// Calls `f` with each row of `out`, filled from `source` if given, on all threads.
pub(super) fn parallel_rows(
    pool: &Pool,
    workers: &mut [Worker],
    source: Option<&[f32]>,
    out: &mut [f32],
    width: usize,
    f: impl Fn(usize, &mut [f32]) + Sync,
) {
    let matrix = Matrix {
        data: out,
        cols: width,
    };
    pool.rows(matrix, serial_rows(width), workers, |rows, data, _| {
        if let Some(source) = source {
            data.copy_from_slice(&source[rows.start * width..rows.end * width]);
        }
        for (row, data) in rows.zip(data.chunks_exact_mut(width)) {
            f(row, data);
        }
    });
}

/// Rows that one thread takes at a time. Fewer are not worth distributing.
pub(super) fn serial_rows(width: usize) -> usize {
    (SERIAL / width).max(1)
}
