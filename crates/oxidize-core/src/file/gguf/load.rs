//! [`GgufLoader`]: opens GGUF files, including split ones, as a [`ModelFile`].

use std::path::{Path, PathBuf};

use super::error::GgufError;
use super::read::{Header, parse};
use super::split::PartName;
use super::{INT8_KEY, MAGIC};
use crate::error::{Error, Result};
use crate::file::{Contents, Format, ModelFile, ModelLoader, OpenOptions};
use crate::io::{SharedBytes, Source};
use crate::limits::LimitExceeded;
use oxidize_kernels::quant::TensorType;

/// Loader of GGUF files.
#[derive(Debug)]
pub struct GgufLoader;

impl ModelLoader for GgufLoader {
    fn name(&self) -> &'static str {
        "GGUF"
    }

    fn recognizes(&self, path: &Path, head: &[u8]) -> bool {
        head.starts_with(&MAGIC) || only_gguf_in(path).is_some()
    }

    fn open(&self, path: &Path, options: &OpenOptions) -> Result<ModelFile> {
        let in_directory = only_gguf_in(path);
        let path = in_directory.as_deref().unwrap_or(path);
        let part = SplitFile::open(path, options)?;
        match part.header.metadata.u64(SPLIT_COUNT) {
            Some(count) if count > 1 => open_split(part, count, options),
            _ => join(vec![part], options),
        }
    }

    fn open_bytes(&self, bytes: SharedBytes, options: &OpenOptions) -> Result<ModelFile> {
        join(
            vec![SplitFile::parse(
                PathBuf::new(),
                Source::Memory(bytes),
                options,
            )?],
            options,
        )
    }
}

const SPLIT_COUNT: &str = "split.count";
const SPLIT_NUMBER: &str = "split.no";
const SPLIT_TENSORS: &str = "split.tensors.count";

/// File of a model.
struct SplitFile {
    path: PathBuf,
    source: Source,
    header: Header,
}

impl SplitFile {
    fn open(path: &Path, options: &OpenOptions) -> Result<SplitFile> {
        let source =
            Source::open(path, options.mmap, options.huge_pages).map_err(Error::io(path))?;
        SplitFile::parse(path.to_path_buf(), source, options)
    }

    fn parse(path: PathBuf, source: Source, options: &OpenOptions) -> Result<SplitFile> {
        let header = match &source {
            Source::Memory(bytes) => parse(bytes, source.len(), &options.limits)
                .map_err(|error| GgufError::in_file(error, &path))?,
            Source::File { .. } => read_header(&path, &source, options)?,
        };
        Ok(SplitFile {
            path,
            source,
            header,
        })
    }
}

/// Reads increasing prefixes of a file until they contain the whole header.
fn read_header(path: &Path, source: &Source, options: &OpenOptions) -> Result<Header> {
    const FIRST_READ: u64 = 256 << 10;
    let mut len = source.len().min(FIRST_READ);
    loop {
        let bytes = source.read(0..len).map_err(Error::io(path))?;
        let error = match parse(&bytes, source.len(), &options.limits) {
            Ok(header) => return Ok(header),
            Err(error) => error,
        };
        let Some(wanted) = error.wants_more() else {
            return Err(error.in_file(path));
        };
        let limit = options.limits.gguf_header_bytes;
        LimitExceeded::check("bytes of header", wanted, limit).map_err(|limit| {
            let place = format!("{} at byte {}", error.subject, error.offset);
            Error::Limit {
                path: path.to_path_buf(),
                place,
                limit,
            }
        })?;
        len = wanted.max(len.saturating_mul(2)).min(source.len());
    }
}

/// Opens all files of the split model that `opened` belongs to.
fn open_split(opened: SplitFile, count: u64, options: &OpenOptions) -> Result<ModelFile> {
    let wrong = |path: &Path, problem: String| Error::Parts {
        path: path.to_path_buf(),
        problem,
    };
    let path = opened.path.clone();
    LimitExceeded::check("parts", count, options.limits.parts).map_err(|limit| Error::Limit {
        path: path.clone(),
        place: format!("key `{SPLIT_COUNT}`"),
        limit,
    })?;
    let Some(name) = PartName::parse(&path) else {
        let problem =
            format!("one of {count} parts, but its name does not end in -0000N-of-{count:05}.gguf");
        return Err(wrong(&path, problem));
    };
    if name.count != count {
        let problem = format!(
            "the file name says {} parts, the key `{SPLIT_COUNT}` {count}",
            name.count
        );
        return Err(wrong(&path, problem));
    }

    let missing: Vec<_> = (1..=count)
        .map(|n| name.path(n))
        .filter(|path| !path.exists())
        .collect();
    if !missing.is_empty() {
        return Err(Error::MissingParts { path, missing });
    }

    let mut parts = Vec::new();
    let mut opened = Some(opened);
    for number in 1..=count {
        let already = opened.take_if(|_| number == name.number);
        parts.push(already.map_or_else(|| SplitFile::open(&name.path(number), options), Ok)?);
    }
    join_split(parts, &path, options)
}

