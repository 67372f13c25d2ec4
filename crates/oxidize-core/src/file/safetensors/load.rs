//! [`SafetensorsLoader`]: opens safetensors files and directories as a [`ModelFile`].

use std::collections::{BTreeSet, HashMap};
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

/// Loader of safetensors files and directories.
#[derive(Debug)]
pub struct SafetensorsLoader;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const CONFIG: &str = "config.json";

/// Directories in which sentence-transformers store dense layers.
const PROJECTIONS: [&str; 2] = ["2_Dense", "3_Dense"];

impl ModelLoader for SafetensorsLoader {
    fn name(&self) -> &'static str {
        "safetensors"
    }

    fn recognizes(&self, path: &Path, head: &[u8]) -> bool {
        if path.is_dir() {
            return !model_in(path).is_empty();
        }
        let named = path
            .extension()
            .is_some_and(|extension| extension == "safetensors");
        (named && !head.starts_with(&crate::file::gguf::MAGIC))
            || is_index(path)
            || looks_like_header(head)
    }

    fn open(&self, path: &Path, options: &OpenOptions) -> Result<ModelFile> {
        let files = match path.is_dir() {
            true => model_in(path),
            false => index_beside(path).into_iter().collect(),
        };
        let path = files.first().map_or(path, PathBuf::as_path);
        let mut contents = Contents {
            config: read_config(path, options)?,
            ..Contents::default()
        };
        if is_index(path) {
            add_shards(&mut contents, path, options)?;
        } else if !files.is_empty() {
            add_loose(&mut contents, &files, options)?;
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
    if let Some((key, _)) = options.overrides.first() {
        let file = contents.files.first();
        return Err(Error::Override {
            path: file.map(|(path, _)| path.clone()).unwrap_or_default(),
            key: key.clone(),
            problem: "only metadata of GGUF files can be replaced".to_owned(),
        });
    }
    contents.format = Format::Safetensors;
    if let Err(error) = packed::present(&mut contents, options.unpack_exactly) {
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

/// Adds all files of a model without an index, which must not share tensors.
fn add_loose(contents: &mut Contents, files: &[PathBuf], options: &OpenOptions) -> Result<()> {
    let first = files.first().map_or(Path::new(""), PathBuf::as_path);
    let too_many = |limit| Error::Limit {
        path: first.to_path_buf(),
        place: "other files in the directory".to_owned(),
        limit,
    };
    let n_files = files.len() as u64;
    LimitExceeded::check("parts", n_files, options.limits.parts).map_err(too_many)?;
    let sets: BTreeSet<_> = files.iter().filter_map(|file| shard_name(file)).collect();
    for (stem, count, digits) in sets {
        LimitExceeded::check("parts", count as u64, options.limits.parts).map_err(too_many)?;
        let width = digits.len();
        let name = |i| format!("{stem}-{i:0width$}-of-{digits}.safetensors");
        let shards = (1..=count).map(|i| first.with_file_name(name(i)));
        let missing: Vec<_> = shards.filter(|shard| !shard.exists()).collect();
        if !missing.is_empty() {
            let path = first.to_path_buf();
            return Err(Error::MissingParts { path, missing });
        }
    }
    let mut found: HashMap<String, &Path> = HashMap::new();
    for file in files {
        let (source, header) = open_one(file, options)?;
        for tensor in &header.tensors {
            if let Some(other) = found.insert(tensor.name.clone(), file) {
                let error = SafetensorsError {
                    tensor: Some(tensor.name.clone()),
                    offset: tensor.offset,
                    problem: Problem::AlsoIn(other.to_path_buf()),
                };
                return Err(error.in_file(file));
            }
        }
        if contents.files.is_empty() {
            contents.annotations = header.annotations;
        }
        contents.add_file(file.clone(), source, header.tensors);
    }
    Ok(())
}

/// Parses the name of a shard, `model-00001-of-00002.safetensors`: prefix, number of shards, and
/// that number as written.
fn shard_name(path: &Path) -> Option<(&str, usize, &str)> {
    let (stem, digits) = path.file_stem()?.to_str()?.rsplit_once("-of-")?;
    let (stem, number) = stem.rsplit_once('-')?;
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let count = digits.parse().ok().filter(|_| is_number(digits))?;
    (number.len() == digits.len() && is_number(number)).then_some((stem, count, digits))
}

/// Adds the dense layers of sentence-transformers, which are stored in subdirectories. Their tensor
/// names begin with the name of the subdirectory. Only linear layers are supported.
fn add_projections(contents: &mut Contents, path: &Path, options: &OpenOptions) -> Result<()> {
    for directory in PROJECTIONS {
        let path = path.with_file_name(directory).join(SINGLE);
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
            tensor.name = format!("{directory}.{}", tensor.name);
        }
        contents.add_file(path, source, header.tensors);
    }
    Ok(())
}

/// Reads the `config.json` in the directory of `path`, if it exists.
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

/// Files of a directory to open: the only one, else the index, else the shards, else all.
fn model_in(directory: &Path) -> Vec<PathBuf> {
    let known = [SINGLE, INDEX].map(|name| directory.join(name));
    if let Some(path) = known.into_iter().find(|path| path.is_file()) {
        return vec![path];
    }
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    let has_extension =
        |path: &PathBuf, wanted: &str| path.extension().is_some_and(|e| e == wanted);
    // Directories with a GGUF file are left to its loader.
    if files.iter().any(|path| has_extension(path, "gguf")) {
        return Vec::new();
    }
    files.retain(|path| has_extension(path, "safetensors"));
    // In addition to shards, a directory may contain the same weights under other names.
    if files.iter().any(|path| shard_name(path).is_some()) {
        files.retain(|path| shard_name(path).is_some());
    }
    files.sort();
    files
}

/// Index of the model that a shard belongs to.
fn index_beside(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let index = path.with_file_name(INDEX);
    (name.starts_with("model-") && name.contains("-of-") && index.is_file()).then_some(index)
}

fn is_index(path: &Path) -> bool {
    path.to_str()
        .is_some_and(|path| path.ends_with(".safetensors.index.json"))
}

/// True if a file without extension seems to be safetensors: a moderate length, followed by a
/// brace.
fn looks_like_header(head: &[u8]) -> bool {
    let length = head
        .first_chunk::<8>()
        .map(|bytes| u64::from_le_bytes(*bytes));
    length.is_some_and(|length| length <= 100_000_000) && head.get(8) == Some(&b'{')
}
