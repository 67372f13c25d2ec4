//! GEMV in floats: dot products of weight rows with a few tokens, straight from memory. Decoding runs this.
//!
//! Memory is fastest as one long stream, so rows are read one after the other while the tokens stay in the
//! first-level cache. Tokens that do not fit there are shared by several rows at a time.

use super::float::{Bf16, F16, F32, FloatFormat};
use super::format::prefetch_ahead;
use super::vector::Vector;
use crate::ops::matmul::{Activations, Epilogue, Scratch, WeightRows, dequantize};
use crate::out::TileMut;
use crate::quant::TensorType;

/// Number of tokens up to which weight rows are multiplied as they are stored.
pub(crate) const GEMV_TOKENS: usize = 4;

/// Floats of all tokens that stay in the first-level cache, half of which they take.
const CACHED: usize = 4096;

/// The product with all tokens.
///
/// # Safety
/// Needs the instructions of the vector; `acts` has rows of `weight.k()` elements, at most [`GEMV_TOKENS`]
/// unless it is batch invariant, and `out` a row for each of them and a column for each row of the weight.
#[inline(always)]
pub(crate) unsafe fn gemv<V: Vector>(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    // The number of sums of a product depends on the number of tokens.
    let together = if acts.is_batch_invariant() {
        1
    } else {
        acts.rows().max(1)
    };
    for first in (0..acts.rows()).step_by(together) {
        let out = out.part(first..first + together, 0..weight.rows());
        let acts = &acts.float_rows(first..first + together);
        // SAFETY: the caller has the vector's instructions, and these tokens are one, or all of at most
        // `GEMV_TOKENS`.
        unsafe { gemv_batch::<V>(weight, acts, epilogue, out, scratch) };
    }
}

/// # Safety
/// As [`gemv`], for at most [`GEMV_TOKENS`] tokens.
#[inline(always)]
unsafe fn gemv_batch<V: Vector>(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller has the vector's instructions, and each arm reads the format of the weight. The
    // bytes of a slice of floats may be read as such.
    unsafe {
        match weight.ty() {
            TensorType::F32 => all_rows::<V, F32>(weight, acts, epilogue, out),
            TensorType::F16 => all_rows::<V, F16>(weight, acts, epilogue, out),
            TensorType::BF16 => all_rows::<V, Bf16>(weight, acts, epilogue, out),
            ty => {
                let floats = scratch.floats(weight.k());
                for r in 0..weight.rows() {
                    dequantize(ty, weight.row(r), floats);
                    let bytes = floats.as_ptr().cast::<u8>();
                    let bytes = std::slice::from_raw_parts(bytes, size_of_val(floats));
                    let row = WeightRows::new(TensorType::F32, weight.k(), bytes);
                    let row = row.expect("one row of floats");
                    let bias = epilogue.bias.map(|bias| &bias[r..=r]);
                    let part = out.part(0..acts.rows(), r..r + 1);
                    all_rows::<V, F32>(row, acts, Epilogue { bias, ..epilogue }, part);
                }
            }
        }
    }
}

/// # Safety
/// As [`gemv`], for weights of format `F` and at most [`GEMV_TOKENS`] tokens.
#[inline(always)]
unsafe fn all_rows<V: Vector, F: FloatFormat>(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    out: TileMut<'_>,
) {
    // As many rows at a time as leave registers for their sums.
    // SAFETY: the caller has the vector's instructions and weights of format `F`; each arm takes all tokens.
    unsafe {
        match acts.rows() {
            1 => for_tokens::<V, F, 1, 8>(weight, acts, epilogue, out),
            2 => for_tokens::<V, F, 2, 6>(weight, acts, epilogue, out),
            3 => for_tokens::<V, F, 3, 4>(weight, acts, epilogue, out),
            GEMV_TOKENS => for_tokens::<V, F, 4, 3>(weight, acts, epilogue, out),
            n => debug_assert_eq!(n, 0),
        }
    }
}

