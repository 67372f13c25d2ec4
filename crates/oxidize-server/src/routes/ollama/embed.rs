//! Ollama's `/api/embed`.

use std::time::Instant;

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answer::check_context;
use crate::auth::Client;
use crate::body::Body;
use crate::error::{ApiError, ApiResult, OllamaErrors};
use crate::fields::{OtherField, RequestBody, other};
use crate::keep_alive::KeepAlive;
use crate::prompt::Prompt;
use crate::routes::embeddings::{embed as embed_texts, shorten};
use crate::sampling::OneOrMany;
use crate::state::AppState;

/// Request of embeddings.
#[derive(Debug, Deserialize, ToSchema)]
pub struct EmbedRequest {
    /// Name of the model.
    pub model: String,
    /// A text or a list of texts.
    pub input: OneOrMany,
    /// Number of dimensions to return. The embedding is truncated and normalized again.
    #[schema(minimum = 1)]
    pub dimensions: Option<u32>,
    /// Time that the model stays loaded without requests: seconds, or a text such as `5m`; 0 unloads it, a
    /// negative one keeps it.
    pub keep_alive: Option<KeepAlive>,
    /// Limits.
    pub options: Option<EmbedOptions>,
}

impl RequestBody for EmbedRequest {
    const OTHER_FIELDS: &'static [&'static [OtherField]] = &[other::OLLAMA];
}

/// Limits of a request of embeddings.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
pub struct EmbedOptions {
    /// Context size that the request expects; at most that of the server.
    #[schema(maximum = 2147483647)]
    pub num_ctx: Option<u32>,
}

/// Embeddings.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbedList {
    /// Name of the model.
    pub model: String,
    /// Embedding of each text, normalized to length 1.
    pub embeddings: Vec<Vec<f32>>,
    /// Total time in nanoseconds.
    pub total_duration: u64,
    /// Always 0.
    pub load_duration: u64,
    /// Tokens in the texts.
    pub prompt_eval_count: usize,
}

/// Embed texts
#[utoipa::path(
    post, path = "/api/embed", tag = "Ollama",
    request_body = EmbedRequest,
    responses(
        (status = 200, description = "An embedding for each text", body = EmbedList),
        OllamaErrors,
    ),
)]
pub async fn embed(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(request): Body<EmbedRequest>,
) -> ApiResult<Json<EmbedList>> {
    let start = Instant::now();
    let keep_alive = KeepAlive::checked(request.keep_alive)?;
    let texts = Prompt::from(request.input.list());
    let num_ctx = request.options.and_then(|options| options.num_ctx);
    check_context(&state, &request.model, num_ctx).await?;
    let dimensions = request.dimensions.map(|n| n as usize);
    let embedded = embed_texts(&state, &client, Some(&request.model), texts).await?;
    let vectors = embedded
        .vectors
        .into_iter()
        .map(|vector| shorten(vector, dimensions));
    state.models().keep(&request.model, keep_alive).await?;
    Ok(Json(EmbedList {
        model: embedded.model.name.clone(),
        embeddings: vectors.collect::<ApiResult<_>>()?,
        total_duration: start.elapsed().as_nanos() as u64,
        load_duration: 0,
        prompt_eval_count: embedded.n_tokens,
    }))
}

/// Request of an embedding.
#[derive(Debug, Deserialize, ToSchema)]
pub struct EmbedOneRequest {
    /// Name of the model.
    pub model: String,
    /// A text.
    pub prompt: String,
    /// Time that the model stays loaded without requests.
    pub keep_alive: Option<KeepAlive>,
    /// Limits.
    pub options: Option<EmbedOptions>,
}

impl RequestBody for EmbedOneRequest {
    const OTHER_FIELDS: &'static [&'static [OtherField]] = &[other::OLLAMA];
}

/// An embedding.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbedOne {
    /// Embedding of the text, normalized to length 1.
    pub embedding: Vec<f32>,
}

/// Embed a text (older form of `/api/embed`)
#[utoipa::path(
    post, path = "/api/embeddings", tag = "Ollama",
    request_body = EmbedOneRequest,
    responses(
        (status = 200, description = "The embedding of the text", body = EmbedOne),
        OllamaErrors,
    ),
)]
pub async fn embed_one(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(request): Body<EmbedOneRequest>,
) -> ApiResult<Json<EmbedOne>> {
    let keep_alive = KeepAlive::checked(request.keep_alive)?;
    let prompt = Prompt::from(request.prompt);
    let num_ctx = request.options.and_then(|options| options.num_ctx);
    check_context(&state, &request.model, num_ctx).await?;
    let embedded = embed_texts(&state, &client, Some(&request.model), prompt).await?;
    state.models().keep(&request.model, keep_alive).await?;
    let first = embedded.vectors.into_iter().next();
    let embedding = first.ok_or_else(|| ApiError::internal("the text has no embedding"))?;
    Ok(Json(EmbedOne { embedding }))
}
