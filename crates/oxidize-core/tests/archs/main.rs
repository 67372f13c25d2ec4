//! Tiny models of every supported architecture, compared with PyTorch's logits: from GGUF and from
//! safetensors, on both backends, with various batches.

mod batch_schedule;
mod models;
mod quantized;

use batch_schedule::{config, feed, feed_after_prefix, feed_beside, feed_encoded, feed_whole};
use models::{Golden, Kind};
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::reference::Reference;
use oxidize_core::backend::{Backend, SessionConfig};
use oxidize_core::embedding::{Embedder, EmbedderConfig, Pooling};
use oxidize_core::file::OpenOptions;
use oxidize_core::graph::OutputKind;
use oxidize_core::model::Model;
use oxidize_core::tokenizer::TokenPair;
use oxidize_golden::{Case, Form};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

oxidize_testing::main!(
    outputs_match_pytorch,
    outputs_of_stored_models_match_pytorch,
    models::every_architecture_has_golden_models,
    models::gguf_files_have_the_stored_form,
    quantized::eight_bit_outputs_match_pytorch,
    quantized::eight_bit_outputs_of_stored_models_match_pytorch,
);

/// Returns ‖ours − reference‖ ÷ ‖reference − mean(reference)‖.
fn distance(ours: &[f32], reference: &[f32]) -> f64 {
    assert_eq!(ours.len(), reference.len());
    let mean = reference.iter().map(|&x| f64::from(x)).sum::<f64>() / reference.len() as f64;
    let error: f64 = ours
        .iter()
        .zip(reference)
        .map(|(a, b)| f64::from(a - b).powi(2))
        .sum();
    let spread: f64 = reference
        .iter()
        .map(|&x| (f64::from(x) - mean).powi(2))
        .sum();
    (error / spread).sqrt()
}

/// Runs one form of a model with all batches and returns the deviations above the limit.
fn check(golden: &Golden, form: Form, path: &Path) -> Vec<String> {
    let label = format!("{} ({form:?})", golden.name);
    let model = match Model::load_with(path, &OpenOptions::default()) {
        Ok(model) => model,
        Err(error) => return vec![format!("{label}: {error}")],
    };
    if !model.unused_tensors().is_empty() {
        return vec![format!("{label}: unused {:?}", model.unused_tensors())];
    }
    let cases = &golden.cases;
    let backends: [(&str, &dyn Backend); 2] = [("reference", &Reference), ("cpu", &Cpu::default())];
    let (mut failures, mut worst) = (Vec::new(), 0f64);
    for (backend_name, backend) in backends {
        for i in 0..cases.len() {
            let runs = match golden.kind {
                Kind::Decoder => decode(&model, backend, cases, i),
                Kind::Encoder => encode(&model, backend, cases, i, form == Form::Directory),
                Kind::EncoderDecoder => encode_and_decode(&model, backend, cases, i),
            };
            let runs = match runs {
                Ok(runs) => runs,
                Err(error) => return vec![format!("{label} on {backend_name}: {error}")],
            };
            for Run {
                batches,
                ours,
                expected,
                limit,
            } in runs
            {
                let distance = distance(&ours, &expected);
                worst = worst.max(distance * LIMIT / limit);
                if distance.is_nan() || distance > limit {
                    failures.push(format!(
                        "{label} on {backend_name}, input {i}, {batches}: {distance:.2e}"
                    ));
                }
            }
        }
    }
    println!("{label}: {worst:.2e}");
    failures
}

/// Results of one kind of batches, and the expected ones.
struct Run {
    batches: &'static str,
    ours: Vec<f32>,
    expected: Vec<f32>,
    limit: f64,
}

impl Run {
    /// Results at the last positions of an input, compared at those of `positions` among them.
    fn at_positions(
        batches: &'static str,
        ours: &[f32],
        (positions, expected): (&[usize], &[f32]),
        n_tokens: usize,
    ) -> Run {
        let width = expected.len() / positions.len();
        let first = n_tokens - ours.len() / width;
        let rows = positions.iter().zip(expected.chunks_exact(width));
        let rows: Vec<(&usize, &[f32])> = rows.filter(|(at, _)| **at >= first).collect();
        assert!(!rows.is_empty(), "no output to compare {batches}");
        let row = |at: usize| &ours[(at - first) * width..][..width];
        Run {
            batches,
            ours: rows.iter().flat_map(|(at, _)| row(**at)).copied().collect(),
            expected: rows.iter().flat_map(|(_, row)| *row).copied().collect(),
            limit: LIMIT,
        }
    }
}

/// Maximum distance from PyTorch's results.
const LIMIT: f64 = 1e-4;

type Runs = Result<Vec<Run>, oxidize_core::Error>;

