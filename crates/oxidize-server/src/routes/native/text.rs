//! llama-server's `/tokenize`, `/detokenize` and `/apply-template`: from text to tokens and back.

use axum::Json;
use axum::extract::State;
use oxidize_core::chat::Message;
use oxidize_core::tokenizer::EncodeOptions;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::body::Body;
use crate::conversation::Conversation;
use crate::error::{ApiError, ApiResult, OpenAiErrors};
use crate::generate::blocking;
use crate::routes::chat::MessageSchema;
use crate::state::AppState;
use crate::tools::{ToolChoice, Tools};

/// A text to cut into tokens.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TokenizeRequest {
    /// Which model; the first one where it is not said.
    pub model: Option<String>,
    /// The text.
    pub content: String,
    /// Whether the tokens that the model expects around a text are added.
    pub add_special: Option<bool>,
    /// Whether the names of special tokens become those tokens.
    pub parse_special: Option<bool>,
    /// Whether each token comes with its text.
    pub with_pieces: Option<bool>,
}

/// Tokens.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenList {
    /// Ids, or with `with_pieces` objects of id and piece.
    #[schema(value_type = Vec<Object>)]
    pub tokens: Vec<Value>,
}

/// Cut a text into tokens
#[utoipa::path(
    post, path = "/tokenize", tag = "llama-server",
    request_body = TokenizeRequest,
    responses(
        (status = 200, description = "Its tokens", content_type = "application/json", body = Value),
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
                // A piece that is no text by itself comes as bytes.
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

/// Tokens to join.
#[derive(Debug, Deserialize, ToSchema)]
pub struct DetokenizeRequest {
    /// Which model; the first one where it is not said.
    pub model: Option<String>,
    /// The tokens.
    pub tokens: Vec<u32>,
}

/// A text.
#[derive(Debug, Serialize, ToSchema)]
pub struct TextBody {
    /// The text.
    pub content: String,
}

/// Join tokens to a text
#[utoipa::path(
    post, path = "/detokenize", tag = "llama-server",
    request_body = DetokenizeRequest,
    responses(
        (status = 200, description = "Their text", body = TextBody),
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

/// A conversation to render.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TemplateRequest {
    /// Which model; the first one where it is not said.
    pub model: Option<String>,
    /// The turns, oldest first.
    #[schema(value_type = Vec<MessageSchema>)]
    pub messages: Vec<Message>,
    /// What the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// More variables for the chat template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

/// The text that a model continues.
#[derive(Debug, Serialize, ToSchema)]
pub struct PromptBody {
    /// The text.
    pub prompt: String,
}

/// Render a conversation with the model's chat template
#[utoipa::path(
    post, path = "/apply-template", tag = "llama-server",
    request_body = TemplateRequest,
    responses(
        (status = 200, description = "The text that the model would continue", body = PromptBody),
        OpenAiErrors,
    ),
)]
pub async fn apply_template(
    State(state): State<AppState>,
    Body(request): Body<TemplateRequest>,
) -> ApiResult<Json<PromptBody>> {
    let model = state.models().get(request.model.as_deref()).await?;
    let conversation = Conversation {
        messages: request.messages,
        tools: Tools::new(request.tools.unwrap_or_default(), ToolChoice::Auto, true)?,
        template_args: request.chat_template_kwargs.unwrap_or_default(),
        ..Conversation::default()
    };
    blocking(move || {
        Ok(Json(PromptBody {
            prompt: conversation.prompt(&model)?,
        }))
    })
    .await?
}
