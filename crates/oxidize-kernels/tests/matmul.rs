//! The matrix product of every type, on every instruction set of this machine, against the
//! reference.

#[allow(dead_code, reason = "each test uses some of it")]
mod random;

use oxidize_kernels::quant::TensorType;
use oxidize_kernels::{
    Activations, Epilogue, Isa, Kernels, Precision, QuantizedRows, Scratch, TileMut, WeightRows,
};
use random::Random;

fn types() -> impl Iterator<Item = TensorType> {
    TensorType::all().filter(|ty| {
        ty.is_quantized()
            || matches!(
                ty,
                TensorType::F32 | TensorType::F16 | TensorType::BF16 | TensorType::F64
            )
    })
}

fn other_isas() -> impl Iterator<Item = &'static Kernels> {
    Isa::ALL.into_iter().skip(1).filter_map(Kernels::for_isa)
}

/// ‖a − b‖² / ‖b‖².
fn nmse(a: &[f32], b: &[f32]) -> f64 {
    let error: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    error
        / b.iter()
            .map(|&b| f64::from(b).powi(2))
            .sum::<f64>()
            .max(1e-30)
}

#[derive(Clone)]
struct Case {
    weight: Vec<u8>,
    input: Vec<f32>,
    bias: Vec<f32>,
    before: Vec<f32>,
}

impl Case {
    fn new(random: &mut Random, ty: TensorType, rows: usize, k: usize, m: usize) -> Self {
        Self {
            weight: random.weights(ty, rows * k),
            input: random.floats(m * k),
            bias: random.floats(rows),
            before: random.floats(m * rows),
        }
    }

    fn run(
        &self,
        kernels: &Kernels,
        ty: TensorType,
        k: usize,
        precision: Option<Precision>,
    ) -> Vec<f32> {
        self.run_as(kernels, ty, k, precision, false)
    }

    fn run_as(
        &self,
        kernels: &Kernels,
        ty: TensorType,
        k: usize,
        precision: Option<Precision>,
        each_alone: bool,
    ) -> Vec<f32> {
        let weight = WeightRows::new(ty, k, &self.weight).unwrap();
        let mut quantized = QuantizedRows::new();
        let acts = match precision {
            Some(precision) => {
                quantized.resize(precision, self.input.len() / k, k);
                kernels.quantize_rows(&self.input, quantized.rows_mut());
                Activations::new(&self.input, &quantized)
            }
            None => Activations::floats(&self.input, k),
        };
        let acts = acts.each_alone(each_alone);
        let mut out = self.before.clone();
        let epilogue = Epilogue {
            bias: Some(&self.bias),
            accumulate: true,
        };
        let tile = TileMut::new(&mut out, weight.rows());
        kernels.matmul(weight, &acts, epilogue, tile, &mut Scratch::new());
        out
    }
}

#[test]
fn every_type_agrees_with_the_reference() {
    let mut random = Random::new(1);
    let scalar = Kernels::for_isa(Isa::Scalar).unwrap();
    for ty in types() {
        let ks: &[usize] = match ty.block_len() {
            1 => &[1, 37, 64, 1100],
            32 => &[32, 96, 256, 640],
            64 => &[64, 256, 320],
            _ => &[256, 768],
        };
        for m in [1, 2, 3, 4, 5, 7, 13, 16, 17, 33] {
            for (rows, &k) in [1, 16, 37, 70].into_iter().zip(ks.iter().cycle()) {
                let case = Case::new(&mut random, ty, rows, k, m);
                for precision in [
                    None,
                    Some(Precision::Bytes),
                    Some(Precision::Coarse),
                    Some(Precision::Words),
                ] {
                    let is_bytes = matches!(precision, Some(Precision::Bytes | Precision::Coarse));
                    if is_bytes && k % 32 != 0 {
                        continue;
                    }
                    let want = case.run(scalar, ty, k, precision);
                    for kernels in other_isas() {
                        let got = case.run(kernels, ty, k, precision);
                        let error = nmse(&got, &want);
                        let isa = kernels.isa();
                        let bound = match (ty, precision) {
                            // Types without an integer kernel use the floats, and so are more exact
                            // than the reference with its 8-bit activations.
                            (TensorType::Q8_1 | TensorType::Q8_K, _) if is_bytes => 1e-3,
                            // The reference does not round.
                            (TensorType::F16 | TensorType::BF16, Some(Precision::Words)) => 1e-7,
                            _ => 1e-9,
                        };
                        assert!(
                            error < bound,
                            "{ty} on {isa}: {rows} rows of {k}, {m} tokens, {precision:?}: {error:e}"
                        );
                    }
                }
            }
        }
    }
}

