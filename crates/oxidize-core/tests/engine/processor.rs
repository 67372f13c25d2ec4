//! Requests whose logits pass through code of the caller.

use super::{ask, config, greedy, prompt, start};
use oxidize_core::Error;
use oxidize_core::engine::{EngineError, FinishReason};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};

/// Lets only one token be chosen.
fn force(token: u32, logits: &mut [f32]) {
    logits.fill(f32::NEG_INFINITY);
    logits[token as usize] = 0.0;
}

#[test]
fn processors_choose_tokens_and_see_the_answer_so_far() {
    let engine = start(&config());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let request = greedy(prompt(3, 20), 4).logits_processor({
        let seen = seen.clone();
        move |answer: &[u32], logits: &mut [f32]| {
            seen.lock().unwrap().push(answer.to_vec());
            force(7 + answer.len() as u32, logits);
            Ok(ControlFlow::Continue(()))
        }
    });
    let answer = ask(&engine, request).unwrap();
    assert_eq!(answer.ids(), [7, 8, 9, 10]);
    let expected: Vec<Vec<u32>> = vec![vec![], vec![7], vec![7, 8], vec![7, 8, 9]];
    assert_eq!(*seen.lock().unwrap(), expected);
    // The log probabilities are those of the changed logits.
    assert!(answer.tokens.iter().all(|token| token.logprob == Some(0.0)));
}

#[test]
fn an_answer_ends_where_the_processor_says() {
    let engine = start(&config());
    let plain = ask(&engine, greedy(prompt(3, 20), 10)).unwrap();
    let request = greedy(prompt(3, 20), 10).logits_processor(|answer: &[u32], _: &mut [f32]| {
        Ok(match answer.len() {
            5 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })
    });
    let ended = ask(&engine, request.clone()).unwrap();
    assert_eq!(ended.completion.finish_reason, FinishReason::Processor);
    assert_eq!(ended.ids(), plain.ids()[..5]);
    assert_eq!(ended.completion.generated_tokens, 5);
    assert_eq!(ended.completion.end_token, None);
    // What it has cached is right for the next request.
    let again = ask(&engine, greedy(prompt(3, 20), 10)).unwrap();
    assert_eq!(again.ids(), plain.ids());
    let at_once = greedy(prompt(3, 20), 10)
        .logits_processor(|_: &[u32], _: &mut [f32]| Ok(ControlFlow::Break(())));
    let nothing = ask(&engine, at_once).unwrap();
    assert_eq!((nothing.tokens.len(), nothing.text.as_str()), (0, ""));
}

#[test]
fn a_fault_of_a_processor_ends_its_request_alone() {
    let engine = start(&config());
    let beside = engine.submit(greedy(prompt(9, 40), 60)).unwrap();
    let fails = greedy(prompt(3, 20), 10)
        .logits_processor(|_: &[u32], _: &mut [f32]| Err("out of ideas".to_owned()));
    match ask(&engine, fails) {
        Err(Error::Engine(EngineError::Processor(problem))) => assert_eq!(problem, "out of ideas"),
        other => panic!("{:?}", other.map(|answer| answer.text)),
    }
    let panics = greedy(prompt(3, 20), 10)
        .logits_processor(|_: &[u32], _: &mut [f32]| panic!("a processor that panics"));
    match ask(&engine, panics) {
        Err(Error::Engine(EngineError::Internal(problem))) => {
            assert!(problem.contains("a processor that panics"), "{problem}");
        }
        other => panic!("{:?}", other.map(|answer| answer.text)),
    }
    let not_a_number =
        greedy(prompt(3, 20), 10).logits_processor(|_: &[u32], logits: &mut [f32]| {
            logits[3] = f32::NAN;
            Ok(ControlFlow::Continue(()))
        });
    assert!(matches!(
        ask(&engine, not_a_number),
        Err(Error::Engine(EngineError::Sampling(_)))
    ));
    assert_eq!(beside.map(Result::unwrap).count(), 60);
}

#[test]
fn requests_with_processors_share_steps() {
    let engine = start(&config());
    let n_calls = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let begun = Arc::new(Barrier::new(2));
    let request = |index: usize| {
        let (n_calls, begun) = (n_calls.clone(), begun.clone());
        greedy(prompt(3 + index as u32, 20), 30).logits_processor(
            move |answer: &[u32], _: &mut [f32]| {
                n_calls[index].fetch_add(1, Ordering::SeqCst);
                if index == 0 && answer.is_empty() {
                    // Holds the first step until the second request is queued.
                    begun.wait();
                }
                Ok(ControlFlow::Continue(()))
            },
        )
    };
    let first = engine.submit(request(0)).unwrap();
    let second = engine.submit(request(1)).unwrap();
    begun.wait();
    assert_eq!(first.map(Result::unwrap).count(), 30);
    assert_eq!(second.map(Result::unwrap).count(), 30);
    assert_eq!(n_calls[0].load(Ordering::SeqCst), 30);
    assert_eq!(n_calls[1].load(Ordering::SeqCst), 30);
    // The first step had one request, all others both, and the last one the second alone.
    let steps = engine.stats().steps;
    assert!(steps <= 34, "{steps} steps");
}
