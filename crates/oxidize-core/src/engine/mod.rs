//! The engine: a session and a scheduler that turn requests into tokens, on a thread of their own or stepped by a host.
//!
//! [`Engine`] is the handle to it, and [`Stepper`] is the engine where there is no thread for it. Clients submit [`Request`]s and read [`TokenStream`]s; requests that run at the same
//! time share every step (continuous batching), and a fault in one request ends only that request.

mod beam;
mod config;
mod context;
mod disk;
mod drafting;
mod guide;
mod handle;
mod processor;
mod reasoning;
mod request;
mod stepper;
mod stream;
mod unwind;
mod worker;

pub use beam::{BeamParams, BeamSequence, MAX_BEAMS, beam_search};
pub use context::{DEFAULT_CONTEXT, MAX_DEFAULT_CONTEXT};
pub use disk::DiskCache;
pub use handle::{Engine, EngineMonitor};
pub use processor::LogitsProcessor;
pub use request::{
    Completion, EngineError, FinishReason, Prompt, PromptProgress, PromptToken, Request,
    StreamEvent, Timings, Token,
};
pub use stepper::{EngineState, Stepper};
pub use stream::TokenStream;

use crate::backend::MemoryPlan;
use crate::backend::cpu::Cpu;
use crate::backend::{ActivationQuant, Backend, KvType, RepackLimit, SessionConfig};
use crate::error::Result;
use crate::graph::OutputKind;
use crate::io::available_memory;
use crate::kv::WindowGroup;
use crate::model::Model;
use crate::scheduler::{PrefixReuse, Scheduler, SchedulerConfig};
use crate::speculative::Speculation;
use crate::threads::Spawner;
use disk::Disk;
use drafting::{Drafting, STEP_DRAFTS};
use std::sync::Arc;
use worker::Worker;

/// Configuration of an [`Engine`]: context, cache, batching, threads.
///
/// Every field has a method of the same name.
///
/// ```
/// use oxidize::EngineConfig;
/// use oxidize::engine::{DiskCache, KvType};
///
/// let config = EngineConfig::default()
///     .n_ctx(8192)
///     .max_sequences(16)
///     .kv_types(KvType::Q8_0, KvType::Q8_0)
///     .disk(DiskCache::new("/var/cache/oxidize", 10 << 30));
/// assert_eq!(config.n_ctx, Some(8192));
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct EngineConfig {
    /// Maximum tokens of a request, prompt and answer together. `None` is what the model was trained for, as far
    /// as free memory allows, and at most [`MAX_DEFAULT_CONTEXT`].
    pub n_ctx: Option<usize>,
    /// Capacity of the KV cache in tokens, for all running requests and the prefix cache together. `None` is one full
    /// context.
    pub cache_tokens: Option<usize>,
    /// Maximum tokens per step; a longer prompt is processed in chunks of this size.
    pub max_batch_tokens: usize,
    /// Maximum requests that run at once.
    pub max_sequences: usize,
    /// Tokens of prompts per step whose log probabilities can be reported, besides one for each request that runs.
    /// Each needs memory for its logits.
    pub scored_tokens: usize,
    /// Maximum requests that wait; one more is refused.
    pub max_queue: usize,
    /// Type of the cached keys.
    pub key_type: KvType,
    /// Type of the cached values.
    pub value_type: KvType,
    /// Memory that the backend may spend on repacking weights.
    pub repack: RepackLimit,
    /// Number of threads; all cores where `None`.
    pub n_threads: Option<usize>,
    /// Starts the threads.
    pub spawner: Spawner,
    /// Index of the backend's device that runs the model, from 0.
    pub device: usize,
    /// Refuse a model that does not fit in memory.
    pub check_memory: bool,
    /// Batch-invariant results: an answer and its log probabilities do not depend on what else is in the batch. Costs
    /// most of the speed that requests gain from running together.
    pub deterministic: bool,
    /// Speculative decoding, which changes the speed and not the answers.
    pub speculation: Option<Speculation>,
    /// Directory that keeps the prefix cache across restarts. Models with recurrent state do not use it.
    pub disk: Option<DiskCache>,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            n_ctx: None,
            cache_tokens: None,
            max_batch_tokens: 512,
            max_sequences: 8,
            scored_tokens: 0,
            max_queue: 256,
            key_type: KvType::F16,
            value_type: KvType::F16,
            repack: RepackLimit::default(),
            n_threads: None,
            spawner: Spawner::default(),
            device: 0,
            check_memory: true,
            deterministic: false,
            speculation: None,
            disk: None,
        }
    }
}

