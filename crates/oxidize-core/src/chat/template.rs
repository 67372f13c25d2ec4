//! Chat template: Jinja source, detected capabilities, and rendering of conversations into prompts.

use std::sync::OnceLock;
use std::time::SystemTime;

use serde_json::{Map, Value as Json, json};

use super::jinja::Jinja;
use super::{Capabilities, ChatError, Content, Message, MessageFormat};

/// Default limit on the prompt text: 64 MiB.
const MAX_OUTPUT: usize = 64 << 20;

/// Parsed chat template.
///
/// ```no_run
/// use oxidize::chat::ChatOptions;
/// use oxidize::{ChatTemplate, Conversation, Tokenizer};
///
/// let tokenizer = Tokenizer::open("model.gguf")?;
/// let template = ChatTemplate::builtin("chatml", ChatOptions::default())?;
/// let prompt = Conversation::new().user("Hi").render(&template, &tokenizer)?;
/// assert_eq!(prompt.text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
/// # Ok::<(), oxidize::Error>(())
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    jinja: Jinja,
    options: ChatOptions,
    capabilities: OnceLock<Capabilities>,
    format: OnceLock<MessageFormat>,
}

/// Options of a [`ChatTemplate`].
#[derive(Debug, Clone)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct ChatOptions {
    /// Time that `strftime_now` returns; `None` is the current time.
    pub now: Option<SystemTime>,
    /// Limit on the rendered text in bytes.
    pub max_output: usize,
}

/// Conversation to render with a [`ChatTemplate`].
#[derive(Debug, Clone, Default)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct ChatInput<'a> {
    /// Messages, oldest first.
    pub messages: &'a [Message],
    /// Tools that the model may call: a list in the format of OpenAI's API.
    pub tools: Option<&'a Json>,
    /// Documents, for templates that support them.
    pub documents: Option<&'a Json>,
    /// Ends the prompt with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Text of the BOS token, for templates that output it.
    pub bos_token: &'a str,
    /// Text of the EOS token.
    pub eos_token: &'a str,
    /// Additional template variables, such as `enable_thinking`.
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
    /// Parses a template.
    pub fn new(source: &str, options: ChatOptions) -> Result<Self, ChatError> {
        let jinja = Jinja::new(source)?;
        Ok(Self {
            source: source.to_owned(),
            jinja,
            options,
            capabilities: OnceLock::new(),
            format: OnceLock::new(),
        })
    }

    /// Creates a built-in template by name, such as `chatml` or `llama3`. An error lists the known
    /// names.
    pub fn builtin(name: &str, options: ChatOptions) -> Result<Self, ChatError> {
        Self::new(super::builtin_template(name)?, options)
    }

    /// Jinja source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Features that the template supports, detected on first use by rendering samples.
    pub fn capabilities(&self) -> &Capabilities {
        self.capabilities.get_or_init(|| Capabilities::probe(self))
    }

    /// Format of reasoning and tool calls in answers, detected on first use.
    pub fn format(&self) -> &MessageFormat {
        self.format.get_or_init(|| MessageFormat::of(self))
    }

    /// Renders a conversation. Messages are adapted to the template: a system message becomes part
    /// of the first user turn if the template has no system role, and arguments and contents take
    /// the expected form.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<String, ChatError> {
        let Some((last, earlier)) = input.messages.split_last() else {
            return Err(ChatError::Conversation(
                "the conversation has no messages".into(),
            ));
        };
        let prefill = input.continue_final_message.then(|| last.text());
        // An empty prefill opens a new turn instead.
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
            Some(prefill) if !open_turn => truncate_after(text, &prefill),
            _ => Ok(text),
        }
    }

    /// Renders with exactly these variables, like `apply_chat_template` of Hugging Face
    /// Transformers.
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
            // Templates print whatever they are given; only those that support calls accept null.
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
            // Harmony templates name the field "thinking".
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

/// Prepends the text of system messages to the next user turn.
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

/// Truncates the prompt after the last occurrence of `prefill`.
fn truncate_after(mut text: String, prefill: &str) -> Result<String, ChatError> {
    // Templates may trim the message; try the exact text first.
    for candidate in [prefill, prefill.trim_end(), prefill.trim()] {
        if let Some(at) = text.rfind(candidate) {
            text.truncate(at + candidate.len());
            return Ok(text);
        }
    }
    Err(ChatError::Conversation(
        "the template changes the last message, so it cannot be continued".into(),
    ))
}

#[cfg(test)]
mod tests;
