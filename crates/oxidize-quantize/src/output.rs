//! Writes a model to one file or several parts, none of which appears before all are whole.

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use oxidize_core::file::{ModelFile, OpenOptions, TensorType};
use oxidize_core::gguf::split::PartName;
use oxidize_core::gguf::{INT8_KEY, MAGIC, Metadata, Planned, Value, ValueBuf, WriteError, Writer};
use oxidize_core::io::{PendingFile, SavedFile, remove_abandoned};

use crate::error::{Error, Result};
use crate::report::Report;
use crate::write_behind::WriteBehind;

/// How a model is spread over files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Parts {
    /// One file.
    #[default]
    One,
    /// A part for each of the first numbers of tensors.
    Counts(Vec<usize>),
    /// Parts of at most so many tensors.
    MaxTensors(usize),
    /// Parts of at most so many bytes, as far as tensors let them.
    MaxBytes(u64),
}

/// A model about to be written: keys, and tensors in order.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Everything but the keys of split models; what has no value is copied from the source.
    pub keys: Vec<(String, Option<ValueBuf>)>,
    /// The tensors.
    pub tensors: Vec<Planned>,
}

impl Output {
    /// All keys of a file but those of split models.
    pub fn copy_keys(&mut self, file: &ModelFile) {
        for (key, _) in file.metadata().iter() {
            // The writer adds the mark of INT8 itself, where there is any.
            if !key.starts_with("split.") && key != INT8_KEY {
                self.keys.push((key.to_owned(), None));
            }
        }
    }

    /// Leaves out what keys say of how the source was made, which is no longer true of what is made of it.
    pub fn forget_making(&mut self) {
        self.keys
            .retain(|(key, _)| key != Report::KEY && !key.starts_with("quantize.imatrix."));
    }

    /// Sets a key, in the place of the old value if there was one.
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
            // The writer checks it against the shape.
            bytes: ty.bytes_for(elements).unwrap_or(0),
        });
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes).sum()
    }

    /// Writes all parts under temporary names. `data` writes each tensor, told its number.
    ///
    /// Keys without a value are copied from `source`.
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
            written.map_err(|error| name_file(error, &part))?;
            files.push((part, pending.finish()?));
        }
        Ok(Written { files, ranges })
    }

    /// The files that [`write`](Output::write) makes.
    pub fn paths(
        &self,
        path: &Path,
        parts: &Parts,
        source: Option<&Metadata>,
    ) -> Result<Vec<PathBuf>> {
        let count = self.ranges(parts, source)?.len();
        Ok(part_paths(path, parts, count))
    }

    /// Most bytes that one file takes beside the data of its tensors.
    pub fn overhead(&self, source: Option<&Metadata>) -> Result<u64> {
        let head = self.writer(0..0, (0, 1), source)?;
        let padding = head.alignment();
        let entries = self.tensors.iter().map(|t| entry_len(t) + padding);
        Ok(head.file_len()? + padding + entries.sum::<u64>())
    }

    /// Writes the whole model to `out`. `data` writes each tensor, told its number.
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

    /// Writes the heads of files anew, whose keys have become others of the same length.
    pub fn rewrite_headers(&self, written: &Written, source: Option<&Metadata>) -> Result<()> {
        let count = written.files.len();
        for (number, ((path, file), range)) in written.files.iter().zip(&written.ranges).enumerate()
        {
            let writer = self.writer(range.clone(), (number, count), source)?;
            let rewrite = || -> Result<(), WriteError> {
                let len = std::fs::metadata(file.temporary())?.len();
                if writer.file_len()? != len {
                    // Never, unless a value has another length: the tensors would be written over.
                    return Err(std::io::Error::other("its head has become longer").into());
                }
                let mut out = std::fs::OpenOptions::new()
                    .write(true)
                    .open(file.temporary())?;
                out.seek(SeekFrom::Start(0))?;
                writer.write_header(&mut out)?;
                Ok(out.sync_all()?)
            };
            rewrite().map_err(|error| name_file(error.into(), path))?;
        }
        Ok(())
    }

    /// The head of a part, `number` of `count`.
    fn writer(
        &self,
        range: std::ops::Range<usize>,
        (number, count): (usize, usize),
        source: Option<&Metadata>,
    ) -> Result<Writer> {
        let mut writer = Writer::new();
        // The model's own keys are in the first part.
        for (key, value) in self.keys.iter().filter(|_| number == 0) {
            let value = match value {
                Some(value) => Some(value.as_value()),
                None => source.and_then(|source| source.get(key)),
            };
            if let Some(value) = value {
                writer.key(key, &value)?;
            }
        }
        // A reader looks for the mark in the first part.
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

    /// Which tensors are in which part.
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

/// Files that are whole, and have no names yet. Dropped, they are gone.
#[derive(Debug)]
pub struct Written {
    files: Vec<(PathBuf, SavedFile)>,
    ranges: Vec<std::ops::Range<usize>>,
}

impl Written {
    /// Opens the model before its files have their names.
    pub fn open(&self) -> Result<ModelFile> {
        let paths = self.files.iter().map(|(_, file)| file.temporary());
        let paths: Vec<PathBuf> = paths.map(Path::to_path_buf).collect();
        Ok(ModelFile::open_parts(&paths, &OpenOptions::default())?)
    }

    /// Gives them their names.
    pub fn publish(self) -> Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for (path, file) in self.files {
            file.publish()?;
            paths.push(path);
        }
        Ok(paths)
    }
}

