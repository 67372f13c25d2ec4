//! The protocol of the Hugging Face hub: the listing of a repository, and files behind redirects.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use crate::client::{Answer, Client, Request};
use crate::disk;
use crate::download::{Checksum, Download, remove_state};
use crate::error::{Error, Result};
use crate::hub::{Hub, PullOptions, Pulled, fitting};
use crate::progress::Tally;
use crate::reference::{RepoRef, Wanted, is_word, path_problem};
use crate::repo_cache::{RepoCache, is_commit};
use crate::select::{Candidate, Choice, candidates, select};
use crate::settings::Token;
use crate::url::{Origin, Url, encode_part, encode_path};

/// Maximum size of a file that the hub serves over plain HTTP.
const MAX_FILE: u64 = 50_000_000_000;

/// Bytes of a GGUF file that are read to know its hyper-parameters.
const HEADER_BYTES: u64 = 32 << 20;

/// A repository as the hub lists it.
pub(crate) struct Listing {
    /// Commit.
    pub(crate) commit: String,
    pub(crate) files: Vec<RemoteFile>,
}

/// A file of a repository.
#[derive(Clone, Debug)]
pub(crate) struct RemoteFile {
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) checksum: Checksum,
}

impl RemoteFile {
    /// Name of the bytes in the cache: the checksum.
    pub(crate) fn etag(&self) -> &str {
        match &self.checksum {
            Checksum::Sha256(hex) | Checksum::GitSha1(hex) => hex,
        }
    }
}

#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<SiblingLfs>,
}

#[derive(Deserialize)]
struct SiblingLfs {
    sha256: String,
    size: u64,
}

/// An entry of the paged listing, for mirrors whose first one has no sizes.
#[derive(Deserialize)]
struct TreeEntry {
    #[serde(rename = "type")]
    kind: String,
    oid: String,
    size: u64,
    path: String,
    lfs: Option<TreeLfs>,
}

#[derive(Deserialize)]
struct TreeLfs {
    oid: String,
    size: u64,
}

/// The hub, as one pull sees it.
struct Api<'a> {
    client: &'a Client,
    name: &'a str,
    repo: &'a str,
    endpoint: Url,
}

