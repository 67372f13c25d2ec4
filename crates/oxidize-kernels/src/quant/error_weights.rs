//! Weights of the squared errors that the searches for scales and levels minimize.
//!
//! The importance of an element, from an importance matrix, is the mean square of the input that it is
//! multiplied with. Large elements get a larger weight, as in llama.cpp, because they contribute most to
//! a dot product.

/// Returns the error weights of a block of `N` elements: `i · √(mean(x²) + x²)`, where `i` is the
/// importance, or 1 for all elements if it is not known.
#[inline(always)]
pub(super) fn error_weights<const N: usize>(x: &[f32], importance: Option<&[f32]>) -> [f32; N] {
    let mut weights = [0.0; N];
    let mean = x.iter().map(|x| x * x).sum::<f32>() / N as f32;
    for (weight, x) in weights.iter_mut().zip(x) {
        *weight = (mean + x * x).sqrt();
    }
    // All zeros means no data, for example from an expert that no token was routed to.
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
    fn importance_scales_weights_unless_all_zero() {
        let x = [1.0, -7.0];
        let plain: [f32; 2] = error_weights(&x, None);
        assert_eq!(plain, [26.0f32.sqrt(), 74.0f32.sqrt()]);
        let unknown: [f32; 2] = error_weights(&x, Some(&[0.0, 0.0]));
        assert_eq!(unknown, plain);
        let known: [f32; 2] = error_weights(&x, Some(&[4.0, 0.5]));
        assert_eq!(known, [4.0 * plain[0], 0.5 * plain[1]]);
    }
}
