//! [`collect`]: makes an importance matrix of what a model computes while it reads a text; a [`Collector`]
//! adds it up.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{Observation, Observer};
use oxidize_core::file::{Format, TensorBytes};
use oxidize_core::model::{Model, gguf_origins};

use crate::error::{Error, Result};
use crate::evaluate::{Chunks, Evaluator, Settings};
use crate::importance::{Entry, Importance, Reading};
use crate::quantize::tensors_of;
use crate::sketch::Sketch;
use crate::text::{Fingerprint, Text};

/// How a matrix is collected.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Tokens of a chunk.
    pub n_ctx: usize,
    /// Most chunks to read; all where nothing is said.
    pub chunks: Option<usize>,
    /// Whether only an [excerpt](Chunks::excerpt) of the text is read.
    pub excerpt: bool,
    /// Chunks at the beginning that were read before.
    pub skip: usize,
    /// Whether the matrix that makes the logits is looked at too.
    pub output: bool,
    /// Whether the memory of mapped weights is given back after each of their products, so that of a model
    /// of any size only a few are in memory.
    pub one_by_one: bool,
    /// How the model is run.
    pub settings: Settings,
}

/// Adds up what the matrices of a model see.
pub struct Collector {
    names: Arc<Names>,
    seen: Arc<Mutex<HashMap<String, Seen>>>,
    output: bool,
}

impl Collector {
    /// One that has seen nothing yet. With `output`, it looks at what is outside the layers too.
    pub fn new(model: &Model, output: bool) -> Collector {
        Collector {
            names: Arc::new(Names::of(model)),
            seen: Arc::default(),
            output,
        }
    }

    /// Adds what it is shown.
    pub fn observer(&self) -> Observer {
        let (known, sink, output) = (self.names.clone(), self.seen.clone(), self.output);
        Observer::new(move |observation| {
            let tensors = known.seen(observation);
            let tensors = tensors.filter(|made| output || is_of_layer(&made.name));
            let mut as_they_are: Vec<&Made> = Vec::new();
            // A panic elsewhere leaves sums that are whole: rows are added one observation at a time.
            let mut seen = sink.lock().unwrap_or_else(PoisonError::into_inner);
            for made in tensors {
                match &made.columns {
                    None => as_they_are.push(made),
                    Some(columns) => {
                        let rows = &reordered(observation.rows, columns);
                        let observation = Observation {
                            rows,
                            ..*observation
                        };
                        add(&mut seen, &observation, &[made]);
                    }
                }
            }
            add(&mut seen, observation, &as_they_are);
        })
    }

    /// What there is so far, by the names that tensors have in GGUF.
    pub fn entries(&self) -> BTreeMap<String, Entry> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = |seen: &Seen| Entry {
            sums: seen.sums.iter().map(|&sum| sum as f32).collect(),
            counts: seen.counts.iter().map(|&count| count as f32).collect(),
            sketch: seen.sketch.clone(),
        };
        let entries = seen.iter().map(|(name, seen)| (name.clone(), entry(seen)));
        entries.collect()
    }

    /// Whether nothing was shown to it that it knows.
    fn is_empty(&self) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.is_empty()
    }
}

/// What was seen of one matrix or stack, in double precision: sums grow large.
#[derive(Default)]
struct Seen {
    sums: Vec<f64>,
    counts: Vec<u64>,
    sketch: Option<Sketch>,
}

/// A number that another model hardly has, not even one that was trained further: of the names, shapes and
/// first bytes of its tensors.
pub fn fingerprint(model: &Model) -> Result<u64> {
    /// So many bytes of each tensor are read.
    const BYTES: u64 = 256;
    let mut hash = Fingerprint::default();
    let file = model.file();
    for tensor in file.tensors() {
        hash.add(tensor.name.as_bytes());
        for n in &tensor.shape {
            hash.add(&n.to_le_bytes());
        }
        // What is packed would be unpacked, all of it.
        if !file.is_packed(tensor) {
            hash.add(&file.data_range(tensor, 0..tensor.bytes.min(BYTES))?);
        }
    }
    Ok(hash.0)
}

