//! A chat template: Jinja source, what it can do, and the rendering of a conversation into a prompt.

use std::sync::OnceLock;
use std::time::SystemTime;

use serde_json::{Map, Value as Json, json};

use super::jinja::Jinja;
use super::{Capabilities, ChatError, Content, Message};

/// Longest prompt text by default: 64 MiB.
const MAX_OUTPUT: usize = 64 << 20;

/// A model's chat template, checked and ready to render.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    jinja: Jinja,
    options: ChatOptions,
    capabilities: OnceLock<Capabilities>,
}

/// Settings of a template that do not change from one conversation to the next.
#[derive(Debug, Clone)]
pub struct ChatOptions {
    /// The moment `strftime_now` shows; `None` is the clock.
    pub now: Option<SystemTime>,
    /// Longest rendered text in bytes.
    pub max_output: usize,
}

/// A conversation to render.
#[derive(Debug, Clone, Default)]
pub struct ChatInput<'a> {
    /// The turns, oldest first.
    pub messages: &'a [Message],
    /// Tools the model may call: a list in OpenAI's shape.
    pub tools: Option<&'a Json>,
    /// Documents for models that take some.
    pub documents: Option<&'a Json>,
    /// Whether the prompt ends with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The model's beginning-of-sequence token, for templates that write it.
    pub bos_token: &'a str,
    /// The model's end-of-sequence token.
    pub eos_token: &'a str,
    /// More variables, such as `enable_thinking`.
    pub extra: Map<String, Json>,
    /// Leaves the last message open, so that the model continues it.
    pub continue_final_message: bool,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self {
            now: None,
            max_output: MAX_OUTPUT,
        }
    }
}

impl ChatTemplate {
    /// Checks a template's source.
    pub fn new(source: &str, options: ChatOptions) -> Result<Self, ChatError> {
        let jinja = Jinja::new(source)?;
        Ok(Self {
            source: source.to_owned(),
            jinja,
            options,
            capabilities: OnceLock::new(),
        })
    }

    /// The built-in template of this name; see [`super::builtin_template_names`].
    pub fn builtin(name: &str, options: ChatOptions) -> Result<Self, ChatError> {
        Self::new(super::builtin_template(name)?, options)
    }

    /// The source as it was given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What the template makes of system messages, tools and so on; found by trying.
    pub fn capabilities(&self) -> &Capabilities {
        self.capabilities.get_or_init(|| Capabilities::probe(self))
    }

    /// Renders a conversation, bent to what the template can do: a system message is folded into the first user
    /// turn where the template has no place for one, and arguments and contents come in the form it expects.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<String, ChatError> {
        let Some((last, earlier)) = input.messages.split_last() else {
            return Err(ChatError::Conversation(
                "the conversation has no messages".into(),
            ));
        };
        let prefill = input.continue_final_message.then(|| last.text());
        // An empty beginning is no beginning: open a turn instead.
        let open_turn = prefill.as_ref().is_some_and(|text| text.trim().is_empty());
        let messages = if open_turn { earlier } else { input.messages };

