//! Repacking: weights of types that are looked up in tables are rewritten in memory, once, to types that store a
//! code for each weight ([`oxidize_kernels::quant::repacked`]) and are multiplied several times as fast.
//!
//! Repacked weights are shared by all sessions of a model, and replace what was there: pages of a mapped file are
//! released as soon as they have been read, and memory that the file was read into is freed.

use super::pool::Pool;
use crate::backend::{BackendError, RepackLimit};
use crate::file::TensorBytes;
use crate::graph::{Op, Plan, WeightId};
use crate::io::SharedBytes;
use crate::io::available_memory;
use crate::weights::{PreparedWeights, Weight, Weights};
use oxidize_kernels::Kernels;
use oxidize_kernels::quant::{TensorType, repacked_type};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Repacked forms of weights, by id.
type RepackedMap = BTreeMap<WeightId, Weight>;

/// The weights of a model that have been repacked so far, for all its sessions.
#[derive(Default)]
struct Repacked(Mutex<RepackedMap>);

impl Repacked {
    /// All CPU sessions share one device.
    fn of(weights: &Weights) -> Arc<Repacked> {
        weights.prepared(0)
    }

    fn lock(&self) -> MutexGuard<'_, RepackedMap> {
        // A panic while weights are repacked leaves those that were added before.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PreparedWeights for Repacked {
    fn own_size(&self) -> u64 {
        self.lock().values().map(Weight::size).sum()
    }
}

/// The weights as a session reads them: in memory, and repacked where `limit` allows and these kernels gain.
pub(super) fn repack(
    plan: &Plan,
    weights: &Weights,
    limit: RepackLimit,
    kernels: &Kernels,
    pool: &Pool,
) -> Result<Weights, BackendError> {
    // Locked to the end: sessions that are compiled at the same time share what the first one makes.
    let shared = Repacked::of(weights);
    let mut repacked = shared.lock();
    let chosen = choose(plan, weights, &repacked, limit, kernels);
    let missing = chosen.iter().filter(|id| !repacked.contains_key(id));
    // Mapped weights at once, in one piece of memory, and those that were read one by one, so that no more
    // than one of them is in memory twice.
    let (mapped, read): (Vec<WeightId>, Vec<WeightId>) =
        missing.partition(|id| !weights.get(**id).is_releasable());
    let alone = read.iter().map(std::slice::from_ref);
    let batches = std::iter::once(mapped.as_slice()).chain(alone);
    for ids in batches.filter(|ids| !ids.is_empty()) {
        let originals = ids.iter().map(|id| weights.get(*id).loaded());
        let originals = originals.collect::<Result<Vec<_>, _>>();
        let originals = originals.map_err(|error| BackendError::Weights(error.to_string()))?;
        match rewrite(&originals, kernels, pool) {
            Ok(made) => repacked.extend(ids.iter().copied().zip(made)),
            Err(error) => {
                tracing::warn!("cannot repack weights, they stay as in the file: {error}");
                continue;
            }
        }
        // Threads that read neighboring pages bring some of them back after they were released.
        drop(originals);
        ids.iter().for_each(|id| weights.get(*id).release());
    }
    let replaced = chosen.iter().filter_map(|id| {
        let weight = repacked.get(id)?;
        Some((*id, weight.clone()))
    });
    let replaced = weights.replaced(replaced);
    let loaded = replaced.loaded();
    loaded.map_err(|error| BackendError::Weights(error.to_string()))
}

/// Bytes by which the weights of a session are larger than in the file.
pub(super) fn growth(plan: &Plan, weights: &Weights, limit: RepackLimit, kernels: &Kernels) -> u64 {
    let chosen = choose(plan, weights, &Repacked::of(weights).lock(), limit, kernels);
    let growth = chosen.iter().filter_map(|id| growth_of(weights.get(*id)));
    growth.sum()
}

