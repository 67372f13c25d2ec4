//! Saving a file so that a reader sees the old one or the new one, never half of one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Writes `path` through a temporary file beside it, which takes its place only once it is whole
/// and on disk. After an error the old file, if there was one, is as it was.
pub fn save_atomically<E: From<Error>>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), E>,
) -> Result<(), E> {
    let mut pending = PendingFile::create(path)?;
    write(&mut pending.out)?;
    pending.finish()?.publish()?;
    Ok(())
}

/// A file that is being written under a temporary name. Dropped, it is gone.
#[derive(Debug)]
pub struct PendingFile {
    /// Where to write.
    pub out: BufWriter<File>,
    saved: SavedFile,
}

/// A file that is whole and on disk, still under its temporary name. Dropped, it is gone.
#[derive(Debug)]
pub struct SavedFile {
    path: PathBuf,
    temporary: RemoveOnDrop,
}

impl PendingFile {
    /// Begins a file that is to become `path`.
    pub fn create(path: &Path) -> Result<PendingFile> {
        let (file, temporary) = create_beside(path).map_err(Error::io(path))?;
        Ok(PendingFile {
            out: BufWriter::with_capacity(1 << 20, file),
            saved: SavedFile {
                path: path.to_path_buf(),
                temporary: RemoveOnDrop {
                    path: temporary,
                    armed: true,
                },
            },
        })
    }

    /// What the file is to become.
    pub fn path(&self) -> &Path {
        &self.saved.path
    }

    /// Brings all of it to disk.
    pub fn finish(self) -> Result<SavedFile> {
        let PendingFile { out, saved } = self;
        let write = || {
            let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()
        };
        write().map_err(Error::io(&saved.path))?;
        Ok(saved)
    }
}

impl SavedFile {
    /// Where it is until it is published.
    pub fn temporary(&self) -> &Path {
        &self.temporary.path
    }

    /// Gives it its name, in place of a file that had it.
    pub fn publish(mut self) -> Result<()> {
        let rename = || {
            fs::rename(&self.temporary.path, &self.path)?;
            // The rename itself has to reach the disk. Only Unix opens directories as files.
            #[cfg(unix)]
            File::open(directory_of(&self.path))?.sync_all()?;
            Ok(())
        };
        rename().map_err(Error::io(&self.path))?;
        self.temporary.armed = false;
        Ok(())
    }
}

/// A new file in the directory of `path`, under a name that nobody else uses.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let name = path
        .file_name()
        .ok_or(io::ErrorKind::InvalidInput)?
        .to_string_lossy();
    loop {
        let n = COUNTER.fetch_add(1, Ordering::Relaxed);
        let temporary =
            directory_of(path).join(format!(".{name}.{}.{n}.partial", std::process::id()));
        match OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary)
        {
            Ok(file) => return Ok((file, temporary)),
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
            // Nothing can be done about a temporary file that will not go away.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_failed_save_leaves_the_old_file_alone() {
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
}
