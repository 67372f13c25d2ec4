//! Adapters compared with the models that result from merging them: in both formats, across formats, over a
//! quantized base, and per request.

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::reference::Reference;
use oxidize_core::backend::{Backend, Batch, KvType, SeqSlice, SessionConfig};
use oxidize_core::engine::{Engine, EngineConfig, Request};
use oxidize_core::error::Error;
use oxidize_core::file::{ModelFile, OpenOptions, TensorInfo, TensorType};
use oxidize_core::gguf::{Value, WriteError, Writer};
use oxidize_core::kv::BlockId;
use oxidize_core::lora::Adapter;
use oxidize_core::model::Model;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const ALPHA: f32 = 6.0;

fn tiny() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/model.gguf")
}

fn open(path: impl AsRef<Path>) -> ModelFile {
    ModelFile::open(path, &OpenOptions::default()).unwrap()
}

fn load(path: impl AsRef<Path>) -> Model {
    Model::load_with(path, &OpenOptions::default()).unwrap()
}

fn adapter(path: impl AsRef<Path>) -> Adapter {
    Adapter::open(path, &OpenOptions::default()).unwrap()
}

fn floats(file: &ModelFile, tensor: &TensorInfo) -> Vec<f32> {
    let mut all = Vec::new();
    let collect = |piece: &[f32]| -> Result<(), Error> {
        all.extend_from_slice(piece);
        Ok(())
    };
    file.for_each_f32(tensor, collect).unwrap();
    all
}

