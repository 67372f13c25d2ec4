//! HTML rendering of a [`Report`], self-contained and without scripts.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::report::Report;

/// Renders a report as an HTML page.
pub fn page(report: &Report) -> String {
    let mut html = String::new();
    let title = format!("{} as {}", escape(&report.source), escape(&report.recipe));
    // Writing to a string cannot fail.
    let _ = write!(
        html,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style>\
         <h1>{title}</h1><p class=\"figures\"><b>{:.2} MB</b>, {:.3} bits per weight, from {:.2} MB</p>\
         <p><code>{}</code></p>",
        report.bytes as f64 / 1e6,
        report.bits_per_weight,
        report.source_bytes as f64 / 1e6,
        escape(&report.command)
    );
    if let Some(result) = &report.comparison {
        let _ = write!(
            html,
            "<h2>Comparison with the source</h2><table>\
             <tr><th>mean KL divergence<td>{:.6} ± {:.6}<tr><th>median<td>{:.6}<tr><th>99th percentile<td>{:.5}\
             <tr><th>same top token<td>{:.2}%<tr><th>perplexity<td>{:.4} → {:.4} ({:.4}×)\
             <tr><th>scored<td>{} tokens</table>",
            result.mean_kl,
            result.mean_kl_stderr,
            result.median_kl,
            result.kl_99,
            100.0 * result.top1_agreement,
            result.perplexity_a,
            result.perplexity_b,
            result.perplexity_ratio,
            result.tokens
        );
    }
    let mut by_type: BTreeMap<&str, u64> = BTreeMap::new();
    for tensor in &report.tensors {
        *by_type.entry(&tensor.to).or_default() += tensor.bytes;
    }
    let sizes = by_type.iter().map(|(ty, bytes)| (*ty, *bytes as f64 / 1e6));
    html += "<h2>Bytes by type</h2>";
    html += &bars(sizes, "MB");
    html += "<h2>Error by tensor</h2>";
    let errors = report.tensors.iter().filter_map(|tensor| {
        let label = format!("{} ({})", tensor.name, tensor.to);
        Some((label, 100.0 * tensor.error?))
    });
    html += &bars(errors, "%");
    html += "</html>";
    html
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
    th{text-align:left;padding-right:2rem;font-weight:normal;color:#666}code{background:#f4f4f4;padding:.1rem .3rem}\
    svg text{font:12px system-ui,sans-serif;fill:#222}svg rect{fill:#3b6ea5}";

/// A horizontal bar chart.
fn bars(values: impl Iterator<Item = (impl AsRef<str>, f64)>, unit: &str) -> String {
    const ROW: usize = 18;
    let values: Vec<_> = values.collect();
    let most = values
        .iter()
        .map(|(_, value)| *value)
        .fold(f64::MIN_POSITIVE, f64::max);
    let height = ROW * values.len() + 4;
    let mut svg = format!("<svg width=\"900\" height=\"{height}\" role=\"img\">");
    for (i, (label, value)) in values.iter().enumerate() {
        let (y, width) = (i * ROW, 400.0 * value / most);
        let _ = write!(
            svg,
            "<text x=\"0\" y=\"{}\">{}</text><rect x=\"330\" y=\"{}\" width=\"{width:.1}\" height=\"12\"/>\
             <text x=\"{:.1}\" y=\"{}\">{value:.3} {unit}</text>",
            y + 13,
            escape(label.as_ref()),
            y + 3,
            338.0 + width,
            y + 13
        );
    }
    svg + "</svg>"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::TensorReport;

    #[test]
    fn names_are_escaped() {
        let report = Report {
            source: "<script>".into(),
            tensors: vec![TensorReport {
                name: "a&b".into(),
                to: "Q4_K".into(),
                error: Some(0.05),
                ..TensorReport::default()
            }],
            ..Report::default()
        };
        let page = page(&report);
        assert!(!page.contains("<script>") && page.contains("a&amp;b (Q4_K)"));
        assert!(page.contains("5.000 %"));
    }
}
