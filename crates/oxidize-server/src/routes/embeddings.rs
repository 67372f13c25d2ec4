//! `POST /v1/embeddings`: embeddings of texts. `POST /v1/rerank`: documents sorted by their relevance to a
//! query.

use axum::extract::State;
use axum::{Extension, Json};
use base64::Engine as _;
use oxidize_core::tokenizer::TokenPair;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

use crate::answer::Usage;
use crate::auth::Client;
use crate::body::Body;
use crate::error::{ApiError, ApiResult, OpenAiErrors};
use crate::fields::{OtherField, RequestBody, other};
use crate::generate::blocking;
use crate::models::Loaded;
use crate::prompt::Prompt;
use crate::state::AppState;

/// Maximum number of texts of a request.
const MAX_TEXTS: usize = 2048;

/// Request of embeddings.
#[derive(Debug, Deserialize, ToSchema)]
pub struct EmbeddingRequest {
    /// Name of the model. Defaults to the first model.
    pub model: Option<String>,
    /// Input: a text, token ids, or a list of either.
    #[serde(alias = "content")]
    pub input: Prompt,
    /// Format of the embeddings: `float` or `base64`.
    pub encoding_format: Option<String>,
    /// Number of dimensions to return. The embedding is truncated and normalized again.
    #[schema(minimum = 1)]
    pub dimensions: Option<u32>,
}

impl RequestBody for EmbeddingRequest {
    const OTHER_FIELDS: &'static [&'static [OtherField]] = &[other::EMBEDDINGS];
}

/// Embeddings.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingList {
    /// Always `list`.
    pub object: &'static str,
    /// Embedding of each text.
    pub data: Vec<Embedding>,
    /// Name of the model.
    pub model: String,
    /// Token counts.
    pub usage: Usage,
}

/// Embedding of a text.
#[derive(Debug, Serialize, ToSchema)]
pub struct Embedding {
    /// Always `embedding`.
    pub object: &'static str,
    /// Index of the text in the request.
    pub index: usize,
    /// Vector of the text, normalized to length 1.
    pub embedding: Vector,
}

/// A vector.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Vector {
    /// List of numbers.
    Floats(Vec<f32>),
    /// Little-endian 32-bit floats in base64.
    Base64(String),
}

/// Create embeddings
#[utoipa::path(
    post, path = "/v1/embeddings", tag = "OpenAI",
    request_body = EmbeddingRequest,
    responses(
        (status = 200, description = "An embedding for each text", body = EmbeddingList),
        OpenAiErrors,
    ),
)]
pub async fn create(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(request): Body<EmbeddingRequest>,
) -> ApiResult<Json<EmbeddingList>> {
    let as_base64 = match request.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => {
            return Err(ApiError::bad_request(
                "encoding_format must be float or base64",
            ));
        }
    };
    let dimensions = request.dimensions.map(|n| n as usize);
    let embedded = embed(&state, &client, request.model.as_deref(), request.input).await?;
    let vectors = embedded.vectors.into_iter().enumerate();
    let data = vectors.map(|(index, vector)| {
        let vector = shorten(vector, dimensions)?;
        let embedding = if as_base64 {
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            Vector::Base64(base64::engine::general_purpose::STANDARD.encode(bytes))
        } else {
            Vector::Floats(vector)
        };
        Ok(Embedding {
            object: "embedding",
            index,
            embedding,
        })
    });
    Ok(Json(EmbeddingList {
        object: "list",
        data: data.collect::<ApiResult<_>>()?,
        model: embedded.model.name.clone(),
        usage: Usage::of_prompt(embedded.n_tokens),
    }))
}

/// Embedding of a text in llama-server's format.
#[derive(Debug, Serialize, ToSchema)]
pub struct NativeEmbedding {
    /// Index of the text in the request.
    pub index: usize,
    /// A list of one vector, normalized to length 1.
    pub embedding: [Vec<f32>; 1],
}

