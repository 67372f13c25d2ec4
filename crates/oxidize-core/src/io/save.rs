//! Atomic saving: readers see either the old file or the complete new one.
//!
//! On Linux, if the file system supports it, the file has no name until it is complete, so that
//! even a killed process leaves nothing behind. Elsewhere it has a temporary name in the same
//! directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Writes `path` through a temporary file, which replaces it when it is complete and synced to
/// disk. After an error, the old file is unchanged.
pub fn save_atomically<E: From<Error>>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), E>,
) -> Result<(), E> {
    let mut pending = PendingFile::create(path)?;
    write(&mut pending.out)?;
    pending.finish()?.publish()?;
    Ok(())
}

/// File being written, without its final name. Removed when dropped.
#[derive(Debug)]
pub struct PendingFile {
    /// Writer of the contents.
    pub out: BufWriter<File>,
    path: PathBuf,
    place: Place,
}

/// File that is complete and synced to disk, without its final name. Removed when dropped.
#[derive(Debug)]
pub struct SavedFile {
    /// Keeps an unnamed file open, or the lock of a named one.
    _file: File,
    path: PathBuf,
    place: Place,
}

impl PendingFile {
    /// Creates a file that will become `path`, or the target of that link. Only regular files are
    /// replaced.
    pub fn create(path: &Path) -> Result<PendingFile> {
        let path = destination(path).map_err(Error::io(path))?;
        let created = match create_unnamed(directory_of(&path)) {
            Some(created) => Ok(created),
            None => create_named(&path),
        };
        let (file, place) = created.map_err(Error::io(&path))?;
        Ok(PendingFile {
            out: BufWriter::with_capacity(1 << 20, file),
            path,
            place,
        })
    }

    /// Final path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Syncs the file to disk.
    pub fn finish(self) -> Result<SavedFile> {
        let PendingFile { out, path, place } = self;
        let write = || {
            let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            Ok(file)
        };
        let file = write().map_err(Error::io(&path))?;
        Ok(SavedFile {
            _file: file,
            path,
            place,
        })
    }
}

impl SavedFile {
    /// Path for opening the file before it is published.
    pub fn temporary(&self) -> &Path {
        match &self.place {
            Place::Unnamed(path) => path,
            Place::Named(temporary) => &temporary.path,
        }
    }

    /// Gives the file its final name, replacing a file of that name.
    pub fn publish(mut self) -> Result<()> {
        self.rename().map_err(Error::io(&self.path))
    }

    fn rename(&mut self) -> io::Result<()> {
        if let Place::Unnamed(unnamed) = &self.place {
            let taken = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
            match link(unnamed, &self.path) {
                // Linking does not replace existing files; renaming does.
                Err(error) if taken(&error) => {
                    let ((), temporary) = under_free_name(&self.path, |name| link(unnamed, name))?;
                    self.place = Place::Named(temporary);
                }
                linked => linked?,
            }
        }
        if let Place::Named(temporary) = &mut self.place {
            fs::rename(&temporary.path, &self.path)?;
            temporary.armed = false;
        }
        // Sync the directory as well. Only Unix can open directories as files.
        #[cfg(unix)]
        File::open(directory_of(&self.path))?.sync_all()?;
        Ok(())
    }
}

/// Path of the file that `path` refers to, with links resolved. Returns an error for directories,
/// devices and pipes.
fn destination(path: &Path) -> io::Result<PathBuf> {
    let refused = |problem| Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    let link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => refused("is a directory"),
        Ok(found) if !found.is_file() => refused("is not a regular file"),
        Ok(_) if link => fs::canonicalize(path),
        Err(_) if link => refused("is a dangling link"),
        Ok(_) | Err(_) => Ok(path.to_path_buf()),
    }
}

