//! The files of a golden model, in a temporary directory.

use std::fs;
use std::path::{Path, PathBuf};

use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::recipe::QuantRecipe;
use oxidize_quantize::convert::convert;
use oxidize_quantize::plan::QuantizeParams;
use oxidize_quantize::quantize::Options;
use tempfile::TempDir;

use crate::tensors::safetensors;
use crate::{Fixture, fixtures};

/// A golden model with its files, which are deleted when it is dropped.
#[derive(Debug)]
pub struct Golden {
    name: String,
    directory: TempDir,
}

impl Golden {
    /// The Hugging Face directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Converts the directory to a GGUF file in it, once.
    pub fn gguf(&self) -> PathBuf {
        let path = self.directory().join("model.gguf");
        if !path.exists() {
            let file = ModelFile::open(self.weights(), &OpenOptions::default()).unwrap();
            let params = QuantizeParams::new(QuantRecipe::named("F32").unwrap());
            convert(&file, &path, &params, &Options::default(), |_| {})
                .unwrap_or_else(|error| panic!("{}: {error}", self.name));
        }
        path
    }

    /// The safetensors file of the directory.
    pub fn weights(&self) -> PathBuf {
        self.directory().join("model.safetensors")
    }
}

impl Fixture {
    /// Writes the model to a temporary directory.
    pub fn build(&self) -> Golden {
        let golden = Golden {
            name: self.name.clone(),
            directory: tempfile::tempdir().unwrap(),
        };
        for (name, contents) in &self.files {
            let path = golden.directory().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents.to_string()).unwrap();
        }
        for (name, source) in &self.tokenizer {
            let source = fixtures().join("tokenizers").join(source.as_str().unwrap());
            fs::copy(source, golden.directory().join(name)).unwrap();
        }
        fs::write(golden.weights(), safetensors(&self.tensors)).unwrap();
        golden
    }
}
