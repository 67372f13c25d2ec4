//! Invalid hyperparameters: zero, negative, huge, not dividing, contradicting the tensors, of another type,
//! and lists of the wrong length. Each golden model is loaded with one value changed, from GGUF and from
//! `config.json`. The result must be an error or, if the changed value is valid too, a model that runs.
//! Nothing may panic or allocate memory for tensors that do not exist.

use oxidize_core::Result;
use oxidize_core::arch::ARCHS;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{Batch, KvType, SeqSlice, SessionConfig};
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::gguf::{ArrayBuf, Value as Gguf, WriteError, Writer};
use oxidize_core::kv::BlockId;
use oxidize_core::model::Model;
use oxidize_golden::Fixture;
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

oxidize_testing::main!(
    changed_config_json_is_rejected_or_runs,
    changed_gguf_metadata_is_rejected_or_runs,
    changed_metadata_of_stored_files_is_rejected_or_runs,
);

/// Counts of the outcomes of a test.
#[derive(Default)]
struct Tally {
    rejected: usize,
    ran: usize,
    wrong: Vec<String>,
}

impl Tally {
    /// Loads a changed model. With `must_fail`, it must be rejected.
    fn check(&mut self, what: &str, must_fail: bool, open: impl FnOnce() -> Result<ModelFile>) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let file = open().map_err(|error| error.to_string())?;
            let model = Model::from_file(file).map_err(|error| error.to_string())?;
            run(&model)
        }));
        match outcome {
            Err(_) => self.wrong.push(format!("{what}: panic")),
            Ok(Ok(())) if must_fail => self.wrong.push(format!("{what}: accepted")),
            Ok(Ok(())) => self.ran += 1,
            Ok(Err(_)) => self.rejected += 1,
        }
    }

    /// Fails on any wrong outcome, or if fewer than `min_rejected` cases were rejected.
    fn finish(self, min_rejected: usize) {
        let Tally {
            rejected,
            ran,
            wrong,
        } = self;
        println!("{rejected} rejected, {ran} ran");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(rejected >= min_rejected, "only {rejected} were rejected");
    }
}

/// Runs an accepted model, whatever its results are.
fn run(model: &Model) -> std::result::Result<(), String> {
    let config = SessionConfig {
        n_blocks: 2,
        block_size: 2,
        max_tokens: 4,
        key_type: KvType::F32,
        value_type: KvType::F32,
        n_threads: Some(1),
        ..SessionConfig::for_context(16)
    };
    let session = model.session(&Cpu::default(), &config);
    let mut session = session.map_err(|error| error.to_string())?;
    let sequences = [SeqSlice {
        slot: 0,
        n_tokens: 4,
        blocks: &[BlockId(1), BlockId(0)],
        ..SeqSlice::default()
    }];
    let batch = Batch {
        tokens: &[1, 2, 3, 4],
        positions: &[0, 1, 2, 3],
        sequences: &sequences,
        outputs: &[3],
    };
    session.run(&batch).map_err(|error| error.to_string())
}

/// Keys whose every change contradicts the tensors.
const FIXED_GGUF: &[&str] = &[
    "block_count",
    "embedding_length",
    "expert_count",
    "embedding_length_per_layer_input",
    "attention.kv_lora_rank",
    "altup.num_inputs",
];
const FIXED_CONFIG: &[&str] = &["hidden_size", "n_embd", "d_model", "kv_lora_rank"];

/// Changed values of an integer.
fn numbers(n: i64) -> Vec<Value> {
    let huge = [i64::from(u32::MAX), 1 << 31, 1 << 40, i64::MAX];
    let near = [n + 1, n * 2, n * 3 + 1, n / 2, -n, -1, 0, 1, 3, 1 << 20];
    let mut changed: Vec<Value> = near
        .into_iter()
        .chain(huge)
        .filter(|&m| m != n)
        .map(Value::from)
        .collect();
    changed.extend([
        json!(0.5),
        json!(1e30),
        json!("seven"),
        json!({}),
        json!([]),
    ]);
    changed
}

