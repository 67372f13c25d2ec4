//! One turn of a conversation, in the shape of OpenAI's API, which templates and clients both use.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// A message. Unknown fields are kept and reach the template.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `developer`, `user`, `assistant`, `tool`, or what the template knows.
    pub role: String,
    /// What is said; absent beside tool calls.
    #[serde(default)]
    pub content: Option<Content>,
    /// The speaker's name, or the tool's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Calls the assistant makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Which call a tool's message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// What the assistant thought before it spoke.
    #[serde(default, alias = "reasoning", skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Anything else the client sent.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// The content of a message: plain text or typed parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Text.
    Text(String),
    /// Parts such as text and images.
    Parts(Vec<ContentPart>),
}

/// One part of a message's content.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ContentPart {
    /// `text`, `image_url`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a text part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The fields of other parts.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// A call of a tool by the assistant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Names the call, so that its result can refer to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Always `function` so far.
    #[serde(rename = "type", default = "function")]
    pub kind: String,
    /// What is called.
    pub function: FunctionCall,
}

/// A function and its arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The function.
    pub name: String,
    /// Arguments: JSON text in OpenAI's API, or the object itself.
    #[serde(default)]
    pub arguments: Json,
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: Some(Content::Text(content.into())),
            ..Self::default()
        }
    }

    /// The text of the content; text parts are joined by newlines.
    pub fn text(&self) -> String {
        self.content.as_ref().map(Content::text).unwrap_or_default()
    }
}

impl Content {
    /// The text; text parts are joined by newlines.
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
    /// The arguments as an object, where they are JSON text of one.
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

    /// The arguments as JSON text, which is what clients get.
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
    fn arguments_turn_into_objects_where_they_are_some() {
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
