//! `oxidize archs`: the architectures that run, and what sets each apart, from their descriptors.

use std::io::{self, BufWriter, Write};

use clap::Args;
use oxidize_core::arch::{ARCHS, Arch, Outline};

use crate::style;

/// List the architectures that run, with what sets each apart
///
/// A name alone shows every choice that its descriptor makes.
#[derive(Args)]
pub(crate) struct Archs {
    /// An architecture, as GGUF files or `config.json` name it, or a part of such names
    name: Option<String>,
    /// Print names only, one a line
    #[arg(long, conflicts_with = "json")]
    names: bool,
    /// Print `[{"name":…,"hf_classes":[…],"outline":{…},"knobs":{…}},…]`, where knobs are what sets
    /// the family apart from most
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
            anyhow::bail!("no architecture's name contains {wanted:?}; `oxidize archs` lists all");
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

/// The architectures one of whose names is wanted.
fn named(wanted: impl Fn(&str) -> bool) -> Vec<&'static Arch> {
    let any =
        |arch: &&&Arch| wanted(arch.name) || arch.hf_classes.iter().any(|class| wanted(class));
    ARCHS.iter().filter(any).copied().collect()
}

/// A table, one line a descriptor.
fn list(archs: &[&Arch], out: &mut impl Write) -> io::Result<()> {
    let style::Styles { title, dim, .. } = style::for_stdout();
    let header = [
        "name",
        "norm",
        "position",
        "mixer",
        "attention",
        "feed-forward",
        "router",
        "Hugging Face",
    ];
    let rows: Vec<[String; 8]> = archs.iter().map(|arch| columns(arch)).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].len()]).max().unwrap_or(0)
    };
    let widths: [usize; 8] = std::array::from_fn(width);
    for (column, (name, width)) in header.iter().zip(widths).enumerate() {
        let gap = if column == 0 { "" } else { "  " };
        write!(out, "{gap}{title}{name:width$}{title:#}")?;
    }
    writeln!(out)?;
    for row in &rows {
        let [name, cells @ .., classes] = row;
        write!(out, "{title}{name:width$}{title:#}", width = widths[0])?;
        for (cell, width) in cells.iter().zip(&widths[1..]) {
            write!(out, "  {cell:width$}")?;
        }
        writeln!(out, "  {dim}{classes}{dim:#}")?;
    }
    Ok(())
}

fn columns(arch: &Arch) -> [String; 8] {
    let Outline {
        norm,
        position,
        mixer,
        attention,
        feed_forward,
        experts,
    } = arch.outline();
    let (name, classes) = (arch.name.to_owned(), arch.hf_classes.join(", "));
    [
        name,
        norm,
        position,
        mixer,
        attention,
        feed_forward,
        experts,
        classes,
    ]
}

/// All knobs of one; those that most families have the same are dim.
fn describe(arch: &Arch, out: &mut impl Write) -> io::Result<()> {
    let style::Styles { title, dim, .. } = style::for_stdout();
    write!(out, "{title}{}{title:#}", arch.name)?;
    if !arch.hf_classes.is_empty() {
        write!(out, "  {dim}{}{dim:#}", arch.hf_classes.join(", "))?;
    }
    writeln!(out)?;
    let knobs = arch.knobs();
    let width = knobs.iter().map(|knob| knob.name.len()).max().unwrap_or(0);
    for knob in knobs {
        let (mark, style) = match knob.is_usual {
            true => (' ', dim),
            false => ('*', title),
        };
        writeln!(
            out,
            "  {style}{mark} {:width$}  {}{style:#}",
            knob.name, knob.value
        )?;
    }
    writeln!(out, "{dim}  * sets it apart from most{dim:#}")
}

fn as_json(arch: &Arch) -> serde_json::Value {
    let Outline {
        norm,
        position,
        mixer,
        attention,
        feed_forward,
        experts,
    } = arch.outline();
    let knobs: serde_json::Map<String, serde_json::Value> = arch
        .knobs()
        .into_iter()
        .filter(|knob| !knob.is_usual)
        .map(|knob| (knob.name.to_owned(), knob.value.into()))
        .collect();
    serde_json::json!({
        "name": arch.name,
        "hf_classes": arch.hf_classes,
        "outline": {
            "norm": norm,
            "position": position,
            "mixer": mixer,
            "attention": attention,
            "feed_forward": feed_forward,
            "experts": experts,
        },
        "knobs": knobs,
    })
}
