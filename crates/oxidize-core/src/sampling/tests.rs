//! Stages against their reference implementations on random logits, draws by chi-square tests, and
//! rules of the chain.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::reference::{self, Sorted};
use super::*;

/// Logits distributed like a model's: most low, a few high. Deterministic.
fn model_like_logits(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    (0..n)
        .map(|_| {
            let uniform: f64 = (0..4).map(|_| rng.next_f64() - 0.5).sum();
            let peak = if rng.next_f64() < 0.03 { 6.0 } else { 0.0 };
            (uniform * 5.0 + peak) as f32
        })
        .collect()
}

fn vocab(n_tokens: usize) -> SamplerVocab {
    SamplerVocab {
        n_tokens,
        ..Default::default()
    }
}

/// All stages off, temperature 1; each test enables its own.
fn neutral() -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: Some(42),
        ..Default::default()
    }
}

/// Distribution of a single draw, from the weights after all stages.
fn distribution(params: &SamplingParams, logits: &[f32]) -> Sorted {
    let mut sampler = Sampler::new(params, &vocab(logits.len())).unwrap();
    let candidates = sampler.filtered(logits);
    let total = candidates.exp_sum();
    let mut tokens: Sorted = (0..candidates.len())
        .filter(|&i| candidates.logits()[i] > f32::NEG_INFINITY)
        .map(|i| (candidates.id(i), f64::from(candidates.weights()[i]) / total))
        .collect();
    tokens.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    tokens
}

fn assert_same(got: &Sorted, want: &Sorted, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: number of tokens kept");
    let want: HashMap<u32, f64> = want.iter().copied().collect();
    for &(id, p) in got {
        let expected = want
            .get(&id)
            .unwrap_or_else(|| panic!("{what}: token {id} should have been cut"));
        assert!(
            (p - expected).abs() < 2e-6,
            "{what}: token {id} has {p}, reference {expected}"
        );
    }
}

#[test]
fn each_stage_matches_its_reference() {
    for seed in 0..60 {
        let n = [7, 50, 1000, 5000][seed as usize % 4];
        let logits = model_like_logits(n, seed);
        let plain = || reference::temperature(&logits, 1.0);
        let run = |params: SamplingParams| distribution(&params, &logits);

        assert_same(&run(neutral()), &plain(), "neutral");
        for t in [0.3, 0.8, 1.7] {
            let got = run(SamplingParams {
                temperature: t,
                ..neutral()
            });
            assert_same(
                &got,
                &reference::temperature(&logits, f64::from(t)),
                "temperature",
            );
        }
        for k in [1, 3, 40, 2000] {
            let got = run(SamplingParams {
                top_k: k,
                ..neutral()
            });
            assert_same(&got, &reference::top_k(plain(), k as usize), "top_k");
        }
        for p in [0.0, 0.1, 0.5, 0.9, 0.99] {
            let got = run(SamplingParams {
                top_p: p,
                ..neutral()
            });
            assert_same(&got, &reference::top_p(plain(), f64::from(p)), "top_p");
            let got = run(SamplingParams {
                top_p: p,
                top_k: 30,
                ..neutral()
            });
            let want = reference::top_p(reference::top_k(plain(), 30), f64::from(p));
            assert_same(&got, &want, "top_p after top_k");
            let got = run(SamplingParams {
                typical_p: p,
                ..neutral()
            });
            assert_same(&got, &reference::typical(plain(), f64::from(p)), "typical");
            let got = run(SamplingParams {
                tfs_z: p,
                ..neutral()
            });
            assert_same(
                &got,
                &reference::tail_free(plain(), f64::from(p)),
                "tail_free",
            );
        }
        for p in [0.01, 0.05, 0.5, 1.0] {
            let got = run(SamplingParams {
                min_p: p,
                ..neutral()
            });
            assert_same(&got, &reference::min_p(plain(), f64::from(p)), "min_p");
        }
        for sigma in [0.5, 1.0, 3.0] {
            let got = run(SamplingParams {
                top_n_sigma: sigma,
                ..neutral()
            });
            assert_same(
                &got,
                &reference::top_n_sigma(&logits, f64::from(sigma)),
                "top_n_sigma",
            );
        }
        for threshold in [0.001, 0.02, 0.1] {
            let got = run(SamplingParams {
                xtc_probability: 1.0,
                xtc_threshold: threshold,
                ..neutral()
            });
            assert_same(&got, &reference::xtc(plain(), f64::from(threshold)), "xtc");
        }
        let got = run(SamplingParams {
            temperature: 1.2,
            dynatemp_range: 0.5,
            dynatemp_exponent: 1.5,
            ..neutral()
        });
        assert_same(
            &got,
            &reference::dynamic_temperature(&logits, 0.7, 1.7, 1.5),
            "dynamic temperature",
        );
    }
}

