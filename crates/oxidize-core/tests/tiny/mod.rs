//! The checked-in tiny model: a Llama model of two layers of width 64 with random weights, a byte-level
//! vocabulary of 320 tokens and a context of 256, and PyTorch's logits for two inputs.

use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::model::Model;
use std::path::PathBuf;

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny")
}

/// Loads the model.
pub(crate) fn model() -> Model {
    Model::load_with(directory().join("model.gguf"), &OpenOptions::default()).unwrap()
}

/// An input, and PyTorch's logits at each of its positions.
pub(crate) struct Reference {
    pub(crate) tokens: Vec<u32>,
    pub(crate) logits: Vec<f32>,
}

/// Loads the reference logits.
pub(crate) fn references() -> Vec<Reference> {
    let file =
        ModelFile::open(directory().join("ref.safetensors"), &OpenOptions::default()).unwrap();
    let read = |name: String| {
        let bytes = file.data(file.tensor(&name).unwrap()).unwrap();
        bytes.as_chunks::<4>().0.to_vec()
    };
    (0..2)
        .map(|i| Reference {
            tokens: read(format!("tokens_{i}"))
                .into_iter()
                .map(u32::from_le_bytes)
                .collect(),
            logits: read(format!("logits_{i}"))
                .into_iter()
                .map(f32::from_le_bytes)
                .collect(),
        })
        .collect()
}
