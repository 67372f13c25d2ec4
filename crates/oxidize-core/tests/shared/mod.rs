//! Golden models and references in the directory `shared` beside the checkout, or in `OXIDIZE_SHARED`.

use std::path::PathBuf;

/// Path of a file or directory in the shared directory; prints a note and returns `None` if it is missing.
pub(crate) fn shared(name: &str) -> Option<PathBuf> {
    let directory = std::env::var_os("OXIDIZE_SHARED")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"));
    let path = directory.join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("SKIPPED: no {}", path.display());
    None
}
