//! The models that are served: [`Registry`] loads one on first use and lets go of it when it is idle and memory is
//! short, or when it has been idle for long.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use oxidize_core::backend::Backend;
use oxidize_core::chat::{AnswerFormat, ChatOptions, ChatTemplate};
use oxidize_core::embedding::{Embedder, EmbedderConfig};
use oxidize_core::engine::{DiskCache, Engine, EngineConfig, EngineHandle};
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::graph::Gives;
use oxidize_core::lora::Adapter;
use oxidize_core::model::{MemoryPlan, Model, ModelError, available_memory};
use oxidize_core::sampling::SamplingParams;
use oxidize_core::tokenizer::{TokenPair, Tokenizer};
use oxidize_quantize::commands::on_the_way_in::OnTheWayIn;
use oxidize_quantize::encode::Workers;
use oxidize_quantize::importance::Importance;
use oxidize_quantize::in_memory::quantized;

use crate::config::{ModelSpec, ServeArgs};
use crate::error::{ApiError, ApiResult};
use crate::limits::Admission;
use crate::metrics::Gauge;

/// All models that can be asked for.
pub struct Registry {
    entries: Vec<Arc<Entry>>,
    loader: Loader,
    start: Instant,
    any_model: bool,
}

/// What loading needs.
#[derive(Clone)]
struct Loader {
    backend: Arc<dyn Backend>,
    args: Arc<ServeArgs>,
}

/// A model, loaded or not.
pub struct Entry {
    /// What clients call it and where it is.
    pub spec: ModelSpec,
    /// When it was registered, in seconds since 1970.
    pub created: u64,
    /// Taken while loading, so that a model is loaded once however many ask for it.
    slot: tokio::sync::Mutex<Option<Arc<Loaded>>>,
    /// The same for those who must not wait.
    shown: Mutex<Option<Arc<Loaded>>>,
    /// Milliseconds after the registry's start.
    last_used: AtomicU64,
}

/// A model that runs.
pub struct Loaded {
    /// What clients call it.
    pub name: String,
    model: Model,
    engine: Option<EngineHandle>,
    /// The model's own template, the one given on the command line, or ChatML.
    pub template: ChatTemplate,
    /// How its answers mark reasoning and calls.
    pub format: AnswerFormat,
    /// How its authors would have tokens chosen.
    pub defaults: SamplingParams,
    /// Who may come in.
    pub admission: Arc<Admission>,
    /// What is being answered.
    pub running: Running,
    /// How strongly each adapter counts where a request does not say.
    adapter_scales: Mutex<Vec<f32>>,
    /// How many run at once.
    pub slots: usize,
    /// Tokens that the KV cache holds.
    pub cache_tokens: usize,
    /// Bytes that it takes, weights and cache and all.
    memory: u64,
    embedder: Mutex<Option<Embedder>>,
    embedder_config: EmbedderConfig,
    backend: Arc<dyn Backend>,
}

/// The requests of a model that run or wait, for those who watch.
#[derive(Default)]
pub struct Running(Mutex<BTreeMap<u64, Arc<Progress>>>);

/// How far a request is.
#[derive(Debug)]
pub struct Progress {
    /// Its number.
    pub id: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens of its answer so far.
    pub generated: AtomicUsize,
    /// When it came.
    pub since: Instant,
}

impl Registry {
    /// A registry of these models, none of which is loaded yet.
    pub fn new(specs: Vec<ModelSpec>, args: Arc<ServeArgs>, backend: Arc<dyn Backend>) -> Registry {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let created = now.map_or(0, |since| since.as_secs());
        let entry = |spec| {
            Arc::new(Entry {
                spec,
                created,
                slot: tokio::sync::Mutex::new(None),
                shown: Mutex::new(None),
                last_used: AtomicU64::new(0),
            })
        };
        Registry {
            entries: specs.into_iter().map(entry).collect(),
            any_model: args.any_model,
            loader: Loader { backend, args },
            start: Instant::now(),
        }
    }

