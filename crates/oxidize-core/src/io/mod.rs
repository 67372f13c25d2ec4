//! Bytes of model files: mapped, read on request or in memory, behind one type.

#[cfg(not(target_arch = "wasm32"))]
#[allow(unsafe_code)]
mod huge;
mod memory;
#[cfg(not(target_arch = "wasm32"))]
#[allow(unsafe_code)]
mod mmap;
mod save;
mod source;

pub use memory::available_memory;
pub use save::{PendingFile, SavedFile, remove_abandoned, save_atomically};
pub(crate) use source::{Origin, not_a_file};
pub use source::{SharedBytes, Source};

/// Raises the limit of open files and connections to the maximum that the system allows; many
/// shells set 1024.
pub fn raise_file_limit() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::debug!(%error, "could not raise the limit of open files");
        }
    }
}
