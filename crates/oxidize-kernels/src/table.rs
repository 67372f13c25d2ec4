//! [`Kernels`]: the operations a CPU backend is made of, for one instruction set, and the choice of
//! the best set that this machine has.

use std::ops::Range;
use std::sync::OnceLock;

use half::{bf16, f16};

use crate::ops;
use crate::ops::attention::row_bytes;
use crate::ops::matmul::QuantizedRow;
use crate::quant::{self, Correlation, QuantError, TensorType};
use crate::{
    Activation, ActivationRounding, Activations, AttentionArgs, Epilogue, KvType, Precision,
    QuantizedRowsMut, RopeLayout, Scratch, TileMut, WeightRows, merge_attention,
};

/// An instruction set with kernels of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust, the reference.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// The same with AVX-VNNI, which multiplies and adds bytes in one instruction.
    AvxVnni,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// The last with AMX for bytes.
    Amx,
    /// aarch64 with NEON, which is all of them.
    Neon,
    /// aarch64 with NEON's product of four bytes.
    NeonDotprod,
    /// The same with its product of two rows of eight bytes with two.
    NeonI8mm,
    /// WebAssembly with SIMD.
    WasmSimd128,
}

impl Isa {
    /// Every set, from the plainest to the best that a machine may have.
    pub const ALL: [Isa; 9] = [
        Isa::Scalar,
        Isa::Avx2,
        Isa::AvxVnni,
        Isa::Avx512,
        Isa::Amx,
        Isa::Neon,
        Isa::NeonDotprod,
        Isa::NeonI8mm,
        Isa::WasmSimd128,
    ];

    /// The name that `OXIDIZE_ISA` takes.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
            Isa::Neon => "neon",
            Isa::NeonDotprod => "neon-dotprod",
            Isa::NeonI8mm => "neon-i8mm",
            Isa::WasmSimd128 => "wasm-simd128",
        }
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The kernels of the best instruction set of this machine, or of the one that `OXIDIZE_ISA` names.
///
/// A set that the machine does not have, or that there is no such name for, is passed over.
pub fn select() -> &'static Kernels {
    static SELECTED: OnceLock<&'static Kernels> = OnceLock::new();
    SELECTED.get_or_init(|| {
        let wanted = std::env::var("OXIDIZE_ISA").ok();
        let named = Isa::ALL
            .into_iter()
            .find(|isa| Some(isa.name()) == wanted.as_deref());
        named
            .and_then(Kernels::for_isa)
            .or_else(|| Isa::ALL.into_iter().rev().find_map(Kernels::for_isa))
            .unwrap_or(&SCALAR)
    })
}

/// Every operation, for one instruction set. Methods check shapes and then run the kernel.
///
/// All methods panic when shapes do not fit together: shapes are the caller's, never a file's.
pub struct Kernels {
    pub(crate) isa: Isa,
    pub(crate) functions: Functions,
}

/// One number per element, where there are any.
type Weights<'a> = Option<&'a [f32]>;

