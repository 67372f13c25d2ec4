//! Source of hyper-parameters: GGUF metadata or `config.json`, queried by [`Key`].
//!
//! All values are checked for type and range.

use super::Arch;
use super::ModelError;
use crate::file::{Format, ModelFile};
use serde_json::Value;
use std::path::PathBuf;

/// Names of a hyper-parameter. The GGUF name follows `ARCH.` unless it begins with a slash; dots in
/// the `config.json` names separate nested objects.
pub(super) struct Key {
    pub(super) gguf: &'static str,
    pub(super) hf: &'static [&'static str],
}

pub(super) const fn key(gguf: &'static str, hf: &'static [&'static str]) -> Key {
    Key { gguf, hf }
}

/// Value of a possibly nested field; `null` counts as missing.
fn value_at<'c>(config: &'c Value, name: &str) -> Option<&'c Value> {
    let found = name.split('.').try_fold(config, |at, part| at.get(part));
    found.filter(|value| !value.is_null())
}

/// Maximum length of a list.
pub(super) const MAX_LAYERS: usize = 4096;

/// Hyper-parameters of one file.
pub(super) struct Source<'a> {
    file: &'a ModelFile,
    prefix: &'a str,
    pub(super) config: Option<&'a Value>,
}

impl<'a> Source<'a> {
    pub(super) fn new(file: &'a ModelFile, arch: &'a Arch) -> Source<'a> {
        let config = match file.format() {
            Format::Gguf { .. } => None,
            // Multimodal models nest the parameters of the language model.
            _ => file
                .config()
                .map(|config| config.get("text_config").unwrap_or(config)),
        };
        Source {
            file,
            prefix: arch.name,
            config,
        }
    }

    /// Value as JSON, from either source; `null` counts as missing.
    pub(super) fn get(&self, key: &Key) -> Option<Value> {
        if let Some(config) = self.config {
            return key
                .hf
                .iter()
                .find_map(|name| value_at(config, name))
                .cloned();
        }
        use crate::file::gguf::Value as Gguf;
        let array = |array: crate::file::gguf::Array<'_>| -> Value {
            if let Some(values) = array.iter_i64() {
                return values.take(MAX_LAYERS + 1).map(Value::from).collect();
            }
            array
                .iter_f32()
                .into_iter()
                .flatten()
                .take(MAX_LAYERS + 1)
                .map(Value::from)
                .collect()
        };
        let name = self.gguf_name(key);
        let metadata = self.file.metadata();
        match metadata.get(&name)? {
            Gguf::Str(text) => Some(Value::from(text)),
            Gguf::Bool(flag) => Some(Value::from(flag)),
            Gguf::Array(values) => Some(array(values)),
            Gguf::F32(_) | Gguf::F64(_) => metadata.f32(&name).map(Value::from),
            _ => metadata.i64(&name).map(Value::from),
        }
    }

    /// File and name of a key, for error messages.
    fn place(&self, key: &Key) -> (PathBuf, String) {
        match self.config {
            Some(config) => {
                let mut names = key.hf.iter();
                let given = names.clone().find(|name| value_at(config, name).is_some());
                // If none is present, the most common name is reported.
                let usual = || names.find(|name| !name.ends_with("_per_layer"));
                let name = given.or_else(usual).copied().unwrap_or(key.gguf);
                let file = self.file.path().with_file_name("config.json");
                (file, name.to_owned())
            }
            None => (self.file.path().to_path_buf(), self.gguf_name(key)),
        }
    }

    fn gguf_name(&self, key: &Key) -> String {
        match key.gguf.strip_prefix('/') {
            Some(whole) => whole.to_owned(),
            None => format!("{}.{}", self.prefix, key.gguf),
        }
    }

    pub(super) fn missing(&self, key: &Key) -> ModelError {
        let (file, key) = self.place(key);
        ModelError::MissingKey { file, key }
    }

    pub(super) fn bad(&self, key: &Key, problem: String) -> ModelError {
        let (file, key) = self.place(key);
        ModelError::BadValue { file, key, problem }
    }

    fn count(&self, key: &Key, value: &Value, min: usize, max: usize) -> Result<usize, ModelError> {
        value
            .as_u64()
            .and_then(|n| usize::try_from(n).ok())
            .filter(|n| (min..=max).contains(n))
            .ok_or_else(|| {
                self.bad(
                    key,
                    format!("{value} is not an integer from {min} to {max}"),
                )
            })
    }

    pub(super) fn optional(
        &self,
        key: &Key,
        min: usize,
        max: usize,
    ) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        // Some files repeat an identical number for each layer.
        if let Value::Array(values) = &value
            && let Some(first) = values.first()
            && values.iter().all(|value| value == first)
        {
            return self.count(key, first, min, max).map(Some);
        }
        self.count(key, &value, min, max).map(Some)
    }

    pub(super) fn required(&self, key: &Key, min: usize, max: usize) -> Result<usize, ModelError> {
        self.optional(key, min, max)?
            .ok_or_else(|| self.missing(key))
    }

    /// A number for each layer. The file contains either one for all layers or a list of
    /// `n_listed`, of which the first `n_layers` are used.
    pub(super) fn per_layer(
        &self,
        key: &Key,
        (n_layers, n_listed): (usize, usize),
        min: usize,
        max: usize,
    ) -> Result<Option<Vec<usize>>, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let Value::Array(values) = &value else {
            return Ok(Some(vec![self.count(key, &value, min, max)?; n_layers]));
        };
        self.check_list(key, values, n_listed)?;
        values
            .iter()
            .take(n_layers)
            .map(|value| self.count(key, value, min, max))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// Returns an error unless the list has one value per layer.
    pub(super) fn check_list(
        &self,
        key: &Key,
        values: &[Value],
        n_layers: usize,
    ) -> Result<(), ModelError> {
        if values.len() == n_layers {
            return Ok(());
        }
        let problem = format!("{} values for {n_layers} layers", values.len());
        Err(self.bad(key, problem))
    }

    pub(super) fn flag(&self, key: &Key) -> Result<Option<bool>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            // Some converters write a number.
            Some(value) => match value.as_f64() {
                Some(number) => Ok(Some(number != 0.0)),
                None => Err(self.bad(key, format!("{value} is not true or false"))),
            },
        }
    }

    pub(super) fn number(&self, key: &Key) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) if number.is_finite() => Ok(Some(number)),
            _ => Err(self.bad(key, format!("{value} is not a number"))),
        }
    }

    /// Positive number; zero counts as missing.
    pub(super) fn positive(&self, key: &Key) -> Result<Option<f32>, ModelError> {
        match self.number(key)? {
            Some(number) if number < 0.0 || number > f64::from(f32::MAX) => {
                Err(self.bad(key, format!("{number} is out of range")))
            }
            number => Ok(number.map(|n| n as f32).filter(|&n| n > 0.0)),
        }
    }

    /// List of finite numbers.
    pub(super) fn numbers(&self, key: &Key) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let Value::Array(values) = &value else {
            return Err(self.bad(key, "not a list".into()));
        };
        let number = |value: &Value| value.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
        let numbers: Option<Vec<f32>> = values.iter().take(MAX_LAYERS + 1).map(number).collect();
        let problem = || self.bad(key, "not a list of numbers".into());
        numbers.ok_or_else(problem).map(Some)
    }
}
