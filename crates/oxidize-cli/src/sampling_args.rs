//! Arguments of sampling, with llama.cpp's names.

use clap::Args;
use oxidize_core::sampling::{
    DryParams, MirostatMode, MirostatParams, SamplerKind, SamplingParams,
};

/// Sampling parameters. Defaults are the model's recommended values, else those of the help text.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Set the temperature; 0 selects the most likely token [default: 0.8]
    #[arg(
        long = "temp",
        visible_alias = "temperature",
        value_name = "T",
        allow_negative_numbers = true
    )]
    temp: Option<f32>,
    /// Set the range of the entropy-based dynamic temperature around the temperature [default: 0, off]
    #[arg(long, value_name = "T")]
    dynatemp_range: Option<f32>,
    /// Set the exponent of the dynamic temperature [default: 1]
    #[arg(long, value_name = "X")]
    dynatemp_exp: Option<f32>,
    /// Keep the K most likely tokens; 0 disables [default: 40]
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Keep the smallest set of tokens with this total probability [default: 0.95]
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Drop tokens with less than this fraction of the highest probability [default: 0.05]
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Set the probability mass of locally typical sampling [default: 1, off]
    #[arg(long = "typical", visible_alias = "typical-p", value_name = "P")]
    typical: Option<f32>,
    /// Keep logits within N standard deviations of the maximum [default: 0, off]
    #[arg(long, value_name = "N")]
    top_n_sigma: Option<f32>,
    /// Set the parameter z of tail-free sampling [default: 1, off]
    #[arg(long = "tfs", visible_alias = "tfs-z", value_name = "Z")]
    tfs: Option<f32>,
    /// Set the probability that XTC removes the top tokens in a step [default: 0, off]
    #[arg(long, value_name = "P")]
    xtc_probability: Option<f32>,
    /// Set the minimum probability of a top token for XTC [default: 0.1]
    #[arg(long, value_name = "P")]
    xtc_threshold: Option<f32>,
    /// Use Mirostat 1 or 2 instead of the truncating samplers [default: 0, off]
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(u8).range(0..=2))]
    mirostat: Option<u8>,
    /// Set the target surprise of Mirostat in bits [default: 5]
    #[arg(
        long = "mirostat-ent",
        visible_alias = "mirostat-tau",
        value_name = "BITS"
    )]
    mirostat_ent: Option<f32>,
    /// Set the learning rate of Mirostat [default: 0.1]
    #[arg(
        long = "mirostat-lr",
        visible_alias = "mirostat-eta",
        value_name = "RATE"
    )]
    mirostat_lr: Option<f32>,
    /// Set the multiplier of DRY, a penalty on continuing a repetition [default: 0, off]
    #[arg(long, value_name = "X")]
    dry_multiplier: Option<f32>,
    /// Set the base of the DRY penalty, its growth per repeated token [default: 1.75]
    #[arg(long, value_name = "X")]
    dry_base: Option<f32>,
    /// Set the length up to which DRY does not penalize repetitions [default: 2]
    #[arg(long, value_name = "N")]
    dry_allowed_length: Option<u32>,
    /// Set the number of last tokens that DRY considers; -1 is all [default: -1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    dry_penalty_last_n: Option<i32>,
    /// End DRY repetitions at this text (repeatable; `none` clears the list) [default: newline, colon,
    /// quotation mark, asterisk]
    #[arg(long, value_name = "TEXT")]
    dry_sequence_breaker: Vec<String>,
    /// Set the penalty factor of recent tokens [default: 1, off]
    #[arg(long, value_name = "X")]
    repeat_penalty: Option<f32>,
    /// Set the number of last tokens that the penalties consider; -1 is all [default: 64]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    repeat_last_n: Option<i32>,
    /// Set the penalty per occurrence of a token [default: 0, off]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Set the penalty of tokens that have occurred [default: 0, off]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Apply the penalties to the newline token too
    #[arg(long)]
    penalize_nl: bool,
    /// Set the random seed [default: random]
    #[arg(short = 's', long, value_name = "SEED")]
    seed: Option<u64>,
    /// Add a bias to a token's logit, such as 15043=-2; -inf bans the token (repeatable)
    #[arg(long, value_name = "TOKEN=BIAS", value_parser = parse_bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f32)>,
    /// Set the samplers and their order, separated by `;` or `,`: penalties, dry, top_n_sigma, top_k, tfs_z,
    /// typ_p, top_p, min_p, xtc, temperature, infill; or by their letters `edskfypmxti`
    #[arg(long, visible_aliases = ["sampler-seq", "sampling-seq"], value_name = "LIST")]
    samplers: Option<String>,
    /// Report the log probabilities of each token and of the N most likely ones, with --json
    #[arg(long, visible_alias = "logprobs", value_name = "N")]
    n_probs: Option<u32>,
    /// Stop generation before this text (repeatable)
    #[arg(
        short = 'r',
        long = "reverse-prompt",
        visible_alias = "stop",
        value_name = "TEXT"
    )]
    stop: Vec<String>,
    /// Prevent this text in the answer (repeatable)
    #[arg(long, value_name = "TEXT")]
    ban_string: Vec<String>,
    /// End the answer before the token with this id, besides the model's own (repeatable)
    #[arg(long, value_name = "ID")]
    stop_token: Vec<u32>,
    /// Minimum number of tokens; until then, only a complete grammar ends the answer [default: 0]
    #[arg(long, value_name = "N")]
    min_tokens: Option<u32>,
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let (token, bias) = text.split_once('=').ok_or("expected TOKEN=BIAS")?;
    let token = token
        .parse()
        .map_err(|_| format!("{token:?} is not a token id"))?;
    let bias = bias
        .parse()
        .map_err(|_| format!("{bias:?} is not a number"))?;
    Ok((token, bias))
}

