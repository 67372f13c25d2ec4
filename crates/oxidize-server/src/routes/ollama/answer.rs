//! Ollama's `/api/generate` and `/api/chat`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use oxidize_core::chat::{FunctionCall, Message, ToolCall};
use oxidize_core::grammar::Grammar;
use oxidize_core::tokenizer::EncodeOptions;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::rfc3339;
use crate::auth::Client;
use crate::body::Body;
use crate::conversation::Conversation;
use crate::error::{ApiError, ApiResult, OllamaErrors};
use crate::generate::{self, Call, End, Generation, Job, Part, Piece, StopReason};
use crate::models::Loaded;
use crate::sampling::SamplingFields;
use crate::state::{AppState, unix_time};
use crate::stream::{self, Frames, Framing, Writer};
use crate::tools::{ToolChoice, Tools};

/// A text to continue, in Ollama's shape.
#[derive(Debug, Deserialize, ToSchema)]
pub struct GenerateRequest {
    /// Which model.
    pub model: String,
    /// What is asked; without it the model is only loaded.
    pub prompt: Option<String>,
    /// What comes after the gap, for models that fill gaps.
    pub suffix: Option<String>,
    /// What the model is told first.
    pub system: Option<String>,
    /// Whether the prompt goes in as it is, without the model's template.
    pub raw: Option<bool>,
    /// Whether the answer comes in lines; it does unless this is false.
    pub stream: Option<bool>,
    /// `json`, or a JSON schema.
    #[schema(value_type = Option<Object>)]
    pub format: Option<Value>,
    /// How tokens are chosen.
    pub options: Option<Options>,
    /// Whether a model that can think should.
    #[schema(value_type = Option<bool>)]
    pub think: Option<Value>,
}

/// How tokens are chosen, by Ollama's names.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct Options {
    /// Most tokens of the answer; -1 and -2 are until the end.
    #[schema(minimum = -2, maximum = 2147483647)]
    pub num_predict: Option<i32>,
    #[serde(flatten)]
    #[allow(missing_docs, reason = "its fields have their own")]
    pub sampling: SamplingFields,
}

/// A conversation to continue, in Ollama's shape.
#[derive(Debug, Deserialize, ToSchema)]
pub struct OllamaChatRequest {
    /// Which model.
    pub model: String,
    /// The turns, oldest first; without any the model is only loaded.
    pub messages: Option<Vec<OllamaMessage>>,
    /// What the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// Whether the answer comes in lines; it does unless this is false.
    pub stream: Option<bool>,
    /// `json`, or a JSON schema.
    #[schema(value_type = Option<Object>)]
    pub format: Option<Value>,
    /// How tokens are chosen.
    pub options: Option<Options>,
    /// Whether a model that can think should.
    #[schema(value_type = Option<bool>)]
    pub think: Option<Value>,
}

/// A turn of a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct OllamaMessage {
    /// Who speaks.
    pub role: String,
    /// What is said.
    pub content: Option<String>,
    /// Pictures, which no text model can see.
    pub images: Option<Vec<String>>,
    /// Calls of the assistant.
    pub tool_calls: Option<Vec<OllamaCall>>,
    /// The tool whose result this is.
    pub tool_name: Option<String>,
    /// Thoughts before an answer.
    pub thinking: Option<String>,
}

/// A call of a tool.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct OllamaCall {
    /// What is called.
    pub function: OllamaFunction,
}

/// A function and its arguments.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct OllamaFunction {
    /// Its name.
    pub name: String,
    /// The arguments.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub arguments: Value,
}

/// A piece of an answer; the last one has counts and times in nanoseconds.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Line {
    /// Who answers.
    pub model: String,
    /// When.
    pub created_at: String,
    /// For `/api/generate`: text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// For `/api/generate`: thoughts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// For `/api/chat`: text, thoughts and calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<LineMessage>,
    /// Whether this is all.
    pub done: bool,
    /// `stop`, `length` or `load`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<&'static str>,
    /// All of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_duration: Option<u64>,
    /// Loading and waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_duration: Option<u64>,
    /// Tokens of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_eval_count: Option<usize>,
    /// Time for the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_eval_duration: Option<u64>,
    /// Tokens of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_count: Option<usize>,
    /// Time for the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_duration: Option<u64>,
}

/// A piece of a chat's answer.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct LineMessage {
    /// `assistant`
    pub role: &'static str,
    /// Text.
    pub content: String,
    /// Thoughts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<OllamaCall>,
}

