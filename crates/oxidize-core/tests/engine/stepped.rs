//! Engines that their host steps, and devices whose results come later.

use super::answers::{Answer, golden, prompt, read};
use super::faulty_backend::{FAIL, FaultyBackend, PANIC};
use super::pending_backend::PendingBackend;
use super::{ask, assert_same, config, greedy, start, tiny};
use oxidize_core::backend::Backend;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::engine::{
    Engine, EngineConfig, EngineError, EngineState, Request, Stepper, TokenStream,
};
use oxidize_core::grammar::Grammar;
use oxidize_core::model::Model;
use oxidize_core::speculative::{DraftSource, Speculation};
use oxidize_core::threads::Spawner;
use oxidize_core::{DiskCache, Error};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

/// Requests of many kinds: prompts of one step and of several, a grammar, stop tokens, scores of a prompt.
fn requests() -> Vec<Request> {
    let mut requests: Vec<Request> = (0..10)
        .map(|i| greedy(prompt(i, 1 + 23 * i as usize % 130), 12 + i as usize))
        .collect();
    requests[1] = greedy(prompt(1, 9), 40).grammar(Grammar::Regex("[a-f]{3}-[0-9]{3}".into()));
    requests[2] = (20..60).fold(greedy(prompt(2, 40), 30), Request::stop_token);
    requests[3] = greedy(prompt(3, 100), 4).prompt_logprobs(1);
    requests
}

fn submit(engine: &Engine, requests: &[Request]) -> Vec<TokenStream> {
    let streams = requests
        .iter()
        .map(|request| engine.submit(request.clone()));
    streams.map(Result::unwrap).collect()
}

/// Answers of an engine with a thread, which is given all requests at once.
fn threaded(model: Model, backend: Arc<dyn Backend>, config: &EngineConfig) -> Vec<Answer> {
    let engine = Engine::start(model, backend, config).unwrap();
    let streams = submit(&engine, &requests());
    streams
        .into_iter()
        .map(|stream| read(stream).unwrap())
        .collect()
}

/// Answers of a stepped engine. Tokens are read after every step.
fn stepped(model: Model, backend: Arc<dyn Backend>, config: &EngineConfig) -> Vec<Answer> {
    let (engine, mut stepper) = Engine::stepped_on(model, backend, config).unwrap();
    let mut streams = submit(&engine, &requests());
    let mut tokens: Vec<Vec<_>> = vec![Vec::new(); streams.len()];
    let mut ends = vec![false; streams.len()];
    while stepper.step_blocking().unwrap() == EngineState::Working {
        for ((stream, tokens), end) in streams.iter_mut().zip(&mut tokens).zip(&mut ends) {
            while let Poll::Ready(token) = stream.try_recv() {
                let Some(token) = token else {
                    *end = true;
                    break;
                };
                tokens.push(token.unwrap());
            }
        }
    }
    let answers = streams.into_iter().zip(tokens).map(|(stream, mut tokens)| {
        let last = read(stream).unwrap();
        tokens.extend(last.tokens);
        Answer {
            text: tokens.iter().map(|token| token.text.as_str()).collect(),
            tokens,
            completion: last.completion,
        }
    });
    answers.collect()
}

fn assert_all_same(answers: &[Answer], expected: &[Answer], what: &str) {
    assert_eq!(answers.len(), expected.len());
    for (nth, (answer, expected)) in answers.iter().zip(expected).enumerate() {
        assert_same(answer, expected, &format!("{what}, request {nth}"));
        let (a, b) = (&answer.completion, &expected.completion);
        assert_eq!(a.finish_reason, b.finish_reason, "{what}, request {nth}");
    }
}

/// Preemption, speculation and a step of few tokens. Requests arrive at different steps, so the engines are
/// deterministic: an answer does not depend on the others.
fn configs() -> Vec<EngineConfig> {
    let config = || EngineConfig {
        deterministic: true,
        ..super::config()
    };
    let small_cache = EngineConfig {
        cache_tokens: Some(8 * super::BLOCK),
        ..config()
    };
    let draft = tiny::model();
    vec![
        config(),
        small_cache,
        config()
            .max_batch_tokens(16)
            .speculation(Speculation::new(DraftSource::Ngram)),
        config().speculation(Speculation::new(DraftSource::Model(draft))),
    ]
}

#[test]
fn a_stepped_engine_gives_the_answers_of_an_engine_with_a_thread() {
    for (nth, config) in configs().iter().enumerate() {
        let expected = threaded(tiny::model(), Arc::new(Cpu::default()), config);
        let answers = stepped(tiny::model(), Arc::new(Cpu::default()), config);
        assert_all_same(&answers, &expected, &format!("configuration {nth}"));
    }
}

