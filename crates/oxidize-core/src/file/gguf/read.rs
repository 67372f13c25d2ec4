//! Parses and checks a GGUF header. Afterwards, all ranges are inside the file, names are unique,
//! and tensors do not overlap.
//!
//! Counts in the file are compared with the remaining bytes before anything is allocated.

use std::ops::Range;

use oxidize_kernels::quant::TensorType;

use super::error::{GgufError, Problem, Subject};
use super::metadata::{Entry, Metadata};
use super::value::{Layout, ValueType};
use super::{DEFAULT_ALIGNMENT, MAGIC};
use crate::file::{DimOrder, TensorInfo};
use crate::io::SharedBytes;
use crate::limits::{LimitExceeded, Limits};
use crate::names::sorted_without_duplicates;

/// Checked header of a GGUF file.
#[derive(Clone, Debug)]
pub struct Header {
    /// Version of the format.
    pub version: u32,
    /// Keys and values.
    pub metadata: Metadata,
    /// Tensors in the order of the table, with absolute offsets.
    pub tensors: Vec<TensorInfo>,
    /// Alignment of the tensor data.
    pub alignment: u64,
    /// Bytes of the header, without the padding before the data.
    pub len: u64,
}

/// Parses the header of a file of `file_len` bytes that begins with `bytes`.
///
/// If `bytes` is a prefix of the file that is too short, the error is [`Problem::Truncated`]; see
/// [`GgufError::wants_more`].
pub fn parse(bytes: &SharedBytes, file_len: u64, limits: &Limits) -> Result<Header, GgufError> {
    let mut reader = Reader {
        bytes,
        pos: 0,
        file_len,
        layout: Layout::V2,
        place: Place::Header,
        limits,
    };
    let version = reader.version()?;
    let n_tensors = reader.length()?;
    reader.limit("tensors", n_tensors, limits.tensors)?;
    let n_keys = reader.length()?;
    reader.limit("metadata keys", n_keys, limits.metadata_keys)?;

    let entries = reader.entries(n_keys)?;
    let by_key = sorted_without_duplicates(entries.len(), |i| {
        entries
            .get(i)
            .and_then(|entry| bytes.get(entry.key.clone()))
            .unwrap_or_default()
    })
    .map_err(|twice| {
        let key = entries.get(twice).map_or(0..0, |entry| entry.key.clone());
        reader.error_at(Place::Key(key.clone()), key.start, Problem::Duplicate)
    })?;
    let metadata = Metadata::new(bytes.clone(), reader.layout, entries, by_key);

    let alignment = reader.alignment(&metadata)?;
    let tensors = reader.tensors(n_tensors, alignment)?;
    let len = reader.pos as u64;
    Ok(Header {
        version,
        metadata,
        tensors,
        alignment,
        len,
    })
}

/// Reader that tracks the part of the file for error messages.
struct Reader<'a> {
    bytes: &'a [u8],
    pos: usize,
    file_len: u64,
    layout: Layout,
    place: Place,
    limits: &'a Limits,
}

/// [`Subject`] without an owned name; names are copied only for errors.
#[derive(Clone)]
enum Place {
    Header,
    KeyNumber(u64),
    Key(Range<usize>),
    TensorNumber(u64),
    Tensor(Range<usize>),
}