/// Removes temporary files for `path` that killed processes left behind. Files that are being
/// written are locked and stay.
pub fn remove_abandoned(path: &Path) {
    let (Some(name), Ok(entries)) = (path.file_name(), fs::read_dir(directory_of(path))) else {
        return;
    };
    let beginning = format!(".{}.", name.to_string_lossy());
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let rest = name.strip_prefix(&beginning);
        let number = rest.and_then(|rest| rest.strip_suffix(PARTIAL));
        let digits = |text: &str| {
            text.bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'.')
        };
        if !number.is_some_and(digits) {
            continue;
        }
        let opened = OpenOptions::new().write(true).open(entry.path());
        if opened.is_ok_and(|file| file.try_lock().is_ok()) {
            // A file that cannot be removed does no harm.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Location of a file without its final name.
#[derive(Debug)]
enum Place {
    /// No name; the path refers to a file descriptor of this process.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code))]
    Unnamed(PathBuf),
    /// Temporary name in the final directory.
    Named(RemoveOnDrop),
}

/// Creates a file without a name in `dir`, if the system supports it.
#[cfg(target_os = "linux")]
fn create_unnamed(dir: &Path) -> Option<(File, Place)> {
    use rustix::fs::{Mode, OFlags, open};
    use std::os::fd::AsRawFd;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(open(dir, flags, Mode::from_raw_mode(0o666)).ok()?);
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    // The lock protects the temporary name, which the file may get for a moment, from
    // `remove_abandoned`.
    let usable = path.exists() && file.try_lock().is_ok();
    usable.then_some((file, Place::Unnamed(path)))
}

#[cfg(target_os = "linux")]
fn link(unnamed: &Path, path: &Path) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, linkat};
    Ok(linkat(CWD, unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

#[cfg(not(target_os = "linux"))]
fn create_unnamed(_dir: &Path) -> Option<(File, Place)> {
    None
}

#[cfg(not(target_os = "linux"))]
fn link(_unnamed: &Path, _path: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Creates a file with a unique temporary name in the directory of `path`.
fn create_named(path: &Path) -> io::Result<(File, Place)> {
    loop {
        let create = |name: &Path| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).open(name)
        };
        let (file, temporary) = under_free_name(path, create)?;
        // Without locks, `remove_abandoned` removes nothing either.
        let _ = file.lock();
        // The file may have been removed as abandoned before it was locked.
        if temporary.path.exists() {
            return Ok((file, Place::Named(temporary)));
        }
    }
}

/// Suffix of temporary names.
const PARTIAL: &str = ".partial";

/// Calls `create` with temporary names for `path` until one is free.
fn under_free_name<T>(
    path: &Path,
    make: impl Fn(&Path) -> io::Result<T>,
) -> io::Result<(T, RemoveOnDrop)> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let name = path
        .file_name()
        .ok_or(io::ErrorKind::InvalidInput)?
        .to_string_lossy();
    loop {
        let n = COUNTER.fetch_add(1, Ordering::Relaxed);
        // Without an operating system there are no processes, and no files either.
        let id = match cfg!(target_family = "wasm") {
            true => 0,
            false => std::process::id(),
        };
        let temporary = directory_of(path).join(format!(".{name}.{id}.{n}{PARTIAL}"));
        match make(&temporary) {
            Ok(made) => {
                let temporary = RemoveOnDrop {
                    path: temporary,
                    armed: true,
                };
                return Ok((made, temporary));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[derive(Debug)]
struct RemoveOnDrop {
    path: PathBuf,
    armed: bool,
}

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        if self.armed {
            // A temporary file that cannot be removed does no harm.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn failed_save_keeps_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        let io_error = |error| Error::Io {
            path: PathBuf::new(),
            error,
        };
        save_atomically(&path, |out| out.write_all(b"old").map_err(io_error)).unwrap();
        let failed = save_atomically(&path, |out| {
            out.write_all(b"ne").map_err(io_error)?;
            Err(io_error(io::ErrorKind::StorageFull.into()))
        });
        assert!(failed.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "the temporary file is gone"
        );
        save_atomically(&path, |out| out.write_all(b"new").map_err(io_error)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    /// File with a temporary name, as on systems without unnamed files.
    fn named(path: &Path, bytes: &[u8]) -> SavedFile {
        let (file, place) = create_named(path).unwrap();
        let mut pending = PendingFile {
            out: BufWriter::new(file),
            path: path.to_path_buf(),
            place,
        };
        pending.out.write_all(bytes).unwrap();
        pending.finish().unwrap()
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn named_files_are_saved_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        let saved = named(&path, b"old");
        assert_eq!(fs::read(saved.temporary()).unwrap(), b"old");
        assert!(names(dir.path())[0].ends_with(PARTIAL));
        saved.publish().unwrap();
        drop(named(&path, b"new"));
        assert_eq!(names(dir.path()), ["model.gguf"]);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        named(&path, b"new").publish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn saved_file_can_be_opened_before_publishing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        let mut pending = PendingFile::create(&path).unwrap();
        pending.out.write_all(b"new").unwrap();
        let saved = pending.finish().unwrap();
        assert_eq!(fs::read(saved.temporary()).unwrap(), b"new");
        assert!(!path.exists());
        saved.publish().unwrap();
        assert_eq!(names(dir.path()), ["model.gguf"]);
    }

    #[cfg(unix)]
    #[test]
    fn follows_links_and_replaces_only_files() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name);
        fs::create_dir(place("directory")).unwrap();
        fs::write(place("directory/real"), b"old").unwrap();
        symlink("directory/real", place("link")).unwrap();
        symlink("directory/missing", place("nowhere")).unwrap();
        save_atomically(&place("link"), |out| {
            out.write_all(b"new").map_err(Error::io(Path::new("")))
        })
        .unwrap();
        assert!(place("link").is_symlink());
        assert_eq!(fs::read(place("directory/real")).unwrap(), b"new");
        for (name, problem) in [
            ("directory", "is a directory"),
            ("nowhere", "dangling link"),
            ("/dev/null", "is not a regular file"),
        ] {
            let error = PendingFile::create(&place(name)).unwrap_err().to_string();
            assert!(
                error.contains(problem) && error.contains(name),
                "{name}: {error}"
            );
        }
        assert_eq!(names(dir.path()), ["directory", "link", "nowhere"]);
    }

    #[test]
    fn removes_only_unlocked_temporary_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        let others = [
            ".model.gguf.partial",
            ".model.gguf.bak.partial",
            ".other.gguf.7.0.partial",
        ];
        for name in others {
            fs::write(dir.path().join(name), b"mine").unwrap();
        }
        fs::write(dir.path().join(".model.gguf.7.0.partial"), b"half").unwrap();
        let written = named(&path, b"new");
        remove_abandoned(&path);
        assert_eq!(names(dir.path()).len(), others.len() + 1);
        written.publish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }
}
