//! Chat messages in the format of OpenAI's API, which templates and clients share.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// Message of a conversation, in the format of OpenAI's API. Unknown fields are passed to the
/// template.
///
/// ```
/// use oxidize::Message;
///
/// let message = Message::new("user", "Why is the sky blue?");
/// assert_eq!(message.text(), "Why is the sky blue?");
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct Message {
    /// Role: `system`, `developer`, `user`, `assistant`, `tool`, or another that the template
    /// supports.
    pub role: String,
    /// Content; may be absent in a message with tool calls.
    #[serde(default)]
    pub content: Option<Content>,
    /// Name of the participant or tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tool calls of the assistant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Id of the tool call that a `tool` message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Reasoning of the assistant before its answer.
    #[serde(default, alias = "reasoning", skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// Content of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Typed parts, such as text and images.
    Parts(Vec<ContentPart>),
}

/// Typed part of a message's content.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct ContentPart {
    /// Type: `text`, `image_url`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// Text of a text part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Fields of other parts.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// Tool call of the assistant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct ToolCall {
    /// Id that the result of the call refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Type; always `function`.
    #[serde(rename = "type", default = "function")]
    pub kind: String,
    /// Called function.
    pub function: FunctionCall,
}

/// Function name and arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct FunctionCall {
    /// Function name.
    pub name: String,
    /// Arguments: JSON text, as in OpenAI's API, or an object.
    #[serde(default)]
    pub arguments: Json,
}

impl Message {
    /// Creates a text message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: Some(Content::Text(content.into())),
            ..Self::default()
        }
    }

    /// Text of the content; text parts are joined by newlines.
    pub fn text(&self) -> String {
        self.content.as_ref().map(Content::text).unwrap_or_default()
    }
}

impl ContentPart {
    /// Creates a text part.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            kind: "text".into(),
            text: Some(text.into()),
            extra: Map::new(),
        }
    }
}

impl ToolCall {
    /// Creates a call of a function with these arguments.
    ///
    /// ```
    /// use oxidize::Message;
    /// use oxidize::chat::ToolCall;
    ///
    /// let mut message = Message::new("assistant", "");
    /// message.tool_calls = Some(vec![ToolCall::new("multiply", r#"{"a": 17, "b": 23}"#)]);
    /// ```
    pub fn new(name: impl Into<String>, arguments: impl Into<Json>) -> Self {
        Self {
            id: None,
            kind: function(),
            function: FunctionCall {
                name: name.into(),
                arguments: arguments.into(),
            },
        }
    }
}

impl Content {
    /// Text of the content; text parts are joined by newlines.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let texts: Vec<&str> = parts
                    .iter()
                    .filter_map(|part| part.text.as_deref())
                    .collect();
                texts.join("\n")
            }
        }
    }
}

impl FunctionCall {
    /// Arguments as an object, parsed if they are JSON text.
    pub(super) fn arguments_as_object(&self) -> Json {
        match &self.arguments {
            Json::String(text) => match serde_json::from_str(text) {
                Ok(parsed @ Json::Object(_)) => parsed,
                _ if text.trim().is_empty() => Json::Object(Map::new()),
                _ => self.arguments.clone(),
            },
            other => other.clone(),
        }
    }

    /// Arguments as JSON text, the form that clients expect.
    pub fn arguments_as_text(&self) -> String {
        match &self.arguments {
            Json::String(text) => text.clone(),
            Json::Null => "{}".to_owned(),
            other => other.to_string(),
        }
    }
}

fn function() -> String {
    "function".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openai_messages_round_trip() {
        let texts = [
            r#"{"role":"user","content":"hi"}"#,
            r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]}"#,
            r#"{"role":"tool","content":"42","tool_call_id":"c1"}"#,
            r#"{"role":"assistant","content":"x","reasoning_content":"y","custom":[1]}"#,
        ];
        for text in texts {
            let message: Message = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&message).unwrap(), text);
        }
        assert!(serde_json::from_str::<Message>(r#"{"content":"no role"}"#).is_err());
        assert!(serde_json::from_str::<Message>(r#"{"role":"user","content":5}"#).is_err());
    }

    #[test]
    fn arguments_parse_into_objects() {
        let call = |arguments: Json| FunctionCall {
            name: "f".into(),
            arguments,
        };
        assert_eq!(
            call(Json::from(r#"{"a":1}"#)).arguments_as_object(),
            serde_json::json!({"a": 1})
        );
        assert_eq!(
            call(Json::from("not json")).arguments_as_object(),
            Json::from("not json")
        );
        assert_eq!(
            call(serde_json::json!({"b": [2]})).arguments_as_text(),
            r#"{"b":[2]}"#
        );
    }
}
