//! Unit tests of the scheduler, one property each. `tests/scheduler_sim.rs` checks all properties together on
//! random calls.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;
use crate::kv::BlockCopy;

const A: SeqId = SeqId(1);
const B: SeqId = SeqId(2);
const C: SeqId = SeqId(3);

fn config() -> SchedulerConfig {
    SchedulerConfig {
        n_blocks: 64,
        block_size: 4,
        windows: Vec::new(),
        max_batch_tokens: 16,
        max_sequences: 8,
        max_outputs: 16,
        max_queue: 8,
        context_length: 200,
        reuse: PrefixReuse::Blocks,
        steps_per_priority: 100,
    }
}

fn scheduler(config: SchedulerConfig) -> Scheduler {
    Scheduler::new(config).unwrap()
}

fn request(id: SeqId, n_prompt: u32, max_new_tokens: usize) -> SequenceRequest {
    SequenceRequest::new(id, (0..n_prompt).collect(), max_new_tokens)
}

/// A prompt that shares no prefix with those of [`request`].
fn other(id: SeqId, n_prompt: u32, max_new_tokens: usize) -> SequenceRequest {
    let first = 1000 * id.0 as u32;
    SequenceRequest::new(id, (first..first + n_prompt).collect(), max_new_tokens)
}

/// Input of a step as `(sequence, start, tokens)`.
fn fed(step: &Step) -> Vec<(SeqId, usize, usize)> {
    step.sequences
        .iter()
        .map(|part| (part.id, part.start, part.rows.len()))
        .collect()
}

/// Commits a step in which every sequence that samples gets token 7.
fn commit(scheduler: &mut Scheduler, step: Step) -> Vec<Event> {
    let sampling = step.sequences.iter().filter(|part| part.samples);
    let sampled: Vec<_> = sampling.map(|part| Sampled::token(part.id, 7)).collect();
    let events = scheduler.commit(step, &sampled);
    scheduler.check_integrity().unwrap();
    events
}

fn run_step(scheduler: &mut Scheduler) -> (Vec<(SeqId, usize, usize)>, Vec<Event>) {
    let step = scheduler.plan().unwrap();
    (fed(&step), commit(scheduler, step))
}

fn run_to_idle(scheduler: &mut Scheduler) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(step) = scheduler.plan() {
        events.extend(commit(scheduler, step));
    }
    assert!(scheduler.is_idle());
    events
}

/// The table in `docs/scheduling.md`.
#[test]
fn documented_example_is_correct() {
    const D: SeqId = SeqId(4);
    let mut scheduler = scheduler(SchedulerConfig {
        max_batch_tokens: 8,
        ..config()
    });
    scheduler.submit(other(A, 8, 50)).unwrap();
    run_step(&mut scheduler);
    run_step(&mut scheduler);
    let book: Vec<u32> = (0..20).collect();
    scheduler
        .submit(SequenceRequest::new(B, book.clone(), 50))
        .unwrap();
    scheduler.submit(other(C, 3, 2)).unwrap();
    assert_eq!(
        run_step(&mut scheduler).0,
        [(A, 9, 1), (B, 0, 4), (C, 0, 3)]
    );
    assert_eq!(
        run_step(&mut scheduler).0,
        [(A, 10, 1), (B, 4, 6), (C, 3, 1)]
    );
    assert_eq!(run_step(&mut scheduler).0, [(A, 11, 1), (B, 10, 7)]);
    let question = book[..12].iter().copied().chain([90, 91, 92]).collect();
    scheduler
        .submit(SequenceRequest::new(D, question, 50))
        .unwrap();
    assert_eq!(
        run_step(&mut scheduler).0,
        [(A, 12, 1), (B, 17, 3), (D, 12, 3)]
    );
    assert_eq!(
        run_step(&mut scheduler).0,
        [(A, 13, 1), (B, 20, 1), (D, 15, 1)]
    );
}

