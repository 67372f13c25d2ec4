//! The matrix product of every type, on every instruction set of this machine, against the reference implementation.

#[allow(dead_code, reason = "each test uses some of it")]
mod random;

use oxidize_kernels::quant::TensorType;
use oxidize_kernels::{
    ActivationFormat, Activations, Epilogue, Isa, Kernels, QuantizedRows, Scratch, TileMut,
    WeightRows,
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

fn simd_kernels() -> impl Iterator<Item = &'static Kernels> {
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
        format: Option<ActivationFormat>,
    ) -> Vec<f32> {
        self.run_as(kernels, ty, k, format, false)
    }

    fn run_as(
        &self,
        kernels: &Kernels,
        ty: TensorType,
        k: usize,
        format: Option<ActivationFormat>,
        batch_invariant: bool,
    ) -> Vec<f32> {
        let weight = WeightRows::new(ty, k, &self.weight).unwrap();
        let mut quantized = QuantizedRows::new();
        let acts = match format {
            Some(format) => {
                quantized.resize(format, self.input.len() / k, k);
                kernels.quantize_activations(&self.input, quantized.rows_mut());
                Activations::new(&self.input, &quantized)
            }
            None => Activations::floats(&self.input, k),
        };
        let acts = acts.batch_invariant(batch_invariant);
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
fn matmul_matches_reference() {
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
                for format in [
                    None,
                    Some(ActivationFormat::I8Block32),
                    Some(ActivationFormat::I8Block256),
                    Some(ActivationFormat::I16Block64),
                ] {
                    let is_bytes = matches!(
                        format,
                        Some(ActivationFormat::I8Block32 | ActivationFormat::I8Block256)
                    );
                    if is_bytes && k % 32 != 0 {
                        continue;
                    }
                    let want = case.run(scalar, ty, k, format);
                    for kernels in simd_kernels() {
                        let got = case.run(kernels, ty, k, format);
                        let error = nmse(&got, &want);
                        let isa = kernels.isa();
                        let bound = match (ty, format) {
                            // Types without an integer kernel use float activations, which are more
                            // accurate than the 8-bit activations of the reference.
                            (TensorType::Q8_1 | TensorType::Q8_K, _) if is_bytes => 1e-3,
                            // The reference does not quantize.
                            (
                                TensorType::F16 | TensorType::BF16,
                                Some(ActivationFormat::I16Block64),
                            ) => 1e-7,
                            _ => 1e-9,
                        };
                        assert!(
                            error < bound,
                            "{ty} on {isa}: {rows} rows of {k}, {m} tokens, {format:?}: {error:e}"
                        );
                    }
                }
            }
        }
    }
}

/// The tiles of NEON differ only in the order of integer additions, which are exact.
#[test]
fn neon_variants_give_the_same_bits() {
    let mut random = Random::new(6);
    let sets = [Isa::Neon, Isa::NeonDotprod, Isa::NeonI8mm];
    let kernels: Vec<_> = sets.into_iter().filter_map(Kernels::for_isa).collect();
    for ty in types().filter(|ty| ty.is_quantized()) {
        for m in [4, 5, 6, 7, 12] {
            let case = Case::new(&mut random, ty, 21, 768, m);
            let run =
                |kernels: &Kernels| case.run(kernels, ty, 768, Some(ActivationFormat::I8Block32));
            for pair in kernels.windows(2) {
                let (a, b) = (pair[0].isa(), pair[1].isa());
                assert_eq!(run(pair[0]), run(pair[1]), "{ty}, {m} tokens: {a}, {b}");
            }
        }
    }
}

/// Speculative decoding relies on this: a token in a batch has the same products as alone.
#[test]
fn batch_invariant_products_match_single_tokens() {
    let mut random = Random::new(4);
    for ty in types() {
        let (rows, k) = (37, if ty.block_len() == 1 { 333 } else { 768 });
        for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
            for m in [2, 3, 4, 5, 8, 13] {
                let case = Case::new(&mut random, ty, rows, k, m);
                for format in [None, Some(ActivationFormat::I8Block32)] {
                    if format.is_some() && k % 32 != 0 {
                        continue;
                    }
                    let batched = case.run_as(kernels, ty, k, format, true);
                    for token in 0..m {
                        let alone = Case {
                            weight: case.weight.clone(),
                            input: case.input[token * k..(token + 1) * k].to_vec(),
                            bias: case.bias.clone(),
                            before: case.before[token * rows..(token + 1) * rows].to_vec(),
                        };
                        assert_eq!(
                            batched[token * rows..(token + 1) * rows],
                            alone.run(kernels, ty, k, format),
                            "{ty} on {}: token {token} of {m}, {format:?}",
                            kernels.isa()
                        );
                    }
                }
            }
        }
    }
}

