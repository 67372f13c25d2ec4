//! [`ServerConfig`]: the settings of the server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use oxidize_core::backend::KvType;
use oxidize_core::backend::RepackLimit;
use oxidize_core::chat::Thinking;
use oxidize_core::recipe::QuantRecipe;

use crate::auth::{KeyError, Keys};

/// Settings of the server. The defaults are those of `oxidize serve`.
#[derive(Clone, Debug, Default)]
pub struct ServerConfig {
    /// Requests that name an unknown model use the first one.
    pub any_model: bool,
    /// Requests with fields that the server does not know are refused. Otherwise the response lists the fields
    /// in the header X-Oxidize-Ignored.
    pub strict: bool,
    /// Seconds after which an idle model is unloaded; 0 keeps it until another model needs the room.
    pub idle_unload: u64,
    /// Clients may fetch, copy and remove models, and name models of the local library. `None` allows it on loopback
    /// addresses.
    pub manage_models: Option<bool>,
    /// Models are not fetched over the network.
    pub offline: bool,
    /// Address and access control.
    pub network: NetworkConfig,
    /// Limits.
    pub limits: LimitConfig,
    /// Settings of the engine.
    pub engine: EngineSettings,
    /// Settings of the log.
    pub log: LogConfig,
}

/// Address and access control.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// Address to listen on. Addresses other than loopback need an API key, or [`no_auth`](Self::no_auth).
    pub host: IpAddr,
    /// Port to listen on; 0 chooses a free port.
    pub port: u16,
    /// API keys, one of which clients must send, with optional settings: `KEY name=alice rpm=60 tpm=100000
    /// priority=1`. `sha256:HEX` is the digest of a key.
    pub api_key: Vec<String>,
    /// File with further API keys, one per line.
    pub api_key_file: Option<PathBuf>,
    /// Listens on any address without API keys.
    pub no_auth: bool,
    /// Origins of web pages that may use the server; `*` allows all.
    pub cors_origin: Vec<String>,
    /// Names that are allowed in the Host header, besides IP addresses and localhost; `*` allows all.
    pub allowed_host: Vec<String>,
}

/// Limits of the server.
#[derive(Clone, Debug)]
pub struct LimitConfig {
    /// Maximum number of open connections.
    pub max_connections: usize,
    /// Maximum size of a request body, in bytes.
    pub max_body: usize,
    /// Maximum number of queued requests per model; further ones are refused with status 429.
    pub queue: usize,
    /// Maximum memory of all loaded models with their caches, in MB; `None` is the memory of the machine. Idle
    /// models are unloaded to make room.
    pub memory_limit: Option<u64>,
    /// Maximum duration of a request, in seconds.
    pub timeout: u64,
    /// Seconds after which clients that neither read nor send are disconnected.
    pub io_timeout: u64,
    /// Seconds that running requests have to finish at shutdown.
    pub drain: u64,
}

/// Quantization at load.
#[derive(Clone, Debug, Default)]
pub struct LoadQuant {
    /// Recipe that the weights are quantized with at load.
    pub quantize: Option<QuantRecipe>,
    /// Importance matrix of the quantization, written by `oxidize imatrix` or llama.cpp.
    pub imatrix: Option<PathBuf>,
}

/// Settings of the engine.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Context size: maximum number of tokens of a request, prompt and answer together. 0 is the model's own
    /// limit, and `None` is that limit as far as free memory allows.
    pub ctx_size: Option<usize>,
    /// Maximum number of requests that run at once.
    pub parallel: usize,
    /// Size of the KV cache in tokens, shared by all requests. `None` is the context size times
    /// [`parallel`](Self::parallel), up to a quarter of the memory.
    pub cache_tokens: Option<usize>,
    /// Makes answers independent of the requests that run beside them, which is slower.
    pub deterministic: bool,
    /// Directory that keeps the prefix cache across restarts.
    pub cache_dir: Option<PathBuf>,
    /// Maximum size of the prefix cache on disk per model, in GB.
    pub cache_dir_size: u64,
    /// Number of threads; all cores where `None`.
    pub threads: Option<usize>,
    /// Maximum number of tokens per step. Smaller batches let long prompts delay other requests less.
    pub batch_size: usize,
    /// Type of the keys in the KV cache.
    pub cache_type_k: KvType,
    /// Type of the values in the KV cache.
    pub cache_type_v: KvType,
    /// Reads model files into memory instead of mapping them.
    pub no_mmap: bool,
    /// Does not copy mapped files to huge pages, which are faster but not shared between processes.
    pub no_huge_pages: bool,
    /// Memory for repacking IQ1, IQ2 and IQ3 weights.
    pub repack: RepackLimit,
    /// Loads models even if they do not seem to fit in memory.
    pub no_memory_check: bool,
    /// LoRA adapters of the first model, with their scales.
    pub lora: Vec<(PathBuf, f32)>,
    /// Quantization at load.
    pub load_quant: LoadQuant,
    /// File of a chat template, or name of a built-in one, instead of the models' own.
    pub chat_template: Option<String>,
    /// Reasoning of requests that do not say.
    pub thinking: Thinking,
    /// Maximum number of tokens of reasoning, for requests that set none.
    pub thinking_budget: Option<usize>,
    /// Speculative decoding.
    pub speculation: SpeculationSettings,
}

