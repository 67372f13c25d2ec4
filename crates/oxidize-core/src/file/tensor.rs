//! [`TensorInfo`]: a line of a model's table of tensors.

use oxidize_kernels::quant::TensorType;

/// A tensor in a model file. Loaders check it: its bytes are inside the file and fit its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name, unique in the model.
    pub name: String,
    /// How its elements are stored.
    pub ty: TensorType,
    /// Its dimensions in the file's own order; see [`TensorInfo::dims`].
    pub shape: Vec<u64>,
    /// Which of the model's files it is in.
    pub file: usize,
    /// Where its data starts in that file.
    pub offset: u64,
    /// Bytes of its data.
    pub bytes: u64,
    /// Which end of `shape` varies fastest.
    pub order: DimOrder,
}

/// Which end of a shape varies fastest in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DimOrder {
    /// GGUF: a row is the first dimension.
    FastestFirst,
    /// safetensors, as in C: a row is the last dimension.
    FastestLast,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        // Loaders refuse shapes whose product overflows.
        self.shape.iter().fold(1, |n, &dim| n.saturating_mul(dim))
    }

    /// Dimensions in the order of C, the fastest-varying last, whatever the format.
    pub fn dims(&self) -> Vec<usize> {
        // A dimension of a tensor that is in the address space fits.
        let size = |&dim: &u64| usize::try_from(dim).unwrap_or(usize::MAX);
        match self.order {
            DimOrder::FastestFirst => self.shape.iter().rev().map(size).collect(),
            DimOrder::FastestLast => self.shape.iter().map(size).collect(),
        }
    }

    /// What the address of the data has to be a multiple of: the size of an element, or of the
    /// widest field of a block.
    pub(crate) fn alignment(&self) -> usize {
        const WIDEST_FIELD: usize = 4;
        if self.ty.is_quantized() {
            WIDEST_FIELD
        } else {
            self.ty.block_bytes()
        }
    }
}
