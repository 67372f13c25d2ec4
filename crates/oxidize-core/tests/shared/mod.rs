//! What lies beside the checkout, or where `OXIDIZE_SHARED` says: golden models and references.

use std::path::PathBuf;

/// A file or folder there; a loud `None` where it is missing.
pub(crate) fn shared(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("OXIDIZE_SHARED")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"));
    let path = folder.join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("SKIPPED: there is no {}", path.display());
    None
}
