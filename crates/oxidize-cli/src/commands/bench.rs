//! `oxidize bench`: tokens per second of prompt processing (pp) and text generation (tg).

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};
use oxidize_core::backend::cpu::{Cpu, default_threads};
use oxidize_core::engine::EngineError;
use oxidize_core::graph::OutputKind;
use oxidize_core::model::Model;
use oxidize_quantize::evaluate::Evaluator;
use serde::Serialize;

use crate::args::{REPACK_ALIAS, repack_default, threads};
use crate::bandwidth::{self, Bandwidth};
use crate::console::outln;
use crate::load_quant::LoadQuantArgs;
use crate::model_args::{AdapterArgs, ModelArgs};
use crate::model_path::find_model;

/// Measure the speed of prompt processing and generation
#[derive(Args)]
pub(crate) struct Bench {
    /// Model to measure (repeatable)
    #[arg(short = 'm', long, value_name = "MODEL", env = "OXIDIZE_MODEL")]
    model: Vec<PathBuf>,
    /// Number of prompt tokens; 0 skips the prompt test
    #[arg(
        short = 'p',
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "512"
    )]
    n_prompt: Vec<usize>,
    /// Number of generated tokens; 0 skips the generation test
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "128"
    )]
    n_gen: Vec<usize>,
    /// Number of tokens in the context before each test
    #[arg(
        short = 'd',
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "0"
    )]
    n_depth: Vec<usize>,
    /// Number of parallel sequences in the generation test
    #[arg(
        long,
        visible_alias = "npl",
        value_name = "N",
        value_delimiter = ',',
        default_value = "1"
    )]
    parallel: Vec<usize>,
    /// Number of threads [default: all cores]
    #[arg(short = 't', long, value_name = "N", value_delimiter = ',', value_parser = threads)]
    threads: Vec<usize>,
    /// Number of repetitions of each test
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5)]
    repetitions: usize,
    /// Maximum number of tokens per forward pass
    #[arg(short = 'b', long, visible_aliases = ["ubatch-size", "ub"], value_name = "N", default_value_t = 512)]
    batch_size: usize,
    /// Type of keys in the KV cache: f32, f16, q8_0 or q4_0
    #[arg(long = "cache-type-k", visible_alias = "ctk", value_name = "TYPE", default_value = "f16", value_parser = crate::model_args::kv_type)]
    cache_type_k: oxidize_core::backend::KvType,
    /// Type of values in the KV cache: f32, f16, q8_0 or q4_0
    #[arg(long = "cache-type-v", visible_alias = "ctv", value_name = "TYPE", default_value = "f16", value_parser = crate::model_args::kv_type)]
    cache_type_v: oxidize_core::backend::KvType,
    /// Memory for repacked IQ1, IQ2 and IQ3 weights: MiB, `all` or `off`
    #[arg(
        long,
        alias = REPACK_ALIAS,
        value_name = "MIB|all|off",
        default_value = repack_default(),
        env = "OXIDIZE_REPACK"
    )]
    repack: oxidize_core::backend::RepackLimit,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    load_quant: LoadQuantArgs,
    /// Output format
    #[arg(short = 'o', long, value_enum, default_value_t = Output::Md)]
    output: Output,
    /// Print JSON, short for --output json
    #[arg(long)]
    json: bool,
    /// Measure the memory read bandwidth instead of a model
    #[arg(long, conflicts_with = "model")]
    bandwidth: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Md,
    Csv,
    Json,
    Jsonl,
}

