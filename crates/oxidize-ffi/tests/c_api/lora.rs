//! A LoRA adapter of the tiny model.

use tempfile::TempDir;

/// A directory with a rank-2 adapter of the first layer's query and output projections, in PEFT's format.
pub(crate) struct Adapter(TempDir);

impl Adapter {
    pub(crate) fn path(&self) -> &std::path::Path {
        self.0.path()
    }
}

pub(crate) fn write() -> Adapter {
    let directory = tempfile::tempdir().unwrap();
    oxidize_testing::write_peft(directory.path());
    Adapter(directory)
}