/// Chooses the weights to repack: those that gain the most speed for a byte, up to the limit and to what fits in
/// memory.
fn choose(
    plan: &Plan,
    weights: &Weights,
    repacked: &RepackedMap,
    limit: RepackLimit,
    kernels: &Kernels,
) -> Vec<WeightId> {
    let unloaded = weights
        .numbered()
        .map(|(id, weight)| match repacked.get(&id) {
            Some(_) => 0,
            None => weight.size().saturating_sub(weight.own_size()),
        });
    let available = available_memory().unwrap_or(u64::MAX);
    let mut available = available.saturating_sub(unloaded.sum());
    let mut left = limit.bytes;
    let fractions = active_fractions(plan);
    let mut candidates: Vec<(f64, WeightId, u64)> = Vec::new();
    for (id, weight) in weights.numbered() {
        if kernels.repacked_type(weight.ty).is_none() {
            continue;
        }
        let (Some(fraction), Some(growth)) = (fractions.get(&id), growth_of(weight)) else {
            continue;
        };
        // Other memory would not be freed, so that the weight would be there twice.
        if !repacked.contains_key(&id) && !weight.is_mapped() && !weight.is_releasable() {
            continue;
        }
        // A table lookup takes about as long in one type as in another.
        let n_weights = weight.rows * weight.cols * weight.n_experts;
        let gain = fraction * n_weights as f64 / growth.max(1) as f64;
        candidates.push((gain, id, growth));
    }
    // Stable: weights of the same gain are in the order of the file.
    candidates.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
    let mut chosen = Vec::new();
    for (_, id, growth) in candidates {
        // Another session has paid for what is there already.
        let needed = if repacked.contains_key(&id) {
            0
        } else {
            growth
        };
        if growth <= left && needed <= available {
            left -= growth;
            available -= needed;
            chosen.push(id);
        }
    }
    chosen.sort();
    chosen
}

/// The fraction of each matrix that a token is multiplied with: all of it, or the used experts of a layer. Weights
/// that are only looked up, such as embeddings, are not included.
fn active_fractions(plan: &Plan) -> HashMap<WeightId, f64> {
    let mut fractions = HashMap::new();
    for op in &plan.ops {
        let fraction = match op {
            Op::Linear { .. } | Op::HeadLinear { .. } => 1.0,
            Op::Experts { spec, .. } => {
                spec.routing.n_expert_used as f64 / spec.routing.n_experts.max(1) as f64
            }
            _ => continue,
        };
        for id in op.weights() {
            *fractions.entry(id).or_insert(0.0) += fraction;
        }
    }
    fractions
}

/// Bytes by which a weight is larger once it is repacked; `None` if its type has no repacked form.
fn growth_of(weight: &Weight) -> Option<u64> {
    let repacked = repacked_type(weight.ty)?;
    let blocks = weight.size() / weight.ty.block_bytes() as u64;
    let more = repacked
        .block_bytes()
        .checked_sub(weight.ty.block_bytes())?;
    Some(blocks * more as u64)
}

/// Alignment of the pieces of weights.
const LINE: usize = 64;
/// Blocks per job: small relative to a weight, large enough to amortize the `madvise` call.
const BLOCKS: usize = 4096;

/// A piece of a weight, and its place in the new memory.
struct Place<'a> {
    ty: TensorType,
    repacked: TensorType,
    piece: &'a TensorBytes,
    range: Range<usize>,
}

/// The weights in their repacked types, one after the other in new memory.
fn rewrite(weights: &[Weight], kernels: &Kernels, pool: &Pool) -> io::Result<Vec<Weight>> {
    let mut end = 0;
    let mut places = Vec::new();
    for (weight, repacked) in weights
        .iter()
        .filter_map(|w| Some((w, repacked_type(w.ty)?)))
    {
        for piece in weight.pieces() {
            let len = piece.len() / weight.ty.block_bytes() * repacked.block_bytes();
            places.push(Place {
                ty: weight.ty,
                repacked,
                piece,
                range: end..end + len,
            });
            end = (end + len).next_multiple_of(LINE);
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
        let n_threads = pool.n_threads();
        let mut results: Vec<io::Result<()>> = (0..n_threads).map(|_| Ok(())).collect();
        pool.each(n_threads, &mut results, |_, result| {
            if result.is_ok() {
                *result = work();
            }
        });
        results.into_iter().collect()
    })?;
    let mut pieces = places.iter().map(|place| all.slice(place.range.clone()));
    let repacked = weights.iter().map(|weight| {
        let ty = repacked_type(weight.ty)?;
        let pieces: Option<Vec<TensorBytes>> =
            pieces.by_ref().take(weight.pieces().len()).collect();
        Some(weight.with_pieces(ty, pieces?))
    });
    let repacked: Option<Vec<Weight>> = repacked.collect();
    repacked.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
}