#[test]
fn default_chain_matches_the_stages_in_order() {
    for seed in 0..50 {
        let logits = model_like_logits(3000, 100 + seed);
        let params = SamplingParams {
            seed: Some(1),
            ..Default::default()
        };
        let cut = reference::min_p(
            reference::top_p(
                reference::top_k(reference::temperature(&logits, 1.0), 40),
                f64::from(0.95f32),
            ),
            f64::from(0.05f32),
        );
        let kept: Vec<(u32, f64)> = cut
            .iter()
            .map(|&(id, _)| (id, f64::from(logits[id as usize]) / f64::from(0.8f32)))
            .collect();
        assert_same(
            &distribution(&params, &logits),
            &reference::softmax(&kept),
            "default chain",
        );
    }
}

#[test]
fn chain_order_is_respected() {
    let logits = [2.0, 1.0, 0.0, -1.0];
    let hot = SamplingParams {
        temperature: 10.0,
        top_p: 0.6,
        ..neutral()
    };
    let early = SamplingParams {
        samplers: vec![SamplerKind::Temperature, SamplerKind::TopP],
        ..hot.clone()
    };
    assert_eq!(distribution(&hot, &logits).len(), 1);
    assert_eq!(distribution(&early, &logits).len(), 3);
    // A stage that is not listed does not run.
    let without = SamplingParams {
        samplers: vec![SamplerKind::Temperature],
        ..hot
    };
    assert_eq!(distribution(&without, &logits).len(), 4);
}

#[test]
fn sampler_lists_parse_by_name_and_letter() {
    let by_name = SamplerKind::parse_list(
        "penalties;dry;top_n_sigma;top_k;tfs_z;typ_p;top_p;min_p;xtc;temperature",
    );
    assert_eq!(by_name.unwrap(), DEFAULT_SAMPLERS);
    assert_eq!(
        SamplerKind::parse_list("edskfypmxt").unwrap(),
        DEFAULT_SAMPLERS
    );
    assert_eq!(
        SamplerKind::parse_list("top-k, temp").unwrap(),
        [SamplerKind::TopK, SamplerKind::Temperature]
    );
    assert_eq!(SamplerKind::parse_list("").unwrap(), []);
    for kind in DEFAULT_SAMPLERS {
        assert_eq!(kind.name().parse::<SamplerKind>().unwrap(), kind);
    }
    let error = SamplerKind::parse_list("top_k;best")
        .unwrap_err()
        .to_string();
    assert!(error.contains("best") && error.contains("min_p"), "{error}");
}

/// Pearson's chi-square test of draw counts against a distribution. The bound is the 99.9% quantile
/// by Wilson and Hilferty's approximation.
fn assert_drawn_from(counts: &HashMap<u32, u32>, want: &Sorted, what: &str) {
    let draws: u32 = counts.values().sum();
    for id in counts.keys() {
        assert!(
            want.iter().any(|&(kept, _)| kept == *id),
            "{what}: token {id} has no probability"
        );
    }
    let (mut chi2, mut cells, mut rest) = (0.0, 0u32, (0.0, 0.0));
    for &(id, p) in want {
        let expected = p * f64::from(draws);
        let observed = f64::from(counts.get(&id).copied().unwrap_or(0));
        if expected < 8.0 {
            rest = (rest.0 + expected, rest.1 + observed);
        } else {
            chi2 += (observed - expected).powi(2) / expected;
            cells += 1;
        }
    }
    if rest.0 >= 8.0 {
        chi2 += (rest.1 - rest.0).powi(2) / rest.0;
        cells += 1;
    }
    assert!(cells >= 2, "{what}: nothing to test");
    let freedom = f64::from(cells - 1);
    let spread = 2.0 / (9.0 * freedom);
    let bound = freedom * (1.0 - spread + 3.0902 * spread.sqrt()).powi(3);
    assert!(
        chi2 < bound,
        "{what}: chi² {chi2} ≥ {bound} at {freedom} degrees of freedom"
    );
}