impl Reader<'_> {
    fn version(&mut self) -> Result<u32, GgufError> {
        let magic = self.array::<4>()?;
        if magic != MAGIC {
            return Err(self.error_at(Place::Header, 0, Problem::Magic(magic)));
        }
        let version = self.u32()?;
        let error = |problem| self.error_at(Place::Header, 4, problem);
        match version {
            1 => self.layout = Layout::V1,
            2 | 3 => {}
            _ if (1..=3).contains(&version.swap_bytes()) => return Err(error(Problem::BigEndian)),
            _ => return Err(error(Problem::Version(version))),
        }
        Ok(version)
    }

    fn entries(&mut self, n: u64) -> Result<Vec<Entry>, GgufError> {
        // Minimum entry: an empty key, a type and a byte.
        let shortest = self.layout.length_bytes() + 4 + 1;
        let mut entries = Vec::with_capacity(self.affordable(n, shortest)?);
        for i in 0..n {
            self.place = Place::KeyNumber(i);
            let key = self.name()?;
            self.place = Place::Key(key.clone());
            let ty = self.value_type()?;
            let start = self.pos;
            self.skip_value(ty, 0)?;
            entries.push(Entry {
                key,
                ty,
                value: start..self.pos,
            });
        }
        Ok(entries)
    }

    fn alignment(&mut self, metadata: &Metadata) -> Result<u64, GgufError> {
        const KEY: &str = "general.alignment";
        let Some(value) = metadata.get(KEY) else {
            return Ok(DEFAULT_ALIGNMENT);
        };
        let error = |problem| GgufError {
            subject: Subject::Key(KEY.to_owned()),
            offset: metadata.value_offset(KEY).unwrap_or(0),
            problem,
        };
        let alignment = value
            .as_u64()
            .filter(|alignment| alignment.is_power_of_two())
            .ok_or_else(|| error(Problem::Alignment))?;
        LimitExceeded::check("bytes of alignment", alignment, self.limits.alignment)
            .map_err(|limit| error(Problem::Limit(limit)))?;
        Ok(alignment)
    }

    fn tensors(&mut self, n: u64, alignment: u64) -> Result<Vec<TensorInfo>, GgufError> {
        // Minimum entry: an empty name, no dimensions, a type and an offset.
        let shortest = self.layout.length_bytes() + 4 + 4 + 8;
        self.place = Place::TensorNumber(0);
        let mut tensors = Vec::with_capacity(self.affordable(n, shortest)?);
        let mut names = Vec::with_capacity(tensors.capacity());
        for i in 0..n {
            self.place = Place::TensorNumber(i);
            let name = self.name()?;
            self.place = Place::Tensor(name.clone());
            tensors.push(self.tensor(name.clone(), alignment)?);
            names.push(name);
        }

        // Offsets are relative to the end of the table.
        let data_start = (self.pos as u64)
            .checked_next_multiple_of(alignment)
            .unwrap_or(u64::MAX);
        for (tensor, name) in tensors.iter_mut().zip(&names) {
            let start = data_start.saturating_add(tensor.offset);
            let end = u128::from(start) + u128::from(tensor.bytes);
            if end > u128::from(self.file_len) && tensor.bytes > 0 {
                let problem = Problem::OutOfFile {
                    start,
                    end,
                    len: self.file_len,
                };
                return Err(self.error_at(Place::Tensor(name.clone()), name.start, problem));
            }
            tensor.offset = start.min(self.file_len);
        }
        self.refuse_duplicates(&names)?;
        self.refuse_overlaps(&tensors, &names)?;
        Ok(tensors)
    }

    fn tensor(&mut self, name: Range<usize>, alignment: u64) -> Result<TensorInfo, GgufError> {
        let n_dims = self.u32()?;
        self.limit(
            "dimensions",
            n_dims.into(),
            self.limits.gguf_dimensions.into(),
        )?;
        let mut shape = Vec::with_capacity(self.affordable(n_dims.into(), 4)?);
        for _ in 0..n_dims {
            shape.push(self.length()?);
        }

        let ty = self.tensor_type()?;
        let elements = shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim));
        let Some(elements) = elements.filter(|&n| n <= i64::MAX as u64) else {
            return Err(self.error(Problem::TooManyElements(shape)));
        };
        // A dimension of zero would hide an overflow of the others.
        if shape
            .iter()
            .filter(|&&dim| dim > 0)
            .try_fold(1u64, |n, &d| n.checked_mul(d))
            .is_none()
        {
            return Err(self.error(Problem::TooManyElements(shape)));
        }
        let row = shape.first().copied().unwrap_or(1);
        let block = ty.block_len();
        if !row.is_multiple_of(block as u64) {
            return Err(self.error(Problem::PartialBlock { row, block }));
        }
        let Some(bytes) = ty.bytes_for(elements) else {
            return Err(self.error(Problem::TooManyElements(shape)));
        };

        let offset = self.u64()?;
        if !offset.is_multiple_of(alignment) {
            return Err(self.error(Problem::Misaligned { offset, alignment }));
        }
        let name = self.text(name)?.to_owned();
        Ok(TensorInfo {
            name,
            ty,
            shape,
            file: 0,
            offset,
            bytes,
            order: DimOrder::FastestFirst,
        })
    }

    fn tensor_type(&mut self) -> Result<TensorType, GgufError> {
        let at = self.pos;
        let id = self.u32()?;
        TensorType::from_gguf_id(id).ok_or_else(|| {
            let problem = match id {
                4 => Problem::RemovedTensorType("Q4_2"),
                5 => Problem::RemovedTensorType("Q4_3"),
                31 => Problem::RemovedTensorType("Q4_0_4_4"),
                32 => Problem::RemovedTensorType("Q4_0_4_8"),
                33 => Problem::RemovedTensorType("Q4_0_8_8"),
                36 => Problem::RemovedTensorType("IQ4_NL_4_4"),
                37 => Problem::RemovedTensorType("IQ4_NL_4_8"),
                38 => Problem::RemovedTensorType("IQ4_NL_8_8"),
                _ => Problem::TensorType(id),
            };
            self.error_at(self.place.clone(), at, problem)
        })
    }

    fn refuse_duplicates(&self, names: &[Range<usize>]) -> Result<(), GgufError> {
        let name = |i: usize| names.get(i).cloned().unwrap_or(0..0);
        let bytes = |i| self.bytes.get(name(i)).unwrap_or_default();
        match sorted_without_duplicates(names.len(), bytes) {
            Ok(_) => Ok(()),
            Err(twice) => {
                let name = name(twice);
                Err(self.error_at(Place::Tensor(name.clone()), name.start, Problem::Duplicate))
            }
        }
    }

    fn refuse_overlaps(
        &self,
        tensors: &[TensorInfo],
        names: &[Range<usize>],
    ) -> Result<(), GgufError> {
        let mut by_offset: Vec<_> = tensors
            .iter()
            .zip(names)
            .filter(|(tensor, _)| tensor.bytes > 0)
            .collect();
        by_offset.sort_unstable_by_key(|(tensor, _)| tensor.offset);
        for ((before, _), (after, name)) in by_offset.iter().zip(by_offset.iter().skip(1)) {
            // The sum was checked against the end of the file.
            if before.offset + before.bytes > after.offset {
                let place = Place::Tensor((*name).clone());
                return Err(self.error_at(
                    place,
                    name.start,
                    Problem::Overlap(before.name.clone()),
                ));
            }
        }
        Ok(())
    }

    /// Checks and skips a value inside `depth` arrays.
    fn skip_value(&mut self, ty: ValueType, depth: u32) -> Result<(), GgufError> {
        match ty {
            ValueType::String => self.skip_string(),
            ValueType::Array => self.skip_array(depth + 1),
            ValueType::Bool => self.skip_bools(1),
            _ => self.take(ty.size().unwrap_or(0)).map(drop),
        }
    }

    fn skip_array(&mut self, depth: u32) -> Result<(), GgufError> {
        self.limit(
            "arrays inside one another",
            depth.into(),
            self.limits.array_depth.into(),
        )?;
        let element = self.value_type()?;
        let len = self.length()?;
        match element {
            ValueType::String => {
                self.affordable(len, self.layout.length_bytes())?;
                for _ in 0..len {
                    self.skip_string()?;
                }
            }
            ValueType::Array => {
                self.affordable(len, 4 + self.layout.length_bytes())?;
                for _ in 0..len {
                    self.skip_array(depth + 1)?;
                }
            }
            ValueType::Bool => self.skip_bools(len)?,
            _ => {
                let size = element.size().unwrap_or(0);
                self.affordable(len, size)?;
                self.take(len.saturating_mul(size))?;
            }
        }
        Ok(())
    }

    fn skip_bools(&mut self, len: u64) -> Result<(), GgufError> {
        let range = self.take(len)?;
        let bools = self.bytes.get(range.clone()).unwrap_or_default();
        match bools.iter().enumerate().find(|(_, byte)| **byte > 1) {
            None => Ok(()),
            Some((i, &byte)) => {
                Err(self.error_at(self.place.clone(), range.start + i, Problem::Bool(byte)))
            }
        }
    }

    fn skip_string(&mut self) -> Result<(), GgufError> {
        let len = self.length()?;
        self.limit("bytes in a string", len, self.limits.string_bytes)?;
        self.take(len).map(drop)
    }

    /// Range of a key or tensor name, which must be UTF-8.
    fn name(&mut self) -> Result<Range<usize>, GgufError> {
        let len = self.length()?;
        self.limit("bytes in a name", len, self.limits.string_bytes)?;
        let range = self.take(len)?;
        self.text(range.clone())?;
        Ok(range)
    }

    fn text(&self, range: Range<usize>) -> Result<&str, GgufError> {
        let start = range.start;
        str::from_utf8(self.bytes.get(range).unwrap_or_default())
            .map_err(|_| self.error_at(self.place.clone(), start, Problem::NotUtf8))
    }

    fn value_type(&mut self) -> Result<ValueType, GgufError> {
        let at = self.pos;
        let id = self.u32()?;
        ValueType::from_id(id)
            .ok_or_else(|| self.error_at(self.place.clone(), at, Problem::ValueType(id)))
    }

    /// Count or length, whose width depends on the version.
    fn length(&mut self) -> Result<u64, GgufError> {
        match self.layout {
            Layout::V1 => self.u32().map(u64::from),
            Layout::V2 => self.u64(),
        }
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        self.array().map(u64::from_le_bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let truncated = self.truncated(N as u64);
        match self
            .bytes
            .get(self.pos..)
            .and_then(|rest| rest.first_chunk::<N>())
        {
            Some(chunk) => {
                self.pos += N;
                Ok(*chunk)
            }
            None => Err(self.error(truncated)),
        }
    }

    /// Skips `n` bytes and returns their range.
    fn take(&mut self, n: u64) -> Result<Range<usize>, GgufError> {
        let end = usize::try_from(n)
            .ok()
            .and_then(|n| self.pos.checked_add(n));
        match end.filter(|&end| end <= self.bytes.len()) {
            Some(end) => {
                let start = std::mem::replace(&mut self.pos, end);
                Ok(start..end)
            }
            None => Err(self.error(self.truncated(n))),
        }
    }

    /// Converts a count for allocation; returns an error unless that many items of at least `bytes`
    /// bytes can remain.
    fn affordable(&self, n: u64, bytes: u64) -> Result<usize, GgufError> {
        let needed = n.saturating_mul(bytes);
        let left = self.file_len.saturating_sub(self.pos as u64);
        match usize::try_from(n) {
            Ok(n) if needed <= left => Ok(n),
            _ => Err(self.error(Problem::Truncated { needed, left })),
        }
    }

    fn limit(&self, what: &'static str, requested: u64, limit: u64) -> Result<(), GgufError> {
        LimitExceeded::check(what, requested, limit)
            .map_err(|limit| self.error(Problem::Limit(limit)))
    }

    fn truncated(&self, needed: u64) -> Problem {
        Problem::Truncated {
            needed,
            left: self.file_len.saturating_sub(self.pos as u64),
        }
    }

    fn error(&self, problem: Problem) -> GgufError {
        self.error_at(self.place.clone(), self.pos, problem)
    }

    fn error_at(&self, place: Place, offset: usize, problem: Problem) -> GgufError {
        // Length of names in error messages; names in files may have megabytes.
        const SHOWN_BYTES: usize = 512;
        let text = |range: Range<usize>| {
            let end = range.end.min(range.start.saturating_add(SHOWN_BYTES));
            let bytes = self.bytes.get(range.start..end).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let subject = match place {
            Place::Header => Subject::Header,
            Place::KeyNumber(n) => Subject::KeyNumber(n),
            Place::Key(range) => Subject::Key(text(range)),
            Place::TensorNumber(n) => Subject::TensorNumber(n),
            Place::Tensor(range) => Subject::Tensor(text(range)),
        };
        GgufError {
            subject,
            offset: offset as u64,
            problem,
        }
    }
}