/// What a tensor takes in the head of a file, at most: its name, type, shape and place.
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

/// The name of a part of `path`, whose own part number, if it has one, does not count.
pub fn part_path(path: &Path, number: u64, count: u64) -> PathBuf {
    let whole = || match path.extension() {
        Some(end) if end.eq_ignore_ascii_case("gguf") => path.with_extension(""),
        // A dot in a name, as in `v1.5`, ends nothing.
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

/// Refuses to write over a file that is being read.
pub fn check_not_input(path: &Path, file: &ModelFile) -> Result<()> {
    check_differs(path, file.files().map(|(input, _)| input))
}

/// Refuses to write over any of some files.
pub fn check_differs<'a>(path: &Path, inputs: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    let mut inputs = inputs.into_iter();
    inputs.try_for_each(|input| check_other_file(path, input))
}

/// Refuses to write over `input`, by whatever name.
pub fn check_other_file(path: &Path, input: &Path) -> Result<()> {
    let same = match (path.canonicalize(), input.canonicalize()) {
        (Ok(a), Ok(b)) => a == b || are_links(&a, &b),
        // What is not there yet has nothing but its name.
        _ => path == input,
    };
    let path = path.to_path_buf();
    if same {
        return Err(Error::SameFile { path });
    }
    Ok(())
}

/// Whether two paths are names of the same file.
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

/// Refuses to write over a file that is no model, which is there by mistake rather than from an earlier run.
pub fn check_replaceable(path: &Path) -> Result<()> {
    let mut head = [0; 4];
    let is_file = std::fs::metadata(path).is_ok_and(|there| there.is_file() && there.len() > 0);
    let mut read = || std::io::Read::read_exact(&mut std::fs::File::open(path)?, &mut head);
    if !is_file || read().is_ok() && head == MAGIC {
        return Ok(());
    }
    Err(Error::Unfit {
        file: path.to_path_buf(),
        problem: "it is there and is no GGUF file, so it is not written over".into(),
    })
}

/// Finds out whether a file can be written, before the work that is to be in it.
pub fn check_writable(path: &Path) -> Result<()> {
    // Dropped, it is gone.
    PendingFile::create(path)?;
    Ok(())
}

/// The system's complaint makes sense only with the file it complains of.
pub(crate) fn name_file(error: Error, path: &Path) -> Error {
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
    fn only_the_ending_of_model_files_is_one() {
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
    fn parts_are_no_larger_than_they_may_be() {
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
