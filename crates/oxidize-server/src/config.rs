//! The command line of the server, shared by `oxidize serve` and `oxidize-server`, and what it comes to.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use oxidize_core::backend::KvType;
use oxidize_core::file::SpellOut;
use oxidize_quantize::commands::on_the_way_in::OnTheWayIn;

use crate::auth::{KeyError, Keys};

/// How models are served over HTTP. A group of settings is a struct, and a heading in the help.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Models to serve: GGUF files or safetensors directories, each as MODEL or NAME=MODEL. The first is loaded
    /// at once, the others on first use
    #[arg(value_name = "MODEL")]
    pub models: Vec<String>,
    /// A model, as a flag (repeatable)
    #[arg(
        short = 'm',
        long = "model",
        value_name = "MODEL",
        env = "OXIDIZE_MODEL"
    )]
    pub model_flags: Vec<String>,
    /// Answer requests for models that are not here with the first one
    #[arg(long, env = "OXIDIZE_ANY_MODEL")]
    pub any_model: bool,
    /// Unload a model that was not used for so many seconds; 0 is never. Where memory runs out, idle models go
    /// either way
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 0,
        env = "OXIDIZE_IDLE_UNLOAD"
    )]
    pub idle_unload: u64,
    /// Who may ask.
    #[command(flatten)]
    pub network: NetworkArgs,
    /// How much may be asked.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// How models run.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// What is written down.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Where the server listens, and to whom.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Network")]
pub struct NetworkArgs {
    /// Address to listen on. Other than the machine's own, it needs a key or --no-auth
    #[arg(long, default_value = "127.0.0.1", env = "OXIDIZE_HOST")]
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8080, env = "OXIDIZE_PORT")]
    pub port: u16,
    /// A key that clients must show, perhaps with settings: `KEY name=alice rpm=60 tpm=100000 priority=1`
    /// (repeatable; KEY may be sha256:HEX)
    #[arg(
        long,
        value_name = "KEY",
        env = "OXIDIZE_API_KEY",
        hide_env_values = true
    )]
    pub api_key: Vec<String>,
    /// Keys from a file, one a line
    #[arg(long, value_name = "FILE", env = "OXIDIZE_API_KEY_FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Listen for everyone without any key
    #[arg(long, env = "OXIDIZE_NO_AUTH")]
    pub no_auth: bool,
    /// Web pages from these origins may use the server, `*` for all (repeatable)
    #[arg(long, value_name = "ORIGIN", env = "OXIDIZE_CORS_ORIGIN")]
    pub cors_origin: Vec<String>,
    /// Names that requests may give in their Host header, besides the address itself, `*` for all (repeatable)
    #[arg(long, value_name = "NAME", env = "OXIDIZE_ALLOWED_HOST")]
    pub allowed_host: Vec<String>,
}

/// How much may be asked of the server, and how long it may take.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Most connections at once
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub max_connections: usize,
    /// Most bytes of a request's body
    #[arg(long, value_name = "BYTES", default_value_t = 32 << 20)]
    pub max_body: usize,
    /// Requests that wait for a slot, for each model; more are told to come back later
    #[arg(long, value_name = "N", default_value_t = 64, env = "OXIDIZE_QUEUE")]
    pub queue: usize,
    /// Most megabytes that loaded models take together, with their caches; idle ones make room for one that is
    /// asked for [default: what the machine has]
    #[arg(long, value_name = "MB", env = "OXIDIZE_MEMORY_LIMIT")]
    pub memory_limit: Option<u64>,
    /// Most seconds that a request may take
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600,
        env = "OXIDIZE_TIMEOUT"
    )]
    pub timeout: u64,
    /// Seconds after which a client that does not read or send is cut off
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub io_timeout: u64,
    /// Seconds that running requests get to finish when the server is told to stop
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain: u64,
}

