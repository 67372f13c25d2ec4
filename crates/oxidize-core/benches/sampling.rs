//! One sampling step over a vocabulary of 262,144 tokens, for common chains; the target is 1 ms.
//! `cargo bench -p oxidize-core --bench sampling [NAME]`. The fastest run shows the cost of the
//! code, the median that on a busy machine.

use std::borrow::Cow;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oxidize_core::sampling::{
    DryParams, MirostatMode, MirostatParams, Rng, Sampler, SamplerKind, SamplerVocab,
    SamplingParams, TokenMask, TokenPieces,
};

const N_TOKENS: usize = 262_144;
const RUNS: usize = 100;

fn main() {
    println!(
        "{:<22} {:>8} {:>10} {:>10}",
        "chain", "logits", "fastest", "median"
    );
    let vocab = SamplerVocab {
        n_tokens: N_TOKENS,
        pieces: Some(Arc::new(Words)),
        ..Default::default()
    };
    for (shape, peaked) in [("peaked", true), ("flat", false)] {
        let logits = logits(peaked);
        for (name, params) in chains() {
            if !is_selected(name) {
                continue;
            }
            let mut sampler = Sampler::new(&params, &vocab).expect("valid parameters");
            (0..64).for_each(|token| sampler.accept(token * 3));
            report(name, shape, || {
                sampler
                    .sample(black_box(&logits), None)
                    .expect("usable logits")
                    .token
            });
        }
    }
    if !is_selected("default with mask") {
        return;
    }
    let mut mask = TokenMask::none(N_TOKENS);
    (0..N_TOKENS as u32)
        .step_by(3)
        .for_each(|token| mask.allow(token));
    let mut sampler = Sampler::new(&SamplingParams::default(), &vocab).expect("valid parameters");
    let logits = logits(true);
    report("default with mask", "peaked", || {
        sampler
            .sample(&logits, Some(&mask))
            .expect("usable logits")
            .token
    });
}

/// True if a chain is selected: the command line may contain parts of names, and selects all chains
/// otherwise.
fn is_selected(name: &str) -> bool {
    let mut parts = std::env::args()
        .skip(1)
        .filter(|part| !part.starts_with('-'))
        .peekable();
    parts.peek().is_none() || parts.any(|part| name.contains(&part))
}

/// Synthetic vocabulary of four-letter tokens.
struct Words;

impl TokenPieces for Words {
    fn piece(&self, token: u32) -> Option<Cow<'_, [u8]>> {
        let letter = |place: u32| b'a' + (token / 23u32.pow(place) % 23) as u8;
        Some((0..4).map(letter).collect::<Vec<u8>>().into())
    }
}

fn chains() -> Vec<(&'static str, SamplingParams)> {
    let off = SamplingParams {
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: Some(1),
        ..Default::default()
    };
    let early = vec![SamplerKind::Temperature, SamplerKind::TopP];
    vec![
        ("greedy", SamplingParams::greedy()),
        (
            "default",
            SamplingParams {
                seed: Some(1),
                ..Default::default()
            },
        ),
        (
            "default, penalties",
            SamplingParams {
                repeat_penalty: 1.1,
                seed: Some(1),
                ..Default::default()
            },
        ),
        ("temperature alone", off.clone()),
        (
            "top_p alone",
            SamplingParams {
                top_p: 0.95,
                ..off.clone()
            },
        ),
        (
            "min_p alone",
            SamplingParams {
                min_p: 0.05,
                ..off.clone()
            },
        ),
        (
            "typical alone",
            SamplingParams {
                typical_p: 0.9,
                ..off.clone()
            },
        ),
        (
            "top_n_sigma alone",
            SamplingParams {
                top_n_sigma: 1.0,
                ..off.clone()
            },
        ),
        (
            "top_k 20000 alone",
            SamplingParams {
                top_k: 20_000,
                ..off.clone()
            },
        ),
        (
            "temperature, top_p",
            SamplingParams {
                top_p: 0.95,
                samplers: early,
                ..off.clone()
            },
        ),
        (
            "tail_free alone",
            SamplingParams {
                tfs_z: 0.95,
                ..off.clone()
            },
        ),
        (
            "xtc alone",
            SamplingParams {
                xtc_probability: 1.0,
                xtc_threshold: 0.01,
                ..off.clone()
            },
        ),
        (
            "dynamic temperature",
            SamplingParams {
                dynatemp_range: 0.5,
                ..off.clone()
            },
        ),
        (
            "dry alone",
            SamplingParams {
                dry: DryParams {
                    multiplier: 1.0,
                    ..Default::default()
                },
                ..off.clone()
            },
        ),
        (
            "mirostat 1",
            SamplingParams {
                mirostat: MirostatParams {
                    mode: MirostatMode::V1,
                    ..Default::default()
                },
                ..off.clone()
            },
        ),
        (
            "mirostat 2",
            SamplingParams {
                mirostat: MirostatParams {
                    mode: MirostatMode::V2,
                    ..Default::default()
                },
                ..off.clone()
            },
        ),
        (
            "infill alone",
            SamplingParams {
                samplers: vec![SamplerKind::Infill],
                ..off.clone()
            },
        ),
        (
            "default, 3 bans",
            SamplingParams {
                banned_strings: ["a", "bcd", "aaaabbbb"].map(String::from).to_vec(),
                ..off
            },
        ),
        (
            "default, 20 logprobs",
            SamplingParams {
                n_probs: Some(20),
                seed: Some(1),
                ..Default::default()
            },
        ),
    ]
}

fn report(name: &str, shape: &str, mut step: impl FnMut() -> u32) {
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            black_box(step());
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!(
        "{name:<22} {shape:>8} {:>10.1?} {:>10.1?}",
        times[0],
        times[RUNS / 2]
    );
}

/// Logits that are roughly normal with a few likely tokens, like a model's, or flat, which is the
/// worst case.
fn logits(peaked: bool) -> Vec<f32> {
    let mut rng = Rng::new(1);
    (0..N_TOKENS)
        .map(|_| {
            let normal = (0..6).map(|_| rng.next_f64() - 0.5).sum::<f64>() * 3.0;
            let peak = if peaked && rng.next_f64() < 2e-4 {
                12.0
            } else {
                0.0
            };
            (normal + peak) as f32
        })
        .collect()
}
