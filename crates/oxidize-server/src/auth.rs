//! API keys with their rate limits and priorities. Keys are stored as SHA-256 digests. [`authenticate`] is
//! the middleware that protects every endpoint but the public ones.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};

use crate::error::ApiError;
use crate::limits::Bucket;
use crate::state::AppState;

/// Endpoints that need no key: the chat page, the API reference and health checks.
const PUBLIC: &[&str] = &[
    "/",
    "/docs",
    "/favicon.svg",
    "/health",
    "/health/live",
    "/health/ready",
    "/openapi.json",
    "/v1/health",
    "/web/app.js",
    "/web/docs.js",
    "/web/markdown.js",
    "/web/style.css",
];

/// An API key and its settings.
#[derive(Debug)]
pub struct Key {
    /// Name in the log.
    pub name: String,
    digest: [u8; 32],
    /// Highest priority of its requests.
    pub priority: i32,
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
}

/// All accepted keys. Without keys, every request is accepted.
#[derive(Debug, Default)]
pub struct Keys(Vec<Arc<Key>>);

/// The sender of a request.
#[derive(Clone, Debug, Default)]
pub struct Client {
    key: Option<Arc<Key>>,
}

/// An error in the list of keys.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// Path of the file.
        path: String,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// A line is not a key with settings.
    #[error("API key {place}: {problem}")]
    Line {
        /// Position of the key, which is not shown itself.
        place: String,
        /// Description of the problem.
        problem: String,
    },
}

impl Keys {
    /// Parses keys from the command line and from a file. A line holds a key and, after blanks, its settings:
    /// `name=…`, `rpm=N` (requests per minute), `tpm=N` (tokens per minute), `priority=N`. `sha256:HEX` gives
    /// the digest of a key in place of the key.
    pub fn new(given: &[String], file: Option<&Path>) -> Result<Keys, KeyError> {
        let mut keys = Vec::new();
        for (index, line) in given.iter().enumerate() {
            keys.push(Key::parse(line, &format!("{}", index + 1))?);
        }
        if let Some(path) = file {
            let text = std::fs::read_to_string(path).map_err(|error| KeyError::Io {
                path: path.display().to_string(),
                error,
            })?;
            for (index, line) in text.lines().enumerate() {
                let line = line.trim();
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                keys.push(Key::parse(line, &format!("in line {}", index + 1))?);
            }
        }
        Ok(Keys(keys.into_iter().map(Arc::new).collect()))
    }

    /// True if there are no keys, so that every request is accepted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The client of a request; `None` if its key is missing or wrong. The time taken does not depend on the
    /// keys.
    pub fn client(&self, headers: &HeaderMap) -> Option<Client> {
        if self.is_empty() {
            return Some(Client::default());
        }
        let given = digest(presented(headers)?);
        let mut found = None;
        for key in &self.0 {
            if same(&key.digest, &given) {
                found = Some(key.clone());
            }
        }
        found.map(|key| Client { key: Some(key) })
    }
}

/// The key of a request, from the `Authorization` or the `x-api-key` header.
fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get("authorization").map(|value| value.as_bytes());
    let bearer = bearer.and_then(|value| {
        let (scheme, key) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
    });
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes()))
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key.trim_ascii()).into()
}

/// Compares in constant time.
fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    let difference = a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b));
    std::hint::black_box(difference) == 0
}

impl Key {
    fn parse(line: &str, place: &str) -> Result<Key, KeyError> {
        let wrong = |problem: &str| KeyError::Line {
            place: place.to_owned(),
            problem: problem.to_owned(),
        };
        let mut words = line.split_whitespace();
        let secret = words.next().ok_or_else(|| wrong("the key is empty"))?;
        let digest = match secret.strip_prefix("sha256:") {
            Some(hex) => {
                from_hex(hex).ok_or_else(|| wrong("sha256: needs 64 hexadecimal digits"))?
            }
            None => digest(secret.as_bytes()),
        };
        let mut key = Key {
            name: format!("key-{:02x}{:02x}", digest[0], digest[1]),
            digest,
            priority: 0,
            requests: None,
            tokens: None,
        };
        let minute = Duration::from_secs(60);
        for word in words {
            let (name, value) = word
                .split_once('=')
                .ok_or_else(|| wrong("settings have the form NAME=VALUE"))?;
            let number = || {
                value
                    .parse::<u32>()
                    .map_err(|_| wrong(&format!("{name} needs a number")))
            };
            match name {
                "name" => key.name = value.to_owned(),
                "rpm" => key.requests = Some(Bucket::new(number()?, minute)),
                "tpm" => key.tokens = Some(Bucket::new(number()?, minute)),
                "priority" => {
                    key.priority = value
                        .parse()
                        .map_err(|_| wrong("priority needs a number"))?;
                }
                other => {
                    return Err(wrong(&format!(
                        "unknown setting {other:?}; known are name, rpm, tpm and priority"
                    )));
                }
            }
        }
        Ok(key)
    }
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (index, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(digest)
}

impl Client {
    /// Name in the log.
    pub fn name(&self) -> &str {
        self.key.as_ref().map_or("anonymous", |key| &key.name)
    }

