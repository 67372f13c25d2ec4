//! Sampling parameters of a request, with the names and defaults of llama.cpp, and their ranges.

use super::SamplingError;
use super::chain::{DEFAULT_SAMPLERS, SamplerKind};
use super::stop::{MAX_STOP_BYTES, MAX_STOPS};

/// Limit on the entries of a logit bias.
const MAX_LOGIT_BIAS: usize = 65_536;
/// Limit on the tokens that end an answer.
const MAX_STOP_TOKENS: usize = 1_024;
/// Limit on the alternatives reported per token.
const MAX_PROBS: u32 = 1_000;

/// Sampling parameters. The defaults are those of llama.cpp.
///
/// ```
/// use oxidize::SamplingParams;
///
/// let mut params = SamplingParams::default();
/// params.temperature = 0.7;
/// params.seed = Some(42);
/// assert!(params.validate().is_ok());
/// params.top_p = 2.0;
/// assert!(params.validate().is_err());
/// ```
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct SamplingParams {
    /// Divides the logits; 0 always picks the most likely token.
    pub temperature: f32,
    /// Range of the dynamic temperature around `temperature`; 0 is off.
    pub dynatemp_range: f32,
    /// Exponent that maps the normalized entropy to the dynamic temperature.
    pub dynatemp_exponent: f32,
    /// Keeps the k most likely tokens; 0 is off.
    pub top_k: u32,
    /// Keeps the most likely tokens with this total probability; 1 is off.
    pub top_p: f32,
    /// Keeps tokens with at least this fraction of the probability of the most likely one; 0 is
    /// off.
    pub min_p: f32,
    /// Locally typical sampling: total probability of the tokens kept; 1 is off.
    pub typical_p: f32,
    /// Tail-free sampling: fraction of the curvature kept; 1 is off.
    pub tfs_z: f32,
    /// Keeps logits within this many standard deviations of the largest; 0 is off.
    pub top_n_sigma: f32,
    /// Probability per step that XTC removes the top choices; 0 is off.
    pub xtc_probability: f32,
    /// Minimum probability of a top choice for XTC; above 0.5 is off.
    pub xtc_threshold: f32,
    /// Mirostat: feedback control of the surprise, which replaces the truncating samplers.
    pub mirostat: MirostatParams,
    /// DRY: penalty on extending a repetition of earlier text.
    pub dry: DryParams,
    /// Divides the logits of recent tokens (or multiplies them if negative); 1 is off.
    pub repeat_penalty: f32,
    /// Number of recent tokens to penalize; 0 is off, −1 is all.
    pub repeat_last_n: i32,
    /// Subtracted from a logit per recent occurrence of its token; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted from a logit if its token occurred recently; 0 is off.
    pub presence_penalty: f32,
    /// Penalizes the newline token, too.
    pub penalize_newline: bool,
    /// Added to the logits of these tokens before all other stages; −∞ bans a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers; `None` draws one.
    pub seed: Option<u64>,
    /// Stages of the chain, in order.
    pub samplers: Vec<SamplerKind>,
    /// `Some(n)` reports the log probability of each token and of the n most likely ones.
    pub n_probs: Option<u32>,
    /// Stop strings: the answer ends before the first occurrence of any.
    pub stop: Vec<String>,
    /// Tokens that end the answer, besides the model's own; the answer ends before them.
    pub stop_tokens: Vec<u32>,
    /// Minimum number of tokens: until then, the tokens that end the answer are excluded and stop strings do not
    /// end it. A complete grammar does.
    pub min_tokens: u32,
    /// Strings that the answer never contains: tokens that would complete one are excluded.
    pub banned_strings: Vec<String>,
}

/// Parameters of the DRY sampler.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct DryParams {
    /// Strength of the penalty; 0 is off.
    pub multiplier: f32,
    /// Growth of the penalty per repeated token.
    pub base: f32,
    /// Longest repetition that is not penalized.
    pub allowed_length: u32,
    /// Number of recent tokens searched; 0 is off, −1 is all.
    pub penalty_last_n: i32,
    /// Strings that a repetition does not extend across.
    pub sequence_breakers: Vec<String>,
}

/// Parameters of Mirostat.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct MirostatParams {
    /// Version, or off.
    pub mode: MirostatMode,
    /// Target surprise in bits.
    pub tau: f32,
    /// Learning rate.
    pub eta: f32,
}

