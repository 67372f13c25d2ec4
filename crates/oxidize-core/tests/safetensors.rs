//! safetensors files: valid and invalid headers, shards, MLX-quantized weights and other packed formats.

use std::path::{Path, PathBuf};

use oxidize_core::file::{Format, ModelFile, OpenOptions, TensorType};
use oxidize_core::safetensors::Problem;
use oxidize_core::{Error, Limits};

/// A file with this header and `data` bytes of data.
fn file(json: &str, data: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.as_bytes());
    bytes.extend((0..data).map(|i| i as u8));
    bytes
}

fn open(bytes: Vec<u8>) -> Result<ModelFile, Error> {
    ModelFile::from_bytes(bytes, &OpenOptions::default())
}

const GOOD: &str = r#"{"__metadata__":{"format":"pt"},
  "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
  "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
  "e":{"dtype":"F8_E4M3","shape":[0,7],"data_offsets":[16,16]},
  "c":{"dtype":"F8_E5M2","shape":[1,1,1,1,5],"data_offsets":[16,21]}}  "#;

#[test]
fn valid_file_is_read() {
    let model = open(file(GOOD, 21)).unwrap();
    assert_eq!(model.format(), Format::Safetensors);
    assert_eq!(
        model.annotations(),
        [("format".to_owned(), "pt".to_owned())]
    );
    let names: Vec<_> = model
        .tensors()
        .iter()
        .map(|tensor| tensor.name.as_str())
        .collect();
    assert_eq!(names, ["b", "a", "e", "c"]);
    let b = model.tensor("b").unwrap();
    assert_eq!(
        (b.ty, b.dims(), b.bytes),
        (TensorType::BF16, vec![2, 3], 12)
    );
    assert_eq!(b.offset, 8 + GOOD.len() as u64 + 4);
    assert_eq!(
        *model.data(b).unwrap(),
        [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    );
    assert!(model.data(model.tensor("e").unwrap()).unwrap().is_empty());
    assert_eq!(model.tensor("c").unwrap().ty, TensorType::F8E5M2);
}

#[test]
fn every_dtype_is_known() {
    let dtypes = [
        ("BOOL", 1),
        ("U8", 1),
        ("I8", 1),
        ("F8_E4M3", 1),
        ("F8_E5M2", 1),
        ("U16", 2),
        ("I16", 2),
        ("F16", 2),
        ("BF16", 2),
        ("U32", 4),
        ("I32", 4),
        ("F32", 4),
        ("U64", 8),
        ("I64", 8),
        ("F64", 8),
    ];
    for (dtype, size) in dtypes {
        let json = format!(
            r#"{{"t":{{"dtype":"{dtype}","shape":[3],"data_offsets":[0,{}]}}}}"#,
            3 * size
        );
        let model = open(file(&json, 3 * size)).unwrap();
        let tensor = model.tensor("t").unwrap();
        assert_eq!(tensor.ty.name(), dtype);
        let mut n = 0;
        model
            .for_each_f32::<Error>(tensor, |floats| {
                n += floats.len();
                Ok(())
            })
            .unwrap();
        assert_eq!(n, 3, "{dtype}");
    }
}

/// The problem for which a file is rejected.
fn problem_of(json: &str, data: usize) -> Problem {
    match open(file(json, data)) {
        Err(Error::Safetensors { error, .. }) => error.problem,
        Err(Error::Limit { limit, .. }) => Problem::Limit(limit),
        other => panic!("not rejected: {json}: {other:?}"),
    }
}

/// A header with one tensor `t`.
fn tensor(dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
}

macro_rules! assert_rejected {
    ($json:expr, $data:expr, $problem:pat) => {
        let problem = problem_of(&$json, $data);
        assert!(matches!(problem, $problem), "{problem:?}");
    };
}

#[test]
fn each_fault_has_its_own_error() {
    assert_rejected!(
        tensor("F32", "[2]", "[0,7]"),
        7,
        Problem::Size {
            expected: 8,
            actual: 7
        }
    );
    assert_rejected!(tensor("F32", "[2]", "[0,8]"), 7, Problem::OutOfFile { .. });
    assert_rejected!(tensor("F32", "[2]", "[8,0]"), 8, Problem::Json(_));
    assert_rejected!(
        tensor("F32", "[2]", "[0,18446744073709551615]"),
        8,
        Problem::OutOfFile { .. }
    );
    assert_rejected!(
        tensor("F32", "[9223372036854775807,4]", "[0,8]"),
        8,
        Problem::TooManyElements(_)
    );
    assert_rejected!(
        tensor("F32", "[9223372036854775807,4,0]", "[0,0]"),
        0,
        Problem::TooManyElements(_)
    );
    assert_rejected!(
        tensor("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"),
        4,
        Problem::Json(_)
    );
    assert_rejected!(tensor("F32", "[-1]", "[0,4]"), 4, Problem::Json(_));
    assert_rejected!(tensor("F32", "[1.0]", "[0,4]"), 4, Problem::Json(_));
    assert_rejected!(tensor("Q4_0", "[32]", "[0,18]"), 18, Problem::Json(_));
    assert_rejected!(tensor("f32", "[1]", "[0,4]"), 4, Problem::Json(_));
    assert_rejected!(tensor("F32", "[1]", "[0,4,4]"), 4, Problem::Json(_));
    assert_rejected!(tensor("F32", "[1]", "[4,8]"), 8, Problem::Hole(4));
    assert_rejected!(tensor("F32", "[1]", "[0,4]"), 5, Problem::Tail(1));
    assert_rejected!("{}", 1, Problem::Tail(1));
    assert_rejected!(r#"{"t":{"dtype":"F32","shape":[1]}}"#, 4, Problem::Json(_));
    assert_rejected!(
        r#"{"t":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
        4,
        Problem::Json(_)
    );
    assert_rejected!(r#"{"__metadata__":{"a":1}}"#, 0, Problem::Json(_));
    assert_rejected!(
        format!("{} x", tensor("F32", "[1]", "[0,4]")),
        4,
        Problem::Json(_)
    );
    let two = |a: &str, b: &str, offsets: &str| {
        format!(
            r#"{{"{a}":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},"{b}":{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}}}"#
        )
    };
    assert_rejected!(two("a", "a", "[4,8]"), 8, Problem::Duplicate);
    assert_rejected!(two("a", "b", "[2,6]"), 6, Problem::Overlap(_));
    assert_rejected!(two("a", "b", "[0,4]"), 4, Problem::Overlap(_));
    assert_rejected!(two("a", "b", "[5,9]"), 9, Problem::Hole(1));
}

#[test]
fn headers_are_limited_in_size_and_depth() {
    let mut huge = file("{}", 0);
    huge[..8].copy_from_slice(&100_000_001u64.to_le_bytes());
    assert!(matches!(
        open(huge.clone()),
        Err(Error::UnknownFormat { .. })
    ));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.safetensors");
    for len in [100_000_001, u64::MAX] {
        huge[..8].copy_from_slice(&len.to_le_bytes());
        std::fs::write(&path, &huge).unwrap();
        let error = ModelFile::open(&path, &OpenOptions::default()).unwrap_err();
        assert!(matches!(error, Error::Limit { .. }), "{error}");
    }
    let deep = format!(r#"{{"t":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert_rejected!(deep, 0, Problem::Json(_));
    let ignored = format!(
        r#"{{"t":{{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":{}{}}}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    drop(open(file(&ignored, 0)));

    let keys: Vec<_> = (0..5000).map(|i| format!(r#""{i}":"""#)).collect();
    let many = format!(r#"{{"__metadata__":{{{}}}}}"#, keys.join(","));
    assert_rejected!(many, 0, Problem::Limit(_));
    let limits = Limits {
        tensors: 3,
        ..Limits::default()
    };
    let options = OpenOptions {
        limits,
        ..OpenOptions::default()
    };
    assert!(matches!(
        ModelFile::from_bytes(file(GOOD, 21), &options),
        Err(Error::Limit { .. })
    ));
}

#[test]
fn truncated_and_changed_files_do_not_panic() {
    let good = file(GOOD, 21);
    let mut loads = 0;
    let mut try_one = |bytes: Vec<u8>| {
        let len = bytes.len() as u64;
        let Ok(model) = open(bytes) else { return };
        loads += 1;
        for tensor in model.tensors() {
            assert!(tensor.offset + tensor.bytes <= len);
            assert_eq!(model.data(tensor).unwrap().len() as u64, tensor.bytes);
        }
    };
    for len in 0..good.len() {
        try_one(good[..len].to_vec());
    }
    for at in 0..8 + GOOD.len() {
        for new in 0..=255 {
            let mut bytes = good.clone();
            bytes[at] = new;
            try_one(bytes);
        }
    }
    assert!(loads > 0);
}

#[test]
fn errors_name_the_tensor_and_the_byte() {
    let json = tensor("F99", "[1]", "[0,4]");
    let error = open(file(&json, 4)).unwrap_err().to_string();
    assert!(error.contains("tensor `t` at byte "), "{error}");
    assert!(error.contains("unknown dtype `F99`"), "{error}");
}

/// Writes a model of two shards with an index, `config.json` and `tokenizer.json`.
fn write_sharded(directory: &Path) -> [PathBuf; 2] {
    let names = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    for (tensor, name) in ["one", "two"].iter().zip(names) {
        let json = format!(r#"{{"{tensor}":{{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}}}"#);
        std::fs::write(directory.join(name), file(&json, 3)).unwrap();
    }
    let index = format!(
        r#"{{"metadata":{{}},"weight_map":{{"one":"{}","two":"{}"}}}}"#,
        names[0], names[1]
    );
    std::fs::write(directory.join("model.safetensors.index.json"), index).unwrap();
    std::fs::write(directory.join("config.json"), r#"{"model_type":"llama"}"#).unwrap();
    std::fs::write(directory.join("tokenizer.json"), "{}").unwrap();
    names.map(|name| directory.join(name))
}

#[test]
fn shards_open_as_one_model() {
    let directory = tempfile::tempdir().unwrap();
    let shards = write_sharded(directory.path());
    let index = directory.path().join("model.safetensors.index.json");
    for start in [directory.path(), &shards[0], &shards[1], &index] {
        for mmap in [true, false] {
            let options = OpenOptions {
                mmap,
                ..OpenOptions::default()
            };
            let model = ModelFile::open(start, &options).unwrap();
            assert_eq!(model.config().unwrap()["model_type"], "llama");
            assert_eq!(
                model.sidecar("tokenizer.json"),
                Some(directory.path().join("tokenizer.json"))
            );
            assert_eq!(model.sidecar("tokenizer.model"), None);
            let two = model.tensor("two").unwrap();
            assert_eq!(two.file, 1);
            assert_eq!(*model.data(two).unwrap(), [0, 1, 2]);
        }
    }
}

#[test]
fn inconsistent_shards_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let shards = write_sharded(directory.path());
    let open = || ModelFile::open(directory.path(), &OpenOptions::default()).unwrap_err();
    let index = directory.path().join("model.safetensors.index.json");
    let good = std::fs::read_to_string(&index).unwrap();

    std::fs::write(&index, good.replace("\"two\"", "\"three\"")).unwrap();
    assert!(open().to_string().contains("tensor `three`"), "{}", open());
    std::fs::write(&index, good.replace("model-00002", "../model-00002")).unwrap();
    assert!(
        open().to_string().contains("not a plain file name"),
        "{}",
        open()
    );
    std::fs::write(&index, &good).unwrap();
    std::fs::write(directory.path().join("config.json"), "{\n\"a\": }").unwrap();
    assert!(
        open().to_string().contains("config.json: byte 7"),
        "{}",
        open()
    );
    std::fs::write(directory.path().join("config.json"), "{}").unwrap();
    std::fs::copy(&shards[0], &shards[1]).unwrap();
    assert!(open().to_string().contains("tensor `two`"), "{}", open());
    std::fs::remove_file(&shards[1]).unwrap();
    let Error::MissingParts { missing, .. } = open() else {
        panic!("{}", open())
    };
    assert_eq!(missing, [shards[1].clone()]);
}

fn mlx_fixture() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/mlx")
}

#[test]
fn mlx_weights_are_dequantized_like_mlx() {
    let expected = ModelFile::open(
        mlx_fixture().join("expected.safetensors"),
        &OpenOptions::default(),
    )
    .unwrap();
    for mmap in [true, false] {
        let options = OpenOptions {
            mmap,
            ..OpenOptions::default()
        };
        let model = ModelFile::open(mlx_fixture().join("model.safetensors"), &options).unwrap();
        assert_eq!(model.format(), Format::Mlx);
        assert_eq!(model.tensors().len(), expected.tensors().len());
        for tensor in expected.tensors() {
            let ours = model.tensor(&tensor.name).unwrap();
            assert_eq!(
                (ours.ty, &ours.shape),
                (tensor.ty, &tensor.shape),
                "{}",
                tensor.name
            );
            let (ours, theirs) = (model.data(ours).unwrap(), expected.data(tensor).unwrap());
            assert!(*ours == *theirs, "{}", tensor.name);
        }
        let embedding = model.tensor("model.embed_tokens.weight").unwrap();
        assert_eq!(embedding.bytes, 6 * 128 * 2);
        assert_eq!(model.stored_bytes(embedding), 6 * 128 / 2 + 2 * 6 * 2 * 2);
    }
}

#[test]
fn inconsistent_mlx_weights_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    std::fs::copy(mlx_fixture().join("model.safetensors"), &path).unwrap();
    let config = std::fs::read_to_string(mlx_fixture().join("config.json")).unwrap();
    for (from, to) in [
        ("\"bits\": 4", "\"bits\": 8"),
        ("\"bits\": 4", "\"bits\": 7"),
        ("\"group_size\": 64", "\"group_size\": 18446744073709551615"),
        ("\"group_size\": 64", "\"group_size\": 0"),
    ] {
        std::fs::write(
            directory.path().join("config.json"),
            config.replacen(from, to, 1),
        )
        .unwrap();
        let error = ModelFile::open(&path, &OpenOptions::default()).unwrap_err();
        assert!(error.to_string().contains("MLX quantization"), "{error}");
    }
}

/// 8-bit floats with scales, GPTQ and AWQ, compared with NumPy in `scripts/make_packed_fixtures.py`.
#[test]
fn packed_weights_match_numpy() {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/packed");
    for kind in ["fp8", "gptq", "awq"] {
        let directory = fixtures.join(kind);
        let options = OpenOptions::default();
        let model = ModelFile::open(directory.join("model.safetensors"), &options).unwrap();
        let expected = ModelFile::open(directory.join("expected.safetensors"), &options).unwrap();
        assert_eq!(model.tensors().len(), expected.tensors().len(), "{kind}");
        for tensor in expected.tensors() {
            let ours = model.tensor(&tensor.name).unwrap();
            let name = format!("{kind}: {}", tensor.name);
            assert_eq!((ours.ty, &ours.shape), (tensor.ty, &tensor.shape), "{name}");
            let (ours, theirs) = (model.data(ours).unwrap(), expected.data(tensor).unwrap());
            assert!(*ours == *theirs, "{name}");
        }
    }
}

#[test]
fn inconsistent_packed_weights_are_rejected() {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/packed");
    for (kind, from, to) in [
        ("fp8", "[\n      4,", "[\n      5,"),
        ("gptq", "\"bits\": 4", "\"bits\": 3"),
        ("gptq", "\"gptq\"", "\"awq\""),
        ("awq", "\"awq\"", "\"gptq\""),
        ("awq", "\"gemm\"", "\"gemv\""),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.safetensors");
        std::fs::copy(fixtures.join(kind).join("model.safetensors"), &path).unwrap();
        let config = std::fs::read_to_string(fixtures.join(kind).join("config.json")).unwrap();
        assert!(config.contains(from), "{kind}: {config}");
        let config = config.replacen(from, to, 1);
        std::fs::write(directory.path().join("config.json"), config).unwrap();
        let error = ModelFile::open(&path, &OpenOptions::default()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("packed weights"), "{kind}: {text}");
        assert!(text.contains("model."), "{kind}: {text}");
    }
}

/// Codes need their scale if the configuration declares one, in any shard.
#[test]
fn codes_without_scale_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let shards = write_sharded(directory.path());
    let codes = |dtype: &str| {
        let json = format!(r#"{{"two":{{"dtype":"{dtype}","shape":[1,3],"data_offsets":[0,3]}}}}"#);
        std::fs::write(&shards[1], file(&json, 3)).unwrap();
    };
    let config = |text: &str| std::fs::write(directory.path().join("config.json"), text).unwrap();
    let open = || ModelFile::open(directory.path(), &OpenOptions::default());
    for dtype in ["F8_E4M3", "F8_E5M2"] {
        codes(dtype);
        config(r#"{"quantization_config":{"quant_method":"fp8"}}"#);
        let text = open().unwrap_err().to_string();
        for part in ["model-00002-of-00002", "tensor `two`", "`two_scale`"] {
            assert!(text.contains(part), "{text}");
        }
        // 8-bit floats without a quantization configuration are plain floats.
        config(r#"{"model_type":"llama"}"#);
        assert_eq!(open().unwrap().tensor("two").unwrap().ty.name(), dtype);
    }
}

#[test]
fn shards_without_index_open_as_one_model() {
    let directory = tempfile::tempdir().unwrap();
    let shards = write_sharded(directory.path());
    std::fs::remove_file(directory.path().join("model.safetensors.index.json")).unwrap();
    let open = || ModelFile::open(directory.path(), &OpenOptions::default());
    let model = open().unwrap();
    assert_eq!(model.config().unwrap()["model_type"], "llama");
    let two = model.tensor("two").unwrap();
    assert_eq!((two.file, model.tensors().len()), (1, 2));
    assert_eq!(*model.data(two).unwrap(), [0, 1, 2]);

    // Copies of the weights under other names are ignored.
    let other = directory.path().join("consolidated.safetensors");
    std::fs::copy(&shards[0], &other).unwrap();
    assert_eq!(open().unwrap().tensors().len(), 2);
    // A missing shard is an error.
    std::fs::rename(&shards[1], directory.path().join("away")).unwrap();
    let Error::MissingParts { missing, .. } = open().unwrap_err() else {
        panic!("{}", open().unwrap_err())
    };
    assert_eq!(missing, [shards[1].clone()]);
    // A tensor in two shards is an error.
    std::fs::copy(&shards[0], &shards[1]).unwrap();
    let text = open().unwrap_err().to_string();
    for part in ["00002-of-00002", "00001-of-00002", "tensor `one`"] {
        assert!(text.contains(part), "{text}");
    }
    // Files with other names are shards of one model, too.
    for shard in &shards {
        std::fs::remove_file(shard).unwrap();
    }
    std::fs::rename(
        directory.path().join("away"),
        directory.path().join("b.safetensors"),
    )
    .unwrap();
    assert_eq!(open().unwrap().tensors().len(), 2);
}

/// Unpacked to F32, an element is its code times its scale without rounding. Rounding it gives the default
/// type.
#[test]
fn unpack_exactly_does_not_round() {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let mut exact = 0;
    for kind in ["packed/fp8", "packed/gptq", "packed/awq", "mlx"] {
        let open = |unpack_exactly| {
            let options = OpenOptions {
                unpack_exactly,
                ..OpenOptions::default()
            };
            ModelFile::open(fixtures.join(kind).join("model.safetensors"), &options).unwrap()
        };
        let (rounded, all) = (open(false), open(true));
        for tensor in rounded.tensors() {
            let ours = all.tensor(&tensor.name).unwrap();
            if !rounded.is_packed(tensor) {
                assert_eq!(ours.ty, tensor.ty);
                continue;
            }
            assert_eq!((ours.ty, &ours.shape), (TensorType::F32, &tensor.shape));
            let bytes = all.data(ours).unwrap();
            let floats: Vec<f32> = bytes
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect();
            let mut again = vec![0; tensor.bytes as usize];
            oxidize_kernels::quant::quantize(tensor.ty, &floats, &mut again).unwrap();
            assert!(
                again == *rounded.data(tensor).unwrap(),
                "{kind}: {}",
                tensor.name
            );
            exact += usize::from(bytes.chunks(4).any(|b| b[..2] != [0, 0]));
        }
    }
    assert!(exact > 3, "only {exact} tensors are more precise");
}
