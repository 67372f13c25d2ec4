//! [`ModelFile`]: a model file of any format, as metadata and named tensors.
//!
//! [`LOADERS`] lists the formats ([`gguf`], [`safetensors`]). A new format implements
//! [`ModelLoader`] in a module and adds it to the list.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

pub mod gguf;
mod options;
pub mod safetensors;
mod summary;
mod tensor;

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use options::{OpenOptions, Progress};
pub use oxidize_kernels::quant::TensorType;
pub use summary::{Summary, TypeCount};
pub use tensor::{DimOrder, TensorInfo};

use oxidize_kernels::quant::dequantize;

use crate::error::{Error, Result};
use crate::io::{Origin, SharedBytes, Source, not_a_file};
use crate::limits::LimitExceeded;
use crate::names::sorted_without_duplicates;
use gguf::{GgufLoader, Metadata};
use safetensors::{PackedTensor, SafetensorsLoader};

/// Bytes of a tensor: a part of a map, or a buffer. Cheap to clone.
pub type TensorBytes = SharedBytes;

/// Supported formats, in the order in which they are tried.
pub static LOADERS: &[&dyn ModelLoader] = &[&SafetensorsLoader, &GgufLoader];

/// Loader of a file format.
pub trait ModelLoader: Sync {
    /// Name of the format.
    fn name(&self) -> &'static str;

    /// True if the file or directory seems to have this format. `head` contains the first bytes of
    /// a file and is empty for a directory.
    fn recognizes(&self, path: &Path, head: &[u8]) -> bool;

    /// Opens the model at `path`.
    fn open(&self, path: &Path, options: &OpenOptions) -> Result<ModelFile>;

    /// Opens a model of a single file in memory.
    fn open_bytes(&self, bytes: SharedBytes, options: &OpenOptions) -> Result<ModelFile>;
}

/// Format of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Format {
    /// GGUF, in one or several files.
    Gguf {
        /// Version of GGUF.
        version: u32,
    },
    /// safetensors, in one or several files.
    #[default]
    Safetensors,
    /// safetensors with weights quantized by MLX.
    Mlx,
}

impl Format {
    /// Name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Format::Gguf { .. } => "GGUF",
            Format::Safetensors => "safetensors",
            Format::Mlx => "safetensors (MLX)",
        }
    }
}

/// Open model: metadata and a checked table of tensors, whose bytes are read on request.
///
/// Clones share the model.
#[derive(Clone)]
pub struct ModelFile(Arc<Inner>);

struct Inner {
    contents: Contents,
    /// Indices of the tensors, sorted by name.
    by_name: Vec<u32>,
    progress: Option<Progress>,
    cancel: Option<Arc<AtomicBool>>,
    /// Bytes of tensors read so far, and of all tensors.
    loaded: AtomicU64,
    total: u64,
}

/// Contents found by a loader, from which [`ModelFile::new`] creates a model.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) format: Format,
    pub(crate) files: Vec<(PathBuf, Source)>,
    pub(crate) metadata: Metadata,
    pub(crate) config: Option<serde_json::Value>,
    pub(crate) annotations: Vec<(String, String)>,
    pub(crate) tensors: Vec<TensorInfo>,
    /// Sources of tensors that are stored in packed form, by name.
    pub(crate) packed: HashMap<String, PackedTensor>,
}

