//! Progress of long work: a bar on a terminal, plain lines in a pipe, both on standard error.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// Counts finished pieces.
pub(crate) struct Counter {
    bar: Option<ProgressBar>,
    what: &'static str,
    total: u64,
    done: std::cell::Cell<u64>,
}

/// A counter of `total` pieces.
pub(crate) fn counter(what: &'static str, total: u64) -> Counter {
    let bar = std::io::stderr().is_terminal().then(|| {
        let template = "{msg} {bar:30} {pos}/{len} {prefix} (about {eta} left)";
        let style =
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(total).with_style(style).with_prefix(what)
    });
    Counter {
        bar,
        what,
        total,
        done: 0.into(),
    }
}

impl Counter {
    /// One piece more is done; `state` says where things stand.
    pub(crate) fn advance(&self, state: &str) {
        self.done.set(self.done.get() + 1);
        let (done, total, what) = (self.done.get(), self.total, self.what);
        match &self.bar {
            Some(bar) => {
                bar.set_message(state.to_owned());
                bar.set_position(done);
            }
            // Some twenty lines at most, and the last one.
            None if done.is_multiple_of(total.div_ceil(20)) || done == total => {
                eprintln!("{done}/{total} {what}: {state}");
            }
            None => {}
        }
    }

    /// All is done.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
