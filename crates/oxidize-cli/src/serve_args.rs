//! [`ServeArgs`]: the command line of `oxidize serve`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use oxidize_core::backend::{KvType, RepackLimit};
use oxidize_hub::ModelRef;
use oxidize_server::ModelSpec;
use oxidize_server::config::{
    EngineSettings, LimitConfig, LoadQuant, LogConfig, LogFormat, NetworkConfig, ServerConfig,
};

use crate::args::{REPACK_ALIAS, repack_default};
use crate::conversation::ThinkingArgs;
use crate::load_quant::LoadQuantArgs;
use crate::speculation_args::SpeculationArgs;

/// Arguments of the server. Each group of settings is a struct and a heading in the help.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServeArgs {
    /// Models to serve: paths, or names such as hf:USER/REPO, each as MODEL or NAME=MODEL. The first model is loaded
    /// at startup, the others on first use
    #[arg(value_name = "MODEL")]
    pub(crate) models: Vec<String>,
    /// Model to serve, as an option (repeatable)
    #[arg(
        short = 'm',
        long = "model",
        value_name = "MODEL",
        env = "OXIDIZE_MODEL"
    )]
    pub(crate) model_flags: Vec<String>,
    /// Use the first model for requests that name an unknown one
    #[arg(long, env = "OXIDIZE_ANY_MODEL")]
    pub(crate) any_model: bool,
    /// Refuse requests with fields that the server does not know, which are otherwise listed in the response
    /// header X-Oxidize-Ignored
    #[arg(long, env = "OXIDIZE_STRICT")]
    pub(crate) strict: bool,
    /// Unload models that were idle for this many seconds; 0 keeps them. Idle models are always unloaded to
    /// make room for another one
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 0,
        env = "OXIDIZE_IDLE_UNLOAD"
    )]
    pub(crate) idle_unload: u64,
    /// Let clients fetch, copy and remove models, and name models of the local library (/api/pull and others):
    /// `on` or `off` [default: on for loopback addresses]
    #[arg(long, value_name = "on|off", value_parser = on_or_off(), env = "OXIDIZE_MANAGE_MODELS")]
    pub(crate) manage_models: Option<bool>,
    /// Address and access control.
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    /// Limits.
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Settings of the engine.
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Settings of the log.
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// Address and access control.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Network")]
pub(crate) struct NetworkArgs {
    /// Address to listen on. Addresses other than loopback need --api-key or --no-auth
    #[arg(long, default_value = "127.0.0.1", env = "OXIDIZE_HOST")]
    pub(crate) host: IpAddr,
    /// Port to listen on; 0 chooses a free port
    #[arg(long, default_value_t = 8080, env = "OXIDIZE_PORT")]
    pub(crate) port: u16,
    /// API key that clients must send, with optional settings: `KEY name=alice rpm=60 tpm=100000 priority=1`
    /// (repeatable; sha256:HEX gives the digest of a key)
    #[arg(
        long,
        value_name = "KEY",
        env = "OXIDIZE_API_KEY",
        hide_env_values = true
    )]
    pub(crate) api_key: Vec<String>,
    /// Read API keys from a file, one per line
    #[arg(long, value_name = "FILE", env = "OXIDIZE_API_KEY_FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Listen on any address without API keys
    #[arg(long, env = "OXIDIZE_NO_AUTH")]
    pub(crate) no_auth: bool,
    /// Allow web pages of this origin to use the server; `*` allows all (repeatable)
    #[arg(long, value_name = "ORIGIN", env = "OXIDIZE_CORS_ORIGIN")]
    pub(crate) cors_origin: Vec<String>,
    /// Allow this name in the Host header, besides IP addresses and localhost; `*` allows all (repeatable)
    #[arg(long, value_name = "NAME", env = "OXIDIZE_ALLOWED_HOST")]
    pub(crate) allowed_host: Vec<String>,
}

