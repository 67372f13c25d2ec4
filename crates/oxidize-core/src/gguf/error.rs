//! What can be wrong with a GGUF file, with the place.

use std::path::Path;

use crate::error::Error;
use crate::limits::LimitExceeded;

/// A broken GGUF file: what is wrong, with which key or tensor, at which byte.
#[derive(Debug, thiserror::Error)]
#[error("{subject} at byte {offset}: {problem}")]
pub struct GgufError {
    /// What was being read.
    pub subject: Subject,
    /// Where in the file.
    pub offset: u64,
    /// What is wrong with it.
    pub problem: Problem,
}

/// The part of a file that an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Magic, version and counts.
    Header,
    /// A metadata key whose name is not known yet, by its place in the file.
    KeyNumber(u64),
    /// A metadata key.
    Key(String),
    /// A tensor whose name is not known yet, by its place in the table.
    TensorNumber(u64),
    /// A tensor.
    Tensor(String),
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Subject::Header => f.write_str("GGUF header"),
            Subject::KeyNumber(n) => write!(f, "metadata key {n}"),
            Subject::Key(key) => write!(f, "key `{}`", Shown(key)),
            Subject::TensorNumber(n) => write!(f, "tensor {n}"),
            Subject::Tensor(name) => write!(f, "tensor `{}`", Shown(name)),
        }
    }
}

/// A name out of a file, fit for one line of an error message: short, without control characters.
struct Shown<'a>(&'a str);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const MAX_CHARS: usize = 120;
        for (i, c) in self.0.chars().enumerate() {
            if i == MAX_CHARS {
                return f.write_str("…");
            }
            if c.is_control() {
                write!(f, "{}", c.escape_default())?
            } else {
                write!(f, "{c}")?
            }
        }
        Ok(())
    }
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message says what the variant is")]
pub enum Problem {
    #[error("the magic is {0:02x?}, not \"GGUF\"")]
    Magic([u8; 4]),
    #[error(
        "the file is big-endian; convert it to little-endian (gguf-py has gguf_convert_endian)"
    )]
    BigEndian,
    #[error("GGUF version {0} is not one of 1, 2, 3")]
    Version(u32),
    #[error("{needed} bytes needed, {left} left in the file")]
    Truncated { needed: u64, left: u64 },
    #[error("{0}")]
    Limit(LimitExceeded),
    #[error("the name is not UTF-8")]
    NotUtf8,
    #[error("the name occurs twice")]
    Duplicate,
    #[error("value type {0} is unknown")]
    ValueType(u32),
    #[error("a bool has the value {0}")]
    Bool(u8),
    #[error("tensor type {0} is unknown")]
    TensorType(u32),
    #[error("tensor type {0} was removed from the format")]
    RemovedTensorType(&'static str),
    #[error("the alignment is not a power of two")]
    Alignment,
    #[error("the dimensions {0:?} multiply to more than 2^63")]
    TooManyElements(Vec<u64>),
    #[error("rows of {row} elements are not whole blocks of {block}")]
    PartialBlock { row: u64, block: usize },
    #[error("data offset {offset} is not a multiple of the alignment {alignment}")]
    Misaligned { offset: u64, alignment: u64 },
    #[error("its data, bytes {start}..{end}, lies beyond the end of the file at {len}")]
    OutOfFile { start: u64, end: u128, len: u64 },
    #[error("its data overlaps that of tensor `{0}`")]
    Overlap(String),
}

impl GgufError {
    /// How many bytes of the file the parser needs at least, where it was given only the first few
    /// and that is all that is wrong.
    pub fn wants_more(&self) -> Option<u64> {
        match self.problem {
            Problem::Truncated { needed, left } if needed <= left => Some(self.offset + needed),
            _ => None,
        }
    }

    /// Adds the file's name.
    pub(crate) fn in_file(self, path: &Path) -> Error {
        let path = path.to_path_buf();
        match self.problem {
            Problem::Limit(limit) => {
                let place = format!("{} at byte {}", self.subject, self.offset);
                Error::Limit { path, place, limit }
            }
            _ => Error::Gguf {
                path,
                error: Box::new(self),
            },
        }
    }
}
