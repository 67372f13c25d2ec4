//! llama-server's `/tokenize`, `/detokenize` and `/apply-template`.

use axum::Json;
use axum::extract::State;
use oxidize_core::chat::{Conversation, Message};
use oxidize_core::tokenizer::EncodeOptions;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::body::Body;
use crate::error::{ApiError, ApiResult, OpenAiErrors};
use crate::generate::blocking;
use crate::routes::chat::MessageSchema;
use crate::state::AppState;
use crate::tools::{ToolChoice, Tools};

/// Text to tokenize.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TokenizeRequest {
    /// Name of the model. Defaults to the first model.
    pub model: Option<String>,
    /// Text.
    pub content: String,
    /// Add the special tokens that the model expects around a text, such as BOS.
    pub add_special: Option<bool>,
    /// Parse the text of special tokens as those tokens. On by default.
    pub parse_special: Option<bool>,
    /// Return the text of each token.
    pub with_pieces: Option<bool>,
}

/// Token ids.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenList {
    /// Token ids; with `with_pieces`, objects with the fields `id` and `piece`.
    #[schema(value_type = Vec<Object>)]
    pub tokens: Vec<Value>,
}

/// Tokenize a text
#[utoipa::path(
    post, path = "/tokenize", tag = "llama-server",
    request_body = TokenizeRequest,
    responses(
        (status = 200, description = "The tokens", content_type = "application/json", body = Value),
        OpenAiErrors,
    ),
)]
pub async fn tokenize(
    State(state): State<AppState>,
    Body(request): Body<TokenizeRequest>,
) -> ApiResult<Json<TokenList>> {
    let model = state.models().get(request.model.as_deref()).await?;
    blocking(move || {
        let tokenizer = model.tokenizer()?;
        let options = EncodeOptions {
            add_special: request.add_special.unwrap_or(false),
            parse_special: request.parse_special.unwrap_or(true),
        };
        let with_pieces = request.with_pieces.unwrap_or(false);
        let token = |id: u32| match tokenizer.piece(id) {
            Some(bytes) if with_pieces => {
                // A piece that is not valid UTF-8 is returned as bytes.
                let piece = match std::str::from_utf8(bytes) {
                    Ok(text) => json!(text),
                    Err(_) => json!(bytes),
                };
                json!({ "id": id, "piece": piece })
            }
            _ => json!(id),
        };
        let tokens = tokenizer
            .encode(&request.content, options)
            .into_iter()
            .map(token)
            .collect();
        Ok(Json(TokenList { tokens }))
    })
    .await?
}

/// Tokens to convert to text.
#[derive(Debug, Deserialize, ToSchema)]
pub struct DetokenizeRequest {
    /// Name of the model. Defaults to the first model.
    pub model: Option<String>,
    /// Token ids.
    pub tokens: Vec<u32>,
}

/// Text.
#[derive(Debug, Serialize, ToSchema)]
pub struct TextBody {
    /// Text of the tokens.
    pub content: String,
}

/// Convert tokens to text
#[utoipa::path(
    post, path = "/detokenize", tag = "llama-server",
    request_body = DetokenizeRequest,
    responses(
        (status = 200, description = "The text", body = TextBody),
        OpenAiErrors,
    ),
)]
pub async fn detokenize(
    State(state): State<AppState>,
    Body(request): Body<DetokenizeRequest>,
) -> ApiResult<Json<TextBody>> {
    let model = state.models().get(request.model.as_deref()).await?;
    let n_vocab = model.model().n_vocab();
    if let Some(token) = request
        .tokens
        .iter()
        .find(|&&token| token as usize >= n_vocab)
    {
        let message = format!("token {token} is out of range: the vocabulary has {n_vocab} tokens");
        return Err(ApiError::bad_request(message));
    }
    let work = move || {
        Ok(Json(TextBody {
            content: model.tokenizer()?.decode(&request.tokens),
        }))
    };
    blocking(work).await?
}

/// Conversation to render.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TemplateRequest {
    /// Name of the model. Defaults to the first model.
    pub model: Option<String>,
    /// Messages of the conversation, oldest first. A last message of the assistant is continued.
    #[schema(value_type = Vec<MessageSchema>)]
    pub messages: Vec<Message>,
    /// Tools that the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// Variables for the chat template, such as `enable_thinking`.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

/// A rendered conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct PromptBody {
    /// Prompt: the text that the model continues.
    pub prompt: String,
}

/// Render a conversation with the model's chat template
#[utoipa::path(
    post, path = "/apply-template", tag = "llama-server",
    request_body = TemplateRequest,
    responses(
        (status = 200, description = "The prompt", body = PromptBody),
        OpenAiErrors,
    ),
)]
pub async fn apply_template(
    State(state): State<AppState>,
    Body(request): Body<TemplateRequest>,
) -> ApiResult<Json<PromptBody>> {
    let model = state.models().get(request.model.as_deref()).await?;
    let tools = Tools::new(request.tools.unwrap_or_default(), ToolChoice::Auto, true)?;
    let conversation = Conversation {
        messages: request.messages,
        tools: tools.offered(),
        template_args: request.chat_template_kwargs.unwrap_or_default(),
        ..Conversation::default()
    };
    blocking(move || {
        let rendered = conversation.render(&model.template, model.tokenizer()?)?;
        Ok(Json(PromptBody {
            prompt: rendered.text,
        }))
    })
    .await?
}