/// Limits of the server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Maximum number of open connections
    #[arg(long, value_name = "N", default_value_t = LimitConfig::default().max_connections)]
    pub(crate) max_connections: usize,
    /// Maximum size of a request body, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = LimitConfig::default().max_body)]
    pub(crate) max_body: usize,
    /// Maximum number of queued requests per model; further ones are refused with status 429
    #[arg(long, value_name = "N", default_value_t = LimitConfig::default().queue, env = "OXIDIZE_QUEUE")]
    pub(crate) queue: usize,
    /// Maximum memory of all loaded models with their caches, in MB. Idle models are unloaded to make room
    /// [default: the memory of the machine]
    #[arg(long, value_name = "MB", env = "OXIDIZE_MEMORY_LIMIT")]
    pub(crate) memory_limit: Option<u64>,
    /// Maximum duration of a request, in seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = LimitConfig::default().timeout,
        env = "OXIDIZE_TIMEOUT"
    )]
    pub(crate) timeout: u64,
    /// Disconnect clients that neither read nor send for this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = LimitConfig::default().io_timeout)]
    pub(crate) io_timeout: u64,
    /// Seconds that running requests have to finish at shutdown
    #[arg(long, value_name = "SECONDS", default_value_t = LimitConfig::default().drain)]
    pub(crate) drain: u64,
}

/// Settings of the engine.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Context size: maximum number of tokens of a request, prompt and answer together; 0 is the model's own
    /// limit [default: the model's limit, as far as free memory allows]
    #[arg(short = 'c', long, value_name = "N", env = "OXIDIZE_CTX_SIZE")]
    pub(crate) ctx_size: Option<usize>,
    /// Maximum number of requests that run at once
    #[arg(
        long,
        visible_alias = "np",
        value_name = "N",
        default_value_t = EngineSettings::default().parallel,
        env = "OXIDIZE_PARALLEL"
    )]
    pub(crate) parallel: usize,
    /// Size of the KV cache in tokens, shared by all requests [default: context size times --parallel, up to
    /// a quarter of the memory]
    #[arg(long, value_name = "N", env = "OXIDIZE_CACHE_TOKENS")]
    pub(crate) cache_tokens: Option<usize>,
    /// Make answers independent of the requests that run beside them; slower
    #[arg(long, env = "OXIDIZE_DETERMINISTIC")]
    pub(crate) deterministic: bool,
    /// Keep the prefix cache in this directory, across restarts
    #[arg(long, value_name = "DIR", env = "OXIDIZE_CACHE_DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Maximum size of --cache-dir per model, in GB
    #[arg(long, value_name = "GB", default_value_t = EngineSettings::default().cache_dir_size)]
    pub(crate) cache_dir_size: u64,
    /// Number of threads [default: number of cores]
    #[arg(short = 't', long, value_name = "N", env = "OXIDIZE_THREADS")]
    pub(crate) threads: Option<usize>,
    /// Maximum number of tokens per step. Smaller batches let long prompts delay other requests less
    #[arg(short = 'b', long, visible_aliases = ["ubatch-size", "ub"], value_name = "N", default_value_t = EngineSettings::default().batch_size, env = "OXIDIZE_BATCH_SIZE")]
    pub(crate) batch_size: usize,
    /// Type of the keys in the KV cache: f32, f16, q8_0 or q4_0
    #[arg(long, visible_alias = "ctk", value_name = "TYPE", default_value = "f16", value_parser = kv_type, env = "OXIDIZE_CACHE_TYPE_K")]
    pub(crate) cache_type_k: KvType,
    /// Type of the values in the KV cache: f32, f16, q8_0 or q4_0
    #[arg(long, visible_alias = "ctv", value_name = "TYPE", default_value = "f16", value_parser = kv_type, env = "OXIDIZE_CACHE_TYPE_V")]
    pub(crate) cache_type_v: KvType,
    /// Read model files into memory instead of mapping them
    #[arg(long, env = "OXIDIZE_NO_MMAP")]
    pub(crate) no_mmap: bool,
    /// Do not copy mapped files to huge pages, which are faster but not shared between processes
    #[arg(long, env = "OXIDIZE_NO_HUGE_PAGES")]
    pub(crate) no_huge_pages: bool,
    /// Memory for repacking IQ1, IQ2 and IQ3 weights, in MiB, or `all` or `off`
    #[arg(
        long,
        alias = REPACK_ALIAS,
        value_name = "MIB|all|off",
        default_value = repack_default(),
        env = "OXIDIZE_REPACK"
    )]
    pub(crate) repack: RepackLimit,
    /// Load models even if they do not seem to fit in memory
    #[arg(long)]
    pub(crate) no_memory_check: bool,
    /// Add a LoRA adapter to the first model, as PATH or PATH:SCALE (repeatable)
    #[arg(long, value_name = "PATH[:SCALE]", value_parser = adapter, env = "OXIDIZE_LORA", value_delimiter = ',')]
    pub(crate) lora: Vec<(PathBuf, f32)>,
    /// Quantization at load.
    #[command(flatten)]
    pub(crate) load_quant: LoadQuantArgs,
    /// Use a chat template from a file, or a built-in one by name, instead of the models' own
    #[arg(long, visible_alias = "chat-template-file", value_name = "FILE|NAME")]
    pub(crate) chat_template: Option<String>,
    #[command(flatten)]
    pub(crate) thinking: ThinkingArgs,
    #[command(flatten)]
    pub(crate) speculation: SpeculationArgs,
}

