//! [`Embedder`]: text embeddings, pooled from the hidden states of a text's tokens, and reranking scores.
//!
//! Several texts share each batch of a [`Session`]; a text longer than a batch is processed in pieces.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::ops::Range;

use crate::backend::cpu::Cpu;
use crate::backend::{
    Backend, Batch, KvType, Readback, RepackLimit, SeqSlice, Session, SessionConfig,
};
use crate::engine::{DEFAULT_CONTEXT, EngineError};
use crate::error::Result;
use crate::file::ModelFile;
use crate::graph::OutputKind;
use crate::kv::BlockId;
use crate::model::{Model, sidecar_json};
use crate::threads::Spawner;
use crate::tokenizer::{EncodeOptions, TokenPair};
use serde_json::Value;

/// Computes text embeddings and reranking scores with an embedding, reranking or generative model.
///
/// ```no_run
/// use oxidize::{Embedder, Model};
///
/// # fn main() -> Result<(), oxidize::Error> {
/// let mut embedder = Embedder::new(&Model::load("all-MiniLM-L6-v2")?)?;
/// let vectors = embedder.embed(&["A cat sits outside.", "The weather is lovely."])?;
/// println!("{} dimensions", vectors[0].len());
/// # Ok(())
/// # }
/// ```
pub struct Embedder {
    model: Model,
    session: Box<dyn Session>,
    config: SessionConfig,
    pooling: Pooling,
    normalize: bool,
    n_ctx: usize,
    n_vocab: usize,
    adapters: Vec<f32>,
    /// True if the classification head runs, for reranking.
    computes_scores: bool,
}

/// Pooling of the hidden states of a text's tokens into its embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooling {
    /// One embedding for each token.
    None,
    /// Mean over all tokens.
    Mean,
    /// First token (`[CLS]`), as BERT models are trained.
    Cls,
    /// Last token, the only one that attends to the whole text in a decoder.
    Last,
    /// Scores of the model's classification head instead of an embedding, for reranking.
    Rank,
}

impl Pooling {
    /// Pooling declared by the model: `{arch}.pooling_type` in GGUF, or sentence-transformers' `1_Pooling`.
    pub fn of(model: &Model) -> Option<Pooling> {
        let scores = model.plan().output == OutputKind::Scores;
        Pooling::of_file(model.file(), model.arch().name)
            .or_else(|| scores.then_some(Pooling::Rank))
    }

    /// Pooling declared by a model file whose architecture has this name.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn of_file(file: &ModelFile, arch: &str) -> Option<Pooling> {
        if let Ok(Some(config)) = sidecar_json(file, "1_Pooling/config.json") {
            let modes = [
                ("pooling_mode_cls_token", "cls", Pooling::Cls),
                ("pooling_mode_lasttoken", "lasttoken", Pooling::Last),
                ("pooling_mode_mean_tokens", "mean", Pooling::Mean),
            ];
            let on = |flag: &str, name: &str| {
                config.get(flag).and_then(Value::as_bool) == Some(true)
                    || config.get("pooling_mode").and_then(Value::as_str) == Some(name)
            };
            let enabled = modes.into_iter().find(|(flag, name, _)| on(flag, name));
            if let Some((.., pooling)) = enabled {
                return Some(pooling);
            }
        }
        let key = format!("{arch}.pooling_type");
        match file.metadata().i64(&key) {
            Some(0) => Some(Pooling::None),
            Some(1) => Some(Pooling::Mean),
            Some(2) => Some(Pooling::Cls),
            Some(3) => Some(Pooling::Last),
            Some(4) => Some(Pooling::Rank),
            _ => None,
        }
    }
}

impl Pooling {
    /// Value of GGUF's `pooling_type`.
    pub fn gguf_number(self) -> usize {
        match self {
            Pooling::None => 0,
            Pooling::Mean => 1,
            Pooling::Cls => 2,
            Pooling::Last => 3,
            Pooling::Rank => 4,
        }
    }
}

/// True if sentence-transformers' `modules.json` normalizes the embeddings.
fn is_normalized(model: &Model) -> bool {
    let Ok(Some(Value::Array(modules))) = model.sidecar_json("modules.json") else {
        return false;
    };
    let kind = |module: &Value| {
        let kind = module.get("type").and_then(Value::as_str);
        kind.is_some_and(|kind| kind.ends_with(".Normalize"))
    };
    modules.iter().any(kind)
}

