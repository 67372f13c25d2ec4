//! The arguments that say how tokens are chosen, by llama.cpp's names.

use clap::Args;
use oxidize_core::sampling::{
    DryParams, MirostatMode, MirostatParams, SamplerKind, SamplingParams,
};

/// How tokens are chosen. What is not given is the model's own default, or ours.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Temperature; 0 always takes the most likely token [default: 0.8]
    #[arg(
        long = "temp",
        visible_alias = "temperature",
        value_name = "T",
        allow_negative_numbers = true
    )]
    temp: Option<f32>,
    /// Width of the dynamic temperature, by entropy, around the temperature [default: 0, off]
    #[arg(long, value_name = "T")]
    dynatemp_range: Option<f32>,
    /// How the entropy maps onto the dynamic temperature [default: 1]
    #[arg(long, value_name = "X")]
    dynatemp_exp: Option<f32>,
    /// Keep the K most likely tokens; 0 is off [default: 40]
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Keep the most likely tokens that hold this share of the probability [default: 0.95]
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Drop tokens less likely than this share of the most likely one [default: 0.05]
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Locally typical sampling [default: 1, off]
    #[arg(long = "typical", visible_alias = "typical-p", value_name = "P")]
    typical: Option<f32>,
    /// Keep logits within so many standard deviations of the largest [default: 0, off]
    #[arg(long, value_name = "N")]
    top_n_sigma: Option<f32>,
    /// Tail-free sampling [default: 1, off]
    #[arg(long = "tfs", visible_alias = "tfs-z", value_name = "Z")]
    tfs: Option<f32>,
    /// Chance that XTC removes the top choices in a step [default: 0, off]
    #[arg(long, value_name = "P")]
    xtc_probability: Option<f32>,
    /// XTC takes tokens at least this likely for top choices [default: 0.1]
    #[arg(long, value_name = "P")]
    xtc_threshold: Option<f32>,
    /// Mirostat 1 or 2 in place of the truncating samplers [default: 0, off]
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(u8).range(0..=2))]
    mirostat: Option<u8>,
    /// Mirostat's target surprise, in bits [default: 5]
    #[arg(
        long = "mirostat-ent",
        visible_alias = "mirostat-tau",
        value_name = "BITS"
    )]
    mirostat_ent: Option<f32>,
    /// Mirostat's learning rate [default: 0.1]
    #[arg(
        long = "mirostat-lr",
        visible_alias = "mirostat-eta",
        value_name = "RATE"
    )]
    mirostat_lr: Option<f32>,
    /// Strength of DRY, a penalty on going on with a repetition [default: 0, off]
    #[arg(long, value_name = "X")]
    dry_multiplier: Option<f32>,
    /// Growth of DRY's penalty with each repeated token [default: 1.75]
    #[arg(long, value_name = "X")]
    dry_base: Option<f32>,
    /// Repetitions up to this length are free [default: 2]
    #[arg(long, value_name = "N")]
    dry_allowed_length: Option<u32>,
    /// How many tokens back DRY looks; -1 is all [default: -1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    dry_penalty_last_n: Option<i32>,
    /// A repetition does not reach across this text (repeatable; `none` for no such text)
    /// [default: newline, colon, quotation mark, asterisk]
    #[arg(long, value_name = "TEXT")]
    dry_sequence_breaker: Vec<String>,
    /// Penalty on tokens that came up recently [default: 1, off]
    #[arg(long, value_name = "X")]
    repeat_penalty: Option<f32>,
    /// How many tokens back the penalties look; -1 is all [default: 64]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    repeat_last_n: Option<i32>,
    /// Penalty for each time a token came up [default: 0, off]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Penalty on tokens that came up at all [default: 0, off]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// The penalties hit the newline too
    #[arg(long)]
    penalize_nl: bool,
    /// Same seed, same tokens [default: random]
    #[arg(short = 's', long, value_name = "SEED")]
    seed: Option<u64>,
    /// Adds to a token's logit: `--logit-bias 15043=-2`, `-inf` bans it (repeatable)
    #[arg(long, value_name = "TOKEN=BIAS", value_parser = parse_bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f32)>,
    /// The samplers in their order, separated by `;` or `,`: penalties, dry, top_n_sigma, top_k, tfs_z,
    /// typ_p, top_p, min_p, xtc, temperature, infill; or their letters, `edskfypmxti`
    #[arg(long, visible_aliases = ["sampler-seq", "sampling-seq"], value_name = "LIST")]
    samplers: Option<String>,
    /// Reports each token's log probability and the N most likely ones (with --json)
    #[arg(long, visible_alias = "logprobs", value_name = "N")]
    n_probs: Option<u32>,
    /// Ends the answer before this text (repeatable)
    #[arg(
        short = 'r',
        long = "reverse-prompt",
        visible_alias = "stop",
        value_name = "TEXT"
    )]
    stop: Vec<String>,
    /// The answer never contains this text (repeatable)
    #[arg(long, value_name = "TEXT")]
    ban_string: Vec<String>,
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
    /// The parameters: `base` with what was given on the command line.
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