fn decode(model: &Model, backend: &dyn Backend, cases: &[Case], i: usize) -> Runs {
    let Case {
        tokens,
        positions,
        logits,
        ..
    } = &cases[i];
    // References rotate the first key depending on the length of the input.
    let mut session = model.session(backend, &config(tokens.len()))?;
    let session = session.as_mut();
    let runs = [
        ("one batch", feed(session, tokens, &[128])),
        ("one by one", feed(session, tokens, &[1])),
        ("uneven chunks", feed(session, tokens, &[7, 1, 13, 2])),
        (
            "beside another",
            feed_beside(session, tokens, &cases[1].tokens),
        ),
        ("after a prefix hit", feed_after_prefix(session, tokens)),
    ];
    let run = |(batches, ours): (&'static str, Vec<f32>)| {
        Run::at_positions(batches, &ours, (positions, logits), tokens.len())
    };
    Ok(runs.into_iter().map(run).collect())
}

fn encode(
    model: &Model,
    backend: &dyn Backend,
    cases: &[Case],
    i: usize,
    from_directory: bool,
) -> Runs {
    let case = &cases[i];
    let config = SessionConfig {
        max_tokens: 256,
        ..config(case.tokens.len())
    };
    let mut session = model.embedding_session(backend, &config)?;
    let inputs = [&cases[1].tokens[..], &cases[0].tokens, &case.tokens];
    let expected = (&case.positions[..], &case.hidden[..]);
    let mut run = |batches, inputs: &[&[u32]]| {
        let ours = feed_whole(session.as_mut(), inputs);
        Run::at_positions(batches, &ours, expected, case.tokens.len())
    };
    let mut runs = vec![run("alone", &inputs[2..]), run("beside others", &inputs)];
    if !case.pooled.is_empty() && Pooling::of(model).is_some() {
        let mut embedder = Embedder::with_backend(model, backend, &EmbedderConfig::default())?;
        runs.push(Run {
            batches: "pooled",
            ours: embedder
                .embed_tokens(std::slice::from_ref(&case.tokens))?
                .concat()
                .concat(),
            expected: case.pooled.clone(),
            // A decoder's keys and values are rounded to half precision.
            limit: match model.plan().is_bidirectional() {
                true => LIMIT,
                false => 10.0 * LIMIT,
            },
        });
    }
    // GGUF files lack a part of BERT's classifiers.
    if model.plan().output == OutputKind::Scores && from_directory {
        let mut session = model.session(backend, &config)?;
        let mut ours = feed_whole(session.as_mut(), &inputs[2..]);
        // A single score has no spread, so the absolute error is compared.
        ours.truncate(case.logits.len());
        assert!((ours[0] - case.logits[0]).abs() < 1e-4, "{ours:?}");
    }
    if from_directory && !case.pair.is_empty() {
        let pair = TokenPair {
            tokens: case.tokens.clone(),
            second: case.tokens.len() / 3,
        };
        let mut embedder = Embedder::with_backend(model, backend, &EmbedderConfig::default())?;
        let ours = embedder.embed_token_pairs(&[pair])?.concat().concat();
        assert!((ours[0] - case.pair[0]).abs() < 1e-4, "{ours:?}");
        assert!((case.logits[0] - case.pair[0]).abs() > 1e-3);
    }
    Ok(runs)
}

fn encode_and_decode(model: &Model, backend: &dyn Backend, cases: &[Case], i: usize) -> Runs {
    let Case {
        tokens,
        positions,
        decoder_tokens,
        logits,
        ..
    } = &cases[i];
    let mut session = model.session(backend, &config(256))?;
    let session = session.as_mut();
    let mut feed_to_slot =
        |slot, pieces: &[usize]| feed_encoded(session, slot, tokens, decoder_tokens, pieces);
    let mut runs = vec![
        ("one batch", feed_to_slot(0, &[128])),
        ("one by one", feed_to_slot(1, &[1])),
        ("uneven chunks", feed_to_slot(0, &[3, 1, 7])),
    ];
    // Another prompt in between does not affect the encoder's output for this one.
    feed_encoded(session, 2, &cases[0].tokens, &cases[0].decoder_tokens, &[2]);
    runs.push((
        "after another",
        feed_encoded(session, 1, tokens, decoder_tokens, &[5]),
    ));
    let run = |(batches, ours): (&'static str, Vec<f32>)| {
        Run::at_positions(batches, &ours, (positions, logits), decoder_tokens.len())
    };
    Ok(runs.into_iter().map(run).collect())
}

fn outputs_match_pytorch() {
    for_each_form(&models::own(), check);
}

/// The same for larger sets beside the checkout, whose outputs are of all positions.
fn outputs_of_stored_models_match_pytorch() {
    for_each_form(&models::beside(), check);
}

/// Runs `check` on every form of every model and reports all failures.
fn for_each_form(models: &[Golden], check: impl Fn(&Golden, Form, &Path) -> Vec<String> + Sync) {
    let forms = models
        .iter()
        .flat_map(|golden| golden.forms.iter().map(move |form| (golden, *form)));
    let queue = std::sync::Mutex::new(forms);
    let failures = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some((golden, form)) = queue.lock().unwrap().next() else {
                        return;
                    };
                    let run = || check(golden, form, &golden.open().path(form));
                    // The others are still checked if one panics.
                    let found = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
                        let text = panic.downcast_ref::<String>().map_or("", String::as_str);
                        vec![format!("{} ({form:?}) panicked: {text}", golden.name)]
                    });
                    failures.lock().unwrap().extend(found);
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
