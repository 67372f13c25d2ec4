//! A model file on a web server. Without a published checksum, length and validator of the server guard the bytes.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::client::{Answer, Request};
use crate::disk;
use crate::download::{Download, hex};
use crate::error::{Error, Result};
use crate::hub::{Hub, PullOptions, Pulled};
use crate::progress::Tally;
use crate::quantization::split_part;
use crate::reference::path_problem;
use crate::select::without_extension;
use crate::url::Url;

/// Directory of the models of web servers.
pub(crate) fn root(hub: &Hub) -> Result<PathBuf> {
    Ok(hub.own_cache()?.join("web"))
}

/// Fetches a file, and the other parts of a split model.
pub(crate) fn pull(
    hub: &Hub,
    name: &str,
    address: &str,
    options: &PullOptions<'_>,
) -> Result<Pulled> {
    let mut sizes = Vec::new();
    let parts = parts(name, address)?;
    for (url, file) in &parts {
        sizes.push((url, file, Remote::of(hub, name, url)?));
    }
    let total = sizes
        .iter()
        .map(|(.., remote)| remote.size)
        .fold(0, u64::saturating_add);
    let tally = Tally::new(options.observer, total);
    let directory = directory(hub, address)?;
    for (url, file, remote) in sizes {
        fetch(hub, name, url, &directory.join(file), remote, &tally)?;
    }
    let files: Vec<PathBuf> = parts.iter().map(|(_, file)| directory.join(file)).collect();
    Ok(Pulled {
        path: files.first().cloned().unwrap_or_default(),
        files,
    })
}

/// Length and version of a file on a server.
struct Remote {
    size: u64,
    /// A strong ETag or the date of the last change.
    validator: Option<String>,
}

impl Remote {
    fn of(hub: &Hub, name: &str, url: &Url) -> Result<Remote> {
        // Some servers refuse HEAD, and signed addresses are for GET.
        let request = Request {
            range: Some((0, 0)),
            ..Request::get(name, url.clone())
        };
        let answer = hub.client.send(&request)?;
        let size = match answer.status {
            206 => answer
                .header("content-range")
                .and_then(|range| range.rsplit_once('/')?.1.parse().ok()),
            200 => answer.length(),
            _ => return Err(failure(hub, name, answer)),
        };
        let etag = answer.header("etag").filter(|etag| !etag.starts_with("W/"));
        let validator = etag
            .or_else(|| answer.header("last-modified"))
            .map(str::to_owned);
        let size = size.ok_or_else(|| Error::BadAnswer {
            name: name.into(),
            host: url.origin.host.clone(),
            problem: "it does not say how long the file is".into(),
        })?;
        Ok(Remote { size, validator })
    }
}

fn failure(hub: &Hub, name: &str, answer: Answer) -> Error {
    hub.client.failure(name, answer)
}

fn fetch(
    hub: &Hub,
    name: &str,
    url: &Url,
    path: &Path,
    remote: Remote,
    tally: &Tally<'_>,
) -> Result<()> {
    let file = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    // Without a validator, a partial file cannot be trusted: an identity of its own starts anew.
    let identity = remote
        .validator
        .clone()
        .unwrap_or_else(|| format!("{:?}", std::time::SystemTime::now()));
    let source = disk::beside(path, ".source");
    let known = format!("{url}\n{}\n{identity}\n", remote.size);
    let is_known = || std::fs::read_to_string(&source).is_ok_and(|text| text == known);
    let _lock = disk::lock(
        &hub.client,
        name,
        &disk::beside(path, ".lock"),
        tally.observer,
    )?;
    if std::fs::metadata(path).is_ok_and(|data| data.len() == remote.size) && is_known() {
        tally.add(&file, &identity, remote.size);
        return Ok(());
    }
    Download {
        client: &hub.client,
        name,
        file: &file,
        url: url.clone(),
        token: None,
        size: remote.size,
        checksum: None,
        identity,
        validator: remote.validator,
        failure: &|answer| failure(hub, name, answer),
        tally,
    }
    .run(path, path)?;
    disk::write_atomically(&source, known.as_bytes())
}

/// Addresses and file names of a model: of all parts, if it is split.
fn parts(name: &str, address: &str) -> Result<Vec<(Url, String)>> {
    const MAX_PARTS: u32 = 1000;
    let bad = |problem: &str| Error::BadName {
        name: name.into(),
        problem: problem.into(),
    };
    let url = Url::parse(address).map_err(bad)?;
    let file = url.file_name();
    if path_problem(&file).is_some() || file.contains('/') {
        return Err(bad("the address does not end with a file name"));
    }
    let Some(stem) = without_extension(&file, "gguf") else {
        return Err(bad("expected the address of a GGUF file"));
    };
    match split_part(stem) {
        None => Ok(vec![(url, file)]),
        Some((_, _, total)) if total > MAX_PARTS => Err(bad("the model has more than 1000 parts")),
        Some((_, part, total)) => (1..=total)
            .map(|number| {
                let [old, new] = [part, number].map(|part| format!("-{part:05}-of-{total:05}"));
                let url = Url::parse(&address.replace(&old, &new)).map_err(bad)?;
                Ok((url, file.replace(&old, &new)))
            })
            .collect(),
    }
}

/// Directory of the files of an address: its host, and a digest of the rest without query and file name.
fn directory(hub: &Hub, address: &str) -> Result<PathBuf> {
    let bad = |problem: &str| Error::BadName {
        name: address.into(),
        problem: problem.into(),
    };
    let url = Url::parse(address).map_err(bad)?;
    let path = url.path.split('?').next().unwrap_or_default();
    let base = path.rsplit_once('/').map_or("", |(base, _)| base);
    let digest = hex(&Sha256::digest(format!("{}{base}", url.origin)));
    let host: String = url
        .origin
        .host
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || ".-".contains(*c))
        .collect();
    let digest = digest.get(..16).unwrap_or_default();
    Ok(root(hub)?.join(format!("{}-{digest}", host.trim_start_matches('.'))))
}

/// The model in the cache.
pub(crate) fn find(hub: &Hub, name: &str, address: &str) -> Result<Option<Pulled>> {
    let directory = directory(hub, address)?;
    let files: Vec<PathBuf> = parts(name, address)?
        .iter()
        .map(|(_, file)| directory.join(file))
        .collect();
    let is_whole = files
        .iter()
        .all(|file| file.is_file() && disk::beside(file, ".source").is_file());
    Ok(is_whole.then(|| Pulled {
        path: files.first().cloned().unwrap_or_default(),
        files,
    }))
}
