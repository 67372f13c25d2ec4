//! Weights of golden models, from the names of their tensors alone.
//!
//! `scripts/golden/weights.py` has the same function; both are tested with the same vector.

use half::bf16;

/// Elements of the tensor `name`: `center + spread × u`, with u evenly distributed in (-1, 1).
///
/// Element i takes the top byte of the output i of [splitmix64], seeded with [FNV-1a] of the name.
///
/// [splitmix64]: https://prng.di.unimi.it/splitmix64.c
/// [FNV-1a]: https://www.rfc-editor.org/rfc/rfc9923.html
pub fn weights(name: &str, count: usize, center: f32, spread: f32) -> impl Iterator<Item = bf16> {
    let key = name.bytes().fold(0xcbf2_9ce4_8422_2325, |key: u64, byte| {
        (key ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (1..=count as u64).map(move |i| {
        let z = key.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let z = z ^ (z >> 31);
        let u = ((z >> 56) as f32 * 2.0 - 255.0) / 256.0;
        bf16::from_f32(center + spread * u)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_those_of_python() {
        let found: Vec<f32> = weights("model.norm.weight", 4, 1.0, 0.5)
            .map(f32::from)
            .collect();
        assert_eq!(found, [0.546875, 0.640625, 0.8984375, 1.140625]);
    }

    #[test]
    fn weights_have_their_center_and_spread() {
        let found: Vec<f32> = weights("a", 10_000, 2.0, 0.5).map(f32::from).collect();
        let mean = found.iter().sum::<f32>() / found.len() as f32;
        assert!((mean - 2.0).abs() < 0.02, "{mean}");
        assert!(found.iter().all(|x| (1.5..=2.5).contains(x)));
        assert!(
            weights("b", 4, 2.0, 0.5)
                .map(f32::from)
                .ne(found[..4].iter().copied())
        );
    }
}
