//! Row operations on every instruction set of this machine, against the reference implementation.

#[allow(dead_code, reason = "each test uses some of it")]
mod random;

use half::{bf16, f16};
use oxidize_kernels::{Activation, Isa, Kernels, KvType, RopeLayout};
use random::Random;

fn scalar() -> &'static Kernels {
    Kernels::for_isa(Isa::Scalar).unwrap()
}

fn simd_kernels() -> impl Iterator<Item = &'static Kernels> {
    Isa::ALL.into_iter().skip(1).filter_map(Kernels::for_isa)
}

const LENGTHS: [usize; 9] = [1, 7, 8, 9, 31, 64, 100, 576, 2049];

/// Runs `op` on every instruction set with the same random rows. Results may differ from the reference by `tolerance`,
/// relative to the larger of 1 and the reference.
fn assert_isas_agree(
    name: &str,
    range: f32,
    tolerance: f32,
    op: impl Fn(&Kernels, &mut [f32], &[f32]),
) {
    let mut random = Random::new(7);
    for n in LENGTHS {
        let x: Vec<f32> = random.floats(n).iter().map(|x| x * range).collect();
        let y = random.floats(n);
        let mut want = x.clone();
        op(scalar(), &mut want, &y);
        for kernels in simd_kernels() {
            let mut got = x.clone();
            op(kernels, &mut got, &y);
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let error = (got - want).abs() / want.abs().max(1.0);
                let isa = kernels.isa();
                assert!(
                    error <= tolerance,
                    "{name} on {isa}, {i} of {n}: {got} for {want}"
                );
            }
        }
    }
}

#[test]
fn norms_match_reference() {
    assert_isas_agree("rms_norm", 5.0, 2e-6, |k, x, y| {
        k.rms_norm_in_place(x, Some(y), 1e-5)
    });
    assert_isas_agree("rms_norm", 5.0, 2e-6, |k, x, _| {
        k.rms_norm_in_place(x, None, 1e-5)
    });
    assert_isas_agree("layer_norm", 5.0, 5e-6, |k, x, y| {
        k.layer_norm_in_place(x, Some(y), Some(y), 1e-5)
    });
    assert_isas_agree("layer_norm", 5.0, 5e-6, |k, x, _| {
        k.layer_norm_in_place(x, None, None, 1e-5)
    });
}

#[test]
fn elementwise_operations_match_reference() {
    assert_isas_agree("softmax", 20.0, 1e-6, |k, x, _| k.softmax(x));
    assert_isas_agree("add", 5.0, 0.0, |k, x, y| k.add(x, y));
    assert_isas_agree("mul", 5.0, 0.0, |k, x, y| k.mul(x, y));
    assert_isas_agree("scale", 5.0, 0.0, |k, x, _| k.scale(x, 0.3));
    assert_isas_agree("add_scaled", 5.0, 1e-6, |k, x, y| k.add_scaled(x, y, 0.3));
    assert_isas_agree("softcap", 90.0, 1e-6, |k, x, _| k.softcap(x, 30.0));
    assert_isas_agree("dot", 1.0, 1e-5, |k, x, y| x[0] = k.dot(x, y));
}

#[test]
fn activations_match_reference() {
    for f in Activation::ALL {
        let name = format!("{f:?}");
        // eˣ is infinite above 88.
        let widest = if f == Activation::Exp { 80.0 } else { 120.0 };
        for range in [0.1, 3.0, widest] {
            assert_isas_agree(&name, range, 5e-7, |k, x, _| k.activate(f, x));
            assert_isas_agree(&name, range, 5e-7, |k, x, y| k.glu(f, x, y));
        }
    }
}

#[test]
fn functions_have_correct_limits() {
    let x = [
        f32::NEG_INFINITY,
        -1e30,
        -100.0,
        0.0,
        100.0,
        1e30,
        f32::INFINITY,
    ];
    for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
        for f in [Activation::Sigmoid, Activation::Tanh] {
            let mut got = x;
            kernels.activate(f, &mut got);
            for (x, got) in x.iter().zip(got) {
                let want = f.apply(*x);
                assert!(
                    (got - want).abs() < 1e-6,
                    "{f:?}({x}) = {got} on {}",
                    kernels.isa()
                );
            }
        }
        let mut masked = [f32::NEG_INFINITY, 0.0, -200.0];
        kernels.softmax(&mut masked);
        assert_eq!(masked, [0.0, 1.0, 0.0]);
        let mut all_masked = [f32::NEG_INFINITY; 9];
        kernels.softmax(&mut all_masked);
        assert_eq!(all_masked, [0.0; 9]);
        let mut nan = [f32::NAN; 8];
        kernels.activate(Activation::Silu, &mut nan);
        assert!(nan[0].is_nan());
    }
}

