//! [`OpenOptions`]: how a model is opened.

use std::sync::Arc;

use crate::limits::Limits;

/// Told how many bytes of tensors were handed out so far, and how many there are.
pub type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// How to open a model.
#[derive(Clone)]
pub struct OpenOptions {
    /// Map files into memory instead of reading them. Off, a file that another process changes
    /// meanwhile cannot harm this one.
    pub mmap: bool,
    /// Move a mapped file to huge pages before it is run, where the system has them and memory for
    /// twice its size: its weights are then read faster, but not shared with other processes.
    pub huge_pages: bool,
    /// What a file may ask for.
    pub limits: Limits,
    /// Called as tensors are loaded.
    pub progress: Option<Progress>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            mmap: true,
            huge_pages: true,
            limits: Limits::default(),
            progress: None,
        }
    }
}

impl std::fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenOptions")
            .field("mmap", &self.mmap)
            .field("huge_pages", &self.huge_pages)
            .field("limits", &self.limits)
            .field("progress", &self.progress.is_some())
            .finish()
    }
}
