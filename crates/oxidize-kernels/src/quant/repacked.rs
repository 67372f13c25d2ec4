//! Repacked forms of the codebook formats: each weight has its own code, and dequantizes to the same float.
//!
//! SIMD unpacks such codes many times as fast as it looks up a codebook, but they take more bytes. So no file
//! has them: `repack` rewrites the weights of a model in memory where that makes the machine faster. Codes
//! are stored in planes of 64 weights, the width of the widest registers.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;
use super::iq1_m::IQ1_M;
use super::iq1_s::IQ1_S;
use super::iq2_s::IQ2_S;
use super::iq2_xs::IQ2_XS;
use super::iq2_xxs::IQ2_XXS;
use super::iq3_s::IQ3_S;
use super::iq3_xxs::IQ3_XXS;
use super::q8_k::Q8_K;
use super::unpacked::{UnpackedBlock, odd_scales};
use super::{Block, Dot, QuantError, TensorType, check_length};

/// Defines a block of 256 weights in `$groups` groups: the scale of the scales, then the given fields.
macro_rules! repacked_blocks {
    ($(
        $(#[$doc:meta])*
        $name:ident, $bytes:literal bytes, $groups:literal groups, factor $factor:literal,
        { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
        #[repr(C)]
        pub struct $name {
            /// Scale of the scales.
            pub d: F16Le,
            $($(#[$field_doc])* pub $field: $ty,)*
        }

        assert_layout!($name, $bytes);

        impl $name {
            #[inline(always)]
            fn unpacked(&self) -> UnpackedBlock<$groups> {
                UnpackedBlock {
                    d: self.d.to_f32() * $factor,
                    sub_scales: self.sub_scales(),
                    levels: self.levels(),
                }
            }

            /// Returns the scale of each group.
            #[allow(dead_code, reason = "used by the 128-bit SIMD kernels")]
            #[inline(always)]
            pub(crate) fn group_scales(&self) -> [f32; $groups] {
                let d = self.d.to_f32() * $factor;
                self.sub_scales().map(|scale| d * scale as f32)
            }
        }

        impl Block for $name {
            const TYPE: TensorType = TensorType::$name;
            const LEN: usize = 256;

            #[inline]
            fn dequantize(&self, out: &mut [f32]) {
                self.unpacked().dequantize(out);
            }
        }

        impl Dot for $name {
            type Activation = Q8_K;

            #[inline]
            fn dot(&self, activations: &[Q8_K]) -> f32 {
                self.unpacked().dot(activations)
            }
        }
    )*};
}

repacked_blocks! {
    /// A block of IQ1_S.
    IQ1_S_REPACKED, 70 bytes, 8 groups, factor 0.125, {
        /// A nibble per group: 3 bits of scale, then a bit that is set if the shift is down.
        scales: [u8; 4],
        /// Ternary weights plus 1: bits `2j` and `2j + 1` of byte `i` are weight `64 j + i`.
        codes: [u8; 64],
    }
    /// A block of IQ1_M.
    IQ1_M_REPACKED, 78 bytes, 16 groups, factor 0.125, {
        /// A nibble per scale.
        scales: [u8; 8],
        /// A bit per 8 weights, set if their shift is up.
        up: [u8; 4],
        /// Laid out as in [`IQ1_S_REPACKED`].
        codes: [u8; 64],
    }
    /// A block of IQ2_XXS.
    IQ2_XXS_REPACKED, 102 bytes, 8 groups, factor 0.125, {
        /// A nibble per scale.
        scales: [u8; 4],
        /// Sign bits: bit `j` of byte `i` is that of weight `64 j + i`, and bit `4 + j` that of weight
        /// `64 j + 32 + i`.
        signs: [u8; 32],
        /// Indices into [`IQ2_MAGNITUDES`]: bits `2j` and `2j + 1` of byte `i` are weight `64 j + i`.
        codes: [u8; 64],
    }
    /// A block of IQ2_XS or IQ2_S: [`IQ2_XXS_REPACKED`] with twice as many scales.
    IQ2_S_REPACKED, 106 bytes, 16 groups, factor 0.125, {
        /// A nibble per scale.
        scales: [u8; 8],
        /// Laid out as in [`IQ2_XXS_REPACKED`].
        signs: [u8; 32],
        /// Laid out as in [`IQ2_XXS_REPACKED`].
        codes: [u8; 64],
    }
    /// A block of IQ3_XXS.
    IQ3_XXS_REPACKED, 134 bytes, 8 groups, factor 0.25, {
        /// A nibble per scale.
        scales: [u8; 4],
        /// Indices into [`IQ3_XXS_LEVELS`]: byte `i` of half `h` has weights `128 h + i` and `128 h + 64 +
        /// i`.
        codes: [[u8; 64]; 2],
    }
    /// A block of IQ3_S.
    IQ3_S_REPACKED, 134 bytes, 8 groups, factor 1.0, {
        /// A nibble per scale.
        scales: [u8; 4],
        /// Indices into the odd numbers from −15 to 15, laid out as in [`IQ3_XXS_REPACKED`].
        codes: [[u8; 64]; 2],
    }
}

/// Magnitudes of the IQ2 codes; the last is unused.
pub const IQ2_MAGNITUDES: [i8; 4] = [8, 25, 43, 0];

/// Levels of the IQ3_XXS codes.
pub const IQ3_XXS_LEVELS: [i8; 16] = [
    -62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62,
];

/// Returns the repacked form of a type; `None` for types without a codebook.
pub fn repacked_type(ty: TensorType) -> Option<TensorType> {
    match ty {
        TensorType::IQ1_S => Some(TensorType::IQ1_S_REPACKED),
        TensorType::IQ1_M => Some(TensorType::IQ1_M_REPACKED),
        TensorType::IQ2_XXS => Some(TensorType::IQ2_XXS_REPACKED),
        TensorType::IQ2_XS | TensorType::IQ2_S => Some(TensorType::IQ2_S_REPACKED),
        TensorType::IQ3_XXS => Some(TensorType::IQ3_XXS_REPACKED),
        TensorType::IQ3_S => Some(TensorType::IQ3_S_REPACKED),
        _ => None,
    }
}

/// Writes blocks of type `ty` as blocks of its [`repacked_type`].
///
/// Inlined like [`quantize_weights`](super::quantize_weights), so that it is compiled for the caller's
/// instruction set. Leaves `out` unchanged for types without a repacked form.
#[inline(always)]
pub(crate) fn repack(ty: TensorType, src: &[u8], out: &mut [u8]) {
    match ty {
        TensorType::IQ1_S => repack_blocks(src, out, IQ1_S::repacked),
        TensorType::IQ1_M => repack_blocks(src, out, IQ1_M::repacked),
        TensorType::IQ2_XXS => repack_blocks(src, out, IQ2_XXS::repacked),
        TensorType::IQ2_XS => repack_blocks(src, out, IQ2_XS::repacked),
        TensorType::IQ2_S => repack_blocks(src, out, IQ2_S::repacked),
        TensorType::IQ3_XXS => repack_blocks(src, out, IQ3_XXS::repacked),
        TensorType::IQ3_S => repack_blocks(src, out, IQ3_S::repacked),
        _ => {}
    }
}

/// Checks that [`repack`] supports the type and that the lengths match.
pub(crate) fn check_repack(ty: TensorType, src: &[u8], out: &[u8]) -> Result<(), QuantError> {
    let repacked = repacked_type(ty).ok_or(QuantError::Unsupported { ty })?;
    let elements = src.len() / ty.block_bytes() * ty.block_len();
    check_length(ty, src.len(), elements)?;
    check_length(repacked, out.len(), elements)
}

#[inline(always)]
fn repack_blocks<B: Block, R: Block>(src: &[u8], out: &mut [u8], repacked: impl Fn(&B) -> R) {
    let blocks: &[B] = bytemuck::cast_slice(src);
    let out: &mut [R] = bytemuck::cast_slice_mut(out);
    for (block, out) in blocks.iter().zip(out) {
        *out = repacked(block);
    }
}

/// Implements repacking from the scale of the scales, the sub-scales and the content of each eight weights.
macro_rules! impl_repacked {
    ($($from:ident as $name:ident, |$block:ident, $i:ident| $d:expr, $vector:expr;)*) => {$(
        impl $from {
            #[inline(always)]
            fn repacked(&self) -> $name {
                let $block = self;
                $name::new($d, &self.sub_scales(), |$i| $vector)
            }
        }
    )*};
}

impl_repacked! {
    IQ1_S as IQ1_S_REPACKED, |block, i| block.d, (block.ternary(i), block.is_down(i / 4));
    IQ1_M as IQ1_M_REPACKED, |block, i| block.d_f16(), (block.ternary(i), block.is_down(i));
    IQ2_XXS as IQ2_XXS_REPACKED, |block, i| block.d, block.vector(i);
    IQ2_XS as IQ2_S_REPACKED, |block, i| block.d, block.vector(i);
    IQ2_S as IQ2_S_REPACKED, |block, i| block.d, block.vector(i);
    IQ3_XXS as IQ3_XXS_REPACKED, |block, i| block.d, block.vector(i);
    IQ3_S as IQ3_S_REPACKED, |block, i| block.d, block.vector(i);
}

impl IQ1_S_REPACKED {
    #[inline(always)]
    fn sub_scales(&self) -> [i32; 8] {
        odd_scales(&self.scales.map(|scales| scales & 0x77))
    }

    /// Returns the weights in units of an eighth of their group's scale.
    #[inline(always)]
    pub(crate) fn levels(&self) -> [i8; 256] {
        let mut levels = two_bits(&self.codes).map(|code| 8 * (code as i8 - 1));
        for (group, levels) in levels.chunks_exact_mut(32).enumerate() {
            let down = self.scales[group / 2] >> (group % 2 * 4 + 3) & 1;
            let shift = 1 - 2 * down as i8;
            levels.iter_mut().for_each(|level| *level += shift);
        }
        levels
    }

    #[inline(always)]
    fn new(d: F16Le, sub_scales: &[i32; 8], vector: impl Fn(usize) -> (u64, bool)) -> Self {
        let down = |group: usize| u8::from(vector(4 * group).1);
        let mut scales = pack_odd_scales(sub_scales);
        for (i, scales) in scales.iter_mut().enumerate() {
            *scales |= down(2 * i) << 3 | down(2 * i + 1) << 7;
        }
        let codes = pack_two_bits(|i| ternary_codes(vector(i).0));
        IQ1_S_REPACKED { d, scales, codes }
    }
}

impl IQ1_M_REPACKED {
    #[inline(always)]
    fn sub_scales(&self) -> [i32; 16] {
        odd_scales(&self.scales)
    }

    /// Returns the weights in units of an eighth of their group's scale.
    #[inline(always)]
    pub(crate) fn levels(&self) -> [i8; 256] {
        let mut levels = two_bits(&self.codes).map(|code| 8 * (code as i8 - 1));
        for (i, levels) in levels.chunks_exact_mut(8).enumerate() {
            let shift = 2 * (self.up[i / 8] >> (i % 8) & 1) as i8 - 1;
            levels.iter_mut().for_each(|level| *level += shift);
        }
        levels
    }

    #[inline(always)]
    fn new(d: F16Le, sub_scales: &[i32; 16], vector: impl Fn(usize) -> (u64, bool)) -> Self {
        let up = std::array::from_fn(|byte| {
            (0..8).fold(0, |up, i| up | u8::from(!vector(8 * byte + i).1) << i)
        });
        IQ1_M_REPACKED {
            d,
            scales: pack_odd_scales(sub_scales),
            up,
            codes: pack_two_bits(|i| ternary_codes(vector(i).0)),
        }
    }
}

macro_rules! iq2 {
    ($name:ident, $groups:literal) => {
        impl $name {
            #[inline(always)]
            fn sub_scales(&self) -> [i32; $groups] {
                odd_scales(&self.scales)
            }

            /// Returns the weights in units of their group's scale.
            #[inline(always)]
            pub(crate) fn levels(&self) -> [i8; 256] {
                let mut levels =
                    two_bits(&self.codes).map(|code| IQ2_MAGNITUDES[usize::from(code)]);
                for (i, level) in levels.iter_mut().enumerate() {
                    let bit = i / 64 + i / 32 % 2 * 4;
                    if self.signs[i % 32] >> bit & 1 == 1 {
                        *level = -*level;
                    }
                }
                levels
            }

            #[inline(always)]
            fn new(
                d: F16Le,
                sub_scales: &[i32; $groups],
                vector: impl Fn(usize) -> (u64, u8),
            ) -> Self {
                let signs = |i: usize| spread_bits(vector(i).1);
                $name {
                    d,
                    scales: pack_odd_scales(sub_scales),
                    signs: bytes_by_8(|k| {
                        (0..4).fold(0, |bits, j| {
                            bits | signs(8 * j + k) << j | signs(8 * j + 4 + k) << (4 + j)
                        })
                    }),
                    // Bits 4 and 5 of the magnitudes 8, 25 and 43 are 0, 1 and 2.
                    codes: pack_two_bits(|i| vector(i).0 >> 4 & (3 * ONES)),
                }
            }
        }
    };
}

iq2!(IQ2_XXS_REPACKED, 8);
iq2!(IQ2_S_REPACKED, 16);

macro_rules! iq3 {
    ($name:ident, level of code |$code:ident| $level:expr, shift of magnitudes $shift:literal) => {
        impl $name {
            #[inline(always)]
            fn sub_scales(&self) -> [i32; 8] {
                odd_scales(&self.scales)
            }

            /// Returns the weights in units of their group's scale.
            #[inline(always)]
            pub(crate) fn levels(&self) -> [i8; 256] {
                nibbles(&self.codes).map(|$code| $level)
            }

            #[inline(always)]
            fn new(d: F16Le, sub_scales: &[i32; 8], vector: impl Fn(usize) -> (u64, u8)) -> Self {
                let code = |i: usize| {
                    let (magnitudes, signs) = vector(i);
                    let codes = magnitudes >> $shift & (7 * ONES) | 8 * ONES;
                    // The codes of negative levels are in reverse order.
                    codes ^ (15 * spread_bits(signs))
                };
                let half = |h: usize| bytes_by_8(|k| code(16 * h + k) | code(16 * h + 8 + k) << 4);
                let scales = pack_odd_scales(sub_scales);
                let codes = [half(0), half(1)];
                $name { d, scales, codes }
            }
        }
    };
}

// The magnitudes are 4, 12, … 52, and 62.
iq3!(IQ3_XXS_REPACKED, level of code |code| IQ3_XXS_LEVELS[usize::from(code)], shift of magnitudes 3);
iq3!(IQ3_S_REPACKED, level of code |code| 2 * code as i8 - 15, shift of magnitudes 1);

/// A 1 in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// Spreads eight bits over the low bits of eight bytes.
#[inline(always)]
fn spread_bits(bits: u8) -> u64 {
    static SPREAD: [u64; 256] = {
        let mut table = [0; 256];
        let mut bits = 0;
        while bits < 256 {
            let mut i = 0;
            while i < 8 {
                table[bits] |= (bits as u64 >> i & 1) << (8 * i);
                i += 1;
            }
            bits += 1;
        }
        table
    };
    SPREAD[usize::from(bits)]
}

/// Adds 1 to each of eight weights of −1, 0 or 1.
#[inline(always)]
fn ternary_codes(ternary: u64) -> u64 {
    // In two bits −1 is 3, and 3 + 1 wraps to 0.
    ((ternary & (3 * ONES)) + ONES) & (3 * ONES)
}

/// Builds an array of bytes, eight at a time.
#[inline(always)]
fn bytes_by_8<const N: usize>(eight: impl Fn(usize) -> u64) -> [u8; N] {
    let mut out = [0; N];
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        out.copy_from_slice(&eight(i).to_le_bytes());
    }
    out
}

/// Packs odd sub-scales as 4-bit scales, two per byte: the inverse of [`odd_scales`].
#[inline(always)]
fn pack_odd_scales<const G: usize, const BYTES: usize>(sub_scales: &[i32; G]) -> [u8; BYTES] {
    const { assert!(G == 2 * BYTES) };
    std::array::from_fn(|i| (sub_scales[2 * i] >> 1 | sub_scales[2 * i + 1] >> 1 << 4) as u8)
}

/// Unpacks 256 codes of 2 bits: 64 per 2-bit plane, the first in the lowest bits.
#[inline(always)]
fn two_bits(packed: &[u8; 64]) -> [u8; 256] {
    let mut out = [0; 256];
    for (j, out) in out.chunks_exact_mut(64).enumerate() {
        for (out, byte) in out.iter_mut().zip(packed) {
            *out = byte >> (2 * j) & 3;
        }
    }
    out
}

/// Inverse of [`two_bits`]; `codes(i)` returns the codes of weights `8 i` to `8 i + 7`, one per byte.
#[inline(always)]
fn pack_two_bits(codes: impl Fn(usize) -> u64) -> [u8; 64] {
    bytes_by_8(|k| codes(k) | codes(8 + k) << 2 | codes(16 + k) << 4 | codes(24 + k) << 6)
}

/// Unpacks 256 codes of 4 bits: in each half, 64 low nibbles and then 64 high ones.
#[inline(always)]
fn nibbles(packed: &[[u8; 64]; 2]) -> [u8; 256] {
    let mut out = [0; 256];
    for (packed, out) in packed.iter().zip(out.chunks_exact_mut(128)) {
        let (low, high) = out.split_at_mut(64);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(packed) {
            (*low, *high) = (byte & 15, byte >> 4);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::dequantize;
    use crate::quant::testing::{ROUNDS, Random, check_dot};
    use crate::{Isa, Kernels};

    fn repackable() -> impl Iterator<Item = (TensorType, TensorType)> {
        TensorType::all().filter_map(|ty| Some((ty, repacked_type(ty)?)))
    }

    /// Returns the dequantized floats as bits, so that NaN compares equal to itself.
    fn floats(ty: TensorType, bytes: &[u8]) -> Vec<u32> {
        let mut floats = vec![0.0; bytes.len() / ty.block_bytes() * ty.block_len()];
        dequantize(ty, bytes, &mut floats).unwrap();
        floats.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn repacked_blocks_dequantize_identically() {
        let mut random = Random::new(11);
        for (ty, repacked) in repackable() {
            let n = 3 * ty.block_bytes();
            let mut blocks = vec![vec![0; n], vec![0xff; n], vec![0x7f; n], vec![0x80; n]];
            blocks.extend((0..4 * ROUNDS).map(|_| (0..n).map(|_| random.next() as u8).collect()));
            for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
                for block in &blocks {
                    let mut out = vec![0x55; 3 * repacked.block_bytes()];
                    kernels.repack(ty, block, &mut out).unwrap();
                    assert!(floats(ty, block) == floats(repacked, &out), "{ty}");
                }
            }
        }
    }

    #[test]
    fn repack_rejects_other_types_and_wrong_lengths() {
        let kernels = Kernels::for_isa(Isa::Scalar).unwrap();
        let refused = kernels.repack(TensorType::Q4_K, &[0; 144], &mut [0; 144]);
        let ty = TensorType::Q4_K;
        assert_eq!(refused, Err(QuantError::Unsupported { ty }));
        assert!(
            kernels
                .repack(TensorType::IQ3_S, &[0; 110], &mut [0; 135])
                .is_err()
        );
        assert!(
            kernels
                .repack(TensorType::IQ3_S, &[0; 111], &mut [0; 134])
                .is_err()
        );
    }

    #[test]
    fn repacked_types_are_in_memory_only() {
        for (_, repacked) in repackable() {
            assert_eq!(repacked.gguf_id(), None, "{repacked}");
            assert!(!crate::quant::can_quantize(repacked), "{repacked}");
            assert_eq!(repacked_type(repacked), None);
        }
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<IQ1_S_REPACKED>();
        check_dot::<IQ1_M_REPACKED>();
        check_dot::<IQ2_XXS_REPACKED>();
        check_dot::<IQ2_S_REPACKED>();
        check_dot::<IQ3_XXS_REPACKED>();
        check_dot::<IQ3_S_REPACKED>();
    }
}
