//! [`SafetensorsError`]: a malformed safetensors file or JSON file of the model.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::limits::LimitExceeded;

/// Malformed safetensors file: the problem, the tensor, and the byte offset.
#[derive(Debug, thiserror::Error)]
#[error("{}{problem}", place(.tensor, *.offset))]
pub struct SafetensorsError {
    /// Tensor, if the error refers to one.
    pub tensor: Option<String>,
    /// Byte offset.
    pub offset: u64,
    /// Problem.
    pub problem: Problem,
}

fn place(tensor: &Option<String>, offset: u64) -> String {
    match tensor {
        Some(name) => format!("tensor `{}` at byte {offset}: ", name.escape_debug()),
        None => format!("byte {offset}: "),
    }
}

/// Problem of a safetensors file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message says what the variant is")]
pub enum Problem {
    #[error("{needed} bytes needed, {left} left in the file")]
    Truncated { needed: u64, left: u64 },
    #[error("{0}")]
    Limit(LimitExceeded),
    #[error("{0}")]
    Json(String),
    #[error("the name occurs twice")]
    Duplicate,
    #[error("the dimensions {0:?} multiply to more than 2^63")]
    TooManyElements(Vec<u64>),
    #[error("its shape and type take {expected} bytes, its data_offsets {actual}")]
    Size { expected: u64, actual: u64 },
    #[error("its data_offsets {start}..{end} are not a range inside the {len} bytes of data")]
    OutOfFile { start: u64, end: u64, len: u64 },
    #[error("its data overlaps that of tensor `{0}`")]
    Overlap(String),
    #[error("the {0} bytes of data before it belong to no tensor")]
    Hole(u64),
    #[error("the last {0} bytes of the file belong to no tensor")]
    Tail(u64),
    #[error("{0:?} is not a plain file name")]
    ShardName(String),
    #[error("it is also in {}", .0.display())]
    AlsoIn(PathBuf),
    #[error("not found in {0}, which the index names")]
    NotInShard(String),
    #[error("MLX quantization: {0}")]
    Mlx(String),
    #[error("packed weights: {0}")]
    Packed(String),
}

impl SafetensorsError {
    /// Adds the path of the file.
    pub(crate) fn in_file(self, path: &Path) -> Error {
        let path = path.to_path_buf();
        match self.problem {
            Problem::Limit(limit) => {
                let place = place(&self.tensor, self.offset);
                Error::Limit {
                    path,
                    place: place.trim_end_matches(": ").to_owned(),
                    limit,
                }
            }
            _ => Error::Safetensors {
                path,
                error: Box::new(self),
            },
        }
    }
}
