//! `oxidize quantize`: a smaller model of a model.

mod calibrate;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use oxidize_core::file::{Format, ModelFile, OpenOptions};
use oxidize_core::io::PendingFile;
use oxidize_core::mix::{MIXES, Mix};
use oxidize_kernels::quant::TensorType;

use super::progress::Meter;
use super::{at_least_one, byte_size, interrupted, remark_lack, threads};
use crate::compare;
use crate::convert::check_output;
use crate::encode::Workers;
use crate::error::Error;
use crate::evaluate::check_asked;
use crate::html;
use crate::importance::Importance;
use crate::output::{Parts, check_differs, check_replaceable, check_writable};
use crate::plan::{Plan, Wishes, weight_type};
use crate::quantize::{Options, ReportOptions, check, overhead, parts_of, quantize};
use crate::report::Report;
use crate::source::Source;
use crate::target::plan_for_size;
use crate::text::Text;
use crate::wording::count;
use crate::{remark, say};
use calibrate::{can_calibrate, is_coarse};

/// Make a smaller model of a model
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Quantize {
    /// The model to quantise: a GGUF file, or a Hugging Face directory
    input: PathBuf,
    /// The file to write
    output: PathBuf,
    #[arg(value_name = "TYPE", help = type_help(), required_unless_present_any = ["target_size", "target_bpw"])]
    mix: Option<String>,
    /// Threads, where llama-quantize takes them; the same as --threads
    #[arg(value_name = "THREADS", conflicts_with = "threads", value_parser = last_threads)]
    last_threads: Option<usize>,
    /// Chooses the type of each tensor so that all of them take at most this, such as 4GB
    #[arg(long, value_name = "SIZE", value_parser = byte_size, conflicts_with_all = ["mix", "target_bpw"])]
    target_size: Option<u64>,
    /// The same, as average bits of a weight
    #[arg(long, value_name = "BITS", value_parser = bits, conflicts_with = "mix")]
    target_bpw: Option<f64>,
    /// An importance matrix, as `oxidize imatrix` or llama.cpp write it
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Reads a text with the model first, to learn which weights matter; the built-in one where no file is
    /// named. Beside --imatrix, it adds what that does not say
    #[arg(long, value_name = "TEXT", require_equals = true)]
    calibrate: Option<Option<PathBuf>>,
    /// Does not have the model read anything, not even the little that is read where --imatrix does not say how
    /// inputs vary together
    #[arg(long, conflicts_with = "calibrate")]
    no_calibrate: bool,
    /// Most chunks of that text to read, each of 512 tokens
    #[arg(long, value_name = "N", default_value_t = 100, requires = "calibrate", value_parser = at_least_one)]
    calibrate_chunks: usize,
    /// Another type for tensors whose names match, such as `ffn_down=Q6_K`; may be repeated
    #[arg(long, value_name = "REGEX=TYPE")]
    tensor_type: Vec<String>,
    /// The type of the matrix that makes the logits
    #[arg(long, value_name = "TYPE", value_parser = tensor_type)]
    output_tensor_type: Option<TensorType>,
    /// The type of the embeddings
    #[arg(long, value_name = "TYPE", value_parser = tensor_type)]
    token_embedding_type: Option<TensorType>,
    /// Leaves the matrix that makes the logits as it is
    #[arg(long)]
    leave_output_tensor: bool,
    /// The main type for every matrix, without a mix
    #[arg(long, conflicts_with_all = ["target_size", "target_bpw"])]
    pure: bool,
    /// Quantises tensors of a GGUF file that are quantised already, which loses more than doing it from the
    /// original
    #[arg(long)]
    allow_requantize: bool,
    /// As many parts as the input has
    #[arg(long, conflicts_with_all = ["split_max_size", "split_max_tensors"])]
    keep_split: bool,
    /// Parts of at most this size, such as 4GB
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    split_max_size: Option<u64>,
    /// Parts of at most this many tensors
    #[arg(long, value_name = "N", conflicts_with = "split_max_size", value_parser = at_least_one)]
    split_max_tensors: Option<usize>,
    /// Prints the plan and the size, and writes nothing
    #[arg(long)]
    dry_run: bool,
    /// Measures what was lost, prints it, and keeps it in the file's metadata
    #[arg(long)]
    report: bool,
    /// Writes the report as a page with plots
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// A text over which the report compares the result with the source
    #[arg(short = 'f', long = "report-text", value_name = "FILE")]
    text: Option<PathBuf>,
    /// Most chunks of the report's text to read
    #[arg(long, value_name = "N", default_value_t = 20)]
    chunks: usize,
    /// Tokens of such a chunk; 0 is the model's own limit [default: 512, or the model's limit where that is
    /// less]
    #[arg(short = 'c', long, value_name = "N")]
    ctx_size: Option<usize>,
    /// Threads [default: all cores]
    #[arg(short = 't', long, value_name = "N", env = "OXIDIZE_THREADS", value_parser = threads)]
    threads: Option<usize>,
}

