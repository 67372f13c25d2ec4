//! Index of the largest element.

/// The first of the largest elements; NaN is never the largest. 0 if there is no number at all.
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
    fn first_largest_number_wins() {
        assert_eq!(argmax(&[1.0, f32::NAN, 3.0, 3.0, 2.0]), 2);
        assert_eq!(argmax(&[]), 0);
    }
}
