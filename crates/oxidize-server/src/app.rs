//! The router: every endpoint, and the middleware around them.

use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, Any, CorsLayer};

use crate::auth::{Client, authenticate};
use crate::body::{IGNORED, report_ignored};
use crate::error::{ApiError, translate};
use crate::generate::PANICKED;
use crate::openapi;
use crate::routes::{
    anthropic, chat, completions, embeddings, health, models, native, ollama, responses,
};
use crate::state::AppState;
use crate::webpage;

/// The router of the whole server.
pub fn app(state: AppState) -> Router {
    let routes = Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/responses", post(responses::create))
        .route("/responses", post(responses::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/embeddings", post(embeddings::create_native))
        .route("/embedding", post(embeddings::create_native))
        .route("/v1/rerank", post(embeddings::rerank))
        .route("/v1/reranking", post(embeddings::rerank))
        .route("/rerank", post(embeddings::rerank))
        .route("/reranking", post(embeddings::rerank))
        .route("/v1/models", get(models::list))
        .route("/models", get(models::list))
        .route("/v1/models/{*model}", get(models::get).post(models::load))
        .route("/health", get(health::ready))
        .route("/v1/health", get(health::ready))
        .route("/health/ready", get(health::ready))
        .route("/health/live", get(health::live))
        .route("/metrics", get(health::metrics))
        .route("/v1/messages", post(anthropic::create))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/completion", post(native::completion::completion))
        .route("/completions", post(native::completion::completion))
        .route("/infill", post(native::completion::infill))
        .route("/tokenize", post(native::text::tokenize))
        .route("/detokenize", post(native::text::detokenize))
        .route("/tokenizer_info", get(native::text::tokenizer_info))
        .route("/apply-template", post(native::text::apply_template))
        .route("/props", get(native::server::props))
        .route("/slots", get(native::server::slots))
        .route(
            "/lora-adapters",
            get(native::server::lora_adapters).post(native::server::scale_adapters),
        )
        .route("/api/generate", post(ollama::answer::generate))
        .route("/api/chat", post(ollama::answer::chat))
        .route("/api/tags", get(ollama::catalog::tags))
        .route("/api/ps", get(ollama::catalog::ps))
        .route("/api/show", post(ollama::catalog::show))
        .route("/api/embed", post(ollama::embed::embed))
        .route("/api/embeddings", post(ollama::embed::embed_one))
        .route("/api/pull", post(ollama::library::pull))
        .route("/api/copy", post(ollama::library::copy))
        .route("/api/create", post(ollama::library::create))
        .route("/api/delete", delete(ollama::library::delete))
        .route("/api/version", get(ollama::catalog::version))
        .route("/openapi.json", get(openapi::document))
        .merge(webpage::routes());
    layered(routes, state)
}

/// Adds all middleware to `routes`.
pub fn layered(routes: Router<AppState>, state: AppState) -> Router {
    let routes = routes
        .fallback(async || ApiError::not_found("no endpoint has this path; see /docs"))
        .method_not_allowed_fallback(async || ApiError::method_not_allowed());
    // The layer added last handles a request first.
    routes
        .layer(from_fn_with_state(state.clone(), authenticate))
        .layer(from_fn_with_state(state.clone(), check_origin))
        .layer(cors(&state))
        .layer(CatchPanicLayer::custom(|_| {
            ApiError::internal(PANICKED).into_response()
        }))
        .layer(from_fn(translate))
        .layer(from_fn(report_ignored))
        .layer(from_fn_with_state(state.clone(), observe))
        .with_state(state)
}

fn cors(state: &AppState) -> CorsLayer {
    let origins = &state.config().network.cors_origin;
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers([
            header::AUTHORIZATION,
            header::CONTENT_TYPE,
            HeaderName::from_static("x-api-key"),
            HeaderName::from_static("anthropic-version"),
        ])
        .expose_headers([IGNORED]);
    if origins.iter().any(|origin| origin == "*") {
        return layer.allow_origin(Any);
    }
    let allowed = origins
        .iter()
        .filter_map(|origin| origin.parse::<HeaderValue>().ok());
    layer.allow_origin(AllowOrigin::list(allowed))
}

/// Refuses requests that a foreign web page makes a browser send. The `Origin` header is checked for all POST
/// and DELETE requests. The `Host` header is checked if no API key is set, as a page can point its own name at this
/// machine (DNS rebinding) and its requests then count as same-origin.
async fn check_origin(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    check_headers(&state, request.method(), request.headers())?;
    Ok(next.run(request).await)
}

fn check_headers(state: &AppState, method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
    let network = &state.config().network;
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST);
    if let Some(host) = host
        && state.keys().is_empty()
        && !is_allowed_host(host, &network.allowed_host)
    {
        return Err(ApiError::forbidden(
            "Host header not allowed; see --allowed-host",
        ));
    }
    let origin = text(header::ORIGIN).filter(|_| [Method::POST, Method::DELETE].contains(method));
    if let Some(origin) = origin
        && origin.split_once("://").map(|(_, name)| name) != host
        && !network
            .cors_origin
            .iter()
            .any(|known| known == "*" || known == origin)
    {
        return Err(ApiError::forbidden(
            "Origin header not allowed; see --cors-origin",
        ));
    }
    Ok(())
}

/// True if a Host header is an IP address, `localhost` or an allowed name: others cannot point these at this
/// machine.
fn is_allowed_host(host: &str, allowed: &[String]) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let plain = name.trim_start_matches('[').trim_end_matches(']');
    let is_address = plain.parse::<std::net::IpAddr>().is_ok();
    let listed = |known: &String| known == "*" || known.eq_ignore_ascii_case(name);
    is_address || name.eq_ignore_ascii_case("localhost") || allowed.iter().any(listed)
}

/// Logs and counts each request, and assigns it an id.
async fn observe(
    State(state): State<AppState>,
    matched: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let start = Instant::now();
    let id = state.new_id("req_");
    let method = request.method().clone();
    // The route instead of the path: clients must not be able to create metrics without bound.
    let endpoint = matched.map_or("other".to_owned(), |path| path.as_str().to_owned());
    let mut response = next.run(request).await;
    let took = start.elapsed();
    let status = response.status().as_u16();
    state.metrics().response(&endpoint, status, took);
    let client = response.extensions().get::<Client>();
    let client = client.map_or("unknown", |client| client.name()).to_owned();
    let error = response
        .extensions()
        .get::<ApiError>()
        .map(|error| error.message.clone());
    let ms = took.as_secs_f64() * 1e3;
    if status >= 500 && status != 503 {
        tracing::error!(id, %method, endpoint, status, ms, client, error, "request");
    } else {
        tracing::info!(id, %method, endpoint, status, ms, client, error, "request");
    }
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert("x-request-id", id);
    }
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_headers_are_checked() {
        for allowed in [
            "127.0.0.1:8080",
            "localhost",
            "LOCALHOST:1",
            "[::1]:8080",
            "[::1]",
            "10.0.0.7",
        ] {
            assert!(is_allowed_host(allowed, &[]), "{allowed}");
        }
        for refused in [
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
        ] {
            assert!(!is_allowed_host(refused, &[]), "{refused}");
        }
        assert!(is_allowed_host("box.lan:80", &["box.lan".into()]));
        assert!(is_allowed_host("anything", &["*".into()]));
    }
}
