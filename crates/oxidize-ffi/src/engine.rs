//! Engines: requests of all threads share their steps.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use oxidize_core::{DraftSource, EngineConfig, KvType, Speculation};

use crate::handle::{self, Kind};
use crate::model::ModelHandle;
use crate::pointer::{self, Options};
use crate::request::{RequestBuilder, RequestHandle};
use crate::status::{Failure, Status, entry};
use crate::stream::{End, Stream, StreamHandle, is_in_callback};

/// Handle of an engine.
pub type EngineHandle = u64;

/// Longest wait for the engine's thread to give its memory back.
const FREE_TIMEOUT: Duration = Duration::from_secs(30);
const FREE_POLL: Duration = Duration::from_micros(200);

/// Type of the cached keys or values.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheType {
    /// 16-bit floats, the default.
    F16 = 0,
    /// 32-bit floats.
    F32 = 1,
    /// 8-bit blocks.
    Q8_0 = 2,
    /// 4-bit blocks.
    Q4_0 = 3,
}

/// Options of `oxidize_engine_new`. `oxidize_engine_options_init` sets all fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Size of this struct, set by `oxidize_engine_options_init`.
    pub size: usize,
    /// Maximum tokens of a request, prompt and answer together. 0, the default, is what the model was trained for, as
    /// far as free memory allows.
    pub n_ctx: u32,
    /// Tokens in the KV cache, for all running requests and the prefix cache together. 0, the default, is one context.
    pub cache_tokens: u32,
    /// Maximum requests that run at once. Default 8.
    pub max_sequences: u32,
    /// Maximum requests that wait. Default 256.
    pub max_queue: u32,
    /// Maximum tokens per step. Default 512.
    pub max_batch_tokens: u32,
    /// Number of threads; 0, the default, is one per core.
    pub n_threads: u32,
    /// Type of the cached keys, one of `oxidize_cache_type`.
    pub key_type: i32,
    /// Type of the cached values, one of `oxidize_cache_type`.
    pub value_type: i32,
    /// 1 makes an answer independent of what else runs, at the cost of speed. Default 0.
    pub deterministic: i32,
    /// Tokens that are drafted from repetitions and verified in one step; 0, the default, is off. Answers stay the same.
    pub draft_tokens: u32,
}

// SAFETY: integers.
unsafe impl Options for EngineOptions {
    const NAME: &'static str = "oxidize_engine_options";
    const FIRST_SIZE: usize = size_of::<EngineOptions>();

    fn defaults() -> EngineOptions {
        let config = EngineConfig::default();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        EngineOptions {
            size: size_of::<EngineOptions>(),
            n_ctx: 0,
            cache_tokens: 0,
            max_sequences: number(config.max_sequences),
            max_queue: number(config.max_queue),
            max_batch_tokens: number(config.max_batch_tokens),
            n_threads: 0,
            key_type: CacheType::F16 as i32,
            value_type: CacheType::F16 as i32,
            deterministic: 0,
            draft_tokens: 0,
        }
    }
}

/// More sequences or tokens per step than any machine computes at once: their bookkeeping alone would fill the memory.
const MAX_SEQUENCES: u32 = 1 << 16;
const MAX_BATCH_TOKENS: u32 = 1 << 20;

impl EngineOptions {
    fn config(&self) -> Result<EngineConfig, Failure> {
        let optional = |n: u32| (n > 0).then_some(n as usize);
        let speculation = optional(self.draft_tokens).map(|n| {
            let mut speculation = Speculation::new(DraftSource::Ngram);
            speculation.max_tokens = n;
            speculation
        });
        let max_batch_tokens = within("max_batch_tokens", self.max_batch_tokens, MAX_BATCH_TOKENS)?;
        Ok(EngineConfig {
            n_ctx: optional(self.n_ctx),
            cache_tokens: optional(self.cache_tokens),
            max_sequences: within("max_sequences", self.max_sequences, MAX_SEQUENCES)?,
            max_queue: self.max_queue as usize,
            max_batch_tokens,
            n_threads: optional(self.n_threads),
            key_type: cache_type("key_type", self.key_type)?,
            value_type: cache_type("value_type", self.value_type)?,
            deterministic: self.deterministic != 0,
            speculation,
            ..EngineConfig::default()
        })
    }
}

fn within(name: &str, value: u32, most: u32) -> Result<usize, Failure> {
    match (1..=most).contains(&value) {
        true => Ok(value as usize),
        false => Err(Failure::argument(format!(
            "{name} is {value}; it must be between 1 and {most}"
        ))),
    }
}

fn cache_type(name: &str, value: i32) -> Result<KvType, Failure> {
    match value {
        _ if value == CacheType::F16 as i32 => Ok(KvType::F16),
        _ if value == CacheType::F32 as i32 => Ok(KvType::F32),
        _ if value == CacheType::Q8_0 as i32 => Ok(KvType::Q8_0),
        _ if value == CacheType::Q4_0 as i32 => Ok(KvType::Q4_0),
        _ => Err(Failure::argument(format!(
            "{name} is {value}; it must be between 0 and 3"
        ))),
    }
}

/// Sets options to their defaults. `size` is `sizeof(oxidize_engine_options)`.
///
/// # Safety
///
/// `options` is null, or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_engine_options_init(
    options: *mut EngineOptions,
    size: usize,
) -> Status {
    // SAFETY: the caller promises `size` writable bytes, or null.
    entry(|| unsafe { pointer::write_options(options, size, EngineOptions::defaults()) })
}

/// A running engine, and the answers that it may still be working on.
pub(crate) struct Engine {
    engine: oxidize_core::Engine,
    streams: Mutex<Streams>,
}

