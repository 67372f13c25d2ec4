//! `oxidize search`: finds GGUF repositories of the Hugging Face hub.

use clap::Args;
use oxidize_core::io::available_memory;
use oxidize_hub::Found;

use crate::console::{outln, status};
use crate::table::{self, Table};
use crate::{hub, style};

/// Search the Hugging Face hub for GGUF models, with sizes, downloads, license and what fits in memory
#[derive(Args)]
pub(crate) struct Search {
    /// Words of the name
    #[arg(value_name = "WORDS", required = true)]
    words: Vec<String>,
    /// Maximum number of repositories
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..=100))]
    limit: u8,
    /// Print a JSON array of objects with repo, downloads, likes, license, gated and models
    #[arg(long)]
    json: bool,
}

impl Search {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let found = hub::hub()?.search(&self.words.join(" "), usize::from(self.limit))?;
        if self.json {
            outln!("{}", serde_json::to_string_pretty(&found)?)?;
            return Ok(());
        }
        if found.is_empty() {
            status!("no GGUF repository has these words in its name");
            return Ok(());
        }
        let memory = available_memory();
        let mut rows = Table::new(&["name", "sizes", "best that fits", "downloads", "license"]);
        for repo in &found {
            rows.push([
                format!("hf:{}", repo.repo),
                sizes(repo),
                best(repo, memory),
                repo.downloads.to_string(),
                repo.license.clone().unwrap_or_else(|| "-".into())
                    + if repo.gated { " (gated)" } else { "" },
            ]);
        }
        outln!("{}", rows.shown(style::for_stdout()))?;
        Ok(())
    }
}

/// The smallest and the largest file.
fn sizes(repo: &Found) -> String {
    let sizes = repo.models.iter().map(|model| model.size);
    match (sizes.clone().min(), sizes.max()) {
        (Some(min), Some(max)) if min == max => table::bytes(min),
        (Some(min), Some(max)) => format!("{} … {}", table::bytes(min), table::bytes(max)),
        _ => "-".into(),
    }
}

/// The largest quantization that fits in memory, with a tenth for buffers and cache.
fn best(repo: &Found, memory: Option<u64>) -> String {
    let Some(memory) = memory else {
        return "-".into();
    };
    let fits = |size: u64| size.saturating_add(size / 10) <= memory;
    let fitting = repo.models.iter().filter(|model| fits(model.size));
    let best = fitting.max_by_key(|model| model.size);
    best.map_or("-".into(), |model| {
        model
            .quantization
            .clone()
            .unwrap_or_else(|| table::bytes(model.size))
    })
}
