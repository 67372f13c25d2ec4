//! Every format a weight may be stored in: its layout, how it becomes floats and how floats become it.
//!
//! One file a format, each with a [`Block`] that can [`Dot`] and, mostly, [`Quantize`]; one line in
//! `types.rs` puts it into the registry, and the functions here find it there by its [`TensorType`].
//! All of it is scalar and safe: the oracle that the SIMD kernels are tested against.

#![deny(unsafe_code)]
#![allow(non_camel_case_types, reason = "the formats' own spelling")]

/// Checks when compiling that a block has the size the format says and may lie at any address.
macro_rules! assert_layout {
    ($block:ty, $bytes:literal) => {
        const _: () = assert!(size_of::<$block>() == $bytes && align_of::<$block>() == 1);
    };
}

mod block_search;
mod correlation;
mod customary;
pub mod fields;
mod grid_search;
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
mod levels;
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
mod scale_search;
mod side_by_side;
pub mod spelled;
mod ternary_search;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod tq1_0;
pub mod tq2_0;
mod types;
mod weighting;

use half::f16;
use half::slice::HalfFloatSliceExt;

pub use correlation::{Correlation, DIRECTIONS};
pub use spelled::spelled_type;
pub(crate) use spelled::{check_spelling, spell_out};
pub use types::TensorType;
pub(crate) use types::{encode, settle};

/// The smallest piece of a tensor that can be read alone, exactly as it lies in a file.
///
/// Any bit pattern is a block: one with strange scales has strange floats, and nothing worse.
pub trait Block: bytemuck::Pod {
    /// The format.
    const TYPE: TensorType;
    /// Elements in a block.
    const LEN: usize;

    /// Writes the elements; `out` has [`LEN`](Self::LEN) of them.
    fn dequantize(&self, out: &mut [f32]);
}

/// A block that can be multiplied with activations without becoming floats first.
pub trait Dot: Block {
    /// The format the activations are quantised to for this.
    type Activation: Block;

    /// The dot product with as many blocks of activations as cover this one.
    fn dot(&self, activations: &[Self::Activation]) -> f32;
}

/// A block that can be made from floats.
pub trait Quantize: Block {
    /// The block nearest to `src`, which has [`LEN`](Block::LEN) elements.
    ///
    /// Never panics; floats that are not finite make a block of no particular value.
    fn quantize(src: &[f32]) -> Self {
        Self::quantize_weighted(src, None)
    }

    /// The same, where errors of some elements matter more: `importance` has one number an element,
    /// none negative. Formats whose nearest block does not depend on it ignore it.
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self;

    /// Makes the blocks of rows, one after the other; `importance` is that of one row.
    #[inline(always)]
    fn quantize_blocks(src: &[f32], importance: Option<&[f32]>, out: &mut [Self]) {
        for (i, (block, src)) in out.iter_mut().zip(src.chunks_exact(Self::LEN)).enumerate() {
            *block = Self::quantize_weighted(src, importance_of(importance, i, Self::LEN));
        }
    }
}

/// The part of a row's importance that a block of rows, one after the other, has.
#[inline(always)]
fn importance_of(importance: Option<&[f32]>, block: usize, len: usize) -> Option<&[f32]> {
    let importance = importance?;
    let first = block * len % importance.len();
    Some(&importance[first..first + len])
}

/// A block that can only be made together with the others of its row.
pub trait QuantizeRow: Block {
    /// Makes the blocks of a row; `src` has [`LEN`](Block::LEN) elements for each.
    fn quantize_row(src: &[f32], importance: Option<&[f32]>, out: &mut [Self]);
}

/// A block each of whose weights chooses its level by itself: once the scales are chosen, a weight is
/// `scale · level + offset`, whatever the others are.
pub trait Levelled: Block {
    /// Weights that share a scale and an offset.
    const GROUP: usize;
    /// How often the levels of a row are chosen again where errors are to cancel. With many levels the
    /// first time does nearly all.
    const SWEEPS: usize = 3;

    /// The scale and the offset of a group.
    fn line(&self, group: usize) -> (f32, f32);

    /// Writes the level of each weight; `out` has [`LEN`](Block::LEN) of them.
    fn read_levels(&self, out: &mut [i8]);

    /// Gives the weights other levels, which the format has.
    fn write_levels(&mut self, levels: &[i8]);

    /// The level nearest to `x`.
    fn nearest_level(x: f32) -> f32;
}

/// Why a conversion was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// The two sides of a conversion are not the same number of elements, or not whole blocks.
    #[error("{elements} elements of {ty} do not take {bytes} bytes")]
    Length {
        /// The format of the bytes.
        ty: TensorType,
        /// How many bytes there are.
        bytes: usize,
        /// How many elements they should hold.
        elements: usize,
    },
    /// The format can be read but not made.
    #[error("there is no quantiser for {ty}")]
    Unsupported {
        /// The format that was asked for.
        ty: TensorType,
    },
}

/// Turns whole blocks into floats.
pub fn dequantize(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    check_length(ty, bytes.len(), out.len())?;
    (ty.format().dequantize)(bytes, out);
    Ok(())
}

/// Turns whole blocks into half-precision floats, rounded to the nearest.
pub fn dequantize_f16(ty: TensorType, bytes: &[u8], out: &mut [f16]) -> Result<(), QuantError> {
    /// Elements converted at a time: a multiple of every block, small enough for the first cache.
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

/// Turns floats into whole blocks. For [`TensorType::INT8`] they are one row.
pub fn quantize(ty: TensorType, src: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    let quantize = ty.format().quantize.ok_or(QuantError::Unsupported { ty })?;
    check_length(ty, out.len(), src.len())?;
    quantize(src, out);
    Ok(())
}

/// Whether [`quantize`] can make this format.
pub fn can_quantize(ty: TensorType) -> bool {
    ty.format().quantize.is_some()
}

/// Whether the blocks of a format are [`Levelled`].
pub(crate) fn is_levelled(ty: TensorType) -> bool {
    ty.format().levelled
}

/// The format that [`dot`] wants the activations in.
pub fn activation_type(ty: TensorType) -> TensorType {
    ty.format().activation
}

/// The dot product of a row of weights with activations of [`activation_type`].
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
