//! [`CalibrationText`]: collects an importance matrix right before quantization.
//!
//! The text is given by the user, or it is a short excerpt of the built-in text that adds second-moment
//! sketches to an importance matrix without them.

use std::path::Path;

use oxidize_core::arch::Arch;
use oxidize_core::file::{Format, ModelFile, OpenOptions};
use oxidize_core::model::Model;
use oxidize_core::recipe::QuantRecipe;
use oxidize_core::tokenizer::VocabSpec;
use oxidize_kernels::quant::TensorType;

use crate::compare;
use crate::error::Result;
use crate::evaluate::{Settings, chunk_size};
use crate::imatrix;
use crate::importance::Importance;
use crate::text::Text;

/// A text to calibrate on.
pub struct CalibrationText {
    text: Text,
    /// Maximum number of chunks; `None` for an excerpt.
    max_chunks: Option<usize>,
}

impl CalibrationText {
    /// Up to `max_chunks` chunks of a text.
    pub fn new(text: Text, max_chunks: usize) -> CalibrationText {
        CalibrationText {
            text,
            max_chunks: Some(max_chunks),
        }
    }

    /// A short excerpt of the built-in text, enough for second-moment sketches.
    pub fn excerpt() -> CalibrationText {
        CalibrationText {
            text: Text::built_in(),
            max_chunks: None,
        }
    }

    /// True if the text is the excerpt.
    pub fn is_excerpt(&self) -> bool {
        self.max_chunks.is_none()
    }

    /// Tokens per chunk, or of the excerpt.
    fn chunk_size(&self, model: &Model) -> usize {
        /// Tokens of the excerpt. Twice as many hardly improve the sketches.
        const EXCERPT: usize = 256;
        let default = chunk_size(model, None);
        if self.is_excerpt() {
            default.min(EXCERPT)
        } else {
            default
        }
    }

    /// Loads the model at `path` and collects an importance matrix. If a report is written, its text is
    /// checked first, since collecting may take long. `each` receives the chunks done and their total number.
    pub fn collect(
        &self,
        path: &Path,
        threads: usize,
        report: Option<(&Text, &compare::Options)>,
        mut each: impl FnMut(usize, usize) -> Result<()>,
    ) -> Result<Importance> {
        let mapped = OpenOptions {
            huge_pages: false,
            ..OpenOptions::default()
        };
        let model = Model::load_with(path, &mapped)?;
        if let Some((text, options)) = report.filter(|_| !self.is_excerpt()) {
            compare::chunks(&model, text, options)?;
        }
        let options = imatrix::Options {
            n_ctx: self.chunk_size(&model),
            chunks: self.max_chunks,
            excerpt: self.is_excerpt(),
            release_weights: true,
            settings: Settings {
                threads: Some(threads),
                // A single pass that releases weights after use also runs models larger than memory.
                check_memory: !self.is_excerpt(),
                ..Settings::default()
            },
            ..imatrix::Options::default()
        };
        imatrix::collect(&model, &self.text, &options, |done, total, _| {
            each(done, total)
        })
    }
}

/// True if an importance matrix has no sketches although the recipe would use them and the model can compute
/// them.
pub fn lacks_sketches(
    importance: Option<&Importance>,
    recipe: Option<&QuantRecipe>,
    file: &ModelFile,
) -> bool {
    let lacks = importance.is_some_and(|importance| !importance.has_sketches());
    let uses = recipe.is_none_or(|recipe| is_low_bit(recipe.base));
    // Running a model with packed weights would unpack all of them.
    let is_packed = file.tensors().iter().any(|tensor| file.is_packed(tensor));
    lacks && uses && !is_packed && can_calibrate(file)
}

/// True if the model can be run over a text: it has a tokenizer and no separate encoder. Reads no weights.
pub fn can_calibrate(file: &ModelFile) -> bool {
    let has_one_stack = Arch::detect(file).is_ok_and(|arch| arch.encoder.is_none());
    let has_tokens = || match file.format() {
        Format::Gguf { .. } => file.metadata().array("tokenizer.ggml.tokens").is_some(),
        _ => VocabSpec::of_file(file).is_ok(),
    };
    has_one_stack && has_tokens()
}

/// True for types of less than 6 bits per weight, whose quality depends noticeably on importance.
pub fn is_low_bit(ty: TensorType) -> bool {
    8 * ty.block_bytes() < 6 * ty.block_len()
}
