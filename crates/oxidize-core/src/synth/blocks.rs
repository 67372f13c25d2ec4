//! Random weights in any format. To be fast, only one tile of weights per type is generated, and tensors are
//! put together from pieces of it.

use std::io::{self, Write};

use half::f16;
use oxidize_kernels::quant::{self, TensorType};

/// Standard deviation of the weights, with which activations neither vanish nor explode over the layers.
const DEVIATION: f32 = 0.02;
/// Weights in a tile.
const TILE: usize = 1 << 18;
/// Weights in a piece. Rows consist of random pieces, so that hardly any two are the same.
const PIECE: usize = 1024;
/// Pieces start at multiples of this many weights, which are whole blocks of every format.
const STEP: usize = 256;

/// Normally distributed weights of one type.
pub(super) struct Tile {
    bytes: Vec<u8>,
    piece_bytes: usize,
    step_bytes: usize,
}

impl Tile {
    pub(super) fn new(ty: TensorType, random: &mut Random) -> Tile {
        let bytes_of = |elements: usize| elements / ty.block_len() * ty.block_bytes();
        let mut bytes = vec![0; bytes_of(TILE)];
        let floats: Vec<f32> = (0..TILE).map(|_| DEVIATION * random.normal()).collect();
        // A search for the nearest codebook entries takes longer than writing the whole model.
        if has_codebook(ty) || quant::quantize(ty, &floats, &mut bytes).is_err() {
            random_blocks(ty, random, &mut bytes);
        }
        Tile {
            bytes,
            piece_bytes: bytes_of(PIECE),
            step_bytes: bytes_of(STEP),
        }
    }

    /// Writes `n` bytes, which must be whole blocks. Calls `progress` with the bytes written so far.
    pub(super) fn write(
        &self,
        n: u64,
        random: &mut Random,
        out: &mut dyn Write,
        mut progress: impl FnMut(u64),
    ) -> io::Result<()> {
        const REPORT: usize = 1 << 14;
        let steps = (self.bytes.len() - self.piece_bytes) / self.step_bytes + 1;
        let mut left = n;
        for piece in 1.. {
            let start = random.below(steps) * self.step_bytes;
            let len = left.min(self.piece_bytes as u64);
            out.write_all(&self.bytes[start..start + len as usize])?;
            left -= len;
            if left == 0 {
                break;
            }
            if piece % REPORT == 0 {
                progress(n - left);
            }
        }
        Ok(())
    }
}

/// True if the quantizer of a type searches for the nearest entries of a codebook.
fn has_codebook(ty: TensorType) -> bool {
    use TensorType::{IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
    matches!(
        ty,
        IQ1_M | IQ1_S | IQ2_S | IQ2_XS | IQ2_XXS | IQ3_S | IQ3_XXS
    )
}

/// Fills `bytes` with random blocks. Any bits are a valid block, only the scales must be chosen.
fn random_blocks(ty: TensorType, random: &mut Random, bytes: &mut [u8]) {
    bytes.fill_with(|| random.next() as u8);
    let mut set_scales = |scale: f32| {
        for block in bytes.chunks_exact_mut(ty.block_bytes()) {
            set_scale(ty, block, f16::from_f32(scale));
        }
        let mut floats = vec![0.0; bytes.len() / ty.block_bytes() * ty.block_len()];
        // Both lengths are whole blocks.
        let converted = quant::dequantize(ty, bytes, &mut floats);
        debug_assert!(converted.is_ok());
        let squares: f32 = floats.iter().map(|x| x * x).sum();
        (squares / floats.len() as f32).sqrt()
    };
    // Weights are proportional to the scale.
    let deviation = set_scales(1.0);
    set_scales(DEVIATION / deviation);
}

fn set_scale(ty: TensorType, block: &mut [u8], scale: f16) {
    if ty == TensorType::IQ1_M {
        // The scale is spread over the top nibbles of the last four 16-bit fields.
        let at = block.len() - 8;
        for (i, field) in block[at..].chunks_exact_mut(2).enumerate() {
            let nibble = (scale.to_bits() >> (4 * i)) as u8 & 0xf;
            field[1] = field[1] & 0xf | nibble << 4;
        }
    } else {
        block[..2].copy_from_slice(&scale.to_le_bytes());
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014), a seeded random number generator.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// Approximately normally distributed number: the sum of four uniform ones from one draw.
    fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: f32 = (0..4).map(|i| (bits >> (16 * i) & 0xffff) as f32).sum();
        (sum / 65536.0 - 2.0) * 3f32.sqrt()
    }
}
