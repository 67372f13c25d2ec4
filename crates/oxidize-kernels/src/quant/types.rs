//! [`TensorType`] and the registry of formats.
//!
//! Adding a format takes a file, its `mod` line and a line in the table below.

use super::search::second_moment::{self, SecondMoment};
use super::{Block, Dot, Quantize, QuantizeRow, ScalarQuantized};

/// Defines the enum and the table of [`Format`]s from the same lines, so that they cannot disagree.
macro_rules! registry {
    ($($ty:ident $name:literal $gguf_id:tt $block:ty $(, $quantizes:ident $($scalar:ident)?)?;)*) => {
        /// Storage format of the elements of a tensor.
        ///
        /// Plain types have one element per block. The types that only safetensors files use
        /// (`U8` … `F8E5M2`) have no GGUF id. `INT8` has the id of `Q8_0`, because files store it as `Q8_0`.
        /// The [`repacked`](super::repacked) types exist in memory only.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the variants are the names of the formats")]
        pub enum TensorType {
            $($ty,)*
        }

        /// In the order of the variants: a type is its own index.
        static REGISTRY: &[Format] = {
            use super::*;
            &[$({
                const { assert!(<$block as Block>::TYPE as usize == TensorType::$ty as usize) };
                Format::of::<$block>($name, gguf_id!($gguf_id))$(.$quantizes::<$block>()$(.$scalar())?)?
            },)*]
        };

        /// Quantizes floats to whole blocks. Inlined, so that it is compiled for the instruction set of
        /// the kernel that calls it. Leaves `out` unchanged for types without a quantizer.
        #[inline(always)]
        pub(crate) fn quantize_weights(
            ty: TensorType,
            src: &[f32],
            importance: Option<&[f32]>,
            out: &mut [u8],
        ) {
            use super::*;
            match ty {
                $($(TensorType::$ty => $quantizes::<$block>(src, importance, out),)?)*
                _ => {}
            }
        }

        /// Refines the levels of quantized rows with the second moment of the inputs. Inlined like
        /// [`quantize_weights`]. Leaves types that are not `ScalarQuantized` unchanged.
        #[inline(always)]
        pub(crate) fn refine_codes(
            ty: TensorType,
            rows: &[f32],
            second_moment: &SecondMoment,
            out: &mut [u8],
        ) {
            use super::*;
            match ty {
                $($($(TensorType::$ty => $scalar::<$block>(rows, second_moment, out),)?)?)*
                _ => {}
            }
        }
    };
}

macro_rules! gguf_id {
    (-) => {
        None
    };
    ($id:literal) => {
        Some($id)
    };
}

