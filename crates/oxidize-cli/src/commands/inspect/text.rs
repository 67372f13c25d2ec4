//! Text output: the summary and the lists of tensors and metadata.

use std::fmt::Display;
use std::io::{self, Write};

use oxidize_core::backend::CacheSize;
use oxidize_core::engine::EngineConfig;
use oxidize_core::file::{Format, ModelFile, Summary};
use oxidize_core::gguf::Value;
use oxidize_core::graph::OutputKind;
use oxidize_core::model::Model;
use oxidize_quantize::report::Report;

use crate::style::Styles;

/// Prints the hyperparameters, types, and memory requirements.
pub(super) fn summary(
    model: &ModelFile,
    styles: Styles,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let summary = Summary::of(model);
    let (title, dim) = (styles.title, styles.dim);
    let name = summary.name.clone().unwrap_or_else(|| name_on_disk(model));
    writeln!(out, "{title}{}{title:#}", printable(&name))?;

    let mut fact = |label: &str, value: Option<String>| -> io::Result<()> {
        match value {
            Some(value) => writeln!(out, "  {dim}{label:<15}{dim:#}{}", printable(&value)),
            None => Ok(()),
        }
    };
    let format = match model.format() {
        Format::Gguf { version } => format!("GGUF v{version}"),
        other => other.name().to_owned(),
    };
    let n_files = model.files().len();
    let files = if n_files > 1 {
        format!(" in {n_files} files")
    } else {
        String::new()
    };
    let text = |number: Option<u64>| number.map(|number| number.to_string());
    fact("format", Some(format))?;
    fact("architecture", summary.architecture.clone())?;
    fact("parameters", Some(count(summary.parameters)))?;
    fact("type", summary.file_type.clone())?;
    fact("size", Some(bytes(summary.file_bytes) + &files))?;
    fact(
        "context",
        summary.context_length.map(|n| format!("{n} tokens")),
    )?;
    fact("layers", text(summary.layers))?;
    fact("heads", heads(&summary))?;
    fact("embedding", text(summary.embedding_length))?;
    fact("feed-forward", text(summary.feed_forward_length))?;
    fact(
        "experts",
        summary
            .experts
            .map(|(all, used)| format!("{all}, {used} used per token")),
    )?;
    fact(
        "vocabulary",
        summary.vocabulary.map(|n| format!("{n} tokens")),
    )?;
    fact("tokenizer", summary.tokenizer.clone())?;
    let yes_or_no = if summary.chat_template { "yes" } else { "no" };
    fact("chat template", Some(yes_or_no.to_owned()))?;

    types(&summary, styles, out)?;
    report(model, styles, out)?;
    memory(model, &summary, styles, out)
}

/// Prints the quantization report stored in the file, if any.
fn report(model: &ModelFile, styles: Styles, out: &mut impl Write) -> anyhow::Result<()> {
    let Some(report) = Report::of(model) else {
        return Ok(());
    };
    let (title, dim) = (styles.title, styles.dim);
    writeln!(out, "\n{title}Quality{title:#}")?;
    let mut fact = |label: &str, value: String| {
        writeln!(out, "  {dim}{label:<15}{dim:#}{}", printable(&value))
    };
    fact(
        "source",
        format!("{} ({})", report.source, bytes(report.source_bytes)),
    )?;
    fact("command", report.command.clone())?;
    fact("bits per weight", format!("{:.3}", report.bits_per_weight))?;
    let worst = report
        .tensors
        .iter()
        .filter_map(|tensor| Some((tensor.error?, tensor)))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((error, tensor)) = worst {
        let value = format!("{:.2} % in {} ({})", 100.0 * error, tensor.name, tensor.to);
        fact("largest error", value)?;
    }
    if let Some(result) = &report.comparison {
        let value = format!("{:.6} ± {:.6}", result.mean_kl, result.mean_kl_stderr);
        fact("KL divergence", value)?;
        fact(
            "same top token",
            format!("{:.2} %", 100.0 * result.top1_agreement),
        )?;
        let value = format!("{:.4} -> {:.4}", result.perplexity_a, result.perplexity_b);
        fact("perplexity", value)?;
    }
    Ok(())
}

