//! `oxidize quantize`: quantizes a model.

mod calibrate;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use oxidize_core::file::{Format, ModelFile, OpenOptions, TensorType};
use oxidize_core::io::PendingFile;
use oxidize_core::recipe::{QuantRecipe, RECIPES};
use oxidize_quantize::calibrate::{can_calibrate, is_low_bit};
use oxidize_quantize::compare;
use oxidize_quantize::convert::{check_output, named_recipe};
use oxidize_quantize::evaluate::check_chunk_args;
use oxidize_quantize::html;
use oxidize_quantize::importance::Importance;
use oxidize_quantize::output::{Parts, check_differs, check_replaceable, check_writable};
use oxidize_quantize::plan::{Plan, QuantizeParams, weight_type};
use oxidize_quantize::plural::count;
use oxidize_quantize::quantize::{Options, ReportOptions, check, parts_of, quantize};
use oxidize_quantize::report::Report;
use oxidize_quantize::source::Source;
use oxidize_quantize::target::{TargetSize, plan_for_size};
use oxidize_quantize::tensor::Tensor;
use oxidize_quantize::text::Text;
use oxidize_quantize::workers::Workers;

use crate::args::{at_least_one, byte_size, threads};
use crate::console::{outln, status};
use crate::load_quant::note_missing_sketches;
use crate::model_path::find_model;
use crate::progress::ProgressReporter;
use crate::signals::interrupted;

/// Quantize a model to a GGUF file
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Quantize {
    /// Model to quantize: a GGUF file, a Hugging Face directory, or the name of a model in the cache
    input: PathBuf,
    /// GGUF file to write
    output: PathBuf,
    #[arg(value_name = "TYPE", help = type_help(), required_unless_present_any = ["target_size", "target_bpw"])]
    recipe: Option<String>,
    /// Number of threads as a positional argument, as in llama-quantize
    #[arg(value_name = "THREADS", conflicts_with = "threads", value_parser = positional_threads)]
    positional_threads: Option<usize>,
    /// Number of threads [default: all cores]
    #[arg(short = 't', long, value_name = "N", env = "OXIDIZE_THREADS", value_parser = threads)]
    threads: Option<usize>,
    /// Allow quantizing tensors of a GGUF file that are already quantized, which loses accuracy
    #[arg(long)]
    allow_requantize: bool,
    /// Print the planned types and the size, and write nothing
    #[arg(long)]
    dry_run: bool,

    /// Choose the type of each tensor so that the file is at most this size, such as 4GB
    #[arg(long, value_name = "SIZE", value_parser = byte_size, conflicts_with_all = ["recipe", "target_bpw"], help_heading = "Tensor types")]
    target_size: Option<u64>,
    /// Choose the type of each tensor for at most this many bits per weight on average
    #[arg(long, value_name = "BITS", value_parser = bits, conflicts_with = "recipe", help_heading = "Tensor types")]
    target_bpw: Option<f64>,
    /// Set the type of tensors whose names match, such as `ffn_down=Q6_K` (repeatable)
    #[arg(long, value_name = "REGEX=TYPE", help_heading = "Tensor types")]
    tensor_type: Vec<String>,
    /// Set the type of the output matrix
    #[arg(long, value_name = "TYPE", value_parser = tensor_type, help_heading = "Tensor types")]
    output_tensor_type: Option<TensorType>,
    /// Set the type of the token embeddings
    #[arg(long, value_name = "TYPE", value_parser = tensor_type, help_heading = "Tensor types")]
    token_embedding_type: Option<TensorType>,
    /// Do not quantize the output matrix
    #[arg(long, help_heading = "Tensor types")]
    leave_output_tensor: bool,
    /// Use the base type of TYPE for every matrix
    #[arg(long, conflicts_with_all = ["target_size", "target_bpw"], help_heading = "Tensor types")]
    pure: bool,

    /// Use an importance matrix, written by `oxidize imatrix` or llama.cpp
    #[arg(long, value_name = "FILE", help_heading = "Importance")]
    imatrix: Option<PathBuf>,
    /// Collect an importance matrix from a text before quantizing, by default from the built-in text. With
    /// --imatrix, add only what it does not contain
    #[arg(
        long,
        value_name = "TEXT",
        require_equals = true,
        help_heading = "Importance"
    )]
    calibrate: Option<Option<PathBuf>>,
    /// Maximum number of chunks of 512 tokens to calibrate on
    #[arg(long, value_name = "N", default_value_t = 100, requires = "calibrate", value_parser = at_least_one, help_heading = "Importance")]
    calibrate_chunks: usize,
    /// Do not run the model before quantizing, not even to add second-moment sketches to --imatrix
    #[arg(long, conflicts_with = "calibrate", help_heading = "Importance")]
    no_calibrate: bool,

    /// Split the output into as many parts as the input
    #[arg(long, conflicts_with_all = ["split_max_size", "split_max_tensors"], help_heading = "Split output")]
    keep_split: bool,
    /// Split the output into parts of at most this size, such as 4GB
    #[arg(long, value_name = "SIZE", value_parser = byte_size, help_heading = "Split output")]
    split_max_size: Option<u64>,
    /// Split the output into parts of at most this number of tensors
    #[arg(long, value_name = "N", conflicts_with = "split_max_size", value_parser = at_least_one, help_heading = "Split output")]
    split_max_tensors: Option<usize>,

    /// Measure the quantization error, print a report and store it in the metadata
    #[arg(long, help_heading = "Report")]
    report: bool,
    /// Write the report as an HTML page
    #[arg(long, value_name = "FILE.html", help_heading = "Report")]
    html: Option<PathBuf>,
    /// Compare the result with the source on this text, for the report
    #[arg(
        short = 'f',
        long = "report-text",
        value_name = "FILE",
        help_heading = "Report"
    )]
    text: Option<PathBuf>,
    /// Maximum number of chunks of the report text
    #[arg(long, value_name = "N", default_value_t = 20, help_heading = "Report")]
    chunks: usize,
    /// Tokens per chunk of the report text; 0 is the trained context [default: 512, at most the trained
    /// context]
    #[arg(short = 'c', long, value_name = "N", help_heading = "Report")]
    ctx_size: Option<usize>,
}

