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