/// Create embeddings in llama-server's format
#[utoipa::path(
    post, path = "/embeddings", tag = "llama-server",
    request_body = EmbeddingRequest,
    responses(
        (status = 200, description = "An embedding for each text", body = Vec<NativeEmbedding>),
        OpenAiErrors,
    ),
)]
pub async fn create_native(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(request): Body<EmbeddingRequest>,
) -> ApiResult<Json<Vec<NativeEmbedding>>> {
    if request
        .encoding_format
        .is_some_and(|format| format != "float")
    {
        return Err(ApiError::not_supported(
            "`encoding_format` must be \"float\" here; /v1/embeddings has base64",
        ));
    }
    let dimensions = request.dimensions.map(|n| n as usize);
    let embedded = embed(&state, &client, request.model.as_deref(), request.input).await?;
    let vectors = embedded.vectors.into_iter().enumerate();
    let embedding = |(index, vector)| {
        let embedding = [shorten(vector, dimensions)?];
        Ok(NativeEmbedding { index, embedding })
    };
    Ok(Json(vectors.map(embedding).collect::<ApiResult<_>>()?))
}

/// Vectors of texts, and the model that computed them.
pub(crate) struct Embedded {
    pub(crate) model: Arc<Loaded>,
    pub(crate) vectors: Vec<Vec<f32>>,
    pub(crate) n_tokens: usize,
}

/// Computes the embeddings of texts. Takes one place in the model's queue.
pub(crate) async fn embed(
    state: &AppState,
    client: &Client,
    name: Option<&str>,
    texts: Prompt,
) -> ApiResult<Embedded> {
    let count = texts.count();
    compute(state, client, name, count, move |model| {
        vectors(model, texts)
    })
    .await
}

/// Runs `work`, which computes vectors of `count` texts, on a blocking thread. Takes one place in the model's
/// queue.
async fn compute(
    state: &AppState,
    client: &Client,
    name: Option<&str>,
    count: usize,
    work: impl FnOnce(&Loaded) -> ApiResult<(Vec<Vec<f32>>, usize)> + Send + 'static,
) -> ApiResult<Embedded> {
    if count == 0 || count > MAX_TEXTS {
        let message = format!("the request has {count} texts; 1 to {MAX_TEXTS} are supported");
        return Err(ApiError::bad_request(message));
    }
    if state.is_draining() {
        return Err(ApiError::unavailable("the server is shutting down"));
    }
    client.enter()?;
    let model = state.models().get(name).await?;
    let permit = model.admission.enter(1)?;
    let client = client.clone();
    let state = state.clone();
    blocking(move || {
        let _permit = permit;
        let (vectors, n_tokens) = work(&model)?;
        client.spend(n_tokens as u64);
        state.metrics().prompt_tokens.add(n_tokens as u64);
        Ok(Embedded {
            model,
            vectors,
            n_tokens,
        })
    })
    .await?
}

/// The vector of each text, and the number of tokens.
fn vectors(model: &Loaded, texts: Prompt) -> ApiResult<(Vec<Vec<f32>>, usize)> {
    if model.is_reranker() {
        return Err(ApiError::bad_request(
            "this model is a classifier and has no embeddings; use /v1/rerank",
        ));
    }
    let tokens = texts.tokens(model.tokenizer()?);
    if tokens.iter().any(Vec::is_empty) {
        return Err(ApiError::bad_request(
            "input has 0 tokens; at least 1 is required",
        ));
    }
    let n_tokens = tokens.iter().map(Vec::len).sum();
    Ok((model.embed(&tokens)?, n_tokens))
}

/// Truncates a vector to its first `dimensions` and normalizes it again.
pub(crate) fn shorten(mut vector: Vec<f32>, dimensions: Option<usize>) -> ApiResult<Vec<f32>> {
    let Some(n) = dimensions else {
        return Ok(vector);
    };
    if n == 0 || n > vector.len() {
        let message = format!(
            "dimensions is {n}; it must be between 1 and {}, the size of the model's embeddings",
            vector.len()
        );
        return Err(ApiError::bad_request(message));
    }
    vector.truncate(n);
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x /= length);
    }
    Ok(vector)
}

