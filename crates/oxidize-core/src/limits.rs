//! Caps on what a file may ask for, checked before anything is allocated.

/// Caps on what a model file may ask for. The defaults are far above any real model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tensors in a model, over all its files.
    pub tensors: u64,
    /// Metadata keys in a file.
    pub metadata_keys: u64,
    /// Bytes in one metadata string, key or tensor name.
    pub string_bytes: u64,
    /// Arrays inside arrays, counting the outermost.
    pub array_depth: u32,
    /// Dimensions of a GGUF tensor.
    pub gguf_dimensions: u32,
    /// Dimensions of a safetensors tensor; convolutions over time have five.
    pub safetensors_dimensions: u32,
    /// Alignment of the tensor data, which also has to be a power of two.
    pub alignment: u64,
    /// Bytes of GGUF header read into memory where the file is not mapped.
    pub gguf_header_bytes: u64,
    /// Bytes of JSON at the start of a safetensors file, or in its index.
    pub safetensors_header_bytes: u64,
    /// Free-form entries in the `__metadata__` of a safetensors file.
    pub safetensors_metadata_keys: u64,
    /// Bytes of `config.json`.
    pub config_bytes: u64,
    /// Files that one model is split over.
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

/// A cap that was hit: which, how much it allows and how much was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} {what} asked for, the limit is {limit}")]
pub struct LimitExceeded {
    /// What is limited, in the plural: `tensors`, `bytes in a string`.
    pub what: &'static str,
    /// The most that is allowed.
    pub limit: u64,
    /// How much was asked for.
    pub asked: u64,
}

impl LimitExceeded {
    /// `Err` if `asked` is over `limit`.
    pub fn check(what: &'static str, asked: u64, limit: u64) -> Result<(), LimitExceeded> {
        if asked > limit {
            Err(LimitExceeded { what, limit, asked })
        } else {
            Ok(())
        }
    }
}
