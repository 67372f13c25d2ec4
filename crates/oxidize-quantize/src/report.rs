//! [`Report`]: what a model was made of and what that cost, kept in its own metadata as JSON.

use oxidize_core::file::{Format, ModelFile};
use serde::{Deserialize, Serialize};

use crate::compare::Comparison;
use crate::convert::folder_name;
use crate::quantize::Recipe;

/// What was made, and what it cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The command that made the file.
    pub command: String,
    /// The version of oxidize.
    pub version: String,
    /// The name of the file it was made of.
    pub source: String,
    /// What people call the mix of types.
    pub mix: String,
    /// Bytes of the tensors.
    pub bytes: u64,
    /// Bytes of the tensors it was made of.
    pub source_bytes: u64,
    /// Average bits of a weight.
    pub bits_per_weight: f64,
    /// How its predictions differ from the source's, where that was measured.
    pub comparison: Option<Comparison>,
    /// Each tensor.
    pub tensors: Vec<TensorReport>,
}

/// What became of a tensor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TensorReport {
    /// Its name.
    pub name: String,
    /// Its type in the source.
    pub from: String,
    /// Its type.
    pub to: String,
    /// Its bytes.
    pub bytes: u64,
    /// The root of the share that errors have in the squares of its elements.
    pub error: Option<f64>,
}

impl Report {
    /// The metadata key.
    pub const KEY: &str = "oxidize.report";

    pub(crate) fn new(recipe: &Recipe<'_>, source: &ModelFile) -> Report {
        let tensors = recipe.tensors.iter().zip(&recipe.plan.types);
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
        let folder = match source.format() {
            Format::Gguf { .. } => None,
            _ => folder_name(source),
        };
        Report {
            command: String::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            source: folder.unwrap_or(name),
            mix: recipe.mix.clone(),
            bytes: recipe.plan.bytes(&recipe.tensors),
            source_bytes: stored.sum(),
            bits_per_weight: recipe.plan.bits_per_weight(&recipe.tensors),
            comparison: None,
            tensors: tensors.collect(),
        }
    }

    /// The report of a model that has one.
    pub fn of(file: &ModelFile) -> Option<Report> {
        serde_json::from_str(file.metadata().str(Report::KEY)?).ok()
    }

    /// Bytes that it takes at most, whatever the measured numbers are.
    pub(crate) fn room(&self) -> usize {
        /// Digits of a float, and more than all numbers of a comparison.
        const NUMBER: usize = 32;
        const COMPARISON: usize = 1024;
        let plain = Report {
            comparison: None,
            tensors: Vec::new(),
            ..self.clone()
        };
        // As JSON has it: a name may have letters that are written out.
        let written = |text: &str| serde_json::to_string(text).map_or(0, |json| json.len());
        let names = self
            .tensors
            .iter()
            .map(|t| written(&t.name) + t.from.len() + t.to.len());
        let labels = r#"{"name":"","from":"","to":"","bytes":,"error":},"#.len();
        plain.json().len() + COMPARISON + names.map(|n| n + labels + 2 * NUMBER).sum::<usize>()
    }

    /// The report as JSON, filled up with blanks: its place in the file is kept before it is known.
    pub(crate) fn padded(&self, room: usize) -> String {
        let json = self.json();
        let blanks = room.saturating_sub(json.len());
        json + &" ".repeat(blanks)
    }

    fn json(&self) -> String {
        // Strings and numbers only: nothing that JSON cannot say.
        serde_json::to_string(self).unwrap_or_default()
    }
}