fn type_help() -> String {
    let names: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
    format!("Quantization type: {}", names.join(", "))
}

fn tensor_type(name: &str) -> Result<TensorType, String> {
    // INT8 is stored as Q8_0 with a key for the whole file.
    weight_type(name).and_then(|ty| match ty {
        TensorType::INT8 => Err("INT8 applies to whole files only".to_owned()),
        ty => Ok(ty),
    })
}

fn positional_threads(text: &str) -> Result<usize, String> {
    threads(text).map_err(|error| match text.parse::<f64>() {
        Ok(_) => error,
        Err(_) => {
            format!(
                "{text} is not a number of threads; pass a calibration text as --calibrate={text}"
            )
        }
    })
}

fn bits(text: &str) -> Result<f64, String> {
    let bits = text.parse().ok();
    bits.filter(|bits| *bits > 0.0 && *bits <= 64.0)
        .ok_or_else(|| format!("{text} is not a number of bits between 0 and 64"))
}

impl Quantize {
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        self.input = find_model(Some(self.input))?;
        check_chunk_args(self.ctx_size, Some(self.chunks))?;
        let stop = interrupted();
        // Read instead of mapped: mapped pages would count as memory in use.
        let options = OpenOptions {
            mmap: false,
            // Packed weights are unpacked exactly, so that only the requested type rounds them.
            unpack_exactly: true,
            ..OpenOptions::default()
        };
        let file = ModelFile::open(&self.input, &options)?;
        let is_gguf = matches!(file.format(), Format::Gguf { .. });
        anyhow::ensure!(
            is_gguf || !self.keep_split,
            "--keep-split requires a GGUF input; use --split-max-size for a directory"
        );
        let page = self.check_outputs(&file)?;
        let source = Source::new(&file)?;
        for note in source.notes() {
            status!("{note}");
        }
        let mut workers = Workers {
            stop: Some(stop),
            ..Workers::default()
        };
        let threads = self.threads.or(self.positional_threads);
        workers.threads = threads.unwrap_or(workers.threads).max(1);
        let text = self.text.as_deref().map(Text::load).transpose()?;
        let named = self.recipe.as_deref().map(named_recipe).transpose()?;
        let rounds = named.is_none_or(|recipe| recipe.base.is_quantized());
        let is_packed = !is_gguf && file.tensors().iter().any(|tensor| file.is_packed(tensor));
        if rounds && is_packed {
            status!("the weights are already quantized; quantizing them again loses accuracy");
        }
        let params = self.params(named, source.tensors())?;
        let job = Job {
            args: &self,
            file: &file,
            allows_requantize: source.allows_requantize(),
            text: text.as_ref(),
            workers,
        };
        let importance = self.imatrix.as_deref().map(Importance::load).transpose()?;
        let importance = match self.calibration_text(importance.as_ref(), named.as_ref(), &file)? {
            None => {
                importance
                    .as_ref()
                    .into_iter()
                    .for_each(note_missing_sketches);
                importance
            }
            Some(text) => {
                // The types of a recipe depend on whether importance is known, not on its values.
                let plan = Plan::new(source.tensors(), &params, &source.model_info(true));
                let plan = named.map(|recipe| (plan, recipe));
                job.check_early(importance.as_ref(), plan.clone())?;
                if let (Some((plan, recipe)), true) = (plan, self.dry_run) {
                    return print_plan(source.tensors(), &plan, recipe.name);
                }
                job.calibrated(importance, &text)?
            }
        };
        let options = job.options(importance.as_ref());
        let info = source.model_info(importance.is_some());
        let progress = ProgressReporter::new();
        let fitted = job.tensor_bytes(&options)?.map(|bytes| {
            let requested = (&params, &info);
            let known = importance.as_ref();
            plan_for_size(source.tensors(), bytes, known, requested, &workers, |at| {
                progress.show(at);
            })
        });
        progress.finish();
        let fitted = fitted.transpose()?;
        // A plan for a size has measured its types, so low-bit types are allowed without importance.
        let plan = match fitted {
            Some(plan) => plan,
            None => source.plan(&params, importance.as_ref())?,
        };
        let recipe = named.unwrap_or_else(|| plan.nearest_recipe(source.tensors()));
        let fallbacks = plan.fallbacks;
        let output = source.into_job(plan, &recipe, importance.as_ref());
        if self.dry_run {
            check(&output, &file, &self.output, &options)?;
            return print_plan(&output.tensors, &output.plan, recipe.name);
        }
        let (progress, start) = (ProgressReporter::new(), Instant::now());
        let written = quantize(&file, output, &self.output, &options, |at| {
            progress.show(at)
        });
        progress.finish();
        let (report, files) = written?;
        if fallbacks > 0 {
            let tensors = count(fallbacks, "tensor", "tensors");
            status!(
                "{tensors} with a fallback type, since the row length is not a multiple of the block size"
            );
        }
        if let Some(mut page) = page {
            let path = page.path().display().to_string();
            page.out
                .write_all(html::page(&report).as_bytes())
                .context(path)?;
            page.finish()?.publish()?;
        }
        if options.report.is_some() {
            print_report(&report)?;
        }
        for file in &files {
            status!("wrote {}", file.display());
        }
        status!(
            "{}: {:.2} MB, {:.2} bits per weight (from {:.2} MB) in {:.1} s",
            recipe.name,
            report.bytes as f64 / 1e6,
            report.bits_per_weight,
            report.source_bytes as f64 / 1e6,
            start.elapsed().as_secs_f64()
        );
        if importance.is_none() && is_low_bit(recipe.base) && can_calibrate(&file) {
            status!(
                "--calibrate collects an importance matrix first, which lowers the quantization error"
            );
        }
        Ok(())
    }

    /// The parameters of the types. Without a recipe, as with a target size, overrides of single tensors
    /// still apply.
    fn params(
        &self,
        named: Option<QuantRecipe>,
        tensors: &[Tensor<'_>],
    ) -> anyhow::Result<QuantizeParams> {
        let mut params = QuantizeParams {
            pure: self.pure,
            output: self.output_tensor_type,
            embedding: self.token_embedding_type,
            leave_output: self.leave_output_tensor,
            ..QuantizeParams::new(named.unwrap_or(RECIPES[0]))
        };
        for pattern in &self.tensor_type {
            params.pattern(pattern)?;
        }
        for pattern in params.unmatched_patterns(tensors) {
            status!("--tensor-type {pattern}: matches no quantizable tensor");
        }
        Ok(params)
    }

    fn wants_report(&self) -> bool {
        self.report || self.html.is_some() || self.text.is_some()
    }

    /// Returns an error if an output would replace an input. Creates the HTML page, so that a path that
    /// cannot be written fails before the work.
    fn check_outputs(&self, file: &ModelFile) -> anyhow::Result<Option<PendingFile>> {
        let mut inputs: Vec<&Path> = file.files().map(|(path, _)| path).collect();
        inputs.extend(self.imatrix.as_deref());
        inputs.extend(self.text.as_deref());
        inputs.extend(self.calibrate.as_ref().and_then(Option::as_deref));
        check_differs(&self.output, inputs.iter().copied())?;
        let page = self.html.as_deref().filter(|_| !self.dry_run);
        for output in page.into_iter().chain([self.output.as_path()]) {
            if !matches!(file.format(), Format::Gguf { .. }) {
                check_output(output, &self.input)?;
            }
        }
        check_replaceable(&self.output)?;
        let Some(page) = page else {
            return Ok(None);
        };
        check_differs(page, inputs.into_iter().chain([self.output.as_path()]))?;
        Ok(Some(PendingFile::create(page)?))
    }

    fn parts(&self, file: &ModelFile) -> Parts {
        match (self.split_max_size, self.split_max_tensors) {
            (Some(bytes), _) => Parts::MaxBytes(bytes),
            (None, Some(tensors)) => Parts::MaxTensors(tensors),
            (None, None) if self.keep_split => parts_of(file),
            (None, None) => Parts::One,
        }
    }

    fn target(&self) -> Option<TargetSize> {
        let bits = self.target_bpw.map(TargetSize::BitsPerWeight);
        bits.or(self.target_size.map(TargetSize::FileBytes))
    }
}

