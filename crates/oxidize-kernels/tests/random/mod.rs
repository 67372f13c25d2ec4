//! Seeded random numbers and weights, for tests and benchmarks.

use oxidize_kernels::quant::{self, TensorType};

/// The generator SplitMix64 (Steele et al. 2014).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [-1, 1).
    pub(crate) fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.uniform()).collect()
    }

    /// Blocks of `n` elements in all, of random bits that represent floats of moderate magnitude.
    pub(crate) fn weights(&mut self, ty: TensorType, n: usize) -> Vec<u8> {
        // Some distinct blocks, repeated in random order, because finding one takes several attempts.
        const DISTINCT: usize = 48;
        let (len, bytes) = (ty.block_len(), ty.block_bytes());
        let mut floats = vec![0.0; len];
        let mut blocks: Vec<Vec<u8>> = Vec::new();
        while blocks.len() < DISTINCT {
            let block: Vec<u8> = (0..bytes).map(|_| self.bits() as u8).collect();
            quant::dequantize(ty, &block, &mut floats).unwrap();
            let max = floats.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            if floats.iter().all(|x| x.is_finite()) && (0.01..10.0).contains(&max) {
                blocks.push(block);
            }
        }
        if ty == TensorType::INT8 {
            // All blocks of a row have the same scale, which is their first two bytes.
            let scale = [blocks[0][0], blocks[0][1]];
            blocks
                .iter_mut()
                .for_each(|block| block[..2].copy_from_slice(&scale));
        }
        let mut out = Vec::with_capacity(n / len * bytes);
        for _ in 0..n / len {
            out.extend_from_slice(&blocks[self.bits() as usize % DISTINCT]);
        }
        out
    }
}
