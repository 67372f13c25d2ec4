//! The OpenAPI document of the server.

use axum::Json;
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};

use crate::error::{AnthropicErrorBody, ErrorBody, OllamaErrorBody};

/// All endpoints with their types.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "oxidize",
        description = "Local models, compatible with clients of OpenAI, Anthropic, Ollama and llama-server.",
    ),
    paths(
        crate::routes::chat::create,
        crate::routes::completions::create,
        crate::routes::responses::create,
        crate::routes::embeddings::create,
        crate::routes::embeddings::create_native,
        crate::routes::embeddings::rerank,
        crate::routes::models::list,
        crate::routes::models::get,
        crate::routes::models::load,
        crate::routes::anthropic::create,
        crate::routes::anthropic::count_tokens,
        crate::routes::native::completion::completion,
        crate::routes::native::completion::infill,
        crate::routes::native::text::tokenize,
        crate::routes::native::text::detokenize,
        crate::routes::native::text::tokenizer_info,
        crate::routes::native::text::apply_template,
        crate::routes::native::server::props,
        crate::routes::native::server::slots,
        crate::routes::native::server::lora_adapters,
        crate::routes::native::server::scale_adapters,
        crate::routes::ollama::answer::generate,
        crate::routes::ollama::answer::chat,
        crate::routes::ollama::catalog::tags,
        crate::routes::ollama::catalog::ps,
        crate::routes::ollama::catalog::show,
        crate::routes::ollama::embed::embed,
        crate::routes::ollama::embed::embed_one,
        crate::routes::ollama::library::pull,
        crate::routes::ollama::library::copy,
        crate::routes::ollama::library::create,
        crate::routes::ollama::library::delete,
        crate::routes::ollama::catalog::version,
        crate::routes::health::ready,
        crate::routes::health::live,
        crate::routes::health::metrics,
    ),
    components(schemas(ErrorBody, AnthropicErrorBody, OllamaErrorBody)),
    modifiers(&Bearer),
    security(("key" = [])),
)]
pub struct ApiDocument;

/// Adds the security scheme: an API key in the `Authorization` header.
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
