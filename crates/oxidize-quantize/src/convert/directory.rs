//! [`to_directory`]: converts a GGUF file to a Hugging Face directory.
//!
//! [`huggingface_model`] of the core crate names and permutes the tensors. This module writes them in shards,
//! with the tokenizer and configuration files. `config.json` is written last, since a directory without it is
//! not a model.

use std::io::Write;
use std::path::{Path, PathBuf};

use oxidize_core::arch::config::ConfigFacts;
use oxidize_core::arch::{Arch, Mixer};
use oxidize_core::file::{Format, ModelFile};
use oxidize_core::io::{PendingFile, SavedFile};
use oxidize_core::model::{ExportedTensor, chat_template_of, huggingface_model};
use oxidize_core::tokenizer::VocabSpec;
use oxidize_kernels::quant::TensorType;
use serde_json::{Map, Value, json};

use super::{as_tensor, sentence_transformers};
use crate::error::{Error, Result};
use crate::output::with_path;
use crate::tensor::Tensor;
use crate::workers::Workers;

/// Options of writing a directory.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryOptions<'w> {
    /// Type of the weights: F32, F16 or BF16.
    pub ty: TensorType,
    /// Maximum bytes per shard.
    pub shard_bytes: u64,
    /// Threads and their stop flag.
    pub workers: Workers<'w>,
}

/// Default maximum shard size of `transformers`.
pub const SHARD_BYTES: u64 = 5_000_000_000;

