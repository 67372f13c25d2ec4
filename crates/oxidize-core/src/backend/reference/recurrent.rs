//! The recurrent ops of the reference backend, token by token as in the formulas.

use super::ReferenceSession;
use super::math::{activate, dot};
use crate::backend::SessionConfig;
use crate::graph::{LinearAttentionOp, Plan, SelectiveScanOp, ShortConvOp, StateUpdate, ValueId};

/// The state of one op: `[slot][head][element]`.
pub(super) struct State {
    data: Vec<f32>,
    n_heads: usize,
    len: usize,
}

impl State {
    fn slot(&mut self, slot: usize) -> &mut [f32] {
        let len = self.n_heads * self.len;
        &mut self.data[slot * len..(slot + 1) * len]
    }

    pub(super) fn copy(&mut self, from: usize, to: usize) {
        let copied = self.slot(from).to_vec();
        self.slot(to).copy_from_slice(&copied);
    }
}

/// The states of a plan.
pub(super) fn states(plan: &Plan, config: &SessionConfig) -> Vec<State> {
    let state = |info: &crate::graph::StateInfo| State {
        data: vec![0.0; config.state_slots * info.n_heads * info.len],
        n_heads: info.n_heads,
        len: info.len,
    };
    plan.states.iter().map(state).collect()
}

impl ReferenceSession {
    /// Zeroes the states of sequences that start in the current batch.
    pub(super) fn begin_states(&mut self) {
        for run in self.validator.state_runs().iter().filter(|run| run.fresh) {
            for state in &mut self.states {
                state.slot(run.slot).fill(0.0);
            }
        }
    }

    /// The row of a token in a value.
    fn row(&self, value: ValueId, token: usize) -> &[f32] {
        let width = self.plan.value(value).width;
        &self.value(value)[token * width..(token + 1) * width]
    }

    pub(super) fn short_conv(&mut self, x: ValueId, spec: &ShortConvOp) -> Vec<f32> {
        let channels = self.plan.value(x).width;
        let mut out = Vec::with_capacity(self.value(x).len());
        for run in self.validator.state_runs().to_vec() {
            for token in run.tokens {
                // The rows of the state, then the token's own.
                let mut input = self.states[spec.state].slot(run.slot).to_vec();
                input.extend_from_slice(self.row(x, token));
                let weight = self.weights.get(spec.weight).as_f32();
                for channel in 0..channels {
                    let taps = (0..spec.kernel).map(|tap| tap * channels + channel);
                    let sum: f64 = taps
                        .map(|at| f64::from(input[at]) * f64::from(weight[at]))
                        .sum();
                    let bias = self.vector(spec.bias).map_or(0.0, |bias| bias[channel]);
                    let y = sum as f32 + bias;
                    out.push(spec.activation.map_or(y, |f| activate(f, y)));
                }
                let kept = &input[channels..];
                self.states[spec.state].slot(run.slot).copy_from_slice(kept);
            }
        }
        out
    }

    pub(super) fn selective_scan(
        &mut self,
        [x, dt, b, c]: [ValueId; 4],
        spec: &SelectiveScanOp,
    ) -> Vec<f32> {
        let SelectiveScanOp {
            n_heads,
            head_dim,
            n_groups,
            n_state,
            ..
        } = *spec;
        let mut out = Vec::with_capacity(self.value(x).len());
        for run in self.validator.state_runs().to_vec() {
            let mut state = self.states[spec.state].slot(run.slot).to_vec();
            for token in run.tokens {
                for head in 0..n_heads {
                    let a = self.weights.get(spec.a).as_f32();
                    let skip = self.weights.get(spec.skip).as_f32()[head];
                    let group = head / (n_heads / n_groups);
                    let of_group = |value: ValueId| {
                        &self.row(value, token)[group * n_state..(group + 1) * n_state]
                    };
                    let (b, c) = (of_group(b), of_group(c));
                    let step = self.row(dt, token)[head];
                    for i in 0..head_dim {
                        let element = head * head_dim + i;
                        let x = self.row(x, token)[element];
                        let kept = &mut state[element * n_state..(element + 1) * n_state];
                        for (n, kept) in kept.iter_mut().enumerate() {
                            let a = a[head * (a.len() / n_heads) + n % (a.len() / n_heads)];
                            *kept = *kept * (step * a).exp() + step * x * b[n];
                        }
                        out.push(dot(kept, c) + skip * x);
                    }
                }
            }
            self.states[spec.state]
                .slot(run.slot)
                .copy_from_slice(&state);
        }
        out
    }

