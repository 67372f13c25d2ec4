//! Comparison with the `gguf` Python package: dequantization and quantization are bit-identical.
//! `scripts/gguf_vectors.py` writes the package's results.

use std::path::Path;

use oxidize_kernels::quant::{self, TensorType};
use oxidize_testing::cached;

/// Types that the package dequantizes. Listed here so that an empty directory fails the test.
const DEQUANTIZED: [&str; 26] = [
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
    "TQ1_0", "TQ2_0", "MXFP4", "NVFP4",
];
/// Types that the package quantizes.
const QUANTIZED: [&str; 11] = [
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4",
];

oxidize_testing::main!(dequantize_matches_gguf_python, quantize_matches_gguf_python,);

fn dequantize_matches_gguf_python() {
    let vectors = cached("vectors/dequant");
    for name in DEQUANTIZED {
        let ty = TensorType::from_name(name).unwrap();
        let blocks = read(&vectors, name, "blocks");
        let expected = read_f32(&vectors, name);
        assert!(expected.len() >= 1 << 13, "{name}: too few blocks");
        let mut floats = vec![0.0; expected.len()];
        quant::dequantize(ty, &blocks, &mut floats).unwrap();
        for (i, (ours, theirs)) in floats.iter().zip(&expected).enumerate() {
            let same = ours.to_bits() == theirs.to_bits();
            assert!(
                same,
                "{name}, element {i}: {ours:e} where gguf has {theirs:e}"
            );
        }
    }
}

fn quantize_matches_gguf_python() {
    let vectors = cached("vectors/quant");
    let source = read_f32(&vectors, "input");
    for name in QUANTIZED {
        let ty = TensorType::from_name(name).unwrap();
        let expected = read(&vectors, name, "blocks");
        let mut blocks = vec![0; expected.len()];
        quant::quantize(ty, &source, &mut blocks).unwrap();
        let size = ty.block_bytes();
        for (i, (ours, theirs)) in blocks.chunks(size).zip(expected.chunks(size)).enumerate() {
            let len = ty.block_len();
            assert_eq!(
                ours,
                theirs,
                "{name}, block {i} of {:?}",
                &source[i * len..][..len]
            );
        }
    }
}

fn read(directory: &Path, name: &str, extension: &str) -> Vec<u8> {
    let path = directory.join(name).with_extension(extension);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn read_f32(directory: &Path, name: &str) -> Vec<f32> {
    let bytes = read(directory, name, "f32");
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}
