//! Repetition, frequency and presence penalties on the tokens of a recent window. Repetition:
//! Keskar et al. 2019 (CTRL); frequency and presence: OpenAI's definition.

use std::collections::HashMap;

use super::chain::{SamplerVocab, Stage};
use super::history::History;
use super::{Candidates, Rng, SamplingParams};

#[derive(Debug, Clone)]
struct Penalties {
    repeat: f32,
    frequency: f32,
    presence: f32,
    exempt: Option<u32>,
    history: History,
    counts: HashMap<u32, u32>,
}

/// Builds the stage, or `None` if all penalties are off.
pub(super) fn build(params: &SamplingParams, vocab: &SamplerVocab) -> Option<Box<dyn Stage>> {
    let off = params.repeat_penalty == 1.0
        && params.frequency_penalty == 0.0
        && params.presence_penalty == 0.0;
    if off || params.repeat_last_n == 0 {
        return None;
    }
    Some(Box::new(Penalties {
        repeat: params.repeat_penalty,
        frequency: params.frequency_penalty,
        presence: params.presence_penalty,
        exempt: vocab.newline.filter(|_| !params.penalize_newline),
        history: History::new(params.repeat_last_n),
        counts: HashMap::new(),
    }))
}

impl Stage for Penalties {
    fn apply(&mut self, candidates: &mut Candidates, _: &mut Rng) {
        for (&token, &count) in &self.counts {
            if Some(token) == self.exempt {
                continue;
            }
            if let Some(logit) = candidates.logit_of_mut(token) {
                // Reduces the logit on either side of zero.
                *logit = if *logit > 0.0 {
                    *logit / self.repeat
                } else {
                    *logit * self.repeat
                };
                *logit -= count as f32 * self.frequency + self.presence;
            }
        }
    }

    fn accept(&mut self, token: u32) {
        *self.counts.entry(token).or_insert(0) += 1;
        if let Some(old) = self.history.push(token)
            && let Some(count) = self.counts.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&old);
            }
        }
    }

    fn boxed_clone(&self) -> Box<dyn Stage> {
        Box::new(self.clone())
    }
}
