//! Writes a model to one file or several parts. The files get their final names when all of them are
//! complete.

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use oxidize_core::file::{ModelFile, OpenOptions, TensorType};
use oxidize_core::gguf::split::PartName;
use oxidize_core::gguf::{INT8_KEY, MAGIC, Metadata, Planned, Value, ValueBuf, WriteError, Writer};
use oxidize_core::io::{PendingFile, SavedFile, remove_abandoned};

use crate::error::{Error, Result};
use crate::report::Report;
use crate::write_behind::WriteBehind;

/// Division of a model into files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Parts {
    /// One file.
    #[default]
    One,
    /// Number of tensors of each part.
    Counts(Vec<usize>),
    /// Maximum number of tensors of a part.
    MaxTensors(usize),
    /// Maximum size of a part in bytes; a single larger tensor still gets a part.
    MaxBytes(u64),
}

/// The metadata keys and tensors of a model to write.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// All keys except `split.*`. A key without a value is copied from the source.
    pub keys: Vec<(String, Option<ValueBuf>)>,
    /// The tensors in file order.
    pub tensors: Vec<Planned>,
}

impl Output {
    /// Copies all keys of a file except `split.*`.
    pub fn copy_keys(&mut self, file: &ModelFile) {
        for (key, _) in file.metadata().iter() {
            // The writer adds the INT8 key itself where it is needed.
            if !key.starts_with("split.") && key != INT8_KEY {
                self.keys.push((key.to_owned(), None));
            }
        }
    }

    /// Removes the keys that describe how the source was quantized; they do not apply to the new file.
    pub fn remove_provenance(&mut self) {
        self.keys
            .retain(|(key, _)| key != Report::KEY && !key.starts_with("quantize.imatrix."));
    }

