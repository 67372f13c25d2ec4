//! The arguments that every verb which runs a model shares, and the way from them to an engine.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{ActivationRounding, KvType};
use oxidize_core::engine::{Engine, EngineConfig, EngineHandle};
use oxidize_core::file::{ModelFile, OpenOptions, SpellOut};
use oxidize_core::lora::Adapter;
use oxidize_core::model::Model;
use oxidize_quantize::commands::on_the_way_in::OnTheWayIn;
use oxidize_quantize::commands::progress::Meter;
use oxidize_quantize::commands::{importance, threads};
use oxidize_quantize::encode::Workers;
use oxidize_quantize::evaluate::Settings;
use oxidize_quantize::in_memory::quantized;
use oxidize_quantize::remark;

use crate::speculation_args::SpeculationArgs;
use crate::style;

/// Which model, and how it is run.
#[derive(Args, Clone)]
pub(crate) struct ModelArgs {
    /// Most tokens of context, prompt and answer together; 0 is the model's own limit [default: the
    /// model's limit, at most 4096]
    #[arg(
        short = 'c',
        long = "ctx-size",
        value_name = "N",
        env = "OXIDIZE_CTX_SIZE"
    )]
    pub(crate) ctx_size: Option<usize>,
    /// Threads [default: all cores]
    #[arg(short = 't', long, value_name = "N", env = "OXIDIZE_THREADS", value_parser = threads)]
    pub(crate) threads: Option<usize>,
    /// Most tokens that are computed in one step
    #[arg(short = 'b', long, visible_aliases = ["ubatch-size", "ub"], value_name = "N", default_value_t = 512, env = "OXIDIZE_BATCH_SIZE")]
    pub(crate) batch_size: usize,
    /// How the cache keeps keys: f32, f16, q8_0 or q4_0
    #[arg(long = "cache-type-k", visible_alias = "ctk", value_name = "TYPE", default_value = "f16", value_parser = kv_type, env = "OXIDIZE_CACHE_TYPE_K")]
    pub(crate) cache_type_k: KvType,
    /// How the cache keeps values: f32, f16, q8_0 or q4_0
    #[arg(long = "cache-type-v", visible_alias = "ctv", value_name = "TYPE", default_value = "f16", value_parser = kv_type, env = "OXIDIZE_CACHE_TYPE_V")]
    pub(crate) cache_type_v: KvType,
    /// Read the file instead of mapping it into memory
    #[arg(long, env = "OXIDIZE_NO_MMAP")]
    pub(crate) no_mmap: bool,
    /// Do not move the mapped file to huge pages, which are read faster but not shared with others
    #[arg(long, env = "OXIDIZE_NO_HUGE_PAGES")]
    pub(crate) no_huge_pages: bool,
    /// MiB that weights of IQ1, IQ2 and IQ3 types may grow by when they are rewritten in memory to be faster, all or off
    #[arg(
        long,
        value_name = "MIB|all|off",
        default_value_t,
        env = "OXIDIZE_SPELL_OUT"
    )]
    pub(crate) spell_out: SpellOut,
    #[command(flatten)]
    pub(crate) adapters: AdapterArgs,
    #[command(flatten)]
    pub(crate) on_the_way_in: OnTheWayIn,
    /// Run the model even if it seems not to fit in memory
    #[arg(long)]
    pub(crate) no_memory_check: bool,
}

/// How exactly a model is measured.
#[derive(Args, Clone)]
pub(crate) struct MeasureArgs {
    /// How activations are rounded before they meet quantised weights
    #[arg(long, value_enum, default_value_t)]
    pub(crate) activations: Rounding,
}

/// How activations are rounded, where a model is measured.
#[derive(clap::ValueEnum, Clone, Copy, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Rounding {
    /// As whenever the model runs: 32 share a scale
    #[default]
    Fine,
    /// As llama.cpp does: 256 share a scale where weights come in blocks of 256, as those of K and IQ types
    Coarse,
    /// Not at all, which takes longer
    Float,
}

