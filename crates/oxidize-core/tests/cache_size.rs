//! The size of caches as it is computed equals what a session allocates, layers with a window take no more than
//! their windows, and the default context follows from both.

#![allow(unsafe_code, reason = "a global allocator that counts")]

#[allow(dead_code, reason = "shared with the tests of the engine")]
mod answers;

use answers::golden;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{Batch, CacheSize, KvType, MemoryPlan, SeqSlice, SessionConfig};
use oxidize_core::engine::EngineConfig;
use oxidize_core::file::gguf::{Value, WriteError, Writer};
use oxidize_core::file::{OpenOptions, TensorType};
use oxidize_core::kv::BlockId;
use oxidize_core::model::Model;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the bytes of large zeroed allocations, such as caches, of all threads.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Smaller allocations are bookkeeping.
const LARGE: usize = 4096;

// SAFETY: every method forwards its arguments to the system allocator, under the same contract, and counting does
// not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises about `layout` are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE {
            BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` is from this allocator, so from `System`, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Zeroed bytes that a session allocates.
fn allocated(model: &Model, config: &SessionConfig) -> u64 {
    let before = BYTES.load(Ordering::Relaxed);
    let session = model.session(&Cpu::default(), config).unwrap();
    let bytes = BYTES.load(Ordering::Relaxed) - before;
    drop(session);
    bytes as u64
}

/// Ten families: full, sliding and latent attention, shared caches, state spaces, and mixtures of them.
const FAMILIES: [&str; 12] = [
    "llama2",
    "gemma3-text",
    "gpt-oss",
    "cohere2",
    "gemma3n",
    "deepseek-v2",
    "mamba2",
    "falcon-h1",
    "qwen3-next",
    "rwkv7",
    "lfm2",
    "t5",
];

fn check_families() {
    for (nth, name) in FAMILIES.into_iter().enumerate() {
        let model = golden(name);
        let config = |cache_tokens, max_sequences| SessionConfig {
            n_threads: Some(1),
            ..EngineConfig {
                n_ctx: Some(4096),
                cache_tokens: Some(cache_tokens),
                max_batch_tokens: 64,
                max_sequences,
                key_type: [KvType::F16, KvType::F32][nth % 2],
                ..EngineConfig::default()
            }
            .session(&model)
        };
        // Buffers depend on the number of outputs, which is the same in both.
        let small = SessionConfig {
            max_outputs: 8,
            ..config(4096, 32)
        };
        let large = SessionConfig {
            max_outputs: 8,
            ..config(16_384, 48)
        };
        let [small_size, large_size] =
            [&small, &large].map(|config| CacheSize::new(model.plan(), config).total());
        assert!(small_size < large_size, "{name}");
        let grown = allocated(&model, &large) - allocated(&model, &small);
        assert_eq!(grown, large_size - small_size, "{name}");
    }
}

/// Gemma 3 270M with a small vocabulary and feed-forward network, which do not matter for the cache.
fn gemma3_270m() -> Model {
    let mut file = Writer::new();
    let key = |file: &mut Writer, key: &str, value: Value<'_>| {
        file.key(&format!("gemma3.{key}"), &value).unwrap();
    };
    let architecture = Value::Str("gemma3");
    file.key("general.architecture", &architecture).unwrap();
    for (name, number) in [
        ("block_count", 18),
        ("context_length", 32_768),
        ("embedding_length", 640),
        ("feed_forward_length", 64),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 256),
        ("attention.value_length", 256),
        ("attention.sliding_window", 512),
    ] {
        key(&mut file, name, Value::U32(number));
    }
    let epsilon = "attention.layer_norm_rms_epsilon";
    key(&mut file, epsilon, Value::F32(1e-6));
    key(&mut file, "rope.freq_base", Value::F32(1e6));
    let mut tensor = |name: String, shape: &[u64]| {
        let ty = match shape {
            [_] => TensorType::F32,
            _ => TensorType::F16,
        };
        file.tensor(&format!("{name}.weight"), ty, shape).unwrap();
    };
    tensor("token_embd".into(), &[640, 512]);
    tensor("output_norm".into(), &[640]);
    for layer in 0..18 {
        for (name, shape) in [
            ("attn_q", &[640, 1024][..]),
            ("attn_k", &[640, 256]),
            ("attn_v", &[640, 256]),
            ("attn_output", &[1024, 640]),
            ("attn_q_norm", &[256]),
            ("attn_k_norm", &[256]),
            ("ffn_gate", &[640, 64]),
            ("ffn_up", &[640, 64]),
            ("ffn_down", &[64, 640]),
            ("attn_norm", &[640]),
            ("post_attention_norm", &[640]),
            ("ffn_norm", &[640]),
            ("post_ffw_norm", &[640]),
        ] {
            tensor(format!("blk.{layer}.{name}"), shape);
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gemma.gguf");
    let out = std::fs::File::create(&path).unwrap();
    let written = file.write(out, |tensor, out| {
        let zeros = vec![0; tensor.bytes as usize];
        out.write_all(&zeros).map_err(WriteError::Io)
    });
    written.unwrap();
    Model::load_with(&path, &OpenOptions::default()).unwrap()
}

fn check_gemma() {
    const CONTEXT: u64 = 32_768;
    let model = gemma3_270m();
    let config = SessionConfig {
        n_threads: Some(1),
        ..EngineConfig {
            n_ctx: Some(CONTEXT as usize),
            max_sequences: 1,
            ..EngineConfig::default()
        }
        .session(&model)
    };
    // Three layers see everything and fifteen the last 512 tokens: keys and values of 256 elements.
    let needed = (3 * CONTEXT + 15 * 512) * 2 * 256 * 2;
    let size = CacheSize::new(model.plan(), &config).total();
    assert!(size <= needed * 12 / 10, "{size} bytes for {needed}");
    // Without caches, the session allocates the rest.
    let none = SessionConfig {
        n_blocks: 0,
        windows: Vec::new(),
        ..config.clone()
    };
    assert_eq!(allocated(&model, &config) - allocated(&model, &none), size);
}

/// The default context is the trained one, as far as the memory allows that is given as available.
fn check_default_context() {
    let model = gemma3_270m();
    let config = EngineConfig {
        max_sequences: 1,
        ..EngineConfig::default()
    };
    let backend = Cpu::default();
    let context = |config: &EngineConfig, available| {
        let fitted = config.fit_context(&model, &backend, available);
        fitted.n_ctx.unwrap()
    };
    assert_eq!(context(&config, Some(1 << 40)), 32_768);
    assert_eq!(context(&config, None), 4096);
    assert_eq!(context(&config, Some(1 << 20)), 4096);
    for n_ctx in [100, 32_768] {
        let n_ctx = Some(n_ctx);
        let given = EngineConfig {
            n_ctx,
            ..config.clone()
        };
        assert_eq!(Some(context(&given, Some(1 << 20))), n_ctx);
    }
    let shared = EngineConfig {
        cache_tokens: Some(8192),
        ..config.clone()
    };
    assert_eq!(context(&shared, Some(1 << 40)), 8192);

    let with = |n_ctx| EngineConfig {
        n_ctx: Some(n_ctx),
        ..config.clone()
    };
    let plan = |n_ctx| MemoryPlan::new(&model, &backend, &with(n_ctx).session(&model));
    let available = plan(20_000).total();
    let n_ctx = context(&config, Some(available));
    assert!((10_000..20_000).contains(&n_ctx), "{n_ctx}");
    // An eighth of the rest stays free, and not much more.
    let rest = available - plan(n_ctx).weights - plan(n_ctx).buffers;
    assert!(plan(n_ctx).cache <= rest - rest / 8);
    assert!(plan(n_ctx + 1024).cache > rest - rest / 8);
}

/// Memory of the process that is not part of a file, in bytes.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: u64 = line.unwrap().trim_end_matches("kB").trim().parse().unwrap();
    kib << 10
}

/// A short sequence touches little of the cache of a long context.
#[cfg(target_os = "linux")]
fn check_resident() {
    let model = gemma3_270m();
    let config = EngineConfig {
        n_ctx: Some(32_768),
        max_sequences: 1,
        ..EngineConfig::default()
    };
    let config = SessionConfig {
        n_threads: Some(1),
        windows: Vec::new(),
        ..config.session(&model)
    };
    let size = CacheSize::new(model.plan(), &config).total();
    let mut session = model.session(&Cpu::default(), &config).unwrap();
    let before = resident();
    for position in 0..40 {
        let sequence = SeqSlice {
            n_tokens: 1,
            blocks: &[BlockId(0), BlockId(1)],
            ..SeqSlice::default()
        };
        let batch = Batch {
            tokens: &[position],
            positions: &[position],
            sequences: &[sequence],
            outputs: &[0],
        };
        session.run(&batch).unwrap();
    }
    let touched = resident().saturating_sub(before);
    assert!(touched < size / 40, "{touched} bytes of {size}");
}

// The only test, so that nothing else allocates at the same time.
#[test]
fn sizes_are_those_that_sessions_allocate() {
    check_families();
    check_gemma();
    check_default_context();
    #[cfg(target_os = "linux")]
    check_resident();
}