/// The name of the directory of a safetensors model, or of a GGUF file.
fn name_on_disk(model: &ModelFile) -> String {
    let path = std::path::absolute(model.path()).unwrap_or_else(|_| model.path().to_path_buf());
    let named = match model.format() {
        Format::Gguf { .. } => path.file_stem(),
        _ => path.parent().and_then(|directory| directory.file_name()),
    };
    named
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}

fn heads(summary: &Summary) -> Option<String> {
    let heads = summary.heads?;
    match summary.kv_heads {
        Some(kv_heads) if kv_heads != heads => Some(format!("{heads}, {kv_heads} KV heads")),
        _ => Some(heads.to_string()),
    }
}

fn types(summary: &Summary, styles: Styles, out: &mut impl Write) -> anyhow::Result<()> {
    if summary.types.is_empty() {
        return Ok(());
    }
    let (title, dim) = (styles.title, styles.dim);
    writeln!(out, "\n{title}Tensors{title:#}")?;
    let total = summary.weight_bytes.max(1) as f64;
    for count in &summary.types {
        let percent = count.bytes as f64 / total * 100.0;
        let (ty, n, size) = (count.ty.name(), count.tensors, bytes(count.bytes));
        writeln!(
            out,
            "  {dim}{ty:<10}{dim:#}{n:>6}  {size:>10}  {percent:>5.1} %"
        )?;
    }
    Ok(())
}

fn memory(
    file: &ModelFile,
    summary: &Summary,
    styles: Styles,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let (title, dim) = (styles.title, styles.dim);
    if summary.types.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}Memory{title:#}")?;
    writeln!(
        out,
        "  {dim}{:<24}{dim:#}{:>10}",
        "weights",
        bytes(summary.weight_bytes)
    )?;
    // A file that is not a complete model of a known architecture has weights only.
    let text_model = Model::from_file(file.clone());
    let text_model = text_model.map(|model| (model.plan().output == OutputKind::Logits, model));
    let Ok((true, model)) = text_model else {
        return Ok(());
    };
    for n_tokens in context_lengths(summary.context_length) {
        let config = EngineConfig {
            n_ctx: Some(usize::try_from(n_tokens)?),
            max_sequences: 1,
            ..EngineConfig::default()
        };
        let size = CacheSize::new(model.plan(), &config.session(&model));
        let label = format!("KV cache f16, {n_tokens}");
        writeln!(out, "  {dim}{label:<24}{dim:#}{:>10}", bytes(size.total()))?;
    }
    Ok(())
}

/// Common context lengths up to the trained context.
fn context_lengths(trained: Option<u64>) -> Vec<u64> {
    const COMMON: [u64; 4] = [4096, 16_384, 65_536, 131_072];
    let Some(trained) = trained.filter(|&n| n > 0) else {
        return COMMON[..2].to_vec();
    };
    let mut lengths: Vec<_> = COMMON.into_iter().filter(|&n| n < trained).collect();
    lengths.push(trained);
    lengths
}

/// Prints all tensors, one per line.
pub(super) fn tensors(
    model: &ModelFile,
    styles: Styles,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let dim = styles.dim;
    let tensors = model.tensors();
    let width = |text: &dyn Fn(usize) -> usize| (0..tensors.len()).map(text).max().unwrap_or(0);
    let shape = |i: usize| {
        let dims: Vec<_> = tensors[i].shape.iter().map(u64::to_string).collect();
        dims.join(" × ")
    };
    let names = width(&|i| printable(&tensors[i].name).chars().count()).min(60);
    let shapes = width(&|i| shape(i).chars().count());
    let offsets = width(&|i| tensors[i].offset.to_string().len());
    let several = model.files().len() > 1;
    for (i, tensor) in tensors.iter().enumerate() {
        let name = printable(&tensor.name);
        let (ty, shape, offset) = (tensor.ty.name(), shape(i), tensor.offset);
        let size = bytes(tensor.bytes);
        write!(
            out,
            "{name:<names$}  {ty:<8}  {shape:<shapes$}  {size:>10}  "
        )?;
        write!(out, "{dim}at {offset:>offsets$}")?;
        if several {
            write!(out, " in file {}", tensor.file + 1)?;
        }
        writeln!(out, "{dim:#}")?;
    }
    Ok(())
}