/// The arguments and the opened inputs.
struct Job<'a> {
    args: &'a Quantize,
    file: &'a ModelFile,
    allows_requantize: bool,
    /// Text of the report.
    text: Option<&'a Text>,
    workers: Workers<'a>,
}

impl<'a> Job<'a> {
    fn options(&self, importance: Option<&'a Importance>) -> Options<'a> {
        Options {
            importance,
            allow_requantize: self.args.allow_requantize || self.allows_requantize,
            parts: self.args.parts(self.file),
            workers: self.workers,
            report: self.args.wants_report().then(|| ReportOptions {
                command: command_line(),
                text: self.text,
                compare: self.comparison(),
            }),
        }
    }

    fn comparison(&self) -> compare::Options {
        compare::Options {
            n_ctx: self.args.ctx_size,
            chunks: Some(self.args.chunks),
            ..compare::Options::default()
        }
    }

    /// Reports errors of the later steps before the calibration, which may take long. `importance` is the
    /// matrix of --imatrix.
    fn check_early(
        &self,
        importance: Option<&'a Importance>,
        plan: Option<(Plan, QuantRecipe)>,
    ) -> anyhow::Result<()> {
        let options = self.options(importance);
        self.tensor_bytes(&options)?;
        let source = Source::new(self.file)?;
        let (plan, recipe) = plan.unwrap_or_else(|| (source.unquantized_plan(), RECIPES[0]));
        let job = source.into_job(plan, &recipe, importance);
        check(&job, self.file, &self.args.output, &options)?;
        if !self.args.dry_run {
            check_writable(&self.args.output)?;
        }
        Ok(())
    }

    /// Bytes available for tensors, if a target size is given.
    fn tensor_bytes(&self, options: &Options<'_>) -> anyhow::Result<Option<u64>> {
        let Some(target) = self.args.target() else {
            return Ok(None);
        };
        let report = options.report.as_ref();
        let command = report.map(|report| report.command.as_str());
        Ok(Some(target.tensor_bytes(
            self.file,
            options.importance,
            command,
        )?))
    }
}

/// The command line of the program, with invalid UTF-8 replaced.
fn command_line() -> String {
    let args = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned());
    args.collect::<Vec<String>>().join(" ")
}

