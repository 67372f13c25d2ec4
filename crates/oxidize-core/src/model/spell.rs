//! Weights spelled out: formats that look weights up in tables are rewritten in memory, once, to forms that give
//! each weight a code of its own ([`oxidize_kernels::quant::spelled`]) and are multiplied several times as fast.
//!
//! What is rewritten takes the place of what was there: pages of a mapped file are given back as soon as they were
//! read, and memory that the file was read into is freed.

use super::weights::{Weight, Weights};
use crate::file::{SpellOut, TensorBytes};
use crate::graph::{Op, Plan, WeightId};
use crate::io::SharedBytes;
use oxidize_kernels::Kernels;
use oxidize_kernels::quant::{TensorType, spelled_type};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::{io, thread};

/// Which weights of a mapped file are spelled out, and what became of them: the same for all sessions.
#[derive(Debug, Default)]
pub(super) struct Spelling {
    chosen: Vec<WeightId>,
    /// Those of `chosen`, or none if there was no memory.
    made: OnceLock<Vec<Weight>>,
}

impl Weights {
    /// Chooses what to spell out: of the weights that gain from it those that gain most for a byte, while they
    /// grow by no more than `most` together. Those of mapped files wait for the plan to be run; those that were
    /// `read` into memory of their own are rewritten at once, since nobody else can have seen them yet.
    pub(super) fn plan_spelling(&mut self, plan: &Plan, most: SpellOut, read: bool) {
        let available = super::available_memory().unwrap_or(u64::MAX);
        let mut left = most.bytes.min(available.saturating_sub(self.size()));
        let kernels = oxidize_kernels::select();
        let shares = shares_of_a_token(plan);
        let mut candidates: Vec<(f64, WeightId, u64)> = Vec::new();
        let wanted = |weight: &Weight| kernels.spelled_type(weight.ty).is_some();
        for (id, weight) in self.numbered().filter(|(_, weight)| wanted(weight)) {
            let (Some(share), Some(growth)) = (shares.get(&id), growth(weight)) else {
                continue;
            };
            let is_ours = |piece: &TensorBytes| match read {
                true => piece.is_alone(),
                false => piece.is_mapped(),
            };
            if !weight.pieces().iter().all(is_ours) {
                continue;
            }
            // Looking a weight up takes about as long in one format as in another.
            let n_weights = weight.rows * weight.cols * weight.n_experts;
            let gain = share * n_weights as f64 / growth.max(1) as f64;
            candidates.push((gain, id, growth));
        }
        // In the order of the file where the gain is the same.
        candidates.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
        let mut chosen = Vec::new();
        for (_, id, growth) in candidates {
            if growth <= left {
                left -= growth;
                chosen.push(id);
            }
        }
        if read {
            let threads = thread::available_parallelism().map_or(1, usize::from);
            for id in std::mem::take(&mut chosen) {
                // One by one, so that no more than one is there twice.
                match rewrite(&[self.get(id)], kernels, threads) {
                    Ok(spelled) => *self = self.replaced(spelled.into_iter().map(|w| (id, w))),
                    Err(error) => tracing::warn!("a weight stays as it was read: {error}"),
                }
            }
        }
        chosen.sort();
        self.spelling = Arc::new(Spelling {
            chosen,
            made: OnceLock::new(),
        });
    }

    /// Bytes that the weights will grow by where they are run.
    pub fn growth(&self) -> u64 {
        let chosen = self.spelling.chosen.iter();
        chosen.filter_map(|id| growth(self.get(*id))).sum()
    }

    /// The weights as a session with these kernels reads them: those that were chosen are spelled out if the
    /// kernels want it, the first time on all threads.
    pub(crate) fn spelled_out(&self, kernels: &Kernels, n_threads: usize) -> Weights {
        let wanted = |id: &WeightId| kernels.spelled_type(self.get(*id).ty).is_some();
        if !self.spelling.chosen.iter().any(wanted) {
            return self.clone();
        }
        let chosen = &self.spelling.chosen;
        let made = self.spelling.made.get_or_init(|| {
            let chosen: Vec<&Weight> = chosen.iter().map(|id| self.get(*id)).collect();
            rewrite(&chosen, kernels, n_threads).unwrap_or_else(|error| {
                tracing::warn!("weights stay as they are in the file: {error}");
                Vec::new()
            })
        });
        self.replaced(chosen.iter().copied().zip(made.iter().cloned()))
    }
}

/// How much of each matrix a token is multiplied with: all of it, or some of a layer's experts. What is only
/// looked up, such as embeddings, is not there.
fn shares_of_a_token(plan: &Plan) -> HashMap<WeightId, f64> {
    let mut shares = HashMap::new();
    for op in &plan.ops {
        let share = match op {
            Op::Linear { .. } | Op::HeadLinear { .. } => 1.0,
            Op::Experts { spec, .. } => {
                spec.routing.n_used as f64 / spec.routing.n_experts.max(1) as f64
            }
            _ => continue,
        };
        for id in op.weights() {
            *shares.entry(id).or_insert(0.0) += share;
        }
    }
    shares
}