#[test]
fn prompt_is_chunked_and_then_decodes() {
    let mut scheduler = scheduler(config());
    scheduler.submit(request(A, 20, 2)).unwrap();

    let step = scheduler.plan().unwrap();
    assert_eq!(fed(&step), [(A, 0, 16)]);
    assert_eq!(step.tokens, (0..16).collect::<Vec<u32>>());
    assert_eq!(step.positions, step.tokens);
    assert_eq!(step.blocks.len(), 4);
    assert!(step.outputs.is_empty() && !step.sequences[0].samples);
    assert_eq!(commit(&mut scheduler, step), []);

    let step = scheduler.plan().unwrap();
    assert_eq!(fed(&step), [(A, 16, 4)]);
    assert_eq!(step.outputs_of(&step.sequences[0]), [3]);
    assert!(step.sequences[0].samples);
    assert_eq!(commit(&mut scheduler, step), []);
    assert_eq!(scheduler.tokens(A).unwrap().last(), Some(&7));

    let (tokens, events) = run_step(&mut scheduler);
    assert_eq!(tokens, [(A, 20, 1)]);
    assert_eq!(events, [Event::Finished { id: A }]);
    assert!(scheduler.plan().is_none());
}

#[test]
fn long_prompt_does_not_delay_decoding() {
    let mut scheduler = scheduler(config());
    scheduler.submit(other(A, 3, 50)).unwrap();
    run_step(&mut scheduler);
    scheduler.submit(other(B, 100, 1)).unwrap();
    for start in 0..6 {
        let (tokens, _) = run_step(&mut scheduler);
        assert_eq!(tokens, [(A, 3 + start, 1), (B, 15 * start, 15)]);
    }
}

#[test]
fn short_prompt_overtakes_long_one_which_still_advances() {
    let mut scheduler = scheduler(config());
    scheduler.submit(other(A, 100, 1)).unwrap();
    scheduler.submit(other(B, 30, 1)).unwrap();
    scheduler.submit(other(C, 5, 1)).unwrap();
    let (tokens, _) = run_step(&mut scheduler);
    assert_eq!(tokens, [(A, 0, 8), (B, 0, 3), (C, 0, 5)]);
}

#[test]
fn earlier_prompt_is_reused() {
    let mut scheduler = scheduler(config());
    scheduler.submit(request(A, 10, 3)).unwrap();
    run_to_idle(&mut scheduler);
    // Ten prompt tokens and two of the three generated are computed: three whole blocks.
    let mut tokens: Vec<u32> = (0..10).collect();
    tokens.extend([7, 7, 7, 50, 51]);
    scheduler
        .submit(SequenceRequest::new(B, tokens, 1))
        .unwrap();
    let (tokens, events) = run_step(&mut scheduler);
    assert_eq!(tokens, [(B, 12, 3)]);
    assert!(events.contains(&Event::CacheHit { id: B, tokens: 12 }));
    assert_eq!(scheduler.stats().cached_prompt_tokens, 12);
}

#[test]
fn last_prompt_token_is_always_computed() {
    let mut scheduler = scheduler(config());
    scheduler.submit(request(A, 8, 1)).unwrap();
    run_to_idle(&mut scheduler);
    scheduler.submit(request(B, 8, 1)).unwrap();
    assert_eq!(run_step(&mut scheduler).0, [(B, 4, 4)]);
}

#[test]
fn prefix_is_not_reused_for_other_salt_or_when_disabled() {
    let mut scheduler = scheduler(config());
    scheduler.submit(request(A, 9, 1)).unwrap();
    run_to_idle(&mut scheduler);
    let requests = [
        SequenceRequest {
            salt: 1,
            ..request(A, 9, 0)
        },
        SequenceRequest {
            reuse_prefix: false,
            ..request(A, 9, 0)
        },
        SequenceRequest {
            logits: LogitsAt::Every,
            ..request(A, 9, 0)
        },
    ];
    for request in requests {
        scheduler.submit(request).unwrap();
        assert_eq!(run_step(&mut scheduler).0, [(A, 0, 9)]);
    }
    scheduler.submit(request(A, 9, 0)).unwrap();
    assert_eq!(run_step(&mut scheduler).0, [(A, 8, 1)]);
}