/// Pseudorandom numbers between −0.25 and 0.25.
fn random(seed: &mut u64, n: usize) -> Vec<f32> {
    let mut next = || {
        *seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((*seed >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 0.5
    };
    (0..n).map(|_| next()).collect()
}

/// The matrices A (rank × inputs) and B (outputs × rank) of an adapter, or stacks of them for experts.
struct LoraPair {
    /// Number of matrices in each stack; one unless the matrices are experts'.
    n: usize,
    rank: usize,
    inputs: usize,
    outputs: usize,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl LoraPair {
    fn random(seed: &mut u64, outputs: usize, inputs: usize) -> LoraPair {
        LoraPair::stack(seed, 1, outputs, inputs)
    }

    fn stack(seed: &mut u64, n: usize, outputs: usize, inputs: usize) -> LoraPair {
        let rank = 4;
        let a = random(seed, n * rank * inputs);
        let b = random(seed, n * outputs * rank);
        LoraPair {
            n,
            rank,
            inputs,
            outputs,
            a,
            b,
        }
    }

    /// An element of the scaled product of the `nth` matrices.
    fn product(&self, nth: usize, output: usize, input: usize) -> f32 {
        let (a, b) = (nth * self.rank, nth * self.outputs + output);
        let terms = (0..self.rank)
            .map(|r| self.b[b * self.rank + r] * self.a[(a + r) * self.inputs + input]);
        terms.sum::<f32>() * ALPHA / self.rank as f32
    }

    /// Shapes and data of the matrices for an embedding table: tokens × rank and width × rank.
    fn by_token(&self) -> [(Vec<usize>, Vec<f32>); 2] {
        let up = transposed(&self.a, self.inputs);
        let tokens = vec![self.outputs, self.rank];
        [(tokens, self.b.clone()), (vec![self.inputs, self.rank], up)]
    }
}

fn transposed(matrix: &[f32], cols: usize) -> Vec<f32> {
    let column = |col: usize| matrix.iter().skip(col).step_by(cols).copied();
    (0..cols).flat_map(column).collect()
}

fn is_table(name: &str) -> bool {
    ["embed_tokens.weight", "token_embd.weight", "wte.weight"]
        .iter()
        .any(|table| name.ends_with(table))
}

/// Pairs for all matrices of layers, the output matrix, and the embeddings if these are not tied, by tensor
/// name.
fn pairs(file: &ModelFile, transposed: bool, seed: u64) -> BTreeMap<String, LoraPair> {
    let mut seed = seed;
    let is_output = |name: &str| ["lm_head.weight", "output.weight"].contains(&name);
    let untied = file.tensors().iter().any(|tensor| is_output(&tensor.name));
    let adapted = |name: &str| {
        let in_layer = name.starts_with("blk.") || name.contains(".layers.") || name.contains("h.");
        in_layer || is_output(name) || untied && is_table(name)
    };
    let mut pairs = BTreeMap::new();
    for tensor in file.tensors() {
        let name = &tensor.name;
        if !adapted(name) || !name.ends_with(".weight") {
            continue;
        }
        let pair = match *tensor.dims().as_slice() {
            [n, rows, cols] => LoraPair::stack(&mut seed, n, rows, cols),
            [rows, cols] if transposed && !is_table(name) && !is_output(name) => {
                LoraPair::random(&mut seed, cols, rows)
            }
            [rows, cols] => LoraPair::random(&mut seed, rows, cols),
            _ => continue,
        };
        pairs.insert(name.clone(), pair);
    }
    assert!(pairs.len() >= 8, "{}", pairs.len());
    pairs
}

/// The tensor as f32, with the product of its pair added.
fn merged(
    file: &ModelFile,
    tensor: &TensorInfo,
    pair: Option<&LoraPair>,
    transposed: bool,
) -> Vec<f32> {
    let mut all = floats(file, tensor);
    let Some(pair) = pair else { return all };
    let dims = tensor.dims();
    let (rows, cols) = (dims[dims.len() - 2], dims[dims.len() - 1]);
    for (at, x) in all.iter_mut().enumerate() {
        let (nth, row, col) = (at / cols / rows, at / cols % rows, at % cols);
        *x += if transposed && [pair.inputs, pair.outputs] == [rows, cols] {
            pair.product(nth, col, row)
        } else {
            pair.product(nth, row, col)
        };
    }
    all
}

fn write_safetensors(path: &Path, tensors: &[(String, Vec<usize>, Vec<f32>)]) {
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for (name, shape, data) in tensors {
        let end = at + 4 * data.len();
        let entry = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [at, end]});
        header.insert(name.clone(), entry);
        at = end;
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(&header).unwrap();
    for (_, _, data) in tensors {
        file.write_all(bytemuck::cast_slice(data)).unwrap();
    }
}

fn write_peft(directory: &Path, pairs: &BTreeMap<String, LoraPair>) {
    let mut tensors = Vec::new();
    for (name, pair) in pairs {
        let module = format!("base_model.model.{}", name.trim_end_matches(".weight"));
        if is_table(name) {
            let [(_, tokens), (shape, up)] = pair.by_token();
            let a = transposed(&tokens, pair.rank);
            let (a_name, a_shape) = ("lora_embedding_A", vec![pair.rank, pair.outputs]);
            tensors.push((format!("{module}.{a_name}"), a_shape, a));
            tensors.push((format!("{module}.lora_embedding_B"), shape, up));
            continue;
        }
        tensors.push((
            format!("{module}.lora_A.weight"),
            vec![pair.rank, pair.inputs],
            pair.a.clone(),
        ));
        tensors.push((
            format!("{module}.lora_B.weight"),
            vec![pair.outputs, pair.rank],
            pair.b.clone(),
        ));
    }
    write_safetensors(&directory.join("adapter_model.safetensors"), &tensors);
    let config =
        serde_json::json!({"peft_type": "LORA", "r": 4, "lora_alpha": ALPHA, "bias": "none"});
    std::fs::write(directory.join("adapter_config.json"), config.to_string()).unwrap();
}

fn write_gguf_adapter(path: &Path, arch: &str, pairs: &BTreeMap<String, LoraPair>) {
    let mut writer = Writer::new();
    for (key, value) in [
        ("general.type", "adapter"),
        ("general.architecture", arch),
        ("adapter.type", "lora"),
    ] {
        writer.key(key, &Value::Str(value)).unwrap();
    }
    writer
        .key("adapter.lora.alpha", &Value::F32(ALPHA))
        .unwrap();
    let mut data: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for (name, pair) in pairs {
        let halves = match (is_table(name), pair.n) {
            (true, _) => pair.by_token(),
            (false, n) => {
                let (mut a, mut b) = (vec![pair.rank, pair.inputs], vec![pair.outputs, pair.rank]);
                if n > 1 {
                    a.insert(0, n);
                    b.insert(0, n);
                }
                [(a, pair.a.clone()), (b, pair.b.clone())]
            }
        };
        for (ending, (shape, floats)) in ["lora_a", "lora_b"].into_iter().zip(halves) {
            let shape: Vec<u64> = shape.iter().rev().map(|&size| size as u64).collect();
            let half = format!("{name}.{ending}");
            writer.tensor(&half, TensorType::F32, &shape).unwrap();
            data.insert(half, floats);
        }
    }
    let file = std::fs::File::create(path).unwrap();
    let write =
        |planned: &oxidize_core::gguf::Planned, out: &mut dyn Write| -> Result<(), WriteError> {
            out.write_all(bytemuck::cast_slice(&data[&planned.name]))
                .map_err(WriteError::Io)
        };
    writer.write(file, write).unwrap();
}

/// Writes a copy of a GGUF model with the pairs merged.
fn write_merged_gguf(path: &Path, file: &ModelFile, pairs: &BTreeMap<String, LoraPair>) {
    let mut writer = Writer::new();
    for (key, value) in file.metadata().iter() {
        writer.key(key, &value).unwrap();
    }
    for tensor in file.tensors() {
        let mut shape: Vec<u64> = tensor.dims().iter().map(|&d| d as u64).collect();
        shape.reverse();
        writer
            .tensor(&tensor.name, TensorType::F32, &shape)
            .unwrap();
    }
    let out = std::fs::File::create(path).unwrap();
    let write =
        |planned: &oxidize_core::gguf::Planned, out: &mut dyn Write| -> Result<(), WriteError> {
            let tensor = file.tensor(&planned.name).unwrap();
            let data = merged(file, tensor, pairs.get(&planned.name), false);
            out.write_all(bytemuck::cast_slice(&data))
                .map_err(WriteError::Io)
        };
    writer.write(out, write).unwrap();
}

/// Writes a copy of a safetensors model with the pairs merged.
fn write_merged_directory(
    directory: &Path,
    from: &Path,
    pairs: &BTreeMap<String, LoraPair>,
    transposed: bool,
) {
    let file = open(from);
    std::fs::copy(from.join("config.json"), directory.join("config.json")).unwrap();
    let tensors: Vec<_> = file
        .tensors()
        .iter()
        .map(|tensor| {
            let data = merged(&file, tensor, pairs.get(&tensor.name), transposed);
            (tensor.name.clone(), tensor.dims(), data)
        })
        .collect();
    write_safetensors(&directory.join("model.safetensors"), &tensors);
}

fn logits(model: &Model, backend: &dyn Backend, scales: &[f32]) -> Vec<f32> {
    let config = SessionConfig {
        max_outputs: 24,
        key_type: KvType::F32,
        value_type: KvType::F32,
        n_threads: Some(2),
        ..SessionConfig::for_context(64)
    };
    let mut session = model.session(backend, &config).unwrap();
    let tokens: Vec<u32> = (0..24)
        .map(|i| (i * 7 + 3) % model.n_vocab() as u32)
        .collect();
    let positions: Vec<u32> = (0..24).collect();
    let outputs: Vec<u32> = (0..24).step_by(5).collect();
    let sequences = [SeqSlice {
        n_tokens: 24,
        blocks: &[BlockId(0), BlockId(1)],
        adapters: scales,
        ..SeqSlice::default()
    }];
    let batch = Batch {
        tokens: &tokens,
        positions: &positions,
        sequences: &sequences,
        outputs: &outputs,
    };
    session.run(&batch).unwrap();
    (0..outputs.len())
        .flat_map(|i| session.output(i).unwrap().to_vec())
        .collect()
}

fn distance(ours: &[f32], reference: &[f32]) -> f32 {
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>().sqrt();
    norm(&mut ours.iter().zip(reference).map(|(a, b)| a - b)) / norm(&mut reference.iter().copied())
}

fn assert_near(ours: &[f32], reference: &[f32], what: &str) {
    let distance = distance(ours, reference);
    assert!(distance < 1e-4, "{what}: {distance}");
}

#[test]
fn adapter_matches_merged_model() {
    // These have permuted rotary rows; fused matrices; transposed and fused matrices; biases and head norms;
    // experts in separate tensors and stacked.
    for (name, transposed) in [
        ("llama2", false),
        ("phi3", false),
        ("gpt2", true),
        ("qwen3", false),
        ("mixtral", false),
        ("qwen3-moe", false),
    ] {
        let golden = oxidize_golden::build(name);
        let directory = golden.directory();
        let temporary = tempfile::tempdir().unwrap();
        let place = |name: &str| temporary.path().join(name);
        for name in ["peft", "merged"] {
            std::fs::create_dir(place(name)).unwrap();
        }
        let (hugging_face, gguf) = (load(directory), load(golden.gguf()));

        let changes = pairs(&open(directory), transposed, 1);
        write_peft(&place("peft"), &changes);
        write_merged_directory(&place("merged"), directory, &changes, transposed);
        let expected = logits(&load(place("merged")), &Reference, &[]);
        let plain = logits(&hugging_face, &Reference, &[]);
        assert!(
            distance(&expected, &plain) > 0.05,
            "{name}: the adapter has almost no effect"
        );
        for (base, format) in [(&hugging_face, "safetensors"), (&gguf, "GGUF")] {
            let adapted = base
                .with_adapters(vec![(adapter(place("peft")), 1.0)])
                .unwrap();
            for backend in [&Reference as &dyn Backend, &Cpu::default()] {
                let what = format!("{name} ({format}) with PEFT on {}", backend.name());
                assert_near(&logits(&adapted, backend, &[1.0]), &expected, &what);
                assert_near(
                    &logits(&adapted, backend, &[]),
                    &plain,
                    &format!("{what}, off"),
                );
            }
        }

        let changes = pairs(&open(golden.gguf()), false, 2);
        write_gguf_adapter(&place("adapter.gguf"), gguf.arch().name, &changes);
        write_merged_gguf(&place("merged.gguf"), &open(golden.gguf()), &changes);
        let expected = logits(&load(place("merged.gguf")), &Reference, &[]);
        for (base, format) in [(&hugging_face, "safetensors"), (&gguf, "GGUF")] {
            let adapted = base
                .with_adapters(vec![(adapter(place("adapter.gguf")), 1.0)])
                .unwrap();
            let what = format!("{name} ({format}) with a GGUF adapter");
            assert_near(&logits(&adapted, &Cpu::default(), &[1.0]), &expected, &what);
        }
    }
}

/// A zero alpha turns a PEFT adapter off. GGUF converters write zero if the factor is part of the matrices.
#[test]
fn zero_alpha_depends_on_the_format() {
    let temporary = tempfile::tempdir().unwrap();
    let (model, changes) = (load(tiny()), pairs(&open(tiny()), false, 3));
    let mut one = BTreeMap::new();
    let (name, pair) = changes
        .into_iter()
        .find(|(name, _)| name.contains("ffn_up"))
        .unwrap();
    let (inputs, outputs) = (pair.inputs, pair.outputs);
    one.insert(name, pair);
    let gguf = temporary.path().join("adapter.gguf");
    write_gguf_adapter(&gguf, model.arch().name, &one);
    let bytes = std::fs::read(&gguf).unwrap();
    let key = b"adapter.lora.alpha";
    let at = bytes
        .windows(key.len())
        .position(|window| window == key)
        .unwrap();
    let mut zero = bytes.clone();
    // The type of the value precedes it.
    zero[at + key.len() + 4..][..4].copy_from_slice(&0f32.to_le_bytes());
    std::fs::write(&gguf, zero).unwrap();
    assert_eq!(adapter(&gguf).deltas(&model).unwrap()[0].factor, 1.0);

    let mut seed = 3;
    let pair = LoraPair::random(&mut seed, outputs, inputs);
    let module = "model.layers.0.mlp.up_proj.weight".to_owned();
    write_peft(temporary.path(), &BTreeMap::from([(module, pair)]));
    let config = temporary.path().join("adapter_config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let zero = text.replace("\"lora_alpha\":6.0", "\"lora_alpha\":0");
    assert_ne!(zero, text);
    std::fs::write(&config, zero).unwrap();
    assert_eq!(
        adapter(temporary.path()).deltas(&model).unwrap()[0].factor,
        0.0
    );
}

/// A GGUF adapter for stacks of experts whose gate and up matrices are fused in the base's safetensors.
#[test]
fn adapter_of_separate_stacks_fits_fused_experts() {
    let golden = oxidize_golden::build("gpt-oss");
    let directory = golden.directory();
    let temporary = tempfile::tempdir().unwrap();
    let place = |name: &str| temporary.path().join(name);
    let file = open(golden.gguf());
    let mut changes = pairs(&file, false, 5);
    changes.retain(|name, _| name.contains("_exps"));
    write_gguf_adapter(&place("adapter.gguf"), "gpt-oss", &changes);
    write_merged_gguf(&place("merged.gguf"), &file, &changes);
    let expected = logits(&load(place("merged.gguf")), &Reference, &[]);
    for form in [directory, &golden.gguf()] {
        let adapters = vec![(adapter(place("adapter.gguf")), 1.0)];
        let adapted = load(form).with_adapters(adapters).unwrap();
        for backend in [&Reference as &dyn Backend, &Cpu::default()] {
            let what = format!("{} on {}", form.display(), backend.name());
            assert_near(&logits(&adapted, backend, &[1.0]), &expected, &what);
        }
    }
}

/// With tied embeddings, an adapter of the output matrix does not change the embeddings.
#[test]
fn adapter_of_tied_output_does_not_change_embeddings() {
    let golden = oxidize_golden::build("llama-tied");
    let directory = golden.directory();
    let temporary = tempfile::tempdir().unwrap();
    let place = |name: &str| temporary.path().join(name);
    for name in ["peft", "merged"] {
        std::fs::create_dir(place(name)).unwrap();
    }
    let file = open(directory);
    let table = "model.embed_tokens.weight";
    let change = LoraPair::random(&mut 6, 320, 64);
    let mut tensors: Vec<_> = file
        .tensors()
        .iter()
        .map(|tensor| (tensor.name.clone(), tensor.dims(), floats(&file, tensor)))
        .collect();
    let output = merged(&file, file.tensor(table).unwrap(), Some(&change), false);
    tensors.push(("lm_head.weight".into(), vec![320, 64], output));
    write_safetensors(&place("merged/model.safetensors"), &tensors);
    std::fs::copy(directory.join("config.json"), place("merged/config.json")).unwrap();
    write_peft(
        &place("peft"),
        &BTreeMap::from([("lm_head.weight".to_owned(), change)]),
    );
    let expected = logits(&load(place("merged")), &Reference, &[]);
    for form in [directory, &golden.gguf()] {
        let adapters = vec![(adapter(place("peft")), 1.0)];
        let adapted = load(form).with_adapters(adapters).unwrap();
        let ours = logits(&adapted, &Cpu::default(), &[1.0]);
        assert_near(&ours, &expected, &form.display().to_string());
    }
}

/// A model with two adapters, both of which change all matrices.
struct TwoAdapters {
    _directory: tempfile::TempDir,
    model: Model,
    both_merged: Model,
}

fn two_adapters(base: &Path) -> TwoAdapters {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    let (model, file) = (load(base), open(base));
    let (first, second) = (pairs(&file, false, 3), pairs(&file, false, 4));
    write_gguf_adapter(&place("first.gguf"), model.arch().name, &first);
    write_gguf_adapter(&place("second.gguf"), model.arch().name, &second);
    write_merged_gguf(&place("one.gguf"), &file, &first);
    write_merged_gguf(&place("both.gguf"), &open(place("one.gguf")), &second);
    let adapters = ["first.gguf", "second.gguf"].map(|name| (adapter(place(name)), 1.0));
    TwoAdapters {
        model: model.with_adapters(adapters.into()).unwrap(),
        both_merged: load(place("both.gguf")),
        _directory: directory,
    }
}

#[test]
fn adapters_add_up() {
    let two = two_adapters(&tiny());
    let expected = logits(&two.both_merged, &Reference, &[]);
    for backend in [&Reference as &dyn Backend, &Cpu::default()] {
        assert_near(
            &logits(&two.model, backend, &[1.0, 1.0]),
            &expected,
            backend.name(),
        );
    }
    let half = logits(&two.model, &Cpu::default(), &[0.5]);
    let oracle = logits(&two.model, &Reference, &[0.5, 0.0]);
    assert_near(&half, &oracle, "half of the first");
    assert!(distance(&half, &expected) > 0.01);
    assert_eq!(
        (two.model.adapters().len(), two.model.adapters()[0].rank()),
        (2, 4)
    );
}

#[test]
fn requests_have_their_own_scales() {
    let two = two_adapters(&tiny());
    let config = EngineConfig {
        n_threads: Some(2),
        cache_tokens: Some(2048),
        ..EngineConfig::default()
    };
    let start = || Engine::start(two.model.clone(), Arc::new(Cpu::default()), &config).unwrap();
    let request = |adapters: Option<Vec<f32>>| Request {
        prompt: oxidize_core::engine::Prompt::Tokens((0..70).map(|i| (i * 11 + 5) % 320).collect()),
        max_tokens: Some(12),
        ignore_eos: true,
        adapters,
        sampling: Some(oxidize_core::sampling::SamplingParams::greedy()),
        ..Request::default()
    };
    let read = |mut stream: oxidize_core::engine::TokenStream| {
        let ids: Vec<u32> = stream.by_ref().map(|token| token.unwrap().id).collect();
        (ids, stream.completion().unwrap().cached_tokens)
    };
    let scales = [
        None,
        Some(vec![0.0, 0.0]),
        Some(vec![1.0]),
        Some(vec![0.3, -1.0]),
    ];
    let alone: Vec<_> = scales
        .iter()
        .map(|scales| read(start().submit(request(scales.clone())).unwrap()).0)
        .collect();
    assert!(alone.windows(2).all(|pair| pair[0] != pair[1]), "{alone:?}");
    let engine = start();
    let streams: Vec<_> = scales
        .iter()
        .map(|scales| engine.submit(request(scales.clone())).unwrap())
        .collect();
    let together: Vec<_> = streams.into_iter().map(|stream| read(stream).0).collect();
    assert_eq!(together, alone);
    // A prefix computed with other scales is not reused; one with the same scales is.
    let (_, cached) = read(engine.submit(request(Some(vec![0.7]))).unwrap());
    assert_eq!(cached, 0);
    let (ids, cached) = read(engine.submit(request(Some(vec![1.0, 0.0]))).unwrap());
    assert_eq!((ids, cached), (alone[2].clone(), 64));
    // The model's default scales, given explicitly.
    let (ids, cached) = read(engine.submit(request(Some(vec![1.0, 1.0]))).unwrap());
    assert_eq!((ids, cached), (alone[0].clone(), 64));

    for wrong in [vec![1.0, 1.0, 1.0], vec![f32::NAN]] {
        let error = engine
            .submit(request(Some(wrong)))
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("2 adapters"), "{error}");
    }
}

#[test]
fn adapter_in_memory_is_the_one_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("adapter.gguf");
    let pair = LoraPair::random(&mut 3, 64, 64);
    let pairs = BTreeMap::from([("blk.0.attn_q.weight".to_owned(), pair)]);
    write_gguf_adapter(&path, "llama", &pairs);
    let bytes = std::fs::read(&path).unwrap();
    let open = |bytes| Adapter::from_bytes("mine.gguf", bytes, &OpenOptions::default());
    let (in_memory, on_disk) = (open(bytes).unwrap(), adapter(&path));
    let model = load(tiny());
    let matrix = |adapter: &Adapter| {
        let deltas = adapter.deltas(&model).unwrap();
        (deltas[0].factor, adapter.rank(), adapter.n_targets())
    };
    assert_eq!(matrix(&in_memory), matrix(&on_disk));
    let error = open(b"no model".to_vec()).err().unwrap().to_string();
    assert!(error.contains("mine.gguf"), "{error}");
}

