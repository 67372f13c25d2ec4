//! [`Source`]: a model that is to be written as GGUF, in whichever form it is now.

use oxidize_core::file::{Format, ModelFile};
use oxidize_core::mix::{Mix, Traits};

use crate::convert::Conversion;
use crate::error::Result;
use crate::importance::Importance;
use crate::plan::{Plan, Wishes, traits_of};
use crate::quantize::{self, Recipe, tensors_of};
use crate::tensor::Tensor;

/// A model to be written, of which the types of the tensors are still to be chosen.
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
    /// Looks at the model in `file`.
    pub fn new(file: &'a ModelFile) -> Result<Source<'a>> {
        match file.format() {
            Format::Gguf { .. } => Ok(Source(Form::Gguf {
                file,
                tensors: tensors_of(file),
            })),
            _ => Conversion::new(file).map(Source::from),
        }
    }

    /// Its tensors, with the names that they will have.
    pub fn tensors(&self) -> &[Tensor<'a>] {
        match &self.0 {
            Form::Gguf { tensors, .. } => tensors,
            Form::Directory(conversion) => &conversion.tensors,
        }
    }

    /// What a mix wants to know of it.
    pub fn traits(&self, importance: bool) -> Traits {
        match &self.0 {
            Form::Gguf { file, .. } => traits_of(file, importance),
            Form::Directory(conversion) => Traits {
                importance,
                ..conversion.traits
            },
        }
    }

    /// What it has that the new file will not, and what it lacks, each in a line for people.
    pub fn remarks(&self) -> &[String] {
        match &self.0 {
            Form::Gguf { .. } => &[],
            Form::Directory(conversion) => &conversion.remarks,
        }
    }

    /// Whether its weights may be quantised ones without anybody being asked: those of directories that came
    /// in 4 or 8 bits are unpacked, as there is no other way to keep them.
    pub fn may_be_quantized(&self) -> bool {
        matches!(self.0, Form::Directory(_))
    }

    /// The types that its tensors have where none is quantised.
    pub fn kept(&self) -> Plan {
        let tensors = self.tensors().iter();
        Plan {
            types: tensors.map(|tensor| tensor.kept_as).collect(),
            fallbacks: 0,
        }
    }

    /// The types that `wishes` give to its tensors.
    pub fn plan(&self, wishes: &Wishes, importance: Option<&Importance>) -> Result<Plan> {
        let tensors = self.tensors();
        let plan = Plan::new(tensors, wishes, &self.traits(importance.is_some()));
        plan.check_importance(tensors, &wishes.mix, importance)?;
        Ok(plan)
    }

    /// What the new file consists of.
    pub fn recipe(self, plan: Plan, mix: &Mix, importance: Option<&Importance>) -> Recipe<'a> {
        match self.0 {
            Form::Gguf { file, tensors } => {
                quantize::recipe(file, tensors, plan, (mix.name, mix.file_type), importance)
            }
            Form::Directory(conversion) => conversion.recipe(plan, mix, importance),
        }
    }
}