/// The kernels behind the methods of [`Kernels`].
///
/// # Safety
/// They rely on two things: the machine has the instruction set of the table (the table is only
/// handed out for a witness of it), and the method has checked the shapes.
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    pub(crate) encode: unsafe fn(TensorType, &[f32], Weights<'_>, &mut [u8]),
    pub(crate) settle: unsafe fn(TensorType, &[f32], &Correlation, &mut [u8]),
    pub(crate) spell_out: unsafe fn(TensorType, &[u8], &mut [u8]),
    pub(crate) quantize_row: unsafe fn(&[f32], QuantizedRow<'_>),
    pub(crate) matmul:
        unsafe fn(WeightRows<'_>, &Activations<'_>, Epilogue<'_>, TileMut<'_>, &mut Scratch),
    pub(crate) attention_part:
        unsafe fn(&AttentionArgs<'_>, Range<usize>, &mut [f32], &mut Scratch),
    pub(crate) store_kv: unsafe fn(KvType, &[f32], &mut [u8]),
    pub(crate) rms_norm: unsafe fn(&mut [f32], Weights<'_>, f32),
    pub(crate) layer_norm: unsafe fn(&mut [f32], Weights<'_>, Weights<'_>, f32),
    pub(crate) softmax: unsafe fn(&mut [f32]),
    pub(crate) rope: unsafe fn(&mut [f32], usize, &[f32], &[f32], RopeLayout),
    pub(crate) activate: unsafe fn(Activation, &mut [f32]),
    pub(crate) glu: unsafe fn(Activation, &mut [f32], &[f32]),
    pub(crate) add: unsafe fn(&mut [f32], &[f32]),
    pub(crate) mul: unsafe fn(&mut [f32], &[f32]),
    pub(crate) scale: unsafe fn(&mut [f32], f32),
    pub(crate) add_scaled: unsafe fn(&mut [f32], &[f32], f32),
    pub(crate) softcap: unsafe fn(&mut [f32], f32),
    pub(crate) dot: unsafe fn(&[f32], &[f32]) -> f32,
    pub(crate) argmax: unsafe fn(&[f32]) -> usize,
    pub(crate) weigh: unsafe fn(&[f32], f32, &mut [f32]) -> f64,
    pub(crate) sum: unsafe fn(&[f32]) -> f64,
    pub(crate) f32_to_f16: unsafe fn(&[f32], &mut [f16]),
    pub(crate) f16_to_f32: unsafe fn(&[f16], &mut [f32]),
    pub(crate) f32_to_bf16: unsafe fn(&[f32], &mut [bf16]),
    pub(crate) bf16_to_f32: unsafe fn(&[bf16], &mut [f32]),
}

/// The reference, for every machine.
pub(crate) static SCALAR: Kernels = Kernels {
    isa: Isa::Scalar,
    functions: Functions {
        encode: quant::encode,
        settle: quant::settle,
        spell_out: quant::spell_out,
        quantize_row: ops::matmul::quantize_row,
        matmul: ops::matmul::matmul,
        attention_part: ops::attention::attention_part,
        store_kv: ops::attention::store_kv,
        rms_norm: ops::norm::rms_norm,
        layer_norm: ops::norm::layer_norm,
        softmax: ops::softmax::softmax,
        rope: ops::rope::rope,
        activate: ops::activation::activate,
        glu: ops::activation::glu,
        add: ops::elementwise::add,
        mul: ops::elementwise::mul,
        scale: ops::elementwise::scale,
        add_scaled: ops::elementwise::add_scaled,
        softcap: ops::elementwise::softcap,
        dot: ops::elementwise::dot,
        argmax: ops::argmax::argmax,
        weigh: ops::weigh::weigh,
        sum: ops::weigh::sum,
        f32_to_f16: ops::convert::f32_to_f16,
        f16_to_f32: ops::convert::f16_to_f32,
        f32_to_bf16: ops::convert::f32_to_bf16,
        bf16_to_f32: ops::convert::bf16_to_f32,
    },
};

/// Calls a kernel of the table.
macro_rules! call {
    ($self:ident.$kernel:ident($($arg:expr),*)) => {
        // SAFETY: whoever has this table got it for a witness of its instruction set, and the
        // method that calls has checked the shapes.
        unsafe { ($self.functions.$kernel)($($arg),*) }
    };
}

impl Kernels {
    /// The kernels of an instruction set, if this machine has it.
    pub fn for_isa(isa: Isa) -> Option<&'static Kernels> {
        crate::arch::kernels(isa)
    }

    /// The instruction set these are for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// What products of weights of these types with so many tokens want, if not floats.
    pub fn precision(
        &self,
        types: impl IntoIterator<Item = TensorType>,
        tokens: usize,
        rounding: ActivationRounding,
    ) -> Option<Precision> {
        // Up to so many tokens, 16-bit floats are multiplied as floats: rounding them takes longer. NEON
        // multiplies as many floats as words.
        let float_tokens = match self.isa {
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 | Isa::Amx => 4,
            Isa::WasmSimd128 => 8,
            Isa::Scalar | Isa::Neon | Isa::NeonDotprod | Isa::NeonI8mm => usize::MAX,
        };
        Precision::of(types, tokens > float_tokens, rounding)
    }

    /// Turns weights into whole blocks of type `ty`, whatever the instruction set the same ones as
    /// [`quant::quantize`] does. `importance` says how much an error of each element of a row matters; `src`
    /// may be several rows, but for [`TensorType::INT8`].
    pub fn encode(
        &self,
        ty: TensorType,
        src: &[f32],
        importance: Option<&[f32]>,
        out: &mut [u8],
    ) -> Result<(), QuantError> {
        if !quant::can_quantize(ty) {
            return Err(QuantError::Unsupported { ty });
        }
        quant::check_length(ty, out.len(), src.len())?;
        assert!(
            importance.is_none_or(|row| !row.is_empty() && src.len().is_multiple_of(row.len()))
        );
        call!(self.encode(ty, src, importance, out));
        Ok(())
    }

    /// The same for whole rows, of any type.
    pub fn encode_rows(
        &self,
        ty: TensorType,
        rows: &[f32],
        columns: usize,
        importance: Option<&[f32]>,
        out: &mut [u8],
    ) -> Result<(), QuantError> {
        if ty != TensorType::INT8 {
            return self.encode(ty, rows, importance, out);
        }
        let row_bytes = out.len() / (rows.len() / columns.max(1)).max(1);
        let rows = rows.chunks_exact(columns.max(1));
        rows.zip(out.chunks_exact_mut(row_bytes.max(1)))
            .try_for_each(|(row, out)| self.encode(ty, row, importance, out))
    }

    /// The same for whole rows whose inputs vary together as `correlation` says: errors are chosen so
    /// that they cancel in the products. `importance` is that of one row, and so is the number of
    /// columns that `correlation` knows.
    pub fn encode_correlated(
        &self,
        ty: TensorType,
        rows: &[f32],
        importance: &[f32],
        correlation: &Correlation,
        out: &mut [u8],
    ) -> Result<(), QuantError> {
        let columns = correlation.columns();
        assert!(rows.len().is_multiple_of(columns) && importance.len() == columns);
        quant::check_length(ty, out.len(), rows.len())?;
        if ty.is_quantized() && !quant::is_levelled(ty) {
            return correlation.feed_back(ty, rows, out, |columns, target, out| {
                self.encode(ty, target, Some(&importance[columns]), out)
            });
        }
        self.encode_rows(ty, rows, columns, Some(importance), out)?;
        // Plain types have no levels: their errors are too small to be worth it.
        call!(self.settle(ty, rows, correlation, out));
        Ok(())
    }

    /// The form in which weights of a type are multiplied faster here than as files have them, if there is
    /// one. Only where that form has kernels of its own.
    pub fn spelled_type(&self, ty: TensorType) -> Option<TensorType> {
        match self.isa {
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 | Isa::Amx => quant::spelled_type(ty),
            _ => None,
        }
    }

    /// Writes whole blocks of type `ty` as blocks of its [`quant::spelled_type`], which have the same floats.
    pub fn spell_out(&self, ty: TensorType, src: &[u8], out: &mut [u8]) -> Result<(), QuantError> {
        quant::check_spelling(ty, src, out)?;
        call!(self.spell_out(ty, src, out));
        Ok(())
    }

    /// Quantises rows of activations: `x` holds as many as `out`, one after the other.
    pub fn quantize_rows(&self, x: &[f32], mut out: QuantizedRowsMut<'_>) {
        let k = out.k();
        assert_eq!(x.len(), out.rows() * k);
        for (row, x) in x.chunks_exact(k).enumerate() {
            call!(self.quantize_row(x, out.row(row)));
        }
    }

    /// `out[t][r] = weight row r · activation row t` for every token `t`, then the epilogue.
    ///
    /// Tokens share the unpacking of a weight row, so give all of them at once and share the rows of
    /// the weight out over threads, in multiples of 16 where that can be.
    pub fn matmul(
        &self,
        weight: WeightRows<'_>,
        acts: &Activations<'_>,
        epilogue: Epilogue<'_>,
        out: TileMut<'_>,
        scratch: &mut Scratch,
    ) {
        assert_eq!(weight.k(), acts.k());
        assert_eq!((out.rows(), out.cols()), (acts.rows(), weight.rows()));
        assert!(epilogue.bias.is_none_or(|bias| bias.len() == weight.rows()));
        // The middle of a long prompt wants no logits.
        if acts.rows() == 0 {
            return;
        }
        call!(self.matmul(weight, acts, epilogue, out, scratch));
    }

    /// Attention of all tokens and heads; the columns of `out` are the heads' values.
    pub fn attention(&self, args: &AttentionArgs<'_>, out: TileMut<'_>, scratch: &mut Scratch) {
        let mut part = std::mem::take(&mut scratch.part);
        let part_out = ops::matmul::grown(&mut part, args.part_len());
        self.attention_part(args, 0..args.end(), part_out, scratch);
        merge_attention(part_out, args.sinks, args.kv.v_dim, out);
        scratch.part = part;
    }

    /// Attention over the keys in `keys` only, for [`merge_attention`]: `part` has
    /// [`AttentionArgs::part_len`] elements. Sinks are left to the merge.
    pub fn attention_part(
        &self,
        args: &AttentionArgs<'_>,
        keys: Range<usize>,
        part: &mut [f32],
        scratch: &mut Scratch,
    ) {
        args.check();
        assert_eq!(part.len(), args.part_len());
        let keys = keys.start..keys.end.min(args.end());
        call!(self.attention_part(args, keys, part, scratch));
    }

    /// Writes a key or a value as the cache stores it.
    pub fn store_kv(&self, ty: KvType, x: &[f32], out: &mut [u8]) {
        assert_eq!(ty.row_bytes(x.len()), Some(out.len()));
        debug_assert_eq!(row_bytes(ty, x.len()), out.len());
        call!(self.store_kv(ty, x, out));
    }

    /// `out = x / √(mean(x²) + eps) · weight`.
    pub fn rms_norm(&self, x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        out.copy_from_slice(x);
        self.rms_norm_in_place(out, weight, eps);
    }

    /// The same, in place.
    pub fn rms_norm_in_place(&self, x: &mut [f32], weight: Option<&[f32]>, eps: f32) {
        assert!(weight.is_none_or(|weight| weight.len() == x.len()));
        call!(self.rms_norm(x, weight, eps));
    }

    /// `out = (x − mean) / √(variance + eps) · weight + bias`.
    pub fn layer_norm(
        &self,
        x: &[f32],
        weight: Option<&[f32]>,
        bias: Option<&[f32]>,
        eps: f32,
        out: &mut [f32],
    ) {
        out.copy_from_slice(x);
        self.layer_norm_in_place(out, weight, bias, eps);
    }

    /// The same, in place.
    pub fn layer_norm_in_place(
        &self,
        x: &mut [f32],
        weight: Option<&[f32]>,
        bias: Option<&[f32]>,
        eps: f32,
    ) {
        assert!(weight.is_none_or(|weight| weight.len() == x.len()));
        assert!(bias.is_none_or(|bias| bias.len() == x.len()));
        call!(self.layer_norm(x, weight, bias, eps));
    }

    /// Softmax in place. A row of nothing but −∞ becomes zeros.
    pub fn softmax(&self, x: &mut [f32]) {
        call!(self.softmax(x));
    }

    /// Turns the first `2 · cos.len()` elements of each head of `x` by the given angles.
    pub fn rope(
        &self,
        x: &mut [f32],
        head_dim: usize,
        cos: &[f32],
        sin: &[f32],
        layout: RopeLayout,
    ) {
        assert!(head_dim > 0 && x.len().is_multiple_of(head_dim));
        assert!(cos.len() == sin.len() && 2 * cos.len() <= head_dim);
        call!(self.rope(x, head_dim, cos, sin, layout));
    }

    /// `x = f(x)`.
    pub fn activate(&self, f: Activation, x: &mut [f32]) {
        call!(self.activate(f, x));
    }

    /// `gate = f(gate) · up`.
    pub fn glu(&self, f: Activation, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len());
        call!(self.glu(f, gate, up));
    }

    /// `x += y`.
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len());
        call!(self.add(x, y));
    }

    /// `x *= y`.
    pub fn mul(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len());
        call!(self.mul(x, y));
    }

    /// `x *= factor`.
    pub fn scale(&self, x: &mut [f32], factor: f32) {
        call!(self.scale(x, factor));
    }

    /// `x += y · factor`.
    pub fn add_scaled(&self, x: &mut [f32], y: &[f32], factor: f32) {
        assert_eq!(x.len(), y.len());
        call!(self.add_scaled(x, y, factor));
    }

    /// `x = cap · tanh(x / cap)`.
    pub fn softcap(&self, x: &mut [f32], cap: f32) {
        call!(self.softcap(x, cap));
    }

    /// `Σ x · y`.
    pub fn dot(&self, x: &[f32], y: &[f32]) -> f32 {
        assert_eq!(x.len(), y.len());
        call!(self.dot(x, y))
    }

    /// Index of the first of the largest elements; NaN is never the largest.
    pub fn argmax(&self, x: &[f32]) -> usize {
        call!(self.argmax(x))
    }

    /// Writes the weights `exp(logit − max)` of a softmax, where no logit is above `max`, and returns their sum.
    /// The same bits on every instruction set, so that what is sampled by them is the same.
    pub fn weigh(&self, logits: &[f32], max: f32, weights: &mut [f32]) -> f64 {
        assert_eq!(logits.len(), weights.len());
        call!(self.weigh(logits, max, weights))
    }

    /// `Σ x`, added up as [`Kernels::weigh`] does it: the same bits on every instruction set.
    pub fn sum(&self, x: &[f32]) -> f64 {
        call!(self.sum(x))
    }

    /// Rounds to half precision.
    pub fn f32_to_f16(&self, x: &[f32], out: &mut [f16]) {
        assert_eq!(x.len(), out.len());
        call!(self.f32_to_f16(x, out));
    }

    /// Widens half precision.
    pub fn f16_to_f32(&self, x: &[f16], out: &mut [f32]) {
        assert_eq!(x.len(), out.len());
        call!(self.f16_to_f32(x, out));
    }

    /// Rounds to bfloat16.
    pub fn f32_to_bf16(&self, x: &[f32], out: &mut [bf16]) {
        assert_eq!(x.len(), out.len());
        call!(self.f32_to_bf16(x, out));
    }

    /// Widens bfloat16.
    pub fn bf16_to_f32(&self, x: &[bf16], out: &mut [f32]) {
        assert_eq!(x.len(), out.len());
        call!(self.bf16_to_f32(x, out));
    }
}
