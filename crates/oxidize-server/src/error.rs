//! [`ApiError`]: an error that is sent to a client, in the format of the API that the client uses.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use oxidize_core::chat::ChatError;
use oxidize_core::engine::EngineError;
use oxidize_core::grammar::GrammarError;
use oxidize_core::model::ModelError;
use oxidize_core::sampling::SamplingError;
use oxidize_core::scheduler::SubmitError;
use serde::Serialize;
use serde_json::json;
use utoipa::openapi::{self, RefOr};
use utoipa::{IntoResponses, ToSchema};

/// A result whose error is sent to the client.
pub type ApiResult<T> = Result<T, ApiError>;

/// An error of a request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status code.
    pub status: StatusCode,
    /// Error type in OpenAI's API.
    pub kind: &'static str,
    /// Error code for programs.
    pub code: Option<&'static str>,
    /// Description for people.
    pub message: String,
    /// Seconds to wait before the next try.
    pub retry_after: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            kind,
            code: None,
            message: message.into(),
            retry_after: None,
        }
    }

    /// 400: the request is invalid.
    pub fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 404: no model has this name. The message lists the `known` ones.
    pub fn no_model(name: &str, known: &str) -> ApiError {
        let shown: String = name.chars().take(100).collect();
        ApiError {
            code: Some("model_not_found"),
            ..ApiError::new(
                StatusCode::NOT_FOUND,
                "invalid_request_error",
                format!("model {shown:?} not found; available models: {known}"),
            )
        }
    }

    /// 404: no endpoint has this path.
    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// 405: the endpoint does not support the method.
    pub fn method_not_allowed() -> ApiError {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        ApiError::new(status, "invalid_request_error", "method not allowed")
    }

    /// 401: the API key is missing or wrong.
    pub fn unauthorized() -> ApiError {
        ApiError {
            code: Some("invalid_api_key"),
            ..ApiError::new(
                StatusCode::UNAUTHORIZED,
                "authentication_error",
                "missing or invalid API key; send the header `Authorization: Bearer KEY`",
            )
        }
    }

    /// 403: the host or the origin of the request is not allowed.
    pub fn forbidden(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// 413: the body is too large.
    pub fn too_large(limit: usize) -> ApiError {
        ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            format!("the request body exceeds the limit of {limit} bytes"),
        )
    }

    /// 408: the body did not arrive in time.
    pub fn too_slow(seconds: u64) -> ApiError {
        ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "invalid_request_error",
            format!("the request body did not arrive within {seconds} s"),
        )
    }

    /// 429: the queue is full, or a rate limit of the key is exceeded.
    pub fn too_many(code: &'static str, message: impl Into<String>, retry_after: u64) -> ApiError {
        ApiError {
            code: Some(code),
            retry_after: Some(retry_after.max(1)),
            ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
        }
    }

    /// 503: the model cannot be loaded now, or the server shuts down.
    pub fn unavailable(message: impl Into<String>) -> ApiError {
        ApiError {
            retry_after: Some(1),
            ..ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable_error",
                message,
            )
        }
    }

    /// 400: the server or the model does not support a feature that the request uses.
    pub fn not_supported(message: impl Into<String>) -> ApiError {
        ApiError {
            code: Some("not_supported"),
            ..ApiError::bad_request(message)
        }
    }

    /// 504: the request took too long.
    pub fn timed_out(seconds: u64) -> ApiError {
        ApiError::new(
            StatusCode::GATEWAY_TIMEOUT,
            "timeout_error",
            format!("the request exceeded the time limit of {seconds} s"),
        )
    }

    /// 500: an internal error.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// The body in OpenAI's format.
    pub fn body(&self) -> serde_json::Value {
        json!({ "error": {
            "message": self.message,
            "type": self.kind,
            "param": null,
            "code": self.code,
        }})
    }

    /// The body in the format of another API.
    fn body_for(&self, dialect: Dialect) -> serde_json::Value {
        match dialect {
            Dialect::OpenAi => self.body(),
            Dialect::Anthropic => {
                let kind = match self.status.as_u16() {
                    404 => "not_found_error",
                    413 => "request_too_large",
                    503 | 504 => "overloaded_error",
                    500 => "api_error",
                    _ => self.kind,
                };
                json!({ "type": "error", "error": { "type": kind, "message": self.message } })
            }
            Dialect::Ollama => json!({ "error": self.message }),
        }
    }

    fn response(&self, dialect: Dialect) -> Response {
        let mut response = (self.status, Json(self.body_for(dialect))).into_response();
        if let Some(seconds) = self.retry_after {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let headers = response.headers_mut();
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The API that an endpoint belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Dialect {
    fn of(path: &str) -> Dialect {
        if path.starts_with("/v1/messages") {
            Dialect::Anthropic
        } else if path.starts_with("/api/") {
            Dialect::Ollama
        } else {
            Dialect::OpenAi
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.response(Dialect::OpenAi);
        response.extensions_mut().insert(self);
        response
    }
}

/// Converts errors to the format of the API whose endpoint was requested.
pub(crate) async fn translate(request: Request, next: Next) -> Response {
    let dialect = Dialect::of(request.uri().path());
    let response = next.run(request).await;
    match response.extensions().get::<ApiError>() {
        Some(error) if dialect != Dialect::OpenAi => error.response(dialect),
        _ => response,
    }
}

impl From<oxidize_core::Error> for ApiError {
    fn from(error: oxidize_core::Error) -> ApiError {
        use oxidize_core::Error;
        let message = error.to_string();
        match error {
            Error::Engine(error) => engine(&error, message),
            Error::Chat(error) => error.into(),
            Error::Model(ModelError::OutOfMemory { .. }) => ApiError::unavailable(message),
            _ => ApiError::internal(message),
        }
    }
}

impl From<ChatError> for ApiError {
    fn from(error: ChatError) -> ApiError {
        match error {
            ChatError::UnsupportedContent { .. } => ApiError::not_supported(error.to_string()),
            _ => ApiError::bad_request(error.to_string()),
        }
    }
}

impl From<SamplingError> for ApiError {
    fn from(error: SamplingError) -> ApiError {
        sampling(&error, error.to_string())
    }
}

fn engine(error: &EngineError, message: String) -> ApiError {
    match error {
        EngineError::Submit(SubmitError::QueueFull { .. }) => {
            ApiError::too_many("queue_full", message, 1)
        }
        EngineError::Submit(SubmitError::TooLong { .. }) => ApiError {
            code: Some("context_length_exceeded"),
            ..ApiError::bad_request(message)
        },
        EngineError::Grammar(GrammarError::Fault) => ApiError::internal(message),
        EngineError::Submit(_)
        | EngineError::Beams(_)
        | EngineError::NoPromptLogprobs(_)
        | EngineError::Grammar(_)
        | EngineError::TokenOutOfRange { .. }
        | EngineError::TextLength { .. } => ApiError::bad_request(message),
        EngineError::Sampling(error) => sampling(error, message),
        EngineError::Stopped => ApiError::unavailable(message),
        _ => ApiError::internal(message),
    }
}

fn sampling(error: &SamplingError, message: String) -> ApiError {
    match error {
        SamplingError::BadLogit { .. } | SamplingError::Length { .. } => {
            ApiError::internal(message)
        }
        _ => ApiError::bad_request(message),
    }
}

/// An error in OpenAI's format.
#[derive(Serialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

/// Details of an error.
#[derive(Serialize, ToSchema)]
pub struct ErrorDetail {
    /// Description for people.
    pub message: String,
    /// Error type, such as `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Always null.
    pub param: Option<String>,
    /// Error code for programs, such as `model_not_found`.
    pub code: Option<String>,
}

/// An error in Anthropic's format.
#[derive(Serialize, ToSchema)]
pub struct AnthropicErrorBody {
    /// Always `error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The error.
    pub error: AnthropicErrorDetail,
}

/// Details of an error.
#[derive(Serialize, ToSchema)]
pub struct AnthropicErrorDetail {
    /// Error type, such as `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Description for people.
    pub message: String,
}

/// An error in Ollama's format.
#[derive(Serialize, ToSchema)]
pub struct OllamaErrorBody {
    /// Description for people.
    pub error: String,
}

/// Error responses of an endpoint in the format `B`, for the OpenAPI document.
pub struct Errors<B>(PhantomData<B>);

/// Error responses of the endpoints of OpenAI's and llama-server's APIs.
pub type OpenAiErrors = Errors<ErrorBody>;
/// Error responses of the endpoints of Anthropic's API.
pub type AnthropicErrors = Errors<AnthropicErrorBody>;
/// Error responses of the endpoints of Ollama's API.
pub type OllamaErrors = Errors<OllamaErrorBody>;

impl<B: ToSchema> IntoResponses for Errors<B> {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        let entry = |(status, description): (&str, &str)| {
            let schema = openapi::Ref::from_schema_name(B::name());
            let response = openapi::ResponseBuilder::new()
                .description(description)
                .content("application/json", openapi::Content::new(Some(schema)));
            (status.to_owned(), RefOr::T(response.build()))
        };
        let known = [
            ("400", "The request is invalid"),
            (
                "4XX",
                "The request is refused, for example for a missing key or a rate limit",
            ),
            ("5XX", "The server failed or is unavailable"),
        ];
        known.map(entry).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_errors_are_4xx_and_server_errors_5xx() {
        let error = |error: EngineError| ApiError::from(oxidize_core::Error::Engine(error));
        let too_long = error(EngineError::Submit(SubmitError::TooLong {
            requested: 9000,
            limit: 4096,
        }));
        assert_eq!(too_long.status, 400);
        assert!(too_long.message.contains("9000") && too_long.message.contains("4096"));
        let full = error(EngineError::Submit(SubmitError::QueueFull { limit: 8 }));
        assert_eq!((full.status.as_u16(), full.retry_after), (429, Some(1)));
        let nan = SamplingError::BadLogit {
            token: 3,
            value: f32::NAN,
        };
        assert_eq!(error(EngineError::Sampling(nan)).status, 500);
        assert_eq!(error(EngineError::Internal("x".into())).status, 500);
        assert_eq!(error(EngineError::Stopped).status, 503);
    }

    #[test]
    fn errors_have_the_format_of_the_api() {
        let error = ApiError::bad_request("no");
        let body = |path| error.body_for(Dialect::of(path));
        assert_eq!(
            body("/v1/chat/completions")["error"]["type"],
            "invalid_request_error"
        );
        assert_eq!(body("/v1/messages")["type"], "error");
        assert_eq!(body("/api/chat")["error"], "no");
    }
}
