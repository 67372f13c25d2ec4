//! Tiny models of every supported architecture against PyTorch's logits, from GGUF and from
//! safetensors, on both backends, however the input is cut into batches.

mod feed;
mod quantized;
#[path = "../shared/mod.rs"]
mod shared;

use feed::{config, feed, feed_after_prefix, feed_beside, feed_encoded, feed_whole};
use oxidize_core::arch::ARCHS;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::reference::Reference;
use oxidize_core::backend::{Backend, SessionConfig};
use oxidize_core::embedding::{Embedder, EmbedderConfig, Pooling};
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::graph::Gives;
use oxidize_core::model::Model;
use oxidize_core::tokenizer::TokenPair;
use shared::shared;
use std::path::PathBuf;

/// What PyTorch makes of an input.
#[derive(Default)]
struct Case {
    tokens: Vec<u32>,
    /// The tokens of the decoder, where `tokens` are the encoder's.
    decoder_tokens: Vec<u32>,
    /// The logits at each position; of a classifier, its scores.
    logits: Vec<f32>,
    /// Of an encoder: the hidden states at each position, and the embedding.
    hidden: Vec<f32>,
    pooled: Vec<f32>,
    /// Of a classifier: its scores where the first third of the tokens is one text and the rest
    /// another.
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

/// ‖ours − reference‖ ÷ ‖reference − its mean‖.
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

/// A golden model, in the forms that its index vouches for.
struct Golden {
    name: String,
    kind: Kind,
    dir: PathBuf,
    forms: Vec<PathBuf>,
}

/// What a golden model is, and so what its reference has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Logits at every position.
    Decoder,
    /// Hidden states at every position, and an embedding.
    Encoder,
    /// Logits of a decoder behind an encoder.
    Both,
}

