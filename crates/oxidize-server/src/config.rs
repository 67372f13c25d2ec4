//! [`ServeArgs`]: the command line of the server, shared by `oxidize serve` and `oxidize-server`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use clap::Args;
use oxidize_core::backend::KvType;
use oxidize_core::backend::RepackLimit;
use oxidize_core::recipe::QuantRecipe;

use crate::auth::{KeyError, Keys};

/// Arguments of the server. Each group of settings is a struct and a heading in the help.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Models to serve: GGUF files or safetensors directories, each as MODEL or NAME=MODEL. The first model
    /// is loaded at startup, the others on first use
    #[arg(value_name = "MODEL")]
    pub models: Vec<String>,
    /// Model to serve, as an option (repeatable)
    #[arg(
        short = 'm',
        long = "model",
        value_name = "MODEL",
        env = "OXIDIZE_MODEL"
    )]
    pub model_flags: Vec<String>,
    /// Use the first model for requests that name an unknown one
    #[arg(long, env = "OXIDIZE_ANY_MODEL")]
    pub any_model: bool,
    /// Unload models that were idle for this many seconds; 0 keeps them. Idle models are always unloaded to
    /// make room for another one
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 0,
        env = "OXIDIZE_IDLE_UNLOAD"
    )]
    pub idle_unload: u64,
    /// Address and access control.
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Limits.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Settings of the engine.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Settings of the log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Address and access control.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Network")]
pub struct NetworkArgs {
    /// Address to listen on. Addresses other than loopback need --api-key or --no-auth
    #[arg(long, default_value = "127.0.0.1", env = "OXIDIZE_HOST")]
    pub host: IpAddr,
    /// Port to listen on; 0 chooses a free port
    #[arg(long, default_value_t = 8080, env = "OXIDIZE_PORT")]
    pub port: u16,
    /// API key that clients must send, with optional settings: `KEY name=alice rpm=60 tpm=100000 priority=1`
    /// (repeatable; sha256:HEX gives the digest of a key)
    #[arg(
        long,
        value_name = "KEY",
        env = "OXIDIZE_API_KEY",
        hide_env_values = true
    )]
    pub api_key: Vec<String>,
    /// Read API keys from a file, one per line
    #[arg(long, value_name = "FILE", env = "OXIDIZE_API_KEY_FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Listen on any address without API keys
    #[arg(long, env = "OXIDIZE_NO_AUTH")]
    pub no_auth: bool,
    /// Allow web pages of this origin to use the server; `*` allows all (repeatable)
    #[arg(long, value_name = "ORIGIN", env = "OXIDIZE_CORS_ORIGIN")]
    pub cors_origin: Vec<String>,
    /// Allow this name in the Host header, besides IP addresses and localhost; `*` allows all (repeatable)
    #[arg(long, value_name = "NAME", env = "OXIDIZE_ALLOWED_HOST")]
    pub allowed_host: Vec<String>,
}

/// Limits of the server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Maximum number of open connections
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub max_connections: usize,
    /// Maximum size of a request body, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 32 << 20)]
    pub max_body: usize,
    /// Maximum number of queued requests per model; further ones are refused with status 429
    #[arg(long, value_name = "N", default_value_t = 64, env = "OXIDIZE_QUEUE")]
    pub queue: usize,
    /// Maximum memory of all loaded models with their caches, in MB. Idle models are unloaded to make room
    /// [default: the memory of the machine]
    #[arg(long, value_name = "MB", env = "OXIDIZE_MEMORY_LIMIT")]
    pub memory_limit: Option<u64>,
    /// Maximum duration of a request, in seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600,
        env = "OXIDIZE_TIMEOUT"
    )]
    pub timeout: u64,
    /// Disconnect clients that neither read nor send for this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub io_timeout: u64,
    /// Seconds that running requests have to finish at shutdown
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain: u64,
}

/// Quantization at load.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Quantization at load")]
pub struct LoadQuantArgs {
    /// Quantize the weights at load, to a type such as Q8_0 or Q4_K_M
    #[arg(long, value_name = "TYPE", value_parser = recipe)]
    pub quantize: Option<QuantRecipe>,
    /// Use an importance matrix for --quantize, written by `oxidize imatrix` or llama.cpp
    #[arg(long, value_name = "FILE", requires = "quantize")]
    pub imatrix: Option<PathBuf>,
}

/// Parses the name of a quantization recipe.
fn recipe(name: &str) -> Result<QuantRecipe, oxidize_quantize::Error> {
    QuantRecipe::named(name)
        .ok_or_else(|| oxidize_quantize::Error::UnknownRecipe { name: name.into() })
}

/// Former name of `--repack`, a hidden alias.
pub const REPACK_ALIAS: &str = "spell-out";

