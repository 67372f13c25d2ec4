//! Ollama's `/api/embed`.

use std::time::Instant;

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::auth::Client;
use crate::body::Body;
use crate::error::{ApiResult, OllamaErrors};
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
    let texts = Prompt::Texts(request.input.list());
    let dimensions = request.dimensions.map(|n| n as usize);
    let embedded = embed_texts(&state, &client, Some(&request.model), texts).await?;
    let vectors = embedded
        .vectors
        .into_iter()
        .map(|vector| shorten(vector, dimensions));
    Ok(Json(EmbedList {
        model: embedded.model.name.clone(),
        embeddings: vectors.collect::<ApiResult<_>>()?,
        total_duration: start.elapsed().as_nanos() as u64,
        load_duration: 0,
        prompt_eval_count: embedded.n_tokens,
    }))
}
