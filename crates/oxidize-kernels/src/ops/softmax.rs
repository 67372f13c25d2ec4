//! Softmax of one row, in place.

/// eˣ / Σ eˣ, shifted by the largest element so that nothing overflows.
pub(crate) fn softmax(x: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return x.fill(0.0);
    }
    let mut sum = 0.0;
    for x in x.iter_mut() {
        *x = (*x - max).exp();
        sum += f64::from(*x);
    }
    let scale = (1.0 / sum) as f32;
    x.iter_mut().for_each(|x| *x *= scale);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_does_not_overflow() {
        let mut x = vec![1000.0, 1001.0, f32::NEG_INFINITY];
        softmax(&mut x);
        assert!((x[0] - 0.268_941_43).abs() < 1e-6 && x[2] == 0.0);
        let mut nothing = vec![f32::NEG_INFINITY; 3];
        softmax(&mut nothing);
        assert_eq!(nothing, [0.0; 3]);
    }
}
