//! [`collect`]: makes an importance matrix of what a model computes while it reads a text.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{Observation, Observer};
use oxidize_core::file::Format;
use oxidize_core::model::Model;

use crate::error::{Error, Result};
use crate::evaluate::{Chunks, Evaluator, Settings};
use crate::importance::{Entry, Importance, Reading};
use crate::quantize::tensors_of;
use crate::sketch::Sketch;
use crate::tensor::Tensor;
use crate::text::Text;

/// How a matrix is collected.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tokens of a chunk.
    pub n_ctx: usize,
    /// Most chunks to read; all where nothing is said.
    pub chunks: Option<usize>,
    /// Chunks at the beginning that were read before.
    pub skip: usize,
    /// Whether the matrix that makes the logits is looked at too.
    pub output: bool,
    /// How the model is run.
    pub settings: Settings,
}

/// What was seen of one matrix or stack, in double precision: sums grow large.
#[derive(Default)]
struct Seen {
    sums: Vec<f64>,
    counts: Vec<u64>,
    sketch: Option<Sketch>,
}

/// Chunks at the beginning of `text` that a matrix has read, so that reading can go on after them. An error
/// where it was made of another text, or in other chunks.
pub fn chunks_read(known: &Importance, text: &Text, n_ctx: usize) -> Result<usize> {
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
    if !matches!(model.file().format(), Format::Gguf { .. }) {
        return Err(Error::Unfit {
            file: model.file().path().to_path_buf(),
            problem: "importance is collected by GGUF names: convert the model first".into(),
        });
    }
    if model.plan().n_encoder_ops > 0 {
        return Err(Error::Unfit {
            file: model.file().path().to_path_buf(),
            problem: format!(
                "{} is an encoder-decoder: what its matrices see of a text alone is not what they see in use",
                model.arch().name
            ),
        });
    }
    let chunks = Chunks::new(model, text, options.n_ctx, options.chunks)?;
    let seen: Arc<Mutex<HashMap<String, Seen>>> = Arc::default();
    let (sink, with_output) = (seen.clone(), options.output);
    let inputs = inputs_of(model);
    let observer = Observer::new(move |observation| {
        // A panic elsewhere leaves sums that are whole: rows are added one observation at a time.
        let mut seen = sink.lock().unwrap_or_else(PoisonError::into_inner);
        add(&mut seen, observation, |name| {
            fits(&inputs, name, observation) && (with_output || name.starts_with("blk."))
        });
    });
    let cpu = Cpu::default();
    let mut evaluator =
        Evaluator::observed(model, &cpu, &options.settings, options.n_ctx, observer)?;
    let fingerprint = text.fingerprint();
    let result = |done: usize| {
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = seen.iter().map(|(name, seen)| {
            let entry = Entry {
                sums: seen.sums.iter().map(|&sum| sum as f32).collect(),
                counts: seen.counts.iter().map(|&count| count as f32).collect(),
                sketch: seen.sketch.clone(),
            };
            (name.clone(), entry)
        });
        let importance = Importance {
            entries: entries.collect(),
            datasets: vec![text.name()],
            chunks: done as u32,
            chunk_size: options.n_ctx as u32,
            reading: Some(Reading {
                text: text.name(),
                fingerprint,
                chunks: (options.skip + done) as u32,
                chunk_size: options.n_ctx as u32,
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
        let nothing = || seen.lock().is_ok_and(|seen| seen.is_empty());
        if done == 0 && nothing() {
            return Err(Error::Unfit {
                file: model.file().path().to_path_buf(),
                problem: "none of its matrices is named as those of layers are (`blk.…`)".into(),
            });
        }
        each(done + 1, todo, &|| result(done + 1))?;
    }
    result(todo)
}

/// The inputs of each tensor of a model, by its name.
fn inputs_of(model: &Model) -> HashMap<String, u64> {
    let inputs = |tensor: Tensor<'_>| {
        let all = tensor.columns().saturating_mul(tensor.matrices());
        (tensor.name, all)
    };
    tensors_of(model.file()).into_iter().map(inputs).collect()
}

/// Whether what is seen are the inputs of a tensor's columns, whose importance is collected. MLA multiplies
/// with part of a matrix the other way round too.
fn fits(inputs: &HashMap<String, u64>, name: &str, observation: &Observation<'_>) -> bool {
    let seen = observation.width.checked_mul(observation.n_experts);
    seen.is_some_and(|seen| inputs.get(name) == Some(&(seen as u64)))
}

fn add(
    seen: &mut HashMap<String, Seen>,
    observation: &Observation<'_>,
    wanted: impl Fn(&str) -> bool,
) {
    if !observation.weights.iter().any(|name| wanted(name)) {
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
    let names = observation.weights.iter().filter(|name| wanted(name));
    for (i, name) in names.enumerate() {
        let width = observation.width;
        if !seen.contains_key(*name) {
            seen.insert((*name).to_owned(), Seen::default());
        }
        let Some(entry) = seen.get_mut(*name) else {
            continue;
        };
        entry.sums.resize(width * observation.n_experts, 0.0);
        entry.counts.resize(observation.n_experts, 0);
        let start = observation.expert * width;
        for (total, sum) in entry.sums[start..start + width].iter_mut().zip(&sums) {
            *total += sum;
        }
        let before = entry.counts[observation.expert];
        entry.counts[observation.expert] += n as u64;
        // Each expert of a stack would need its own; matrices that share inputs share it.
        if i == 0 && observation.n_experts == 1 {
            let sketch = entry.sketch.get_or_insert_with(|| Sketch::new(width));
            sketch.see(observation.rows, before);
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
        let inputs = HashMap::from([(name.to_owned(), 2)]);
        let mut seen = HashMap::new();
        let mut look = |rows: &[f32]| {
            let observation = Observation {
                weights: &[name],
                expert: 0,
                n_experts: 1,
                rows,
                width: rows.len(),
            };
            add(&mut seen, &observation, |name| {
                fits(&inputs, name, &observation)
            });
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