impl<'a> Api<'a> {
    fn new(client: &'a Client, name: &'a str, repo: &'a str) -> Result<Api<'a>> {
        let address = &client.settings.hf_endpoint;
        let endpoint = Url::parse(address).map_err(|problem| Error::BadName {
            name: address.clone(),
            problem: format!("HF_ENDPOINT: {problem}"),
        })?;
        Ok(Api {
            client,
            name,
            repo,
            endpoint,
        })
    }

    fn token(&self) -> Option<(&Token, &Origin)> {
        Some((self.client.settings.token.as_ref()?, &self.endpoint.origin))
    }

    fn get(&self, url: Url, revision: &str) -> Result<Answer> {
        let request = Request {
            token: self.token(),
            ..Request::get(self.name, url)
        };
        let answer = self.client.send(&request)?;
        match answer.is_success() {
            true => Ok(answer),
            false => Err(self.failure(answer, revision, None)),
        }
    }

    /// The commit of a revision and its files.
    fn listing(&self, revision: &str) -> Result<Listing> {
        let path = format!(
            "api/models/{}/revision/{}?blobs=true",
            encode_path(self.repo),
            encode_part(revision)
        );
        let answer = self.get(self.endpoint.below(&path), revision)?;
        let info: Info = self.client.json(self.name, answer)?;
        if !is_commit(&info.sha) {
            return Err(self.bad_answer(format!(
                "{:?} is not a commit",
                crate::error::printable(&info.sha)
            )));
        }
        let sibling = |sibling: Sibling| {
            let (size, checksum) = match sibling.lfs {
                Some(lfs) => (lfs.size, Checksum::Sha256(lfs.sha256)),
                None => (sibling.size?, Checksum::GitSha1(sibling.blob_id?)),
            };
            Some(RemoteFile {
                path: sibling.rfilename,
                size,
                checksum,
            })
        };
        let files: Option<Vec<RemoteFile>> = info.siblings.into_iter().map(sibling).collect();
        let files = match files {
            Some(files) => files,
            None => self.tree(&info.sha)?,
        };
        for file in &files {
            self.check(file)?;
        }
        Ok(Listing {
            commit: info.sha,
            files,
        })
    }

    /// The paged listing.
    fn tree(&self, commit: &str) -> Result<Vec<RemoteFile>> {
        const MAX_PAGES: usize = 100;
        let path = format!(
            "api/models/{}/tree/{commit}?recursive=true",
            encode_path(self.repo)
        );
        let mut next = Some(self.endpoint.below(&path));
        let mut files = Vec::new();
        for _ in 0..MAX_PAGES {
            let Some(url) = next.take() else {
                return Ok(files);
            };
            let answer = self.get(url.clone(), commit)?;
            next = match answer.header("link").and_then(next_page) {
                Some(link) => Some(
                    url.join(link)
                        .map_err(|problem| self.bad_answer(format!("next page: {problem}")))?,
                ),
                None => None,
            };
            let page: Vec<TreeEntry> = self.client.json(self.name, answer)?;
            let entries = page.into_iter().filter(|entry| entry.kind == "file");
            files.extend(entries.map(|entry| match entry.lfs {
                Some(lfs) => RemoteFile {
                    path: entry.path,
                    size: lfs.size,
                    checksum: Checksum::Sha256(lfs.oid),
                },
                None => RemoteFile {
                    path: entry.path,
                    size: entry.size,
                    checksum: Checksum::GitSha1(entry.oid),
                },
            }));
        }
        Err(self.bad_answer(format!("the listing has more than {MAX_PAGES} pages")))
    }

    /// Refuses names that must not reach the disk.
    fn check(&self, file: &RemoteFile) -> Result<()> {
        if let Some(problem) = path_problem(&file.path) {
            let file = crate::error::printable(&file.path);
            return Err(Error::UnsafePath {
                name: self.name.into(),
                file,
                problem,
            });
        }
        let (hex, digits) = match &file.checksum {
            Checksum::Sha256(hex) => (hex, 64),
            Checksum::GitSha1(hex) => (hex, 40),
        };
        if hex.len() != digits || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(self.bad_answer(format!(
                "{}: {:?} is not a checksum",
                file.path,
                crate::error::printable(hex)
            )));
        }
        Ok(())
    }

    /// Address of a file.
    fn address(&self, commit: &str, file: &str) -> Url {
        let repo = encode_path(self.repo);
        self.endpoint.below(&format!(
            "{repo}/resolve/{}/{}",
            encode_part(commit),
            encode_path(file)
        ))
    }

    /// The error that the hub's status and headers stand for.
    fn failure(&self, answer: Answer, revision: &str, file: Option<&str>) -> Error {
        let name = self.name.to_owned();
        let host = answer.url.origin.host.clone();
        let code = answer.header("x-error-code").unwrap_or_default().to_owned();
        let message = crate::error::printable(answer.header("x-error-message").unwrap_or_default());
        let token = self
            .client
            .settings
            .token
            .as_ref()
            .map(|token| token.source.clone());
        match (answer.status, code.as_str()) {
            (401 | 403, "GatedRepo") => Error::Gated {
                page: self.endpoint.below(self.repo).to_string(),
                name,
                token,
            },
            (401, _) if message.contains("Invalid credentials") && token.is_some() => {
                Error::BadToken {
                    name,
                    host,
                    token: token.unwrap_or_default(),
                }
            }
            (403, _) if message.contains("is disabled") => Error::Disabled {
                name,
                host,
                message,
            },
            (404, "RevisionNotFound") => Error::NoRevision {
                name,
                revision: revision.to_owned(),
            },
            (404, "EntryNotFound") => Error::NoMatch {
                name,
                wanted: file.unwrap_or_default().to_owned(),
                available: Vec::new(),
            },
            (401 | 404, _) => Error::NotFound {
                name,
                host,
                with_token: token.is_some(),
            },
            _ => self.client.failure(self.name, answer),
        }
    }

    fn bad_answer(&self, problem: String) -> Error {
        Error::BadAnswer {
            name: self.name.into(),
            host: self.endpoint.origin.host.clone(),
            problem,
        }
    }