/// Every golden model whose architecture runs; `OXIDIZE_GOLDEN` picks those whose name it is part of.
fn models() -> Vec<Golden> {
    let wanted = std::env::var("OXIDIZE_GOLDEN").unwrap_or_default();
    let mut models = Vec::new();
    // What is checked in stands for families that have no golden model.
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/encoders");
    let (golden, extra) = (shared("golden"), shared("golden-extra"));
    let is_complete = golden.is_some();
    for folder in [golden, extra, Some(own)].into_iter().flatten() {
        let index = std::fs::read_to_string(folder.join("INDEX.tsv")).unwrap_or_default();
        for line in index.lines().skip(1) {
            let fields: Vec<&str> = line.split('\t').collect();
            let (name, arch, status, kind) = (fields[0], fields[2], fields[3], fields[5]);
            let kind = match kind {
                "lm" => Kind::Decoder,
                // The index calls GPT-2 an encoder, because of how its logits were computed.
                "encoder" if name == "gpt2" => Kind::Decoder,
                "encoder" => Kind::Encoder,
                _ => Kind::Both,
            };
            if !name.contains(&wanted) {
                continue;
            }
            let dir = folder.join(name);
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

/// The GGUF file where the index vouches for it, and the directory of safetensors.
fn forms(name: &str, dir: &std::path::Path, arch: &str, gold: bool) -> Vec<PathBuf> {
    let mut forms = Vec::new();
    if gold && ARCHS.iter().any(|known| known.name == arch) {
        forms.push(dir.join("model.gguf"));
    }
    // The class that the directory itself names; the index has the one that made the reference.
    let config = std::fs::read_to_string(dir.join("config.json")).unwrap_or_default();
    let class = |class: &&str| config.contains(&format!("\"{class}\""));
    // References of these follow GGUF's reading of the family.
    let gguf_only = name.ends_with("-lcsem");
    if !gguf_only && ARCHS.iter().any(|known| known.hf_classes.iter().any(class)) {
        forms.push(dir.to_path_buf());
    }
    forms.retain(|form| form.exists());
    forms
}

/// Runs one form of a model in every way, and says what was too far off.
fn check(golden: &Golden, form: &std::path::Path) -> Vec<String> {
    let form_name = form.file_name().unwrap().to_string_lossy();
    let who = format!("{} ({form_name})", golden.name);
    let model = match Model::load(form, &OpenOptions::default()) {
        Ok(model) => model,
        Err(error) => return vec![format!("{who}: {error}")],
    };
    if !model.unused_tensors().is_empty() {
        return vec![format!("{who}: unused {:?}", model.unused_tensors())];
    }
    let cases = cases(&golden.dir);
    let backends: [(&str, &dyn Backend); 2] = [("reference", &Reference), ("cpu", &Cpu::default())];
    let (mut failures, mut worst) = (Vec::new(), 0f64);
    for (backend_name, backend) in backends {
        for i in 0..cases.len() {
            let runs = match golden.kind {
                Kind::Decoder => decode(&model, backend, &cases, i),
                Kind::Encoder => encode(&model, backend, &cases, i, form == golden.dir),
                Kind::Both => encode_and_decode(&model, backend, &cases, i),
            };
            let runs = match runs {
                Ok(runs) => runs,
                Err(error) => return vec![format!("{who} on {backend_name}: {error}")],
            };
            for Run {
                how,
                ours,
                expected,
                limit,
            } in runs
            {
                let distance = distance(&ours, expected);
                worst = worst.max(distance * LIMIT / limit);
                if distance.is_nan() || distance > limit {
                    failures.push(format!(
                        "{who} on {backend_name}, input {i}, {how}: {distance:.2e}"
                    ));
                }
            }
        }
    }
    println!("{who}: {worst:.2e}");
    failures
}

/// What came out in one of the ways of going in, and what should have.
struct Run<'a> {
    how: &'static str,
    ours: Vec<f32>,
    expected: &'a [f32],
    limit: f64,
}

/// How far from PyTorch is too far.
const LIMIT: f64 = 1e-4;

type Runs<'a> = Result<Vec<Run<'a>>, oxidize_core::Error>;

fn decode<'a>(model: &Model, backend: &dyn Backend, cases: &'a [Case], i: usize) -> Runs<'a> {
    let Case { tokens, logits, .. } = &cases[i];
    // References know how long the input is when they turn its first key.
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
    let run = |(how, ours): (&'static str, Vec<f32>)| Run {
        expected: &logits[logits.len() - ours.len()..],
        how,
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
            how: "alone",
            ours: feed_whole(session.as_mut(), &inputs[2..]),
            expected: &case.hidden,
            limit: LIMIT,
        },
        Run {
            how: "beside others",
            ours: feed_whole(session.as_mut(), &inputs),
            expected: &case.hidden,
            limit: LIMIT,
        },
    ];
    if !case.pooled.is_empty() && Pooling::of(model).is_some() {
        let mut embedder = Embedder::new(model, backend, &EmbedderConfig::default())?;
        runs.push(Run {
            how: "pooled",
            ours: embedder
                .embed(std::slice::from_ref(&case.tokens))?
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
    // GGUF files have lost a part of BERT's classifiers.
    if model.plan().gives == Gives::Scores && from_directory {
        let mut session = model.session(backend, &config)?;
        let mut ours = feed_whole(session.as_mut(), &inputs[2..]);
        // One number has no spread to compare with.
        ours.truncate(case.logits.len());
        assert!((ours[0] - case.logits[0]).abs() < 1e-4, "{ours:?}");
    }
    if from_directory && !case.pair.is_empty() {
        let pair = TokenPair {
            tokens: case.tokens.clone(),
            second: case.tokens.len() / 3,
        };
        let mut embedder = Embedder::new(model, backend, &EmbedderConfig::default())?;
        let ours = embedder.embed_pairs(&[pair])?.concat().concat();
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
    let mut go =
        |slot, pieces: &[usize]| feed_encoded(session, slot, tokens, decoder_tokens, pieces);
    let mut runs = vec![
        ("one batch", go(0, &[128])),
        ("one by one", go(1, &[1])),
        ("uneven chunks", go(0, &[3, 1, 7])),
    ];
    // Another in between leaves what was read alone.
    feed_encoded(session, 2, &cases[0].tokens, &cases[0].decoder_tokens, &[2]);
    runs.push((
        "after another",
        feed_encoded(session, 1, tokens, decoder_tokens, &[5]),
    ));
    let run = |(how, ours)| Run {
        how,
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

/// Runs `check` on every form of every model, and fails with all that it found.
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
