//! The arguments of beam search, which `run` and `chat` do instead of asking an engine.

use std::sync::Arc;

use clap::Args;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::engine::{BeamAnswer, BeamParams, Request, beam_search};
use oxidize_core::model::Model;

use crate::model_args::ModelArgs;

/// How wide to search.
#[derive(Args, Clone, Copy, Default)]
#[command(next_help_heading = "Beam search")]
pub(crate) struct BeamArgs {
    /// Search for the most likely answer as a whole, following N at once; it appears when it is complete
    #[arg(long, value_name = "N")]
    beams: Option<usize>,
    /// Compare answers by their log probability over their length to this power [default: 1]
    #[arg(
        long,
        value_name = "X",
        requires = "beams",
        allow_negative_numbers = true
    )]
    length_penalty: Option<f32>,
}

impl BeamArgs {
    /// Whether a search was asked for.
    pub(crate) fn is_set(self) -> bool {
        self.beams.is_some()
    }

    /// The most likely answers, the best first.
    pub(crate) fn search(
        self,
        model: &Model,
        models: &ModelArgs,
        request: &Request,
        go_on: impl FnMut() -> bool,
    ) -> anyhow::Result<Vec<BeamAnswer>> {
        let params = BeamParams {
            beams: self.beams.unwrap_or(1),
            length_penalty: self.length_penalty.unwrap_or(1.0),
        };
        let backend = Arc::new(Cpu::default());
        let config = models.config(model);
        Ok(beam_search(
            model,
            backend.as_ref(),
            &config,
            request,
            params,
            go_on,
        )?)
    }
}
