//! Arguments of beam search, which `run` and `chat` use instead of the engine.

use std::sync::Arc;

use clap::Args;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::engine::{BeamParams, BeamSequence, Request, beam_search};
use oxidize_core::model::Model;

use crate::model_args::ModelArgs;

/// Arguments of beam search.
#[derive(Args, Clone, Copy, Default)]
#[command(next_help_heading = "Beam search")]
pub(crate) struct BeamArgs {
    /// Search for the most likely complete answer with N beams; the answer is printed when it is complete
    #[arg(long, value_name = "N")]
    beams: Option<usize>,
    /// Set the length penalty: beams are ranked by log probability / length^X [default: 1]
    #[arg(
        long,
        value_name = "X",
        requires = "beams",
        allow_negative_numbers = true
    )]
    length_penalty: Option<f32>,
}

impl BeamArgs {
    /// True if beam search is enabled.
    pub(crate) fn is_set(self) -> bool {
        self.beams.is_some()
    }

    /// Runs the search and returns the answers, best first.
    pub(crate) fn search(
        self,
        model: &Model,
        models: &ModelArgs,
        request: &Request,
        go_on: impl FnMut() -> bool,
    ) -> anyhow::Result<Vec<BeamSequence>> {
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
