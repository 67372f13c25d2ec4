//! [`Registry`]: the models of the server, loaded on first use. Idle models are unloaded when another one
//! needs their memory, or after a time limit. Clients may add models of the local library.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use oxidize_core::backend::{Backend, CacheSize, MemoryPlan};
use oxidize_core::chat::{ChatOptions, ChatTemplate, Thinking};
use oxidize_core::embedding::{Embedder, EmbedderConfig};
use oxidize_core::engine::{DiskCache, Engine, EngineConfig};
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::graph::OutputKind;
use oxidize_core::io::available_memory;
use oxidize_core::lora::Adapter;
use oxidize_core::model::{Model, ModelError};
use oxidize_core::sampling::SamplingParams;
use oxidize_core::speculative::{DraftSource, Speculation};
use oxidize_core::tokenizer::{TokenPair, Tokenizer};
use oxidize_hub::Library;
use oxidize_quantize::importance::Importance;
use oxidize_quantize::in_memory::quantized;
use oxidize_quantize::workers::Workers;

use crate::config::{DraftSettings, LoadQuant, ModelSpec, ServerConfig};
use crate::error::{ApiError, ApiResult};
use crate::keep_alive::KeepAlive;
use crate::limits::Admission;
use crate::metrics::Gauge;

/// Tokens of prompts per step whose log probabilities are computed, besides one for each running request.
const SCORED_TOKENS: usize = 16;

/// All models of the server.
pub struct Registry {
    entries: RwLock<Vec<Arc<Entry>>>,
    /// Models on this machine, which requests may name, if clients may manage models.
    library: Option<Library>,
    loader: Loader,
    start: Instant,
    any_model: bool,
}

/// Loads models.
#[derive(Clone)]
struct Loader {
    backend: Arc<dyn Backend>,
    config: Arc<ServerConfig>,
}

/// A model, which may be loaded.
pub struct Entry {
    /// Name and path of the model.
    pub spec: ModelSpec,
    /// Unix time of its registration, in seconds.
    pub created: u64,
    /// Locked during loading, so that concurrent requests load the model once.
    slot: tokio::sync::Mutex<Option<Arc<Loaded>>>,
    /// Copy of `slot` for readers that must not wait for loading.
    current: Mutex<Option<Arc<Loaded>>>,
    /// Time of the last request, in milliseconds since the start of the registry.
    last_used: AtomicU64,
}

/// A loaded model.
pub struct Loaded {
    /// Name in requests.
    pub name: String,
    model: Model,
    engine: Option<Engine>,
    /// Chat template: from the command line, the model's own, or ChatML.
    pub template: ChatTemplate,
    /// Reasoning of requests that do not say.
    pub thinking: Thinking,
    /// Maximum number of tokens of reasoning, for requests that set none.
    pub thinking_budget: Option<usize>,
    /// Drafts for requests that do not say.
    pub drafts: bool,
    /// Sampling defaults of the model.
    pub defaults: SamplingParams,
    /// Admission control.
    pub admission: Arc<Admission>,
    /// Requests in progress.
    pub running: Running,
    /// Default scale of each adapter, for requests that set none.
    adapter_scales: Mutex<Vec<f32>>,
    /// Number of requests that run at once.
    pub slots: usize,
    /// Size of the KV cache in tokens.
    pub cache_tokens: usize,
    /// Memory in bytes, with weights and cache.
    memory: u64,
    embedder: Mutex<Option<Embedder>>,
    embedder_config: EmbedderConfig,
    engine_config: EngineConfig,
    /// Time without requests after which the model is unloaded, if a client has set one.
    keep_alive: Mutex<Option<KeepAlive>>,
    backend: Arc<dyn Backend>,
}

/// Running and waiting requests of a model.
#[derive(Default)]
pub struct Running(Mutex<BTreeMap<u64, Arc<Progress>>>);

/// Progress of a request.
#[derive(Debug)]
pub struct Progress {
    /// Number of the request.
    pub id: u64,
    /// Tokens in the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated so far.
    pub generated: AtomicUsize,
    /// Time of arrival.
    pub since: Instant,
}

impl Registry {
    /// A registry of models, none of which is loaded yet.
    pub fn new(
        specs: Vec<ModelSpec>,
        config: Arc<ServerConfig>,
        backend: Arc<dyn Backend>,
    ) -> Registry {
        let entries = specs.into_iter().map(Entry::new).collect();
        let library = config
            .may_manage_models()
            .then(|| Library::new(&config.hub_settings()));
        Registry {
            entries: RwLock::new(entries),
            library,
            any_model: config.any_model,
            loader: Loader { backend, config },
            start: Instant::now(),
        }
    }