/// Some blocks of a piece, and where they are rewritten to.
struct Job<'a> {
    ty: TensorType,
    piece: &'a TensorBytes,
    from: Range<usize>,
    to: &'a mut [u8],
}

fn jobs<'a>(places: &[Place<'a>], mut out: &'a mut [u8]) -> Vec<Job<'a>> {
    let mut jobs = Vec::new();
    let mut end = 0;
    for place in places {
        // Bytes between places stay zero.
        let rest = &mut std::mem::take(&mut out)[place.range.start - end..];
        let (to, rest) = rest.split_at_mut(place.range.len());
        (out, end) = (rest, place.range.end);
        let step = BLOCKS * place.ty.block_bytes();
        let chunks = to.chunks_mut(BLOCKS * place.repacked.block_bytes());
        for (i, to) in chunks.enumerate() {
            jobs.push(Job {
                ty: place.ty,
                piece: place.piece,
                from: i * step..place.piece.len().min((i + 1) * step),
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
            .repack(self.ty, from, self.to)
            .map_err(io::Error::other)?;
        self.piece.release(self.from);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::MemoryPlan;
    use crate::backend::cpu::Cpu;
    use crate::backend::reference::Reference;
    use crate::backend::{Backend, Batch, SeqSlice, SessionConfig};
    use crate::file::OpenOptions;
    use crate::io::Source;
    use crate::kv::BlockId;
    use crate::model::Model;
    use crate::recipe::QuantRecipe;
    use crate::synth::{Shape, Synthesis};
    use crate::threads::Spawner;
    use oxidize_kernels::{Isa, quant};
    use std::io::Write;

    const RECIPES: [&str; 6] = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_S"];

    fn synthetic(recipe: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let synthesis = Synthesis {
            shape: Shape::named("tiny").unwrap(),
            recipe: QuantRecipe::named(recipe).unwrap(),
            seed: 1,
        };
        synthesis.write(&mut file, |_, _| {}).unwrap();
        file
    }

    fn load(file: &tempfile::NamedTempFile, mmap: bool) -> Model {
        let options = OpenOptions {
            mmap,
            ..OpenOptions::default()
        };
        Model::load_with(file.path(), &options).unwrap()
    }

    fn config(repack: RepackLimit) -> SessionConfig {
        SessionConfig {
            repack,
            ..SessionConfig::for_context(64)
        }
    }

    fn logits(model: &Model, backend: &dyn Backend, limit: RepackLimit) -> Vec<f32> {
        let mut session = model.session(backend, &config(limit)).unwrap();
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

    /// The weights of a session.
    fn repacked(model: &Model, limit: RepackLimit, kernels: &Kernels) -> Weights {
        let pool = Pool::new(2, &Spawner::default());
        repack(model.plan(), model.weights(), limit, kernels, &pool).unwrap()
    }

    fn growth_with(model: &Model, limit: RepackLimit) -> u64 {
        let kernels = oxidize_kernels::select();
        growth(model.plan(), model.weights(), limit, kernels)
    }

    fn has_repacked(weights: &Weights) -> bool {
        let types: Vec<TensorType> = TensorType::all().filter_map(repacked_type).collect();
        weights.iter().any(|weight| types.contains(&weight.ty))
    }

    #[test]
    fn repacked_models_have_the_same_logits() {
        let kernels = oxidize_kernels::select();
        let gains = kernels.repacked_type(TensorType::IQ3_S).is_some();
        let (off, all) = (RepackLimit::OFF, RepackLimit::ALL);
        for recipe in RECIPES {
            let file = synthetic(recipe);
            let model = load(&file, true);
            let cpu = Cpu::default();
            let (a, b) = (logits(&model, &cpu, off), logits(&model, &cpu, all));
            let error: f32 = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum();
            let norm: f32 = a.iter().map(|a| a.powi(2)).sum();
            // Activations are quantized, and some of them to another code.
            assert!(error < 1e-3 * norm, "{recipe}: {error} of {norm}");
            assert!(!has_repacked(&repacked(&model, off, kernels)));
            assert_eq!(has_repacked(&repacked(&model, all, kernels)), gains);
            // The model itself keeps the types of the file, and so do other kernels and the reference.
            assert!(!has_repacked(model.weights()));
            let scalar = Kernels::for_isa(Isa::Scalar).unwrap();
            assert!(!has_repacked(&repacked(&model, all, scalar)));
            let reference = logits(&model, &Reference, all);
            assert_eq!(reference, logits(&load(&file, true), &Reference, off));
            assert_eq!(
                (logits(&model, &cpu, off), logits(&model, &cpu, all)),
                (a, b)
            );
            let plans = [off, all].map(|limit| MemoryPlan::new(&model, &cpu, &config(limit)));
            let growth = growth_with(&model, all);
            assert_eq!(plans[1].weights - plans[0].weights, growth);
            assert_eq!(gains, growth > 0);
        }
    }

    #[test]
    fn sessions_share_repacked_weights() {
        let model = load(&synthetic("IQ3_S"), true);
        let kernels = oxidize_kernels::select();
        let [a, b] = [0, 1].map(|_| repacked(&model, RepackLimit::ALL, kernels));
        for (a, b) in a.iter().zip(b.iter()) {
            assert_eq!(a.ty, b.ty);
            let address = |weight: &Weight| weight.pieces().first().map(|piece| piece.as_ptr());
            assert_eq!(address(a), address(b));
        }
    }

    /// Memory that the file was read into is freed, and read again where the types of the file are needed.
    #[test]
    fn weights_that_were_read_are_released() {
        let file = synthetic("IQ3_S");
        let (mapped, read) = (load(&file, true), load(&file, false));
        let (off, all) = (RepackLimit::OFF, RepackLimit::ALL);
        let cpu = Cpu::default();
        let growth = growth_with(&mapped, all);
        assert_eq!(growth_with(&read, all), growth);
        assert_eq!(read.weights().own_size(), read.weights().size());
        let before = read.weights().size();
        assert_eq!(logits(&read, &cpu, all), logits(&mapped, &cpu, all));
        assert_eq!(read.weights().own_size(), before + growth);
        assert_eq!(
            (read.weights().size(), growth_with(&read, all)),
            (before, growth)
        );
        assert_eq!(logits(&read, &cpu, off), logits(&mapped, &cpu, off));
        assert_eq!(
            logits(&read, &Reference, all),
            logits(&mapped, &Reference, all)
        );
        assert_eq!(read.weights().own_size(), before + growth);
        let kernels = oxidize_kernels::select();
        assert!(!has_repacked(&repacked(&read, off, kernels)));
        assert!(read.find_not_finite().is_none());
    }

    #[test]
    fn weights_that_gain_most_are_chosen_within_the_limit() {
        let model = load(&synthetic("IQ3_S"), true);
        let all = growth_with(&model, RepackLimit::ALL);
        if all == 0 {
            return;
        }
        let mut before = 0;
        for bytes in [0, all / 3, all / 2, all - 1, all] {
            let growth = growth_with(&model, RepackLimit { bytes });
            assert!((before..=bytes).contains(&growth), "{growth} of {bytes}");
            before = growth;
        }
        assert_eq!(before, all);
        // Weights that are repacked already count as much as before.
        repacked(&model, RepackLimit::ALL, oxidize_kernels::select());
        let half = RepackLimit { bytes: all / 2 };
        assert!(growth_with(&model, half) <= all / 2);
    }

    /// All experts of a stack, in one piece or in several, and a job that ends inside a weight.
    #[test]
    fn stacks_of_experts_are_repacked() {
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
        weights.push_matrix("together", ty, rows, cols, vec![all.clone()], n_experts);
        weights.push_matrix("apart", ty, rows, cols, each.collect(), n_experts);
        let originals: Vec<Weight> = weights.iter().cloned().collect();
        let pool = Pool::new(3, &Spawner::default());
        let repacked = rewrite(&originals, oxidize_kernels::select(), &pool).unwrap();
        let floats = |weight: &Weight, expert: usize| {
            let mut floats = vec![0.0; rows * cols];
            quant::dequantize(weight.ty, weight.expert(expert), &mut floats).unwrap();
            floats.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        for (weight, repacked) in originals.iter().zip(&repacked) {
            assert_eq!(repacked.ty, TensorType::IQ2_S_REPACKED);
            for expert in 0..n_experts {
                assert!(floats(weight, expert) == floats(repacked, expert));
            }
        }
    }
}
