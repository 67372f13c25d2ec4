//! Types for a target size.
//!
//! The loss of a type is measured on sample rows of a tensor: the mean square of the errors' products with
//! the inputs, relative to that of the weights' products. Starting from the smallest types, a greedy search
//! upgrades the tensor with the largest reduction of the loss per byte.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use oxidize_core::arch::names::{ATTN_K, ATTN_Q, OUTPUT, TOKEN_EMBEDDING};
use oxidize_core::file::ModelFile;
use oxidize_core::recipe::{ModelInfo, RECIPES, role_of, whole_blocks};
use oxidize_kernels::quant::{self, SecondMoment, TensorType};

use crate::error::{Error, Result};
use crate::importance::{Importance, Inputs};
use crate::plan::{Plan, QuantizeParams, is_quantizable};
use crate::quantize::{Progress, overhead};
use crate::source::Source;
use crate::tensor::Tensor;
use crate::workers::{Loss, Workers, quantize_rows};

/// Number of sample rows of a tensor.
const SAMPLE_ROWS: u64 = 96;

/// A target size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TargetSize {
    /// Bytes of the written file.
    FileBytes(u64),
    /// Average bits per weight.
    BitsPerWeight(f64),
}

impl TargetSize {
    /// Bytes available for the tensors of the model in `file`. `report` is the command line of a report, if
    /// one is written.
    pub fn tensor_bytes(
        self,
        file: &ModelFile,
        importance: Option<&Importance>,
        report: Option<&str>,
    ) -> Result<u64> {
        let source = Source::new(file)?;
        match self {
            TargetSize::BitsPerWeight(bits) => {
                let elements: u64 = source.tensors().iter().map(Tensor::elements).sum();
                Ok((bits * elements as f64 / 8.0) as u64)
            }
            TargetSize::FileBytes(requested) => {
                let plan = source.unquantized_plan();
                let job = source.into_job(plan, &RECIPES[0], importance);
                let header = overhead(&job, file, report)?;
                requested
                    .checked_sub(header)
                    .ok_or(Error::TargetBelowHeader { requested, header })
            }
        }
    }
}

