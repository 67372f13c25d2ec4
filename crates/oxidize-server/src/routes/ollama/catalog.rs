//! Ollama's `/api/tags`, `/api/ps`, `/api/show` and `/api/version`: the models and the version.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::rfc3339;
use crate::body::Body;
use crate::error::{ApiResult, OllamaErrors};
use crate::fields::{OtherField, RequestBody, other};
use crate::models::{Entry, Loaded};
use crate::routes::models::n_params;
use crate::state::AppState;

/// A list of models.
#[derive(Debug, Serialize, ToSchema)]
pub struct TagList {
    /// Models.
    pub models: Vec<Tag>,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub struct Tag {
    /// Name of the model.
    pub name: String,
    /// Name of the model.
    pub model: String,
    /// Modification time of the model file, in RFC 3339.
    pub modified_at: String,
    /// Size of the model file in bytes.
    pub size: u64,
    /// Always empty: model files are not hashed.
    pub digest: String,
    /// Format, architecture and size.
    pub details: Details,
}

/// Format, architecture and size of a model. Empty until the model is loaded.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Details {
    /// `gguf` or `safetensors`.
    pub format: String,
    /// Architecture.
    pub family: String,
    /// Architecture, as a list of one.
    pub families: Vec<String>,
    /// Number of parameters, such as `1.5B`.
    pub parameter_size: String,
    /// Tensor type that holds most bytes of the weights.
    pub quantization_level: String,
}

impl Tag {
    fn of(entry: &Entry) -> Tag {
        let metadata = std::fs::metadata(&entry.spec.path).ok();
        let modified = metadata
            .as_ref()
            .and_then(|metadata| metadata.modified().ok());
        let modified = modified.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        Tag {
            name: entry.spec.name.clone(),
            model: entry.spec.name.clone(),
            modified_at: rfc3339(modified.map_or(0, |since| since.as_secs())),
            size: metadata.map_or(0, |metadata| metadata.len()),
            digest: String::new(),
            details: entry
                .loaded()
                .map(|loaded| details(&loaded))
                .unwrap_or_default(),
        }
    }
}

fn details(loaded: &Loaded) -> Details {
    let model = loaded.model();
    let family = model.arch().name.to_owned();
    let mut sizes: Vec<(String, u64)> = Vec::new();
    for tensor in model.file().tensors() {
        let name = tensor.ty.name().to_string();
        match sizes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, bytes)) => *bytes += tensor.bytes,
            None => sizes.push((name, tensor.bytes)),
        }
    }
    let largest = sizes.into_iter().max_by_key(|(_, bytes)| *bytes);
    let millions = n_params(model) as f64 / 1e6;
    Details {
        format: model.file().format().name().to_lowercase(),
        families: vec![family.clone()],
        family,
        parameter_size: if millions >= 1000.0 {
            format!("{:.1}B", millions / 1000.0)
        } else {
            format!("{millions:.0}M")
        },
        quantization_level: largest.map(|(name, _)| name).unwrap_or_default(),
    }
}

/// List models
#[utoipa::path(
    get, path = "/api/tags", tag = "Ollama",
    responses((status = 200, description = "The models that the server offers", body = TagList)),
)]
pub async fn tags(State(state): State<AppState>) -> Json<TagList> {
    let models = state
        .models()
        .entries()
        .iter()
        .map(|entry| Tag::of(entry))
        .collect();
    Json(TagList { models })
}

/// List models in memory
#[utoipa::path(
    get, path = "/api/ps", tag = "Ollama",
    responses((status = 200, description = "The models in memory", body = TagList)),
)]
pub async fn ps(State(state): State<AppState>) -> Json<TagList> {
    let mut loaded = state.models().entries();
    loaded.retain(|entry| entry.loaded().is_some());
    Json(TagList {
        models: loaded.iter().map(|entry| Tag::of(entry)).collect(),
    })
}

/// Request for the description of a model.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ShowRequest {
    /// Name of the model.
    pub model: Option<String>,
    /// Older name of the field `model`.
    pub name: Option<String>,
}

impl RequestBody for ShowRequest {
    const OTHER_FIELDS: &'static [&'static [OtherField]] = &[other::OLLAMA_SHOW];
}

/// Description of a model.
#[derive(Debug, Serialize, ToSchema)]
pub struct ShowResponse {
    /// Chat template, as Jinja source.
    pub template: String,
    /// Format, architecture and size.
    pub details: Details,
    /// Metadata under the keys of the GGUF specification.
    #[schema(value_type = Object)]
    pub model_info: Value,
    /// Capabilities: `completion`, `tools`, `thinking`, `insert`.
    pub capabilities: Vec<&'static str>,
    /// Modification time of the model file, in RFC 3339.
    pub modified_at: String,
}

/// Describe a model
#[utoipa::path(
    post, path = "/api/show", tag = "Ollama",
    request_body = ShowRequest,
    responses(
        (status = 200, description = "The description of the model", body = ShowResponse),
        OllamaErrors,
    ),
)]
pub async fn show(
    State(state): State<AppState>,
    Body(request): Body<ShowRequest>,
) -> ApiResult<Json<ShowResponse>> {
    let name = request.model.or(request.name);
    let model = state.models().get(name.as_deref()).await?;
    let entry = state.models().entry(name.as_deref())?;
    let capabilities = model.template.capabilities();
    let hparams = model.model().hparams();
    let arch = model.model().arch().name;
    let has_fim = model.tokenizer()?.special_ids().fim_middle.is_some();
    let known = [
        ("completion", true),
        ("tools", capabilities.tools),
        ("thinking", capabilities.reasoning),
        ("insert", has_fim),
    ];
    let mut model_info = Map::new();
    model_info.insert("general.architecture".into(), arch.into());
    model_info.insert(
        "general.parameter_count".into(),
        n_params(model.model()).into(),
    );
    model_info.insert(format!("{arch}.context_length"), hparams.n_ctx_train.into());
    model_info.insert(format!("{arch}.embedding_length"), hparams.n_embd.into());
    model_info.insert(format!("{arch}.block_count"), hparams.layers.len().into());
    Ok(Json(ShowResponse {
        template: model.template.source().to_owned(),
        details: details(&model),
        model_info: Value::Object(model_info),
        capabilities: known
            .into_iter()
            .filter(|(_, can)| *can)
            .map(|(name, _)| name)
            .collect(),
        modified_at: Tag::of(&entry).modified_at,
    }))
}

/// Version of the server.
#[derive(Debug, Serialize, ToSchema)]
pub struct Version {
    /// Version.
    pub version: &'static str,
}

/// Get the version
#[utoipa::path(
    get, path = "/api/version", tag = "Ollama",
    responses((status = 200, description = "The version", body = Version)),
)]
pub async fn version() -> Json<Version> {
    Json(Version {
        version: env!("CARGO_PKG_VERSION"),
    })
}
