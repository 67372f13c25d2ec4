//! [`ConstraintFields`]: the form of an answer, as OpenAI, llama-server and vLLM ask for it.

use oxidize_core::grammar::Grammar;
use serde::Deserialize;
use serde_json::Value as Json;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};

/// Fields that constrain the answer. At most one may be set.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct ConstraintFields {
    /// Format of the answer.
    pub response_format: Option<ResponseFormat>,
    /// GBNF grammar of the answer.
    pub grammar: Option<String>,
    /// JSON schema of the answer.
    #[schema(value_type = Option<Object>)]
    pub json_schema: Option<Json>,
    /// Regular expression that matches the whole answer.
    pub regex: Option<String>,
    /// Grammar of the answer in llguidance's dialect of Lark.
    pub lark: Option<String>,
    /// Texts, one of which is the answer.
    pub choice: Option<Vec<String>>,
    /// vLLM's name of `json_schema`; also a schema as text.
    pub guided_json: Option<Schema>,
    /// vLLM's name of `regex`.
    pub guided_regex: Option<String>,
    /// vLLM's name of `choice`.
    pub guided_choice: Option<Vec<String>>,
    /// vLLM's name of `grammar` (with `::=`) and `lark`.
    pub guided_grammar: Option<String>,
    /// vLLM's object of constraints.
    pub structured_outputs: Option<StructuredOutputs>,
}

/// vLLM's object of constraints. At most one may be set.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct StructuredOutputs {
    /// JSON schema of the answer.
    pub json: Option<Schema>,
    /// True for any JSON object.
    pub json_object: Option<bool>,
    /// Regular expression that matches the whole answer.
    pub regex: Option<String>,
    /// Texts, one of which is the answer.
    pub choice: Option<Vec<String>>,
    /// GBNF grammar (with `::=`) or Lark grammar of the answer.
    pub grammar: Option<String>,
}

/// A JSON schema.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Schema {
    /// As JSON.
    #[schema(value_type = Object)]
    Json(serde_json::Map<String, Json>),
    /// As text.
    Text(String),
}

impl Schema {
    fn grammar(self) -> ApiResult<Grammar> {
        match self {
            Schema::Json(schema) => Ok(Grammar::JsonSchema(Json::Object(schema))),
            Schema::Text(text) => Ok(Grammar::json_schema(&text)?),
        }
    }
}

impl ConstraintFields {
    /// Grammar of the answer, from the field that sets one.
    pub fn grammar(self) -> ApiResult<Option<Grammar>> {
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let outputs = self.structured_outputs.unwrap_or_default();
        let json_object = outputs.json_object.filter(|&on| on);
        let format = self.response_format.map(|format| format.grammar());
        let schema = self.json_schema.filter(|schema| !schema.is_null());
        let all = [
            ("response_format", format.transpose()?.flatten()),
            ("grammar", given(self.grammar).map(Grammar::Gbnf)),
            ("json_schema", schema.map(Grammar::JsonSchema)),
            ("regex", given(self.regex).map(Grammar::Regex)),
            ("lark", given(self.lark).map(Grammar::Lark)),
            ("choice", one_of("choice", self.choice)?),
            (
                "guided_json",
                self.guided_json.map(Schema::grammar).transpose()?,
            ),
            ("guided_regex", given(self.guided_regex).map(Grammar::Regex)),
            (
                "guided_choice",
                one_of("guided_choice", self.guided_choice)?,
            ),
            (
                "guided_grammar",
                given(self.guided_grammar).map(gbnf_or_lark),
            ),
            (
                "structured_outputs.json",
                outputs.json.map(Schema::grammar).transpose()?,
            ),
            (
                "structured_outputs.json_object",
                json_object.map(|_| Grammar::JsonObject),
            ),
            (
                "structured_outputs.regex",
                given(outputs.regex).map(Grammar::Regex),
            ),
            (
                "structured_outputs.choice",
                one_of("structured_outputs.choice", outputs.choice)?,
            ),
            (
                "structured_outputs.grammar",
                given(outputs.grammar).map(gbnf_or_lark),
            ),
        ];
        let mut set = all
            .into_iter()
            .filter_map(|(name, grammar)| Some((name, grammar?)));
        match (set.next(), set.next()) {
            (Some((first, _)), Some((second, _))) => Err(ApiError::bad_request(format!(
                "`{first}` and `{second}` exclude each other: an answer has one form"
            ))),
            (first, _) => Ok(first.map(|(_, grammar)| grammar)),
        }
    }
}

