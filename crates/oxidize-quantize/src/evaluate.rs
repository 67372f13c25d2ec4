//! Runs a model over a given text, one sequence alone or several in step: what measuring needs and an
//! engine does not.

use oxidize_core::Error;
use oxidize_core::backend::{
    ActivationRounding, Backend, BackendError, Batch, KvType, Observer, SeqSlice, Session,
    SessionConfig,
};
use oxidize_core::graph::Gives;
use oxidize_core::kv::BlockId;
use oxidize_core::model::{MemoryPlan, Model};
use oxidize_core::tokenizer::EncodeOptions;

use crate::error::Result;
use crate::text::Text;

/// How a model is run for measuring.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Most tokens that are computed in one step.
    pub batch_size: usize,
    /// How the cache keeps keys.
    pub key_type: KvType,
    /// How the cache keeps values.
    pub value_type: KvType,
    /// How the inputs of matrices are rounded.
    pub activations: ActivationRounding,
    /// Threads; all cores where nothing is said.
    pub threads: Option<usize>,
    /// Whether a model that seems not to fit in memory is refused.
    pub check_memory: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            batch_size: 512,
            key_type: KvType::F16,
            value_type: KvType::F16,
            activations: ActivationRounding::default(),
            threads: None,
            check_memory: true,
        }
    }
}

/// A session for one sequence, or for several that go in step.
pub struct Evaluator {
    session: Box<dyn Session>,
    /// Those of each sequence.
    blocks: Vec<Vec<BlockId>>,
    max_tokens: usize,
    max_outputs: usize,
    adapters: Vec<f32>,
    /// Positions before the first that the encoder has read.
    n_encoded: usize,
}

/// What is wanted of a model at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Results {
    /// What it ends with: logits, of a classifier scores.
    Own,
    /// The hidden states that those are made of.
    Hidden,
}

/// What an evaluator is to give.
struct Wanted {
    /// Sequences that are computed together.
    n_sequences: usize,
    /// Results of so many tokens of a step.
    outputs: usize,
    results: Results,
    /// To whom inputs of matrices are shown.
    observer: Option<Observer>,
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted {
            n_sequences: 1,
            outputs: 1,
            results: Results::Own,
            observer: None,
        }
    }
}

impl Evaluator {
    /// A session for up to `n_ctx` tokens, no more than the model was trained on, with results at
    /// any of them.
    pub fn new(
        model: &Model,
        backend: &dyn Backend,
        settings: &Settings,
        n_ctx: usize,
    ) -> Result<Evaluator> {
        check_trained(model, n_ctx)?;
        Evaluator::for_results(model, backend, settings, n_ctx, Results::Own)
    }

    /// A session for any number of tokens, with results at any of them.
    pub fn for_results(
        model: &Model,
        backend: &dyn Backend,
        settings: &Settings,
        n_ctx: usize,
        results: Results,
    ) -> Result<Evaluator> {
        if n_ctx == 0 {
            let problem = "there is nothing to compute".to_owned();
            let file = model.file().path().to_path_buf();
            return Err(crate::Error::Unfit { file, problem });
        }
        let wanted = Wanted {
            outputs: n_ctx,
            results,
            ..Wanted::default()
        };
        Evaluator::giving(wanted, model, backend, settings, n_ctx)
    }

    /// A session whose matrices' inputs `observer` sees, for no more tokens than the model was trained
    /// on.
    pub fn observed(
        model: &Model,
        backend: &dyn Backend,
        settings: &Settings,
        n_ctx: usize,
        observer: Observer,
    ) -> Result<Evaluator> {
        check_trained(model, n_ctx)?;
        let wanted = Wanted {
            outputs: 64,
            observer: Some(observer),
            ..Wanted::default()
        };
        Evaluator::giving(wanted, model, backend, settings, n_ctx)
    }

    /// A session that measures speed: results at one token of each sequence in a batch, and any length
    /// of context.
    pub fn for_bench(
        model: &Model,
        backend: &dyn Backend,
        settings: &Settings,
        n_ctx: usize,
        n_sequences: usize,
    ) -> Result<Evaluator> {
        let wanted = Wanted {
            outputs: n_sequences,
            n_sequences,
            ..Wanted::default()
        };
        Evaluator::giving(wanted, model, backend, settings, n_ctx)
    }

