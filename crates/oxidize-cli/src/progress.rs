//! Progress of long work on standard error: a bar on a terminal, occasional lines elsewhere.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use oxidize_quantize::quantize::Progress;

use crate::console::status;

/// Unit of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Bytes.
    Bytes,
    /// Items with a plural name.
    Items(&'static str),
}

/// Shows progress. Several threads may report to it.
pub(crate) struct ProgressReporter {
    bar: Option<ProgressBar>,
    lines: Mutex<Lines>,
}

impl ProgressReporter {
    /// Creates a reporter that has printed nothing yet.
    pub(crate) fn new() -> ProgressReporter {
        let bar = std::io::stderr().is_terminal();
        ProgressReporter {
            bar: bar.then(|| ProgressBar::new(0)),
            lines: Mutex::new(Lines::new(Instant::now())),
        }
    }

    /// Shows that `done` of `total` are finished, with a status text.
    pub(crate) fn set(&self, unit: Unit, done: u64, total: u64, state: &str) {
        let Ok(mut lines) = self.lines.lock() else {
            return;
        };
        let Some(bar) = &self.bar else {
            if lines.is_due(unit, done, total, Instant::now()) {
                status!("{}", line(unit, done, total, state));
            }
            return;
        };
        if lines.unit.replace(unit) != Some(unit) {
            bar.set_style(style(unit));
            bar.reset_eta();
        }
        bar.set_length(total);
        bar.set_position(done);
        bar.set_message(state.to_owned());
    }

    /// Shows the progress of quantizing, writing or comparing a model.
    pub(crate) fn show(&self, at: Progress<'_>) {
        match at {
            Progress::Measuring { done, total } => {
                self.set(Unit::Items("tensors measured"), done, total, "");
            }
            Progress::Writing {
                tensor,
                done,
                total,
            } => self.set(Unit::Bytes, done, total, tensor),
            Progress::Comparing {
                mean_kl,
                done,
                total,
            } => {
                let state = format!("mean KL divergence {mean_kl:.6}");
                self.set(Unit::Items("chunks"), done, total, &state);
            }
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Default for ProgressReporter {
    fn default() -> ProgressReporter {
        ProgressReporter::new()
    }
}

fn style(unit: Unit) -> ProgressStyle {
    let template = match unit {
        Unit::Bytes => {
            "{bar:30} {decimal_bytes}/{decimal_total_bytes} (about {eta} left) {wide_msg}"
                .to_owned()
        }
        Unit::Items(what) => {
            format!("{{bar:30}} {{pos}}/{{len}} {what} (about {{eta}} left) {{wide_msg}}")
        }
    };
    ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// The progress line for output that is not a terminal.
fn line(unit: Unit, done: u64, total: u64, state: &str) -> String {
    let amount = match unit {
        Unit::Bytes => {
            let [done, total] = [done, total].map(|bytes| bytes as f64 / 1e6);
            format!("{done:.0}/{total:.0} MB")
        }
        Unit::Items(what) => format!("{done}/{total} {what}"),
    };
    match state {
        "" => amount,
        state => format!("{amount}: {state}"),
    }
}

/// Rate limit of progress lines: about 20 per task, at least [`Lines::PAUSE`] apart.
struct Lines {
    unit: Option<Unit>,
    /// Time of the last line, or of the start, and the amount done then.
    last: (Instant, u64),
}

impl Lines {
    const PAUSE: Duration = Duration::from_secs(2);

    fn new(now: Instant) -> Lines {
        Lines {
            unit: None,
            last: (now, 0),
        }
    }

    fn is_due(&mut self, unit: Unit, done: u64, total: u64, now: Instant) -> bool {
        if self.unit.replace(unit) != Some(unit) {
            self.last.1 = 0;
        }
        let (then, before) = self.last;
        let due = now.duration_since(then) >= Lines::PAUSE
            && done.saturating_sub(before) >= total.div_ceil(20).max(1);
        if due {
            self.last = (now, done);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_the_unit() {
        let chunks = Unit::Items("chunks");
        assert_eq!(line(chunks, 3, 20, ""), "3/20 chunks");
        assert_eq!(
            line(chunks, 3, 20, "accuracy 9.00%"),
            "3/20 chunks: accuracy 9.00%"
        );
        let bytes = line(Unit::Bytes, 1_500_000, 4_700_000_000, "output.weight");
        assert_eq!(bytes, "2/4700 MB: output.weight");
    }

    #[test]
    fn lines_are_rate_limited() {
        let start = Instant::now();
        let mut lines = Lines::new(start);
        // Short work prints no line.
        assert!(!lines.is_due(Unit::Bytes, 100, 100, start + Lines::PAUSE / 2));
        let mut written = 0;
        for second in 0..10_000 {
            let now = start + Duration::from_secs(second);
            written += usize::from(lines.is_due(Unit::Bytes, second, 10_000, now));
        }
        assert_eq!(written, 19);
        // A new unit starts a new task.
        let later = start + Duration::from_secs(20_000);
        assert!(lines.is_due(Unit::Items("chunks"), 1, 8, later));
        assert!(!lines.is_due(Unit::Items("chunks"), 2, 8, later));
        assert!(lines.is_due(Unit::Items("chunks"), 2, 8, later + Lines::PAUSE));
    }
}