    /// Sets a key. An existing key keeps its position.
    pub fn set(&mut self, key: &str, value: ValueBuf) {
        match self.keys.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = Some(value),
            None => self.keys.push((key.to_owned(), Some(value))),
        }
    }

    /// Adds a tensor.
    pub fn tensor(&mut self, name: &str, ty: TensorType, shape: &[u64]) {
        let elements = shape.iter().product();
        self.tensors.push(Planned {
            name: name.to_owned(),
            ty,
            shape: shape.to_vec(),
            // The writer checks the size against the shape.
            bytes: ty.bytes_for(elements).unwrap_or(0),
        });
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes).sum()
    }

    /// Writes all parts under temporary names. `data` receives the index of a tensor and writes its bytes.
    ///
    /// Copies keys without a value from `source`.
    pub fn write(
        &self,
        path: &Path,
        parts: &Parts,
        source: Option<&Metadata>,
        mut data: impl FnMut(usize, &Planned, &mut dyn Write) -> Result<()>,
    ) -> Result<Written> {
        let ranges = self.ranges(parts, source)?;
        let mut files = Vec::new();
        let paths = part_paths(path, parts, ranges.len());
        for (number, (range, part)) in ranges.iter().zip(paths).enumerate() {
            let writer = self.writer(range.clone(), (number, ranges.len()), source)?;
            remove_abandoned(&part);
            let mut pending = PendingFile::create(&part)?;
            let mut next = range.start;
            let written = std::thread::scope(|scope| {
                let mut out = WriteBehind::new(scope, &mut pending.out);
                writer.write(&mut out, |tensor, out| {
                    let at = next;
                    next += 1;
                    data(at, tensor, out)
                })?;
                out.finish()
                    .map_err(|error| Error::from(WriteError::Io(error)))
            });
            written.map_err(|error| with_path(error, &part))?;
            files.push((part, pending.finish()?));
        }
        Ok(Written { files, ranges })
    }

    /// Paths of the files that [`write`](Output::write) creates.
    pub fn paths(
        &self,
        path: &Path,
        parts: &Parts,
        source: Option<&Metadata>,
    ) -> Result<Vec<PathBuf>> {
        let count = self.ranges(parts, source)?.len();
        Ok(part_paths(path, parts, count))
    }

    /// Upper bound of the bytes of one file besides tensor data: header and padding.
    pub fn overhead(&self, source: Option<&Metadata>) -> Result<u64> {
        let head = self.writer(0..0, (0, 1), source)?;
        let padding = head.alignment();
        let entries = self.tensors.iter().map(|t| entry_len(t) + padding);
        Ok(head.file_len()? + padding + entries.sum::<u64>())
    }

    /// Writes the whole model to `out`. `data` receives the index of a tensor and writes its bytes.
    pub fn write_to(
        &self,
        out: &mut impl Write,
        source: Option<&Metadata>,
        mut data: impl FnMut(usize, &Planned, &mut dyn Write) -> Result<()>,
    ) -> Result<()> {
        let writer = self.writer(0..self.tensors.len(), (0, 1), source)?;
        let mut next = 0;
        writer.write(out, |tensor, out| {
            let at = next;
            next += 1;
            data(at, tensor, out)
        })
    }

    /// Rewrites the headers of written files after key values changed to others of the same length.
    pub fn rewrite_headers(&self, written: &Written, source: Option<&Metadata>) -> Result<()> {
        let count = written.files.len();
        for (number, ((path, file), range)) in written.files.iter().zip(&written.ranges).enumerate()
        {
            let writer = self.writer(range.clone(), (number, count), source)?;
            let rewrite = || -> Result<(), WriteError> {
                let len = std::fs::metadata(file.temporary())?.len();
                if writer.file_len()? != len {
                    // A longer header would overwrite tensor data.
                    return Err(std::io::Error::other("the header changed its length").into());
                }
                let mut out = std::fs::OpenOptions::new()
                    .write(true)
                    .open(file.temporary())?;
                out.seek(SeekFrom::Start(0))?;
                writer.write_header(&mut out)?;
                Ok(out.sync_all()?)
            };
            rewrite().map_err(|error| with_path(error.into(), path))?;
        }
        Ok(())
    }

    /// The header of part `number` of `count`.
    fn writer(
        &self,
        range: std::ops::Range<usize>,
        (number, count): (usize, usize),
        source: Option<&Metadata>,
    ) -> Result<Writer> {
        let mut writer = Writer::new();
        // The first part has the keys of the model.
        for (key, value) in self.keys.iter().filter(|_| number == 0) {
            let value = match value {
                Some(value) => Some(value.as_value()),
                None => source.and_then(|source| source.get(key)),
            };
            if let Some(value) = value {
                writer.key(key, &value)?;
            }
        }
        // Readers look for the INT8 key in the first part.
        let int8 = |tensor: &Planned| tensor.ty == TensorType::INT8;
        if number == 0 && self.tensors.iter().any(int8) {
            writer.key(INT8_KEY, &Value::Bool(true))?;
        }
        if count > 1 {
            let all = i32::try_from(self.tensors.len()).unwrap_or(i32::MAX);
            writer.key("split.no", &Value::U16(number as u16))?;
            writer.key("split.count", &Value::U16(count as u16))?;
            writer.key("split.tensors.count", &Value::I32(all))?;
        }
        for tensor in &self.tensors[range] {
            writer.tensor(&tensor.name, tensor.ty, &tensor.shape)?;
        }
        Ok(writer)
    }

    /// The tensor range of each part.
    fn ranges(
        &self,
        parts: &Parts,
        source: Option<&Metadata>,
    ) -> Result<Vec<std::ops::Range<usize>>> {
        let n = self.tensors.len();
        let whole = std::iter::once(0..n).collect();
        let mut ranges = Vec::new();
        let mut start = 0;
        match parts {
            Parts::One => return Ok(whole),
            Parts::Counts(counts) => {
                for count in counts {
                    let end = (start + count).min(n);
                    ranges.push(start..end);
                    start = end;
                }
                if start < n {
                    ranges.push(start..n);
                }
            }
            Parts::MaxTensors(most) => {
                let most = (*most).max(1);
                ranges.extend(
                    (0..n)
                        .step_by(most)
                        .map(|start| start..(start + most).min(n)),
                );
            }
            Parts::MaxBytes(most) => {
                let head = |number| self.writer(0..0, (number, 2), source);
                let (first, other) = (head(0)?, head(1)?.file_len()?);
                let padding = first.alignment();
                let mut bytes = first.file_len()?;
                for (i, tensor) in self.tensors.iter().enumerate() {
                    let takes = tensor.bytes.saturating_add(entry_len(tensor) + padding);
                    if i > start && bytes.saturating_add(takes) > *most {
                        ranges.push(start..i);
                        (start, bytes) = (i, other);
                    }
                    bytes = bytes.saturating_add(takes);
                }
                ranges.push(start..n);
            }
        }
        Ok(if ranges.is_empty() { whole } else { ranges })
    }
}

/// Complete files under temporary names, which are removed on drop.
#[derive(Debug)]
pub struct Written {
    files: Vec<(PathBuf, SavedFile)>,
    ranges: Vec<std::ops::Range<usize>>,
}

impl Written {
    /// Opens the model from the temporary files.
    pub fn open(&self) -> Result<ModelFile> {
        let paths = self.files.iter().map(|(_, file)| file.temporary());
        let paths: Vec<PathBuf> = paths.map(Path::to_path_buf).collect();
        Ok(ModelFile::open_parts(&paths, &OpenOptions::default())?)
    }

    /// Renames the files to their final names and returns the paths.
    pub fn publish(self) -> Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for (path, file) in self.files {
            file.publish()?;
            paths.push(path);
        }
        Ok(paths)
    }
}

