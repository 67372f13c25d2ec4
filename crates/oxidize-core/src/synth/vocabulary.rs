//! SentencePiece vocabulary of any size: control tokens, bytes, ASCII characters and generated words.

/// Token for characters that no other token covers.
pub(super) const UNKNOWN: u32 = 0;
/// Token at the beginning of a text.
pub(super) const BEGIN: u32 = 1;
/// Token at the end of a text.
pub(super) const END: u32 = 2;

const CONTROLS: [&str; 3] = ["<unk>", "<s>", "</s>"];
/// Number of tokens that every vocabulary has: control tokens and one token per byte.
pub(super) const RESERVED: usize = CONTROLS.len() + 256;

/// Returns the first `n` tokens.
pub(super) fn tokens(n: usize) -> Vec<String> {
    let controls = CONTROLS.iter().map(|&token| token.to_owned());
    let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
    let space = std::iter::once("▁".to_owned());
    let characters = (b'!'..=b'~').map(|byte| char::from(byte).to_string());
    controls
        .chain(bytes)
        .chain(space)
        .chain(characters)
        .chain((0..).map(word))
        .take(n)
        .collect()
}

/// Kind of a token, as GGUF encodes it (`tokenizer.ggml.token_type`).
pub(super) fn kind(token: usize) -> i32 {
    const NORMAL: i32 = 1;
    const UNKNOWN_KIND: i32 = 2;
    const CONTROL: i32 = 3;
    const BYTE: i32 = 6;
    match token {
        0 => UNKNOWN_KIND,
        1..=2 => CONTROL,
        3..RESERVED => BYTE,
        _ => NORMAL,
    }
}

/// The `n`-th word, whose syllables are digits of base 100. Words alternate between inside a word and the
/// beginning of one.
fn word(n: usize) -> String {
    const CONSONANTS: &[u8] = b"bcdfghjklmnprstvwxyz";
    const VOWELS: &[u8] = b"aeiou";
    let mut word = String::from(if n.is_multiple_of(2) { "" } else { "▁" });
    let mut rest = n / 2 + 1;
    // Bijective numeration: digits from 1 to 100, so that no two words are the same.
    while rest > 0 {
        rest -= 1;
        let syllable = rest % 100;
        word.push(char::from(CONSONANTS[syllable / VOWELS.len()]));
        word.push(char::from(VOWELS[syllable % VOWELS.len()]));
        rest /= 100;
    }
    word
}
