//! Tests of the engine with a tiny model: answers of single and concurrent requests, and faults of requests,
//! clients and the backend.

#[path = "../answers/mod.rs"]
mod answers;
mod families;
#[path = "../faulty_backend/mod.rs"]
mod faulty_backend;
mod pending_backend;
mod processor;
mod reasoning;
mod stepped;
#[path = "../tiny/mod.rs"]
mod tiny;
mod windows;

use answers::{Answer, prompt, read};
use faulty_backend::{FAIL, FaultyBackend, NAN_OUTPUT, PANIC, PANIC_OUTPUT};
use oxidize_core::Error;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{Backend, KvType};
use oxidize_core::engine::{
    Engine, EngineConfig, EngineError, FinishReason, Request, StreamEvent, Token, TokenStream,
};
use oxidize_core::grammar::{Grammar, GrammarError};
use oxidize_core::sampling::{SamplingError, SamplingParams};
use oxidize_core::scheduler::{Stats, SubmitError};
use oxidize_core::tokenizer::DecodeOptions;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Positions per block of the engine's KV cache.
const BLOCK: usize = 32;

fn config() -> EngineConfig {
    EngineConfig {
        max_batch_tokens: 64,
        cache_tokens: Some(2048),
        n_threads: Some(2),
        ..EngineConfig::default()
    }
}

fn start(config: &EngineConfig) -> Engine {
    Engine::start(tiny::model(), Arc::new(Cpu::default()), config).unwrap()
}

/// A greedy request with log probabilities. It ignores end-of-generation tokens, because the model is random.
fn greedy(tokens: Vec<u32>, max_tokens: usize) -> Request {
    Request {
        prompt: tokens.into(),
        sampling: Some(SamplingParams {
            n_probs: Some(2),
            ..SamplingParams::greedy()
        }),
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        ..Request::default()
    }
}

fn ask(engine: &Engine, request: Request) -> Result<Answer, Error> {
    read(engine.submit(request)?)
}

