//! `oxidize serve`: serves models over HTTP. The server is the crate `oxidize-server`.

use std::sync::Arc;

use clap::Args;
use oxidize_core::backend::cpu::Cpu;

use crate::hub;
use crate::model_path::find_model;
use crate::serve_args::ServeArgs;

/// Serve models over HTTP with the APIs of OpenAI, Anthropic, Ollama and llama-server
#[derive(Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    args: ServeArgs,
}

impl Serve {
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        if self.args.models.is_empty() && self.args.model_flags.is_empty() {
            let default = find_model(None)?;
            self.args
                .models
                .push(default.to_string_lossy().into_owned());
        }
        let specs = self
            .args
            .specs(|path| find_model(Some(path.to_path_buf())))?;
        let mut config = self.args.config()?;
        config.offline = hub::settings().offline;
        Ok(oxidize_server::run(
            config,
            specs,
            Arc::new(Cpu::default()),
        )?)
    }
}
