//! Models in well-formed files that cannot be run. Each is the tiny model with one change, and is rejected
//! with a message that names the problem.

#[allow(dead_code, reason = "other tests use the rest")]
mod tiny;

use oxidize_core::Error;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{Batch, SeqSlice, SessionConfig};
use oxidize_core::engine::{Engine, EngineConfig, EngineError, Request};
use oxidize_core::file::{ModelFile, OpenOptions, TensorType};
use oxidize_core::gguf::{ArrayBuf, Value, Writer};
use oxidize_core::kv::BlockId;
use oxidize_core::model::Model;
use oxidize_core::sampling::SamplingError;
use std::sync::{Arc, LazyLock};

static ORIGINAL: LazyLock<ModelFile> = LazyLock::new(|| tiny::model().file().clone());

/// Metadata and tensors of a GGUF file, which can be changed and reassembled.
struct Parts {
    keys: Vec<(String, Value<'static>)>,
    tensors: Vec<Tensor>,
}

struct Tensor {
    name: String,
    ty: TensorType,
    /// Dimensions, the fastest-varying first.
    shape: Vec<u64>,
    data: Vec<u8>,
}

impl Parts {
    fn new() -> Parts {
        let file = &*ORIGINAL;
        let keys = file.metadata().iter();
        let tensor = |info: &oxidize_core::file::TensorInfo| Tensor {
            name: info.name.clone(),
            ty: info.ty,
            shape: info.shape.clone(),
            data: file.data(info).unwrap().to_vec(),
        };
        Parts {
            keys: keys.map(|(key, value)| (key.to_owned(), value)).collect(),
            tensors: file.tensors().iter().map(tensor).collect(),
        }
    }

    fn set(&mut self, key: &str, value: Value<'static>) {
        self.keys.retain(|(name, _)| name != key);
        self.keys.push((key.to_owned(), value));
    }

    fn unset(&mut self, key: &str) {
        let before = self.keys.len();
        self.keys.retain(|(name, _)| name != key);
        assert!(self.keys.len() < before, "no key {key}");
    }

    fn tensor(&mut self, name: &str) -> &mut Tensor {
        let found = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        found.unwrap_or_else(|| panic!("no tensor {name}"))
    }