/// Finds the plan with the smallest loss whose tensors take at most `bytes`. Overrides in `params` apply.
pub fn plan_for_size(
    tensors: &[Tensor<'_>],
    bytes: u64,
    importance: Option<&Importance>,
    (params, info): (&QuantizeParams, &ModelInfo),
    workers: &Workers<'_>,
    progress: impl Fn(Progress<'_>) + Sync,
) -> Result<Plan> {
    let choices = measure(tensors, importance, (params, info), workers, progress)?;
    let smallest = vec![0; tensors.len()];
    let least = size(&choices, &smallest);
    if least > bytes {
        return Err(Error::TooSmall {
            requested: bytes,
            least,
        });
    }
    // The upgrades of the largest tensor, often the embeddings, no longer fit after those of the others. So
    // the search runs once for each of its types as the minimum.
    let bytes_of = |options: &[Choice]| options.last().map_or(0, |last| last.bytes);
    let largest = (0..tensors.len()).max_by_key(|i| bytes_of(&choices[*i]));
    let starts = largest
        .into_iter()
        .flat_map(|largest| (0..choices[largest].len()).map(move |least| (largest, least)));
    let plans = starts.filter_map(|(largest, least)| {
        let mut chosen = smallest.clone();
        chosen[largest] = least;
        let left = bytes.checked_sub(size(&choices, &chosen))?;
        upgrade(&choices, &mut chosen, left);
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

/// Total bytes of the chosen types.
fn size(choices: &[Vec<Choice>], chosen: &[usize]) -> u64 {
    let options = choices.iter().zip(chosen);
    options.map(|(options, &at)| options[at].bytes).sum()
}

/// Upgrades types, the best reduction of the loss per byte first, while `left` bytes allow it.
fn upgrade(choices: &[Vec<Choice>], chosen: &mut [usize], mut left: u64) {
    loop {
        // The best upgrade among those that still fit.
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

/// A candidate type of a tensor.
#[derive(Clone, Copy, Debug)]
struct Choice {
    ty: TensorType,
    bytes: u64,
    /// Noise-to-signal ratio times the sensitivity of the tensor.
    loss: f64,
}

/// Reduction of the loss per byte of an upgrade.
fn gain(from: Choice, to: Choice) -> f64 {
    (from.loss - to.loss) / (to.bytes - from.bytes).max(1) as f64
}

/// Candidate types of each tensor, from small to large, each with a smaller loss than the one before.
fn measure(
    tensors: &[Tensor<'_>],
    importance: Option<&Importance>,
    wanted: (&QuantizeParams, &ModelInfo),
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
                    progress(Progress::Measuring {
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
    (params, info): (&QuantizeParams, &ModelInfo),
) -> Result<Vec<Choice>> {
    use TensorType::{
        F16, IQ1_M, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_0, Q4_1,
        Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0,
    };
    /// Types that require importance.
    const LOW_BIT: [TensorType; 5] = [IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS];
    const TYPES: [TensorType; 14] = [
        Q2_K, Q3_K, IQ3_S, IQ4_XS, IQ4_NL, Q4_0, Q4_K, Q4_1, Q5_0, Q5_K, Q5_1, Q6_K, Q8_0, F16,
    ];
    let columns = tensor.columns();
    let bytes = |ty: TensorType| ty.bytes_for(tensor.elements()).unwrap_or(u64::MAX);
    let lossless = |ty: TensorType| Choice {
        ty,
        bytes: bytes(ty),
        loss: 0.0,
    };
    if !is_quantizable(tensor) {
        return Ok(vec![lossless(tensor.unquantized_type)]);
    }
    if let Some(ty) = params.override_for(tensor, info) {
        return Ok(vec![lossless(whole_blocks(ty, columns as usize))]);
    }
    let inputs = match importance {
        Some(importance) => importance.of(tensor).unwrap_or(None),
        None => None,
    };
    let sample = Sample::new(tensor, inputs.as_ref())?;
    let low_bit = LOW_BIT.iter().filter(|_| inputs.is_some());
    let mut choices = Vec::new();
    for &ty in low_bit.chain(&TYPES) {
        if !columns.is_multiple_of(ty.block_len() as u64) || bytes(ty) > bytes(tensor.ty) {
            continue;
        }
        choices.push(Choice {
            ty,
            bytes: bytes(ty),
            loss: sample.loss(ty)? * sensitivity(tensor, info),
        });
    }
    // The source type has no loss.
    choices.push(lossless(tensor.ty));
    // Drops types that are larger without a smaller loss.
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

/// Sensitivity of the model to noise in a tensor's products. A layer adds a small part of the residual
/// stream, while noise in the logits acts directly and noise in the embeddings passes every layer; the
/// softmax reduces noise in queries and keys. The factors are fitted to the KL divergence of small models
/// with one tensor quantized.
fn sensitivity(tensor: &Tensor<'_>, info: &ModelInfo) -> f64 {
    match role_of(&tensor.name) {
        Some(OUTPUT | TOKEN_EMBEDDING) if info.tied => 18.0,
        Some(OUTPUT | TOKEN_EMBEDDING) => 9.0,
        Some(ATTN_Q | ATTN_K) => 0.25,
        _ => 1.0,
    }
}

/// Sample rows of a tensor and the statistics of their inputs.
struct Sample<'a> {
    rows: Vec<f32>,
    /// Mean squares of each row's inputs; empty if unknown.
    squares: Vec<&'a [f32]>,
    second_moment: Option<&'a SecondMoment>,
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
            second_moment: inputs.and_then(|inputs| inputs.second_moment.as_ref()),
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

    /// Noise-to-signal ratio of the products if the rows are stored as `ty`.
    fn loss(&self, ty: TensorType) -> Result<f64> {
        let bytes = ty.bytes_for(self.columns as u64).unwrap_or(0) as usize;
        let n = self.rows.len() / self.columns.max(1);
        let (mut encoded, mut decoded) = (vec![0; n * bytes], vec![0.0; self.rows.len()]);
        let squares = |row: usize| self.squares.get(row).copied();
        quantize_rows(
            ty,
            &self.rows,
            self.columns,
            squares,
            self.second_moment,
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
            loss.add(Loss::of(row, decoded, squares(i), self.second_moment));
        }
        Ok(loss.noise / loss.signal.max(f64::MIN_POSITIVE))
    }
}