#[test]
fn results_that_come_later_give_the_same_answers() {
    for (nth, config) in configs().iter().enumerate() {
        let expected = threaded(tiny::model(), Arc::new(Cpu::default()), config);
        for n_wakes in [1, 3] {
            let backend = Arc::new(PendingBackend::new(n_wakes));
            let what = format!("configuration {nth}, {n_wakes} wakes");
            let answers = threaded(tiny::model(), backend.clone(), config);
            assert_all_same(&answers, &expected, &format!("{what}, a thread"));
            let answers = stepped(tiny::model(), backend.clone(), config);
            assert_all_same(&answers, &expected, &format!("{what}, stepped"));
            assert!(backend.n_pending.load(Ordering::Relaxed) > 2 * n_wakes);
        }
    }
}

/// A waker that counts.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Count>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A future that is dropped while the device computes loses nothing.
#[test]
fn a_dropped_step_is_completed_by_the_next() {
    for config in configs() {
        let expected = threaded(tiny::model(), Arc::new(Cpu::default()), &config);
        let backend = Arc::new(PendingBackend::new(2));
        let (engine, mut stepper) = Engine::stepped_on(tiny::model(), backend, &config).unwrap();
        let streams = submit(&engine, &requests());
        // A request that is cancelled while its step is computed.
        let mut leaving = Some(engine.submit(greedy(prompt(50, 30), 200)).unwrap());
        let waker = Waker::from(Arc::new(Count::default()));
        let mut context = Context::from_waker(&waker);
        let mut n_dropped = 0;
        loop {
            match pin!(stepper.step()).poll(&mut context) {
                Poll::Pending => n_dropped += 1,
                Poll::Ready(state) => match state.unwrap() {
                    EngineState::Working => {}
                    state => {
                        assert_eq!(state, EngineState::Idle);
                        break;
                    }
                },
            }
            if n_dropped == 20 {
                leaving = None;
            }
        }
        assert!(leaving.is_none() && n_dropped > 20, "{n_dropped}");
        let answers = streams.into_iter().map(|stream| read(stream).unwrap());
        assert_all_same(&answers.collect::<Vec<_>>(), &expected, "dropped");
        assert_eq!(engine.stats().used_blocks, 0);
    }
}

/// An encoder-decoder model submits twice in a step.
#[test]
fn an_encoder_on_a_device_gives_the_same_answer() {
    let request = greedy(prompt(4, 20), 12);
    let cpu = Engine::start(golden("t5"), Arc::new(Cpu::default()), &config()).unwrap();
    let expected = ask(&cpu, request.clone()).unwrap();
    let backend = Arc::new(PendingBackend::new(2));
    let (engine, mut stepper) = Engine::stepped_on(golden("t5"), backend, &config()).unwrap();
    let stream = engine.submit(request).unwrap();
    while stepper.step_blocking().unwrap() == EngineState::Working {}
    assert_same(&read(stream).unwrap(), &expected, "t5");
}

#[test]
fn a_lost_device_ends_the_requests_of_its_step() {
    let backend = PendingBackend {
        lost: Some(4),
        ..PendingBackend::new(2)
    };
    let (engine, mut stepper) =
        Engine::stepped_on(tiny::model(), Arc::new(backend), &config()).unwrap();
    let lost = engine.submit(greedy(prompt(1, 10), 20)).unwrap();
    while stepper.step_blocking().unwrap() == EngineState::Working {}
    let error = read(lost).unwrap_err().to_string();
    assert!(error.contains("the device is lost"), "{error}");
    let request = greedy(prompt(2, 10), 20);
    let next = engine.submit(request.clone()).unwrap();
    while stepper.step_blocking().unwrap() == EngineState::Working {}
    let alone = ask(&start(&config()), request).unwrap();
    assert_same(&read(next).unwrap(), &alone, "after the loss");
}

#[test]
fn faults_end_requests_of_a_stepped_engine() {
    let (engine, mut stepper) =
        Engine::stepped_on(tiny::model(), FaultyBackend::faulty(), &config()).unwrap();
    let request = greedy(prompt(1, 20), 10);
    let alone = ask(&start(&config()), request.clone()).unwrap();
    for fault in [PANIC, FAIL] {
        let failing = engine.submit(greedy(vec![5, fault, 7], 10)).unwrap();
        while stepper.step_blocking().unwrap() == EngineState::Working {}
        assert!(read(failing).is_err(), "{fault}");
        let next = engine.submit(request.clone()).unwrap();
        while stepper.step_blocking().unwrap() == EngineState::Working {}
        assert_same(&read(next).unwrap(), &alone, "after a fault");
    }
}

#[test]
fn an_engine_that_cannot_be_restarted_ends() {
    let backend = FaultyBackend::faulty();
    backend.fail_restart();
    let (engine, mut stepper) = Engine::stepped_on(tiny::model(), backend, &config()).unwrap();
    let failing = engine.submit(greedy(vec![5, PANIC], 10)).unwrap();
    let waiting = engine.submit(greedy(prompt(1, 100), 10)).unwrap();
    assert!(stepper.step_blocking().is_err());
    assert!(read(failing).is_err() && read(waiting).is_err());
    assert_eq!(stepper.step_blocking().unwrap(), EngineState::Ended);
    let late = engine.submit(greedy(prompt(1, 10), 10)).unwrap();
    assert!(matches!(
        read(late),
        Err(Error::Engine(EngineError::Stopped))
    ));
}

