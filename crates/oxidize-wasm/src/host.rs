//! [`Host`]: a loaded model, stepped by the worker that owns it.

use oxidize_core::Spawner;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{Backend, MemoryPlan};
use oxidize_core::embedding::{Embedder, EmbedderConfig, Pooling};
use oxidize_core::engine::{Engine, EngineConfig, EngineState, Stepper};
use oxidize_core::graph::OutputKind;
use oxidize_core::model::Model;
use oxidize_core::tokenizer::{DecodeOptions, EncodeOptions};
use serde_json::{Value as Json, json};

use crate::answer::{Answer, Event};
use crate::error::{Code, Failure};
use crate::options::LoadOptions;
use crate::request::RequestOptions;

/// Bytes that 32-bit WebAssembly can address.
const ADDRESS_SPACE: u64 = 1 << 32;
/// Prompt tokens per step: few, so that the worker hears of aborted requests soon.
const STEP_TOKENS: usize = 128;

/// A loaded model and its running requests.
pub struct Host {
    model: Model,
    /// Models that generate text have an engine.
    engine: Option<(Engine, Stepper)>,
    answers: Vec<Answer>,
    embedder: Option<Embedder>,
    n_threads: usize,
    spawner: Spawner,
}

impl Host {
    /// Prepares `model`. `memory` is the current size of the module's memory.
    pub fn new(
        model: Model,
        options: &LoadOptions,
        memory: u64,
        spawner: Spawner,
    ) -> Result<Host, Failure> {
        let n_threads = options.threads.unwrap_or(1).max(1);
        let kv_type = options.kv_type()?;
        let config = EngineConfig {
            n_ctx: options.context_size,
            cache_tokens: options.cache_tokens,
            max_sequences: options.parallel()?,
            max_batch_tokens: STEP_TOKENS,
            key_type: kv_type,
            value_type: kv_type,
            n_threads: Some(n_threads),
            spawner: spawner.clone(),
            ..EngineConfig::default()
        };
        let engine = match model.plan().output {
            OutputKind::Logits => Some(start(&model, config, options, memory)?),
            _ => None,
        };
        Ok(Host {
            model,
            engine,
            answers: Vec::new(),
            embedder: None,
            n_threads,
            spawner,
        })
    }

    /// Queues a request. Its events carry `id`.
    pub fn submit(&mut self, id: u32, request: RequestOptions) -> Result<(), Failure> {
        let Some((engine, _)) = &self.engine else {
            return Err(no_text(&self.model));
        };
        let prepared = request.prepare(&self.model)?;
        let stream = engine.submit(prepared.request)?;
        self.answers.push(Answer::new(id, stream, prepared.parser));
        Ok(())
    }

    /// Ends a request. Does nothing if it has ended.
    pub fn cancel(&mut self, id: u32) {
        self.answers.retain(|answer| answer.id != id);
    }

    /// Computes a step: JSON with `working`, true if there is more to compute, and the `events`.
    pub fn step(&mut self) -> Result<String, Failure> {
        let Some((_, stepper)) = &mut self.engine else {
            return Err(no_text(&self.model));
        };
        let state = stepper.step_blocking()?;
        let mut events: Vec<Event> = Vec::new();
        self.answers.retain_mut(|answer| answer.poll(&mut events));
        let working = state == EngineState::Working;
        Ok(json!({ "working": working, "events": events }).to_string())
    }