    fn giving(
        wanted: Wanted,
        model: &Model,
        backend: &dyn Backend,
        settings: &Settings,
        n_ctx: usize,
    ) -> Result<Evaluator> {
        // Tokens that see those after them are computed together.
        let whole = model.plan().is_bidirectional() || model.plan().n_encoder_ops > 0;
        let step = if whole { n_ctx } else { settings.batch_size };
        let n_sequences = wanted.n_sequences;
        let max_tokens = step.clamp(1, n_ctx.max(1)).max(n_sequences);
        let one = SessionConfig::for_context(n_ctx);
        let config = SessionConfig {
            n_blocks: one.n_blocks * n_sequences,
            state_slots: n_sequences,
            max_tokens,
            max_outputs: if whole {
                max_tokens
            } else {
                wanted.outputs.min(max_tokens)
            },
            key_type: settings.key_type,
            value_type: settings.value_type,
            activations: settings.activations,
            n_threads: settings.threads,
            observer: wanted.observer,
            ..one
        };
        if settings.check_memory {
            MemoryPlan::new(model, &config)
                .check(model)
                .map_err(Error::from)?;
        }
        let session = match wanted.results {
            Results::Own => model.session(backend, &config)?,
            Results::Hidden => model.embedding_session(backend, &config)?,
        };
        let all: Vec<BlockId> = (0..config.n_blocks as u32).map(BlockId).collect();
        let blocks = all.chunks(config.n_blocks / n_sequences).map(<[_]>::to_vec);
        let blocks = blocks.collect();
        Ok(Evaluator {
            session,
            blocks,
            max_tokens,
            max_outputs: config.max_outputs,
            adapters: model.adapter_strengths().to_vec(),
            n_encoded: 0,
        })
    }

    /// Has the encoder read `tokens`; what is computed from then on comes after them.
    pub fn encode(&mut self, tokens: &[u32]) -> Result<()> {
        self.n_encoded = 0;
        self.step_over(tokens, 0, &[], |session, batch| session.encode(batch))?;
        self.n_encoded = tokens.len();
        Ok(())
    }

    /// Computes `tokens` from position `start` on, with results for those of `outputs` (indexes
    /// into `tokens`, ascending).
    pub fn run(&mut self, tokens: &[u32], start: usize, outputs: &[u32]) -> Result<()> {
        self.step_over(tokens, start, outputs, |session, batch| session.run(batch))
    }

