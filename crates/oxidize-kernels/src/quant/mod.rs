//! Tensor formats: block layouts, dequantization and quantization.
//!
//! Each format has a file with a [`Block`] that implements [`Dot`] and, in most cases, [`Quantize`].
//! A line in `types.rs` adds it to the registry, where the functions here look it up by [`TensorType`].
//! The code is scalar and safe; the SIMD kernels are tested against it. `search/` chooses the scales
//! and levels of a block when quantizing.

#![deny(unsafe_code)]
#![allow(non_camel_case_types, reason = "the names of the formats")]

/// Checks at compile time that a block has the format's size and no alignment.
macro_rules! assert_layout {
    ($block:ty, $bytes:literal) => {
        const _: () = assert!(size_of::<$block>() == $bytes && align_of::<$block>() == 1);
    };
}

mod error_weights;
pub mod fields;
pub mod grids;
pub mod int8;
pub mod iq1_m;
pub mod iq1_s;
pub mod iq2_s;
pub mod iq2_xs;
pub mod iq2_xxs;
pub mod iq3_s;
pub mod iq3_xxs;
pub mod iq4_nl;
pub mod iq4_xs;
pub mod mxfp4;
pub mod nvfp4;
mod packing;
pub mod plain;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;
pub mod q8_1;
pub mod q8_k;
pub mod repacked;
mod search;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod tq1_0;
pub mod tq2_0;
mod types;
mod unpacked;

use half::f16;
use half::slice::HalfFloatSliceExt;

pub use repacked::repacked_type;
pub(crate) use repacked::{check_repack, repack};
pub use search::second_moment::{RANK, SecondMoment};
pub use types::TensorType;
pub(crate) use types::{quantize_weights, refine_codes};

/// The smallest part of a tensor that can be decoded alone, laid out as in a file.
///
/// Any bit pattern is a valid block. Unusual scales decode to unusual floats, never to undefined behavior.
pub trait Block: bytemuck::Pod {
    /// Format of the block.
    const TYPE: TensorType;
    /// Elements per block.
    const LEN: usize;

    /// Writes the [`LEN`](Self::LEN) elements of the block to `out`.
    fn dequantize(&self, out: &mut [f32]);
}

/// A block that can be multiplied with quantized activations directly.
pub trait Dot: Block {
    /// Format that the activations are quantized to.
    type Activation: Block;

    /// Returns the dot product with the blocks of activations that cover this block.
    fn dot(&self, activations: &[Self::Activation]) -> f32;
}

/// A block that can be quantized independently of the others in its row.
pub trait Quantize: Block {
    /// Returns the block nearest to `src`, which has [`LEN`](Block::LEN) elements.
    ///
    /// Never panics. If `src` has elements that are not finite, the contents of the block are unspecified.
    fn quantize(src: &[f32]) -> Self {
        Self::quantize_weighted(src, None)
    }

    /// Returns the block with the least error weighted by `importance`, which has one non-negative
    /// number per element. Formats without a search for scales ignore it.
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self;

    /// Quantizes consecutive rows; `importance` is that of a single row.
    #[inline(always)]
    fn quantize_blocks(src: &[f32], importance: Option<&[f32]>, out: &mut [Self]) {
        for (i, (block, src)) in out.iter_mut().zip(src.chunks_exact(Self::LEN)).enumerate() {
            *block = Self::quantize_weighted(src, block_importance(importance, i, Self::LEN));
        }
    }
}

/// Returns the part of a row's importance that belongs to block number `block` of consecutive rows.
#[inline(always)]
fn block_importance(importance: Option<&[f32]>, block: usize, len: usize) -> Option<&[f32]> {
    let importance = importance?;
    let first = block * len % importance.len();
    Some(&importance[first..first + len])
}

/// A block that can only be quantized together with the others of its row.
pub trait QuantizeRow: Block {
    /// Quantizes a row; `src` has [`LEN`](Block::LEN) elements for each block.
    fn quantize_row(src: &[f32], importance: Option<&[f32]>, out: &mut [Self]);
}

