//! Packing of 1-, 2- and 4-bit weights as several formats lay them out, and unpacking to bytes.
//!
//! These are plain loops over arrays of known length, which the compiler vectorizes.

/// Unpacks 32 weights of 4 bits: byte `i` holds weights `i` and `i + 16`.
#[inline(always)]
pub(super) fn nibbles(packed: &[u8; 16]) -> [u8; 32] {
    let mut out = [0; 32];
    for (i, byte) in packed.iter().enumerate() {
        out[i] = byte & 15;
        out[i + 16] = byte >> 4;
    }
    out
}

/// Inverse of [`nibbles`]; only the low 4 bits of each weight are used.
pub(super) fn pack_nibbles(q: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|i| q[i] & 15 | q[i + 16] << 4)
}

/// Unpacks 256 weights of 4 bits: each 32 bytes hold 32 weights in their low nibbles, then 32 in the high
/// ones.
#[inline(always)]
pub(super) fn nibbles_256(packed: &[u8; 128]) -> [u8; 256] {
    let mut out = [0; 256];
    for (packed, out) in packed.chunks_exact(32).zip(out.chunks_exact_mut(64)) {
        let (low, high) = out.split_at_mut(32);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(packed) {
            *low = byte & 15;
            *high = byte >> 4;
        }
    }
    out
}

/// Inverse of [`nibbles_256`]; only the low 4 bits of each weight are used.
pub(super) fn pack_nibbles_256(q: &[u8; 256]) -> [u8; 128] {
    std::array::from_fn(|i| {
        let low = i / 32 * 64 + i % 32;
        q[low] & 15 | q[low + 32] << 4
    })
}

/// Unpacks 256 weights of 2 bits: each 32 bytes hold 4 times 32 weights, the first in the lowest 2 bits.
#[inline(always)]
pub(super) fn two_bits(packed: &[u8; 64]) -> [u8; 256] {
    let mut out = [0; 256];
    for (i, out) in out.chunks_exact_mut(32).enumerate() {
        let packed = &packed[i / 4 * 32..][..32];
        for (out, byte) in out.iter_mut().zip(packed) {
            *out = byte >> (i % 4 * 2) & 3;
        }
    }
    out
}

/// Inverse of [`two_bits`]; only the low 2 bits of each weight are used.
pub(super) fn pack_two_bits(q: &[u8; 256]) -> [u8; 64] {
    std::array::from_fn(|i| {
        let first = i / 32 * 128 + i % 32;
        (0..4).fold(0, |byte, plane| {
            byte | (q[first + 32 * plane] & 3) << (2 * plane)
        })
    })
}

/// Unpacks one bit for each of 256 weights: bit `j` of byte `i` belongs to weight `32 j + i`.
#[inline(always)]
pub(super) fn bits(packed: &[u8; 32]) -> [u8; 256] {
    let mut out = [0; 256];
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        for (out, byte) in out.iter_mut().zip(packed) {
            *out = byte >> j & 1;
        }
    }
    out
}

/// Inverse of [`bits`]; only the lowest bit of each weight is used.
pub(super) fn pack_bits(q: &[u8; 256]) -> [u8; 32] {
    std::array::from_fn(|i| (0..8).fold(0, |byte, j| byte | (q[32 * j + i] & 1) << j))
}

/// Computes `out = scale · levels` over the shorter length of the two.
#[inline(always)]
pub(super) fn scale_into(out: &mut [f32], scale: f32, levels: &[i8]) {
    for (out, level) in out.iter_mut().zip(levels) {
        *out = scale * f32::from(*level);
    }
}

/// Returns the integer dot product.
#[inline(always)]
pub(super) fn dot_i8(a: &[i8], b: &[i8]) -> i32 {
    a.iter()
        .zip(b)
        .map(|(a, b)| i32::from(*a) * i32::from(*b))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::Random;

    #[test]
    fn packing_inverts_unpacking() {
        let mut random = Random::new(1);
        let bytes: [u8; 128] = std::array::from_fn(|_| random.next() as u8);
        let [first16, first32, first64] = [16, 32, 64].map(|n| &bytes[..n]);
        assert_eq!(pack_nibbles(&nibbles(first16.try_into().unwrap())), first16);
        assert_eq!(pack_bits(&bits(first32.try_into().unwrap())), first32);
        assert_eq!(
            pack_two_bits(&two_bits(first64.try_into().unwrap())),
            first64
        );
        assert_eq!(pack_nibbles_256(&nibbles_256(&bytes)), bytes);
    }

    #[test]
    fn unpacking_matches_format_layout() {
        let mut packed = [0; 64];
        packed[33] = 0b11_00_01_00;
        let unpacked = two_bits(&packed);
        assert_eq!((unpacked[128 + 32 + 1], unpacked[128 + 96 + 1]), (1, 3));
        assert_eq!(unpacked.iter().filter(|q| **q != 0).count(), 2);
        let mut packed = [0; 32];
        packed[5] = 0b1000_0010;
        let unpacked = bits(&packed);
        assert_eq!((unpacked[32 + 5], unpacked[7 * 32 + 5]), (1, 1));
        let mut packed = [0; 128];
        packed[40] = 0xa3;
        assert_eq!(
            (nibbles_256(&packed)[64 + 8], nibbles_256(&packed)[96 + 8]),
            (3, 10)
        );
    }
}
