//! Bytes of model files: mapped, read on request or in memory, behind one type.

#[cfg(not(target_arch = "wasm32"))]
#[allow(unsafe_code)]
mod huge;
#[cfg(not(target_arch = "wasm32"))]
#[allow(unsafe_code)]
mod mmap;
mod save;
mod source;

#[cfg(not(target_arch = "wasm32"))]
pub(crate) use huge::advise as advise_huge_pages;
pub use save::{PendingFile, SavedFile, remove_abandoned, save_atomically};
pub(crate) use source::not_a_file;
pub use source::{SharedBytes, Source};

/// Lets the process have as many open files and connections as the system allows; many shells stop at 1024.
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
            tracing::debug!(%error, "the limit of open files stays as it is");
        }
    }
}
