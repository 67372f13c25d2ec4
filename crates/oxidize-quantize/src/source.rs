//! [`Source`]: the model to quantize, a GGUF file or a Hugging Face directory.

use oxidize_core::file::{Format, ModelFile};
use oxidize_core::recipe::{ModelInfo, QuantRecipe};

use crate::convert::Conversion;
use crate::error::Result;
use crate::importance::Importance;
use crate::plan::{Plan, QuantizeParams, model_info};
use crate::quantize::{QuantJob, tensors_of};
use crate::tensor::Tensor;

/// A model to write as GGUF, before the tensor types are chosen.
pub struct Source<'a>(Form<'a>);

enum Form<'a> {
    Gguf {
        file: &'a ModelFile,
        tensors: Vec<Tensor<'a>>,
    },
    Directory(Box<Conversion<'a>>),
}

impl<'a> From<Conversion<'a>> for Source<'a> {
    fn from(conversion: Conversion<'a>) -> Source<'a> {
        Source(Form::Directory(Box::new(conversion)))
    }
}

impl<'a> Source<'a> {
    /// Creates a source from the model in `file`.
    pub fn new(file: &'a ModelFile) -> Result<Source<'a>> {
        match file.format() {
            Format::Gguf { .. } => Ok(Source(Form::Gguf {
                file,
                tensors: tensors_of(file),
            })),
            _ => Conversion::new(file).map(Source::from),
        }
    }

    /// Tensors under their GGUF names.
    pub fn tensors(&self) -> &[Tensor<'a>] {
        match &self.0 {
            Form::Gguf { tensors, .. } => tensors,
            Form::Directory(conversion) => &conversion.tensors,
        }
    }

    /// The model properties that a quantization recipe depends on.
    pub fn model_info(&self, importance: bool) -> ModelInfo {
        match &self.0 {
            Form::Gguf { file, .. } => model_info(file, importance),
            Form::Directory(conversion) => ModelInfo {
                importance,
                ..conversion.info
            },
        }
    }

    /// Messages about tensors and files of the source that are left out or missing.
    pub fn notes(&self) -> &[String] {
        match &self.0 {
            Form::Gguf { .. } => &[],
            Form::Directory(conversion) => &conversion.notes,
        }
    }

    /// True if quantized weights may be quantized again without `--allow-requantize`. Directories with 4- or
    /// 8-bit weights are unpacked first, since GGUF has no lossless type for them.
    pub fn allows_requantize(&self) -> bool {
        matches!(self.0, Form::Directory(_))
    }

    /// The plan that quantizes no tensor.
    pub fn unquantized_plan(&self) -> Plan {
        let tensors = self.tensors().iter();
        Plan {
            types: tensors.map(|tensor| tensor.unquantized_type).collect(),
            fallbacks: 0,
        }
    }

    /// The plan that follows from `params`.
    pub fn plan(&self, params: &QuantizeParams, importance: Option<&Importance>) -> Result<Plan> {
        let tensors = self.tensors();
        let plan = Plan::new(tensors, params, &self.model_info(importance.is_some()));
        plan.check_importance(tensors, &params.recipe, importance)?;
        Ok(plan)
    }

    /// The job that writes the model with the planned types.
    pub fn into_job(
        self,
        plan: Plan,
        recipe: &QuantRecipe,
        importance: Option<&Importance>,
    ) -> QuantJob<'a> {
        match self.0 {
            Form::Gguf { file, tensors } => QuantJob::of_gguf(
                file,
                tensors,
                plan,
                (recipe.name, recipe.file_type),
                importance,
            ),
            Form::Directory(conversion) => conversion.into_job(plan, recipe, importance),
        }
    }
}
