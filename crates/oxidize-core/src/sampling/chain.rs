//! [`Sampler`]: applies logit bias, mask and bans, then the stages in the configured order, then
//! draws. A new stage is one file with a `build` function and one entry in [`STAGES`].

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use super::banned::BannedStrings;
use super::candidates::{argmax, check_logits};
use super::end_tokens::EndTokens;
use super::logit_bias::LogitBias;
use super::mirostat::Mirostat;
use super::rng::entropy_seed;
use super::{
    Candidates, MirostatMode, Rng, SamplingError, SamplingParams, TokenMask, dry, infill, logprobs,
    min_p, penalty, tail_free, temperature, top_k, top_n_sigma, top_p, typical, xtc,
};

/// Samples the tokens of one sequence.
#[derive(Clone)]
pub struct Sampler {
    n_tokens: usize,
    seed: u64,
    n_probs: Option<usize>,
    bias: LogitBias,
    banned: BannedStrings,
    end_tokens: EndTokens,
    stages: Vec<Box<dyn Stage>>,
    final_step: FinalStep,
    rng: Rng,
    candidates: Candidates,
}

/// Sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// Token id.
    pub token: u32,
    /// Log probability under the unmodified model, if `n_probs` is set.
    pub logprob: Option<f32>,
    /// The `n_probs` most likely tokens of the unmodified model with log probabilities.
    pub top: Vec<(u32, f32)>,
}

/// Properties of a vocabulary that samplers need.
#[derive(Clone, Default)]
pub struct SamplerVocab {
    /// Number of tokens, which is also the number of logits per step.
    pub n_tokens: usize,
    /// Token of a single newline, if there is one.
    pub newline: Option<u32>,
    /// Text of each token. Without it, DRY ignores sequence breakers and strings cannot be banned.
    pub pieces: Option<Arc<dyn TokenPieces>>,
}

/// Text of tokens.
pub trait TokenPieces: Send + Sync {
    /// Bytes of a token; `None` for special tokens and unknown ids.
    fn piece(&self, token: u32) -> Option<Cow<'_, [u8]>>;

    /// True if the token ends an answer.
    fn is_end(&self, _token: u32) -> bool {
        false
    }

    /// Tokens among the first `n_tokens` that have bytes, sorted by them.
    fn sorted(&self, n_tokens: usize) -> Arc<[u32]> {
        sort_by_bytes(self, n_tokens)
    }
}

/// Implementation of [`TokenPieces::sorted`].
pub(crate) fn sort_by_bytes(pieces: &(impl TokenPieces + ?Sized), n_tokens: usize) -> Arc<[u32]> {
    let all = 0..u32::try_from(n_tokens).unwrap_or(u32::MAX);
    let has_bytes = |&token: &u32| pieces.piece(token).is_some_and(|piece| !piece.is_empty());
    let mut tokens: Vec<u32> = all.filter(has_bytes).collect();
    tokens.sort_by(|&a, &b| pieces.piece(a).cmp(&pieces.piece(b)));
    tokens.into()
}

/// Stage of the sampler chain, for [`SamplingParams::samplers`](super::SamplingParams::samplers).
///
/// ```
/// use oxidize::sampling::SamplerKind;
///
/// let samplers = SamplerKind::parse_list("top_k;top_p;temperature").unwrap();
/// assert_eq!(samplers, [SamplerKind::TopK, SamplerKind::TopP, SamplerKind::Temperature]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub enum SamplerKind {
    /// Repetition, frequency and presence penalties.
    Penalties,
    /// DRY: penalty on repetitions of earlier text.
    Dry,
    /// Top-nσ.
    TopNSigma,
    /// Top-k.
    TopK,
    /// Tail-free sampling.
    TailFree,
    /// Locally typical sampling.
    Typical,
    /// Top-p (nucleus sampling).
    TopP,
    /// Min-p.
    MinP,
    /// XTC: exclude top choices.
    Xtc,
    /// Temperature, fixed or dynamic.
    Temperature,
    /// Infill: favors an early end, for filling gaps in code.
    Infill,
}

