//! [`Body`]: the JSON body of a request, read within limits. Errors name the field that is wrong, and fields
//! that nobody knows are reported.

use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{FromRef, FromRequest, Request};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::Value;

use crate::error::{ApiError, ApiResult};
use crate::fields::{RequestBody, RequestFields};
use crate::state::AppState;

/// Header that lists the fields of a request that the server does not know.
pub const IGNORED: HeaderName = HeaderName::from_static("x-oxidize-ignored");

/// Maximum length of the list in the header, in bytes.
const MAX_IGNORED: usize = 1024;

/// The parsed body of a request.
pub struct Body<T>(pub T);

impl<S, T> FromRequest<S> for Body<T>
where
    S: Send + Sync,
    AppState: FromRef<S>,
    T: RequestBody,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Body<T>, ApiError> {
        let state = AppState::from_ref(state);
        let limits = &state.config().limits;
        let ignored = request.extensions().get::<IgnoredFields>().cloned();
        let (limit, timeout) = (limits.max_body, limits.io_timeout());
        let reading = axum::body::to_bytes(request.into_body(), limit);
        let bytes = match tokio::time::timeout(timeout, reading).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) if is_too_long(&error) => return Err(ApiError::too_large(limit)),
            Ok(Err(_)) => return Err(ApiError::bad_request("the request body could not be read")),
            Err(_) => return Err(ApiError::too_slow(timeout.as_secs())),
        };
        let (value, unknown) = read::<T>(&bytes)?;
        if let Some(field) = unknown.first().filter(|_| state.config().strict) {
            let message = format!("unknown field `{field}` (this server is --strict)");
            return Err(ApiError::bad_request(message));
        }
        if let Some(ignored) = ignored {
            *ignored.0.lock().unwrap_or_else(PoisonError::into_inner) = unknown;
        }
        parse::<T>(&value, bytes.len()).map(Body)
    }
}

/// The unknown fields of a request, on their way to the header of the response.
#[derive(Clone, Default)]
struct IgnoredFields(Arc<Mutex<Vec<String>>>);