fn print_plan(tensors: &[Tensor<'_>], plan: &Plan, recipe: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for (tensor, ty) in tensors.iter().zip(&plan.types) {
        let bytes = ty.bytes_for(tensor.elements()).unwrap_or(0);
        let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
        writeln!(
            out,
            "{:<40} {:>20} {:>7} -> {:<7} {:>10.2} MB",
            tensor.name,
            shape.join("×"),
            tensor.ty.name(),
            ty.name(),
            bytes as f64 / 1e6
        )?;
    }
    writeln!(
        out,
        "{recipe}: {:.2} MB, {:.3} bits per weight, {} with a fallback type",
        plan.bytes(tensors) as f64 / 1e6,
        plan.bits_per_weight(tensors),
        count(plan.fallbacks, "tensor", "tensors")
    )?;
    Ok(())
}

fn print_report(report: &Report) -> std::io::Result<()> {
    for tensor in &report.tensors {
        let error = tensor
            .error
            .map_or_else(String::new, |error| format!("{:.3}%", 100.0 * error));
        outln!(
            "{:<40} {:>6} -> {:<7} {:>10.2} MB {:>9}",
            tensor.name,
            tensor.from,
            tensor.to,
            tensor.bytes as f64 / 1e6,
            error
        )?;
    }
    if let Some(comparison) = &report.comparison {
        outln!("{comparison}")?;
    }
    Ok(())
}

const EXAMPLES: &str = "Examples:
  oxidize quantize qwen3-8b.gguf qwen3-8b-q4.gguf Q4_K_M
  oxidize quantize ./Qwen3-8B qwen3-8b-q4.gguf Q4_K_M --calibrate
  oxidize quantize ./Qwen3-8B qwen3-8b-small.gguf --target-size 4GB --calibrate=my-texts.txt --report -f test.txt";
