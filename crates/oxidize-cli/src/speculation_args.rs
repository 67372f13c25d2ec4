//! The arguments of speculative decoding, by llama.cpp's names.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use oxidize_core::engine::EngineConfig;
use oxidize_core::speculative::{DraftSource, Speculation};

use crate::model_args::{ModelArgs, find_model};

/// How tokens are guessed ahead. The answer is the same with and without.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Speculative decoding")]
pub(crate) struct SpeculationArgs {
    /// A smaller model with the same vocabulary that guesses ahead
    #[arg(
        long,
        visible_alias = "md",
        value_name = "MODEL",
        env = "OXIDIZE_MODEL_DRAFT"
    )]
    model_draft: Option<PathBuf>,
    /// Guesses without a draft model: what followed the last tokens where they came up before
    #[arg(
        long,
        value_name = "TYPE",
        visible_alias = "spec",
        env = "OXIDIZE_SPEC_TYPE"
    )]
    spec_type: Option<SpecType>,
    /// Most tokens guessed at a time [default: 8]
    #[arg(long, visible_aliases = ["draft", "draft-n"], value_name = "N", env = "OXIDIZE_DRAFT_MAX")]
    draft_max: Option<usize>,
    /// Guesses shorter than this are not tried [default: 1]
    #[arg(
        long,
        visible_alias = "draft-n-min",
        value_name = "N",
        env = "OXIDIZE_DRAFT_MIN"
    )]
    draft_min: Option<usize>,
    /// The draft model guesses on while it holds its token at least this likely [default: 0.75]
    #[arg(long, value_name = "P", env = "OXIDIZE_DRAFT_P_MIN")]
    draft_p_min: Option<f32>,
    /// Guess even where it makes the answer slower
    #[arg(long)]
    draft_always: bool,
}

/// Where guesses come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SpecType {
    /// No guesses
    None,
    /// What the text repeats
    #[value(aliases = ["ngram-simple", "lookup"])]
    Ngram,
    /// The draft model
    #[value(alias = "model")]
    Draft,
}

impl SpeculationArgs {
    /// Adds what was asked for to the settings of an engine.
    pub(crate) fn apply(
        &self,
        config: EngineConfig,
        models: &ModelArgs,
    ) -> anyhow::Result<EngineConfig> {
        let source = match (&self.model_draft, self.spec_type) {
            (_, Some(SpecType::None)) => None,
            (None, None) => None,
            (None, Some(SpecType::Draft)) => anyhow::bail!("--spec-type draft needs --model-draft"),
            (_, Some(SpecType::Ngram)) => Some(DraftSource::Ngram),
            (Some(path), _) => Some(DraftSource::Model(
                models.load(&find_model(Some(path.clone()))?)?,
            )),
        };
        let speculation = source.map(|source| {
            let usual = Speculation::new(source);
            Speculation {
                max_tokens: self.draft_max.unwrap_or(usual.max_tokens),
                min_tokens: self.draft_min.unwrap_or(usual.min_tokens),
                min_probability: self.draft_p_min.unwrap_or(usual.min_probability),
                always: self.draft_always,
                ..usual
            }
        });
        Ok(EngineConfig {
            speculation,
            ..config
        })
    }
}
