//! llama-server's `/tokenize`, `/detokenize` and `/apply-template`.

use axum::Json;
use axum::extract::{Query, State};
use oxidize_core::chat::Message;
use oxidize_core::tokenizer::EncodeOptions;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::server::ModelQuery;
use crate::body::Body;
use crate::error::{ApiError, ApiResult, OpenAiErrors};
use crate::fields::{OtherField, RequestBody, other};
use crate::generate::blocking;
use crate::routes::chat::MessageSchema;
use crate::routes::conversation::conversation;
use crate::state::AppState;
use crate::tools::{ToolChoice, Tools};

/// Text to tokenize.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TokenizeRequest {
    /// Name of the model. Defaults to the first model.
    pub model: Option<String>,
    /// Text; `prompt` in vLLM's API.
    #[serde(alias = "prompt")]
    pub content: String,
    /// Add the special tokens that the model expects around a text, such as BOS.
    #[serde(alias = "add_special_tokens")]
    pub add_special: Option<bool>,
    /// Parse the text of special tokens as those tokens. On by default.
    pub parse_special: Option<bool>,
    /// Return the text of each token.
    pub with_pieces: Option<bool>,
}

impl RequestBody for TokenizeRequest {
    const OTHER_FIELDS: &'static [&'static [OtherField]] = &[other::TOKENIZE];
}

/// Token ids.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenList {
    /// Token ids; with `with_pieces`, objects with the fields `id` and `piece`.
    #[schema(value_type = Vec<Object>)]
    pub tokens: Vec<Value>,
    /// Number of tokens.
    pub count: usize,
    /// Context size: maximum number of tokens of a request, prompt and answer together.
    pub max_model_len: usize,
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
        let tokens = tokenizer.encode(&request.content, options);
        let tokens: Vec<Value> = tokens.into_iter().map(token).collect();
        Ok(Json(TokenList {
            count: tokens.len(),
            tokens,
            max_model_len: model.n_ctx(),
        }))
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

impl RequestBody for DetokenizeRequest {}

/// Text.
#[derive(Debug, Serialize, ToSchema)]
pub struct TextBody {
    /// Text of the tokens.
    pub content: String,
    /// The same text, as vLLM names it.
    pub prompt: String,
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
        let content = model.tokenizer()?.decode(&request.tokens);
        let prompt = content.clone();
        Ok(Json(TextBody { content, prompt }))
    };
    blocking(work).await?
}

/// Properties of a tokenizer.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenizerInfo {
    /// Text of the BOS token.
    pub bos_token: Option<String>,
    /// Text of the EOS token.
    pub eos_token: Option<String>,
    /// Chat template of the model, as Jinja source.
    pub chat_template: String,
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// True if a text begins with the BOS token.
    pub add_bos_token: bool,
}

/// Describe the tokenizer of a model (vLLM)
#[utoipa::path(
    get, path = "/tokenizer_info", tag = "llama-server",
    params(ModelQuery),
    responses(
        (status = 200, description = "The properties of the tokenizer", body = TokenizerInfo),
        OpenAiErrors,
    ),
)]
pub async fn tokenizer_info(
    State(state): State<AppState>,
    Query(query): Query<ModelQuery>,
) -> ApiResult<Json<TokenizerInfo>> {
    let model = state.models().get(query.model.as_deref()).await?;
    let tokenizer = model.tokenizer()?;
    let text = |id: Option<u32>| {
        id.and_then(|id| tokenizer.token_text(id))
            .map(str::to_owned)
    };
    Ok(Json(TokenizerInfo {
        bos_token: text(tokenizer.bos()),
        eos_token: text(tokenizer.eos()),
        chat_template: model.template.source().to_owned(),
        vocab_size: model.model().n_vocab(),
        add_bos_token: tokenizer.adds_bos(),
    }))
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
    /// Continue the last message, which must be the assistant's. By default, a last message of the assistant is
    /// continued.
    pub continue_final_message: Option<bool>,
    /// Begin the turn of the assistant after the messages. On by default.
    pub add_generation_prompt: Option<bool>,
}

impl RequestBody for TemplateRequest {}

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
    let mut conversation = conversation(
        request.messages,
        request.chat_template_kwargs.unwrap_or_default(),
        request.continue_final_message,
        request.add_generation_prompt,
        None,
    )?;
    conversation.tools = tools.offered();
    blocking(move || {
        let rendered = conversation.render(&model.template, model.tokenizer()?)?;
        Ok(Json(PromptBody {
            prompt: rendered.text,
        }))
    })
    .await?
}
