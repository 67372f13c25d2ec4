//! [`SafetensorsLoader`]: opens a safetensors file, or a directory of them, as a [`ModelFile`].

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::error::{Problem, SafetensorsError};
use super::index::Index;
use super::packed;
use super::read::{self, Header, LENGTH_BYTES, header_len, json_offset, without_position};
use crate::error::{Error, Result};
use crate::file::{Contents, Format, ModelFile, ModelLoader, OpenOptions};
use crate::io::{SharedBytes, Source};
use crate::limits::LimitExceeded;

/// Opens safetensors files and directories of them.
#[derive(Debug)]
pub struct SafetensorsLoader;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const CONFIG: &str = "config.json";

/// Folders in which sentence-transformers keep projections of embeddings.
const PROJECTIONS: [&str; 2] = ["2_Dense", "3_Dense"];

impl ModelLoader for SafetensorsLoader {
    fn name(&self) -> &'static str {
        "safetensors"
    }

    fn recognizes(&self, path: &Path, head: &[u8]) -> bool {
        if path.is_dir() {
            return model_in(path).is_some();
        }
        let named = path
            .extension()
            .is_some_and(|extension| extension == "safetensors");
        (named && !head.starts_with(&crate::gguf::MAGIC))
            || is_index(path)
            || looks_like_header(head)
    }

    fn open(&self, path: &Path, options: &OpenOptions) -> Result<ModelFile> {
        let in_directory = if path.is_dir() {
            model_in(path)
        } else {
            index_beside(path)
        };
        let path = in_directory.as_deref().unwrap_or(path);
        let mut contents = Contents {
            config: read_config(path, options)?,
            ..Contents::default()
        };
        if is_index(path) {
            add_shards(&mut contents, path, options)?;
        } else {
            let (source, header) = open_one(path, options)?;
            contents.annotations = header.annotations;
            contents.add_file(path.to_path_buf(), source, header.tensors);
        }
        add_projections(&mut contents, path, options)?;
        finish(contents, options)
    }

    fn open_bytes(&self, bytes: SharedBytes, options: &OpenOptions) -> Result<ModelFile> {
        let path = PathBuf::new();
        let source = Source::Memory(bytes);
        let header = read_header(&path, &source, options)?;
        let mut contents = Contents {
            annotations: header.annotations,
            ..Contents::default()
        };
        contents.add_file(path, source, header.tensors);
        finish(contents, options)
    }
}

fn finish(mut contents: Contents, options: &OpenOptions) -> Result<ModelFile> {
    contents.format = Format::Safetensors;
    if let Err(error) = packed::present(&mut contents) {
        let mut tensors = contents.tensors.iter();
        let tensor = tensors.find(|tensor| Some(&tensor.name) == error.tensor.as_ref());
        let file = contents.files.get(tensor.map_or(0, |tensor| tensor.file));
        return Err(error.in_file(file.map_or(Path::new(""), |(path, _)| path)));
    }
    ModelFile::new(contents, options)
}

fn open_one(path: &Path, options: &OpenOptions) -> Result<(Source, Header)> {
    let source = Source::open(path, options.mmap, options.huge_pages).map_err(Error::io(path))?;
    let header = read_header(path, &source, options)?;
    Ok((source, header))
}

fn read_header(path: &Path, source: &Source, options: &OpenOptions) -> Result<Header> {
    let read = |range| source.read(range).map_err(Error::io(path));
    let first = read(0..source.len().min(LENGTH_BYTES))?;
    let len = header_len(&first, source.len(), &options.limits).map_err(|e| e.in_file(path))?;
    let json = read(LENGTH_BYTES..LENGTH_BYTES + len)?;
    read::parse(&json, source.len(), &options.limits).map_err(|error| error.in_file(path))
}