#[test]
fn rope_matches_reference() {
    let mut random = Random::new(9);
    for (head_dim, half) in [(64, 32), (128, 64), (80, 20), (96, 24), (64, 8), (6, 3)] {
        for layout in [RopeLayout::Interleaved, RopeLayout::Halves] {
            let angles: Vec<f32> = random.floats(half).iter().map(|x| x * 9.0).collect();
            let cos: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
            let sin: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
            let x = random.floats(3 * head_dim);
            let mut want = x.clone();
            scalar().rope(&mut want, head_dim, &cos, &sin, layout);
            for kernels in simd_kernels() {
                let mut got = x.clone();
                kernels.rope(&mut got, head_dim, &cos, &sin, layout);
                for (got, want) in got.iter().zip(&want) {
                    assert!((got - want).abs() < 1e-6, "{layout:?} {head_dim} {half}");
                }
            }
        }
    }
}

#[test]
fn float_conversions_match_reference_bits() {
    let mut random = Random::new(11);
    let mut x: Vec<f32> = (0..2001)
        .map(|_| f32::from_bits(random.bits() as u32))
        .collect();
    x.extend([
        0.0,
        -0.0,
        f32::INFINITY,
        f32::NAN,
        65504.0,
        65520.0,
        1e-8,
        1.000_488_3,
    ]);
    for kernels in simd_kernels() {
        let (mut want, mut got) = (vec![f16::ZERO; x.len()], vec![f16::ZERO; x.len()]);
        scalar().f32_to_f16(&x, &mut want);
        kernels.f32_to_f16(&x, &mut got);
        assert!(
            want.iter()
                .zip(&got)
                .all(|(a, b)| a.to_bits() == b.to_bits())
        );
        let (mut wide, mut got_wide) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        scalar().f16_to_f32(&want, &mut wide);
        kernels.f16_to_f32(&want, &mut got_wide);
        assert!(
            wide.iter()
                .zip(&got_wide)
                .all(|(a, b)| a.to_bits() == b.to_bits())
        );

        let (mut want, mut got) = (vec![bf16::ZERO; x.len()], vec![bf16::ZERO; x.len()]);
        scalar().f32_to_bf16(&x, &mut want);
        kernels.f32_to_bf16(&x, &mut got);
        assert!(
            want.iter()
                .zip(&got)
                .all(|(a, b)| a.to_bits() == b.to_bits())
        );
        kernels.bf16_to_f32(&want, &mut got_wide);
        scalar().bf16_to_f32(&want, &mut wide);
        assert!(
            wide.iter()
                .zip(&got_wide)
                .all(|(a, b)| a.to_bits() == b.to_bits())
        );
    }
}

#[test]
fn stored_kv_rows_match_reference_bytes() {
    let x = Random::new(13).floats(96);
    for ty in KvType::ALL {
        let n = ty.row_bytes(x.len()).unwrap();
        let mut want = vec![0; n];
        scalar().store_kv(ty, &x, &mut want);
        for kernels in simd_kernels() {
            let mut got = vec![0; n];
            kernels.store_kv(ty, &x, &mut got);
            assert_eq!(got, want, "{ty:?} on {}", kernels.isa());
        }
    }
}

#[test]
fn exp_sum_gives_the_same_bits_on_every_isa() {
    let mut random = Random::new(16);
    for n in LENGTHS.into_iter().chain([1000]) {
        let mut logits: Vec<f32> = random.floats(n).iter().map(|x| 40.0 * x).collect();
        logits[n / 2] = f32::NEG_INFINITY;
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut want = vec![0.0; n];
        let total = scalar().exp_sum(&logits, max, &mut want);
        for kernels in simd_kernels() {
            let mut got = vec![1.0; n];
            let sums = [kernels.exp_sum(&logits, max, &mut got), kernels.sum(&want)];
            assert_eq!((got, sums), (want.clone(), [total; 2]), "{}", kernels.isa());
        }
    }
}

#[test]
fn argmax_returns_the_first_largest() {
    let mut random = Random::new(15);
    for n in LENGTHS {
        let mut x = random.floats(n);
        for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
            for at in [0, n / 2, n - 1] {
                let saved = std::mem::replace(&mut x[at], 2.0);
                assert_eq!(kernels.argmax(&x), at);
                if at > 0 {
                    let first = std::mem::replace(&mut x[0], f32::NAN);
                    assert_eq!(kernels.argmax(&x), at);
                    x[0] = first;
                }
                x[at] = saved;
            }
            assert_eq!(kernels.argmax(&[f32::NEG_INFINITY; 20]), 0);
            assert_eq!(kernels.argmax(&[]), 0);
        }
    }
}
