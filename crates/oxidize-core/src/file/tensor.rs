//! [`TensorInfo`]: an entry of a model's tensor table.

use oxidize_kernels::quant::TensorType;

/// Tensor in a model file. Loaders check that its bytes are inside the file and match its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, unique in the model.
    pub name: String,
    /// Type.
    pub ty: TensorType,
    /// Shape in the file's order of dimensions; see [`TensorInfo::dims`].
    pub shape: Vec<u64>,
    /// Index of the file that contains it.
    pub file: usize,
    /// Offset of the data in that file.
    pub offset: u64,
    /// Bytes of the data.
    pub bytes: u64,
    /// Order of dimensions in `shape`.
    pub order: DimOrder,
}

/// Order of dimensions in a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DimOrder {
    /// GGUF: the first dimension varies fastest.
    FastestFirst,
    /// safetensors and C: the last dimension varies fastest.
    FastestLast,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        // Loaders refuse shapes with an overflowing product.
        self.shape.iter().fold(1, |n, &dim| n.saturating_mul(dim))
    }

    /// Shape with the fastest-varying dimension last, for all formats.
    pub fn dims(&self) -> Vec<usize> {
        // Dimensions of tensors in the address space fit.
        let size = |&dim: &u64| usize::try_from(dim).unwrap_or(usize::MAX);
        match self.order {
            DimOrder::FastestFirst => self.shape.iter().rev().map(size).collect(),
            DimOrder::FastestLast => self.shape.iter().map(size).collect(),
        }
    }

    /// Required alignment of the data: the size of an element, or of the widest field of a block.
    pub(crate) fn alignment(&self) -> usize {
        const WIDEST_FIELD: usize = 4;
        if self.ty.is_quantized() {
            WIDEST_FIELD
        } else {
            self.ty.block_bytes()
        }
    }
}
