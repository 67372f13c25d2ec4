//! Golden models for tests: tiny models of every architecture with the outputs of an independent implementation.
//!
//! A [`Fixture`] is a file of `fixtures/golden/`: the configuration of a model, the names of its tensors, inputs,
//! and PyTorch's outputs. Weights follow from the names ([`weights`]), so [`Fixture::build`] writes the whole model,
//! as a Hugging Face directory and as GGUF. `scripts/golden/` makes and verifies fixtures.

mod build;
mod tensors;
mod weights;

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use oxidize_core::file::ModelFile;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

pub use build::Golden;
pub use tensors::{TensorEntry, names};
pub use weights::weights;

/// A golden model without its weights.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fixture {
    /// Name of the file.
    #[serde(skip)]
    pub name: String,
    /// Class of `transformers`, or function of `scripts/golden/stand_ins.py`, that computed the outputs.
    pub reference: String,
    /// The only form that the outputs hold for.
    pub only: Option<Form>,
    /// Reason of [`Fixture::only`], or of an unusual reference.
    pub notes: Option<String>,
    /// Fingerprint of the GGUF file ([`fingerprint`]), which shows the order of rows that both forms agree on.
    pub gguf_fingerprint: Option<f64>,
    /// Keys that our converter writes and llama.cpp's does not, without the name of the architecture. The GGUF file lacks
    /// them, so that the defaults of the descriptor are tested.
    #[serde(default)]
    pub gguf_without: Vec<String>,
    /// JSON files of the directory.
    pub files: Map<String, Value>,
    /// Tokenizer files of the directory, and the files of `fixtures/tokenizers` that they are copies of.
    pub tokenizer: Map<String, Value>,
    /// Tensors, as patterns of names.
    pub tensors: Vec<TensorEntry>,
    /// Inputs and outputs.
    pub cases: Vec<Case>,
}

/// Form of a model.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Hugging Face directory.
    Directory,
    /// GGUF file.
    Gguf,
}

/// An input and the expected outputs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Case {
    /// Tokens of the input.
    pub tokens: Vec<u32>,
    /// Tokens of the decoder, if `tokens` are the encoder's.
    pub decoder_tokens: Vec<u32>,
    /// Positions that `logits` and `hidden` belong to.
    pub positions: Vec<usize>,
    /// Logits at each of `positions`; for a classifier, its scores.
    #[serde(deserialize_with = "floats")]
    pub logits: Vec<f32>,
    /// Hidden states of an encoder at each of `positions`.
    #[serde(deserialize_with = "floats")]
    pub hidden: Vec<f32>,
    /// Embedding of the input by an encoder.
    #[serde(deserialize_with = "floats")]
    pub pooled: Vec<f32>,
    /// Scores of a classifier for the first third of the tokens as one text and the rest as another.
    #[serde(deserialize_with = "floats")]
    pub pair: Vec<f32>,
}

impl Fixture {
    /// Reads `fixtures/golden/NAME.json`.
    pub fn load(name: &str) -> Fixture {
        let path = directory().join(format!("{name}.json"));
        let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut fixture: Fixture =
            serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        name.clone_into(&mut fixture.name);
        fixture
    }

    /// Reads all fixtures, in the order of their names.
    pub fn all() -> Vec<Fixture> {
        let mut names: Vec<String> = std::fs::read_dir(directory())
            .expect("fixtures/golden is missing")
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter_map(|name| Some(name.strip_suffix(".json")?.to_owned()))
            .collect();
        names.sort();
        names.iter().map(|name| Fixture::load(name)).collect()
    }

    /// The configuration.
    pub fn config(&self) -> &Value {
        &self.files["config.json"]
    }

    /// True if the outputs hold for this form.
    pub fn has(&self, form: Form) -> bool {
        self.only.is_none_or(|only| only == form)
    }
}

/// Writes the model of `fixtures/golden/NAME.json` to a temporary directory.
pub fn build(name: &str) -> Golden {
    Fixture::load(name).build()
}

/// Sum of the products of all elements with pseudo-random factors that depend on the tensor's name.
///
/// A row in another place, a factor, or another name changes the sum; rounding hardly does.
pub fn fingerprint(file: &ModelFile) -> oxidize_core::Result<f64> {
    let mut sum = 0.0;
    for tensor in file.tensors() {
        let mut factors = weights(&tensor.name, tensor.elements() as usize, 0.0, 1.0);
        file.for_each_f32::<oxidize_core::Error>(tensor, |piece| {
            let products = piece.iter().zip(&mut factors);
            sum += products
                .map(|(x, factor)| f64::from(*x) * f64::from(factor))
                .sum::<f64>();
            Ok(())
        })?;
    }
    Ok(sum)
}

/// `fixtures/golden`.
fn directory() -> PathBuf {
    fixtures().join("golden")
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// Little-endian f32 numbers in base64.
fn floats<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f32>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bytes = BASE64.decode(text).map_err(serde::de::Error::custom)?;
    let (numbers, rest) = bytes.as_chunks();
    if !rest.is_empty() {
        return Err(serde::de::Error::custom("not a whole number of f32"));
    }
    Ok(numbers.iter().copied().map(f32::from_le_bytes).collect())
}