/// Settings of the log.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogArgs {
    /// Format of the log
    #[arg(long = "log-format", default_value = "text", value_parser = log_format(), env = "OXIDIZE_LOG_FORMAT")]
    pub(crate) format: LogFormat,
    /// Level of the log: error, warn, info, debug, or a filter such as `oxidize_server=debug`
    #[arg(
        long = "log",
        value_name = "FILTER",
        default_value = "info",
        env = "OXIDIZE_LOG"
    )]
    pub(crate) filter: String,
    /// Log prompts and answers
    #[arg(long = "log-prompts", env = "OXIDIZE_LOG_PROMPTS")]
    pub(crate) prompts: bool,
}

fn kv_type(name: &str) -> Result<KvType, String> {
    let named = |ty: &KvType| ty.tensor_type().name().eq_ignore_ascii_case(name);
    KvType::ALL
        .into_iter()
        .find(named)
        .ok_or_else(|| "known types are f32, f16, q8_0 and q4_0".to_owned())
}

/// Parses `PATH[:SCALE]`.
fn adapter(given: &str) -> Result<(PathBuf, f32), String> {
    let scaled = given.rsplit_once(':').and_then(|(path, scale)| {
        let scale = scale.parse().ok().filter(|scale: &f32| scale.is_finite())?;
        Some((PathBuf::from(path), scale))
    });
    Ok(scaled.unwrap_or_else(|| (given.into(), 1.0)))
}

fn on_or_off() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|name| name == "on")
}

/// Parses the format of the log.
fn log_format() -> impl TypedValueParser<Value = LogFormat> {
    PossibleValuesParser::new(["text", "json"]).map(|name| match name.as_str() {
        "json" => LogFormat::Json,
        _ => LogFormat::Text,
    })
}

