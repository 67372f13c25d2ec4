//! The files of a golden model, in a temporary directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::gguf::{WriteError, Writer};
use oxidize_core::recipe::QuantRecipe;
use oxidize_quantize::convert::convert;
use oxidize_quantize::plan::QuantizeParams;
use oxidize_quantize::quantize::Options;
use tempfile::TempDir;

use crate::tensors::safetensors;
use crate::{Fixture, Form, fixtures};

/// A golden model with its files.
#[derive(Debug)]
pub struct Golden {
    name: String,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Built from a fixture; deleted when it is dropped. The GGUF file lacks some keys.
    Temporary {
        directory: TempDir,
        gguf_without: Vec<String>,
    },
    /// Stored in both forms, or in one.
    Stored(PathBuf),
}

impl Golden {
    /// A model that is stored in a directory, named like it.
    pub fn stored(directory: PathBuf) -> Golden {
        let name = directory.file_name().unwrap_or_default();
        Golden {
            name: name.to_string_lossy().into_owned(),
            place: Place::Stored(directory),
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The Hugging Face directory.
    pub fn directory(&self) -> &Path {
        match &self.place {
            Place::Temporary { directory, .. } => directory.path(),
            Place::Stored(directory) => directory,
        }
    }

    /// The GGUF file in the directory. That of a fixture is converted from the directory the first time; it has only
    /// keys that llama.cpp's converter writes.
    pub fn gguf(&self) -> PathBuf {
        let path = self.directory().join("model.gguf");
        if let Place::Temporary { gguf_without, .. } = &self.place
            && !path.exists()
        {
            self.convert(&path);
            if !gguf_without.is_empty() {
                let bytes = fs::read(&path).unwrap();
                let file = ModelFile::from_bytes(bytes, &OpenOptions::default()).unwrap();
                fs::write(&path, without_keys(&file, gguf_without)).unwrap();
            }
        }
        path
    }

    /// Converts the directory to a GGUF file.
    fn convert(&self, path: &Path) {
        let file = ModelFile::open(self.weights(), &OpenOptions::default()).unwrap();
        let params = QuantizeParams::new(QuantRecipe::named("F32").unwrap());
        convert(&file, path, &params, &Options::default(), |_| {})
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    /// The safetensors file of the directory.
    pub fn weights(&self) -> PathBuf {
        self.directory().join("model.safetensors")
    }

    /// The file or directory of one form.
    pub fn path(&self, form: Form) -> PathBuf {
        match form {
            Form::Directory => self.directory().to_path_buf(),
            Form::Gguf => self.gguf(),
        }
    }
}

impl Fixture {
    /// Writes the model to a temporary directory.
    pub fn build(&self) -> Golden {
        let golden = Golden {
            name: self.name.clone(),
            place: Place::Temporary {
                directory: tempfile::tempdir().unwrap(),
                gguf_without: self.gguf_without.clone(),
            },
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

/// A copy of a GGUF file without these keys of its architecture.
fn without_keys(file: &ModelFile, keys: &[String]) -> Vec<u8> {
    let is_left_out = |key: &str| {
        let short = key.split_once('.').map_or(key, |(_, short)| short);
        keys.iter().any(|left_out| left_out == short)
    };
    let mut writer = Writer::new();
    for (key, value) in file.metadata().iter() {
        if key.starts_with("tokenizer.") || !is_left_out(key) {
            writer.key(key, &value).unwrap();
        }
    }
    for tensor in file.tensors() {
        let (name, shape) = (&tensor.name, &tensor.shape);
        writer.tensor(name, tensor.ty, shape).unwrap();
    }
    let mut bytes = Vec::new();
    writer
        .write(&mut bytes, |planned, out| {
            let tensor = file.tensor(&planned.name).unwrap();
            let data = file.data(tensor).map_err(io::Error::other)?;
            Ok::<_, WriteError>(out.write_all(&data)?)
        })
        .unwrap();
    bytes
}
