//! Writes a model to one file or several parts, none of which appears before all are whole.

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use oxidize_core::file::ModelFile;
use oxidize_core::gguf::split::PartName;
use oxidize_core::gguf::{INT8_KEY, Metadata, Planned, Value, ValueBuf, WriteError, Writer};
use oxidize_core::io::{PendingFile, SavedFile, remove_abandoned};

use crate::error::{Error, Result};
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
    /// Parts of about at most so many bytes.
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

    /// Sets a key, in the place of the old value if there was one.
    pub fn set(&mut self, key: &str, value: ValueBuf) {
        match self.keys.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = Some(value),
            None => self.keys.push((key.to_owned(), Some(value))),
        }
    }

    /// Adds a tensor.
    pub fn tensor(&mut self, name: &str, ty: oxidize_core::file::TensorType, shape: &[u64]) {
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
        let ranges = self.ranges(parts);
        let count = ranges.len() as u64;
        let mut files = Vec::new();
        for (number, range) in ranges.iter().enumerate() {
            let part = match parts {
                Parts::One => path.to_path_buf(),
                _ => part_path(path, number as u64 + 1, count),
            };
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
    fn ranges(&self, parts: &Parts) -> Vec<std::ops::Range<usize>> {
        let n = self.tensors.len();
        let whole = std::iter::once(0..n).collect();
        let mut ranges = Vec::new();
        let mut start = 0;
        match parts {
            Parts::One => return whole,
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
                let mut bytes = 0;
                for (i, tensor) in self.tensors.iter().enumerate() {
                    if bytes > 0 && bytes + tensor.bytes > *most {
                        ranges.push(start..i);
                        (start, bytes) = (i, 0);
                    }
                    bytes += tensor.bytes;
                }
                ranges.push(start..n);
            }
        }
        if ranges.is_empty() { whole } else { ranges }
    }
}

/// Files that are whole, and have no names yet. Dropped, they are gone.
#[derive(Debug)]
pub struct Written {
    files: Vec<(PathBuf, SavedFile)>,
    ranges: Vec<std::ops::Range<usize>>,
}

impl Written {
    /// Where the first file is until it is published.
    pub fn temporary(&self) -> &Path {
        self.files
            .first()
            .map_or(Path::new(""), |(_, file)| file.temporary())
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

/// The name of a part of `path`, whose own part number, if it has one, does not count.
pub fn part_path(path: &Path, number: u64, count: u64) -> PathBuf {
    let stem = PartName::parse(path).map_or_else(|| path.with_extension(""), |part| part.stem);
    PartName {
        stem,
        number,
        count,
    }
    .path(number)
}

/// Refuses to write over a file that is being read.
pub fn check_not_input(path: &Path, file: &ModelFile) -> Result<()> {
    let same = |a: &Path, b: &Path| match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    };
    match file.files().find(|(input, _)| same(input, path)) {
        Some(_) => Err(Error::SameFile {
            path: path.to_path_buf(),
        }),
        None => Ok(()),
    }
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
