//! `oxidize imatrix`: collects an importance matrix for quantization.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::Context;
use clap::Args;
use oxidize_core::io::remove_abandoned;
use oxidize_core::model::Model;
use oxidize_quantize::Error;
use oxidize_quantize::evaluate::{check_chunk_args, chunk_size};
use oxidize_quantize::imatrix::{Options, collect, resume_position};
use oxidize_quantize::importance::Importance;
use oxidize_quantize::output::{check_not_input, check_other_file, check_writable};
use oxidize_quantize::plural::count;
use oxidize_quantize::source::Source;
use oxidize_quantize::text::Text;

use crate::console::status;
use crate::model_args::{ModelArgs, chunk_size_help};
use crate::model_path::find_model;
use crate::progress::{ProgressReporter, Unit};
use crate::signals::interrupted;

/// Collect an importance matrix from a calibration text
#[derive(Args)]
#[command(mut_arg("ctx_size", chunk_size_help))]
pub(crate) struct Imatrix {
    /// Model to run
    #[arg(short = 'm', long, value_name = "MODEL", env = "OXIDIZE_MODEL")]
    model: Option<PathBuf>,
    /// Calibration text
    #[arg(
        short = 'f',
        long,
        value_name = "FILE",
        required_unless_present = "merge"
    )]
    file: Option<PathBuf>,
    /// Importance matrix to write
    #[arg(short = 'o', long, value_name = "FILE.gguf")]
    output: PathBuf,
    /// Maximum number of chunks [default: all]
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Continue an unfinished output
    #[arg(long)]
    resume: bool,
    /// Save the output after every N chunks
    #[arg(long, value_name = "N", default_value_t = 50)]
    save_every: usize,
    /// Collect the inputs of the output matrix too
    #[arg(long)]
    process_output: bool,
    /// Add an existing importance matrix (repeatable)
    #[arg(long = "merge", visible_alias = "in-file", value_name = "FILE")]
    merge: Vec<PathBuf>,
    #[command(flatten)]
    model_args: ModelArgs,
}

impl Imatrix {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        check_chunk_args(self.model_args.ctx_size, self.chunks)?;
        check_writable(&self.output)?;
        let total = match &self.file {
            Some(text) => self.collect(text)?,
            None => self
                .existing(None)?
                .context("nothing to merge: --merge is missing")?,
        };
        total.save(&self.output)?;
        status!(
            "{}: {} from {} of {}",
            self.output.display(),
            count(total.entries.len(), "matrix", "matrices"),
            count(total.chunks as usize, "chunk", "chunks"),
            total.chunk_size
        );
        Ok(())
    }

    /// The matrix to start with: the unfinished output of --resume, or the sum of --merge. Entries are
    /// checked against the model, if there is one.
    fn existing(&self, model: Option<&Model>) -> anyhow::Result<Option<Importance>> {
        let resumed = self.resume && self.output.exists();
        anyhow::ensure!(
            !resumed || self.merge.is_empty(),
            "{}: --resume and --merge cannot be combined, since the output may already contain the merged matrices; merge them when the output is complete",
            self.output.display()
        );
        let paths = if resumed {
            std::slice::from_ref(&self.output)
        } else {
            &self.merge
        };
        let mut known: Option<Importance> = None;
        for path in paths {
            let more = Importance::load(path)?;
            if let Some(model) = model {
                let source = Source::new(model.file())?;
                more.check_all(model.file().path(), source.tensors())?;
            }
            match &mut known {
                Some(known) => known.merge(&more)?,
                None => known = Some(more),
            }
        }
        Ok(known)
    }

    fn collect(&self, path: &Path) -> anyhow::Result<Importance> {
        let text = Text::load(path)?;
        let model = find_model(self.model.clone())?;
        for input in [path, &model] {
            check_other_file(&self.output, input)?;
        }
        let model = self.model_args.load(&model)?;
        check_not_input(&self.output, model.file())?;
        let n_ctx = chunk_size(&model, self.model_args.ctx_size);
        let known = self.existing(Some(&model))?;
        let skip = match &known {
            Some(known) if self.resume && self.merge.is_empty() => {
                resume_position(known, &model, &text, n_ctx)?
            }
            _ => 0,
        };
        let options = Options {
            n_ctx,
            chunks: self.chunks,
            skip,
            output: self.process_output,
            settings: self.model_args.evaluation(),
            ..Options::default()
        };
        let with_known = |new: Importance| {
            let mut total = known.clone().unwrap_or_default();
            total.merge(&new)?;
            total.position.clone_from(&new.position);
            Ok::<_, Error>(total)
        };
        remove_abandoned(&self.output);
        let stop = interrupted();
        let progress = ProgressReporter::new();
        let new = collect(&model, &text, &options, |done, total, so_far| {
            progress.set(Unit::Items("chunks"), done as u64, total as u64, "");
            let stopped = stop.load(Ordering::Relaxed);
            if stopped || done.is_multiple_of(self.save_every.max(1)) && done < total {
                with_known(so_far()?)?.save(&self.output)?;
            }
            if stopped {
                let output = self.output.display();
                let left = format!("{output} contains the chunks so far; continue with --resume");
                return Err(Error::Interrupted { left });
            }
            Ok(())
        })?;
        progress.finish();
        Ok(with_known(new)?)
    }
}
