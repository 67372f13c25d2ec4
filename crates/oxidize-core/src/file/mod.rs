//! [`ModelFile`]: a model on disk, whatever its format, as metadata and named tensors.
//!
//! [`LOADERS`] lists the formats ([`crate::gguf`], [`crate::safetensors`]); a new one implements
//! [`ModelLoader`] in its own module and adds a line there.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod options;
mod summary;
mod tensor;

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use options::{OpenOptions, Progress, SpellOut};
pub use oxidize_kernels::quant::TensorType;
pub use summary::{Summary, TypeCount};
pub use tensor::{DimOrder, TensorInfo};

use oxidize_kernels::quant::dequantize;

use crate::error::{Error, Result};
use crate::gguf::{GgufLoader, Metadata};
use crate::io::{SharedBytes, Source, not_a_file};
use crate::limits::LimitExceeded;
use crate::names::sorted_without_duplicates;
use crate::safetensors::{PackedTensor, SafetensorsLoader};

/// The bytes of a tensor: a part of the map, or memory of their own. Cloning is cheap.
pub type TensorBytes = SharedBytes;

/// Every format that can be opened, in the order in which they are tried.
pub static LOADERS: &[&dyn ModelLoader] = &[&SafetensorsLoader, &GgufLoader];

/// A format that models are stored in.
pub trait ModelLoader: Sync {
    /// What people call the format.
    fn name(&self) -> &'static str;

    /// Whether the file or directory looks like this format. `head` has the first bytes of a file
    /// and is empty for a directory.
    fn recognizes(&self, path: &Path, head: &[u8]) -> bool;

    /// Opens the model at `path`.
    fn open(&self, path: &Path, options: &OpenOptions) -> Result<ModelFile>;

    /// Opens a model of a single file that is in memory already.
    fn open_bytes(&self, bytes: SharedBytes, options: &OpenOptions) -> Result<ModelFile>;
}

/// The format of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Format {
    /// One GGUF file, or several that are parts of one.
    Gguf {
        /// Version of the format.
        version: u32,
    },
    /// One safetensors file, or several with an index.
    #[default]
    Safetensors,
    /// Safetensors with weights that MLX quantised.
    Mlx,
}

impl Format {
    /// What people call the format.
    pub fn name(self) -> &'static str {
        match self {
            Format::Gguf { .. } => "GGUF",
            Format::Safetensors => "safetensors",
            Format::Mlx => "safetensors (MLX)",
        }
    }
}

/// An open model: metadata and a checked table of tensors, whose bytes are fetched on request.
///
/// Cloning shares the model.
#[derive(Clone)]
pub struct ModelFile(Arc<Inner>);

struct Inner {
    contents: Contents,
    /// Indices of the tensors, sorted by name.
    by_name: Vec<u32>,
    progress: Option<Progress>,
    spell_out: SpellOut,
    /// Bytes of tensors handed out so far, and of all tensors.
    loaded: AtomicU64,
    total: u64,
}

/// What a loader has found; [`ModelFile::new`] makes a model of it.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) format: Format,
    pub(crate) files: Vec<(PathBuf, Source)>,
    pub(crate) metadata: Metadata,
    pub(crate) config: Option<serde_json::Value>,
    pub(crate) annotations: Vec<(String, String)>,
    pub(crate) tensors: Vec<TensorInfo>,
    /// How the tensors that are not stored as such come about, by name.
    pub(crate) packed: HashMap<String, PackedTensor>,
}

impl Contents {
    /// Adds a file and the tensors in it.
    pub(crate) fn add_file(&mut self, path: PathBuf, source: Source, tensors: Vec<TensorInfo>) {
        let file = self.files.len();
        self.files.push((path, source));
        if self.tensors.is_empty() {
            self.tensors = tensors;
            self.tensors
                .iter_mut()
                .for_each(|tensor| tensor.file = file);
        } else {
            self.tensors.extend(
                tensors
                    .into_iter()
                    .map(|tensor| TensorInfo { file, ..tensor }),
            );
        }
    }
}

