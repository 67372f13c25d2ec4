//! [`GgufError`]: a malformed GGUF file.

use std::path::Path;

use crate::error::Error;
use crate::limits::LimitExceeded;

/// Malformed GGUF file: the problem, the key or tensor, and the byte offset.
#[derive(Debug, thiserror::Error)]
#[error("{subject} at byte {offset}: {problem}")]
pub struct GgufError {
    /// Part of the file.
    pub subject: Subject,
    /// Byte offset.
    pub offset: u64,
    /// Problem.
    pub problem: Problem,
}

/// Part of a file that an error refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Magic, version and counts.
    Header,
    /// Metadata key whose name is not known yet, by index.
    KeyNumber(u64),
    /// Metadata key.
    Key(String),
    /// Tensor whose name is not known yet, by index.
    TensorNumber(u64),
    /// Tensor.
    Tensor(String),
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Subject::Header => f.write_str("GGUF header"),
            Subject::KeyNumber(n) => write!(f, "metadata key {n}"),
            Subject::Key(key) => write!(f, "key `{}`", Sanitized(key)),
            Subject::TensorNumber(n) => write!(f, "tensor {n}"),
            Subject::Tensor(name) => write!(f, "tensor `{}`", Sanitized(name)),
        }
    }
}

/// Name from a file for an error message: shortened and without control characters.
struct Sanitized<'a>(&'a str);

impl std::fmt::Display for Sanitized<'_> {
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

/// Problem of a GGUF file.
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
    /// Number of bytes that the parser needs, if the only problem is that it was given a prefix of
    /// the file.
    pub fn wants_more(&self) -> Option<u64> {
        match self.problem {
            Problem::Truncated { needed, left } if needed <= left => Some(self.offset + needed),
            _ => None,
        }
    }

    /// Adds the path of the file.
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
