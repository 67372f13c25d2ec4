//! Quantized tensor formats and the CPU kernels that work on them.
//!
//! [`quant`] defines every block format: layout, name, quantization and dequantization. [`try_select`]
//! returns the [`Kernels`] of the best instruction set of this machine. Each operation has a reference
//! implementation in `ops/` and SIMD versions in `arch/`. This is the only crate of the workspace with SIMD
//! code.

pub mod quant;

mod arch;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(
        dead_code,
        unused_imports,
        reason = "some items are used by the SIMD kernels only"
    )
)]
mod ops;
mod out;
mod table;

pub use ops::activation::Activation;
pub use ops::attention::{Alibi, AttentionArgs, KvType, PagedKv, RelativeBias, merge_attention};
pub use ops::matmul::{
    ActivationFormat, ActivationQuant, Activations, Epilogue, QuantizedRows, QuantizedRowsMut,
    Scratch, SharedRows, WeightRows,
};
pub use ops::rope::RopeLayout;
pub use out::{SharedMatrix, TileMut};
pub use table::{Isa, IsaError, Kernels, select, try_select};
