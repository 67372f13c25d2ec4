//! Files: writing at a position, free space, locks that other tools of the hub share, atomic small files.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::progress::Observer;

/// Writes all bytes at a position.
#[cfg(unix)]
pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

/// Writes all bytes at a position.
#[cfg(windows)]
pub(crate) fn write_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, offset)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = bytes.get(written..).unwrap_or_default();
        offset += written as u64;
    }
    Ok(())
}

/// Free bytes for this user below a directory, if known.
#[cfg(unix)]
pub(crate) fn free_space(directory: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(directory).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Free bytes for this user below a directory, if known.
#[cfg(not(unix))]
pub(crate) fn free_space(_: &Path) -> Option<u64> {
    None
}

/// True if the error says that no more can be written.
pub(crate) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Creates a directory and those above it.
pub(crate) fn create_directory(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(Error::file(path))
}

/// Takes a lock file that other processes take too; it is released when the file is dropped.
pub(crate) fn lock(
    client: &Client,
    name: &str,
    path: &Path,
    observer: &dyn Observer,
) -> Result<File> {
    if let Some(parent) = path.parent() {
        create_directory(parent)?;
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    // The group may share the cache, as in the hub's own library.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o664);
    let file = options.open(path).map_err(Error::file(path))?;
    let mut told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {
                if !std::mem::replace(&mut told, true) {
                    observer.note("waiting for another process that fetches the same file");
                }
                client.sleep(name, Duration::from_millis(50))?;
            }
            // A file system without locks: the checksum still guards the file.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                return Ok(file);
            }
            Err(TryLockError::Error(error)) => return Err(Error::file(path)(error)),
        }
    }
}

/// Writes a small file by writing another one and renaming it.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = beside(path, &format!(".{}.tmp", std::process::id()));
    std::fs::write(&temporary, bytes).map_err(Error::file(&temporary))?;
    std::fs::rename(&temporary, path).map_err(Error::file(path))
}

/// The path with an ending added to the file name.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(ending);
    path.with_file_name(name)
}

/// Removes a file that may be missing.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file(path)(error)),
        _ => Ok(()),
    }
}

/// Makes `link` point to `target`, relative if both are below a directory, and replaces what was there. Without
/// symbolic links, it is a hard link or a copy.
pub(crate) fn link(target: &Path, link: &Path) -> Result<()> {
    if let Some(parent) = link.parent() {
        create_directory(parent)?;
    }
    let temporary = beside(link, &format!(".{}.tmp", std::process::id()));
    remove(&temporary)?;
    let made = symlink(&relative(target, link), &temporary);
    if made.is_err() {
        std::fs::hard_link(target, &temporary)
            .or_else(|_| std::fs::copy(target, &temporary).map(|_| ()))
            .map_err(Error::file(link))?;
    }
    std::fs::rename(&temporary, link).map_err(Error::file(link))
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// `target` as seen from the directory of `link`.
fn relative(target: &Path, link: &Path) -> PathBuf {
    let from: Vec<_> = link
        .parent()
        .map(|path| path.components().collect())
        .unwrap_or_default();
    let to: Vec<_> = target.components().collect();
    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    // Without a shared directory beyond the root, the absolute path is clearer.
    if shared <= 1 && target.is_absolute() {
        return target.to_owned();
    }
    let up = from.iter().skip(shared).map(|_| Path::new(".."));
    up.chain(
        to.iter()
            .skip(shared)
            .map(|part| Path::new(part.as_os_str())),
    )
    .collect()
}

/// Sets the access time to now, which tells when a model was last used. File systems that ignore reads need this.
pub fn touch(path: &Path) {
    let times = std::fs::FileTimes::new().set_accessed(SystemTime::now());
    let file = File::open(path).or_else(|_| OpenOptions::new().append(true).open(path));
    // A file of another user keeps its time.
    let _ = file.and_then(|file| file.set_times(times));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_relative() {
        let seen = |target, link| {
            relative(Path::new(target), Path::new(link))
                .display()
                .to_string()
        };
        assert_eq!(
            seen("/c/m/blobs/e", "/c/m/snapshots/x/a.gguf"),
            "../../blobs/e"
        );
        assert_eq!(
            seen("/c/m/blobs/e", "/c/m/snapshots/x/sub/a.gguf"),
            "../../../blobs/e"
        );
        assert_eq!(seen("/a/b", "/c/d"), "/a/b");
    }
}