impl MeasureArgs {
    /// How the arguments would have a model run.
    pub(crate) fn settings(&self, model_args: &ModelArgs) -> Settings {
        Settings {
            activations: match self.activations {
                Rounding::Fine => ActivationRounding::Fine,
                Rounding::Coarse => ActivationRounding::Coarse,
                Rounding::Float => ActivationRounding::Float,
            },
            ..model_args.evaluation()
        }
    }
}

/// What is added to the model.
#[derive(Args, Clone, Default)]
pub(crate) struct AdapterArgs {
    /// Add a LoRA adapter: a GGUF adapter or a PEFT directory; may be given several times
    #[arg(long, value_name = "PATH", env = "OXIDIZE_LORA", value_delimiter = ',')]
    lora: Vec<PathBuf>,
    /// Add a LoRA adapter with this strength; may be given several times
    #[arg(long, value_name = "PATH:SCALE", value_delimiter = ',', value_parser = scaled_adapter)]
    lora_scaled: Vec<(PathBuf, f32)>,
}

/// What `-c` is to verbs that read a text in chunks.
pub(crate) fn size_of_chunks(ctx_size: clap::Arg) -> clap::Arg {
    ctx_size.help(
        "Tokens of a chunk; 0 is the model's own limit [default: 512, or the model's limit where that is less]",
    )
}

pub(crate) fn kv_type(name: &str) -> Result<KvType, String> {
    let known = KvType::ALL.into_iter();
    let found = known
        .clone()
        .find(|ty| ty.tensor_type().name().eq_ignore_ascii_case(name));
    found.ok_or_else(|| {
        let names: Vec<String> = known
            .map(|ty| ty.tensor_type().name().to_lowercase())
            .collect();
        format!("known types are {}", names.join(", "))
    })
}

fn scaled_adapter(given: &str) -> Result<(PathBuf, f32), String> {
    let (path, scale) = given.rsplit_once(':').ok_or("expected PATH:SCALE")?;
    let number: Option<f32> = scale.parse().ok().filter(|scale: &f32| scale.is_finite());
    let scale = number.ok_or_else(|| format!("{scale:?} is not a number"))?;
    Ok((path.into(), scale))
}

impl ModelArgs {
    /// Opens a model, showing progress where someone watches.
    pub(crate) fn load(&self, path: &PathBuf) -> anyhow::Result<Model> {
        let progress = std::io::stderr().is_terminal().then(|| {
            let bar = indicatif::ProgressBar::new(0).with_message("loading");
            bar.set_style(bar_style());
            bar
        });
        let shown = progress.clone();
        let options = OpenOptions {
            mmap: !self.no_mmap,
            huge_pages: !self.no_huge_pages,
            spell_out: self.spell_out,
            progress: shown.map(|bar| -> oxidize_core::file::Progress {
                Arc::new(move |done, total| {
                    bar.set_length(total);
                    bar.set_position(done);
                })
            }),
            ..OpenOptions::default()
        };
        let model = ModelFile::open(path, &options)
            .map_err(anyhow::Error::from)
            .and_then(|file| self.on_the_way_in(file))
            .and_then(|file| Ok(Model::from_file(file)?));
        if let Some(bar) = progress {
            bar.finish_and_clear();
        }
        self.with_adapters(model?)
    }

    /// The same, for a model that nothing is added to and that is not quantised.
    pub(crate) fn as_it_is(&self) -> ModelArgs {
        ModelArgs {
            adapters: AdapterArgs::default(),
            on_the_way_in: OnTheWayIn::default(),
            ..self.clone()
        }
    }

    /// The file, or what it becomes when it is quantised without a file.
    fn on_the_way_in(&self, file: ModelFile) -> anyhow::Result<ModelFile> {
        let OnTheWayIn { quantize, imatrix } = &self.on_the_way_in;
        let Some(mix) = *quantize else {
            return Ok(file);
        };
        let known = importance(imatrix.as_deref())?;
        let mut workers = Workers::default();
        workers.threads = self.threads.unwrap_or(workers.threads).max(1);
        let meter = Meter::new();
        let made = quantized(&file, mix, known.as_ref(), &workers, |at| meter.show(at));
        meter.finish();
        Ok(made?)
    }

