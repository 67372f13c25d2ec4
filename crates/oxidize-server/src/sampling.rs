//! Sampling parameters of requests, with the names of llama.cpp, OpenAI and vLLM.

use std::collections::BTreeMap;

use oxidize_core::sampling::{MirostatMode, SamplerKind, SamplingParams};
use oxidize_core::tokenizer::{EncodeOptions, Tokenizer};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::drafts::DraftFields;
use crate::error::{ApiError, ApiResult};
use crate::fields::RequestBody;

/// Sampling parameters. The defaults are those of the model, or else of llama.cpp.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct SamplingFields {
    /// Temperature; 0 takes the most likely token.
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f32>,
    /// Top-k sampling: keep the k most likely tokens; 0 and -1 are off.
    #[schema(minimum = -1, maximum = 2147483647)]
    pub top_k: Option<i32>,
    /// Top-p (nucleus) sampling: keep the most likely tokens with this total probability; 1 is off.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Min-p sampling: drop tokens with less than this fraction of the highest probability; 0 is off.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f32>,
    /// Locally typical sampling; 1 is off.
    #[serde(alias = "typ_p")]
    #[schema(minimum = 0, maximum = 1)]
    pub typical_p: Option<f32>,
    /// Tail-free sampling; 1 is off.
    #[schema(minimum = 0, maximum = 1)]
    pub tfs_z: Option<f32>,
    /// Top-nσ sampling: keep logits within this many standard deviations of the largest; 0 is off.
    #[schema(minimum = 0, maximum = 10000)]
    pub top_n_sigma: Option<f32>,
    /// XTC: probability of removing the top choices; 0 is off.
    #[schema(minimum = 0, maximum = 1)]
    pub xtc_probability: Option<f32>,
    /// XTC: minimum probability of a top choice.
    #[schema(minimum = 0, maximum = 1)]
    pub xtc_threshold: Option<f32>,
    /// Dynamic temperature: range around the temperature; 0 is off.
    #[schema(minimum = 0, maximum = 100)]
    pub dynatemp_range: Option<f32>,
    /// Dynamic temperature: exponent of the normalized entropy.
    #[schema(minimum = 0, maximum = 100)]
    pub dynatemp_exponent: Option<f32>,
    /// Mirostat: 0 is off, 1 or 2 is the version.
    #[schema(minimum = 0, maximum = 2)]
    pub mirostat: Option<u8>,
    /// Mirostat: target entropy τ.
    #[schema(minimum = 0, maximum = 100)]
    pub mirostat_tau: Option<f32>,
    /// Mirostat: learning rate η.
    #[schema(minimum = 0, maximum = 10)]
    pub mirostat_eta: Option<f32>,
    /// DRY: multiplier of the penalty; 0 is off.
    #[schema(minimum = 0, maximum = 10000)]
    pub dry_multiplier: Option<f32>,
    /// DRY: base of the penalty, which grows with each repeated token.
    #[schema(minimum = 1, maximum = 10000)]
    pub dry_base: Option<f32>,
    /// DRY: length of repetitions that is not penalized.
    #[schema(maximum = 1000000)]
    pub dry_allowed_length: Option<u32>,
    /// DRY: number of last tokens to search; -1 is all.
    #[schema(minimum = -1, maximum = 2147483647)]
    pub dry_penalty_last_n: Option<i32>,
    /// DRY: strings that end a repetition.
    pub dry_sequence_breakers: Option<Vec<String>>,
    /// Repetition penalty: divides the logits of recent tokens; 1 is off.
    #[serde(alias = "repetition_penalty")]
    #[schema(minimum = 0.01, maximum = 100)]
    pub repeat_penalty: Option<f32>,
    /// Number of last tokens that are penalized; -1 is all.
    #[schema(minimum = -1, maximum = 2147483647)]
    pub repeat_last_n: Option<i32>,
    /// Penalty for each occurrence of a token.
    #[schema(minimum = -100, maximum = 100)]
    pub frequency_penalty: Option<f32>,
    /// Penalty for tokens that occurred at least once.
    #[schema(minimum = -100, maximum = 100)]
    pub presence_penalty: Option<f32>,
    /// Penalize newlines, too.
    #[serde(alias = "penalize_nl")]
    pub penalize_newline: Option<bool>,
    /// Bias added to logits, by token id or text; `false` bans a token.
    pub logit_bias: Option<LogitBias>,
    /// Seed of the sampler; a negative one is random.
    pub seed: Option<i64>,
    /// Samplers in order: a list of names, or one string of names or letters.
    pub samplers: Option<Samplers>,
    /// Strings that end the answer; they are not part of it.
    pub stop: Option<OneOrMany>,
    /// Token ids that end the answer, besides the model's own; they are not part of it.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Minimum number of tokens: until then, nothing but a complete grammar ends the answer.
    #[schema(maximum = 2147483647)]
    pub min_tokens: Option<u32>,
    /// Texts that the answer never contains.
    #[serde(alias = "bad_words")]
    pub banned_strings: Option<Vec<String>>,
    /// Continue past end-of-generation tokens.
    pub ignore_eos: Option<bool>,
    /// `false` computes the whole prompt, even if the beginning of it is cached. On by default.
    pub cache_prompt: Option<bool>,
    /// Requests with different texts here share no cached prefixes.
    pub cache_salt: Option<String>,
    /// Scales of LoRA adapters.
    pub lora: Option<Vec<AdapterScale>>,
    /// Scheduling priority; higher runs first. Limited by the API key.
    #[schema(minimum = -100, maximum = 100)]
    pub priority: Option<i32>,
    #[serde(flatten)]
    #[allow(missing_docs, reason = "flattened: its fields are documented")]
    pub drafts: DraftFields,
}