/// Opens the parts of a model in order. Their names are arbitrary, because unpublished files have
/// no final names.
pub(crate) fn open_parts(paths: &[PathBuf], options: &OpenOptions) -> Result<ModelFile> {
    let parts = paths.iter().map(|path| SplitFile::open(path, options));
    join_parts(parts.collect::<Result<_>>()?, options)
}

/// Opens the parts of a model that are in memory, in order.
pub(crate) fn open_parts_in_memory(
    parts: Vec<(PathBuf, Vec<u8>)>,
    options: &OpenOptions,
) -> Result<ModelFile> {
    let parts = parts.into_iter().map(|(path, bytes)| {
        if !bytes.starts_with(&MAGIC) {
            return Err(Error::UnknownFormat { path });
        }
        SplitFile::parse(path, Source::Memory(SharedBytes::from(bytes)), options)
    });
    join_parts(parts.collect::<Result<_>>()?, options)
}

fn join_parts(parts: Vec<SplitFile>, options: &OpenOptions) -> Result<ModelFile> {
    match parts.as_slice() {
        [first, _, ..] => {
            let first = first.path.clone();
            join_split(parts, &first, options)
        }
        _ => join(parts, options),
    }
}

/// Joins parts to a model after checking that they belong together. `path` is the file that was
/// opened.
fn join_split(parts: Vec<SplitFile>, path: &Path, options: &OpenOptions) -> Result<ModelFile> {
    let wrong = |path: &Path, problem: String| Error::Parts {
        path: path.to_path_buf(),
        problem,
    };
    let count = parts.len() as u64;
    for (number, part) in parts.iter().enumerate() {
        let metadata = &part.header.metadata;
        if metadata.u64(SPLIT_COUNT) != Some(count) {
            let problem = format!(
                "the key `{SPLIT_COUNT}` is not {count} as in {}",
                path.display()
            );
            return Err(wrong(&part.path, problem));
        }
        if metadata.u64(SPLIT_NUMBER) != Some(number as u64) {
            let problem = format!("the key `{SPLIT_NUMBER}` is not {number}");
            return Err(wrong(&part.path, problem));
        }
    }

    let present: u64 = parts
        .iter()
        .map(|part| part.header.tensors.len() as u64)
        .sum();
    let declared = parts
        .first()
        .and_then(|part| part.header.metadata.u64(SPLIT_TENSORS));
    if let Some(declared) = declared.filter(|&declared| declared != present) {
        let problem = format!(
            "the key `{SPLIT_TENSORS}` is {declared}, but the parts have {present} tensors"
        );
        let first = parts.first().map_or(path, |part| &part.path);
        return Err(wrong(first, problem));
    }
    join(parts, options)
}

/// Joins files to a model. Metadata comes from the first.
fn join(parts: Vec<SplitFile>, options: &OpenOptions) -> Result<ModelFile> {
    let mut contents = Contents::default();
    for (file, part) in parts.into_iter().enumerate() {
        if file == 0 {
            contents.format = Format::Gguf {
                version: part.header.version,
            };
            contents.metadata = part.header.metadata;
            let replaced = contents.metadata.override_with(&options.overrides);
            replaced.map_err(|(key, problem)| Error::Override {
                path: part.path.clone(),
                key,
                problem,
            })?;
        }
        contents.add_file(part.path, part.source, part.header.tensors);
    }
    if contents.metadata.bool(INT8_KEY) == Some(true) {
        let matrices = contents.tensors.iter_mut().filter(|t| t.shape.len() > 1);
        for tensor in matrices.filter(|tensor| tensor.ty == TensorType::Q8_0) {
            tensor.ty = TensorType::INT8;
        }
    }
    ModelFile::new(contents, options)
}

/// The only GGUF file of a directory, or the first part of its only split model.
fn only_gguf_in(directory: &Path) -> Option<PathBuf> {
    let mut found = None;
    for entry in std::fs::read_dir(directory).ok()? {
        let path = entry.ok()?.path();
        let is_gguf = path
            .extension()
            .is_some_and(|extension| extension == "gguf");
        let is_start = PartName::parse(&path).is_none_or(|part| part.number == 1);
        if is_gguf && is_start && found.replace(path).is_some() {
            return None;
        }
    }
    found
}
