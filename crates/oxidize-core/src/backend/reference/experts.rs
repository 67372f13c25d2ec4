//! Mixtures of experts of the reference backend, token by token.

use super::ReferenceSession;
use super::math::{activate, add_to};
use crate::backend::routing::Router;
use crate::backend::{BackendError, Batch};
use crate::graph::{ExpertProjection, ExpertWeights, ExpertsOp, Rows};

impl ReferenceSession {
    pub(super) fn experts(
        &self,
        x: &[f32],
        router_logits: &[f32],
        spec: &ExpertsOp,
        batch: &Batch<'_>,
    ) -> Result<Vec<f32>, BackendError> {
        let mut router = Router::default();
        let width = self.weights.get(spec.down.weight).rows;
        let mut out = vec![0.0; x.len()];
        for (t, (x, logits)) in x
            .chunks_exact(width)
            .zip(router_logits.chunks_exact(spec.routing.n_experts))
            .enumerate()
        {
            let routes = router.route(logits, &spec.routing, &self.weights);
            for &(expert, weight) in routes {
                let (before, after) = match spec.routing.apply_router_weight_on_input {
                    true => (weight, 1.0),
                    false => (1.0, weight),
                };
                let x: Vec<f32> = x.iter().map(|x| x * before).collect();
                let product = |x: &[f32], stack: ExpertWeights, projection: ExpertProjection| {
                    let mut out = self.expert(x, stack, expert)?;
                    for adapter in spec.adapters_of(projection) {
                        let scales = batch.scales(Rows::Tokens, adapter.adapter).nth(t);
                        let factor = adapter.factor * scales.unwrap_or(0.0);
                        let low = self.matmul(x, adapter.down, expert)?;
                        let low: Vec<f32> = low.iter().map(|x| x * factor).collect();
                        add_to(&mut out, &self.matmul(&low, adapter.up, expert)?);
                    }
                    Ok::<_, BackendError>(out)
                };
                let mut hidden = product(&x, spec.up, ExpertProjection::Up)?;
                match spec.gate {
                    Some(gate) => {
                        let gate = product(&x, gate, ExpertProjection::Gate)?;
                        for (h, g) in hidden.iter_mut().zip(gate) {
                            *h = gated(spec, g, *h);
                        }
                    }
                    None => hidden
                        .iter_mut()
                        .for_each(|h| *h = activate(spec.activation, *h)),
                }
                let down = product(&hidden, spec.down, ExpertProjection::Down)?;
                for (out, down) in out[t * width..(t + 1) * width].iter_mut().zip(down) {
                    *out += after * down;
                }
            }
        }
        Ok(out)
    }

    /// A row times a matrix of a stack, plus its bias.
    fn expert(
        &self,
        x: &[f32],
        stack: ExpertWeights,
        expert: usize,
    ) -> Result<Vec<f32>, BackendError> {
        let mut out = self.matmul(x, stack.weight, expert)?;
        if let Some(bias) = self.vector(stack.bias) {
            let len = out.len();
            add_to(&mut out, &bias[expert * len..(expert + 1) * len]);
        }
        Ok(out)
    }
}

/// The gated linear unit of both halves.
fn gated(spec: &ExpertsOp, gate: f32, up: f32) -> f32 {
    match spec.glu_limit {
        Some(limit) => activate(spec.activation, gate.min(limit)) * (up.clamp(-limit, limit) + 1.0),
        None => activate(spec.activation, gate) * up,
    }
}
