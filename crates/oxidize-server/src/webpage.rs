//! The chat page at `/` and the API reference at `/docs`: static files, embedded in the binary.

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::state::AppState;

/// Content security policy: the pages load nothing from other origins and cannot be framed.
const POLICY: &str = "default-src 'self'; img-src 'self' data:; style-src 'self'; script-src 'self'; \
                      frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

macro_rules! pages {
    ($($path:literal => $file:literal as $kind:literal),* $(,)?) => {
        Router::new()$(.route($path, get(async || page($kind, include_str!(concat!("../web/", $file))))))*
    };
}

/// Routes of the pages and their files.
pub fn routes() -> Router<AppState> {
    pages! {
        "/" => "index.html" as "text/html; charset=utf-8",
        "/docs" => "docs.html" as "text/html; charset=utf-8",
        "/web/style.css" => "style.css" as "text/css; charset=utf-8",
        "/web/app.js" => "app.js" as "text/javascript; charset=utf-8",
        "/web/markdown.js" => "markdown.js" as "text/javascript; charset=utf-8",
        "/web/docs.js" => "docs.js" as "text/javascript; charset=utf-8",
        "/favicon.svg" => "favicon.svg" as "image/svg+xml",
    }
}

fn page(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
