//! Health checks for probes, and metrics for Prometheus.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::state::AppState;

/// Status of the server.
#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// Always `ok`.
    pub status: &'static str,
}

/// Check readiness
#[utoipa::path(
    get, path = "/health", tag = "llama-server",
    responses(
        (status = 200, description = "The server accepts requests", body = Health),
        (status = 503, description = "The model is loading, or the server is shutting down", body = ErrorBody),
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

/// Check liveness
#[utoipa::path(
    get, path = "/health/live", tag = "llama-server",
    responses((status = 200, description = "The process is alive", body = Health)),
)]
pub async fn live() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// Get metrics
#[utoipa::path(
    get, path = "/metrics", tag = "llama-server",
    responses((status = 200, description = "Metrics in the text format of Prometheus", content_type = "text/plain", body = String)),
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
