//! Limits on the sizes that a model file may declare, checked before memory is allocated.

/// Limits on the sizes that a model file may declare. The defaults are far above those of any real model.
///
/// A malicious file can declare sizes that would exhaust memory. A file that exceeds a limit is rejected with
/// [`Error::Limit`](crate::Error::Limit).
///
/// ```no_run
/// use oxidize::{Limits, Model, OpenOptions};
///
/// let mut limits = Limits::default();
/// limits.tensors = 10_000;
/// let model = Model::load_with("model.gguf", &OpenOptions::default().limits(limits))?;
/// # Ok::<(), oxidize::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct Limits {
    /// Maximum tensors of a model, over all its files.
    pub tensors: u64,
    /// Maximum metadata keys of a file.
    pub metadata_keys: u64,
    /// Maximum bytes of a metadata string, key or tensor name.
    pub string_bytes: u64,
    /// Maximum depth of nested arrays, including the outermost one.
    pub array_depth: u32,
    /// Maximum dimensions of a GGUF tensor.
    pub gguf_dimensions: u32,
    /// Maximum dimensions of a safetensors tensor; 3D convolutions have five.
    pub safetensors_dimensions: u32,
    /// Maximum alignment of the tensor data, which must also be a power of two.
    pub alignment: u64,
    /// Maximum bytes of a GGUF header that are read into memory if the file is not mapped.
    pub gguf_header_bytes: u64,
    /// Maximum bytes of the JSON header of a safetensors file, or of its index.
    pub safetensors_header_bytes: u64,
    /// Maximum entries of the `__metadata__` of a safetensors file.
    pub safetensors_metadata_keys: u64,
    /// Maximum bytes of `config.json`.
    pub config_bytes: u64,
    /// Maximum files of a split model.
    pub parts: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            tensors: 1_000_000,
            metadata_keys: 1_000_000,
            string_bytes: 64 << 20,
            array_depth: 4,
            gguf_dimensions: 4,
            safetensors_dimensions: 8,
            alignment: 1 << 20,
            gguf_header_bytes: 1 << 30,
            safetensors_header_bytes: 100_000_000,
            safetensors_metadata_keys: 4096,
            config_bytes: 16 << 20,
            parts: 10_000,
        }
    }
}

/// A limit that a file exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{requested} {what} exceed the limit of {limit}")]
#[non_exhaustive]
pub struct LimitExceeded {
    /// Limited quantity, in the plural: `tensors`, `bytes in a string`.
    pub what: &'static str,
    /// Maximum.
    pub limit: u64,
    /// Declared size.
    pub requested: u64,
}

impl LimitExceeded {
    /// Returns an error if `requested` exceeds `limit`.
    pub fn check(what: &'static str, requested: u64, limit: u64) -> Result<(), LimitExceeded> {
        if requested > limit {
            Err(LimitExceeded {
                what,
                limit,
                requested,
            })
        } else {
            Ok(())
        }
    }
}