    /// All models, loaded or not; the first is the default.
    pub fn entries(&self) -> Vec<Arc<Entry>> {
        self.entries
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Adds a model, or replaces the path of the one with its name. Returns false if the model of this name is in use
    /// with another path.
    pub fn add(&self, spec: ModelSpec) -> bool {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        match entries
            .iter_mut()
            .find(|entry| entry.spec.name == spec.name)
        {
            None => entries.push(Entry::new(spec)),
            Some(entry) if entry.spec.path == spec.path => {}
            Some(entry) if entry.loaded().is_some() => return false,
            Some(entry) => *entry = Entry::new(spec),
        }
        true
    }

    /// Unloads a model and takes it off the list. The last model stays.
    pub async fn remove(&self, name: &str) -> ApiResult<()> {
        let Some(entry) = self.known(name) else {
            return Ok(());
        };
        if self.entries().len() == 1 {
            let message = format!("{name} is the only model of the server and stays");
            return Err(ApiError::bad_request(message));
        }
        if entry.loaded().is_some() && !self.unload(&entry).await {
            return Err(ApiError::unavailable(format!(
                "{name} has running requests"
            )));
        }
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|other| !Arc::ptr_eq(other, &entry));
        Ok(())
    }

    /// The model of this name, if the server offers it.
    fn known(&self, name: &str) -> Option<Arc<Entry>> {
        // Clients of Ollama add the tag.
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let mut entries = self.entries().into_iter();
        entries.find(|entry| entry.spec.name == name || entry.spec.name == plain)
    }

    /// A model of the local library, which is offered from now on.
    fn library_entry(&self, name: &str) -> Option<Arc<Entry>> {
        let matches = self.library.as_ref()?.matching(name);
        let [model] = matches.as_slice() else {
            return None;
        };
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let spec = ModelSpec {
            name: plain.to_owned(),
            path: model.path.clone(),
        };
        self.add(spec);
        self.known(plain)
    }

