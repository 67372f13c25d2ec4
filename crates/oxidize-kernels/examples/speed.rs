//! Prints the time of a matrix product for each instruction set of this machine. Unlike the benches, it also
//! runs in WebAssembly.
//!
//! `speed TYPE TOKENS [ISA]` multiplies rows of 2048 weights with TOKENS tokens. It prints the time per row
//! and token, the best of several runs, for every instruction set or the given one.

#[path = "../tests/random/mod.rs"]
#[allow(dead_code, reason = "only the tests use some of it")]
mod random;

use std::process::ExitCode;
use std::time::Instant;

use oxidize_kernels::quant::TensorType;
use oxidize_kernels::{
    ActivationQuant, Activations, Epilogue, Isa, Kernels, QuantizedRows, Scratch, TileMut,
    WeightRows,
};
use random::Random;

const ROWS: usize = 512;
const K: usize = 2048;
/// Minimum number of dot products per run.
const DOT_PRODUCTS: usize = 400_000;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let ty = args.get(1).and_then(|name| TensorType::from_name(name));
    let tokens = args.get(2).and_then(|arg| arg.parse().ok());
    let (Some(ty), Some(tokens)) = (ty, tokens) else {
        eprintln!("usage: speed TYPE TOKENS [ISA]");
        return ExitCode::FAILURE;
    };
    let mut random = Random::new(1);
    let data = random.weights(ty, ROWS * K);
    let input = random.floats(tokens * K);
    let Some(weight) = WeightRows::new(ty, K, &data) else {
        eprintln!("{ty} does not support rows of {K} elements");
        return ExitCode::FAILURE;
    };
    let wanted = args.get(3);
    let named = |isa: &Isa| wanted.is_none_or(|name| name == isa.name());
    let isas = Isa::ALL.into_iter().filter(named);
    for kernels in isas.filter_map(Kernels::for_isa) {
        let mut quantized = QuantizedRows::new();
        let acts = match kernels.activation_format([ty], tokens, ActivationQuant::Block32) {
            Some(precision) => {
                quantized.resize(precision, tokens, K);
                kernels.quantize_activations(&input, quantized.rows_mut());
                Activations::new(&input, &quantized)
            }
            None => Activations::floats(&input, K),
        };
        let mut out = vec![0.0; tokens * ROWS];
        let mut scratch = Scratch::new();
        let mut run = || {
            let times = DOT_PRODUCTS.div_ceil(tokens * ROWS);
            let start = Instant::now();
            for _ in 0..times {
                let tile = TileMut::new(&mut out, ROWS);
                kernels.matmul(weight, &acts, Epilogue::STORE, tile, &mut scratch);
            }
            start.elapsed().as_nanos() as f64 / (times * tokens * ROWS) as f64
        };
        let best = (0..7).map(|_| run()).fold(f64::INFINITY, f64::min);
        let isa = kernels.isa();
        println!("{ty} on {isa}, {tokens} tokens: {best:.1} ns per row and token");
    }
    ExitCode::SUCCESS
}
