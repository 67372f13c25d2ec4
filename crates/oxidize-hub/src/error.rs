//! [`Error`]: reasons that a model could not be found, fetched or removed. Each message names the model and says what to do.

use std::path::PathBuf;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not the name of a model.
    #[error("{name}: {problem}")]
    BadName {
        /// The text.
        name: String,
        /// Description of the problem.
        problem: String,
    },
    /// The repository does not exist, or is private.
    #[error(
        "{name}: no such repository on {host}, or it is private{}",
        if *.with_token { " and the token has no access to it" } else { "; for a private one, set HF_TOKEN" }
    )]
    NotFound {
        /// Name of the model.
        name: String,
        /// Host that was asked.
        host: String,
        /// True if a token was sent.
        with_token: bool,
    },
    /// The repository needs its terms accepted.
    #[error("{name}: access is gated; accept the terms on {page}{}", match .token {
        Some(source) => format!(", with the account whose token is in {source}"),
        None => " and set HF_TOKEN".to_owned(),
    })]
    Gated {
        /// Name of the model.
        name: String,
        /// Web page of the repository.
        page: String,
        /// Source of the token that was sent, if any.
        token: Option<String>,
    },
    /// The token is invalid.
    #[error(
        "{name}: {host} refused the token of {token}; make a new one, or unset it for public models"
    )]
    BadToken {
        /// Name of the model.
        name: String,
        /// Host that was asked.
        host: String,
        /// Source of the token.
        token: String,
    },
    /// The host has disabled access to the repository.
    #[error("{name}: {host} has disabled access to this repository: {message}")]
    Disabled {
        /// Name of the model.
        name: String,
        /// Host that was asked.
        host: String,
        /// Message of the host.
        message: String,
    },
    /// The repository has no such revision.
    #[error("{name}: the repository has no revision {revision:?}")]
    NoRevision {
        /// Name of the model.
        name: String,
        /// Revision that was asked for.
        revision: String,
    },
    /// No file matches the quantization or the file name.
    #[error("{name}: no file matches {wanted:?}; the repository has {}", list(.available))]
    NoMatch {
        /// Name of the model.
        name: String,
        /// Quantization or file name.
        wanted: String,
        /// Files and quantizations of the repository.
        available: Vec<String>,
    },
    /// Several models match.
    #[error("{name}: {wanted:?} matches several files; name one: {}", list(.matches))]
    Ambiguous {
        /// Name of the model.
        name: String,
        /// Quantization.
        wanted: String,
        /// Files that match.
        matches: Vec<String>,
    },
    /// No file of the repository can be run.
    #[error("{name}: the repository has neither GGUF nor safetensors files{}", match .available.is_empty() {
        true => String::new(),
        false => format!("; it has {}", list(.available)),
    })]
    NoModel {
        /// Name of the model.
        name: String,
        /// Files that there are.
        available: Vec<String>,
    },
    /// No file is small enough for the memory of this machine.
    #[error("{name}: no file fits in memory ({} available); the smallest is {smallest}", bytes(*.available))]
    NoFit {
        /// Name of the model.
        name: String,
        /// Available memory in bytes.
        available: u64,
        /// The smallest file, with its size.
        smallest: String,
    },
    /// A file name of a listing is not safe to create.
    #[error("{name}: the server lists the file {file:?}, which {problem}; nothing was written")]
    UnsafePath {
        /// Name of the model.
        name: String,
        /// File name.
        file: String,
        /// Description of the problem.
        problem: &'static str,
    },
    /// The host limits the rate of requests.
    #[error("{name}: {host} limits the rate of requests{}", match .wait {
        Some(seconds) => format!("; try again in {seconds} s"),
        None => "; try again later".to_owned(),
    })]
    RateLimited {
        /// Name of the model.
        name: String,
        /// Host that was asked.
        host: String,
        /// Seconds to wait, if the host says.
        wait: Option<u64>,
    },
    /// The host cannot be reached, or the connection fails again and again.
    #[error("{name}: cannot reach {host}: {problem}")]
    Unreachable {
        /// Name of the model.
        name: String,
        /// Host.
        host: String,
        /// Description of the problem.
        problem: String,
    },
    /// The host answered with an unexpected status.
    #[error("{name}: {host} answered with status {status}{}", match .message.is_empty() {
        true => String::new(),
        false => format!(": {}", .message),
    })]
    Status {
        /// Name of the model.
        name: String,
        /// Host.
        host: String,
        /// Status code.
        status: u16,
        /// Message of the host.
        message: String,
    },
    /// The answer of the host breaks its protocol.
    #[error("{name}: unusable answer of {host}: {problem}")]
    BadAnswer {
        /// Name of the model.
        name: String,
        /// Host.
        host: String,
        /// Description of the problem.
        problem: String,
    },
    /// A redirect is not allowed.
    #[error("{name}: {host} redirects to {location:?}: {problem}")]
    BadRedirect {
        /// Name of the model.
        name: String,
        /// Host that redirects.
        host: String,
        /// Target.
        location: String,
        /// Reason of the refusal.
        problem: &'static str,
    },
    /// A body is longer than announced.
    #[error("{name}: {file} is longer than the announced {} bytes; the partial file was removed", .announced)]
    TooLong {
        /// Name of the model.
        name: String,
        /// File.
        file: String,
        /// Announced size.
        announced: u64,
    },
    /// The bytes do not have the announced checksum.
    #[error(
        "{name}: {file} has the {algorithm} {found}, but the server announced {expected}; the file was removed, \
         try again"
    )]
    WrongChecksum {
        /// Name of the model.
        name: String,
        /// File.
        file: String,
        /// Algorithm.
        algorithm: &'static str,
        /// Announced checksum.
        expected: String,
        /// Checksum of the bytes.
        found: String,
    },
    /// The file is too large for plain HTTP on this hub.
    #[error("{name}: {file} has {}; the hub serves at most 50 GB per file over plain HTTP", bytes(*.size))]
    TooLarge {
        /// Name of the model.
        name: String,
        /// File.
        file: String,
        /// Size.
        size: u64,
    },
    /// The disk is full.
    #[error("{name}: not enough space in {}: {} needed{}", .directory.display(), bytes(*.needed), match .free {
        Some(free) => format!(", {} free", bytes(*free)),
        None => String::new(),
    })]
    DiskFull {
        /// Name of the model.
        name: String,
        /// Directory.
        directory: PathBuf,
        /// Bytes that are still needed.
        needed: u64,
        /// Free bytes, if known.
        free: Option<u64>,
    },
    /// Without the network, a file is missing.
    #[error("{name}: not in the cache {}, and the network is off (--offline or HF_HUB_OFFLINE)", .directory.display())]
    Offline {
        /// Name of the model.
        name: String,
        /// Cache directory.
        directory: PathBuf,
    },
    /// The model needs something that oxidize does not support.
    #[error("{name}: {problem}")]
    NotSupported {
        /// Name of the model.
        name: String,
        /// Description of what is missing, and of what to do.
        problem: String,
    },
    /// No model of this name is in the local cache.
    #[error("{name}: no such model in the local cache; `oxidize list` shows what there is")]
    NotLocal {
        /// Name of the model.
        name: String,
    },
    /// No directory for the cache is known.
    #[error("no cache directory is known; set HF_HUB_CACHE or HOME")]
    NoCacheDirectory,
    /// The work was canceled.
    #[error("{name}: stopped; the next pull goes on where this one ended")]
    Canceled {
        /// Name of the model.
        name: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", .path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
}

impl Error {
    /// An error of a file.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { path, source }
    }

    /// True if the host cannot be reached at all, so that files of the cache may be used instead.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Error::Unreachable { .. })
    }
}

/// Maximum number of names in a message.
const MAX_LISTED: usize = 30;

fn list(names: &[String]) -> String {
    let shown: Vec<String> = names
        .iter()
        .take(MAX_LISTED)
        .map(|name| printable(name))
        .collect();
    let more = match names.len().saturating_sub(MAX_LISTED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    shown.join(", ") + &more
}

/// Text of a server without control characters, on one line, at most 300 characters.
pub(crate) fn printable(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    clean.take(300).collect::<String>().trim().to_owned()
}

/// Formats a number of bytes as `4.7 GB`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let (mut value, mut unit) = (n as f64, 0);
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0);
    format!("{value:.digits$} {}", UNITS.get(unit).unwrap_or(&"B"))
}
