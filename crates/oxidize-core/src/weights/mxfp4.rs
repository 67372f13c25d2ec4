//! MXFP4 as in gpt-oss checkpoints: values and scales are two tensors, which are combined to
//! blocks.

use oxidize_kernels::quant::TensorType;

/// Weights of a block.
pub(super) const BLOCK: usize = 32;

/// Fills `out` with blocks from their nibbles (16 bytes each) and scales (one byte each).
///
/// The checkpoint stores neighbors in a byte; blocks store elements `i` and `i + 16`.
pub(crate) fn pack(nibbles: &[u8], scales: &[u8], out: &mut [u8]) {
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
    fn packed_weights_keep_their_order() {
        // Weight i has code i modulo 8. The E2M1 values are 0, ½, 1, 1½, 2, 3, 4, 6.
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