    /// The model of this name, or the default model. A model of the local library is offered from then on, if clients
    /// may manage models.
    pub fn entry(&self, name: Option<&str>) -> ApiResult<Arc<Entry>> {
        let default = || {
            let first = self.entries().into_iter().next();
            first.ok_or_else(|| ApiError::unavailable("the server has no models"))
        };
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return default();
        };
        match self.known(name).or_else(|| self.library_entry(name)) {
            Some(entry) => Ok(entry),
            None if self.any_model => default(),
            None => {
                let entries = self.entries();
                let known: Vec<&str> = entries.iter().map(|e| e.spec.name.as_str()).collect();
                Err(ApiError::no_model(name, &known.join(", ")))
            }
        }
    }

    /// The model of this name, or the default model; loads it if necessary.
    pub async fn get(&self, name: Option<&str>) -> ApiResult<Arc<Loaded>> {
        let entry = &self.entry(name)?;
        self.touch(entry);
        if let Some(loaded) = entry.loaded() {
            return Ok(loaded);
        }
        let mut slot = entry.slot.lock().await;
        if let Some(loaded) = &*slot {
            return Ok(loaded.clone());
        }
        let loaded = loop {
            let (loader, spec) = (self.loader.clone(), entry.spec.clone());
            let first = self.entries().into_iter().next();
            let is_first = first.is_some_and(|first| Arc::ptr_eq(&first, entry));
            let taken = self.memory_taken(entry);
            let work = move || loader.load(&spec, is_first, taken);
            let result = tokio::task::spawn_blocking(work).await;
            match result.map_err(|panic| {
                ApiError::internal(format!("loading the model panicked: {panic}"))
            })? {
                Ok(loaded) => break Arc::new(loaded),
                Err(error) if is_out_of_memory(&error) && self.unload_one(entry).await => {}
                Err(error) => {
                    tracing::error!(model = entry.spec.name, %error, "loading failed");
                    let message = format!("cannot load model {}: {error}", entry.spec.name);
                    return Err(match is_out_of_memory(&error) {
                        true => ApiError::unavailable(message),
                        false => ApiError::internal(message),
                    });
                }
            }
        };
        tracing::info!(
            model = entry.spec.name,
            slots = loaded.slots,
            cache_tokens = loaded.cache_tokens,
            "model loaded"
        );
        *slot = Some(loaded.clone());
        entry.set_current(Some(loaded.clone()));
        Ok(loaded)
    }

    /// Memory of the loaded models other than `wanted`, in bytes.
    fn memory_taken(&self, wanted: &Arc<Entry>) -> u64 {
        let entries = self.entries();
        let others = entries.iter().filter(|e| !Arc::ptr_eq(e, wanted));
        let loaded = others.filter_map(|entry| entry.loaded());
        loaded.map(|model| model.memory).sum()
    }

    /// Unloads models that were idle for their time: the one that a client has set, or `default`.
    pub async fn unload_idle(&self, default: Option<Duration>) {
        for entry in &self.entries() {
            let limit = entry.loaded().and_then(|model| model.idle_limit(default));
            if limit.is_some_and(|limit| self.idle_for(entry) >= limit) {
                self.unload(entry).await;
            }
        }
    }

    /// Sets the time that a model stays loaded without requests, if it is loaded. With 0, it is unloaded at
    /// once, or after the requests that run.
    pub async fn keep(&self, name: &str, keep_alive: Option<KeepAlive>) -> ApiResult<()> {
        let entry = self.entry(Some(name))?;
        let unload = keep_alive.as_ref().is_some_and(KeepAlive::is_zero);
        if let Some(model) = entry.loaded() {
            model.set_keep_alive(keep_alive);
        }
        if unload {
            self.unload(&entry).await;
        }
        Ok(())
    }

    /// Unloads the least recently used idle model other than `wanted`. Returns false if there is none.
    async fn unload_one(&self, wanted: &Arc<Entry>) -> bool {
        let mut others = self.entries();
        others.retain(|entry| !Arc::ptr_eq(entry, wanted));
        others.sort_by_key(|entry| entry.last_used.load(Ordering::Relaxed));
        for entry in others {
            if self.unload(&entry).await {
                // The engine's thread frees the memory when it ends, a moment later.
                tokio::time::sleep(Duration::from_millis(100)).await;
                return true;
            }
        }
        false
    }

    async fn unload(&self, entry: &Arc<Entry>) -> bool {
        let Ok(mut slot) = entry.slot.try_lock() else {
            return false;
        };
        let idle = |loaded: &Arc<Loaded>| loaded.admission.admitted() == 0;
        if !slot.as_ref().is_some_and(idle) {
            return false;
        }
        *slot = None;
        entry.set_current(None);
        tracing::info!(model = entry.spec.name, "model unloaded");
        true
    }

    fn touch(&self, entry: &Entry) {
        let now = self.start.elapsed().as_millis() as u64;
        entry.last_used.store(now, Ordering::Relaxed);
    }

    fn idle_for(&self, entry: &Entry) -> Duration {
        let used = Duration::from_millis(entry.last_used.load(Ordering::Relaxed));
        self.start.elapsed().saturating_sub(used)
    }

    /// Unloads all models and waits up to `timeout` until their engines have written their caches to disk.
    pub async fn shut_down(&self, timeout: Duration) {
        let mut monitors = Vec::new();
        for entry in &self.entries() {
            let loaded = entry.slot.lock().await.take();
            entry.set_current(None);
            let engine = loaded.as_ref().and_then(|loaded| loaded.engine.as_ref());
            monitors.extend(engine.map(Engine::monitor));
        }
        let deadline = Instant::now() + timeout;
        while !monitors.iter().all(|monitor| monitor.has_ended()) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Metrics of the loaded models.
    pub fn gauges(&self) -> Vec<Gauge> {
        let loaded: Vec<Arc<Loaded>> = self.entries().iter().filter_map(|e| e.loaded()).collect();
        type Read = fn(&oxidize_core::scheduler::Stats) -> f64;
        let stats: [(&'static str, &'static str, Read); 10] = [
            ("oxidize_requests_running", "Running requests.", |s| {
                s.running as f64
            }),
            ("oxidize_requests_waiting", "Queued requests.", |s| {
                s.queued as f64
            }),
            ("oxidize_free_blocks", "Free KV cache blocks.", |s| {
                s.free_blocks as f64
            }),
            (
                "oxidize_cached_blocks",
                "KV cache blocks in the prefix cache.",
                |s| s.cached_blocks as f64,
            ),
            (
                "oxidize_used_blocks",
                "KV cache blocks of running requests.",
                |s| s.used_blocks as f64,
            ),
            ("oxidize_steps_total", "Engine steps.", |s| s.steps as f64),
            (
                "oxidize_computed_tokens_total",
                "Tokens computed, in prompts and answers.",
                |s| s.computed_tokens as f64,
            ),
            (
                "oxidize_engine_generated_tokens_total",
                "Tokens generated, those of running requests included.",
                |s| s.generated_tokens as f64,
            ),
            (
                "oxidize_preemptions_total",
                "Requests preempted and queued again.",
                |s| s.preemptions as f64,
            ),
            (
                "oxidize_engine_cancelled_total",
                "Requests cancelled.",
                |s| s.cancelled as f64,
            ),
        ];
        let mut gauges: Vec<Gauge> = loaded
            .iter()
            .map(|model| Gauge {
                name: "oxidize_model_bytes",
                help: "Memory of a loaded model, with its cache.",
                model: model.name.clone(),
                value: model.memory as f64,
            })
            .collect();
        for (name, help, read) in stats {
            for model in &loaded {
                let Some(engine) = &model.engine else {
                    continue;
                };
                gauges.push(Gauge {
                    name,
                    help,
                    model: model.name.clone(),
                    value: read(&engine.stats()),
                });
            }
        }
        gauges
    }
}

