//! [`ModelRef`]: the name of a model on a hub, a registry or a web server.

use std::fmt;

use crate::error::{Error, Result};
use crate::url::Url;

/// The name of a model that can be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelRef {
    /// A repository of the Hugging Face hub: `hf:user/repo[:QUANT|:file]`.
    HuggingFace(RepoRef),
    /// A repository of ModelScope: `ms:user/repo[:QUANT|:file]`.
    ModelScope(RepoRef),
    /// A model of Ollama's registry: `ollama:name[:tag]`.
    Ollama(OllamaRef),
    /// A file on a web server: `https://…/model.gguf`.
    Web(String),
}

/// A repository, and what of it is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoRef {
    /// Owner and name: `user/repo`.
    pub repo: String,
    /// Branch, tag or commit; the default branch where `None`.
    pub revision: Option<String>,
    /// Files of the model.
    pub wanted: Wanted,
}

/// Files of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The default: Q4_K_M, or Q8_0, or the only GGUF file, or the safetensors files.
    Default,
    /// The best quantization that fits in memory.
    Auto,
    /// A quantization such as `Q4_K_M`, in any case.
    Quantization(String),
    /// A file, by its path in the repository.
    File(String),
}

/// A model of Ollama's registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OllamaRef {
    /// Namespace, `library` by default.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Tag, `latest` by default.
    pub tag: String,
}

/// Prefixes of names of the hub; the longer one of two comes first.
const HUB_PREFIXES: [&str; 6] = [
    "hf:",
    "hf://",
    "https://huggingface.co/",
    "https://hf.co/",
    "huggingface.co/",
    "hf.co/",
];

impl ModelRef {
    /// Parses a name. `None` if it has no prefix of a remote name, so that it is a path or a local name.
    pub fn parse(text: &str) -> Option<Result<ModelRef>> {
        if let Some(rest) = text
            .strip_prefix("ms:")
            .or_else(|| text.strip_prefix("modelscope:"))
        {
            return Some(RepoRef::parse(text, rest).map(ModelRef::ModelScope));
        }
        if let Some(rest) = text.strip_prefix("ollama:") {
            return Some(OllamaRef::parse(text, rest).map(ModelRef::Ollama));
        }
        let rest = HUB_PREFIXES
            .iter()
            .rev()
            .find_map(|prefix| text.strip_prefix(prefix));
        if let Some(rest) = rest {
            // The address of a file is that file, with its checksum.
            return Some(
                match rest
                    .split_once("/resolve/")
                    .or_else(|| rest.split_once("/blob/"))
                {
                    Some((repo, file)) => RepoRef::of_address(text, repo, file),
                    None => {
                        RepoRef::parse(text, rest.trim_start_matches('/').trim_end_matches('/'))
                    }
                }
                .map(ModelRef::HuggingFace),
            );
        }
        let is_web = ["http://", "https://"].iter().any(|scheme| {
            text.get(..scheme.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        });
        is_web.then(|| match Url::parse(text) {
            Ok(_) => Ok(ModelRef::Web(text.to_owned())),
            Err(problem) => Err(bad(text, problem)),
        })
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelRef::HuggingFace(repo) => write!(f, "hf:{repo}"),
            ModelRef::ModelScope(repo) => write!(f, "ms:{repo}"),
            ModelRef::Ollama(model) => write!(f, "ollama:{model}"),
            // A signed address has its secret in the query.
            ModelRef::Web(address) => f.write_str(address.split('?').next().unwrap_or_default()),
        }
    }
}

impl RepoRef {
    /// A repository with its default files.
    pub fn new(repo: impl Into<String>) -> RepoRef {
        RepoRef {
            repo: repo.into(),
            revision: None,
            wanted: Wanted::Default,
        }
    }