/// Every instruction set quantizes to the same bytes, so that the largest of those that share a scale is ±127.
#[test]
fn quantized_activations_match_on_every_isa() {
    let mut random = Random::new(8);
    for k in [32, 96, 256, 320, 768] {
        let input = random.floats(3 * k);
        for (format, sharing) in [
            (ActivationFormat::I8Block32, 32),
            (ActivationFormat::I8Block256, 256),
            (ActivationFormat::I8PerToken, k),
        ] {
            for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
                let mut rows = QuantizedRows::new();
                rows.resize(format, 3, k);
                kernels.quantize_activations(&input, rows.rows_mut());
                for (row, input) in input.chunks(k).enumerate() {
                    let groups = rows.quants(row).chunks(32).zip(rows.scales(row));
                    for (group, (quants, &scale)) in groups.enumerate() {
                        let first = group * 32 / sharing * sharing;
                        let group_input = &input[first..k.min(first + sharing)];
                        let max = group_input.iter().fold(0.0f32, |max, x| max.max(x.abs()));
                        assert_eq!(scale, max / 127.0, "{format:?}, {k}, {}", kernels.isa());
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

/// Bounds the error of 8-bit activations: a step of max/127 is off by up to a half, uniformly, for inputs that are uniform
/// in ±max.
#[test]
fn i8_activation_error_is_bounded() {
    let mut random = Random::new(2);
    for ty in types().filter(|ty| ty.is_quantized()) {
        let case = Case::new(&mut random, ty, 48, 512, 4);
        for isa in Isa::ALL {
            let Some(kernels) = Kernels::for_isa(isa) else {
                continue;
            };
            let exact = case.run(kernels, ty, 512, None);
            let error = nmse(
                &case.run(kernels, ty, 512, Some(ActivationFormat::I8Block32)),
                &exact,
            );
            assert!(error < 1e-4, "{ty} on {isa}: {error:e}");
        }
    }
}

/// In 16-bit integers a product is off by less than 1/5000, about as much as with activations in half precision.
/// Infinities and NaN make all products of their row or token not finite.
#[test]
fn i16_error_is_bounded() {
    let mut random = Random::new(4);
    for ty in [TensorType::F16, TensorType::BF16] {
        let whole = Case::new(&mut random, ty, 48, 2000, 9);
        for kernels in simd_kernels() {
            let mut case = whole.clone();
            let exact = case.run(kernels, ty, 2000, None);
            let error = nmse(
                &case.run(kernels, ty, 2000, Some(ActivationFormat::I16Block64)),
                &exact,
            );
            assert!(error < 4e-8, "{ty} on {}: {error:e}", kernels.isa());

            // An element of the weight's fourth row, and one of the third token.
            case.weight[2 * (3 * 2000 + 77)..][..2].copy_from_slice(&[0xff; 2]);
            case.input[2 * 2000 + 1999] = f32::INFINITY;
            let out = case.run(kernels, ty, 2000, Some(ActivationFormat::I16Block64));
            for (i, x) in out.iter().enumerate() {
                let affected = i % 48 == 3 || i / 48 == 2;
                assert_eq!(x.is_finite(), !affected, "{ty} on {}", kernels.isa());
            }
        }
    }
}

#[test]
fn no_tokens_give_an_empty_product() {
    for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
        for (ty, format) in [
            (TensorType::Q4_K, Some(ActivationFormat::I8Block32)),
            (TensorType::F16, Some(ActivationFormat::I16Block64)),
            (TensorType::F32, None),
        ] {
            let case = Case::new(&mut Random::new(5), ty, 16, 256, 0);
            assert_eq!(case.run(kernels, ty, 256, format), []);
        }
    }
}

#[test]
fn tile_writes_only_its_columns() {
    let mut random = Random::new(3);
    for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
        for m in [1, 5, 20] {
            let (rows, k) = (10, 256);
            let data = random.weights(TensorType::Q4_K, rows * k);
            let weight = WeightRows::new(TensorType::Q4_K, k, &data).unwrap();
            let input = random.floats(m * k);
            let mut quantized = QuantizedRows::new();
            quantized.resize(ActivationFormat::I8Block32, m, k);
            kernels.quantize_activations(&input, quantized.rows_mut());
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
