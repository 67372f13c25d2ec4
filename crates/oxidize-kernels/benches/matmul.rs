//! The matrix product: GB/s of weights for one token, GMAC/s for more, per type and instruction set.
//!
//! `cargo bench -p oxidize-kernels --bench matmul -- 'Q4_K/avx512'` runs some of it. Beside them
//! stand the machine's limits: `limits/read` is a plain sum over memory, `limits/multiply` an f32 dot
//! product of what stays in the first cache.

#[path = "../tests/random/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod random;

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use oxidize_kernels::quant::TensorType::{self, *};
use oxidize_kernels::{
    ActivationRounding, Activations, Epilogue, Isa, Kernels, QuantizedRows, Scratch, TileMut,
    WeightRows,
};
use random::Random;

const TYPES: [TensorType; 16] = [
    Q4_K, Q6_K, Q8_0, Q4_0, F16, Q4_1, Q5_0, F32, BF16, Q5_K, IQ2_XXS, Q2_K, Q3_K, Q5_1, IQ4_NL,
    IQ4_XS,
];

/// Elements of a row: the width of a 1B model.
const K: usize = 2048;

fn matmul(criterion: &mut Criterion) {
    let mut random = Random::new(1);
    for ty in TYPES {
        for kernels in Isa::ALL.into_iter().rev().filter_map(Kernels::for_isa) {
            for m in [1, 2, 4, 8, 16, 512] {
                let row_bytes = ty.bytes_for(K as u64).unwrap() as usize;
                // One token reads more than any cache holds; more tokens are about arithmetic.
                let rows = if m == 1 { (64 << 20) / row_bytes } else { 256 };
                let data = random.weights(ty, rows * K);
                let weight = WeightRows::new(ty, K, &data).unwrap();
                let input = random.floats(m * K);
                let mut quantized = QuantizedRows::new();
                let acts = match kernels.precision([ty], m, ActivationRounding::Fine) {
                    Some(precision) => {
                        quantized.resize(precision, m, K);
                        kernels.quantize_rows(&input, quantized.rows_mut());
                        Activations::new(&input, &quantized)
                    }
                    None => Activations::floats(&input, K),
                };
                let mut out = vec![0.0; m * rows];
                let mut scratch = Scratch::new();
                let mut group = criterion.benchmark_group(format!("{ty}/{}", kernels.isa()));
                group.sample_size(10).throughput(if m == 1 {
                    Throughput::Bytes(data.len() as u64)
                } else {
                    Throughput::Elements((m * rows * K) as u64)
                });
                group.bench_function(format!("m={m}"), |bencher| {
                    bencher.iter(|| {
                        let tile = TileMut::new(&mut out, rows);
                        kernels.matmul(weight, &acts, Epilogue::STORE, tile, &mut scratch);
                    });
                });
            }
        }
    }
}

fn limits(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("limits");
    let words = vec![1u64; (256 << 20) / 8];
    group
        .sample_size(10)
        .throughput(Throughput::Bytes(256 << 20));
    group.bench_function("read", |bencher| {
        bencher.iter(|| {
            let mut sums = [0u64; 16];
            for chunk in words.as_chunks::<16>().0 {
                sums.iter_mut()
                    .zip(chunk)
                    .for_each(|(sum, x)| *sum = sum.wrapping_add(*x));
            }
            black_box(sums)
        });
    });
    // Long dot products of what stays in the first cache.
    let (x, y) = (vec![1.0f32; 2048], vec![2.0f32; 2048]);
    group.throughput(Throughput::Elements(2048));
    let kernels = oxidize_kernels::select();
    group.bench_function("multiply", |bencher| {
        bencher.iter(|| kernels.dot(black_box(&x), black_box(&y)));
    });
}

criterion_group!(benches, limits, matmul);
criterion_main!(benches);