fn type_help() -> String {
    let names: Vec<&str> = MIXES.iter().map(|mix| mix.name).collect();
    format!("What to make of it: {}", names.join(", "))
}

fn tensor_type(name: &str) -> Result<TensorType, String> {
    // All of a file's Q8_0 is INT8, or none of it.
    weight_type(name).and_then(|ty| match ty {
        TensorType::INT8 => Err("INT8 is a type of whole files".to_owned()),
        ty => Ok(ty),
    })
}

fn last_threads(text: &str) -> Result<usize, String> {
    threads(text).map_err(|error| match text.parse::<f64>() {
        Ok(_) => error,
        Err(_) => {
            format!("{error} of threads; a text to calibrate on is named as --calibrate={text}")
        }
    })
}

fn bits(text: &str) -> Result<f64, String> {
    let bits = text.parse().ok();
    bits.filter(|bits| *bits > 0.0 && *bits <= 64.0)
        .ok_or_else(|| format!("{text} is not a number of bits between 0 and 64"))
}

impl Quantize {
    /// Does it.
    pub fn run(self) -> anyhow::Result<()> {
        check_asked(self.ctx_size, Some(self.chunks))?;
        let stop = interrupted();
        // Ranges are read, not mapped: pages of a map would count as memory in use.
        let options = OpenOptions {
            mmap: false,
            // The type that is asked for rounds, and once is enough.
            unpack_exactly: true,
            ..OpenOptions::default()
        };
        let file = ModelFile::open(&self.input, &options)?;
        let is_gguf = matches!(file.format(), Format::Gguf { .. });
        anyhow::ensure!(
            is_gguf || !self.keep_split,
            "--keep-split is about the parts of a GGUF file; --split-max-size cuts what is made of a directory"
        );
        let page = self.check_outputs(&file)?;
        let source = Source::new(&file)?;
        for line in source.remarks() {
            remark!("{line}");
        }
        let mut workers = Workers {
            stop: Some(stop),
            ..Workers::default()
        };
        let threads = self.threads.or(self.last_threads);
        workers.threads = threads.unwrap_or(workers.threads).max(1);
        let text = self.text.as_deref().map(Text::load).transpose()?;
        let named = match &self.mix {
            Some(name) => {
                Some(Mix::named(name).ok_or_else(|| Error::UnknownMix { name: name.clone() })?)
            }
            None => None,
        };
        let rounds = named.is_none_or(|mix| mix.base.is_quantized());
        let is_packed = !is_gguf && file.tensors().iter().any(|tensor| file.is_packed(tensor));
        if rounds && is_packed {
            remark!(
                "weights that are quantised already are quantised again, which loses more than doing it from the original"
            );
        }
        let wishes = self.wishes(named, source.tensors())?;
        let job = Job {
            asked: &self,
            file: &file,
            may_be_quantized: source.may_be_quantized(),
            text: text.as_ref(),
            workers,
        };
        let known = self.imatrix.as_deref().map(Importance::load).transpose()?;
        let importance = match self.reading(known.as_ref(), named, is_packed, &file)? {
            None => {
                known.as_ref().into_iter().for_each(remark_lack);
                known
            }
            Some(reading) => {
                // Which types a mix chooses depends on whether importance is known, not on what it is.
                let plan = Plan::new(source.tensors(), &wishes, &source.traits(true));
                let plan = named.map(|mix| (plan, mix));
                job.rehearse(known.as_ref(), plan.clone())?;
                if let (Some((plan, mix)), true) = (plan, self.dry_run) {
                    return print_plan(source.tensors(), &plan, mix.name);
                }
                job.calibrated(known, &reading)?
            }
        };
        let options = job.options(importance.as_ref());
        let traits = source.traits(importance.is_some());
        let meter = Meter::new();
        let fitted = job.tensor_budget(&options)?.map(|bytes| {
            let wanted = (&wishes, &traits);
            let known = importance.as_ref();
            plan_for_size(source.tensors(), bytes, known, wanted, &workers, |at| {
                meter.show(at);
            })
        });
        meter.finish();
        let fitted = fitted.transpose()?;
        // Types that were chosen for a size were measured, without importance too.
        let plan = match fitted {
            Some(plan) => plan,
            None => source.plan(&wishes, importance.as_ref())?,
        };
        let mix = named.unwrap_or_else(|| nearest_mix(&plan, source.tensors()));
        let fallbacks = plan.fallbacks;
        let recipe = source.recipe(plan, &mix, importance.as_ref());
        if self.dry_run {
            check(&recipe, &file, &self.output, &options)?;
            return print_plan(&recipe.tensors, &recipe.plan, mix.name);
        }
        let (meter, start) = (Meter::new(), Instant::now());
        let made = quantize(&file, recipe, &self.output, &options, |at| meter.show(at));
        meter.finish();
        let (report, files) = made?;
        if fallbacks > 0 {
            let tensors = count(fallbacks, "tensor", "tensors");
            remark!(
                "{tensors} with rows that are not whole blocks of their type got the nearest that fits"
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
            remark!("wrote {}", file.display());
        }
        remark!(
            "{}: {:.2} MB, {:.2} bits per weight (from {:.2} MB) in {:.1} s",
            mix.name,
            report.bytes as f64 / 1e6,
            report.bits_per_weight,
            report.source_bytes as f64 / 1e6,
            start.elapsed().as_secs_f64()
        );
        if importance.is_none() && is_coarse(mix.base) && can_calibrate(&file) {
            remark!(
                "--calibrate reads a text first, to learn which weights matter; less is lost then"
            );
        }
        Ok(())
    }

    /// What is asked of the types. A target size has no mix; what is asked for single tensors holds for it, too.
    fn wishes(
        &self,
        named: Option<Mix>,
        tensors: &[crate::tensor::Tensor<'_>],
    ) -> anyhow::Result<Wishes> {
        let mut wishes = Wishes {
            pure: self.pure,
            output: self.output_tensor_type,
            embedding: self.token_embedding_type,
            leave_output: self.leave_output_tensor,
            ..Wishes::new(named.unwrap_or(MIXES[0]))
        };
        for pattern in &self.tensor_type {
            wishes.pattern(pattern)?;
        }
        for pattern in wishes.unmatched(tensors) {
            remark!("--tensor-type {pattern}: no matrix that is quantised has such a name");
        }
        Ok(wishes)
    }

    fn wants_report(&self) -> bool {
        self.report || self.html.is_some() || self.text.is_some()
    }

    /// Refuses to write over anything that is read, and begins the page, if one is wanted: a place where
    /// it cannot be is better known before the work.
    fn check_outputs(&self, file: &ModelFile) -> anyhow::Result<Option<PendingFile>> {
        let mut read: Vec<&Path> = file.files().map(|(path, _)| path).collect();
        read.extend(self.imatrix.as_deref());
        read.extend(self.text.as_deref());
        read.extend(self.calibrate.as_ref().and_then(Option::as_deref));
        check_differs(&self.output, read.iter().copied())?;
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
        check_differs(page, read.into_iter().chain([self.output.as_path()]))?;
        Ok(Some(PendingFile::create(page)?))
    }

    /// How the output is split, which the flags say without contradicting each other.
    fn parts(&self, file: &ModelFile) -> Parts {
        match (self.split_max_size, self.split_max_tensors) {
            (Some(bytes), _) => Parts::MaxBytes(bytes),
            (None, Some(tensors)) => Parts::MaxTensors(tensors),
            (None, None) if self.keep_split => parts_of(file),
            (None, None) => Parts::One,
        }
    }
}

/// What is asked for, and of which model.
struct Job<'a> {
    asked: &'a Quantize,
    file: &'a ModelFile,
    may_be_quantized: bool,
    /// What the report compares over.
    text: Option<&'a Text>,
    workers: Workers<'a>,
}

impl<'a> Job<'a> {
    fn options(&self, importance: Option<&'a Importance>) -> Options<'a> {
        Options {
            importance,
            allow_requantize: self.asked.allow_requantize || self.may_be_quantized,
            parts: self.asked.parts(self.file),
            workers: self.workers,
            report: self.asked.wants_report().then(|| ReportOptions {
                command: command_line(),
                text: self.text,
                compare: self.comparison(),
            }),
        }
    }

    fn comparison(&self) -> compare::Options {
        compare::Options {
            n_ctx: self.asked.ctx_size,
            chunks: Some(self.asked.chunks),
            ..compare::Options::default()
        }
    }

    /// Refuses what will be refused later, before a text is read, which may take long. `known` is what is
    /// known without it.
    fn rehearse(
        &self,
        known: Option<&'a Importance>,
        plan: Option<(Plan, Mix)>,
    ) -> anyhow::Result<()> {
        let options = self.options(known);
        self.tensor_budget(&options)?;
        let source = Source::new(self.file)?;
        let (plan, mix) = plan.unwrap_or_else(|| (source.kept(), MIXES[0]));
        let recipe = source.recipe(plan, &mix, known);
        check(&recipe, self.file, &self.asked.output, &options)?;
        if !self.asked.dry_run {
            check_writable(&self.asked.output)?;
        }
        Ok(())
    }

    /// What tensors may take, where a size is aimed at: for that of a file, what is left beside its head.
    fn tensor_budget(&self, options: &Options<'_>) -> anyhow::Result<Option<u64>> {
        let Quantize {
            target_size,
            target_bpw,
            ..
        } = self.asked;
        if target_size.is_none() && target_bpw.is_none() {
            return Ok(None);
        }
        let source = Source::new(self.file)?;
        if let Some(bits) = target_bpw {
            let tensors = source.tensors().iter();
            let elements: u64 = tensors.map(crate::tensor::Tensor::elements).sum();
            return Ok(Some((bits * elements as f64 / 8.0) as u64));
        }
        let Some(size) = target_size else {
            return Ok(None);
        };
        let plan = source.kept();
        let recipe = source.recipe(plan, &MIXES[0], options.importance);
        let report = options.report.as_ref();
        let command = report.map(|report| report.command.as_str());
        let head = overhead(&recipe, self.file, command)?;
        let left = size.checked_sub(head);
        left.map(Some).with_context(|| {
            format!("--target-size: {size} bytes are too few: the header alone takes {head}")
        })
    }
}

/// The command that runs, as far as it is text.
fn command_line() -> String {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    words.collect::<Vec<String>>().join(" ")
}

/// The mix that most bytes of a plan are like, for the file's own description.
fn nearest_mix(plan: &Plan, tensors: &[crate::tensor::Tensor<'_>]) -> Mix {
    let mut bytes: std::collections::BTreeMap<&str, u64> = std::collections::BTreeMap::new();
    for (tensor, ty) in tensors.iter().zip(&plan.types) {
        *bytes.entry(ty.name()).or_default() += ty.bytes_for(tensor.elements()).unwrap_or(0);
    }
    let most = bytes.iter().max_by_key(|(_, bytes)| **bytes);
    most.and_then(|(name, _)| Mix::named(name))
        .unwrap_or(MIXES[0])
}

/// What would be done.
fn print_plan(tensors: &[crate::tensor::Tensor<'_>], plan: &Plan, mix: &str) -> anyhow::Result<()> {
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
        "{mix}: {:.2} MB, {:.3} bits per weight, {} with rows that are not whole blocks",
        plan.bytes(tensors) as f64 / 1e6,
        plan.bits_per_weight(tensors),
        count(plan.fallbacks, "tensor", "tensors")
    )?;
    Ok(())
}

/// What it cost.
fn print_report(report: &Report) -> std::io::Result<()> {
    for tensor in &report.tensors {
        let error = tensor
            .error
            .map_or_else(String::new, |error| format!("{:.3}%", 100.0 * error));
        say!(
            "{:<40} {:>6} -> {:<7} {:>10.2} MB {:>9}",
            tensor.name,
            tensor.from,
            tensor.to,
            tensor.bytes as f64 / 1e6,
            error
        )?;
    }
    if let Some(result) = &report.comparison {
        say!("{}", describe(result))?;
    }
    Ok(())
}

/// A comparison in a few lines.
pub fn describe(result: &compare::Comparison) -> String {
    format!(
        "KL divergence   mean {:.6} ± {:.6}, median {:.6}, 90% {:.5}, 99% {:.4}, 99.9% {:.4}, most {:.3}\n\
         same top token  {:.2}%\n\
         change of p     {:.3}% (root mean square)\n\
         perplexity      {:.4} -> {:.4} (× {:.4})\n\
         over            {} tokens in {} of {}",
        result.mean_kl,
        result.mean_kl_stderr,
        result.median_kl,
        result.kl_90,
        result.kl_99,
        result.kl_999,
        result.max_kl,
        100.0 * result.top1_agreement,
        100.0 * result.rms_delta_p,
        result.perplexity_a,
        result.perplexity_b,
        result.perplexity_ratio,
        result.tokens,
        count(result.chunks, "chunk", "chunks"),
        result.n_ctx
    )
}

const EXAMPLES: &str = "Examples:
  oxidize quantize qwen3-8b.gguf qwen3-8b-q4.gguf Q4_K_M
  oxidize quantize ./Qwen3-8B qwen3-8b-q4.gguf Q4_K_M --calibrate
  oxidize quantize ./Qwen3-8B qwen3-8b-small.gguf --target-size 4GB --calibrate=my-texts.txt --report -f test.txt";
