//! [`Library`]: the models on this machine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::disk;
use crate::error::{Error, Result};
use crate::reference::{ModelRef, Wanted, is_word};
use crate::repo_cache::RepoCache;
use crate::select::{Candidate, candidates, without_extension};
use crate::settings::Settings;

/// The models on this machine: those of the hub's cache and of our own.
pub struct Library {
    hub_cache: Option<PathBuf>,
    own_cache: Option<PathBuf>,
}

/// A model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalModel {
    /// Name that every subcommand takes.
    pub name: String,
    /// File or directory to load.
    pub path: PathBuf,
    /// All files.
    pub files: Vec<PathBuf>,
    /// Size of all files in bytes.
    pub size: u64,
    /// Quantization in the name of the file.
    pub quantization: Option<String>,
    /// Time of the last use, if the file system knows.
    pub used: Option<SystemTime>,
    /// Who else uses the files.
    pub sharing: Sharing,
    place: Place,
}

/// Who else uses the files of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Nobody.
    No,
    /// Other tools of the hub, which read the same cache.
    HubCache,
    /// Other repositories, through the hub's store of shared files.
    HubStore,
    /// Another name, which keeps the bytes when this one is removed.
    OtherName,
}

impl Sharing {
    /// Short text for a list.
    pub fn name(self) -> &'static str {
        match self {
            Sharing::No => "no",
            Sharing::HubCache => "hub cache",
            Sharing::HubStore => "hub store",
            Sharing::OtherName => "other name",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Directory of a repository, and the name of the snapshot.
    Repo {
        root: PathBuf,
        repo: String,
        commit: String,
    },
    /// A file or directory with a name of its own.
    Named,
    /// A link to a blob of a directory.
    Ollama {
        root: PathBuf,
    },
    Web,
}

impl Library {
    /// The models in the directories of these settings.
    pub fn new(settings: &Settings) -> Library {
        Library {
            hub_cache: settings.hub_cache.clone(),
            own_cache: settings.own_cache.clone(),
        }
    }

    /// Directory of models with a name of their own.
    pub fn names_directory(&self) -> Option<PathBuf> {
        Some(self.own_cache.as_ref()?.join("models"))
    }

    /// All models, by name.
    pub fn list(&self) -> Vec<LocalModel> {
        let mut models = Vec::new();
        if let Some(root) = &self.hub_cache {
            repos(root, "hf:", "main", Sharing::HubCache, &mut models);
        }
        if let Some(own) = &self.own_cache {
            repos(
                &own.join("modelscope"),
                "ms:",
                "master",
                Sharing::No,
                &mut models,
            );
            named(&own.join("models"), &mut models);
            ollama(&own.join("ollama"), &mut models);
            web(&own.join("web"), &mut models);
        }
        models.sort_by(|a, b| a.name.cmp(&b.name));
        models
    }

    /// The models that a name stands for: exactly one, or several quantizations of a repository.
    pub fn matching(&self, name: &str) -> Vec<LocalModel> {
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let wanted = match ModelRef::parse(name) {
            Some(Ok(model)) => model.to_string(),
            _ => plain.to_owned(),
        };
        let models = self.list();
        let equal = |model: &&LocalModel| model.name.eq_ignore_ascii_case(&wanted);
        let exact: Vec<LocalModel> = models.iter().filter(equal).cloned().collect();
        if !exact.is_empty() {
            return exact;
        }
        let of_repo = |model: &&LocalModel| {
            let (own, asked) = (ModelRef::parse(&model.name), ModelRef::parse(name));
            match (own, asked) {
                (Some(Ok(ModelRef::HuggingFace(own))), Some(Ok(ModelRef::HuggingFace(asked))))
                | (Some(Ok(ModelRef::ModelScope(own))), Some(Ok(ModelRef::ModelScope(asked)))) => {
                    own.repo == asked.repo && asked.wanted == Wanted::Default
                }
                _ => false,
            }
        };
        let of_file = |model: &&LocalModel| {
            let stem = model
                .path
                .file_stem()
                .map(|stem| stem.to_string_lossy().into_owned());
            !model.path.is_dir() && stem.is_some_and(|stem| stem.eq_ignore_ascii_case(plain))
        };
        models
            .iter()
            .filter(|model| of_repo(model) || of_file(model))
            .cloned()
            .collect()
    }

