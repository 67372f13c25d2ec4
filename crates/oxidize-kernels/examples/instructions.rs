//! Runs one kernel a given number of times, for counting its instructions under callgrind.
//!
//! `instructions TYPE TOKENS TIMES` multiplies 64 rows of 2048 with so many tokens;
//! `scripts/bench_check.py` compares the counts with those kept in the repository.

#[path = "../tests/random/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod random;

use std::hint::black_box;
use std::process::ExitCode;

use oxidize_kernels::quant::TensorType;
use oxidize_kernels::{
    ActivationRounding, Activations, Epilogue, QuantizedRows, Scratch, TileMut, WeightRows, select,
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
        eprintln!("no rows of {K} in {ty}");
        return ExitCode::FAILURE;
    };
    let kernels = select();
    let mut quantized = QuantizedRows::new();
    let mut out = vec![0.0; tokens * ROWS];
    let mut scratch = Scratch::new();
    for _ in 0..times {
        let acts = match kernels.precision([ty], tokens, ActivationRounding::Fine) {
            Some(precision) => {
                quantized.resize(precision, tokens, K);
                kernels.quantize_rows(&input, quantized.rows_mut());
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
