//! What an error costs, element by element: the weights that the searches for scales and levels use.
//!
//! The importance of an element is how strongly activations drive it: the mean square of the input
//! it is multiplied with, from an importance matrix. Where none is given, large elements count more:
//! they carry most of a product.

/// The weights of a block of `N` elements.
///
/// With importance `i`, an element weighs `i · √(spread · mean(x²) + x²)`; without, what `plain` says
/// of its square and the mean square.
#[inline(always)]
pub(super) fn weights<const N: usize>(
    x: &[f32],
    importance: Option<&[f32]>,
    spread: f32,
    plain: impl Fn(f32, f32) -> f32,
) -> [f32; N] {
    let mut weights = [0.0; N];
    let mean = x.iter().map(|x| x * x).sum::<f32>() / N as f32;
    // Inputs that were always zero, as those of an expert that no token chose, say nothing.
    if let Some(importance) = importance.filter(|i| i.iter().any(|i| *i > 0.0)) {
        for ((weight, x), importance) in weights.iter_mut().zip(x).zip(importance) {
            *weight = importance * (spread * mean + x * x).sqrt();
        }
    } else {
        for (weight, x) in weights.iter_mut().zip(x) {
            *weight = plain(x * x, mean);
        }
    }
    weights
}

/// Without importance: the larger an element, the more it counts.
#[inline(always)]
pub(super) fn magnitude(square: f32, mean: f32) -> f32 {
    mean.sqrt() + square.sqrt()
}

/// Without importance: elements count by their square.
#[inline(always)]
pub(super) fn square(square: f32, _mean: f32) -> f32 {
    square
}

/// Without importance: elements count by their square, small ones not quite as little.
#[inline(always)]
pub(super) fn raised_square(square: f32, mean: f32) -> f32 {
    0.5 * mean + square
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn importance_scales_and_zeros_are_ignored() {
        let x = [1.0, -2.0];
        let plain: [f32; 2] = weights(&x, None, 1.0, square);
        assert_eq!(plain, [1.0, 4.0]);
        let unknown: [f32; 2] = weights(&x, Some(&[0.0, 0.0]), 1.0, square);
        assert_eq!(unknown, plain);
        let known: [f32; 2] = weights(&x, Some(&[4.0, 2.0]), 0.0, square);
        assert_eq!(known, [4.0, 4.0]);
    }
}
