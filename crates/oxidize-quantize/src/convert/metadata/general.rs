//! The `general.*` keys: name, size, license, authors and recommended sampling, from the files beside the
//! weights.

use std::collections::HashMap;

use oxidize_core::arch::Arch;
use oxidize_core::file::ModelFile;
use oxidize_core::gguf::{ArrayBuf, ValueBuf};
use serde_json::{Map, Value};

use crate::convert::directory_name;
use crate::output::Output;
use crate::tensor::Tensor;

/// Writes the `general.*` keys. Returns a message if a file could not be read.
pub(in crate::convert) fn general(
    output: &mut Output,
    file: &ModelFile,
    arch: &Arch,
    tensors: &[Tensor<'_>],
) -> Option<String> {
    output.set("general.architecture", arch.name.into());
    output.set("general.type", "model".into());
    let text = file
        .sidecar("README.md")
        .and_then(|path| std::fs::read_to_string(path).ok());
    let card = Card::parse(&text.unwrap_or_default());
    let name = card.text("model_name").or_else(|| directory_name(file));
    if let Some(name) = name {
        output.set("general.name", ValueBuf::Str(name));
    }
    output.set("general.size_label", ValueBuf::Str(size_label(tensors)));
    card.write(output);
    // Reserves the position of the key; the value follows from the types.
    output.set("general.file_type", ValueBuf::U32(0));
    output.set("general.quantization_version", ValueBuf::U32(2));
    sampling(output, file).err()
}

/// Sampling parameters: name after `general.sampling.` in GGUF, and name in `generation_config.json`.
pub(in crate::convert) const SAMPLING: &[(&str, &str)] = &[
    ("temp", "temperature"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("penalty_repeat", "repetition_penalty"),
];

/// Writes the recommended sampling parameters. They are optional, so an unreadable file is only reported.
fn sampling(output: &mut Output, file: &ModelFile) -> Result<(), String> {
    let Some(path) = file.sidecar("generation_config.json") else {
        return Ok(());
    };
    let wrong =
        |problem: &dyn std::fmt::Display| format!("left out: {}: {problem}", path.display());
    let text = std::fs::read_to_string(&path).map_err(|error| wrong(&error))?;
    let config: Map<String, Value> = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
    for (key, field) in SAMPLING {
        if let Some(number) = config.get(*field).and_then(Value::as_f64) {
            output.set(
                &format!("general.sampling.{key}"),
                ValueBuf::F32(number as f32),
            );
        }
    }
    if let Some(n) = config.get("top_k").and_then(Value::as_i64) {
        let n = i32::try_from(n).unwrap_or(i32::MAX);
        output.set("general.sampling.top_k", ValueBuf::I32(n));
    }
    Ok(())
}

/// Text fields of a README's front matter and their GGUF keys. Of fields with the same key, the first
/// applies.
const TEXTS: &[(&str, &str)] = &[
    ("license", "general.license"),
    ("license_name", "general.license.name"),
    ("license_link", "general.license.link"),
    ("authors", "general.author"),
    ("author", "general.author"),
    ("organization", "general.organization"),
    ("model_creator", "general.organization"),
];

/// Base URL of repositories.
const HUB: &str = "https://huggingface.co/";

/// The README for a directory converted from GGUF, with front matter that [`Card`] reads; `None` if the file
/// has no such keys.
pub(in crate::convert) fn readme(file: &ModelFile) -> Option<String> {
    let metadata = file.metadata();
    let text = |key: &str| metadata.str(key).map(str::to_owned);
    let list = |key: &str| -> Vec<String> {
        let strings = metadata.array(key).and_then(|array| array.strings());
        strings.into_iter().flatten().map(String::from).collect()
    };
    // JSON strings are valid YAML. Unquoted, the language `no` (Norwegian) would be the YAML value false.
    let quoted = |text: &str| Value::from(text).to_string();
    let name = text("general.name");
    let mut head = String::new();
    if let Some(name) = &name {
        head += &format!("model_name: {}\n", quoted(name));
    }
    let mut written = Vec::new();
    for (field, key) in TEXTS {
        if let Some(value) = text(key).filter(|_| !written.contains(key)) {
            head += &format!("{field}: {}\n", quoted(&value));
            written.push(key);
        }
    }
    let base = |i: u64| {
        let key = |name: &str| format!("general.base_model.{i}.{name}");
        let url = text(&key("repo_url"));
        let on_hub = url.and_then(|url| Some(url.strip_prefix(HUB)?.to_owned()));
        let name = text(&key("name"));
        on_hub.or_else(|| match text(&key("organization")) {
            Some(owner) => Some(format!("{owner}/{}", name?)),
            None => name,
        })
    };
    // Bounds the loop for a count that the file chooses.
    let n_bases = metadata.u64("general.base_model.count").unwrap_or(0);
    let bases = (0..n_bases.min(64)).filter_map(base).collect();
    for (field, values) in [
        ("language", list("general.languages")),
        ("tags", list("general.tags")),
        ("base_model", bases),
    ] {
        if !values.is_empty() {
            head += &format!("{field}:\n");
        }
        for value in values {
            head += &format!("- {}\n", quoted(&value));
        }
    }
    let title = name.map_or_else(String::new, |name| {
        let line = name.replace(['\n', '\r'], " ");
        format!("\n# {line}\n")
    });
    (!head.is_empty()).then(|| format!("---\n{head}---\n{title}"))
}

/// The YAML front matter of a README: texts and lists of texts.
#[derive(Debug, Default, PartialEq)]
struct Card(HashMap<String, Vec<String>>);

impl Card {
    fn parse(text: &str) -> Card {
        let text = text.trim_start_matches('\u{feff}');
        let head = text
            .strip_prefix("---")
            .and_then(|rest| rest.split_once("\n---"))
            .map_or("", |(head, _)| head);
        let plain = |text: &str| {
            let text = text.trim();
            let escaped = serde_json::from_str(text)
                .ok()
                .filter(|_| text.starts_with('"'));
            escaped.unwrap_or_else(|| text.trim_matches(['"', '\'']).to_owned())
        };
        let mut fields: HashMap<String, Vec<String>> = HashMap::new();
        let mut field = None;
        for line in head.lines() {
            let item = line.trim_start().strip_prefix("- ").map(plain);
            if let (Some(item), Some(field)) = (item, &field) {
                let list: &mut Vec<String> = fields.entry(String::clone(field)).or_default();
                list.push(item);
                continue;
            }
            // Indented lines belong to fields that are not used.
            let top = !line.starts_with([' ', '\t', '#', '-']);
            let Some((key, value)) = line.split_once(':').filter(|_| top) else {
                continue;
            };
            let key = key.trim().to_owned();
            let value = value.trim();
            let list = value.strip_prefix('[').and_then(|v| v.strip_suffix(']'));
            let values = match (list, value) {
                (Some(list), _) => list.split(',').map(plain).collect(),
                (None, "" | "|" | ">") => Vec::new(),
                (None, value) => vec![plain(value)],
            };
            fields.insert(key.clone(), values);
            field = Some(key);
        }
        Card(fields)
    }

    fn list(&self, field: &str) -> &[String] {
        self.0.get(field).map_or(&[], Vec::as_slice)
    }

    fn text(&self, field: &str) -> Option<String> {
        let first = self.list(field).first()?;
        (!first.is_empty()).then(|| first.clone())
    }

    fn write(&self, output: &mut Output) {
        let mut known = Vec::new();
        for (field, key) in TEXTS {
            let value = self.list(field).join(", ");
            if !value.is_empty() && !known.contains(key) {
                output.set(key, ValueBuf::Str(value));
                known.push(key);
            }
        }
        let mut list = |key: &str, values: Vec<&String>| {
            let texts = values.iter().map(|text| text.as_str());
            if !values.is_empty() {
                output.set(key, ValueBuf::Array(ArrayBuf::strings(texts)));
            }
        };
        let tags = self.list("tags").iter().chain(self.list("pipeline_tag"));
        list("general.tags", tags.collect());
        list("general.languages", self.list("language").iter().collect());
        let bases = self.list("base_model");
        if bases.is_empty() {
            return;
        }
        let count = u32::try_from(bases.len()).unwrap_or(u32::MAX);
        output.set("general.base_model.count", ValueBuf::U32(count));
        for (i, base) in bases.iter().enumerate() {
            let key = |name: &str| format!("general.base_model.{i}.{name}");
            let (owner, name) = base.split_once('/').unwrap_or(("", base));
            output.set(&key("name"), ValueBuf::Str(name.to_owned()));
            if !owner.is_empty() {
                output.set(&key("organization"), ValueBuf::Str(owner.to_owned()));
                let url = format!("{HUB}{base}");
                output.set(&key("repo_url"), ValueBuf::Str(url));
            }
        }
    }
}

/// The size label: the parameter count such as `7B`, or for experts `8x7B`.
fn size_label(tensors: &[Tensor<'_>]) -> String {
    let experts = |tensor: &&Tensor<'_>| tensor.name.contains("_exps.") && tensor.matrices() > 1;
    let n_experts = tensors.iter().filter(experts).map(Tensor::matrices).max();
    let all: u64 = tensors.iter().map(Tensor::elements).sum();
    let Some(n_experts) = n_experts else {
        return count_label(all);
    };
    let in_experts: u64 = tensors.iter().filter(experts).map(Tensor::elements).sum();
    let of_one = all - in_experts + in_experts / n_experts;
    format!("{n_experts}x{}", count_label(of_one))
}

fn count_label(elements: u64) -> String {
    let n = elements as f64;
    let (scaled, unit) = match elements {
        1_000_000_000_000.. => (n / 1e12, "T"),
        1_000_000_000.. => (n / 1e9, "B"),
        1_000_000.. => (n / 1e6, "M"),
        _ => (n / 1e3, "K"),
    };
    if scaled < 10.0 && unit != "K" && unit != "M" {
        format!("{scaled:.1}{unit}")
    } else {
        format!("{scaled:.0}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readme_front_matter_is_parsed() {
        let card = Card::parse(
            "---\nlicense: apache-2.0\nlanguage:\n- en\n- \"fr\"\ntags: [chat, 'small']\nbase_model: a/b\nmodel-index:\n  - name: x\n---\n# A model\nlicense: other\n",
        );
        assert_eq!(card.text("license").as_deref(), Some("apache-2.0"));
        assert_eq!(card.list("language"), ["en", "fr"]);
        assert_eq!(card.list("tags"), ["chat", "small"]);
        assert_eq!(card.list("base_model"), ["a/b"]);
        assert_eq!(Card::parse("# No head\nlicense: mit"), Card::default());
    }
}