/// Bytes that a weight grows by if it is spelled out; `None` if it cannot be.
fn growth(weight: &Weight) -> Option<u64> {
    let spelled = spelled_type(weight.ty)?;
    let blocks = weight.size() / weight.ty.block_bytes() as u64;
    let more = spelled.block_bytes().checked_sub(weight.ty.block_bytes())?;
    Some(blocks * more as u64)
}

/// Bytes that pieces of weights begin at multiples of.
const LINE: usize = 64;
/// Blocks that a thread rewrites at a time: small beside a weight, large beside the call that gives pages back.
const BLOCKS: usize = 4096;

/// The weights in their other form, one after the other in new memory.
fn rewrite(weights: &[&Weight], kernels: &Kernels, n_threads: usize) -> io::Result<Vec<Weight>> {
    let mut end = 0;
    let mut places = Vec::new();
    for (weight, spelled) in weights
        .iter()
        .filter_map(|w| Some((w, spelled_type(w.ty)?)))
    {
        for piece in weight.pieces() {
            let place = end..end + piece.len() / weight.ty.block_bytes() * spelled.block_bytes();
            end = place.end.next_multiple_of(LINE);
            places.push((weight.ty, spelled, piece, place));
        }
    }
    let all = SharedBytes::build::<io::Error>(end, |out| {
        let jobs = Mutex::new(jobs(&places, out).into_iter());
        let work = || {
            loop {
                let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(job) = job else { return Ok(()) };
                job.run(kernels)?;
            }
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..n_threads).map(|_| scope.spawn(work)).collect();
            let ours = work();
            let others = others.into_iter().map(|other| other.join());
            others.fold(ours, |first, other| {
                first.and(other.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            })
        })
    })?;
    // Where threads read side by side the system brings back some of what was given back before.
    for (.., piece, _) in &places {
        piece.release(0..piece.len());
    }
    let mut pieces = places.iter().map(|(.., place)| all.slice(place.clone()));
    let spelled = weights.iter().map(|weight| {
        let ty = spelled_type(weight.ty)?;
        let pieces: Option<Vec<TensorBytes>> =
            pieces.by_ref().take(weight.pieces().len()).collect();
        Some(weight.with_pieces(ty, pieces?))
    });
    let spelled: Option<Vec<Weight>> = spelled.collect();
    spelled.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
}

/// Some blocks of a piece of a weight, and where they go.
struct Job<'a> {
    ty: TensorType,
    piece: &'a TensorBytes,
    from: Range<usize>,
    to: &'a mut [u8],
}

fn jobs<'a>(
    places: &[(TensorType, TensorType, &'a TensorBytes, Range<usize>)],
    mut out: &'a mut [u8],
) -> Vec<Job<'a>> {
    let mut jobs = Vec::new();
    let mut at = 0;
    for (ty, spelled, piece, place) in places {
        // What lies between places stays zero.
        let (to, rest) = std::mem::take(&mut out)[place.start - at..].split_at_mut(place.len());
        (out, at) = (rest, place.end);
        let step = BLOCKS * ty.block_bytes();
        for (i, to) in to.chunks_mut(BLOCKS * spelled.block_bytes()).enumerate() {
            let from = i * step..piece.len().min((i + 1) * step);
            jobs.push(Job {
                ty: *ty,
                piece,
                from,
                to,
            });
        }
    }
    jobs
}