    /// The first bytes of a file.
    fn start(&self, commit: &str, file: &str, size: u64) -> Result<Vec<u8>> {
        let last = size.min(HEADER_BYTES).saturating_sub(1);
        let request = Request {
            token: self.token(),
            range: Some((0, last)),
            ..Request::get(self.name, self.address(commit, file))
        };
        let answer = self.client.send(&request)?;
        if !answer.is_success() {
            return Err(self.failure(answer, commit, Some(file)));
        }
        let mut bytes = Vec::new();
        let read = answer.into_reader().take(last + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.bad_answer(error.to_string()))?;
        Ok(bytes)
    }
}

/// The address of `rel="next"` in a `Link` header.
fn next_page(header: &str) -> Option<&str> {
    header.split(',').find_map(|link| {
        let (address, relation) = link.split_once(';')?;
        let is_next = relation
            .split(';')
            .any(|part| matches!(part.trim(), "rel=\"next\"" | "rel=next"));
        is_next
            .then(|| address.trim().strip_prefix('<')?.strip_suffix('>'))
            .flatten()
    })
}

/// Fetches a model of the hub.
pub(crate) fn pull(
    hub: &Hub,
    name: &str,
    model: &RepoRef,
    options: &PullOptions<'_>,
) -> Result<Pulled> {
    let cache = RepoCache::new(hub.hub_cache()?, &model.repo);
    let api = Api::new(&hub.client, name, &model.repo)?;
    let revision = model.revision.as_deref().unwrap_or("main");
    let listing = api.listing(revision)?;
    let chosen = choose(&api, &listing, &model.wanted, options);
    if let (Err(Error::NoMatch { .. }), Wanted::File(file)) = (&chosen, &model.wanted) {
        // Other tools need not ask again.
        cache.create(&listing.commit)?;
        cache.set_missing(&listing.commit, file)?;
    }
    let choice = chosen?;
    note_others(name, &choice, options);
    let address = |file: &RemoteFile| api.address(&listing.commit, &file.path);
    let failure = |answer: Answer| api.failure(answer, revision, None);
    let fetch = Fetch {
        client: &hub.client,
        name,
        cache: &cache,
        commit: &listing.commit,
        token: api.token(),
        address: &address,
        failure: &failure,
    };
    let pulled = fetch.run(&listing.files, &choice, options)?;
    cache.set_ref(revision, &listing.commit)?;
    Ok(pulled)
}

/// Names the quantizations that a default choice has left out.
pub(crate) fn note_others(name: &str, choice: &Choice, options: &PullOptions<'_>) {
    if let (Some(file), false) = (choice.files.first(), choice.others.is_empty()) {
        let others = choice.others.join(", ");
        options.observer.note(&format!(
            "{name}: using {file}; the repository also has {others}"
        ));
    }
}

fn choose(
    api: &Api<'_>,
    listing: &Listing,
    wanted: &Wanted,
    options: &PullOptions<'_>,
) -> Result<Choice> {
    let files: Vec<(String, u64)> = listing
        .files
        .iter()
        .map(|file| (file.path.clone(), file.size))
        .collect();
    let start = |model: &Candidate| {
        let size = files
            .iter()
            .find(|(path, _)| path == model.path())
            .map_or(0, |(_, size)| *size);
        api.start(&listing.commit, model.path(), size)
    };
    select(api.name, &files, wanted, &|models| {
        fitting(api.name, &options.memory, models, &start)
    })
}

/// Parts that fetching the files of a repository needs.
pub(crate) struct Fetch<'a> {
    pub(crate) client: &'a Client,
    pub(crate) name: &'a str,
    pub(crate) cache: &'a RepoCache,
    pub(crate) commit: &'a str,
    pub(crate) token: Option<(&'a Token, &'a Origin)>,
    pub(crate) address: &'a dyn Fn(&RemoteFile) -> Url,
    pub(crate) failure: &'a (dyn Fn(Answer) -> Error + Sync),
}

