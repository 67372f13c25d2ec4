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

fn config() -> SessionConfig {
    SessionConfig {
        n_blocks: 64,
        block_size: BLOCK_SIZE,
        max_tokens: 128,
        max_outputs: 128,
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
    let mut logits = Vec::new();
    let mut at = 0;
    let mut sizes = pieces.iter().cycle();
    while at < tokens.len() {
        let n = (*sizes.next().unwrap()).min(tokens.len() - at);
        let positions: Vec<u32> = (at as u32..(at + n) as u32).collect();
        let outputs: Vec<u32> = (0..n as u32).collect();
        let sequences = [SeqSlice {
            n_tokens: n,
            blocks: &blocks,
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
            },
            SeqSlice {
                n_tokens: n,
                blocks: &blocks[0],
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

/// Every golden model whose architecture runs, in the forms that INDEX.tsv vouches for.
fn models() -> Vec<(String, PathBuf, Vec<PathBuf>)> {
    let Some(golden) = golden() else {
        return Vec::new();
    };
    let index = std::fs::read_to_string(golden.join("INDEX.tsv")).unwrap();
    let mut models = Vec::new();
    for line in index.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let (name, arch, status, kind) = (fields[0], fields[2], fields[3], fields[5]);
        let dir = golden.join(name);
        if kind != "lm" {
            continue;
        }
        let mut forms = Vec::new();
        if status == "gold" && ARCHS.iter().any(|known| known.name == arch) {
            forms.push(dir.join("model.gguf"));
        }
        // The class that the directory itself names; the index has the one that made the reference.
        let config = std::fs::read_to_string(dir.join("config.json")).unwrap_or_default();
        let class = |class: &&str| config.contains(&format!("\"{class}\""));
        // References of these follow GGUF's reading of the family.
        let gguf_only = name.ends_with("-lcsem");
        if !gguf_only && ARCHS.iter().any(|known| known.hf_classes.iter().any(class)) {
            forms.push(dir.clone());
        }
        forms.retain(|form| form.exists());
        if !forms.is_empty() {
            models.push((name.to_owned(), dir, forms));
        }
    }
    assert!(
        models.len() >= 10,
        "only {} golden models found",
        models.len()
    );
    models
}

#[test]
fn logits_match_pytorch() {
    let backends: [(&str, &dyn Backend); 2] = [("reference", &Reference), ("cpu", &Cpu::default())];
    let mut failures = Vec::new();
    for (name, dir, forms) in models() {
        let cases = cases(&dir);
        for form in forms {
            let form_name = form.file_name().unwrap().to_string_lossy().into_owned();
            let model = match Model::load(&form, &OpenOptions::default()) {
                Ok(model) => model,
                Err(error) => {
                    failures.push(format!("{name} ({form_name}): {error}"));
                    continue;
                }
            };
            let mut worst: f64 = 0.0;
            for (backend_name, backend) in backends {
                let mut session = model.session(backend, &config()).unwrap();
                for (i, case) in cases.iter().enumerate() {
                    let mut check = |how: &str, ours: &[f32]| {
                        let distance = distance(ours, &case.logits);
                        worst = worst.max(distance);
                        if distance.is_nan() || distance > 1e-4 {
                            failures.push(format!("{name} ({form_name}) on {backend_name}, input {i}, {how}: {distance:.2e}"));
                        }
                    };
                    check("one batch", &feed(session.as_mut(), &case.tokens, &[128]));
                    check("one by one", &feed(session.as_mut(), &case.tokens, &[1]));
                    check(
                        "uneven chunks",
                        &feed(session.as_mut(), &case.tokens, &[7, 1, 13, 2]),
                    );
                    check(
                        "beside another",
                        &feed_beside(session.as_mut(), &case.tokens, &cases[1].tokens),
                    );
                }
            }
            println!("{name} ({form_name}): {worst:.2e}");
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