/// Prints all keys, one per line; long values are truncated.
pub(super) fn metadata(
    model: &ModelFile,
    styles: Styles,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let dim = styles.dim;
    let mut lines = Vec::new();
    for (key, value) in model.metadata().iter() {
        let ty = match value.as_array() {
            Some(array) => format!("[{}; {}]", array.element_type().name(), array.len()),
            None => value.value_type().name().to_owned(),
        };
        lines.push((printable(key), ty, shown(&value)));
    }
    for (key, value) in model.annotations() {
        lines.push((printable(key), "string".to_owned(), quoted(value)));
    }
    let config = model.config().and_then(|config| config.as_object());
    for (key, value) in config.into_iter().flatten() {
        lines.push((
            printable(key),
            "config.json".to_owned(),
            cut(&value.to_string()),
        ));
    }
    let keys = lines
        .iter()
        .map(|(key, ..)| key.chars().count())
        .max()
        .unwrap_or(0)
        .min(48);
    let types = lines.iter().map(|(_, ty, _)| ty.len()).max().unwrap_or(0);
    for (key, ty, value) in lines {
        writeln!(out, "{key:<keys$}  {dim}{ty:<types$}{dim:#}  {value}")?;
    }
    Ok(())
}

/// Formats a value on one line.
fn shown(value: &Value<'_>) -> String {
    const ENTRIES: usize = 8;
    match value {
        Value::Str(text) => quoted(text),
        Value::Bytes(bytes) => quoted(&String::from_utf8_lossy(bytes)),
        Value::F32(v) => v.to_string(),
        Value::F64(v) => v.to_string(),
        Value::Bool(v) => v.to_string(),
        Value::U64(v) => v.to_string(),
        Value::Array(array) => {
            let mut entries: Vec<_> = array
                .iter()
                .take(ENTRIES)
                .map(|value| shown(&value))
                .collect();
            if array.len() > ENTRIES {
                entries.push("…".to_owned());
            }
            format!("[{}]", entries.join(", "))
        }
        other => other.as_i64().map(|v| v.to_string()).unwrap_or_default(),
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", cut(text))
}

/// Truncates text to one line and escapes control characters.
fn cut(text: &str) -> String {
    const MAX_CHARS: usize = 160;
    let mut short: String = text.chars().take(MAX_CHARS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    printable(&short)
}

/// Escapes control characters, since text from a file must not control the terminal.
fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            safe.extend(c.escape_default())
        } else {
            safe.push(c)
        }
    }
    safe
}

/// Formats 134515008 as `134.5 M`.
fn count(n: u64) -> String {
    scaled(n, 1000.0, &["", " K", " M", " B", " T"])
}

/// Formats 1536 as `1.5 KiB`.
fn bytes(n: u64) -> String {
    scaled(n, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB"])
}

fn scaled(n: u64, step: f64, units: &[impl Display]) -> String {
    let mut value = n as f64;
    let mut unit = 0;
    // The threshold accounts for rounding, so that 999.96 becomes 1.0 of the next unit.
    while value >= step - 0.05 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = usize::from(unit > 0);
    format!("{value:.digits$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_scaled() {
        assert_eq!(count(134_515_008), "134.5 M");
        assert_eq!(count(999), "999");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes((1 << 30) - 1), "1.0 GiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
    }

    #[test]
    fn context_lengths_end_with_the_trained_context() {
        assert_eq!(context_lengths(Some(8192)), [4096, 8192]);
        assert_eq!(context_lengths(Some(2048)), [2048]);
        assert_eq!(context_lengths(None), [4096, 16384]);
    }
}