    /// Models that were not used for this time.
    pub fn unused(&self, time: Duration) -> Vec<LocalModel> {
        let is_old = |model: &LocalModel| {
            let age = model
                .used
                .and_then(|used| SystemTime::now().duration_since(used).ok());
            age.is_some_and(|age| age >= time)
        };
        self.list().into_iter().filter(is_old).collect()
    }

    /// Removes a model and returns the number of bytes that are free now. Bytes that something else refers to stay.
    pub fn remove(&self, model: &LocalModel) -> Result<u64> {
        match &model.place {
            Place::Repo { root, repo, commit } => remove_of_repo(root, repo, commit, &model.files),
            Place::Named => {
                let mut freed = 0;
                let whole = std::slice::from_ref(&model.path);
                for path in if model.path.is_dir() {
                    whole
                } else {
                    &model.files
                } {
                    freed += remove_any(path)?;
                }
                Ok(freed)
            }
            Place::Ollama { root } => {
                let blobs: BTreeSet<PathBuf> = model
                    .files
                    .iter()
                    .filter_map(|file| file.canonicalize().ok())
                    .collect();
                for file in &model.files {
                    disk::remove(file)?;
                }
                let mut others = Vec::new();
                ollama(root, &mut others);
                let used: BTreeSet<PathBuf> = others
                    .iter()
                    .flat_map(|model| &model.files)
                    .filter_map(|file| file.canonicalize().ok())
                    .collect();
                let mut freed = 0;
                for blob in blobs.difference(&used) {
                    freed += remove_any(blob)?;
                }
                Ok(freed)
            }
            Place::Web => {
                let mut freed = 0;
                for file in &model.files {
                    freed += remove_any(file)?;
                    disk::remove(&disk::beside(file, ".source"))?;
                    disk::remove(&disk::beside(file, ".lock"))?;
                }
                Ok(freed)
            }
        }
    }

