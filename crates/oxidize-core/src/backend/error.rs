//! [`BackendError`]: failures to compile a plan or to run a batch.

use oxidize_kernels::quant::TensorType;

/// Errors of compiling a plan and running a batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The backend has no implementation of an op.
    #[error("the {backend} backend cannot run {op}")]
    Unsupported {
        /// Name of the backend.
        backend: &'static str,
        /// The op.
        op: String,
    },
    /// The backend has no device of this index.
    #[error("the {backend} backend has no device {device}: it has {n_devices}")]
    NoDevice {
        /// Name of the backend.
        backend: &'static str,
        /// Index of the device.
        device: usize,
        /// Number of devices.
        n_devices: usize,
    },
    /// A batch exceeds a limit of the session.
    #[error("batch has {requested} {what}; the session allows {limit}")]
    BatchTooLarge {
        /// Quantity that exceeds the limit.
        what: &'static str,
        /// Number in the batch.
        requested: usize,
        /// Maximum number.
        limit: usize,
    },
    /// A token id has no embedding.
    #[error("token {token} is out of range: the vocabulary has {vocab} tokens")]
    TokenOutOfRange {
        /// The token id.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A batch contradicts itself or the state of the session.
    #[error("malformed batch: {0}")]
    Malformed(String),
    /// The logits of an output contain NaN or +∞, or nothing but −∞.
    #[error("the logits of output {output} are not finite")]
    NotFinite {
        /// Index of the output.
        output: usize,
    },
    /// The heads are not whole blocks of the cache type.
    #[error("heads of {dim} elements cannot be kept as {ty}: its blocks have {block}")]
    KvType {
        /// Elements of a head.
        dim: usize,
        /// The cache type.
        ty: TensorType,
        /// Elements of a block.
        block: usize,
    },
    /// More threads than a session may start.
    #[error("{requested} threads: at most {limit} are started")]
    TooManyThreads {
        /// Number of threads in the configuration.
        requested: usize,
        /// Maximum number.
        limit: usize,
    },
    /// Results were read before they were complete, on a device that cannot be waited for.
    #[error(
        "the results are not complete, and this platform cannot wait for a device: call `finish` first"
    )]
    WouldBlock,
    /// An allocation failed.
    #[error("cannot allocate {bytes} bytes for {what}")]
    OutOfMemory {
        /// Size of the allocation.
        bytes: usize,
        /// Purpose of the allocation.
        what: &'static str,
    },
    /// Weights that were released could not be read again.
    #[error("cannot read the weights: {0}")]
    Weights(String),
    /// A device failed.
    #[error("{backend}: {message}")]
    Device {
        /// Name of the backend.
        backend: &'static str,
        /// Message of the device or its driver.
        message: String,
    },
}
