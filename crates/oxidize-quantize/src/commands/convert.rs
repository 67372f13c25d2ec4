//! `oxidize convert`: a GGUF file of a Hugging Face directory, or a directory of a GGUF file.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clap::Args;
use oxidize_core::file::{Format, ModelFile, OpenOptions};

use super::progress::{Meter, Unit};
use super::{byte_size, importance, interrupted, threads};
use crate::convert::directory::{DirectoryOptions, SHARD_BYTES, to_directory};
use crate::convert::{check_output, plain_mix, write};
use crate::encode::Workers;
use crate::lora::convert_adapter;
use crate::output::Parts;
use crate::plan::Wishes;
use crate::quantize::Options;
use crate::remark;
use crate::source::Source;
use crate::wording::count;

/// Make a GGUF file of a Hugging Face directory, or a directory of a GGUF file
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Convert {
    /// The directory with `config.json`, safetensors and tokenizer files, or a GGUF file
    input: PathBuf,
    /// The file to write; of a GGUF file, the directory
    #[arg(short = 'o', long, value_name = "FILE.gguf|DIR")]
    output: PathBuf,
    /// What matrices are stored as: a type or a mix; in a directory F32, F16 or BF16
    #[arg(long = "type", value_name = "TYPE", default_value = "F16")]
    mix: String,
    /// An importance matrix, where the type is one of few bits
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Another type for tensors whose names match; may be repeated
    #[arg(long, value_name = "REGEX=TYPE")]
    tensor_type: Vec<String>,
    /// Parts of at most this size, such as 4GB
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    split_max_size: Option<u64>,
    /// The GGUF model that the input is an adapter of: a PEFT directory becomes a GGUF adapter
    #[arg(long, value_name = "BASE.gguf")]
    base: Option<PathBuf>,
    /// Threads [default: all cores]
    #[arg(short = 't', long, value_name = "N", env = "OXIDIZE_THREADS", value_parser = threads)]
    threads: Option<usize>,
}

impl Convert {
    /// Does it.
    pub fn run(self) -> anyhow::Result<()> {
        let stop = interrupted();
        let options = OpenOptions {
            mmap: false,
            // The type that is asked for rounds, and once is enough.
            unpack_exactly: true,
            ..OpenOptions::default()
        };
        if let Some(base) = &self.base {
            let adapters = "where an adapter becomes a GGUF adapter";
            self.refuse_unused(adapters, self.split_max_size.is_some())?;
            check_output(&self.output, &self.input)?;
            let file = ModelFile::open(base, &options)?;
            let ty = plain_mix(&self.mix)?.base;
            let n = convert_adapter(&file, &self.input, &self.output, ty)?;
            let adapted = count(n, "matrix", "matrices");
            remark!("{}: {adapted} adapted", self.output.display());
            return Ok(());
        }
        let file = ModelFile::open(&self.input, &options)?;
        if matches!(file.format(), Format::Gguf { .. }) {
            return self.to_directory(&file, stop);
        }
        let mut wishes = Wishes::new(plain_mix(&self.mix)?);
        for pattern in &self.tensor_type {
            wishes.pattern(pattern)?;
        }
        let importance = importance(self.imatrix.as_deref())?;
        let mut workers = Workers {
            stop: Some(stop),
            ..Workers::default()
        };
        workers.threads = self.threads.unwrap_or(workers.threads).max(1);
        let options = Options {
            importance: importance.as_ref(),
            parts: self.split_max_size.map_or(Parts::One, Parts::MaxBytes),
            workers,
            ..Options::default()
        };
        let source = Source::new(&file)?;
        for line in source.remarks() {
            remark!("{line}");
        }
        let plan = source.plan(&wishes, options.importance)?;
        let fallbacks = plan.fallbacks;
        let recipe = source.recipe(plan, &wishes.mix, options.importance);
        let (bar, start) = (Meter::new(), Instant::now());
        let made = write(&file, recipe, &self.output, &options, |at| bar.show(at));
        bar.finish();
        let (report, files) = made?;
        if fallbacks > 0 {
            let tensors = count(fallbacks, "tensor", "tensors");
            remark!(
                "{tensors} with rows that are not whole blocks of their type got the nearest that fits"
            );
        }
        for file in &files {
            remark!("wrote {}", file.display());
        }
        remark!(
            "{}: {:.2} MB, {} tensors in {:.1} s",
            report.mix,
            report.bytes as f64 / 1e6,
            report.tensors.len(),
            start.elapsed().as_secs_f64()
        );
        Ok(())
    }

    /// Refuses flags that mean nothing here, as their values would not even be looked at.
    fn refuse_unused(&self, place: &str, split: bool) -> anyhow::Result<()> {
        let given = [
            ("--imatrix", self.imatrix.is_some()),
            ("--tensor-type", !self.tensor_type.is_empty()),
            ("--split-max-size", split),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) => anyhow::bail!("{flag} means nothing {place}"),
            None => Ok(()),
        }
    }

    /// The way back.
    fn to_directory(&self, file: &ModelFile, stop: &AtomicBool) -> anyhow::Result<()> {
        let ending = self.output.extension();
        anyhow::ensure!(
            !ending.is_some_and(|ending| ending.eq_ignore_ascii_case("gguf")),
            "{}: a GGUF file becomes a directory, which is not called so; `oxidize quantize` changes the types of one",
            self.output.display()
        );
        self.refuse_unused("where a GGUF file becomes a directory", false)?;
        let mut workers = Workers {
            stop: Some(stop),
            ..Workers::default()
        };
        workers.threads = self.threads.unwrap_or(workers.threads).max(1);
        let options = DirectoryOptions {
            ty: plain_mix(&self.mix)?.base,
            shard_bytes: self.split_max_size.unwrap_or(SHARD_BYTES),
            workers,
        };
        let bar = Meter::new();
        let made = to_directory(file, &self.output, &options, |done, total, tensor| {
            bar.set(Unit::Bytes, done, total, tensor);
        });
        bar.finish();
        let (files, missing) = made?;
        for file in &files {
            remark!("wrote {}", file.display());
        }
        for what in &missing {
            remark!("not written: {what}");
        }
        Ok(())
    }
}

const EXAMPLES: &str = "Examples:
  oxidize convert ./Qwen3-8B -o qwen3-8b.gguf --type BF16
  oxidize convert ./Qwen3-8B -o qwen3-8b-q4.gguf --type Q4_K_M
  oxidize convert qwen3-8b.gguf -o ./Qwen3-8B-again --type BF16
  oxidize convert ./my-lora -o my-lora.gguf --base qwen3-8b.gguf";
