//! ModelScope: another hub with its own protocol. Its files lie in the layout of the Hugging Face hub, in a cache of
//! our own.

use std::path::PathBuf;

use serde::Deserialize;

use crate::client::{Answer, Request};
use crate::download::Checksum;
use crate::error::{Error, Result, printable};
use crate::hf::{Fetch, RemoteFile, find_in, is_certain_in, note_others};
use crate::hub::{Hub, PullOptions, Pulled, fitting};
use crate::reference::{RepoRef, path_problem};
use crate::repo_cache::RepoCache;
use crate::select::{Candidate, select};
use crate::url::{Url, encode_part, encode_path};

/// The default branch.
const BRANCH: &str = "master";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Reply {
    #[serde(default)]
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    #[serde(default)]
    files: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    sha256: String,
    #[serde(default)]
    r#type: String,
}

fn cache(hub: &Hub, model: &RepoRef) -> Result<RepoCache> {
    Ok(RepoCache::new(&root(hub)?, &model.repo))
}

/// Directory of the models of ModelScope.
pub(crate) fn root(hub: &Hub) -> Result<PathBuf> {
    Ok(hub.own_cache()?.join("modelscope"))
}

/// Fetches a model of ModelScope.
pub(crate) fn pull(
    hub: &Hub,
    name: &str,
    model: &RepoRef,
    options: &PullOptions<'_>,
) -> Result<Pulled> {
    let client = &hub.client;
    let address = &client.settings.modelscope_endpoint;
    let endpoint = Url::parse(address).map_err(|problem| Error::BadName {
        name: address.clone(),
        problem: format!("MODELSCOPE_ENDPOINT: {problem}"),
    })?;
    let revision = model.revision.as_deref().unwrap_or(BRANCH);
    let repo = encode_path(&model.repo);
    let host = endpoint.origin.host.clone();
    let failure = |answer: Answer| match answer.status {
        401 | 403 | 404 => Error::NotFound {
            name: name.into(),
            host: host.clone(),
            with_token: true,
        },
        _ => client.failure(name, answer),
    };
    let path = format!(
        "api/v1/models/{repo}/repo/files?Revision={}&Recursive=true",
        encode_part(revision)
    );
    let answer = client.send(&Request::get(name, endpoint.below(&path)))?;
    if !answer.is_success() {
        return Err(failure(answer));
    }
    let reply: Reply = client.json(name, answer)?;
    let bad = |problem: String| Error::BadAnswer {
        name: name.into(),
        host: host.clone(),
        problem,
    };
    let data = reply
        .data
        .ok_or_else(|| bad("the listing has no files".into()))?;
    let mut files = Vec::new();
    for entry in data
        .files
        .into_iter()
        .filter(|entry| entry.r#type != "tree")
    {
        if let Some(problem) = path_problem(&entry.path) {
            return Err(Error::UnsafePath {
                name: name.into(),
                file: printable(&entry.path),
                problem,
            });
        }
        if entry.sha256.len() != 64 || !entry.sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad(format!("{} has no SHA-256", printable(&entry.path))));
        }
        files.push(RemoteFile {
            path: entry.path,
            size: entry.size,
            checksum: Checksum::Sha256(entry.sha256),
        });
    }
    let sizes: Vec<(String, u64)> = files
        .iter()
        .map(|file| (file.path.clone(), file.size))
        .collect();
    let start = |_: &Candidate| {
        let problem = "`:auto` works on the Hugging Face hub only; name a quantization".to_owned();
        Err(Error::NotSupported {
            name: name.into(),
            problem,
        })
    };
    let choice = select(name, &sizes, &model.wanted, &|models| {
        fitting(name, &options.memory, models, &start)
    })?;
    note_others(name, &choice, options);
    let cache = cache(hub, model)?;
    let commit = commit_like(&files);
    let address = |file: &RemoteFile| {
        let (revision, file) = (encode_part(revision), encode_part(&file.path));
        endpoint.below(&format!(
            "api/v1/models/{repo}/repo?Revision={revision}&FilePath={file}"
        ))
    };
    let fetch = Fetch {
        client,
        name,
        cache: &cache,
        commit: &commit,
        token: None,
        address: &address,
        failure: &failure,
    };
    let pulled = fetch.run(&files, &choice, options)?;
    cache.set_ref(revision, &commit)?;
    Ok(pulled)
}

/// Forty digits that stand for these files: ModelScope does not say the commit.
fn commit_like(files: &[RemoteFile]) -> String {
    use sha1::Digest;
    let mut lines: Vec<String> = files
        .iter()
        .map(|file| format!("{} {}\n", file.etag(), file.path))
        .collect();
    lines.sort();
    crate::download::hex(&sha1::Sha1::digest(lines.concat()))
}

/// The model in the cache.
pub(crate) fn find(
    hub: &Hub,
    name: &str,
    model: &RepoRef,
    options: &PullOptions<'_>,
) -> Result<Option<Pulled>> {
    find_in(&cache(hub, model)?, name, model, BRANCH, options)
}

/// True if ModelScope need not be asked.
pub(crate) fn is_certain(hub: &Hub, model: &RepoRef) -> bool {
    cache(hub, model).is_ok_and(|cache| is_certain_in(&cache, model, BRANCH))
}
