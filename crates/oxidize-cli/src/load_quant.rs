//! [`LoadQuantArgs`]: quantization at load, for subcommands that run a model.

use std::path::{Path, PathBuf};

use clap::Args;
use oxidize_core::recipe::QuantRecipe;
use oxidize_quantize::Error;
use oxidize_quantize::importance::Importance;

use crate::console::status;

/// Quantization at load.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Quantization at load")]
pub(crate) struct LoadQuantArgs {
    /// Quantize the weights at load, to a type such as Q8_0 or Q4_K_M
    #[arg(long, value_name = "TYPE", value_parser = recipe)]
    pub(crate) quantize: Option<QuantRecipe>,
    /// Use an importance matrix for --quantize, written by `oxidize imatrix` or llama.cpp
    #[arg(long, value_name = "FILE", requires = "quantize")]
    pub(crate) imatrix: Option<PathBuf>,
}

fn recipe(name: &str) -> Result<QuantRecipe, Error> {
    QuantRecipe::named(name).ok_or_else(|| Error::UnknownRecipe { name: name.into() })
}

/// Loads the importance matrix, if a file is given.
pub(crate) fn load_importance(path: Option<&Path>) -> Result<Option<Importance>, Error> {
    let importance = path.map(Importance::load).transpose()?;
    importance
        .as_ref()
        .into_iter()
        .for_each(note_missing_sketches);
    Ok(importance)
}

/// Prints a note if an importance matrix has no second-moment sketches.
pub(crate) fn note_missing_sketches(importance: &Importance) {
    if !importance.has_sketches() {
        status!(
            "{}: no second-moment sketches; `oxidize imatrix` writes them and `quantize --calibrate` adds them, \
             which lowers the quantization error",
            importance.file.display()
        );
    }
}