impl ModelFile {
    /// Opens a model: a file, any of the files of a split model, or a directory.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<ModelFile> {
        let path = path.as_ref();
        let head = head_of(path).map_err(Error::io(path))?;
        let loader = LOADERS.iter().find(|loader| loader.recognizes(path, &head));
        let unknown = || Error::UnknownFormat {
            path: path.to_path_buf(),
        };
        loader.ok_or_else(unknown)?.open(path, options)
    }

    /// Opens the parts of a split GGUF model, in order, whatever they are called; or one that is whole.
    pub fn open_parts(paths: &[PathBuf], options: &OpenOptions) -> Result<ModelFile> {
        crate::gguf::open_parts(paths, options)
    }

    /// Opens a model that is in memory, as in a browser.
    pub fn from_bytes(bytes: Vec<u8>, options: &OpenOptions) -> Result<ModelFile> {
        let loader = LOADERS
            .iter()
            .find(|loader| loader.recognizes(Path::new(""), &bytes));
        let unknown = || Error::UnknownFormat {
            path: PathBuf::from("<memory>"),
        };
        loader
            .ok_or_else(unknown)?
            .open_bytes(SharedBytes::from(bytes), options)
    }

    pub(crate) fn new(contents: Contents, options: &OpenOptions) -> Result<ModelFile> {
        let path = || {
            contents
                .files
                .first()
                .map(|(path, _)| path.clone())
                .unwrap_or_default()
        };
        let n_tensors = contents.tensors.len() as u64;
        LimitExceeded::check("tensors", n_tensors, options.limits.tensors).map_err(|limit| {
            Error::Limit {
                path: path(),
                place: "all files together".to_owned(),
                limit,
            }
        })?;
        let name = |i: usize| {
            contents
                .tensors
                .get(i)
                .map_or(&[][..], |t| t.name.as_bytes())
        };
        let by_name = sorted_without_duplicates(contents.tensors.len(), name).map_err(|twice| {
            let tensor = contents.tensors.get(twice);
            let name = tensor.map_or("", |tensor| tensor.name.as_str());
            let file = tensor.and_then(|tensor| contents.files.get(tensor.file));
            Error::Parts {
                path: file.map_or_else(path, |(path, _)| path.clone()),
                problem: format!("tensor `{name}` is also in another part"),
            }
        })?;
        let total = contents
            .tensors
            .iter()
            .fold(0u64, |sum, t| sum.saturating_add(t.bytes));
        let progress = options.progress.clone();
        Ok(ModelFile(Arc::new(Inner {
            contents,
            by_name,
            progress,
            spell_out: options.spell_out,
            loaded: 0.into(),
            total,
        })))
    }

    /// The format of the model.
    pub fn format(&self) -> Format {
        self.0.contents.format
    }

    /// The file the model is in; of several, the first.
    pub fn path(&self) -> &Path {
        self.0
            .contents
            .files
            .first()
            .map_or(Path::new(""), |(path, _)| path)
    }

    /// All files that tensors are in; [`TensorInfo::file`] counts in this order.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&Path, u64)> {
        self.0
            .contents
            .files
            .iter()
            .map(|(path, source)| (path.as_path(), source.len()))
    }

    /// The keys and values of a GGUF file; empty for safetensors.
    pub fn metadata(&self) -> &Metadata {
        &self.0.contents.metadata
    }

    /// The `config.json` beside safetensors.
    pub fn config(&self) -> Option<&serde_json::Value> {
        self.0.contents.config.as_ref()
    }

    /// The free-form `__metadata__` of safetensors.
    pub fn annotations(&self) -> &[(String, String)] {
        &self.0.contents.annotations
    }

    /// A file beside the model, such as `tokenizer.json` or `1_Pooling/config.json`, if it is there.
    pub fn sidecar(&self, name: &str) -> Option<PathBuf> {
        let path = self.path().parent()?.join(name);
        path.is_file().then_some(path)
    }

    /// All tensors, in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.0.contents.tensors
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let tensor_at = |index: &u32| self.tensors().get(usize::try_from(*index).ok()?);
        let by_name = &self.0.by_name;
        let found = by_name.binary_search_by(|index| {
            tensor_at(index)
                .map_or("", |tensor| tensor.name.as_str())
                .cmp(name)
        });
        tensor_at(by_name.get(found.ok()?)?)
    }

    /// The bytes of a tensor, at an address fit for its type: a part of the map where that is
    /// possible, else read, or unpacked.
    pub fn data(&self, tensor: &TensorInfo) -> Result<TensorBytes> {
        let data = match self.0.contents.packed.get(&tensor.name) {
            Some(packed) => packed.dequantize(tensor, |part| self.stored(part))?,
            None => self.stored(tensor)?,
        };
        self.report(tensor.bytes);
        Ok(data)
    }

    /// Some of the bytes of a tensor, counted from its start. A tensor that is
    /// [packed](ModelFile::is_packed) is unpacked whole.
    pub fn data_range(&self, tensor: &TensorInfo, range: Range<u64>) -> Result<TensorBytes> {
        let outside = || Error::io(self.path())(std::io::ErrorKind::UnexpectedEof.into());
        if self.is_packed(tensor) {
            let part =
                || Some(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?);
            let data = self.data(tensor)?;
            return part().and_then(|part| data.slice(part)).ok_or_else(outside);
        }
        let start = tensor.offset.checked_add(range.start).ok_or_else(outside)?;
        if range.start > range.end || range.end > tensor.bytes {
            return Err(outside());
        }
        let bytes = range.end - range.start;
        self.stored(&TensorInfo {
            offset: start,
            bytes,
            ..tensor.clone()
        })
    }

    /// The elements of a tensor as floats, in order, a piece at a time.
    pub fn for_each_f32<E: From<Error>>(
        &self,
        tensor: &TensorInfo,
        mut each: impl FnMut(&[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        /// Whole blocks of any type, and small beside the tensor.
        const PIECE: usize = 1 << 16;
        let data = self.data(tensor)?;
        let mut floats = vec![0.0; PIECE];
        for bytes in data.chunks(PIECE / tensor.ty.block_len() * tensor.ty.block_bytes()) {
            let n = bytes.len() / tensor.ty.block_bytes() * tensor.ty.block_len();
            let floats = floats.get_mut(..n).unwrap_or_default();
            dequantize(tensor.ty, bytes, floats).map_err(|error| {
                let (path, name) = (self.path().to_path_buf(), tensor.name.clone());
                Error::Dequantize { path, name, error }
            })?;
            each(floats)?;
        }
        Ok(())
    }

    /// Whether the file keeps a tensor in few bits, in several parts: it is unpacked each time that
    /// it is asked for.
    pub fn is_packed(&self, tensor: &TensorInfo) -> bool {
        self.0.contents.packed.contains_key(&tensor.name)
    }

    /// Bytes that a tensor takes in the file: fewer than [`TensorInfo::bytes`] if it is packed.
    pub fn stored_bytes(&self, tensor: &TensorInfo) -> u64 {
        self.0
            .contents
            .packed
            .get(&tensor.name)
            .map_or(tensor.bytes, PackedTensor::stored_bytes)
    }

    /// How much its weights may grow where it is run.
    pub fn spell_out(&self) -> SpellOut {
        self.0.spell_out
    }

    /// Whether each tensor that is asked for is read into memory of its own.
    pub(crate) fn is_read(&self) -> bool {
        let files = &self.0.contents.files;
        let is_read = |(_, source): &(PathBuf, Source)| matches!(source, Source::File { .. });
        !files.is_empty() && files.iter().all(is_read)
    }

    /// Asks the system to read the model into memory, in the background where it can.
    pub fn prefetch(&self) {
        self.0
            .contents
            .files
            .iter()
            .for_each(|(_, source)| source.will_need());
    }

    fn stored(&self, tensor: &TensorInfo) -> Result<TensorBytes> {
        let missing = || Error::NoTensor {
            path: self.path().to_path_buf(),
            name: tensor.name.clone(),
        };
        let (path, source) = self.0.contents.files.get(tensor.file).ok_or_else(missing)?;
        let end = tensor
            .offset
            .checked_add(tensor.bytes)
            .ok_or_else(missing)?;
        let bytes = source.read(tensor.offset..end).map_err(Error::io(path))?;
        bytes.aligned(tensor.alignment()).map_err(Error::io(path))
    }

    fn report(&self, bytes: u64) {
        let before = self.0.loaded.fetch_add(bytes, Ordering::Relaxed);
        if let Some(progress) = &self.0.progress {
            progress(before.saturating_add(bytes).min(self.0.total), self.0.total);
        }
    }
}

impl std::fmt::Debug for ModelFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelFile")
            .field("path", &self.path())
            .field("format", &self.format())
            .field("tensors", &self.tensors().len())
            .finish_non_exhaustive()
    }
}

/// The first bytes of a file; none of a directory.
fn head_of(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    const HEAD_BYTES: u64 = 16;
    let mut head = Vec::new();
    let kind = std::fs::metadata(path)?.file_type();
    if kind.is_file() {
        std::fs::File::open(path)?
            .take(HEAD_BYTES)
            .read_to_end(&mut head)?;
    } else if !kind.is_dir() {
        return Err(not_a_file());
    }
    Ok(head)
}
