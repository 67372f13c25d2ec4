//! [`Conversation`]: messages, tools and template variables, rendered with a model's template into the text
//! and the tokens of a prompt.

use serde_json::{Map, Value as Json};

use super::thinking::ThinkingControl;
use super::{ChatError, ChatInput, ChatTemplate, Content, Message, Reasoning, Thinking};
use crate::tokenizer::{EncodeOptions, Tokenizer};

/// A conversation to continue.
///
/// A string is a conversation of one user message; a list of messages is one as it stands.
///
/// ```
/// use oxidize::Conversation;
///
/// let short = Conversation::from("What is the capital of Norway?");
/// let long = Conversation::new()
///     .system("Answer in one word.")
///     .user("What is the capital of Norway?")
///     .assistant("Oslo.")
///     .user("And of Italy?");
/// assert_eq!((short.messages.len(), long.messages.len()), (1, 4));
/// ```
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct Conversation {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// Tools that the model may call: a list in the shape of OpenAI's API.
    pub tools: Option<Json>,
    /// Documents for templates of models that answer from documents.
    pub documents: Option<Json>,
    /// More variables for the template, such as `enable_thinking`.
    pub template_args: Map<String, Json>,
    /// Ends the prompt with the opening of the assistant's turn, unless the last message is continued. On by
    /// default.
    pub add_generation_prompt: bool,
    /// Leaves the last message open, so that the model continues it. `None`, the default, does so if it is a
    /// message of the assistant without tool calls.
    pub continue_final_message: Option<bool>,
    /// Reasoning before the answer.
    pub thinking: Thinking,
    /// Maximum number of tokens of the reasoning, after which the answer follows; no limit if `None`, no
    /// reasoning with 0.
    pub thinking_budget: Option<usize>,
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RenderedPrompt {
    /// The text, special tokens included.
    pub text: String,
    /// The tokens of the text, with a single BOS token where the model expects one.
    pub tokens: Vec<u32>,
    /// Reasoning that may follow, for [`Request::reasoning`](crate::Request::reasoning).
    pub reasoning: Option<Reasoning>,
}

impl Default for Conversation {
    fn default() -> Self {
        Self {
            messages: Vec::new(),
            tools: None,
            documents: None,
            template_args: Map::new(),
            add_generation_prompt: true,
            continue_final_message: None,
            thinking: Thinking::Auto,
            thinking_budget: None,
        }
    }
}

impl Conversation {
    /// A conversation without messages.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a system message.
    #[must_use]
    pub fn system(self, text: impl Into<String>) -> Self {
        self.push(Message::new("system", text))
    }

    /// Adds a message of the user.
    #[must_use]
    pub fn user(self, text: impl Into<String>) -> Self {
        self.push(Message::new("user", text))
    }

    /// Adds a message of the assistant. At the end of a conversation, it is the beginning of the answer.
    #[must_use]
    pub fn assistant(self, text: impl Into<String>) -> Self {
        self.push(Message::new("assistant", text))
    }

    /// Adds a message.
    #[must_use]
    pub fn push(mut self, message: Message) -> Self {
        self.messages.push(message);
        self
    }

    /// Sets the tools that the model may call: a list in the shape of OpenAI's API.
    #[must_use]
    pub fn tools(mut self, tools: impl Into<Json>) -> Self {
        self.tools = Some(tools.into());
        self
    }

    /// Sets the documents for templates of models that answer from documents.
    #[must_use]
    pub fn documents(mut self, documents: impl Into<Json>) -> Self {
        self.documents = Some(documents.into());
        self
    }

    /// Sets a variable of the template, such as `enable_thinking`.
    #[must_use]
    pub fn template_arg(mut self, name: impl Into<String>, value: impl Into<Json>) -> Self {
        self.template_args.insert(name.into(), value.into());
        self
    }

    /// Sets whether the prompt ends with the opening of the assistant's turn.
    #[must_use]
    pub fn add_generation_prompt(mut self, add: bool) -> Self {
        self.add_generation_prompt = add;
        self
    }

    /// Sets whether the last message is left open for the model to continue.
    #[must_use]
    pub fn continue_final_message(mut self, continue_it: bool) -> Self {
        self.continue_final_message = Some(continue_it);
        self
    }

    /// Turns reasoning before the answer on or off.
    #[must_use]
    pub fn thinking(mut self, thinking: Thinking) -> Self {
        self.thinking = thinking;
        self
    }

    /// Limits the tokens of the reasoning. When they are used up, the reasoning is closed and the answer
    /// follows; with 0, there is none.
    #[must_use]
    pub fn thinking_budget(mut self, n_tokens: usize) -> Self {
        self.thinking_budget = Some(n_tokens);
        self
    }

    /// Renders the conversation into a prompt.
    ///
    /// Tools are described in a system message if the template has no place for them, and earlier calls and
    /// their results become text if the template cannot express them. Fails if a message has content other
    /// than text, or if the template refuses the conversation.
    pub fn render(
        &self,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
    ) -> Result<RenderedPrompt, ChatError> {
        check_contents(&self.messages)?;
        let capabilities = template.capabilities();
        let tools = self.checked_tools()?;
        let mut messages = match tools {
            Some(tools) if !capabilities.tools => describe_tools(&self.messages, tools),
            _ => self.messages.clone(),
        };
        if !capabilities.tool_calls {
            messages = tool_calls_as_text(messages);
        }
        let token_text = |id: Option<u32>| {
            id.and_then(|id| tokenizer.token_text(id))
                .unwrap_or_default()
        };
        let is_continued = self.continues_final_message();
        let render = |thinking: ThinkingControl| {
            let mut extra = self.template_args.clone();
            thinking.set_variables(template, &mut extra);
            template.render(&ChatInput {
                messages: &messages,
                tools: self
                    .tools
                    .as_ref()
                    .filter(|_| tools.is_some() && capabilities.tools),
                documents: self.documents.as_ref(),
                add_generation_prompt: self.add_generation_prompt,
                bos_token: token_text(tokenizer.bos()),
                eos_token: token_text(tokenizer.eos()),
                extra,
                continue_final_message: is_continued,
            })
        };
        let thinking = ThinkingControl::new(self.thinking, self.thinking_budget);
        let mut text = render(thinking)?;
        let reasoning = match is_continued || self.add_generation_prompt {
            true => thinking.finish_prompt(&mut text, is_continued, template, tokenizer, || {
                render(ThinkingControl::new(Thinking::On, None))
            })?,
            false => None,
        };
        let tokens = encode(tokenizer, &text);
        Ok(RenderedPrompt {
            text,
            tokens,
            reasoning,
        })
    }

    /// The tools, if there are any.
    fn checked_tools(&self) -> Result<Option<&[Json]>, ChatError> {
        match &self.tools {
            None | Some(Json::Null) => Ok(None),
            Some(Json::Array(tools)) => {
                Ok(Some(tools.as_slice()).filter(|tools| !tools.is_empty()))
            }
            Some(_) => Err(ChatError::Conversation("tools must be a JSON list".into())),
        }
    }

    /// True if the model is to continue the last message. An assistant that has called tools waits for their
    /// results.
    fn continues_final_message(&self) -> bool {
        self.continue_final_message.unwrap_or_else(|| {
            self.messages
                .last()
                .is_some_and(|last| last.role == "assistant" && last.tool_calls.is_none())
        })
    }
}

impl From<&str> for Conversation {
    /// A conversation of one user message.
    fn from(text: &str) -> Self {
        Self::new().user(text)
    }
}

impl From<String> for Conversation {
    /// A conversation of one user message.
    fn from(text: String) -> Self {
        Self::new().user(text)
    }
}

impl From<Message> for Conversation {
    fn from(message: Message) -> Self {
        Self::new().push(message)
    }
}

impl From<Vec<Message>> for Conversation {
    fn from(messages: Vec<Message>) -> Self {
        Self {
            messages,
            ..Self::default()
        }
    }
}

impl FromIterator<Message> for Conversation {
    fn from_iter<I: IntoIterator<Item = Message>>(messages: I) -> Self {
        Self::from(Vec::from_iter(messages))
    }
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut tokens = tokenizer.encode(text, EncodeOptions::default());
    // Most templates write the BOS token themselves.
    if let Some(bos) = tokenizer.bos()
        && tokens.starts_with(&[bos, bos])
    {
        tokens.remove(0);
    }
    tokens
}

/// Refuses content that no text model can read, instead of dropping it.
fn check_contents(messages: &[Message]) -> Result<(), ChatError> {
    for message in messages {
        let Some(Content::Parts(parts)) = &message.content else {
            continue;
        };
        if let Some(part) = parts.iter().find(|part| part.text.is_none()) {
            let kind = part.kind.chars().take(32).collect();
            return Err(ChatError::UnsupportedContent { kind });
        }
    }
    Ok(())
}

/// Adds a system message that describes the tools, in the format of Hermes, which most models know.
fn describe_tools(messages: &[Message], tools: &[Json]) -> Vec<Message> {
    let list: Vec<String> = tools.iter().map(Json::to_string).collect();
    let text = format!(
        "You can call these functions:\n<tools>\n{}\n</tools>\nTo call one, answer with nothing but\n\
         <tool_call>\n{{\"name\": <function name>, \"arguments\": <arguments as a JSON object>}}\n</tool_call>",
        list.join("\n")
    );
    let mut messages = messages.to_vec();
    match messages.first_mut() {
        Some(first) if matches!(first.role.as_str(), "system" | "developer") => {
            first.content = Some(Content::Text(format!("{}\n\n{text}", first.text())));
        }
        _ => messages.insert(0, Message::new("system", text)),
    }
    messages
}

/// Turns earlier calls and their results into text, for templates that can express neither.
fn tool_calls_as_text(messages: Vec<Message>) -> Vec<Message> {
    let as_text = |mut message: Message| {
        if let Some(calls) = message.tool_calls.take() {
            let mut text = message.text();
            for call in calls {
                let name = Json::from(call.function.name.as_str());
                let arguments = call.function.arguments_as_text();
                text.push_str(&format!(
                    "<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"
                ));
            }
            message.content = Some(Content::Text(text));
        } else if message.role == "tool" {
            let text = format!("<tool_response>\n{}\n</tool_response>", message.text());
            message = Message::new("user", text);
        }
        message
    };
    messages.into_iter().map(as_text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::ChatOptions;
    use serde_json::json;

    const NO_TOOLS: &str = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                            {% if add_generation_prompt %}<assistant>{% endif %}";

    fn tokenizer() -> Tokenizer {
        let model = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/tiny/model.gguf"
        );
        Tokenizer::open(model).unwrap()
    }

    fn render(conversation: &Conversation) -> Result<RenderedPrompt, ChatError> {
        let template = ChatTemplate::new(NO_TOOLS, ChatOptions::default())?;
        conversation.render(&template, &tokenizer())
    }

    fn weather() -> Json {
        json!([{"type": "function", "function": {"name": "weather"}}])
    }

    fn call() -> Message {
        let call = json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}},
        ]});
        serde_json::from_value(call).unwrap()
    }

    #[test]
    fn tools_without_a_place_in_the_template_are_described_in_a_system_message() {
        let told = render(&Conversation::from("hi").tools(weather())).unwrap();
        assert!(told.text.contains("<system>You can call") && told.text.contains("weather"));
        let conversation = Conversation::new().system("Be kind.").user("hi");
        let told = render(&conversation.clone().tools(weather())).unwrap();
        assert_eq!(told.text.matches("<system>").count(), 1);
        assert!(told.text.contains("<system>Be kind.\n\nYou can call"));
        let none = render(&conversation.clone().tools(json!([]))).unwrap();
        assert_eq!(none, render(&conversation).unwrap());
        assert!(render(&conversation.tools("weather")).is_err());
    }

    #[test]
    fn earlier_calls_become_text() {
        let mut result = Message::new("tool", "42");
        result.tool_call_id = Some("1".into());
        let texts = tool_calls_as_text(vec![call(), result]);
        assert_eq!(
            texts[0].text(),
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>"
        );
        assert_eq!(texts[1].role, "user");
    }

    #[test]
    fn images_are_refused() {
        let message: Message = serde_json::from_value(json!({"role": "user", "content": [
            {"type": "text", "text": "what is this?"},
            {"type": "image_url", "image_url": {"url": "data:"}},
        ]}))
        .unwrap();
        let error = render(&message.into()).unwrap_err();
        assert!(error.to_string().contains("image_url"), "{error}");
    }

    #[test]
    fn messages_of_the_assistant_are_continued_by_default() {
        let text = |conversation: &Conversation| render(conversation).unwrap().text;
        let asked = Conversation::from("hi");
        assert!(text(&asked).ends_with("<user>hi<assistant>"));
        assert!(text(&asked.clone().add_generation_prompt(false)).ends_with("<user>hi"));
        let begun = asked.clone().assistant("Hello th");
        assert!(text(&begun).ends_with("<assistant>Hello th"));
        let closed = begun.continue_final_message(false);
        assert!(text(&closed).ends_with("Hello th<assistant>"));
        assert!(text(&asked.push(call())).ends_with("</tool_call><assistant>"));
    }

    #[test]
    fn the_bos_token_is_there_once() {
        let tokenizer = tokenizer();
        let prompt = render(&"hi".into()).unwrap();
        let bos = tokenizer.bos().unwrap();
        assert_eq!(
            prompt.tokens.iter().filter(|&&token| token == bos).count(),
            1
        );
    }

    #[test]
    fn a_conversation_without_messages_is_an_error() {
        assert!(render(&Conversation::new()).is_err());
    }
}