/// The tiles of NEON differ only in how they add up integers, which is exact.
#[test]
fn tiles_of_the_same_code_give_the_same_bits() {
    let mut random = Random::new(6);
    let sets = [Isa::Neon, Isa::NeonDotprod, Isa::NeonI8mm];
    let kernels: Vec<_> = sets.into_iter().filter_map(Kernels::for_isa).collect();
    for ty in types().filter(|ty| ty.is_quantized()) {
        for m in [4, 5, 6, 7, 12] {
            let case = Case::new(&mut random, ty, 21, 768, m);
            let run = |kernels: &Kernels| case.run(kernels, ty, 768, Some(Precision::Bytes));
            for pair in kernels.windows(2) {
                let (a, b) = (pair[0].isa(), pair[1].isa());
                assert_eq!(run(pair[0]), run(pair[1]), "{ty}, {m} tokens: {a}, {b}");
            }
        }
    }
}

/// What speculative decoding rests on: a token among others has the products that it has alone.
#[test]
fn rows_that_ask_for_it_are_multiplied_as_if_alone() {
    let mut random = Random::new(4);
    for ty in types() {
        let (rows, k) = (37, if ty.block_len() == 1 { 333 } else { 768 });
        for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
            for m in [2, 3, 4, 5, 8, 13] {
                let case = Case::new(&mut random, ty, rows, k, m);
                for precision in [None, Some(Precision::Bytes)] {
                    if precision.is_some() && k % 32 != 0 {
                        continue;
                    }
                    let together = case.run_as(kernels, ty, k, precision, true);
                    for token in 0..m {
                        let alone = Case {
                            weight: case.weight.clone(),
                            input: case.input[token * k..(token + 1) * k].to_vec(),
                            bias: case.bias.clone(),
                            before: case.before[token * rows..(token + 1) * rows].to_vec(),
                        };
                        assert_eq!(
                            together[token * rows..(token + 1) * rows],
                            alone.run(kernels, ty, k, precision),
                            "{ty} on {}: token {token} of {m}, {precision:?}",
                            kernels.isa()
                        );
                    }
                }
            }
        }
    }
}

/// Every instruction set rounds to the same bytes, so that the largest of those that share a scale is ±127.
#[test]
fn rows_are_rounded_alike_however_many_share_a_scale() {
    let mut random = Random::new(8);
    for k in [32, 96, 256, 320, 768] {
        let input = random.floats(3 * k);
        for (precision, sharing) in [
            (Precision::Bytes, 32),
            (Precision::Coarse, 256),
            (Precision::Tokens, k),
        ] {
            for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
                let mut rows = QuantizedRows::new();
                rows.resize(precision, 3, k);
                kernels.quantize_rows(&input, rows.rows_mut());
                for (row, input) in input.chunks(k).enumerate() {
                    let groups = rows.quants(row).chunks(32).zip(rows.scales(row));
                    for (group, (quants, &scale)) in groups.enumerate() {
                        let first = group * 32 / sharing * sharing;
                        let sharers = &input[first..k.min(first + sharing)];
                        let max = sharers.iter().fold(0.0f32, |max, x| max.max(x.abs()));
                        assert_eq!(scale, max / 127.0, "{precision:?}, {k}, {}", kernels.isa());
                        for (q, x) in quants.iter().zip(&input[group * 32..]) {
                            assert_eq!(f32::from(*q), (x * (1.0 / scale)).round_ties_even());
                        }
                        let sum = scale * quants.iter().map(|&q| f32::from(q)).sum::<f32>();
                        assert!((rows.sums(row)[group] - sum).abs() < 1e-4);
                    }
                }
            }
        }
    }
}