/// Grammar of one of a few texts.
fn one_of(name: &str, texts: Option<Vec<String>>) -> ApiResult<Option<Grammar>> {
    match texts {
        Some(texts) if texts.is_empty() => {
            let message = format!("`{name}` is empty; at least one text is required");
            Err(ApiError::bad_request(message))
        }
        texts => Ok(texts.map(Grammar::choice)),
    }
}

/// A grammar of vLLM, whose rules have `::=` in GBNF.
fn gbnf_or_lark(text: String) -> Grammar {
    match text.contains("::=") {
        true => Grammar::Gbnf(text),
        false => Grammar::Lark(text),
    }
}

/// Format of an answer, in OpenAI's format.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ResponseFormat {
    /// Type of the format: `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Object with the field `schema`, for `json_schema`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub json_schema: Option<Json>,
    /// JSON schema, as an alternative to `json_schema`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Json>,
}

impl ResponseFormat {
    /// Grammar of the format; `None` for text.
    pub fn grammar(&self) -> ApiResult<Option<Grammar>> {
        let wrapped = self
            .json_schema
            .as_ref()
            .map(|named| named.get("schema").unwrap_or(named));
        let schema = wrapped.or(self.schema.as_ref());
        match (self.kind.as_str(), schema) {
            ("text", _) => Ok(None),
            ("json_object", None) => Ok(Some(Grammar::JsonObject)),
            ("json_object" | "json_schema", Some(schema)) => {
                Ok(Some(Grammar::JsonSchema(schema.clone())))
            }
            ("json_schema", None) => Err(ApiError::bad_request(
                "response_format of type json_schema needs a schema",
            )),
            (other, _) => {
                let shown: String = other.chars().take(32).collect();
                Err(ApiError::bad_request(format!(
                    "response_format has type {shown:?}; it must be text, json_object or json_schema"
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn response_formats_become_grammars() {
        let grammar = |json: Json| {
            serde_json::from_value::<ResponseFormat>(json)
                .unwrap()
                .grammar()
        };
        assert_eq!(grammar(json!({"type": "text"})).unwrap(), None);
        assert_eq!(
            grammar(json!({"type": "json_object"})).unwrap(),
            Some(Grammar::JsonObject)
        );
        let schema = json!({"type": "integer"});
        let wanted = Some(Grammar::JsonSchema(schema.clone()));
        let named = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
        assert_eq!(grammar(named).unwrap(), wanted);
        assert_eq!(
            grammar(json!({"type": "json_object", "schema": schema})).unwrap(),
            wanted
        );
        assert!(grammar(json!({"type": "json_schema"})).is_err());
        assert!(grammar(json!({"type": "xml"})).is_err());
    }

    #[test]
    fn each_field_becomes_a_grammar_and_two_are_refused() {
        let grammar = |json: Json| {
            let fields: ConstraintFields = serde_json::from_value(json).unwrap();
            fields.grammar()
        };
        let gbnf = r#"root ::= "a""#;
        let schema = json!({"type": "integer"});
        let typed = Grammar::JsonSchema(schema.clone());
        for (fields, wanted) in [
            (
                json!({"grammar": gbnf, "response_format": {"type": "text"}}),
                Grammar::Gbnf(gbnf.into()),
            ),
            (json!({"json_schema": schema}), typed.clone()),
            (json!({"guided_json": schema}), typed.clone()),
            (json!({"guided_json": schema.to_string()}), typed.clone()),
            (json!({"structured_outputs": {"json": schema}}), typed),
            (
                json!({"structured_outputs": {"json_object": true}}),
                Grammar::JsonObject,
            ),
            (json!({"regex": "a+"}), Grammar::Regex("a+".into())),
            (json!({"guided_regex": "a+"}), Grammar::Regex("a+".into())),
            (
                json!({"lark": "start: \"a\""}),
                Grammar::Lark("start: \"a\"".into()),
            ),
            (
                json!({"guided_grammar": "start: \"a\""}),
                Grammar::Lark("start: \"a\"".into()),
            ),
            (json!({"guided_grammar": gbnf}), Grammar::Gbnf(gbnf.into())),
            (json!({"guided_choice": ["a"]}), Grammar::Gbnf(gbnf.into())),
            (
                json!({"choice": ["\"\n\\"]}),
                Grammar::Gbnf(r#"root ::= "\"\n\\""#.into()),
            ),
        ] {
            assert_eq!(grammar(fields.clone()).unwrap(), Some(wanted), "{fields}");
        }
        let error = grammar(json!({"regex": "a", "guided_choice": ["b"]})).unwrap_err();
        assert!(
            error.message.contains("`regex` and `guided_choice`"),
            "{error}"
        );
        assert!(grammar(json!({"choice": []})).is_err());
        assert_eq!(
            grammar(json!({"grammar": "", "json_schema": null})).unwrap(),
            None
        );
    }
}
