//! [`Body`]: the JSON body of a request, read within limits. Errors name the field that is wrong.

use axum::extract::{FromRef, FromRequest, Request};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::ApiError;
use crate::state::AppState;

/// The parsed body of a request.
pub struct Body<T>(pub T);

impl<S, T> FromRequest<S> for Body<T>
where
    S: Send + Sync,
    AppState: FromRef<S>,
    T: DeserializeOwned,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Body<T>, ApiError> {
        let state = AppState::from_ref(state);
        let limits = &state.config().limits;
        let (limit, timeout) = (limits.max_body, limits.io_timeout());
        let reading = axum::body::to_bytes(request.into_body(), limit);
        let bytes = match tokio::time::timeout(timeout, reading).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) if is_too_long(&error) => return Err(ApiError::too_large(limit)),
            Ok(Err(_)) => return Err(ApiError::bad_request("the request body could not be read")),
            Err(_) => return Err(ApiError::too_slow(timeout.as_secs())),
        };
        parse(&bytes).map(Body)
    }
}

fn is_too_long(error: &axum::Error) -> bool {
    let source = std::error::Error::source(error);
    source.is_some_and(|source| source.is::<http_body_util::LengthLimitError>())
}

/// Maximum size of a body in which the wrong field is searched for.
const MAX_EXPLAINED: usize = 1 << 16;

/// Parses a request. The error names the wrong field if it can be found.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    // Parsed as a value first: errors here are JSON syntax, and nesting is limited.
    let value: Value = serde_json::from_slice(bytes).map_err(|error| {
        ApiError::bad_request(format!("the request body is not valid JSON: {error}"))
    })?;
    if !value.is_object() && !value.is_array() {
        return Err(ApiError::bad_request(
            "the request body must be a JSON object",
        ));
    }
    let small = bytes.len() <= MAX_EXPLAINED;
    let error = match T::deserialize(&value) {
        Ok(request) => return Ok(request),
        Err(error) => error,
    };
    let field = if small {
        wrong_field::<T>(&value, &error)
    } else {
        None
    };
    Err(ApiError::bad_request(match field {
        Some(field) => format!("`{field}`: {error}"),
        None => error.to_string(),
    }))
}

/// The field without which the request parses, or else the one without which the error changes.
fn wrong_field<T: DeserializeOwned>(value: &Value, error: &serde_json::Error) -> Option<String> {
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

    #[derive(Debug, Deserialize)]
    struct Inner {
        top_k: Option<u32>,
    }

    #[derive(Debug, Deserialize)]
    struct Outer {
        name: String,
        #[serde(flatten)]
        inner: Inner,
    }

    #[test]
    fn errors_name_the_wrong_field() {
        let problem = |text: &str| parse::<Outer>(text.as_bytes()).unwrap_err().message;
        assert!(problem(r#"{"name":"a","top_k":-1}"#).starts_with("`top_k`"));
        assert!(problem(r#"{"name":"a","top_k":9223372036854775808}"#).starts_with("`top_k`"));
        assert!(problem(r#"{"top_k":1}"#).contains("missing field `name`"));
        assert!(problem(r#"{"name":"a","top_k":1e400}"#).contains("number out of range"));
        assert!(problem(r#"{"name":"a","top_k":NaN}"#).contains("not valid JSON"));
        assert!(problem("5").contains("must be a JSON object"));
        assert!(problem(&"[".repeat(100_000)).contains("recursion limit"));
        assert!(problem(r#"{"name":[],"top_k":1}"#).starts_with("`name`"));
        let good: Outer = parse(br#"{"name":"a","top_k":3,"other":true}"#).unwrap();
        assert_eq!((good.name.as_str(), good.inner.top_k), ("a", Some(3)));
    }
}
