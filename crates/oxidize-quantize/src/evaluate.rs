//! [`Evaluator`]: runs a model over given tokens without the engine's scheduler, for perplexity, importance,
//! comparisons and benchmarks.

use oxidize_core::Error;
use oxidize_core::backend::MemoryPlan;
use oxidize_core::backend::{
    ActivationQuant, Backend, BackendError, Batch, KvType, Observer, Readback, RepackLimit,
    SeqSlice, Session, SessionConfig,
};
use oxidize_core::graph::OutputKind;
use oxidize_core::kv::{BlockCopy, BlockId};
use oxidize_core::model::Model;
use oxidize_core::tokenizer::EncodeOptions;

use crate::error::Result;
use crate::text::Text;

/// Settings of an evaluation run.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Maximum number of tokens per forward pass.
    pub batch_size: usize,
    /// Type of cached keys.
    pub key_type: KvType,
    /// Type of cached values.
    pub value_type: KvType,
    /// Quantization of activations.
    pub activations: ActivationQuant,
    /// Memory for repacking weights.
    pub repack: RepackLimit,
    /// Number of threads; all cores if `None`.
    pub threads: Option<usize>,
    /// Return an error if the model does not fit in memory.
    pub check_memory: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            batch_size: 512,
            key_type: KvType::F16,
            value_type: KvType::F16,
            activations: ActivationQuant::default(),
            repack: RepackLimit::default(),
            threads: None,
            check_memory: true,
        }
    }
}

/// A session for one sequence, or for several of equal length.
pub struct Evaluator {
    session: Box<dyn Session>,
    /// KV cache blocks of each sequence.
    blocks: Vec<Vec<BlockId>>,
    max_tokens: usize,
    max_outputs: usize,
    adapters: Vec<f32>,
    /// Number of tokens processed by the encoder.
    n_encoded: usize,
}

/// The kind of result at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Results {
    /// Logits, or the scores of a classifier.
    Final,
    /// Hidden states of the last layer.
    Hidden,
}

/// Sequences and outputs of an evaluator.
struct OutputSpec {
    /// Number of sequences.
    n_sequences: usize,
    /// Maximum number of outputs per forward pass.
    outputs: usize,
    results: Results,
    /// Receives the inputs of matrices.
    observer: Option<Observer>,
}

impl Default for OutputSpec {
    fn default() -> OutputSpec {
        OutputSpec {
            n_sequences: 1,
            outputs: 1,
            results: Results::Final,
            observer: None,
        }
    }
}

impl Evaluator {
    /// Creates a session for up to `n_ctx` tokens with results at any position. Returns an error if `n_ctx`
    /// exceeds the trained context.
    pub fn new(
        model: &Model,
        backend: &dyn Backend,
        settings: &Settings,
        n_ctx: usize,
    ) -> Result<Evaluator> {
        check_context(model, n_ctx)?;
        Evaluator::for_results(model, backend, settings, n_ctx, Results::Final)
    }

    /// Creates a session for any number of tokens with results at any position.
    pub fn for_results(
        model: &Model,
        backend: &dyn Backend,
        settings: &Settings,
        n_ctx: usize,
        results: Results,
    ) -> Result<Evaluator> {
        if n_ctx == 0 {
            let problem = "the input has no tokens".to_owned();
            let file = model.file().path().to_path_buf();
            return Err(crate::Error::Unfit { file, problem });
        }
        let spec = OutputSpec {
            outputs: n_ctx,
            results,
            ..OutputSpec::default()
        };
        Evaluator::with_outputs(spec, model, backend, settings, n_ctx)
    }

    /// Creates a session whose matrix inputs are passed to `observer`. Returns an error if `n_ctx` exceeds
    /// the trained context.
    pub fn observed(
        model: &Model,
        backend: &dyn Backend,
        settings: &Settings,
        n_ctx: usize,
        observer: Observer,
    ) -> Result<Evaluator> {
        check_context(model, n_ctx)?;
        let spec = OutputSpec {
            outputs: 64,
            observer: Some(observer),
            ..OutputSpec::default()
        };
        Evaluator::with_outputs(spec, model, backend, settings, n_ctx)
    }

    /// Creates a session for benchmarks: one result per sequence, and any context length.
    pub fn for_bench(
        model: &Model,
        backend: &dyn Backend,
        settings: &Settings,
        n_ctx: usize,
        n_sequences: usize,
    ) -> Result<Evaluator> {
        let spec = OutputSpec {
            outputs: n_sequences,
            n_sequences,
            ..OutputSpec::default()
        };
        Evaluator::with_outputs(spec, model, backend, settings, n_ctx)
    }

