//! Rotary position embedding (RoPE, Su et al. 2021): rotates pairs of elements of each head by given angles.

/// Pairing of the elements of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Neighbors: (0, 1), (2, 3), … as in the original Llama.
    Interleaved,
    /// Halves: (0, n/2), (1, n/2 + 1), … as in GPT-NeoX and Hugging Face's models.
    Halves,
}

/// Rotates the first `2 · cos.len()` elements of each head of `x`.
pub(crate) fn rope(x: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32], layout: RopeLayout) {
    let half = cos.len();
    for head in x.chunks_exact_mut(head_dim) {
        for i in 0..half {
            let (a, b) = match layout {
                RopeLayout::Interleaved => (2 * i, 2 * i + 1),
                RopeLayout::Halves => (i, half + i),
            };
            let (x, y) = (head[a], head[b]);
            head[a] = x * cos[i] - y * sin[i];
            head[b] = x * sin[i] + y * cos[i];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rope_rotates_only_the_given_dimensions() {
        let (cos, sin) = ([0.0, 0.0], [1.0, 1.0]);
        let mut x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        rope(&mut x, 6, &cos, &sin, RopeLayout::Interleaved);
        assert_eq!(x, [-2.0, 1.0, -4.0, 3.0, 5.0, 6.0]);
        let mut x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        rope(&mut x, 6, &cos, &sin, RopeLayout::Halves);
        assert_eq!(x, [-3.0, -4.0, 1.0, 2.0, 5.0, 6.0]);
    }
}