#[test]
fn draws_follow_the_distribution() {
    let logits = model_like_logits(200, 9);
    let cases = [
        ("plain", neutral()),
        (
            "hot",
            SamplingParams {
                temperature: 1.5,
                ..neutral()
            },
        ),
        (
            "default",
            SamplingParams {
                seed: Some(3),
                ..Default::default()
            },
        ),
        (
            "top_p",
            SamplingParams {
                top_p: 0.8,
                ..neutral()
            },
        ),
        (
            "typical",
            SamplingParams {
                typical_p: 0.7,
                ..neutral()
            },
        ),
        (
            "top_n_sigma",
            SamplingParams {
                top_n_sigma: 2.0,
                ..neutral()
            },
        ),
        (
            "xtc",
            SamplingParams {
                xtc_probability: 1.0,
                xtc_threshold: 0.05,
                ..neutral()
            },
        ),
    ];
    for (what, params) in cases {
        let want = distribution(&params, &logits);
        let mut sampler = Sampler::new(&params, &vocab(logits.len())).unwrap();
        let mut counts = HashMap::new();
        for _ in 0..40_000 {
            *counts
                .entry(sampler.sample(&logits, None).unwrap().token)
                .or_insert(0) += 1;
        }
        assert_drawn_from(&counts, &want, what);
    }
}

#[test]
fn xtc_acts_with_the_given_probability() {
    let params = SamplingParams {
        xtc_probability: 0.3,
        xtc_threshold: 0.2,
        ..neutral()
    };
    let logits = [1.0f32, 1.0, -40.0];
    let mut sampler = Sampler::new(&params, &vocab(3)).unwrap();
    let first = (0..20_000)
        .filter(|_| sampler.sample(&logits, None).unwrap().token == 0)
        .count();
    // Token 0 is removed in 30% of the steps; otherwise it is one of two.
    let share = first as f64 / 20_000.0;
    assert!((share - 0.35).abs() < 0.015, "{share}");
}

#[test]
fn same_seed_same_tokens() {
    let logits = model_like_logits(5000, 4);
    let tokens = |seed| -> Vec<u32> {
        let params = SamplingParams {
            seed: Some(seed),
            temperature: 1.3,
            ..Default::default()
        };
        let mut sampler = Sampler::new(&params, &vocab(5000)).unwrap();
        (0..50)
            .map(|_| sampler.sample(&logits, None).unwrap().token)
            .collect()
    };
    assert_eq!(tokens(1), tokens(1));
    assert_ne!(tokens(1), tokens(2));
    // A drawn seed can be read and reused.
    let drawn = Sampler::new(&SamplingParams::default(), &vocab(10))
        .unwrap()
        .seed();
    assert_eq!(
        Sampler::new(
            &SamplingParams {
                seed: Some(drawn),
                ..Default::default()
            },
            &vocab(10)
        )
        .unwrap()
        .seed(),
        drawn
    );
}

#[test]
fn greedy_picks_the_first_of_the_largest_and_ignores_truncation() {
    let params = SamplingParams {
        xtc_probability: 1.0,
        typical_p: 0.1,
        ..SamplingParams::greedy()
    };
    let mut sampler = Sampler::new(&params, &vocab(4)).unwrap();
    assert_eq!(
        sampler.sample(&[0.0, 3.0, 3.0, 1.0], None).unwrap().token,
        1
    );
}

