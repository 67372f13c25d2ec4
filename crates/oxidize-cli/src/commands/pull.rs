//! `oxidize pull`: fetches models by name.

use clap::Args;
use oxidize_hub::{Error, ModelRef};

use crate::console::outln;
use crate::hub;

/// Fetch models from the Hugging Face hub, Ollama's registry, ModelScope or a web server
///
/// Prints the paths of the files, the one to load first. An interrupted pull goes on where it ended. Files of the hub
/// go to the hub's own cache, which other tools share.
#[derive(Args)]
pub(crate) struct Pull {
    /// hf:USER/REPO[:QUANT|:FILE], ollama:NAME[:TAG], ms:USER/REPO[:QUANT] or https://HOST/MODEL.gguf; QUANT is
    /// Q4_K_M by default, and `auto` is the best that fits in memory
    #[arg(value_name = "MODEL", required = true)]
    models: Vec<String>,
    /// Print a JSON object with name, path and files for each model
    #[arg(long)]
    json: bool,
}

impl Pull {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        for name in &self.models {
            let model = ModelRef::parse(name).unwrap_or_else(|| {
                let problem = "expected a name such as hf:USER/REPO, ollama:NAME or ms:USER/REPO, or an address";
                Err(Error::BadName { name: name.clone(), problem: problem.into() })
            })?;
            let pulled = hub::pull(&model)?;
            if self.json {
                outln!(
                    "{}",
                    serde_json::json!({
                        "name": model.to_string(), "path": pulled.path, "files": pulled.files,
                    })
                )?;
                continue;
            }
            outln!("{}", pulled.path.display())?;
            for file in pulled.files.iter().filter(|file| **file != pulled.path) {
                outln!("{}", file.display())?;
            }
        }
        Ok(())
    }
}
