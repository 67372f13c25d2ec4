//! Throughput of the matrix product per type and instruction set: GB/s of weights for one token, GMAC/s for
//! more.
//!
//! `cargo bench -p oxidize-kernels --bench matmul -- 'Q4_K/avx512'` runs a part. `limits/read` and
//! `limits/multiply` measure the limits of the machine for comparison: a sum over memory, and an f32 dot
//! product of vectors in the L1 cache.

#[path = "../tests/random/mod.rs"]
#[allow(dead_code, reason = "only the tests use some of it")]
mod random;

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use oxidize_kernels::quant::TensorType::{self, *};
use oxidize_kernels::{
    ActivationQuant, Activations, Epilogue, Isa, Kernels, QuantizedRows, Scratch, TileMut,
    WeightRows,
};
use random::Random;

const TYPES: [TensorType; 16] = [
    Q4_K, Q6_K, Q8_0, Q4_0, F16, Q4_1, Q5_0, F32, BF16, Q5_K, IQ2_XXS, Q2_K, Q3_K, Q5_1, IQ4_NL,
    IQ4_XS,
];

/// Elements per row: the width of a 1B model.
const K: usize = 2048;

fn matmul(criterion: &mut Criterion) {
    let mut random = Random::new(1);
    for ty in TYPES {
        for kernels in Isa::ALL.into_iter().rev().filter_map(Kernels::for_isa) {
            for m in [1, 2, 4, 8, 16, 512] {
                let row_bytes = ty.bytes_for(K as u64).unwrap() as usize;
                // One token measures memory bandwidth with weights larger than any cache, more tokens
                // arithmetic.
                let rows = if m == 1 { (64 << 20) / row_bytes } else { 256 };
                let data = random.weights(ty, rows * K);
                let weight = WeightRows::new(ty, K, &data).unwrap();
                let input = random.floats(m * K);
                let mut quantized = QuantizedRows::new();
                let acts = match kernels.activation_format([ty], m, ActivationQuant::Block32) {
                    Some(precision) => {
                        quantized.resize(precision, m, K);
                        kernels.quantize_activations(&input, quantized.rows_mut());
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
    let data = vec![1u64; (256 << 20) / 8];
    group
        .sample_size(10)
        .throughput(Throughput::Bytes(256 << 20));
    group.bench_function("read", |bencher| {
        bencher.iter(|| {
            let mut sums = [0u64; 16];
            for chunk in data.as_chunks::<16>().0 {
                sums.iter_mut()
                    .zip(chunk)
                    .for_each(|(sum, x)| *sum = sum.wrapping_add(*x));
            }
            black_box(sums)
        });
    });
    // Dot products of vectors in the L1 cache.
    let (x, y) = (vec![1.0f32; 2048], vec![2.0f32; 2048]);
    group.throughput(Throughput::Elements(2048));
    let kernels = oxidize_kernels::select();
    group.bench_function("multiply", |bencher| {
        bencher.iter(|| kernels.dot(black_box(&x), black_box(&y)));
    });
}

criterion_group!(benches, limits, matmul);
criterion_main!(benches);
