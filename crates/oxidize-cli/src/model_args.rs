//! [`ModelArgs`]: arguments of all subcommands that run a model, and the engine configuration made of them.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{ActivationQuant, KvType, RepackLimit};
use oxidize_core::engine::{Engine, EngineConfig};
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::io::available_memory;
use oxidize_core::lora::Adapter;
use oxidize_core::model::Model;
use oxidize_quantize::evaluate::Settings;
use oxidize_quantize::in_memory::quantized;
use oxidize_quantize::workers::Workers;

use crate::args::{REPACK_ALIAS, repack_default, threads};
use crate::console::status;
use crate::load_quant::{LoadQuantArgs, load_importance};
use crate::progress::ProgressReporter;
use crate::speculation_args::SpeculationArgs;
use crate::style;

/// Arguments of running a model.
#[derive(Args, Clone)]
#[command(next_help_heading = "Model execution")]
pub(crate) struct ModelArgs {
    /// Maximum number of context tokens, prompt and answer together; 0 is the trained context [default: the
    /// trained context, as far as free memory allows]
    #[arg(
        short = 'c',
        long = "ctx-size",
        value_name = "N",
        env = "OXIDIZE_CTX_SIZE"
    )]
    pub(crate) ctx_size: Option<usize>,
    /// Number of threads [default: all cores]
    #[arg(short = 't', long, value_name = "N", env = "OXIDIZE_THREADS", value_parser = threads)]
    pub(crate) threads: Option<usize>,
    /// Maximum number of tokens per forward pass
    #[arg(short = 'b', long, visible_aliases = ["ubatch-size", "ub"], value_name = "N", default_value_t = 512, env = "OXIDIZE_BATCH_SIZE")]
    pub(crate) batch_size: usize,
    /// Type of keys in the KV cache: f32, f16, q8_0 or q4_0
    #[arg(long = "cache-type-k", visible_alias = "ctk", value_name = "TYPE", default_value = "f16", value_parser = kv_type, env = "OXIDIZE_CACHE_TYPE_K")]
    pub(crate) cache_type_k: KvType,
    /// Type of values in the KV cache: f32, f16, q8_0 or q4_0
    #[arg(long = "cache-type-v", visible_alias = "ctv", value_name = "TYPE", default_value = "f16", value_parser = kv_type, env = "OXIDIZE_CACHE_TYPE_V")]
    pub(crate) cache_type_v: KvType,
    /// Read the file instead of mapping it into memory
    #[arg(long, env = "OXIDIZE_NO_MMAP")]
    pub(crate) no_mmap: bool,
    /// Do not copy the mapped file to huge pages, which are faster but not shared between processes
    #[arg(long, env = "OXIDIZE_NO_HUGE_PAGES")]
    pub(crate) no_huge_pages: bool,
    /// Memory for repacked IQ1, IQ2 and IQ3 weights: MiB, `all` or `off`
    #[arg(
        long,
        alias = REPACK_ALIAS,
        value_name = "MIB|all|off",
        default_value = repack_default(),
        env = "OXIDIZE_REPACK"
    )]
    pub(crate) repack: RepackLimit,
    #[command(flatten)]
    pub(crate) adapters: AdapterArgs,
    #[command(flatten)]
    pub(crate) load_quant: LoadQuantArgs,
    /// Run the model even if it does not seem to fit in memory
    #[arg(long)]
    pub(crate) no_memory_check: bool,
}

/// Arguments of evaluations.
#[derive(Args, Clone)]
pub(crate) struct MeasureArgs {
    /// Quantization of activations that are multiplied with quantized weights
    #[arg(long, value_enum, default_value_t)]
    pub(crate) activations: ActivationArg,
}

/// Values of `--activations`.
#[derive(clap::ValueEnum, Clone, Copy, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub(crate) enum ActivationArg {
    /// 8 bits, one scale per 32 elements, as in inference
    #[default]
    #[value(alias = "fine")]
    Block32,
    /// 8 bits, one scale per 256 elements for types with blocks of 256 (K-quants, IQ), as in llama.cpp
    #[value(alias = "coarse")]
    Block256,
    /// No quantization (slower)
    #[value(alias = "float")]
    F32,
}

impl MeasureArgs {
    /// Evaluation settings of the arguments.
    pub(crate) fn settings(&self, model_args: &ModelArgs) -> Settings {
        Settings {
            activations: match self.activations {
                ActivationArg::Block32 => ActivationQuant::Block32,
                ActivationArg::Block256 => ActivationQuant::Block256,
                ActivationArg::F32 => ActivationQuant::F32,
            },
            ..model_args.evaluation()
        }
    }
}