#[test]
fn prefix_in_computation_is_awaited() {
    let mut scheduler = scheduler(config());
    scheduler.submit(request(A, 17, 1)).unwrap();
    scheduler.submit(request(B, 18, 1)).unwrap();
    assert_eq!(run_step(&mut scheduler).0, [(A, 0, 16)]);
    let (tokens, events) = run_step(&mut scheduler);
    assert_eq!(tokens, [(A, 16, 1), (B, 16, 2)]);
    assert!(events.contains(&Event::CacheHit { id: B, tokens: 16 }));
}

#[test]
fn latest_sequence_is_preempted_when_blocks_run_out() {
    let mut scheduler = scheduler(SchedulerConfig {
        n_blocks: 6,
        ..config()
    });
    scheduler.submit(other(A, 7, 10)).unwrap();
    scheduler.submit(other(B, 7, 10)).unwrap();
    let events = run_to_idle(&mut scheduler);
    assert!(events.contains(&Event::Preempted { id: B }));
    assert!(!events.contains(&Event::Preempted { id: A }));
    for id in [A, B] {
        assert!(events.contains(&Event::Finished { id }));
    }
}

#[test]
fn prompt_takes_no_blocks_from_better_rank() {
    let mut scheduler = scheduler(SchedulerConfig {
        max_batch_tokens: 4,
        ..config()
    });
    scheduler.submit(other(A, 40, 1)).unwrap();
    scheduler.submit(other(B, 30, 1)).unwrap();
    assert_eq!(run_step(&mut scheduler).0, [(A, 0, 2), (B, 0, 2)]);
    while scheduler.kv.allocate().is_some() {} // no block is left
    // C is shorter and has its turn before B, which holds a block.
    scheduler
        .sequences
        .extend([(C, scheduler.sequences[&B].child(C))]);
    let c = scheduler.sequences.get_mut(&C).unwrap();
    c.salt = 1;
    c.tokens.truncate(5);
    c.rank = Rank::new(9, 0, 0, 9);
    c.slot = scheduler.free_slots.pop_first();
    scheduler.insert_running(C);
    let step = scheduler.plan().unwrap();
    assert_eq!(fed(&step), [(A, 2, 2), (B, 2, 2)]);
}

#[test]
fn higher_priority_preempts_and_preempted_sequence_resumes() {
    let mut scheduler = scheduler(SchedulerConfig {
        max_sequences: 1,
        ..config()
    });
    scheduler.submit(other(A, 6, 20)).unwrap();
    run_step(&mut scheduler);
    scheduler
        .submit(SequenceRequest {
            priority: 1,
            ..other(B, 3, 1)
        })
        .unwrap();
    let (tokens, events) = run_step(&mut scheduler);
    assert_eq!(tokens, [(B, 0, 3)]);
    assert!(events.contains(&Event::Preempted { id: A }));
    // Its full block is still cached. A sequence's own prompt is not a cache hit.
    let (tokens, events) = run_step(&mut scheduler);
    assert_eq!(tokens, [(A, 4, 3)]);
    assert_eq!(events, []);
    assert_eq!(scheduler.tokens(A).unwrap().last(), Some(&7));
}

#[test]
fn long_waiting_sequence_is_not_preempted() {
    let mut scheduler = scheduler(SchedulerConfig {
        max_sequences: 1,
        steps_per_priority: 5,
        ..config()
    });
    scheduler.submit(other(A, 3, 50)).unwrap();
    (0..10).for_each(|_| drop(run_step(&mut scheduler)));
    scheduler
        .submit(SequenceRequest {
            priority: 1,
            ..other(B, 3, 1)
        })
        .unwrap();
    assert_eq!(run_step(&mut scheduler).0, [(A, 12, 1)]);
}