/// Configuration of an [`Embedder`].
///
/// Every field has a method of the same name.
///
/// ```no_run
/// use oxidize::embedding::{EmbedderConfig, Pooling};
/// use oxidize::{Embedder, Model};
///
/// let config = EmbedderConfig::default()
///     .pooling(Pooling::Last)
///     .normalize(true);
/// let model = Model::load("Qwen3-Embedding-0.6B")?;
/// let mut embedder = Embedder::with_config(&model, &config)?;
/// let vectors = embedder.embed(&["A cat sits outside."])?;
/// # Ok::<(), oxidize::Error>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct EmbedderConfig {
    /// Maximum tokens per text. `None` is the model's own limit, at most 4096.
    pub n_ctx: Option<usize>,
    /// Maximum tokens per step.
    pub max_batch_tokens: usize,
    /// Pooling; `None` is the pooling the model declares, else the mean.
    pub pooling: Option<Pooling>,
    /// Scale embeddings to unit length. Models whose directory declares normalization are normalized in any
    /// case.
    pub normalize: bool,
    /// Memory that the backend may spend on repacking weights.
    pub repack: RepackLimit,
    /// Number of threads; all cores where `None`.
    pub n_threads: Option<usize>,
    /// Starts these threads.
    pub spawner: Spawner,
}

impl Default for EmbedderConfig {
    fn default() -> EmbedderConfig {
        EmbedderConfig {
            n_ctx: None,
            max_batch_tokens: 512,
            pooling: None,
            normalize: false,
            repack: RepackLimit::default(),
            n_threads: None,
            spawner: Spawner::default(),
        }
    }
}

impl EmbedderConfig {
    /// Sets the maximum tokens per text.
    pub fn n_ctx(self, n_ctx: usize) -> EmbedderConfig {
        EmbedderConfig {
            n_ctx: Some(n_ctx),
            ..self
        }
    }

    /// Sets the maximum tokens per step.
    pub fn max_batch_tokens(self, max_batch_tokens: usize) -> EmbedderConfig {
        EmbedderConfig {
            max_batch_tokens,
            ..self
        }
    }

    /// Sets the pooling, instead of what the model declares.
    pub fn pooling(self, pooling: Pooling) -> EmbedderConfig {
        EmbedderConfig {
            pooling: Some(pooling),
            ..self
        }
    }

    /// Scales embeddings to unit length.
    pub fn normalize(self, normalize: bool) -> EmbedderConfig {
        EmbedderConfig { normalize, ..self }
    }

    /// Sets the memory that the backend may spend on repacking weights.
    pub fn repack(self, repack: RepackLimit) -> EmbedderConfig {
        EmbedderConfig { repack, ..self }
    }

    /// Sets the number of threads.
    pub fn n_threads(self, n_threads: usize) -> EmbedderConfig {
        EmbedderConfig {
            n_threads: Some(n_threads),
            ..self
        }
    }

    /// Sets what starts the threads.
    pub fn spawner(self, spawner: Spawner) -> EmbedderConfig {
        EmbedderConfig { spawner, ..self }
    }
}

impl Embedder {
    /// Prepares `model` for embeddings with the default configuration and the best backend of this machine.
    pub fn new(model: &Model) -> Result<Embedder> {
        Embedder::with_config(model, &EmbedderConfig::default())
    }

    /// Prepares `model` for embeddings.
    pub fn with_config(model: &Model, config: &EmbedderConfig) -> Result<Embedder> {
        Embedder::with_backend(model, &Cpu::default(), config)
    }