    fn with_outputs(
        spec: OutputSpec,
        model: &Model,
        backend: &dyn Backend,
        settings: &Settings,
        n_ctx: usize,
    ) -> Result<Evaluator> {
        // Without a causal mask, all tokens are computed in one pass.
        let single_pass = model.plan().is_bidirectional() || model.plan().n_encoder_ops > 0;
        let step = if single_pass {
            n_ctx
        } else {
            settings.batch_size
        };
        let n_sequences = spec.n_sequences;
        let max_tokens = step.clamp(1, n_ctx.max(1)).max(n_sequences);
        let one = SessionConfig::for_context(n_ctx);
        let config = SessionConfig {
            n_blocks: one.n_blocks * n_sequences,
            state_slots: n_sequences,
            max_tokens,
            max_outputs: if single_pass {
                max_tokens
            } else {
                spec.outputs.min(max_tokens)
            },
            key_type: settings.key_type,
            value_type: settings.value_type,
            activations: settings.activations,
            repack: settings.repack,
            n_threads: settings.threads,
            observer: spec.observer,
            ..one
        };
        if settings.check_memory {
            MemoryPlan::new(model, backend, &config)
                .check(model)
                .map_err(Error::from)?;
        }
        let session = match spec.results {
            Results::Final => model.session(backend, &config)?,
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
            adapters: model.adapter_scales().to_vec(),
            n_encoded: 0,
        })
    }

    /// Runs the encoder over `tokens`. Later tokens of the decoder attend to them.
    pub fn encode(&mut self, tokens: &[u32]) -> Result<()> {
        self.n_encoded = 0;
        self.step_over(tokens, 0, &[], |session, batch| session.encode(batch))?;
        self.n_encoded = tokens.len();
        Ok(())
    }

    /// Computes `tokens` from position `start` on, with results at `outputs` (ascending indexes into
    /// `tokens`).
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
        step(self.session.as_mut(), &batch).map_err(Error::from)?;
        self.finish()
    }

    /// Computes one token of each sequence, all at the same position, with a result for each.
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
        self.session.run(&batch).map_err(Error::from)?;
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        let finished = self.session.finish_blocking(Readback::Outputs);
        Ok(finished.map_err(Error::from)?)
    }

    /// Result of the `nth` output of the last run.
    pub fn output(&mut self, nth: usize) -> Result<&[f32]> {
        Ok(self.session.output(nth).map_err(Error::from)?)
    }

    /// Computes `tokens` from position `start` on with a result for the last one only, as for a prompt.
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

    /// Fills the context of each sequence with `tokens`.
    pub fn fill(&mut self, tokens: &[u32]) -> Result<()> {
        let mut at = 0;
        for piece in tokens.chunks(self.max_tokens) {
            self.run(piece, at, &[])?;
            at += piece.len();
        }
        let (first, others) = self.blocks.split_at(1);
        for (slot, other) in others.iter().enumerate().filter(|_| at > 0) {
            let blocks = first[0].iter().zip(other);
            let copies = blocks.map(|(&from, &to)| BlockCopy { group: 0, from, to });
            let copies: Vec<BlockCopy> = copies.collect();
            self.session.copy_blocks(&copies).map_err(Error::from)?;
            self.session
                .copy_states(&[(0, slot as u32 + 1)])
                .map_err(Error::from)?;
        }
        Ok(())
    }

    /// Computes `tokens` and calls `visit` with the position and result of each token from `first` on.
    pub fn for_each_logits(
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

    /// Maximum number of tokens per forward pass if each has a result.
    pub(crate) fn step(&self) -> usize {
        self.max_tokens.min(self.max_outputs)
    }
}

/// The tokens of a forward pass and its outputs.
pub(crate) struct Piece<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) start: usize,
    pub(crate) outputs: Vec<u32>,
}

/// Divides `tokens` into forward passes with results from position `first` on.
pub(crate) fn pieces(tokens: &[u32], first: usize, step: usize) -> impl Iterator<Item = Piece<'_>> {
    let step = step.max(1);
    tokens.chunks(step).enumerate().map(move |(index, tokens)| {
        let start = index * step;
        let is_output = |i: &u32| start + *i as usize >= first;
        let outputs = (0..tokens.len() as u32).filter(is_output).collect();
        Piece {
            tokens,
            start,
            outputs,
        }
    })
}

/// Returns an error if a model does not predict the next token of a plain text, as perplexity requires.
pub fn check_predicts(model: &Model) -> Result<()> {
    let (plan, name) = (model.plan(), model.arch().name);
    let problem = if plan.output != OutputKind::Logits || plan.is_bidirectional() {
        format!("{name} is an embedding or classifier model and predicts no next token")
    } else if plan.n_encoder_ops > 0 {
        format!("{name} is an encoder-decoder model and predicts no next token of a plain text")
    } else {
        return Ok(());
    };
    let file = model.file().path().to_path_buf();
    Err(crate::Error::Unfit { file, problem })
}