/// Result of one test.
#[derive(Serialize)]
struct Measurement {
    model: String,
    size: u64,
    threads: usize,
    isa: String,
    test: String,
    n_prompt: usize,
    n_gen: usize,
    n_depth: usize,
    n_parallel: usize,
    tokens_per_second: f64,
    stddev: f64,
    samples: Vec<f64>,
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        anyhow::ensure!(self.repetitions > 0, "--repetitions must be at least 1");
        let positive = self.parallel.iter().all(|&n| n > 0);
        anyhow::ensure!(positive, "--parallel must be at least 1");
        if self.bandwidth {
            return self.run_bandwidth();
        }
        let models: Vec<PathBuf> = if self.model.is_empty() {
            vec![find_model(None)?]
        } else {
            self.model
                .iter()
                .map(|model| find_model(Some(model.clone())))
                .collect::<Result<_, _>>()?
        };
        let output = if self.json { Output::Json } else { self.output };
        let threads = self.threads();
        let mut printer = Printer {
            output,
            lines: 0,
            all: Vec::new(),
        };
        for path in &models {
            for &threads in &threads {
                let args = self.model_args(threads);
                let model = args.load(path)?;
                let generates = model.plan().output == OutputKind::Logits;
                self.check(&model, generates)?;
                for &depth in &self.n_depth {
                    for &n in self.n_prompt.iter().filter(|&&n| n > 0) {
                        let test = Test::prompt(n, depth);
                        printer.print(self.measure((path, &model), &args, threads, test)?)?;
                    }
                    for &n in self.n_gen.iter().filter(|&&n| n > 0 && generates) {
                        for &n_parallel in &self.parallel {
                            let test = Test::generation(n, depth, n_parallel);
                            printer.print(self.measure((path, &model), &args, threads, test)?)?;
                        }
                    }
                }
            }
        }
        printer.finish()
    }

    /// Checks the tests of a model that generates no text, which processes its whole input in one pass.
    fn check(&self, model: &Model, generates: bool) -> anyhow::Result<()> {
        let name = model.arch().name;
        if !generates && self.n_prompt.iter().all(|&n| n == 0) {
            return Err(EngineError::NoText(name).into());
        }
        let with_depth = !generates && self.n_depth.iter().any(|&n| n > 0);
        anyhow::ensure!(
            !with_depth,
            "{name} does not generate text: --n-depth must be 0"
        );
        Ok(())
    }

    fn threads(&self) -> Vec<usize> {
        if self.threads.is_empty() {
            vec![default_threads()]
        } else {
            self.threads.clone()
        }
    }

    fn run_bandwidth(&self) -> anyhow::Result<()> {
        let measured = self.threads().into_iter().map(bandwidth::measure);
        if self.json || self.output == Output::Json {
            let measured: Vec<Bandwidth> = measured.collect();
            outln!("{}", serde_json::to_string_pretty(&measured)?)?;
        } else {
            for Bandwidth {
                threads,
                gigabytes_per_second,
            } in measured
            {
                outln!("{threads} threads read {gigabytes_per_second:.1} GB/s")?;
            }
        }
        Ok(())
    }

    fn model_args(&self, threads: usize) -> ModelArgs {
        ModelArgs {
            ctx_size: None,
            threads: Some(threads),
            batch_size: self.batch_size,
            cache_type_k: self.cache_type_k,
            cache_type_v: self.cache_type_v,
            adapters: self.adapters.clone(),
            load_quant: self.load_quant.clone(),
            no_mmap: false,
            no_huge_pages: false,
            repack: self.repack,
            no_memory_check: false,
        }
    }

    fn measure(
        &self,
        (path, model): (&Path, &Model),
        args: &ModelArgs,
        threads: usize,
        test: Test,
    ) -> anyhow::Result<Measurement> {
        let Test {
            n_prompt,
            n_gen,
            n_depth,
            n_parallel,
        } = test;
        let n = n_prompt + n_gen;
        let (settings, backend) = (args.evaluation(), Cpu::default());
        let n_ctx = n_depth + n;
        let mut evaluator = Evaluator::for_bench(model, &backend, &settings, n_ctx, n_parallel)?;
        // Different tokens, so that caches do not improve the result.
        let token = |i: usize| (i * 7919 % model.n_vocab()) as u32;
        let tokens: Vec<u32> = (0..n_depth + n).map(token).collect();
        let mut samples = Vec::with_capacity(self.repetitions);
        for repetition in 0..=self.repetitions {
            if repetition == 0 {
                evaluator.fill(&tokens[..n_depth])?;
            }
            let start = Instant::now();
            if n_prompt > 0 {
                evaluator.prompt(&tokens[n_depth..], n_depth)?;
            } else {
                // The first repetition is a warm-up.
                let n = if repetition == 0 { 1 } else { n_gen };
                for i in n_depth..n_depth + n {
                    let together: Vec<u32> = (i..i + n_parallel).map(token).collect();
                    evaluator.run_together(&together, i)?;
                }
            }
            if repetition > 0 {
                samples.push((n * n_parallel) as f64 / start.elapsed().as_secs_f64());
            }
        }
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        let variance = samples.iter().map(|s| (s - mean).powi(2)).sum::<f64>();
        let stddev = (variance / (samples.len() as f64 - 1.0).max(1.0)).sqrt();
        let name = path.file_name().unwrap_or(path.as_os_str());
        Ok(Measurement {
            model: name.to_string_lossy().into_owned(),
            size: model.weights().size(),
            threads,
            isa: oxidize_core::backend::cpu::isa_name().to_owned(),
            test: test.name(),
            n_prompt,
            n_gen,
            n_depth,
            n_parallel,
            tokens_per_second: mean,
            stddev,
            samples,
        })
    }
}

