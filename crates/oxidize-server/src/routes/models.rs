//! `GET /v1/models`: what is served.

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::{ApiResult, OpenAiErrors};
use crate::models::Entry;
use crate::state::AppState;

/// Everything that is served.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// `list`
    pub object: &'static str,
    /// The models; the first is the default.
    pub data: Vec<ModelCard>,
}

/// A model that is served.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelCard {
    /// What requests call it.
    pub id: String,
    /// `model`
    pub object: &'static str,
    /// When the server began to serve it, in seconds since 1970.
    pub created: u64,
    /// `oxidize`
    pub owned_by: &'static str,
    /// Whether it is in memory.
    pub loaded: bool,
    /// More, while it is in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta: Option<ModelMeta>,
}

/// What is known of a model that is in memory.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelMeta {
    /// Its architecture.
    pub architecture: String,
    /// Tokens of its vocabulary.
    pub n_vocab: usize,
    /// Most tokens of a request.
    pub n_ctx: usize,
    /// Most tokens that it was trained on.
    pub n_ctx_train: usize,
    /// Width of its hidden states.
    pub n_embd: usize,
    /// Number of its weights.
    pub n_params: u64,
    /// Bytes of its weights.
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

/// The number of a model's weights.
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
    responses((status = 200, description = "What is served", body = ModelList)),
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

/// Describe a model
#[utoipa::path(
    get, path = "/v1/models/{model}", tag = "OpenAI",
    params(("model" = String, Path, description = "What requests call it")),
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
    Ok(Json(ModelCard::of(entry)))
}