/// A block whose weights are quantized one by one: for given scales, a weight is `scale · level + offset`,
/// independently of the other levels. Codebook formats do not have this property.
pub trait ScalarQuantized: Block {
    /// Number of weights that share a scale and an offset.
    const GROUP: usize;
    /// Sweeps of `refine_codes` over a row. Formats with many levels gain nearly everything from the first.
    const SWEEPS: usize = 3;

    /// Returns the scale and the offset of a group.
    fn scale_and_offset(&self, group: usize) -> (f32, f32);

    /// Writes the [`LEN`](Block::LEN) levels of the block to `out`.
    fn read_levels(&self, out: &mut [i8]);

    /// Replaces the levels; each must be a level of the format.
    fn write_levels(&mut self, levels: &[i8]);

    /// Returns the level nearest to `x`.
    fn nearest_level(x: f32) -> f32;
}

/// Error of a conversion between floats and blocks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// The bytes do not hold exactly these elements, or the elements are not a whole number of blocks.
    #[error("{bytes} bytes do not hold {elements} elements of {ty}")]
    Length {
        /// Format of the bytes.
        ty: TensorType,
        /// Number of bytes.
        bytes: usize,
        /// Number of elements they should hold.
        elements: usize,
    },
    /// The format can be dequantized but not quantized.
    #[error("there is no quantizer for {ty}")]
    Unsupported {
        /// Requested format.
        ty: TensorType,
    },
}

/// Dequantizes whole blocks.
pub fn dequantize(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    check_length(ty, bytes.len(), out.len())?;
    (ty.format().dequantize)(bytes, out);
    Ok(())
}

/// Dequantizes whole blocks to half precision, rounded to the nearest.
pub fn dequantize_f16(ty: TensorType, bytes: &[u8], out: &mut [f16]) -> Result<(), QuantError> {
    /// Elements converted at a time: a multiple of every block length that fits the L1 cache.
    const CHUNK: usize = 1024;
    check_length(ty, bytes.len(), out.len())?;
    let mut floats = [0.0; CHUNK];
    let chunk_bytes = CHUNK / ty.block_len() * ty.block_bytes();
    for (bytes, out) in bytes.chunks(chunk_bytes).zip(out.chunks_mut(CHUNK)) {
        let floats = &mut floats[..out.len()];
        (ty.format().dequantize)(bytes, floats);
        out.convert_from_f32_slice(floats);
    }
    Ok(())
}

/// Quantizes floats to whole blocks. For [`TensorType::INT8`], `src` is one row.
pub fn quantize(ty: TensorType, src: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    let quantize = ty.format().quantize.ok_or(QuantError::Unsupported { ty })?;
    check_length(ty, out.len(), src.len())?;
    quantize(src, out);
    Ok(())
}

/// Returns true if [`quantize`] supports this format.
pub fn can_quantize(ty: TensorType) -> bool {
    ty.format().quantize.is_some()
}

/// Returns true if the blocks of the format are [`ScalarQuantized`].
pub(crate) fn is_scalar_quantized(ty: TensorType) -> bool {
    ty.format().scalar_quantized
}

/// Returns the format that [`dot`] expects the activations in.
pub fn activation_type(ty: TensorType) -> TensorType {
    ty.format().activation
}

/// Returns the dot product of a row of weights with activations of [`activation_type`].
pub fn dot(ty: TensorType, weights: &[u8], activations: &[u8]) -> Result<f32, QuantError> {
    let elements = (weights.len() / ty.block_bytes()).saturating_mul(ty.block_len());
    check_length(ty, weights.len(), elements)?;
    check_length(activation_type(ty), activations.len(), elements)?;
    Ok((ty.format().dot)(weights, activations))
}

pub(crate) fn check_length(
    ty: TensorType,
    bytes: usize,
    elements: usize,
) -> Result<(), QuantError> {
    if ty.bytes_for(elements as u64) == Some(bytes as u64) {
        Ok(())
    } else {
        Err(QuantError::Length {
            ty,
            bytes,
            elements,
        })
    }
}
