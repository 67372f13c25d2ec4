//! The one function of llama.cpp's C interface that programs call by its address.
//!
//! llguidance tokenizes by calling `llama_tokenize` from Rust with a vocabulary pointer that Python gave it. Here that
//! pointer is a handle: an entry in a table, which is looked up and never followed.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::panic::catch_unwind;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use oxidize_core::tokenizer::EncodeOptions;
use pyo3::prelude::*;

use crate::tokenizer::Tokenizer;

/// Tokenizers by handle.
static VOCABULARIES: LazyLock<Mutex<Vocabularies>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Vocabularies {
    by_handle: HashMap<usize, oxidize_core::Tokenizer>,
    n_handles: usize,
}

/// The first handle: handles are no valid addresses.
const FIRST_HANDLE: usize = 0x1000;
/// Answer to a call with a wrong handle or null pointers, and to one whose result is too long for an i32.
const FAILURE: i32 = i32::MIN;

fn vocabularies() -> MutexGuard<'static, Vocabularies> {
    VOCABULARIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A handle of `tokenizer` for `llama_tokenize`.
#[pyfunction]
pub(crate) fn open_vocab(tokenizer: &Tokenizer) -> usize {
    let mut table = vocabularies();
    let handle = FIRST_HANDLE + 16 * table.n_handles;
    table.n_handles += 1;
    table.by_handle.insert(handle, tokenizer.0.clone());
    handle
}

/// Makes a handle invalid.
#[pyfunction]
pub(crate) fn close_vocab(handle: usize) {
    vocabularies().by_handle.remove(&handle);
}

/// Tokenizes text as llama.cpp's function of this name: the number of tokens, negative if there is room for fewer.
///
/// # Safety
///
/// `text` points to `text_len` bytes, and `tokens` to room for `n_tokens_max` tokens; each may be null if its length
/// is 0. `vocab` may be anything.
#[unsafe(no_mangle)]
#[allow(unreachable_pub, reason = "an exported symbol")]
pub unsafe extern "C" fn llama_tokenize(
    vocab: *const c_void,
    text: *const c_char,
    text_len: i32,
    tokens: *mut i32,
    n_tokens_max: i32,
    add_special: bool,
    parse_special: bool,
) -> i32 {
    let (Ok(text_len), Ok(room)) = (usize::try_from(text_len), usize::try_from(n_tokens_max))
    else {
        return FAILURE;
    };
    if (text.is_null() && text_len > 0) || (tokens.is_null() && room > 0) {
        return FAILURE;
    }
    let text: &[u8] = match text_len {
        0 => &[],
        // SAFETY: not null, checked above; the caller promises `text_len` readable bytes that nobody changes during
        // the call, and u8 has no invalid values and an alignment of 1.
        _ => unsafe { std::slice::from_raw_parts(text.cast(), text_len) },
    };
    let encoded = catch_unwind(|| {
        let tokenizer = vocabularies().by_handle.get(&(vocab as usize)).cloned()?;
        let options = EncodeOptions {
            add_special,
            parse_special,
        };
        Some(tokenizer.encode(&String::from_utf8_lossy(text), options))
    });
    let Ok(Some(encoded)) = encoded else {
        return FAILURE;
    };
    let Ok(count) = i32::try_from(encoded.len()) else {
        return FAILURE;
    };
    if encoded.len() > room {
        return -count;
    }
    for (index, token) in encoded.into_iter().enumerate() {
        // SAFETY: `index` is below the number of tokens, which is at most `room`; the caller promises room for so many
        // aligned i32, and `tokens` is not null if there is room, checked above.
        unsafe { tokens.add(index).write(token as i32) };
    }
    count
}
