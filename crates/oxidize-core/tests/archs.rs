//! Tiny models of every supported architecture against PyTorch's logits, from GGUF and from
//! safetensors, on both backends, however the input is cut into batches.

use oxidize_core::arch::ARCHS;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::reference::Reference;
use oxidize_core::backend::{Backend, Batch, KvType, SeqSlice, Session, SessionConfig};
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::kv::BlockId;
use oxidize_core::model::Model;
use std::path::PathBuf;

/// Where the golden models are: beside the checkout, or where `OXIDIZE_SHARED` says.
fn golden() -> Option<PathBuf> {
    let shared = std::env::var_os("OXIDIZE_SHARED")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"));
    let golden = shared.join("golden");
    if golden.is_dir() {
        return Some(golden);
    }
    eprintln!("SKIPPED: no golden models at {}", golden.display());
    None
}

/// One input and the logits that PyTorch gives at each of its positions.
struct Case {
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

fn cases(dir: &std::path::Path) -> Vec<Case> {
    let file = ModelFile::open(dir.join("ref.safetensors"), &OpenOptions::default()).unwrap();
    let read = |name: String| file.data(file.tensor(&name).unwrap()).unwrap().to_vec();
    let case = |i: usize| Case {
        tokens: read(format!("tokens_{i}"))
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
            .collect(),
        logits: read(format!("logits_{i}"))
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect(),
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

const BLOCK_SIZE: usize = 8;

fn config(max_context: usize) -> SessionConfig {
    SessionConfig {
        n_blocks: 64,
        block_size: BLOCK_SIZE,
        max_tokens: 128,
        max_outputs: 128,
        state_slots: 3,
        exact_tokens: 0,
        max_context,
        key_type: KvType::F32,
        value_type: KvType::F32,
        n_threads: Some(2),
    }
}

/// Feeds `tokens` in pieces of the given sizes, and gives the logits of all positions.
///
/// The blocks are handed out in an odd order, so that nothing relies on their being neighbours.
fn feed(session: &mut dyn Session, tokens: &[u32], pieces: &[usize]) -> Vec<f32> {
    let blocks: Vec<BlockId> = (0..tokens.len().div_ceil(BLOCK_SIZE) as u32)
        .map(|i| BlockId(63 - 3 * i))
        .collect();
    feed_from(session, tokens, 0, pieces, &blocks)
}

/// The slot of the sequence that [`feed`] feeds.
const SLOT: u32 = 2;

/// Feeds the first half of the blocks and all the rest; then what follows that half once more,
/// into other blocks and from a copy of the state. Gives the logits of that part.
fn feed_after_prefix(session: &mut dyn Session, tokens: &[u32]) -> Vec<f32> {
    let n_blocks = tokens.len().div_ceil(BLOCK_SIZE) as u32;
    let kept = n_blocks / 2;
    let prefix = kept as usize * BLOCK_SIZE;
    feed(session, &tokens[..prefix], &[128]);
    session.copy_states(&[(SLOT, 0)]).unwrap();
    feed(session, tokens, &[128]);
    session.copy_states(&[(0, SLOT)]).unwrap();
    let block = |i: u32| if i < kept { 63 - 3 * i } else { 3 * i };
    let blocks: Vec<BlockId> = (0..n_blocks).map(|i| BlockId(block(i))).collect();
    feed_from(session, tokens, prefix, &[5], &blocks)
}

fn feed_from(
    session: &mut dyn Session,
    tokens: &[u32],
    mut at: usize,
    pieces: &[usize],
    blocks: &[BlockId],
) -> Vec<f32> {
    let mut logits = Vec::new();
    let mut sizes = pieces.iter().cycle();
    while at < tokens.len() {
        let n = (*sizes.next().unwrap()).min(tokens.len() - at);
        let positions: Vec<u32> = (at as u32..(at + n) as u32).collect();
        let outputs: Vec<u32> = (0..n as u32).collect();
        let sequences = [SeqSlice {
            n_tokens: n,
            blocks,
            slot: SLOT,
            ..SeqSlice::default()
        }];
        let batch = Batch {
            tokens: &tokens[at..at + n],
            positions: &positions,
            sequences: &sequences,
            outputs: &outputs,
        };
        session.run(&batch).unwrap();
        (0..n).for_each(|i| logits.extend_from_slice(session.output(i).unwrap()));
        at += n;
    }
    logits
}

/// Two sequences that grow side by side in the same batches; gives the logits of the first.
fn feed_beside(session: &mut dyn Session, tokens: &[u32], other: &[u32]) -> Vec<f32> {
    let n_blocks = tokens
        .len()
        .div_ceil(BLOCK_SIZE)
        .max(other.len().div_ceil(BLOCK_SIZE)) as u32;
    let blocks: Vec<Vec<BlockId>> = (0..2)
        .map(|s| (0..n_blocks).map(|i| BlockId(2 * i + s)).collect())
        .collect();
    let mut logits = Vec::new();
    let (mut a, mut b) = (0, 0);
    while a < tokens.len() {
        let (n, m) = (3.min(tokens.len() - a), 2.min(other.len() - b));
        let flat: Vec<u32> = other[b..b + m]
            .iter()
            .chain(&tokens[a..a + n])
            .copied()
            .collect();
        let positions: Vec<u32> = (b as u32..(b + m) as u32)
            .chain(a as u32..(a + n) as u32)
            .collect();
        let outputs: Vec<u32> = (m as u32..(m + n) as u32).collect();
        let sequences = [
            SeqSlice {
                n_tokens: m,
                blocks: &blocks[1],
                slot: 0,
                ..SeqSlice::default()
            },
            SeqSlice {
                n_tokens: n,
                blocks: &blocks[0],
                slot: 1,
                ..SeqSlice::default()
            },
        ];
        let sequences = if m == 0 {
            &sequences[1..]
        } else {
            &sequences[..]
        };
        let batch = Batch {
            tokens: &flat,
            positions: &positions,
            sequences,
            outputs: &outputs,
        };
        session.run(&batch).unwrap();
        (0..n).for_each(|i| logits.extend_from_slice(session.output(i).unwrap()));
        (a, b) = (a + n, b + m);
    }
    logits
}

/// A golden model, in the forms that its index vouches for.
struct Golden {
    name: String,
    dir: PathBuf,
    forms: Vec<PathBuf>,
}

/// Every golden model whose architecture runs; `OXIDIZE_GOLDEN` picks those whose name it is part of.
fn models() -> Vec<Golden> {
    let Some(golden) = golden() else {
        return Vec::new();
    };
    let wanted = std::env::var("OXIDIZE_GOLDEN").unwrap_or_default();
    let mut models = Vec::new();
    for folder in [golden.clone(), golden.with_file_name("golden-extra")] {
        let index = std::fs::read_to_string(folder.join("INDEX.tsv")).unwrap_or_default();
        for line in index.lines().skip(1) {
            let fields: Vec<&str> = line.split('\t').collect();
            let (name, arch, status, kind) = (fields[0], fields[2], fields[3], fields[5]);
            // The index calls GPT-2 an encoder, because of how its logits were computed.
            let language_model = kind == "lm" || name == "gpt2";
            if !language_model || !name.contains(&wanted) {
                continue;
            }
            let dir = folder.join(name);
            let forms = forms(name, &dir, arch, status == "gold");
            if !forms.is_empty() {
                models.push(Golden {
                    name: name.to_owned(),
                    dir,
                    forms,
                });
            }
        }
    }
    assert!(
        models.len() >= 10 || !wanted.is_empty(),
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
    let (cases, mut failures, mut worst) = (cases(&golden.dir), Vec::new(), 0f64);
    let backends: [(&str, &dyn Backend); 2] = [("reference", &Reference), ("cpu", &Cpu::default())];
    for (backend_name, backend) in backends {
        for (i, case) in cases.iter().enumerate() {
            let tokens = &case.tokens;
            // References know how long the input is when they turn its first key.
            let mut session = match model.session(backend, &config(tokens.len())) {
                Ok(session) => session,
                Err(error) => return vec![format!("{who} on {backend_name}: {error}")],
            };
            let session = session.as_mut();
            let other = &cases[1].tokens;
            let whole = ("one batch", feed(session, tokens, &[128]));
            let runs = [
                ("one by one", feed(session, tokens, &[1])),
                ("uneven chunks", feed(session, tokens, &[7, 1, 13, 2])),
                ("beside another", feed_beside(session, tokens, other)),
                ("after a prefix hit", feed_after_prefix(session, tokens)),
            ];
            for (how, ours) in runs.into_iter().chain([whole]) {
                let expected = &case.logits[case.logits.len() - ours.len()..];
                let distance = distance(&ours, expected);
                worst = worst.max(distance);
                if distance.is_nan() || distance > 1e-4 {
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

#[test]
fn logits_match_pytorch() {
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
