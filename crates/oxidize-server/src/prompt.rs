//! Prompts that are text instead of a conversation: [`Prompt`], and [`Infill`] for models trained to fill
//! gaps.

use oxidize_core::tokenizer::{EncodeOptions, Tokenizer};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};

/// One or several prompts, each as text or as token ids.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt(Vec<Vec<Piece>>);

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Piece {
    Text(String),
    Token(u32),
}

/// The forms of a prompt, for the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[schema(as = Prompt)]
#[allow(dead_code, reason = "only its schema is used")]
pub enum PromptSchema {
    /// A text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
    /// Several texts.
    Texts(Vec<String>),
    /// Several lists of token ids.
    TokenLists(Vec<Vec<u32>>),
    /// A prompt of token ids and texts.
    Mixed(Vec<PieceSchema>),
    /// Several texts, lists of token ids and mixed lists.
    Several(Vec<Vec<PieceSchema>>),
}

/// A part of a mixed prompt, for the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[schema(as = PromptPiece)]
#[allow(dead_code, reason = "only its schema is used")]
pub enum PieceSchema {
    /// Text.
    Text(String),
    /// Token id.
    Token(u32),
}

impl utoipa::PartialSchema for Prompt {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        PromptSchema::schema()
    }
}

impl ToSchema for Prompt {
    fn schemas(
        schemas: &mut Vec<(
            String,
            utoipa::openapi::RefOr<utoipa::openapi::schema::Schema>,
        )>,
    ) {
        PromptSchema::schemas(schemas);
    }
}

/// The forms of a prompt in words.
const FORMS: &str =
    "must be a text, a list of token ids, a list of both (one prompt), or a list of such prompts";

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Prompt, D::Error> {
        let piece = |value: &Value| match value {
            Value::String(text) => Ok(Piece::Text(text.clone())),
            Value::Number(number) => {
                let token = number.as_u64().and_then(|id| u32::try_from(id).ok());
                let wrong =
                    || D::Error::custom(format!("{number} is no token id; a prompt {FORMS}"));
                token.map(Piece::Token).ok_or_else(wrong)
            }
            _ => Err(D::Error::custom(format!("a prompt {FORMS}"))),
        };
        let whole = |value: &Value| match value {
            Value::Array(list) => list.iter().map(piece).collect(),
            other => Ok(vec![piece(other)?]),
        };
        let list = match Value::deserialize(deserializer)? {
            Value::Array(list) => list,
            Value::String(text) => return Ok(Prompt::from(text)),
            _ => return Err(D::Error::custom(format!("a prompt {FORMS}"))),
        };
        // As in llama-server, texts and token ids in one list are one prompt, texts alone are several.
        let prompts: Result<_, D::Error> = match list.iter().any(Value::is_number) {
            true => list
                .iter()
                .map(piece)
                .collect::<Result<_, _>>()
                .map(|one| vec![one]),
            false => list.iter().map(whole).collect(),
        };
        prompts.map(Prompt)
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Prompt {
        Prompt(vec![vec![Piece::Text(text)]])
    }
}

impl From<Vec<String>> for Prompt {
    fn from(texts: Vec<String>) -> Prompt {
        Prompt(
            texts
                .into_iter()
                .map(|text| vec![Piece::Text(text)])
                .collect(),
        )
    }
}

impl Prompt {
    /// Number of prompts.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The text, if the prompt is one.
    pub fn into_text(self) -> Option<String> {
        let [prompt] = <[_; 1]>::try_from(self.0).ok()?;
        let [piece] = <[_; 1]>::try_from(prompt).ok()?;
        match piece {
            Piece::Text(text) => Some(text),
            Piece::Token(_) => None,
        }
    }

