//! `oxidize split` and `oxidize merge`: a model in parts, and in one file again.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use oxidize_core::file::{ModelFile, OpenOptions};

use super::progress::Meter;
use super::{at_least_one, byte_size, interrupted};
use crate::encode::Workers;
use crate::lora::merge_adapter;
use crate::output::Parts;
use crate::remark;
use crate::split::rewrite;
use crate::wording::count;

/// Split a GGUF model into parts
#[derive(Args, Debug)]
pub struct Split {
    /// The model
    input: PathBuf,
    /// The parts to write: NAME becomes NAME-00001-of-0000N.gguf
    output: PathBuf,
    /// Parts of at most this size
    #[arg(long, value_name = "SIZE", value_parser = byte_size, required_unless_present = "max_tensors")]
    max_size: Option<u64>,
    /// Parts of at most this many tensors
    #[arg(long, value_name = "N", conflicts_with = "max_size", value_parser = at_least_one)]
    max_tensors: Option<usize>,
}

/// Join the parts of a model, or put an adapter into its base
#[derive(Args, Debug)]
pub struct Merge {
    /// Any part of the model, or the base of an adapter
    input: PathBuf,
    /// The file to write
    output: PathBuf,
    /// A LoRA adapter to add to the weights: GGUF or PEFT
    #[arg(long, value_name = "FILE")]
    lora: Option<PathBuf>,
    /// How strongly it is added
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "lora")]
    lora_scale: f32,
}

impl Split {
    /// Does it.
    pub fn run(self) -> anyhow::Result<()> {
        let parts = match (self.max_size, self.max_tensors) {
            (Some(bytes), _) => Parts::MaxBytes(bytes),
            (None, Some(n)) => Parts::MaxTensors(n),
            (None, None) => anyhow::bail!("--max-size or --max-tensors says how large parts are"),
        };
        write(&self.input, &self.output, &parts)
    }
}

impl Merge {
    /// Does it.
    pub fn run(self) -> anyhow::Result<()> {
        let Some(adapter) = &self.lora else {
            return write(&self.input, &self.output, &Parts::One);
        };
        let file = open(&self.input)?;
        let bar = Meter::new();
        let workers = Workers {
            stop: Some(interrupted()),
            ..Workers::default()
        };
        let merged = merge_adapter(
            &file,
            adapter,
            self.lora_scale,
            &self.output,
            &workers,
            |at| bar.show(at),
        );
        bar.finish();
        let n = merged.with_context(|| adapter.display().to_string())?;
        let changed = count(n, "tensor", "tensors");
        remark!("{}: {changed} changed", self.output.display());
        Ok(())
    }
}

fn open(path: &PathBuf) -> anyhow::Result<ModelFile> {
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

fn write(input: &PathBuf, output: &std::path::Path, parts: &Parts) -> anyhow::Result<()> {
    let file = open(input)?;
    let bar = Meter::new();
    let workers = Workers {
        stop: Some(interrupted()),
        ..Workers::default()
    };
    let made = rewrite(&file, output, parts, &workers, |at| bar.show(at));
    bar.finish();
    for path in made? {
        remark!("wrote {}", path.display());
    }
    Ok(())
}