fn add_shards(contents: &mut Contents, path: &Path, options: &OpenOptions) -> Result<()> {
    let json = read_capped(path, options.limits.safetensors_header_bytes)?;
    let index = Index::parse(&json, &options.limits).map_err(|error| error.in_file(path))?;
    let shards: Vec<_> = index
        .shards
        .iter()
        .map(|name| path.with_file_name(name))
        .collect();
    let missing: Vec<_> = shards
        .iter()
        .filter(|shard| !shard.exists())
        .cloned()
        .collect();
    if !missing.is_empty() {
        return Err(Error::MissingParts {
            path: path.to_path_buf(),
            missing,
        });
    }

    for (file, shard) in shards.into_iter().enumerate() {
        let (source, header) = open_one(&shard, options)?;
        if file == 0 {
            contents.annotations = header.annotations;
        }
        contents.add_file(shard, source, header.tensors);
    }
    let mut found = HashMap::with_capacity(contents.tensors.len());
    for tensor in &contents.tensors {
        found.entry(tensor.name.as_str()).or_insert(tensor.file);
    }
    for (tensor, file) in index.tensors {
        if found.get(tensor.as_str()) != Some(&file) {
            let shard = index.shards.get(file).cloned().unwrap_or_default();
            let problem = Problem::NotInShard(shard);
            let error = SafetensorsError {
                tensor: Some(tensor),
                offset: 0,
                problem,
            };
            return Err(error.in_file(path));
        }
    }
    Ok(())
}

/// Projections of embeddings, each a model of its own in a folder beside `path`, which its tensors'
/// names begin with. Only what is linear can be one here.
fn add_projections(contents: &mut Contents, path: &Path, options: &OpenOptions) -> Result<()> {
    for folder in PROJECTIONS {
        let path = path.with_file_name(folder).join(SINGLE);
        if !path.is_file() {
            return Ok(());
        }
        let config = read_config(&path, options)?.unwrap_or_default();
        let activation = config.get("activation_function");
        let activation = activation.and_then(serde_json::Value::as_str);
        if activation.is_some_and(|name| !name.ends_with(".Identity")) {
            return Ok(());
        }
        let (source, mut header) = open_one(&path, options)?;
        for tensor in &mut header.tensors {
            tensor.name = format!("{folder}.{}", tensor.name);
        }
        contents.add_file(path, source, header.tensors);
    }
    Ok(())
}

/// The `config.json` beside `path`, if there is one.
fn read_config(path: &Path, options: &OpenOptions) -> Result<Option<serde_json::Value>> {
    let path = path.with_file_name(CONFIG);
    if !path.exists() {
        return Ok(None);
    }
    let json = read_capped(&path, options.limits.config_bytes)?;
    serde_json::from_slice(&json).map(Some).map_err(|error| {
        let problem = Problem::Json(without_position(&error));
        let offset = json_offset(&json, &error);
        SafetensorsError {
            tensor: None,
            offset,
            problem,
        }
        .in_file(&path)
    })
}

fn read_capped(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let len = fs::metadata(path).map_err(Error::io(path))?.len();
    LimitExceeded::check("bytes", len, limit).map_err(|limit| Error::Limit {
        path: path.to_path_buf(),
        place: "the whole file".to_owned(),
        limit,
    })?;
    fs::read(path).map_err(Error::io(path))
}

/// The file of a directory to open: the single one, else the index, else the only one there is.
fn model_in(directory: &Path) -> Option<PathBuf> {
    let known = [SINGLE, INDEX].map(|name| directory.join(name));
    if let Some(path) = known.into_iter().find(|path| path.is_file()) {
        return Some(path);
    }
    let mut only = None;
    for entry in fs::read_dir(directory).ok()? {
        let path = entry.ok()?.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            // A directory with a GGUF file is that file's.
            Some("gguf") => return None,
            Some("safetensors") if only.is_some() => return None,
            Some("safetensors") => only = Some(path),
            _ => {}
        }
    }
    only
}

/// The index of the model that a file is a shard of: `model-00001-of-00002.safetensors`.
fn index_beside(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let index = path.with_file_name(INDEX);
    (name.starts_with("model-") && name.contains("-of-") && index.is_file()).then_some(index)
}

fn is_index(path: &Path) -> bool {
    path.to_str()
        .is_some_and(|path| path.ends_with(".safetensors.index.json"))
}

/// Whether a file without a telling name starts like safetensors: a moderate length and a brace.
fn looks_like_header(head: &[u8]) -> bool {
    let length = head
        .first_chunk::<8>()
        .map(|bytes| u64::from_le_bytes(*bytes));
    length.is_some_and(|length| length <= 100_000_000) && head.get(8) == Some(&b'{')
}
