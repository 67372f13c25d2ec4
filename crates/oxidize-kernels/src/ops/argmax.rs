//! Index of the largest element.

/// Index of the first of the largest elements. NaN is never the largest; if there is no number, the index is
/// 0.
pub(crate) fn argmax(x: &[f32]) -> usize {
    let mut best = 0;
    let mut max = f32::NEG_INFINITY;
    for (i, &x) in x.iter().enumerate() {
        if x > max {
            (best, max) = (i, x);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_is_the_first_of_the_largest_numbers() {
        assert_eq!(argmax(&[1.0, f32::NAN, 3.0, 3.0, 2.0]), 2);
        assert_eq!(argmax(&[]), 0);
    }
}
