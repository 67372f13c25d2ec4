//! The reference of every operation, in plain Rust: what the SIMD versions are tested against and
//! what machines without them run. The arguments of the operations are defined here too.

pub(crate) mod activation;
pub(crate) mod argmax;
pub(crate) mod attention;
pub(crate) mod convert;
pub(crate) mod elementwise;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod rope;
pub(crate) mod softmax;
pub(crate) mod weigh;
