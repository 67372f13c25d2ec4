//! [`Settings`]: endpoints, directories, tokens and limits, from the variables that tools of the hub share.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Settings of a [`Hub`](crate::Hub). [`Settings::from_environment`] reads those of the user.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Address of the Hugging Face hub: `HF_ENDPOINT`.
    pub hf_endpoint: String,
    /// Address of Ollama's registry: `OXIDIZE_OLLAMA_REGISTRY`.
    pub ollama_registry: String,
    /// Address of ModelScope: `MODELSCOPE_ENDPOINT`, or the older `MODELSCOPE_DOMAIN`.
    pub modelscope_endpoint: String,
    /// Cache of the hub, in the hub's own layout: `HF_HUB_CACHE`, `HF_HOME/hub`, `XDG_CACHE_HOME/huggingface/hub`
    /// or `~/.cache/huggingface/hub`.
    pub hub_cache: Option<PathBuf>,
    /// Directory of other models: `OXIDIZE_HOME`, `XDG_CACHE_HOME/oxidize` or `~/.cache/oxidize`.
    pub own_cache: Option<PathBuf>,
    /// Token of the hub, if the user has one.
    pub token: Option<Token>,
    /// True if the network must not be used: `HF_HUB_OFFLINE`.
    pub offline: bool,
    /// True if snapshots hold files instead of links: `HF_HUB_DISABLE_SYMLINKS`.
    pub no_symlinks: bool,
    /// Time without a byte after which a download reconnects: `HF_HUB_DOWNLOAD_TIMEOUT`.
    pub download_timeout: Duration,
    /// Time to wait for an answer about a file: `HF_HUB_ETAG_TIMEOUT`.
    pub answer_timeout: Duration,
    /// Certificates of authorities to trust instead of the built-in ones, in PEM: `SSL_CERT_FILE`.
    pub certificates: Option<PathBuf>,
    /// Number of connections per file.
    pub connections: usize,
    /// Bytes of a piece. A connection that ends loses at most one piece of its own.
    pub piece: u64,
    /// Tries without progress after which a download is given up.
    pub tries: u32,
    /// Wait before the second try; it doubles with each further one.
    pub first_wait: Duration,
    /// Longest `Retry-After` that is obeyed.
    pub longest_wait: Duration,
}

/// A token with the place that it comes from.
#[derive(Clone)]
pub struct Token {
    /// Text of the token. It is sent to its endpoint only, and never printed.
    pub(crate) secret: String,
    /// Name of the variable or path of the file, for messages.
    pub(crate) source: String,
}

impl Token {
    /// A token from a source, a name for messages.
    pub fn new(secret: impl Into<String>, source: impl Into<String>) -> Token {
        Token {
            secret: secret.into(),
            source: source.into(),
        }
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token from {}", self.source)
    }
}

impl Default for Settings {
    /// The public endpoints, without directories and token.
    fn default() -> Settings {
        Settings {
            hf_endpoint: "https://huggingface.co".into(),
            ollama_registry: "https://registry.ollama.ai".into(),
            modelscope_endpoint: "https://modelscope.cn".into(),
            hub_cache: None,
            own_cache: None,
            token: None,
            offline: false,
            no_symlinks: cfg!(not(unix)),
            download_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(10),
            certificates: None,
            connections: 4,
            piece: 1 << 20,
            tries: 5,
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(60),
        }
    }
}

impl Settings {
    /// The settings in the environment of this process.
    pub fn from_environment() -> Settings {
        Settings::from_variables(|name| std::env::var(name).ok())
    }