    /// Every model, loaded or not; the first is the default.
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// The model of this name; the default where none is given.
    pub fn entry(&self, name: Option<&str>) -> ApiResult<&Arc<Entry>> {
        let default = || {
            let first = self.entries.first();
            first.ok_or_else(|| ApiError::unavailable("no model is served"))
        };
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return default();
        };
        // Ollama's clients add a tag.
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let found = self
            .entries
            .iter()
            .find(|entry| entry.spec.name == name || entry.spec.name == plain);
        match found {
            Some(entry) => Ok(entry),
            None if self.any_model => default(),
            None => {
                let known: Vec<&str> = self.entries.iter().map(|e| e.spec.name.as_str()).collect();
                Err(ApiError::no_model(name, &known.join(", ")))
            }
        }
    }

    /// The model of this name, loaded if it is not yet.
    pub async fn get(&self, name: Option<&str>) -> ApiResult<Arc<Loaded>> {
        let entry = self.entry(name)?;
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
            let is_first = self
                .entries
                .first()
                .is_some_and(|first| Arc::ptr_eq(first, entry));
            let taken = self.memory_taken(entry);
            let work = move || loader.load(&spec, is_first, taken);
            let result = tokio::task::spawn_blocking(work).await;
            match result.map_err(|panic| ApiError::internal(format!("loading failed: {panic}")))? {
                Ok(loaded) => break Arc::new(loaded),
                Err(error) if is_out_of_memory(&error) && self.unload_one(entry).await => {}
                Err(error) => {
                    tracing::error!(model = entry.spec.name, %error, "cannot load");
                    let message = format!("cannot load {}: {error}", entry.spec.name);
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
            "loaded"
        );
        *slot = Some(loaded.clone());
        entry.show(Some(loaded.clone()));
        Ok(loaded)
    }

    /// Bytes that the loaded models take, other than `wanted`.
    fn memory_taken(&self, wanted: &Arc<Entry>) -> u64 {
        let others = self.entries.iter().filter(|e| !Arc::ptr_eq(e, wanted));
        let loaded = others.filter_map(|entry| entry.loaded());
        loaded.map(|model| model.memory).sum()
    }

    /// Lets go of models that were not used for `patience`.
    pub async fn unload_idle(&self, patience: Duration) {
        for entry in &self.entries {
            if self.idle_for(entry) >= patience {
                self.unload(entry).await;
            }
        }
    }

    /// Lets go of the idle model that was used longest ago, other than `wanted`.
    async fn unload_one(&self, wanted: &Arc<Entry>) -> bool {
        let mut others: Vec<_> = self
            .entries
            .iter()
            .filter(|e| !Arc::ptr_eq(e, wanted))
            .collect();
        others.sort_by_key(|entry| entry.last_used.load(Ordering::Relaxed));
        for entry in others {
            if self.unload(entry).await {
                // The engine's thread gives its memory back when it notices.
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
        let idle = |loaded: &Arc<Loaded>| loaded.admission.inside() == 0;
        if !slot.as_ref().is_some_and(idle) {
            return false;
        }
        *slot = None;
        entry.show(None);
        tracing::info!(model = entry.spec.name, "unloaded");
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

    /// Lets go of every model, and waits up to `patience` until what their engines hold is on disk.
    pub async fn shut_down(&self, patience: Duration) {
        let mut monitors = Vec::new();
        for entry in &self.entries {
            let loaded = entry.slot.lock().await.take();
            entry.show(None);
            let engine = loaded.as_ref().and_then(|loaded| loaded.engine.as_ref());
            monitors.extend(engine.map(EngineHandle::monitor));
        }
        let deadline = Instant::now() + patience;
        while !monitors.iter().all(|monitor| monitor.has_ended()) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What the loaded models say of themselves.
    pub fn gauges(&self) -> Vec<Gauge> {
        let loaded: Vec<Arc<Loaded>> = self.entries.iter().filter_map(|e| e.loaded()).collect();
        type Read = fn(&oxidize_core::scheduler::Stats) -> f64;
        let stats: [(&'static str, &'static str, Read); 10] = [
            ("oxidize_running", "Requests that run.", |s| {
                s.running as f64
            }),
            ("oxidize_queued", "Requests that wait.", |s| s.queued as f64),
            ("oxidize_free_blocks", "KV blocks that hold nothing.", |s| {
                s.free_blocks as f64
            }),
            (
                "oxidize_cached_blocks",
                "KV blocks that can be found again.",
                |s| s.cached_blocks as f64,
            ),
            (
                "oxidize_used_blocks",
                "KV blocks of running requests.",
                |s| s.used_blocks as f64,
            ),
            ("oxidize_steps_total", "Steps computed.", |s| s.steps as f64),
            ("oxidize_computed_tokens_total", "Tokens computed.", |s| {
                s.computed_tokens as f64
            }),
            (
                "oxidize_engine_generated_tokens_total",
                "Tokens generated so far.",
                |s| s.generated_tokens as f64,
            ),
            (
                "oxidize_preemptions_total",
                "Requests sent back to the queue.",
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
                help: "Memory that a model takes, with its cache.",
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
    /// The model, if it is loaded.
    pub fn loaded(&self) -> Option<Arc<Loaded>> {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.clone()
    }

    fn show(&self, loaded: Option<Arc<Loaded>>) {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = loaded;
    }
}

impl Loader {
    /// Loads a model while others take `taken` bytes.
    fn load(
        &self,
        spec: &ModelSpec,
        is_first: bool,
        taken: u64,
    ) -> oxidize_quantize::Result<Loaded> {
        let args = &self.args.engine;
        let options = OpenOptions {
            mmap: !args.no_mmap,
            huge_pages: !args.no_huge_pages,
            spell_out: args.spell_out,
            ..OpenOptions::default()
        };
        let file = ModelFile::open(&spec.path, &options)?;
        let mut model = Model::from_file(self.on_the_way_in(file)?)?;
        if is_first && !args.lora.is_empty() {
            let open = |(path, scale): &(PathBuf, f32)| {
                oxidize_core::Result::Ok((Adapter::open(path, &options)?, *scale))
            };
            let adapters: oxidize_core::Result<_> = args.lora.iter().map(open).collect();
            model = model.with_adapters(adapters?)?;
        }
        let config = self.engine_config(&model);
        let plan = MemoryPlan::new(&model, &config.session(&model));
        if let Some(limit) = self.args.limits.memory_limit {
            let left = limit.saturating_mul(1_000_000).saturating_sub(taken);
            plan.check_within(&model, left)
                .map_err(oxidize_core::Error::from)?;
        }
        let template = template(args.chat_template.as_deref(), &model)?;
        let generates = model.plan().gives == Gives::Logits;
        let engine = generates
            .then(|| Engine::start(model.clone(), self.backend.clone(), &config))
            .transpose()?;
        Ok(Loaded {
            name: spec.name.clone(),
            format: AnswerFormat::of(&template),
            template,
            defaults: model.sampling_defaults(),
            admission: Admission::new(config.max_sequences, self.args.limits.queue),
            running: Running::default(),
            adapter_scales: Mutex::new(model.adapter_strengths().to_vec()),
            slots: config.max_sequences,
            cache_tokens: config.cache_tokens.unwrap_or_default(),
            memory: plan.total(),
            embedder: Mutex::new(None),
            embedder_config: EmbedderConfig {
                n_ctx: config.n_ctx,
                max_batch_tokens: config.max_batch_tokens,
                normalize: true,
                n_threads: args.threads,
                ..EmbedderConfig::default()
            },
            backend: self.backend.clone(),
            engine,
            model,
        })
    }

    /// The file, or what it becomes when it is quantised.
    fn on_the_way_in(&self, file: ModelFile) -> oxidize_quantize::Result<ModelFile> {
        let OnTheWayIn { quantize, imatrix } = &self.args.engine.on_the_way_in;
        let Some(mix) = *quantize else {
            return Ok(file);
        };
        let known = imatrix.as_deref().map(Importance::load).transpose()?;
        let mut workers = Workers::default();
        workers.threads = self.args.engine.threads.unwrap_or(workers.threads).max(1);
        tracing::info!(to = mix.name, "quantising the weights");
        quantized(&file, mix, known.as_ref(), &workers, |_| {})
    }

    fn engine_config(&self, model: &Model) -> EngineConfig {
        let args = &self.args.engine;
        let mut config = EngineConfig {
            n_ctx: args.ctx_size.map(|n_ctx| match n_ctx {
                0 => model.hparams().n_ctx_train,
                n_ctx => n_ctx,
            }),
            max_batch_tokens: args.batch_size.max(1),
            max_sequences: args.parallel.max(1),
            max_queue: self.args.limits.queue.saturating_add(args.parallel.max(1)),
            key_type: args.cache_type_k,
            value_type: args.cache_type_v,
            n_threads: args.threads,
            check_memory: !args.no_memory_check,
            deterministic: args.deterministic,
            disk: args.cache_dir.clone().map(|folder| DiskCache {
                folder,
                limit: args.cache_dir_size.saturating_mul(1_000_000_000),
            }),
            ..EngineConfig::default()
        };
        let context = config.context(model);
        let one = MemoryPlan::new(model, &config.session(model)).cache.max(1);
        let room = available_memory().map_or(u64::MAX, |bytes| bytes / 4 / one);
        let contexts = (config.max_sequences as u64).min(room).max(1) as usize;
        let asked = args
            .cache_tokens
            .unwrap_or(context.saturating_mul(contexts));
        // A request may be as long as the context says, whatever the cache was given.
        config.cache_tokens = Some(asked.max(context));
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

/// The template that was asked for, the model's own, or the most common one.
fn template(asked: Option<&str>, model: &Model) -> oxidize_core::Result<ChatTemplate> {
    let options = ChatOptions::default();
    if let Some(asked) = asked {
        if let Ok(source) = std::fs::read_to_string(asked) {
            return Ok(ChatTemplate::new(&source, options)?);
        }
        return Ok(ChatTemplate::builtin(asked, options)?);
    }
    match model.chat_template() {
        Ok(Some(template)) => Ok(template),
        Ok(None) => Ok(ChatTemplate::builtin("chatml", options)?),
        Err(error) => {
            // Completions and embeddings work all the same.
            tracing::warn!(%error, "the model's chat template cannot be used, ChatML is");
            Ok(ChatTemplate::builtin("chatml", options)?)
        }
    }
}

impl Loaded {
    /// The model's engine; an error for those that only make embeddings.
    pub fn engine(&self) -> ApiResult<&EngineHandle> {
        let engine = self.engine.as_ref();
        engine
            .ok_or_else(|| ApiError::not_supported(format!("{} does not generate text", self.name)))
    }

    /// The model itself.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> ApiResult<&Tokenizer> {
        Ok(self.model.tokenizer()?)
    }

    /// Most tokens of a request.
    pub fn n_ctx(&self) -> usize {
        self.engine.as_ref().map_or(0, EngineHandle::n_ctx)
    }

    /// How strongly each adapter counts where a request does not say.
    pub fn adapter_scales(&self) -> Vec<f32> {
        let scales = self
            .adapter_scales
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        scales.clone()
    }

    /// Sets that, for requests from now on.
    pub fn set_adapter_scales(&self, scales: Vec<f32>) {
        *self
            .adapter_scales
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = scales;
    }

    /// Embeddings of texts, of length one. Takes a while: not for threads that serve others.
    pub fn embed(&self, texts: &[Vec<u32>]) -> ApiResult<Vec<Vec<f32>>> {
        self.with_embedder(|embedder| embedder.embed(texts))
    }

    /// Whether the model judges pairs of texts instead of giving each a vector.
    pub fn is_classifier(&self) -> bool {
        self.model.plan().gives == Gives::Scores
    }

    /// What the model's classifier gives each pair of texts. Takes as long as [`Loaded::embed`].
    pub fn judge(&self, pairs: &[TokenPair]) -> ApiResult<Vec<Vec<f32>>> {
        self.with_embedder(|embedder| embedder.embed_pairs(pairs))
    }

    fn with_embedder(
        &self,
        work: impl FnOnce(&mut Embedder) -> oxidize_core::Result<Vec<Vec<Vec<f32>>>>,
    ) -> ApiResult<Vec<Vec<f32>>> {
        let mut embedder = self.embedder.lock().unwrap_or_else(|poisoned| {
            // A panic left it half done: a new one is made.
            let mut embedder = poisoned.into_inner();
            *embedder = None;
            embedder
        });
        let embedder = match &mut *embedder {
            Some(embedder) => embedder,
            none => none.insert(Embedder::new(
                &self.model,
                self.backend.as_ref(),
                &self.embedder_config,
            )?),
        };
        let vectors = work(embedder)?.into_iter();
        vectors
            .map(|text| {
                let vector = text.into_iter().next();
                vector.ok_or_else(|| ApiError::internal("a text without an embedding"))
            })
            .collect()
    }
}

impl Running {
    /// Takes note of a new request.
    pub fn insert(&self, progress: Arc<Progress>) {
        self.lock().insert(progress.id, progress);
    }

    /// Forgets a request.
    pub fn remove(&self, id: u64) {
        self.lock().remove(&id);
    }

    /// Those that are there, oldest first.
    pub fn list(&self) -> Vec<Arc<Progress>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<Progress>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