/// Changed values of a float.
fn floats(x: f64) -> Vec<Value> {
    let near = [0.0, -x, -1.0, 1e-300, 1e30, 1e300, x * 7.0, 0.999];
    let mut changed: Vec<Value> = near
        .into_iter()
        .filter(|&y| y != x)
        .map(Value::from)
        .collect();
    changed.extend([json!("seven"), json!([1.0]), json!(true)]);
    changed
}

/// Changed values of a list: shorter, longer, or with elements of another type.
fn lists(list: &[Value]) -> Vec<Value> {
    let mut shorter = list.to_vec();
    shorter.pop();
    let mut longer = list.to_vec();
    longer.extend(list.first().cloned());
    let with_first = |first: Value| {
        let mut changed = list.to_vec();
        changed[0] = first;
        Value::from(changed)
    };
    let mut changed = vec![shorter.into(), longer.into(), json!([]), json!("LLLG")];
    let odd = [
        json!(-1),
        json!(1 << 30),
        json!("x"),
        json!(null),
        json!([]),
    ];
    changed.extend(odd.map(with_first));
    changed
}

fn changes(value: &Value) -> Vec<Value> {
    match value {
        Value::Number(n) => match n.as_i64() {
            Some(n) => numbers(n),
            None => floats(n.as_f64().unwrap_or(0.0)),
        },
        Value::Array(list) if !list.is_empty() => lists(list),
        Value::Bool(flag) => vec![json!(!flag), json!("yes"), json!(2), json!([])],
        Value::String(_) => vec![json!("another"), json!(""), json!(7), json!({})],
        _ => vec![json!(-3), json!("x"), json!([1, 2])],
    }
}

fn changed_config_json_is_rejected_or_runs() {
    let mut tally = Tally::default();
    for fixture in Fixture::all() {
        let golden = fixture.build();
        let config = fixture.config();
        for path in paths(config) {
            let pointer = format!("/{}", path.join("/"));
            let original = config.pointer(&pointer).unwrap().clone();
            for change in changes(&original) {
                let mut changed = config.clone();
                *changed.pointer_mut(&pointer).unwrap() = change.clone();
                let place = golden.directory().join("config.json");
                std::fs::write(place, changed.to_string()).unwrap();
                let what = format!("{}: {pointer} = {change}", fixture.name);
                let must_fail = FIXED_CONFIG.contains(&path[0].as_str());
                tally.check(&what, must_fail, || {
                    ModelFile::open(golden.directory(), &OpenOptions::default())
                });
            }
        }
    }
    tally.finish(4000);
}

/// Paths of the numbers, flags and lists of a configuration, two levels deep.
fn paths(config: &Value) -> Vec<Vec<String>> {
    // Keys that do not affect the computation.
    const IGNORED: &[&str] = &[
        "architectures",
        "vocab_size",
        "model_type",
        "dtype",
        "transformers_version",
        "use_cache",
        "initializer_range",
        "tie_word_embeddings",
        "pretraining_tp",
        "id2label",
        "label2id",
    ];
    const IGNORED_PARTS: &[&str] = &[
        "dropout", "pdrop", "token_id", "router_", "summary_", "output_",
    ];
    let ignored =
        |key: &str| IGNORED.contains(&key) || IGNORED_PARTS.iter().any(|part| key.contains(part));
    let Value::Object(keys) = config else {
        return Vec::new();
    };
    let mut paths = Vec::new();
    for (key, value) in keys {
        if ignored(key) || value.is_null() {
            continue;
        }
        match value {
            Value::Object(inner) => {
                let inner = inner
                    .iter()
                    .filter(|(key, value)| !ignored(key) && !value.is_null());
                paths.extend(inner.map(|(name, _)| vec![key.clone(), name.clone()]));
            }
            _ => paths.push(vec![key.clone()]),
        }
    }
    paths
}

fn changed_gguf_metadata_is_rejected_or_runs() {
    let mut tally = Tally::default();
    for fixture in Fixture::all() {
        let file = open_gguf(&fixture.build().gguf());
        change_metadata(&mut tally, &fixture.name, &file);
    }
    tally.finish(5000);
}