#[test]
fn forks_share_blocks_and_copy_the_last_one_on_write() {
    let mut scheduler = scheduler(config());
    scheduler.submit(request(A, 6, 20)).unwrap();
    run_step(&mut scheduler);
    scheduler.fork(A, B).unwrap();
    assert_eq!(scheduler.stats().used_blocks, 2);

    let step = scheduler.plan().unwrap();
    assert_eq!(fed(&step), [(A, 6, 1), (B, 6, 1)]);
    let (a, b) = (
        step.blocks_of(&step.sequences[0]),
        step.blocks_of(&step.sequences[1]),
    );
    assert_eq!(a[0], b[0]);
    assert_ne!(a[1], b[1]);
    let copy = BlockCopy {
        group: 0,
        from: b[1],
        to: a[1],
    };
    assert_eq!(step.copies, [copy]);
    let sampled = [Sampled::token(A, 8), Sampled::token(B, 9)];
    scheduler.commit(step, &sampled);
    assert_eq!(scheduler.tokens(A).unwrap()[6..], [7, 8]);
    assert_eq!(scheduler.tokens(B).unwrap()[6..], [7, 9]);
    scheduler.check_integrity().unwrap();
}

#[test]
fn fork_without_free_slot_is_queued() {
    let mut scheduler = scheduler(SchedulerConfig {
        max_sequences: 1,
        max_queue: 1,
        ..config()
    });
    scheduler.submit(request(A, 6, 2)).unwrap();
    run_step(&mut scheduler);
    scheduler.fork(A, B).unwrap();
    assert_eq!(
        scheduler.fork(A, C),
        Err(SubmitError::QueueFull { limit: 1 })
    );
    assert_eq!(run_step(&mut scheduler).0, [(A, 6, 1)]);
    assert_eq!(run_step(&mut scheduler).0, [(B, 4, 3)]);
}

#[test]
fn truncated_sequence_continues_from_there() {
    let mut scheduler = scheduler(config());
    scheduler.submit(request(A, 6, 20)).unwrap();
    (0..4).for_each(|_| drop(run_step(&mut scheduler)));
    assert!(!scheduler.truncate(A, 5), "shorter than the prompt");
    assert!(!scheduler.truncate(A, 11), "longer than the sequence");
    assert!(!scheduler.truncate(B, 6), "no such sequence");
    assert!(scheduler.truncate(A, 7));
    scheduler.check_integrity().unwrap();
    // The second block is full and known, but not shared: it is written in place.
    let step = scheduler.plan().unwrap();
    assert_eq!(fed(&step), [(A, 6, 1)]);
    assert!(step.copies.is_empty());
    commit(&mut scheduler, step);
}

#[test]
fn drafts_are_verified_and_rolled_back() {
    let mut scheduler = scheduler(config());
    scheduler.submit(request(A, 6, 20)).unwrap();
    assert!(
        !scheduler.draft(A, &[1]),
        "the sequence is not decoding yet"
    );
    run_step(&mut scheduler);
    assert!(scheduler.draft(A, &[1, 2, 3]));

    let step = scheduler.plan().unwrap();
    assert_eq!(step.tokens, [7, 1, 2, 3]);
    assert_eq!(step.outputs, [0, 1, 2, 3]);
    assert_eq!(step.sequences[0].n_draft, 3);
    let events = scheduler.commit(
        step,
        &[Sampled {
            id: A,
            accepted: 2,
            token: 9,
            finished: false,
        }],
    );
    assert_eq!(events, []);
    assert_eq!(scheduler.tokens(A).unwrap()[6..], [7, 1, 2, 9]);
    scheduler.check_integrity().unwrap();
    assert_eq!(run_step(&mut scheduler).0, [(A, 9, 1)]);
}