    /// Salt of the prefix cache: requests of one key neither find nor can time cache entries of another.
    /// Stable across restarts, for caches on disk.
    pub fn salt(&self) -> u64 {
        let Some(key) = &self.key else { return 0 };
        let hash = Sha256::new()
            .chain_update(b"oxidize prefix salt")
            .chain_update(key.digest)
            .finalize();
        hash.iter()
            .take(8)
            .fold(0, |salt, &byte| salt << 8 | u64::from(byte))
    }

    /// Priority of a request, limited by the key.
    pub fn priority(&self, requested: Option<i32>) -> i32 {
        match &self.key {
            Some(key) => requested.unwrap_or(key.priority).min(key.priority),
            None => requested.unwrap_or(0),
        }
    }

    /// Counts a request against the rate limits of the key.
    pub fn enter(&self) -> Result<(), ApiError> {
        let Some(key) = &self.key else { return Ok(()) };
        if let Some(tokens) = &key.tokens
            && let Err(wait) = tokens.check()
        {
            let message = format!(
                "API key {}: the limit of tokens per minute is exceeded",
                key.name
            );
            return Err(ApiError::too_many("token_rate", message, seconds(wait)));
        }
        if let Some(requests) = &key.requests
            && let Err(wait) = requests.take(1)
        {
            let message = format!(
                "API key {}: the limit of requests per minute is exceeded",
                key.name
            );
            return Err(ApiError::too_many("request_rate", message, seconds(wait)));
        }
        Ok(())
    }

    /// Counts tokens of a finished request against the rate limit of the key.
    pub fn spend(&self, tokens: u64) {
        if let Some(bucket) = self.key.as_ref().and_then(|key| key.tokens.as_ref()) {
            bucket.spend(tokens);
        }
    }
}

fn seconds(wait: Duration) -> u64 {
    wait.as_secs_f64().ceil() as u64
}

/// Refuses requests without a valid key and attaches the [`Client`] to the others.
pub(crate) async fn authenticate(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let path = request.uri().path();
    let preflight = request.method() == axum::http::Method::OPTIONS;
    let client = if preflight || PUBLIC.contains(&path) {
        Client::default()
    } else {
        let client = state.keys().client(request.headers());
        client.ok_or_else(|| {
            state.metrics().unauthorized.increase();
            ApiError::unauthorized()
        })?
    };
    request.extensions_mut().insert(client.clone());
    let mut response = next.run(request).await;
    response.extensions_mut().insert(client);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(
            axum::http::HeaderName::from_static(name),
            value.parse().unwrap(),
        )])
    }

    #[test]
    fn only_known_keys_are_accepted() {
        let keys = Keys::new(&["secret name=alice".into(), "other".into()], None).unwrap();
        let client = keys.client(&headers("authorization", "Bearer secret"));
        assert_eq!(client.unwrap().name(), "alice");
        assert!(keys.client(&headers("x-api-key", "other")).is_some());
        for wrong in [
            "Bearer secre",
            "Bearer secrett",
            "secret",
            "Basic secret",
            "Bearer ",
        ] {
            assert!(
                keys.client(&headers("authorization", wrong)).is_none(),
                "{wrong}"
            );
        }
        assert!(keys.client(&HeaderMap::new()).is_none());
        assert!(Keys::default().client(&HeaderMap::new()).is_some());
    }

    #[test]
    fn keys_can_be_given_as_digests() {
        let hex: String = digest(b"secret")
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let keys = Keys::new(&[format!("sha256:{hex} rpm=5")], None).unwrap();
        assert!(keys.client(&headers("x-api-key", "secret")).is_some());
        for bad in ["sha256:12", "k rpm=x", "k what=1", "k rpm", ""] {
            assert!(Keys::new(&[bad.into()], None).is_err(), "{bad}");
        }
    }

    #[test]
    fn salts_differ_by_key_and_are_stable() {
        let salt = |keys: &Keys, key: &str| keys.client(&headers("x-api-key", key)).unwrap().salt();
        let keys = Keys::new(&["a".into(), "b".into()], None).unwrap();
        let again = Keys::new(&["b".into()], None).unwrap();
        assert_ne!(salt(&keys, "a"), salt(&keys, "b"));
        assert_eq!(salt(&keys, "b"), salt(&again, "b"));
        assert_eq!(Client::default().salt(), 0);
    }

    #[test]
    fn keys_limit_rates_and_priorities() {
        let keys = Keys::new(&["k rpm=2 tpm=100 priority=3".into()], None).unwrap();
        let client = keys.client(&headers("x-api-key", "k")).unwrap();
        assert_eq!(client.priority(None), 3);
        assert_eq!(client.priority(Some(9)), 3);
        assert_eq!(client.priority(Some(-1)), -1);
        client.enter().unwrap();
        client.spend(150);
        let error = client.enter().unwrap_err();
        assert_eq!(
            (error.status.as_u16(), error.code),
            (429, Some("token_rate"))
        );
        assert!(error.retry_after.unwrap() >= 30);
    }
}
