//! From messages to a [`Job`]: the model's template, its tools, a turn that was begun. Chat, messages, responses and
//! Ollama's chat all come through here.

use oxidize_core::chat::{AnswerOptions, AnswerParser, CallReader, ChatInput, Content, Message};
use oxidize_core::grammar::Grammar;
use oxidize_core::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::{Map, Value as Json};

use crate::error::{ApiError, ApiResult};
use crate::generate::{Job, Reading};
use crate::models::Loaded;
use crate::sampling::SamplingFields;
use crate::tools::Tools;

/// A conversation and what is wanted of it.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// The turns. An assistant's turn at the end is continued.
    pub messages: Vec<Message>,
    /// What the model may call.
    pub tools: Tools,
    /// More variables for the template, such as `enable_thinking`.
    pub template_args: Map<String, Json>,
    /// Whether the answer's thoughts stay in its content.
    pub inline_reasoning: bool,
    /// How tokens are chosen.
    pub sampling: SamplingFields,
    /// The form of the answer.
    pub grammar: Option<Grammar>,
    /// Most tokens of the answer.
    pub max_tokens: Option<usize>,
    /// Whether tool calls are told while they are written.
    pub stream_calls: bool,
    /// How many answers.
    pub n: usize,
    /// `Some(n)` reports log probabilities of each token and the n most likely ones.
    pub n_probs: Option<u32>,
}

impl Conversation {
    /// What the engine is asked for.
    pub fn job(self, model: &Loaded) -> ApiResult<Job> {
        let tokenizer = model.tokenizer()?;
        let tools = self.tools.offered();
        let prompt = self.render(model, tools.as_ref())?;
        let forced = self.tools.forced();
        if forced.is_some() && self.grammar.is_some() {
            return Err(ApiError::bad_request(
                "an answer cannot have to be a tool call and a response_format at once",
            ));
        }
        let reading = if forced.is_some() {
            Reading::Calls(CallReader::default())
        } else {
            let options = AnswerOptions {
                reasoning: !self.inline_reasoning,
                tools: tools.as_ref(),
                prompt: &prompt,
                stream_calls: self.stream_calls,
            };
            Reading::Answer(Box::new(AnswerParser::new(&model.format, &options)))
        };
        let mut job = Job::new(model, &self.sampling)?;
        job.sampling.n_probs = self.n_probs;
        Ok(Job {
            prompts: vec![encode(tokenizer, &prompt)],
            n: self.n.max(1),
            grammar: forced.or(self.grammar),
            max_tokens: self.max_tokens,
            reading,
            ..job
        })
    }

    /// The text that the model continues.
    pub fn prompt(&self, model: &Loaded) -> ApiResult<String> {
        self.render(model, self.tools.offered().as_ref())
    }

    fn render(&self, model: &Loaded, tools: Option<&Json>) -> ApiResult<String> {
        check_contents(&self.messages)?;
        let tokenizer = model.tokenizer()?;
        let text_of = |id: Option<u32>| {
            id.and_then(|id| tokenizer.token_text(id))
                .unwrap_or_default()
        };
        let capabilities = model.template.capabilities();
        let described = tools.filter(|_| !capabilities.tools);
        let messages = match described {
            Some(tools) => describe_tools(&self.messages, tools),
            None => self.messages.clone(),
        };
        let messages = if capabilities.tool_calls {
            messages
        } else {
            spell_out_calls(messages)
        };
        let begun = messages
            .last()
            .is_some_and(|last| last.role == "assistant" && last.tool_calls.is_none());
        let input = ChatInput {
            messages: &messages,
            tools: tools.filter(|_| capabilities.tools),
            add_generation_prompt: true,
            bos_token: text_of(tokenizer.bos()),
            eos_token: text_of(tokenizer.eos()),
            extra: self.template_args.clone(),
            continue_final_message: begun,
            ..ChatInput::default()
        };
        let rendered = model.template.render(&input);
        Ok(rendered.map_err(oxidize_core::Error::from)?)
    }
}

/// The tokens of a rendered conversation.
fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut tokens = tokenizer.encode(text, EncodeOptions::default());
    // Most templates write the first token themselves.
    if let Some(bos) = tokenizer.bos()
        && tokens.starts_with(&[bos, bos])
    {
        tokens.remove(0);
    }
    tokens
}

/// Refuses what no text model can see, rather than to drop it.
fn check_contents(messages: &[Message]) -> ApiResult<()> {
    for message in messages {
        let Some(Content::Parts(parts)) = &message.content else {
            continue;
        };
        for part in parts {
            if part.text.is_none() {
                let kind: String = part.kind.chars().take(32).collect();
                let message = format!("content of type {kind:?} is not supported by this model");
                return Err(ApiError::not_supported(message));
            }
        }
    }
    Ok(())
}

/// Tells a model about tools whose template has no place for them, in the words that most models know.
fn describe_tools(messages: &[Message], tools: &Json) -> Vec<Message> {
    let list: Vec<String> = tools
        .as_array()
        .into_iter()
        .flatten()
        .map(Json::to_string)
        .collect();
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

/// Earlier calls and their results as text, for templates that know neither.
fn spell_out_calls(messages: Vec<Message>) -> Vec<Message> {
    let spell = |mut message: Message| {
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
    // The last turn of an assistant who has just called is not one to be continued: it ends with its results.
    messages.into_iter().map(spell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tools_reach_a_model_without_a_place_for_them() {
        let tools = json!([{"type": "function", "function": {"name": "weather"}}]);
        let told = describe_tools(&[Message::new("user", "hi")], &tools);
        assert_eq!((told.len(), told[0].role.as_str()), (2, "system"));
        assert!(told[0].text().contains("weather"));
        let told = describe_tools(
            &[
                Message::new("system", "Be kind."),
                Message::new("user", "hi"),
            ],
            &tools,
        );
        assert_eq!(told.len(), 2);
        assert!(told[0].text().starts_with("Be kind."));
    }

    #[test]
    fn earlier_calls_become_text() {
        let call: Message = serde_json::from_value(json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}},
        ]}))
        .unwrap();
        let mut result = Message::new("tool", "42");
        result.tool_call_id = Some("1".into());
        let spelled = spell_out_calls(vec![call, result]);
        assert_eq!(
            spelled[0].text(),
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>"
        );
        assert_eq!(spelled[1].role, "user");
    }

    #[test]
    fn pictures_are_refused() {
        let message: Message = serde_json::from_value(json!({"role": "user", "content": [
            {"type": "text", "text": "what is this?"},
            {"type": "image_url", "image_url": {"url": "data:"}},
        ]}))
        .unwrap();
        let error = check_contents(&[message]).unwrap_err();
        assert!(error.message.contains("image_url"));
    }
}
