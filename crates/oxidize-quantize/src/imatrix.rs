//! [`collect`]: collects an importance matrix by running a model over a text. A [`Collector`] sums the inputs
//! of the matrices.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{Observation, Observer};
use oxidize_core::file::{Format, TensorBytes};
use oxidize_core::model::{Model, gguf_origins};

use crate::error::{Error, Result};
use crate::evaluate::{Chunks, Evaluator, Settings};
use crate::importance::{Entry, Importance, TextPosition};
use crate::quantize::tensors_of;
use crate::sketch::Sketch;
use crate::text::{Fingerprint, Text};

/// Options of collecting an importance matrix.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Tokens per chunk.
    pub n_ctx: usize,
    /// Maximum number of chunks; all if `None`.
    pub chunks: Option<usize>,
    /// Use only an [excerpt](Chunks::excerpt) of the text.
    pub excerpt: bool,
    /// Number of chunks to skip at the start, processed by an earlier run.
    pub skip: usize,
    /// Collect the inputs of the output matrix too.
    pub output: bool,
    /// Release the memory of mapped weights after each use, so that models larger than memory can be
    /// calibrated.
    pub release_weights: bool,
    /// Settings of the model run.
    pub settings: Settings,
}

/// Sums the squared inputs of the matrices of a model.
pub struct Collector {
    names: Arc<TensorNames>,
    sums: Arc<Mutex<HashMap<String, Sums>>>,
    output: bool,
}

impl Collector {
    /// Creates an empty collector. With `output`, it also collects tensors outside the layers.
    pub fn new(model: &Model, output: bool) -> Collector {
        Collector {
            names: Arc::new(TensorNames::of(model)),
            sums: Arc::default(),
            output,
        }
    }

    /// The observer that adds inputs to this collector.
    pub fn observer(&self) -> Observer {
        let (names, sums, output) = (self.names.clone(), self.sums.clone(), self.output);
        Observer::new(move |observation| {
            let tensors = names.observed(observation);
            let tensors = tensors.filter(|tensor| output || is_of_layer(&tensor.name));
            let mut same_order: Vec<&GgufTensor> = Vec::new();
            // Sums stay valid if a thread panics: each observation is added under the lock.
            let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
            for tensor in tensors {
                match &tensor.columns {
                    None => same_order.push(tensor),
                    Some(columns) => {
                        let rows = &reordered(observation.rows, columns);
                        let observation = Observation {
                            rows,
                            ..*observation
                        };
                        add(&mut sums, &observation, &[tensor]);
                    }
                }
            }
            add(&mut sums, observation, &same_order);
        })
    }

    /// The entries collected so far, by GGUF tensor names.
    pub fn entries(&self) -> BTreeMap<String, Entry> {
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = |sums: &Sums| Entry {
            sums: sums.sums.iter().map(|&sum| sum as f32).collect(),
            counts: sums.counts.iter().map(|&count| count as f32).collect(),
            sketch: sums.sketch.clone(),
        };
        let entries = sums.iter().map(|(name, sums)| (name.clone(), entry(sums)));
        entries.collect()
    }

    /// True if no input of a known tensor was observed.
    fn is_empty(&self) -> bool {
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        sums.is_empty()
    }
}

/// Sums of one tensor, in double precision since they grow large.
#[derive(Default)]
struct Sums {
    sums: Vec<f64>,
    counts: Vec<u64>,
    sketch: Option<Sketch>,
}

/// Hash of the names, shapes and first bytes of a model's tensors, which differs after fine-tuning.
pub fn fingerprint(model: &Model) -> Result<u64> {
    /// Bytes of each tensor in the hash.
    const BYTES: u64 = 256;
    let mut hash = Fingerprint::default();
    let file = model.file();
    for tensor in file.tensors() {
        hash.add(tensor.name.as_bytes());
        for n in &tensor.shape {
            hash.add(&n.to_le_bytes());
        }
        // Reading part of a packed tensor would unpack all of it.
        if !file.is_packed(tensor) {
            hash.add(&file.data_range(tensor, 0..tensor.bytes.min(BYTES))?);
        }
    }
    Ok(hash.0)
}

/// Number of chunks of `text` that a matrix already contains, for `--resume`. Returns an error if the matrix
/// was collected from another text, with another model or another chunk size.
pub fn resume_position(
    known: &Importance,
    model: &Model,
    text: &Text,
    n_ctx: usize,
) -> Result<usize> {
    let name = text.name();
    let refuse = |problem: String| Error::Importance {
        file: known.file.clone(),
        problem: format!("cannot resume: {problem}"),
    };
    // Files of llama.cpp have no position, only totals.
    let (text_name, chunks, chunk_size) = match &known.position {
        Some(position) => (position.text.clone(), position.chunks, position.chunk_size),
        None => (known.datasets.join(", "), known.chunks, known.chunk_size),
    };
    if Path::new(&text_name).file_name() != Path::new(&name).file_name() {
        return Err(refuse(format!(
            "it was collected from the text {text_name:?}, not {name:?}"
        )));
    }
    if chunk_size as usize != n_ctx {
        let problem = format!("it has chunks of {chunk_size} tokens, not {n_ctx} (-c)");
        return Err(refuse(problem));
    }
    let position = known.position.as_ref();
    if position.is_some_and(|position| position.fingerprint != text.fingerprint()) {
        let problem = format!("{} has changed since", text.file.display());
        return Err(refuse(problem));
    }
    if let Some(begun) = position.and_then(|position| position.model)
        && begun != fingerprint(model)?
    {
        let model = model.file().path().display();
        return Err(refuse(format!(
            "it was collected with another model than {model}"
        )));
    }
    Ok(chunks as usize)
}

