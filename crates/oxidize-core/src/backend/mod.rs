//! What runs a plan. A [`Backend`] compiles it whole into a [`Session`]; a session runs batches.
//!
//! Nothing here says where weights, cache or logits live: they may be on a device.

pub mod cpu;
mod observe;
pub mod reference;
mod routing;
mod slots;

use crate::graph::{Op, Plan, Rows};
use crate::kv::BlockId;
use crate::model::Weights;
pub use observe::{Observation, Observer};
use oxidize_kernels::quant::TensorType;
pub use oxidize_kernels::{ActivationRounding, KvType};

/// A kind of machine that can run plans.
pub trait Backend: Send + Sync {
    /// What people call it.
    fn name(&self) -> &'static str;

    /// What it runs on.
    fn devices(&self) -> Vec<Device>;

    /// Whether it can run this op: any, unless it says otherwise.
    fn supports(&self, _op: &Op) -> bool {
        true
    }

    /// Prepares everything that running needs; nothing is allocated per token afterwards.
    fn compile(
        &self,
        plan: &Plan,
        weights: &Weights,
        config: &SessionConfig,
    ) -> Result<Box<dyn Session>, BackendError>;
}

/// A processor and its memory.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Bytes of its memory, where known.
    pub memory: Option<u64>,
}

/// A compiled plan with its cache.
pub trait Session: Send {
    /// Runs one batch. Its results are there until the next.
    fn run(&mut self, batch: &Batch<'_>) -> Result<(), BackendError>;

    /// Runs the encoder of a model that has one over whole sequences, from their first position on.
    /// What comes after them in the same slots sees them.
    fn encode(&mut self, _batch: &Batch<'_>) -> Result<(), BackendError> {
        Err(BackendError::Malformed("the model has no encoder".into()))
    }

    /// The results for the `index`-th of the batch's outputs: for a language model, its logits.
    fn output(&mut self, index: usize) -> Result<&[f32], BackendError>;

    /// Copies whole blocks of the cache, in order.
    fn copy_blocks(&mut self, moves: &[(BlockId, BlockId)]) -> Result<(), BackendError>;

    /// Copies recurrent states from slot to slot, in order.
    fn copy_states(&mut self, moves: &[(u32, u32)]) -> Result<(), BackendError> {
        match moves {
            [] => Ok(()),
            _ => Err(BackendError::Malformed("no recurrent state to copy".into())),
        }
    }

    /// Bytes that [`Session::read_block`] writes.
    fn block_bytes(&self) -> usize;

    /// Takes a block of all layers' caches out, to be kept elsewhere.
    fn read_block(&self, block: BlockId, out: &mut Vec<u8>) -> Result<(), BackendError>;

    /// Puts a block back that [`Session::read_block`] took out.
    fn write_block(&mut self, block: BlockId, bytes: &[u8]) -> Result<(), BackendError>;
}

/// One step: tokens of several sequences, flattened.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Token ids.
    pub tokens: &'a [u32],
    /// The position of each token in its sequence.
    pub positions: &'a [u32],
    /// Which tokens belong to which sequence; together they cover all tokens, in order.
    pub sequences: &'a [SeqSlice<'a>],
    /// Indexes of the tokens whose results are wanted, ascending.
    pub outputs: &'a [u32],
}

/// The part of a batch that belongs to one sequence.
#[derive(Clone, Copy, Debug, Default)]
pub struct SeqSlice<'a> {
    /// How many of the batch's tokens.
    pub n_tokens: usize,
    /// The blocks that hold its positions from 0 on, those of this batch included.
    pub blocks: &'a [BlockId],
    /// The place of its recurrent state, its own from its first token to its last. Tokens from
    /// position 0 on start the state anew; others go on from the tokens that came before.
    pub slot: u32,
    /// How strongly each of the model's adapters takes part; those past the end do not.
    pub adapters: &'a [f32],
    /// Where the second text of a pair begins: the first position of it.
    pub second_text: Option<u32>,
}

