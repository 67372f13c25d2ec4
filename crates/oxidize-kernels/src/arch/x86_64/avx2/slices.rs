//! Loops over slices, eight floats at a time; a remainder goes through a padded buffer.

use std::arch::x86_64::*;

/// `x = f(x)`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn map(x: &mut [f32], f: impl Fn(__m256) -> __m256) {
    let (vectors, rest) = x.as_chunks_mut::<8>();
    for x in vectors {
        store(x, f(load(x)));
    }
    if !rest.is_empty() {
        let mut last = padded(rest);
        let value = f(load(&last));
        store(&mut last, value);
        let n = rest.len();
        rest.copy_from_slice(&last[..n]);
    }
}

/// `x = f(x, y)`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn map2(x: &mut [f32], y: &[f32], f: impl Fn(__m256, __m256) -> __m256) {
    debug_assert_eq!(x.len(), y.len());
    let (vectors, rest) = x.as_chunks_mut::<8>();
    let (y_vectors, y_rest) = y.as_chunks::<8>();
    for (x, y) in vectors.iter_mut().zip(y_vectors) {
        store(x, f(load(x), load(y)));
    }
    if !rest.is_empty() {
        let mut last = padded(rest);
        let value = f(load(&last), load(&padded(y_rest)));
        store(&mut last, value);
        let n = rest.len();
        rest.copy_from_slice(&last[..n]);
    }
}

/// Combines vectors into one, in four independent chains; a remainder is padded with `fill`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn fold(
    x: &[f32],
    fill: f32,
    start: __m256,
    f: impl Fn(__m256, __m256) -> __m256,
    join: impl Fn(__m256, __m256) -> __m256,
) -> __m256 {
    let mut chains = [start; 4];
    let (blocks, rest) = x.as_chunks::<32>();
    for block in blocks {
        let (vectors, _) = block.as_chunks::<8>();
        for i in 0..4 {
            chains[i] = f(chains[i], load(&vectors[i]));
        }
    }
    let (vectors, rest) = rest.as_chunks::<8>();
    for x in vectors {
        chains[0] = f(chains[0], load(x));
    }
    if !rest.is_empty() {
        let mut last = [fill; 8];
        last[..rest.len()].copy_from_slice(rest);
        chains[1] = f(chains[1], load(&last));
    }
    join(join(chains[0], chains[1]), join(chains[2], chains[3]))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load(x: &[f32; 8]) -> __m256 {
    // SAFETY: the array has eight floats; AVX2 is enabled here.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn store(x: &mut [f32; 8], value: __m256) {
    // SAFETY: the array has eight floats; AVX2 is enabled here.
    unsafe { _mm256_storeu_ps(x.as_mut_ptr(), value) }
}

fn padded(x: &[f32]) -> [f32; 8] {
    let mut out = [0.0; 8];
    out[..x.len()].copy_from_slice(x);
    out
}

/// The largest of eight lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn horizontal_max(x: __m256) -> f32 {
    let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
}
