//! [`Hub`]: fetches models by name, and finds those that are there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::client::{Cancel, Client};
use crate::error::{Error, Result};
use crate::progress::Observer;
use crate::reference::ModelRef;
use crate::select::Candidate;
use crate::settings::Settings;
use crate::{hf, modelscope, ollama, web};

/// Fetches models by name.
pub struct Hub {
    pub(crate) client: Client,
}

/// Options of a pull.
pub struct PullOptions<'a> {
    /// Receives progress and notes.
    pub observer: &'a dyn Observer,
    /// Memory of this machine, for `:auto`.
    pub memory: Option<Memory<'a>>,
}

/// The memory of this machine, and how much of it a model needs.
pub struct Memory<'a> {
    /// Available memory in bytes.
    pub available: u64,
    /// Bytes that a model needs, given its first bytes, which hold its hyper-parameters.
    pub needed: &'a dyn Fn(&Candidate, &[u8]) -> u64,
}

impl Default for PullOptions<'_> {
    fn default() -> Self {
        PullOptions {
            observer: &(),
            memory: None,
        }
    }
}

/// A model in the local cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// File or directory to load.
    pub path: PathBuf,
    /// All files of the model.
    pub files: Vec<PathBuf>,
}

impl Hub {
    /// A hub with the settings of the environment.
    pub fn from_environment() -> Result<Hub> {
        Hub::new(Settings::from_environment(), None)
    }

    /// A hub. `cancel` is asked often; when it returns true, the work ends with [`Error::Canceled`].
    pub fn new(settings: Settings, cancel: Option<Cancel>) -> Result<Hub> {
        let cancel = cancel.unwrap_or_else(|| Arc::new(|| false));
        Ok(Hub {
            client: Client::new(settings, cancel)?,
        })
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.client.settings
    }

    /// Fetches a model, or what is missing of it, and returns its path. If the host cannot be reached, the files of
    /// the cache are used.
    pub fn pull(&self, model: &ModelRef, options: &PullOptions<'_>) -> Result<Pulled> {
        let name = model.to_string();
        if self.settings().offline {
            return self
                .find(model, options)?
                .ok_or_else(|| self.offline(model));
        }
        let result = match model {
            ModelRef::HuggingFace(repo) => hf::pull(self, &name, repo, options),
            ModelRef::ModelScope(repo) => modelscope::pull(self, &name, repo, options),
            ModelRef::Ollama(model) => ollama::pull(self, &name, model, options),
            ModelRef::Web(address) => web::pull(self, &name, address, options),
        };
        match result {
            Err(error) if error.is_unreachable() => match self.find(model, options) {
                Ok(Some(found)) => {
                    options
                        .observer
                        .note(&format!("{error}; using the files in the cache"));
                    Ok(found)
                }
                _ => Err(error),
            },
            result => result,
        }
    }

    /// The model if it is in the cache, without the network. With a default quantization, it is the best of those
    /// that are there.
    pub fn find(&self, model: &ModelRef, options: &PullOptions<'_>) -> Result<Option<Pulled>> {
        let name = model.to_string();
        match model {
            ModelRef::HuggingFace(repo) => hf::find(self, &name, repo, options),
            ModelRef::ModelScope(repo) => modelscope::find(self, &name, repo, options),
            ModelRef::Ollama(model) => ollama::find(self, model),
            ModelRef::Web(address) => web::find(self, &name, address),
        }
    }

    /// The model to run: from the cache if it is certain that the network would choose the same files, or else
    /// fetched.
    pub fn open(&self, model: &ModelRef, options: &PullOptions<'_>) -> Result<Pulled> {
        let is_certain = match model {
            ModelRef::HuggingFace(repo) => hf::is_certain(self, repo),
            ModelRef::ModelScope(repo) => modelscope::is_certain(self, repo),
            ModelRef::Ollama(_) | ModelRef::Web(_) => true,
        };
        if is_certain && let Ok(Some(found)) = self.find(model, options) {
            return Ok(found);
        }
        self.pull(model, options)
    }

    /// The cache of the hub.
    pub(crate) fn hub_cache(&self) -> Result<&Path> {
        self.settings()
            .hub_cache
            .as_deref()
            .ok_or(Error::NoCacheDirectory)
    }

    /// The directory of models that are not of the hub.
    pub(crate) fn own_cache(&self) -> Result<&Path> {
        self.settings()
            .own_cache
            .as_deref()
            .ok_or(Error::NoCacheDirectory)
    }

    fn offline(&self, model: &ModelRef) -> Error {
        let cache = match model {
            ModelRef::HuggingFace(_) => &self.settings().hub_cache,
            _ => &self.settings().own_cache,
        };
        let directory = cache.clone().unwrap_or_default();
        Error::Offline {
            name: model.to_string(),
            directory,
        }
    }
}

/// Tells which candidates fit in memory. `start` reads the first bytes of one; all quantizations of a model have the
/// same hyper-parameters, so those of the smallest are read.
pub(crate) fn fitting(
    name: &str,
    memory: &Option<Memory<'_>>,
    models: &[Candidate],
    start: &dyn Fn(&Candidate) -> Result<Vec<u8>>,
) -> Result<(Vec<bool>, u64)> {
    let Some(memory) = memory else {
        let problem = "`:auto` needs to know the memory of this machine".to_owned();
        return Err(Error::NotSupported {
            name: name.into(),
            problem,
        });
    };
    let Some(smallest) = models.iter().min_by_key(|model| model.size) else {
        return Ok((Vec::new(), memory.available));
    };
    let header = start(smallest)?;
    let fits = |model: &Candidate| (memory.needed)(model, &header) <= memory.available;
    Ok((models.iter().map(fits).collect(), memory.available))
}
