//! Quantizations and part numbers in the names of model files.

/// Splits `NAME-00001-of-00003` into the name, the number of the part and the number of parts.
pub fn split_part(stem: &str) -> Option<(&str, u32, u32)> {
    let (rest, total) = stem.rsplit_once("-of-")?;
    let (name, part) = rest.rsplit_once('-')?;
    let number = |digits: &str| {
        let digits = Some(digits).filter(|d| d.len() == 5 && d.bytes().all(|b| b.is_ascii_digit()));
        digits?.parse::<u32>().ok()
    };
    let (part, total) = (number(part)?, number(total)?);
    (1..=total).contains(&part).then_some((name, part, total))
}

/// Splits `NAME.Q4_K_M` or `NAME-Q4_K_M` into name and quantization.
pub fn split_quantization(stem: &str) -> Option<(&str, &str)> {
    let (name, quantization) = stem.rsplit_once(['.', '-'])?;
    bits(quantization)?;
    let name = ["-UD", ".i1", "-i1"]
        .iter()
        .find_map(|mark| name.strip_suffix(mark))
        .unwrap_or(name);
    (!name.is_empty()).then_some((name, quantization))
}

/// Bits per weight in the name of a quantization; `None` if the name is none.
pub fn bits(quantization: &str) -> Option<u32> {
    let name = quantization.to_uppercase();
    let kinds = ["IQ", "TQ", "Q", "BF", "FP", "F", "MXFP", "NVFP"];
    let rest = kinds.iter().find_map(|kind| {
        let rest = name.strip_prefix(kind)?;
        rest.starts_with(|c: char| c.is_ascii_digit())
            .then_some(rest)
    })?;
    let end = rest.find(|c: char| !c.is_ascii_digit());
    let (digits, variant) = rest.split_at_checked(end.unwrap_or(rest.len()))?;
    let bits = digits.parse().ok().filter(|bits| (1..=32).contains(bits))?;
    (variant.is_empty() || variant.starts_with('_')).then_some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantizations_are_recognized() {
        for (name, expected) in [
            ("Q4_K_M", Some(4)),
            ("iq2_xxs", Some(2)),
            ("f32", Some(32)),
            ("BF16", Some(16)),
            ("MXFP4_MOE", Some(4)),
            ("Q99", None),
            ("Qwen3", None),
            ("135M", None),
            ("F1x", None),
        ] {
            assert_eq!(bits(name), expected, "{name}");
        }
    }

    #[test]
    fn parts_are_recognized() {
        assert_eq!(
            split_part("m-Q4_K_M-00002-of-00003"),
            Some(("m-Q4_K_M", 2, 3))
        );
        for none in ["m", "m-00000-of-00003", "m-00004-of-00003", "m-1-of-3"] {
            assert_eq!(split_part(none), None, "{none}");
        }
    }
}
