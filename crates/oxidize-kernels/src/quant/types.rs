//! [`TensorType`]: every element or block format a weight may be stored in.
//!
//! The table below is the registry. A format is its file, its `mod` line, and a line of this table.

use super::correlation::{Correlation, settle as levelled};
use super::{Block, Dot, Quantize, QuantizeRow};

/// Makes the enum and the table of [`Format`]s from the same lines, so that they cannot disagree.
macro_rules! registry {
    ($($ty:ident $name:literal $gguf_id:tt $block:ty $(, $quantizes:ident $($levelled:ident)?)?;)*) => {
        /// How the elements of a tensor are stored.
        ///
        /// Plain types have one element a block. The types that only safetensors files use
        /// (`U8` … `F8E5M2`) have no GGUF id. That of `INT8` is that of `Q8_0`, as which files store it.
        /// No file has the spelled-out ones ([`spelled`](super::spelled)).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the variants are the names of the formats")]
        pub enum TensorType {
            $($ty,)*
        }

        /// In the order of the variants, so that a type is its own index.
        static REGISTRY: &[Format] = {
            use super::*;
            &[$({
                const { assert!(<$block as Block>::TYPE as usize == TensorType::$ty as usize) };
                Format::of::<$block>($name, gguf_id!($gguf_id))$(.$quantizes::<$block>()$(.$levelled())?)?
            },)*]
        };

        /// Turns floats into whole blocks. Inlined, so that it is compiled for the instruction set
        /// of the kernel that calls it. Types without a quantiser leave `out` as it is.
        #[inline(always)]
        pub(crate) fn encode(
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

        /// Chooses the levels of rows of blocks again, for each row as a whole. Inlined like
        /// [`encode`]. Types that are not `Levelled` stay as they are.
        #[inline(always)]
        pub(crate) fn settle(
            ty: TensorType,
            rows: &[f32],
            correlation: &Correlation,
            out: &mut [u8],
        ) {
            use super::*;
            match ty {
                $($($(TensorType::$ty => $levelled::<$block>(rows, correlation, out),)?)?)*
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
    Q4_0     "Q4_0"     2         q4_0::Q4_0,        quantizes levelled;
    Q4_1     "Q4_1"     3         q4_1::Q4_1,        quantizes levelled;
    Q5_0     "Q5_0"     6         q5_0::Q5_0,        quantizes levelled;
    Q5_1     "Q5_1"     7         q5_1::Q5_1,        quantizes levelled;
    Q8_0     "Q8_0"     8         q8_0::Q8_0,        quantizes levelled;
    Q8_1     "Q8_1"     9         q8_1::Q8_1,        quantizes;
    Q2_K     "Q2_K"     10        q2_k::Q2_K,        quantizes levelled;
    Q3_K     "Q3_K"     11        q3_k::Q3_K,        quantizes levelled;
    Q4_K     "Q4_K"     12        q4_k::Q4_K,        quantizes levelled;
    Q5_K     "Q5_K"     13        q5_k::Q5_K,        quantizes levelled;
    Q6_K     "Q6_K"     14        q6_k::Q6_K,        quantizes levelled;
    Q8_K     "Q8_K"     15        q8_k::Q8_K,        quantizes;
    IQ1_S    "IQ1_S"    19        iq1_s::IQ1_S,      quantizes;
    IQ1_M    "IQ1_M"    29        iq1_m::IQ1_M,      quantizes;
    IQ2_XXS  "IQ2_XXS"  16        iq2_xxs::IQ2_XXS,  quantizes;
    IQ2_XS   "IQ2_XS"   17        iq2_xs::IQ2_XS,    quantizes;
    IQ2_S    "IQ2_S"    22        iq2_s::IQ2_S,      quantizes;
    IQ3_XXS  "IQ3_XXS"  18        iq3_xxs::IQ3_XXS,  quantizes;
    IQ3_S    "IQ3_S"    21        iq3_s::IQ3_S,      quantizes;
    IQ4_NL   "IQ4_NL"   20        iq4_nl::IQ4_NL,    quantizes levelled;
    IQ4_XS   "IQ4_XS"   23        iq4_xs::IQ4_XS,    quantizes levelled;
    TQ1_0    "TQ1_0"    34        tq1_0::TQ1_0,      quantizes levelled;
    TQ2_0    "TQ2_0"    35        tq2_0::TQ2_0,      quantizes levelled;
    MXFP4    "MXFP4"    39        mxfp4::MXFP4,      quantizes levelled;
    NVFP4    "NVFP4"    40        nvfp4::NVFP4,      quantizes levelled;
    U8       "U8"       -         plain::U8;
    U16      "U16"      -         plain::U16;
    U32      "U32"      -         plain::U32;
    U64      "U64"      -         plain::U64;
    Bool     "BOOL"     -         plain::Bool;
    F8E4M3   "F8_E4M3"  -         plain::F8E4M3;
    F8E5M2   "F8_E5M2"  -         plain::F8E5M2;
    INT8     "INT8"     8         int8::INT8,        quantizes_row levelled;
    // In memory only.
    IQ1_S_SPELLED    "IQ1_S_SPELLED"    -  spelled::IQ1_S_SPELLED;
    IQ1_M_SPELLED    "IQ1_M_SPELLED"    -  spelled::IQ1_M_SPELLED;
    IQ2_XXS_SPELLED  "IQ2_XXS_SPELLED"  -  spelled::IQ2_XXS_SPELLED;
    IQ2_S_SPELLED    "IQ2_S_SPELLED"    -  spelled::IQ2_S_SPELLED;
    IQ3_XXS_SPELLED  "IQ3_XXS_SPELLED"  -  spelled::IQ3_XXS_SPELLED;
    IQ3_S_SPELLED    "IQ3_S_SPELLED"    -  spelled::IQ3_S_SPELLED;
}

/// What the registry knows of a type. The functions take whole blocks of equal element counts.
pub(super) struct Format {
    ty: TensorType,
    name: &'static str,
    /// The number GGUF files give the type, where they know it.
    gguf_id: Option<u32>,
    block_len: usize,
    block_bytes: usize,
    pub(super) activation: TensorType,
    pub(super) dequantize: fn(&[u8], &mut [f32]),
    pub(super) dot: fn(&[u8], &[u8]) -> f32,
    pub(super) quantize: Option<Quantizer>,
    /// Whether the blocks are [`Levelled`](super::Levelled).
    pub(super) levelled: bool,
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
            levelled: false,
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

    const fn levelled(self) -> Format {
        Format {
            levelled: true,
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

/// A call of its own, else LLVM vectorises over several blocks at a time, which is half as fast.
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

/// What the registry's mark stands for: blocks from floats, with a weight for each element of a row if there are
/// any.
#[inline(always)]
fn quantizes<B: Quantize>(src: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    B::quantize_blocks(src, importance, bytemuck::cast_slice_mut(out));
}

/// The same for a format whose blocks of a row are made together: `src` is one row.
#[inline(always)]
fn quantizes_row<B: QuantizeRow>(src: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    B::quantize_row(src, importance, bytemuck::cast_slice_mut(out));
}

impl TensorType {
    /// Every type, in the order of the registry.
    pub fn all() -> impl Iterator<Item = TensorType> {
        REGISTRY.iter().map(|format| format.ty)
    }

    pub(super) fn format(self) -> &'static Format {
        &REGISTRY[self as usize]
    }

    /// The name people use, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        self.format().name
    }

    /// The type called `name`, whatever the case of its letters.
    pub fn from_name(name: &str) -> Option<TensorType> {
        REGISTRY
            .iter()
            .find(|format| format.name.eq_ignore_ascii_case(name))
            .map(|format| format.ty)
    }

    /// The type's id in GGUF files; `None` for the types that only safetensors has, or no file.
    pub fn gguf_id(self) -> Option<u32> {
        self.format().gguf_id
    }

    /// The type with this GGUF id.
    pub fn from_gguf_id(id: u32) -> Option<TensorType> {
        REGISTRY
            .iter()
            .find(|format| format.gguf_id == Some(id))
            .map(|format| format.ty)
    }

    /// Elements in a block: 1 for the plain types.
    pub fn block_len(self) -> usize {
        self.format().block_len
    }

    /// Bytes in a block.
    pub fn block_bytes(self) -> usize {
        self.format().block_bytes
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
    fn sizes_are_checked() {
        assert_eq!(TensorType::Q4_K.bytes_for(512), Some(288));
        assert_eq!(TensorType::Q4_K.bytes_for(255), None);
        assert_eq!(TensorType::F64.bytes_for(u64::MAX), None);
    }
}
