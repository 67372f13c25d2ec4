//! Bytes of model files: mapped, read on request or in memory, behind one type.

#[cfg(not(target_arch = "wasm32"))]
#[allow(unsafe_code)]
mod mmap;
mod save;
mod source;

pub use save::{PendingFile, SavedFile, save_atomically};
pub(crate) use source::not_a_file;
pub use source::{SharedBytes, Source};
