//! [`Kernels`]: the operations of a CPU backend for one instruction set, and the selection of the set at run
//! time.

use std::ops::Range;
use std::sync::OnceLock;

use half::{bf16, f16};

use crate::ops;
use crate::ops::attention::row_bytes;
use crate::ops::matmul::QuantizedRow;
use crate::quant::{self, QuantError, SecondMoment, TensorType};
use crate::{
    Activation, ActivationFormat, ActivationQuant, Activations, AttentionArgs, Epilogue, KvType,
    QuantizedRowsMut, RopeLayout, Scratch, TileMut, WeightRows, merge_attention,
};

/// An instruction set with its own kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust, the reference implementation.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// [`Isa::Avx2`] with AVX-VNNI, integer dot products in one instruction.
    AvxVnni,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// [`Isa::Avx512`] with AMX for 8-bit integers.
    Amx,
    /// aarch64 with NEON, which every aarch64 processor has.
    Neon,
    /// [`Isa::Neon`] with `dotprod`, dot products of four bytes.
    NeonDotprod,
    /// [`Isa::NeonDotprod`] with `i8mm`, products of 2 × 8 matrices of bytes.
    NeonI8mm,
    /// WebAssembly with 128-bit SIMD.
    WasmSimd128,
}

impl Isa {
    /// Every instruction set, in ascending order of preference.
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

    /// Name of the instruction set, as in `OXIDIZE_ISA`.
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

/// The value of `OXIDIZE_ISA` cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IsaError {
    /// No instruction set has this name.
    #[error(
        "OXIDIZE_ISA: unknown instruction set `{0}`; known: {known}; this machine has: {available}",
        known = names(Isa::ALL),
        available = names(available()),
    )]
    Unknown(String),
    /// This machine lacks the instruction set.
    #[error(
        "OXIDIZE_ISA: this machine lacks `{0}`; it has: {available}; known: {known}",
        available = names(available()),
        known = names(Isa::ALL),
    )]
    Unavailable(Isa),
}

/// The instruction sets of this machine.
fn available() -> impl Iterator<Item = Isa> {
    let has = |isa: &Isa| Kernels::for_isa(*isa).is_some();
    Isa::ALL.into_iter().filter(has)
}

fn names(isas: impl IntoIterator<Item = Isa>) -> String {
    let names: Vec<&str> = isas.into_iter().map(Isa::name).collect();
    names.join(", ")
}

/// Returns the kernels of the instruction set that the environment variable `OXIDIZE_ISA` names, or of the
/// best of this machine if it is empty or not set.
///
/// The variable is read once; later calls return the first result.
pub fn try_select() -> Result<&'static Kernels, IsaError> {
    static SELECTED: OnceLock<Result<&'static Kernels, IsaError>> = OnceLock::new();
    let selected = SELECTED.get_or_init(|| {
        let name = std::env::var_os("OXIDIZE_ISA").unwrap_or_default();
        Kernels::for_name(&name.to_string_lossy())
    });
    selected.clone()
}

/// [`try_select`] for code that cannot return an error. Programs call `try_select` when they start.
///
/// # Panics
/// If `OXIDIZE_ISA` names no instruction set of this machine.
pub fn select() -> &'static Kernels {
    match try_select() {
        Ok(kernels) => kernels,
        Err(error) => panic!("{error}"),
    }
}

/// Every operation, for one instruction set. Methods check shapes and run the kernel.
///
/// All methods panic if shapes do not fit together: shapes come from the caller, which has validated files.
pub struct Kernels {
    pub(crate) isa: Isa,
    pub(crate) functions: Functions,
}

/// Optional weights, one per element.
type Weights<'a> = Option<&'a [f32]>;