    fn parse(text: &str, rest: &str) -> Result<RepoRef> {
        let (repo, wanted) = match rest.split_once(':') {
            Some((repo, wanted)) => (repo, Some(wanted)),
            None => (rest, None),
        };
        let (repo, revision) = match repo.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision)),
            None => (repo, None),
        };
        check_repo(text, repo)?;
        if let Some(revision) = revision {
            check_revision(text, revision)?;
        }
        let wanted = match wanted {
            // `latest` means nothing on the hub; Ollama's clients add it.
            None => Wanted::Default,
            Some(tag) if tag.eq_ignore_ascii_case("latest") => Wanted::Default,
            Some(tag) if tag.eq_ignore_ascii_case("auto") => Wanted::Auto,
            Some("") => return Err(bad(text, "the quantization after the colon is empty")),
            Some(file) if file.contains('/') || has_model_ending(file) => {
                check_path(text, file)?;
                Wanted::File(file.to_owned())
            }
            Some(tag) if is_word(tag) => Wanted::Quantization(tag.to_owned()),
            Some(_) => {
                return Err(bad(
                    text,
                    "expected a quantization or a file name after the colon",
                ));
            }
        };
        Ok(RepoRef {
            repo: repo.to_owned(),
            revision: revision.map(str::to_owned),
            wanted,
        })
    }

    fn of_address(text: &str, repo: &str, rest: &str) -> Result<RepoRef> {
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (revision, file) = rest
            .split_once('/')
            .ok_or_else(|| bad(text, "no file in the address"))?;
        check_repo(text, repo)?;
        check_revision(text, revision)?;
        check_path(text, file)?;
        let revision = Some(revision.to_owned()).filter(|revision| revision != "main");
        Ok(RepoRef {
            repo: repo.to_owned(),
            revision,
            wanted: Wanted::File(file.to_owned()),
        })
    }
}

impl fmt::Display for RepoRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        match &self.wanted {
            Wanted::Default => Ok(()),
            Wanted::Auto => f.write_str(":auto"),
            Wanted::Quantization(wanted) | Wanted::File(wanted) => write!(f, ":{wanted}"),
        }
    }
}

impl OllamaRef {
    fn parse(text: &str, rest: &str) -> Result<OllamaRef> {
        let (path, tag) = rest.split_once(':').unwrap_or((rest, "latest"));
        let (namespace, name) = path.split_once('/').unwrap_or(("library", path));
        if [namespace, name, tag].into_iter().all(is_word) {
            Ok(OllamaRef {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                tag: tag.to_owned(),
            })
        } else {
            Err(bad(text, "expected ollama:[NAMESPACE/]NAME[:TAG]"))
        }
    }
}

impl fmt::Display for OllamaRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace != "library" {
            write!(f, "{}/", self.namespace)?;
        }
        write!(f, "{}:{}", self.name, self.tag)
    }
}

fn bad(name: &str, problem: impl Into<String>) -> Error {
    Error::BadName {
        name: name.split('?').next().unwrap_or_default().to_owned(),
        problem: problem.into(),
    }
}

fn has_model_ending(file: &str) -> bool {
    let extension = file
        .rsplit_once('.')
        .map(|(_, extension)| extension.to_ascii_lowercase());
    matches!(extension.as_deref(), Some("gguf" | "safetensors"))
}

/// A part of a name: letters, digits, dots, dashes and underscores, not starting with a dot or a dash.
pub(crate) fn is_word(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !text.is_empty() && text.len() <= 96 && text.chars().all(plain) && !text.starts_with(['.', '-'])
}

fn check_repo(text: &str, repo: &str) -> Result<()> {
    match repo.split_once('/') {
        // `--` separates the parts of a directory in the cache.
        Some((user, name))
            if is_word(user)
                && is_word(name)
                && !repo.contains("--")
                && !name.ends_with(".git") =>
        {
            Ok(())
        }
        _ => Err(bad(
            text,
            "expected USER/REPO, with letters, digits, dots, dashes and underscores",
        )),
    }
}