/// Writes the GGUF model in `file` as a Hugging Face directory, which must be new or empty. `progress`
/// receives the bytes written, the total bytes and the next tensor. Returns the written files and the parts
/// that could not be written.
pub fn to_directory(
    file: &ModelFile,
    dir: &Path,
    options: &DirectoryOptions<'_>,
    mut progress: impl FnMut(u64, u64, &str),
) -> Result<(Vec<PathBuf>, Vec<String>)> {
    let unfit = |problem: String| Error::Unfit {
        file: file.path().to_path_buf(),
        problem,
    };
    if !matches!(file.format(), Format::Gguf { .. }) {
        return Err(unfit("not a GGUF file".into()));
    }
    let Some(dtype) = torch_name(options.ty) else {
        let problem = format!(
            "directories support the types F32, F16 and BF16, not {}",
            options.ty
        );
        return Err(unfit(problem));
    };
    let spec = VocabSpec::of_file(file);
    let made = huggingface_model(file, &facts(file, spec.as_ref().ok(), dtype)?)?;
    let tensors: Vec<Tensor<'_>> = made
        .tensors
        .into_iter()
        .map(|tensor: ExportedTensor<'_>| as_tensor(file, tensor))
        .collect();
    let mut output_dir = OutputDir::create(dir)?;
    let (projections, tensors): (Vec<_>, Vec<_>) = tensors
        .into_iter()
        .partition(|tensor| sentence_transformers::module_directory(tensor).is_some());
    let names = shards(&tensors, options);
    let total = tensors.iter().map(|tensor| bytes_of(tensor, options)).sum();
    let mut done = 0;
    let mut pending = Vec::new();
    for (name, range) in &names {
        let path = dir.join(name);
        let shard = tensors.get(range.clone()).unwrap_or_default();
        let saved = write_shard(&path, shard, options, |tensor| {
            progress(done, total, &tensor.name);
            done += bytes_of(tensor, options);
        })?;
        pending.push((path, saved));
    }
    let mut small: Vec<(String, Vec<u8>)> = Vec::new();
    if names.len() > 1 {
        let index = index(&names, &tensors, total);
        small.push(("model.safetensors.index.json".into(), pretty(&index)));
    }
    let mut missing = Vec::new();
    let template = chat_template_of(file)?;
    let vocabulary = match spec {
        Ok(spec) => spec
            .directory_files(template.as_deref())
            .map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match vocabulary {
        Ok(files) => small.extend(files),
        Err(problem) => missing.push(format!("the tokenizer: {problem}")),
    }
    if let Some(sampling) = sampling(file) {
        small.push(("generation_config.json".into(), pretty(&sampling)));
    }
    if let Some(text) = super::metadata::readme(file) {
        small.push(("README.md".into(), text.into_bytes()));
    }
    let mut dense = Vec::new();
    for mut tensor in projections {
        let Some(name) = sentence_transformers::module_directory(&tensor).map(str::to_owned) else {
            continue;
        };
        let config = sentence_transformers::projection(&tensor);
        small.push((format!("{name}/config.json"), pretty(&config)));
        output_dir.subdirectory(&name)?;
        tensor.name = "linear.weight".into();
        let path = dir.join(&name).join("model.safetensors");
        let saved = write_shard(&path, &[tensor], options, |_| {})?;
        pending.push((path, saved));
        dense.push(name);
    }
    let arch = Arch::detect(file).map_err(oxidize_core::Error::from)?.name;
    for (name, value) in sentence_transformers::modules(file, arch, &dense) {
        small.push((name, pretty(&value)));
    }
    let mut config = made.config;
    sentence_transformers::labels(file, arch, &mut config);
    small.push(("config.json".into(), pretty(&config)));
    for (name, bytes) in small {
        if let Some((subdirectory, _)) = name.split_once('/') {
            output_dir.subdirectory(subdirectory)?;
        }
        let path = dir.join(name);
        let mut saved = PendingFile::create(&path)?;
        let io = |error| Error::from(oxidize_core::Error::io(&path)(error));
        saved.out.write_all(&bytes).map_err(io)?;
        pending.push((path, saved.finish()?));
    }
    options.workers.check()?;
    let mut files = Vec::new();
    for (path, saved) in pending {
        saved.publish()?;
        files.push(path);
    }
    output_dir.keep();
    Ok((files, missing))
}

/// Writes tensors as a safetensors file. `each` is called before each tensor.
fn write_shard(
    path: &Path,
    tensors: &[Tensor<'_>],
    options: &DirectoryOptions<'_>,
    mut each: impl FnMut(&Tensor<'_>),
) -> Result<SavedFile> {
    let mut saved = PendingFile::create(path)?;
    let io = |error| Error::from(oxidize_core::Error::io(path)(error));
    saved.out.write_all(&header(tensors, options)).map_err(io)?;
    for tensor in tensors {
        each(tensor);
        let written = options
            .workers
            .quantize(tensor, options.ty, None, &mut saved.out);
        written.map_err(|error| with_path(error, path))?;
    }
    Ok(saved.finish()?)
}

/// A new or empty output directory. Directories created for it are removed on drop unless it is kept.
struct OutputDir<'a> {
    path: &'a Path,
    /// Created directories, outermost first.
    created: Vec<PathBuf>,
}

impl<'a> OutputDir<'a> {
    /// Creates the directory and its parents, or checks that it is empty.
    fn create(path: &'a Path) -> Result<OutputDir<'a>> {
        let io = |error| Error::from(oxidize_core::Error::io(path)(error));
        // The last ancestor of a relative path is empty.
        let ancestors = path.ancestors().filter(|path| *path != Path::new(""));
        let new = ancestors.take_while(|path| !path.exists());
        let mut created: Vec<PathBuf> = new.map(Path::to_path_buf).collect();
        created.reverse();
        let output_dir = OutputDir { path, created };
        std::fs::create_dir_all(path).map_err(io)?;
        let mut entries = std::fs::read_dir(path).map_err(io)?;
        match entries.next() {
            None => Ok(output_dir),
            Some(_) => Err(Error::Unfit {
                file: path.to_path_buf(),
                problem: "the directory is not empty".into(),
            }),
        }
    }

    /// Creates a subdirectory if it does not exist.
    fn subdirectory(&mut self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        if !path.exists() {
            std::fs::create_dir(&path).map_err(oxidize_core::Error::io(&path))?;
            self.created.push(path);
        }
        Ok(())
    }

    fn keep(mut self) {
        self.created.clear();
    }
}

impl Drop for OutputDir<'_> {
    fn drop(&mut self) {
        for path in self.created.iter().rev() {
            // Fails if the directory is not empty, which keeps it.
            let _ = std::fs::remove_dir(path);
        }
    }
}

/// Facts of the configuration that the graph does not contain.
fn facts(file: &ModelFile, spec: Option<&VocabSpec>, dtype: &'static str) -> Result<ConfigFacts> {
    let arch = Arch::detect(file).map_err(oxidize_core::Error::from)?;
    let key = |name: &str| format!("{}.{name}", arch.name);
    let number = |name: &str| {
        let n = file.metadata().u64(&key(name))?;
        usize::try_from(n).ok()
    };
    let weight = file
        .metadata()
        .f32(&key("rope.scaling.yarn_log_multiplier"));
    let special = spec.map(|spec| &spec.special);
    let rows = |name: &str| file.tensor(name)?.dims().first().copied();
    let has = |layer: u64, name: &str| {
        let name = format!("blk.{layer}.{name}.weight");
        file.tensor(&name).is_some()
    };
    let layers = 0..number("block_count").unwrap_or(0) as u64;
    Ok(ConfigFacts {
        n_vocab: rows("token_embd.weight").unwrap_or(0),
        expert_layers: layers.clone().map(|i| has(i, "ffn_gate_inp")).collect(),
        gated: file.tensor("enc.blk.0.ffn_gate.weight").is_some(),
        pooled: file.metadata().get(&key("pooling_type")).is_some(),
        classifies: file.tensor("cls.output.weight").is_some(),
        two_norms: has(0, "attn_norm_2"),
        keys_as_values: layers
            .clone()
            .any(|i| has(i, "attn_k") && !has(i, "attn_v")),
        step_rank: number("ssm.time_step_rank"),
        recurrent_norm: layers.clone().any(|i| has(i, "ssm_norm")),
        laurel_rank: rows("blk.0.laurel_l.weight"),
        n_vocab_per_layer: rows("per_layer_token_embd.weight"),
        tied: file.tensor("output.weight").is_none(),
        attention_bias: file.tensor("blk.0.attn_q.bias").is_some()
            || file.tensor("blk.0.attn_qkv.bias").is_some(),
        // For DeepSeek models, GGUF stores a tenth of the value.
        mscale_all_dim: weight
            .filter(|_| arch.mixer == Mixer::Mla)
            .map(|w| 10.0 * w),
        n_dense_layers: number("leading_dense_block_count"),
        shared_ff: number("expert_shared_feed_forward_length"),
        n_shared: number("expert_shared_count"),
        tokens: special.map_or([None; 3], |s| [s.bos, s.eos, s.pad]),
        dtype,
    })
}

fn torch_name(ty: TensorType) -> Option<&'static str> {
    Some(match ty {
        TensorType::F32 => "float32",
        TensorType::F16 => "float16",
        TensorType::BF16 => "bfloat16",
        _ => return None,
    })
}

fn bytes_of(tensor: &Tensor<'_>, options: &DirectoryOptions<'_>) -> u64 {
    options.ty.bytes_for(tensor.elements()).unwrap_or(0)
}

/// Names and tensor ranges of the shards.
fn shards(
    tensors: &[Tensor<'_>],
    options: &DirectoryOptions<'_>,
) -> Vec<(String, std::ops::Range<usize>)> {
    let mut ranges = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (i, tensor) in tensors.iter().enumerate() {
        let own = bytes_of(tensor, options);
        if bytes > 0 && bytes + own > options.shard_bytes {
            ranges.push(start..i);
            (start, bytes) = (i, 0);
        }
        bytes += own;
    }
    ranges.push(start..tensors.len());
    let n = ranges.len();
    let name = |i: usize| match n {
        1 => "model.safetensors".to_owned(),
        _ => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
    };
    let numbered = ranges.into_iter().enumerate();
    numbered.map(|(i, range)| (name(i), range)).collect()
}

/// The safetensors header: its length, and JSON padded with spaces to a multiple of 8 bytes.
fn header(tensors: &[Tensor<'_>], options: &DirectoryOptions<'_>) -> Vec<u8> {
    let mut map = Map::new();
    map.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut at = 0;
    for tensor in tensors {
        let end = at + bytes_of(tensor, options);
        let shape: Vec<u64> = tensor.shape.iter().rev().copied().collect();
        let entry = json!({
            "dtype": options.ty.name(),
            "shape": shape,
            "data_offsets": [at, end],
        });
        map.insert(tensor.name.clone(), entry);
        at = end;
    }
    let mut json = Value::Object(map).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    header
}

fn index(names: &[(String, std::ops::Range<usize>)], tensors: &[Tensor<'_>], total: u64) -> Value {
    let mut map = Map::new();
    for (name, range) in names {
        for tensor in tensors.get(range.clone()).unwrap_or_default() {
            map.insert(tensor.name.clone(), Value::from(name.as_str()));
        }
    }
    json!({ "metadata": { "total_size": total }, "weight_map": map })
}

/// The recommended sampling parameters, if the file has them.
fn sampling(file: &ModelFile) -> Option<Value> {
    let mut map = Map::new();
    for (key, field) in super::metadata::SAMPLING {
        if let Some(x) = file.metadata().f32(&format!("general.sampling.{key}")) {
            let short: f64 = x.to_string().parse().unwrap_or(f64::from(x));
            map.insert((*field).to_owned(), Value::from(short));
        }
    }
    if let Some(n) = file.metadata().i64("general.sampling.top_k") {
        map.insert("top_k".to_owned(), Value::from(n));
    }
    (!map.is_empty()).then_some(Value::Object(map))
}

fn pretty(value: &Value) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(value).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}