    /// Prepares `model` for embeddings on a given backend.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn with_backend(
        model: &Model,
        backend: &dyn Backend,
        config: &EmbedderConfig,
    ) -> Result<Embedder> {
        let trained = model.hparams().n_ctx_train;
        let n_ctx = config
            .n_ctx
            .unwrap_or(DEFAULT_CONTEXT)
            .clamp(1, trained.max(1));
        let pooling = config
            .pooling
            .or_else(|| Pooling::of(model))
            .unwrap_or(Pooling::Mean);
        if pooling == Pooling::Rank && model.plan().output != OutputKind::Scores {
            return Err(EngineError::NoScores(model.arch().name).into());
        }
        let whole = model.plan().is_bidirectional();
        let max_tokens = match whole {
            true => config.max_batch_tokens.max(n_ctx),
            false => config.max_batch_tokens.max(1),
        };
        let room = SessionConfig::for_context(n_ctx.max(max_tokens));
        // The session allocates recurrent state for the maximum number of texts in a batch.
        let state_slots = match model.plan().states.is_empty() {
            true => max_tokens,
            false => max_tokens.min(MAX_RECURRENT),
        };
        let session_config = SessionConfig {
            // Each text of a batch has blocks of its own, and may be a single token.
            n_blocks: room.n_blocks.max(max_tokens),
            max_tokens,
            max_outputs: max_tokens,
            state_slots,
            repack: config.repack,
            n_threads: config.n_threads,
            spawner: config.spawner.clone(),
            // Keys and values of a bidirectional model are used once, in the same step.
            key_type: if whole { KvType::F32 } else { room.key_type },
            value_type: if whole { KvType::F32 } else { room.value_type },
            ..room
        };
        let session = match pooling {
            Pooling::Rank => model.session(backend, &session_config)?,
            _ => model.embedding_session(backend, &session_config)?,
        };
        Ok(Embedder {
            model: model.clone(),
            session,
            config: session_config,
            pooling: match pooling {
                // The classification head reads the token that attends to the whole text.
                Pooling::Rank if whole => Pooling::Cls,
                Pooling::Rank => Pooling::Last,
                pooling => pooling,
            },
            normalize: pooling != Pooling::Rank && (config.normalize || is_normalized(model)),
            n_ctx,
            n_vocab: model.n_vocab(),
            adapters: model.adapter_scales().to_vec(),
            computes_scores: pooling == Pooling::Rank,
        })
    }

    /// Number of elements of an embedding, or of the scores of a text.
    pub fn width(&self) -> usize {
        let plan = self.model.plan();
        let result = match self.computes_scores {
            true => plan.result,
            false => plan.hidden,
        };
        result.map_or(0, |result| plan.value(result).width)
    }

    /// Computes one embedding per text. With [`Pooling::None`], which has one per token, their concatenation.
    ///
    /// ```no_run
    /// # use oxidize::{Embedder, Model};
    /// # let mut embedder = Embedder::new(&Model::load("all-MiniLM-L6-v2")?)?;
    /// let vectors = embedder.embed(&["A cat sits outside.", "A dog plays."])?;
    /// let dot: f32 = vectors[0].iter().zip(&vectors[1]).map(|(a, b)| a * b).sum();
    /// println!("similarity {dot:.2}");
    /// # Ok::<(), oxidize::Error>(())
    /// ```
    pub fn embed(&mut self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>> {
        let tokenizer = self.model.tokenizer()?;
        let tokens: Vec<Vec<u32>> = texts
            .iter()
            .map(|text| tokenizer.encode(text.as_ref(), EncodeOptions::default()))
            .collect();
        let embeddings = self.embed_tokens(&tokens)?;
        Ok(embeddings
            .into_iter()
            .map(|vectors| vectors.concat())
            .collect())
    }

    /// Scores each document against a query with a reranking model; higher is more relevant.
    ///
    /// ```no_run
    /// use oxidize::{Embedder, Model};
    ///
    /// # fn main() -> Result<(), oxidize::Error> {
    /// let mut reranker = Embedder::new(&Model::load("bge-reranker-v2-m3.gguf")?)?;
    /// let scores = reranker.rerank("capital of Norway", &["Oslo is a city.", "Cats purr."])?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn rerank(&mut self, query: &str, documents: &[impl AsRef<str>]) -> Result<Vec<f32>> {
        if self.model.plan().output != OutputKind::Scores {
            return Err(EngineError::NoScores(self.model.arch().name).into());
        }
        let tokenizer = self.model.tokenizer()?;
        let pairs: Vec<TokenPair> = documents
            .iter()
            .map(|document| tokenizer.encode_pair(query, document.as_ref(), false))
            .collect();
        let scores = self.embed_token_pairs(&pairs)?.into_iter();
        Ok(scores
            .map(|vectors| vectors.first().and_then(|scores| scores.first()).copied())
            .map(Option::unwrap_or_default)
            .collect())
    }

    /// Computes the embeddings of tokenized texts: one per text, or one per token with [`Pooling::None`].
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn embed_tokens(&mut self, texts: &[Vec<u32>]) -> Result<Vec<Vec<Vec<f32>>>> {
        let alone = texts.iter().map(|tokens| Text {
            tokens,
            second: None,
        });
        self.embed_texts(&alone.collect::<Vec<_>>())
    }

    /// Computes the embeddings of pairs of texts; with [`Pooling::Rank`], their scores.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn embed_token_pairs(&mut self, pairs: &[TokenPair]) -> Result<Vec<Vec<Vec<f32>>>> {
        let texts = pairs.iter().map(|pair| Text {
            tokens: &pair.tokens,
            second: u32::try_from(pair.second).ok(),
        });
        self.embed_texts(&texts.collect::<Vec<_>>())
    }

    fn embed_texts(&mut self, texts: &[Text<'_>]) -> Result<Vec<Vec<Vec<f32>>>> {
        texts.iter().try_for_each(|text| self.check(text.tokens))?;
        let lengths: Vec<usize> = texts.iter().map(|text| text.tokens.len()).collect();
        let mut pools: Vec<Pool> = lengths
            .iter()
            .map(|len| Pool::new(self.pooling, *len))
            .collect();
        for step in steps(&lengths, self.config.max_tokens, self.config.state_slots) {
            self.run(texts, &step, &mut pools)?;
        }
        Ok(pools
            .into_iter()
            .map(|pool| pool.finish(self.normalize))
            .collect())
    }

    fn check(&self, tokens: &[u32]) -> Result<(), EngineError> {
        if tokens.is_empty() || tokens.len() > self.n_ctx {
            return Err(EngineError::TextLength {
                tokens: tokens.len(),
                n_ctx: self.n_ctx,
            });
        }
        let n_vocab = self.n_vocab;
        match tokens.iter().find(|&&token| token as usize >= n_vocab) {
            Some(&token) => Err(EngineError::TokenOutOfRange { token, n_vocab }),
            None => Ok(()),
        }
    }

    fn run(&mut self, texts: &[Text<'_>], step: &[TextChunk], pools: &mut [Pool]) -> Result<()> {
        let mut tokens = Vec::with_capacity(self.config.max_tokens);
        let mut positions = Vec::with_capacity(self.config.max_tokens);
        let mut outputs = Vec::new();
        // Text of each output.
        let mut owners = Vec::new();
        let mut blocks: Vec<Range<u32>> = Vec::with_capacity(step.len());
        for piece in step {
            let Some((text, pool)) = texts.get(piece.text).zip(pools.get(piece.text)) else {
                continue;
            };
            for position in piece.positions.clone() {
                if pool.wants(position) {
                    outputs.push(tokens.len() as u32);
                    owners.push(piece.text);
                }
                tokens.extend(text.tokens.get(position));
                positions.push(position as u32);
            }
            let n_blocks = piece.positions.end.div_ceil(self.config.block_size) as u32;
            let first = blocks.last().map_or(0, |blocks| blocks.end);
            blocks.push(first..first + n_blocks);
        }
        let ids: Vec<BlockId> = (0..self.config.n_blocks as u32).map(BlockId).collect();
        let sequences: Vec<SeqSlice<'_>> = step
            .iter()
            .zip(&blocks)
            .zip(0..)
            .map(|((piece, blocks), slot)| SeqSlice {
                slot,
                n_tokens: piece.positions.len(),
                blocks: ids
                    .get(blocks.start as usize..blocks.end as usize)
                    .unwrap_or_default(),
                windows: &[],
                adapters: &self.adapters,
                second_text: texts.get(piece.text).and_then(|text| text.second),
            })
            .collect();
        self.session.run(&Batch {
            tokens: &tokens,
            positions: &positions,
            sequences: &sequences,
            outputs: &outputs,
        })?;
        self.session.finish_blocking(Readback::Outputs)?;
        for (output, owner) in owners.into_iter().enumerate() {
            if let Some(pool) = pools.get_mut(owner) {
                pool.add(self.session.output(output)?);
            }
        }
        Ok(())
    }
}

/// Tokens of a text, or of a pair and the position where its second text begins.
#[derive(Clone, Copy)]
struct Text<'a> {
    tokens: &'a [u32],
    second: Option<u32>,
}