impl Entry {
    /// A model that is not loaded yet.
    fn new(spec: ModelSpec) -> Arc<Entry> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Arc::new(Entry {
            spec,
            created: now.map_or(0, |since| since.as_secs()),
            slot: tokio::sync::Mutex::new(None),
            current: Mutex::new(None),
            last_used: AtomicU64::new(0),
        })
    }

    /// The model, if it is loaded. Does not wait.
    pub fn loaded(&self) -> Option<Arc<Loaded>> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.clone()
    }

    fn set_current(&self, loaded: Option<Arc<Loaded>>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = loaded;
    }
}

impl Loader {
    /// Loads a model beside others that use `taken` bytes.
    fn load(
        &self,
        spec: &ModelSpec,
        is_first: bool,
        taken: u64,
    ) -> oxidize_quantize::Result<Loaded> {
        let settings = &self.config.engine;
        let options = OpenOptions {
            mmap: !settings.no_mmap,
            huge_pages: !settings.no_huge_pages,
            ..OpenOptions::default()
        };
        let file = ModelFile::open(&spec.path, &options)?;
        let mut model = Model::from_file(self.load_quant(file)?)?;
        if is_first && !settings.lora.is_empty() {
            let open = |(path, scale): &(PathBuf, f32)| {
                oxidize_core::Result::Ok((Adapter::open(path, &options)?, *scale))
            };
            let adapters: oxidize_core::Result<_> = settings.lora.iter().map(open).collect();
            model = model.with_adapters(adapters?)?;
        }
        let limit = self.config.limits.memory_limit;
        let left = limit.map(|limit| limit.saturating_mul(1_000_000).saturating_sub(taken));
        let speculation = self.speculation(is_first, &options)?;
        let config = self.engine_config(&model, speculation, left);
        let plan = MemoryPlan::new(&model, self.backend.as_ref(), &config.session(&model));
        if let Some(left) = left {
            plan.check_within(&model, left)
                .map_err(oxidize_core::Error::from)?;
        }
        let template = template(settings.chat_template.as_deref(), &model)?;
        let generates = model.plan().output == OutputKind::Logits;
        let engine = generates
            .then(|| Engine::start(model.clone(), self.backend.clone(), &config))
            .transpose()?;
        Ok(Loaded {
            name: spec.name.clone(),
            template,
            thinking: settings.thinking,
            thinking_budget: settings.thinking_budget,
            drafts: settings.speculation.source.is_some(),
            defaults: model.sampling_defaults(),
            admission: Admission::new(config.max_sequences, self.config.limits.queue),
            running: Running::default(),
            adapter_scales: Mutex::new(model.adapter_scales().to_vec()),
            slots: config.max_sequences,
            cache_tokens: config.cache_tokens.unwrap_or_default(),
            memory: plan.total(),
            embedder: Mutex::new(None),
            embedder_config: EmbedderConfig {
                n_ctx: config.n_ctx,
                max_batch_tokens: config.max_batch_tokens,
                normalize: true,
                repack: settings.repack,
                n_threads: settings.threads,
                ..EmbedderConfig::default()
            },
            engine_config: config,
            keep_alive: Mutex::new(None),
            backend: self.backend.clone(),
            engine,
            model,
        })
    }

