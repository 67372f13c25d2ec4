//! Filling a gap in a text: the prompt of models that were trained for it.

use oxidize_core::tokenizer::{EncodeOptions, Tokenizer};

use crate::error::{ApiError, ApiResult};

/// The tokens of a prompt for what goes between `prefix` and `suffix`; `files` are names and texts that belong to the
/// same project.
pub fn tokens(
    tokenizer: &Tokenizer,
    prefix: &str,
    suffix: &str,
    files: &[(String, String)],
) -> ApiResult<Vec<u32>> {
    let ids = tokenizer.special_ids();
    let (Some(before), Some(after), Some(middle)) =
        (ids.fim_prefix, ids.fim_suffix, ids.fim_middle)
    else {
        return Err(ApiError::not_supported(
            "this model was not trained to fill gaps",
        ));
    };
    let encode = |text: &str| tokenizer.encode(text, EncodeOptions::PLAIN);
    let mut tokens = Vec::new();
    if tokenizer.adds_bos() {
        tokens.extend(tokenizer.bos());
    }
    for (name, text) in files {
        match ids.fim_separator {
            Some(separator) => {
                tokens.push(separator);
                tokens.extend(encode(&format!("{name}\n")));
            }
            None => tokens.extend(encode(&format!("\n\n--- {name} ---\n\n"))),
        }
        tokens.extend(encode(text));
    }
    tokens.push(before);
    tokens.extend(encode(prefix));
    tokens.push(after);
    tokens.extend(encode(suffix));
    tokens.push(middle);
    Ok(tokens)
}
