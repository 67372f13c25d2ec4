//! [`Drafting`]: has the scheduler verify guesses, as many as pay.

use super::EngineConfig;
use crate::backend::Backend;
use crate::error::Result;
use crate::model::{MemoryPlan, Model};
use crate::scheduler::{Sampled, Scheduler, SeqId, Step, StepSequence};
use crate::speculative::{DraftAsk, DraftModel, DraftSource, NgramIndex, Payoff, Speculation};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Most guesses that a step verifies, those of all sequences together.
pub(super) const STEP_DRAFTS: usize = 64;

/// Guesses for the running sequences of an engine.
pub(super) struct Drafting {
    settings: Speculation,
    model: Option<DraftModel>,
    payoff: Payoff,
    sequences: BTreeMap<SeqId, Guessed>,
    /// What guessing for the step in hand and computing it took; `None` if that tells nothing about
    /// the steps to come.
    took: Option<Duration>,
}

/// What is known of guesses for a sequence.
struct Guessed {
    ngrams: NgramIndex,
    /// Tokens of the next guess.
    length: usize,
}

impl Drafting {
    pub(super) fn new(
        settings: &Speculation,
        target: &Model,
        backend: &dyn Backend,
        config: &EngineConfig,
    ) -> Result<Drafting> {
        settings.check(target)?;
        let model = match &settings.source {
            DraftSource::Ngram => None,
            DraftSource::Model(draft) => {
                let mut config = EngineConfig {
                    n_ctx: Some(config.context(target).min(draft.hparams().n_ctx_train)),
                    cache_tokens: config.cache_tokens.or(Some(config.context(target))),
                    speculation: None,
                    ..config.clone()
                }
                .session(draft);
                config.max_outputs = config.max_outputs.max(1);
                MemoryPlan::new(draft, &config).check(draft)?;
                let n_vocab = target.n_vocab();
                Some(DraftModel::new(draft, backend, config, n_vocab)?)
            }
        };
        Ok(Drafting {
            settings: settings.clone(),
            model,
            payoff: Payoff::default(),
            sequences: BTreeMap::new(),
            took: None,
        })
    }

    /// Guesses for the sequences `asks` names, each with the most that its request wants.
    pub(super) fn propose(
        &mut self,
        scheduler: &mut Scheduler,
        asks: &[(SeqId, Option<usize>)],
    ) -> Result<()> {
        self.took = Some(Duration::ZERO);
        if asks.is_empty() || !(self.settings.always || self.payoff.wants_guesses()) {
            return Ok(());
        }
        let start = Instant::now();
        let share = (STEP_DRAFTS / asks.len()).max(1);
        let most = self.settings.max_tokens.min(share);
        let asks: Vec<DraftAsk<'_>> = asks
            .iter()
            .take(STEP_DRAFTS)
            .filter_map(|&(id, wanted)| {
                let guessed = self.sequences.entry(id).or_insert_with(|| Guessed {
                    ngrams: NgramIndex::default(),
                    length: most.min(FIRST_LENGTH),
                });
                let most = guessed.length.min(most).min(wanted.unwrap_or(most));
                let tokens = scheduler.tokens(id)?;
                (most > 0).then_some(DraftAsk { id, tokens, most })
            })
            .collect();
        // A prompt has to be read once, and not again.
        let reads_prompt = match &self.model {
            Some(model) => asks.iter().any(|ask| model.lag(ask) > 2 * STEP_DRAFTS),
            None => false,
        };
        let guesses = match &mut self.model {
            Some(model) => model.guess(&asks, self.settings.min_probability)?,
            None => asks
                .iter()
                .map(|ask| {
                    let guessed = self.sequences.get_mut(&ask.id);
                    guessed.map_or(Vec::new(), |g| g.ngrams.guess(ask.tokens, ask.most))
                })
                .collect(),
        };
        let ids: Vec<SeqId> = asks.iter().map(|ask| ask.id).collect();
        for (id, guess) in ids.into_iter().zip(guesses) {
            if !guess.is_empty() && guess.len() >= self.settings.min_tokens {
                scheduler.draft(id, &guess);
            }
        }
        self.took = (!reads_prompt).then(|| start.elapsed());
        Ok(())
    }

    /// The step took so long.
    pub(super) fn computed(&mut self, took: Duration) {
        self.took = self.took.map(|drafting| drafting + took);
    }

    /// Learns from what came of the guesses of a step.
    pub(super) fn verified(&mut self, step: &Step, sampled: &[Sampled]) {
        for part in step.sequences.iter().filter(|part| part.n_draft > 0) {
            let accepted = sampled.iter().find(|s| s.id == part.id);
            let accepted = accepted.map_or(0, |sampled| sampled.accepted);
            if let Some(guessed) = self.sequences.get_mut(&part.id) {
                // Right to the end: it could have been longer. Else about as long as it was right.
                guessed.length = if accepted == part.n_draft {
                    (2 * guessed.length).min(self.settings.max_tokens)
                } else {
                    (accepted + 1).max(self.settings.min_tokens)
                };
            }
        }
        // Prompts take their own time. What has to be computed again is a part of what guesses cost.
        let decodes = |part: &StepSequence| part.again || part.rows.len() == 1 + part.n_draft;
        let Some(took) = self.took.filter(|_| step.sequences.iter().all(decodes)) else {
            return;
        };
        let tokens = sampled.iter().map(|sampled| sampled.accepted + 1).sum();
        let seconds = took.as_secs_f64();
        let guessed = |part: &StepSequence| part.again || part.n_draft > 0;
        if step.sequences.iter().any(guessed) {
            self.payoff.guessed_step(seconds, tokens);
        } else {
            self.payoff.plain_step(seconds, tokens);
        }
    }

    /// A sequence is over.
    pub(super) fn forget(&mut self, id: SeqId) {
        self.sequences.remove(&id);
        if let Some(model) = &mut self.model {
            model.forget(id);
        }
    }
}

/// Tokens of the first guess of a sequence.
const FIRST_LENGTH: usize = 4;