#[test]
fn drafts_stay_within_length_and_budget() {
    let mut scheduler = scheduler(SchedulerConfig {
        max_batch_tokens: 3,
        ..config()
    });
    scheduler.submit(request(A, 2, 20)).unwrap();
    run_step(&mut scheduler);
    scheduler.draft(A, &[1, 2, 3, 4]);
    let step = scheduler.plan().unwrap();
    assert_eq!(step.tokens, [7, 1, 2]);
    commit(&mut scheduler, step);
    scheduler.cancel(A);

    scheduler.submit(request(B, 2, 2)).unwrap();
    run_step(&mut scheduler);
    scheduler.draft(B, &[1]);
    // The sequence ends with its next token, so a draft is useless.
    assert_eq!(run_step(&mut scheduler).0, [(B, 2, 1)]);
}

#[test]
fn every_position_gets_logits_once() {
    let mut scheduler = scheduler(SchedulerConfig {
        max_batch_tokens: 4,
        ..config()
    });
    scheduler
        .submit(SequenceRequest {
            logits: LogitsAt::Every,
            ..request(A, 6, 0)
        })
        .unwrap();
    let step = scheduler.plan().unwrap();
    assert_eq!(step.outputs, [0, 1, 2, 3]);
    // After a preemption it is recomputed, but gets no logits twice.
    commit(&mut scheduler, step);
    scheduler.preempt(A);
    let step = scheduler.plan().unwrap();
    assert_eq!((fed(&step), step.outputs.len()), (vec![(A, 0, 4)], 0));
    commit(&mut scheduler, step);
    let step = scheduler.plan().unwrap();
    assert_eq!(step.outputs, [0, 1]);
    assert!(!step.sequences[0].samples);
    let events = commit(&mut scheduler, step);
    assert_eq!(events, [Event::Finished { id: A }]);
}

/// A prompt that is scored is computed in smaller pieces, so that the logits of a step stay within the limit and
/// each sequence that samples has its own.
#[test]
fn scored_prompts_leave_outputs_to_others() {
    let mut scheduler = scheduler(SchedulerConfig {
        max_outputs: 6,
        ..config()
    });
    scheduler.submit(request(A, 3, 20)).unwrap();
    run_step(&mut scheduler);
    for id in [B, C] {
        let scored = SequenceRequest {
            logits: LogitsAt::Every,
            ..request(id, 12, 0)
        };
        scheduler.submit(scored).unwrap();
    }
    let mut scored = 0;
    while scored < 24 {
        let step = scheduler.plan().unwrap();
        assert!(step.outputs.len() <= 6, "{:?}", step.outputs);
        let parts = step.sequences.iter().filter(|part| part.id != A);
        scored += parts.map(|part| part.rows.len()).sum::<usize>();
        assert!(
            step.sequences
                .iter()
                .any(|part| part.id == A && part.samples)
        );
        commit(&mut scheduler, step);
    }
}

#[test]
fn recurrent_state_without_checkpoints_is_recomputed() {
    let config = SchedulerConfig {
        reuse: PrefixReuse::Recurrent { checkpoints: 0 },
        ..config()
    };
    let mut scheduler = scheduler(config);
    scheduler.submit(request(A, 6, 20)).unwrap();
    (0..3).for_each(|_| drop(run_step(&mut scheduler)));
    assert!(!scheduler.draft(A, &[1]));
    scheduler.truncate(A, 7);
    assert_eq!(run_step(&mut scheduler).0, [(A, 0, 7)]);
}