#[test]
fn bias_and_mask_include_and_exclude_tokens() {
    let logits = [0.0, 1.0, 2.0, 3.0];
    let params = SamplingParams {
        logit_bias: vec![(0, 10.0), (3, f32::NEG_INFINITY)],
        ..SamplingParams::greedy()
    };
    let mut sampler = Sampler::new(&params, &vocab(4)).unwrap();
    assert_eq!(sampler.sample(&logits, None).unwrap().token, 0);
    let mut mask = TokenMask::none(4);
    mask.allow(1);
    mask.allow(2);
    assert_eq!(sampler.sample(&logits, Some(&mask)).unwrap().token, 2);
    let mut only_banned = TokenMask::none(4);
    only_banned.allow(3);
    assert_eq!(
        sampler.sample(&logits, Some(&only_banned)),
        Err(SamplingError::NoCandidate)
    );

    let mut drawing = Sampler::new(
        &SamplingParams {
            top_k: 0,
            ..neutral()
        },
        &vocab(4),
    )
    .unwrap();
    for _ in 0..200 {
        assert!(mask.allows(drawing.sample(&logits, Some(&mask)).unwrap().token));
    }
    let error = Sampler::new(
        &SamplingParams {
            logit_bias: vec![(4, 1.0)],
            ..neutral()
        },
        &vocab(4),
    )
    .unwrap_err();
    assert!(matches!(
        error,
        SamplingError::TokenOutOfRange {
            token: 4,
            n_tokens: 4,
            ..
        }
    ));
}

#[test]
fn unusable_logits_are_errors_on_every_path() {
    for params in [
        SamplingParams::greedy(),
        neutral(),
        SamplingParams::default(),
    ] {
        let mut sampler = Sampler::new(&params, &vocab(3)).unwrap();
        assert!(matches!(
            sampler.sample(&[0.0, f32::NAN, 0.0], None),
            Err(SamplingError::BadLogit { token: 1, .. })
        ));
        assert_eq!(
            sampler.sample(&[f32::NEG_INFINITY; 3], None),
            Err(SamplingError::NoCandidate)
        );
        assert!(matches!(
            sampler.sample(&[0.0; 2], None),
            Err(SamplingError::Length { got: 2, .. })
        ));
        assert!(matches!(
            sampler.sample(&[0.0; 3], Some(&TokenMask::all(2))),
            Err(SamplingError::Length { .. })
        ));
        assert!(
            sampler
                .sample(&[0.0, f32::NEG_INFINITY, f32::NEG_INFINITY], None)
                .is_ok()
        );
    }
}

#[test]
fn penalties_follow_their_formula_over_the_window() {
    let params = SamplingParams {
        repeat_penalty: 2.0,
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        repeat_last_n: 4,
        ..neutral()
    };
    let mut sampler = Sampler::new(
        &params,
        &SamplerVocab {
            newline: Some(5),
            ..vocab(6)
        },
    )
    .unwrap();
    for token in [4, 0, 1, 1, 5] {
        sampler.accept(token);
    }
    // The window is 0 1 1 5: token 4 has left it, and the newline is exempt.
    let got = sampler
        .filtered(&[3.0, -1.0, 1.0, 1.0, 1.0, 1.0])
        .logits()
        .to_vec();
    assert_eq!(got, [1.5 - 0.75, -2.0 - 1.25, 1.0, 1.0, 1.0, 1.0]);

    let all = SamplingParams {
        penalize_newline: true,
        repeat_last_n: -1,
        ..params
    };
    let mut sampler = Sampler::new(
        &all,
        &SamplerVocab {
            newline: Some(5),
            ..vocab(6)
        },
    )
    .unwrap();
    sampler.accept(5);
    assert_eq!(sampler.filtered(&[1.0; 6]).logits()[5], 0.5 - 0.75);
}

struct Pieces(&'static [&'static str]);

impl TokenPieces for Pieces {
    fn piece(&self, token: u32) -> Option<Cow<'_, [u8]>> {
        self.0
            .get(token as usize)
            .map(|piece| Cow::Borrowed(piece.as_bytes()))
    }
}

#[test]
fn dry_matches_brute_force() {
    let mut rng = Rng::new(11);
    for _ in 0..300 {
        let n = 2 + (rng.next_u64() % 40) as usize;
        let tokens: Vec<u32> = (0..n).map(|_| (rng.next_u64() % 3) as u32).collect();
        let dry = DryParams {
            multiplier: 0.8,
            base: 1.5,
            allowed_length: 2,
            ..Default::default()
        };
        let mut sampler = Sampler::new(&SamplingParams { dry, ..neutral() }, &vocab(4)).unwrap();
        tokens.iter().for_each(|&token| sampler.accept(token));
        let mut want = [0.0f32; 4];
        for (token, length) in reference::repetitions(&tokens, usize::MAX, 2) {
            want[token as usize] -= 0.8 * 1.5f32.powi(length as i32 - 2);
        }
        let got = sampler.filtered(&[0.0; 4]).logits().to_vec();
        for (got, want) in got.iter().zip(want) {
            assert!(
                (got - want).abs() <= want.abs() * 1e-5,
                "{tokens:?}: {got} and {want}"
            );
        }
    }
}