impl SamplingArgs {
    /// Applies the arguments to the parameters in `base`.
    pub(crate) fn params(&self, base: SamplingParams) -> anyhow::Result<SamplingParams> {
        let samplers = self
            .samplers
            .as_deref()
            .map(SamplerKind::parse_list)
            .transpose()?;
        let mirostat = MirostatParams {
            mode: match self.mirostat {
                None => base.mirostat.mode,
                Some(1) => MirostatMode::V1,
                Some(2) => MirostatMode::V2,
                Some(_) => MirostatMode::Off,
            },
            tau: self.mirostat_ent.unwrap_or(base.mirostat.tau),
            eta: self.mirostat_lr.unwrap_or(base.mirostat.eta),
        };
        let breakers = &self.dry_sequence_breaker;
        let dry = DryParams {
            multiplier: self.dry_multiplier.unwrap_or(base.dry.multiplier),
            base: self.dry_base.unwrap_or(base.dry.base),
            allowed_length: self.dry_allowed_length.unwrap_or(base.dry.allowed_length),
            penalty_last_n: self.dry_penalty_last_n.unwrap_or(base.dry.penalty_last_n),
            sequence_breakers: match breakers.as_slice() {
                [] => base.dry.sequence_breakers,
                [none] if none == "none" => Vec::new(),
                breakers => breakers.to_vec(),
            },
        };
        let params = SamplingParams {
            mirostat,
            dry,
            dynatemp_range: self.dynatemp_range.unwrap_or(base.dynatemp_range),
            dynatemp_exponent: self.dynatemp_exp.unwrap_or(base.dynatemp_exponent),
            tfs_z: self.tfs.unwrap_or(base.tfs_z),
            xtc_probability: self.xtc_probability.unwrap_or(base.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(base.xtc_threshold),
            penalize_newline: self.penalize_nl || base.penalize_newline,
            n_probs: self.n_probs.or(base.n_probs),
            banned_strings: [base.banned_strings, self.ban_string.clone()].concat(),
            stop_tokens: [base.stop_tokens, self.stop_token.clone()].concat(),
            min_tokens: self.min_tokens.unwrap_or(base.min_tokens),
            temperature: self.temp.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            typical_p: self.typical.unwrap_or(base.typical_p),
            top_n_sigma: self.top_n_sigma.unwrap_or(base.top_n_sigma),
            repeat_penalty: self.repeat_penalty.unwrap_or(base.repeat_penalty),
            repeat_last_n: self.repeat_last_n.unwrap_or(base.repeat_last_n),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            seed: self.seed.or(base.seed),
            samplers: samplers.unwrap_or(base.samplers),
            logit_bias: [base.logit_bias, self.logit_bias.clone()].concat(),
            stop: [base.stop, self.stop.clone()].concat(),
        };
        params.validate()?;
        Ok(params)
    }
}
