//! Text to tokens and back.

use std::ffi::c_char;

use oxidize_core::tokenizer::{DecodeOptions, EncodeOptions};

use crate::handle;
use crate::model::ModelHandle;
use crate::pointer;
use crate::status::{Failure, Status, entry};

/// Flag of `oxidize_tokenize`: adds the special tokens around the text that the model expects, such as BOS.
pub const TOKENIZE_ADD_SPECIAL: u32 = 1;
/// Flag of `oxidize_tokenize`: turns the names of control tokens in the text into those tokens. Not for text of users.
pub const TOKENIZE_PARSE_SPECIAL: u32 = 2;
/// Flag of `oxidize_detokenize`: includes control tokens in the text, by name.
pub const DETOKENIZE_RENDER_SPECIAL: u32 = 1;
/// Flag of `oxidize_detokenize`: the tokens continue a text, so that a space at the beginning stays.
pub const DETOKENIZE_CONTINUATION: u32 = 2;

/// Turns text into tokens. `flags` is a sum of `OXIDIZE_TOKENIZE_` values.
///
/// # Safety
///
/// `text` points to `text_length` bytes, or ends with NUL; `tokens` points to room for `capacity` tokens; `n_tokens` is
/// null or points to room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_tokenize(
    model: ModelHandle,
    text: *const c_char,
    text_length: usize,
    flags: u32,
    tokens: *mut u32,
    capacity: usize,
    n_tokens: *mut usize,
) -> Status {
    entry(|| {
        let model = handle::get::<oxidize_core::Model>(model)?;
        // SAFETY: the caller promises a text of `text_length` bytes.
        let text = unsafe { pointer::text("text", text, text_length)? };
        check_flags(flags, TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL)?;
        let options = EncodeOptions {
            add_special: flags & TOKENIZE_ADD_SPECIAL != 0,
            parse_special: flags & TOKENIZE_PARSE_SPECIAL != 0,
        };
        let encoded = model.tokenizer()?.encode(text, options);
        // SAFETY: the caller promises room for `capacity` tokens, and for a number or null.
        unsafe { pointer::write_slice(&encoded, tokens, capacity, n_tokens) }
    })
}

/// Turns tokens into text. `flags` is a sum of `OXIDIZE_DETOKENIZE_` values. Bytes that are no UTF-8 become U+FFFD.
///
/// # Safety
///
/// `tokens` points to `n_tokens` elements; `buffer` points to `capacity` writable bytes; `length` is null or points to
/// room for a length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_detokenize(
    model: ModelHandle,
    tokens: *const u32,
    n_tokens: usize,
    flags: u32,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    entry(|| {
        let model = handle::get::<oxidize_core::Model>(model)?;
        // SAFETY: the caller promises `n_tokens` elements.
        let tokens = unsafe { pointer::slice("tokens", tokens, n_tokens)? };
        check_flags(flags, DETOKENIZE_RENDER_SPECIAL | DETOKENIZE_CONTINUATION)?;
        let tokenizer = model.tokenizer()?;
        if let Some(token) = tokens
            .iter()
            .find(|token| tokenizer.piece(**token).is_none())
        {
            return Err(unknown_token(*token, tokenizer.vocab_size()));
        }
        let options = DecodeOptions {
            render_special: flags & DETOKENIZE_RENDER_SPECIAL != 0,
            continuation: flags & DETOKENIZE_CONTINUATION != 0,
        };
        let text = tokenizer.decode_with(tokens, options);
        // SAFETY: the caller promises `capacity` bytes, and room for a length or null.
        unsafe { pointer::write_text(&text, buffer, capacity, length) }
    })
}

/// Copies the bytes of a token into `buffer`. They need not be UTF-8, and have no NUL at the end.
///
/// # Safety
///
/// `buffer` points to `capacity` writable bytes; `length` is null or points to room for a length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_token_bytes(
    model: ModelHandle,
    token: u32,
    buffer: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> Status {
    entry(|| {
        let model = handle::get::<oxidize_core::Model>(model)?;
        let tokenizer = model.tokenizer()?;
        let piece = tokenizer.piece(token);
        let piece = piece.ok_or_else(|| unknown_token(token, tokenizer.vocab_size()))?;
        // SAFETY: the caller promises `capacity` bytes, and room for a length or null.
        unsafe { pointer::write_slice(piece, buffer, capacity, length) }
    })
}

fn check_flags(flags: u32, known: u32) -> Result<(), Failure> {
    match flags & !known {
        0 => Ok(()),
        _ => Err(Failure::argument(format!(
            "flags {flags:#x}; {known:#x} are known"
        ))),
    }
}

fn unknown_token(token: u32, n_vocab: usize) -> Failure {
    Failure::argument(format!(
        "token {token}: the vocabulary has {n_vocab} tokens"
    ))
}
