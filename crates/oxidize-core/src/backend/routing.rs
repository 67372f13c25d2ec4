//! Expert routing: the experts of a token and their gate weights.
//!
//! It works on one row of router logits, so every backend that has them on the host uses it.

use super::row_math::softmax;
use crate::graph::{ExpertGroups, Gating, GroupScore, Routing};
use crate::weights::Weights;

/// Routes tokens to experts, one token at a time. Its buffers are reused.
#[derive(Default)]
pub(super) struct Router {
    scores: Vec<f32>,
    /// Scores by which experts are selected.
    ranks: Vec<f32>,
    group_scores: Vec<f32>,
    order: Vec<usize>,
    gate_weights: Vec<f32>,
    chosen: Vec<(usize, f32)>,
}

impl Router {
    /// The experts of a token with these router logits and their gate weights, best expert first.
    pub(super) fn route(
        &mut self,
        logits: &[f32],
        routing: &Routing,
        weights: &Weights,
    ) -> &[(usize, f32)] {
        self.chosen.clear();
        if let Gating::SparseMixer { jitter } = routing.gating {
            self.sparse_mixer(logits, routing.n_expert_used, jitter);
            return &self.chosen;
        }
        self.scores.clear();
        self.scores.extend_from_slice(logits);
        match routing.gating {
            Gating::Softmax => softmax(&mut self.scores),
            Gating::Sigmoid => {
                let sigmoid = |x: &mut f32| *x = 1.0 / (1.0 + (-*x).exp());
                self.scores.iter_mut().for_each(sigmoid);
            }
            Gating::SoftmaxChosen | Gating::SparseMixer { .. } => {}
        }
        self.ranks.clone_from(&self.scores);
        if let Some(bias) = routing.selection_bias {
            let ranks = self.ranks.iter_mut();
            ranks
                .zip(weights.get(bias).as_f32())
                .for_each(|(rank, b)| *rank += b);
        }
        if let Some(groups) = routing.groups {
            self.mask_groups(groups);
        }
        let chosen = best(&self.ranks, routing.n_expert_used, &mut self.order);

        self.gate_weights.clear();
        let scores = chosen.iter().map(|&expert| self.scores[expert]);
        self.gate_weights.extend(scores);
        if routing.gating == Gating::SoftmaxChosen {
            softmax(&mut self.gate_weights);
        } else if routing.renormalize {
            let total: f32 = self.gate_weights.iter().sum();
            self.gate_weights.iter_mut().for_each(|w| *w /= total);
        }
        let scale = |expert: usize| match routing.expert_scale {
            Some(scales) => routing.scale * weights.get(scales).as_f32()[expert],
            None => routing.scale,
        };
        let weighted = chosen.iter().zip(&self.gate_weights);
        let weighted = weighted.map(|(&expert, &weight)| (expert, weight * scale(expert)));
        self.chosen.extend(weighted);
        &self.chosen
    }

    /// Excludes the experts of all but the best groups (group-limited routing, DeepSeek-V2).
    fn mask_groups(&mut self, groups: ExpertGroups) {
        let size = self.ranks.len() / groups.n_groups;
        let count = match groups.score {
            GroupScore::Best => 1,
            GroupScore::TwoBest => 2,
        };
        let order = &mut self.order;
        let score = |group: &[f32]| -> f32 {
            let best = best(group, count, order);
            best.iter().map(|&expert| group[expert]).sum()
        };
        self.group_scores.clear();
        self.group_scores
            .extend(self.ranks.chunks_exact(size).map(score));
        best(&self.group_scores, groups.n_groups, &mut self.order);
        for &group in self.order.iter().skip(groups.n_groups_used) {
            self.ranks[group * size..(group + 1) * size].fill(f32::NEG_INFINITY);
        }
    }

    /// SparseMixer without its noise (Liu et al. 2023): the gate weight of each choice is its softmax over the
    /// experts whose logits are close to it, without those that were chosen before.
    fn sparse_mixer(&mut self, logits: &[f32], n_expert_used: usize, jitter: f32) {
        let (left, masked) = (&mut self.ranks, &mut self.scores);
        left.clear();
        left.extend_from_slice(logits);
        for _ in 0..n_expert_used {
            let Some(&expert) = best(left, 1, &mut self.order).first() else {
                break;
            };
            let top = left[expert];
            let close = |(&logit, &left): (&f32, &f32)| {
                let distance = (top - logit) / logit.abs().max(top);
                if distance > 2.0 * jitter {
                    f32::NEG_INFINITY
                } else {
                    left
                }
            };
            masked.clear();
            masked.extend(logits.iter().zip(&*left).map(close));
            softmax(masked);
            self.chosen.push((expert, masked[expert]));
            left[expert] = f32::NEG_INFINITY;
        }
    }
}

/// Indexes of the `n` largest values, largest first; of equal values, the lowest index first.
fn best<'a>(x: &[f32], n: usize, order: &'a mut Vec<usize>) -> &'a [usize] {
    order.clear();
    order.extend(0..x.len());
    let descending = |&a: &usize, &b: &usize| x[b].total_cmp(&x[a]).then(a.cmp(&b));
    if n < x.len() {
        order.select_nth_unstable_by(n, descending);
        order.truncate(n);
    }
    order.sort_unstable_by(descending);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routing(gating: Gating) -> Routing {
        Routing {
            n_experts: 4,
            n_expert_used: 2,
            gating,
            selection_bias: None,
            groups: None,
            renormalize: false,
            scale: 1.0,
            expert_scale: None,
            apply_router_weight_on_input: false,
        }
    }

    #[test]
    fn groups_limit_the_choice() {
        let logits = [3.0, 0.0, 2.0, 2.0];
        let mut routing = routing(Gating::Sigmoid);
        let mut router = Router::default();
        let mut chosen = |routing: &Routing| -> Vec<usize> {
            let routes = router.route(&logits, routing, &Weights::default());
            routes.iter().map(|&(expert, _)| expert).collect()
        };
        assert_eq!(chosen(&routing), [0, 2]);
        for (score, expected) in [(GroupScore::Best, [0, 1]), (GroupScore::TwoBest, [2, 3])] {
            routing.groups = Some(ExpertGroups {
                n_groups: 2,
                n_groups_used: 1,
                score,
            });
            assert_eq!(chosen(&routing), expected);
        }
    }

    #[test]
    fn selection_bias_changes_the_choice_but_not_the_weight() {
        let mut weights = Weights::default();
        let mut routing = routing(Gating::Sigmoid);
        routing.n_expert_used = 1;
        routing.selection_bias = Some(weights.push_vector("bias", vec![0.0, 1.0, 0.0, 0.0]));
        let mut router = Router::default();
        let routes = router.route(&[2.0, 0.0, 1.0, 1.0], &routing, &weights);
        assert_eq!(routes, [(1, 0.5)]);
    }

    #[test]
    fn best_is_the_start_of_a_stable_sort() {
        let x = [1.0, 3.0, 3.0, f32::NEG_INFINITY, 2.0, 3.0];
        let mut order = Vec::new();
        for n in 0..8 {
            let expected = [1, 2, 5, 4, 0, 3];
            assert_eq!(best(&x, n, &mut order), &expected[..n.min(6)]);
        }
    }
}
