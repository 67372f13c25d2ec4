//! [`Table`]: columns of text with a title row.

use std::time::SystemTime;

use crate::style::Styles;

/// A table whose columns are as wide as their longest cell.
pub(crate) struct Table {
    titles: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(titles: &[&str]) -> Table {
        Table {
            titles: titles.iter().map(|&title| title.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, row: impl IntoIterator<Item = String>) {
        self.rows.push(
            row.into_iter()
                .map(|cell| cell.replace(char::is_control, " "))
                .collect(),
        );
    }

    /// The table as text, without a final line break.
    pub(crate) fn shown(&self, styles: Styles) -> String {
        let all = || std::iter::once(&self.titles).chain(&self.rows);
        let width = |column: usize| {
            all()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
        };
        let widths: Vec<usize> = (0..self.titles.len())
            .map(|column| width(column).unwrap_or(0))
            .collect();
        let line = |row: &Vec<String>| {
            let cells = row
                .iter()
                .zip(&widths)
                .map(|(cell, &width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let dim = styles.dim;
        let title = format!("{dim}{}{dim:#}", line(&self.titles));
        std::iter::once(title)
            .chain(self.rows.iter().map(line))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Formats a number of bytes as `4.7 GB`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (n as f64, 0);
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0);
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Formats the time since a moment: `3 hours ago`.
pub(crate) fn age(now: SystemTime, then: SystemTime) -> String {
    let seconds = now.duration_since(then).map_or(0, |since| since.as_secs());
    let (n, unit) = match seconds {
        0..60 => return "now".into(),
        60..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {unit}{plural} ago")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["a", "b"]);
        table.push(["long".to_owned(), "x".to_owned()]);
        table.push(["s".to_owned(), "\u{1b}y".to_owned()]);
        assert_eq!(table.shown(Styles::default()), "a     b\nlong  x\ns      y");
    }

    #[test]
    fn sizes_and_ages_are_short() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(4_680_000_000), "4.7 GB");
        let now = SystemTime::now();
        let ago = |seconds| age(now, now - Duration::from_secs(seconds));
        assert_eq!(
            [ago(5), ago(60), ago(7200), ago(90_000)],
            ["now", "1 minute ago", "2 hours ago", "1 day ago"]
        );
        assert_eq!(age(now, now + Duration::from_secs(9)), "now");
    }
}
