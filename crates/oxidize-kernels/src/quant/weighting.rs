//! What an error costs, element by element: the weights that the searches for scales and levels use.
//!
//! The importance of an element is how strongly activations drive it: the mean square of the input
//! it is multiplied with, from an importance matrix. Beside that, large elements count a little
//! more: they carry most of a product.

/// The weights of a block of `N` elements: `i · √(mean(x²) + x²)`, where the importance `i` is one
/// for all if it is not known.
#[inline(always)]
pub(super) fn weights<const N: usize>(x: &[f32], importance: Option<&[f32]>) -> [f32; N] {
    let mut weights = [0.0; N];
    let mean = x.iter().map(|x| x * x).sum::<f32>() / N as f32;
    for (weight, x) in weights.iter_mut().zip(x) {
        *weight = (mean + x * x).sqrt();
    }
    // Inputs that were always zero, as those of an expert that no token chose, say nothing.
    if let Some(importance) = importance.filter(|i| i.iter().any(|i| *i > 0.0)) {
        for (weight, importance) in weights.iter_mut().zip(importance) {
            *weight *= importance;
        }
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn importance_scales_and_zeros_are_ignored() {
        let x = [1.0, -7.0];
        let plain: [f32; 2] = weights(&x, None);
        assert_eq!(plain, [26.0f32.sqrt(), 74.0f32.sqrt()]);
        let unknown: [f32; 2] = weights(&x, Some(&[0.0, 0.0]));
        assert_eq!(unknown, plain);
        let known: [f32; 2] = weights(&x, Some(&[4.0, 0.5]));
        assert_eq!(known, [4.0 * plain[0], 0.5 * plain[1]]);
    }
}
