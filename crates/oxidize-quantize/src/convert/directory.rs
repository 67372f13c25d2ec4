//! [`to_directory`]: the way back, from a GGUF file to a Hugging Face directory.
//!
//! Core says what the tensors are and are called ([`huggingface_model`]); here they are written, in
//! shards, with the files that belong beside them. `config.json` comes last: without it the
//! directory is no model.

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

use super::{as_tensor, sentence};
use crate::encode::Workers;
use crate::error::{Error, Result};
use crate::output::name_file;
use crate::tensor::Tensor;

/// How a directory is written.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryOptions<'w> {
    /// What weights are stored as: F32, F16 or BF16.
    pub ty: TensorType,
    /// Shards of at most this many bytes.
    pub shard_bytes: u64,
    /// Threads, and what stops them.
    pub workers: Workers<'w>,
}

/// What `transformers` makes of a shard by default.
pub const SHARD_BYTES: u64 = 5_000_000_000;

/// Writes the GGUF model in `file` as a Hugging Face directory, which must not exist or be empty.
/// `progress` is told the bytes written, those of all, and the tensor that is next. Gives the files
/// that were written, and what could not be.
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
        return Err(unfit("it is no GGUF file".into()));
    }
    let Some(dtype) = torch_name(options.ty) else {
        let problem = format!("a directory holds F32, F16 or BF16, not {}", options.ty);
        return Err(unfit(problem));
    };
    let spec = VocabSpec::of_file(file);
    let made = huggingface_model(file, &facts(file, spec.as_ref().ok(), dtype)?)?;
    let tensors: Vec<Tensor<'_>> = made
        .tensors
        .into_iter()
        .map(|tensor: ExportedTensor<'_>| as_tensor(file, tensor))
        .collect();
    let mut folder = Folder::create(dir)?;
    let (projections, tensors): (Vec<_>, Vec<_>) = tensors
        .into_iter()
        .partition(|tensor| sentence::folder_of(tensor).is_some());
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
        let Some(name) = sentence::folder_of(&tensor).map(str::to_owned) else {
            continue;
        };
        let config = sentence::projection(&tensor);
        small.push((format!("{name}/config.json"), pretty(&config)));
        folder.subfolder(&name)?;
        tensor.name = "linear.weight".into();
        let path = dir.join(&name).join("model.safetensors");
        let saved = write_shard(&path, &[tensor], options, |_| {})?;
        pending.push((path, saved));
        dense.push(name);
    }
    let arch = Arch::detect(file).map_err(oxidize_core::Error::from)?.name;
    for (name, value) in sentence::modules(file, arch, &dense) {
        small.push((name, pretty(&value)));
    }
    let mut config = made.config;
    sentence::labels(file, arch, &mut config);
    small.push(("config.json".into(), pretty(&config)));
    for (name, bytes) in small {
        if let Some((subfolder, _)) = name.split_once('/') {
            folder.subfolder(subfolder)?;
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
    folder.keep();
    Ok((files, missing))
}

/// Writes tensors as a safetensors file. `each` hears of every tensor before it is written.
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
            .encode(tensor, options.ty, None, &mut saved.out);
        written.map_err(|error| name_file(error, path))?;
    }
    Ok(saved.finish()?)
}

/// A directory that is new or empty. Dropped before it is kept, what was made of it is gone again.
struct Folder<'a> {
    path: &'a Path,
    /// What was made, outermost first.
    made: Vec<PathBuf>,
}

impl<'a> Folder<'a> {
    /// Makes the directory and those it is in, or makes sure that nothing is in it.
    fn create(path: &'a Path) -> Result<Folder<'a>> {
        let io = |error| Error::from(oxidize_core::Error::io(path)(error));
        // The last ancestor of a relative path has no name.
        let ancestors = path.ancestors().filter(|path| *path != Path::new(""));
        let new = ancestors.take_while(|path| !path.exists());
        let mut made: Vec<PathBuf> = new.map(Path::to_path_buf).collect();
        made.reverse();
        let folder = Folder { path, made };
        std::fs::create_dir_all(path).map_err(io)?;
        let mut entries = std::fs::read_dir(path).map_err(io)?;
        match entries.next() {
            None => Ok(folder),
            Some(_) => Err(Error::Unfit {
                file: path.to_path_buf(),
                problem: "the directory is not empty".into(),
            }),
        }
    }

    /// Makes a directory in it, unless there is one.
    fn subfolder(&mut self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        if !path.exists() {
            std::fs::create_dir(&path).map_err(oxidize_core::Error::io(&path))?;
            self.made.push(path);
        }
        Ok(())
    }

    fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for Folder<'_> {
    fn drop(&mut self) {
        for path in self.made.iter().rev() {
            // Only what is empty is removed.
            let _ = std::fs::remove_dir(path);
        }
    }
}

/// What the configuration says that the graph does not.
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
        // The converter of DeepSeek's family writes a tenth of it.
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

/// Names of shards, and which tensors are in each.
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

/// The head of a shard: its length, and JSON that is filled up with spaces to a multiple of eight.
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

/// How the authors would have tokens chosen, where the file says so.
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
