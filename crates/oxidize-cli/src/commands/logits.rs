//! `oxidize logits`: the logits at every position, for comparing engines.

use std::path::PathBuf;

use clap::Args;
use oxidize_core::backend::Backend;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::reference::Reference;
use oxidize_quantize::evaluate::Evaluator;

use crate::model_args::{ModelArgs, find_model};
use crate::npy;

/// Write the logits at every position of an input
#[derive(Args)]
pub(crate) struct Logits {
    /// The model
    #[arg(short = 'm', long, value_name = "MODEL", env = "OXIDIZE_MODEL")]
    model: Option<PathBuf>,
    /// Token ids of the input
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', required = true)]
    tokens: Vec<u32>,
    /// NumPy file for the logits: tokens × vocabulary, f32
    #[arg(short, long, value_name = "FILE.npy")]
    output: PathBuf,
    /// Computes with the plain reference backend
    #[arg(long)]
    reference: bool,
    #[command(flatten)]
    model_args: ModelArgs,
}

impl Logits {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let model = self.model_args.load(&find_model(self.model)?)?;
        let backend: Box<dyn Backend> = if self.reference {
            Box::new(Reference)
        } else {
            Box::<Cpu>::default()
        };
        let mut evaluator = Evaluator::new(
            &model,
            backend.as_ref(),
            &self.model_args.evaluation(),
            self.tokens.len(),
        )?;
        let dims = [self.tokens.len(), model.n_vocab()];
        Ok(npy::write_rows(&self.output, &dims, |write| {
            evaluator.each_logits(&self.tokens, 0, |_, logits| Ok(write(logits)?))
        })?)
    }
}
