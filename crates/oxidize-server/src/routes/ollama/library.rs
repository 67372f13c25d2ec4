//! Ollama's `/api/pull`, `/api/copy`, `/api/create` and `/api/delete`: models are fetched by name, get further names
//! and are removed.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use oxidize_hub::{
    Error, Hub, Library, LocalModel, ModelRef, Observer, Progress, PullOptions, Stage,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use utoipa::ToSchema;

use crate::body::Body;
use crate::config::ModelSpec;
use crate::error::{ApiError, ApiResult, OllamaErrors};
use crate::fields::{OtherField, RequestBody};
use crate::state::AppState;

/// Shortest time between two lines of progress.
const INTERVAL: Duration = Duration::from_millis(100);

/// Request to fetch a model.
#[derive(Debug, Deserialize, ToSchema)]
pub struct PullRequest {
    /// Name of the model: `hf:USER/REPO[:QUANT]`, `hf.co/USER/REPO[:QUANT]`, `ms:USER/REPO`, or a name of Ollama's
    /// registry such as `llama3.2:1b`.
    pub model: Option<String>,
    /// Older name of the field `model`.
    pub name: Option<String>,
    /// Stream the progress; true by default.
    pub stream: Option<bool>,
}

impl RequestBody for PullRequest {
    const OTHER_FIELDS: &'static [&'static [OtherField]] = &[&[OtherField::only(
        "insecure",
        &[crate::fields::Literal::Bool(false)],
        "connections are always checked",
    )]];
}

/// Progress of a model that is fetched or made.
#[derive(Debug, Serialize, ToSchema)]
pub struct PullStatus {
    /// State; `success` at the end.
    pub status: String,
    /// Digest of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Bytes in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Bytes that are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<u64>,
}

impl PullStatus {
    fn new(status: impl Into<String>) -> PullStatus {
        PullStatus {
            status: status.into(),
            digest: None,
            total: None,
            completed: None,
        }
    }
}

/// Fetch a model
///
/// The model can be used under its name afterwards. Closing the connection stops the download; the next one goes on
/// where it ended.
#[utoipa::path(
    post, path = "/api/pull", tag = "Ollama",
    request_body = PullRequest,
    responses(
        (status = 200, description = "Lines of progress, or the last one", content(
            (PullStatus = "application/json"), (String = "application/x-ndjson"),
        )),
        OllamaErrors,
    ),
)]
pub async fn pull(
    State(state): State<AppState>,
    Body(request): Body<PullRequest>,
) -> ApiResult<Response> {
    check_allowed(&state)?;
    let name = required(request.model.or(request.name))?;
    let model = remote(&name)?;
    let (sender, lines) = unbounded_channel();
    let streamed = request.stream.unwrap_or(true);
    let work = {
        let sender = sender.clone();
        move || fetch(&state, &name, &model, &sender)
    };
    if !streamed {
        // The receiver lives as long as this request: a closed connection stops the download.
        let result = tokio::task::spawn_blocking(work).await;
        drop(lines);
        result.map_err(|error| ApiError::internal(error.to_string()))??;
        return Ok(Json(PullStatus::new("success")).into_response());
    }
    tokio::task::spawn_blocking(move || {
        let last = match work() {
            Ok(()) => json!(PullStatus::new("success")),
            Err(error) => json!({ "error": error.message }),
        };
        let _ = sender.send(last);
    });
    Ok(streamed_lines(lines))
}

/// Fetches a model and adds it to the models of the server.
fn fetch(
    state: &AppState,
    name: &str,
    model: &ModelRef,
    lines: &UnboundedSender<Value>,
) -> ApiResult<()> {
    let watched = lines.clone();
    let cancel = Arc::new(move || watched.is_closed());
    let hub = Hub::new(state.config().hub_settings(), Some(cancel)).map_err(from_hub)?;
    let observer = Lines {
        sender: lines,
        last: Mutex::new(None),
    };
    observer.send(&PullStatus::new("pulling manifest"));
    let memory = None;
    let pulled = hub
        .pull(
            model,
            &PullOptions {
                observer: &observer,
                memory,
            },
        )
        .map_err(from_hub)?;
    observer.send(&PullStatus::new("writing manifest"));
    let name = name.strip_suffix(":latest").unwrap_or(name).to_owned();
    if !state.models().add(ModelSpec {
        name: name.clone(),
        path: pulled.path,
    }) {
        let message = format!("{name} is in use with an older file; unload it and pull again");
        return Err(ApiError::unavailable(message));
    }
    tracing::info!(model = name, "model fetched");
    Ok(())
}

/// Sends progress as lines in Ollama's format.
struct Lines<'a> {
    sender: &'a UnboundedSender<Value>,
    last: Mutex<Option<(Stage, Instant)>>,
}