/// Continue a text
#[utoipa::path(
    post, path = "/api/generate", tag = "Ollama",
    request_body = GenerateRequest,
    responses(
        (status = 200, description = "The answer, in lines unless `stream` is false", content(
            (Line = "application/json"), (String = "application/x-ndjson"),
        )),
        OllamaErrors,
    ),
)]
pub async fn generate(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(request): Body<GenerateRequest>,
) -> ApiResult<Response> {
    let prompt = request.prompt.clone().unwrap_or_default();
    if prompt.is_empty() && request.suffix.is_none() {
        return load(&state, &request.model, false).await;
    }
    let options = request.options.clone().unwrap_or_default();
    let max_tokens = options.max_tokens()?;
    let grammar = form(request.format.as_ref())?;
    let streamed = request.stream.unwrap_or(true);
    let name = request.model.clone();
    let as_it_is = request.raw.unwrap_or(false) || request.suffix.is_some();
    let prepare = move |model: &Loaded| {
        if !as_it_is {
            let mut messages = Vec::new();
            messages.extend(request.system.map(|text| Message::new("system", text)));
            messages.push(Message::new("user", prompt));
            let conversation = Conversation {
                messages,
                template_args: think(request.think.as_ref()),
                sampling: options.sampling,
                grammar,
                max_tokens,
                n: 1,
                ..Conversation::default()
            };
            return conversation.job(model);
        }
        let tokenizer = model.tokenizer()?;
        let tokens = match &request.suffix {
            Some(suffix) => crate::infill::tokens(tokenizer, &prompt, suffix, &[])?,
            None => tokenizer.encode(&prompt, EncodeOptions::default()),
        };
        Ok(Job {
            prompts: vec![tokens],
            grammar,
            max_tokens,
            ..Job::new(model, &options.sampling)?
        })
    };
    let generation = Generation::begin(&state, &client, Some(&name), 1, prepare).await?;
    answer(generation, false, streamed).await
}

/// Continue a conversation
#[utoipa::path(
    post, path = "/api/chat", tag = "Ollama",
    request_body = OllamaChatRequest,
    responses(
        (status = 200, description = "The answer, in lines unless `stream` is false", content(
            (Line = "application/json"), (String = "application/x-ndjson"),
        )),
        OllamaErrors,
    ),
)]
pub async fn chat(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(request): Body<OllamaChatRequest>,
) -> ApiResult<Response> {
    let messages = request.messages.unwrap_or_default();
    if messages.is_empty() {
        return load(&state, &request.model, true).await;
    }
    let options = request.options.unwrap_or_default();
    let conversation = Conversation {
        messages: messages
            .into_iter()
            .map(OllamaMessage::message)
            .collect::<ApiResult<_>>()?,
        tools: Tools::new(request.tools.unwrap_or_default(), ToolChoice::Auto, true)?,
        template_args: think(request.think.as_ref()),
        max_tokens: options.max_tokens()?,
        sampling: options.sampling,
        grammar: form(request.format.as_ref())?,
        n: 1,
        ..Conversation::default()
    };
    let prepare = move |model: &Loaded| conversation.job(model);
    let generation = Generation::begin(&state, &client, Some(&request.model), 1, prepare).await?;
    answer(generation, true, request.stream.unwrap_or(true)).await
}

impl Options {
    fn max_tokens(&self) -> ApiResult<Option<usize>> {
        match self.num_predict {
            None | Some(-2 | -1) => Ok(None),
            Some(n) => {
                let wrong =
                    |_| ApiError::bad_request(format!("num_predict is {n}; it must be -2 or more"));
                usize::try_from(n).map(Some).map_err(wrong)
            }
        }
    }
}

impl OllamaMessage {
    fn message(self) -> ApiResult<Message> {
        if self.images.is_some_and(|images| !images.is_empty()) {
            return Err(ApiError::not_supported(
                "images are not supported by this model",
            ));
        }
        let calls = self.tool_calls.filter(|calls| !calls.is_empty());
        let calls = calls.map(|calls| {
            let call = |call: OllamaCall| ToolCall {
                id: None,
                kind: "function".into(),
                function: FunctionCall {
                    name: call.function.name,
                    arguments: call.function.arguments,
                },
            };
            calls.into_iter().map(call).collect()
        });
        let mut message = Message::new(self.role, self.content.unwrap_or_default());
        message.tool_calls = calls;
        message.name = self.tool_name;
        message.reasoning_content = self.thinking;
        Ok(message)
    }
}

fn form(format: Option<&Value>) -> ApiResult<Option<Grammar>> {
    match format {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(word)) if word.is_empty() => Ok(None),
        Some(Value::String(word)) if word == "json" => Ok(Some(Grammar::JsonObject)),
        Some(schema @ Value::Object(_)) => Ok(Some(Grammar::JsonSchema(schema.clone()))),
        Some(_) => Err(ApiError::bad_request(
            "format must be \"json\" or a JSON schema",
        )),
    }
}

/// What the template is told about thinking.
fn think(think: Option<&Value>) -> Map<String, Value> {
    let mut args = Map::new();
    match think {
        Some(Value::Bool(on)) => {
            args.insert("enable_thinking".into(), (*on).into());
        }
        Some(Value::String(effort)) => {
            args.insert("reasoning_effort".into(), effort.clone().into());
        }
        _ => {}
    }
    args
}