/// The part of a text that one step computes.
#[derive(Debug, PartialEq)]
struct TextChunk {
    text: usize,
    positions: Range<usize>,
}

/// Maximum texts per step of a model with recurrent state.
const MAX_RECURRENT: usize = 8;

/// Packs texts of these lengths into steps of at most `max_tokens` and `max_texts`, as many whole texts as
/// fit. A text longer than a step is split, and shares its steps with no other text, so that its blocks stay
/// its own.
fn steps(lengths: &[usize], max_tokens: usize, max_texts: usize) -> Vec<Vec<TextChunk>> {
    let mut steps: Vec<Vec<TextChunk>> = Vec::new();
    let mut room = 0;
    for (text, &len) in lengths.iter().enumerate() {
        if len <= room
            && let Some(step) = steps.last_mut().filter(|step| step.len() < max_texts)
        {
            room -= len;
            step.push(TextChunk {
                text,
                positions: 0..len,
            });
            continue;
        }
        for start in (0..len).step_by(max_tokens) {
            let positions = start..len.min(start + max_tokens);
            steps.push(vec![TextChunk { text, positions }]);
        }
        room = max_tokens.saturating_sub(len);
    }
    steps
}

/// Accumulator of the embedding of a text.
struct Pool {
    pooling: Pooling,
    n_tokens: usize,
    rows: Vec<Vec<f32>>,
}