#[test]
fn a_stepper_waits_for_requests_and_ends_with_the_last_handle() {
    let (engine, mut stepper) =
        Engine::stepped_on(tiny::model(), Arc::new(Cpu::default()), &config()).unwrap();
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut context = Context::from_waker(&waker);
    assert_eq!(stepper.step_blocking().unwrap(), EngineState::Idle);
    let mut poll = |stepper: &mut Stepper| pin!(stepper.ready()).poll(&mut context);
    assert_eq!(poll(&mut stepper), Poll::Pending);
    let stream = engine.submit(greedy(prompt(1, 10), 3)).unwrap();
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
    assert_eq!(poll(&mut stepper), Poll::Ready(true));
    // The stream keeps the engine alive.
    drop(engine);
    while stepper.step_blocking().unwrap() == EngineState::Working {}
    assert_eq!(poll(&mut stepper), Poll::Pending);
    assert_eq!(read(stream).unwrap().tokens.len(), 3);
    assert_eq!(count.0.load(Ordering::Relaxed), 2);
    // Dropping the stream has queued its cancellation.
    assert_eq!(poll(&mut stepper), Poll::Ready(true));
    assert_eq!(stepper.step_blocking().unwrap(), EngineState::Idle);
    assert_eq!(poll(&mut stepper), Poll::Ready(false));
    assert_eq!(stepper.step_blocking().unwrap(), EngineState::Ended);
}

#[test]
fn dropping_the_stepper_fails_open_requests() {
    let (engine, mut stepper) =
        Engine::stepped_on(tiny::model(), Arc::new(Cpu::default()), &config()).unwrap();
    let stream = engine.submit(greedy(prompt(1, 10), 100)).unwrap();
    assert_eq!(stepper.step_blocking().unwrap(), EngineState::Working);
    drop(stepper);
    assert!(matches!(
        read(stream),
        Err(Error::Engine(EngineError::Stopped))
    ));
    assert!(engine.monitor().has_ended());
}

#[test]
fn without_threads_only_a_stepped_engine_starts() {
    let directory = tempfile::tempdir().unwrap();
    let none = config()
        .spawner(Spawner::none())
        .disk(DiskCache::new(directory.path(), 1 << 20));
    let cpu: Arc<dyn Backend> = Arc::new(Cpu::default());
    let refused = Engine::start(tiny::model(), cpu.clone(), &none);
    assert!(matches!(
        refused.err(),
        Some(Error::Engine(EngineError::NoThread))
    ));
    let one = config().n_threads(1);
    let expected = threaded(tiny::model(), cpu.clone(), &one);
    assert_all_same(&stepped(tiny::model(), cpu, &none), &expected, "no threads");
    // The cache on disk is off.
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// A host may start threads late: work that it has not begun is done by the others.
#[test]
fn threads_of_a_host_may_begin_late() {
    type Work = Box<dyn FnOnce() + Send>;
    let waiting: Arc<Mutex<Vec<Work>>> = Arc::default();
    let begun = Arc::new(AtomicBool::new(false));
    let (queue, names) = (waiting.clone(), Arc::new(Mutex::new(Vec::new())));
    let all_names = names.clone();
    let spawner = Spawner::new(move |name, work| {
        all_names.lock().unwrap().push(name.to_owned());
        queue.lock().unwrap().push(work);
        Ok(())
    });
    let expected = threaded(tiny::model(), Arc::new(Cpu::default()), &config());
    let hosted = config().spawner(spawner);
    let (engine, mut stepper) =
        Engine::stepped_on(tiny::model(), Arc::new(Cpu::default()), &hosted).unwrap();
    assert_eq!(*names.lock().unwrap(), ["oxidize-1"]);
    let mut threads = Vec::new();
    for round in 0..2 {
        let streams = submit(&engine, &requests());
        while stepper.step_blocking().unwrap() == EngineState::Working {}
        let answers = streams.into_iter().map(|stream| read(stream).unwrap());
        assert_all_same(
            &answers.collect::<Vec<_>>(),
            &expected,
            &format!("round {round}"),
        );
        for work in waiting.lock().unwrap().drain(..) {
            let begun = begun.clone();
            threads.push(std::thread::spawn(move || {
                begun.store(true, Ordering::Relaxed);
                work();
            }));
        }
    }
    drop(stepper);
    // The work ends with the engine.
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(begun.load(Ordering::Relaxed));
}

#[test]
fn steps_can_run_on_any_executor() {
    fn assert_send<T: Send>(value: T) -> T {
        value
    }
    let (_engine, mut stepper) =
        Engine::stepped_on(tiny::model(), Arc::new(Cpu::default()), &config()).unwrap();
    drop(assert_send(stepper.step()));
    drop(assert_send(stepper.ready()));
    assert_send(stepper);
}