/// Runs a model over `text` and sums the inputs of its matrices. `each` is called after every chunk with the
/// chunks done, their total number, and a function that returns the matrix so far.
pub fn collect(
    model: &Model,
    text: &Text,
    options: &Options,
    mut each: impl FnMut(usize, usize, &dyn Fn() -> Result<Importance>) -> Result<()>,
) -> Result<Importance> {
    if model.plan().n_encoder_ops > 0 {
        return Err(Error::Unfit {
            file: model.file().path().to_path_buf(),
            problem: format!(
                "{} is an encoder-decoder model; importance matrices of these are not supported",
                model.arch().name
            ),
        });
    }
    let mut chunks = Chunks::new(model, text, options.n_ctx, options.chunks)?;
    if options.excerpt {
        chunks = chunks.excerpt();
    }
    let collector = Collector::new(model, options.output);
    let cpu = Cpu::default();
    let (settings, mut observer) = (&options.settings, collector.observer());
    if options.release_weights {
        observer = release_weights(model, observer)?;
    }
    let mut evaluator = Evaluator::observed(model, &cpu, settings, options.n_ctx, observer)?;
    let (model_fingerprint, fingerprint) = (fingerprint(model)?, text.fingerprint());
    let result = |done: usize| {
        let importance = Importance {
            entries: collector.entries(),
            datasets: vec![text.name()],
            chunks: done as u32,
            chunk_size: options.n_ctx as u32,
            position: Some(TextPosition {
                text: text.name(),
                fingerprint,
                chunks: (options.skip + done) as u32,
                chunk_size: options.n_ctx as u32,
                model: Some(model_fingerprint),
            }),
            file: PathBuf::new(),
        };
        // Loading would reject a matrix with non-finite sums.
        let not_finite = |entry: &Entry| entry.sums.iter().any(|sum| !sum.is_finite());
        match importance
            .entries
            .iter()
            .find(|(_, entry)| not_finite(entry))
        {
            Some((name, _)) => Err(Error::Unfit {
                file: model.file().path().to_path_buf(),
                problem: format!("inputs of `{name}` are NaN or infinite"),
            }),
            None => Ok(importance),
        }
    };
    let todo = chunks.n_chunks.saturating_sub(options.skip);
    for (done, (input, _)) in chunks.iter().skip(options.skip).enumerate() {
        if options.output {
            evaluator.for_each_logits(&input, 0, |_, _| Ok(()))?;
        } else {
            evaluator.fill(&input)?;
        }
        if done == 0 && collector.is_empty() {
            return Err(Error::Unfit {
                file: model.file().path().to_path_buf(),
                problem: "no matrix of a layer (`blk.…` in GGUF) was found".into(),
            });
        }
        each(done + 1, todo, &|| result(done + 1))?;
    }
    result(todo)
}

/// Wraps `observer` and releases the memory of mapped weights when the next weights are used.
fn release_weights(model: &Model, observer: Observer) -> Result<Observer> {
    let file = model.file();
    let mut mapped: HashMap<String, TensorBytes> = HashMap::new();
    for tensor in file.tensors() {
        // Reading a packed tensor would unpack it.
        if !file.is_packed(tensor) {
            let bytes = file.data(tensor)?;
            if bytes.is_mapped() {
                mapped.insert(tensor.name.clone(), bytes);
            }
        }
    }
    let in_use: Mutex<Vec<TensorBytes>> = Mutex::default();
    Ok(Observer::new(move |observation| {
        let next = observation.weights.iter();
        let next = next.filter_map(|name| mapped.get(*name)).cloned().collect();
        // A list left by a panic is valid too: at worst its weights stay in memory.
        let mut in_use = in_use.lock().unwrap_or_else(PoisonError::into_inner);
        for done in std::mem::replace(&mut *in_use, next) {
            done.release(0..done.len());
        }
        observer.observe(observation);
    }))
}

/// Mapping from a model's weights to GGUF tensors, by whose names entries are stored.
struct TensorNames {
    /// The GGUF tensors tensor from each weight.
    tensors: HashMap<String, Vec<GgufTensor>>,
}

/// A tensor of a GGUF file.
struct GgufTensor {
    name: String,
    /// Number of inputs of all matrices.
    inputs: u64,
    /// True for stacked matrices: of experts, or of heads, whose inputs are observed together.
    is_stack: bool,
    /// Permutation of the weight's inputs, if the order differs.
    columns: Option<Vec<usize>>,
}

