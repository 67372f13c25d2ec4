//! The formats that look their weights up in tables, spelled out: each weight has a code of its own, which
//! SIMD unpacks many times as fast as it looks up. The floats are the same.
//!
//! They take more bytes, so no file has them: a model's weights are rewritten in memory ([`spell_out`]) where
//! a machine gains from it. Codes lie in planes of 64 weights, which is what the widest registers hold.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;
use super::iq1_m::IQ1_M;
use super::iq1_s::IQ1_S;
use super::iq2_s::IQ2_S;
use super::iq2_xs::IQ2_XS;
use super::iq2_xxs::IQ2_XXS;
use super::iq3_s::IQ3_S;
use super::iq3_xxs::IQ3_XXS;
use super::levels::{Levels, odd_nibbles};
use super::q8_k::Q8_K;
use super::{Block, Dot, QuantError, TensorType, check_length};

/// Defines blocks of `$groups` scales with these fields between the scale of the scales and the codes.
macro_rules! spelled {
    ($(
        $(#[$doc:meta])*
        $name:ident, $bytes:literal bytes, $groups:literal groups, unit $unit:literal,
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
            fn unpacked(&self) -> Levels<$groups> {
                Levels {
                    unit: self.d.to_f32() * $unit,
                    multiples: self.multiples(),
                    levels: self.levels(),
                }
            }

            /// The scale of each group.
            #[allow(dead_code, reason = "SIMD of 128 bits uses it")]
            #[inline(always)]
            pub(crate) fn group_scales(&self) -> [f32; $groups] {
                let unit = self.d.to_f32() * $unit;
                self.multiples().map(|multiple| unit * multiple as f32)
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

spelled! {
    /// A block of IQ1_S.
    IQ1_S_SPELLED, 70 bytes, 8 groups, unit 0.125, {
        /// For each group a nibble: 3 bits of scale, and whether the shift is down.
        scales: [u8; 4],
        /// One more than the ternary weight: bits `2j` and `2j + 1` of byte `i` are weight `64 j + i`.
        codes: [u8; 64],
    }
    /// A block of IQ1_M.
    IQ1_M_SPELLED, 78 bytes, 16 groups, unit 0.125, {
        /// A nibble each.
        scales: [u8; 8],
        /// A bit for 8 weights: whether their shift is up.
        up: [u8; 4],
        /// As those of [`IQ1_S_SPELLED`].
        codes: [u8; 64],
    }
    /// A block of IQ2_XXS.
    IQ2_XXS_SPELLED, 102 bytes, 8 groups, unit 0.125, {
        /// A nibble each.
        scales: [u8; 4],
        /// Whether a weight is negative: of byte `i`, bit `j` is that of weight `64 j + i`, and bit `4 + j` that
        /// of weight `64 j + 32 + i`.
        signs: [u8; 32],
        /// Which of [`IQ2_MAGNITUDES`]: bits `2j` and `2j + 1` of byte `i` are weight `64 j + i`.
        codes: [u8; 64],
    }
    /// A block of IQ2_XS or IQ2_S: [`IQ2_XXS_SPELLED`] with twice as many scales.
    IQ2_S_SPELLED, 106 bytes, 16 groups, unit 0.125, {
        /// A nibble each.
        scales: [u8; 8],
        /// As those of [`IQ2_XXS_SPELLED`].
        signs: [u8; 32],
        /// As those of [`IQ2_XXS_SPELLED`].
        codes: [u8; 64],
    }
    /// A block of IQ3_XXS.
    IQ3_XXS_SPELLED, 134 bytes, 8 groups, unit 0.25, {
        /// A nibble each.
        scales: [u8; 4],
        /// Which of [`IQ3_XXS_LEVELS`]: byte `i` of half `h` has weights `128 h + i` and `128 h + 64 + i`.
        codes: [[u8; 64]; 2],
    }
    /// A block of IQ3_S.
    IQ3_S_SPELLED, 134 bytes, 8 groups, unit 1.0, {
        /// A nibble each.
        scales: [u8; 4],
        /// Which of the odd numbers from −15 to 15, as those of [`IQ3_XXS_SPELLED`].
        codes: [[u8; 64]; 2],
    }
}

/// The magnitudes of IQ2's codes; the last is never made.
pub const IQ2_MAGNITUDES: [i8; 4] = [8, 25, 43, 0];

/// The levels of IQ3_XXS's codes.
pub const IQ3_XXS_LEVELS: [i8; 16] = [
    -62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62,
];

/// The form that weights of a type take when they are spelled out; `None` for types that are not looked up.
pub fn spelled_type(ty: TensorType) -> Option<TensorType> {
    match ty {
        TensorType::IQ1_S => Some(TensorType::IQ1_S_SPELLED),
        TensorType::IQ1_M => Some(TensorType::IQ1_M_SPELLED),
        TensorType::IQ2_XXS => Some(TensorType::IQ2_XXS_SPELLED),
        TensorType::IQ2_XS | TensorType::IQ2_S => Some(TensorType::IQ2_S_SPELLED),
        TensorType::IQ3_XXS => Some(TensorType::IQ3_XXS_SPELLED),
        TensorType::IQ3_S => Some(TensorType::IQ3_S_SPELLED),
        _ => None,
    }
}

/// Writes blocks of type `ty` as blocks of its [`spelled_type`].
///
/// Inlined like [`encode`](super::encode), to be compiled for the instruction set of the caller.
#[inline(always)]
pub(crate) fn spell_out(ty: TensorType, src: &[u8], out: &mut [u8]) {
    match ty {
        TensorType::IQ1_S => spell_blocks(src, out, IQ1_S::spelled),
        TensorType::IQ1_M => spell_blocks(src, out, IQ1_M::spelled),
        TensorType::IQ2_XXS => spell_blocks(src, out, IQ2_XXS::spelled),
        TensorType::IQ2_XS => spell_blocks(src, out, IQ2_XS::spelled),
        TensorType::IQ2_S => spell_blocks(src, out, IQ2_S::spelled),
        TensorType::IQ3_XXS => spell_blocks(src, out, IQ3_XXS::spelled),
        TensorType::IQ3_S => spell_blocks(src, out, IQ3_S::spelled),
        _ => {}
    }
}

/// Refuses what [`spell_out`] cannot do.
pub(crate) fn check_spelling(ty: TensorType, src: &[u8], out: &[u8]) -> Result<(), QuantError> {
    let spelled = spelled_type(ty).ok_or(QuantError::Unsupported { ty })?;
    let elements = src.len() / ty.block_bytes() * ty.block_len();
    check_length(ty, src.len(), elements)?;
    check_length(spelled, out.len(), elements)
}

#[inline(always)]
fn spell_blocks<B: Block, S: Block>(src: &[u8], out: &mut [u8], spelled: impl Fn(&B) -> S) {
    let blocks: &[B] = bytemuck::cast_slice(src);
    let out: &mut [S] = bytemuck::cast_slice_mut(out);
    for (block, out) in blocks.iter().zip(out) {
        *out = spelled(block);
    }
}

/// What the formats are rewritten by: the scale of their scales, their multiples, and what they say of each
/// eight weights.
macro_rules! spells {
    ($($from:ident as $name:ident, |$block:ident, $i:ident| $d:expr, $vector:expr;)*) => {$(
        impl $from {
            #[inline(always)]
            fn spelled(&self) -> $name {
                let $block = self;
                $name::of($d, &self.multiples(), |$i| $vector)
            }
        }
    )*};
}

spells! {
    IQ1_S as IQ1_S_SPELLED, |block, i| block.d, (block.ternary(i), block.is_down(i / 4));
    IQ1_M as IQ1_M_SPELLED, |block, i| block.half(), (block.ternary(i), block.is_down(i));
    IQ2_XXS as IQ2_XXS_SPELLED, |block, i| block.d, block.vector(i);
    IQ2_XS as IQ2_S_SPELLED, |block, i| block.d, block.vector(i);
    IQ2_S as IQ2_S_SPELLED, |block, i| block.d, block.vector(i);
    IQ3_XXS as IQ3_XXS_SPELLED, |block, i| block.d, block.vector(i);
    IQ3_S as IQ3_S_SPELLED, |block, i| block.d, block.vector(i);
}

impl IQ1_S_SPELLED {
    #[inline(always)]
    fn multiples(&self) -> [i32; 8] {
        odd_nibbles(&self.scales.map(|scales| scales & 0x77))
    }

    /// The weights in units of an eighth of their group's scale.
    #[inline(always)]
    pub(crate) fn levels(&self) -> [i8; 256] {
        let mut levels = crumbs(&self.codes).map(|code| 8 * (code as i8 - 1));
        for (group, levels) in levels.chunks_exact_mut(32).enumerate() {
            let down = self.scales[group / 2] >> (group % 2 * 4 + 3) & 1;
            let shift = 1 - 2 * down as i8;
            levels.iter_mut().for_each(|level| *level += shift);
        }
        levels
    }

    #[inline(always)]
    fn of(d: F16Le, multiples: &[i32; 8], vector: impl Fn(usize) -> (u64, bool)) -> Self {
        let down = |group: usize| u8::from(vector(4 * group).1);
        let mut scales = pack_multiples(multiples);
        for (i, scales) in scales.iter_mut().enumerate() {
            *scales |= down(2 * i) << 3 | down(2 * i + 1) << 7;
        }
        let codes = pack_crumbs(|i| ternary_codes(vector(i).0));
        IQ1_S_SPELLED { d, scales, codes }
    }
}

impl IQ1_M_SPELLED {
    #[inline(always)]
    fn multiples(&self) -> [i32; 16] {
        odd_nibbles(&self.scales)
    }

    /// The weights in units of an eighth of their group's scale.
    #[inline(always)]
    pub(crate) fn levels(&self) -> [i8; 256] {
        let mut levels = crumbs(&self.codes).map(|code| 8 * (code as i8 - 1));
        for (i, levels) in levels.chunks_exact_mut(8).enumerate() {
            let shift = 2 * (self.up[i / 8] >> (i % 8) & 1) as i8 - 1;
            levels.iter_mut().for_each(|level| *level += shift);
        }
        levels
    }

    #[inline(always)]
    fn of(d: F16Le, multiples: &[i32; 16], vector: impl Fn(usize) -> (u64, bool)) -> Self {
        let up = std::array::from_fn(|byte| {
            (0..8).fold(0, |up, i| up | u8::from(!vector(8 * byte + i).1) << i)
        });
        IQ1_M_SPELLED {
            d,
            scales: pack_multiples(multiples),
            up,
            codes: pack_crumbs(|i| ternary_codes(vector(i).0)),
        }
    }
}

macro_rules! iq2 {
    ($name:ident, $groups:literal) => {
        impl $name {
            #[inline(always)]
            fn multiples(&self) -> [i32; $groups] {
                odd_nibbles(&self.scales)
            }

            /// The weights in units of their group's scale.
            #[inline(always)]
            pub(crate) fn levels(&self) -> [i8; 256] {
                let mut levels = crumbs(&self.codes).map(|code| IQ2_MAGNITUDES[usize::from(code)]);
                for (i, level) in levels.iter_mut().enumerate() {
                    let bit = i / 64 + i / 32 % 2 * 4;
                    if self.signs[i % 32] >> bit & 1 == 1 {
                        *level = -*level;
                    }
                }
                levels
            }

            #[inline(always)]
            fn of(
                d: F16Le,
                multiples: &[i32; $groups],
                vector: impl Fn(usize) -> (u64, u8),
            ) -> Self {
                let minus = |i: usize| spread(vector(i).1);
                $name {
                    d,
                    scales: pack_multiples(multiples),
                    signs: each_eight(|k| {
                        (0..4).fold(0, |signs, j| {
                            signs | minus(8 * j + k) << j | minus(8 * j + 4 + k) << (4 + j)
                        })
                    }),
                    // Magnitudes are 8, 25 and 43.
                    codes: pack_crumbs(|i| vector(i).0 >> 4 & (3 * ONES)),
                }
            }
        }
    };
}

iq2!(IQ2_XXS_SPELLED, 8);
iq2!(IQ2_S_SPELLED, 16);

macro_rules! iq3 {
    ($name:ident, level of code |$code:ident| $level:expr, shift of magnitudes $shift:literal) => {
        impl $name {
            #[inline(always)]
            fn multiples(&self) -> [i32; 8] {
                odd_nibbles(&self.scales)
            }

            /// The weights in units of their group's scale.
            #[inline(always)]
            pub(crate) fn levels(&self) -> [i8; 256] {
                nibbles(&self.codes).map(|$code| $level)
            }

            #[inline(always)]
            fn of(d: F16Le, multiples: &[i32; 8], vector: impl Fn(usize) -> (u64, u8)) -> Self {
                let code = |i: usize| {
                    let (magnitudes, signs) = vector(i);
                    let codes = magnitudes >> $shift & (7 * ONES) | 8 * ONES;
                    // Those below zero come in the opposite order.
                    codes ^ (15 * spread(signs))
                };
                let half = |h: usize| each_eight(|k| code(16 * h + k) | code(16 * h + 8 + k) << 4);
                let scales = pack_multiples(multiples);
                let codes = [half(0), half(1)];
                $name { d, scales, codes }
            }
        }
    };
}

// Magnitudes are 4, 12, … 52, and 62.
iq3!(IQ3_XXS_SPELLED, level of code |code| IQ3_XXS_LEVELS[usize::from(code)], shift of magnitudes 3);
iq3!(IQ3_S_SPELLED, level of code |code| 2 * code as i8 - 15, shift of magnitudes 1);

/// A one in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// Each of eight bits in a byte of its own.
#[inline(always)]
fn spread(bits: u8) -> u64 {
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

/// One more than eight weights of −1, 0 or 1.
#[inline(always)]
fn ternary_codes(ternary: u64) -> u64 {
    // Two bits of each byte are enough to count from 3 to 0.
    ((ternary & (3 * ONES)) + ONES) & (3 * ONES)
}

/// Bytes, eight at a time.
#[inline(always)]
fn each_eight<const N: usize>(eight: impl Fn(usize) -> u64) -> [u8; N] {
    let mut out = [0; N];
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        out.copy_from_slice(&eight(i).to_le_bytes());
    }
    out
}

/// Scales of 4 bits from the odd multiples that they stand for, two a byte.
#[inline(always)]
fn pack_multiples<const G: usize, const BYTES: usize>(multiples: &[i32; G]) -> [u8; BYTES] {
    const { assert!(G == 2 * BYTES) };
    std::array::from_fn(|i| (multiples[2 * i] >> 1 | multiples[2 * i + 1] >> 1 << 4) as u8)
}

/// 256 codes of 2 bits, 64 at a time from the lowest bits on.
#[inline(always)]
fn crumbs(packed: &[u8; 64]) -> [u8; 256] {
    let mut out = [0; 256];
    for (j, out) in out.chunks_exact_mut(64).enumerate() {
        for (out, byte) in out.iter_mut().zip(packed) {
            *out = byte >> (2 * j) & 3;
        }
    }
    out
}

/// Undoes [`crumbs`]; `codes` are those of weights `8 i` to `8 i + 7`, one a byte.
#[inline(always)]
fn pack_crumbs(codes: impl Fn(usize) -> u64) -> [u8; 64] {
    each_eight(|k| codes(k) | codes(8 + k) << 2 | codes(16 + k) << 4 | codes(24 + k) << 6)
}

/// 256 codes of 4 bits: of each half the low ones, then the high ones.
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

    fn spellable() -> impl Iterator<Item = (TensorType, TensorType)> {
        TensorType::all().filter_map(|ty| Some((ty, spelled_type(ty)?)))
    }

    /// The floats of whole blocks, as bits: what is no number stays the same one.
    fn floats(ty: TensorType, bytes: &[u8]) -> Vec<u32> {
        let mut floats = vec![0.0; bytes.len() / ty.block_bytes() * ty.block_len()];
        dequantize(ty, bytes, &mut floats).unwrap();
        floats.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn any_block_has_the_same_floats_spelled_out() {
        let mut random = Random::new(11);
        for (ty, spelled) in spellable() {
            let n = 3 * ty.block_bytes();
            let mut blocks = vec![vec![0; n], vec![0xff; n], vec![0x7f; n], vec![0x80; n]];
            blocks.extend((0..4 * ROUNDS).map(|_| (0..n).map(|_| random.next() as u8).collect()));
            for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
                for block in &blocks {
                    let mut out = vec![0x55; 3 * spelled.block_bytes()];
                    kernels.spell_out(ty, block, &mut out).unwrap();
                    assert!(floats(ty, block) == floats(spelled, &out), "{ty}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_looked_up_is_not_spelled_out() {
        let kernels = Kernels::for_isa(Isa::Scalar).unwrap();
        let refused = kernels.spell_out(TensorType::Q4_K, &[0; 144], &mut [0; 144]);
        let ty = TensorType::Q4_K;
        assert_eq!(refused, Err(QuantError::Unsupported { ty }));
        assert!(
            kernels
                .spell_out(TensorType::IQ3_S, &[0; 110], &mut [0; 135])
                .is_err()
        );
        assert!(
            kernels
                .spell_out(TensorType::IQ3_S, &[0; 111], &mut [0; 134])
                .is_err()
        );
    }

    #[test]
    fn spelled_types_are_of_memory_only() {
        for (_, spelled) in spellable() {
            assert_eq!(spelled.gguf_id(), None, "{spelled}");
            assert!(!crate::quant::can_quantize(spelled), "{spelled}");
            assert_eq!(spelled_type(spelled), None);
        }
    }

    #[test]
    fn dot_is_that_of_the_floats() {
        check_dot::<IQ1_S_SPELLED>();
        check_dot::<IQ1_M_SPELLED>();
        check_dot::<IQ2_XXS_SPELLED>();
        check_dot::<IQ2_S_SPELLED>();
        check_dot::<IQ3_XXS_SPELLED>();
        check_dot::<IQ3_S_SPELLED>();
    }
}