/// Loads a model and says so.
async fn load(state: &AppState, name: &str, chat: bool) -> ApiResult<Response> {
    let start = Instant::now();
    let model = state.models().get(Some(name)).await?;
    let line = Line {
        model: model.name.clone(),
        created_at: rfc3339(unix_time()),
        response: (!chat).then(String::new),
        message: chat.then(|| LineMessage {
            role: "assistant",
            ..LineMessage::default()
        }),
        done: true,
        done_reason: Some("load"),
        load_duration: Some(start.elapsed().as_nanos() as u64),
        ..Line::default()
    };
    Ok(Json(line).into_response())
}

async fn answer(generation: Generation, chat: bool, streamed: bool) -> ApiResult<Response> {
    let mut writer = LineWriter {
        model: generation.model().clone(),
        chat,
        calls: Vec::new(),
    };
    if streamed {
        return stream::respond(generation, Framing::Lines, writer).await;
    }
    let answer = generate::collect_one(generation).await?;
    writer.calls = answer.calls;
    let mut line = writer.last(&answer.end);
    let thoughts = Some(answer.reasoning).filter(|text| !text.is_empty());
    match &mut line.message {
        Some(message) => {
            message.content = answer.content;
            message.thinking = thoughts;
        }
        None => {
            line.response = Some(answer.content);
            line.thinking = thoughts;
        }
    }
    Ok(Json(line).into_response())
}

struct LineWriter {
    model: Arc<Loaded>,
    chat: bool,
    /// Here calls come as a whole.
    calls: Vec<Call>,
}

impl LineWriter {
    fn line(&self) -> Line {
        let message = LineMessage {
            role: "assistant",
            ..LineMessage::default()
        };
        Line {
            model: self.model.name.clone(),
            created_at: rfc3339(unix_time()),
            response: (!self.chat).then(String::new),
            message: self.chat.then_some(message),
            ..Line::default()
        }
    }

    fn last(&mut self, end: &End) -> Line {
        let mut line = self.line();
        let timings = &end.finished.timings;
        let ns = |duration: std::time::Duration| Some(duration.as_nanos() as u64);
        if let Some(message) = &mut line.message {
            message.tool_calls = self.calls.drain(..).map(OllamaCall::from).collect();
        }
        Line {
            done: true,
            done_reason: Some(match end.reason {
                StopReason::Length => "length",
                _ => "stop",
            }),
            total_duration: ns(timings.queued + timings.prompt + timings.generation),
            load_duration: ns(timings.queued),
            prompt_eval_count: Some(end.finished.prompt_tokens),
            prompt_eval_duration: ns(timings.prompt),
            eval_count: Some(end.finished.generated_tokens),
            eval_duration: ns(timings.generation),
            ..line
        }
    }
}

impl From<Call> for OllamaCall {
    fn from(call: Call) -> OllamaCall {
        let arguments =
            serde_json::from_str(&call.arguments).unwrap_or_else(|_| call.arguments.into());
        OllamaCall {
            function: OllamaFunction {
                name: call.name,
                arguments,
            },
        }
    }
}

impl Writer for LineWriter {
    fn piece(&mut self, piece: Piece, out: &mut Frames) {
        let mut line = self.line();
        match piece {
            Piece::Part {
                part: Part::Content(text),
                ..
            } => match &mut line.message {
                Some(message) => message.content = text,
                None => line.response = Some(text),
            },
            Piece::Part {
                part: Part::Reasoning(text),
                ..
            } => match &mut line.message {
                Some(message) => message.thinking = Some(text),
                None => line.thinking = Some(text),
            },
            Piece::Part {
                part: Part::CallStart { id, name, .. },
                ..
            } => {
                self.calls.push(Call {
                    id,
                    name,
                    arguments: String::new(),
                });
                return;
            }
            Piece::Part {
                part: Part::CallArguments { text, .. },
                ..
            } => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(&text);
                }
                return;
            }
            Piece::End(end) => {
                if self.chat && !self.calls.is_empty() {
                    if let Some(message) = &mut line.message {
                        message.tool_calls = self.calls.drain(..).map(OllamaCall::from).collect();
                    }
                    out.json(&line);
                }
                line = self.last(&end);
            }
        }
        out.json(&line);
    }

    fn end(&mut self, _: &mut Frames) {}

    fn error(&mut self, error: &ApiError, out: &mut Frames) {
        out.json(&json!({ "error": error.message }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_answers() {
        assert_eq!(form(None).unwrap(), None);
        assert_eq!(
            form(Some(&json!("json"))).unwrap(),
            Some(Grammar::JsonObject)
        );
        assert!(matches!(
            form(Some(&json!({}))).unwrap(),
            Some(Grammar::JsonSchema(_))
        ));
        assert!(form(Some(&json!("xml"))).is_err());
    }
}
