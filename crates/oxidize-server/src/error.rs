//! [`ApiError`]: what a client is told when a request cannot be served, in the words of the API it speaks.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use oxidize_core::engine::EngineError;
use oxidize_core::grammar::GrammarError;
use oxidize_core::sampling::SamplingError;
use oxidize_core::scheduler::SubmitError;
use serde::Serialize;
use serde_json::json;
use utoipa::openapi::{self, RefOr};
use utoipa::{IntoResponses, ToSchema};

/// A result whose error can be sent to a client.
pub type ApiResult<T> = Result<T, ApiError>;

/// Why a request was not served.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP's word for it.
    pub status: StatusCode,
    /// OpenAI's word for it.
    pub kind: &'static str,
    /// A word for programs, where there is one.
    pub code: Option<&'static str>,
    /// A sentence for people.
    pub message: String,
    /// Seconds after which it is worth trying again.
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

    /// The request is wrong.
    pub fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// There is no such model.
    pub fn no_model(name: &str, known: &str) -> ApiError {
        let shown: String = name.chars().take(100).collect();
        ApiError {
            code: Some("model_not_found"),
            ..ApiError::new(
                StatusCode::NOT_FOUND,
                "invalid_request_error",
                format!("there is no model {shown:?} here; known are {known}"),
            )
        }
    }

    /// There is no such page.
    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// The page does not know the method.
    pub fn method_not_allowed() -> ApiError {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        ApiError::new(status, "invalid_request_error", "method not allowed")
    }

    /// No key, or a wrong one.
    pub fn unauthorized() -> ApiError {
        ApiError {
            code: Some("invalid_api_key"),
            ..ApiError::new(
                StatusCode::UNAUTHORIZED,
                "authentication_error",
                "a valid API key is needed: Authorization: Bearer KEY",
            )
        }
    }

    /// The request came in a way that is not allowed.
    pub fn forbidden(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// The body is larger than allowed.
    pub fn too_large(limit: usize) -> ApiError {
        ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            format!("the body is larger than {limit} bytes, which is the limit"),
        )
    }

    /// The client took too long to send its request.
    pub fn too_slow(seconds: u64) -> ApiError {
        ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "invalid_request_error",
            format!("the body did not arrive within {seconds} s"),
        )
    }

    /// Too much to do, or too much for this key.
    pub fn too_many(code: &'static str, message: impl Into<String>, retry_after: u64) -> ApiError {
        ApiError {
            code: Some(code),
            retry_after: Some(retry_after.max(1)),
            ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
        }
    }

    /// Not now: the model loads, or the server shuts down.
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

    /// This server cannot do what was asked, with this model or at all.
    pub fn not_supported(message: impl Into<String>) -> ApiError {
        ApiError {
            code: Some("not_supported"),
            ..ApiError::bad_request(message)
        }
    }

    /// The time that a request may take is over.
    pub fn timed_out(seconds: u64) -> ApiError {
        ApiError::new(
            StatusCode::GATEWAY_TIMEOUT,
            "timeout_error",
            format!("the request took longer than {seconds} s, which is the limit"),
        )
    }

    /// A fault of ours.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// The body in OpenAI's shape.
    pub fn body(&self) -> serde_json::Value {
        json!({ "error": {
            "message": self.message,
            "type": self.kind,
            "param": null,
            "code": self.code,
        }})
    }

    /// The body in the shape of another API.
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

/// Whose clients an endpoint is for.
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

/// Puts errors into the words of the API whose endpoint was asked.
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
            Error::Chat(_) => ApiError::bad_request(message),
            _ => ApiError::internal(message),
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

/// An error in OpenAI's shape, for the OpenAPI document.
#[derive(Serialize, ToSchema)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorDetail,
}

/// What went wrong.
#[derive(Serialize, ToSchema)]
pub struct ErrorDetail {
    /// A sentence for people.
    pub message: String,
    /// A class of errors.
    #[serde(rename = "type")]
    pub kind: String,
    /// The parameter, where it is known.
    pub param: Option<String>,
    /// A word for programs, where there is one.
    pub code: Option<String>,
}

/// An error in Anthropic's shape, for the OpenAPI document.
#[derive(Serialize, ToSchema)]
pub struct AnthropicErrorBody {
    /// Always `error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What went wrong.
    pub error: AnthropicErrorDetail,
}

/// What went wrong.
#[derive(Serialize, ToSchema)]
pub struct AnthropicErrorDetail {
    /// A class of errors.
    #[serde(rename = "type")]
    pub kind: String,
    /// A sentence for people.
    pub message: String,
}

/// An error in Ollama's shape, for the OpenAPI document.
#[derive(Serialize, ToSchema)]
pub struct OllamaErrorBody {
    /// A sentence for people.
    pub error: String,
}

/// What an endpoint answers to requests that it does not serve, in the shape `B`, for the OpenAPI document.
pub struct Errors<B>(PhantomData<B>);

/// The errors of OpenAI's endpoints, and of llama-server's.
pub type OpenAiErrors = Errors<ErrorBody>;
/// The errors of Anthropic's endpoints.
pub type AnthropicErrors = Errors<AnthropicErrorBody>;
/// The errors of Ollama's endpoints.
pub type OllamaErrors = Errors<OllamaErrorBody>;

impl<B: ToSchema> IntoResponses for Errors<B> {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        let answer = |(status, description): (&str, &str)| {
            let shape = openapi::Ref::from_schema_name(B::name());
            let response = openapi::ResponseBuilder::new()
                .description(description)
                .content("application/json", openapi::Content::new(Some(shape)));
            (status.to_owned(), RefOr::T(response.build()))
        };
        let known = [
            ("400", "The request is wrong"),
            ("4XX", "The request cannot be served"),
            ("5XX", "The server cannot serve it now"),
        ];
        known.map(answer).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_did_is_told_from_what_the_server_did() {
        let error = |error: EngineError| ApiError::from(oxidize_core::Error::Engine(error));
        let too_long = error(EngineError::Submit(SubmitError::TooLong {
            asked: 9000,
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
    fn each_api_has_its_shape() {
        let error = ApiError::bad_request("no");
        let shape = |path| error.body_for(Dialect::of(path));
        assert_eq!(
            shape("/v1/chat/completions")["error"]["type"],
            "invalid_request_error"
        );
        assert_eq!(shape("/v1/messages")["type"], "error");
        assert_eq!(shape("/api/chat")["error"], "no");
    }
}
