//! An index of names that finds duplicates while it is made.

/// The indices `0..n` sorted by name, or the index of a name that was there before.
///
/// A sorted index needs four bytes a name, no copy of it, and no hash that an attacker could aim at.
pub(crate) fn sorted_without_duplicates<'a>(
    n: usize,
    name: impl Fn(usize) -> &'a [u8],
) -> Result<Vec<u32>, usize> {
    // Callers hold counts against limits far below 2^32.
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
    fn sorts_and_reports_the_later_duplicate() {
        let index = |names: &[&'static str]| {
            let names = names.to_vec();
            sorted_without_duplicates(names.len(), move |i| names[i].as_bytes())
        };
        assert_eq!(index(&["b", "c", "a"]), Ok(vec![2, 0, 1]));
        assert_eq!(index(&["b", "c", "a", "c"]), Err(3));
        assert_eq!(index(&[]), Ok(vec![]));
    }
}
