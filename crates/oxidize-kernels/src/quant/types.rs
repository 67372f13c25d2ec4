//! [`TensorType`]: every element or block format a weight may be stored in.

/// How the elements of a tensor are stored.
///
/// Plain types have one element a block. The types that only safetensors files use (`U8` … `F8E5M2`)
/// have no GGUF id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the variants are the names of the formats")]
#[allow(non_camel_case_types, reason = "the formats' own spelling")]
pub enum TensorType {
    F64,
    F32,
    F16,
    BF16,
    I8,
    I16,
    I32,
    I64,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    U8,
    U16,
    U32,
    U64,
    Bool,
    F8E4M3,
    F8E5M2,
}

/// One line of the registry.
struct Info {
    ty: TensorType,
    name: &'static str,
    /// The number GGUF files give the type, where they know it.
    gguf_id: Option<u32>,
    block_len: usize,
    block_bytes: usize,
}

const fn info(
    ty: TensorType,
    name: &'static str,
    gguf_id: u32,
    block_len: usize,
    block_bytes: usize,
) -> Info {
    Info {
        ty,
        name,
        gguf_id: Some(gguf_id),
        block_len,
        block_bytes,
    }
}

const fn plain(ty: TensorType, name: &'static str, bytes: usize) -> Info {
    Info {
        ty,
        name,
        gguf_id: None,
        block_len: 1,
        block_bytes: bytes,
    }
}

/// In the order of the variants, so that a type is its own index.
static REGISTRY: [Info; 40] = {
    use TensorType::*;
    [
        info(F64, "F64", 28, 1, 8),
        info(F32, "F32", 0, 1, 4),
        info(F16, "F16", 1, 1, 2),
        info(BF16, "BF16", 30, 1, 2),
        info(I8, "I8", 24, 1, 1),
        info(I16, "I16", 25, 1, 2),
        info(I32, "I32", 26, 1, 4),
        info(I64, "I64", 27, 1, 8),
        info(Q4_0, "Q4_0", 2, 32, 18),
        info(Q4_1, "Q4_1", 3, 32, 20),
        info(Q5_0, "Q5_0", 6, 32, 22),
        info(Q5_1, "Q5_1", 7, 32, 24),
        info(Q8_0, "Q8_0", 8, 32, 34),
        info(Q8_1, "Q8_1", 9, 32, 36),
        info(Q2_K, "Q2_K", 10, 256, 84),
        info(Q3_K, "Q3_K", 11, 256, 110),
        info(Q4_K, "Q4_K", 12, 256, 144),
        info(Q5_K, "Q5_K", 13, 256, 176),
        info(Q6_K, "Q6_K", 14, 256, 210),
        info(Q8_K, "Q8_K", 15, 256, 292),
        info(IQ1_S, "IQ1_S", 19, 256, 50),
        info(IQ1_M, "IQ1_M", 29, 256, 56),
        info(IQ2_XXS, "IQ2_XXS", 16, 256, 66),
        info(IQ2_XS, "IQ2_XS", 17, 256, 74),
        info(IQ2_S, "IQ2_S", 22, 256, 82),
        info(IQ3_XXS, "IQ3_XXS", 18, 256, 98),
        info(IQ3_S, "IQ3_S", 21, 256, 110),
        info(IQ4_NL, "IQ4_NL", 20, 32, 18),
        info(IQ4_XS, "IQ4_XS", 23, 256, 136),
        info(TQ1_0, "TQ1_0", 34, 256, 54),
        info(TQ2_0, "TQ2_0", 35, 256, 66),
        info(MXFP4, "MXFP4", 39, 32, 17),
        info(NVFP4, "NVFP4", 40, 64, 36),
        plain(U8, "U8", 1),
        plain(U16, "U16", 2),
        plain(U32, "U32", 4),
        plain(U64, "U64", 8),
        plain(Bool, "BOOL", 1),
        plain(F8E4M3, "F8_E4M3", 1),
        plain(F8E5M2, "F8_E5M2", 1),
    ]
};

impl TensorType {
    /// Every type, in the order of the registry.
    pub fn all() -> impl Iterator<Item = TensorType> {
        REGISTRY.iter().map(|info| info.ty)
    }

    fn info(self) -> &'static Info {
        &REGISTRY[self as usize]
    }

    /// The name people use, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// The type called `name`, whatever the case of its letters.
    pub fn from_name(name: &str) -> Option<TensorType> {
        REGISTRY
            .iter()
            .find(|info| info.name.eq_ignore_ascii_case(name))
            .map(|info| info.ty)
    }

    /// The type's id in GGUF files; `None` for the types that only safetensors has.
    pub fn gguf_id(self) -> Option<u32> {
        self.info().gguf_id
    }

    /// The type with this GGUF id.
    pub fn from_gguf_id(id: u32) -> Option<TensorType> {
        REGISTRY
            .iter()
            .find(|info| info.gguf_id == Some(id))
            .map(|info| info.ty)
    }

    /// Elements in a block: 1 for the plain types.
    pub fn block_len(self) -> usize {
        self.info().block_len
    }

    /// Bytes in a block.
    pub fn block_bytes(self) -> usize {
        self.info().block_bytes
    }

    /// Whether a block holds more than one element, with a scale of its own.
    pub fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes that `n` elements take; `None` if `n` is not whole blocks or the size overflows.
    pub fn bytes_for(self, n: u64) -> Option<u64> {
        let block_len = self.block_len() as u64;
        if !n.is_multiple_of(block_len) {
            return None;
        }
        (n / block_len).checked_mul(self.block_bytes() as u64)
    }

    /// Average bits an element takes.
    pub fn bits_per_weight(self) -> f64 {
        self.block_bytes() as f64 * 8.0 / self.block_len() as f64
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_its_own_index() {
        for (i, info) in REGISTRY.iter().enumerate() {
            assert_eq!(info.ty as usize, i, "{}", info.name);
            assert_eq!(TensorType::from_name(info.name), Some(info.ty));
            if let Some(id) = info.gguf_id {
                assert_eq!(TensorType::from_gguf_id(id), Some(info.ty));
            }
        }
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(TensorType::Q4_K.bytes_for(512), Some(288));
        assert_eq!(TensorType::Q4_K.bytes_for(255), None);
        assert_eq!(TensorType::F64.bytes_for(u64::MAX), None);
    }
}
