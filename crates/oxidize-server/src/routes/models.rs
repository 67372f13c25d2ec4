//! OpenAI's `GET /v1/models`: the models that the server offers.

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::{ApiResult, OpenAiErrors};
use crate::models::Entry;
use crate::state::AppState;

/// A list of models.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// Always `list`.
    pub object: &'static str,
    /// Models; the first is the default.
    pub data: Vec<ModelCard>,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelCard {
    /// Name of the model.
    pub id: String,
    /// Always `model`.
    pub object: &'static str,
    /// Unix time at which the server started, in seconds.
    pub created: u64,
    /// Always `oxidize`.
    pub owned_by: &'static str,
    /// True if the model is in memory.
    pub loaded: bool,
    /// Properties, if the model is in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta: Option<ModelMeta>,
}

/// Properties of a model in memory.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelMeta {
    /// Architecture.
    pub architecture: String,
    /// Size of the vocabulary.
    pub n_vocab: usize,
    /// Context size: maximum number of tokens of a request, prompt and answer together.
    pub n_ctx: usize,
    /// Context size that the model was trained with.
    pub n_ctx_train: usize,
    /// Embedding size: width of the hidden states.
    pub n_embd: usize,
    /// Number of parameters.
    pub n_params: u64,
    /// Size of the weights in bytes.
    pub size: u64,
}

impl ModelCard {
    fn of(entry: &Entry) -> ModelCard {
        let loaded = entry.loaded();
        ModelCard {
            id: entry.spec.name.clone(),
            object: "model",
            created: entry.created,
            owned_by: "oxidize",
            loaded: loaded.is_some(),
            meta: loaded.map(|loaded| {
                let model = loaded.model();
                ModelMeta {
                    architecture: model.arch().name.to_owned(),
                    n_vocab: model.n_vocab(),
                    n_ctx: loaded.n_ctx(),
                    n_ctx_train: model.hparams().n_ctx_train,
                    n_embd: model.hparams().n_embd,
                    n_params: n_params(model),
                    size: model.weights().size(),
                }
            }),
        }
    }
}

/// Number of parameters of a model.
pub(crate) fn n_params(model: &oxidize_core::model::Model) -> u64 {
    model
        .weights()
        .iter()
        .map(|weight| (weight.rows * weight.cols * weight.n_experts) as u64)
        .sum()
}

/// List models
#[utoipa::path(
    get, path = "/v1/models", tag = "OpenAI",
    responses((status = 200, description = "The models that the server offers", body = ModelList)),
)]
pub async fn list(State(state): State<AppState>) -> Json<ModelList> {
    let data = state
        .models()
        .entries()
        .iter()
        .map(|entry| ModelCard::of(entry))
        .collect();
    Json(ModelList {
        object: "list",
        data,
    })
}

/// Get a model
#[utoipa::path(
    get, path = "/v1/models/{model}", tag = "OpenAI",
    params(("model" = String, Path, description = "Name of the model")),
    responses(
        (status = 200, description = "The model", body = ModelCard),
        OpenAiErrors,
    ),
)]
pub async fn get(
    State(state): State<AppState>,
    Path(name): Path<String>,
) -> ApiResult<Json<ModelCard>> {
    let entry = state.models().entry(Some(&name))?;
    Ok(Json(ModelCard::of(&entry)))
}

/// Load a model
///
/// The model is one that the server offers, or one of the local library. It is in memory when the answer arrives.
#[utoipa::path(
    post, path = "/v1/models/{model}", tag = "OpenAI",
    params(("model" = String, Path, description = "Name of the model")),
    responses(
        (status = 200, description = "The model", body = ModelCard),
        OpenAiErrors,
    ),
)]
pub async fn load(
    State(state): State<AppState>,
    Path(name): Path<String>,
) -> ApiResult<Json<ModelCard>> {
    state.models().get(Some(&name)).await?;
    let entry = state.models().entry(Some(&name))?;
    Ok(Json(ModelCard::of(&entry)))
}