    /// Speculation of a model. Every engine can draft from n-grams, for requests with a predicted answer; the
    /// draft model is that of the first model.
    fn speculation(
        &self,
        is_first: bool,
        options: &OpenOptions,
    ) -> oxidize_core::Result<Speculation> {
        let settings = &self.config.engine.speculation;
        let source = match &settings.source {
            Some(DraftSettings::Model(path)) if is_first => {
                DraftSource::Model(Model::load_with(path, options)?)
            }
            _ => DraftSource::Ngram,
        };
        let default = Speculation::new(source);
        Ok(Speculation {
            max_tokens: settings.max_tokens.unwrap_or(default.max_tokens),
            min_tokens: settings.min_tokens.unwrap_or(default.min_tokens),
            min_probability: settings.min_probability.unwrap_or(default.min_probability),
            always: settings.always,
            ..default
        })
    }

    /// Quantizes the weights if `--quantize` is set.
    fn load_quant(&self, file: ModelFile) -> oxidize_quantize::Result<ModelFile> {
        let LoadQuant { quantize, imatrix } = &self.config.engine.load_quant;
        let Some(recipe) = *quantize else {
            return Ok(file);
        };
        let importance = imatrix.as_deref().map(Importance::load).transpose()?;
        let mut workers = Workers::default();
        workers.threads = self.config.engine.threads.unwrap_or(workers.threads).max(1);
        tracing::info!(to = recipe.name, "quantizing the weights");
        quantized(&file, recipe, importance.as_ref(), &workers, |_| {})
    }

    /// Configuration for `model`, whose memory may be limited to `left` bytes.
    fn engine_config(
        &self,
        model: &Model,
        speculation: Speculation,
        left: Option<u64>,
    ) -> EngineConfig {
        let settings = &self.config.engine;
        let config = EngineConfig {
            n_ctx: settings.ctx_size.map(|n_ctx| match n_ctx {
                0 => model.hparams().n_ctx_train,
                n_ctx => n_ctx,
            }),
            cache_tokens: settings.cache_tokens,
            speculation: Some(speculation),
            max_batch_tokens: settings.batch_size.max(1),
            max_sequences: settings.parallel.max(1),
            scored_tokens: SCORED_TOKENS,
            max_queue: self
                .config
                .limits
                .queue
                .saturating_add(settings.parallel.max(1)),
            key_type: settings.cache_type_k,
            value_type: settings.cache_type_v,
            repack: settings.repack,
            n_threads: settings.threads,
            check_memory: !settings.no_memory_check,
            deterministic: settings.deterministic,
            disk: settings.cache_dir.clone().map(|directory| DiskCache {
                directory,
                limit: settings.cache_dir_size.saturating_mul(1_000_000_000),
            }),
            ..EngineConfig::default()
        };
        let available = [available_memory(), left].into_iter().flatten().min();
        let mut config = config.fit_context(model, self.backend.as_ref(), available);
        let context = config.context(model);
        let trained = model.hparams().n_ctx_train;
        if settings.ctx_size.is_none() && context < trained {
            tracing::info!("context of {context} tokens of {trained}, as memory allows");
        }
        let one = EngineConfig {
            cache_tokens: None,
            ..config.clone()
        };
        let one = CacheSize::new(model.plan(), &one.session(model));
        let one = one.total().max(1);
        let room = available.map_or(u64::MAX, |bytes| bytes / 4 / one);
        let contexts = (config.max_sequences as u64).min(room).max(1) as usize;
        let cache_tokens = settings
            .cache_tokens
            .unwrap_or(context.saturating_mul(contexts));
        // A request may use the whole context, whatever --cache-tokens says.
        config.cache_tokens = Some(cache_tokens.max(context));
        config
    }
}

fn is_out_of_memory(error: &oxidize_quantize::Error) -> bool {
    use oxidize_core::Error::Model;
    matches!(
        error,
        oxidize_quantize::Error::Core(Model(ModelError::OutOfMemory { .. }))
    )
}

