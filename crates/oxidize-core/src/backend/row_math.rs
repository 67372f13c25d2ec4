//! Statistics of a row that backends compute on the host, in the same way.

/// `mean + deviations · σ` of a row. `unbiased` divides the sum of squares by n − 1 instead of n.
pub(super) fn sparsity_threshold(row: &[f32], deviations: f32, unbiased: bool) -> f32 {
    let n = row.len() as f64;
    let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let squares: f64 = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
    let divisor = if unbiased { (n - 1.0).max(1.0) } else { n };
    (mean + f64::from(deviations) * (squares / divisor).sqrt()) as f32
}

/// The factor that gives `x` the root mean square of `like`.
pub(super) fn magnitude_ratio(x: &[f32], like: &[f32]) -> f32 {
    // Gemma 3n's lower bound, which keeps rows of almost nothing from being scaled up.
    const SMALLEST: f32 = 1e-5;
    let mean_square =
        |x: &[f32]| x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() as f32 / x.len() as f32;
    mean_square(like).sqrt() / mean_square(x).max(SMALLEST).sqrt()
}

/// Replaces a row by its softmax.
pub(super) fn softmax(row: &mut [f32]) {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|x| *x = (*x - max).exp());
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
}
