//! `oxidize archs`: the architectures that run, and what sets each apart, from their descriptors.

use std::io::{self, BufWriter, Write};

use clap::Args;
use oxidize_core::arch::{ARCHS, Arch};

use crate::style;

/// List the architectures that run, with what sets each apart
#[derive(Args)]
pub(crate) struct Archs {
    /// Only those whose name or Hugging Face class contains this
    filter: Option<String>,
    /// Print names only, one a line
    #[arg(long, conflicts_with = "json")]
    names: bool,
    /// Print `[{"name":…,"hf_classes":[…],"knobs":{…}},…]`
    #[arg(long)]
    json: bool,
}

impl Archs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let filter = self.filter.unwrap_or_default().to_ascii_lowercase();
        let wanted = |text: &str| text.to_ascii_lowercase().contains(&filter);
        let archs = ARCHS
            .iter()
            .filter(|arch| wanted(arch.name) || arch.hf_classes.iter().any(|class| wanted(class)));
        let mut out = BufWriter::new(io::stdout().lock());
        if self.json {
            let list: Vec<serde_json::Value> = archs.map(|arch| as_json(arch)).collect();
            writeln!(out, "{}", serde_json::to_string_pretty(&list)?)?;
        } else if self.names {
            let mut names: Vec<&str> = archs.map(|arch| arch.name).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                writeln!(out, "{name}")?;
            }
        } else {
            for arch in archs {
                describe(arch, &mut out)?;
            }
        }
        out.flush()?;
        Ok(())
    }
}

fn describe(arch: &Arch, out: &mut impl Write) -> io::Result<()> {
    let style::Styles { title, dim, .. } = style::for_stdout();
    write!(out, "{title}{}{title:#}", arch.name)?;
    if !arch.hf_classes.is_empty() {
        write!(out, "  {dim}{}{dim:#}", arch.hf_classes.join(", "))?;
    }
    writeln!(out)?;
    for (knob, value) in arch.knobs() {
        writeln!(out, "    {dim}{knob}{dim:#} {value}")?;
    }
    Ok(())
}

fn as_json(arch: &Arch) -> serde_json::Value {
    let knobs: serde_json::Map<String, serde_json::Value> = arch
        .knobs()
        .into_iter()
        .map(|(knob, value)| (knob.to_owned(), value.into()))
        .collect();
    serde_json::json!({
        "name": arch.name,
        "hf_classes": arch.hf_classes,
        "knobs": knobs,
    })
}
