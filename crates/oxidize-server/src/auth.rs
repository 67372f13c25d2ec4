//! API keys: who asks, what they may, and how fast. Keys are kept as SHA-256 digests; [`authenticate`] is the layer
//! that every endpoint but the public ones stands behind.

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

/// Endpoints that need no key: the page itself, its documentation, and what probes ask.
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

/// A key and what comes with it.
#[derive(Debug)]
pub struct Key {
    /// What the logs call it.
    pub name: String,
    digest: [u8; 32],
    /// The highest priority that its requests may have.
    pub priority: i32,
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
}

/// Every key that is accepted. Without any, everyone is.
#[derive(Debug, Default)]
pub struct Keys(Vec<Arc<Key>>);

/// Who sent a request.
#[derive(Clone, Debug, Default)]
pub struct Client {
    key: Option<Arc<Key>>,
}

/// Why a list of keys cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// A line says something else than a key and its settings.
    #[error("API key {place}: {problem}")]
    Line {
        /// Which one, without saying it.
        place: String,
        /// What is wrong.
        problem: String,
    },
}

impl Keys {
    /// Keys from the command line and from a file. Each is the key itself, and after blanks its settings:
    /// `name=…`, `rpm=N` (requests a minute), `tpm=N` (tokens a minute), `priority=N`. A key may be given as
    /// `sha256:HEX`, so that it need not be written down.
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

    /// Whether everyone is let in.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The client of a request; `None` if it may not ask. The time this takes says nothing about the keys.
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

/// The key that a request shows, in any of the ways that clients have.
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

/// Compares in a time that does not depend on where the two differ.
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
        let secret = words.next().ok_or_else(|| wrong("it is empty"))?;
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
                .ok_or_else(|| wrong("settings are written name=value"))?;
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
                other => return Err(wrong(&format!("there is no setting {other:?}"))),
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
    /// What the logs call it.
    pub fn name(&self) -> &str {
        self.key.as_ref().map_or("anonymous", |key| &key.name)
    }

    /// Keeps what one key's requests left in the prefix cache from being found, or timed, by another's. The same
    /// after a restart, so that a cache on disk stays of use.
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

    /// The priority that a request gets if it asks for this one.
    pub fn priority(&self, asked: Option<i32>) -> i32 {
        match &self.key {
            Some(key) => asked.unwrap_or(key.priority).min(key.priority),
            None => asked.unwrap_or(0),
        }
    }

    /// Counts a request against the key's rates.
    pub fn enter(&self) -> Result<(), ApiError> {
        let Some(key) = &self.key else { return Ok(()) };
        if let Some(tokens) = &key.tokens
            && let Err(wait) = tokens.check()
        {
            let message = format!("key {}: too many tokens a minute", key.name);
            return Err(ApiError::too_many("token_rate", message, seconds(wait)));
        }
        if let Some(requests) = &key.requests
            && let Err(wait) = requests.take(1)
        {
            let message = format!("key {}: too many requests a minute", key.name);
            return Err(ApiError::too_many("request_rate", message, seconds(wait)));
        }
        Ok(())
    }

    /// Counts tokens against the key's rate, after the fact.
    pub fn spend(&self, tokens: u64) {
        if let Some(bucket) = self.key.as_ref().and_then(|key| key.tokens.as_ref()) {
            bucket.spend(tokens);
        }
    }
}

fn seconds(wait: Duration) -> u64 {
    wait.as_secs_f64().ceil() as u64
}

/// Lets requests with a good key through and says who sent them.
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
    fn only_known_keys_get_in() {
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
    fn a_key_may_be_given_as_its_digest() {
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
    fn tenants_have_salts_of_their_own_that_last() {
        let salt = |keys: &Keys, key: &str| keys.client(&headers("x-api-key", key)).unwrap().salt();
        let keys = Keys::new(&["a".into(), "b".into()], None).unwrap();
        let again = Keys::new(&["b".into()], None).unwrap();
        assert_ne!(salt(&keys, "a"), salt(&keys, "b"));
        assert_eq!(salt(&keys, "b"), salt(&again, "b"));
        assert_eq!(Client::default().salt(), 0);
    }

    #[test]
    fn rates_and_priorities_are_the_keys() {
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
