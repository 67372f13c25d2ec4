//! Models that are well-formed files and yet cannot be run: each is refused with a message that
//! names what is wrong and where. Made from the tiny model by changing one thing.

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

/// The parts of a GGUF file, to be changed and put together again.
struct Parts {
    keys: Vec<(String, Value<'static>)>,
    tensors: Vec<Tensor>,
}

struct Tensor {
    name: String,
    ty: TensorType,
    /// Fastest-varying first.
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
        assert!(self.keys.len() < before, "there is no key {key}");
    }

    fn tensor(&mut self, name: &str) -> &mut Tensor {
        let found = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        found.unwrap_or_else(|| panic!("there is no tensor {name}"))
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

/// Checks that the changed model is refused, in words that contain all of `named`.
fn refused(change: impl FnOnce(&mut Parts), named: &[&str]) {
    let mut parts = Parts::new();
    change(&mut parts);
    let result = parts.load().and_then(|model| {
        model.tokenizer()?;
        Ok(())
    });
    let error = match result {
        Ok(()) => panic!("accepted, where {named:?} should have been named"),
        Err(error) => error.to_string(),
    };
    for part in named {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

fn refused_key(key: &'static str, value: Value<'static>, named: &[&str]) {
    refused(|parts| parts.set(key, value), named);
}

#[test]
fn unchanged_it_is_accepted() {
    let model = Parts::new().load().unwrap();
    model.tokenizer().unwrap();
    run(&model, &[5, 6, 7]).unwrap();
}

#[test]
fn an_architecture_must_be_known() {
    let key = "general.architecture";
    refused_key(
        key,
        Value::Str("lama"),
        &["\"lama\"", "not supported", "llama"],
    );
    refused_key(key, Value::U32(3), &[key]);
    refused(|parts| parts.unset(key), &[key, "missing"]);
}

#[test]
fn hyper_parameters_must_be_there_and_make_sense() {
    let required = ["block_count", "embedding_length", "attention.head_count"];
    for key in required {
        let key = format!("llama.{key}");
        refused(|parts| parts.unset(&key), &[&key, "missing"]);
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
            refused(|parts| parts.set(&key, value), &[&key]);
        }
    }
    // Some families leave it out, so it is the tensors that do not fit.
    let ff = "llama.feed_forward_length";
    refused(|parts| parts.unset(ff), &["blk.0.ffn_gate.weight", "96"]);
    refused_key(ff, Value::U32(0), &["ffn"]);
    refused_key(ff, Value::I32(-1), &[ff]);
    let heads = "llama.attention.head_count";
    let kv_heads = "llama.attention.head_count_kv";
    refused_key(
        kv_heads,
        Value::U32(3),
        &[kv_heads, "3 does not divide the 4 heads"],
    );
    refused_key(kv_heads, Value::U32(0), &[kv_heads]);
    refused(
        |parts| {
            parts.unset("llama.attention.key_length");
            parts.set(heads, Value::U32(5));
            parts.set(kv_heads, Value::U32(5));
        },
        &[heads, "5 does not divide the width 64"],
    );
    for key in ["llama.attention.key_length", "llama.attention.value_length"] {
        refused_key(key, Value::U32(0), &[key]);
    }
    let epsilon = "llama.attention.layer_norm_rms_epsilon";
    refused_key(epsilon, Value::F32(f32::NAN), &[epsilon]);
    refused_key(epsilon, Value::F32(-1.0), &[epsilon]);
    let dims = "llama.rope.dimension_count";
    refused_key(dims, Value::U32(17), &[dims]);
    refused_key(dims, Value::U32(7), &[dims, "7"]);
    let base = "llama.rope.freq_base";
    refused_key(base, Value::F32(f32::INFINITY), &[base]);
    refused_key(base, Value::F32(-5.0), &[base]);
    let scaling = "llama.rope.scaling.type";
    refused_key(scaling, Value::Str("wishful"), &[scaling, "wishful"]);
}

#[test]
fn every_tensor_must_be_there() {
    let names: Vec<String> = Parts::new().tensors.into_iter().map(|t| t.name).collect();
    assert_eq!(names.len(), 20);
    for name in names {
        refused(
            |parts| parts.tensors.retain(|t| t.name != name),
            &[&name, "missing"],
        );
    }
    refused_key("llama.block_count", Value::U32(3), &["blk.2.", "missing"]);
}

#[test]
fn every_tensor_must_have_its_shape() {
    for name in Parts::new().tensors.into_iter().map(|tensor| tensor.name) {
        refused(
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
    refused(
        |parts| parts.tensor(name).shape.reverse(),
        &[name, "[96, 64]", "[64, 96]"],
    );
    refused(
        |parts| parts.tensor(name).shape = vec![64 * 96],
        &[name, "[6144]"],
    );
    refused(
        |parts| parts.tensor(name).shape = vec![96, 32, 2],
        &[name, "[2, 32, 96]"],
    );
    refused_key(
        "llama.feed_forward_length",
        Value::U32(97),
        &["ffn_gate.weight", "97"],
    );
    refused_key(
        "llama.embedding_length",
        Value::U32(65),
        &["token_embd.weight", "65"],
    );
}

#[test]
fn weights_must_be_of_a_type_that_holds_weights() {
    let name = "blk.0.ffn_up.weight";
    refused(
        |parts| {
            // A row of 256 as one block of a type that is only for activations.
            parts.set("llama.embedding_length", Value::U32(256));
            let embedding = parts.tensor("token_embd.weight");
            embedding.ty = TensorType::Q8_K;
            embedding.shape = vec![256, 320];
            embedding.data = vec![0; 320 * TensorType::Q8_K.block_bytes()];
        },
        &["token_embd.weight", "Q8_K"],
    );
    refused(
        |parts| {
            let tensor = parts.tensor(name);
            (tensor.ty, tensor.data) = (TensorType::I32, vec![0; 4 * 64 * 96]);
        },
        &[name, "I32"],
    );
}

#[test]
fn the_vocabulary_must_fit_the_model() {
    let tokens = |n: usize| -> Value<'static> {
        let list = ArrayBuf::strings((0..n).map(|i| format!("token{i}")));
        Value::Array(Box::leak(Box::new(list)).as_array())
    };
    refused(
        |parts| {
            parts.set("tokenizer.ggml.tokens", tokens(321));
            parts.unset("tokenizer.ggml.token_type");
        },
        &["321 tokens", "320"],
    );
    refused(
        |parts| parts.set("tokenizer.ggml.tokens", tokens(0)),
        &["tokenizer"],
    );
    refused(
        |parts| parts.unset("tokenizer.ggml.tokens"),
        &["tokenizer.ggml.tokens"],
    );
    refused(
        |parts| parts.unset("tokenizer.ggml.model"),
        &["tokenizer.ggml.model"],
    );
    refused_key("tokenizer.ggml.model", Value::Str("runes"), &["runes"]);
}

#[test]
fn a_vector_must_be_of_numbers() {
    for value in [f32::NAN, f32::INFINITY] {
        refused(
            |parts| {
                let tensor = parts.tensor("blk.1.attn_norm.weight");
                tensor.data[4 * 9..4 * 10].copy_from_slice(&value.to_le_bytes());
            },
            &["blk.1.attn_norm.weight", "element 9", "finite"],
        );
    }
}

/// Matrices stay in the file until they are used, so a NaN in them shows when a token is asked for.
#[test]
fn a_matrix_that_is_not_of_numbers_is_named() {
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
        tokens: vec![5, 6, 7],
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

/// Computes one batch.
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

/// Whatever a number says, the model is refused or it runs; nothing panics or takes all memory.
#[test]
fn no_number_breaks_anything() {
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
    // Keys that do not matter to the graph, and values that are what the file says anyway.
    assert!(accepted > 100, "{accepted}");
}