    fn step_over(
        &mut self,
        tokens: &[u32],
        start: usize,
        outputs: &[u32],
        step: impl FnOnce(&mut dyn Session, &Batch<'_>) -> Result<(), BackendError>,
    ) -> Result<()> {
        let start = (self.n_encoded + start) as u32;
        let positions: Vec<u32> = (start..start + tokens.len() as u32).collect();
        let sequences = [SeqSlice {
            n_tokens: tokens.len(),
            blocks: &self.blocks[0],
            adapters: &self.adapters,
            ..SeqSlice::default()
        }];
        let batch = Batch {
            tokens,
            positions: &positions,
            sequences: &sequences,
            outputs,
        };
        Ok(step(self.session.as_mut(), &batch).map_err(Error::from)?)
    }

    /// Computes a token of each sequence, all at the same position, with results for each.
    pub fn run_together(&mut self, tokens: &[u32], position: usize) -> Result<()> {
        let positions = vec![position as u32; tokens.len()];
        let outputs: Vec<u32> = (0..tokens.len() as u32).collect();
        let sequences: Vec<SeqSlice<'_>> = (self.blocks.iter().zip(0..))
            .map(|(blocks, slot)| SeqSlice {
                n_tokens: 1,
                blocks,
                slot,
                adapters: &self.adapters,
                ..SeqSlice::default()
            })
            .collect();
        let batch = Batch {
            tokens,
            positions: &positions,
            sequences: &sequences,
            outputs: &outputs,
        };
        Ok(self.session.run(&batch).map_err(Error::from)?)
    }

    /// The results of the last run, for its `nth` output.
    pub fn output(&mut self, nth: usize) -> Result<&[f32]> {
        Ok(self.session.output(nth).map_err(Error::from)?)
    }

    /// Computes `tokens` from position `start` on, with results for the last only, as a prompt is.
    pub fn prompt(&mut self, tokens: &[u32], start: usize) -> Result<()> {
        let mut at = start;
        let mut pieces = tokens.chunks(self.max_tokens).peekable();
        while let Some(piece) = pieces.next() {
            let last = [piece.len() as u32 - 1];
            self.run(piece, at, if pieces.peek().is_none() { &last } else { &[] })?;
            at += piece.len();
        }
        Ok(())
    }

    /// Puts `tokens` into the context of each sequence.
    pub fn fill(&mut self, tokens: &[u32]) -> Result<()> {
        let mut at = 0;
        for piece in tokens.chunks(self.max_tokens) {
            self.run(piece, at, &[])?;
            at += piece.len();
        }
        let (first, others) = self.blocks.split_at(1);
        for (slot, other) in others.iter().enumerate().filter(|_| at > 0) {
            let moves: Vec<_> = first[0]
                .iter()
                .copied()
                .zip(other.iter().copied())
                .collect();
            self.session.copy_blocks(&moves).map_err(Error::from)?;
            self.session
                .copy_states(&[(0, slot as u32 + 1)])
                .map_err(Error::from)?;
        }
        Ok(())
    }

    /// Computes all of `tokens` and calls `visit` with the results of each position from `first` on.
    pub fn each_logits(
        &mut self,
        tokens: &[u32],
        first: usize,
        mut visit: impl FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        for piece in pieces(tokens, first, self.step()) {
            self.run(piece.tokens, piece.start, &piece.outputs)?;
            for (nth, &output) in piece.outputs.iter().enumerate() {
                visit(piece.start + output as usize, self.output(nth)?)?;
            }
        }
        Ok(())
    }

    /// Tokens of a step in which every one of them may have results.
    pub(crate) fn step(&self) -> usize {
        self.max_tokens.min(self.max_outputs)
    }
}

/// Tokens that are computed in one step, and those of them whose results are wanted.
pub(crate) struct Piece<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) start: usize,
    pub(crate) outputs: Vec<u32>,
}

/// Cuts `tokens` into steps, with results from position `first` on.
pub(crate) fn pieces(tokens: &[u32], first: usize, step: usize) -> impl Iterator<Item = Piece<'_>> {
    let step = step.max(1);
    tokens.chunks(step).enumerate().map(move |(index, tokens)| {
        let start = index * step;
        let wanted = |i: &u32| start + *i as usize >= first;
        let outputs = (0..tokens.len() as u32).filter(wanted).collect();
        Piece {
            tokens,
            start,
            outputs,
        }
    })
}

/// Refuses a model that does not say of a text alone which token comes next: what is measured of such
/// predictions would mean nothing.
pub fn check_predicts(model: &Model) -> Result<()> {
    let (plan, name) = (model.plan(), model.arch().name);
    let problem = if plan.gives != Gives::Logits || plan.is_bidirectional() {
        format!("{name} predicts no next token: it is for embeddings or scores")
    } else if plan.n_encoder_ops > 0 {
        format!(
            "{name} predicts nothing of a text alone: its decoder follows what an encoder has read"
        )
    } else {
        return Ok(());
    };
    let file = model.file().path().to_path_buf();
    Err(crate::Error::Unfit { file, problem })
}

/// That logits are not numbers, and of which tensor that may come.
pub fn not_numbers(model: &Model) -> crate::Error {
    let tensor = model.find_not_finite();
    let tensor = tensor.map(|name| format!("; tensor {name:?} has such an element"));
    crate::Error::Unfit {
        file: model.file().path().to_path_buf(),
        problem: format!("the logits are not numbers{}", tensor.unwrap_or_default()),
    }
}

