//! Runs the matrix product a given number of times, to count its instructions with callgrind.
//!
//! `instructions TYPE TOKENS TIMES` multiplies 64 rows of 2048 weights with TOKENS tokens.
//! `scripts/bench_check.py` compares the counts with those in the repository.

#[path = "../tests/random/mod.rs"]
#[allow(dead_code, reason = "only the tests use some of it")]
mod random;

use std::hint::black_box;
use std::process::ExitCode;

use oxidize_kernels::quant::TensorType;
use oxidize_kernels::{
    ActivationQuant, Activations, Epilogue, QuantizedRows, Scratch, TileMut, WeightRows, select,
};
use random::Random;

const ROWS: usize = 64;
const K: usize = 2048;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize| args.get(i).and_then(|arg| arg.parse::<usize>().ok());
    let ty = args.get(1).and_then(|name| TensorType::from_name(name));
    let (Some(ty), Some(tokens), Some(times)) = (ty, number(2), number(3)) else {
        eprintln!("usage: instructions TYPE TOKENS TIMES");
        return ExitCode::FAILURE;
    };
    let mut random = Random::new(1);
    let data = random.weights(ty, ROWS * K);
    let input = random.floats(tokens * K);
    let Some(weight) = WeightRows::new(ty, K, &data) else {
        eprintln!("{ty} does not support rows of {K} elements");
        return ExitCode::FAILURE;
    };
    let kernels = select();
    let mut quantized = QuantizedRows::new();
    let mut out = vec![0.0; tokens * ROWS];
    let mut scratch = Scratch::new();
    for _ in 0..times {
        let acts = match kernels.activation_format([ty], tokens, ActivationQuant::Block32) {
            Some(precision) => {
                quantized.resize(precision, tokens, K);
                kernels.quantize_activations(&input, quantized.rows_mut());
                Activations::new(&input, &quantized)
            }
            None => Activations::floats(&input, K),
        };
        let tile = TileMut::new(&mut out, ROWS);
        kernels.matmul(weight, &acts, Epilogue::STORE, tile, &mut scratch);
        black_box(&out);
    }
    ExitCode::SUCCESS
}