/// Checkpoints are made at block ends, and used by sequences with the same beginning and after a truncation.
/// Forks copy the state of their parent.
#[test]
fn recurrent_state_resumes_at_checkpoints() {
    let config = SchedulerConfig {
        reuse: PrefixReuse::Recurrent { checkpoints: 2 },
        ..config()
    };
    let first_checkpoint = config.n_slots();
    let mut scheduler = scheduler(config);
    scheduler.submit(request(A, 6, 20)).unwrap();
    // The first step ends at a block end, where the next one makes a checkpoint.
    let step = scheduler.plan().unwrap();
    assert_eq!(fed(&step), [(A, 0, 4)]);
    commit(&mut scheduler, step);
    let step = scheduler.plan().unwrap();
    assert_eq!(fed(&step), [(A, 4, 2)]);
    assert_eq!(step.state_copies, [(0, first_checkpoint)]);
    commit(&mut scheduler, step);

    // Another sequence with the same beginning.
    scheduler.submit(request(B, 6, 20)).unwrap();
    let step = scheduler.plan().unwrap();
    assert_eq!(fed(&step), [(A, 6, 1), (B, 4, 2)]);
    assert_eq!(step.state_copies, [(first_checkpoint, 1)]);
    commit(&mut scheduler, step);
    assert!(scheduler.cancel(B));

    // A partly rejected draft: the state is rolled back and the accepted token is recomputed.
    assert!(scheduler.draft(A, &[1, 2]));
    let step = scheduler.plan().unwrap();
    let kept = step.state_copies.clone();
    assert_eq!(fed(&step), [(A, 7, 3)]);
    let sampled = Sampled {
        accepted: 1,
        ..Sampled::token(A, 9)
    };
    scheduler.commit(step, &[sampled]);
    scheduler.check_integrity().unwrap();
    let step = scheduler.plan().unwrap();
    assert_eq!(fed(&step), [(A, 7, 3)]);
    assert_eq!(step.tokens, [7, 1, 9]);
    assert_eq!(kept, [(0, first_checkpoint + 1)]);
    assert_eq!(step.state_copies, [(first_checkpoint + 1, 0)]);
    commit(&mut scheduler, step);

    // The fork gets the state of its parent; the truncated sequence gets the last checkpoint before its end.
    scheduler.fork(A, C).unwrap();
    assert!(scheduler.truncate(A, 6));
    let step = scheduler.plan().unwrap();
    assert_eq!(fed(&step), [(A, 4, 2), (C, 10, 1)]);
    assert_eq!(step.state_copies, [(0, 1), (first_checkpoint, 0)]);
    commit(&mut scheduler, step);
    scheduler.check_integrity().unwrap();
}

#[test]
fn logits_that_were_not_sampled_are_recomputed() {
    let mut scheduler = scheduler(config());
    scheduler.submit(request(A, 8, 2)).unwrap();
    let step = scheduler.plan().unwrap();
    assert_eq!(scheduler.commit(step, &[]), []);
    scheduler.check_integrity().unwrap();
    assert_eq!(run_step(&mut scheduler), (vec![(A, 7, 1)], vec![]));
    assert_eq!(scheduler.tokens(A).unwrap().last(), Some(&7));
}

#[test]
fn abandoned_step_is_recomputed() {
    let mut scheduler = scheduler(config());
    scheduler.submit(request(A, 6, 20)).unwrap();
    run_step(&mut scheduler);
    scheduler.fork(A, B).unwrap();
    let step = scheduler.plan().unwrap();
    assert_eq!(step.copies.len(), 1);
    scheduler.fork(A, C).unwrap(); // shares a block to which nothing was copied
    scheduler.abandon(step);
    scheduler.check_integrity().unwrap();
    assert_eq!(scheduler.stats().queued, 3);
    let (tokens, events) = run_step(&mut scheduler);
    assert_eq!(tokens, [(A, 4, 3), (B, 4, 3), (C, 4, 3)]);
    assert_eq!(
        events
            .iter()
            .filter(|e| matches!(e, Event::Preempted { .. }))
            .count(),
        3
    );
}

