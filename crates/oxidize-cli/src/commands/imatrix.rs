//! `oxidize imatrix`: how strongly the inputs of each matrix are driven, for quantising.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::Context;
use clap::Args;
use oxidize_core::io::remove_abandoned;
use oxidize_core::model::Model;
use oxidize_quantize::Error;
use oxidize_quantize::commands::interrupted;
use oxidize_quantize::commands::progress::{Meter, Unit};
use oxidize_quantize::evaluate::{check_asked, chunk_size};
use oxidize_quantize::imatrix::{Options, chunks_read, collect};
use oxidize_quantize::importance::Importance;
use oxidize_quantize::output::{check_not_input, check_other_file, check_writable};
use oxidize_quantize::remark;
use oxidize_quantize::source::Source;
use oxidize_quantize::text::Text;
use oxidize_quantize::wording::count;

use crate::model_args::{ModelArgs, find_model, size_of_chunks};

/// Collect an importance matrix from a text
#[derive(Args)]
#[command(mut_arg("ctx_size", size_of_chunks))]
pub(crate) struct Imatrix {
    /// The model
    #[arg(short = 'm', long, value_name = "MODEL", env = "OXIDIZE_MODEL")]
    model: Option<PathBuf>,
    /// The text
    #[arg(
        short = 'f',
        long,
        value_name = "FILE",
        required_unless_present = "merge"
    )]
    file: Option<PathBuf>,
    /// The importance matrix to write
    #[arg(short = 'o', long, value_name = "FILE.gguf")]
    output: PathBuf,
    /// Most chunks to read [default: all]
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Goes on where an unfinished output stopped
    #[arg(long)]
    resume: bool,
    /// Writes what there is after every so many chunks
    #[arg(long, value_name = "N", default_value_t = 50)]
    save_every: usize,
    /// Looks at the matrix that makes the logits too
    #[arg(long)]
    process_output: bool,
    /// Adds importance matrices that were collected before; may be repeated
    #[arg(long = "merge", visible_alias = "in-file", value_name = "FILE")]
    merge: Vec<PathBuf>,
    #[command(flatten)]
    model_args: ModelArgs,
}

impl Imatrix {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        check_asked(self.model_args.ctx_size, self.chunks)?;
        check_writable(&self.output)?;
        let total = match &self.file {
            Some(text) => self.collect(text)?,
            None => self.known(None)?.context("there is nothing to merge")?,
        };
        total.save(&self.output)?;
        remark!(
            "{}: {} from {} of {}",
            self.output.display(),
            count(total.entries.len(), "matrix", "matrices"),
            count(total.chunks as usize, "chunk", "chunks"),
            total.chunk_size
        );
        Ok(())
    }

    /// What there is before a text is read: an unfinished output, or the matrices that are added. All of
    /// it has to be of the model, where there is one.
    fn known(&self, model: Option<&Model>) -> anyhow::Result<Option<Importance>> {
        let resumed = self.resume && self.output.exists();
        anyhow::ensure!(
            !resumed || self.merge.is_empty(),
            "{}: --resume goes on from it, and the matrices of --merge may be in it already; add them once it is finished",
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
        let known = self.known(Some(&model))?;
        let skip = match &known {
            Some(known) if self.resume && self.merge.is_empty() => {
                chunks_read(known, &model, &text, n_ctx)?
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
            total.reading.clone_from(&new.reading);
            Ok::<_, Error>(total)
        };
        remove_abandoned(&self.output);
        let stop = interrupted();
        let meter = Meter::new();
        let new = collect(&model, &text, &options, |done, total, so_far| {
            meter.set(Unit::Pieces("chunks"), done as u64, total as u64, "");
            let stopped = stop.load(Ordering::Relaxed);
            if stopped || done.is_multiple_of(self.save_every.max(1)) && done < total {
                with_known(so_far()?)?.save(&self.output)?;
            }
            if stopped {
                let output = self.output.display();
                let left = format!("{output} has what came before, and --resume goes on from it");
                return Err(Error::Interrupted { left });
            }
            Ok(())
        })?;
        meter.finish();
        Ok(with_known(new)?)
    }
}