    fn load(&self) -> Result<Model, Error> {
        let mut writer = Writer::new();
        for (key, value) in &self.keys {
            writer.key(key, value).unwrap();
        }
        for tensor in &self.tensors {
            writer
                .tensor(&tensor.name, tensor.ty, &tensor.shape)
                .unwrap();
        }
        let (mut bytes, mut tensors) = (Vec::new(), self.tensors.iter());
        writer
            .write(&mut bytes, |_, out| {
                out.write_all(&tensors.next().unwrap().data)
                    .map_err(Error::io(std::path::Path::new("memory")))
            })
            .unwrap();
        Model::from_file(ModelFile::from_bytes(bytes, &OpenOptions::default())?)
    }
}

/// Asserts that the changed model is rejected with a message that contains all of `expected`.
fn assert_rejected(change: impl FnOnce(&mut Parts), expected: &[&str]) {
    let mut parts = Parts::new();
    change(&mut parts);
    let result = parts.load().and_then(|model| {
        model.tokenizer()?;
        Ok(())
    });
    let error = match result {
        Ok(()) => panic!("accepted, where an error with {expected:?} was expected"),
        Err(error) => error.to_string(),
    };
    for part in expected {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

fn assert_key_rejected(key: &'static str, value: Value<'static>, expected: &[&str]) {
    assert_rejected(|parts| parts.set(key, value), expected);
}

#[test]
fn unchanged_model_is_accepted() {
    let model = Parts::new().load().unwrap();
    model.tokenizer().unwrap();
    run(&model, &[5, 6, 7]).unwrap();
}

#[test]
fn architecture_must_be_known() {
    let key = "general.architecture";
    assert_key_rejected(
        key,
        Value::Str("lama"),
        &["\"lama\"", "not supported", "llama"],
    );
    assert_key_rejected(key, Value::U32(3), &[key]);
    assert_rejected(|parts| parts.unset(key), &[key, "missing"]);
}

#[test]
fn hyperparameters_must_be_present_and_valid() {
    let required = ["block_count", "embedding_length", "attention.head_count"];
    for key in required {
        let key = format!("llama.{key}");
        assert_rejected(|parts| parts.unset(&key), &[&key, "missing"]);
    }
    for key in ["context_length"].iter().chain(&required) {
        let key = format!("llama.{key}");
        for value in [
            Value::U32(0),
            Value::I32(-1),
            Value::U64(1 << 60),
            Value::Str("many"),
            Value::Bool(true),
        ] {
            assert_rejected(|parts| parts.set(&key, value), &[&key]);
        }
    }
    // Some families lack this key, so only the tensors show the problem.
    let ff = "llama.feed_forward_length";
    assert_rejected(|parts| parts.unset(ff), &["blk.0.ffn_gate.weight", "96"]);
    assert_key_rejected(ff, Value::U32(0), &["ffn"]);
    assert_key_rejected(ff, Value::I32(-1), &[ff]);
    let heads = "llama.attention.head_count";
    let kv_heads = "llama.attention.head_count_kv";
    assert_key_rejected(
        kv_heads,
        Value::U32(3),
        &[kv_heads, "3 does not divide the 4 heads"],
    );
    assert_key_rejected(kv_heads, Value::U32(0), &[kv_heads]);
    assert_rejected(
        |parts| {
            parts.unset("llama.attention.key_length");
            parts.set(heads, Value::U32(5));
            parts.set(kv_heads, Value::U32(5));
        },
        &[heads, "5 does not divide the width 64"],
    );
    for key in ["llama.attention.key_length", "llama.attention.value_length"] {
        assert_key_rejected(key, Value::U32(0), &[key]);
    }
    let epsilon = "llama.attention.layer_norm_rms_epsilon";
    assert_key_rejected(epsilon, Value::F32(f32::NAN), &[epsilon]);
    assert_key_rejected(epsilon, Value::F32(-1.0), &[epsilon]);
    let dims = "llama.rope.dimension_count";
    assert_key_rejected(dims, Value::U32(17), &[dims]);
    assert_key_rejected(dims, Value::U32(7), &[dims, "7"]);
    let base = "llama.rope.freq_base";
    assert_key_rejected(base, Value::F32(f32::INFINITY), &[base]);
    assert_key_rejected(base, Value::F32(-5.0), &[base]);
    let scaling = "llama.rope.scaling.type";
    assert_key_rejected(scaling, Value::Str("wishful"), &[scaling, "wishful"]);
}

#[test]
fn every_tensor_must_be_present() {
    let names: Vec<String> = Parts::new().tensors.into_iter().map(|t| t.name).collect();
    assert_eq!(names.len(), 20);
    for name in names {
        assert_rejected(
            |parts| parts.tensors.retain(|t| t.name != name),
            &[&name, "missing"],
        );
    }
    assert_key_rejected("llama.block_count", Value::U32(3), &["blk.2.", "missing"]);
}

#[test]
fn every_tensor_must_have_its_shape() {
    for name in Parts::new().tensors.into_iter().map(|tensor| tensor.name) {
        assert_rejected(
            |parts| {
                // Half as many elements in a row.
                let tensor = parts.tensor(&name);
                tensor.shape[0] /= 2;
                tensor.data.truncate(tensor.data.len() / 2);
            },
            &[&name, "shape", "expected"],
        );
    }
    let name = "blk.1.ffn_down.weight";
    assert_rejected(
        |parts| parts.tensor(name).shape.reverse(),
        &[name, "[96, 64]", "[64, 96]"],
    );
    assert_rejected(
        |parts| parts.tensor(name).shape = vec![64 * 96],
        &[name, "[6144]"],
    );
    assert_rejected(
        |parts| parts.tensor(name).shape = vec![96, 32, 2],
        &[name, "[2, 32, 96]"],
    );
    assert_key_rejected(
        "llama.feed_forward_length",
        Value::U32(97),
        &["ffn_gate.weight", "97"],
    );
    assert_key_rejected(
        "llama.embedding_length",
        Value::U32(65),
        &["token_embd.weight", "65"],
    );
}

#[test]
fn weights_must_have_a_weight_type() {
    let name = "blk.0.ffn_up.weight";
    assert_rejected(
        |parts| {
            // A row of 256 elements is one block of a type that is only for activations.
            parts.set("llama.embedding_length", Value::U32(256));
            let embedding = parts.tensor("token_embd.weight");
            embedding.ty = TensorType::Q8_K;
            embedding.shape = vec![256, 320];
            embedding.data = vec![0; 320 * TensorType::Q8_K.block_bytes()];
        },
        &["token_embd.weight", "Q8_K"],
    );
    assert_rejected(
        |parts| {
            let tensor = parts.tensor(name);
            (tensor.ty, tensor.data) = (TensorType::I32, vec![0; 4 * 64 * 96]);
        },
        &[name, "I32"],
    );
}

#[test]
fn vocabulary_must_fit_the_model() {
    let tokens = |n: usize| -> Value<'static> {
        let list = ArrayBuf::strings((0..n).map(|i| format!("token{i}")));
        Value::Array(Box::leak(Box::new(list)).as_array())
    };
    assert_rejected(
        |parts| {
            parts.set("tokenizer.ggml.tokens", tokens(321));
            parts.unset("tokenizer.ggml.token_type");
        },
        &["321 tokens", "320"],
    );
    assert_rejected(
        |parts| parts.set("tokenizer.ggml.tokens", tokens(0)),
        &["tokenizer"],
    );
    assert_rejected(
        |parts| parts.unset("tokenizer.ggml.tokens"),
        &["tokenizer.ggml.tokens"],
    );
    assert_rejected(
        |parts| parts.unset("tokenizer.ggml.model"),
        &["tokenizer.ggml.model"],
    );
    assert_key_rejected("tokenizer.ggml.model", Value::Str("runes"), &["runes"]);
}

#[test]
fn vectors_must_be_finite() {
    for value in [f32::NAN, f32::INFINITY] {
        assert_rejected(
            |parts| {
                let tensor = parts.tensor("blk.1.attn_norm.weight");
                tensor.data[4 * 9..4 * 10].copy_from_slice(&value.to_le_bytes());
            },
            &["blk.1.attn_norm.weight", "element 9", "finite"],
        );
    }
}

/// Matrices are not read before they are used, so a NaN in them is found when a token is sampled.
#[test]
fn matrix_with_nan_is_reported() {
    let mut parts = Parts::new();
    let tensor = parts.tensor("blk.1.ffn_down.weight");
    tensor.data[2 * 77..2 * 78].copy_from_slice(&0x7e00u16.to_le_bytes());
    let model = parts.load().unwrap();
    assert_eq!(
        model.find_not_finite().as_deref(),
        Some("blk.1.ffn_down.weight")
    );
    let engine = Engine::start(model, Arc::new(Cpu::default()), &EngineConfig::default()).unwrap();
    let request = Request {
        prompt: vec![5, 6, 7].into(),
        ..Request::default()
    };
    let error = engine.submit(request).unwrap().collect_text().unwrap_err();
    let bad_logit = |error: &Error| {
        matches!(
            error,
            Error::Engine(EngineError::Sampling(SamplingError::BadLogit { .. }))
        )
    };
    assert!(bad_logit(&error), "{error}");
}

/// Runs one batch.
fn run(model: &Model, tokens: &[u32]) -> Result<(), Error> {
    let mut session = model.session(&Cpu::default(), &SessionConfig::for_context(64))?;
    let positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let batch = Batch {
        tokens,
        positions: &positions,
        sequences: &[SeqSlice {
            slot: 0,
            n_tokens: tokens.len(),
            blocks: &[BlockId(0), BlockId(1)],
            ..SeqSlice::default()
        }],
        outputs: &[tokens.len() as u32 - 1],
    };
    session.run(&batch)?;
    session.output(0)?;
    Ok(())
}

/// With any metadata value, the model is rejected or runs; nothing panics or exhausts memory.
#[test]
fn no_metadata_value_causes_a_panic() {
    let numbers = [
        Value::U32(0),
        Value::U32(1),
        Value::U32(2),
        Value::U32(3),
        Value::U32(5),
        Value::U32(64),
        Value::U32(u32::MAX),
        Value::U64(u64::MAX),
        Value::I32(-1),
        Value::I64(i64::MIN),
        Value::F32(0.0),
        Value::F32(-0.5),
        Value::F32(1e-30),
        Value::F32(3e38),
        Value::F32(f32::NAN),
        Value::F64(1e300),
        Value::Bool(true),
        Value::Str(""),
        Value::Str("yarn"),
        Value::Array(Box::leak(Box::new(ArrayBuf::strings(["a", "b"]))).as_array()),
    ];
    let mut keys: Vec<String> = Parts::new().keys.into_iter().map(|(key, _)| key).collect();
    keys.retain(|key| !key.starts_with("general.") || key == "general.alignment");
    keys.extend(
        [
            "attention.sliding_window",
            "attention.layer_norm_epsilon",
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "expert_count",
            "expert_used_count",
            "rope.scaling.type",
            "rope.scaling.factor",
            "rope.scaling.original_context_length",
            "rope.scaling.yarn_beta_fast",
            "rope.freq_base_swa",
        ]
        .map(|key| format!("llama.{key}")),
    );
    let mut accepted = 0;
    for key in &keys {
        for value in &numbers {
            let mut parts = Parts::new();
            parts.set(key, *value);
            if let Ok(model) = parts.load() {
                let runs = run(&model, &[5, 6, 7]).is_ok();
                accepted += usize::from(runs);
                let _ = model.tokenizer();
                let _ = model.sampling_defaults();
            }
        }
    }
    // Some keys do not affect the graph, and some values are those of the file.
    assert!(accepted > 100, "{accepted}");
}