/// How a session is laid out.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Blocks of the cache.
    pub n_blocks: usize,
    /// Positions in a block.
    pub block_size: usize,
    /// Most tokens in a batch.
    pub max_tokens: usize,
    /// Most outputs in a batch.
    pub max_outputs: usize,
    /// Places for recurrent states: those of running sequences, and copies to go back to.
    pub state_slots: usize,
    /// Most tokens in a sequence: some models turn their keys slower in longer contexts.
    pub max_context: usize,
    /// In a batch of up to so many tokens whose results are all wanted, each token's are to the last
    /// bit those that it has in a batch by itself: what drafts are verified with. Sums in whatever
    /// order is best are faster, so this is 0 unless someone counts on it. With `usize::MAX` it holds in
    /// every batch.
    pub exact_tokens: usize,
    /// How keys are kept. Where keys or values are kept as f32, nothing else is rounded, either, but
    /// what meets quantised weights.
    pub key_type: KvType,
    /// How values are kept.
    pub value_type: KvType,
    /// How the inputs of products are rounded, where the backend rounds them.
    pub activations: ActivationRounding,
    /// Threads, where the backend has threads; all cores where `None`.
    pub n_threads: Option<usize>,
    /// Who sees the inputs of matrices, where the backend shows them.
    pub observer: Option<Observer>,
}

impl SessionConfig {
    /// A session for one sequence of up to `n_ctx` tokens.
    pub fn for_context(n_ctx: usize) -> SessionConfig {
        let block_size = 32;
        SessionConfig {
            n_blocks: n_ctx.div_ceil(block_size).max(1),
            block_size,
            max_tokens: 512,
            max_outputs: 1,
            state_slots: 1,
            max_context: n_ctx,
            exact_tokens: 0,
            key_type: KvType::F16,
            value_type: KvType::F16,
            activations: ActivationRounding::default(),
            n_threads: None,
            observer: None,
        }
    }
}

/// Why a plan could not be compiled or a batch not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The backend does not know the op.
    #[error("the {backend} backend cannot run {op}")]
    Unsupported {
        /// Its name.
        backend: &'static str,
        /// The op.
        op: String,
    },
    /// A batch does not fit the session.
    #[error("batch of {asked} {what}, the session holds {limit}")]
    BatchTooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much was asked for.
        asked: usize,
        /// How much there is room for.
        limit: usize,
    },
    /// A token id that the model has no embedding for.
    #[error("token {token} is out of range: the vocabulary has {vocab} tokens")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// One past the last.
        vocab: usize,
    },
    /// A batch contradicts itself.
    #[error("malformed batch: {0}")]
    Malformed(String),
    /// The KV type does not divide the heads.
    #[error("heads of {dim} elements cannot be kept as {ty}: its blocks have {block}")]
    KvType {
        /// Elements of a head.
        dim: usize,
        /// The type.
        ty: TensorType,
        /// Elements of a block.
        block: usize,
    },
    /// More threads than make sense: starting them would take the process down.
    #[error("{asked} threads: at most {limit} are started")]
    TooManyThreads {
        /// How many were asked for.
        asked: usize,
        /// The most.
        limit: usize,
    },
    /// An allocation failed.
    #[error("cannot allocate {bytes} bytes for {what}")]
    OutOfMemory {
        /// How many.
        bytes: usize,
        /// What for.
        what: &'static str,
    },
    /// A device failed.
    #[error("{backend}: {message}")]
    Device {
        /// Whose.
        backend: &'static str,
        /// What it said.
        message: String,
    },
}