/// Default of `--repack`: the value of the variable's former name if it is set.
pub fn repack_default() -> &'static str {
    const FORMER_NAME: &str = "OXIDIZE_SPELL_OUT";
    static DEFAULT: OnceLock<String> = OnceLock::new();
    DEFAULT.get_or_init(|| {
        std::env::var(FORMER_NAME).unwrap_or_else(|_| RepackLimit::default().to_string())
    })
}

/// Settings of the engine.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// Context size: maximum number of tokens of a request, prompt and answer together; 0 is the model's own
    /// limit [default: the model's limit, as far as free memory allows]
    #[arg(short = 'c', long, value_name = "N", env = "OXIDIZE_CTX_SIZE")]
    pub ctx_size: Option<usize>,
    /// Maximum number of requests that run at once
    #[arg(
        long,
        visible_alias = "np",
        value_name = "N",
        default_value_t = 16,
        env = "OXIDIZE_PARALLEL"
    )]
    pub parallel: usize,
    /// Size of the KV cache in tokens, shared by all requests [default: context size times --parallel, up to
    /// a quarter of the memory]
    #[arg(long, value_name = "N", env = "OXIDIZE_CACHE_TOKENS")]
    pub cache_tokens: Option<usize>,
    /// Make answers independent of the requests that run beside them; slower
    #[arg(long, env = "OXIDIZE_DETERMINISTIC")]
    pub deterministic: bool,
    /// Keep the prefix cache in this directory, across restarts
    #[arg(long, value_name = "DIR", env = "OXIDIZE_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Maximum size of --cache-dir per model, in GB
    #[arg(long, value_name = "GB", default_value_t = 10)]
    pub cache_dir_size: u64,
    /// Number of threads [default: number of cores]
    #[arg(short = 't', long, value_name = "N", env = "OXIDIZE_THREADS")]
    pub threads: Option<usize>,
    /// Maximum number of tokens per step. Smaller batches let long prompts delay other requests less
    #[arg(short = 'b', long, visible_aliases = ["ubatch-size", "ub"], value_name = "N", default_value_t = 512, env = "OXIDIZE_BATCH_SIZE")]
    pub batch_size: usize,
    /// Type of the keys in the KV cache: f32, f16, q8_0 or q4_0
    #[arg(long, visible_alias = "ctk", value_name = "TYPE", default_value = "f16", value_parser = kv_type, env = "OXIDIZE_CACHE_TYPE_K")]
    pub cache_type_k: KvType,
    /// Type of the values in the KV cache: f32, f16, q8_0 or q4_0
    #[arg(long, visible_alias = "ctv", value_name = "TYPE", default_value = "f16", value_parser = kv_type, env = "OXIDIZE_CACHE_TYPE_V")]
    pub cache_type_v: KvType,
    /// Read model files into memory instead of mapping them
    #[arg(long, env = "OXIDIZE_NO_MMAP")]
    pub no_mmap: bool,
    /// Do not copy mapped files to huge pages, which are faster but not shared between processes
    #[arg(long, env = "OXIDIZE_NO_HUGE_PAGES")]
    pub no_huge_pages: bool,
    /// Memory for repacking IQ1, IQ2 and IQ3 weights, in MiB, or `all` or `off`
    #[arg(
        long,
        alias = REPACK_ALIAS,
        value_name = "MIB|all|off",
        default_value = repack_default(),
        env = "OXIDIZE_REPACK"
    )]
    pub repack: RepackLimit,
    /// Load models even if they do not seem to fit in memory
    #[arg(long)]
    pub no_memory_check: bool,
    /// Add a LoRA adapter to the first model, as PATH or PATH:SCALE (repeatable)
    #[arg(long, value_name = "PATH[:SCALE]", value_parser = adapter, env = "OXIDIZE_LORA", value_delimiter = ',')]
    pub lora: Vec<(PathBuf, f32)>,
    /// Quantization at load.
    #[command(flatten)]
    pub load_quant: LoadQuantArgs,
    /// Use a chat template from a file, or a built-in one by name, instead of the models' own
    #[arg(long, visible_alias = "chat-template-file", value_name = "FILE|NAME")]
    pub chat_template: Option<String>,
}

/// Settings of the log.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Log")]
pub struct LogArgs {
    /// Format of the log
    #[arg(long = "log-format", value_enum, default_value_t = LogFormat::Text, env = "OXIDIZE_LOG_FORMAT")]
    pub format: LogFormat,
    /// Level of the log: error, warn, info, debug, or a filter such as `oxidize_server=debug`
    #[arg(
        long = "log",
        value_name = "FILTER",
        default_value = "info",
        env = "OXIDIZE_LOG"
    )]
    pub filter: String,
    /// Log prompts
    #[arg(long = "log-prompts", env = "OXIDIZE_LOG_PROMPTS")]
    pub prompts: bool,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// JSON objects, one per line.
    Json,
}

