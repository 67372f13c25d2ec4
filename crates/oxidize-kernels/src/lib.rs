//! Quantised tensor formats and the CPU kernels that work on them.
//!
//! [`quant`] knows every block format: its layout, its name, how to turn it into floats and back.
//! This is the only crate of the workspace with SIMD code in it.

pub mod quant;
