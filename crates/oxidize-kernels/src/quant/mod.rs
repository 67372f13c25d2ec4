//! The registry of tensor types: names, ids, block sizes.

mod types;

pub use types::TensorType;