/// Parameters of a test.
#[derive(Clone, Copy)]
struct Test {
    n_prompt: usize,
    n_gen: usize,
    n_depth: usize,
    n_parallel: usize,
}

impl Test {
    fn prompt(n_prompt: usize, n_depth: usize) -> Test {
        Test {
            n_prompt,
            n_gen: 0,
            n_depth,
            n_parallel: 1,
        }
    }

    fn generation(n_gen: usize, n_depth: usize, n_parallel: usize) -> Test {
        Test {
            n_prompt: 0,
            n_gen,
            n_depth,
            n_parallel,
        }
    }

    /// Name of the test, such as `pp512`, `tg128 × 16` or `tg128 @ d4096`.
    fn name(&self) -> String {
        let mut name = match self.n_prompt {
            0 => format!("tg{}", self.n_gen),
            n => format!("pp{n}"),
        };
        if self.n_parallel > 1 {
            name += &format!(" × {}", self.n_parallel);
        }
        if self.n_depth > 0 {
            name += &format!(" @ d{}", self.n_depth);
        }
        name
    }
}

/// Printer of results.
struct Printer {
    output: Output,
    lines: usize,
    all: Vec<Measurement>,
}

impl Printer {
    fn print(&mut self, m: Measurement) -> anyhow::Result<()> {
        let first = self.lines == 0;
        self.lines += 1;
        match self.output {
            Output::Md => {
                if first {
                    outln!(
                        "| {:<40} | {:>9} | {:>7} | {:>7} | {:>14} | {:>17} |",
                        "model",
                        "size",
                        "threads",
                        "isa",
                        "test",
                        "t/s"
                    )?;
                    outln!(
                        "| {:-<40} | {:->8}: | {:->6}: | {:->6}: | {:->13}: | {:->16}: |",
                        "",
                        "",
                        "",
                        "",
                        "",
                        ""
                    )?;
                }
                let size = format!("{:.0} MiB", m.size as f64 / (1 << 20) as f64);
                let speed = format!("{:.2} ± {:.2}", m.tokens_per_second, m.stddev);
                outln!(
                    "| {:<40} | {size:>9} | {:>7} | {:>7} | {:>14} | {speed:>17} |",
                    m.model,
                    m.threads,
                    m.isa,
                    m.test
                )?;
            }
            Output::Csv => {
                if first {
                    outln!(
                        "model,size,threads,isa,test,n_prompt,n_gen,n_depth,n_parallel,tokens_per_second,stddev"
                    )?;
                }
                outln!(
                    "\"{}\",{},{},{},{},{},{},{},{},{:.4},{:.4}",
                    m.model.replace('"', "\"\""),
                    m.size,
                    m.threads,
                    m.isa,
                    m.test,
                    m.n_prompt,
                    m.n_gen,
                    m.n_depth,
                    m.n_parallel,
                    m.tokens_per_second,
                    m.stddev
                )?;
            }
            Output::Jsonl => outln!("{}", serde_json::to_string(&m)?)?,
            Output::Json => self.all.push(m),
        }
        Ok(())
    }

    fn finish(self) -> anyhow::Result<()> {
        if self.output == Output::Json {
            outln!("{}", serde_json::to_string_pretty(&self.all)?)?;
        }
        Ok(())
    }
}
