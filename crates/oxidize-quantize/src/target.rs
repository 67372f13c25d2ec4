//! Types for a given size: each tensor gets the one that loses least for the bytes it takes.
//!
//! What a type costs a tensor is measured on some of its rows: the noise that its errors make in the
//! products with the inputs that the importance matrix has seen, as a share of the products
//! themselves. Starting from the smallest types, bytes are then spent where they take away most.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use oxidize_core::arch::names::{ATTN_K, ATTN_Q, OUTPUT, TOKEN_EMBEDDING};
use oxidize_core::mix::{Traits, role_of, whole_blocks};
use oxidize_kernels::quant::{self, Correlation, TensorType};

use crate::encode::{Loss, Workers, encode_rows};
use crate::error::{Error, Result};
use crate::importance::{Importance, Inputs};
use crate::plan::{Plan, Wishes, is_quantizable};
use crate::quantize::Progress;
use crate::tensor::Tensor;

/// Rows of a tensor that are tried.
const SAMPLE_ROWS: u64 = 96;

/// The plan with the least loss whose tensors take at most `bytes`. Tensors for which `wishes` ask a
/// type have that one.
pub fn plan_for_size(
    tensors: &[Tensor<'_>],
    bytes: u64,
    importance: Option<&Importance>,
    (wishes, traits): (&Wishes, &Traits),
    workers: &Workers<'_>,
    progress: impl Fn(Progress<'_>) + Sync,
) -> Result<Plan> {
    let choices = measure(tensors, importance, (wishes, traits), workers, progress)?;
    let smallest = vec![0; tensors.len()];
    let least = size(&choices, &smallest);
    if least > bytes {
        return Err(Error::TooSmall {
            asked: bytes,
            least,
        });
    }
    // The largest tensor, often of embeddings, goes up by steps for which there is no room any more
    // once all others had theirs: each of its types is tried as its least.
    let bytes_of = |options: &[Choice]| options.last().map_or(0, |last| last.bytes);
    let largest = (0..tensors.len()).max_by_key(|i| bytes_of(&choices[*i]));
    let starts = largest
        .into_iter()
        .flat_map(|largest| (0..choices[largest].len()).map(move |least| (largest, least)));
    let plans = starts.filter_map(|(largest, least)| {
        let mut chosen = smallest.clone();
        chosen[largest] = least;
        let left = bytes.checked_sub(size(&choices, &chosen))?;
        spend(&choices, &mut chosen, left);
        let options = choices.iter().zip(&chosen);
        let loss: f64 = options.map(|(options, &at)| options[at].loss).sum();
        Some((loss, chosen))
    });
    let best = plans.min_by(|a, b| a.0.total_cmp(&b.0));
    let chosen = best.map_or(smallest, |(_, chosen)| chosen);
    let types = choices.iter().zip(&chosen);
    Ok(Plan {
        types: types.map(|(options, &at)| options[at].ty).collect(),
        fallbacks: 0,
    })
}

/// Bytes of the types that are chosen.
fn size(choices: &[Vec<Choice>], chosen: &[usize]) -> u64 {
    let options = choices.iter().zip(chosen);
    options.map(|(options, &at)| options[at].bytes).sum()
}

/// Spends bytes on larger types, first where they take away most.
fn spend(choices: &[Vec<Choice>], chosen: &mut [usize], mut left: u64) {
    loop {
        // The step up that takes away most for its bytes, among those that still fit.
        let steps = choices.iter().zip(&*chosen).enumerate();
        let best = steps
            .flat_map(|(i, (options, &at))| {
                let here = options[at];
                (at + 1..options.len()).map(move |to| (i, to, here, options[to]))
            })
            .filter(|(_, _, here, to)| to.bytes - here.bytes <= left)
            .max_by(|a, b| gain(a.2, a.3).total_cmp(&gain(b.2, b.3)));
        let Some((i, to, here, step)) = best else {
            break;
        };
        left -= step.bytes - here.bytes;
        chosen[i] = to;
    }
}

/// A type that a tensor may get.
#[derive(Clone, Copy, Debug)]
struct Choice {
    ty: TensorType,
    bytes: u64,
    /// Noise by signal, weighted by how much the tensor matters.
    loss: f64,
}

/// What a step up takes away, by byte.
fn gain(from: Choice, to: Choice) -> f64 {
    (from.loss - to.loss) / (to.bytes - from.bytes).max(1) as f64
}

/// The types worth considering for each tensor, from small to large: each loses less than the one
/// before.
fn measure(
    tensors: &[Tensor<'_>],
    importance: Option<&Importance>,
    wanted: (&Wishes, &Traits),
    workers: &Workers<'_>,
    progress: impl Fn(Progress<'_>) + Sync,
) -> Result<Vec<Vec<Choice>>> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<Vec<Choice>>>>> =
        Mutex::new(tensors.iter().map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..workers.threads.clamp(1, tensors.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(tensor) = tensors.get(i) else {
                        break;
                    };
                    let stopped = workers.check();
                    let choices = stopped.and_then(|()| choices_for(tensor, importance, wanted));
                    let Ok(mut results) = results.lock() else {
                        break;
                    };
                    results[i] = Some(choices);
                    progress(Progress::Trying {
                        done: results.iter().flatten().count() as u64,
                        total: tensors.len() as u64,
                    });
                }
            });
        }
    });
    let results = results
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    results.into_iter().flatten().collect()
}