impl Pool {
    fn new(pooling: Pooling, n_tokens: usize) -> Pool {
        Pool {
            pooling,
            n_tokens,
            rows: Vec::new(),
        }
    }

    /// True if the hidden state of the token at `position` is needed.
    fn wants(&self, position: usize) -> bool {
        match self.pooling {
            Pooling::None | Pooling::Mean => true,
            Pooling::Cls => position == 0,
            Pooling::Last | Pooling::Rank => position + 1 == self.n_tokens,
        }
    }

    fn add(&mut self, hidden: &[f32]) {
        match (self.pooling, self.rows.first_mut()) {
            (Pooling::Mean, Some(sum)) => {
                sum.iter_mut().zip(hidden).for_each(|(sum, x)| *sum += x);
            }
            _ => self.rows.push(hidden.to_vec()),
        }
    }

    fn finish(mut self, normalize: bool) -> Vec<Vec<f32>> {
        for row in &mut self.rows {
            let scale = if normalize {
                let length = row
                    .iter()
                    .map(|x| f64::from(*x).powi(2))
                    .sum::<f64>()
                    .sqrt();
                if length > 0.0 { 1.0 / length } else { 0.0 }
            } else if self.pooling == Pooling::Mean {
                1.0 / self.n_tokens as f64
            } else {
                continue;
            };
            row.iter_mut().for_each(|x| *x *= scale as f32);
        }
        self.rows
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::backend::cpu::Cpu;
    use crate::backend::reference::Reference;
    use crate::file::{ModelFile, OpenOptions};
    use crate::synth::{QuantRecipe, Shape, Synthesis};

    fn model() -> Model {
        let synthesis = Synthesis {
            shape: Shape::named("tiny").unwrap(),
            recipe: QuantRecipe::named("F32").unwrap(),
            seed: 7,
        };
        let mut bytes = Vec::new();
        synthesis.write(&mut bytes, |_, _| {}).unwrap();
        Model::from_file(ModelFile::from_bytes(bytes, &OpenOptions::default()).unwrap()).unwrap()
    }

    fn texts() -> Vec<Vec<u32>> {
        let text = |n: u32| (0..n).map(|i| 300 + (i * i + n) % 700).collect();
        [3, 40, 1, 19].map(text).to_vec()
    }

    fn config(pooling: Pooling, max_batch_tokens: usize) -> EmbedderConfig {
        EmbedderConfig {
            pooling: Some(pooling),
            max_batch_tokens,
            n_threads: Some(2),
            ..EmbedderConfig::default()
        }
    }

    fn assert_near(a: &[f32], b: &[f32]) {
        assert_eq!(a.len(), b.len());
        let spread = a.iter().fold(0f32, |most, x| most.max(x.abs()));
        for (a, b) in a.iter().zip(b) {
            assert!((a - b).abs() < 2e-3 * spread, "{a} {b}");
        }
    }

    #[test]
    fn embedding_does_not_depend_on_the_batch() {
        let model = model();
        for pooling in [Pooling::None, Pooling::Mean, Pooling::Cls, Pooling::Last] {
            let embed = |backend: &dyn Backend, max_tokens| {
                let mut embedder =
                    Embedder::with_backend(&model, backend, &config(pooling, max_tokens)).unwrap();
                embedder.embed_tokens(&texts()).unwrap()
            };
            let expected = embed(&Reference, 512);
            for max_tokens in [512, 45, 16] {
                let got = embed(&Cpu::default(), max_tokens);
                for ((got, expected), tokens) in got.iter().zip(&expected).zip(texts()) {
                    let n = if pooling == Pooling::None {
                        tokens.len()
                    } else {
                        1
                    };
                    assert_eq!(got.len(), n);
                    got.iter()
                        .zip(expected)
                        .for_each(|(a, b)| assert_near(a, b));
                }
            }
        }
    }

    #[test]
    fn pooled_embeddings_match_token_embeddings() {
        let model = model();
        let embed = |pooling, normalize| {
            let config = EmbedderConfig {
                normalize,
                ..config(pooling, 64)
            };
            let mut embedder = Embedder::with_backend(&model, &Cpu::default(), &config).unwrap();
            let vectors = embedder.embed_tokens(&texts()[1..2]).unwrap().remove(0);
            assert!(
                vectors
                    .iter()
                    .all(|vector| vector.len() == embedder.width())
            );
            vectors
        };
        let tokens = embed(Pooling::None, false);
        assert_near(&embed(Pooling::Cls, false)[0], &tokens[0]);
        assert_near(&embed(Pooling::Last, false)[0], &tokens[39]);
        let mean: Vec<f32> = (0..tokens[0].len())
            .map(|i| tokens.iter().map(|token| token[i]).sum::<f32>() / 40.0)
            .collect();
        assert_near(&embed(Pooling::Mean, false)[0], &mean);
        let unit = embed(Pooling::Mean, true);
        let length: f32 = unit[0].iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-5);
        let scale = unit[0][0] / mean[0];
        let scaled: Vec<f32> = mean.iter().map(|x| x * scale).collect();
        assert_near(&unit[0], &scaled);
    }