/// Speculative decoding, which changes the speed of answers and not the answers. It pauses while it does not pay.
#[derive(Clone, Debug, Default)]
pub struct SpeculationSettings {
    /// Source of drafts for requests that do not say; none where `None`. Requests with a predicted answer draft
    /// anyway.
    pub source: Option<DraftSettings>,
    /// Maximum number of draft tokens per step.
    pub max_tokens: Option<usize>,
    /// Minimum number of draft tokens; shorter drafts are dropped.
    pub min_tokens: Option<usize>,
    /// A draft model stops where its token is less likely than this.
    pub min_probability: Option<f32>,
    /// Drafts even where that is slower.
    pub always: bool,
}

/// Source of drafts.
#[derive(Clone, Debug)]
pub enum DraftSettings {
    /// Continuations of earlier occurrences of the last tokens.
    Ngram,
    /// Model that drafts for the first model.
    Model(PathBuf),
}

/// Settings of the log.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// Format.
    pub format: LogFormat,
    /// Level: error, warn, info, debug, or a filter such as `oxidize_server=debug`.
    pub filter: String,
    /// Logs prompts and answers.
    pub prompts: bool,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// JSON objects, one per line.
    Json,
}

impl Default for NetworkConfig {
    fn default() -> NetworkConfig {
        NetworkConfig {
            host: Ipv4Addr::LOCALHOST.into(),
            port: 8080,
            api_key: Vec::new(),
            api_key_file: None,
            no_auth: false,
            cors_origin: Vec::new(),
            allowed_host: Vec::new(),
        }
    }
}

impl Default for LimitConfig {
    fn default() -> LimitConfig {
        LimitConfig {
            max_connections: 4096,
            max_body: 32 << 20,
            queue: 64,
            memory_limit: None,
            timeout: 600,
            io_timeout: 30,
            drain: 30,
        }
    }
}

impl Default for EngineSettings {
    fn default() -> EngineSettings {
        EngineSettings {
            ctx_size: None,
            parallel: 16,
            cache_tokens: None,
            deterministic: false,
            cache_dir: None,
            cache_dir_size: 10,
            threads: None,
            batch_size: 512,
            cache_type_k: KvType::F16,
            cache_type_v: KvType::F16,
            no_mmap: false,
            no_huge_pages: false,
            repack: RepackLimit::default(),
            no_memory_check: false,
            lora: Vec::new(),
            load_quant: LoadQuant::default(),
            chat_template: None,
            thinking: Thinking::Auto,
            thinking_budget: None,
            speculation: SpeculationSettings::default(),
        }
    }
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            format: LogFormat::Text,
            filter: "info".into(),
            prompts: false,
        }
    }
}

/// A model to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// Name in requests.
    pub name: String,
    /// Path of the model file or directory.
    pub path: PathBuf,
}

/// An error in the settings of the server.
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

impl ServerConfig {
    /// True if clients may fetch, copy and remove models.
    pub fn may_manage_models(&self) -> bool {
        self.manage_models
            .unwrap_or(self.network.host.is_loopback())
    }

    /// Settings of the hubs: those of the environment, without the network if [`offline`](Self::offline).
    pub(crate) fn hub_settings(&self) -> oxidize_hub::Settings {
        let mut settings = oxidize_hub::Settings::from_environment();
        settings.offline |= self.offline;
        settings
    }

    /// Checks the settings for these models and returns the API keys.
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
        let NetworkConfig { host, no_auth, .. } = self.network;
        if !host.is_loopback() && keys.is_empty() && !no_auth {
            return Err(ConfigError::OpenBind(host));
        }
        Ok(keys)
    }
}

impl NetworkConfig {
    /// The address to listen on.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.port)
    }
}

impl LimitConfig {
    /// Time after which an inactive client is disconnected.
    pub fn io_timeout(&self) -> Duration {
        Duration::from_secs(self.io_timeout.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs(names: &[&str]) -> Vec<ModelSpec> {
        let spec = |name: &&str| ModelSpec {
            name: (*name).into(),
            path: format!("{name}.gguf").into(),
        };
        names.iter().map(spec).collect()
    }

    #[test]
    fn other_addresses_than_loopback_need_a_key() {
        let mut config = ServerConfig::default();
        let models = specs(&["m"]);
        assert!(config.check(&models).is_ok());
        assert!(matches!(config.check(&[]), Err(ConfigError::NoModel)));
        config.network.host = Ipv4Addr::UNSPECIFIED.into();
        assert!(matches!(
            config.check(&models),
            Err(ConfigError::OpenBind(_))
        ));
        let mut with_key = config.clone();
        with_key.network.api_key = vec!["k".into()];
        assert!(with_key.check(&models).is_ok());
        config.network.no_auth = true;
        assert!(config.check(&models).is_ok());
    }

    #[test]
    fn an_importance_matrix_needs_a_single_model() {
        let mut config = ServerConfig::default();
        config.engine.load_quant.imatrix = Some("a.imatrix".into());
        assert!(config.check(&specs(&["a"])).is_ok());
        assert!(config.check(&specs(&["a", "b"])).is_err());
    }

    #[test]
    fn models_have_unique_names() {
        let config = ServerConfig::default();
        assert!(config.check(&specs(&["a", "b"])).is_ok());
        assert!(matches!(
            config.check(&specs(&["a", "a"])),
            Err(ConfigError::SameName(_))
        ));
    }
}