/// The kernels behind the methods of [`Kernels`].
///
/// # Safety
/// They need the instruction set of the table, which is only returned for a witness of it, and shapes that
/// the method has checked.
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    pub(crate) quantize_weights: unsafe fn(TensorType, &[f32], Weights<'_>, &mut [u8]),
    pub(crate) refine_codes: unsafe fn(TensorType, &[f32], &SecondMoment, &mut [u8]),
    pub(crate) repack: unsafe fn(TensorType, &[u8], &mut [u8]),
    pub(crate) quantize_activation_row: unsafe fn(&[f32], QuantizedRow<'_>),
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
    pub(crate) exp_sum: unsafe fn(&[f32], f32, &mut [f32]) -> f64,
    pub(crate) sum: unsafe fn(&[f32]) -> f64,
    pub(crate) f32_to_f16: unsafe fn(&[f32], &mut [f16]),
    pub(crate) f16_to_f32: unsafe fn(&[f16], &mut [f32]),
    pub(crate) f32_to_bf16: unsafe fn(&[f32], &mut [bf16]),
    pub(crate) bf16_to_f32: unsafe fn(&[bf16], &mut [f32]),
}

/// The reference implementation, for every machine.
pub(crate) static SCALAR: Kernels = Kernels {
    isa: Isa::Scalar,
    functions: Functions {
        quantize_weights: quant::quantize_weights,
        refine_codes: quant::refine_codes,
        repack: quant::repack,
        quantize_activation_row: ops::matmul::quantize_activation_row,
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
        exp_sum: ops::exp_sum::exp_sum,
        sum: ops::exp_sum::sum,
        f32_to_f16: ops::convert::f32_to_f16,
        f16_to_f32: ops::convert::f16_to_f32,
        f32_to_bf16: ops::convert::f32_to_bf16,
        bf16_to_f32: ops::convert::bf16_to_f32,
    },
};

/// Calls a kernel of the table.
macro_rules! call {
    ($self:ident.$kernel:ident($($arg:expr),*)) => {
        // SAFETY: a table is only returned for a witness that the machine has its instruction set, and the
        // calling method has asserted that the shapes fit together.
        unsafe { ($self.functions.$kernel)($($arg),*) }
    };
}

impl Kernels {
    /// Returns the kernels of an instruction set if this machine has it.
    pub fn for_isa(isa: Isa) -> Option<&'static Kernels> {
        crate::arch::kernels(isa)
    }

    /// Returns the kernels of the instruction set of this name, or of the best of this machine if the name is
    /// empty.
    pub fn for_name(name: &str) -> Result<&'static Kernels, IsaError> {
        if name.is_empty() {
            let best = Isa::ALL.into_iter().rev().find_map(Kernels::for_isa);
            return Ok(best.unwrap_or(&SCALAR));
        }
        let isa = Isa::ALL.into_iter().find(|isa| isa.name() == name);
        let isa = isa.ok_or_else(|| IsaError::Unknown(name.to_owned()))?;
        Kernels::for_isa(isa).ok_or(IsaError::Unavailable(isa))
    }

    /// Instruction set of the kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Format of the activations for products of weights of these types with this number of tokens, or `None`
    /// for floats.
    pub fn activation_format(
        &self,
        types: impl IntoIterator<Item = TensorType>,
        tokens: usize,
        quant: ActivationQuant,
    ) -> Option<ActivationFormat> {
        // Number of tokens up to which weights of 16-bit floats are multiplied in floats, because quantizing
        // them takes longer than it saves. NEON multiplies as many floats as 16-bit integers per instruction.
        let float_tokens = match self.isa {
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 | Isa::Amx => 4,
            Isa::WasmSimd128 => 8,
            Isa::Scalar | Isa::Neon | Isa::NeonDotprod | Isa::NeonI8mm => usize::MAX,
        };
        ActivationFormat::of(types, tokens > float_tokens, quant)
    }

    /// Quantizes weights to whole blocks of type `ty`, with the same result as [`quant::quantize`] on every
    /// instruction set. `importance` weights the error of each element of a row; `src` may be several rows,
    /// except for [`TensorType::INT8`].
    pub fn quantize_weights(
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
        call!(self.quantize_weights(ty, src, importance, out));
        Ok(())
    }

    /// [`Kernels::quantize_weights`] for whole rows, of any type.
    pub fn quantize_weight_rows(
        &self,
        ty: TensorType,
        rows: &[f32],
        columns: usize,
        importance: Option<&[f32]>,
        out: &mut [u8],
    ) -> Result<(), QuantError> {
        if ty != TensorType::INT8 {
            return self.quantize_weights(ty, rows, importance, out);
        }
        let row_bytes = out.len() / (rows.len() / columns.max(1)).max(1);
        let rows = rows.chunks_exact(columns.max(1));
        rows.zip(out.chunks_exact_mut(row_bytes.max(1)))
            .try_for_each(|(row, out)| self.quantize_weights(ty, row, importance, out))
    }

    /// [`Kernels::quantize_weight_rows`] with error compensation: errors are chosen to cancel in products
    /// with inputs of the given second moment. `importance` and `second_moment` are for the columns of one
    /// row.
    pub fn quantize_weights_compensated(
        &self,
        ty: TensorType,
        rows: &[f32],
        importance: &[f32],
        second_moment: &SecondMoment,
        out: &mut [u8],
    ) -> Result<(), QuantError> {
        let columns = second_moment.columns();
        assert!(rows.len().is_multiple_of(columns) && importance.len() == columns);
        quant::check_length(ty, out.len(), rows.len())?;
        if ty.is_quantized() && !quant::is_scalar_quantized(ty) {
            return second_moment.compensate(ty, rows, out, |columns, target, out| {
                self.quantize_weights(ty, target, Some(&importance[columns]), out)
            });
        }
        self.quantize_weight_rows(ty, rows, columns, Some(importance), out)?;
        // Errors of float types are too small to compensate.
        call!(self.refine_codes(ty, rows, second_moment, out));
        Ok(())
    }

    /// The type to which weights are repacked for faster products, if this instruction set has kernels for
    /// it.
    pub fn repacked_type(&self, ty: TensorType) -> Option<TensorType> {
        match self.isa {
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 | Isa::Amx => quant::repacked_type(ty),
            _ => None,
        }
    }

    /// Repacks whole blocks of type `ty` to its [`quant::repacked_type`], which represents the same floats.
    pub fn repack(&self, ty: TensorType, src: &[u8], out: &mut [u8]) -> Result<(), QuantError> {
        quant::check_repack(ty, src, out)?;
        call!(self.repack(ty, src, out));
        Ok(())
    }

    /// Quantizes rows of activations: `x` holds as many rows as `out`, one after the other.
    pub fn quantize_activations(&self, x: &[f32], mut out: QuantizedRowsMut<'_>) {
        let k = out.k();
        assert_eq!(x.len(), out.rows() * k);
        for (row, x) in x.chunks_exact(k).enumerate() {
            call!(self.quantize_activation_row(x, out.row(row)));
        }
    }

    /// `out[t][r] = weight row r · activation row t` for every token `t`, then the epilogue.
    ///
    /// A weight row is unpacked once for all tokens, so pass all tokens in one call and split the rows of the
    /// weight among threads, in multiples of 16 if possible.
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
        // The middle of a long prompt needs no logits.
        if acts.rows() == 0 {
            return;
        }
        call!(self.matmul(weight, acts, epilogue, out, scratch));
    }

    /// Attention of all tokens and heads; the rows of `out` are the tokens, its columns the heads' values.
    pub fn attention(&self, args: &AttentionArgs<'_>, out: TileMut<'_>, scratch: &mut Scratch) {
        let mut part = std::mem::take(&mut scratch.part);
        let part_out = ops::matmul::grown(&mut part, args.part_len());
        self.attention_part(args, 0..args.end(), part_out, scratch);
        merge_attention(part_out, args.sinks, args.kv.v_dim, out);
        scratch.part = part;
    }

    /// Attention over the keys in `keys` only, for [`merge_attention`], which also applies sinks. `part` has
    /// [`AttentionArgs::part_len`] elements.
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

    /// Converts a key or a value to the type of the cache.
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

    /// [`Kernels::rms_norm`] in place.
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

    /// [`Kernels::layer_norm`] in place.
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

    /// Softmax in place. A row of only −∞ becomes zeros.
    pub fn softmax(&self, x: &mut [f32]) {
        call!(self.softmax(x));
    }

    /// Rotates pairs of the first `2 · cos.len()` elements of each head of `x` by the given angles.
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

    /// Index of the first of the largest elements. NaN is never the largest.
    pub fn argmax(&self, x: &[f32]) -> usize {
        call!(self.argmax(x))
    }

    /// Writes the softmax weights `exp(logit − max)`, where no logit is above `max`, and returns their sum.
    /// The results have the same bits on every instruction set, so that sampling is reproducible.
    pub fn exp_sum(&self, logits: &[f32], max: f32, weights: &mut [f32]) -> f64 {
        assert_eq!(logits.len(), weights.len());
        call!(self.exp_sum(logits, max, weights))
    }

    /// `Σ x`, in the order of [`Kernels::exp_sum`]: the same bits on every instruction set.
    pub fn sum(&self, x: &[f32]) -> f64 {
        call!(self.sum(x))
    }

    /// Converts to half precision, rounding to nearest even.
    pub fn f32_to_f16(&self, x: &[f32], out: &mut [f16]) {
        assert_eq!(x.len(), out.len());
        call!(self.f32_to_f16(x, out));
    }

    /// Converts from half precision.
    pub fn f16_to_f32(&self, x: &[f16], out: &mut [f32]) {
        assert_eq!(x.len(), out.len());
        call!(self.f16_to_f32(x, out));
    }

    /// Converts to bfloat16, rounding to nearest even.
    pub fn f32_to_bf16(&self, x: &[f32], out: &mut [bf16]) {
        assert_eq!(x.len(), out.len());
        call!(self.f32_to_bf16(x, out));
    }

    /// Converts from bfloat16.
    pub fn bf16_to_f32(&self, x: &[bf16], out: &mut [f32]) {
        assert_eq!(x.len(), out.len());
        call!(self.bf16_to_f32(x, out));
    }
}