#[derive(Default)]
struct Streams {
    alive: Vec<Weak<Stream>>,
    /// True once the handle was freed.
    is_closed: bool,
}

impl Kind for Engine {
    const NAME: &'static str = "an engine";
}

impl Engine {
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all answers, and those that are just being submitted.
    fn close(&self) {
        let mut streams = self.streams();
        streams.is_closed = true;
        let alive = std::mem::take(&mut streams.alive);
        drop(streams);
        for stream in alive.iter().filter_map(Weak::upgrade) {
            stream.end(End::Stopped);
        }
    }
}

/// Starts an engine for a model, on a thread of its own. `options` may be null. Free it with `oxidize_engine_free`; the
/// model's handle may be freed before. On failure, `*engine` is 0.
///
/// # Safety
///
/// `options` is null or initialized. `engine` points to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_engine_new(
    model: ModelHandle,
    options: *const EngineOptions,
    engine: *mut EngineHandle,
) -> Status {
    entry(|| {
        // SAFETY: the caller promises room for a handle, and options of the size that their first field says, or null.
        let options = unsafe {
            pointer::write("engine", engine, 0)?;
            pointer::options(options)?
        };
        let model = handle::get::<oxidize_core::Model>(model)?;
        let config = options.config()?;
        let started = oxidize_core::Engine::with_config((*model).clone(), &config)?;
        let handle = handle::insert(Engine {
            engine: started,
            streams: Mutex::default(),
        })?;
        // SAFETY: the caller promises room for a handle.
        unsafe { pointer::write("engine", engine, handle)? };
        Ok(Status::Ok)
    })
}

/// Frees an engine: its answers end with `OXIDIZE_STATUS_STOPPED`, also for threads that are waiting for a token, and its
/// memory is returned before this function does. (Not if it is called from a callback: then soon afterwards.)
///
/// Handles of its answers stay valid and have to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn oxidize_engine_free(engine: EngineHandle) -> Status {
    entry(|| {
        let engine = handle::remove::<Engine>(engine)?;
        engine.close();
        let monitor = engine.engine.monitor();
        drop(engine);
        // Below a callback, the answer that is being read keeps the engine alive.
        let start = Instant::now();
        while !is_in_callback() && !monitor.has_ended() && start.elapsed() < FREE_TIMEOUT {
            std::thread::sleep(FREE_POLL);
        }
        Ok(Status::Ok)
    })
}

/// State of an engine, by `oxidize_engine_get_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EngineInfo {
    /// Size of this struct as far as it was filled in.
    pub size: usize,
    /// Maximum tokens of a request, prompt and answer together.
    pub n_ctx: u64,
    /// Requests that run.
    pub running: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// Steps since the start.
    pub steps: u64,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Tokens of prompts that were found in the prefix cache.
    pub cached_prompt_tokens: u64,
    /// Tokens of all answers.
    pub generated_tokens: u64,
}

// SAFETY: integers.
unsafe impl Options for EngineInfo {
    const NAME: &'static str = "oxidize_engine_info";
    const FIRST_SIZE: usize = size_of::<EngineInfo>();

    fn defaults() -> EngineInfo {
        EngineInfo {
            size: size_of::<EngineInfo>(),
            n_ctx: 0,
            running: 0,
            waiting: 0,
            steps: 0,
            prompt_tokens: 0,
            cached_prompt_tokens: 0,
            generated_tokens: 0,
        }
    }
}

/// Describes an engine and its work, as of its last step. `size` is `sizeof(oxidize_engine_info)`.
///
/// # Safety
///
/// `info` points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_engine_get_info(
    engine: EngineHandle,
    info: *mut EngineInfo,
    size: usize,
) -> Status {
    entry(|| {
        let engine = handle::get::<Engine>(engine)?;
        let stats = engine.engine.stats();
        let values = EngineInfo {
            size: size_of::<EngineInfo>(),
            n_ctx: engine.engine.n_ctx() as u64,
            running: stats.running as u64,
            waiting: stats.queued as u64,
            steps: stats.steps,
            prompt_tokens: stats.prompt_tokens,
            cached_prompt_tokens: stats.cached_prompt_tokens,
            generated_tokens: stats.generated_tokens,
        };
        // SAFETY: the caller promises `size` writable bytes, or null.
        unsafe { pointer::write_options(info, size, values) }
    })
}

/// Queues a request, and returns a stream of the tokens of its answer at once. Any number of threads may submit to one
/// engine; requests that run at the same time share every step.
///
/// The request stays as it is, and may be changed, submitted again or freed. Free the stream with `oxidize_stream_free`.
/// On failure, `*stream` is 0. A full queue is reported by the stream.
///
/// # Safety
///
/// `stream` points to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_engine_submit(
    engine: EngineHandle,
    request: RequestHandle,
    stream: *mut StreamHandle,
) -> Status {
    entry(|| {
        // SAFETY: the caller promises room for a handle.
        unsafe { pointer::write("stream", stream, 0)? };
        let engine = handle::get::<Engine>(engine)?;
        let request = handle::get::<RequestBuilder>(request)?;
        let request = request.build(engine.engine.model())?;
        let answer = Stream::new(engine.engine.submit(request)?);
        let handle = handle::insert(answer)?;
        let answer = handle::get::<Stream>(handle)?;
        let mut streams = engine.streams();
        streams.alive.retain(|stream| stream.strong_count() > 0);
        streams.alive.push(Arc::downgrade(&answer));
        let is_closed = streams.is_closed;
        drop(streams);
        if is_closed {
            answer.end(End::Stopped);
        }
        // SAFETY: the caller promises room for a handle.
        unsafe { pointer::write("stream", stream, handle)? };
        Ok(Status::Ok)
    })
}
