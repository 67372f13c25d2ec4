//! Reference implementations of every operation, in plain Rust. SIMD versions are tested against them, and
//! machines without SIMD kernels run them. The arguments of the operations are defined here too.

pub(crate) mod activation;
pub(crate) mod argmax;
pub(crate) mod attention;
pub(crate) mod convert;
pub(crate) mod elementwise;
pub(crate) mod exp_sum;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod rope;
pub(crate) mod softmax;