    #[test]
    fn hidden_states_times_output_matrix_are_the_logits() {
        let model = model();
        let tokens = texts().remove(1);
        let last = EmbedderConfig {
            pooling: Some(Pooling::Last),
            ..EmbedderConfig::default()
        };
        let mut embedder = Embedder::with_backend(&model, &Cpu::default(), &last).unwrap();
        let hidden = embedder
            .embed_tokens(std::slice::from_ref(&tokens))
            .unwrap();
        let config = SessionConfig::for_context(64);
        let mut session = model.session(&Cpu::default(), &config).unwrap();
        let positions: Vec<u32> = (0..tokens.len() as u32).collect();
        let sequences = [SeqSlice {
            slot: 0,
            n_tokens: tokens.len(),
            blocks: &[BlockId(0), BlockId(1)],
            ..SeqSlice::default()
        }];
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            sequences: &sequences,
            outputs: &[tokens.len() as u32 - 1],
        };
        session.run(&batch).unwrap();
        let file = model.file();
        let mut output = Vec::new();
        file.for_each_f32::<crate::Error>(file.tensor("token_embd.weight").unwrap(), |floats| {
            output.extend_from_slice(floats);
            Ok(())
        })
        .unwrap();
        let logits: Vec<f32> = output
            .chunks(256)
            .map(|row| row.iter().zip(&hidden[0][0]).map(|(a, b)| a * b).sum())
            .collect();
        assert_near(session.output(0).unwrap(), &logits);
    }

    #[test]
    fn invalid_texts_are_rejected() {
        let model = model();
        let config = EmbedderConfig {
            n_ctx: Some(8),
            ..EmbedderConfig::default()
        };
        let mut embedder = Embedder::with_backend(&model, &Cpu::default(), &config).unwrap();
        for text in [vec![], vec![300; 9], vec![1024]] {
            assert!(embedder.embed_tokens(&[text]).is_err());
        }
        assert!(embedder.embed_tokens(&[vec![300; 8]]).is_ok());
    }

    #[test]
    fn only_whole_texts_share_steps() {
        let steps = steps(&[5, 4, 2, 25, 3], 10, 10);
        let shape: Vec<Vec<(usize, Range<usize>)>> = steps
            .into_iter()
            .map(|step| step.into_iter().map(|p| (p.text, p.positions)).collect())
            .collect();
        let expected = vec![
            vec![(0, 0..5), (1, 0..4)],
            vec![(2, 0..2)],
            vec![(3, 0..10)],
            vec![(3, 10..20)],
            vec![(3, 20..25)],
            vec![(4, 0..3)],
        ];
        assert_eq!(shape, expected);
    }
}
