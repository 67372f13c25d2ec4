//! [`RepoCache`]: one repository in the cache, in the layout of the Hugging Face hub, which other tools read.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::client::Client;
use crate::disk;
use crate::error::{Error, Result};
use crate::progress::Observer;

/// Mark that backup programs look for (<https://bford.info/cachedir/>).
const CACHE_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n# This is the cache of models of the Hugging Face hub.\n";

/// A repository in a cache.
pub(crate) struct RepoCache {
    root: PathBuf,
    /// `models--USER--REPO`.
    directory_name: String,
}

impl RepoCache {
    /// The repository `user/repo` in the cache `root`.
    pub(crate) fn new(root: &Path, repo: &str) -> RepoCache {
        RepoCache {
            root: root.to_owned(),
            directory_name: format!("models--{}", repo.replace('/', "--")),
        }
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.root.join(&self.directory_name)
    }

    /// Directory of the files of a commit.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.directory().join("snapshots").join(commit)
    }

    /// Path of the bytes with this ETag.
    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.directory().join("blobs").join(etag)
    }

    /// The commit that a branch or tag pointed to when it was last fetched.
    pub(crate) fn commit_of(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let text = std::fs::read_to_string(self.directory().join("refs").join(revision)).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Files of a snapshot that are there, with their sizes.
    pub(crate) fn files(&self, commit: &str) -> Vec<(String, u64)> {
        let mut files = Vec::new();
        collect(&self.snapshot(commit), "", 0, &mut files);
        files.sort();
        files
    }

    /// Creates the directories of a commit. The snapshot is first: without it, other tools warn.
    pub(crate) fn create(&self, commit: &str) -> Result<()> {
        disk::create_directory(&self.snapshot(commit))?;
        disk::create_directory(&self.directory().join("blobs"))?;
        let tag = self.root.join("CACHEDIR.TAG");
        if !tag.exists() {
            disk::write_atomically(&tag, CACHE_TAG.as_bytes())?;
        }
        Ok(())
    }

    /// Records the commit of a branch or tag.
    pub(crate) fn set_ref(&self, revision: &str, commit: &str) -> Result<()> {
        if revision == commit {
            return Ok(());
        }
        let path = self.directory().join("refs").join(revision);
        if let Some(parent) = path.parent() {
            disk::create_directory(parent)?;
        }
        disk::write_atomically(&path, commit.as_bytes())
    }

    /// Records that a commit has no such file.
    pub(crate) fn set_missing(&self, commit: &str, file: &str) -> Result<()> {
        let path = self.directory().join(".no_exist").join(commit).join(file);
        if let Some(parent) = path.parent() {
            disk::create_directory(parent)?;
        }
        std::fs::write(&path, b"").map_err(Error::file(path))
    }

    /// Takes the lock of a blob.
    pub(crate) fn lock(
        &self,
        client: &Client,
        name: &str,
        etag: &str,
        observer: &dyn Observer,
    ) -> Result<File> {
        let locks = self.root.join(".locks").join(&self.directory_name);
        disk::lock(client, name, &locks.join(format!("{etag}.lock")), observer)
    }
}

/// True if a revision is a full commit.
pub(crate) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Collects files with their sizes, through links.
fn collect(directory: &Path, prefix: &str, depth: usize, files: &mut Vec<(String, u64)>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let (Ok(name), Ok(data)) = (
            entry.file_name().into_string(),
            std::fs::metadata(entry.path()),
        ) else {
            continue;
        };
        let path = format!("{prefix}{name}");
        match data.is_dir() {
            true if depth < 8 => collect(&entry.path(), &format!("{path}/"), depth + 1, files),
            true => {}
            false => files.push((path, data.len())),
        }
    }
}
