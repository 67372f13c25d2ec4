//! Sorted index of names, with detection of duplicates.

/// Returns the indices `0..n` sorted by name, or the index of the first name that is a duplicate.
///
/// A sorted index takes four bytes per name, stores no copies of the names, and has no hashes that an
/// attacker could make collide.
pub(crate) fn sorted_without_duplicates<'a>(
    n: usize,
    name: impl Fn(usize) -> &'a [u8],
) -> Result<Vec<u32>, usize> {
    // Callers limit `n` to far less than 2^32.
    let mut order: Vec<u32> = (0..n).map_while(|i| u32::try_from(i).ok()).collect();
    let name = |index: u32| usize::try_from(index).map_or(&[][..], &name);
    order.sort_unstable_by(|&a, &b| name(a).cmp(name(b)).then(a.cmp(&b)));
    for (&a, &b) in order.iter().zip(order.iter().skip(1)) {
        if name(a) == name(b) {
            return Err(usize::try_from(b).unwrap_or(usize::MAX));
        }
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_and_reports_later_duplicate() {
        let index = |names: &[&'static str]| {
            let names = names.to_vec();
            sorted_without_duplicates(names.len(), move |i| names[i].as_bytes())
        };
        assert_eq!(index(&["b", "c", "a"]), Ok(vec![2, 0, 1]));
        assert_eq!(index(&["b", "c", "a", "c"]), Err(3));
        assert_eq!(index(&[]), Ok(vec![]));
    }
}
