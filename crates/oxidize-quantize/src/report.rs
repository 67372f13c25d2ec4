//! [`Report`]: provenance and measured quality of a quantized model, stored as JSON in its metadata.

use oxidize_core::file::{Format, ModelFile};
use serde::{Deserialize, Serialize};

use crate::compare::Comparison;
use crate::convert::directory_name;
use crate::quantize::QuantJob;

/// Provenance and measured quality of a quantized model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The command that wrote the file.
    pub command: String,
    /// The version of oxidize.
    pub version: String,
    /// Name of the source file or directory.
    pub source: String,
    /// Name of the quantization recipe.
    pub recipe: String,
    /// Bytes of the tensors.
    pub bytes: u64,
    /// Bytes of the source's tensors.
    pub source_bytes: u64,
    /// Average bits per weight.
    pub bits_per_weight: f64,
    /// Comparison of the predictions with the source's, if measured.
    pub comparison: Option<Comparison>,
    /// One entry per tensor.
    pub tensors: Vec<TensorReport>,
}

/// Types, size and error of a tensor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TensorReport {
    /// Tensor name.
    pub name: String,
    /// Type in the source.
    pub from: String,
    /// Type in the new file.
    pub to: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Relative root-mean-square error of the elements.
    pub error: Option<f64>,
}

impl Report {
    /// The metadata key.
    pub const KEY: &str = "oxidize.report";

    pub(crate) fn new(job: &QuantJob<'_>, source: &ModelFile) -> Report {
        let tensors = job.tensors.iter().zip(&job.plan.types);
        let tensors = tensors.map(|(tensor, ty)| TensorReport {
            name: tensor.name.clone(),
            from: tensor.ty.name().to_owned(),
            to: ty.name().to_owned(),
            bytes: ty.bytes_for(tensor.elements()).unwrap_or(0),
            error: None,
        });
        let stored = source.tensors().iter();
        let stored = stored.map(|tensor| source.stored_bytes(tensor));
        let name = source.path().file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let directory = match source.format() {
            Format::Gguf { .. } => None,
            _ => directory_name(source),
        };
        Report {
            command: String::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            source: directory.unwrap_or(name),
            recipe: job.recipe.clone(),
            bytes: job.plan.bytes(&job.tensors),
            source_bytes: stored.sum(),
            bits_per_weight: job.plan.bits_per_weight(&job.tensors),
            comparison: None,
            tensors: tensors.collect(),
        }
    }

    /// Returns the report stored in the metadata of a model.
    pub fn of(file: &ModelFile) -> Option<Report> {
        serde_json::from_str(file.metadata().str(Report::KEY)?).ok()
    }

    /// Upper bound of the JSON length, independent of the measured numbers.
    pub(crate) fn max_len(&self) -> usize {
        /// Maximum length of a number, and of all numbers of a comparison.
        const NUMBER: usize = 32;
        const COMPARISON: usize = 1024;
        let plain = Report {
            comparison: None,
            tensors: Vec::new(),
            ..self.clone()
        };
        // In JSON form, since a name may contain escaped characters.
        let written = |text: &str| serde_json::to_string(text).map_or(0, |json| json.len());
        let names = self
            .tensors
            .iter()
            .map(|t| written(&t.name) + t.from.len() + t.to.len());
        let labels = r#"{"name":"","from":"","to":"","bytes":,"error":},"#.len();
        plain.json().len() + COMPARISON + names.map(|n| n + labels + 2 * NUMBER).sum::<usize>()
    }

    /// JSON padded with spaces to `room` bytes, which reserves space in the header before the report is
    /// known.
    pub(crate) fn padded(&self, room: usize) -> String {
        let json = self.json();
        let blanks = room.saturating_sub(json.len());
        json + &" ".repeat(blanks)
    }

    fn json(&self) -> String {
        // Strings and finite numbers always serialize.
        serde_json::to_string(self).unwrap_or_default()
    }
}
