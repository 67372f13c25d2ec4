//! Calibration before quantization: `--calibrate`, or a short excerpt if an importance matrix has no
//! second-moment sketches.

use oxidize_core::file::ModelFile;
use oxidize_core::recipe::QuantRecipe;
use oxidize_quantize::Error;
use oxidize_quantize::calibrate::{CalibrationText, lacks_sketches};
use oxidize_quantize::importance::Importance;
use oxidize_quantize::text::Text;

use super::{Job, Quantize};
use crate::console::status;
use crate::progress::{ProgressReporter, Unit};

impl Quantize {
    /// The text to calibrate on, if any: the one of `--calibrate`, or the excerpt.
    pub(super) fn calibration_text(
        &self,
        importance: Option<&Importance>,
        recipe: Option<&QuantRecipe>,
        file: &ModelFile,
    ) -> Result<Option<CalibrationText>, Error> {
        if let Some(path) = &self.calibrate {
            let text = path
                .as_deref()
                .map_or_else(|| Ok(Text::built_in()), Text::load)?;
            return Ok(Some(CalibrationText::new(text, self.calibrate_chunks)));
        }
        let excerpt = !self.no_calibrate && lacks_sketches(importance, recipe, file);
        Ok(excerpt.then(CalibrationText::excerpt))
    }
}

impl Job<'_> {
    /// Adds the result of the calibration to the importance matrix. A failure of the excerpt, which was not
    /// asked for, is reported and ignored.
    pub(super) fn calibrated(
        &self,
        importance: Option<Importance>,
        text: &CalibrationText,
    ) -> anyhow::Result<Option<Importance>> {
        if let Some(importance) = importance.as_ref().filter(|_| text.is_excerpt()) {
            status!(
                "{}: no second-moment sketches; computing them on a short excerpt of the built-in text \
                 (disable with --no-calibrate)",
                importance.file.display()
            );
        }
        let collected = match self.collect(text) {
            Err(Error::Interrupted { left }) => return Err(Error::Interrupted { left }.into()),
            Err(error) if text.is_excerpt() => {
                status!(
                    "{error}; quantizing without sketches, which increases the quantization error"
                );
                return Ok(importance);
            }
            collected => collected?,
        };
        let Some(mut importance) = importance else {
            return Ok(Some(collected));
        };
        importance.fill_missing(&collected)?;
        Ok(Some(importance))
    }

    fn collect(&self, text: &CalibrationText) -> Result<Importance, Error> {
        let comparison = self.comparison();
        let report = self.text.map(|text| (text, &comparison));
        let progress = ProgressReporter::new();
        let threads = self.workers.threads;
        let collected = text.collect(&self.args.input, threads, report, |done, total| {
            let unit = Unit::Items("chunks");
            progress.set(unit, done as u64, total as u64, "calibrating");
            self.workers.check()
        });
        progress.finish();
        collected
    }
}