/// llama.cpp's default order, with tail-free sampling at its former place.
pub const DEFAULT_SAMPLERS: [SamplerKind; 10] = [
    SamplerKind::Penalties,
    SamplerKind::Dry,
    SamplerKind::TopNSigma,
    SamplerKind::TopK,
    SamplerKind::TailFree,
    SamplerKind::Typical,
    SamplerKind::TopP,
    SamplerKind::MinP,
    SamplerKind::Xtc,
    SamplerKind::Temperature,
];

/// Stage of the chain.
pub(super) trait Stage: Send + Sync {
    /// Filters or reweights the candidates.
    fn apply(&mut self, candidates: &mut Candidates, rng: &mut Rng);
    /// Updates the state for a token appended to the sequence.
    fn accept(&mut self, _token: u32) {}
    /// Clones the boxed stage; beams and drafts fork a sequence.
    fn boxed_clone(&self) -> Box<dyn Stage>;
}

impl Clone for Box<dyn Stage> {
    fn clone(&self) -> Self {
        self.boxed_clone()
    }
}

struct StageInfo {
    kind: SamplerKind,
    /// Name, then aliases.
    names: &'static [&'static str],
    letter: char,
    /// True if the stage changes logits. A stage that only filters or scales them preserves the
    /// most likely token.
    changes_logits: bool,
    build: fn(&SamplingParams, &SamplerVocab) -> Option<Box<dyn Stage>>,
}

const fn info(
    kind: SamplerKind,
    names: &'static [&'static str],
    letter: char,
    changes_logits: bool,
    build: fn(&SamplingParams, &SamplerVocab) -> Option<Box<dyn Stage>>,
) -> StageInfo {
    StageInfo {
        kind,
        names,
        letter,
        changes_logits,
        build,
    }
}

static STAGES: [StageInfo; 11] = [
    info(
        SamplerKind::Penalties,
        &["penalties"],
        'e',
        true,
        penalty::build,
    ),
    info(SamplerKind::Dry, &["dry"], 'd', true, dry::build),
    info(
        SamplerKind::TopNSigma,
        &["top_n_sigma"],
        's',
        false,
        top_n_sigma::build,
    ),
    info(SamplerKind::TopK, &["top_k"], 'k', false, top_k::build),
    info(
        SamplerKind::TailFree,
        &["tfs_z", "tfs", "tail_free"],
        'f',
        false,
        tail_free::build,
    ),
    info(
        SamplerKind::Typical,
        &["typ_p", "typical_p", "typical", "typ"],
        'y',
        false,
        typical::build,
    ),
    info(
        SamplerKind::TopP,
        &["top_p", "nucleus"],
        'p',
        false,
        top_p::build,
    ),
    info(SamplerKind::MinP, &["min_p"], 'm', false, min_p::build),
    info(SamplerKind::Xtc, &["xtc"], 'x', false, xtc::build),
    info(
        SamplerKind::Temperature,
        &["temperature", "temp"],
        't',
        false,
        temperature::build,
    ),
    info(SamplerKind::Infill, &["infill"], 'i', true, infill::build),
];

/// Final step of the chain.
#[derive(Debug, Clone)]
enum FinalStep {
    Greedy,
    Draw,
    Mirostat(Mirostat),
}