/// Positions per block of the KV cache.
const BLOCK_SIZE: usize = 32;

impl EngineConfig {
    /// Recurrent state checkpoints kept for prefix reuse: one after the prompt and one after the answer of each running
    /// request.
    fn checkpoints(&self) -> usize {
        2 * self.max_sequences
    }

    /// Windows of `model` whose layers need fewer blocks than the other layers, in `n_blocks` blocks: those of
    /// each running sequence and one to grow into, and those of a step.
    fn windows(&self, model: &Model, n_blocks: usize) -> Vec<WindowGroup> {
        let mut groups: Vec<WindowGroup> = Vec::new();
        for window in model.plan().cache_windows().into_iter().flatten() {
            let mut group = WindowGroup {
                window,
                n_blocks: 0,
            };
            let of_sequence = group.blocks_per_sequence(BLOCK_SIZE).saturating_add(1);
            let of_step = self.max_batch_tokens.div_ceil(BLOCK_SIZE);
            let needed = of_sequence
                .saturating_mul(self.max_sequences)
                .saturating_add(of_step);
            if needed < n_blocks && groups.iter().all(|group| group.window != window) {
                group.n_blocks = u32::try_from(needed).unwrap_or(u32::MAX);
                groups.push(group);
            }
        }
        groups
    }

    /// Maximum tokens per step with logits, drafts aside.
    fn max_outputs(&self) -> usize {
        let n_scored = self.max_sequences.saturating_add(self.scored_tokens);
        n_scored.min(self.max_batch_tokens)
    }

    /// Session configuration for `model`.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn session(&self, model: &Model) -> SessionConfig {
        let cache_tokens = self.cache_tokens.unwrap_or_else(|| self.context(model));
        let max_outputs = self.max_outputs();
        // Each draft token that is verified needs logits of its own.
        let n_verified = match self.speculation {
            Some(_) => max_outputs + STEP_DRAFTS,
            None => 0,
        };
        let n_blocks = cache_tokens.div_ceil(BLOCK_SIZE).max(1);
        SessionConfig {
            device: self.device,
            n_blocks,
            block_size: BLOCK_SIZE,
            windows: self.windows(model, n_blocks),
            max_tokens: match model.hparams().decoder_start {
                // An encoder processes the whole prompt in one step.
                Some(_) => self.max_batch_tokens.max(self.context(model)),
                None => self.max_batch_tokens,
            },
            max_outputs: max_outputs.max(n_verified).min(self.max_batch_tokens),
            state_slots: match model.plan().states.is_empty() {
                true => self.max_sequences,
                false => self.max_sequences + self.checkpoints(),
            },
            batch_invariant_tokens: match self.deterministic {
                true => usize::MAX,
                false => n_verified,
            },
            max_context: self.context(model),
            key_type: self.key_type,
            value_type: self.value_type,
            activations: ActivationQuant::default(),
            repack: self.repack,
            n_threads: self.n_threads,
            spawner: self.spawner.clone(),
            observer: None,
        }
    }
}

impl Engine {
    /// Starts an engine for `model` with the default configuration and the best backend of this machine.
    ///
    /// ```no_run
    /// use oxidize::{Engine, Model};
    ///
    /// let engine = Engine::new(Model::load("model.gguf")?)?;
    /// println!("{}", engine.chat("Why is the sky blue?")?.text()?);
    /// # Ok::<(), oxidize::Error>(())
    /// ```
    pub fn new(model: Model) -> Result<Engine> {
        Engine::with_config(model, &EngineConfig::default())
    }

