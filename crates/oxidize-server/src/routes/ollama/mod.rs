//! Ollama's API: generation, the list of models, embeddings, and fetching, copying and removing models.

pub mod answer;
pub mod catalog;
pub mod embed;
pub mod library;

use std::time::{Duration, UNIX_EPOCH};

/// Formats a Unix time in seconds as a date and a time.
fn rfc3339(seconds: u64) -> String {
    let moment = UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    oxidize_core::chat::strftime(moment.unwrap_or(UNIX_EPOCH), "%Y-%m-%dT%H:%M:%SZ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_known_ones() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_102_444_800, "2100-01-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), date);
        }
    }
}
