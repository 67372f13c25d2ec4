//! Whether the server is well, and what it counts: for probes and for those who watch.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::state::AppState;

/// How the server is.
#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// `ok`
    pub status: &'static str,
}

/// Whether requests are welcome
#[utoipa::path(
    get, path = "/health", tag = "llama-server",
    responses(
        (status = 200, description = "Requests are welcome", body = Health),
        (status = 503, description = "The model loads, or the server shuts down", body = ErrorBody),
    ),
)]
pub async fn ready(State(state): State<AppState>) -> ApiResult<Json<Health>> {
    if state.is_draining() {
        return Err(ApiError::unavailable("the server is shutting down"));
    }
    if !state.is_ready() {
        return Err(ApiError::unavailable("Loading model"));
    }
    Ok(Json(Health { status: "ok" }))
}

/// Whether the process is alive
#[utoipa::path(
    get, path = "/health/live", tag = "llama-server",
    responses((status = 200, description = "It is", body = Health)),
)]
pub async fn live() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// Counters for Prometheus
#[utoipa::path(
    get, path = "/metrics", tag = "llama-server",
    responses((status = 200, description = "In Prometheus' text format", content_type = "text/plain", body = String)),
)]
pub async fn metrics(State(state): State<AppState>) -> Response {
    let text = state.metrics().render(&state.models().gauges());
    (
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    )
        .into_response()
}