/// Polls the engine's statistics until they are as expected.
fn wait_until(engine: &Engine, what: &str, until: impl Fn(&Stats) -> bool) -> Stats {
    let start = Instant::now();
    loop {
        let stats = engine.stats();
        if until(&stats) {
            return stats;
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{what}: {stats:?}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn first_token_matches_pytorch() {
    let engine = start(&EngineConfig {
        key_type: KvType::F32,
        value_type: KvType::F32,
        ..config()
    });
    for case in tiny::references() {
        let n_vocab = case.logits.len() / case.tokens.len();
        let last = &case.logits[case.logits.len() - n_vocab..];
        let best = (0..n_vocab).max_by(|&a, &b| last[a].total_cmp(&last[b]));
        let sum: f64 = last.iter().map(|&x| f64::from(x).exp()).sum();
        let answer = ask(&engine, greedy(case.tokens, 1)).unwrap();
        assert_eq!(Some(answer.tokens[0].id as usize), best);
        let logprob = f64::from(last[best.unwrap()]) - sum.ln();
        let ours = f64::from(answer.tokens[0].logprob.unwrap());
        assert!((ours - logprob).abs() < 1e-4, "{ours} and {logprob}");
    }
}

/// Scores of a prompt are those of PyTorch's logits, whether it is computed in one step or in many, and beside
/// other requests.
#[test]
fn prompt_logprobs_match_pytorch() {
    for (scored_tokens, max_batch_tokens) in [(0, 64), (3, 64), (64, 64), (64, 5)] {
        let engine = start(&EngineConfig {
            key_type: KvType::F32,
            value_type: KvType::F32,
            scored_tokens,
            max_batch_tokens,
            ..config()
        });
        let _beside = engine.submit(greedy(prompt(9, 40), 200)).unwrap();
        for case in tiny::references() {
            // A cached prefix is not taken, as it has no logits.
            for max_tokens in [0, 2] {
                let request = greedy(case.tokens.clone(), max_tokens).prompt_logprobs(3);
                let mut stream = engine.submit(request).unwrap();
                let generated = stream.by_ref().map(Result::unwrap).count();
                assert_eq!(generated, max_tokens);
                let scored = stream.take_prompt_logprobs();
                let ids: Vec<u32> = scored.iter().map(|token| token.id).collect();
                assert_eq!(ids, case.tokens);
                assert_eq!(scored[0].score, None);
                let n_vocab = case.logits.len() / case.tokens.len();
                for (row, token) in case.logits.chunks(n_vocab).zip(&scored[1..]) {
                    let score = token.score.as_ref().unwrap();
                    let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
                    let wanted = f64::from(row[token.id as usize]) - sum.ln();
                    let ours = f64::from(score.logprob);
                    assert!((ours - wanted).abs() < 1e-4, "{ours} and {wanted}");
                    let best = (0..n_vocab).max_by(|&a, &b| row[a].total_cmp(&row[b]));
                    assert_eq!(Some(score.top[0].0 as usize), best);
                    assert_eq!(score.top.len(), 3);
                }
            }
        }
    }
}

#[test]
fn stop_tokens_and_minimum_length_bound_an_answer() {
    let engine = start(&config());
    let plain = ask(&engine, greedy(prompt(1, 10), 30)).unwrap();
    let ids = plain.ids();
    let at = (3..).find(|&i| !ids[..i].contains(&ids[i])).unwrap();
    let stopping = greedy(prompt(1, 10), 30).stop_token(ids[at]);
    let stopped = ask(&engine, stopping.clone()).unwrap();
    assert_eq!(stopped.ids()[..at], ids[..at]);
    assert_eq!(stopped.completion.generated_tokens, at);
    assert_eq!(
        stopped.completion.end_token.as_ref().map(|token| token.id),
        Some(ids[at])
    );
    assert_eq!(
        stopped.completion.finish_reason,
        FinishReason::StopToken(ids[at])
    );
    // The token is excluded until the answer has this many tokens.
    let longer = ask(&engine, stopping.min_tokens(at as u32 + 4)).unwrap();
    assert!(longer.completion.generated_tokens >= at + 4);
    assert!(!longer.ids()[..at + 4].contains(&ids[at]));
    // So are the model's own, and stop strings.
    let own = Request {
        ignore_eos: false,
        ..greedy(prompt(1, 10), 30)
    };
    let bias: Vec<(u32, f32)> = (0..320).map(|token| (token, -50.0)).collect();
    let end = engine.model().tokenizer().unwrap().eos().unwrap();
    let eager = own.with_sampling(|sampling| {
        sampling.logit_bias = bias
            .into_iter()
            .filter(|&(token, _)| token != end)
            .collect();
    });
    assert_eq!(
        ask(&engine, eager.clone())
            .unwrap()
            .completion
            .generated_tokens,
        0
    );
    assert_eq!(
        ask(&engine, eager.min_tokens(7))
            .unwrap()
            .completion
            .generated_tokens,
        7
    );
    let text: String = plain
        .tokens
        .iter()
        .map(|token| token.text.as_str())
        .collect();
    let first = text.chars().next().unwrap().to_string();
    let at_once = greedy(prompt(1, 10), 30).stop(first);
    assert_eq!(ask(&engine, at_once.clone()).unwrap().text, "");
    let later = ask(&engine, at_once.min_tokens(5)).unwrap();
    assert!(later.completion.generated_tokens >= 5 && text.starts_with(&later.text));
}

#[test]
fn the_cache_can_be_ignored_and_progress_reported() {
    let engine = start(&EngineConfig {
        max_batch_tokens: 40,
        ..config()
    });
    let request = greedy(prompt(3, 100), 4);
    let first = ask(&engine, request.clone()).unwrap();
    let fresh = ask(&engine, request.clone().ignore_cache()).unwrap();
    assert_eq!(fresh.completion.cached_tokens, 0);
    assert_same(&fresh, &first, "without the cache");
    let progress = |request: Request| {
        let mut stream = engine.submit(request.report_progress()).unwrap();
        let mut seen = Vec::new();
        let mut tokens = 0;
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        loop {
            match stream.poll_event(&mut context) {
                Poll::Ready(Some(Ok(StreamEvent::Progress(progress)))) => {
                    assert_eq!((progress.total, tokens), (100, 0));
                    seen.push((progress.cached, progress.processed));
                }
                Poll::Ready(Some(event)) => {
                    event.unwrap();
                    tokens += 1;
                }
                Poll::Ready(None) => break,
                Poll::Pending => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        assert_eq!(tokens, 4);
        seen
    };
    let all = progress(request.clone().ignore_cache());
    assert_eq!(all, [(0, 40), (0, 80), (0, 100)]);
    assert_eq!(progress(request), [(96, 100)]);
}

#[test]
fn same_seed_gives_same_tokens() {
    let engine = start(&config());
    let request = |seed| Request {
        sampling: Some(SamplingParams {
            temperature: 1.5,
            seed,
            ..SamplingParams::default()
        }),
        ..greedy(prompt(1, 10), 40)
    };
    let first = ask(&engine, request(Some(7))).unwrap();
    assert_eq!(first.tokens.len(), 40);
    assert_eq!(ask(&engine, request(Some(7))).unwrap().ids(), first.ids());
    assert_ne!(ask(&engine, request(Some(8))).unwrap().ids(), first.ids());
    // A drawn seed is reported, and reproduces the answer.
    let drawn = ask(&engine, request(None)).unwrap();
    let again = ask(&engine, request(Some(drawn.completion.seed))).unwrap();
    assert_eq!(again.ids(), drawn.ids());
    // Another engine with the same number of threads gives the same answer.
    let other = start(&config());
    assert_eq!(ask(&other, request(Some(7))).unwrap().ids(), first.ids());
}

/// Answers of several requests, each from a new engine.
fn answers_alone(requests: &[Request]) -> Vec<Answer> {
    let alone = |request: &Request| ask(&start(&config()), request.clone()).unwrap();
    requests.iter().map(alone).collect()
}

/// Asserts that the tokens are the same. Log probabilities may differ a little: the weights are 16-bit
/// floats, which are multiplied with rounded activations in large batches, and sums are added in different
/// orders.
fn assert_same(answer: &Answer, alone: &Answer, what: &str) {
    assert_eq!(answer.ids(), alone.ids(), "{what}");
    assert_eq!(answer.text, alone.text, "{what}");
    for (a, b) in answer.tokens.iter().zip(&alone.tokens) {
        let (a, b) = (a.logprob.unwrap(), b.logprob.unwrap());
        assert!((a - b).abs() < 1e-2, "{what}: {a} and {b}");
    }
}

#[test]
fn concurrent_requests_do_not_change_answers() {
    let requests: Vec<Request> = (0..12)
        .map(|i| greedy(prompt(i, 1 + 17 * i as usize % 130), 20 + i as usize))
        .collect();
    let alone = answers_alone(&requests);
    // Eight requests run at once in steps of 48 tokens: prompts are chunked, and processed beside other
    // requests' tokens.
    let backend = FaultyBackend::gated();
    let settings = EngineConfig {
        max_batch_tokens: 48,
        ..config()
    };
    let engine = Engine::start(tiny::model(), backend.clone(), &settings).unwrap();
    backend.allow(1);
    let streams: Vec<TokenStream> = requests
        .iter()
        .map(|request| engine.submit(request.clone()).unwrap())
        .collect();
    backend.allow(12);
    let stats = wait_until(&engine, "some steps", |stats| stats.steps >= 10);
    assert_eq!((stats.running, stats.queued), (8, 4));
    backend.allow_all();
    for (i, (stream, alone)) in streams.into_iter().zip(&alone).enumerate() {
        let answer = read(stream).unwrap();
        assert_same(&answer, alone, &format!("request {i}"));
    }
    let stats = wait_until(&engine, "the end", |stats| stats.finished == 12);
    assert_eq!((stats.running, stats.queued, stats.used_blocks), (0, 0, 0));
    assert_eq!(stats.preemptions, 0);
}

/// The cache is too small for all requests: some are preempted, recomputed, and give the same answer.
#[test]
fn preempted_requests_give_same_answers() {
    let requests: Vec<Request> = (0..5)
        .map(|i| greedy(prompt(i, 20 + 5 * i as usize), 100))
        .collect();
    let alone = answers_alone(&requests);
    let engine = start(&EngineConfig {
        cache_tokens: Some(8 * BLOCK),
        ..config()
    });
    let streams: Vec<TokenStream> = requests
        .iter()
        .map(|request| engine.submit(request.clone()).unwrap())
        .collect();
    for (i, (stream, alone)) in streams.into_iter().zip(&alone).enumerate() {
        assert_same(&read(stream).unwrap(), alone, &format!("request {i}"));
    }
    let stats = wait_until(&engine, "the end", |stats| stats.finished == 5);
    assert!(stats.preemptions > 0);
}

#[test]
fn cached_prompt_is_not_recomputed() {
    let engine = start(&config());
    let request = greedy(prompt(3, 100), 10);
    let first = ask(&engine, request.clone()).unwrap();
    assert_eq!(first.completion.cached_tokens, 0);
    let before = wait_until(&engine, "the first", |stats| stats.finished == 1);
    let second = ask(&engine, request.clone()).unwrap();
    assert_eq!(second.completion.cached_tokens, 3 * BLOCK);
    assert_same(&second, &first, "again");
    let after = wait_until(&engine, "the second", |stats| stats.finished == 2);
    // The rest of the prompt, and all generated tokens but the last, which no token follows.
    assert_eq!(after.computed_tokens - before.computed_tokens, 4 + 9);

    // Under another salt the cached prompt is not found.
    let other_salt = Request {
        cache_salt: 1,
        ..request.clone()
    };
    let other_salt = ask(&engine, other_salt).unwrap();
    assert_eq!(other_salt.completion.cached_tokens, 0);
    assert_same(&other_salt, &first, "other salt");

    // The last token of a prompt is computed even if all its blocks are cached.
    let whole = greedy(prompt(4, 2 * BLOCK), 5);
    let first = ask(&engine, whole.clone()).unwrap();
    let second = ask(&engine, whole).unwrap();
    assert!(second.completion.cached_tokens >= BLOCK);
    assert!(second.completion.cached_tokens < 2 * BLOCK);
    assert_same(&second, &first, "whole blocks");
}

#[test]
fn conversation_reuses_earlier_turns() {
    let engine = start(&config());
    let mut tokens = prompt(5, 40);
    let mut known = 0;
    for turn in 0..4 {
        let request = greedy(tokens.clone(), 24);
        let answer = ask(&engine, request.clone()).unwrap();
        // Every full block of earlier turns is cached, including those of the answers.
        assert_eq!(answer.completion.cached_tokens, known / BLOCK * BLOCK);
        let fresh = ask(&start(&config()), request).unwrap();
        assert_same(&answer, &fresh, &format!("turn {turn}"));
        tokens.extend(answer.ids());
        // The last token of an answer is never computed, because no token follows it.
        known = tokens.len() - 1;
        tokens.extend(prompt(turn + 60, 8));
    }
    assert!(known > 4 * BLOCK);
}

#[test]
fn dropped_stream_frees_its_slot_in_one_step() {
    let backend = FaultyBackend::gated();
    let settings = EngineConfig {
        max_sequences: 2,
        ..config()
    };
    backend.allow(0);
    let engine = Engine::start(tiny::model(), backend.clone(), &settings).unwrap();
    let kept = greedy(prompt(1, 30), 120);
    let alone = ask(&start(&config()), kept.clone()).unwrap();
    let leaving = engine.submit(greedy(prompt(2, 30), 200)).unwrap();
    let staying = engine.submit(kept).unwrap();
    let waiting = engine.submit(greedy(prompt(3, 30), 10)).unwrap();
    backend.allow(5);
    let stats = wait_until(&engine, "five steps", |stats| stats.steps == 5);
    assert_eq!((stats.running, stats.queued), (2, 1));
    drop(leaving);
    // The step that was already planned, and the one after it.
    backend.allow(2);
    let stats = wait_until(&engine, "two steps", |stats| stats.steps == 7);
    assert_eq!((stats.cancelled, stats.running, stats.queued), (1, 2, 0));
    backend.allow_all();
    assert_eq!(read(waiting).unwrap().tokens.len(), 10);
    assert_same(&read(staying).unwrap(), &alone, "remaining request");
    let stats = wait_until(&engine, "the end", |stats| stats.finished == 2);
    assert_eq!((stats.running, stats.used_blocks), (0, 0));
}

#[test]
fn full_queue_rejects_requests() {
    let backend = FaultyBackend::gated();
    let settings = EngineConfig {
        max_sequences: 1,
        max_queue: 2,
        ..config()
    };
    let engine = Engine::start(tiny::model(), backend.clone(), &settings).unwrap();
    backend.allow(1);
    let first = engine.submit(greedy(prompt(0, 10), 20)).unwrap();
    wait_until(&engine, "the first runs", |stats| stats.running == 1);
    let streams: Vec<TokenStream> = (1..6)
        .map(|i| engine.submit(greedy(prompt(i, 10), 5)).unwrap())
        .collect();
    backend.allow_all();
    let full = |result: &Result<Answer, Error>| {
        matches!(
            result,
            Err(Error::Engine(EngineError::Submit(SubmitError::QueueFull {
                limit: 2
            })))
        )
    };
    let results: Vec<_> = streams.into_iter().map(read).collect();
    assert!(results[..2].iter().all(Result::is_ok));
    assert!(results[2..].iter().all(full));
    assert_eq!(read(first).unwrap().tokens.len(), 20);
}

#[test]
fn invalid_requests_are_rejected() {
    let engine = start(&config());
    let fail = |request: Request| match ask(&engine, request) {
        Ok(_) => panic!("an invalid request was answered"),
        Err(Error::Engine(error)) => error,
        Err(error) => panic!("{error}"),
    };
    let with = |sampling: SamplingParams| Request {
        sampling: Some(sampling),
        ..greedy(prompt(0, 4), 4)
    };
    let error = fail(greedy(Vec::new(), 4));
    assert!(matches!(error, EngineError::Submit(SubmitError::Empty)));
    let error = fail(greedy(vec![5, 320], 4));
    assert!(matches!(
        error,
        EngineError::TokenOutOfRange {
            token: 320,
            n_vocab: 320
        }
    ));
    assert!(error.to_string().contains("320"), "{error}");
    // The model's context is 256.
    let error = fail(greedy(prompt(0, 256), 4));
    let expected = SubmitError::TooLong {
        requested: 257,
        limit: 256,
    };
    assert!(
        matches!(&error, EngineError::Submit(e) if *e == expected),
        "{error}"
    );
    for (name, params) in [
        (
            "temperature",
            SamplingParams {
                temperature: -1.0,
                ..SamplingParams::default()
            },
        ),
        (
            "temperature",
            SamplingParams {
                temperature: f32::NAN,
                ..SamplingParams::default()
            },
        ),
        (
            "top_p",
            SamplingParams {
                top_p: 1.5,
                ..SamplingParams::default()
            },
        ),
        (
            "min_p",
            SamplingParams {
                min_p: f32::INFINITY,
                ..SamplingParams::default()
            },
        ),
        (
            "stop",
            SamplingParams {
                stop: vec![String::new()],
                ..SamplingParams::default()
            },
        ),
        (
            "logit_bias",
            SamplingParams {
                logit_bias: vec![(320, 1.0)],
                ..SamplingParams::default()
            },
        ),
    ] {
        let error = fail(with(params));
        assert!(matches!(error, EngineError::Sampling(_)), "{error}");
        assert!(error.to_string().contains(name), "{name}: {error}");
    }
    let bans = (0..320).map(|token| (token, f32::NEG_INFINITY)).collect();
    let error = fail(with(SamplingParams {
        logit_bias: bans,
        ..SamplingParams::default()
    }));
    assert!(
        matches!(error, EngineError::Sampling(SamplingError::NoCandidate)),
        "{error}"
    );
    // The engine still works.
    assert_eq!(
        ask(&engine, greedy(prompt(0, 4), 4)).unwrap().tokens.len(),
        4
    );
}

#[test]
fn invalid_settings_are_rejected() {
    let start = |config: EngineConfig| {
        Engine::start(tiny::model(), Arc::new(Cpu::default()), &config)
            .err()
            .expect("these settings cannot work")
            .to_string()
    };
    let error = start(EngineConfig {
        max_batch_tokens: 0,
        ..config()
    });
    assert!(error.contains("max_batch_tokens"), "{error}");
    let error = start(EngineConfig {
        max_sequences: 0,
        ..config()
    });
    assert!(error.contains("max_sequences"), "{error}");
    // A head dimension of 16 is half a block of 8-bit keys.
    let error = start(EngineConfig {
        key_type: KvType::Q8_0,
        ..config()
    });
    assert!(error.contains("16") && error.contains("Q8_0"), "{error}");
    let error = start(EngineConfig {
        cache_tokens: Some(1 << 50),
        ..config()
    });
    assert!(
        error.contains("memory") || error.contains("allocate"),
        "{error}"
    );
}

#[test]
fn answers_end_for_the_right_reason() {
    let engine = start(&config());
    let request = greedy(prompt(8, 12), 30);
    let plain = ask(&engine, request.clone()).unwrap();
    assert_eq!(plain.completion.finish_reason, FinishReason::Length);
    assert_eq!(
        (
            plain.completion.prompt_tokens,
            plain.completion.generated_tokens
        ),
        (12, 30)
    );
    let tokenizer = tiny::model().tokenizer().unwrap().clone();
    assert_eq!(
        plain.text,
        tokenizer.decode_with(&plain.ids(), DecodeOptions::default())
    );

    for n in [0, 1, 7] {
        let answer = ask(&engine, greedy(prompt(8, 12), n)).unwrap();
        assert_eq!(answer.ids(), plain.ids()[..n]);
        assert_eq!(answer.completion.finish_reason, FinishReason::Length);
    }
    // Without a limit, the answer ends with the context: a prompt of 12 tokens leaves 244.
    let endless = ask(
        &engine,
        Request {
            max_tokens: None,
            ..request.clone()
        },
    )
    .unwrap();
    assert_eq!(endless.tokens.len(), 256 - 12);

    // A stop string in the middle ends the answer before it.
    let middle: String = plain
        .text
        .chars()
        .skip(plain.text.chars().count() / 2)
        .take(4)
        .collect();
    let stops = vec!["never to be seen".to_owned(), middle.clone()];
    let sampling = SamplingParams {
        stop: stops,
        ..request.sampling.clone().unwrap()
    };
    let stopped = ask(
        &engine,
        Request {
            sampling: Some(sampling),
            ..request.clone()
        },
    )
    .unwrap();
    assert_eq!(
        stopped.completion.finish_reason,
        FinishReason::StopString(1)
    );
    let (before, _) = plain.text.split_once(&middle).unwrap();
    assert_eq!(stopped.text, before);
    assert!(stopped.tokens.len() < plain.tokens.len());

    // A bias makes the end-of-generation token certain.
    let sampling = SamplingParams {
        logit_bias: vec![(0, 1000.0)],
        ..request.sampling.clone().unwrap()
    };
    let ending = Request {
        sampling: Some(sampling),
        ignore_eos: false,
        ..request
    };
    let ended = ask(&engine, ending.clone()).unwrap();
    assert_eq!(ended.completion.finish_reason, FinishReason::EndOfText);
    assert_eq!((ended.tokens.len(), ended.text.as_str()), (0, ""));
    let going_on = ask(
        &engine,
        Request {
            ignore_eos: true,
            ..ending
        },
    )
    .unwrap();
    assert_eq!(going_on.ids(), [0; 30]);
    assert_eq!(going_on.completion.finish_reason, FinishReason::Length);
}

#[test]
fn stream_can_be_awaited() {
    let engine = start(&config());
    let expected = ask(&engine, greedy(prompt(2, 20), 25)).unwrap();
    let mut streams: Vec<TokenStream> = (0..3)
        .map(|_| engine.submit(greedy(prompt(2, 20), 25)).unwrap())
        .collect();
    for stream in &mut streams {
        let ids = block_on(async {
            let mut ids = Vec::new();
            while let Some(token) = next(stream).await {
                ids.push(token.unwrap().id);
            }
            assert_eq!(stream.completion().unwrap().generated_tokens, 25);
            ids
        });
        assert_eq!(ids, expected.ids());
    }
}

async fn next(stream: &mut TokenStream) -> Option<Result<Token, Error>> {
    use futures_core::Stream;
    std::future::poll_fn(|context| std::pin::Pin::new(&mut *stream).poll_next(context)).await
}

/// A minimal executor, whose waker unparks this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::park();
    }
}

#[test]
fn recv_timeout_returns_pending() {
    let backend = FaultyBackend::gated();
    backend.allow(0);
    let engine = Engine::start(tiny::model(), backend.clone(), &config()).unwrap();
    let mut stream = engine.submit(greedy(prompt(1, 10), 1)).unwrap();
    assert!(stream.recv_timeout(Duration::from_millis(20)).is_pending());
    backend.allow_all();
    let mut next = || stream.recv_timeout(Duration::from_secs(60));
    assert!(matches!(next(), Poll::Ready(Some(Ok(_)))));
    assert!(matches!(next(), Poll::Ready(None)));
    assert!(stream.completion().is_some());
}

#[test]
fn engine_ends_with_its_last_handle_and_stream() {
    let backend: Arc<dyn Backend> = Arc::new(Cpu::default());
    let engine = Engine::start(tiny::model(), backend.clone(), &config()).unwrap();
    let other = engine.clone();
    drop(engine);
    let stream = other.submit(greedy(prompt(1, 10), 20)).unwrap();
    drop(other);
    // The stream keeps the engine alive until it ends.
    assert_eq!(read(stream).unwrap().tokens.len(), 20);
    let start = Instant::now();
    while Arc::strong_count(&backend) > 1 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "the engine runs on"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A request whose prompt ends in `token`, and which generates no token that triggers a fault.
fn ending_in(token: u32, n: usize) -> Request {
    let mut tokens: Vec<u32> = prompt(1, 20).iter().map(|t| 5 + t % 200).collect();
    tokens.push(token);
    let mut request = greedy(tokens, n);
    let sampling = request.sampling.get_or_insert_default();
    sampling.logit_bias = (PANIC..=NAN_OUTPUT)
        .map(|t| (t, f32::NEG_INFINITY))
        .collect();
    request
}

#[test]
fn sampling_fault_ends_one_request() {
    let engine = Engine::start(tiny::model(), FaultyBackend::faulty(), &config()).unwrap();
    let expected = ask(&engine, ending_in(7, 200)).unwrap();
    for (fault, expected_text) in [(NAN_OUTPUT, "logit"), (PANIC_OUTPUT, "deliberate fault")] {
        let mut beside = engine.submit(ending_in(7, 200)).unwrap();
        beside.next();
        let error = ask(&engine, ending_in(fault, 5)).err().unwrap();
        assert!(error.to_string().contains(expected_text), "{error}");
        // The other request is not affected.
        assert_eq!(read(beside).unwrap().ids(), expected.ids()[1..]);
    }
    let stats = wait_until(&engine, "the end", |stats| stats.running == 0);
    assert_eq!(stats.used_blocks, 0);
}

#[test]
fn backend_fault_ends_requests_of_its_step() {
    for (fault, expected_text) in [(FAIL, "a deliberate error"), (PANIC, "a deliberate fault")] {
        let settings = EngineConfig {
            max_sequences: 1,
            ..config()
        };
        let backend = FaultyBackend::faulty();
        let engine = Engine::start(tiny::model(), backend.clone(), &settings).unwrap();
        let expected = ask(&engine, ending_in(7, 10)).unwrap();
        backend.allow(0);
        let bad = engine.submit(ending_in(fault, 5)).unwrap();
        let waiting = engine.submit(ending_in(7, 10)).unwrap();
        backend.allow_all();
        let error = read(bad).err().unwrap();
        assert!(
            matches!(&error, Error::Engine(EngineError::Internal(_))),
            "{error}"
        );
        assert!(error.to_string().contains(expected_text), "{error}");
        // The waiting request is served by a new session without traces of the fault.
        assert_eq!(read(waiting).unwrap().ids(), expected.ids());
    }
}

#[test]
fn engine_that_cannot_restart_fails_all_requests() {
    let settings = EngineConfig {
        max_sequences: 1,
        ..config()
    };
    let backend = FaultyBackend::faulty();
    backend.fail_restart();
    let engine = Engine::start(tiny::model(), backend.clone(), &settings).unwrap();
    backend.allow(0);
    let bad = engine.submit(ending_in(PANIC, 5)).unwrap();
    let waiting = engine.submit(ending_in(7, 5)).unwrap();
    backend.allow_all();
    assert!(read(bad).is_err());
    let stopped =
        |result: Result<Answer, Error>| matches!(result, Err(Error::Engine(EngineError::Stopped)));
    assert!(stopped(read(waiting)));
    assert!(stopped(ask(&engine, ending_in(7, 5))));
}

#[test]
fn grammar_constrains_answer_and_its_end() {
    let engine = start(&config());
    let with = |grammar: Grammar| Request {
        grammar: Some(grammar),
        ..greedy(prompt(3, 12), 100)
    };
    let regex = |regex: &str| with(Grammar::Regex(regex.into()));
    let answer = ask(&engine, regex("[0-9]{3}-(yes|no)")).unwrap();
    let (number, word) = answer.text.split_once('-').unwrap();
    assert!(number.len() == 3 && number.bytes().all(|byte| byte.is_ascii_digit()));
    assert!(word == "yes" || word == "no", "{}", answer.text);
    // The answer ends without an end-of-generation token, because nothing else could follow.
    assert_eq!(answer.completion.finish_reason, FinishReason::EndOfText);
    assert_eq!(answer.completion.generated_tokens, answer.tokens.len());
    // An answer that may end but need not is ended by the model or by the length limit.
    let open = ask(&engine, regex("(ab)+")).unwrap();
    assert!(
        open.text.replace("ab", "").is_empty()
            || open.completion.finish_reason == FinishReason::Length
    );
    let object = ask(
        &engine,
        with(Grammar::JsonSchema(serde_json::json!({
            "type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "yz"]}},
            "required": ["a", "b"], "additionalProperties": false,
        }))),
    )
    .unwrap();
    let value: serde_json::Value = serde_json::from_str(&object.text).unwrap();
    assert!(value["a"].is_boolean() && value["b"].is_string(), "{value}");
}

#[test]
fn grammar_does_not_affect_other_requests() {
    let engine = start(&config());
    let alone = ask(&engine, greedy(prompt(1, 20), 30)).unwrap();
    let guided = |regex: &str| {
        let grammar = Some(Grammar::Regex(regex.into()));
        let request = greedy(prompt(2, 20), 30);
        engine.submit(Request { grammar, ..request })
    };
    let streams = (0..3)
        .map(|_| guided("[a-z]{20}").unwrap())
        .collect::<Vec<_>>();
    let together = engine.submit(greedy(prompt(1, 20), 30)).unwrap();
    assert!(matches!(
        guided("(").err(),
        Some(Error::Engine(EngineError::Grammar(GrammarError::Regex(_))))
    ));
    assert_eq!(read(together).unwrap().ids(), alone.ids());
    for stream in streams {
        let text = read(stream).unwrap().text;
        assert!(text.len() == 20 && text.bytes().all(|byte| byte.is_ascii_lowercase()));
    }
}
