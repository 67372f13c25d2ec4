//! The sampler of a sequence: bias, mask, then the stages in the order asked for, then the draw.
//! A new stage is one file with a `build` function and one line in [`STAGES`].

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use super::banned::BannedStrings;
use super::candidates::{argmax, check_logits};
use super::logit_bias::LogitBias;
use super::mirostat::Mirostat;
use super::rng::entropy_seed;
use super::{
    Candidates, MirostatMode, Rng, SamplingError, SamplingParams, TokenMask, dry, infill, logprobs,
    min_p, penalty, tail_free, temperature, top_k, top_n_sigma, top_p, typical, xtc,
};

/// Chooses the tokens of one sequence.
#[derive(Clone)]
pub struct Sampler {
    n_tokens: usize,
    seed: u64,
    n_probs: Option<usize>,
    bias: LogitBias,
    banned: BannedStrings,
    stages: Vec<Box<dyn Stage>>,
    end: End,
    rng: Rng,
    candidates: Candidates,
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its log probability under the model itself, if `n_probs` asked for it.
    pub logprob: Option<f32>,
    /// The `n_probs` most likely tokens of the model with their log probabilities.
    pub top: Vec<(u32, f32)>,
}

/// What the samplers need to know of a vocabulary.
#[derive(Clone, Default)]
pub struct SamplerVocab {
    /// How many tokens there are, which is also how many logits each step has.
    pub n_tokens: usize,
    /// The token of a single newline, if there is one.
    pub newline: Option<u32>,
    /// The text of each token; without it DRY knows no sequence breakers, and no string can be banned.
    pub pieces: Option<Arc<dyn TokenPieces>>,
}

/// The text of tokens.
pub trait TokenPieces: Send + Sync {
    /// The bytes a token stands for, `None` for special tokens and unknown ids.
    fn piece(&self, token: u32) -> Option<Cow<'_, [u8]>>;

    /// Whether the token ends an answer.
    fn is_end(&self, _token: u32) -> bool {
        false
    }

    /// Those of the first `n_tokens` tokens that stand for bytes, in the order of these.
    fn sorted(&self, n_tokens: usize) -> Arc<[u32]> {
        sort_by_bytes(self, n_tokens)
    }
}

/// See [`TokenPieces::sorted`].
pub(crate) fn sort_by_bytes(pieces: &(impl TokenPieces + ?Sized), n_tokens: usize) -> Arc<[u32]> {
    let all = 0..u32::try_from(n_tokens).unwrap_or(u32::MAX);
    let has_bytes = |&token: &u32| pieces.piece(token).is_some_and(|piece| !piece.is_empty());
    let mut tokens: Vec<u32> = all.filter(has_bytes).collect();
    tokens.sort_by(|&a, &b| pieces.piece(a).cmp(&pieces.piece(b)));
    tokens.into()
}

/// The stages by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SamplerKind {
    /// Repetition, frequency and presence penalties.
    Penalties,
    /// DRY.
    Dry,
    /// Top-nσ.
    TopNSigma,
    /// Top-k.
    TopK,
    /// Tail-free.
    TailFree,
    /// Locally typical.
    Typical,
    /// Top-p.
    TopP,
    /// Min-p.
    MinP,
    /// XTC.
    Xtc,
    /// Temperature, fixed or dynamic.
    Temperature,
    /// Infill: ends in time where a gap is filled.
    Infill,
}

/// llama.cpp's order, with tail-free where it used to be.
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

/// One step of the chain.
pub(super) trait Stage: Send + Sync {
    /// Narrows or reweighs the candidates.
    fn apply(&mut self, candidates: &mut Candidates, rng: &mut Rng);
    /// Learns of a token that joined the sequence.
    fn accept(&mut self, _token: u32) {}
    /// `Clone` for a boxed stage: beams and drafts fork a sequence.
    fn boxed_clone(&self) -> Box<dyn Stage>;
}

impl Clone for Box<dyn Stage> {
    fn clone(&self) -> Self {
        self.boxed_clone()
    }
}

struct StageInfo {
    kind: SamplerKind,
    /// The name, then other spellings in use.
    names: &'static [&'static str],
    letter: char,
    /// Whether the stage changes logits; one that only narrows or scales them leaves the most likely token as it is.
    reweighs: bool,
    build: fn(&SamplingParams, &SamplerVocab) -> Option<Box<dyn Stage>>,
}