/// Request to rank documents.
#[derive(Debug, Deserialize, ToSchema)]
pub struct RerankRequest {
    /// Name of the model. Defaults to the first model.
    pub model: Option<String>,
    /// Query.
    pub query: String,
    /// Documents to rank.
    pub documents: Vec<Document>,
    /// Number of documents to return; all by default.
    #[schema(minimum = 1)]
    pub top_n: Option<u32>,
    /// Return the texts of the documents.
    pub return_documents: Option<bool>,
}

impl RequestBody for RerankRequest {
    const OTHER_FIELDS: &'static [&'static [OtherField]] = &[other::RERANK];
}

/// A document.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Document {
    /// A text.
    Text(String),
    /// An object with a text.
    Object {
        /// Text of the document.
        text: String,
    },
}

impl Document {
    fn text(&self) -> &str {
        match self {
            Document::Text(text) | Document::Object { text } => text,
        }
    }
}

/// Ranked documents.
#[derive(Debug, Serialize, ToSchema)]
pub struct RerankList {
    /// Identifier of the response.
    pub id: String,
    /// Always `list`.
    pub object: &'static str,
    /// Name of the model.
    pub model: String,
    /// Documents, most relevant first.
    pub results: Vec<Ranked>,
    /// Token counts.
    pub usage: Usage,
}

/// A document and its score.
#[derive(Debug, Serialize, ToSchema)]
pub struct Ranked {
    /// Index of the document in the request.
    pub index: usize,
    /// Relevance score; higher is more relevant.
    pub relevance_score: f32,
    /// The document, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<Document>,
}

/// Rank documents by their relevance to a query
///
/// A cross-encoder scores query and document together. Other models are refused.
#[utoipa::path(
    post, path = "/v1/rerank", tag = "OpenAI",
    request_body = RerankRequest,
    responses(
        (status = 200, description = "The documents, most relevant first", body = RerankList),
        OpenAiErrors,
    ),
)]
pub async fn rerank(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(request): Body<RerankRequest>,
) -> ApiResult<Json<RerankList>> {
    if request.documents.is_empty() {
        return Err(ApiError::bad_request("documents must not be empty"));
    }
    if request.top_n == Some(0) {
        return Err(ApiError::bad_request("top_n must be at least 1"));
    }
    let documents = request
        .documents
        .iter()
        .map(|document| document.text().to_owned());
    let texts: Vec<String> = [request.query].into_iter().chain(documents).collect();
    let (name, count) = (request.model.as_deref(), texts.len());
    let ranked = compute(&state, &client, name, count, move |model| {
        rank(model, &texts)
    })
    .await?;
    let mut results: Vec<Ranked> = ranked
        .vectors
        .into_iter()
        .zip(request.documents)
        .enumerate()
        .map(|(index, (scores, document))| Ranked {
            index,
            relevance_score: scores.first().copied().unwrap_or(f32::NEG_INFINITY),
            document: request
                .return_documents
                .unwrap_or(false)
                .then_some(document),
        })
        .collect();
    results.sort_by(|a, b| b.relevance_score.total_cmp(&a.relevance_score));
    results.truncate(request.top_n.map_or(usize::MAX, |n| n as usize));
    Ok(Json(RerankList {
        id: state.new_id("rerank-"),
        object: "list",
        model: ranked.model.name.clone(),
        results,
        usage: Usage::of_prompt(ranked.n_tokens),
    }))
}

/// Relevance of each text after the first to the first, and the number of tokens.
fn rank(model: &Loaded, texts: &[String]) -> ApiResult<(Vec<Vec<f32>>, usize)> {
    let Some((query, documents)) = texts.split_first() else {
        return Err(ApiError::internal("rank: there is no query"));
    };
    if model.is_reranker() {
        let tokenizer = model.tokenizer()?;
        let pair = |document: &String| tokenizer.encode_pair(query, document, false);
        let pairs: Vec<TokenPair> = documents.iter().map(pair).collect();
        let n_tokens = pairs.iter().map(|pair| pair.tokens.len()).sum();
        return Ok((model.score(&pairs)?, n_tokens));
    }
    Err(ApiError::not_supported(format!(
        "model {} is not a reranker: it has no head that scores a query with a document; compare embeddings of \
         /v1/embeddings instead",
        model.name
    )))
}
