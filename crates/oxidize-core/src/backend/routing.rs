//! Which experts a token goes to, and with what weight.
//!
//! A few hundred numbers a token, so every backend that has them in memory uses this.

use super::reference::softmax;
use crate::graph::{ExpertGroups, Gating, GroupScore, Routing};
use crate::model::Weights;

/// The chosen experts of one token and their weights, best first.
pub(crate) fn route(logits: &[f32], routing: &Routing, weights: &Weights) -> Vec<(usize, f32)> {
    if let Gating::SparseMixer { jitter } = routing.gating {
        return sparse_mixer(logits, routing.n_used, jitter);
    }
    let scores = match routing.gating {
        Gating::Softmax => softmax(logits),
        Gating::Sigmoid => logits.iter().map(|&x| 1.0 / (1.0 + (-x).exp())).collect(),
        _ => logits.to_vec(),
    };
    let mut ranks = scores.clone();
    if let Some(bias) = routing.selection_bias {
        let bias = weights.get(bias).as_f32();
        ranks.iter_mut().zip(bias).for_each(|(rank, b)| *rank += b);
    }
    if let Some(groups) = routing.groups {
        leave_groups(&mut ranks, groups);
    }
    let mut chosen = best(&ranks);
    chosen.truncate(routing.n_used);

    let mut shares: Vec<f32> = chosen.iter().map(|&e| scores[e]).collect();
    if routing.gating == Gating::SoftmaxChosen {
        shares = softmax(&shares);
    } else if routing.renormalize {
        let total: f32 = shares.iter().sum();
        shares.iter_mut().for_each(|share| *share /= total);
    }
    let scale = |expert: usize| match routing.expert_scale {
        Some(each) => routing.scale * weights.get(each).as_f32()[expert],
        None => routing.scale,
    };
    let weighed = chosen.into_iter().zip(shares);
    weighed
        .map(|(expert, share)| (expert, share * scale(expert)))
        .collect()
}

/// Indexes from the largest to the smallest; of equals, the first is first.
fn best(x: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[b].total_cmp(&x[a]).then(a.cmp(&b)));
    order
}

/// Puts the experts of all but the best groups out of the running.
fn leave_groups(ranks: &mut [f32], groups: ExpertGroups) {
    let size = ranks.len() / groups.n_groups;
    let count = match groups.score {
        GroupScore::Best => 1,
        GroupScore::TwoBest => 2,
    };
    let score = |group: &[f32]| -> f32 { best(group).iter().take(count).map(|&e| group[e]).sum() };
    let scores: Vec<f32> = ranks.chunks_exact(size).map(score).collect();
    for group in best(&scores).into_iter().skip(groups.n_used) {
        ranks[group * size..(group + 1) * size].fill(f32::NEG_INFINITY);
    }
}

/// Each choice weighed by a softmax over the experts that come near it; those chosen before do not
/// take part.
fn sparse_mixer(logits: &[f32], n_used: usize, jitter: f32) -> Vec<(usize, f32)> {
    let mut left = logits.to_vec();
    let mut chosen = Vec::with_capacity(n_used);
    for _ in 0..n_used {
        let Some(&expert) = best(&left).first() else {
            break;
        };
        let top = left[expert];
        let near = |(&logit, &left): (&f32, &f32)| {
            let distance = (top - logit) / logit.abs().max(top);
            if distance > 2.0 * jitter {
                f32::NEG_INFINITY
            } else {
                left
            }
        };
        let masked: Vec<f32> = logits.iter().zip(&left).map(near).collect();
        chosen.push((expert, softmax(&masked)[expert]));
        left[expert] = f32::NEG_INFINITY;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routing(gating: Gating) -> Routing {
        Routing {
            n_experts: 4,
            n_used: 2,
            gating,
            selection_bias: None,
            groups: None,
            renormalize: false,
            scale: 1.0,
            expert_scale: None,
            weigh_input: false,
        }
    }

    #[test]
    fn groups_limit_the_choice() {
        let logits = [3.0, 0.0, 2.0, 2.0];
        let mut routing = routing(Gating::Sigmoid);
        let chosen = |routing: &Routing| -> Vec<usize> {
            let routes = route(&logits, routing, &Weights::default());
            routes.into_iter().map(|(expert, _)| expert).collect()
        };
        assert_eq!(chosen(&routing), [0, 2]);
        for (score, expected) in [(GroupScore::Best, [0, 1]), (GroupScore::TwoBest, [2, 3])] {
            routing.groups = Some(ExpertGroups {
                n_groups: 2,
                n_used: 1,
                score,
            });
            assert_eq!(chosen(&routing), expected);
        }
    }

    #[test]
    fn a_bias_moves_the_choice_and_not_the_weight() {
        let mut weights = Weights::default();
        let mut routing = routing(Gating::Sigmoid);
        routing.n_used = 1;
        routing.selection_bias = Some(weights.push_vector("bias", vec![0.0, 1.0, 0.0, 0.0]));
        let routes = route(&[2.0, 0.0, 1.0, 1.0], &routing, &weights);
        assert_eq!(routes, [(1, 0.5)]);
    }
}
