//! Value parsers and defaults of arguments that several subcommands have.

use std::sync::OnceLock;

use clap::{ArgAction, Command};
use oxidize_core::backend::RepackLimit;
use oxidize_core::backend::cpu::MAX_THREADS;

/// Lets the environment variable of a flag be 1 or 0, on or off, and so on; `clap` itself only takes true and
/// false.
pub(crate) fn accept_words_for_flags(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
        if is_flag && arg.get_env().is_some() {
            arg.value_parser(boolean)
        } else {
            arg
        }
    });
    command.mut_subcommands(accept_words_for_flags)
}

/// Parses a boolean; an empty text is false, like a variable that is not set.
fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" => Ok(true),
        "0" | "false" | "off" | "no" | "" => Ok(false),
        _ => Err("expected 1 or 0, true or false, on or off, yes or no".to_owned()),
    }
}

/// Former name of `--repack`, a hidden alias.
pub(crate) const REPACK_ALIAS: &str = "spell-out";

/// Default of `--repack`: the value of the variable's former name if it is set.
pub(crate) fn repack_default() -> &'static str {
    const FORMER_NAME: &str = "OXIDIZE_SPELL_OUT";
    static DEFAULT: OnceLock<String> = OnceLock::new();
    DEFAULT.get_or_init(|| {
        std::env::var(FORMER_NAME).unwrap_or_else(|_| RepackLimit::default().to_string())
    })
}

/// Parses a number that is at least 1.
pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    let number: Option<usize> = text.parse().ok();
    let number = number.filter(|number| *number > 0);
    number.ok_or_else(|| format!("{text} is not a number of at least 1"))
}

/// Parses a number of threads, at most [`MAX_THREADS`].
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    let number = text
        .parse()
        .map_err(|_| format!("{text} is not a number"))?;
    match number {
        0..=MAX_THREADS => Ok(number),
        _ => Err(format!("at most {MAX_THREADS} threads are supported")),
    }
}

/// Parses a number of bytes with an optional unit: `4GB`, `700M`, `1.5GiB`.
pub(crate) fn byte_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_lowercase();
    let factor = match unit.as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024f64.powi(2),
        "gib" => 1024f64.powi(3),
        "tib" => 1024f64.powi(4),
        _ => return Err(format!("{unit} is not a unit of bytes")),
    };
    let number: f64 = digits
        .parse()
        .map_err(|_| format!("{text} is not a size such as 4GB"))?;
    if !(number.is_finite() && number * factor >= 1.0) {
        return Err(format!("{text} is not a size such as 4GB"));
    }
    Ok((number * factor) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_count_is_limited() {
        assert_eq!(threads("1024"), Ok(1024));
        for wrong in ["1025", "100000", "99999999999999999999", "-1", "two"] {
            assert!(threads(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn booleans_are_numbers_or_words() {
        for (texts, expected) in [
            (["1", "true", "On", "YES"], true),
            (["0", "False", "off", ""], false),
        ] {
            assert!(texts.iter().all(|text| boolean(text) == Ok(expected)));
        }
        assert!(boolean("2").is_err() && boolean("maybe").is_err());
    }

    #[test]
    fn byte_sizes_are_parsed() {
        assert_eq!(byte_size("4GB"), Ok(4_000_000_000));
        assert_eq!(byte_size("1.5GiB"), Ok(1_610_612_736));
        assert_eq!(byte_size("700m"), Ok(700_000_000));
        for wrong in ["", "GB", "-4GB", "4 parsecs", "NaN", "4XB"] {
            assert!(byte_size(wrong).is_err(), "{wrong}");
        }
    }
}
