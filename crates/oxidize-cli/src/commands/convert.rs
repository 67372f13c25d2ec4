//! `oxidize convert`: converts a Hugging Face directory to GGUF, or back.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clap::Args;
use oxidize_core::file::{Format, ModelFile, OpenOptions};
use oxidize_quantize::convert::directory::{DirectoryOptions, SHARD_BYTES, to_directory};
use oxidize_quantize::convert::{check_output, named_recipe, write};
use oxidize_quantize::lora::convert_adapter;
use oxidize_quantize::output::Parts;
use oxidize_quantize::plan::QuantizeParams;
use oxidize_quantize::plural::count;
use oxidize_quantize::quantize::Options;
use oxidize_quantize::source::Source;
use oxidize_quantize::workers::Workers;

use crate::args::{byte_size, threads};
use crate::console::status;
use crate::load_quant::load_importance;
use crate::model_path::find_model;
use crate::progress::{ProgressReporter, Unit};
use crate::signals::interrupted;

/// Convert a Hugging Face directory to GGUF, or a GGUF file to a directory
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Convert {
    /// Directory with config.json, safetensors and tokenizer files, a GGUF file, or the name of a model in the
    /// cache
    input: PathBuf,
    /// Write to this GGUF file, or to this directory if the input is GGUF
    #[arg(short = 'o', long, value_name = "FILE.gguf|DIR")]
    output: PathBuf,
    /// Store matrices as this type, such as F16 or Q4_K_M; F32, F16 or BF16 for a directory
    #[arg(long = "type", value_name = "TYPE", default_value = "F16")]
    recipe: String,
    /// Use an importance matrix, written by `oxidize imatrix` or llama.cpp
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Set the type of tensors whose names match, such as `ffn_down=Q6_K` (repeatable)
    #[arg(long, value_name = "REGEX=TYPE")]
    tensor_type: Vec<String>,
    /// Split the output into parts of at most this size, such as 4GB
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    split_max_size: Option<u64>,
    /// Convert a PEFT adapter of this GGUF model to a GGUF adapter
    #[arg(long, value_name = "BASE.gguf")]
    base: Option<PathBuf>,
    /// Number of threads [default: all cores]
    #[arg(short = 't', long, value_name = "N", env = "OXIDIZE_THREADS", value_parser = threads)]
    threads: Option<usize>,
}

impl Convert {
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        self.input = find_model(Some(self.input))?;
        let stop = interrupted();
        let options = OpenOptions {
            mmap: false,
            // Packed weights are unpacked exactly, so that only the requested type rounds them.
            unpack_exactly: true,
            ..OpenOptions::default()
        };
        if let Some(base) = &self.base {
            self.reject_unused("with --base", self.split_max_size.is_some())?;
            check_output(&self.output, &self.input)?;
            let file = ModelFile::open(base, &options)?;
            let ty = named_recipe(&self.recipe)?.base;
            let n = convert_adapter(&file, &self.input, &self.output, ty)?;
            let adapted = count(n, "matrix", "matrices");
            status!("{}: {adapted} adapted", self.output.display());
            return Ok(());
        }
        let file = ModelFile::open(&self.input, &options)?;
        if matches!(file.format(), Format::Gguf { .. }) {
            return self.to_directory(&file, stop);
        }
        let mut params = QuantizeParams::new(named_recipe(&self.recipe)?);
        for pattern in &self.tensor_type {
            params.pattern(pattern)?;
        }
        let importance = load_importance(self.imatrix.as_deref())?;
        let options = Options {
            importance: importance.as_ref(),
            parts: self.split_max_size.map_or(Parts::One, Parts::MaxBytes),
            workers: self.workers(stop),
            ..Options::default()
        };
        let source = Source::new(&file)?;
        for note in source.notes() {
            status!("{note}");
        }
        let plan = source.plan(&params, options.importance)?;
        let fallbacks = plan.fallbacks;
        let job = source.into_job(plan, &params.recipe, options.importance);
        let (progress, start) = (ProgressReporter::new(), Instant::now());
        let written = write(&file, job, &self.output, &options, |at| progress.show(at));
        progress.finish();
        let (report, files) = written?;
        if fallbacks > 0 {
            let tensors = count(fallbacks, "tensor", "tensors");
            status!(
                "{tensors} with a fallback type, since the row length is not a multiple of the block size"
            );
        }
        for file in &files {
            status!("wrote {}", file.display());
        }
        status!(
            "{}: {:.2} MB, {} tensors in {:.1} s",
            report.recipe,
            report.bytes as f64 / 1e6,
            report.tensors.len(),
            start.elapsed().as_secs_f64()
        );
        Ok(())
    }

    fn workers<'a>(&self, stop: &'a AtomicBool) -> Workers<'a> {
        let default = Workers::default();
        Workers {
            threads: self.threads.unwrap_or(default.threads).max(1),
            stop: Some(stop),
            ..default
        }
    }

    /// Returns an error for flags that this kind of conversion does not use.
    fn reject_unused(&self, place: &str, split: bool) -> anyhow::Result<()> {
        let given = [
            ("--imatrix", self.imatrix.is_some()),
            ("--tensor-type", !self.tensor_type.is_empty()),
            ("--split-max-size", split),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) => anyhow::bail!("{flag} is not supported {place}"),
            None => Ok(()),
        }
    }

    /// Converts a GGUF file to a directory.
    fn to_directory(&self, file: &ModelFile, stop: &AtomicBool) -> anyhow::Result<()> {
        let extension = self.output.extension();
        anyhow::ensure!(
            !extension.is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")),
            "{}: the output of a GGUF input is a directory; use `oxidize quantize` to change the types of a GGUF file",
            self.output.display()
        );
        self.reject_unused("for a GGUF input", false)?;
        let options = DirectoryOptions {
            ty: named_recipe(&self.recipe)?.base,
            shard_bytes: self.split_max_size.unwrap_or(SHARD_BYTES),
            workers: self.workers(stop),
        };
        let progress = ProgressReporter::new();
        let written = to_directory(file, &self.output, &options, |done, total, tensor| {
            progress.set(Unit::Bytes, done, total, tensor);
        });
        progress.finish();
        let (files, missing) = written?;
        for file in &files {
            status!("wrote {}", file.display());
        }
        for part in &missing {
            status!("not written: {part}");
        }
        Ok(())
    }
}

const EXAMPLES: &str = "Examples:
  oxidize convert ./Qwen3-8B -o qwen3-8b.gguf --type BF16
  oxidize convert ./Qwen3-8B -o qwen3-8b-q4.gguf --type Q4_K_M
  oxidize convert qwen3-8b.gguf -o ./Qwen3-8B-again --type BF16
  oxidize convert ./my-lora -o my-lora.gguf --base qwen3-8b.gguf";
