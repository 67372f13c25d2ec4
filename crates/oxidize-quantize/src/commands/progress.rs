//! Progress of long work: a bar on a terminal, a line now and then in a pipe, both on standard error.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::quantize::Progress;
use crate::remark;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Pieces, and what they are called.
    Pieces(&'static str),
}

/// Shows how far work has come. May be told by several threads.
pub struct Meter {
    bar: Option<ProgressBar>,
    lines: Mutex<Lines>,
}

impl Meter {
    /// One that shows nothing yet.
    pub fn new() -> Meter {
        let bar = std::io::stderr().is_terminal();
        Meter {
            bar: bar.then(|| ProgressBar::new(0)),
            lines: Mutex::new(Lines::new(Instant::now())),
        }
    }

    /// So many of `total` are done; `state` says where things stand.
    pub fn set(&self, unit: Unit, done: u64, total: u64, state: &str) {
        let Ok(mut lines) = self.lines.lock() else {
            return;
        };
        let Some(bar) = &self.bar else {
            if lines.is_due(unit, done, total, Instant::now()) {
                remark!("{}", line(unit, done, total, state));
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

    /// Shows what is under way while a model is made.
    pub fn show(&self, at: Progress<'_>) {
        match at {
            Progress::Trying { done, total } => {
                self.set(Unit::Pieces("tensors tried"), done, total, "");
            }
            Progress::Writing {
                tensor,
                done,
                total,
            } => self.set(Unit::Bytes, done, total, tensor),
            Progress::Comparing {
                divergence,
                done,
                total,
            } => {
                let state = format!("mean KL divergence {divergence:.6}");
                self.set(Unit::Pieces("chunks"), done, total, &state);
            }
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Default for Meter {
    fn default() -> Meter {
        Meter::new()
    }
}

fn style(unit: Unit) -> ProgressStyle {
    let template = match unit {
        Unit::Bytes => {
            "{bar:30} {decimal_bytes}/{decimal_total_bytes} (about {eta} left) {wide_msg}"
                .to_owned()
        }
        Unit::Pieces(what) => {
            format!("{{bar:30}} {{pos}}/{{len}} {what} (about {{eta}} left) {{wide_msg}}")
        }
    };
    ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// A line that a pipe gets.
fn line(unit: Unit, done: u64, total: u64, state: &str) -> String {
    let so_far = match unit {
        Unit::Bytes => {
            let [done, total] = [done, total].map(|bytes| bytes as f64 / 1e6);
            format!("{done:.0}/{total:.0} MB")
        }
        Unit::Pieces(what) => format!("{done}/{total} {what}"),
    };
    match state {
        "" => so_far,
        state => format!("{so_far}: {state}"),
    }
}

/// Decides when a pipe gets a line: some twenty in all, and none soon after another.
struct Lines {
    unit: Option<Unit>,
    /// When the last one was written, or work began, and how much was done.
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
    fn lines_say_what_is_counted() {
        let chunks = Unit::Pieces("chunks");
        assert_eq!(line(chunks, 3, 20, ""), "3/20 chunks");
        assert_eq!(line(chunks, 3, 20, "9 % right"), "3/20 chunks: 9 % right");
        let bytes = line(Unit::Bytes, 1_500_000, 4_700_000_000, "output.weight");
        assert_eq!(bytes, "2/4700 MB: output.weight");
    }

    #[test]
    fn lines_are_few_and_far_between() {
        let start = Instant::now();
        let mut lines = Lines::new(start);
        // Quick work says nothing before it is done.
        assert!(!lines.is_due(Unit::Bytes, 100, 100, start + Lines::PAUSE / 2));
        let mut written = 0;
        for second in 0..10_000 {
            let now = start + Duration::from_secs(second);
            written += usize::from(lines.is_due(Unit::Bytes, second, 10_000, now));
        }
        assert_eq!(written, 19);
        // Another kind of work begins at nothing again.
        let later = start + Duration::from_secs(20_000);
        assert!(lines.is_due(Unit::Pieces("chunks"), 1, 8, later));
        assert!(!lines.is_due(Unit::Pieces("chunks"), 2, 8, later));
        assert!(lines.is_due(Unit::Pieces("chunks"), 2, 8, later + Lines::PAUSE));
    }
}