impl Sampler {
    /// Validates the parameters and builds the chain.
    pub fn new(params: &SamplingParams, vocab: &SamplerVocab) -> Result<Self, SamplingError> {
        params.validate()?;
        let final_step = match params.mirostat.mode {
            _ if params.is_greedy() => FinalStep::Greedy,
            MirostatMode::Off => FinalStep::Draw,
            MirostatMode::V1 | MirostatMode::V2 => {
                FinalStep::Mirostat(Mirostat::new(params.mirostat, vocab.n_tokens))
            }
        };
        let is_active = |stage: &StageInfo| match final_step {
            FinalStep::Draw => true,
            // Filtering and scaling do not change the most likely token.
            FinalStep::Greedy => stage.changes_logits,
            // Mirostat replaces the truncating stages.
            FinalStep::Mirostat(_) => {
                stage.changes_logits || stage.kind == SamplerKind::Temperature
            }
        };
        let stages = params
            .samplers
            .iter()
            .filter_map(|kind| {
                STAGES
                    .iter()
                    .find(|stage| stage.kind == *kind && is_active(stage))
            })
            .filter_map(|stage| (stage.build)(params, vocab))
            .collect();
        let seed = params.seed.unwrap_or_else(entropy_seed);
        Ok(Self {
            n_tokens: vocab.n_tokens,
            seed,
            n_probs: params.n_probs.map(|n| n as usize),
            bias: LogitBias::new(&params.logit_bias, vocab)?,
            banned: BannedStrings::new(&params.banned_strings, vocab)?,
            end_tokens: EndTokens::new(params, vocab)?,
            stages,
            final_step,
            rng: Rng::new(seed),
            candidates: Candidates::default(),
        })
    }

    /// True if the answer has the minimum number of tokens.
    pub fn has_min_tokens(&self) -> bool {
        self.end_tokens.is_reached()
    }

    /// True if the request ends the answer at this token.
    pub fn is_stop_token(&self, token: u32) -> bool {
        self.end_tokens.is_stop(token)
    }

    /// Seed in use: the requested or the drawn one.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Updates the chain for the tokens of the prompt.
    pub fn accept_prompt(&mut self, tokens: &[u32]) {
        for stage in &mut self.stages {
            tokens.iter().for_each(|&token| stage.accept(token));
        }
    }

    /// Updates the chain for a token appended to the answer, such as one from [`Sampler::sample`].
    pub fn accept(&mut self, token: u32) {
        self.banned.accept(token);
        self.end_tokens.accept();
        for stage in &mut self.stages {
            stage.accept(token);
        }
    }

    /// Returns the `n` most likely tokens, most likely first, with log probabilities after bias,
    /// mask, bans and stages; for beam search.
    pub fn ranked(
        &mut self,
        logits: &[f32],
        mask: Option<&TokenMask>,
        n: usize,
    ) -> Result<Vec<(u32, f32)>, SamplingError> {
        self.check_lengths(logits, mask)?;
        self.filter(logits, mask)?;
        let (max, total) = (self.candidates.max(), self.candidates.exp_sum());
        if total <= 0.0 {
            return Ok(Vec::new());
        }
        let log_sum_exp = max + total.ln() as f32;
        let mut ranked = logprobs::most_likely(&mut self.candidates, n, log_sum_exp);
        ranked.retain(|&(_, logprob)| logprob > f32::NEG_INFINITY);
        Ok(ranked)
    }

    /// Samples a token from the logits of the whole vocabulary, among those that the mask allows.
    pub fn sample(
        &mut self,
        logits: &[f32],
        mask: Option<&TokenMask>,
    ) -> Result<Sampled, SamplingError> {
        self.check_lengths(logits, mask)?;
        let token = self.choose(logits, mask)?;
        let Some(n_probs) = self.n_probs else {
            return Ok(Sampled {
                token,
                logprob: None,
                top: Vec::new(),
            });
        };
        let log_sum_exp = logprobs::log_sum_exp(logits);
        self.candidates.load(logits)?;
        let top = logprobs::most_likely(&mut self.candidates, n_probs, log_sum_exp);
        Ok(Sampled {
            token,
            logprob: logits.get(token as usize).map(|logit| logit - log_sum_exp),
            top,
        })
    }

