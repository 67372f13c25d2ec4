//! [`OpenOptions`]: options for opening models.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::gguf::MetadataValue;
use crate::limits::Limits;

/// Callback with the number of tensor bytes read so far, and of all.
pub type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Options for opening a model.
///
/// Every field has a method of the same name.
///
/// ```no_run
/// use oxidize::{Model, OpenOptions};
///
/// let options = OpenOptions::default()
///     .mmap(false)
///     .progress(|done, all| eprint!("\r{done} of {all} bytes"));
/// let model = Model::load_with("model.gguf", &options)?;
/// # Ok::<(), oxidize::Error>(())
/// ```
#[derive(Clone)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct OpenOptions {
    /// Maps files into memory instead of reading them. Disable it if another process may change a
    /// file meanwhile.
    pub mmap: bool,
    /// Copies a mapped file to huge pages before it runs, if the system has them and memory for
    /// twice its size. Reading weights becomes faster, but their memory is not shared with other
    /// processes.
    pub huge_pages: bool,
    /// Unpacks packed weights of a directory to F32 without rounding, instead of to the type of the
    /// computation.
    pub unpack_exactly: bool,
    /// Values that replace those of a GGUF file's metadata, or add to them, by key.
    pub overrides: Vec<(String, MetadataValue)>,
    /// Limits on what a file may request.
    pub limits: Limits,
    /// Called when tensors are loaded.
    pub progress: Option<Progress>,
    /// Cancels loading once it is true; see [`Error::Canceled`](crate::Error::Canceled).
    pub cancel: Option<Arc<AtomicBool>>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            mmap: true,
            huge_pages: true,
            unpack_exactly: false,
            overrides: Vec::new(),
            limits: Limits::default(),
            progress: None,
            cancel: None,
        }
    }
}

impl OpenOptions {
    /// Maps files into memory, or reads them.
    pub fn mmap(self, mmap: bool) -> OpenOptions {
        OpenOptions { mmap, ..self }
    }

    /// Copies mapped files to huge pages, or leaves them where they are.
    pub fn huge_pages(self, huge_pages: bool) -> OpenOptions {
        OpenOptions { huge_pages, ..self }
    }

    /// Unpacks packed weights without rounding.
    pub fn unpack_exactly(self, unpack_exactly: bool) -> OpenOptions {
        OpenOptions {
            unpack_exactly,
            ..self
        }
    }

    /// Replaces a value of a GGUF file's metadata, or adds one.
    ///
    /// ```
    /// use oxidize::OpenOptions;
    ///
    /// let options = OpenOptions::default()
    ///     .override_metadata("tokenizer.ggml.add_bos_token", false)
    ///     .override_metadata("llama.rope.freq_base", 500_000.0);
    /// ```
    pub fn override_metadata(
        mut self,
        key: impl Into<String>,
        value: impl Into<MetadataValue>,
    ) -> OpenOptions {
        self.overrides.push((key.into(), value.into()));
        self
    }

    /// Sets the limits on what a file may request.
    pub fn limits(self, limits: Limits) -> OpenOptions {
        OpenOptions { limits, ..self }
    }

    /// Calls `progress` with the number of tensor bytes read so far, and of all.
    pub fn progress(self, progress: impl Fn(u64, u64) + Send + Sync + 'static) -> OpenOptions {
        OpenOptions {
            progress: Some(Arc::new(progress)),
            ..self
        }
    }

    /// Cancels loading before the next tensor once `cancel` is true, from another thread or from the progress callback.
    ///
    /// ```no_run
    /// use oxidize::{Error, Model, OpenOptions};
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    ///
    /// let cancel = Arc::new(AtomicBool::new(false));
    /// let options = OpenOptions::default().cancel(cancel.clone());
    /// std::thread::spawn(move || cancel.store(true, Ordering::Relaxed));
    /// if let Err(Error::Canceled { .. }) = Model::load_with("model.gguf", &options) {
    ///     println!("canceled");
    /// }
    /// ```
    pub fn cancel(self, cancel: Arc<AtomicBool>) -> OpenOptions {
        OpenOptions {
            cancel: Some(cancel),
            ..self
        }
    }
}

impl std::fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenOptions")
            .field("mmap", &self.mmap)
            .field("huge_pages", &self.huge_pages)
            .field("unpack_exactly", &self.unpack_exactly)
            .field("overrides", &self.overrides)
            .field("limits", &self.limits)
            .field("progress", &self.progress.is_some())
            .field("cancel", &self.cancel)
            .finish()
    }
}