impl Lines<'_> {
    fn send(&self, status: &PullStatus) {
        // Nobody reads any more: the download stops soon.
        let _ = self.sender.send(json!(status));
    }
}

impl Observer for Lines<'_> {
    fn progress(&self, at: Progress<'_>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new =
            last.is_none_or(|(stage, then)| stage != at.stage || then.elapsed() >= INTERVAL);
        if !is_new && at.done < at.total {
            return;
        }
        *last = Some((at.stage, Instant::now()));
        drop(last);
        if at.stage == Stage::Verifying {
            return self.send(&PullStatus::new("verifying sha256 digest"));
        }
        let short: String = at.digest.chars().take(12).collect();
        self.send(&PullStatus {
            status: format!("pulling {short}"),
            digest: Some(format!("sha256:{}", at.digest)),
            total: Some(at.total),
            completed: Some(at.done),
        });
    }

    fn note(&self, text: &str) {
        self.send(&PullStatus::new(text));
    }
}

/// The response of lines that a thread sends.
fn streamed_lines(lines: UnboundedReceiver<Value>) -> Response {
    struct Receiver(UnboundedReceiver<Value>);

    impl Stream for Receiver {
        type Item = Result<Bytes, Infallible>;

        fn poll_next(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Self::Item>> {
            self.0
                .poll_recv(context)
                .map(|line| line.map(|line| Ok(Bytes::from(format!("{line}\n")))))
        }
    }

    let body = axum::body::Body::from_stream(Receiver(lines));
    ([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}

/// Request to copy a model.
#[derive(Debug, Deserialize, ToSchema)]
pub struct CopyRequest {
    /// Name of a model of the local library.
    pub source: String,
    /// New name.
    pub destination: String,
}

impl RequestBody for CopyRequest {}

/// Copy a model
///
/// The bytes are shared by both names.
#[utoipa::path(
    post, path = "/api/copy", tag = "Ollama",
    request_body = CopyRequest,
    responses((status = 200, description = "The copy was made"), OllamaErrors),
)]
pub async fn copy(
    State(state): State<AppState>,
    Body(request): Body<CopyRequest>,
) -> ApiResult<()> {
    check_allowed(&state)?;
    name_copy(&state, &request.source, &request.destination)
}

/// Request to make a model.
#[derive(Debug, Deserialize, ToSchema)]
pub struct CreateRequest {
    /// New name.
    pub model: Option<String>,
    /// Older name of the field `model`.
    pub name: Option<String>,
    /// Name of a model of the local library.
    pub from: Option<String>,
    /// Stream the progress; true by default.
    pub stream: Option<bool>,
}

impl RequestBody for CreateRequest {
    const OTHER_FIELDS: &'static [&'static [OtherField]] = &[&[
        OtherField::only(
            "files",
            &[crate::fields::Literal::Empty],
            "models are made from other models",
        ),
        OtherField::only(
            "adapters",
            &[crate::fields::Literal::Empty],
            "adapters are set with --lora",
        ),
        OtherField::only(
            "template",
            &[crate::fields::Literal::Empty],
            "a model has its own chat template",
        ),
        OtherField::only(
            "license",
            &[crate::fields::Literal::Empty],
            "a model has its own license",
        ),
        OtherField::only(
            "system",
            &[crate::fields::Literal::Empty],
            "a system prompt belongs to a request",
        ),
        OtherField::only(
            "parameters",
            &[crate::fields::Literal::Empty],
            "options belong to a request",
        ),
        OtherField::only(
            "messages",
            &[crate::fields::Literal::Empty],
            "messages belong to a request",
        ),
        OtherField::only(
            "modelfile",
            &[crate::fields::Literal::Empty],
            "use the field `from`",
        ),
        OtherField::only(
            "quantize",
            &[crate::fields::Literal::Empty],
            "use `oxidize quantize`",
        ),
    ]];
}

/// Make a model from another one
///
/// The new model is a second name of the same file.
#[utoipa::path(
    post, path = "/api/create", tag = "Ollama",
    request_body = CreateRequest,
    responses(
        (status = 200, description = "Lines of progress, or the last one", content(
            (PullStatus = "application/json"), (String = "application/x-ndjson"),
        )),
        OllamaErrors,
    ),
)]
pub async fn create(
    State(state): State<AppState>,
    Body(request): Body<CreateRequest>,
) -> ApiResult<Response> {
    check_allowed(&state)?;
    let name = required(request.model.or(request.name))?;
    let from = request
        .from
        .ok_or_else(|| ApiError::bad_request("`from` is missing: the name of a model"))?;
    name_copy(&state, &from, &name)?;
    let success = PullStatus::new("success");
    if !request.stream.unwrap_or(true) {
        return Ok(Json(success).into_response());
    }
    let (sender, lines) = unbounded_channel();
    for status in [PullStatus::new("writing manifest"), success] {
        // The receiver is still here.
        let _ = sender.send(json!(status));
    }
    Ok(streamed_lines(lines))
}