    /// Token ids of a text.
    pub fn tokenize(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<u32>, Failure> {
        let options = EncodeOptions::default()
            .add_special(add_special)
            .parse_special(parse_special);
        Ok(self.model.tokenizer()?.encode(text, options))
    }

    /// Text of tokens.
    pub fn detokenize(&self, tokens: &[u32], render_special: bool) -> Result<String, Failure> {
        let tokenizer = self.model.tokenizer()?;
        let n_vocab = tokenizer.vocab_size();
        let outside = |token: &&u32| usize::try_from(**token).map_or(true, |id| id >= n_vocab);
        if let Some(token) = tokens.iter().find(outside) {
            return Err(Failure::invalid(format!(
                "token {token} is out of range; the vocabulary has {n_vocab} tokens"
            )));
        }
        let options = DecodeOptions::default().render_special(render_special);
        Ok(tokenizer.decode_with(tokens, options))
    }

    /// The prompt of a conversation: JSON with its text and its tokens.
    pub fn apply_template(&self, request: RequestOptions) -> Result<String, Failure> {
        let prompt = request.render(&self.model)?;
        Ok(json!({ "text": prompt.text, "tokens": prompt.tokens }).to_string())
    }

    /// Embeddings of texts, one after the other.
    pub fn embed(&mut self, texts: &[String], normalize: bool) -> Result<Vec<Vec<f32>>, Failure> {
        let embedder = match &mut self.embedder {
            Some(embedder) => embedder,
            none => {
                // The threads of an engine are busy with it until it ends.
                let (spawner, n_threads) = match self.engine {
                    Some(_) => (Spawner::none(), 1),
                    None => (self.spawner.clone(), self.n_threads),
                };
                let config = EmbedderConfig {
                    max_batch_tokens: STEP_TOKENS,
                    n_threads: Some(n_threads),
                    spawner,
                    ..EmbedderConfig::default()
                };
                none.insert(Embedder::with_config(&self.model, &config)?)
            }
        };
        let mut vectors = embedder.embed(texts)?;
        if normalize {
            vectors.iter_mut().for_each(|vector| to_unit_length(vector));
        }
        Ok(vectors)
    }

    /// The model, as JSON.
    pub fn info(&self) -> String {
        let metadata = self.model.file().metadata();
        let template = self.model.chat_template_source();
        let info: Json = json!({
            "architecture": self.model.architecture(),
            "name": metadata.str("general.name"),
            "parameters": self.model.n_params(),
            "fileBytes": self.model.file().files().map(|(_, bytes)| bytes).sum::<u64>(),
            "vocabularySize": self.model.n_vocab(),
            "embeddingSize": self.model.hparams().n_embd,
            "trainedContext": self.model.context_length(),
            "contextSize": self.engine.as_ref().map(|(engine, _)| engine.n_ctx()),
            "generatesText": self.engine.is_some(),
            "hasChatTemplate": template.is_ok_and(|source| source.is_some()),
            "pooling": Pooling::of(&self.model).map(|pooling| format!("{pooling:?}").to_lowercase()),
            "adapters": self.model.adapters().iter().map(|adapter| adapter.path().display().to_string()).collect::<Vec<_>>(),
            "threads": self.n_threads,
        });
        info.to_string()
    }
}

fn start(
    model: &Model,
    config: EngineConfig,
    options: &LoadOptions,
    memory: u64,
) -> Result<(Engine, Stepper), Failure> {
    let backend = Cpu::default();
    let backend: &dyn Backend = &backend;
    let limit = options
        .memory_limit
        .unwrap_or(ADDRESS_SPACE)
        .min(ADDRESS_SPACE);
    let available = limit.saturating_sub(memory);
    let config = config.fit_context(model, backend, Some(available));
    // A context that is too long for the model is an error of its own.
    let trained = model.context_length();
    if config.n_ctx.is_none_or(|n_ctx| n_ctx <= trained) {
        check_memory(model, backend, &config, memory, available)?;
    }
    Ok(Engine::stepped(model.clone(), &config)?)
}

/// Refuses a model that does not fit in memory: an allocation that fails would end the worker.
fn check_memory(
    model: &Model,
    backend: &dyn Backend,
    config: &EngineConfig,
    memory: u64,
    available: u64,
) -> Result<(), Failure> {
    let plan = MemoryPlan::new(model, backend, &config.session(model));
    // The weights of the file are in memory already.
    let growth = plan.weights.saturating_sub(model.weights().size());
    let needed = growth
        .saturating_add(plan.cache)
        .saturating_add(plan.buffers);
    if needed <= available {
        return Ok(());
    }
    let megabytes = |bytes: u64| bytes >> 20;
    Err(Failure::new(
        Code::OutOfMemory,
        format!(
            "the model needs {} MB beside the {} MB in use, and WebAssembly's memory has room for {} MB",
            megabytes(needed),
            megabytes(memory),
            megabytes(available)
        ),
    ))
}

fn no_text(model: &Model) -> Failure {
    let arch = model.architecture();
    Failure::new(
        Code::UnsupportedModel,
        format!("{arch} models do not generate text; use embed"),
    )
}

fn to_unit_length(vector: &mut [f32]) {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x /= length);
    }
}
