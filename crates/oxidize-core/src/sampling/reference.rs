//! Reference implementations of the samplers for tests: full sorts, f64, the formulas of the
//! papers.

/// Tokens and probabilities, most likely first; the lower id first among ties.
pub(super) type Sorted = Vec<(u32, f64)>;

pub(super) fn softmax(logits: &[(u32, f64)]) -> Sorted {
    let max = logits
        .iter()
        .map(|&(_, logit)| logit)
        .fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = logits.iter().map(|&(_, logit)| (logit - max).exp()).sum();
    let mut sorted: Sorted = logits
        .iter()
        .map(|&(id, logit)| (id, (logit - max).exp() / total))
        .collect();
    sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    sorted
}

pub(super) fn renormalize(mut tokens: Sorted) -> Sorted {
    let total: f64 = tokens.iter().map(|&(_, p)| p).sum();
    tokens.iter_mut().for_each(|(_, p)| *p /= total);
    tokens
}

pub(super) fn temperature(logits: &[f32], temperature: f64) -> Sorted {
    let scaled: Vec<(u32, f64)> = logits
        .iter()
        .enumerate()
        .map(|(id, &logit)| (id as u32, f64::from(logit) / temperature))
        .collect();
    softmax(&scaled)
}

pub(super) fn top_k(tokens: Sorted, k: usize) -> Sorted {
    renormalize(tokens.into_iter().take(k).collect())
}

pub(super) fn top_p(tokens: Sorted, p: f64) -> Sorted {
    let mut mass = 0.0;
    let mut kept = Vec::new();
    for token in tokens {
        mass += token.1;
        kept.push(token);
        if mass >= p {
            break;
        }
    }
    renormalize(kept)
}

pub(super) fn min_p(tokens: Sorted, min_p: f64) -> Sorted {
    let threshold = tokens[0].1 * min_p;
    renormalize(
        tokens
            .into_iter()
            .filter(|&(_, p)| p >= threshold)
            .collect(),
    )
}

pub(super) fn typical(mut tokens: Sorted, typical_p: f64) -> Sorted {
    let entropy: f64 = tokens
        .iter()
        .filter(|t| t.1 > 0.0)
        .map(|&(_, p)| -p * p.ln())
        .sum();
    tokens.sort_by(|a, b| {
        (-a.1.ln() - entropy)
            .abs()
            .total_cmp(&(-b.1.ln() - entropy).abs())
    });
    let mut kept = top_p(tokens, typical_p);
    kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    kept
}

pub(super) fn tail_free(tokens: Sorted, z: f64) -> Sorted {
    let first: Vec<f64> = tokens
        .windows(2)
        .map(|pair| pair[0].1 - pair[1].1)
        .collect();
    let second: Vec<f64> = first
        .windows(2)
        .map(|pair| (pair[0] - pair[1]).abs())
        .collect();
    let total: f64 = second.iter().sum();
    let mut sum = 0.0;
    let mut keep = tokens.len();
    for (i, value) in second.iter().enumerate() {
        sum += value / total;
        if sum > z && i >= 1 {
            keep = i;
            break;
        }
    }
    renormalize(tokens.into_iter().take(keep).collect())
}

pub(super) fn top_n_sigma(logits: &[f32], n: f64) -> Sorted {
    let values: Vec<f64> = logits.iter().map(|&logit| f64::from(logit)).collect();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let sigma = (values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / values.len() as f64)
        .sqrt();
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let kept: Vec<(u32, f64)> = values
        .iter()
        .enumerate()
        .filter(|&(_, &value)| value >= max - n * sigma)
        .map(|(id, &value)| (id as u32, value))
        .collect();
    softmax(&kept)
}

pub(super) fn xtc(tokens: Sorted, threshold: f64) -> Sorted {
    let above = tokens.iter().filter(|&&(_, p)| p >= threshold).count();
    renormalize(tokens.into_iter().skip(above.saturating_sub(1)).collect())
}

pub(super) fn dynamic_temperature(logits: &[f32], low: f64, high: f64, exponent: f64) -> Sorted {
    let plain = temperature(logits, 1.0);
    let entropy: f64 = plain
        .iter()
        .filter(|t| t.1 > 0.0)
        .map(|&(_, p)| -p * p.ln())
        .sum();
    let normalized = entropy / (logits.len() as f64).ln();
    temperature(logits, low + (high - low) * normalized.powf(exponent))
}

/// Length of the longest repetition that each token would extend, by brute force.
pub(super) fn repetitions(tokens: &[u32], limit: usize, allowed: usize) -> Vec<(u32, usize)> {
    let mut found: std::collections::BTreeMap<u32, usize> = Default::default();
    for next in 1..tokens.len() {
        let mut length = 0;
        while length < next && tokens[next - 1 - length] == tokens[tokens.len() - 1 - length] {
            length += 1;
        }
        let length = length.min(limit);
        if length >= allowed {
            let longest = found.entry(tokens[next]).or_insert(0);
            *longest = (*longest).max(length);
        }
    }
    found.into_iter().collect()
}