impl Contents {
    /// Adds a file and its tensors.
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
    /// Opens a file, any file of a split model, or a directory.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<ModelFile> {
        let path = path.as_ref();
        let head = head_of(path).map_err(Error::io(path))?;
        let loader = LOADERS.iter().find(|loader| loader.recognizes(path, &head));
        let unknown = || Error::UnknownFormat {
            path: path.to_path_buf(),
        };
        loader.ok_or_else(unknown)?.open(path, options)
    }

    /// Opens the parts of a split GGUF model in order, with arbitrary names, or a single file.
    pub fn open_parts(paths: &[PathBuf], options: &OpenOptions) -> Result<ModelFile> {
        gguf::open_parts(paths, options)
    }

    /// Opens a model in memory, as in a browser.
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

    /// Opens a GGUF model in memory: one file, or the parts of a split model in order. Errors name the parts by the given
    /// paths.
    pub fn from_parts(parts: Vec<(PathBuf, Vec<u8>)>, options: &OpenOptions) -> Result<ModelFile> {
        gguf::open_parts_in_memory(parts, options)
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
        let (progress, cancel) = (options.progress.clone(), options.cancel.clone());
        Ok(ModelFile(Arc::new(Inner {
            contents,
            by_name,
            progress,
            cancel,
            loaded: 0.into(),
            total,
        })))
    }

    /// Format of the model.
    pub fn format(&self) -> Format {
        self.0.contents.format
    }

    /// Path of the model; the first file if there are several.
    pub fn path(&self) -> &Path {
        self.0
            .contents
            .files
            .first()
            .map_or(Path::new(""), |(path, _)| path)
    }

    /// Files that contain tensors, in the order of [`TensorInfo::file`], and their sizes.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&Path, u64)> {
        self.0
            .contents
            .files
            .iter()
            .map(|(path, source)| (path.as_path(), source.len()))
    }

    /// GGUF metadata; empty for safetensors.
    pub fn metadata(&self) -> &Metadata {
        &self.0.contents.metadata
    }

    /// `config.json` of a Hugging Face directory.
    pub fn config(&self) -> Option<&serde_json::Value> {
        self.0.contents.config.as_ref()
    }

    /// `__metadata__` of safetensors files.
    pub fn annotations(&self) -> &[(String, String)] {
        &self.0.contents.annotations
    }

    /// Path of a file in the model's directory, such as `tokenizer.json` or
    /// `1_Pooling/config.json`, if it exists.
    pub fn sidecar(&self, name: &str) -> Option<PathBuf> {
        let path = self.path().parent()?.join(name);
        path.is_file().then_some(path)
    }

    /// Tensors, in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.0.contents.tensors
    }

    /// Tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensor_at(self.index_of(name)?)
    }

    fn tensor_at(&self, index: u32) -> Option<&TensorInfo> {
        self.tensors().get(usize::try_from(index).ok()?)
    }

    fn index_of(&self, name: &str) -> Option<u32> {
        let by_name = &self.0.by_name;
        let found = by_name.binary_search_by(|&index| {
            self.tensor_at(index)
                .map_or("", |tensor| tensor.name.as_str())
                .cmp(name)
        });
        by_name.get(found.ok()?).copied()
    }

    /// Bytes of a tensor, aligned for its type: a part of the map if possible, else read or
    /// unpacked.
    pub fn data(&self, tensor: &TensorInfo) -> Result<TensorBytes> {
        let data = match self.0.contents.packed.get(&tensor.name) {
            Some(packed) => packed.dequantize(tensor, |part| self.stored(part))?,
            None => self.stored(tensor)?,
        };
        self.report(tensor.bytes)?;
        let index = self.index_of(&tensor.name);
        let origin = index.filter(|&index| self.tensor_at(index) == Some(tensor));
        Ok(data.with_origin(origin.map(|tensor| Origin { tensor, offset: 0 })))
    }

    /// Reads the bytes of an origin again.
    pub(crate) fn read_again(&self, origin: Origin, len: u64) -> Result<TensorBytes> {
        let outside = || Error::io(self.path())(std::io::ErrorKind::UnexpectedEof.into());
        let tensor = self.tensor_at(origin.tensor).ok_or_else(outside)?;
        let end = origin.offset.checked_add(len).ok_or_else(outside)?;
        self.data_range(tensor, origin.offset..end)
    }

    /// Range of the bytes of a tensor. A [packed](ModelFile::is_packed) tensor is unpacked
    /// completely.
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

    /// Calls `each` with consecutive pieces of a tensor, converted to f32.
    pub fn for_each_f32<E: From<Error>>(
        &self,
        tensor: &TensorInfo,
        mut each: impl FnMut(&[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        /// Elements of a piece: whole blocks of any type.
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

    /// True if the tensor is stored in packed form and unpacked on each access.
    pub fn is_packed(&self, tensor: &TensorInfo) -> bool {
        self.0.contents.packed.contains_key(&tensor.name)
    }

    /// Bytes of the tensor in the file; fewer than [`TensorInfo::bytes`] if it is packed.
    pub fn stored_bytes(&self, tensor: &TensorInfo) -> u64 {
        self.0
            .contents
            .packed
            .get(&tensor.name)
            .map_or(tensor.bytes, PackedTensor::stored_bytes)
    }

    /// True if tensors are read or mapped from files, false if the files themselves are in memory.
    pub(crate) fn is_on_disk(&self) -> bool {
        let files = &self.0.contents.files;
        !files.is_empty() && files.iter().all(|(_, source)| source.is_on_disk())
    }

    /// Requests that the system reads the model into memory in the background.
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

    /// Reports the bytes of a tensor that was loaded. Fails if loading was canceled.
    fn report(&self, bytes: u64) -> Result<()> {
        let before = self.0.loaded.fetch_add(bytes, Ordering::Relaxed);
        if let Some(progress) = &self.0.progress {
            progress(before.saturating_add(bytes).min(self.0.total), self.0.total);
        }
        match &self.0.cancel {
            Some(cancel) if cancel.load(Ordering::Relaxed) => Err(Error::Canceled {
                path: self.path().to_path_buf(),
            }),
            _ => Ok(()),
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

/// First bytes of a file; empty for a directory.
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