fn check_revision(text: &str, revision: &str) -> Result<()> {
    let problem = match path_problem(revision) {
        None if revision.len() <= 250 => return Ok(()),
        None => "is too long",
        Some(problem) => problem,
    };
    Err(bad(text, format!("the revision {problem}")))
}

fn check_path(text: &str, path: &str) -> Result<()> {
    match path_problem(path) {
        None => Ok(()),
        Some(problem) => Err(bad(text, format!("the file name {problem}"))),
    }
}

/// The reason that a path of a repository must not be created below a directory; `None` if it may.
pub(crate) fn path_problem(path: &str) -> Option<&'static str> {
    if path.is_empty() || path.len() > 1024 {
        return Some("is empty or too long");
    }
    if path.contains('\0') || path.chars().any(char::is_control) {
        return Some("has control characters");
    }
    if path.contains('\\') {
        return Some("has a backslash");
    }
    if path.starts_with('/') {
        return Some("is an absolute path");
    }
    if path.as_bytes().get(1) == Some(&b':') || path.contains(':') {
        return Some("has a colon, as a drive has");
    }
    if path.split('/').any(|part| part == "..") {
        return Some("leaves its directory");
    }
    if path
        .split('/')
        .any(|part| part.is_empty() || part == "." || part.len() > 255)
    {
        return Some("has an empty or overlong part");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_shown() {
        for (text, shown) in [
            ("hf:u/r", "hf:u/r"),
            ("hf://u/r", "hf:u/r"),
            ("hf:u/r:q4_k_m", "hf:u/r:q4_k_m"),
            ("hf:u/r:latest", "hf:u/r"),
            ("hf:u/r:AUTO", "hf:u/r:auto"),
            ("hf:u/r@v1:sub/m.gguf", "hf:u/r@v1:sub/m.gguf"),
            ("hf.co/u/r:Q8_0", "hf:u/r:Q8_0"),
            ("https://huggingface.co/u/r", "hf:u/r"),
            (
                "https://huggingface.co/u/r/resolve/main/a/m.gguf?download=true",
                "hf:u/r:a/m.gguf",
            ),
            (
                "https://huggingface.co/u/r/blob/v2/m.gguf",
                "hf:u/r@v2:m.gguf",
            ),
            ("ms:u/r", "ms:u/r"),
            ("ollama:llama3.2", "ollama:llama3.2:latest"),
            ("ollama:me/m:1b", "ollama:me/m:1b"),
            ("https://h:8/m.gguf?sig=secret", "https://h:8/m.gguf"),
        ] {
            assert_eq!(
                ModelRef::parse(text).unwrap().unwrap().to_string(),
                shown,
                "{text}"
            );
        }
        for local in [
            "model.gguf",
            "/a/b.gguf",
            "./x",
            "SmolLM2",
            "C:/m.gguf",
            "u/r",
        ] {
            assert!(ModelRef::parse(local).is_none(), "{local}");
        }
    }

    #[test]
    fn wrong_names_are_refused() {
        for text in [
            "hf:",
            "hf:r",
            "hf:u/r/x",
            "hf:../r",
            "hf:u/..",
            "hf:u/r:",
            "hf:u/r:../m.gguf",
            "hf:u/r@../x",
            "hf:u--v/r",
            "hf:u/r:a b",
            "ollama:",
            "ollama:a/b/c",
            "ollama:..",
            "https://u:p@h/m.gguf",
            "ms:x",
            "hf:u/r:C:/m.gguf",
        ] {
            assert!(ModelRef::parse(text).unwrap().is_err(), "{text}");
        }
    }

    #[test]
    fn unsafe_paths_are_refused() {
        for path in [
            "", "../x", "a/../x", "/etc/x", "C:x", "a\\b", "a\0b", "a//b", "./a", "a/.", "a/\nb",
        ] {
            assert!(path_problem(path).is_some(), "{path:?}");
        }
        for path in ["a", "a/b.gguf", "..a/b..", "a..b"] {
            assert_eq!(path_problem(path), None, "{path}");
        }
    }
}