/// The chat template of the command line, the model's own, or ChatML.
fn template(given: Option<&str>, model: &Model) -> oxidize_core::Result<ChatTemplate> {
    let options = ChatOptions::default();
    if let Some(given) = given {
        if let Ok(source) = std::fs::read_to_string(given) {
            return Ok(ChatTemplate::new(&source, options)?);
        }
        return Ok(ChatTemplate::builtin(given, options)?);
    }
    match model.chat_template() {
        Ok(Some(template)) => Ok(template),
        Ok(None) => Ok(ChatTemplate::builtin("chatml", options)?),
        Err(error) => {
            // Completions and embeddings need no template.
            tracing::warn!(%error, "the model's chat template is invalid; using ChatML");
            Ok(ChatTemplate::builtin("chatml", options)?)
        }
    }
}

impl Loaded {
    /// The engine; an error for models that do not generate text.
    pub fn engine(&self) -> ApiResult<&Engine> {
        let engine = self.engine.as_ref();
        engine.ok_or_else(|| {
            ApiError::not_supported(format!("model {} does not generate text", self.name))
        })
    }

    /// Sets the time without requests after which the model is unloaded, for as long as it is loaded. `None`
    /// leaves it as it is.
    pub fn set_keep_alive(&self, keep_alive: Option<KeepAlive>) {
        if keep_alive.is_some() {
            let mut current = self
                .keep_alive
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *current = keep_alive;
        }
    }

    /// The time without requests after which the model is unloaded; `default` if no client has set one.
    fn idle_limit(&self, default: Option<Duration>) -> Option<Duration> {
        let current = self
            .keep_alive
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match current.as_ref().map(KeepAlive::duration) {
            Some(Ok(limit)) => limit,
            _ => default,
        }
    }

    /// Configuration of the engine.
    pub fn engine_config(&self) -> &EngineConfig {
        &self.engine_config
    }

    /// The backend.
    pub fn backend(&self) -> &dyn Backend {
        self.backend.as_ref()
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> ApiResult<&Tokenizer> {
        Ok(self.model.tokenizer()?)
    }

    /// Context size: maximum number of tokens of a request, prompt and answer together.
    pub fn n_ctx(&self) -> usize {
        self.engine.as_ref().map_or(0, Engine::n_ctx)
    }

    /// Default scale of each adapter.
    pub fn adapter_scales(&self) -> Vec<f32> {
        let scales = self
            .adapter_scales
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        scales.clone()
    }

    /// Sets the default scale of each adapter, for later requests.
    pub fn set_adapter_scales(&self, scales: Vec<f32>) {
        *self
            .adapter_scales
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = scales;
    }

    /// Normalized embeddings of texts. Blocks.
    pub fn embed(&self, texts: &[Vec<u32>]) -> ApiResult<Vec<Vec<f32>>> {
        self.with_embedder(|embedder| embedder.embed_tokens(texts))
    }

    /// True if the model is a cross-encoder, which scores pairs of texts.
    pub fn is_reranker(&self) -> bool {
        self.model.plan().output == OutputKind::Scores
    }

    /// Scores of pairs of texts by a cross-encoder. Blocks.
    pub fn score(&self, pairs: &[TokenPair]) -> ApiResult<Vec<Vec<f32>>> {
        self.with_embedder(|embedder| embedder.embed_token_pairs(pairs))
    }

    fn with_embedder(
        &self,
        work: impl FnOnce(&mut Embedder) -> oxidize_core::Result<Vec<Vec<Vec<f32>>>>,
    ) -> ApiResult<Vec<Vec<f32>>> {
        let mut embedder = self.embedder.lock().unwrap_or_else(|poisoned| {
            // A panic may have left it in an invalid state: it is replaced.
            let mut embedder = poisoned.into_inner();
            *embedder = None;
            embedder
        });
        let embedder = match &mut *embedder {
            Some(embedder) => embedder,
            none => none.insert(Embedder::with_backend(
                &self.model,
                self.backend.as_ref(),
                &self.embedder_config,
            )?),
        };
        let vectors = work(embedder)?.into_iter();
        vectors
            .map(|text| {
                let vector = text.into_iter().next();
                vector.ok_or_else(|| ApiError::internal("the model returned no embedding"))
            })
            .collect()
    }
}

impl Running {
    /// Adds a request.
    pub fn insert(&self, progress: Arc<Progress>) {
        self.lock().insert(progress.id, progress);
    }

    /// Removes a request.
    pub fn remove(&self, id: u64) {
        self.lock().remove(&id);
    }

    /// All requests, oldest first.
    pub fn list(&self) -> Vec<Arc<Progress>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<Progress>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