    pub(super) fn linear_attention(
        &mut self,
        [q, k, v, decay]: [ValueId; 4],
        spec: &LinearAttentionOp,
    ) -> Vec<f32> {
        let (key_dim, value_dim) = (spec.key_dim, spec.value_dim);
        let mut out = Vec::with_capacity(self.value(v).len());
        for run in self.validator.state_runs().to_vec() {
            let mut states = self.states[spec.state].slot(run.slot).to_vec();
            for token in run.tokens {
                for (head, state) in states.chunks_exact_mut(key_dim * value_dim).enumerate() {
                    let of_head = |value: ValueId, head: usize, dim: usize| {
                        &self.row(value, token)[head * dim..(head + 1) * dim]
                    };
                    let key_head = spec.key_head(head);
                    let (q, k) = (of_head(q, key_head, key_dim), of_head(k, key_head, key_dim));
                    let v = of_head(v, head, value_dim);
                    // One factor for the whole head, or one for each row of its matrix.
                    let factors = self.plan.value(decay).width / spec.n_heads;
                    let decay = of_head(decay, head, factors);

                    let before = state.to_vec();
                    for (i, row) in state.chunks_exact_mut(value_dim).enumerate() {
                        row.iter_mut().for_each(|s| *s *= decay[i % factors]);
                    }
                    match spec.update {
                        StateUpdate::Add => write(state, k, v),
                        StateUpdate::Delta { beta } => {
                            let beta = of_head(beta, head, 1)[0];
                            let known = read(state, k, value_dim);
                            let new = v.iter().zip(known).map(|(v, known)| beta * (v - known));
                            write(state, k, &new.collect::<Vec<f32>>());
                        }
                        StateUpdate::Rewrite { remove, add } => {
                            let known = read(&before, of_head(remove, head, key_dim), value_dim);
                            write(state, of_head(add, head, key_dim), &known);
                            write(state, k, v);
                        }
                    }
                    match self.vector(spec.bonus) {
                        None => out.extend(read(state, q, value_dim)),
                        Some(bonus) => {
                            let bonus = &bonus[head * key_dim..(head + 1) * key_dim];
                            let own: Vec<f32> = k.iter().zip(bonus).map(|(k, u)| k * u).collect();
                            let own = dot(q, &own);
                            let past = read(&before, q, value_dim);
                            out.extend(past.iter().zip(v).map(|(past, v)| past + own * v));
                        }
                    }
                }
            }
            self.states[spec.state]
                .slot(run.slot)
                .copy_from_slice(&states);
        }
        out
    }
}

/// `keyᵀ · state`, for a matrix of keys × values.
fn read(state: &[f32], key: &[f32], value_dim: usize) -> Vec<f32> {
    let mut sum = vec![0f64; value_dim];
    for (&k, row) in key.iter().zip(state.chunks_exact(value_dim)) {
        let terms = row.iter().map(|&s| f64::from(k) * f64::from(s));
        sum.iter_mut()
            .zip(terms)
            .for_each(|(sum, term)| *sum += term);
    }
    sum.into_iter().map(|x| x as f32).collect()
}

/// `state += key · valueᵀ`.
fn write(state: &mut [f32], key: &[f32], value: &[f32]) {
    for (&k, row) in key.iter().zip(state.chunks_exact_mut(value.len())) {
        row.iter_mut().zip(value).for_each(|(s, v)| *s += k * v);
    }
}
