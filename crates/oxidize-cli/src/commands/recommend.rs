//! `oxidize recommend`: models for a task that fit in memory.

use anyhow::Context;
use clap::Args;
use oxidize_core::io::available_memory;
use oxidize_hub::{Task, recommend};

use crate::args::byte_size;
use crate::console::{outln, status};
use crate::style;
use crate::table::{self, Table};

/// Recommend models for a task that fit in the memory of this machine, with reasons
#[derive(Args)]
pub(crate) struct Recommend {
    /// Task: chat, code, reasoning or embed
    #[arg(value_name = "TASK", default_value = "chat", value_parser = task)]
    task: Task,
    /// Memory that the model may take, such as 8GB [default: the free memory of this machine]
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    memory: Option<u64>,
    /// Maximum number of models
    #[arg(short = 'n', long, value_name = "N", default_value_t = 3)]
    limit: usize,
    /// Print a JSON array of objects with model, size, memory, license and reason
    #[arg(long)]
    json: bool,
}

impl Recommend {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let memory = self.memory.or_else(available_memory);
        let memory = memory.context("the free memory is not known; give it with --memory")?;
        let models = recommend(self.task, memory, self.limit);
        if self.json {
            let list: Vec<_> = models
                .iter()
                .map(|model| {
                    serde_json::json!({
                        "model": model.model, "size": model.size, "memory": model.memory,
                        "license": model.license, "reason": model.reason,
                    })
                })
                .collect();
            outln!("{}", serde_json::to_string_pretty(&list)?)?;
            return Ok(());
        }
        if models.is_empty() {
            status!("no model for this task fits in {}", table::bytes(memory));
            return Ok(());
        }
        let mut rows = Table::new(&["name", "size", "license", "reason"]);
        for model in &models {
            rows.push([
                model.model.to_owned(),
                table::bytes(model.size),
                model.license.to_owned(),
                model.reason.to_owned(),
            ]);
        }
        outln!("{}", rows.shown(style::for_stdout()))?;
        let Some(first) = models.first() else {
            return Ok(());
        };
        status!(
            "{} free; run one with `oxidize run {}`",
            table::bytes(memory),
            first.model
        );
        Ok(())
    }
}

fn task(name: &str) -> Result<Task, String> {
    let found = Task::ALL.into_iter().find(|task| task.name() == name);
    found.ok_or_else(|| "expected chat, code, reasoning or embed".to_owned())
}
