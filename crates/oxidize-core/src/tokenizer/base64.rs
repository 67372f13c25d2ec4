//! Base64 decoding, for tiktoken files and precompiled character maps.

/// Decodes `text` (standard alphabet, padding optional).
pub(super) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text
        .iter()
        .rposition(|&byte| byte != b'=')
        .map_or(0, |last| last + 1);
    let digits = text.get(..digits)?;
    let mut out = Vec::with_capacity(digits.len() / 4 * 3 + 3);
    for group in digits.chunks(4) {
        let mut bits: u32 = 0;
        for &digit in group {
            bits = bits << 6 | u32::from(value(digit)?);
        }
        match group.len() {
            4 => out.extend(bits.to_be_bytes().iter().skip(1)),
            3 => out.extend((bits << 6).to_be_bytes().iter().skip(1).take(2)),
            2 => out.extend((bits << 12).to_be_bytes().iter().skip(1).take(1)),
            _ => return None,
        }
    }
    Some(out)
}

fn value(digit: u8) -> Option<u8> {
    Some(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn decodes_known_strings() {
        assert_eq!(decode(b"").unwrap(), b"");
        assert_eq!(decode(b"Zg==").unwrap(), b"f");
        assert_eq!(decode(b"Zm8=").unwrap(), b"fo");
        assert_eq!(decode(b"Zm9vYmFy").unwrap(), b"foobar");
        assert_eq!(decode(b"/+8").unwrap(), [0xff, 0xef]);
        assert_eq!(decode(b"Z"), None);
        assert_eq!(decode(b"Zg=="), decode(b"Zg"));
        assert_eq!(decode("é".as_bytes()), None);
    }
}
