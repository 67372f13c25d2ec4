//! [`Format`]: a quantized format as the integer kernels see it.
//!
//! A format defines how its blocks become bytes in registers and what their scales are. The dot product
//! (`dot.rs`), the panels (`panel.rs`) and so every batch size are built on that.

use super::vector::{F32x4, I8x16};
use crate::quant::Block;
use crate::quant::fields::F16Le;

/// Elements whose scales a format unpacks together.
pub(crate) const CHUNK: usize = 256;

/// A quantized format whose weights unpack into bytes: `w = scale · (q − OFFSET) + min`.
pub(crate) trait Format {
    /// Block of a row.
    type Block: Block;
    /// Elements that share a scale: 16 or 32.
    const GROUP: usize;
    /// The byte that stands for 0 in unsigned bytes.
    const OFFSET: u8 = 0;
    /// True if [`Scales::min`] is ever other than 0; then there is no offset.
    const MIN: bool = false;
    /// Blocks of a chunk.
    const BLOCKS: usize = CHUNK / Self::Block::LEN;

    /// Unpacks the scales of a chunk, or of the blocks at the end of a row.
    fn scales(chunk: &[Self::Block], out: &mut Scales);

    /// Calls `put(group, x)` with each 32 weights of a block, one per byte, in order.
    fn unpack(block: &Self::Block, put: impl FnMut(usize, [I8x16; 2]));
}

/// Scales of a chunk, one for each group of [`Format::GROUP`].
pub(crate) struct Scales {
    pub(crate) scale: [f32; 16],
    pub(crate) min: [f32; 16],
}

impl Scales {
    pub(crate) const ZERO: Scales = Scales {
        scale: [0.0; 16],
        min: [0.0; 16],
    };
}

/// Sets the first eight scales or minima to a half-precision number of each block of a chunk.
#[inline(always)]
pub(crate) fn set_halves<B>(out: &mut [f32; 16], chunk: &[B], half: impl Fn(&B) -> F16Le) {
    let mut bits = [0u16; 8];
    match <&[B; 8]>::try_from(chunk) {
        // A constant length is unrolled.
        Ok(chunk) => bits = std::array::from_fn(|i| half(&chunk[i]).get().to_bits()),
        Err(_) => {
            for (bits, block) in bits.iter_mut().zip(chunk) {
                *bits = half(block).get().to_bits();
            }
        }
    }
    let (out, _) = out.as_chunks_mut::<4>();
    for (bits, out) in bits.as_chunks::<4>().0.iter().zip(out) {
        F32x4::from_halves(*bits).store(out);
    }
}

/// Loads two registers of bytes.
#[inline(always)]
pub(crate) fn bytes32(x: &[u8; 32]) -> [I8x16; 2] {
    let (halves, _) = x.as_chunks::<16>();
    [I8x16::load(&halves[0]), I8x16::load(&halves[1])]
}

/// Unpacks 16 bytes of nibbles: the low ones, then the high ones.
#[inline(always)]
pub(crate) fn nibbles(x: &[u8; 16]) -> [I8x16; 2] {
    let x = I8x16::load(x);
    [low_nibbles(x), x.shift_right::<4>()]
}

#[inline(always)]
pub(crate) fn low_nibbles(x: I8x16) -> I8x16 {
    x & I8x16::splat(0x0f)
}

/// `value` in the bytes whose bit of the same index is set, else 0.
#[inline(always)]
pub(crate) fn spread_bits(bits: u32, value: u8) -> [I8x16; 2] {
    const BIT: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    let [a, b, c, d] = bits.to_le_bytes();
    [[a, b], [c, d]].map(|[low, high]| {
        let mut bytes = [low; 16];
        bytes[8..].fill(high);
        bits_set(I8x16::load(&bytes), I8x16::load(&BIT), value)
    })
}

/// `value` in the bytes of `x` in which all bits of `mask` are set, else 0.
#[inline(always)]
pub(crate) fn bits_set(x: I8x16, mask: I8x16, value: u8) -> I8x16 {
    (x & mask).equal(mask) & I8x16::splat(value)
}