registry! {
    // type   name      GGUF id   block
    F64      "F64"      28        plain::F64,        quantizes;
    F32      "F32"      0         plain::F32,        quantizes;
    F16      "F16"      1         plain::F16,        quantizes;
    BF16     "BF16"     30        plain::BF16,       quantizes;
    I8       "I8"       24        plain::I8;
    I16      "I16"      25        plain::I16;
    I32      "I32"      26        plain::I32;
    I64      "I64"      27        plain::I64;
    Q4_0     "Q4_0"     2         q4_0::Q4_0,        quantizes scalar_quantized;
    Q4_1     "Q4_1"     3         q4_1::Q4_1,        quantizes scalar_quantized;
    Q5_0     "Q5_0"     6         q5_0::Q5_0,        quantizes scalar_quantized;
    Q5_1     "Q5_1"     7         q5_1::Q5_1,        quantizes scalar_quantized;
    Q8_0     "Q8_0"     8         q8_0::Q8_0,        quantizes scalar_quantized;
    Q8_1     "Q8_1"     9         q8_1::Q8_1,        quantizes;
    Q2_K     "Q2_K"     10        q2_k::Q2_K,        quantizes scalar_quantized;
    Q3_K     "Q3_K"     11        q3_k::Q3_K,        quantizes scalar_quantized;
    Q4_K     "Q4_K"     12        q4_k::Q4_K,        quantizes scalar_quantized;
    Q5_K     "Q5_K"     13        q5_k::Q5_K,        quantizes scalar_quantized;
    Q6_K     "Q6_K"     14        q6_k::Q6_K,        quantizes scalar_quantized;
    Q8_K     "Q8_K"     15        q8_k::Q8_K,        quantizes;
    IQ1_S    "IQ1_S"    19        iq1_s::IQ1_S,      quantizes;
    IQ1_M    "IQ1_M"    29        iq1_m::IQ1_M,      quantizes;
    IQ2_XXS  "IQ2_XXS"  16        iq2_xxs::IQ2_XXS,  quantizes;
    IQ2_XS   "IQ2_XS"   17        iq2_xs::IQ2_XS,    quantizes;
    IQ2_S    "IQ2_S"    22        iq2_s::IQ2_S,      quantizes;
    IQ3_XXS  "IQ3_XXS"  18        iq3_xxs::IQ3_XXS,  quantizes;
    IQ3_S    "IQ3_S"    21        iq3_s::IQ3_S,      quantizes;
    IQ4_NL   "IQ4_NL"   20        iq4_nl::IQ4_NL,    quantizes scalar_quantized;
    IQ4_XS   "IQ4_XS"   23        iq4_xs::IQ4_XS,    quantizes scalar_quantized;
    TQ1_0    "TQ1_0"    34        tq1_0::TQ1_0,      quantizes scalar_quantized;
    TQ2_0    "TQ2_0"    35        tq2_0::TQ2_0,      quantizes scalar_quantized;
    MXFP4    "MXFP4"    39        mxfp4::MXFP4,      quantizes scalar_quantized;
    NVFP4    "NVFP4"    40        nvfp4::NVFP4,      quantizes scalar_quantized;
    U8       "U8"       -         plain::U8;
    U16      "U16"      -         plain::U16;
    U32      "U32"      -         plain::U32;
    U64      "U64"      -         plain::U64;
    Bool     "BOOL"     -         plain::Bool;
    F8E4M3   "F8_E4M3"  -         plain::F8E4M3;
    F8E5M2   "F8_E5M2"  -         plain::F8E5M2;
    INT8     "INT8"     8         int8::INT8,        quantizes_row scalar_quantized;
    // In memory only.
    IQ1_S_REPACKED    "IQ1_S_REPACKED"    -  repacked::IQ1_S_REPACKED;
    IQ1_M_REPACKED    "IQ1_M_REPACKED"    -  repacked::IQ1_M_REPACKED;
    IQ2_XXS_REPACKED  "IQ2_XXS_REPACKED"  -  repacked::IQ2_XXS_REPACKED;
    IQ2_S_REPACKED    "IQ2_S_REPACKED"    -  repacked::IQ2_S_REPACKED;
    IQ3_XXS_REPACKED  "IQ3_XXS_REPACKED"  -  repacked::IQ3_XXS_REPACKED;
    IQ3_S_REPACKED    "IQ3_S_REPACKED"    -  repacked::IQ3_S_REPACKED;
}

/// Registry entry of a type. The functions take whole blocks of equal element counts.
pub(super) struct Format {
    ty: TensorType,
    name: &'static str,
    /// Number of the type in GGUF files, if it has one.
    gguf_id: Option<u32>,
    block_len: usize,
    block_bytes: usize,
    pub(super) activation: TensorType,
    pub(super) dequantize: fn(&[u8], &mut [f32]),
    pub(super) dot: fn(&[u8], &[u8]) -> f32,
    pub(super) quantize: Option<Quantizer>,
    /// True if the blocks are [`ScalarQuantized`](super::ScalarQuantized).
    pub(super) scalar_quantized: bool,
}

type Quantizer = fn(&[f32], &mut [u8]);

impl Format {
    const fn of<B: Dot>(name: &'static str, gguf_id: Option<u32>) -> Format {
        Format {
            ty: B::TYPE,
            name,
            gguf_id,
            block_len: B::LEN,
            block_bytes: size_of::<B>(),
            activation: B::Activation::TYPE,
            dequantize: dequantize::<B>,
            dot: dot::<B>,
            quantize: None,
            scalar_quantized: false,
        }
    }

    const fn quantizes<B: Quantize>(self) -> Format {
        Format {
            quantize: Some(quantize::<B>),
            ..self
        }
    }

    const fn quantizes_row<B: QuantizeRow>(self) -> Format {
        Format {
            quantize: Some(|src, out| quantizes_row::<B>(src, None, out)),
            ..self
        }
    }

    const fn scalar_quantized(self) -> Format {
        Format {
            scalar_quantized: true,
            ..self
        }
    }
}