/// Scale of a LoRA adapter.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
pub struct AdapterScale {
    /// Number of the adapter.
    pub id: u32,
    /// Scale; 0 turns the adapter off, 1 applies it as trained.
    #[schema(minimum = -100, maximum = 100)]
    pub scale: f32,
}

impl RequestBody for Vec<AdapterScale> {}

/// Replaces entries of `scales`, one per adapter, by those that a request gives.
pub fn with_scales(mut scales: Vec<f32>, given: &[AdapterScale]) -> ApiResult<Vec<f32>> {
    for AdapterScale { id, scale } in given {
        let n = scales.len();
        let entry = usize::try_from(*id).ok().and_then(|id| scales.get_mut(id));
        let Some(entry) = entry else {
            let message = format!("there is no LoRA adapter {id}: the model has {n} adapters");
            return Err(ApiError::bad_request(message));
        };
        if !scale.is_finite() || scale.abs() > MAX_SCALE {
            let message = format!(
                "the scale of LoRA adapter {id} is {scale}; it must be between -{MAX_SCALE} and {MAX_SCALE}"
            );
            return Err(ApiError::bad_request(message));
        }
        *entry = *scale;
    }
    Ok(scales)
}

/// A string or a list of strings.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum OneOrMany {
    /// A string.
    One(String),
    /// A list of strings.
    Many(Vec<String>),
}

impl OneOrMany {
    /// The strings as a list.
    pub fn list(self) -> Vec<String> {
        match self {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(list) => list,
        }
    }
}

/// Samplers in order.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Samplers {
    /// Names separated by semicolons, such as `top_k;top_p`, or letters, such as `kp`.
    Text(String),
    /// List of names.
    List(Vec<String>),
}

/// Logit biases, in OpenAI's format or llama.cpp's.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum LogitBias {
    /// Biases by token id: `{"15043": -2}`.
    Map(BTreeMap<String, Bias>),
    /// Pairs of token and bias: `[[15043, -2], ["Hello", false]]`.
    List(Vec<(BiasedToken, Bias)>),
}

/// A token id, or a text that stands for all of its tokens.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum BiasedToken {
    /// Token id.
    Id(u32),
    /// Text.
    Text(String),
}

/// A logit bias.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Bias {
    /// Added to the logit.
    Add(f32),
    /// `false` bans, `true` does nothing.
    Allow(bool),
}

/// Upper bound of `dry_allowed_length`, which keeps sums of token counts from overflowing.
const MAX_DRY_LENGTH: u32 = 1_000_000;
const MAX_PRIORITY: i32 = 100;
/// Largest scale of an adapter.
const MAX_SCALE: f32 = 100.0;