/// How models run.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// Most tokens of context of a request, prompt and answer together; 0 is the model's own limit [default:
    /// the model's limit, at most 4096]
    #[arg(short = 'c', long, value_name = "N", env = "OXIDIZE_CTX_SIZE")]
    pub ctx_size: Option<usize>,
    /// Most requests that run at once
    #[arg(
        long,
        visible_alias = "np",
        value_name = "N",
        default_value_t = 16,
        env = "OXIDIZE_PARALLEL"
    )]
    pub parallel: usize,
    /// Tokens that the KV cache holds for all requests together [default: the context times --parallel, as far as
    /// a quarter of the memory allows]
    #[arg(long, value_name = "N", env = "OXIDIZE_CACHE_TOKENS")]
    pub cache_tokens: Option<usize>,
    /// Give an answer the same tokens whatever else runs beside it; slower
    #[arg(long, env = "OXIDIZE_DETERMINISTIC")]
    pub deterministic: bool,
    /// Keep computed prefixes in this folder, so that they are found again after a restart
    #[arg(long, value_name = "FOLDER", env = "OXIDIZE_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Most gigabytes in that folder, for each model
    #[arg(long, value_name = "GB", default_value_t = 10)]
    pub cache_dir_size: u64,
    /// Threads [default: all cores]
    #[arg(short = 't', long, value_name = "N", env = "OXIDIZE_THREADS")]
    pub threads: Option<usize>,
    /// Most tokens that are computed in one step: how long a prompt can hold up others
    #[arg(short = 'b', long, visible_aliases = ["ubatch-size", "ub"], value_name = "N", default_value_t = 512, env = "OXIDIZE_BATCH_SIZE")]
    pub batch_size: usize,
    /// How the cache keeps keys: f32, f16, q8_0 or q4_0
    #[arg(long, visible_alias = "ctk", value_name = "TYPE", default_value = "f16", value_parser = kv_type, env = "OXIDIZE_CACHE_TYPE_K")]
    pub cache_type_k: KvType,
    /// How the cache keeps values: f32, f16, q8_0 or q4_0
    #[arg(long, visible_alias = "ctv", value_name = "TYPE", default_value = "f16", value_parser = kv_type, env = "OXIDIZE_CACHE_TYPE_V")]
    pub cache_type_v: KvType,
    /// Read model files instead of mapping them into memory
    #[arg(long, env = "OXIDIZE_NO_MMAP")]
    pub no_mmap: bool,
    /// Do not move mapped files to huge pages, which are read faster but not shared with others
    #[arg(long, env = "OXIDIZE_NO_HUGE_PAGES")]
    pub no_huge_pages: bool,
    /// MiB that weights of IQ1, IQ2 and IQ3 types may grow by when they are rewritten in memory to be faster, all or off
    #[arg(
        long,
        value_name = "MIB|all|off",
        default_value_t,
        env = "OXIDIZE_SPELL_OUT"
    )]
    pub spell_out: SpellOut,
    /// Run models even if they seem not to fit in memory
    #[arg(long)]
    pub no_memory_check: bool,
    /// Add a LoRA adapter to the first model, as PATH or PATH:SCALE (repeatable)
    #[arg(long, value_name = "PATH[:SCALE]", value_parser = adapter, env = "OXIDIZE_LORA", value_delimiter = ',')]
    pub lora: Vec<(PathBuf, f32)>,
    /// What their weights become.
    #[command(flatten)]
    pub on_the_way_in: OnTheWayIn,
    /// A chat template from a file, or a built-in one by name, instead of the models' own
    #[arg(long, visible_alias = "chat-template-file", value_name = "FILE|NAME")]
    pub chat_template: Option<String>,
}

/// What is written down.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Log")]
pub struct LogArgs {
    /// How the log is written
    #[arg(long = "log-format", value_enum, default_value_t = LogFormat::Text, env = "OXIDIZE_LOG_FORMAT")]
    pub format: LogFormat,
    /// Which events are logged: error, warn, info, debug, or a filter such as `oxidize_server=debug`
    #[arg(
        long = "log",
        value_name = "FILTER",
        default_value = "info",
        env = "OXIDIZE_LOG"
    )]
    pub filter: String,
    /// Log prompts and answers, too
    #[arg(long = "log-prompts", env = "OXIDIZE_LOG_PROMPTS")]
    pub prompts: bool,
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// A model to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// What clients call it.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
}

/// Why the server cannot be started as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is nothing to serve.
    #[error("no model to serve: name one, as in `oxidize serve model.gguf`")]
    NoModel,
    /// Two models have the same name.
    #[error("two models are called {0:?}: name them, as in `first=a.gguf second=b.gguf`")]
    SameName(String),
    /// Everyone on the network could use the server.
    #[error("{0} is not this machine alone: give an --api-key, or --no-auth to let everyone in")]
    OpenBind(IpAddr),
    /// A key is wrong.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A name in --cors-origin or --log cannot be used.
    #[error("{option}: {problem}")]
    Option {
        /// The option.
        option: &'static str,
        /// What is wrong.
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

/// A path, and how strongly it counts.
fn adapter(given: &str) -> Result<(PathBuf, f32), String> {
    let scaled = given.rsplit_once(':').and_then(|(path, scale)| {
        let scale = scale.parse().ok().filter(|scale: &f32| scale.is_finite())?;
        Some((PathBuf::from(path), scale))
    });
    Ok(scaled.unwrap_or_else(|| (given.into(), 1.0)))
}

impl ServeArgs {
    /// The models, with `find` turning what someone typed into a path.
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

    /// Checks what can be checked before anything is done.
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
        if self.engine.on_the_way_in.imatrix.is_some() && specs.len() > 1 {
            return Err(ConfigError::Option {
                option: "--imatrix",
                problem: format!("{} models are served, and it is of one", specs.len()),
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
    /// How long a client may do nothing.
    pub fn io_patience(&self) -> Duration {
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
    fn only_the_machine_itself_gets_in_without_a_key() {
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
    fn an_importance_matrix_is_of_one_model() {
        let flags = ["--quantize", "q4_k_m", "--imatrix", "a.imatrix"];
        let one = args(&[&["a.gguf"], &flags[..]].concat());
        assert!(one.check(&specs(&one)).is_ok());
        let two = args(&[&["a.gguf", "b.gguf"], &flags[..]].concat());
        assert!(two.check(&specs(&two)).is_err());
    }

    #[test]
    fn models_have_names() {
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
