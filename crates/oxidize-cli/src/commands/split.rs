//! `oxidize split` and `oxidize merge`: divide a GGUF model into parts, and join them again.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_quantize::lora::merge_adapter;
use oxidize_quantize::output::Parts;
use oxidize_quantize::plural::count;
use oxidize_quantize::split::rewrite;
use oxidize_quantize::workers::Workers;

use crate::args::{at_least_one, byte_size};
use crate::console::status;
use crate::model_path::find_model;
use crate::progress::ProgressReporter;
use crate::signals::interrupted;

/// Split a GGUF model into parts
#[derive(Args, Debug)]
pub(crate) struct Split {
    /// GGUF model to split: a file, or the name of a model in the cache
    input: PathBuf,
    /// Name of the parts: NAME becomes NAME-00001-of-0000N.gguf
    output: PathBuf,
    /// Limit parts to this size, such as 4GB
    #[arg(long, value_name = "SIZE", value_parser = byte_size, required_unless_present = "max_tensors")]
    max_size: Option<u64>,
    /// Limit parts to this number of tensors
    #[arg(long, value_name = "N", conflicts_with = "max_size", value_parser = at_least_one)]
    max_tensors: Option<usize>,
}

/// Join the parts of a GGUF model, or merge a LoRA adapter into its base model
#[derive(Args, Debug)]
pub(crate) struct Merge {
    /// Any part of the model, or the base model of an adapter
    input: PathBuf,
    /// GGUF file to write
    output: PathBuf,
    /// Add a LoRA adapter (GGUF or PEFT) to the weights
    #[arg(long, value_name = "FILE")]
    lora: Option<PathBuf>,
    /// Scale of the adapter
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "lora")]
    lora_scale: f32,
}

impl Split {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let parts = match (self.max_size, self.max_tensors) {
            (Some(bytes), _) => Parts::MaxBytes(bytes),
            (None, Some(n)) => Parts::MaxTensors(n),
            (None, None) => anyhow::bail!("--max-size or --max-tensors is required"),
        };
        write(&find_model(Some(self.input))?, &self.output, &parts)
    }
}

impl Merge {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let input = find_model(Some(self.input))?;
        let Some(adapter) = &self.lora else {
            return write(&input, &self.output, &Parts::One);
        };
        let file = open(&input)?;
        let progress = ProgressReporter::new();
        let merged = merge_adapter(
            &file,
            adapter,
            self.lora_scale,
            &self.output,
            &workers(),
            |at| progress.show(at),
        );
        progress.finish();
        let n = merged.with_context(|| adapter.display().to_string())?;
        let changed = count(n, "tensor", "tensors");
        status!("{}: {changed} changed", self.output.display());
        Ok(())
    }
}

fn workers() -> Workers<'static> {
    Workers {
        stop: Some(interrupted()),
        ..Workers::default()
    }
}

fn open(path: &Path) -> anyhow::Result<ModelFile> {
    let options = OpenOptions {
        mmap: false,
        ..OpenOptions::default()
    };
    let file = ModelFile::open(path, &options)?;
    anyhow::ensure!(
        file.config().is_none() && !file.metadata().is_empty(),
        "{}: not a GGUF file",
        path.display()
    );
    Ok(file)
}

fn write(input: &Path, output: &Path, parts: &Parts) -> anyhow::Result<()> {
    let file = open(input)?;
    let progress = ProgressReporter::new();
    let written = rewrite(&file, output, parts, &workers(), |at| progress.show(at));
    progress.finish();
    for path in written? {
        status!("wrote {}", path.display());
    }
    Ok(())
}