    fn check_lengths(&self, logits: &[f32], mask: Option<&TokenMask>) -> Result<(), SamplingError> {
        if logits.len() != self.n_tokens {
            return Err(SamplingError::Length {
                what: "the logits",
                got: logits.len(),
                n_tokens: self.n_tokens,
            });
        }
        if let Some(mask) = mask
            && mask.len() < self.n_tokens
        {
            return Err(SamplingError::Length {
                what: "the mask",
                got: mask.len(),
                n_tokens: self.n_tokens,
            });
        }
        Ok(())
    }

    fn choose(&mut self, logits: &[f32], mask: Option<&TokenMask>) -> Result<u32, SamplingError> {
        if matches!(self.final_step, FinalStep::Greedy)
            && self.stages.is_empty()
            && self.bias.is_empty()
            && self.banned.is_empty()
            && self.end_tokens.is_reached()
            && mask.is_none()
        {
            check_logits(logits)?;
            return argmax(logits)
                .map(|token| token as u32)
                .ok_or(SamplingError::NoCandidate);
        }
        self.filter(logits, mask)?;
        match &mut self.final_step {
            FinalStep::Greedy => self.candidates.argmax(),
            FinalStep::Draw => self.candidates.draw(&mut self.rng),
            FinalStep::Mirostat(mirostat) => mirostat.draw(&mut self.candidates, &mut self.rng),
        }
        .ok_or(SamplingError::NoCandidate)
    }

    /// Applies everything before the draw.
    fn filter(&mut self, logits: &[f32], mask: Option<&TokenMask>) -> Result<(), SamplingError> {
        self.candidates.load(logits)?;
        self.bias.apply(&mut self.candidates);
        if let Some(mask) = mask {
            mask.apply(self.candidates.logits_mut());
        }
        if !self.banned.is_empty() {
            self.banned.apply(&mut self.candidates);
        }
        self.end_tokens.apply(&mut self.candidates);
        for stage in &mut self.stages {
            stage.apply(&mut self.candidates, &mut self.rng);
        }
        Ok(())
    }

    /// Candidates before the draw.
    #[cfg(test)]
    pub(super) fn filtered(&mut self, logits: &[f32]) -> &mut Candidates {
        self.filter(logits, None).unwrap();
        &mut self.candidates
    }
}

impl SamplerKind {
    /// Name of the stage in llama.cpp.
    pub fn name(self) -> &'static str {
        STAGES
            .iter()
            .find(|stage| stage.kind == self)
            .and_then(|stage| stage.names.first())
            .copied()
            .unwrap_or("")
    }

    /// Parses a list of stages: names separated by semicolons or commas
    /// (`top_k;top_p;temperature`), or a string of letters (`kpt`).
    pub fn parse_list(list: &str) -> Result<Vec<Self>, SamplingError> {
        let list = list.trim();
        if let Some(letters) = list
            .chars()
            .map(Self::from_letter)
            .collect::<Option<Vec<_>>>()
        {
            return Ok(letters);
        }
        list.split([';', ','])
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(str::parse)
            .collect()
    }

    fn from_letter(letter: char) -> Option<Self> {
        STAGES
            .iter()
            .find(|stage| stage.letter == letter)
            .map(|stage| stage.kind)
    }
}

impl FromStr for SamplerKind {
    type Err = SamplingError;

    fn from_str(name: &str) -> Result<Self, SamplingError> {
        let plain = name.trim().to_ascii_lowercase().replace('-', "_");
        STAGES
            .iter()
            .find(|stage| stage.names.contains(&plain.as_str()))
            .map(|stage| stage.kind)
            .ok_or_else(|| {
                let known: Vec<&str> = STAGES
                    .iter()
                    .filter_map(|stage| stage.names.first())
                    .copied()
                    .collect();
                SamplingError::UnknownSampler {
                    name: name.chars().take(64).collect(),
                    known: known.join(", "),
                }
            })
    }
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler")
            .field("seed", &self.seed)
            .field("stages", &self.stages.len())
            .finish_non_exhaustive()
    }
}
