//! Throughput of scalar dequantization for each format, in bytes of `f32` output.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use oxidize_kernels::quant::{self, TensorType};

/// Elements per iteration: the floats fit the L2 cache, so that memory bandwidth is not measured.
const ELEMENTS: usize = 1 << 16;

fn dequantize(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("dequantize");
    group.throughput(Throughput::Bytes(size_of::<[f32; ELEMENTS]>() as u64));
    let source: Vec<f32> = (0..ELEMENTS).map(|i| (i as f32 * 0.7).sin()).collect();
    let mut out = vec![0.0; ELEMENTS];
    for ty in TensorType::all() {
        let mut bytes = vec![0; ELEMENTS / ty.block_len() * ty.block_bytes()];
        if quant::quantize(ty, &source, &mut bytes).is_err() {
            // No quantizer: varying bytes that decode to normal half-precision scales.
            bytes
                .iter_mut()
                .enumerate()
                .for_each(|(i, byte)| *byte = 0x20 + (i * 37 % 48) as u8);
        }
        group.bench_function(ty.name(), |bencher| {
            bencher.iter(|| quant::dequantize(ty, black_box(&bytes), black_box(&mut out)));
        });
    }
    group.finish();
}

criterion_group!(benches, dequantize);
criterion_main!(benches);
