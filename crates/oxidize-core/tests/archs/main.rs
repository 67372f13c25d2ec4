//! Tiny models of every supported architecture, compared with PyTorch's logits: from GGUF and from
//! safetensors, on both backends, with various batches.

mod batch_schedule;
mod quantized;
#[path = "../shared/mod.rs"]
mod shared;

use batch_schedule::{config, feed, feed_after_prefix, feed_beside, feed_encoded, feed_whole};
use oxidize_core::arch::ARCHS;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::reference::Reference;
use oxidize_core::backend::{Backend, SessionConfig};
use oxidize_core::embedding::{Embedder, EmbedderConfig, Pooling};
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::graph::OutputKind;
use oxidize_core::model::Model;
use oxidize_core::tokenizer::TokenPair;
use shared::shared;
use std::path::PathBuf;

/// An input and PyTorch's results.
#[derive(Default)]
struct Case {
    tokens: Vec<u32>,
    /// Tokens of the decoder, if `tokens` are the encoder's.
    decoder_tokens: Vec<u32>,
    /// Logits at each position; for a classifier, its scores.
    logits: Vec<f32>,
    /// Hidden states of an encoder at each position.
    hidden: Vec<f32>,
    /// Embedding of an encoder.
    pooled: Vec<f32>,
    /// Scores of a classifier for the first third of the tokens as one text and the rest as another.
    pair: Vec<f32>,
}

fn cases(dir: &std::path::Path) -> Vec<Case> {
    let file = ModelFile::open(dir.join("ref.safetensors"), &OpenOptions::default()).unwrap();
    let read = |name: String| -> Vec<[u8; 4]> {
        let data = file.tensor(&name).map(|info| file.data(info).unwrap());
        let (numbers, _) = data.as_deref().unwrap_or_default().as_chunks();
        numbers.to_vec()
    };
    let ids = |name: String| read(name).into_iter().map(u32::from_le_bytes).collect();
    let floats = |name: String| read(name).into_iter().map(f32::from_le_bytes).collect();
    let case = |i: usize| Case {
        tokens: ids(format!("tokens_{i}")),
        decoder_tokens: ids(format!("decoder_tokens_{i}")),
        logits: floats(format!("logits_{i}")),
        hidden: floats(format!("hidden_{i}")),
        pooled: floats(format!("pooled_{i}")),
        pair: floats(format!("pair_{i}")),
    };
    (0..3).map(case).collect()
}

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

/// A golden model in its usable forms.
struct Golden {
    name: String,
    kind: Kind,
    dir: PathBuf,
    forms: Vec<PathBuf>,
}

/// Kind of a golden model, which determines its reference.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Logits at every position.
    Decoder,
    /// Hidden states at every position, and an embedding.
    Encoder,
    /// Logits of a decoder with an encoder.
    EncoderDecoder,
}

/// Golden models of supported architectures; `OXIDIZE_GOLDEN` selects those whose name contains it.
fn models() -> Vec<Golden> {
    let wanted = std::env::var("OXIDIZE_GOLDEN").unwrap_or_default();
    let mut models = Vec::new();
    // Checked-in models of families without a golden model.
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/encoders");
    let (golden, extra) = (shared("golden"), shared("golden-extra"));
    let is_complete = golden.is_some();
    for directory in [golden, extra, Some(own)].into_iter().flatten() {
        let index = std::fs::read_to_string(directory.join("INDEX.tsv")).unwrap_or_default();
        for line in index.lines().skip(1) {
            let fields: Vec<&str> = line.split('\t').collect();
            let (name, arch, status, kind) = (fields[0], fields[2], fields[3], fields[5]);
            let kind = match kind {
                "lm" => Kind::Decoder,
                // The index calls GPT-2 an encoder, because of how its logits were computed.
                "encoder" if name == "gpt2" => Kind::Decoder,
                "encoder" => Kind::Encoder,
                _ => Kind::EncoderDecoder,
            };
            if !name.contains(&wanted) {
                continue;
            }
            let dir = directory.join(name);
            let forms = forms(name, &dir, arch, status == "gold");
            if !forms.is_empty() {
                models.push(Golden {
                    name: name.to_owned(),
                    kind,
                    dir,
                    forms,
                });
            }
        }
    }
    assert!(
        models.len() >= if is_complete { 100 } else { 3 } || !wanted.is_empty(),
        "only {} golden models found",
        models.len()
    );
    models
}