/// The error for NaN or infinite logits, with the tensor that is the likely cause.
pub fn logits_not_finite(model: &Model) -> crate::Error {
    let tensor = model.find_not_finite();
    let tensor = tensor.map(|name| format!("; tensor {name:?} has a NaN or infinite element"));
    crate::Error::Unfit {
        file: model.file().path().to_path_buf(),
        problem: format!("logits are NaN or infinite{}", tensor.unwrap_or_default()),
    }
}

/// Returns an error for a context longer than the trained context.
fn check_context(model: &Model, n_ctx: usize) -> Result<()> {
    let trained = model.hparams().n_ctx_train;
    if n_ctx <= trained {
        return Ok(());
    }
    let problem = format!("context of {n_ctx} tokens; the model supports up to {trained}");
    let file = model.file().path().to_path_buf();
    Err(crate::Error::Unfit { file, problem })
}

/// Default number of tokens per chunk, as in llama.cpp.
const CHUNK: usize = 512;

/// Number of tokens per chunk: the requested number, the trained context for 0, and by default 512 or the
/// trained context if that is less.
pub fn chunk_size(model: &Model, requested: Option<usize>) -> usize {
    let trained = model.hparams().n_ctx_train;
    match requested {
        None => trained.min(CHUNK),
        Some(0) => trained,
        Some(n_ctx) => n_ctx,
    }
}

/// Returns an error if the requested chunk size or number of chunks leaves no tokens to score. Needs no
/// model.
pub fn check_chunk_args(n_ctx: Option<usize>, chunks: Option<usize>) -> Result<()> {
    // The second half is scored except for the last token. 0 is the trained context.
    let n_ctx = n_ctx.filter(|&n_ctx| n_ctx != 0);
    for (flag, requested, least) in [("-c", n_ctx, 3), ("--chunks", chunks, 1)] {
        if let Some(requested) = requested.filter(|&requested| requested < least) {
            return Err(crate::Error::TooFew {
                flag,
                requested,
                least,
            });
        }
    }
    Ok(())
}

/// A text divided into chunks of one context each, as llama.cpp does for perplexity.
pub struct Chunks {
    tokens: Vec<u32>,
    bos: Option<u32>,
    /// Tokens per chunk.
    pub n_ctx: usize,
    /// Number of chunks.
    pub n_chunks: usize,
}

impl Chunks {
    /// Tokenizes a text and uses at most `max_chunks` chunks of it.
    pub fn new(
        model: &Model,
        text: &Text,
        n_ctx: usize,
        max_chunks: Option<usize>,
    ) -> Result<Chunks> {
        check_chunk_args(Some(n_ctx), max_chunks)?;
        let tokenizer = model.tokenizer()?;
        let options = EncodeOptions {
            add_special: true,
            parse_special: false,
        };
        let tokens = tokenizer.encode(&text.content, options);
        let needed = n_ctx.saturating_mul(2);
        if n_ctx == 0 || tokens.len() < needed {
            let problem = format!(
                "the text has {} tokens; at least {needed} are needed for a context of {n_ctx}",
                tokens.len()
            );
            let file = text.file.clone();
            return Err(crate::Error::Unfit { file, problem });
        }
        let n_chunks = (tokens.len() / n_ctx).min(max_chunks.unwrap_or(usize::MAX));
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        Ok(Chunks {
            tokens,
            bos,
            n_ctx,
            n_chunks,
        })
    }

    /// A single chunk of short spans, evenly spaced over the text.
    #[must_use]
    pub fn excerpt(self) -> Chunks {
        /// Tokens of a span, about one or two sentences.
        const SPAN: usize = 32;
        let n_spans = self.n_ctx.div_ceil(SPAN);
        let starts = (0..n_spans).map(|i| i * self.tokens.len() / n_spans);
        let tokens = starts.flat_map(|start| self.tokens[start..].iter().take(SPAN));
        Chunks {
            tokens: tokens.copied().take(self.n_ctx).collect(),
            n_chunks: 1,
            ..self
        }
    }

    /// Iterates over the chunks: the model's input, whose first token is replaced by BOS, and the original
    /// tokens.
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

    /// The scored positions of a chunk: the second half except for the last token, which has no successor.
    pub fn scored(&self) -> std::ops::Range<usize> {
        self.n_ctx / 2..self.n_ctx - 1
    }
}