impl Fetch<'_> {
    /// Fetches the chosen files that are not in the cache.
    pub(crate) fn run(
        &self,
        listed: &[RemoteFile],
        choice: &Choice,
        options: &PullOptions<'_>,
    ) -> Result<Pulled> {
        let by_path: BTreeMap<&str, &RemoteFile> = listed
            .iter()
            .map(|file| (file.path.as_str(), file))
            .collect();
        let chosen: Vec<&RemoteFile> = choice
            .files
            .iter()
            .filter_map(|path| by_path.get(path.as_str()).copied())
            .collect();
        if let Some(file) = chosen.iter().find(|file| file.size > MAX_FILE) {
            return Err(Error::TooLarge {
                name: self.name.into(),
                file: file.path.clone(),
                size: file.size,
            });
        }
        self.cache.create(self.commit)?;
        let total = chosen
            .iter()
            .map(|file| file.size)
            .fold(0, u64::saturating_add);
        let tally = Tally::new(options.observer, total);
        let snapshot = self.cache.snapshot(self.commit);
        for file in &chosen {
            self.fetch(file, &snapshot.join(&file.path), &tally)?;
        }
        Ok(pulled(&snapshot, choice))
    }

    fn fetch(&self, file: &RemoteFile, link: &Path, tally: &Tally<'_>) -> Result<()> {
        let etag = file.etag();
        let blob = self.cache.blob(etag);
        let is_there = |path: &Path| {
            std::fs::metadata(path).is_ok_and(|data| data.is_file() && data.len() == file.size)
        };
        if is_there(link) {
            tally.add(&file.path, etag, file.size);
            return Ok(());
        }
        let _lock = self
            .cache
            .lock(self.client, self.name, etag, tally.observer)?;
        let without_links = self.client.settings.no_symlinks;
        if is_there(&blob) {
            remove_state(&blob)?;
            tally.add(&file.path, etag, file.size);
        } else if !(without_links && is_there(link)) {
            if let (true, Some(parent)) = (without_links, link.parent()) {
                disk::create_directory(parent)?;
            }
            Download {
                client: self.client,
                name: self.name,
                file: &file.path,
                url: (self.address)(file),
                token: self.token,
                size: file.size,
                checksum: Some(file.checksum.clone()),
                identity: etag.to_owned(),
                validator: None,
                failure: self.failure,
                tally,
            }
            .run(&blob, if without_links { link } else { &blob })?;
        }
        match without_links && is_there(link) {
            true => Ok(()),
            false => disk::link(&blob, link),
        }
    }
}

fn pulled(snapshot: &Path, choice: &Choice) -> Pulled {
    let files: Vec<_> = choice
        .files
        .iter()
        .map(|file| snapshot.join(file))
        .collect();
    let path = match choice.is_directory {
        true => snapshot.to_owned(),
        false => files.first().cloned().unwrap_or_default(),
    };
    Pulled { path, files }
}

/// The model in the cache.
pub(crate) fn find(
    hub: &Hub,
    name: &str,
    model: &RepoRef,
    options: &PullOptions<'_>,
) -> Result<Option<Pulled>> {
    let cache = RepoCache::new(hub.hub_cache()?, &model.repo);
    find_in(&cache, name, model, "main", options)
}

