//! The OpenAPI document of everything that is served.

use axum::Json;
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};

/// Every endpoint with its types.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "oxidize",
        description = "Local models for clients of OpenAI, Anthropic, Ollama and llama-server.",
    ),
    paths(
        crate::routes::chat::create,
        crate::routes::completions::create,
        crate::routes::responses::create,
        crate::routes::embeddings::create,
        crate::routes::embeddings::rerank,
        crate::routes::models::list,
        crate::routes::models::get,
        crate::routes::anthropic::create,
        crate::routes::anthropic::count_tokens,
        crate::routes::native::completion,
        crate::routes::native::infill,
        crate::routes::native::tokenize,
        crate::routes::native::detokenize,
        crate::routes::native::apply_template,
        crate::routes::native::props,
        crate::routes::native::slots,
        crate::routes::native::lora_adapters,
        crate::routes::native::scale_adapters,
        crate::routes::ollama::generate,
        crate::routes::ollama::chat,
        crate::routes::ollama::tags,
        crate::routes::ollama::ps,
        crate::routes::ollama::show,
        crate::routes::ollama::embed,
        crate::routes::ollama::version,
        crate::routes::health::ready,
        crate::routes::health::live,
        crate::routes::health::metrics,
    ),
    modifiers(&Bearer),
    security(("key" = [])),
)]
pub struct ApiDocument;

/// Keys go into the Authorization header.
struct Bearer;

impl utoipa::Modify for Bearer {
    fn modify(&self, document: &mut Document) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("key", scheme);
    }
}

pub(crate) async fn document() -> Json<Document> {
    Json(ApiDocument::openapi())
}
