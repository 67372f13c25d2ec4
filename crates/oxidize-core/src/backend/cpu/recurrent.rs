//! The recurrent ops. Convolutions are computed by rows; scans and linear attention by heads, whose states are
//! independent.

use super::row_ops::parallel_rows;
use super::session::{CpuSession, Worker};
use crate::backend::{BackendError, SessionConfig, StateRun};
use crate::graph::{
    Activation, LinearAttentionOp, Plan, SelectiveScanOp, ShortConvOp, StateInfo, StateUpdate,
    ValueId,
};
use oxidize_kernels::Kernels;

/// The recurrent states of all slots.
pub(super) struct States {
    list: Vec<State>,
    /// For each token of the batch, the index of its [`StateRun`].
    run_of_token: Vec<usize>,
    /// Results by head, before they are put in rows.
    by_head: Vec<f32>,
}

/// The state of one op: `[head][slot][element]`.
struct State {
    data: Vec<f32>,
    n_slots: usize,
    len: usize,
}

impl States {
    pub(super) fn new(plan: &Plan, config: &SessionConfig) -> Result<States, BackendError> {
        let n_slots = config.state_slots;
        let list = plan.states.iter().map(|info| State::new(info, n_slots));
        Ok(States {
            list: list.collect::<Result<_, _>>()?,
            run_of_token: Vec::with_capacity(config.max_tokens),
            by_head: Vec::new(),
        })
    }

    /// Starts a batch with these runs: the states of sequences that start are zeroed.
    pub(super) fn begin(&mut self, runs: &[StateRun]) {
        if self.list.is_empty() {
            return;
        }
        self.run_of_token.clear();
        for (index, run) in runs.iter().enumerate() {
            self.run_of_token.resize(run.tokens.end, index);
            if run.fresh {
                self.list.iter_mut().for_each(|state| state.clear(run.slot));
            }
        }
    }

    pub(super) fn copy(&mut self, from: usize, to: usize) {
        self.list.iter_mut().for_each(|state| state.copy(from, to));
    }
}

impl State {
    fn new(info: &StateInfo, n_slots: usize) -> Result<State, BackendError> {
        let size = info.n_heads.checked_mul(info.len);
        let size = size.and_then(|size| size.checked_mul(n_slots));
        let size = size.unwrap_or(usize::MAX);
        let mut probe = Vec::<f32>::new();
        if probe.try_reserve_exact(size).is_err() {
            return Err(BackendError::OutOfMemory {
                bytes: size.saturating_mul(4),
                what: "recurrent state",
            });
        }
        drop(probe);
        // The system zeroes a page when it is first used.
        Ok(State {
            data: vec![0.0; size],
            n_slots,
            len: info.len,
        })
    }

    fn copy(&mut self, from: usize, to: usize) {
        for head in self.data.chunks_exact_mut((self.n_slots * self.len).max(1)) {
            head.copy_within(from * self.len..(from + 1) * self.len, to * self.len);
        }
    }

    fn clear(&mut self, slot: usize) {
        for head in self.data.chunks_exact_mut((self.n_slots * self.len).max(1)) {
            head[slot * self.len..(slot + 1) * self.len].fill(0.0);
        }
    }
}

/// State elements below which a thread takes several heads at once.
const MIN_ELEMENTS: usize = 1024;

impl CpuSession {
    pub(super) fn short_conv(&mut self, x: ValueId, spec: &ShortConvOp, out: ValueId) {
        let (kernels, weights) = (self.kernels, self.weights.clone());
        let channels = self.buffers.width(x);
        let kept_rows = spec.kernel - 1;
        let mut taken = self.buffers.take(out);
        let x = self.buffers.get(x);
        let States {
            list, run_of_token, ..
        } = &mut self.states;
        let (runs, state) = (self.validator.state_runs(), &mut list[spec.state].data);
        let taps = weights.get(spec.weight).as_f32();
        let bias = spec.bias.map(|bias| weights.get(bias).as_f32());
        // Start of the row `back` tokens before a run, in the state.
        let past =
            |run: &StateRun, back: usize| (run.slot * kept_rows + kept_rows - back) * channels;
        let body = |token: usize, out: &mut [f32]| {
            let run = &runs[run_of_token[token]];
            match bias {
                Some(bias) => out.copy_from_slice(bias),
                None => out.fill(0.0),
            }
            for (tap, taps) in taps.chunks_exact(channels).enumerate() {
                let back = kept_rows - tap;
                let input = match token.checked_sub(back) {
                    Some(row) if row >= run.tokens.start => &x[row * channels..],
                    _ => &state[past(run, run.tokens.start + back - token)..],
                };
                for ((out, tap), x) in out.iter_mut().zip(taps).zip(input) {
                    *out += tap * x;
                }
            }
            if let Some(activation) = spec.activation {
                kernels.activate(activation, out);
            }
        };
        let (pool, workers) = (&self.pool, &mut self.workers);
        parallel_rows(pool, workers, None, taken.rows(), channels, body);
        for run in runs {
            let own = run.slot * kept_rows * channels;
            let state = &mut state[own..own + kept_rows * channels];
            let new = run.tokens.len().min(kept_rows) * channels;
            state.copy_within(new.., 0);
            let (end, at) = (run.tokens.end * channels, state.len() - new);
            state[at..].copy_from_slice(&x[end - new..end]);
        }
        self.buffers.put(taken);
    }