#[test]
fn invalid_adapters_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    let model = load(tiny());
    let rejected = |path: &Path| {
        let opened = Adapter::open(path, &OpenOptions::default());
        let added = opened.and_then(|adapter| model.with_adapters(vec![(adapter, 1.0)]));
        added.err().unwrap().to_string()
    };
    let pair = |outputs, inputs| LoraPair::random(&mut 9, outputs, inputs);
    let one = |name: &str, pair: LoraPair| BTreeMap::from([(name.to_owned(), pair)]);

    let error = rejected(&tiny());
    assert!(error.contains("general.type"), "{error}");
    let path = place("other.gguf");
    write_gguf_adapter(&path, "qwen2", &one("blk.0.attn_q.weight", pair(64, 64)));
    let error = rejected(&path);
    assert!(
        error.contains("qwen2") && error.contains("llama"),
        "{error}"
    );
    write_gguf_adapter(&path, "llama", &one("blk.7.attn_q.weight", pair(64, 64)));
    assert!(rejected(&path).contains("blk.7.attn_q.weight"));
    write_gguf_adapter(&path, "llama", &one("token_embd.weight", pair(321, 64)));
    let error = rejected(&path);
    assert!(
        error.contains("token_embd.weight") && error.contains("[321, 64]"),
        "{error}"
    );
    let experts = "blk.0.ffn_gate_exps.weight";
    write_gguf_adapter(
        &path,
        "llama",
        &one(experts, LoraPair::stack(&mut 9, 4, 32, 64)),
    );
    assert!(rejected(&path).contains(experts));
    write_gguf_adapter(&path, "llama", &one("blk.0.attn_q.weight", pair(63, 64)));
    let error = rejected(&path);
    assert!(
        error.contains("[63, 64]") && error.contains("[64, 64]"),
        "{error}"
    );

    let error = rejected(directory.path());
    assert!(error.contains("adapter_model.safetensors"), "{error}");
    let module = "model.layers.0.self_attn.q_proj";
    write_peft(
        directory.path(),
        &one(&format!("{module}.weight"), pair(64, 64)),
    );
    assert!(Adapter::open(directory.path(), &OpenOptions::default()).is_ok());
    for (config, expected) in [
        ("{", "adapter_config.json"),
        (r#"{"peft_type": "IA3"}"#, "IA3"),
        (r#"{"peft_type": "LORA"}"#, "lora_alpha"),
        (
            r#"{"peft_type": "LORA", "lora_alpha": 1, "use_dora": true}"#,
            "use_dora",
        ),
        (
            r#"{"peft_type": "LORA", "lora_alpha": 1, "bias": "all"}"#,
            "bias",
        ),
    ] {
        std::fs::write(place("adapter_config.json"), config).unwrap();
        let error = rejected(directory.path());
        assert!(error.contains(expected), "{error}");
    }
    write_peft(directory.path(), &BTreeMap::new());
    let error = rejected(directory.path());
    assert!(error.contains("no LoRA matrices"), "{error}");
    let weights = place("adapter_model.safetensors");
    let half = format!("base_model.model.{module}.lora_A.weight");
    write_safetensors(&weights, &[(half.clone(), vec![4, 64], vec![0.0; 256])]);
    let error = rejected(directory.path());
    assert!(
        error.contains(&half) && error.contains("missing"),
        "{error}"
    );
    write_safetensors(
        &weights,
        &[("model.norm.weight".into(), vec![64], vec![0.0; 64])],
    );
    assert!(rejected(directory.path()).contains("model.norm.weight"));
}