impl SamplingFields {
    /// Sampling parameters: `base`, the model's defaults, with the fields that the client set.
    pub fn params(
        &self,
        base: &SamplingParams,
        tokenizer: &Tokenizer,
    ) -> ApiResult<SamplingParams> {
        let mut params = base.clone();
        macro_rules! set {
            ($($field:ident),*) => { $(if let Some(value) = self.$field { params.$field = value; })* };
        }
        set!(
            temperature,
            top_p,
            min_p,
            typical_p,
            tfs_z,
            top_n_sigma,
            xtc_probability,
            xtc_threshold,
            dynatemp_range,
            dynatemp_exponent,
            repeat_penalty,
            repeat_last_n,
            frequency_penalty,
            presence_penalty,
            penalize_newline,
            min_tokens
        );
        macro_rules! set_in {
            ($($from:ident => $($to:ident).+),* $(,)?) => {
                $(if let Some(value) = self.$from.clone() { params.$($to).+ = value; })*
            };
        }
        set_in!(
            mirostat_tau => mirostat.tau,
            mirostat_eta => mirostat.eta,
            dry_multiplier => dry.multiplier,
            dry_base => dry.base,
            dry_allowed_length => dry.allowed_length,
            dry_penalty_last_n => dry.penalty_last_n,
            dry_sequence_breakers => dry.sequence_breakers,
            stop_token_ids => stop_tokens,
            banned_strings => banned_strings,
        );
        if let Some(top_k) = self.top_k {
            params.top_k = top_k_of(top_k)?;
        }
        params.mirostat.mode = match self.mirostat {
            None => params.mirostat.mode,
            Some(0) => MirostatMode::Off,
            Some(1) => MirostatMode::V1,
            Some(2) => MirostatMode::V2,
            Some(other) => {
                let message = format!("mirostat is {other}; it must be 0, 1 or 2");
                return Err(ApiError::bad_request(message));
            }
        };
        if params.min_tokens > i32::MAX as u32 {
            let (n, most) = (params.min_tokens, i32::MAX);
            let message = format!("min_tokens is {n}; it must be at most {most}");
            return Err(ApiError::bad_request(message));
        }
        if params.dry.allowed_length > MAX_DRY_LENGTH {
            let message = format!("dry_allowed_length must be at most {MAX_DRY_LENGTH}");
            return Err(ApiError::bad_request(message));
        }
        if self
            .priority
            .is_some_and(|p| p.unsigned_abs() > MAX_PRIORITY as u32)
        {
            let message = format!("priority must be between -{MAX_PRIORITY} and {MAX_PRIORITY}");
            return Err(ApiError::bad_request(message));
        }
        if let Some(seed) = self.seed {
            params.seed = u64::try_from(seed).ok();
        }
        params.samplers = match &self.samplers {
            None => params.samplers,
            Some(Samplers::Text(text)) => SamplerKind::parse_list(text)?,
            Some(Samplers::List(list)) => {
                let parsed: Result<Vec<SamplerKind>, _> =
                    list.iter().map(|name| name.parse()).collect();
                parsed?
            }
        };
        if let Some(bias) = &self.logit_bias {
            params.logit_bias = bias.resolve(tokenizer)?;
        }
        if let Some(stop) = &self.stop {
            params.stop = stop.clone().list();
        }
        params.validate()?;
        Ok(params)
    }
}

/// Number of tokens that top-k sampling keeps: vLLM and llama-server turn it off with -1.
fn top_k_of(top_k: i32) -> ApiResult<u32> {
    match top_k {
        -1 => Ok(0),
        n => u32::try_from(n).map_err(|_| {
            ApiError::bad_request(format!(
                "top_k is {n}; it must be at least 0, or -1 for off"
            ))
        }),
    }
}

impl LogitBias {
    fn resolve(&self, tokenizer: &Tokenizer) -> ApiResult<Vec<(u32, f32)>> {
        let mut biases = Vec::new();
        match self {
            LogitBias::Map(map) => {
                for (token, bias) in map {
                    let token = token.parse().map_err(|_| {
                        let shown: String = token.chars().take(32).collect();
                        ApiError::bad_request(format!("logit_bias: {shown:?} is not a token id"))
                    })?;
                    biases.extend(bias.value().map(|bias| (token, bias)));
                }
            }
            LogitBias::List(list) => {
                for (token, bias) in list {
                    let tokens = match token {
                        BiasedToken::Id(id) => vec![*id],
                        BiasedToken::Text(text) => tokenizer.encode(text, EncodeOptions::PLAIN),
                    };
                    let bias = bias.value();
                    biases.extend(tokens.into_iter().filter_map(|token| Some((token, bias?))));
                }
            }
        }
        Ok(biases)
    }
}

impl Bias {
    fn value(self) -> Option<f32> {
        match self {
            Bias::Add(bias) => Some(bias),
            Bias::Allow(false) => Some(f32::NEG_INFINITY),
            Bias::Allow(true) => None,
        }
    }
}