/// Lists the unknown fields of a request in a header of the response.
pub(crate) async fn report_ignored(mut request: Request, next: Next) -> Response {
    let ignored = IgnoredFields::default();
    request.extensions_mut().insert(ignored.clone());
    let mut response = next.run(request).await;
    let fields = std::mem::take(&mut *ignored.0.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(list) = header_list(&fields) {
        response.headers_mut().insert(IGNORED, list);
    }
    response
}

/// The names of fields in printable ASCII, separated by commas; `...` if there are too many.
fn header_list(fields: &[String]) -> Option<HeaderValue> {
    let mut list = String::new();
    for field in fields {
        let plain = |c: char| c.is_ascii_graphic() && c != ',';
        let name = field.chars().map(|c| if plain(c) { c } else { '?' });
        let name: String = name.collect();
        let separator = if list.is_empty() { "" } else { ", " };
        if list.len() + separator.len() + name.len() + 5 > MAX_IGNORED {
            list.push_str(", ...");
            break;
        }
        list.push_str(separator);
        list.push_str(&name);
    }
    if list.is_empty() {
        return None;
    }
    HeaderValue::from_str(&list).ok()
}

fn is_too_long(error: &axum::Error) -> bool {
    let source = std::error::Error::source(error);
    source.is_some_and(|source| source.is::<http_body_util::LengthLimitError>())
}

/// Maximum size of a body in which the wrong field is searched for.
const MAX_EXPLAINED: usize = 1 << 16;

/// Reads the JSON of a request, and the paths of its unknown fields.
fn read<T: RequestBody>(bytes: &[u8]) -> ApiResult<(Value, Vec<String>)> {
    // Parsed as a value first: errors here are JSON syntax, and nesting is limited.
    let value: Value = serde_json::from_slice(bytes).map_err(|error| {
        ApiError::bad_request(format!("the request body is not valid JSON: {error}"))
    })?;
    if !value.is_object() && !value.is_array() {
        return Err(ApiError::bad_request(
            "the request body must be a JSON object",
        ));
    }
    let unknown = RequestFields::of::<T>().unknown(&value)?;
    Ok((value, unknown))
}

/// Parses a request of `length` bytes. The error names the wrong field and the forms that it accepts.
fn parse<T: RequestBody>(value: &Value, length: usize) -> ApiResult<T> {
    let error = match T::deserialize(value) {
        Ok(request) => return Ok(request),
        Err(error) => error,
    };
    let fields = RequestFields::of::<T>();
    if let Some(problem) = fields.mismatch(value) {
        return Err(ApiError::bad_request(problem));
    }
    let field = (length <= MAX_EXPLAINED)
        .then(|| wrong_field::<T>(value, &error))
        .flatten();
    let forms = field.as_deref().and_then(|field| fields.forms(field));
    let error = error.to_string();
    // The message of an untagged enum names a type of this program.
    let is_internal = error.contains("untagged enum");
    Err(ApiError::bad_request(match (field, forms) {
        (Some(field), Some(forms)) if is_internal => format!("`{field}` must be {forms}"),
        (Some(field), _) if !is_internal => format!("`{field}`: {error}"),
        _ if is_internal => "a field of the request has a form that is not supported".to_owned(),
        _ => error,
    }))
}

/// The field without which the request parses, or else the one without which the error changes.
fn wrong_field<T: RequestBody>(value: &Value, error: &serde_json::Error) -> Option<String> {
    let fields = value.as_object()?;
    let without = |name: &String| {
        let mut others = fields.clone();
        others.shift_remove(name);
        T::deserialize(&Value::Object(others)).map(|_| ())
    };
    let message = error.to_string();
    let changes_error =
        |name: &&String| without(name).is_err_and(|other| other.to_string() != message);
    let name = fields
        .keys()
        .find(|name| without(name).is_ok())
        .or_else(|| fields.keys().find(changes_error))?;
    Some(name.chars().take(64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use utoipa::ToSchema;

    #[derive(Debug, Deserialize, ToSchema)]
    struct Inner {
        top_k: Option<u32>,
    }

    impl RequestBody for Outer {}

    fn parse_text(text: &str) -> ApiResult<(Outer, Vec<String>)> {
        let (value, unknown) = read::<Outer>(text.as_bytes())?;
        Ok((parse(&value, text.len())?, unknown))
    }

    #[test]
    fn the_header_is_ascii_and_bounded() {
        let list = |fields: &[&str]| {
            let fields: Vec<String> = fields.iter().map(|&f| f.to_owned()).collect();
            header_list(&fields).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(list(&[]), None);
        assert_eq!(list(&["a", "b.c"]).unwrap(), "a, b.c");
        assert_eq!(list(&["a\r\nx: y", "ü,"]).unwrap(), "a??x:?y, ??");
        let long = list(&[&*"x".repeat(90); 64]).unwrap();
        assert!(
            long.len() <= MAX_IGNORED && long.ends_with(", ..."),
            "{long}"
        );
    }

    #[derive(Debug, Deserialize, ToSchema)]
    struct Outer {
        name: String,
        #[serde(flatten)]
        inner: Inner,
    }

    #[test]
    fn errors_name_the_wrong_field() {
        let problem = |text: &str| parse_text(text).unwrap_err().message;
        assert!(problem(r#"{"name":"a","top_k":-1}"#).starts_with("`top_k`"));
        assert!(problem(r#"{"name":"a","top_k":9223372036854775808}"#).starts_with("`top_k`"));
        assert!(problem(r#"{"top_k":1}"#).contains("missing field `name`"));
        assert!(problem(r#"{"name":"a","top_k":1e400}"#).contains("number out of range"));
        assert!(problem(r#"{"name":"a","top_k":NaN}"#).contains("not valid JSON"));
        assert!(problem("5").contains("must be a JSON object"));
        assert!(problem(&"[".repeat(100_000)).contains("recursion limit"));
        assert!(problem(r#"{"name":[],"top_k":1}"#).starts_with("`name`"));
        let (good, unknown) = parse_text(r#"{"name":"a","top_k":3,"other":true}"#).unwrap();
        assert_eq!((good.name.as_str(), good.inner.top_k), ("a", Some(3)));
        assert_eq!(unknown, ["other"]);
    }
}
