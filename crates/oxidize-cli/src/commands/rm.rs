//! `oxidize rm`: removes models of the cache.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use oxidize_hub::{Error, Library, LocalModel};

use crate::console::outln;
use crate::{hub, table};

/// Remove models from this machine
///
/// Bytes that another name or another repository refers to stay. Models in the hub's cache are removed for all tools.
#[derive(Args)]
pub(crate) struct Rm {
    /// Names as `oxidize list` shows them
    #[arg(value_name = "MODEL", required_unless_present = "unused")]
    models: Vec<String>,
    /// Remove all models that were not used for this time, such as 90d, 12h or 4w
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "models")]
    unused: Option<Duration>,
    /// Print what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Print a JSON array of objects with name and freed, in bytes
    #[arg(long)]
    json: bool,
}

impl Rm {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let library = Library::new(&hub::settings());
        let models = match self.unused {
            Some(time) => library.unused(time),
            // All names are looked up before anything is removed.
            None => self
                .models
                .iter()
                .map(|name| only(&library, name))
                .collect::<Result<_, _>>()?,
        };
        let mut report = Vec::new();
        for model in &models {
            let freed = if self.dry_run {
                model.size
            } else {
                library.remove(model)?
            };
            if self.json {
                report.push(serde_json::json!({ "name": model.name, "freed": freed }));
                continue;
            }
            let verb = if self.dry_run {
                "would remove"
            } else {
                "removed"
            };
            outln!("{verb} {} ({})", model.name, table::bytes(freed))?;
        }
        if self.json {
            outln!("{}", serde_json::to_string_pretty(&report)?)?;
        }
        Ok(())
    }
}

/// The one model that a name stands for.
pub(crate) fn only(library: &Library, name: &str) -> anyhow::Result<LocalModel> {
    let mut matches = library.matching(name);
    match matches.len() {
        0 => Err(Error::NotLocal {
            name: name.to_owned(),
        }
        .into()),
        1 => Ok(matches.remove(0)),
        _ => {
            let names: Vec<&str> = matches.iter().map(|model| model.name.as_str()).collect();
            bail!(
                "{name}: several models match; name one: {}",
                names.join(", ")
            )
        }
    }
}

/// Parses a time in seconds, minutes, hours, days or weeks: `90d`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        _ => return Err(format!("{text} is not a time such as 90d, 12h or 4w")),
    };
    let number = digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(seconds));
    number
        .map(Duration::from_secs)
        .ok_or_else(|| format!("{text} is not a time such as 90d, 12h or 4w"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(duration("90d"), Ok(Duration::from_secs(90 * 86_400)));
        assert_eq!(duration("2w"), duration("14d"));
        for wrong in ["", "d", "90", "90y", "-1d", "1.5d", "99999999999999999999d"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