    /// The model with the adapters that were asked for.
    fn with_adapters(&self, model: Model) -> anyhow::Result<Model> {
        let plain = self.adapters.lora.iter().map(|path| (path.as_path(), 1.0));
        let scaled = self.adapters.lora_scaled.iter();
        let asked: Vec<(&Path, f32)> = plain
            .chain(scaled.map(|(path, scale)| (path.as_path(), *scale)))
            .collect();
        if asked.is_empty() {
            return Ok(model);
        }
        let options = OpenOptions {
            mmap: !self.no_mmap,
            ..OpenOptions::default()
        };
        let open = |(path, scale)| anyhow::Ok((Adapter::open(path, &options)?, scale));
        let adapters = asked.into_iter().map(open).collect::<Result<_, _>>()?;
        Ok(model.with_adapters(adapters)?)
    }

    /// The context that was asked for, if one was.
    pub(crate) fn context(&self, model: &Model) -> Option<usize> {
        self.ctx_size.map(|n_ctx| match n_ctx {
            0 => model.hparams().n_ctx_train,
            n_ctx => n_ctx,
        })
    }

    /// The engine settings that the arguments ask for.
    pub(crate) fn config(&self, model: &Model) -> EngineConfig {
        EngineConfig {
            n_ctx: self.context(model),
            max_batch_tokens: self.batch_size.max(1),
            max_sequences: 1,
            key_type: self.cache_type_k,
            value_type: self.cache_type_v,
            n_threads: self.threads,
            check_memory: !self.no_memory_check,
            ..EngineConfig::default()
        }
    }

    /// How the arguments would have a model run outside of an engine.
    pub(crate) fn evaluation(&self) -> Settings {
        Settings {
            batch_size: self.batch_size,
            key_type: self.cache_type_k,
            value_type: self.cache_type_v,
            activations: ActivationRounding::default(),
            threads: self.threads,
            check_memory: !self.no_memory_check,
        }
    }

    /// Starts an engine on the processor.
    pub(crate) fn engine(
        &self,
        model: Model,
        speculation: &SpeculationArgs,
    ) -> anyhow::Result<EngineHandle> {
        let config = speculation.apply(self.config(&model), self)?;
        Ok(Engine::start(model, Arc::new(Cpu::default()), &config)?)
    }
}

fn bar_style() -> indicatif::ProgressStyle {
    indicatif::ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes}")
        .unwrap_or_else(|_| indicatif::ProgressStyle::default_bar())
}

/// Where models are kept that were fetched: `OXIDIZE_TEST_CACHE`, or the user's cache folder.
fn cache_folder() -> Option<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let folder = set("OXIDIZE_TEST_CACHE").or_else(|| {
        let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
        Some(cache.join("oxidize"))
    })?;
    Some(folder.join("models"))
}

/// The model that is used where none is named.
const DEFAULT_MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// The path of the model that someone named: a path, or the name of a file in the cache; the
/// default model where nothing was named.
pub(crate) fn find_model(name: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(path) = name {
        if path.exists() {
            return Ok(path);
        }
        let cached = |folder: PathBuf| {
            let with_ending = folder.join(format!("{}.gguf", path.display()));
            [folder.join(&path), with_ending]
                .into_iter()
                .find(|path| path.exists())
        };
        let is_name = path.components().count() == 1;
        return cache_folder()
            .filter(|_| is_name)
            .and_then(cached)
            .with_context(|| format!("{}: no such file or directory", path.display()));
    }
    let path = cache_folder()
        .map(|folder| folder.join(DEFAULT_MODEL))
        .filter(|path| path.exists());
    let path = path
        .context("no model was named, and the default one is not here: `make setup` fetches it")?;
    let dim = style::for_stderr().dim;
    remark!("{dim}using {}{dim:#}", path.display());
    Ok(path)
}
