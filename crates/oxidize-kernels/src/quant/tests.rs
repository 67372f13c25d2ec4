//! Tests of every format in the registry.

use half::f16;

use super::testing::{ROUNDS, Random};
use super::*;

/// Returns blocks of random bits and the number of their elements.
fn random_blocks(ty: TensorType, random: &mut Random) -> (Vec<u8>, usize) {
    let blocks = if cfg!(miri) {
        2
    } else {
        1024 / ty.block_len() + 3
    };
    let bytes = (0..blocks * ty.block_bytes())
        .map(|_| random.next() as u8)
        .collect();
    (bytes, blocks * ty.block_len())
}

#[test]
fn any_bit_pattern_dequantizes() {
    let mut random = Random::new(3);
    for ty in TensorType::all() {
        for fill in [0x00, 0x7f, 0x80, 0xff] {
            let bytes = vec![fill; ty.block_bytes()];
            dequantize(ty, &bytes, &mut vec![0.0; ty.block_len()]).unwrap();
        }
        for _ in 0..ROUNDS {
            let (bytes, n) = random_blocks(ty, &mut random);
            dequantize(ty, &bytes, &mut vec![0.0; n]).unwrap();
            let activation_bytes = activation_type(ty).bytes_for(n as u64).unwrap();
            let activations: Vec<u8> = (0..activation_bytes).map(|_| random.next() as u8).collect();
            dot(ty, &bytes, &activations).unwrap();
        }
    }
}

#[test]
fn blocks_may_be_unaligned() {
    let mut random = Random::new(4);
    for ty in TensorType::all() {
        let (bytes, n) = random_blocks(ty, &mut random);
        let mut aligned = vec![0.0; n];
        dequantize(ty, &bytes, &mut aligned).unwrap();
        for offset in 1..8 {
            let mut shifted = vec![0; offset];
            shifted.extend_from_slice(&bytes);
            let mut out = vec![0.0; n];
            dequantize(ty, &shifted[offset..], &mut out).unwrap();
            let same = out
                .iter()
                .zip(&aligned)
                .all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{ty} at offset {offset}");
        }
    }
}

#[test]
fn dequantize_f16_rounds_dequantize() {
    let mut random = Random::new(5);
    for ty in TensorType::all() {
        let (bytes, n) = random_blocks(ty, &mut random);
        let (mut floats, mut halves) = (vec![0.0; n], vec![f16::ZERO; n]);
        dequantize(ty, &bytes, &mut floats).unwrap();
        dequantize_f16(ty, &bytes, &mut halves).unwrap();
        for (x, h) in floats.iter().zip(&halves) {
            let expected = f16::from_f32(*x);
            assert!(
                *h == expected || h.is_nan() && expected.is_nan(),
                "{ty}: {x} rounded to {h}"
            );
        }
    }
}

#[test]
fn wrong_lengths_are_errors() {
    for ty in TensorType::all() {
        let (bytes, len) = (ty.block_bytes(), ty.block_len());
        let wrong = |bytes, elements| {
            Err(QuantError::Length {
                ty,
                bytes,
                elements,
            })
        };
        let two = vec![0; 2 * bytes];
        assert_eq!(
            dequantize(ty, &two, &mut vec![0.0; len]),
            wrong(2 * bytes, len)
        );
        assert_eq!(
            dequantize_f16(ty, &two, &mut vec![f16::ZERO; len]),
            wrong(2 * bytes, len)
        );
        assert_eq!(
            dequantize(ty, &two[1..], &mut vec![0.0; 2 * len]),
            wrong(2 * bytes - 1, 2 * len)
        );
        assert_eq!(dequantize(ty, &[], &mut []), Ok(()));
        if can_quantize(ty) {
            assert_eq!(
                quantize(ty, &vec![0.0; len], &mut two.clone()),
                wrong(2 * bytes, len)
            );
        } else {
            let refused = Err(QuantError::Unsupported { ty });
            assert_eq!(quantize(ty, &vec![0.0; len], &mut vec![0; bytes]), refused);
        }
        assert!(dot(ty, &two, &[]).is_err());
        assert!(dot(ty, &two[..bytes * 2 - 1], &two).is_err() || bytes == 1);
    }
}

#[test]
fn error_messages_name_the_type() {
    let error = quantize(TensorType::I8, &[], &mut []).unwrap_err();
    assert_eq!(error.to_string(), "there is no quantizer for I8");
    let error = dequantize(TensorType::Q4_K, &[0; 10], &mut [0.0; 256]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "10 bytes do not hold 256 elements of Q4_K"
    );
}

#[test]
#[cfg_attr(miri, ignore = "too slow; each format's own tests cover its code")]
fn dot_sums_over_blocks() {
    const N: usize = 4096;
    let mut random = Random::new(6);
    let source = random.normals(N);
    for ty in TensorType::all().filter(|ty| can_quantize(*ty)) {
        let activation = activation_type(ty);
        let mut weights = vec![0; ty.bytes_for(N as u64).unwrap() as usize];
        let mut activations = vec![0; activation.bytes_for(N as u64).unwrap() as usize];
        quantize(ty, &source, &mut weights).unwrap();
        quantize(activation, &source, &mut activations).unwrap();
        let norm: f32 = source.iter().map(|x| x * x).sum();
        let error = (dot(ty, &weights, &activations).unwrap() / norm - 1.0).abs();
        // The norm of the nearest block is a little smaller than that of its source, more so with fewer bits.
        let bound = match ty {
            // These formats expect weights that are already ternary.
            TensorType::TQ1_0 | TensorType::TQ2_0 => 0.7,
            TensorType::IQ1_S | TensorType::IQ1_M => 0.15,
            _ => 0.1,
        };
        assert!(error < bound, "{ty}: {error}");
    }
}