/// Upper bound of the header bytes of a tensor: name, type, shape and offset.
fn entry_len(tensor: &Planned) -> u64 {
    (tensor.name.len() + 8 * tensor.shape.len() + 32) as u64
}

fn part_paths(path: &Path, parts: &Parts, count: usize) -> Vec<PathBuf> {
    match parts {
        Parts::One => vec![path.to_path_buf()],
        _ => (1..=count as u64)
            .map(|number| part_path(path, number, count as u64))
            .collect(),
    }
}

/// Path of a part of `path`. A part number in `path` itself is ignored.
pub fn part_path(path: &Path, number: u64, count: u64) -> PathBuf {
    let whole = || match path.extension() {
        Some(end) if end.eq_ignore_ascii_case("gguf") => path.with_extension(""),
        // A dot as in `v1.5` does not start an extension.
        _ => path.to_path_buf(),
    };
    let stem = PartName::parse(path).map_or_else(whole, |part| part.stem);
    PartName {
        stem,
        number,
        count,
    }
    .path(number)
}

/// Returns an error if `path` is a file of the input model.
pub fn check_not_input(path: &Path, file: &ModelFile) -> Result<()> {
    check_differs(path, file.files().map(|(input, _)| input))
}

/// Returns an error if `path` is one of `inputs`.
pub fn check_differs<'a>(path: &Path, inputs: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    let mut inputs = inputs.into_iter();
    inputs.try_for_each(|input| check_other_file(path, input))
}

/// Returns an error if `path` and `input` are the same file, also through links.
pub fn check_other_file(path: &Path, input: &Path) -> Result<()> {
    let same = match (path.canonicalize(), input.canonicalize()) {
        (Ok(a), Ok(b)) => a == b || are_links(&a, &b),
        // A file that does not exist yet can only be compared by path.
        _ => path == input,
    };
    let path = path.to_path_buf();
    if same {
        return Err(Error::SameFile { path });
    }
    Ok(())
}

/// True if two paths are hard links to the same file.
#[cfg(unix)]
fn are_links(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &Path| path.metadata().map(|file| (file.dev(), file.ino())).ok();
    identity(a).is_some_and(|a| Some(a) == identity(b))
}

#[cfg(not(unix))]
fn are_links(_: &Path, _: &Path) -> bool {
    false
}

/// Returns an error if `path` is a file other than GGUF, which is not the output of an earlier run.
pub fn check_replaceable(path: &Path) -> Result<()> {
    let mut head = [0; 4];
    let is_file = std::fs::metadata(path).is_ok_and(|there| there.is_file() && there.len() > 0);
    let mut read = || std::io::Read::read_exact(&mut std::fs::File::open(path)?, &mut head);
    if !is_file || read().is_ok() && head == MAGIC {
        return Ok(());
    }
    Err(Error::Unfit {
        file: path.to_path_buf(),
        problem: "the file exists and is not GGUF; it is not overwritten".into(),
    })
}

/// Returns an error if a file cannot be created at `path`. Called before long work.
pub fn check_writable(path: &Path) -> Result<()> {
    // The temporary file is removed on drop.
    PendingFile::create(path)?;
    Ok(())
}

/// Adds the path of the file to an I/O error.
pub(crate) fn with_path(error: Error, path: &Path) -> Error {
    match error {
        Error::Core(oxidize_core::Error::GgufWrite(WriteError::Io(error))) => {
            oxidize_core::Error::io(path)(error).into()
        }
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_path_strips_only_gguf_extension() {
        let name = |path: &str| part_path(Path::new(path), 2, 3);
        for (path, part) in [
            ("m.gguf", "m-00002-of-00003.gguf"),
            ("v1.5-model", "v1.5-model-00002-of-00003.gguf"),
            ("Qwen2.5-7B.GGUF", "Qwen2.5-7B-00002-of-00003.gguf"),
            ("m-00001-of-00009.gguf", "m-00002-of-00003.gguf"),
        ] {
            assert_eq!(name(path), Path::new(part));
        }
    }

    #[test]
    fn parts_stay_within_max_bytes() {
        let mut output = Output::default();
        output.set("general.name", ValueBuf::Str("n".repeat(3000)));
        for i in 0..40 {
            output.tensor(&format!("blk.{i}.weight"), TensorType::F32, &[32, 7]);
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        for most in [5_000, 9_000, 20_000] {
            let parts = Parts::MaxBytes(most);
            let written = output.write(&path, &parts, None, |_, tensor, out| {
                out.write_all(&vec![0; tensor.bytes as usize])
                    .map_err(|error| WriteError::Io(error).into())
            });
            let files = written.unwrap().publish().unwrap();
            assert_eq!(files, output.paths(&path, &parts, None).unwrap());
            for file in &files {
                let len = std::fs::metadata(file).unwrap().len();
                assert!(len <= most, "{}: {len} of {most}", file.display());
            }
        }
    }
}