    /// Token ids of each prompt. An empty prompt becomes the BOS token, if the model has one.
    pub fn tokens(self, tokenizer: &Tokenizer) -> Vec<Vec<u32>> {
        let encode = |pieces: Vec<Piece>| {
            let mut tokens = Vec::new();
            for (index, piece) in pieces.into_iter().enumerate() {
                match piece {
                    Piece::Token(token) => tokens.push(token),
                    // BOS and the like belong to the beginning.
                    Piece::Text(text) => tokens.extend(tokenizer.encode(
                        &text,
                        match index {
                            0 => EncodeOptions::default(),
                            _ => EncodeOptions::PLAIN,
                        },
                    )),
                }
            }
            match tokens.is_empty() {
                true => tokenizer.bos().into_iter().collect(),
                false => tokens,
            }
        };
        self.0.into_iter().map(encode).collect()
    }

    /// Text of each prompt.
    pub fn texts(self, tokenizer: &Tokenizer) -> Vec<String> {
        let text = |pieces: Vec<Piece>| {
            let mut text = String::new();
            let mut left = pieces.into_iter().peekable();
            while let Some(piece) = left.next() {
                match piece {
                    Piece::Text(piece) => text.push_str(&piece),
                    // Tokens in a row are decoded together: one may be a part of a character.
                    Piece::Token(first) => {
                        let mut tokens = vec![first];
                        while let Some(Piece::Token(next)) =
                            left.next_if(|piece| matches!(piece, Piece::Token(_)))
                        {
                            tokens.push(next);
                        }
                        text.push_str(&tokenizer.decode(&tokens));
                    }
                }
            }
            text
        };
        self.0.into_iter().map(text).collect()
    }
}

/// A gap in a text, to be filled by a model trained for it (fill-in-the-middle).
#[derive(Clone, Debug, Default)]
pub struct Infill {
    /// Text before the gap.
    pub prefix: String,
    /// Text after the gap.
    pub suffix: String,
    /// Names and texts of other files of the same project.
    pub files: Vec<(String, String)>,
}

impl Infill {
    /// Tokens of the prompt: files, prefix and suffix between the model's FIM tokens.
    pub fn tokens(&self, tokenizer: &Tokenizer) -> ApiResult<Vec<u32>> {
        let ids = tokenizer.special_ids();
        let (Some(prefix), Some(suffix), Some(middle)) =
            (ids.fim_prefix, ids.fim_suffix, ids.fim_middle)
        else {
            return Err(ApiError::not_supported(
                "this model has no fill-in-the-middle tokens and cannot fill gaps",
            ));
        };
        let encode = |text: &str| tokenizer.encode(text, EncodeOptions::PLAIN);
        let mut tokens = Vec::new();
        if tokenizer.adds_bos() {
            tokens.extend(tokenizer.bos());
        }
        for (name, text) in &self.files {
            match ids.fim_separator {
                Some(separator) => {
                    tokens.push(separator);
                    tokens.extend(encode(&format!("{name}\n")));
                }
                None => tokens.extend(encode(&format!("\n\n--- {name} ---\n\n"))),
            }
            tokens.extend(encode(text));
        }
        tokens.push(prefix);
        tokens.extend(encode(&self.prefix));
        tokens.push(suffix);
        tokens.extend(encode(&self.suffix));
        tokens.push(middle);
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn prompts_have_many_forms() {
        let prompt = |json: Value| serde_json::from_value::<Prompt>(json);
        let count = |json: Value| prompt(json).unwrap().count();
        assert_eq!(count(json!("a")), 1);
        assert_eq!(count(json!(["a", "b"])), 2);
        assert_eq!(count(json!([1, 2])), 1);
        assert_eq!(count(json!([1, "b", 2])), 1);
        assert_eq!(count(json!(["b", 2])), 1);
        assert_eq!(count(json!([[1], "b", [2, "c"]])), 3);
        assert_eq!(count(json!([])), 0);
        assert_eq!(prompt(json!("a")).unwrap().into_text().unwrap(), "a");
        assert_eq!(prompt(json!(["a", "b"])).unwrap().into_text(), None);
        for wrong in [
            json!(5),
            json!({"a": 1}),
            json!([1.5]),
            json!([-1]),
            json!([null]),
            json!([[[1]]]),
        ] {
            assert!(prompt(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
