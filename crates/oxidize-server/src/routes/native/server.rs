//! llama-server's `/props`, `/slots` and `/lora-adapters`: what the server is and does.

use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::{Query, State};
use oxidize_core::lora::Adapter;
use oxidize_core::sampling::SamplingParams;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use crate::body::Body;
use crate::error::{ApiResult, OpenAiErrors};
use crate::generate;
use crate::models::Loaded;
use crate::routes::chat::FINGERPRINT;
use crate::sampling::AdapterScale;
use crate::state::AppState;

/// Which model is meant.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ModelQuery {
    /// Its name; the first one where it is not said.
    pub model: Option<String>,
}

/// What the server is.
#[derive(Debug, Serialize, ToSchema)]
pub struct Props {
    /// How tokens are chosen where nobody says.
    #[schema(value_type = Object)]
    pub default_generation_settings: Value,
    /// How many requests run at once.
    pub total_slots: usize,
    /// What the model is called.
    pub model_alias: String,
    /// The model's chat template.
    pub chat_template: String,
    /// What the template knows of.
    #[schema(value_type = Object)]
    pub chat_template_caps: Value,
    /// The token that begins a text.
    pub bos_token: String,
    /// The token that ends one.
    pub eos_token: String,
    /// The server and its version.
    pub build_info: &'static str,
}

/// Describe the server and a model
#[utoipa::path(
    get, path = "/props", tag = "llama-server",
    params(ModelQuery),
    responses(
        (status = 200, description = "What they are", body = Props),
        OpenAiErrors,
    ),
)]
pub async fn props(
    State(state): State<AppState>,
    Query(query): Query<ModelQuery>,
) -> ApiResult<Json<Props>> {
    let model = state.models().get(query.model.as_deref()).await?;
    let tokenizer = model.tokenizer()?;
    let text = |id: Option<u32>| {
        id.and_then(|id| tokenizer.token_text(id))
            .unwrap_or_default()
            .to_owned()
    };
    let capabilities = model.template.capabilities();
    Ok(Json(Props {
        default_generation_settings: json!({
            "n_ctx": model.n_ctx(),
            "params": settings(&model.defaults),
        }),
        total_slots: model.slots,
        model_alias: model.name.clone(),
        chat_template: model.template.source().to_owned(),
        chat_template_caps: json!({
            "supports_system_role": capabilities.system_role,
            "supports_tools": capabilities.tools,
            "supports_tool_calls": capabilities.tool_calls,
            "supports_reasoning": capabilities.reasoning,
        }),
        bos_token: text(tokenizer.bos()),
        eos_token: text(tokenizer.eos()),
        build_info: FINGERPRINT,
    }))
}

fn settings(params: &SamplingParams) -> Value {
    json!({
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "typical_p": params.typical_p,
        "repeat_penalty": params.repeat_penalty,
        "repeat_last_n": params.repeat_last_n,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "samplers": params.samplers.iter().map(|kind| kind.name()).collect::<Vec<_>>(),
    })
}

/// A place for a request.
#[derive(Debug, Serialize, ToSchema)]
pub struct Slot {
    /// Its number.
    pub id: usize,
    /// The model that it belongs to.
    pub model: String,
    /// Most tokens of a request.
    pub n_ctx: usize,
    /// Whether a request is in it.
    pub is_processing: bool,
    /// The request.
    pub id_task: Option<u64>,
    /// Tokens of its prompt.
    pub n_prompt_tokens: usize,
    /// Tokens of its answer so far.
    pub n_decoded: usize,
    /// Seconds since it came.
    pub seconds: f64,
}

/// What runs
///
/// Requests that wait come after those that run; none of them says what it is about.
#[utoipa::path(
    get, path = "/slots", tag = "llama-server",
    responses((status = 200, description = "Every slot", body = Vec<Slot>)),
)]
pub async fn slots(State(state): State<AppState>) -> Json<Vec<Slot>> {
    let mut slots = Vec::new();
    for model in state
        .models()
        .entries()
        .iter()
        .filter_map(|entry| entry.loaded())
    {
        let running = model.running.list();
        for id in 0..model.slots.max(running.len()) {
            let progress = running.get(id);
            slots.push(Slot {
                id,
                model: model.name.clone(),
                n_ctx: model.n_ctx(),
                is_processing: progress.is_some(),
                id_task: progress.map(|progress| progress.id),
                n_prompt_tokens: progress.map_or(0, |progress| progress.prompt_tokens),
                n_decoded: progress
                    .map_or(0, |progress| progress.generated.load(Ordering::Relaxed)),
                seconds: progress.map_or(0.0, |progress| progress.since.elapsed().as_secs_f64()),
            });
        }
    }
    Json(slots)
}

/// An adapter of a model's weights.
#[derive(Debug, Serialize, ToSchema)]
pub struct LoraAdapter {
    /// Its number.
    pub id: usize,
    /// The name of its file.
    pub path: String,
    /// How strongly it counts where a request does not say.
    pub scale: f32,
}

/// List LoRA adapters
#[utoipa::path(
    get, path = "/lora-adapters", tag = "llama-server",
    params(ModelQuery),
    responses(
        (status = 200, description = "Those that were loaded with the model", body = Vec<LoraAdapter>),
        OpenAiErrors,
    ),
)]
pub async fn lora_adapters(
    State(state): State<AppState>,
    Query(query): Query<ModelQuery>,
) -> ApiResult<Json<Vec<LoraAdapter>>> {
    let model = state.models().get(query.model.as_deref()).await?;
    Ok(Json(list_adapters(&model)))
}

fn list_adapters(model: &Loaded) -> Vec<LoraAdapter> {
    let adapters = model.model().adapters().iter();
    let scaled = adapters.zip(model.adapter_scales()).enumerate();
    // Where files lie is nobody's business but the operator's.
    let name = |path: &std::path::Path| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
    };
    let entry = |(id, (adapter, scale)): (usize, (&Adapter, f32))| LoraAdapter {
        id,
        path: name(adapter.path()).unwrap_or_default(),
        scale,
    };
    scaled.map(entry).collect()
}

/// Set how strongly LoRA adapters count
///
/// Holds for requests from now on; those that are not named count for nothing.
#[utoipa::path(
    post, path = "/lora-adapters", tag = "llama-server",
    params(ModelQuery),
    request_body = Vec<AdapterScale>,
    responses(
        (status = 200, description = "The adapters as they are now", body = Vec<LoraAdapter>),
        OpenAiErrors,
    ),
)]
pub async fn scale_adapters(
    State(state): State<AppState>,
    Query(query): Query<ModelQuery>,
    Body(asked): Body<Vec<AdapterScale>>,
) -> ApiResult<Json<Vec<LoraAdapter>>> {
    let model = state.models().get(query.model.as_deref()).await?;
    let nothing = vec![0.0; model.adapter_scales().len()];
    model.set_adapter_scales(generate::adapter_scales(nothing, &asked)?);
    Ok(Json(list_adapters(&model)))
}
