//! RMS norm and layer norm of one row, in place.

/// x / √(mean(x²) + eps) · weight.
pub(crate) fn rms_norm(x: &mut [f32], weight: Option<&[f32]>, eps: f32) {
    let sum: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let scale = 1.0 / ((sum / x.len() as f64) as f32 + eps).sqrt();
    scale_by(x, scale, weight);
}

/// (x − mean) / √(variance + eps) · weight + bias.
pub(crate) fn layer_norm(x: &mut [f32], weight: Option<&[f32]>, bias: Option<&[f32]>, eps: f32) {
    let n = x.len() as f64;
    let mean = (x.iter().map(|&x| f64::from(x)).sum::<f64>() / n) as f32;
    let mut sum = 0.0;
    for x in x.iter_mut() {
        *x -= mean;
        sum += f64::from(*x) * f64::from(*x);
    }
    let scale = 1.0 / ((sum / n) as f32 + eps).sqrt();
    scale_by(x, scale, weight);
    if let Some(bias) = bias {
        x.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
    }
}

fn scale_by(x: &mut [f32], scale: f32, weight: Option<&[f32]>) {
    match weight {
        Some(weight) => x
            .iter_mut()
            .zip(weight)
            .for_each(|(x, w)| *x = *x * scale * w),
        None => x.iter_mut().for_each(|x| *x *= scale),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rms_norm_has_rms_one() {
        let mut x = vec![3.0, -4.0, 12.0];
        rms_norm(&mut x, None, 0.0);
        let mean = x.iter().map(|x| x * x).sum::<f32>() / 3.0;
        assert!((mean - 1.0).abs() < 1e-6);
    }

    #[test]
    fn layer_norm_applies_weight_and_bias() {
        let mut x = vec![1.0, 3.0];
        layer_norm(&mut x, Some(&[2.0, 3.0]), Some(&[10.0, 20.0]), 0.0);
        assert_eq!(x, [8.0, 23.0]);
    }
}