/// # Safety
/// As [`all_rows`], for `M` tokens; `R` rows at a time, or one.
#[inline(always)]
unsafe fn for_tokens<V: Vector, F: FloatFormat, const M: usize, const R: usize>(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
) {
    let together = if M > 1 || acts.k() > CACHED { R } else { 1 };
    let whole = weight.rows() / together * together;
    // SAFETY: the caller has the vector's instructions and `M` tokens; the rows from `first` on are the
    // weight's.
    unsafe {
        if together == R {
            for first in (0..whole).step_by(R) {
                let dots = multiply::<V, F, M, R, 1>(&weight, first, acts);
                write(dots, first, &epilogue, &mut out);
            }
        }
        let rest = if together == R { whole } else { 0 };
        for first in rest..weight.rows() {
            // Four sums hide the latency of additions.
            let dots = multiply::<V, F, M, 1, 4>(&weight, first, acts);
            write(dots, first, &epilogue, &mut out);
        }
    }
}

fn write<const M: usize, const R: usize>(
    dots: [[f32; M]; R],
    first: usize,
    epilogue: &Epilogue<'_>,
    out: &mut TileMut<'_>,
) {
    for (r, dots) in dots.into_iter().enumerate() {
        for (t, dot) in dots.into_iter().enumerate() {
            epilogue.write(&mut out.row(t)[first + r], first + r, dot);
        }
    }
}

/// Products of `R` rows from `first` on with `M` tokens, in `C` independent sums each.
///
/// # Safety
/// As [`all_rows`]; the weight has the rows and `acts` the tokens.
#[inline(always)]
unsafe fn multiply<V: Vector, F: FloatFormat, const M: usize, const R: usize, const C: usize>(
    weight: &WeightRows<'_>,
    first: usize,
    acts: &Activations<'_>,
) -> [[f32; M]; R] {
    let k = acts.k();
    // SAFETY: the caller has the vector's instructions. The first loop reads `C` vectors from `i` on while as
    // many elements are left; the second reads copies of the rest, which have room for a vector of 16
    // elements of 4 bytes.
    unsafe {
        let rows: [*const u8; R] = std::array::from_fn(|r| weight.row(first + r).as_ptr());
        let tokens: [*const f32; M] = std::array::from_fn(|t| acts.float_row(t).as_ptr());
        let mut sums = [[[V::zero(); C]; M]; R];
        let mut i = 0;
        while i + C * V::LANES <= k {
            // Several rows at a time are each too short a stream to prefetch.
            if R == 1 {
                prefetch_ahead(rows[0].add(i * F::BYTES), C * V::LANES * F::BYTES);
            }
            for c in 0..C {
                let at = i + c * V::LANES;
                let x: [V; M] = std::array::from_fn(|t| V::load(tokens[t].add(at)));
                for r in 0..R {
                    let w: V = F::load(rows[r].add(at * F::BYTES));
                    for t in 0..M {
                        sums[r][t][c] = sums[r][t][c].add_product(w, x[t]);
                    }
                }
            }
            i += C * V::LANES;
        }
        while i < k {
            // The remainder, a vector at a time; the last is padded with zeros.
            let n = V::LANES.min(k - i);
            for t in 0..M {
                let mut x = [0.0f32; 16];
                x[..n].copy_from_slice(&acts.float_row(t)[i..i + n]);
                for r in 0..R {
                    let mut w = [0u8; 64];
                    w[..n * F::BYTES]
                        .copy_from_slice(&weight.row(first + r)[i * F::BYTES..][..n * F::BYTES]);
                    let (w, x) = (F::load(w.as_ptr()), V::load(x.as_ptr()));
                    sums[r][t][0] = sums[r][t][0].add_product(w, x);
                }
            }
            i += n;
        }
        sums.map(|row| {
            row.map(|chains| {
                let [head, rest @ ..] = &chains[..] else {
                    return 0.0;
                };
                rest.iter().fold(*head, |sum, &x| sum.plus(x)).sum()
            })
        })
    }
}