fn choices_for(
    tensor: &Tensor<'_>,
    importance: Option<&Importance>,
    (wishes, traits): (&Wishes, &Traits),
) -> Result<Vec<Choice>> {
    use TensorType::{
        F16, IQ1_M, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_0, Q4_1,
        Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0,
    };
    /// Types that make sense only where importance is known.
    const STARVED: [TensorType; 5] = [IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS];
    const TYPES: [TensorType; 14] = [
        Q2_K, Q3_K, IQ3_S, IQ4_XS, IQ4_NL, Q4_0, Q4_K, Q4_1, Q5_0, Q5_K, Q5_1, Q6_K, Q8_0, F16,
    ];
    let columns = tensor.columns();
    let bytes = |ty: TensorType| ty.bytes_for(tensor.elements()).unwrap_or(u64::MAX);
    let free = |ty: TensorType| Choice {
        ty,
        bytes: bytes(ty),
        loss: 0.0,
    };
    if !is_quantizable(tensor) {
        return Ok(vec![free(tensor.kept_as)]);
    }
    if let Some(ty) = wishes.fixed(tensor, traits) {
        return Ok(vec![free(whole_blocks(ty, columns as usize))]);
    }
    let inputs = match importance {
        Some(importance) => importance.of(tensor).unwrap_or(None),
        None => None,
    };
    let sample = Sample::new(tensor, inputs.as_ref())?;
    let starved = STARVED.iter().filter(|_| inputs.is_some());
    let mut choices = Vec::new();
    for &ty in starved.chain(&TYPES) {
        if !columns.is_multiple_of(ty.block_len() as u64) || bytes(ty) > bytes(tensor.ty) {
            continue;
        }
        choices.push(Choice {
            ty,
            bytes: bytes(ty),
            loss: sample.loss(ty)? * concern(tensor, traits),
        });
    }
    // As it is, it loses nothing.
    choices.push(free(tensor.ty));
    // What is larger and no better is never chosen.
    choices.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.loss.total_cmp(&b.loss)));
    let mut kept: Vec<Choice> = Vec::new();
    for choice in choices {
        if kept
            .last()
            .is_none_or(|last| choice.loss < last.loss && choice.bytes > last.bytes)
        {
            kept.push(choice);
        }
    }
    Ok(kept)
}

/// How much noise in a tensor's products matters: what a layer adds is a small share of what all of
/// them add up, while noise in the logits is all noise, and that in the embeddings goes through
/// every layer. Noise in queries and keys is evened out by the softmax. The numbers fit what the
/// divergence of small models was measured to be with one tensor quantised.
fn concern(tensor: &Tensor<'_>, traits: &Traits) -> f64 {
    match role_of(&tensor.name) {
        Some(OUTPUT | TOKEN_EMBEDDING) if traits.tied => 18.0,
        Some(OUTPUT | TOKEN_EMBEDDING) => 9.0,
        Some(ATTN_Q | ATTN_K) => 0.25,
        _ => 1.0,
    }
}

/// Some rows of a tensor, and what is known of their inputs.
struct Sample<'a> {
    rows: Vec<f32>,
    /// The mean squares of each row's inputs; none where they are not known.
    squares: Vec<&'a [f32]>,
    correlation: Option<&'a Correlation>,
    columns: usize,
}

impl<'a> Sample<'a> {
    fn new(tensor: &Tensor<'_>, inputs: Option<&'a Inputs>) -> Result<Sample<'a>> {
        let (rows, columns) = (tensor.rows(), tensor.columns());
        let reader = tensor.open()?;
        let per_matrix = (rows / tensor.matrices().max(1)).max(1);
        let n = rows.clamp(1, SAMPLE_ROWS);
        let mut sample = Sample {
            rows: Vec::new(),
            squares: Vec::new(),
            correlation: inputs.and_then(|inputs| inputs.correlation.as_ref()),
            columns: columns as usize,
        };
        let mut floats = vec![0.0; columns as usize];
        for i in 0..n.min(rows) {
            let row = i * rows / n;
            reader.floats(&reader.bytes(row..row + 1)?, row * columns, &mut floats)?;
            sample.rows.extend_from_slice(&floats);
            let start = (row / per_matrix * columns) as usize;
            let squares = inputs.and_then(|inputs| {
                let squares = &inputs.squares;
                squares.get(start..start + columns as usize)
            });
            sample.squares.extend(squares);
        }
        Ok(sample)
    }

    /// The share of noise in the products, if the rows are stored as `ty`.
    fn loss(&self, ty: TensorType) -> Result<f64> {
        let bytes = ty.bytes_for(self.columns as u64).unwrap_or(0) as usize;
        let n = self.rows.len() / self.columns.max(1);
        let (mut encoded, mut decoded) = (vec![0; n * bytes], vec![0.0; self.rows.len()]);
        let squares = |row: usize| self.squares.get(row).copied();
        encode_rows(
            ty,
            &self.rows,
            self.columns,
            squares,
            self.correlation,
            &mut encoded,
        )
        .and_then(|()| quant::dequantize(ty, &encoded, &mut decoded))
        .map_err(|error| Error::Encode {
            file: std::path::PathBuf::new(),
            tensor: String::new(),
            error,
        })?;
        let rows = self.rows.chunks_exact(self.columns);
        let decoded = decoded.chunks_exact(self.columns);
        let mut loss = Loss::default();
        for (i, (row, decoded)) in rows.zip(decoded).enumerate() {
            loss.add(Loss::of(row, decoded, squares(i), self.correlation));
        }
        Ok(loss.noise / loss.signal.max(f64::MIN_POSITIVE))
    }
}