/// Gives a model of the library a second name, and offers it.
fn name_copy(state: &AppState, source: &str, destination: &str) -> ApiResult<()> {
    let library = Library::new(&state.config().hub_settings());
    let model = local(state, &library, source)?;
    let name = destination.strip_suffix(":latest").unwrap_or(destination);
    let path = library
        .copy(&model.path, &model.files, name)
        .map_err(from_hub)?;
    state.models().add(ModelSpec {
        name: name.to_owned(),
        path,
    });
    Ok(())
}

/// Request to remove a model.
#[derive(Debug, Deserialize, ToSchema)]
pub struct DeleteRequest {
    /// Name of the model.
    pub model: Option<String>,
    /// Older name of the field `model`.
    pub name: Option<String>,
}

impl RequestBody for DeleteRequest {}

/// Remove a model from this machine
#[utoipa::path(
    delete, path = "/api/delete", tag = "Ollama",
    request_body = DeleteRequest,
    responses((status = 200, description = "The model was removed"), OllamaErrors),
)]
pub async fn delete(
    State(state): State<AppState>,
    Body(request): Body<DeleteRequest>,
) -> ApiResult<()> {
    check_allowed(&state)?;
    let name = required(request.model.or(request.name))?;
    let library = Library::new(&state.config().hub_settings());
    let model = local(&state, &library, &name)?;
    for entry in state.models().entries() {
        if model.files.contains(&entry.spec.path) || model.path == entry.spec.path {
            state.models().remove(&entry.spec.name).await?;
        }
    }
    library.remove(&model).map_err(from_hub)?;
    tracing::info!(model = name, "model removed");
    Ok(())
}

/// The model of the library with this name: its own, or the one under which the server offers it.
fn local(state: &AppState, library: &Library, name: &str) -> ApiResult<LocalModel> {
    let plain = name.strip_suffix(":latest").unwrap_or(name);
    let offered = state
        .models()
        .entries()
        .into_iter()
        .find(|entry| entry.spec.name == plain);
    let mut matches = match offered {
        Some(entry) => {
            let mut all = library.list();
            all.retain(|model| model.path == entry.spec.path);
            all
        }
        None => library.matching(name),
    };
    if matches.is_empty()
        && let Ok(model) = remote(name)
    {
        matches = library.matching(&model.to_string());
    }
    match matches.len() {
        1 => Ok(matches.remove(0)),
        0 => Err(ApiError::not_found(format!(
            "model {name:?} not found in the local library"
        ))),
        _ => {
            let names: Vec<&str> = matches.iter().map(|model| model.name.as_str()).collect();
            Err(ApiError::bad_request(format!(
                "several models match {name:?}: {}",
                names.join(", ")
            )))
        }
    }
}

/// The name of a model to fetch. Names without a prefix are those of Ollama's registry.
fn remote(name: &str) -> ApiResult<ModelRef> {
    let parsed = ModelRef::parse(name).or_else(|| ModelRef::parse(&format!("ollama:{name}")));
    match parsed {
        // An address could be one that only this machine reaches.
        Some(Ok(ModelRef::Web(_))) => Err(ApiError::not_supported(
            "clients may fetch models from hubs, not from other addresses",
        )),
        Some(Ok(model)) => Ok(model),
        Some(Err(error)) => Err(from_hub(error)),
        None => Err(ApiError::bad_request(format!(
            "{name:?} is not the name of a model"
        ))),
    }
}

fn required(name: Option<String>) -> ApiResult<String> {
    name.filter(|name| !name.is_empty())
        .ok_or_else(|| ApiError::bad_request("`model` is missing: the name of a model"))
}

fn check_allowed(state: &AppState) -> ApiResult<()> {
    if state.config().may_manage_models() {
        return Ok(());
    }
    Err(ApiError::forbidden(
        "clients may not fetch or remove models on this address; see --manage-models",
    ))
}

fn from_hub(error: Error) -> ApiError {
    let message = error.to_string();
    match error {
        Error::NotFound { .. }
        | Error::NoRevision { .. }
        | Error::NoMatch { .. }
        | Error::NoModel { .. }
        | Error::NotLocal { .. } => ApiError::not_found(message),
        Error::BadName { .. } | Error::Ambiguous { .. } => ApiError::bad_request(message),
        Error::NotSupported { .. } => ApiError::not_supported(message),
        Error::Gated { .. } | Error::BadToken { .. } | Error::Disabled { .. } => {
            ApiError::forbidden(message)
        }
        Error::RateLimited { wait, .. } => {
            ApiError::too_many("rate_limited", message, wait.unwrap_or(1))
        }
        Error::Unreachable { .. } | Error::Offline { .. } | Error::Canceled { .. } => {
            ApiError::unavailable(message)
        }
        _ => ApiError::internal(message),
    }
}