impl Batch<'_> {
    /// Whether each token is to be computed as if it were alone: see [`SessionConfig::exact_tokens`].
    pub fn is_exact(&self, config: &SessionConfig) -> bool {
        config.exact_tokens == usize::MAX
            || self.outputs.len() == self.tokens.len() && self.tokens.len() <= config.exact_tokens
    }

    /// Checks the batch against the session's limits and itself, so that a backend can trust it.
    pub fn check(&self, config: &SessionConfig, n_vocab: usize) -> Result<(), BackendError> {
        let too_large = |what, asked, limit| BackendError::BatchTooLarge { what, asked, limit };
        let n = self.tokens.len();
        if n > config.max_tokens {
            return Err(too_large("tokens", n, config.max_tokens));
        }
        if self.outputs.len() > config.max_outputs {
            return Err(too_large("outputs", self.outputs.len(), config.max_outputs));
        }
        if let Some(&token) = self.tokens.iter().find(|&&t| t as usize >= n_vocab) {
            return Err(BackendError::TokenOutOfRange {
                token,
                vocab: n_vocab,
            });
        }
        let malformed = |what: String| Err(BackendError::Malformed(what));
        if n == 0 || self.positions.len() != n {
            return malformed(format!(
                "{n} tokens with {} positions",
                self.positions.len()
            ));
        }
        if !self.outputs.windows(2).all(|w| w[0] < w[1])
            || self.outputs.last().is_some_and(|&last| last as usize >= n)
        {
            return malformed(format!("outputs {:?} of {n} tokens", self.outputs));
        }
        let mut at = 0;
        for sequence in self.sequences {
            let Some(positions) = self.positions.get(at..at + sequence.n_tokens) else {
                return malformed(format!("sequences cover more than the {n} tokens"));
            };
            let room = sequence.blocks.len() * config.block_size;
            if let Some(&position) = positions.iter().find(|&&p| p as usize >= room) {
                return malformed(format!(
                    "position {position} in {} blocks",
                    sequence.blocks.len()
                ));
            }
            if let Some(block) = sequence
                .blocks
                .iter()
                .find(|b| b.0 as usize >= config.n_blocks)
            {
                return malformed(format!("block {} of {}", block.0, config.n_blocks));
            }
            at += sequence.n_tokens;
        }
        if at != n {
            return malformed(format!("sequences cover {at} of {n} tokens"));
        }
        Ok(())
    }

    /// Which text of a pair each token is of: 0 or 1.
    pub fn segments(&self) -> impl Iterator<Item = usize> {
        let sequences = self.sequences.iter();
        let second = sequences
            .flat_map(|sequence| std::iter::repeat_n(sequence.second_text, sequence.n_tokens));
        let is_second = |(second, position): (Option<u32>, &u32)| {
            second.is_some_and(|second| second <= *position)
        };
        second.zip(self.positions).map(is_second).map(usize::from)
    }

    /// What each row of a value wants of an adapter.
    pub(crate) fn strengths(&self, rows: Rows, adapter: usize) -> impl Iterator<Item = f32> {
        let of_tokens = self.sequences.iter().flat_map(move |sequence| {
            let strength = sequence.adapters.get(adapter).copied().unwrap_or(0.0);
            std::iter::repeat_n(strength, sequence.n_tokens)
        });
        let mut outputs = self.outputs.iter().peekable();
        let is_row = move |(token, _): &(u32, f32)| match rows {
            Rows::Tokens => true,
            Rows::Outputs => outputs.next_if(|&output| output == token).is_some(),
        };
        let rows = (0..).zip(of_tokens).filter(is_row);
        rows.map(|(_, strength)| strength)
    }

    /// Refuses sequences that are not there from their first token on: tokens that see those after
    /// them are computed together.
    pub(crate) fn check_whole(&self) -> Result<(), BackendError> {
        let mut positions = self.positions.iter();
        for sequence in self.sequences {
            let own = positions.by_ref().take(sequence.n_tokens);
            if !own.copied().eq(0..sequence.n_tokens as u32) {
                let problem = "a sequence that is seen whole comes in pieces".to_owned();
                return Err(BackendError::Malformed(problem));
            }
        }
        Ok(())
    }

    /// Refuses a position that a table of learned positions does not have.
    pub(crate) fn check_position(
        &self,
        position: u32,
        offset: usize,
        rows: usize,
    ) -> Result<(), BackendError> {
        if (position as usize).saturating_add(offset) < rows {
            return Ok(());
        }
        Err(BackendError::BatchTooLarge {
            what: "positions",
            asked: position as usize + 1,
            limit: rows.saturating_sub(offset),
        })
    }
}