/// The same for files by llama.cpp's converter, which writes other keys for some families.
fn changed_metadata_of_stored_files_is_rejected_or_runs() {
    let mut tally = Tally::default();
    for dir in directories(&oxidize_testing::beside("golden")) {
        let path = dir.join("model.gguf");
        if path.exists() {
            change_metadata(&mut tally, &dir.display().to_string(), &open_gguf(&path));
        }
    }
    tally.finish(5000);
}

fn open_gguf(path: &Path) -> ModelFile {
    ModelFile::open(path, &OpenOptions::default()).unwrap()
}

/// Loads the file with each value of its metadata changed, if its architecture is supported.
fn change_metadata(tally: &mut Tally, model: &str, file: &ModelFile) {
    let name = file.metadata().str("general.architecture").unwrap_or("");
    if !ARCHS.iter().any(|arch| arch.name == name) {
        return;
    }
    let prefix = format!("{name}.");
    let keys = file.metadata().iter().map(|(key, _)| key.to_owned());
    for key in keys.filter(|key| key.starts_with(&prefix) || key.starts_with("xielu.")) {
        let original = as_json(&file.metadata().get(&key).unwrap());
        let short = key.strip_prefix(&prefix).unwrap_or(&key);
        for change in changes(&original).into_iter().chain([Value::Null]) {
            let Some(bytes) = patched(file, &key, &change) else {
                continue;
            };
            let what = format!("{name} ({model}): {key} = {change}");
            let must_fail = FIXED_GGUF.contains(&short) && !change.is_null();
            tally.check(&what, must_fail, || {
                ModelFile::from_bytes(bytes, &OpenOptions::default())
            });
        }
    }
}

fn directories(golden: &Path) -> Vec<PathBuf> {
    let mut list: Vec<PathBuf> = std::fs::read_dir(golden)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    list.sort();
    list
}

fn as_json(value: &Gguf<'_>) -> Value {
    match value {
        Gguf::Bool(flag) => json!(flag),
        Gguf::Str(text) => json!(text),
        Gguf::Array(array) => array.iter().map(|value| as_json(&value)).collect(),
        Gguf::F32(x) => json!(x),
        Gguf::F64(x) => json!(x),
        other => json!(other.as_i64()),
    }
}

/// The file with one key changed or removed; `None` if GGUF has no such value.
fn patched(file: &ModelFile, changed: &str, change: &Value) -> Option<Vec<u8>> {
    let mut writer = Writer::new();
    let list;
    for (key, value) in file.metadata().iter() {
        // The vocabulary is not needed.
        if key != changed && !key.starts_with("tokenizer.") {
            writer.key(key, &value).unwrap();
        }
    }
    match change {
        Value::Null => {}
        Value::Bool(flag) => writer.key(changed, &Gguf::Bool(*flag)).unwrap(),
        Value::String(text) => writer.key(changed, &Gguf::Str(text)).unwrap(),
        Value::Number(n) => {
            let number = match (n.as_i64(), n.as_f64()) {
                (Some(n), _) => Gguf::I64(n),
                (None, Some(x)) => Gguf::F64(x),
                _ => return None,
            };
            writer.key(changed, &number).unwrap();
        }
        Value::Array(values) => {
            let numbers: Option<Vec<i64>> = values
                .iter()
                .map(|value| value.as_bool().map(i64::from).or(value.as_i64()))
                .collect();
            list = match numbers {
                Some(numbers) => ArrayBuf::i32s(numbers.into_iter().map(|n| n as i32)),
                None => {
                    let floats: Option<Vec<f64>> = values.iter().map(Value::as_f64).collect();
                    ArrayBuf::f32s(floats?.into_iter().map(|x| x as f32))
                }
            };
            writer.key(changed, &Gguf::Array(list.as_array())).unwrap();
        }
        Value::Object(_) => return None,
    }
    for tensor in file.tensors() {
        writer
            .tensor(&tensor.name, tensor.ty, &tensor.shape)
            .unwrap();
    }
    let mut bytes = Vec::new();
    writer
        .write(&mut bytes, |planned, out| {
            let tensor = file.tensor(&planned.name).unwrap();
            out.write_all(&file.data(tensor).unwrap())?;
            Ok::<_, WriteError>(())
        })
        .unwrap();
    Some(bytes)
}
