//! `POST /v1/embeddings` and `POST /v1/rerank`: texts as vectors, and documents by how well they answer a question.

use axum::extract::State;
use axum::{Extension, Json};
use base64::Engine as _;
use oxidize_core::tokenizer::TokenPair;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

use super::completions::Prompt;
use crate::answer::Usage;
use crate::auth::Client;
use crate::body::Body;
use crate::error::{ApiError, ApiResult, ErrorBody, OpenAiErrors};
use crate::generate::blocking;
use crate::models::Loaded;
use crate::state::AppState;

/// Most texts of a request.
const MAX_TEXTS: usize = 2048;

/// Texts to embed.
#[derive(Debug, Deserialize, ToSchema)]
pub struct EmbeddingRequest {
    /// Which model; the first one where it is not said.
    pub model: Option<String>,
    /// Text, tokens, or several of either.
    pub input: Prompt,
    /// `float` or `base64`.
    pub encoding_format: Option<String>,
    /// How many of the first dimensions are wanted.
    #[schema(minimum = 1)]
    pub dimensions: Option<u32>,
}

/// Vectors.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingList {
    /// `list`
    pub object: &'static str,
    /// One for each text.
    pub data: Vec<Embedding>,
    /// Who made them.
    pub model: String,
    /// How many tokens.
    pub usage: Usage,
}

/// The vector of a text.
#[derive(Debug, Serialize, ToSchema)]
pub struct Embedding {
    /// `embedding`
    pub object: &'static str,
    /// The text's place.
    pub index: usize,
    /// The numbers, or with `base64` their bytes.
    pub embedding: Vector,
}

/// Numbers, or their bytes in base64.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Vector {
    /// Numbers.
    Floats(Vec<f32>),
    /// Little-endian f32 in base64.
    Base64(String),
}

/// Embed texts
#[utoipa::path(
    post, path = "/v1/embeddings", tag = "OpenAI",
    request_body = EmbeddingRequest,
    responses(
        (status = 200, description = "A vector of length one for each text", body = EmbeddingList),
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

/// The vectors of texts, and whose they are.
pub(crate) struct Embedded {
    pub(crate) model: Arc<Loaded>,
    pub(crate) vectors: Vec<Vec<f32>>,
    pub(crate) n_tokens: usize,
}

/// Embeds texts, at the cost of one place in the model's queue.
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

/// Has a model make vectors of `count` texts, at the cost of one place in its queue.
async fn compute(
    state: &AppState,
    client: &Client,
    name: Option<&str>,
    count: usize,
    work: impl FnOnce(&Loaded) -> ApiResult<(Vec<Vec<f32>>, usize)> + Send + 'static,
) -> ApiResult<Embedded> {
    if count == 0 || count > MAX_TEXTS {
        let message =
            format!("{count} texts; at least 1 and at most {MAX_TEXTS} can be embedded at once");
        return Err(ApiError::bad_request(message));
    }
    if state.is_draining() {
        return Err(ApiError::unavailable("the server is shutting down"));
    }
    client.enter()?;
    let model = state.models().get(name).await?;
    let ticket = model.admission.enter(1)?;
    let client = client.clone();
    let metrics = state.clone();
    blocking(move || {
        let _ticket = ticket;
        let (vectors, n_tokens) = work(&model)?;
        client.spend(n_tokens as u64);
        metrics.metrics().prompt_tokens.add(n_tokens as u64);
        Ok(Embedded {
            model,
            vectors,
            n_tokens,
        })
    })
    .await?
}

/// The vector of each text, and how many tokens were read.
fn vectors(model: &Loaded, texts: Prompt) -> ApiResult<(Vec<Vec<f32>>, usize)> {
    if model.is_classifier() {
        return Err(ApiError::bad_request(
            "the model is a classifier, which ranks texts and gives them no vectors",
        ));
    }
    let tokens = texts.tokens(model)?;
    if tokens.iter().any(Vec::is_empty) {
        return Err(ApiError::bad_request("an empty text has no embedding"));
    }
    let n_tokens = tokens.iter().map(Vec::len).sum();
    Ok((model.embed(&tokens)?, n_tokens))
}

/// The first dimensions of a vector, of length one again.
pub(crate) fn shorten(mut vector: Vec<f32>, dimensions: Option<usize>) -> ApiResult<Vec<f32>> {
    let Some(n) = dimensions else {
        return Ok(vector);
    };
    if n == 0 || n > vector.len() {
        let message = format!(
            "dimensions is {n}; the model's embeddings have {}",
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

/// Documents to put in order.
#[derive(Debug, Deserialize, ToSchema)]
pub struct RerankRequest {
    /// Which model; the first one where it is not said.
    pub model: Option<String>,
    /// What is asked.
    pub query: String,
    /// What may answer it.
    pub documents: Vec<Document>,
    /// How many of the best are wanted.
    #[schema(minimum = 1)]
    pub top_n: Option<u32>,
    /// Whether the texts come back with their scores.
    pub return_documents: Option<bool>,
}

/// A text, by itself or in an object.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Document {
    /// By itself.
    Text(String),
    /// In an object.
    Object {
        /// The text.
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

/// Documents in order.
#[derive(Debug, Serialize, ToSchema)]
pub struct RerankList {
    /// Names it.
    pub id: String,
    /// `list`
    pub object: &'static str,
    /// Who judged.
    pub model: String,
    /// The best first.
    pub results: Vec<Ranked>,
    /// How many tokens.
    pub usage: Usage,
}

/// A document and how well it answers.
#[derive(Debug, Serialize, ToSchema)]
pub struct Ranked {
    /// Its place in the request.
    pub index: usize,
    /// Higher is better.
    pub relevance_score: f32,
    /// The document, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<Document>,
}

/// Put documents in order
///
/// The score is what the model's classifier gives question and document together; of a model without
/// one, the cosine between the embeddings of the two.
#[utoipa::path(
    post, path = "/v1/rerank", tag = "OpenAI",
    request_body = RerankRequest,
    responses(
        (status = 200, description = "The documents, best first", body = RerankList),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = "4XX", description = "The request cannot be served", body = ErrorBody),
        (status = "5XX", description = "The server cannot serve it now", body = ErrorBody),
    ),
)]
pub async fn rerank(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(request): Body<RerankRequest>,
) -> ApiResult<Json<RerankList>> {
    if request.documents.is_empty() {
        return Err(ApiError::bad_request("documents is empty"));
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

/// A score for each text after the first, by how well it answers that, and how many tokens were read.
fn rank(model: &Loaded, texts: &[String]) -> ApiResult<(Vec<Vec<f32>>, usize)> {
    let Some((query, documents)) = texts.split_first() else {
        return Err(ApiError::internal("nothing to rank"));
    };
    let tokenizer = model.tokenizer()?;
    if model.is_classifier() {
        let pair = |document: &String| tokenizer.encode_pair(query, document, false);
        let pairs: Vec<TokenPair> = documents.iter().map(pair).collect();
        let n_tokens = pairs.iter().map(|pair| pair.tokens.len()).sum();
        return Ok((model.judge(&pairs)?, n_tokens));
    }
    let (vectors, n_tokens) = vectors(model, Prompt::Texts(texts.to_vec()))?;
    let Some((query, documents)) = vectors.split_first() else {
        return Err(ApiError::internal("no embeddings"));
    };
    let cosine = |document: &Vec<f32>| query.iter().zip(document).map(|(a, b)| a * b).sum::<f32>();
    let scores = documents.iter().map(|document| vec![cosine(document)]);
    Ok((scores.collect(), n_tokens))
}
