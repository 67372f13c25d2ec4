//! [`KeepAlive`]: the time that a model stays loaded without requests, as Ollama's clients set it.

use std::time::Duration;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};

/// Time that a model stays loaded without requests, in Ollama's format.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum KeepAlive {
    /// Seconds; 0 unloads the model, a negative number keeps it.
    Seconds(f64),
    /// Numbers with units: `5m`, `1h30m`, `-1s`.
    Text(String),
}

impl KeepAlive {
    /// Checks the format.
    pub fn checked(given: Option<KeepAlive>) -> ApiResult<Option<KeepAlive>> {
        if let Some(keep_alive) = &given {
            keep_alive.duration()?;
        }
        Ok(given)
    }

    /// True if the model is to be unloaded.
    pub fn is_zero(&self) -> bool {
        self.duration()
            .is_ok_and(|time| time == Some(Duration::ZERO))
    }

    /// The time; `None` for any length.
    pub fn duration(&self) -> ApiResult<Option<Duration>> {
        let wrong = || {
            let shown = match self {
                KeepAlive::Seconds(seconds) => seconds.to_string(),
                KeepAlive::Text(text) => format!("{:?}", text.chars().take(32).collect::<String>()),
            };
            ApiError::bad_request(format!(
                "`keep_alive` is {shown}; it must be a number of seconds or a text such as \"5m\" or \"1h30m\""
            ))
        };
        let seconds = match self {
            KeepAlive::Seconds(seconds) => Some(*seconds),
            KeepAlive::Text(text) => seconds_of(text),
        };
        let seconds = seconds
            .filter(|seconds| seconds.is_finite())
            .ok_or_else(wrong)?;
        if seconds < 0.0 {
            return Ok(None);
        }
        let time = Duration::try_from_secs_f64(seconds.min(MAX_KEEP_ALIVE));
        time.map(Some).map_err(|_| wrong())
    }
}

/// Longest time that a model is kept, in seconds: a century.
const MAX_KEEP_ALIVE: f64 = 3.2e9;

/// Seconds of a time in Go's format, such as `1h30m`, or of a number.
fn seconds_of(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if !rest.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    if let Ok(seconds) = rest.parse::<f64>() {
        return Some(sign * seconds);
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.');
        let (unit, after) = after.split_at(end.unwrap_or(after.len()));
        let scale = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * scale;
        rest = after;
    }
    Some(sign * total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_format_of_ollama() {
        let time = |text: &str| KeepAlive::Text(text.into()).duration();
        let seconds = |n: u64| Some(Duration::from_secs(n));
        assert_eq!(time("5m").unwrap(), seconds(300));
        assert_eq!(time("1h30m").unwrap(), seconds(5400));
        assert_eq!(time("1.5s").unwrap(), Some(Duration::from_millis(1500)));
        assert_eq!(time("300").unwrap(), seconds(300));
        assert_eq!(time("-1").unwrap(), None);
        assert_eq!(time("-5m").unwrap(), None);
        assert!(KeepAlive::Text("0s".into()).is_zero() && KeepAlive::Seconds(0.0).is_zero());
        assert!(!KeepAlive::Seconds(-1.0).is_zero());
        assert!(KeepAlive::Seconds(1e300).duration().is_ok());
        for wrong in ["", "m", "5 minutes", "5x", "1h2", "--1", "."] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert!(KeepAlive::Seconds(f64::NAN).duration().is_err());
    }
}
