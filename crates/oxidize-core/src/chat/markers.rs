//! Search for markers such as `<think>` in streamed text.

/// Result of [`scan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scan {
    /// Marker `markers[which]` starts at `at`.
    Found { at: usize, which: usize },
    /// No complete marker; one may start at this position.
    Open(usize),
}

/// Finds the first marker in `text[from..]`, preferring the longest at its position.
pub(super) fn scan(text: &str, from: usize, markers: &[&str]) -> Scan {
    let Some(tail) = text.get(from..) else {
        return Scan::Open(text.len());
    };
    let mut found: Option<(usize, usize)> = None;
    for (which, marker) in markers.iter().enumerate() {
        let Some(at) = tail.find(marker) else {
            continue;
        };
        let better = found.is_none_or(|(best, other)| {
            at < best
                || (at == best
                    && markers
                        .get(other)
                        .is_some_and(|other| marker.len() > other.len()))
        });
        if better {
            found = Some((at, which));
        }
    }
    if let Some((at, which)) = found {
        return Scan::Found {
            at: from + at,
            which,
        };
    }
    let longest = markers.iter().map(|marker| marker.len()).max().unwrap_or(0);
    let first = tail.len().saturating_sub(longest);
    let open = (first..tail.len())
        .filter(|&at| tail.is_char_boundary(at))
        .find(|&at| {
            tail.get(at..)
                .is_some_and(|end| markers.iter().any(|marker| marker.starts_with(end)))
        });
    Scan::Open(from + open.unwrap_or(tail.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_first_and_longest_marker_and_partial_ones() {
        let markers = ["<a>", "<b>", "<a>!"];
        assert_eq!(
            scan("x<b><a>", 0, &markers),
            Scan::Found { at: 1, which: 1 }
        );
        assert_eq!(scan("x<a>!", 0, &markers), Scan::Found { at: 1, which: 2 });
        assert_eq!(
            scan("x<b><a>", 2, &markers),
            Scan::Found { at: 4, which: 0 }
        );
        assert_eq!(scan("é<", 0, &markers), Scan::Open(2));
        assert_eq!(scan("xyz", 0, &markers), Scan::Open(3));
        assert_eq!(scan("", 0, &[]), Scan::Open(0));
    }
}