/// Forms of a model: the GGUF file if the index marks it as valid, and the safetensors directory.
fn forms(name: &str, dir: &std::path::Path, arch: &str, is_valid: bool) -> Vec<PathBuf> {
    let mut forms = Vec::new();
    if is_valid && ARCHS.iter().any(|known| known.name == arch) {
        forms.push(dir.join("model.gguf"));
    }
    // The class in the model's own configuration; the index has the one that computed the reference.
    let config = std::fs::read_to_string(dir.join("config.json")).unwrap_or_default();
    let class = |class: &&str| config.contains(&format!("\"{class}\""));
    // References of these follow the GGUF implementation of the family.
    let gguf_only = name.ends_with("-lcsem");
    if !gguf_only && ARCHS.iter().any(|known| known.hf_classes.iter().any(class)) {
        forms.push(dir.to_path_buf());
    }
    forms.retain(|form| form.exists());
    forms
}

/// Runs one form of a model with all batches and returns the deviations above the limit.
fn check(golden: &Golden, form: &std::path::Path) -> Vec<String> {
    let form_name = form.file_name().unwrap().to_string_lossy();
    let label = format!("{} ({form_name})", golden.name);
    let model = match Model::load_with(form, &OpenOptions::default()) {
        Ok(model) => model,
        Err(error) => return vec![format!("{label}: {error}")],
    };
    if !model.unused_tensors().is_empty() {
        return vec![format!("{label}: unused {:?}", model.unused_tensors())];
    }
    let cases = cases(&golden.dir);
    let backends: [(&str, &dyn Backend); 2] = [("reference", &Reference), ("cpu", &Cpu::default())];
    let (mut failures, mut worst) = (Vec::new(), 0f64);
    for (backend_name, backend) in backends {
        for i in 0..cases.len() {
            let runs = match golden.kind {
                Kind::Decoder => decode(&model, backend, &cases, i),
                Kind::Encoder => encode(&model, backend, &cases, i, form == golden.dir),
                Kind::EncoderDecoder => encode_and_decode(&model, backend, &cases, i),
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
                let distance = distance(&ours, expected);
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
struct Run<'a> {
    batches: &'static str,
    ours: Vec<f32>,
    expected: &'a [f32],
    limit: f64,
}

/// Maximum distance from PyTorch's results.
const LIMIT: f64 = 1e-4;

type Runs<'a> = Result<Vec<Run<'a>>, oxidize_core::Error>;

fn decode<'a>(model: &Model, backend: &dyn Backend, cases: &'a [Case], i: usize) -> Runs<'a> {
    let Case { tokens, logits, .. } = &cases[i];
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
    let run = |(batches, ours): (&'static str, Vec<f32>)| Run {
        expected: &logits[logits.len() - ours.len()..],
        batches,
        ours,
        limit: LIMIT,
    };
    Ok(runs.into_iter().map(run).collect())
}

fn encode<'a>(
    model: &Model,
    backend: &dyn Backend,
    cases: &'a [Case],
    i: usize,
    from_directory: bool,
) -> Runs<'a> {
    let case = &cases[i];
    let config = SessionConfig {
        max_tokens: 256,
        ..config(case.tokens.len())
    };
    let mut session = model.embedding_session(backend, &config)?;
    let inputs = [&cases[1].tokens[..], &cases[0].tokens, &case.tokens];
    let mut runs = vec![
        Run {
            batches: "alone",
            ours: feed_whole(session.as_mut(), &inputs[2..]),
            expected: &case.hidden,
            limit: LIMIT,
        },
        Run {
            batches: "beside others",
            ours: feed_whole(session.as_mut(), &inputs),
            expected: &case.hidden,
            limit: LIMIT,
        },
    ];
    if !case.pooled.is_empty() && Pooling::of(model).is_some() {
        let mut embedder = Embedder::with_backend(model, backend, &EmbedderConfig::default())?;
        runs.push(Run {
            batches: "pooled",
            ours: embedder
                .embed_tokens(std::slice::from_ref(&case.tokens))?
                .concat()
                .concat(),
            expected: &case.pooled,
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

fn encode_and_decode<'a>(
    model: &Model,
    backend: &dyn Backend,
    cases: &'a [Case],
    i: usize,
) -> Runs<'a> {
    let Case {
        tokens,
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
    let run = |(batches, ours)| Run {
        batches,
        ours,
        expected: logits,
        limit: LIMIT,
    };
    Ok(runs.into_iter().map(run).collect())
}

#[test]
fn outputs_match_pytorch() {
    for_each_form(check);
}

/// Runs `check` on every form of every model and reports all failures.
fn for_each_form(check: impl Fn(&Golden, &std::path::Path) -> Vec<String> + Sync) {
    let models = models();
    let forms = models
        .iter()
        .flat_map(|golden| golden.forms.iter().map(move |form| (golden, form)));
    let queue = std::sync::Mutex::new(forms);
    let failures = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some((golden, form)) = queue.lock().unwrap().next() else {
                        return;
                    };
                    let found = check(golden, form);
                    failures.lock().unwrap().extend(found);
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