    pub(super) fn selective_scan(
        &mut self,
        [x, dt, b, c]: [ValueId; 4],
        spec: &SelectiveScanOp,
        out: ValueId,
    ) {
        let weights = self.weights.clone();
        let (a, skip) = (
            weights.get(spec.a).as_f32(),
            weights.get(spec.skip).as_f32(),
        );
        let (head_dim, n_state) = (spec.head_dim, spec.n_state);
        let rates = a.len() / spec.n_heads;
        let heads_per_group = spec.n_heads / spec.n_groups;
        let (b_width, x_width) = (spec.n_groups * n_state, spec.n_heads * head_dim);
        let scan = |heads: HeadWork<'_>, worker: &mut Worker| {
            let HeadWork {
                session,
                head,
                token,
                state,
                out,
            } = heads;
            let kernels = session.kernels;
            let row = |value: ValueId, width: usize| &session.get(value)[token * width..][..width];
            let group = head / heads_per_group;
            let b = &row(b, b_width)[group * n_state..(group + 1) * n_state];
            let c = &row(c, b_width)[group * n_state..(group + 1) * n_state];
            let x = &row(x, x_width)[head * head_dim..(head + 1) * head_dim];
            let step = row(dt, spec.n_heads)[head];
            let decay = &mut worker.floats;
            decay.clear();
            decay.extend(a[head * rates..(head + 1) * rates].iter().map(|a| step * a));
            kernels.activate(Activation::Exp, decay);
            let elements = state.chunks_exact_mut(n_state).zip(x.iter().zip(out));
            for (state, (x, out)) in elements {
                let new = step * x;
                if let [decay] = decay[..] {
                    for (s, b) in state.iter_mut().zip(b) {
                        *s = *s * decay + new * b;
                    }
                } else {
                    for ((s, decay), b) in state.iter_mut().zip(&*decay).zip(b) {
                        *s = *s * decay + new * b;
                    }
                }
                *out = kernels.dot(state, c) + skip[head] * x;
            }
        };
        self.by_heads(spec.state, (spec.n_heads, head_dim), out, scan);
    }

    pub(super) fn linear_attention(
        &mut self,
        [q, k, v, decay]: [ValueId; 4],
        spec: &LinearAttentionOp,
        out: ValueId,
    ) {
        let weights = self.weights.clone();
        let bonus = spec.bonus.map(|bonus| weights.get(bonus).as_f32());
        let (key_dim, value_dim) = (spec.key_dim, spec.value_dim);
        // One factor for the whole head, or one for each row of its matrix.
        let factors = self.buffers.width(decay) / spec.n_heads;
        let attend = |heads: HeadWork<'_>, worker: &mut Worker| {
            let HeadWork {
                session,
                head,
                token,
                state,
                out,
            } = heads;
            let kernels = session.kernels;
            let of_head = |value: ValueId, n_heads: usize, head: usize, dim: usize| {
                &session.get(value)[(token * n_heads + head) * dim..][..dim]
            };
            let key_head = spec.key_head(head);
            let q = of_head(q, spec.n_key_heads, key_head, key_dim);
            let k = of_head(k, spec.n_key_heads, key_head, key_dim);
            let v = of_head(v, spec.n_heads, head, value_dim);
            let decay = of_head(decay, spec.n_heads, head, factors);
            let of_key = |value: ValueId| of_head(value, spec.n_heads, head, key_dim);
            if let Some(bonus) = bonus {
                let bonus = &bonus[head * key_dim..(head + 1) * key_dim];
                let own: f32 = q
                    .iter()
                    .zip(k)
                    .zip(bonus)
                    .map(|((q, k), u)| q * k * u)
                    .sum();
                read_state(kernels, state, q, out);
                kernels.add_scaled(out, v, own);
            }
            let new = &mut worker.floats;
            new.resize(value_dim, 0.0);
            match spec.update {
                StateUpdate::Add => {
                    decay_state(kernels, state, decay, value_dim);
                    write_state(kernels, state, k, v);
                }
                StateUpdate::Delta { beta } => {
                    decay_state(kernels, state, decay, value_dim);
                    let beta = of_head(beta, spec.n_heads, head, 1)[0];
                    read_state(kernels, state, k, new);
                    for (new, v) in new.iter_mut().zip(v) {
                        *new = beta * (v - *new);
                    }
                    write_state(kernels, state, k, new);
                }
                StateUpdate::Rewrite { remove, add } => {
                    read_state(kernels, state, of_key(remove), new);
                    decay_state(kernels, state, decay, value_dim);
                    write_state(kernels, state, of_key(add), new);
                    write_state(kernels, state, k, v);
                }
            }
            if bonus.is_none() {
                read_state(kernels, state, q, out);
            }
        };
        self.by_heads(spec.state, (spec.n_heads, value_dim), out, attend);
    }

    /// Calls `body` for each head and token of the batch, the tokens of a sequence in order, and writes the
    /// results to the rows of `out`. Threads take neighboring heads.
    fn by_heads(
        &mut self,
        state: usize,
        (n_heads, dim): (usize, usize),
        out: ValueId,
        body: impl Fn(HeadWork<'_>, &mut Worker) + Sync,
    ) {
        let n_tokens = self.buffers.n_tokens;
        let mut taken = self.buffers.take(out);
        let States { list, by_head, .. } = &mut self.states;
        let State { data, n_slots, len } = &mut list[state];
        let (n_slots, len, runs) = (*n_slots, *len, self.validator.state_runs());
        by_head.resize((n_tokens * n_heads * dim).max(by_head.len()), 0.0);
        let results = &mut by_head[..n_tokens * n_heads * dim];
        // The smallest divisor of `n_heads` that makes enough work for a thread.
        let together = (1..=n_heads)
            .find(|&n| n_heads.is_multiple_of(n) && n * len >= MIN_ELEMENTS)
            .unwrap_or(n_heads);
        let session = Inputs {
            kernels: self.kernels,
            buffers: &self.buffers,
        };
        let part = |part: usize, states: &mut [f32], results: &mut [f32], worker: &mut Worker| {
            let heads = states.chunks_exact_mut(n_slots * len);
            let heads = heads.zip(results.chunks_exact_mut(n_tokens * dim));
            for (nth, (states, results)) in heads.enumerate() {
                for run in runs {
                    let state = &mut states[run.slot * len..(run.slot + 1) * len];
                    for token in run.tokens.clone() {
                        let work = HeadWork {
                            session,
                            head: part * together + nth,
                            token,
                            state: &mut *state,
                            out: &mut results[token * dim..(token + 1) * dim],
                        };
                        body(work, worker);
                    }
                }
            }
        };
        let n_parts = n_heads / together;
        self.pool
            .parts(n_parts, data, results, &mut self.workers, part);
        let (pool, workers, results) = (&self.pool, &mut self.workers, &*results);
        let width = n_heads * dim;
        parallel_rows(pool, workers, None, taken.rows(), width, |token, out| {
            for (head, out) in out.chunks_exact_mut(dim).enumerate() {
                out.copy_from_slice(&results[(head * n_tokens + token) * dim..][..dim]);
            }
        });
        self.buffers.put(taken);
    }
}

