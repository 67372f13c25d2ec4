//! Nothing is allocated per token: once its buffers have grown, the CPU backend encodes sequences and runs batches of
//! one token without allocating, on any thread of the process.

#![allow(unsafe_code, reason = "a global allocator that counts")]

#[path = "backend_ops/cases.rs"]
#[allow(dead_code, reason = "shared with the tests of ops")]
mod cases;
#[path = "backend_ops/net.rs"]
#[allow(dead_code, reason = "shared with the tests of ops")]
mod net;

use net::{Net, VOCAB};
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{Backend, Batch, Readback, SeqSlice, Session, SessionConfig};
use oxidize_core::file::{OpenOptions, TensorType};
use oxidize_core::graph::{AttentionMask, AttentionOp, CacheInfo, Op, Rows};
use oxidize_core::kv::BlockId;
use oxidize_core::model::Model;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the allocations of all threads.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every method forwards its arguments to the system allocator, under the same contract, and counting does
// not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `layout` has a size other than zero, as `GlobalAlloc::alloc` requires of every caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `layout` has a size other than zero, as `GlobalAlloc::alloc_zeroed` requires of every caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `ptr` is from this allocator, so from `System`, with this layout; the caller promises a valid
        // `new_size`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` is from this allocator, so from `System`, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const N_TOKENS: u32 = 40;
const ADAPTERS: [f32; 3] = [1.0, 0.5, -1.0];

fn config(n_threads: usize) -> SessionConfig {
    SessionConfig {
        n_threads: Some(n_threads),
        max_tokens: 8,
        ..SessionConfig::for_context(64)
    }
}

/// Allocations while a sequence is run from its start, one token a batch.
fn allocations(session: &mut dyn Session, n_vocab: usize) -> usize {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for position in 0..N_TOKENS {
        let batch = Batch {
            tokens: &[position * 7 % n_vocab as u32],
            positions: &[position],
            sequences: &[SeqSlice {
                n_tokens: 1,
                blocks: &[BlockId(0), BlockId(1)],
                windows: &[],
                slot: 0,
                adapters: &ADAPTERS,
                second_text: Some(5),
            }],
            outputs: &[0],
        };
        session.run(&batch).unwrap();
        session.sample_greedy().unwrap();
        session.finish_blocking(Readback::Outputs).unwrap();
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// Runs a sequence until nothing is allocated any more. One thread grows its buffers in the first run; of several,
/// one may get its first piece of work later.
fn check(mut sequence: impl FnMut() -> usize, n_threads: usize, what: &str) {
    let rounds = if n_threads == 1 { 2 } else { 200 };
    let mut last = 0;
    for _ in 0..rounds {
        last = sequence();
        if last == 0 {
            return;
        }
    }
    panic!("{what}, {n_threads} threads: {last} allocations in a sequence");
}

/// Mixtures of experts with every kind of gating, and every other op.
fn check_ops(n_threads: usize) {
    for &kind in cases::ALL {
        for seed in 0..6 {
            let mut net = Net::new(seed);
            let (x, _) = cases::build(kind, &mut net);
            let width = net.plan.value(x).width;
            // The results of some ops are outputs already.
            let chosen = match net.plan.value(x).rows {
                Rows::Tokens => {
                    let out = net.value(Rows::Outputs, width);
                    net.push(Op::SelectOutputs { x, out })
                }
                Rows::Outputs => x,
            };
            net.plan.result = Some(net.linear(chosen, TensorType::F32, VOCAB));
            let session = Cpu::default().compile(&net.plan, &net.weights, &config(n_threads));
            let mut session = session.unwrap();
            let what = format!("{kind:?}, seed {seed}");
            check(|| allocations(session.as_mut(), VOCAB), n_threads, &what);
        }
    }
}

/// A dense model of a file.
fn check_file(n_threads: usize) {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fixtures/tiny/model.gguf"
    );
    let model = Model::load_with(path, &OpenOptions::default()).unwrap();
    let mut session = model.session(&Cpu::default(), &config(n_threads)).unwrap();
    let first = allocations(session.as_mut(), model.n_vocab());
    assert!(first > 0, "buffers that grow are not counted");
    let sequence = || allocations(session.as_mut(), model.n_vocab());
    check(sequence, n_threads, "fixtures/tiny");
}

/// An encoder with self-attention, whose output a decoder attends to.
fn encoder_decoder() -> Net {
    let shape = cases::HeadShape {
        n_heads: 4,
        n_kv_heads: 2,
        key_dim: 32,
        value_dim: 32,
    };
    let mut net = Net::new(5);
    let mask = AttentionMask::Full;
    let encoded = cases::attention(
        &mut net,
        &shape,
        cases::Variant {
            mask,
            ..cases::Variant::default()
        },
    );
    let k = net.linear(encoded, TensorType::F32, 64);
    let v = Some(net.linear(encoded, TensorType::F32, 64));
    let layer = net.plan.caches.len();
    net.plan.caches.push(CacheInfo {
        n_kv_heads: 2,
        key_dim: 32,
        value_dim: 32,
        values_in_keys: false,
    });
    net.push(Op::StoreKv { layer, k, v });
    net.plan.n_encoder_ops = net.plan.ops.len();
    let q = net.input(128);
    let x = net.value(Rows::Tokens, 128);
    let spec = AttentionOp {
        layer,
        n_heads: 4,
        n_kv_heads: 2,
        key_dim: 32,
        value_dim: 32,
        scale: 0.1,
        mask: AttentionMask::Cross,
        window: None,
        softcap: None,
        sinks: None,
        slopes: None,
        relative: None,
    };
    net.push(Op::Attention { q, spec, out: x });
    let out = net.value(Rows::Outputs, 128);
    net.push(Op::SelectOutputs { x, out });
    net.plan.result = Some(net.linear(out, TensorType::F32, VOCAB));
    net
}

/// Allocations while a sequence is encoded and a token of the answer is computed.
fn encoder_allocations(session: &mut dyn Session) -> usize {
    let blocks = [BlockId(0), BlockId(1)];
    let of = |n_tokens: usize| {
        [SeqSlice {
            n_tokens,
            blocks: &blocks,
            ..SeqSlice::default()
        }]
    };
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    session
        .encode(&Batch {
            tokens: &[1, 2, 3, 4, 5, 6, 7, 8],
            positions: &[0, 1, 2, 3, 4, 5, 6, 7],
            sequences: &of(8),
            outputs: &[],
        })
        .unwrap();
    session
        .run(&Batch {
            tokens: &[9],
            positions: &[8],
            sequences: &of(1),
            outputs: &[0],
        })
        .unwrap();
    session.sample_greedy().unwrap();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

fn check_encoder(n_threads: usize) {
    let net = encoder_decoder();
    let session = Cpu::default().compile(&net.plan, &net.weights, &config(n_threads));
    let mut session = session.unwrap();
    assert!(encoder_allocations(session.as_mut()) > 0);
    check(
        || encoder_allocations(session.as_mut()),
        n_threads,
        "encoder and decoder",
    );
}

// The only test, so that nothing else allocates at the same time.
#[test]
fn nothing_is_allocated_per_token() {
    for n_threads in [1, 3] {
        check_file(n_threads);
        check_encoder(n_threads);
        check_ops(n_threads);
    }
}