/// 8-bit activations cost this much against exact ones: a step of max/127 is uniformly wrong by
/// up to a half, over inputs uniform in ±max.
#[test]
fn integer_activations_stay_within_their_bound() {
    let mut random = Random::new(2);
    for ty in types().filter(|ty| ty.is_quantized()) {
        let case = Case::new(&mut random, ty, 48, 512, 4);
        for isa in Isa::ALL {
            let Some(kernels) = Kernels::for_isa(isa) else {
                continue;
            };
            let exact = case.run(kernels, ty, 512, None);
            let error = nmse(&case.run(kernels, ty, 512, Some(Precision::Bytes)), &exact);
            assert!(error < 1e-4, "{ty} on {isa}: {error:e}");
        }
    }
}

/// Rounded to words, a product is off by less than 1/5000: about what rounding activations to half
/// precision costs. What is not finite stays so.
#[test]
fn words_stay_within_their_bound() {
    let mut random = Random::new(4);
    for ty in [TensorType::F16, TensorType::BF16] {
        let whole = Case::new(&mut random, ty, 48, 2000, 9);
        for kernels in other_isas() {
            let mut case = whole.clone();
            let exact = case.run(kernels, ty, 2000, None);
            let error = nmse(&case.run(kernels, ty, 2000, Some(Precision::Words)), &exact);
            assert!(error < 4e-8, "{ty} on {}: {error:e}", kernels.isa());

            // An element of the weight's fourth row, and one of the third token.
            case.weight[2 * (3 * 2000 + 77)..][..2].copy_from_slice(&[0xff; 2]);
            case.input[2 * 2000 + 1999] = f32::INFINITY;
            let out = case.run(kernels, ty, 2000, Some(Precision::Words));
            for (i, x) in out.iter().enumerate() {
                let spoiled = i % 48 == 3 || i / 48 == 2;
                assert_eq!(x.is_finite(), !spoiled, "{ty} on {}", kernels.isa());
            }
        }
    }
}

#[test]
fn no_tokens_are_no_work() {
    for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
        for (ty, precision) in [
            (TensorType::Q4_K, Some(Precision::Bytes)),
            (TensorType::F16, Some(Precision::Words)),
            (TensorType::F32, None),
        ] {
            let case = Case::new(&mut Random::new(5), ty, 16, 256, 0);
            assert_eq!(case.run(kernels, ty, 256, precision), []);
        }
    }
}

#[test]
fn a_tile_keeps_to_its_columns() {
    let mut random = Random::new(3);
    for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
        for m in [1, 5, 20] {
            let (rows, k) = (10, 256);
            let data = random.weights(TensorType::Q4_K, rows * k);
            let weight = WeightRows::new(TensorType::Q4_K, k, &data).unwrap();
            let input = random.floats(m * k);
            let mut quantized = QuantizedRows::new();
            quantized.resize(Precision::Bytes, m, k);
            kernels.quantize_rows(&input, quantized.rows_mut());
            let acts = Activations::new(&input, &quantized);
            let mut wide = vec![7.0; m * 30];
            let mut tile = TileMut::new(&mut wide, 30);
            let part = tile.part(0..m, 11..11 + rows);
            kernels.matmul(weight, &acts, Epilogue::STORE, part, &mut Scratch::new());
            for row in wide.chunks(30) {
                assert!(row[..11].iter().chain(&row[21..]).all(|&x| x == 7.0));
                assert!(row[11..21].iter().all(|&x| x != 7.0));
            }
        }
    }
}
