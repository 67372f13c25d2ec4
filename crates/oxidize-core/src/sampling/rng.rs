//! Random number generator of the samplers: seedable and identical on every platform. xoshiro256**
//! (Blackman and Vigna, 2018), seeded by splitmix64.

use std::hash::{BuildHasher, Hasher, RandomState};

/// xoshiro256** generator. Not for cryptography.
#[derive(Debug, Clone)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// Creates a generator. Equal seeds yield equal numbers on every platform.
    pub fn new(seed: u64) -> Self {
        let mut splitmix = seed;
        Self {
            state: std::array::from_fn(|_| splitmix64(&mut splitmix)),
        }
    }

    /// Returns 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [s0, s1, s2, s3] = &mut self.state;
        let result = s1.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *s1 << 17;
        *s2 ^= *s0;
        *s3 ^= *s1;
        *s1 ^= *s2;
        *s0 ^= *s3;
        *s2 ^= shifted;
        *s3 = s3.rotate_left(45);
        result
    }

    /// Returns a number in `[0, 1)` with 53 random bits.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// Returns a random seed, from the randomness of the standard library's hash maps.
pub(crate) fn entropy_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_matches_the_published_sequence() {
        let mut state = 1_234_567;
        let first: Vec<u64> = (0..3).map(|_| splitmix64(&mut state)).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn xoshiro_matches_the_published_sequence() {
        let mut rng = Rng {
            state: [1, 2, 3, 4],
        };
        let first: Vec<u64> = (0..4).map(|_| rng.next_u64()).collect();
        assert_eq!(first, [11520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
    }

    #[test]
    fn unit_interval_is_uniform() {
        let mut rng = Rng::new(7);
        let mut buckets = [0u32; 16];
        for _ in 0..160_000 {
            buckets[(rng.next_f64() * 16.0) as usize] += 1;
        }
        let chi2: f64 = buckets
            .iter()
            .map(|&n| (f64::from(n) - 10_000.0).powi(2) / 10_000.0)
            .sum();
        assert!(chi2 < 37.7, "15 degrees of freedom, p = 0.001: {chi2}");
    }
}
