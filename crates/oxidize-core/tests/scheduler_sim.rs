//! Simulation of the scheduler: a million random steps over tiny pools, with cancellations, forks,
//! truncations, drafts and failures at any time.
//!
//! The simulated model stores in each KV position a hash of all tokens before it, as attention in effect
//! does. It reads the hash of the previous position through the block table of the plan. A wrong block, a
//! wrong salt, a missing copy or a block overwritten too early therefore shows as a hash that does not match
//! the sequence's own tokens. Layers with a window have blocks and tables of their own, in which each token
//! reads all positions of its window.

use std::collections::{BTreeMap, BTreeSet};

use oxidize_core::graph::Window;
use oxidize_core::kv::{BlockCopy, BlockId, WindowGroup};
use oxidize_core::scheduler::{
    Event, LogitsAt, PrefixReuse, Sampled, Scheduler, SchedulerConfig, SeqId, SequenceRequest,
    Step, StepSequence, SubmitError,
};

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        hash_pair(self.0, 0)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A number from 1 to `max`.
    fn size(&mut self, max: usize) -> usize {
        1 + self.below(max)
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

fn hash_pair(a: u64, b: u64) -> u64 {
    let mut z = a ^ b.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn is_recurrent(config: &SchedulerConfig) -> bool {
    matches!(config.reuse, PrefixReuse::Recurrent { .. })
}

/// True if a truncated sequence may have to compute positions again that it keeps: its recurrent state or
/// window blocks are gone.
fn may_recompute(config: &SchedulerConfig) -> bool {
    is_recurrent(config) || !config.windows.is_empty()
}

/// Up to two windows, each with at least as many blocks as a single sequence needs.
fn random_windows(rng: &mut Rng, config: &SchedulerConfig) -> Vec<WindowGroup> {
    let n_windows = [0, 0, 1, 1, 2][rng.below(5)];
    let window = |_| {
        let span = rng.size(14);
        let window = match rng.below(3) {
            0 => Window::Chunk(span),
            _ => Window::Sliding(span),
        };
        let group = WindowGroup {
            window,
            n_blocks: 0,
        };
        let least = group.blocks_per_sequence(config.block_size);
        let least = least.min(config.capacity().div_ceil(config.block_size));
        let n_blocks = (least + rng.below(12)) as u32;
        WindowGroup { window, n_blocks }
    };
    (0..n_windows).map(window).collect()
}

/// GroundTruth state of a sequence, derived from its tokens alone.
#[derive(Clone)]
struct GroundTruth {
    /// Hash before the first position and after each one.
    hashes: Vec<u64>,
    tokens: Vec<u32>,
    n_prompt: usize,
    max_tokens: usize,
    logits: LogitsAt,
    /// Lower bound of the computed positions, from steps and events. There may be more, computed by other
    /// sequences.
    computed: usize,
    /// True if no other sequence can have computed anything for this one.
    is_alone: bool,
    /// True if the sequence got a token in the last step and so must be in the next.
    decoding: bool,
    /// Positions that had logits, with [`LogitsAt::Every`].
    scored: usize,
}

impl GroundTruth {
    fn push(&mut self, token: u32) {
        self.hashes.push(hash_pair(
            self.hashes[self.tokens.len()],
            u64::from(token) + 1,
        ));
        self.tokens.push(token);
    }

    fn truncate(&mut self, n_tokens: usize) {
        self.tokens.truncate(n_tokens);
        self.hashes.truncate(n_tokens + 1);
        self.computed = self.computed.min(n_tokens - 1);
        self.scored = self.scored.min(n_tokens - 1);
        self.decoding = false;
    }
}

struct Sim {
    rng: Rng,
    config: SchedulerConfig,
    scheduler: Scheduler,
    /// KV cache of each group of layers: the hash at each position of each block.
    shadow: Vec<Vec<Vec<u64>>>,
    /// Recurrent state of each slot: the hash of all tokens fed.
    states: Vec<u64>,
    truth: BTreeMap<SeqId, GroundTruth>,
    /// Sequences of the step in flight that were truncated since it was planned.
    disturbed: BTreeSet<SeqId>,
    next_id: u64,
    n_steps: usize,
    vocabulary: usize,
    /// True if the model's most likely token is always sampled.
    greedy: bool,
    /// Drafts proposed for the next step.
    drafts: BTreeMap<SeqId, Vec<u32>>,
    counts: Counts,
}

/// Counts of events, to check that the simulation covers them.
#[derive(Default, Debug)]
struct Counts {
    cache_hits: usize,
    preemptions: usize,
    copies: usize,
    state_copies: usize,
    accepted: usize,
    abandoned: usize,
    stops: usize,
    lengths: usize,
    queue_full: usize,
    cancelled: usize,
    /// Positions of windows that were read after earlier ones of the sequence had been given up.
    window_reads: usize,
    /// Prompts that continue from a cached prefix with window blocks.
    window_hits: usize,
}

impl Sim {
    /// Creates a simulation with a random configuration.
    fn random(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let mut config = SchedulerConfig {
            n_blocks: rng.size(20) as u32,
            block_size: rng.size(6),
            windows: Vec::new(),
            max_batch_tokens: rng.size(24),
            max_sequences: rng.size(8),
            max_outputs: rng.size(24),
            max_queue: rng.size(8),
            context_length: 2 + rng.below(70),
            reuse: match rng.below(8) {
                0 => PrefixReuse::None,
                1 | 2 => PrefixReuse::Recurrent {
                    checkpoints: rng.below(6) as u32,
                },
                _ => PrefixReuse::Blocks,
            },
            steps_per_priority: rng.below(40) as u32,
        };
        config.windows = random_windows(&mut rng, &config);
        let vocabulary = 2 + rng.below(3);
        Self::new(config, vocabulary, rng)
    }

    fn new(config: SchedulerConfig, vocabulary: usize, rng: Rng) -> Self {
        let of_windows = config.windows.iter().map(|group| group.n_blocks);
        let sizes = [config.n_blocks].into_iter().chain(of_windows);
        let shadow = sizes.map(|n| vec![vec![0; config.block_size]; n as usize]);
        Self {
            scheduler: Scheduler::new(config.clone()).unwrap(),
            shadow: shadow.collect(),
            states: vec![0; config.max_sequences + 6],
            config,
            truth: BTreeMap::new(),
            disturbed: BTreeSet::new(),
            next_id: 0,
            n_steps: 0,
            vocabulary,
            greedy: false,
            drafts: BTreeMap::new(),
            counts: Counts::default(),
            rng,
        }
    }

    /// A random waiting or running sequence.
    fn any(&mut self) -> Option<SeqId> {
        let n = self.truth.len();
        if n == 0 {
            None
        } else {
            self.truth.keys().nth(self.rng.below(n)).copied()
        }
    }

    fn fresh_id(&mut self) -> SeqId {
        self.next_id += 1;
        SeqId(self.next_id)
    }

    fn submit(&mut self) {
        let id = self.fresh_id();
        // A small vocabulary and few beginnings, so that prompts often share a prefix.
        let mut beginning = Rng(self.rng.below(3) as u64);
        let n_shared = self.rng.below(20);
        let mut tokens: Vec<u32> = (0..n_shared)
            .map(|_| beginning.below(self.vocabulary) as u32)
            .collect();
        let n_own = self.rng.below(12);
        tokens.extend((0..n_own).map(|_| self.rng.below(self.vocabulary) as u32));
        let request = SequenceRequest {
            priority: self.rng.below(3) as i32 - 1,
            salt: self.rng.below(2) as u64,
            logits: if self.rng.one_in(12) {
                LogitsAt::Every
            } else {
                LogitsAt::Last
            },
            reuse_prefix: !self.rng.one_in(12),
            ..SequenceRequest::new(id, tokens, self.rng.below(24))
        };
        self.submit_request(request);
    }

    /// Submits a request and records its expected state. Returns true if it was accepted.
    fn submit_request(&mut self, request: SequenceRequest) -> bool {
        let SequenceRequest {
            id,
            salt,
            logits,
            max_new_tokens,
            ..
        } = request;
        let tokens = request.tokens.clone();
        match self.scheduler.submit(request) {
            Ok(()) => {
                let mut truth = GroundTruth {
                    hashes: vec![hash_pair(salt, 0x5A17)],
                    tokens: Vec::new(),
                    n_prompt: tokens.len(),
                    max_tokens: (tokens.len() + max_new_tokens).min(self.config.capacity()),
                    logits,
                    computed: 0,
                    is_alone: self.config.reuse == PrefixReuse::None,
                    decoding: false,
                    scored: 0,
                };
                tokens.iter().for_each(|&token| truth.push(token));
                self.truth.insert(id, truth);
                return true;
            }
            Err(SubmitError::Empty) => assert!(tokens.is_empty()),
            Err(SubmitError::TooLong { requested, limit }) => {
                assert_eq!(requested, tokens.len() + max_new_tokens.min(1));
                assert!(limit == self.config.capacity() && requested > limit);
            }
            Err(SubmitError::QueueFull { limit }) => {
                assert_eq!(limit, self.config.max_queue);
                assert!(self.scheduler.stats().queued >= limit);
                self.counts.queue_full += 1;
            }
            Err(error) => panic!("{error}"),
        }
        false
    }

    /// Random action that a client or the engine may take at any time.
    fn disturb(&mut self, in_flight: bool) {
        let action = self.rng.below(8);
        if action < 3 {
            return self.submit();
        }
        let Some(id) = self.any() else {
            return self.submit();
        };
        match action {
            3 | 4 => {
                let ended = if action == 3 {
                    self.scheduler.cancel(id)
                } else {
                    self.scheduler.finish(id)
                };
                assert!(ended && !self.scheduler.cancel(id));
                self.truth.remove(&id);
                self.counts.cancelled += 1;
            }
            5 => {
                let child = self.fresh_id();
                match self.scheduler.fork(id, child) {
                    Ok(()) => {
                        let mut truth = self.truth[&id].clone();
                        truth.decoding = false;
                        truth.computed = 0;
                        truth.is_alone = false;
                        truth.scored = 0;
                        truth.logits = LogitsAt::Last;
                        self.truth.insert(child, truth);
                    }
                    Err(SubmitError::QueueFull { .. }) => self.counts.queue_full += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            6 => {
                let truth = self.truth.get_mut(&id).unwrap();
                let n_tokens =
                    truth.n_prompt + self.rng.below(truth.tokens.len() - truth.n_prompt + 1);
                assert!(self.scheduler.truncate(id, n_tokens));
                truth.truncate(n_tokens);
                truth.is_alone = false;
                if may_recompute(&self.config) {
                    truth.computed = 0;
                }
                self.disturbed.insert(id);
                self.drafts.remove(&id);
            }
            _ if !in_flight => {
                let n_draft = self.rng.size(5);
                let mut draft: Vec<u32> = (0..n_draft)
                    .map(|_| self.rng.below(self.vocabulary) as u32)
                    .collect();
                // Most draft tokens are correct, as those of a good draft model.
                let mut hash = *self.truth[&id].hashes.last().unwrap();
                for token in &mut draft {
                    if !self.rng.one_in(4) {
                        *token = self.next_token(hash);
                    }
                    hash = hash_pair(hash, u64::from(*token) + 1);
                }
                if self.scheduler.draft(id, &draft) {
                    self.drafts.insert(id, draft);
                }
            }
            _ => {}
        }
    }

    /// The model's token after a prefix with this hash.
    fn next_token(&self, hash: u64) -> u32 {
        (hash % self.vocabulary as u64) as u32
    }

    /// Plans, runs and commits a step. Returns whether there was one.
    fn step(&mut self, disturb: bool) -> bool {
        let Some(step) = self.scheduler.plan() else {
            assert!(self.truth.is_empty(), "nothing planned, but sequences wait");
            return false;
        };
        self.n_steps += 1;
        self.disturbed.clear();
        self.check_layout(&step);
        assert!(self.scheduler.plan().is_none(), "two steps in flight");
        while disturb && self.rng.one_in(6) {
            self.disturb(true);
        }
        if disturb && self.rng.one_in(60) {
            self.counts.abandoned += 1;
            self.scheduler.abandon(step);
            self.truth
                .values_mut()
                .for_each(|truth| truth.decoding = false);
            self.drafts.clear();
            return true;
        }
        let sampled = self.run(&step);
        self.commit(step, &sampled);
        true
    }

    fn check_layout(&self, step: &Step) {
        assert!(!step.sequences.is_empty());
        assert!(step.tokens.len() <= self.config.max_batch_tokens);
        assert!(step.sequences.len() <= self.config.max_sequences);
        assert_eq!(step.tokens.len(), step.positions.len());
        let is_scored = |part: &&StepSequence| self.truth[&part.id].logits == LogitsAt::Every;
        let scored = step.sequences.iter().filter(is_scored);
        let n_scored: usize = scored.map(|part| part.outputs.len() - part.n_draft).sum();
        assert!(n_scored <= self.config.max_outputs.max(step.sequences.len()));
        let (mut row, mut block, mut window, mut output) = (0, 0, 0, 0);
        let mut slots = BTreeSet::new();
        for part in &step.sequences {
            assert_eq!(
                (part.rows.start, part.blocks.start, part.outputs.start),
                (row, block, output)
            );
            (row, block, output) = (part.rows.end, part.blocks.end, part.outputs.end);
            assert!(!part.rows.is_empty());
            assert!(slots.insert(part.slot) && (part.slot as usize) < self.config.max_sequences);
            let end = part.start + part.rows.len();
            assert_eq!(
                step.blocks_of(part).len(),
                end.div_ceil(self.config.block_size)
            );
            assert_eq!(part.windows.start, window);
            window = part.windows.end;
            let n_windows = self.config.windows.len();
            assert_eq!(part.windows.len(), part.blocks.len() * n_windows);
            let positions = step.positions[part.rows.clone()]
                .iter()
                .map(|&p| p as usize);
            assert!(positions.eq(part.start..end));

            let truth = &self.truth[&part.id];
            let n_known = part.rows.len() - part.n_draft;
            let (known, draft) = step.tokens_of(part).split_at(n_known);
            assert_eq!(known, &truth.tokens[part.start..part.start + n_known]);
            assert!(part.n_draft == 0 || self.drafts[&part.id].starts_with(draft));

            assert!(!part.recompute || part.n_draft == 0);
            let reaches_end = part.start + n_known == truth.tokens.len();
            assert_eq!(
                part.samples,
                reaches_end && truth.tokens.len() < truth.max_tokens
            );
            let outputs: Vec<usize> = step.outputs_of(part).iter().map(|&r| r as usize).collect();
            let first = if reaches_end {
                end - part.n_draft - 1
            } else {
                end
            };
            let first = match truth.logits {
                LogitsAt::Last if part.recompute => part.start,
                LogitsAt::Last => first,
                LogitsAt::Every => first.min(truth.scored.max(part.start)),
            };
            let rows = (first..end).map(|position| part.rows.start + position - part.start);
            assert!(outputs.iter().copied().eq(rows));
        }
        assert_eq!(
            (row, block, output),
            (step.tokens.len(), step.blocks.len(), step.outputs.len())
        );
    }

    /// Runs the simulated model. Its only knowledge of earlier positions is in `shadow` and `states`.
    fn run(&mut self, step: &Step) -> Vec<Sampled> {
        for &BlockCopy { group, from, to } in &step.copies {
            let shadow = &mut self.shadow[group];
            shadow[to.index()] = shadow[from.index()].clone();
        }
        for &(from, to) in &step.state_copies {
            self.states[to as usize] = self.states[from as usize];
        }
        self.counts.state_copies += step.state_copies.len();
        // All sequences are checked before any is written, because none may write what another needs.
        let mut window_reads = 0;
        for part in step.sequences.iter().filter(|part| self.expects(part)) {
            let truth = &self.truth[&part.id];
            for (group, table) in self.tables(step, part).enumerate() {
                // Later tokens of the step see no earlier positions than the first one.
                let first = group
                    .checked_sub(1)
                    .map_or(0, |nth| self.config.windows[nth].window.first(part.start));
                for position in first..part.start {
                    let found = self.shadow_at(group, table, position);
                    let expected = truth.hashes[position + 1];
                    let id = part.id;
                    assert_eq!(found, expected, "{id:?} at {position} in group {group}");
                }
                if first >= self.config.block_size {
                    window_reads += part.start.saturating_sub(first);
                }
            }
        }
        self.counts.window_reads += window_reads;
        let mut sampled = Vec::new();
        for part in &step.sequences {
            let mut hash = match part.start.checked_sub(1) {
                Some(_) if is_recurrent(&self.config) => {
                    let state = self.states[part.slot as usize];
                    let expected = self.expects(part).then(|| &self.truth[&part.id].hashes);
                    assert!(expected.is_none_or(|hashes| hashes[part.start] == state));
                    state
                }
                Some(last) => self.shadow_at(0, step.blocks_of(part), last),
                None => self.truth.get(&part.id).map_or(0, |truth| truth.hashes[0]),
            };
            let mut hashes = Vec::new();
            for (position, &token) in (part.start..).zip(step.tokens_of(part)) {
                hash = hash_pair(hash, u64::from(token) + 1);
                for group in 0..self.shadow.len() {
                    let table = self.tables(step, part).nth(group).unwrap();
                    let (block, offset) = self.locate(table, position);
                    self.shadow[group][block.index()][offset] = hash;
                }
                hashes.push(hash);
            }
            self.states[part.slot as usize] = hash;
            if part.samples && (self.greedy || !self.rng.one_in(50)) {
                sampled.push(self.sample(step, part, &hashes));
            }
        }
        sampled
    }

    /// Verifies drafts and samples the token after those accepted.
    fn sample(&mut self, step: &Step, part: &StepSequence, hashes: &[u64]) -> Sampled {
        let n_known = part.rows.len() - part.n_draft;
        let draft = &step.tokens_of(part)[n_known..];
        let accepted =
            (0..draft.len()).take_while(|&i| self.next_token(hashes[n_known - 1 + i]) == draft[i]);
        let accepted = accepted.count();
        self.counts.accepted += accepted;
        // Sometimes another token than the model's is sampled.
        let mut token = self.next_token(hashes[n_known - 1 + accepted]);
        if !self.greedy && self.rng.one_in(8) {
            token = self.rng.below(self.vocabulary) as u32;
        }
        let finished = !self.greedy && self.rng.one_in(40);
        Sampled {
            id: part.id,
            accepted,
            token,
            finished,
        }
    }

    fn commit(&mut self, step: Step, sampled: &[Sampled]) {
        self.counts.copies += step.copies.len();
        let parts = step.sequences.clone();
        let drafts: Vec<Vec<u32>> = parts
            .iter()
            .map(|part| step.tokens_of(part)[part.rows.len() - part.n_draft..].to_vec())
            .collect();
        let events = self.scheduler.commit(step, sampled);
        for event in &events {
            match *event {
                Event::Preempted { id } => {
                    self.counts.preemptions += 1;
                    if let Some(truth) = self.truth.get_mut(&id) {
                        truth.computed = 0;
                        truth.decoding = false;
                    }
                }
                Event::CacheHit { id, tokens } => {
                    self.counts.cache_hits += 1;
                    self.counts.window_hits += usize::from(!self.config.windows.is_empty());
                    assert!(tokens > 0 && tokens < self.truth[&id].n_prompt.max(tokens + 1));
                    assert_ne!(self.config.reuse, PrefixReuse::None);
                }
                Event::Finished { .. } => {}
            }
        }
        let in_step: BTreeSet<SeqId> = parts.iter().map(|part| part.id).collect();
        for (id, truth) in &self.truth {
            let disturbed = self.disturbed.contains(id);
            assert!(
                !truth.decoding || disturbed || in_step.contains(id),
                "{id:?} was decoding and has no token in this step"
            );
        }
        for (part, draft) in parts.iter().zip(&drafts) {
            if self.expects(part) {
                let sampled = sampled.iter().find(|sampled| sampled.id == part.id);
                self.advance(part, draft, sampled, &events);
            }
        }
        self.drafts.clear();
    }

    /// Advances the expected state of a sequence over a step, and checks the events against it.
    fn advance(
        &mut self,
        part: &StepSequence,
        draft: &[u32],
        sampled: Option<&Sampled>,
        events: &[Event],
    ) {
        let truth = self.truth.get_mut(&part.id).unwrap();
        // Each position is computed once. The positions before `start` were checked when the step ran.
        assert!(
            part.start == truth.computed
                || part.start > truth.computed && !truth.is_alone
                // State is restored from the last checkpoint; its correctness was checked, too.
                || may_recompute(&self.config),
            "{:?} starts at {} where {} is computed",
            part.id,
            part.start,
            truth.computed
        );
        truth.computed = part.start + part.rows.len() - part.n_draft;
        truth.scored = truth.scored.max(truth.computed);
        let new: Vec<u32> = sampled.map_or(Vec::new(), |sampled| {
            draft[..sampled.accepted]
                .iter()
                .copied()
                .chain([sampled.token])
                .collect()
        });
        truth.computed += new.len().saturating_sub(1);
        // After a partly rejected draft, recurrent state recomputes the accepted tokens.
        let recomputes = is_recurrent(&self.config) && new.len() <= part.n_draft;
        truth.decoding = !new.is_empty() && !recomputes;
        new.iter().for_each(|&token| truth.push(token));
        let at_end = truth.computed + usize::from(!new.is_empty()) == truth.tokens.len();
        let stops = sampled.is_some_and(|sampled| sampled.finished);
        let at_limit = at_end && truth.tokens.len() == truth.max_tokens;
        let finished = events.contains(&Event::Finished { id: part.id });
        assert_eq!(finished, stops || at_limit, "{:?}", part.id);
        assert!(truth.tokens.len() <= truth.max_tokens);
        if finished {
            self.counts.stops += usize::from(stops);
            self.counts.lengths += usize::from(!stops);
            self.truth.remove(&part.id);
            return;
        }
        assert_eq!(self.scheduler.tokens(part.id), Some(&*truth.tokens));
        // Logits that were not sampled are recomputed.
        if truth.computed == truth.tokens.len() {
            let rewinds = !is_recurrent(&self.config);
            truth.computed = if rewinds { truth.computed - 1 } else { 0 };
        }
    }

    /// True if the step's result for this part counts: the sequence exists and was not changed.
    fn expects(&self, part: &StepSequence) -> bool {
        self.truth.contains_key(&part.id) && !self.disturbed.contains(&part.id)
    }

    fn locate(&self, table: &[BlockId], position: usize) -> (BlockId, usize) {
        (
            table[position / self.config.block_size],
            position % self.config.block_size,
        )
    }

    /// Block table of each group of layers.
    fn tables<'a>(
        &self,
        step: &'a Step,
        part: &StepSequence,
    ) -> impl Iterator<Item = &'a [BlockId]> + use<'a> {
        let blocks = step.blocks_of(part);
        let windows = step.windows_of(part).chunks(blocks.len());
        [blocks].into_iter().chain(windows)
    }

    fn shadow_at(&self, group: usize, table: &[BlockId], position: usize) -> u64 {
        let (block, offset) = self.locate(table, position);
        assert_ne!(block, BlockId::NONE, "position {position} of group {group}");
        self.shadow[group][block.index()][offset]
    }

    fn check_consistency(&self) {
        self.scheduler.check_integrity().unwrap();
        let stats = self.scheduler.stats();
        assert_eq!(stats.queued + stats.running, self.truth.len());
        let n_blocks = stats.free_blocks + stats.cached_blocks + stats.used_blocks;
        assert_eq!(n_blocks, self.config.n_blocks as usize);
    }

    /// Runs until all sequences have finished: none starves, and no block leaks.
    fn drain(&mut self) {
        let work: usize = self.truth.values().map(|truth| truth.max_tokens + 1).sum();
        // A sequence alone takes at most one step per token; retries add some.
        for _ in 0..50 + 4 * work {
            if !self.step(false) {
                break;
            }
        }
        assert!(
            self.scheduler.is_idle(),
            "no progress with {} sequences left",
            self.truth.len()
        );
        self.check_consistency();
        assert_eq!(self.scheduler.stats().used_blocks, 0);
        self.scheduler.clear_prefix_cache();
        assert_eq!(
            self.scheduler.stats().free_blocks,
            self.config.n_blocks as usize
        );
        self.check_consistency();
    }
}

/// Runs episodes with random configurations until `n_steps` steps are done.
fn simulate(seed: u64, n_steps: usize) -> Counts {
    let mut total = Counts::default();
    let mut n_done = 0;
    for episode in 0.. {
        let mut sim = Sim::random(seed + episode);
        let pressure = 1 + sim.rng.below(4);
        for round in 0..1000 {
            while sim.rng.below(pressure + 1) > 0 && sim.truth.len() < 24 {
                sim.disturb(false);
            }
            sim.step(true);
            if round % 4 == 0 {
                sim.check_consistency();
            }
        }
        sim.drain();
        total.add(&sim.counts);
        n_done += sim.n_steps;
        if n_done >= n_steps {
            break;
        }
    }
    total
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.cache_hits += other.cache_hits;
        self.preemptions += other.preemptions;
        self.copies += other.copies;
        self.state_copies += other.state_copies;
        self.accepted += other.accepted;
        self.abandoned += other.abandoned;
        self.stops += other.stops;
        self.lengths += other.lengths;
        self.queue_full += other.queue_full;
        self.cancelled += other.cancelled;
        self.window_reads += other.window_reads;
        self.window_hits += other.window_hits;
    }

    /// Asserts that every kind of event occurred often enough.
    fn assert_covered(&self) {
        let Counts {
            cache_hits,
            preemptions,
            copies,
            state_copies,
            accepted,
            abandoned,
            ..
        } = *self;
        let Counts {
            stops,
            lengths,
            queue_full,
            cancelled,
            window_reads,
            window_hits,
            ..
        } = *self;
        for count in [
            cache_hits,
            preemptions,
            copies,
            state_copies,
            accepted,
            abandoned,
            stops,
            lengths,
            queue_full,
            cancelled,
            window_reads,
            window_hits,
        ] {
            assert!(count > 1000, "{self:?}");
        }
    }
}

// Two tests, which can run in parallel.

#[test]
fn random_steps_keep_all_properties() {
    simulate(1, 500_000).assert_covered();
}

#[test]
fn random_steps_keep_all_properties_with_other_seed() {
    simulate(1 << 32, 500_000).assert_covered();
}

/// Requests that fit in the pool alone, but not together, all finish, with the same tokens as alone.
#[test]
fn requests_that_fit_alone_finish() {
    for seed in 0..300 {
        let mut sim = Sim::random(seed);
        sim.greedy = true;
        sim.vocabulary = 50;
        let capacity = sim.config.capacity();
        if capacity < 2 {
            continue;
        }
        let mut alone = BTreeMap::new();
        for _ in 0..sim.config.max_queue {
            let id = sim.fresh_id();
            // Most of them grow to the last position of the pool.
            let n_prompt = 1 + sim.rng.below(capacity - 1);
            let tokens = (0..n_prompt).map(|_| sim.rng.below(2) as u32).collect();
            assert!(sim.submit_request(SequenceRequest::new(id, tokens, capacity)));
            let mut truth = sim.truth[&id].clone();
            while truth.tokens.len() < truth.max_tokens {
                truth.push(sim.next_token(truth.hashes[truth.tokens.len()]));
            }
            alone.insert(id, truth.tokens);
        }
        let bound: usize = 10 + 2 * alone.values().map(Vec::len).sum::<usize>();
        let mut given: BTreeMap<SeqId, Vec<u32>> = sim
            .truth
            .iter()
            .map(|(&id, truth)| (id, truth.tokens.clone()))
            .collect();
        for _ in 0..bound {
            let Some(step) = sim.scheduler.plan() else {
                break;
            };
            sim.check_layout(&step);
            let sampled = sim.run(&step);
            sampled
                .iter()
                .for_each(|s| given.get_mut(&s.id).unwrap().push(s.token));
            sim.commit(step, &sampled);
            sim.check_consistency();
        }
        assert!(sim.scheduler.is_idle(), "seed {seed}: {:?}", sim.config);
        assert_eq!(given, alone, "seed {seed}");
    }
}

/// A long request of low priority among many others waits no longer than its priority implies.
#[test]
fn long_request_does_not_starve() {
    for (priority, steps_per_priority) in [(0, 0), (0, 100), (-1, 100), (-3, 50)] {
        let config = SchedulerConfig {
            n_blocks: 40,
            block_size: 4,
            windows: Vec::new(),
            max_batch_tokens: 12,
            max_sequences: 4,
            max_outputs: 4,
            max_queue: 16,
            context_length: 160,
            reuse: PrefixReuse::Blocks,
            steps_per_priority,
        };
        let mut sim = Sim::new(config, 1000, Rng(9));
        sim.greedy = true;
        let flood = |sim: &mut Sim| {
            while sim.scheduler.stats().queued < 15 {
                let id = sim.fresh_id();
                let tokens = (0..20).map(|_| sim.rng.below(1000) as u32).collect();
                assert!(sim.submit_request(SequenceRequest::new(id, tokens, 20)));
            }
        };
        flood(&mut sim);
        (0..50).for_each(|_| assert!(sim.step(false)));
        let id = sim.fresh_id();
        // The request needs 38 of the 40 blocks.
        let request = SequenceRequest {
            priority,
            ..SequenceRequest::new(id, vec![1; 130], 20)
        };
        assert!(sim.submit_request(request));
        let n_before = sim.n_steps;
        while sim.truth.contains_key(&id) {
            flood(&mut sim);
            assert!(sim.step(false));
            let n_steps = sim.n_steps - n_before;
            // Bound: the steps of its lower priority, those for requests already in the queue, and its own.
            let priority_delay = -priority as usize * steps_per_priority as usize;
            assert!(
                n_steps < priority_delay + 150 + 60,
                "{n_steps} steps with priority {priority}"
            );
        }
    }
}
