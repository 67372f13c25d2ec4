//! [`OnTheWayIn`]: what the weights of a model become before it is run, for the verbs that run one.

use std::path::PathBuf;

use clap::Args;
use oxidize_core::mix::Mix;

use crate::error::Error;

/// What the weights become before the model is run.
#[derive(Args, Clone, Debug, Default)]
pub struct OnTheWayIn {
    /// Quantises the weights on the way in, to a type or a mix such as Q4_K_M
    #[arg(long, value_name = "TYPE", value_parser = mix)]
    pub quantize: Option<Mix>,
    /// An importance matrix for it, as `oxidize imatrix` or llama.cpp write it
    #[arg(long, value_name = "FILE", requires = "quantize")]
    pub imatrix: Option<PathBuf>,
}

fn mix(name: &str) -> Result<Mix, Error> {
    Mix::named(name).ok_or_else(|| Error::UnknownMix { name: name.into() })
}