impl Job<'_> {
    fn run(self, kernels: &Kernels) -> io::Result<()> {
        let from = self.piece.get(self.from.clone());
        let from = from.ok_or(io::ErrorKind::UnexpectedEof)?;
        kernels
            .spell_out(self.ty, from, self.to)
            .map_err(io::Error::other)?;
        self.piece.release(self.from);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::Cpu;
    use crate::backend::{Batch, SeqSlice, SessionConfig};
    use crate::file::OpenOptions;
    use crate::io::Source;
    use crate::kv::BlockId;
    use crate::mix::Mix;
    use crate::model::{MemoryPlan, Model};
    use crate::synth::{Shape, Synthesis};
    use oxidize_kernels::{Isa, quant};
    use std::io::Write;

    const MIXES: [&str; 6] = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_S"];

    fn made(mix: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let synthesis = Synthesis {
            shape: Shape::named("tiny").unwrap(),
            mix: Mix::named(mix).unwrap(),
            seed: 1,
        };
        synthesis.write(&mut file, |_, _| {}).unwrap();
        file
    }

    fn load(file: &tempfile::NamedTempFile, spell_out: SpellOut, mmap: bool) -> Model {
        let options = OpenOptions {
            spell_out,
            mmap,
            ..OpenOptions::default()
        };
        Model::load(file.path(), &options).unwrap()
    }

    fn logits(model: &Model) -> Vec<f32> {
        let config = SessionConfig::for_context(64);
        let mut session = model.session(&Cpu::default(), &config).unwrap();
        let batch = Batch {
            tokens: &[1, 20, 300, 7, 45],
            positions: &[0, 1, 2, 3, 4],
            sequences: &[SeqSlice {
                slot: 0,
                n_tokens: 5,
                blocks: &[BlockId(0)],
                ..SeqSlice::default()
            }],
            outputs: &[4],
        };
        session.run(&batch).unwrap();
        session.output(0).unwrap().to_vec()
    }

    fn has_spelled(weights: &Weights) -> bool {
        let spelled: Vec<TensorType> = TensorType::all().filter_map(spelled_type).collect();
        weights.iter().any(|weight| spelled.contains(&weight.ty))
    }

    #[test]
    fn a_model_says_the_same_spelled_out() {
        let kernels = oxidize_kernels::select();
        let wanted = kernels.spelled_type(TensorType::IQ3_S).is_some();
        for mix in MIXES {
            let file = made(mix);
            let (plain, spelled) = (
                load(&file, SpellOut::OFF, true),
                load(&file, SpellOut::ALL, true),
            );
            let (a, b) = (logits(&plain), logits(&spelled));
            let error: f32 = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum();
            let norm: f32 = a.iter().map(|a| a.powi(2)).sum();
            // Activations are rounded to bytes, here and there to another one.
            assert!(error < 1e-3 * norm, "{mix}: {error} of {norm}");
            assert!(!has_spelled(&plain.weights().spelled_out(kernels, 2)));
            assert_eq!(
                has_spelled(&spelled.weights().spelled_out(kernels, 2)),
                wanted
            );
            // What the model has is what its file has, whatever it is run with.
            assert!(!has_spelled(spelled.weights()));
            let scalar = Kernels::for_isa(Isa::Scalar).unwrap();
            assert!(!has_spelled(&spelled.weights().spelled_out(scalar, 2)));
            assert_eq!(logits(&spelled), b);
            let plans = [&plain, &spelled]
                .map(|model| MemoryPlan::new(model, &SessionConfig::for_context(64)).weights);
            assert_eq!(plans[1] - plans[0], spelled.weights().growth());
            assert_eq!(wanted, spelled.weights().growth() > 0);
        }
    }

    #[test]
    fn weights_that_were_read_are_spelled_out_at_once() {
        let file = made("IQ3_S");
        let mapped = load(&file, SpellOut::ALL, true);
        let growth = mapped.weights().growth();
        let read = load(&file, SpellOut::ALL, false);
        assert_eq!(has_spelled(read.weights()), growth > 0);
        assert_eq!(read.weights().size(), mapped.weights().size() + growth);
        assert_eq!(read.weights().growth(), 0);
        assert_eq!(logits(&read), logits(&mapped));
        assert!(!has_spelled(load(&file, SpellOut::OFF, false).weights()));
    }

    #[test]
    fn the_best_are_chosen_while_there_is_room() {
        let file = made("IQ3_S");
        let all = load(&file, SpellOut::ALL, true).weights().growth();
        if all == 0 {
            return;
        }
        let mut before = 0;
        for bytes in [0, all / 3, all / 2, all - 1, all] {
            let model = load(&file, SpellOut { bytes }, true);
            let growth = model.weights().growth();
            assert!((before..=bytes).contains(&growth), "{growth} of {bytes}");
            before = growth;
        }
        assert_eq!(before, all);
    }

    /// All experts of a stack, in one piece or in several, and a job that ends inside a weight.
    #[test]
    fn stacks_of_experts_are_spelled_out() {
        let (ty, cols, rows, n_experts) = (TensorType::IQ2_S, 512, 1025, 3);
        let expert = ty.bytes_for((rows * cols) as u64).unwrap() as usize;
        let bytes: Vec<u8> = (0..n_experts * expert as u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        let source = Source::open(file.path(), true, true).unwrap();
        let all = source.read(0..source.len()).unwrap();
        let n_experts = n_experts as usize;
        let each = (0..n_experts).map(|e| all.slice(e * expert..(e + 1) * expert).unwrap());
        let mut weights = Weights::default();
        let together =
            weights.push_matrix("together", ty, rows, cols, vec![all.clone()], n_experts);
        let apart = weights.push_matrix("apart", ty, rows, cols, each.collect(), n_experts);
        let kernels = oxidize_kernels::select();
        let chosen = [weights.get(together), weights.get(apart)];
        let spelled = rewrite(&chosen, kernels, 3).unwrap();
        let floats = |weight: &Weight, expert: usize| {
            let mut floats = vec![0.0; rows * cols];
            quant::dequantize(weight.ty, weight.expert(expert), &mut floats).unwrap();
            floats.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        for (weight, spelled) in chosen.iter().zip(&spelled) {
            assert_eq!(spelled.ty, TensorType::IQ2_S_SPELLED);
            for expert in 0..n_experts {
                assert!(floats(weight, expert) == floats(spelled, expert));
            }
        }
    }
}