/// Version of Mirostat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub enum MirostatMode {
    /// Off.
    #[default]
    Off,
    /// Version 1, which estimates the exponent of the tail.
    V1,
    /// Version 2, which truncates by surprise alone.
    V2,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            tfs_z: 1.0,
            top_n_sigma: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            mirostat: MirostatParams::default(),
            dry: DryParams::default(),
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalize_newline: false,
            logit_bias: Vec::new(),
            seed: None,
            samplers: DEFAULT_SAMPLERS.to_vec(),
            n_probs: None,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            min_tokens: 0,
            banned_strings: Vec::new(),
        }
    }
}

impl Default for DryParams {
    fn default() -> Self {
        Self {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            penalty_last_n: -1,
            sequence_breakers: ["\n", ":", "\"", "*"].map(String::from).to_vec(),
        }
    }
}

impl Default for MirostatParams {
    fn default() -> Self {
        Self {
            mode: MirostatMode::Off,
            tau: 5.0,
            eta: 0.1,
        }
    }
}

impl SamplingParams {
    /// Parameters that always pick the most likely token.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// True if the most likely token is always picked.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0
    }

    /// Checks the range of every field. The error names the first field that is out of range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        within(
            "temperature",
            self.temperature,
            0.0,
            100.0,
            "between 0 and 100",
        )?;
        within(
            "dynatemp_range",
            self.dynatemp_range,
            0.0,
            100.0,
            "between 0 and 100",
        )?;
        within(
            "dynatemp_exponent",
            self.dynatemp_exponent,
            0.0,
            100.0,
            "between 0 and 100",
        )?;
        if self.top_k > i32::MAX as u32 {
            return Err(SamplingError::parameter(
                "top_k",
                self.top_k,
                "at most 2147483647",
            ));
        }
        within("top_p", self.top_p, 0.0, 1.0, "between 0 and 1")?;
        within("min_p", self.min_p, 0.0, 1.0, "between 0 and 1")?;
        within("typical_p", self.typical_p, 0.0, 1.0, "between 0 and 1")?;
        within("tfs_z", self.tfs_z, 0.0, 1.0, "between 0 and 1")?;
        within(
            "top_n_sigma",
            self.top_n_sigma,
            0.0,
            1e4,
            "between 0 and 10000",
        )?;
        within(
            "xtc_probability",
            self.xtc_probability,
            0.0,
            1.0,
            "between 0 and 1",
        )?;
        within(
            "xtc_threshold",
            self.xtc_threshold,
            0.0,
            1.0,
            "between 0 and 1",
        )?;
        within(
            "mirostat_tau",
            self.mirostat.tau,
            0.0,
            100.0,
            "between 0 and 100",
        )?;
        within(
            "mirostat_eta",
            self.mirostat.eta,
            0.0,
            10.0,
            "between 0 and 10",
        )?;
        within(
            "dry_multiplier",
            self.dry.multiplier,
            0.0,
            1e4,
            "between 0 and 10000",
        )?;
        within("dry_base", self.dry.base, 1.0, 1e4, "between 1 and 10000")?;
        last_n("dry_penalty_last_n", self.dry.penalty_last_n)?;
        within(
            "repeat_penalty",
            self.repeat_penalty,
            0.01,
            100.0,
            "between 0.01 and 100",
        )?;
        last_n("repeat_last_n", self.repeat_last_n)?;
        within(
            "frequency_penalty",
            self.frequency_penalty,
            -100.0,
            100.0,
            "between -100 and 100",
        )?;
        within(
            "presence_penalty",
            self.presence_penalty,
            -100.0,
            100.0,
            "between -100 and 100",
        )?;
        at_most("logit_bias", self.logit_bias.len(), MAX_LOGIT_BIAS)?;
        for &(_, bias) in &self.logit_bias {
            if bias != f32::NEG_INFINITY {
                within(
                    "logit_bias",
                    bias,
                    -1e6,
                    1e6,
                    "between -1000000 and 1000000, or -inf to ban the token",
                )?;
            }
        }
        if self.n_probs.is_some_and(|n| n > MAX_PROBS) {
            return Err(SamplingError::parameter(
                "n_probs",
                self.n_probs.unwrap_or(0),
                "at most 1000",
            ));
        }
        at_most("samplers", self.samplers.len(), 64)?;
        strings("stop", &self.stop)?;
        at_most("stop_tokens", self.stop_tokens.len(), MAX_STOP_TOKENS)?;
        strings("banned_strings", &self.banned_strings)?;
        strings("dry_sequence_breakers", &self.dry.sequence_breakers)
    }
}

