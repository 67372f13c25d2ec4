//! [`MetadataValue`]: a value that replaces one of the metadata of a file.

use super::value::Value;

/// A value for [`OpenOptions::overrides`](crate::OpenOptions::overrides).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum MetadataValue {
    /// Boolean.
    Bool(bool),
    /// Integer, for keys of any width, and for numbers with a fraction.
    Int(i64),
    /// Number with a fraction.
    Float(f64),
    /// Text.
    Str(String),
}

impl MetadataValue {
    /// Borrows the value.
    pub(super) fn as_value(&self) -> Value<'_> {
        match self {
            MetadataValue::Bool(flag) => Value::Bool(*flag),
            MetadataValue::Int(n) => Value::I64(*n),
            MetadataValue::Float(x) => Value::F64(*x),
            MetadataValue::Str(text) => Value::Str(text),
        }
    }

    /// The value in place of `old`; an error that names both types if it is of another kind.
    pub(super) fn replacing(&self, old: Option<Value<'_>>) -> Result<MetadataValue, String> {
        let Some(old) = old else {
            return Ok(self.clone());
        };
        match (&old, self) {
            (Value::F32(_) | Value::F64(_), MetadataValue::Int(n)) => {
                Ok(MetadataValue::Float(*n as f64))
            }
            (Value::F32(_) | Value::F64(_), MetadataValue::Float(_))
            | (Value::Bool(_), MetadataValue::Bool(_))
            | (Value::Str(_) | Value::Bytes(_), MetadataValue::Str(_)) => Ok(self.clone()),
            (_, MetadataValue::Int(_)) if old.as_i64().is_some() || old.as_u64().is_some() => {
                Ok(self.clone())
            }
            _ => Err(format!(
                "a value of type {} cannot be replaced by one of type {}",
                old.value_type().name(),
                self.as_value().value_type().name()
            )),
        }
    }
}

impl From<bool> for MetadataValue {
    fn from(flag: bool) -> MetadataValue {
        MetadataValue::Bool(flag)
    }
}

impl From<i64> for MetadataValue {
    fn from(n: i64) -> MetadataValue {
        MetadataValue::Int(n)
    }
}

impl From<f64> for MetadataValue {
    fn from(x: f64) -> MetadataValue {
        MetadataValue::Float(x)
    }
}

impl From<&str> for MetadataValue {
    fn from(text: &str) -> MetadataValue {
        MetadataValue::Str(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{ModelFile, OpenOptions};

    fn open(options: OpenOptions) -> crate::Result<ModelFile> {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/tiny/model.gguf"
        );
        ModelFile::open(path, &options)
    }

    #[test]
    fn values_are_replaced_and_added() {
        let own = open(OpenOptions::default()).unwrap();
        let context = own.metadata().u64("llama.context_length").unwrap();
        let options = OpenOptions::default()
            .override_metadata("llama.context_length", 5)
            .override_metadata("llama.context_length", 77)
            .override_metadata("llama.rope.freq_base", 500_000)
            .override_metadata("tokenizer.ggml.add_bos_token", false)
            .override_metadata("oxidize.added", "text");
        let file = open(options).unwrap();
        let metadata = file.metadata();
        assert_ne!(context, 77);
        assert_eq!(metadata.u64("llama.context_length"), Some(77));
        assert_eq!(metadata.f32("llama.rope.freq_base"), Some(500_000.0));
        assert_eq!(metadata.bool("tokenizer.ggml.add_bos_token"), Some(false));
        assert_eq!(metadata.str("oxidize.added"), Some("text"));
        let keys: Vec<&str> = metadata.iter().map(|(key, _)| key).collect();
        assert_eq!(keys.len(), metadata.len());
        assert_eq!(keys.last(), Some(&"oxidize.added"));
        let listed = metadata
            .iter()
            .find(|(key, _)| *key == "llama.context_length");
        assert_eq!(listed.and_then(|(_, value)| value.as_u64()), Some(77));
    }

    #[test]
    fn values_of_another_type_are_refused() {
        for (key, value, types) in [
            (
                "llama.context_length",
                MetadataValue::from("long"),
                ["uint32", "string"],
            ),
            (
                "llama.context_length",
                MetadataValue::from(1.5),
                ["uint32", "float64"],
            ),
            (
                "general.architecture",
                MetadataValue::from(true),
                ["string", "bool"],
            ),
            (
                "tokenizer.ggml.tokens",
                MetadataValue::from(1),
                ["array", "int64"],
            ),
        ] {
            let options = OpenOptions::default().override_metadata(key, value);
            let error = open(options).err().unwrap().to_string();
            assert!(
                error.contains("model.gguf") && error.contains(key),
                "{error}"
            );
            assert!(types.iter().all(|name| error.contains(name)), "{error}");
        }
    }

    #[test]
    fn other_formats_have_none() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/tiny/ref.safetensors"
        );
        assert!(ModelFile::open(path, &OpenOptions::default()).is_ok());
        let options = OpenOptions::default().override_metadata("x", 1);
        let error = ModelFile::open(path, &options).err().unwrap().to_string();
        assert!(error.contains("only metadata of GGUF files"), "{error}");
    }
}