/// Arguments of the body of [`CpuSession::by_heads`], for one head and token.
struct HeadWork<'a> {
    session: Inputs<'a>,
    head: usize,
    token: usize,
    state: &'a mut [f32],
    out: &'a mut [f32],
}

/// Inputs of all heads.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    kernels: &'static Kernels,
    buffers: &'a super::memory::Buffers,
}

impl<'a> Inputs<'a> {
    fn get(&self, value: ValueId) -> &'a [f32] {
        self.buffers.get(value)
    }
}

/// `out = keyᵀ · state`, for a matrix of keys × values.
fn read_state(kernels: &Kernels, state: &[f32], key: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    for (&k, row) in key.iter().zip(state.chunks_exact(out.len())) {
        kernels.add_scaled(out, row, k);
    }
}

/// `state += key · valueᵀ`.
fn write_state(kernels: &Kernels, state: &mut [f32], key: &[f32], value: &[f32]) {
    for (&k, row) in key.iter().zip(state.chunks_exact_mut(value.len())) {
        kernels.add_scaled(row, value, k);
    }
}

/// Multiplies a matrix by its decay, as a whole or row by row.
fn decay_state(kernels: &Kernels, state: &mut [f32], decay: &[f32], value_dim: usize) {
    if let [decay] = decay[..] {
        return kernels.scale(state, decay);
    }
    for (&decay, row) in decay.iter().zip(state.chunks_exact_mut(value_dim)) {
        kernels.scale(row, decay);
    }
}
