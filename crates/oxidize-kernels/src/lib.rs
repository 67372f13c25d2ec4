//! Quantised tensor formats and the CPU kernels that work on them.
//!
//! [`quant`] knows every block format: its layout, its name, how to turn it into floats and back.
//! [`select`] gives the [`Kernels`] of the best instruction set this machine has; each of its
//! operations has a plain reference in `ops/` and faster versions in `arch/`.
//! This is the only crate of the workspace with SIMD code in it.

pub mod quant;

mod arch;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(
        dead_code,
        unused_imports,
        reason = "some items serve the SIMD kernels only"
    )
)]
mod ops;
mod out;
mod table;

pub use ops::activation::Activation;
pub use ops::attention::{Alibi, AttentionArgs, KvType, PagedKv, RelativeBias, merge_attention};
pub use ops::matmul::{
    ActivationRounding, Activations, Epilogue, Precision, QuantizedRows, QuantizedRowsMut, Scratch,
    SharedRows, WeightRows,
};
pub use ops::rope::RopeLayout;
pub use out::{SharedMatrix, TileMut};
pub use table::{Isa, Kernels, select};
