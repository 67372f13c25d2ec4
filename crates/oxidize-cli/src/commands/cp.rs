//! `oxidize cp`: gives a model a second name.

use clap::Args;
use oxidize_hub::{Library, ModelRef};

use crate::commands::rm::only;
use crate::console::outln;
use crate::hub;

/// Give a model a second, short name; the bytes are shared
#[derive(Args)]
pub(crate) struct Cp {
    /// Name as `oxidize list` shows it, or the name of a model to fetch
    #[arg(value_name = "MODEL")]
    model: String,
    /// New name: letters, digits, dots, dashes and underscores
    #[arg(value_name = "NAME")]
    name: String,
}

impl Cp {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let library = Library::new(&hub::settings());
        let (path, files) = match ModelRef::parse(&self.model) {
            Some(model) if library.matching(&self.model).len() != 1 => {
                let pulled = hub::open(&model?)?;
                (pulled.path, pulled.files)
            }
            _ => {
                let model = only(&library, &self.model)?;
                (model.path, model.files)
            }
        };
        outln!("{}", library.copy(&path, &files, &self.name)?.display())?;
        Ok(())
    }
}