impl ServeArgs {
    /// The models to serve. `find` resolves the paths.
    pub(crate) fn specs<E>(
        &self,
        find: impl Fn(&Path) -> Result<PathBuf, E>,
    ) -> Result<Vec<ModelSpec>, E> {
        let all = self.models.iter().chain(&self.model_flags);
        all.map(|given| {
            // An address may have a `=` of its own.
            let is_name = |name: &str| !name.contains([':', '/']);
            let named = given
                .split_once('=')
                .filter(|(name, _)| is_name(name) && !Path::new(given).exists());
            let (name, path) = match named {
                Some((name, path)) => (Some(name.to_owned()), path),
                None => (None, given.as_str()),
            };
            // The directory of a repository is named after its commit.
            let repo = match ModelRef::parse(path) {
                Some(Ok(ModelRef::HuggingFace(model) | ModelRef::ModelScope(model))) => {
                    Some(model.repo)
                }
                _ => None,
            };
            let path = find(Path::new(path))?;
            let stem = match (path.is_dir(), repo) {
                (true, Some(repo)) => repo.rsplit('/').next().map(str::to_owned),
                (true, None) => path
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned()),
                (false, _) => path
                    .file_stem()
                    .map(|name| name.to_string_lossy().into_owned()),
            };
            let name = name.or(stem);
            Ok(ModelSpec {
                name: name.unwrap_or_else(|| "model".into()),
                path,
            })
        })
        .collect()
    }

    /// The configuration of the server.
    pub(crate) fn config(self) -> anyhow::Result<ServerConfig> {
        let (network, limits, engine, log) = (self.network, self.limits, self.engine, self.log);
        Ok(ServerConfig {
            any_model: self.any_model,
            strict: self.strict,
            idle_unload: self.idle_unload,
            manage_models: self.manage_models,
            offline: false,
            network: NetworkConfig {
                host: network.host,
                port: network.port,
                api_key: network.api_key,
                api_key_file: network.api_key_file,
                no_auth: network.no_auth,
                cors_origin: network.cors_origin,
                allowed_host: network.allowed_host,
            },
            limits: LimitConfig {
                max_connections: limits.max_connections,
                max_body: limits.max_body,
                queue: limits.queue,
                memory_limit: limits.memory_limit,
                timeout: limits.timeout,
                io_timeout: limits.io_timeout,
                drain: limits.drain,
            },
            engine: EngineSettings {
                ctx_size: engine.ctx_size,
                parallel: engine.parallel,
                cache_tokens: engine.cache_tokens,
                deterministic: engine.deterministic,
                cache_dir: engine.cache_dir,
                cache_dir_size: engine.cache_dir_size,
                threads: engine.threads,
                batch_size: engine.batch_size,
                cache_type_k: engine.cache_type_k,
                cache_type_v: engine.cache_type_v,
                no_mmap: engine.no_mmap,
                no_huge_pages: engine.no_huge_pages,
                repack: engine.repack,
                no_memory_check: engine.no_memory_check,
                lora: engine.lora,
                load_quant: LoadQuant {
                    quantize: engine.load_quant.quantize,
                    imatrix: engine.load_quant.imatrix,
                },
                chat_template: engine.chat_template,
                thinking: engine.thinking.think,
                thinking_budget: engine.thinking.think_budget,
                speculation: engine.speculation.settings()?,
            },
            log: LogConfig {
                format: log.format,
                filter: log.filter,
                prompts: log.prompts,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ServeArgs,
    }

    fn args(words: &[&str]) -> ServeArgs {
        Cli::parse_from(["serve"].iter().chain(words)).args
    }

    #[test]
    fn models_are_named_after_their_files() {
        let args = args(&["models/a.gguf", "big=/models/b.gguf", "-m", "c.gguf"]);
        let specs = args.specs(|path| Ok::<_, ()>(path.to_owned())).unwrap();
        let names: Vec<_> = specs.iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, ["a", "big", "c"]);
        assert_eq!(specs[1].path, Path::new("/models/b.gguf"));
    }

    /// Without flags, the command line has the defaults of the library.
    #[test]
    fn defaults_are_those_of_the_library() {
        let given = format!("{:?}", args(&[]).config().unwrap());
        assert_eq!(given, format!("{:?}", ServerConfig::default()));
    }

    #[test]
    fn flags_reach_the_configuration() {
        let config = args(&[
            "m.gguf",
            "--port=0",
            "-c",
            "512",
            "--log-format=json",
            "--drain=1",
            "--quantize=q8_0",
            "--lora=a.gguf:0.5",
        ])
        .config()
        .unwrap();
        assert_eq!((config.network.port, config.limits.drain), (0, 1));
        assert_eq!(config.engine.ctx_size, Some(512));
        assert_eq!(config.log.format, LogFormat::Json);
        assert_eq!(config.engine.load_quant.quantize.unwrap().name, "Q8_0");
        assert_eq!(config.engine.lora, [("a.gguf".into(), 0.5)]);
    }
}
