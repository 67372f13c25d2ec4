//! Singular and plural forms in messages.

/// Formats a count with the singular or the plural noun.
pub fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_selects_singular_or_plural() {
        assert_eq!(count(1, "matrix", "matrices"), "1 matrix");
        assert_eq!(count(0, "matrix", "matrices"), "0 matrices");
    }
}