    /// The settings in these variables.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Settings {
        let set = |name: &str| get(name).filter(|value| !value.trim().is_empty());
        let path = |name: &str| set(name).map(|value| expanded(&value, set("HOME").as_deref()));
        let is_true = |name: &str| set(name).is_some_and(|value| is_true(&value));
        let seconds = |name: &str, default: Duration| {
            let value = set(name).and_then(|value| value.trim().parse::<u64>().ok());
            value
                .filter(|n| *n > 0)
                .map_or(default, Duration::from_secs)
        };
        let home = path("HOME").or_else(|| path("USERPROFILE"));
        let cache = path("XDG_CACHE_HOME").or_else(|| Some(home?.join(".cache")));
        let hf_home = path("HF_HOME").or_else(|| Some(cache.clone()?.join("huggingface")));
        let hub_cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(hf_home.clone()?.join("hub")));
        let defaults = Settings::default();
        let address =
            |name: &str| set(name).map(|value| value.trim().trim_end_matches('/').to_owned());
        let domain = address("MODELSCOPE_DOMAIN").map(|domain| match domain.contains("://") {
            true => domain,
            false => format!("https://{domain}"),
        });
        let token = || {
            let variable = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]
                .into_iter()
                .find_map(|name| Some((name, set(name)?)));
            if let Some((name, secret)) = variable {
                return Some(Token::new(secret.trim(), name));
            }
            if is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
                return None;
            }
            let file = path("HF_TOKEN_PATH").or_else(|| Some(hf_home.clone()?.join("token")))?;
            let secret = std::fs::read_to_string(&file).ok()?;
            Some(secret.trim())
                .filter(|secret| !secret.is_empty())
                .map(|s| Token::new(s, file.display().to_string()))
        };
        Settings {
            hf_endpoint: address("HF_ENDPOINT").unwrap_or(defaults.hf_endpoint),
            ollama_registry: address("OXIDIZE_OLLAMA_REGISTRY").unwrap_or(defaults.ollama_registry),
            modelscope_endpoint: address("MODELSCOPE_ENDPOINT")
                .or(domain)
                .unwrap_or(defaults.modelscope_endpoint),
            own_cache: path("OXIDIZE_HOME")
                .or_else(|| path("OXIDIZE_TEST_CACHE"))
                .or_else(|| Some(cache?.join("oxidize"))),
            // A token with line breaks or the like would not be a header.
            token: token().filter(|token| token.secret.bytes().all(|b| b.is_ascii_graphic())),
            offline: is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE"),
            no_symlinks: defaults.no_symlinks || is_true("HF_HUB_DISABLE_SYMLINKS"),
            download_timeout: seconds("HF_HUB_DOWNLOAD_TIMEOUT", defaults.download_timeout),
            answer_timeout: seconds("HF_HUB_ETAG_TIMEOUT", defaults.answer_timeout),
            certificates: path("SSL_CERT_FILE"),
            hub_cache,
            ..defaults
        }
    }
}

/// True for the texts that tools of the hub read as true.
fn is_true(value: &str) -> bool {
    matches!(
        value.trim().to_ascii_uppercase().as_str(),
        "1" | "ON" | "YES" | "TRUE"
    )
}

/// A path with `~` replaced.
fn expanded(path: &str, home: Option<&str>) -> PathBuf {
    match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => Path::new(home).join(rest),
        _ => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Settings {
        Settings::from_variables(|name| {
            variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_cache_is_that_of_the_hub() {
        let cache = |variables| settings(variables).hub_cache.unwrap().display().to_string();
        assert_eq!(cache(&[("HOME", "/h")]), "/h/.cache/huggingface/hub");
        assert_eq!(
            cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]),
            "/x/huggingface/hub"
        );
        assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "~/f")]), "/h/f/hub");
        assert_eq!(cache(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")]), "/c");
        assert_eq!(cache(&[("HUGGINGFACE_HUB_CACHE", "/old")]), "/old");
        assert!(settings(&[]).hub_cache.is_none());
    }

    #[test]
    fn tokens_come_from_a_variable_or_a_file() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "hf_file\n").unwrap();
        let home = home.path().to_str().unwrap();
        let token = |more: &[(&str, &str)]| settings(&[&[("HF_HOME", home)], more].concat()).token;
        assert_eq!(token(&[]).unwrap().secret, "hf_file");
        let variable = token(&[("HF_TOKEN", " hf_env ")]).unwrap();
        assert_eq!(
            (variable.secret.as_str(), variable.source.as_str()),
            ("hf_env", "HF_TOKEN")
        );
        assert!(token(&[("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]).is_none());
        assert!(token(&[("HF_TOKEN", "a\r\nX: y")]).is_none());
        assert!(!format!("{variable:?}").contains("hf_env"));
    }

    #[test]
    fn words_for_true_are_those_of_the_hub() {
        for word in ["1", "ON", "yes", "True"] {
            assert!(settings(&[("HF_HUB_OFFLINE", word)]).offline, "{word}");
        }
        for word in ["0", "", "no", "2"] {
            assert!(!settings(&[("HF_HUB_OFFLINE", word)]).offline, "{word}");
        }
    }
}