#[test]
fn result_is_ignored_for_sequence_cancelled_in_flight() {
    let mut scheduler = scheduler(config());
    scheduler.submit(request(A, 6, 20)).unwrap();
    scheduler.submit(other(B, 6, 20)).unwrap();
    let step = scheduler.plan().unwrap();
    assert!(scheduler.plan().is_none(), "one step at a time");
    assert!(scheduler.cancel(A));
    scheduler.submit(request(A, 3, 1)).unwrap();
    commit(&mut scheduler, step);
    assert_eq!(scheduler.tokens(A), Some(&[0, 1, 2][..]));
    assert_eq!(run_step(&mut scheduler).0, [(B, 6, 1), (A, 0, 3)]);
}

#[test]
fn cancelled_sequence_leaves_only_cached_blocks() {
    let mut scheduler = scheduler(config());
    scheduler.submit(request(A, 10, 20)).unwrap();
    scheduler.submit(request(B, 10, 20)).unwrap();
    run_step(&mut scheduler);
    assert!(scheduler.cancel(A) && scheduler.finish(B) && !scheduler.cancel(A));
    let stats = scheduler.stats();
    assert_eq!((stats.used_blocks, stats.cached_blocks), (0, 2));
    assert_eq!((stats.cancelled, stats.finished), (1, 1));
    scheduler.clear_prefix_cache();
    assert_eq!(scheduler.stats().free_blocks, 64);
    assert!(scheduler.is_idle() && scheduler.plan().is_none());
}

#[test]
fn sampler_can_end_sequence() {
    let mut scheduler = scheduler(config());
    scheduler.submit(request(A, 3, 20)).unwrap();
    let step = scheduler.plan().unwrap();
    let events = scheduler.commit(
        step,
        &[Sampled {
            finished: true,
            ..Sampled::token(A, 2)
        }],
    );
    assert_eq!(events.last(), Some(&Event::Finished { id: A }));
}

#[test]
fn invalid_requests_are_rejected() {
    let mut scheduler = scheduler(SchedulerConfig {
        max_queue: 2,
        n_blocks: 3,
        context_length: 100,
        ..config()
    });
    assert_eq!(scheduler.submit(request(A, 0, 1)), Err(SubmitError::Empty));
    assert_eq!(
        scheduler.submit(request(A, 12, 1)),
        Err(SubmitError::TooLong {
            requested: 13,
            limit: 12
        })
    );
    scheduler.submit(request(A, 12, 0)).unwrap();
    assert_eq!(
        scheduler.submit(request(A, 1, 1)),
        Err(SubmitError::DuplicateId(A))
    );
    assert_eq!(scheduler.fork(C, B), Err(SubmitError::UnknownParent(C)));
    scheduler.submit(request(B, 11, usize::MAX)).unwrap();
    assert_eq!(
        scheduler.submit(request(C, 1, 1)),
        Err(SubmitError::QueueFull { limit: 2 })
    );
    let events = run_to_idle(&mut scheduler);
    assert!(events.contains(&Event::Finished { id: B }));
    let message = SubmitError::TooLong {
        requested: 13,
        limit: 12,
    }
    .to_string();
    assert!(
        message.contains("13") && message.contains("12"),
        "{message}"
    );
}

#[test]
fn invalid_configurations_are_rejected() {
    let broken = [
        SchedulerConfig {
            n_blocks: 0,
            ..config()
        },
        SchedulerConfig {
            block_size: 0,
            ..config()
        },
        SchedulerConfig {
            max_batch_tokens: 0,
            ..config()
        },
        SchedulerConfig {
            max_sequences: 0,
            ..config()
        },
        SchedulerConfig {
            max_queue: 0,
            ..config()
        },
        SchedulerConfig {
            context_length: 0,
            ..config()
        },
    ];
    for config in broken {
        assert!(matches!(Scheduler::new(config), Err(ConfigError::Zero(_))));
    }
}

#[test]
fn integrity_check_reports_missing_block() {
    let mut scheduler = scheduler(config());
    scheduler.submit(request(A, 6, 20)).unwrap();
    run_step(&mut scheduler);
    scheduler.sequences.get_mut(&A).unwrap().blocks.pop();
    assert!(scheduler.check_integrity().is_err());
}