/// Chunks at the beginning of `text` that a matrix has read with `model`, so that reading can go on after them.
/// An error where it was made of another text, by another model, or in other chunks.
pub fn chunks_read(known: &Importance, model: &Model, text: &Text, n_ctx: usize) -> Result<usize> {
    let name = text.name();
    let refuse = |problem: String| Error::Importance {
        file: known.file.clone(),
        problem: format!("--resume cannot go on from it: {problem}"),
    };
    // Files of other programs do not say how much of which text they have read, unless there is only one.
    let (read, chunks, chunk_size) = match &known.reading {
        Some(reading) => (reading.text.clone(), reading.chunks, reading.chunk_size),
        None => (known.datasets.join(", "), known.chunks, known.chunk_size),
    };
    if Path::new(&read).file_name() != Path::new(&name).file_name() {
        return Err(refuse(format!(
            "it is of the text {read:?}, not of {name:?}"
        )));
    }
    if chunk_size as usize != n_ctx {
        let problem = format!("its chunks are of {chunk_size} tokens, not of {n_ctx} (-c)");
        return Err(refuse(problem));
    }
    let reading = known.reading.as_ref();
    if reading.is_some_and(|reading| reading.fingerprint != text.fingerprint()) {
        let problem = format!("{} has changed since", text.file.display());
        return Err(refuse(problem));
    }
    if let Some(begun) = reading.and_then(|reading| reading.model)
        && begun != fingerprint(model)?
    {
        let model = model.file().path().display();
        return Err(refuse(format!(
            "it was begun with another model than {model}"
        )));
    }
    Ok(chunks as usize)
}

/// Reads `text` with a model and adds up what its matrices see. `each` hears of every chunk, with
/// what there is so far where it asks for it.
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
                "{} is an encoder-decoder: what its matrices see of a text alone is not what they see in use",
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
    if options.one_by_one {
        observer = one_by_one(model, observer)?;
    }
    let mut evaluator = Evaluator::observed(model, &cpu, settings, options.n_ctx, observer)?;
    let (model_fingerprint, fingerprint) = (fingerprint(model)?, text.fingerprint());
    let result = |done: usize| {
        let importance = Importance {
            entries: collector.entries(),
            datasets: vec![text.name()],
            chunks: done as u32,
            chunk_size: options.n_ctx as u32,
            reading: Some(Reading {
                text: text.name(),
                fingerprint,
                chunks: (options.skip + done) as u32,
                chunk_size: options.n_ctx as u32,
                model: Some(model_fingerprint),
            }),
            file: PathBuf::new(),
        };
        // What is not a number would be refused by whoever reads it.
        let odd = |entry: &Entry| entry.sums.iter().any(|sum| !sum.is_finite());
        match importance.entries.iter().find(|(_, entry)| odd(entry)) {
            Some((name, _)) => Err(Error::Unfit {
                file: model.file().path().to_path_buf(),
                problem: format!("the inputs of `{name}` are not numbers"),
            }),
            None => Ok(importance),
        }
    };
    let todo = chunks.n_chunks.saturating_sub(options.skip);
    for (done, (input, _)) in chunks.iter().skip(options.skip).enumerate() {
        if options.output {
            evaluator.each_logits(&input, 0, |_, _| Ok(()))?;
        } else {
            evaluator.fill(&input)?;
        }
        if done == 0 && collector.is_empty() {
            return Err(Error::Unfit {
                file: model.file().path().to_path_buf(),
                problem: "none of its matrices is known to be of a layer (`blk.…` in GGUF)".into(),
            });
        }
        each(done + 1, todo, &|| result(done + 1))?;
    }
    result(todo)
}

/// Shows `observer` everything, and gives back the memory of mapped weights once others are in turn.
fn one_by_one(model: &Model, observer: Observer) -> Result<Observer> {
    let file = model.file();
    let mut mapped: HashMap<String, TensorBytes> = HashMap::new();
    for tensor in file.tensors() {
        // What is packed would be unpacked.
        if !file.is_packed(tensor) {
            let bytes = file.data(tensor)?;
            if bytes.is_mapped() {
                mapped.insert(tensor.name.clone(), bytes);
            }
        }
    }
    let in_turn: Mutex<Vec<TensorBytes>> = Mutex::default();
    Ok(Observer::new(move |observation| {
        let next = observation.weights.iter();
        let next = next.filter_map(|name| mapped.get(*name)).cloned().collect();
        // Any list of weights does: at worst they stay where they are.
        let mut in_turn = in_turn.lock().unwrap_or_else(PoisonError::into_inner);
        for done in std::mem::replace(&mut *in_turn, next) {
            done.release(0..done.len());
        }
        observer.look(observation);
    }))
}

/// What the weights of a model are called in a GGUF file of it, which importance is kept by.
struct Names {
    /// The tensors that are made of a weight, by the weight's own name.
    tensors: HashMap<String, Vec<Made>>,
}

