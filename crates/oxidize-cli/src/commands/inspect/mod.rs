//! `oxidize inspect`: shows the contents of a model file. Reads only the header unless a tensor is dumped.

mod dump;
mod json;
mod text;

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::Args;
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_quantize::output::check_not_input;

use crate::model_path::find_model;
use crate::style;

/// Show the contents of a model file: architecture, types, memory requirements, tensors, metadata
#[derive(Args)]
#[command(visible_alias = "show")]
pub(crate) struct Inspect {
    /// GGUF file (any part of a split file), safetensors file or directory, or name of a model in the cache
    path: PathBuf,
    /// List all tensors
    #[arg(long)]
    tensors: bool,
    /// List all metadata
    #[arg(long)]
    metadata: bool,
    /// Print everything as JSON
    #[arg(long, conflicts_with_all = ["tensors", "metadata"])]
    json: bool,
    /// Write this tensor as f32 to the file of --output
    #[arg(
        long,
        value_name = "TENSOR",
        requires = "output",
        conflicts_with = "json"
    )]
    dump: Option<String>,
    /// NumPy file to write with --dump
    #[arg(short, long, value_name = "FILE.npy", requires = "dump")]
    output: Option<PathBuf>,
    /// Read the file instead of mapping it into memory
    #[arg(long)]
    no_mmap: bool,
}

impl Inspect {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let options = OpenOptions {
            mmap: !self.no_mmap,
            ..OpenOptions::default()
        };
        let model = ModelFile::open(find_model(Some(self.path))?, &options)?;
        if let (Some(tensor), Some(output)) = (&self.dump, &self.output) {
            check_not_input(output, &model)?;
            return dump::write_npy(&model, tensor, output);
        }
        let mut out = BufWriter::new(io::stdout().lock());
        if self.json {
            json::write(&model, &mut out)?;
        } else {
            let styles = style::for_stdout();
            // Without the summary if a list is requested.
            match (self.metadata, self.tensors) {
                (false, false) => text::summary(&model, styles, &mut out)?,
                (metadata, tensors) => {
                    if metadata {
                        text::metadata(&model, styles, &mut out)?;
                    }
                    if tensors {
                        text::tensors(&model, styles, &mut out)?;
                    }
                }
            }
        }
        Ok(out.flush()?)
    }
}
