//! The engine: one thread that owns a session and a scheduler and turns requests into tokens.
//!
//! [`Engine::start`] gives an [`EngineHandle`]; every face submits [`Request`]s to it and reads
//! [`TokenStream`]s. Many requests run in one batch; a fault in one ends that one.

mod beam;
mod disk;
mod drafting;
mod guide;
mod handle;
mod request;
mod stream;
mod worker;

pub use beam::{BeamAnswer, BeamParams, MOST_BEAMS, beam_search};
pub use disk::DiskCache;
pub use handle::{EngineHandle, EngineMonitor};
pub use request::{EngineError, Event, FinishReason, Finished, Request, Timings, Token};
pub use stream::TokenStream;

use crate::backend::{ActivationRounding, Backend, KvType, SessionConfig};
use crate::error::Result;
use crate::graph::Gives;
use crate::model::{MemoryPlan, Model};
use crate::scheduler::{PrefixReuse, Scheduler, SchedulerConfig};
use crate::speculative::Speculation;
use disk::Disk;
use drafting::{Drafting, STEP_DRAFTS};
use std::sync::Arc;
use worker::Worker;

/// How an engine is laid out.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Most tokens of a request, prompt and answer together; the model's own limit, but at most
    /// [`DEFAULT_CONTEXT`], where `None`.
    pub n_ctx: Option<usize>,
    /// Tokens that the KV cache holds for all requests together; one full context where `None`.
    pub cache_tokens: Option<usize>,
    /// Most tokens in a step: a long prompt is cut into pieces of this size.
    pub max_batch_tokens: usize,
    /// Most requests that run at once.
    pub max_sequences: usize,
    /// Most requests that wait.
    pub max_queue: usize,
    /// How keys are kept.
    pub key_type: KvType,
    /// How values are kept.
    pub value_type: KvType,
    /// Threads; all cores where `None`.
    pub n_threads: Option<usize>,
    /// Whether to refuse a model that does not fit in memory.
    pub check_memory: bool,
    /// Gives an answer the same tokens whatever else is computed beside it, to the last bit of their
    /// log probabilities. Costs the speed that tokens gain from being computed together.
    pub deterministic: bool,
    /// Guesses tokens ahead, which changes the speed and nothing else.
    pub speculation: Option<Speculation>,
    /// Where computed prefixes are kept across restarts, if they are. Models with recurrent state go
    /// without.
    pub disk: Option<DiskCache>,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            n_ctx: None,
            cache_tokens: None,
            max_batch_tokens: 512,
            max_sequences: 8,
            max_queue: 256,
            key_type: KvType::F16,
            value_type: KvType::F16,
            n_threads: None,
            check_memory: true,
            deterministic: false,
            speculation: None,
            disk: None,
        }
    }
}

/// Context where none is asked for: enough for a conversation, little enough to be had at once.
pub const DEFAULT_CONTEXT: usize = 4096;

/// Positions in a block of the KV cache.
const BLOCK_SIZE: usize = 32;

impl EngineConfig {
    /// The context a request of `model` may have.
    pub fn context(&self, model: &Model) -> usize {
        let trained = model.hparams().n_ctx_train;
        self.n_ctx.unwrap_or(trained.min(DEFAULT_CONTEXT))
    }

    /// Copies of recurrent state that are kept for requests that begin as another did: one of the
    /// prompt and one of the answer for each that runs.
    fn checkpoints(&self) -> usize {
        2 * self.max_sequences
    }

    /// The session that these settings ask for.
    pub fn session(&self, model: &Model) -> SessionConfig {
        let cache_tokens = self.cache_tokens.unwrap_or_else(|| self.context(model));
        let max_outputs = self.max_sequences.min(self.max_batch_tokens);
        // Drafts come on top, and each token that is verified has logits.
        let n_verified = match self.speculation {
            Some(_) => max_outputs + STEP_DRAFTS,
            None => 0,
        };
        SessionConfig {
            n_blocks: cache_tokens.div_ceil(BLOCK_SIZE).max(1),
            block_size: BLOCK_SIZE,
            max_tokens: match model.hparams().decoder_start {
                // An encoder reads its prompt at once.
                Some(_) => self.max_batch_tokens.max(self.context(model)),
                None => self.max_batch_tokens,
            },
            max_outputs: max_outputs.max(n_verified).min(self.max_batch_tokens),
            state_slots: match model.plan().states.is_empty() {
                true => self.max_sequences,
                false => self.max_sequences + self.checkpoints(),
            },
            exact_tokens: match self.deterministic {
                true => usize::MAX,
                false => n_verified,
            },
            max_context: self.context(model),
            key_type: self.key_type,
            value_type: self.value_type,
            activations: ActivationRounding::default(),
            n_threads: self.n_threads,
            observer: None,
        }
    }
}

/// Starts engines.
pub struct Engine;

impl Engine {
    /// Starts an engine for `model` on a thread of its own. It ends when the last handle and the
    /// last stream are gone.
    pub fn start(
        model: Model,
        backend: Arc<dyn Backend>,
        config: &EngineConfig,
    ) -> Result<EngineHandle> {
        if model.plan().gives != Gives::Logits {
            return Err(EngineError::NoText(model.arch().name).into());
        }
        let (asked, limit) = (config.context(&model), model.hparams().n_ctx_train);
        if asked > limit {
            return Err(EngineError::ContextTooLong { asked, limit }.into());
        }
        let session_config = config.session(&model);
        if config.check_memory {
            MemoryPlan::new(&model, &session_config).check(&model)?;
        }
        let scheduler = Scheduler::new(SchedulerConfig {
            n_blocks: u32::try_from(session_config.n_blocks).unwrap_or(u32::MAX),
            block_size: BLOCK_SIZE,
            max_batch_tokens: config.max_batch_tokens,
            max_sequences: config.max_sequences,
            max_queue: config.max_queue,
            context_length: config.context(&model),
            reuse: match model.plan() {
                // What an encoder makes of a token depends on those after it.
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
        // Blocks without the recurrent state at their end would be of no use.
        let kept = config
            .disk
            .as_ref()
            .filter(|_| model.plan().states.is_empty());
        let disk = kept.map(|cache| {
            let session = session.as_ref();
            Disk::open(cache, &model, backend.as_ref(), &session_config, session)
        });
        let disk = disk.transpose()?;
        let (handle, commands) = EngineHandle::new(model.clone(), config.context(&model));
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
        std::thread::Builder::new()
            .name("oxidize-engine".into())
            .spawn(move || worker.run())
            .map_err(EngineError::Thread)?;
        Ok(handle)
    }
}