fn within(
    field: &'static str,
    value: f32,
    low: f32,
    high: f32,
    limit: &'static str,
) -> Result<(), SamplingError> {
    // Written so that NaN fails.
    if value >= low && value <= high {
        Ok(())
    } else {
        Err(SamplingError::parameter(field, value, limit))
    }
}

fn last_n(field: &'static str, value: i32) -> Result<(), SamplingError> {
    if value >= -1 {
        Ok(())
    } else {
        Err(SamplingError::parameter(field, value, "-1 (all) or more"))
    }
}

fn at_most(field: &'static str, requested: usize, limit: usize) -> Result<(), SamplingError> {
    if requested <= limit {
        Ok(())
    } else {
        Err(SamplingError::TooMany {
            field,
            requested,
            limit,
        })
    }
}

fn strings(field: &'static str, strings: &[String]) -> Result<(), SamplingError> {
    at_most(field, strings.len(), MAX_STOPS)?;
    for string in strings {
        if string.is_empty() || string.len() > MAX_STOP_BYTES {
            let value = format!("{} bytes long", string.len());
            return Err(SamplingError::parameter(
                field,
                value,
                "strings of 1 to 4096 bytes",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        SamplingParams::default().validate().unwrap();
        SamplingParams::greedy().validate().unwrap();
    }

    #[test]
    fn every_float_rejects_nan_infinity_and_out_of_range_values() {
        type Setter = fn(&mut SamplingParams, f32);
        let setters: [(&str, Setter); 18] = [
            ("temperature", |p, v| p.temperature = v),
            ("dynatemp_range", |p, v| p.dynatemp_range = v),
            ("dynatemp_exponent", |p, v| p.dynatemp_exponent = v),
            ("top_p", |p, v| p.top_p = v),
            ("min_p", |p, v| p.min_p = v),
            ("typical_p", |p, v| p.typical_p = v),
            ("tfs_z", |p, v| p.tfs_z = v),
            ("top_n_sigma", |p, v| p.top_n_sigma = v),
            ("xtc_probability", |p, v| p.xtc_probability = v),
            ("xtc_threshold", |p, v| p.xtc_threshold = v),
            ("mirostat_tau", |p, v| p.mirostat.tau = v),
            ("mirostat_eta", |p, v| p.mirostat.eta = v),
            ("dry_multiplier", |p, v| p.dry.multiplier = v),
            ("dry_base", |p, v| p.dry.base = v),
            ("repeat_penalty", |p, v| p.repeat_penalty = v),
            ("frequency_penalty", |p, v| p.frequency_penalty = v),
            ("presence_penalty", |p, v| p.presence_penalty = v),
            ("logit_bias", |p, v| p.logit_bias = vec![(0, v)]),
        ];
        for (name, set) in setters {
            for value in [f32::NAN, f32::INFINITY, 2e9, -2e9] {
                let mut params = SamplingParams::default();
                set(&mut params, value);
                match params.validate() {
                    Err(SamplingError::Parameter { field, .. }) => assert_eq!(field, name),
                    other => panic!("{name} = {value}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn integers_and_lists_are_bounded() {
        let bad = [
            SamplingParams {
                repeat_last_n: -2,
                ..Default::default()
            },
            SamplingParams {
                top_k: u32::MAX,
                ..Default::default()
            },
            SamplingParams {
                n_probs: Some(u32::MAX),
                ..Default::default()
            },
            SamplingParams {
                stop: vec![String::new()],
                ..Default::default()
            },
            SamplingParams {
                stop: vec!["x".into(); 10_000],
                ..Default::default()
            },
            SamplingParams {
                logit_bias: vec![(0, 0.0); 100_000],
                ..Default::default()
            },
            SamplingParams {
                stop_tokens: vec![0; 100_000],
                ..Default::default()
            },
        ];
        for params in bad {
            assert!(params.validate().is_err(), "{params:?}");
        }
    }
}
