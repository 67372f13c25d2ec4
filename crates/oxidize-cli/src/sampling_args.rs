//! The arguments that say how tokens are chosen, by llama.cpp's names.

use clap::Args;
use oxidize_core::sampling::{SamplerKind, SamplingParams};

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
    /// Same seed, same tokens [default: random]
    #[arg(short = 's', long, value_name = "SEED")]
    seed: Option<u64>,
    /// Adds to a token's logit: `--logit-bias 15043=-2`, `-inf` bans it (repeatable)
    #[arg(long, value_name = "TOKEN=BIAS", value_parser = parse_bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f32)>,
    /// The samplers in their order, separated by `;` or `,`
    #[arg(long, value_name = "LIST")]
    samplers: Option<String>,
    /// Ends the answer before this text (repeatable)
    #[arg(
        short = 'r',
        long = "reverse-prompt",
        visible_alias = "stop",
        value_name = "TEXT"
    )]
    stop: Vec<String>,
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
        let params = SamplingParams {
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
            ..base
        };
        params.validate()?;
        Ok(params)
    }
}
