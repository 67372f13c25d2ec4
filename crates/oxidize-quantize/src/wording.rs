//! Words for what is told to people.

/// So many things, in words: of one, the `one` word, else the `many`.
pub fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        assert_eq!(count(1, "matrix", "matrices"), "1 matrix");
        assert_eq!(count(0, "matrix", "matrices"), "0 matrices");
    }
}
