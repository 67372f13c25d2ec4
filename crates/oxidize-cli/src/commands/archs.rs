//! `oxidize archs`: lists the supported architectures and the properties in their descriptors.

use std::io::{self, BufWriter, Write};

use clap::Args;
use oxidize_core::arch::{ARCHS, Arch};

use crate::style;

/// List the supported architectures and their properties
///
/// With a name, show all properties of the architecture.
#[derive(Args)]
pub(crate) struct Archs {
    /// Architecture name of GGUF or config.json, or a part of it
    name: Option<String>,
    /// Print only the names, one per line
    #[arg(long, conflicts_with = "json")]
    names: bool,
    /// Print a JSON array of objects with name, hf_classes, summary and properties, the properties that differ
    /// from the defaults
    #[arg(long)]
    json: bool,
}

impl Archs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let wanted = self.name.as_deref().unwrap_or_default();
        let exact = named(|name| name.eq_ignore_ascii_case(wanted));
        let lower = wanted.to_ascii_lowercase();
        let archs = match exact.is_empty() {
            true => named(|name| name.to_ascii_lowercase().contains(&lower)),
            false => exact.clone(),
        };
        if archs.is_empty() {
            anyhow::bail!(
                "no architecture name contains {wanted:?}; list all with `oxidize archs`"
            );
        }
        let mut out = BufWriter::new(io::stdout().lock());
        if self.json {
            let list: Vec<serde_json::Value> = archs.iter().map(|arch| as_json(arch)).collect();
            writeln!(out, "{}", serde_json::to_string_pretty(&list)?)?;
        } else if self.names {
            let mut names: Vec<&str> = archs.iter().map(|arch| arch.name).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                writeln!(out, "{name}")?;
            }
        } else if exact.is_empty() {
            list(&archs, &mut out)?;
        } else {
            for arch in exact {
                describe(arch, &mut out)?;
            }
        }
        out.flush()?;
        Ok(())
    }
}

/// The architectures with a matching name.
fn named(wanted: impl Fn(&str) -> bool) -> Vec<&'static Arch> {
    let any =
        |arch: &&&Arch| wanted(arch.name) || arch.hf_classes.iter().any(|class| wanted(class));
    ARCHS.iter().filter(any).copied().collect()
}

/// Prints a table with one row per descriptor.
fn list(archs: &[&Arch], out: &mut impl Write) -> io::Result<()> {
    let style::Styles { title, dim, .. } = style::for_stdout();
    let mut rows: Vec<Vec<String>> = Vec::with_capacity(archs.len() + 1);
    for arch in archs {
        let summary = arch.summary();
        let row = |name: &str, cells: [&str; 6], classes: &str| {
            let cells = cells.iter().map(|cell| cell.replace('_', "-"));
            let ends = (name.to_owned(), classes.to_owned());
            [ends.0].into_iter().chain(cells).chain([ends.1]).collect()
        };
        if rows.is_empty() {
            let names = summary.parts().map(|(name, _)| name);
            rows.push(row("name", names, "Hugging Face"));
        }
        let words = summary.parts().map(|(_, words)| words);
        rows.push(row(arch.name, words, &arch.hf_classes.join(", ")));
    }
    let n_columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        rows.iter()
            .map(move |row| row[column].chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..n_columns).filter_map(width).collect();
    for (index, row) in rows.iter().enumerate() {
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let style = match (index, column) {
                (0, _) | (_, 0) => title,
                _ if column + 1 == n_columns => dim,
                _ => Default::default(),
            };
            // The last column is not padded.
            let width = if column + 1 == n_columns {
                0
            } else {
                width + 2
            };
            write!(out, "{style}{cell:width$}{style:#}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Prints all properties of an architecture; default values are dim.
fn describe(arch: &Arch, out: &mut impl Write) -> io::Result<()> {
    let style::Styles { title, dim, .. } = style::for_stdout();
    write!(out, "{title}{}{title:#}", arch.name)?;
    if !arch.hf_classes.is_empty() {
        write!(out, "  {dim}{}{dim:#}", arch.hf_classes.join(", "))?;
    }
    writeln!(out)?;
    let properties = arch.properties();
    let width = properties
        .iter()
        .map(|property| property.name.len())
        .max()
        .unwrap_or(0);
    for property in properties {
        let (mark, style) = match property.is_default {
            true => (' ', dim),
            false => ('*', title),
        };
        // One line per list element.
        let gap = format!("\n{:1$}", "", width + 6);
        let value = property.value.replace("; ", &gap);
        writeln!(
            out,
            "  {style}{mark} {:width$}  {value}{style:#}",
            property.name
        )?;
    }
    writeln!(out, "{dim}  * differs from the default{dim:#}")
}

fn as_json(arch: &Arch) -> serde_json::Value {
    let properties = arch
        .properties()
        .into_iter()
        .filter(|property| !property.is_default);
    let properties: serde_json::Map<String, serde_json::Value> = properties
        .map(|property| (property.name.to_owned(), property.value.into()))
        .collect();
    let summary = arch.summary();
    let summary: serde_json::Map<String, serde_json::Value> = summary
        .parts()
        .into_iter()
        .map(|(name, words)| (name.to_owned(), words.into()))
        .collect();
    serde_json::json!({
        "name": arch.name,
        "hf_classes": arch.hf_classes,
        "summary": summary,
        "properties": properties,
    })
}
