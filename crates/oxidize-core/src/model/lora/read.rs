//! Reads adapters: GGUF files (`X.lora_a`, `X.lora_b`, `adapter.*` keys) and PEFT directories
//! (`X.lora_A.weight`, `X.lora_B.weight`, `adapter_config.json`).

use super::{Form, LoraError, Pair};
use crate::arch::names::TOKEN_EMBEDDING;
use crate::error::{Error, Result};
use crate::file::{Format, ModelFile, OpenOptions, TensorInfo};
use crate::weights::holds_weights;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const PEFT_WEIGHTS: &str = "adapter_model.safetensors";
const PEFT_CONFIG: &str = "adapter_config.json";
/// Prefix of tensor names in PEFT files.
const PEFT_PREFIX: &str = "base_model.model.";

/// Opens an adapter and pairs its tensors.
pub(super) fn open(path: &Path, options: &OpenOptions) -> Result<(ModelFile, Vec<Pair>)> {
    let weights = path.join(PEFT_WEIGHTS);
    let file = if path.is_dir() {
        if !weights.is_file() {
            let problem = format!("{PEFT_WEIGHTS} not found in the directory");
            return Err(not_an_adapter(path, problem));
        }
        ModelFile::open(weights, options)?
    } else {
        ModelFile::open(path, options)?
    };
    of_file(file, options)
}

/// Pairs the tensors of an adapter.
pub(super) fn of_file(file: ModelFile, options: &OpenOptions) -> Result<(ModelFile, Vec<Pair>)> {
    let scaling = match file.format() {
        Format::Gguf { .. } => gguf_scaling(&file)?,
        _ => peft_scaling(&file, options)?,
    };
    let pairs = pairs(&file, &scaling)?;
    if pairs.is_empty() {
        return Err(not_an_adapter(file.path(), "no LoRA matrices found".into()));
    }
    Ok((file, pairs))
}

/// Scaling of the products.
struct Scaling {
    alpha: f32,
    /// Alpha of modules whose names have the given suffix.
    alpha_pattern: Vec<(String, f32)>,
    /// True if alpha is divided by the root of the rank (rsLoRA).
    by_root: bool,
    /// True if an alpha of zero means a factor of one, as in GGUF files.
    zero_is_one: bool,
}

impl Scaling {
    fn factor(&self, target: &str, rank: usize) -> f32 {
        let ends = |module: &str| {
            let rest = target.strip_suffix(module);
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let other = self.alpha_pattern.iter().find(|(module, _)| ends(module));
        let alpha = other.map_or(self.alpha, |(_, alpha)| *alpha);
        match (alpha, self.by_root) {
            (0.0, _) if self.zero_is_one => 1.0,
            (alpha, false) => alpha / rank as f32,
            (alpha, true) => alpha / (rank as f32).sqrt(),
        }
    }
}

fn gguf_scaling(file: &ModelFile) -> Result<Scaling> {
    let metadata = file.metadata();
    let expect = |key: &str, value: &str| match metadata.str(key) {
        Some(found) if found == value => Ok(()),
        found => {
            let found = found.map_or("missing".to_owned(), |found| format!("{found:?}"));
            let problem = format!("key {key:?} is {found}, not {value:?}");
            Err(not_an_adapter(file.path(), problem))
        }
    };
    expect("general.type", "adapter")?;
    expect("adapter.type", "lora")?;
    let alpha = metadata.f32("adapter.lora.alpha");
    let alpha = alpha.filter(|alpha| alpha.is_finite()).ok_or_else(|| {
        let problem = "key \"adapter.lora.alpha\" is not a number".to_owned();
        not_an_adapter(file.path(), problem)
    })?;
    Ok(Scaling {
        alpha,
        alpha_pattern: Vec::new(),
        by_root: false,
        zero_is_one: true,
    })
}

fn peft_scaling(file: &ModelFile, options: &OpenOptions) -> Result<Scaling> {
    let missing = || {
        let problem = format!("{PEFT_CONFIG} not found in the same directory");
        not_an_adapter(file.path(), problem)
    };
    let path = file.sidecar(PEFT_CONFIG).ok_or_else(missing)?;
    let config = read_config(&path, options)?;
    let text = |key: &str| config.get(key).and_then(|value| value.as_str());
    let is_set = |key: &str| config.get(key).and_then(|value| value.as_bool()) == Some(true);
    let refuse = |problem: String| Err(not_an_adapter(&path, problem));
    match text("peft_type") {
        Some("LORA") => {}
        kind => return refuse(format!("peft_type is {}", kind.unwrap_or("missing"))),
    }
    if is_set("use_dora") {
        return refuse("use_dora is set; DoRA is not supported".into());
    }
    if let Some(bias) = text("bias").filter(|bias| *bias != "none") {
        return refuse(format!(
            "bias is {bias:?}: adapters with biases are not supported"
        ));
    }
    let number = |value: &serde_json::Value| value.as_f64().map(|value| value as f32);
    let Some(alpha) = config.get("lora_alpha").and_then(number) else {
        return refuse("lora_alpha is not a number".into());
    };
    let patterns = config
        .get("alpha_pattern")
        .and_then(|value| value.as_object());
    let alpha_pattern = patterns.into_iter().flatten();
    Ok(Scaling {
        alpha,
        alpha_pattern: alpha_pattern
            .filter_map(|(module, value)| Some((module.clone(), number(value)?)))
            .collect(),
        by_root: is_set("use_rslora"),
        zero_is_one: false,
    })
}

fn read_config(path: &PathBuf, options: &OpenOptions) -> Result<serde_json::Value> {
    let size = std::fs::metadata(path).map_err(Error::io(path))?.len();
    if size > options.limits.safetensors_header_bytes {
        return Err(not_an_adapter(
            path,
            format!("{size} bytes of JSON exceed the limit"),
        ));
    }
    let json = std::fs::read(path).map_err(Error::io(path))?;
    serde_json::from_slice(&json).map_err(|error| not_an_adapter(path, error.to_string()))
}

/// Parses a tensor name: index of the matrix (0 for A, 1 for B), name of the base matrix, and true
/// for embeddings in PEFT files.
fn parse_name(name: &str, format: Format) -> Option<(usize, &str, bool)> {
    let ending = |name: &'_ str, endings: &[(&str, usize, bool)]| {
        let mut found = endings.iter().filter_map(|(ending, index, is_table)| {
            Some((*index, name.strip_suffix(ending)?.len(), *is_table))
        });
        found.next()
    };
    if let Format::Gguf { .. } = format {
        let endings = [(".lora_a", 0, false), (".lora_b", 1, false)];
        let (index, len, is_table) = ending(name, &endings)?;
        return Some((index, name.get(..len)?, is_table));
    }
    let name = name.strip_suffix(".weight").unwrap_or(name);
    // Some versions append the name of the adapter.
    let name = name.strip_suffix(".default").unwrap_or(name);
    let endings = [
        (".lora_A", 0, false),
        (".lora_B", 1, false),
        (".lora_embedding_A", 0, true),
        (".lora_embedding_B", 1, true),
    ];
    let (index, len, is_table) = ending(name, &endings)?;
    let target = name.get(..len)?;
    let target = target.strip_prefix(PEFT_PREFIX).unwrap_or(target);
    Some((index, target, is_table))
}