/// A model to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// Name in requests.
    pub name: String,
    /// Path of the model file or directory.
    pub path: PathBuf,
}

/// An error in the arguments of the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No model is given.
    #[error("no model given; use `oxidize serve model.gguf`")]
    NoModel,
    /// Two models have the same name.
    #[error("two models have the name {0:?}; set names, as in `first=a.gguf second=b.gguf`")]
    SameName(String),
    /// The server would be open to the network without API keys.
    #[error(
        "{0} is not a loopback address; set --api-key, or --no-auth to allow access without a key"
    )]
    OpenBind(IpAddr),
    /// An API key is invalid.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The value of an option is invalid.
    #[error("{option}: {problem}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Description of the problem.
        problem: String,
    },
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

impl ServeArgs {
    /// The models to serve. `find` resolves the paths.
    pub fn specs<E>(
        &self,
        find: impl Fn(&Path) -> Result<PathBuf, E>,
    ) -> Result<Vec<ModelSpec>, E> {
        let all = self.models.iter().chain(&self.model_flags);
        all.map(|given| {
            let named = given.split_once('=').filter(|_| !Path::new(given).exists());
            let (name, path) = match named {
                Some((name, path)) => (Some(name.to_owned()), path),
                None => (None, given.as_str()),
            };
            let path = find(Path::new(path))?;
            let stem = if path.is_dir() {
                path.file_name()
            } else {
                path.file_stem()
            };
            let name = name.or_else(|| Some(stem?.to_string_lossy().into_owned()));
            Ok(ModelSpec {
                name: name.unwrap_or_else(|| "model".into()),
                path,
            })
        })
        .collect()
    }

    /// Checks the arguments and returns the API keys.
    pub fn check(&self, specs: &[ModelSpec]) -> Result<Keys, ConfigError> {
        let keys = Keys::new(&self.network.api_key, self.network.api_key_file.as_deref())?;
        if specs.is_empty() {
            return Err(ConfigError::NoModel);
        }
        for (index, spec) in specs.iter().enumerate() {
            if specs
                .iter()
                .take(index)
                .any(|other| other.name == spec.name)
            {
                return Err(ConfigError::SameName(spec.name.clone()));
            }
        }
        if self.engine.load_quant.imatrix.is_some() && specs.len() > 1 {
            return Err(ConfigError::Option {
                option: "--imatrix",
                problem: format!(
                    "an importance matrix belongs to one model, but {} models are served",
                    specs.len()
                ),
            });
        }
        let NetworkArgs { host, no_auth, .. } = self.network;
        if !host.is_loopback() && keys.is_empty() && !no_auth {
            return Err(ConfigError::OpenBind(host));
        }
        Ok(keys)
    }
}

impl NetworkArgs {
    /// The address to listen on.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.port)
    }
}

impl LimitArgs {
    /// Time after which an inactive client is disconnected.
    pub fn io_timeout(&self) -> Duration {
        Duration::from_secs(self.io_timeout.max(1))
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

    fn specs(args: &ServeArgs) -> Vec<ModelSpec> {
        args.specs(|path| Ok::<_, ()>(path.to_owned())).unwrap()
    }

    #[test]
    fn other_addresses_than_loopback_need_a_key() {
        let check = |words: &[&str]| {
            let args = args(words);
            args.check(&specs(&args))
        };
        assert!(check(&["m.gguf"]).is_ok());
        let open = ["m.gguf", "--host", "0.0.0.0"];
        assert!(matches!(check(&open), Err(ConfigError::OpenBind(_))));
        assert!(check(&[&open[..], &["--api-key", "k"]].concat()).is_ok());
        assert!(check(&[&open[..], &["--no-auth"]].concat()).is_ok());
        assert!(matches!(check(&[]), Err(ConfigError::NoModel)));
    }

    #[test]
    fn an_importance_matrix_needs_a_single_model() {
        let flags = ["--quantize", "q4_k_m", "--imatrix", "a.imatrix"];
        let one = args(&[&["a.gguf"], &flags[..]].concat());
        assert!(one.check(&specs(&one)).is_ok());
        let two = args(&[&["a.gguf", "b.gguf"], &flags[..]].concat());
        assert!(two.check(&specs(&two)).is_err());
    }

    #[test]
    fn models_have_unique_names() {
        let args = args(&["models/a.gguf", "big=/models/b.gguf"]);
        let names: Vec<_> = specs(&args).into_iter().map(|spec| spec.name).collect();
        assert_eq!(names, ["a", "big"]);
        let twice = self::args(&["x/a.gguf", "y/a.gguf"]);
        assert!(matches!(
            twice.check(&specs(&twice)),
            Err(ConfigError::SameName(_))
        ));
    }
}