const fn info(
    kind: SamplerKind,
    names: &'static [&'static str],
    letter: char,
    reweighs: bool,
    build: fn(&SamplingParams, &SamplerVocab) -> Option<Box<dyn Stage>>,
) -> StageInfo {
    StageInfo {
        kind,
        names,
        letter,
        reweighs,
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

/// How the chain ends.
#[derive(Debug, Clone)]
enum End {
    Greedy,
    Draw,
    Mirostat(Mirostat),
}

impl Sampler {
    /// Checks the parameters and builds the chain.
    pub fn new(params: &SamplingParams, vocab: &SamplerVocab) -> Result<Self, SamplingError> {
        params.validate()?;
        let end = match params.mirostat.mode {
            _ if params.is_greedy() => End::Greedy,
            MirostatMode::Off => End::Draw,
            MirostatMode::V1 | MirostatMode::V2 => {
                End::Mirostat(Mirostat::new(params.mirostat, vocab.n_tokens))
            }
        };
        let wanted = |stage: &StageInfo| match end {
            End::Draw => true,
            // The most likely token stays the most likely whatever is cut or scaled.
            End::Greedy => stage.reweighs,
            // Mirostat does the truncating.
            End::Mirostat(_) => stage.reweighs || stage.kind == SamplerKind::Temperature,
        };
        let stages = params
            .samplers
            .iter()
            .filter_map(|kind| {
                STAGES
                    .iter()
                    .find(|stage| stage.kind == *kind && wanted(stage))
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
            stages,
            end,
            rng: Rng::new(seed),
            candidates: Candidates::default(),
        })
    }

    /// The seed in use: the one asked for, or the one drawn.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Tells the chain of the tokens that the sequence begins with.
    pub fn accept_prompt(&mut self, tokens: &[u32]) {
        for stage in &mut self.stages {
            tokens.iter().for_each(|&token| stage.accept(token));
        }
    }

    /// Tells the chain of a token that joined the answer, as from [`Sampler::sample`].
    pub fn accept(&mut self, token: u32) {
        self.banned.accept(token);
        for stage in &mut self.stages {
            stage.accept(token);
        }
    }

    /// The `n` most likely tokens, the most likely first, with their log probabilities after biases,
    /// mask, bans and the stages of the chain: what a beam search ranks.
    pub fn ranked(
        &mut self,
        logits: &[f32],
        mask: Option<&TokenMask>,
        n: usize,
    ) -> Result<Vec<(u32, f32)>, SamplingError> {
        self.check_lengths(logits, mask)?;
        self.narrow(logits, mask)?;
        let (max, total) = (self.candidates.max(), self.candidates.weigh());
        if total <= 0.0 {
            return Ok(Vec::new());
        }
        let log_sum_exp = max + total.ln() as f32;
        let mut ranked = logprobs::most_likely(&mut self.candidates, n, log_sum_exp);
        ranked.retain(|&(_, logprob)| logprob > f32::NEG_INFINITY);
        Ok(ranked)
    }

    /// Chooses the next token from the logits of the whole vocabulary, among those the mask allows.
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
        if matches!(self.end, End::Greedy)
            && self.stages.is_empty()
            && self.bias.is_empty()
            && self.banned.is_empty()
            && mask.is_none()
        {
            check_logits(logits)?;
            return argmax(logits)
                .map(|token| token as u32)
                .ok_or(SamplingError::NoCandidate);
        }
        self.narrow(logits, mask)?;
        match &mut self.end {
            End::Greedy => self.candidates.argmax(),
            End::Draw => self.candidates.draw(&mut self.rng),
            End::Mirostat(mirostat) => mirostat.draw(&mut self.candidates, &mut self.rng),
        }
        .ok_or(SamplingError::NoCandidate)
    }

    /// Everything before the draw.
    fn narrow(&mut self, logits: &[f32], mask: Option<&TokenMask>) -> Result<(), SamplingError> {
        self.candidates.load(logits)?;
        self.bias.apply(&mut self.candidates);
        if let Some(mask) = mask {
            mask.apply(self.candidates.logits_mut());
        }
        if !self.banned.is_empty() {
            self.banned.apply(&mut self.candidates);
        }
        for stage in &mut self.stages {
            stage.apply(&mut self.candidates, &mut self.rng);
        }
        Ok(())
    }

    /// The candidates as the draw would see them.
    #[cfg(test)]
    pub(super) fn narrowed(&mut self, logits: &[f32]) -> &mut Candidates {
        self.narrow(logits, None).unwrap();
        &mut self.candidates
    }
}

impl SamplerKind {
    /// llama.cpp's name of the stage.
    pub fn name(self) -> &'static str {
        STAGES
            .iter()
            .find(|stage| stage.kind == self)
            .and_then(|stage| stage.names.first())
            .copied()
            .unwrap_or("")
    }

    /// Reads an order: names separated by semicolons or commas (`top_k;top_p;temperature`), or a run of
    /// letters (`kpt`).
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
