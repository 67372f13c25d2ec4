//! Arguments of speculative decoding, with llama.cpp's names.

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, ValueEnum};
use oxidize_core::engine::EngineConfig;
use oxidize_core::speculative::{DraftSource, Speculation};
use oxidize_server::config::{DraftSettings, SpeculationSettings};

use crate::model_args::ModelArgs;
use crate::model_path::find_model;

/// Arguments of speculative decoding, which does not change the answer.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Speculative decoding")]
pub(crate) struct SpeculationArgs {
    /// Draft tokens with a smaller model of the same vocabulary
    #[arg(
        long,
        visible_alias = "md",
        value_name = "MODEL",
        env = "OXIDIZE_MODEL_DRAFT"
    )]
    model_draft: Option<PathBuf>,
    /// Source of draft tokens
    #[arg(
        long,
        value_name = "TYPE",
        visible_alias = "spec",
        env = "OXIDIZE_SPEC_TYPE"
    )]
    spec_type: Option<SpecType>,
    /// Maximum number of draft tokens per step [default: 8]
    #[arg(long, visible_aliases = ["draft", "draft-n"], value_name = "N", env = "OXIDIZE_DRAFT_MAX")]
    draft_max: Option<usize>,
    /// Minimum number of draft tokens; shorter drafts are dropped [default: 1]
    #[arg(
        long,
        visible_alias = "draft-n-min",
        value_name = "N",
        env = "OXIDIZE_DRAFT_MIN"
    )]
    draft_min: Option<usize>,
    /// Stop drafting when the draft model's token is less likely than this [default: 0.75]
    #[arg(long, value_name = "P", env = "OXIDIZE_DRAFT_P_MIN")]
    draft_p_min: Option<f32>,
    /// Draft even when it makes generation slower
    #[arg(long)]
    draft_always: bool,
}

const NEEDS_MODEL: &str = "--spec-type draft needs --model-draft";

/// Source of draft tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SpecType {
    /// No speculative decoding
    None,
    /// Continuations of earlier occurrences of the last tokens in the context
    #[value(aliases = ["ngram-simple", "lookup"])]
    Ngram,
    /// The model of --model-draft
    #[value(alias = "model")]
    Draft,
}

impl SpeculationArgs {
    /// The settings of a server.
    pub(crate) fn settings(&self) -> anyhow::Result<SpeculationSettings> {
        let source = match (&self.model_draft, self.spec_type) {
            (_, Some(SpecType::None)) | (None, None) => None,
            (None, Some(SpecType::Draft)) => bail!(NEEDS_MODEL),
            (_, Some(SpecType::Ngram)) => Some(DraftSettings::Ngram),
            (Some(path), _) => Some(DraftSettings::Model(find_model(Some(path.clone()))?)),
        };
        Ok(SpeculationSettings {
            source,
            max_tokens: self.draft_max,
            min_tokens: self.draft_min,
            min_probability: self.draft_p_min,
            always: self.draft_always,
        })
    }

    /// Applies the arguments to an engine configuration.
    pub(crate) fn apply(
        &self,
        config: EngineConfig,
        models: &ModelArgs,
    ) -> anyhow::Result<EngineConfig> {
        let source = match (&self.model_draft, self.spec_type) {
            (_, Some(SpecType::None)) => None,
            (None, None) => None,
            (None, Some(SpecType::Draft)) => bail!(NEEDS_MODEL),
            (_, Some(SpecType::Ngram)) => Some(DraftSource::Ngram),
            (Some(path), _) => Some(DraftSource::Model(
                models.load(&find_model(Some(path.clone()))?)?,
            )),
        };
        let speculation = source.map(|source| {
            let default = Speculation::new(source);
            Speculation {
                max_tokens: self.draft_max.unwrap_or(default.max_tokens),
                min_tokens: self.draft_min.unwrap_or(default.min_tokens),
                min_probability: self.draft_p_min.unwrap_or(default.min_probability),
                always: self.draft_always,
                ..default
            }
        });
        Ok(EngineConfig {
            speculation,
            ..config
        })
    }
}
