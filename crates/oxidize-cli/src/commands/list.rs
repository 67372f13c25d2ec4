//! `oxidize list`: the models on this machine.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use oxidize_hub::{Library, LocalModel};

use crate::console::outln;
use crate::table::{self, Table};
use crate::{hub, style};

/// List the models on this machine: size, quantization, last use, and who shares the files
#[derive(Args)]
#[command(visible_alias = "ls")]
pub(crate) struct List {
    /// Part of a name
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    /// Print a JSON array of objects with name, path, files, size, quantization, used (Unix time) and shared
    #[arg(long)]
    json: bool,
}

impl List {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let wanted = self.text.unwrap_or_default().to_lowercase();
        let mut models = Library::new(&hub::settings()).list();
        models.retain(|model| model.name.to_lowercase().contains(&wanted));
        if self.json {
            let list: Vec<_> = models.iter().map(as_json).collect();
            outln!("{}", serde_json::to_string_pretty(&list)?)?;
            return Ok(());
        }
        let mut rows = Table::new(&["name", "size", "type", "last use", "shared with"]);
        let now = SystemTime::now();
        for model in &models {
            rows.push([
                model.name.clone(),
                table::bytes(model.size),
                model.quantization.clone().unwrap_or_else(|| "-".into()),
                model
                    .used
                    .map_or_else(|| "-".into(), |used| table::age(now, used)),
                model.sharing.name().to_owned(),
            ]);
        }
        if models.is_empty() {
            crate::console::status!("no models; `oxidize pull hf:USER/REPO` fetches one");
            return Ok(());
        }
        outln!("{}", rows.shown(style::for_stdout()))?;
        Ok(())
    }
}

fn as_json(model: &LocalModel) -> serde_json::Value {
    let used = model
        .used
        .and_then(|used| used.duration_since(UNIX_EPOCH).ok());
    serde_json::json!({
        "name": model.name,
        "path": model.path,
        "files": model.files,
        "size": model.size,
        "quantization": model.quantization,
        "used": used.map(|since| since.as_secs()),
        "shared": model.sharing.name(),
    })
}