    /// Starts an engine for `model`.
    ///
    /// ```no_run
    /// use oxidize::{Engine, EngineConfig, Model};
    ///
    /// # fn main() -> Result<(), oxidize::Error> {
    /// let config = EngineConfig::default()
    ///     .n_ctx(8192)
    ///     .max_sequences(16)
    ///     // The KV cache and the prefix cache share this many tokens.
    ///     .cache_tokens(65_536);
    /// let engine = Engine::with_config(Model::load("model.gguf")?, &config)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_config(model: Model, config: &EngineConfig) -> Result<Engine> {
        Engine::start(model, Arc::new(Cpu::default()), config)
    }

    /// Prepares an engine without a thread of its own: its host calls [`Stepper::step`].
    ///
    /// ```no_run
    /// use oxidize::{Engine, EngineConfig, Model};
    ///
    /// let model = Model::load("model.gguf")?;
    /// let (engine, mut stepper) = Engine::stepped(model, &EngineConfig::default())?;
    /// # Ok::<(), oxidize::Error>(())
    /// ```
    pub fn stepped(model: Model, config: &EngineConfig) -> Result<(Engine, Stepper)> {
        Engine::stepped_on(model, Arc::new(Cpu::default()), config)
    }

    /// Starts an engine for `model` on a given backend.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn start(
        model: Model,
        backend: Arc<dyn Backend>,
        config: &EngineConfig,
    ) -> Result<Engine> {
        if !config.spawner.has_threads() {
            return Err(EngineError::NoThread.into());
        }
        let (engine, stepper) = Engine::stepped_on(model, backend, config)?;
        start_thread(stepper, &config.spawner)?;
        Ok(engine)
    }

    /// Prepares a stepped engine for `model` on a given backend.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn stepped_on(
        model: Model,
        backend: Arc<dyn Backend>,
        config: &EngineConfig,
    ) -> Result<(Engine, Stepper)> {
        if model.plan().output != OutputKind::Logits {
            return Err(EngineError::NoText(model.arch().name).into());
        }
        let config = &config.fit_context(&model, backend.as_ref(), available_memory());
        let (requested, limit) = (config.context(&model), model.hparams().n_ctx_train);
        if requested > limit {
            return Err(EngineError::ContextTooLong { requested, limit }.into());
        }
        let session_config = config.session(&model);
        session_config.check_device(backend.as_ref())?;
        if config.check_memory {
            MemoryPlan::new(&model, backend.as_ref(), &session_config).check(&model)?;
        }
        let scheduler = Scheduler::new(SchedulerConfig {
            n_blocks: u32::try_from(session_config.n_blocks).unwrap_or(u32::MAX),
            block_size: BLOCK_SIZE,
            windows: session_config.windows.clone(),
            max_batch_tokens: config.max_batch_tokens,
            max_sequences: config.max_sequences,
            max_outputs: config.max_outputs(),
            max_queue: config.max_queue,
            context_length: config.context(&model),
            reuse: match model.plan() {
                // The encoder is bidirectional: its states depend on later tokens.
                plan if plan.n_encoder_ops > 0 => PrefixReuse::None,
                plan if plan.states.is_empty() => PrefixReuse::Blocks,
                _ => PrefixReuse::Recurrent {
                    checkpoints: u32::try_from(config.checkpoints()).unwrap_or(u32::MAX),
                },
            },
            steps_per_priority: 64,
        })
        .map_err(EngineError::Config)?;
        let session = model.session(backend.as_ref(), &session_config)?;
        model.tokenizer()?;
        let drafting = config
            .speculation
            .as_ref()
            .map(|speculation| Drafting::new(speculation, &model, backend.as_ref(), config));
        let drafting = drafting.transpose()?;
        // A block is useless without the recurrent state at its end.
        let kept = config
            .disk
            .as_ref()
            .filter(|_| model.plan().states.is_empty())
            .filter(|_| config.spawner.has_threads());
        if config.disk.is_some() && !config.spawner.has_threads() {
            tracing::warn!("the prefix cache on disk is off: there is no thread for it");
        }
        let disk = kept.map(|cache| Disk::open(cache, &model, backend.as_ref(), &session_config));
        let disk = disk.transpose()?;
        let (engine, commands) = Engine::from_parts(model.clone(), config.context(&model));
        commands.report(scheduler.stats());
        let worker = Worker::new(
            model,
            backend,
            session_config,
            session,
            scheduler,
            drafting,
            disk,
            commands,
        )?;
        Ok((engine, Stepper::new(worker)))
    }
}

/// Steps an engine on a thread of its own.
#[cfg(not(target_family = "wasm"))]
fn start_thread(stepper: Stepper, spawner: &Spawner) -> Result<()> {
    let started = spawner.spawn("oxidize-engine", move || stepper.run());
    // The engine ends with its last handle; nobody waits for it.
    started.map(drop).map_err(EngineError::Thread)?;
    Ok(())
}

/// Sessions of WebAssembly stay on the thread that made them.
#[cfg(target_family = "wasm")]
fn start_thread(_: Stepper, _: &Spawner) -> Result<()> {
    Err(EngineError::NoThread.into())
}
