//! MXFP4 as gpt-oss is released: scales and nibbles in two tensors, put together into the blocks
//! that kernels read.

use oxidize_kernels::quant::TensorType;

/// Weights of a block.
pub(super) const BLOCK: usize = 32;

/// Fills `out` with blocks from their nibbles (16 bytes each) and scales (one byte each).
///
/// The release pairs neighbours in a byte; blocks pair each weight with the one 16 later.
pub(super) fn pack(nibbles: &[u8], scales: &[u8], out: &mut [u8]) {
    let blocks = out.chunks_exact_mut(TensorType::MXFP4.block_bytes());
    for ((block, nibbles), scale) in blocks.zip(nibbles.chunks_exact(BLOCK / 2)).zip(scales) {
        let weight = |i: usize| nibbles[i / 2] >> (i % 2 * 4) & 15;
        block[0] = *scale;
        for (i, byte) in block[1..].iter_mut().enumerate() {
            *byte = weight(i) | weight(i + BLOCK / 2) << 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxidize_kernels::quant::dequantize;

    #[test]
    fn weights_keep_their_order() {
        // Weight i is number i modulo 8 of E2M1: 0, ½, 1, 1½, 2, 3, 4, 6.
        let nibbles: Vec<u8> = (0..16)
            .map(|i| ((2 * i) % 8) | (((2 * i + 1) % 8) << 4))
            .collect();
        let mut block = [0; 17];
        pack(&nibbles, &[128], &mut block);
        let mut floats = [0.0; 32];
        dequantize(TensorType::MXFP4, &block, &mut floats).unwrap();
        let expected = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0];
        for (i, x) in floats.iter().enumerate() {
            assert_eq!(*x, expected[i % 8], "weight {i}");
        }
    }
}
