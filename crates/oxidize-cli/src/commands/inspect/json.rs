//! `--json`: the contents of a model file as JSON.

use std::io::Write;

use oxidize_core::file::{Format, ModelFile, Summary, TensorInfo};
use oxidize_core::gguf::{Array, Value};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, SerializeStruct, Serializer};

/// Maximum number of array elements; longer arrays are truncated.
const HEAD: usize = 64;

/// Writes the model as one JSON object.
pub(super) fn write(model: &ModelFile, out: &mut impl Write) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &Model(model))?;
    Ok(writeln!(out)?)
}

struct Model<'a>(&'a ModelFile);

impl Serialize for Model<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (model, summary) = (self.0, Summary::of(self.0));
        let (format, version) = match model.format() {
            Format::Gguf { version } => ("gguf", Some(version)),
            Format::Mlx => ("mlx", None),
            _ => ("safetensors", None),
        };
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("format", format)?;
        object.serialize_entry("version", &version)?;
        object.serialize_entry("architecture", &summary.architecture)?;
        object.serialize_entry("name", &summary.name)?;
        object.serialize_entry("file_type", &summary.file_type)?;
        object.serialize_entry("parameters", &summary.parameters)?;
        object.serialize_entry("bytes", &summary.file_bytes)?;
        object.serialize_entry("weight_bytes", &summary.weight_bytes)?;
        object.serialize_entry("metadata", &Metadata(model))?;
        if let Some(config) = model.config() {
            object.serialize_entry("config", config)?;
        }
        object.serialize_entry("tensors", &Tensors(model))?;
        object.end()
    }
}

struct Metadata<'a>(&'a ModelFile);

impl Serialize for Metadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        for (key, value) in self.0.metadata().iter() {
            object.serialize_entry(key, &MetadataValue(value))?;
        }
        for (key, value) in self.0.annotations() {
            object.serialize_entry(key, value)?;
        }
        object.end()
    }
}

struct MetadataValue<'a>(Value<'a>);

impl Serialize for MetadataValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Bool(v) => serializer.serialize_bool(v),
            Value::Str(v) => serializer.serialize_str(v),
            Value::Bytes(v) => serializer.serialize_str(&String::from_utf8_lossy(v)),
            Value::U64(v) => serializer.serialize_u64(v),
            Value::F32(v) => float(v.into(), serializer),
            Value::F64(v) => float(v, serializer),
            Value::Array(array) if array.len() > HEAD => {
                let mut object = serializer.serialize_struct("Array", 3)?;
                object.serialize_field("type", array.element_type().name())?;
                object.serialize_field("len", &array.len())?;
                object.serialize_field("head", &Elements(array))?;
                object.end()
            }
            Value::Array(array) => Elements(array).serialize(serializer),
            other => other.as_i64().serialize(serializer),
        }
    }
}

/// Writes NaN and infinity as strings, since JSON numbers are finite.
fn float<S: Serializer>(value: f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() {
        serializer.serialize_f64(value)
    } else {
        serializer.collect_str(&value)
    }
}

/// The first [`HEAD`] elements of an array.
struct Elements<'a>(Array<'a>);

impl Serialize for Elements<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().take(HEAD).map(MetadataValue))
    }
}

struct Tensors<'a>(&'a ModelFile);

impl Serialize for Tensors<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let model = self.0;
        let files: Vec<_> = model.files().map(|(path, _)| file_name(path)).collect();
        let mut list = serializer.serialize_seq(Some(model.tensors().len()))?;
        for tensor in model.tensors() {
            let file = files.get(tensor.file).map_or("", String::as_str);
            list.serialize_element(&Tensor {
                model,
                tensor,
                file,
            })?;
        }
        list.end()
    }
}

fn file_name(path: &std::path::Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}

struct Tensor<'a> {
    model: &'a ModelFile,
    tensor: &'a TensorInfo,
    file: &'a str,
}

impl Serialize for Tensor<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Tensor {
            model,
            tensor,
            file,
        } = self;
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("name", &tensor.name)?;
        object.serialize_entry("type", tensor.ty.name())?;
        object.serialize_entry("shape", &tensor.shape)?;
        object.serialize_entry("bytes", &tensor.bytes)?;
        let stored = model.stored_bytes(tensor);
        if stored != tensor.bytes {
            object.serialize_entry("stored_bytes", &stored)?;
        }
        object.serialize_entry("file", file)?;
        object.serialize_entry("offset", &tensor.offset)?;
        object.end()
    }
}