/// A tensor of a GGUF file.
struct Made {
    name: String,
    /// Its inputs, of all matrices of a stack.
    inputs: u64,
    /// Whether it is a stack: of experts, or of heads, whose inputs are seen side by side.
    is_stack: bool,
    /// Where each of them is among those of the weight, if they are in another order.
    columns: Option<Vec<usize>>,
}

impl Names {
    fn of(model: &Model) -> Names {
        let file = model.file();
        let mut tensors: HashMap<String, Vec<Made>> = HashMap::new();
        let matrices = |shape: &[u64]| -> u64 { shape.iter().skip(2).product() };
        let made = |name: &str, shape: &[u64], columns: Option<&Vec<usize>>| Made {
            name: name.to_owned(),
            inputs: shape.first().unwrap_or(&1).saturating_mul(matrices(shape)),
            is_stack: matrices(shape) > 1,
            columns: columns.cloned(),
        };
        if matches!(file.format(), Format::Gguf { .. }) {
            for tensor in tensors_of(file) {
                let made = made(&tensor.name, &tensor.shape, None);
                tensors.insert(tensor.name, vec![made]);
            }
            return Names { tensors };
        }
        for tensor in gguf_origins(file, model.arch(), model.hparams()) {
            for part in &tensor.parts {
                let made = made(&tensor.name, &tensor.shape, tensor.columns.as_ref());
                // Nibbles are half of a weight, which is called without this.
                let weight = part.name.trim_end_matches("_blocks").to_owned();
                tensors.entry(weight).or_default().push(made);
            }
        }
        Names { tensors }
    }

    /// The tensors that an observation shows the inputs of. MLA multiplies with part of a matrix the other way
    /// round too, which are not the inputs of its columns.
    fn seen(&self, observation: &Observation<'_>) -> impl Iterator<Item = &Made> {
        let width = observation.width.checked_mul(observation.n_experts);
        let weights = observation.weights.iter();
        let tensors = weights.filter_map(|weight| self.tensors.get(*weight));
        let fits = move |made: &&Made| width.is_some_and(|n| n as u64 == made.inputs);
        tensors.flatten().filter(fits)
    }
}

/// Whether a tensor belongs to a layer, of an encoder (`enc.blk.0.…`) too.
fn is_of_layer(name: &str) -> bool {
    name.starts_with("blk.") || name.contains(".blk.")
}

/// Rows with their elements in another order.
fn reordered(rows: &[f32], columns: &[usize]) -> Vec<f32> {
    let rows = rows.chunks_exact(columns.len().max(1));
    rows.flat_map(|row| columns.iter().map(|&from| row[from]))
        .collect()
}

fn add(seen: &mut HashMap<String, Seen>, observation: &Observation<'_>, tensors: &[&Made]) {
    if tensors.is_empty() {
        return;
    }
    let mut squares = vec![0.0f32; observation.width];
    let mut sums = vec![0.0f64; observation.width];
    let n = observation.rows.len() / observation.width.max(1);
    // Singles add up a few rows at a time, doubles those.
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
    // Each matrix of a stack would need its own sketch; matrices that share inputs share it.
    let sketched = tensors.iter().position(|made| !made.is_stack);
    for (i, made) in tensors.iter().enumerate() {
        let width = observation.width;
        if !seen.contains_key(&made.name) {
            seen.insert(made.name.clone(), Seen::default());
        }
        let Some(entry) = seen.get_mut(&made.name) else {
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
            sketch.see(observation.rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a matrix that is multiplied with both ways, only the inputs of its columns count.
    #[test]
    fn rows_are_no_inputs() {
        let name = "blk.0.attn_kv_b.weight";
        let made = Made {
            name: name.to_owned(),
            inputs: 2,
            is_stack: false,
            columns: None,
        };
        let names = Names {
            tensors: HashMap::from([(name.to_owned(), vec![made])]),
        };
        let mut seen = HashMap::new();
        let mut look = |rows: &[f32]| {
            let observation = Observation {
                weights: &[name],
                expert: 0,
                n_experts: 1,
                rows,
                width: rows.len(),
            };
            let tensors: Vec<&Made> = names.seen(&observation).collect();
            add(&mut seen, &observation, &tensors);
        };
        look(&[1.0, 2.0]);
        look(&[5.0, 6.0, 7.0]);
        look(&[3.0, 1.0]);
        let entry = &seen[name];
        assert_eq!(
            (&entry.sums[..], &entry.counts[..]),
            (&[10.0, 5.0][..], &[2][..])
        );
    }
}
