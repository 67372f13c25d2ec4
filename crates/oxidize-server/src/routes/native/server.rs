//! llama-server's `/props`, `/slots` and `/lora-adapters`: properties and state of the server.

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
use crate::models::Loaded;
use crate::routes::chat::FINGERPRINT;
use crate::sampling::{AdapterScale, with_scales};
use crate::state::AppState;

/// Query parameters that select a model.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ModelQuery {
    /// Name of the model. Defaults to the first model.
    pub model: Option<String>,
}

/// Properties of the server and a model.
#[derive(Debug, Serialize, ToSchema)]
pub struct Props {
    /// Default sampling parameters and the context size.
    #[schema(value_type = Object)]
    pub default_generation_settings: Value,
    /// Number of requests that run at once.
    pub total_slots: usize,
    /// Name of the model.
    pub model_alias: String,
    /// Chat template of the model, as Jinja source.
    pub chat_template: String,
    /// Capabilities of the chat template.
    #[schema(value_type = Object)]
    pub chat_template_caps: Value,
    /// Text of the BOS token.
    pub bos_token: String,
    /// Text of the EOS token.
    pub eos_token: String,
    /// Name and version of the server.
    pub build_info: &'static str,
}

/// Get the properties of the server and a model
#[utoipa::path(
    get, path = "/props", tag = "llama-server",
    params(ModelQuery),
    responses(
        (status = 200, description = "The properties", body = Props),
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

/// A slot for a running request.
#[derive(Debug, Serialize, ToSchema)]
pub struct Slot {
    /// Number of the slot.
    pub id: usize,
    /// Name of the model.
    pub model: String,
    /// Context size: maximum number of tokens of a request, prompt and answer together.
    pub n_ctx: usize,
    /// True if the slot holds a request.
    pub is_processing: bool,
    /// Number of the request.
    pub id_task: Option<u64>,
    /// Tokens in the prompt.
    pub n_prompt_tokens: usize,
    /// Tokens generated so far.
    pub n_decoded: usize,
    /// Seconds since the request arrived.
    pub seconds: f64,
}

/// List slots
///
/// Queued requests follow the running ones. Prompts and answers are not shown.
#[utoipa::path(
    get, path = "/slots", tag = "llama-server",
    responses((status = 200, description = "All slots", body = Vec<Slot>)),
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

/// A LoRA adapter.
#[derive(Debug, Serialize, ToSchema)]
pub struct LoraAdapter {
    /// Number of the adapter.
    pub id: usize,
    /// Name of the adapter's file.
    pub path: String,
    /// Default scale, for requests that set none.
    pub scale: f32,
}

/// List LoRA adapters
#[utoipa::path(
    get, path = "/lora-adapters", tag = "llama-server",
    params(ModelQuery),
    responses(
        (status = 200, description = "The adapters loaded with the model", body = Vec<LoraAdapter>),
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
    // Directories are not disclosed to clients.
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

/// Set the default scales of LoRA adapters
///
/// Applies to later requests. Adapters that are not listed get the scale 0.
#[utoipa::path(
    post, path = "/lora-adapters", tag = "llama-server",
    params(ModelQuery),
    request_body = Vec<AdapterScale>,
    responses(
        (status = 200, description = "The adapters with their new scales", body = Vec<LoraAdapter>),
        OpenAiErrors,
    ),
)]
pub async fn scale_adapters(
    State(state): State<AppState>,
    Query(query): Query<ModelQuery>,
    Body(scales): Body<Vec<AdapterScale>>,
) -> ApiResult<Json<Vec<LoraAdapter>>> {
    let model = state.models().get(query.model.as_deref()).await?;
    let zeros = vec![0.0; model.adapter_scales().len()];
    model.set_adapter_scales(with_scales(zeros, &scales)?);
    Ok(Json(list_adapters(&model)))
}
