//! Text styles on terminals; output to pipes has none.

use std::io::IsTerminal;

use anstyle::{AnsiColor, Style};

/// Text styles, used as `{style}text{style:#}`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Styles {
    /// Titles.
    pub(crate) title: Style,
    /// Labels and secondary text.
    pub(crate) dim: Style,
    /// The word `error`.
    pub(crate) error: Style,
}

/// Styles for standard output.
pub(crate) fn for_stdout() -> Styles {
    choose(std::io::stdout().is_terminal())
}

/// Styles for standard error.
pub(crate) fn for_stderr() -> Styles {
    choose(std::io::stderr().is_terminal())
}

/// Chooses styles by terminal and `NO_COLOR` (<https://no-color.org>): any non-empty value turns colors off.
fn choose(is_terminal: bool) -> Styles {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if !is_terminal || no_color || dumb {
        return Styles::default();
    }
    Styles {
        title: Style::new().bold(),
        dim: Style::new().dimmed(),
        error: AnsiColor::Red.on_default().bold(),
    }
}