    /// Gives a model another name. The bytes are shared, and stay when either name is removed.
    pub fn copy(&self, path: &Path, files: &[PathBuf], name: &str) -> Result<PathBuf> {
        let directory = self.names_directory().ok_or(Error::NoCacheDirectory)?;
        if !is_word(name) {
            let problem = "a name has letters, digits, dots, dashes and underscores".to_owned();
            return Err(Error::BadName {
                name: name.into(),
                problem,
            });
        }
        if self
            .list()
            .iter()
            .any(|model| model.name.eq_ignore_ascii_case(name))
        {
            return Err(Error::BadName {
                name: name.into(),
                problem: "a model of this name exists".into(),
            });
        }
        disk::create_directory(&directory)?;
        if path.is_dir() {
            let new = directory.join(name);
            for file in files {
                let inner = file.strip_prefix(path).unwrap_or(file);
                share(file, &new.join(inner))?;
            }
            return Ok(new);
        }
        let ending = |file: &Path| {
            let stem = file
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let part = crate::quantization::split_part(&stem)
                .map(|(_, part, total)| format!("-{part:05}-of-{total:05}"));
            let extension = file
                .extension()
                .map_or("gguf".into(), |extension| extension.to_string_lossy());
            format!("{}.{extension}", part.unwrap_or_default())
        };
        for file in files {
            share(file, &directory.join(format!("{name}{}", ending(file))))?;
        }
        Ok(directory.join(format!("{name}{}", ending(path))))
    }
}

/// Makes a second name of the bytes of a file.
fn share(file: &Path, new: &Path) -> Result<()> {
    if let Some(parent) = new.parent() {
        disk::create_directory(parent)?;
    }
    let bytes = file.canonicalize().map_err(Error::file(file))?;
    std::fs::hard_link(&bytes, new).or_else(|_| disk::link(&bytes, new))
}

/// Entries of a directory with their names, sorted.
fn entries(directory: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut entries: Vec<_> = entries
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .collect();
    entries.sort();
    entries
}

/// Time of the last use of a file.
fn last_used(path: &Path) -> Option<SystemTime> {
    let data = std::fs::metadata(path).ok()?;
    // A file that was never read since it was written.
    data.accessed().ok().max(data.modified().ok())
}

#[cfg(unix)]
fn hard_links(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(1, |data| std::os::unix::fs::MetadataExt::nlink(&data))
}

#[cfg(not(unix))]
fn hard_links(_: &Path) -> u64 {
    1
}

/// Adds the models of all repositories of a cache.
fn repos(root: &Path, prefix: &str, branch: &str, sharing: Sharing, models: &mut Vec<LocalModel>) {
    for (directory, _) in entries(root) {
        let Some((user, name)) = directory
            .strip_prefix("models--")
            .and_then(|repo| repo.split_once("--"))
        else {
            continue;
        };
        let repo = format!("{user}/{name}");
        let cache = RepoCache::new(root, &repo);
        let current = cache.commit_of(branch);
        for (commit, snapshot) in entries(&cache.directory().join("snapshots")) {
            let revision = if current.as_ref() == Some(&commit) {
                String::new()
            } else {
                format!("@{commit}")
            };
            let files = cache.files(&commit);
            let found = candidates(&files);
            let place = || Place::Repo {
                root: root.to_owned(),
                repo: repo.clone(),
                commit: commit.clone(),
            };
            for model in &found {
                let is_unique = |quantization: &&String| {
                    found
                        .iter()
                        .filter(|other| other.quantization.as_ref() == Some(*quantization))
                        .count()
                        == 1
                };
                let wanted = model
                    .quantization
                    .as_ref()
                    .filter(is_unique)
                    .map_or(model.path(), String::as_str);
                models.push(LocalModel {
                    name: format!("{prefix}{repo}{revision}:{wanted}"),
                    ..local(&snapshot, model, sharing, place())
                });
            }
            let is_safetensors = files
                .iter()
                .any(|(path, _)| without_extension(path, "safetensors").is_some());
            if found.is_empty() && is_safetensors {
                let all = Candidate::whole(&files);
                models.push(LocalModel {
                    name: format!("{prefix}{repo}{revision}"),
                    path: snapshot.clone(),
                    ..local(&snapshot, &all, sharing, place())
                });
            }
        }
    }
}

fn local(directory: &Path, model: &Candidate, sharing: Sharing, place: Place) -> LocalModel {
    let files: Vec<PathBuf> = model
        .files
        .iter()
        .map(|file| directory.join(file))
        .collect();
    let path = files.first().cloned().unwrap_or_default();
    // A blob of the hub's shared store is itself a link.
    let is_stored = |path: &Path| {
        let blob = std::fs::read_link(path)
            .ok()
            .and_then(|link| Some(path.parent()?.join(link)));
        blob.is_some_and(|blob| blob.is_symlink())
    };
    let sharing = match sharing {
        Sharing::HubCache if is_stored(&path) => Sharing::HubStore,
        Sharing::No if hard_links(&path) > 1 => Sharing::OtherName,
        other => other,
    };
    LocalModel {
        name: String::new(),
        used: files.iter().filter_map(|file| last_used(file)).max(),
        path,
        files,
        size: model.size,
        quantization: model.quantization.clone(),
        sharing,
        place,
    }
}

/// Adds the models with a name of their own.
fn named(directory: &Path, models: &mut Vec<LocalModel>) {
    let mut files = Vec::new();
    for (name, path) in entries(directory) {
        let Ok(data) = std::fs::metadata(&path) else {
            continue;
        };
        if !data.is_dir() {
            files.push((name, data.len()));
            continue;
        }
        let inner: Vec<(String, u64)> = entries(&path)
            .into_iter()
            .filter_map(|(name, path)| {
                Some((
                    name,
                    std::fs::metadata(path)
                        .ok()
                        .filter(|data| data.is_file())?
                        .len(),
                ))
            })
            .collect();
        let is_model = inner.iter().any(|(file, _)| {
            ["safetensors", "gguf"]
                .iter()
                .any(|e| without_extension(file, e).is_some())
        });
        if is_model {
            models.push(LocalModel {
                name,
                path: path.clone(),
                ..local(&path, &Candidate::whole(&inner), Sharing::No, Place::Named)
            });
        }
    }
    for model in candidates(&files) {
        let stem = model
            .path()
            .rsplit_once('.')
            .map_or(model.path(), |(stem, _)| stem);
        let stem = crate::quantization::split_part(stem)
            .map_or(stem, |(stem, ..)| stem)
            .to_owned();
        models.push(LocalModel {
            name: stem,
            ..local(directory, &model, Sharing::No, Place::Named)
        });
    }
}

/// Adds the models of Ollama's registry.
fn ollama(root: &Path, models: &mut Vec<LocalModel>) {
    for (namespace, directory) in entries(&root.join("models")) {
        for (name, directory) in entries(&directory) {
            for (file, path) in entries(&directory) {
                let (Some(tag), Ok(data)) = (file.strip_suffix(".gguf"), std::fs::metadata(&path))
                else {
                    continue;
                };
                let owner = if namespace == "library" {
                    String::new()
                } else {
                    format!("{namespace}/")
                };
                let all = Candidate::whole(&[(file.clone(), data.len())]);
                models.push(LocalModel {
                    name: format!("ollama:{owner}{name}:{tag}"),
                    ..local(
                        &directory,
                        &all,
                        Sharing::No,
                        Place::Ollama {
                            root: root.to_owned(),
                        },
                    )
                });
            }
        }
    }
}

/// Adds the models of web servers.
fn web(root: &Path, models: &mut Vec<LocalModel>) {
    for (_, directory) in entries(root) {
        let files: Vec<(String, u64)> = entries(&directory)
            .into_iter()
            .filter_map(|(name, path)| Some((name, std::fs::metadata(path).ok()?.len())))
            .collect();
        for model in candidates(&files) {
            let source = disk::beside(&directory.join(model.path()), ".source");
            let Ok(source) = std::fs::read_to_string(source) else {
                continue;
            };
            let address = source.lines().next().unwrap_or_default();
            let address = address.split('?').next().unwrap_or_default().to_owned();
            models.push(LocalModel {
                name: address,
                ..local(&directory, &model, Sharing::No, Place::Web)
            });
        }
    }
}

/// Removes files of a snapshot, and the blobs that no other snapshot links to.
fn remove_of_repo(root: &Path, repo: &str, commit: &str, files: &[PathBuf]) -> Result<u64> {
    let cache = RepoCache::new(root, repo);
    let directory = cache.directory();
    let blob_of = |link: &Path| {
        let target = std::fs::read_link(link).ok()?;
        Some(directory.join("blobs").join(target.file_name()?))
    };
    let blobs: BTreeSet<PathBuf> = files.iter().filter_map(|file| blob_of(file)).collect();
    let mut freed = 0;
    for file in files {
        freed += remove_any(file)?;
        prune(file.parent(), &directory.join("snapshots"));
    }
    let snapshots = entries(&directory.join("snapshots"));
    let mut used = BTreeSet::new();
    for (commit, snapshot) in &snapshots {
        used.extend(
            cache
                .files(commit)
                .iter()
                .filter_map(|(file, _)| blob_of(&snapshot.join(file))),
        );
    }
    for blob in blobs.difference(&used) {
        freed += remove_any(blob)?;
    }
    let is_left = snapshots
        .iter()
        .any(|(left, _)| !cache.files(left).is_empty());
    if !is_left {
        // What is left of the repository is bookkeeping.
        let lock = root
            .join(".locks")
            .join(directory.file_name().unwrap_or_default());
        for path in [directory, lock] {
            match std::fs::remove_dir_all(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::file(path)(error));
                }
                _ => {}
            }
        }
        return Ok(freed);
    }
    if cache.files(commit).is_empty() {
        for (_, reference) in entries(&directory.join("refs")) {
            if std::fs::read_to_string(&reference).is_ok_and(|text| text.trim() == commit) {
                disk::remove(&reference)?;
            }
        }
    }
    Ok(freed)
}

/// Removes empty directories up to `end`, which stays.
fn prune(directory: Option<&Path>, end: &Path) {
    let mut next = directory;
    while let Some(directory) =
        next.filter(|directory| *directory != end && directory.starts_with(end))
    {
        if std::fs::remove_dir(directory).is_err() {
            return;
        }
        next = directory.parent();
    }
}

/// Removes a file, a link or a directory, and returns the bytes that are free now.
fn remove_any(path: &Path) -> Result<u64> {
    let Ok(data) = std::fs::symlink_metadata(path) else {
        return Ok(0);
    };
    if data.is_dir() {
        let mut freed = 0;
        for (_, inner) in entries(path) {
            freed += remove_any(&inner)?;
        }
        std::fs::remove_dir(path).map_err(Error::file(path))?;
        return Ok(freed);
    }
    let freed = if data.is_file() && hard_links(path) == 1 {
        data.len()
    } else {
        0
    };
    std::fs::remove_file(path).map_err(Error::file(path))?;
    Ok(freed)
}