/// LoRA adapters.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "LoRA adapters")]
pub(crate) struct AdapterArgs {
    /// Add a LoRA adapter, a GGUF file or a PEFT directory (repeatable)
    #[arg(long, value_name = "PATH", env = "OXIDIZE_LORA", value_delimiter = ',')]
    lora: Vec<PathBuf>,
    /// Add a LoRA adapter with a scale (repeatable)
    #[arg(long, value_name = "PATH:SCALE", value_delimiter = ',', value_parser = scaled_adapter)]
    lora_scaled: Vec<(PathBuf, f32)>,
}

/// The help of `-c` for subcommands that process a text in chunks.
pub(crate) fn chunk_size_help(ctx_size: clap::Arg) -> clap::Arg {
    ctx_size.help(
        "Tokens per chunk; 0 is the trained context [default: 512, at most the trained context]",
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
        format!("supported types are {}", names.join(", "))
    })
}

fn scaled_adapter(given: &str) -> Result<(PathBuf, f32), String> {
    let (path, scale) = given.rsplit_once(':').ok_or("expected PATH:SCALE")?;
    let number: Option<f32> = scale.parse().ok().filter(|scale: &f32| scale.is_finite());
    let scale = number.ok_or_else(|| format!("{scale:?} is not a number"))?;
    Ok((path.into(), scale))
}

impl ModelArgs {
    /// Loads a model, with a progress bar on a terminal.
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
            .and_then(|file| self.load_quant(file))
            .and_then(|file| Ok(Model::from_file(file)?));
        if let Some(bar) = progress {
            bar.finish_and_clear();
        }
        self.with_adapters(model?)
    }

    /// The arguments without adapters and quantization at load.
    pub(crate) fn without_modifications(&self) -> ModelArgs {
        ModelArgs {
            adapters: AdapterArgs::default(),
            load_quant: LoadQuantArgs::default(),
            ..self.clone()
        }
    }

    /// Quantizes the weights if --quantize is given.
    fn load_quant(&self, file: ModelFile) -> anyhow::Result<ModelFile> {
        let LoadQuantArgs { quantize, imatrix } = &self.load_quant;
        let Some(recipe) = *quantize else {
            return Ok(file);
        };
        let importance = load_importance(imatrix.as_deref())?;
        let mut workers = Workers::default();
        workers.threads = self.threads.unwrap_or(workers.threads).max(1);
        let progress = ProgressReporter::new();
        let file = quantized(&file, recipe, importance.as_ref(), &workers, |at| {
            progress.show(at);
        });
        progress.finish();
        Ok(file?)
    }

    /// Adds the requested adapters to a model.
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

    /// The requested context size, if any.
    pub(crate) fn context(&self, model: &Model) -> Option<usize> {
        self.ctx_size.map(|n_ctx| match n_ctx {
            0 => model.hparams().n_ctx_train,
            n_ctx => n_ctx,
        })
    }

    /// The engine configuration of the arguments.
    pub(crate) fn config(&self, model: &Model) -> EngineConfig {
        EngineConfig {
            n_ctx: self.context(model),
            max_batch_tokens: self.batch_size.max(1),
            max_sequences: 1,
            key_type: self.cache_type_k,
            value_type: self.cache_type_v,
            repack: self.repack,
            n_threads: self.threads,
            check_memory: !self.no_memory_check,
            ..EngineConfig::default()
        }
    }

    /// Settings for running a model without an engine.
    pub(crate) fn evaluation(&self) -> Settings {
        Settings {
            batch_size: self.batch_size,
            key_type: self.cache_type_k,
            value_type: self.cache_type_v,
            activations: ActivationQuant::default(),
            repack: self.repack,
            threads: self.threads,
            check_memory: !self.no_memory_check,
        }
    }

    /// Starts an engine on the CPU backend.
    pub(crate) fn engine(
        &self,
        model: Model,
        speculation: &SpeculationArgs,
    ) -> anyhow::Result<Engine> {
        let config = speculation.apply(self.config(&model), self)?;
        let backend = Arc::new(Cpu::default());
        let config = config.fit_context(&model, backend.as_ref(), available_memory());
        let (n_ctx, trained) = (config.context(&model), model.hparams().n_ctx_train);
        if self.ctx_size.is_none() && n_ctx < trained {
            let dim = style::for_stderr().dim;
            status!(
                "{dim}context: {n_ctx} of {trained} tokens, as free memory allows (see -c){dim:#}"
            );
        }
        Ok(Engine::start(model, backend, &config)?)
    }
}

fn bar_style() -> indicatif::ProgressStyle {
    indicatif::ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes}")
        .unwrap_or_else(|_| indicatif::ProgressStyle::default_bar())
}