fn dequantize<B: Block>(bytes: &[u8], out: &mut [f32]) {
    let blocks: &[B] = bytemuck::cast_slice(bytes);
    for (block, out) in blocks.iter().zip(out.chunks_exact_mut(B::LEN)) {
        if B::LEN == 1 {
            block.dequantize(out);
        } else {
            dequantize_one(block, out);
        }
    }
}

/// Not inlined: LLVM would vectorize over several blocks at a time, which is half as fast.
#[inline(never)]
fn dequantize_one<B: Block>(block: &B, out: &mut [f32]) {
    block.dequantize(&mut out[..B::LEN]);
}

fn dot<B: Dot>(weights: &[u8], activations: &[u8]) -> f32 {
    let weights: &[B] = bytemuck::cast_slice(weights);
    let activations: &[B::Activation] = bytemuck::cast_slice(activations);
    let per_block = B::LEN / B::Activation::LEN;
    weights
        .iter()
        .zip(activations.chunks_exact(per_block))
        .map(|(w, a)| w.dot(a))
        .sum()
}

fn quantize<B: Quantize>(src: &[f32], out: &mut [u8]) {
    quantizes::<B>(src, None, out);
}

/// Quantizes blocks one by one. The function behind the mark `quantizes` in the registry.
#[inline(always)]
fn quantizes<B: Quantize>(src: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    B::quantize_blocks(src, importance, bytemuck::cast_slice_mut(out));
}

/// Quantizes `src`, which is one row. The function behind the mark `quantizes_row` in the registry.
#[inline(always)]
fn quantizes_row<B: QuantizeRow>(src: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    B::quantize_row(src, importance, bytemuck::cast_slice_mut(out));
}

/// Refines levels. The function behind the mark `scalar_quantized` in the registry.
#[inline(always)]
fn scalar_quantized<B: ScalarQuantized>(
    rows: &[f32],
    second_moment: &SecondMoment,
    out: &mut [u8],
) {
    second_moment::refine_codes::<B>(rows, second_moment, out);
}

impl TensorType {
    /// Returns every type, in the order of the registry.
    pub fn all() -> impl Iterator<Item = TensorType> {
        REGISTRY.iter().map(|format| format.ty)
    }

    pub(super) fn format(self) -> &'static Format {
        &REGISTRY[self as usize]
    }

    /// Returns the name of the type, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        self.format().name
    }

    /// Returns the type called `name`, ignoring case.
    pub fn from_name(name: &str) -> Option<TensorType> {
        REGISTRY
            .iter()
            .find(|format| format.name.eq_ignore_ascii_case(name))
            .map(|format| format.ty)
    }

    /// Returns the id of the type in GGUF files; `None` for safetensors-only and in-memory types.
    pub fn gguf_id(self) -> Option<u32> {
        self.format().gguf_id
    }

    /// Returns the type with this GGUF id.
    pub fn from_gguf_id(id: u32) -> Option<TensorType> {
        REGISTRY
            .iter()
            .find(|format| format.gguf_id == Some(id))
            .map(|format| format.ty)
    }

    /// Elements per block: 1 for the plain types.
    pub fn block_len(self) -> usize {
        self.format().block_len
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        self.format().block_bytes
    }

    /// True if a block holds more than one element, which share a scale.
    pub fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of `n` elements; `None` if `n` is not a whole number of blocks or the size overflows.
    pub fn bytes_for(self, n: u64) -> Option<u64> {
        let block_len = self.block_len() as u64;
        if !n.is_multiple_of(block_len) {
            return None;
        }
        (n / block_len).checked_mul(self.block_bytes() as u64)
    }

    /// Average bits per element.
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
    fn types_are_in_registry_order() {
        for (i, format) in REGISTRY.iter().enumerate() {
            assert_eq!(format.ty as usize, i, "{}", format.name);
            assert_eq!(TensorType::from_name(format.name), Some(format.ty));
            if let Some(id) = format.gguf_id {
                let stored = match format.ty {
                    TensorType::INT8 => TensorType::Q8_0,
                    ty => ty,
                };
                assert_eq!(TensorType::from_gguf_id(id), Some(stored));
            }
        }
    }

    #[test]
    fn bytes_for_checks_blocks_and_overflow() {
        assert_eq!(TensorType::Q4_K.bytes_for(512), Some(288));
        assert_eq!(TensorType::Q4_K.bytes_for(255), None);
        assert_eq!(TensorType::F64.bytes_for(u64::MAX), None);
    }
}