impl TensorNames {
    fn of(model: &Model) -> TensorNames {
        let file = model.file();
        let mut tensors: HashMap<String, Vec<GgufTensor>> = HashMap::new();
        let matrices = |shape: &[u64]| -> u64 { shape.iter().skip(2).product() };
        let gguf_tensor = |name: &str, shape: &[u64], columns: Option<&Vec<usize>>| GgufTensor {
            name: name.to_owned(),
            inputs: shape.first().unwrap_or(&1).saturating_mul(matrices(shape)),
            is_stack: matrices(shape) > 1,
            columns: columns.cloned(),
        };
        if matches!(file.format(), Format::Gguf { .. }) {
            for tensor in tensors_of(file) {
                let named = gguf_tensor(&tensor.name, &tensor.shape, None);
                tensors.insert(tensor.name, vec![named]);
            }
            return TensorNames { tensors };
        }
        for tensor in gguf_origins(file, model.arch(), model.hparams()) {
            for part in &tensor.parts {
                let named = gguf_tensor(&tensor.name, &tensor.shape, tensor.columns.as_ref());
                // MXFP4 weights are stored as `_blocks` and `_scales`; observations have the plain name.
                let weight = part.name.trim_end_matches("_blocks").to_owned();
                tensors.entry(weight).or_default().push(named);
            }
        }
        TensorNames { tensors }
    }

    /// The tensors whose inputs an observation contains. MLA also multiplies by the transpose of part of a
    /// matrix; those inputs have another width and are skipped.
    fn observed(&self, observation: &Observation<'_>) -> impl Iterator<Item = &GgufTensor> {
        let width = observation.width.checked_mul(observation.n_experts);
        let weights = observation.weights.iter();
        let tensors = weights.filter_map(|weight| self.tensors.get(*weight));
        let fits = move |tensor: &&GgufTensor| width.is_some_and(|n| n as u64 == tensor.inputs);
        tensors.flatten().filter(fits)
    }
}

/// True if a tensor belongs to a layer, including those of encoders (`enc.blk.0.…`).
fn is_of_layer(name: &str) -> bool {
    name.starts_with("blk.") || name.contains(".blk.")
}

/// Permutes the elements of each row.
fn reordered(rows: &[f32], columns: &[usize]) -> Vec<f32> {
    let rows = rows.chunks_exact(columns.len().max(1));
    rows.flat_map(|row| columns.iter().map(|&from| row[from]))
        .collect()
}

fn add(totals: &mut HashMap<String, Sums>, observation: &Observation<'_>, tensors: &[&GgufTensor]) {
    if tensors.is_empty() {
        return;
    }
    let mut squares = vec![0.0f32; observation.width];
    let mut sums = vec![0.0f64; observation.width];
    let n = observation.rows.len() / observation.width.max(1);
    // f32 sums over a few rows, f64 sums over those.
    for rows in observation.rows.chunks(observation.width * 32) {
        squares.fill(0.0);
        for row in rows.chunks_exact(observation.width) {
            for (square, x) in squares.iter_mut().zip(row) {
                *square += x * x;
            }
        }
        for (sum, square) in sums.iter_mut().zip(&squares) {
            *sum += f64::from(*square);
        }
    }
    // Stacked matrices would need a sketch each; matrices with the same inputs share one.
    let sketched = tensors.iter().position(|tensor| !tensor.is_stack);
    for (i, tensor) in tensors.iter().enumerate() {
        let width = observation.width;
        if !totals.contains_key(&tensor.name) {
            totals.insert(tensor.name.clone(), Sums::default());
        }
        let Some(entry) = totals.get_mut(&tensor.name) else {
            continue;
        };
        entry.sums.resize(width * observation.n_experts, 0.0);
        entry.counts.resize(observation.n_experts, 0);
        let start = observation.expert * width;
        for (total, sum) in entry.sums[start..start + width].iter_mut().zip(&sums) {
            *total += sum;
        }
        entry.counts[observation.expert] += n as u64;
        if Some(i) == sketched {
            let sketch = entry.sketch.get_or_insert_with(|| Sketch::new(width));
            sketch.update(observation.rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only inputs of a matrix's columns count, not those of its transpose.
    #[test]
    fn inputs_of_the_transpose_are_skipped() {
        let name = "blk.0.attn_kv_b.weight";
        let tensor = GgufTensor {
            name: name.to_owned(),
            inputs: 2,
            is_stack: false,
            columns: None,
        };
        let names = TensorNames {
            tensors: HashMap::from([(name.to_owned(), vec![tensor])]),
        };
        let mut sums = HashMap::new();
        let mut look = |rows: &[f32]| {
            let observation = Observation {
                weights: &[name],
                expert: 0,
                n_experts: 1,
                rows,
                width: rows.len(),
            };
            let tensors: Vec<&GgufTensor> = names.observed(&observation).collect();
            add(&mut sums, &observation, &tensors);
        };
        look(&[1.0, 2.0]);
        look(&[5.0, 6.0, 7.0]);
        look(&[3.0, 1.0]);
        let entry = &sums[name];
        assert_eq!(
            (&entry.sums[..], &entry.counts[..]),
            (&[10.0, 5.0][..], &[2][..])
        );
    }
}
