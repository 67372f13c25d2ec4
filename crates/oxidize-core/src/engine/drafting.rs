//! [`Drafting`]: proposes draft tokens to the scheduler, as long as speculation pays off.

use super::EngineConfig;
use crate::backend::Backend;
use crate::backend::MemoryPlan;
use crate::clock::Instant;
use crate::error::Result;
use crate::model::Model;
use crate::scheduler::{Sampled, Scheduler, SeqId, Step, StepSequence};
use crate::speculative::{
    DraftController, DraftModel, DraftParams, DraftRequest, DraftSource, NgramIndex, Speculation,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum draft tokens per step, over all sequences.
pub(super) const STEP_DRAFTS: usize = 64;
/// Ranges of batch sizes whose times are compared apart. The last one has no end.
const BATCH_SIZES: usize = 7;

/// Drafting for the running sequences of an engine.
pub(super) struct Drafting {
    settings: Speculation,
    model: Option<DraftModel>,
    /// For 1, 2 to 3, 4 to 7, … decoding sequences: their steps take different times.
    controllers: [DraftController; BATCH_SIZES],
    /// Index of the controller of the current step.
    batch_size: usize,
    sequences: BTreeMap<SeqId, SequenceState>,
    /// Time for drafting and computing the current step; `None` if it is not representative.
    elapsed: Option<Duration>,
}

/// A sequence that generates its answer.
pub(super) struct Decoding<'a> {
    pub(super) id: SeqId,
    pub(super) n_prompt: usize,
    pub(super) params: &'a DraftParams,
    /// Tokens of the predicted answer.
    pub(super) prediction: &'a [u32],
}

/// Drafting state of a sequence.
struct SequenceState {
    ngrams: NgramIndex,
    /// Maximum tokens of the next draft.
    draft_len: usize,
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
                // The draft model keeps one block table per sequence.
                config.windows = Vec::new();
                MemoryPlan::new(draft, backend, &config).check(draft)?;
                let n_vocab = target.n_vocab();
                Some(DraftModel::new(draft, backend, config, n_vocab)?)
            }
        };
        Ok(Drafting {
            settings: settings.clone(),
            model,
            controllers: Default::default(),
            batch_size: 0,
            sequences: BTreeMap::new(),
            elapsed: None,
        })
    }

    /// Proposes drafts for the sequences in `decoding`, each limited by its request and by [`STEP_DRAFTS`].
    pub(super) async fn propose(
        &mut self,
        scheduler: &mut Scheduler,
        decoding: &[Decoding<'_>],
    ) -> Result<()> {
        self.elapsed = Some(Duration::ZERO);
        let n_bits = usize::BITS - decoding.len().leading_zeros();
        self.batch_size = (n_bits as usize).clamp(1, BATCH_SIZES) - 1;
        let wanted = || decoding.iter().filter(|d| d.params.max_tokens != Some(0));
        let n_wanted = wanted().count();
        if n_wanted == 0 || !(self.settings.always || self.controller().should_draft()) {
            return Ok(());
        }
        let start = Instant::now();
        let per_sequence = (STEP_DRAFTS / n_wanted).max(1);
        let max_draft = self.settings.max_tokens.min(per_sequence);
        let mut drafts: Vec<(SeqId, Vec<u32>)> = Vec::new();
        let mut requests: Vec<DraftRequest<'_>> = Vec::new();
        for sequence in wanted().take(STEP_DRAFTS) {
            let (id, params) = (sequence.id, sequence.params);
            let Some(tokens) = scheduler.tokens(id) else {
                continue;
            };
            let state = self.sequences.entry(id).or_insert_with(|| SequenceState {
                ngrams: NgramIndex::with_prediction(sequence.prediction),
                draft_len: max_draft.min(INITIAL_DRAFT_LEN),
            });
            let limit = params.max_tokens.unwrap_or(max_draft).min(max_draft);
            let max_tokens = state.draft_len.min(limit);
            if self.model.is_none() || !sequence.prediction.is_empty() {
                let draft = state.ngrams.draft(tokens, sequence.n_prompt, max_tokens);
                if self.model.is_none() || !draft.is_empty() {
                    drafts.push((id, draft));
                    continue;
                }
            }
            let min_probability = params.min_probability;
            requests.push(DraftRequest {
                id,
                tokens,
                max_tokens,
                min_probability: min_probability.unwrap_or(self.settings.min_probability),
            });
        }
        let mut drafts_prompt = false;
        if let Some(model) = &mut self.model {
            // A step in which the draft model processes a prompt is not representative.
            let lags = |request: &DraftRequest<'_>| model.lag(request) > 2 * STEP_DRAFTS;
            drafts_prompt = requests.iter().any(lags);
            let ids: Vec<SeqId> = requests.iter().map(|request| request.id).collect();
            drafts.extend(ids.into_iter().zip(model.draft(&requests).await?));
        }
        for (id, draft) in drafts {
            let min_tokens = wanted()
                .find(|sequence| sequence.id == id)
                .and_then(|sequence| sequence.params.min_tokens)
                .unwrap_or(self.settings.min_tokens);
            if !draft.is_empty() && draft.len() >= min_tokens {
                scheduler.draft(id, &draft);
            }
        }
        self.elapsed = (!drafts_prompt).then(|| start.elapsed());
        Ok(())
    }

    /// Adds the time that computing the step elapsed.
    pub(super) fn add_step_time(&mut self, elapsed: Duration) {
        self.elapsed = self.elapsed.map(|drafting| drafting + elapsed);
    }

    /// Adapts draft lengths and the controller to the results of a step.
    pub(super) fn record_step(&mut self, step: &Step, sampled: &[Sampled]) {
        for part in step.sequences.iter().filter(|part| part.n_draft > 0) {
            let accepted = sampled.iter().find(|s| s.id == part.id);
            let accepted = accepted.map_or(0, |sampled| sampled.accepted);
            if let Some(state) = self.sequences.get_mut(&part.id) {
                // If the whole draft was accepted, try a longer one, else one about as long as the accepted
                // part.
                state.draft_len = if accepted == part.n_draft {
                    (2 * state.draft_len).min(self.settings.max_tokens)
                } else {
                    (accepted + 1).max(self.settings.min_tokens)
                };
            }
        }
        // Steps with prompts are not comparable. Recomputing accepted drafts is part of the cost of drafting.
        let decodes = |part: &StepSequence| part.recompute || part.rows.len() == 1 + part.n_draft;
        let Some(elapsed) = self.elapsed.filter(|_| step.sequences.iter().all(decodes)) else {
            return;
        };
        let tokens = sampled.iter().map(|sampled| sampled.accepted + 1).sum();
        let seconds = elapsed.as_secs_f64();
        let drafted = |part: &StepSequence| part.recompute || part.n_draft > 0;
        if step.sequences.iter().any(drafted) {
            self.controller().draft_step(seconds, tokens);
        } else {
            self.controller().plain_step(seconds, tokens);
        }
    }

    fn controller(&mut self) -> &mut DraftController {
        &mut self.controllers[self.batch_size]
    }

    /// Removes the state of a finished sequence.
    pub(super) fn remove(&mut self, id: SeqId) {
        self.sequences.remove(&id);
        if let Some(model) = &mut self.model {
            model.remove(id);
        }
    }
}

/// Maximum tokens of a sequence's first draft.
const INITIAL_DRAFT_LEN: usize = 4;