/// Refuses more tokens than a model was trained on.
fn check_trained(model: &Model, n_ctx: usize) -> Result<()> {
    let trained = model.hparams().n_ctx_train;
    if n_ctx <= trained {
        return Ok(());
    }
    let problem = format!("{n_ctx} tokens, the model's context holds {trained}");
    let file = model.file().path().to_path_buf();
    Err(crate::Error::Unfit { file, problem })
}

/// Tokens of a chunk unless something else is asked for, as in llama.cpp.
const CHUNK: usize = 512;

/// The tokens of a chunk that a model is measured with: what was asked for, where 0 is the model's own
/// limit. Where nothing was, 512, or the model's limit if that is less.
pub fn chunk_size(model: &Model, asked: Option<usize>) -> usize {
    let trained = model.hparams().n_ctx_train;
    match asked {
        None => trained.min(CHUNK),
        Some(0) => trained,
        Some(n_ctx) => n_ctx,
    }
}

/// Refuses chunks of which nothing is scored, and no chunks, which needs neither model nor text.
pub fn check_asked(n_ctx: Option<usize>, chunks: Option<usize>) -> Result<()> {
    // The second half is scored but for the last token. 0 stands for the model's own limit.
    let n_ctx = n_ctx.filter(|&n_ctx| n_ctx != 0);
    for (flag, asked, least) in [("-c", n_ctx, 3), ("--chunks", chunks, 1)] {
        if let Some(asked) = asked.filter(|&asked| asked < least) {
            return Err(crate::Error::TooFew { flag, asked, least });
        }
    }
    Ok(())
}

/// A text cut into chunks of a context each, as llama.cpp cuts it for perplexity.
pub struct Chunks {
    tokens: Vec<u32>,
    bos: Option<u32>,
    /// Tokens of a chunk.
    pub n_ctx: usize,
    /// How many there are.
    pub n_chunks: usize,
}

impl Chunks {
    /// Tokenises a text; at most `most` chunks of it are used.
    pub fn new(model: &Model, text: &Text, n_ctx: usize, most: Option<usize>) -> Result<Chunks> {
        check_asked(Some(n_ctx), most)?;
        let tokenizer = model.tokenizer()?;
        let options = EncodeOptions {
            add_special: true,
            parse_special: false,
        };
        let tokens = tokenizer.encode(&text.content, options);
        let needed = n_ctx.saturating_mul(2);
        if n_ctx == 0 || tokens.len() < needed {
            let problem = format!(
                "the text is {} tokens, at least {needed} are needed for a context of {n_ctx}",
                tokens.len()
            );
            let file = text.file.clone();
            return Err(crate::Error::Unfit { file, problem });
        }
        let n_chunks = (tokens.len() / n_ctx).min(most.unwrap_or(usize::MAX));
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        Ok(Chunks {
            tokens,
            bos,
            n_ctx,
            n_chunks,
        })
    }

    /// One chunk only, of short runs from all over the text: a little of everything in it.
    #[must_use]
    pub fn excerpt(self) -> Chunks {
        /// Tokens of a run: a sentence or two.
        const RUN: usize = 32;
        let runs = self.n_ctx.div_ceil(RUN);
        let starts = (0..runs).map(|run| run * self.tokens.len() / runs);
        let tokens = starts.flat_map(|start| self.tokens[start..].iter().take(RUN));
        Chunks {
            tokens: tokens.copied().take(self.n_ctx).collect(),
            n_chunks: 1,
            ..self
        }
    }

    /// Each chunk: what the model reads, which begins as the model's texts do, and what was there.
    pub fn iter(&self) -> impl Iterator<Item = (Vec<u32>, &[u32])> {
        let chunks = self.tokens.chunks_exact(self.n_ctx).take(self.n_chunks);
        chunks.map(|chunk| {
            let mut input = chunk.to_vec();
            if let (Some(bos), Some(first)) = (self.bos, input.first_mut()) {
                *first = bos;
            }
            (input, chunk)
        })
    }

    /// The positions of a chunk that are scored: the second half, but for the last, which has no
    /// successor.
    pub fn scored(&self) -> std::ops::Range<usize> {
        self.n_ctx / 2..self.n_ctx - 1
    }
}