fn pairs(file: &ModelFile, scaling: &Scaling) -> Result<Vec<Pair>> {
    let mut matrices: BTreeMap<(&str, bool), [Option<&TensorInfo>; 2]> = BTreeMap::new();
    for tensor in file.tensors() {
        let Some((index, target, is_table)) = parse_name(&tensor.name, file.format()) else {
            let problem = "not a LoRA matrix A or B";
            return Err(wrong(file, tensor, problem.into()));
        };
        let key = (target, is_table);
        if let Some(place) = matrices.entry(key).or_default().get_mut(index) {
            *place = Some(tensor);
        }
    }
    let pair = |((target, is_table), matrices): ((&str, bool), [Option<&TensorInfo>; 2])| {
        let (a, b) = match matrices {
            [Some(a), Some(b)] => (a, b),
            [Some(single), None] | [None, Some(single)] => {
                let problem = "the other matrix of the pair is missing";
                return Err(wrong(file, single, problem.into()));
            }
            [None, None] => return Ok(None),
        };
        let (form, rank) = form(file, target, is_table, a, b)?;
        for tensor in [a, b] {
            let columns = tensor.dims().last().copied().unwrap_or(0);
            if !columns.is_multiple_of(tensor.ty.block_len()) || !holds_weights(tensor.ty) {
                let problem = format!("rows of {columns} elements cannot have type {}", tensor.ty);
                return Err(wrong(file, tensor, problem));
            }
        }
        Ok(Some(Pair {
            target: target.to_owned(),
            form,
            rank,
            a: a.clone(),
            b: b.clone(),
            factor: scaling.factor(target, rank),
        }))
    };
    matrices
        .into_iter()
        .filter_map(|matrices| pair(matrices).transpose())
        .collect()
}

/// Form of a pair, from the shapes of its matrices, and its rank.
fn form(
    file: &ModelFile,
    target: &str,
    is_table: bool,
    a: &TensorInfo,
    b: &TensorInfo,
) -> Result<(Form, usize)> {
    let is_gguf = matches!(file.format(), Format::Gguf { .. });
    let in_gguf = target.strip_suffix(".weight") == Some(TOKEN_EMBEDDING.gguf);
    let (form, rank, columns) = match (a.dims().as_slice(), b.dims().as_slice()) {
        (&[tokens, rank], &[_, columns]) if is_gguf && in_gguf => {
            let by_token = true;
            (Form::Table { tokens, by_token }, rank, columns)
        }
        (&[rank, tokens], &[_, columns]) if is_table => {
            let by_token = false;
            (Form::Table { tokens, by_token }, rank, columns)
        }
        (&[rank, _], &[_, columns]) => (Form::Matrix, rank, columns),
        (&[n, rank, _], &[n_b, _, columns]) if n == n_b => (Form::Stack(n), rank, columns),
        (a_dims, b_dims) => {
            let problem = format!("shapes {a_dims:?} and {b_dims:?}: not two matrices");
            return Err(wrong(file, a, problem));
        }
    };
    if rank == 0 || columns != rank {
        let problem = format!("shape {:?} does not fit rank {rank}", b.dims());
        return Err(wrong(file, b, problem));
    }
    Ok((form, rank))
}

fn wrong(file: &ModelFile, tensor: &TensorInfo, problem: String) -> Error {
    let (file, tensor) = (file.path().to_path_buf(), tensor.name.clone());
    LoraError::Tensor {
        file,
        tensor,
        problem,
    }
    .into()
}

fn not_an_adapter(file: &Path, problem: String) -> Error {
    let file = file.to_path_buf();
    LoraError::NotAnAdapter { file, problem }.into()
}
