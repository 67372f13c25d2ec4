//! What a model reads before it is quantised: the text of `--calibrate`, or a few sentences where an importance
//! matrix leaves out how inputs vary together.

use oxidize_core::arch::Arch;
use oxidize_core::file::{Format, ModelFile, OpenOptions};
use oxidize_core::mix::Mix;
use oxidize_core::model::Model;
use oxidize_core::tokenizer::VocabSpec;
use oxidize_kernels::quant::TensorType;

use super::super::progress::{Meter, Unit};
use super::{Job, Quantize};
use crate::compare;
use crate::error::Error;
use crate::evaluate::{Settings, chunk_size};
use crate::imatrix;
use crate::importance::Importance;
use crate::remark;
use crate::text::Text;

/// What a model reads before it is quantised.
pub(super) struct Reading {
    text: Text,
    /// So many chunks at most; an excerpt where nothing is said.
    chunks: Option<usize>,
}

impl Reading {
    /// A little of everything, which nobody has asked for.
    fn excerpt() -> Reading {
        Reading {
            text: Text::built_in(),
            chunks: None,
        }
    }

    fn is_excerpt(&self) -> bool {
        self.chunks.is_none()
    }

    /// Tokens of a chunk, or of the excerpt: so many show how inputs vary together, and twice as many hardly more.
    fn chunk_size(&self, model: &Model) -> usize {
        /// Of an excerpt.
        const FEW: usize = 256;
        let usual = chunk_size(model, None);
        if self.is_excerpt() {
            usual.min(FEW)
        } else {
            usual
        }
    }
}

impl Quantize {
    /// What the model is to read before anything is rounded: what is asked for, or an excerpt where a matrix
    /// does not say how inputs vary together and types are coarse enough for that to matter.
    pub(super) fn reading(
        &self,
        known: Option<&Importance>,
        mix: Option<Mix>,
        is_packed: bool,
        file: &ModelFile,
    ) -> Result<Option<Reading>, Error> {
        if let Some(path) = &self.calibrate {
            let text = path
                .as_deref()
                .map_or_else(|| Ok(Text::built_in()), Text::load);
            let chunks = Some(self.calibrate_chunks);
            return Ok(Some(Reading {
                text: text?,
                chunks,
            }));
        }
        let lacks = known.is_some_and(|known| !known.has_sketches());
        let matters = mix.is_none_or(|mix| is_coarse(mix.base));
        // What is packed would have to be unpacked, all of it.
        let may = !self.no_calibrate && !is_packed && can_calibrate(file);
        Ok((lacks && matters && may).then(Reading::excerpt))
    }
}

impl Job<'_> {
    /// What a matrix says of the model, and what reading a text does. An excerpt, which nobody has asked for, is
    /// done without where it cannot be read.
    pub(super) fn calibrated(
        &self,
        known: Option<Importance>,
        reading: &Reading,
    ) -> anyhow::Result<Option<Importance>> {
        if let Some(known) = known.as_ref().filter(|_| reading.is_excerpt()) {
            remark!(
                "{}: does not say how inputs vary together, so the model reads a few sentences (not with --no-calibrate)",
                known.file.display()
            );
        }
        let seen = match self.read(reading) {
            Err(Error::Interrupted { left }) => return Err(Error::Interrupted { left }.into()),
            Err(error) if reading.is_excerpt() => {
                remark!("{error}; nothing was read, and more is lost than need be");
                return Ok(known);
            }
            seen => seen?,
        };
        let Some(mut known) = known else {
            return Ok(Some(seen));
        };
        known.learn(&seen)?;
        Ok(Some(known))
    }

    /// What the model's matrices see of a text.
    fn read(&self, reading: &Reading) -> Result<Importance, Error> {
        let mapped = OpenOptions {
            huge_pages: false,
            ..OpenOptions::default()
        };
        let model = Model::load(&self.asked.input, &mapped)?;
        // Before a text is read that may take long.
        if let Some(text) = self.text.filter(|_| !reading.is_excerpt()) {
            compare::chunks(&model, text, &self.comparison())?;
        }
        let options = imatrix::Options {
            n_ctx: reading.chunk_size(&model),
            chunks: reading.chunks,
            excerpt: reading.is_excerpt(),
            one_by_one: true,
            settings: Settings {
                threads: Some(self.workers.threads),
                // Read once, one weight after the other, even those fit that do not fit together.
                check_memory: !reading.is_excerpt(),
                ..Settings::default()
            },
            ..imatrix::Options::default()
        };
        let meter = Meter::new();
        let seen = imatrix::collect(&model, &reading.text, &options, |done, total, _| {
            let unit = Unit::Pieces("chunks read");
            meter.set(unit, done as u64, total as u64, "calibrating");
            self.workers.check()
        });
        meter.finish();
        seen
    }
}

/// Whether a model can read a text at all. Of a vocabulary in the file itself, nothing is read for that.
pub(super) fn can_calibrate(file: &ModelFile) -> bool {
    let has_one_stack = Arch::detect(file).is_ok_and(|arch| arch.encoder.is_none());
    let has_tokens = || match file.format() {
        Format::Gguf { .. } => file.metadata().array("tokenizer.ggml.tokens").is_some(),
        _ => VocabSpec::of_file(file).is_ok(),
    };
    has_one_stack && has_tokens()
}

/// Whether a type has so few levels that it is worth knowing where they are needed most.
pub(super) fn is_coarse(ty: TensorType) -> bool {
    8 * ty.block_bytes() < 6 * ty.block_len()
}