/// The model in a cache, if all of its files are there.
pub(crate) fn find_in(
    cache: &RepoCache,
    name: &str,
    model: &RepoRef,
    branch: &str,
    options: &PullOptions<'_>,
) -> Result<Option<Pulled>> {
    let Some(commit) = cache.commit_of(model.revision.as_deref().unwrap_or(branch)) else {
        return Ok(None);
    };
    let files = cache.files(&commit);
    let snapshot = cache.snapshot(&commit);
    let start = |model: &Candidate| {
        let path = snapshot.join(model.path());
        let file = std::fs::File::open(&path).map_err(Error::file(&path))?;
        let mut bytes = Vec::new();
        file.take(HEADER_BYTES)
            .read_to_end(&mut bytes)
            .map_err(Error::file(&path))?;
        Ok(bytes)
    };
    let fits = |models: &[Candidate]| fitting(name, &options.memory, models, &start);
    let choice = match select(name, &files, &model.wanted, &fits) {
        Ok(choice) => choice,
        Err(Error::NoMatch { .. } | Error::NoModel { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let is_whole = !choice.is_directory || is_whole(&snapshot, &choice);
    Ok(is_whole.then(|| pulled(&snapshot, &choice)))
}

/// True if a safetensors directory has its configuration, and all files that its index names.
fn is_whole(snapshot: &Path, choice: &Choice) -> bool {
    let has = |file: &str| choice.files.iter().any(|known| known == file);
    if !has("config.json") {
        return false;
    }
    let Ok(index) = std::fs::read(snapshot.join("model.safetensors.index.json")) else {
        return has("model.safetensors");
    };
    let index: Option<serde_json::Value> = serde_json::from_slice(&index).ok();
    let map = index
        .as_ref()
        .and_then(|index| index.get("weight_map")?.as_object());
    map.is_some_and(|map| map.values().all(|file| file.as_str().is_some_and(has)))
}

/// True if the cache has what the hub would choose, so that it need not be asked: a file or a quantization that is
/// named, or the quantization that goes before all others.
pub(crate) fn is_certain(hub: &Hub, model: &RepoRef) -> bool {
    hub.hub_cache()
        .is_ok_and(|root| is_certain_in(&RepoCache::new(root, &model.repo), model, "main"))
}

pub(crate) fn is_certain_in(cache: &RepoCache, model: &RepoRef, branch: &str) -> bool {
    match &model.wanted {
        Wanted::File(_) | Wanted::Quantization(_) => true,
        Wanted::Auto => false,
        Wanted::Default => {
            let commit = cache.commit_of(model.revision.as_deref().unwrap_or(branch));
            commit.is_some_and(|commit| {
                let models = candidates(&cache.files(&commit));
                models.is_empty()
                    || models
                        .iter()
                        .any(|model| model.quantization.as_deref() == Some("Q4_K_M"))
            })
        }
    }
}

/// A repository that a search has found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Found {
    /// Owner and name.
    pub repo: String,
    /// Downloads in the last month.
    pub downloads: u64,
    /// Likes.
    pub likes: u64,
    /// License, if the repository names one.
    pub license: Option<String>,
    /// True if the terms of the repository must be accepted.
    pub gated: bool,
    /// GGUF models.
    pub models: Vec<FoundModel>,
}

/// A GGUF model of a repository that a search has found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct FoundModel {
    /// File to load.
    pub file: String,
    /// Quantization in its name.
    pub quantization: Option<String>,
    /// Size of all its files in bytes.
    pub size: u64,
}

#[derive(Deserialize)]
struct SearchHit {
    id: String,
    #[serde(default)]
    downloads: u64,
    #[serde(default)]
    likes: u64,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    gated: serde_json::Value,
}

impl Hub {
    /// Searches the hub for GGUF repositories, the most downloaded first.
    pub fn search(&self, words: &str, limit: usize) -> Result<Vec<Found>> {
        let name = "search";
        if self.settings().offline {
            let problem = "a search needs the network, which is off".to_owned();
            return Err(Error::NotSupported {
                name: name.into(),
                problem,
            });
        }
        let api = Api::new(&self.client, name, "")?;
        let limit = limit.clamp(1, 100);
        let path = format!(
            "api/models?search={}&filter=gguf&sort=downloads&direction=-1&limit={limit}",
            encode_part(words)
        );
        let hits: Vec<SearchHit> = self
            .client
            .json(name, api.get(api.endpoint.below(&path), "main")?)?;
        let mut found = Vec::new();
        for hit in hits.into_iter().take(limit) {
            // The list has no sizes: the listing of each repository has them.
            let is_name = hit
                .id
                .split_once('/')
                .is_some_and(|(user, repo)| is_word(user) && is_word(repo));
            if !is_name {
                continue;
            }
            let api = Api::new(&self.client, name, &hit.id)?;
            let gated = !matches!(
                &hit.gated,
                serde_json::Value::Null | serde_json::Value::Bool(false)
            );
            let files = match api.listing("main") {
                Ok(listing) => listing.files,
                // A repository that cannot be read is listed without files.
                Err(
                    Error::Gated { .. }
                    | Error::NotFound { .. }
                    | Error::UnsafePath { .. }
                    | Error::BadAnswer { .. },
                ) => Vec::new(),
                Err(error) => return Err(error),
            };
            let files: Vec<(String, u64)> = files
                .into_iter()
                .map(|file| (file.path, file.size))
                .collect();
            let license = hit.tags.iter().find_map(|tag| tag.strip_prefix("license:"));
            let license = license.map(crate::error::printable);
            let models = candidates(&files).into_iter().map(|model| FoundModel {
                file: model.path().to_owned(),
                quantization: model.quantization.clone(),
                size: model.size,
            });
            let models = models.collect();
            found.push(Found {
                repo: hit.id,
                downloads: hit.downloads,
                likes: hit.likes,
                license,
                gated,
                models,
            });
        }
        Ok(found)
    }
}