#[test]
fn dry_stops_at_sequence_breakers() {
    let pieces = Arc::new(Pieces(&["a", "b", "c", "x:", "-", "->"]));
    let vocab = SamplerVocab {
        n_tokens: 6,
        newline: None,
        pieces: Some(pieces),
    };
    let penalized = |breaker: &str, tokens: &[u32]| {
        let dry = DryParams {
            multiplier: 1.0,
            sequence_breakers: vec![breaker.into()],
            ..Default::default()
        };
        let mut sampler = Sampler::new(&SamplingParams { dry, ..neutral() }, &vocab).unwrap();
        tokens.iter().for_each(|&token| sampler.accept(token));
        sampler.filtered(&[0.0; 6]).logits()[2] < 0.0
    };
    assert!(penalized("!", &[0, 1, 2, 0, 1]));
    // Two tokens since the breaker suffice, one does not.
    assert!(penalized(":", &[3, 0, 1, 2, 3, 0, 1]));
    assert!(!penalized(":", &[0, 3, 1, 2, 0, 3, 1]));
    // A breaker may span tokens.
    assert!(!penalized("--", &[4, 4, 1, 2, 4, 4, 1]));
}

#[test]
fn mirostat_keeps_the_surprise_near_its_target() {
    let logits = model_like_logits(2000, 21);
    let plain: HashMap<u32, f64> = reference::temperature(&logits, 1.0).into_iter().collect();
    for mode in [MirostatMode::V1, MirostatMode::V2] {
        for tau in [2.0, 4.0] {
            let params = SamplingParams {
                mirostat: MirostatParams {
                    mode,
                    tau,
                    eta: 0.1,
                },
                ..neutral()
            };
            let mut sampler = Sampler::new(&params, &vocab(2000)).unwrap();
            let surprises: Vec<f64> = (0..4000)
                .map(|_| -plain[&sampler.sample(&logits, None).unwrap().token].log2())
                .collect();
            let mean = surprises[500..].iter().sum::<f64>() / 3500.0;
            // Surprise is measured after truncation, which lowers it relative to the full
            // distribution.
            assert!(
                mean > f64::from(tau) - 0.3 && mean < f64::from(tau) + 2.0,
                "{mode:?} τ {tau}: {mean}"
            );
        }
    }
}

#[test]
fn logprobs_are_those_of_the_unmodified_model() {
    let logits = model_like_logits(500, 8);
    let reference: HashMap<u32, f64> = reference::temperature(&logits, 1.0).into_iter().collect();
    let params = SamplingParams {
        n_probs: Some(5),
        temperature: 0.2,
        repeat_penalty: 1.5,
        ..Default::default()
    };
    let mut sampler = Sampler::new(&params, &vocab(500)).unwrap();
    let sampled = sampler.sample(&logits, None).unwrap();
    assert!((f64::from(sampled.logprob.unwrap()) - reference[&sampled.token].ln()).abs() < 1e-4);
    assert_eq!(sampled.top.len(), 5);
    assert!(sampled.top.is_sorted_by(|a, b| a.1 >= b.1));
    for (token, logprob) in sampled.top {
        assert!((f64::from(logprob) - reference[&token].ln()).abs() < 1e-4);
    }
}

#[test]
fn clone_continues_from_the_same_state() {
    let logits = model_like_logits(300, 2);
    let params = SamplingParams {
        repeat_penalty: 1.3,
        seed: Some(5),
        ..Default::default()
    };
    let mut first = Sampler::new(&params, &vocab(300)).unwrap();
    first.accept(1);
    let mut second = first.clone();
    for _ in 0..20 {
        let token = first.sample(&logits, None).unwrap().token;
        assert_eq!(second.sample(&logits, None).unwrap().token, token);
        first.accept(token);
        second.accept(token);
    }
}