        let messages = self.adapt(messages);
        let mut variables = Map::new();
        variables.insert("messages".into(), messages);
        variables.insert("tools".into(), input.tools.cloned().unwrap_or(Json::Null));
        variables.insert(
            "documents".into(),
            input.documents.cloned().unwrap_or(Json::Null),
        );
        let generation = open_turn || (input.add_generation_prompt && prefill.is_none());
        variables.insert("add_generation_prompt".into(), generation.into());
        variables.insert("bos_token".into(), input.bos_token.into());
        variables.insert("eos_token".into(), input.eos_token.into());
        variables.extend(input.extra.clone());
        let text = self.render_variables(&variables)?;
        match prefill {
            Some(prefill) if !open_turn => cut_after(text, &prefill),
            _ => Ok(text),
        }
    }

    /// Renders with exactly these variables, as Hugging Face's `apply_chat_template` passes them to Jinja.
    pub fn render_variables(&self, variables: &Map<String, Json>) -> Result<String, ChatError> {
        self.jinja
            .render(variables, self.options.now, self.options.max_output)
    }

    fn adapt(&self, messages: &[Message]) -> Json {
        let capabilities = self.capabilities();
        let messages = if capabilities.system_role {
            messages.to_vec()
        } else {
            fold_system(messages)
        };
        messages
            .iter()
            .map(|message| self.adapt_message(message, capabilities))
            .collect()
    }

    fn adapt_message(&self, message: &Message, capabilities: &Capabilities) -> Json {
        let content = match &message.content {
            Some(Content::Parts(parts)) if capabilities.content_parts => json!(parts),
            Some(content) if capabilities.needs_content_parts => {
                json!([{"type": "text", "text": content.text()}])
            }
            Some(content) => content.text().into(),
            // Templates print what they are given; only those with a place for calls expect none.
            None if message.tool_calls.is_some() && capabilities.null_content => Json::Null,
            None => "".into(),
        };
        let mut map = Map::new();
        map.insert("role".into(), message.role.clone().into());
        map.insert("content".into(), content);
        if let Some(name) = &message.name {
            map.insert("name".into(), name.clone().into());
        }
        if let Some(calls) = &message.tool_calls {
            let mut calls = calls.clone();
            for call in &mut calls {
                call.function.arguments = if capabilities.object_arguments {
                    call.function.arguments_as_object()
                } else {
                    call.function.arguments_as_text().into()
                };
            }
            map.insert("tool_calls".into(), json!(calls));
        }
        if let Some(id) = &message.tool_call_id {
            map.insert("tool_call_id".into(), id.clone().into());
        }
        if let Some(reasoning) = &message.reasoning_content {
            // Harmony's templates call it "thinking".
            let thinking =
                self.source.contains("thinking") && !self.source.contains("reasoning_content");
            map.insert(
                if thinking {
                    "thinking"
                } else {
                    "reasoning_content"
                }
                .into(),
                reasoning.clone().into(),
            );
        }
        map.extend(message.extra.clone());
        Json::Object(map)
    }
}

/// Puts the text of system messages in front of the first user turn after them.
fn fold_system(messages: &[Message]) -> Vec<Message> {
    let mut folded = Vec::with_capacity(messages.len());
    let mut pending = String::new();
    for message in messages {
        if matches!(message.role.as_str(), "system" | "developer") {
            if !pending.is_empty() {
                pending.push_str("\n\n");
            }
            pending.push_str(&message.text());
            continue;
        }
        let mut message = message.clone();
        if message.role == "user" && !pending.is_empty() {
            let text = std::mem::take(&mut pending) + "\n\n";
            match &mut message.content {
                Some(Content::Parts(parts)) => {
                    let part = super::ContentPart {
                        kind: "text".into(),
                        text: Some(text),
                        ..Default::default()
                    };
                    parts.insert(0, part);
                }
                content => {
                    *content = Some(Content::Text(
                        text + &content.as_ref().map(Content::text).unwrap_or_default(),
                    ))
                }
            }
        }
        folded.push(message);
    }
    if !pending.is_empty() {
        folded.push(Message::new("user", pending));
    }
    folded
}

/// Ends the prompt right after the last occurrence of the text to be continued.
fn cut_after(mut text: String, prefill: &str) -> Result<String, ChatError> {
    // Templates may trim the message; look for it as it was written first.
    for candidate in [prefill, prefill.trim_end(), prefill.trim()] {
        if let Some(at) = text.rfind(candidate) {
            text.truncate(at + candidate.len());
            return Ok(text);
        }
    }
    Err(ChatError::Conversation(
        "the template changes the last message, so that it cannot be continued".into(),
    ))
}

#[cfg(test)]
mod tests;
