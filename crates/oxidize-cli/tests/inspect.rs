//! `oxidize inspect`: text, JSON, NumPy files and errors.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use oxidize_core::file::TensorType;
use oxidize_core::gguf::{ArrayBuf, Value, WriteError, Writer};

fn oxidize(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_oxidize"))
        .args(arguments)
        .output()
        .unwrap()
}

fn stdout(arguments: &[&str]) -> String {
    let output = oxidize(arguments);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Writes a model with one Q8_0 matrix of two rows: scale 0.5, codes -16 to 15.
fn write_model(directory: &Path) -> PathBuf {
    let mut writer = Writer::new();
    writer
        .key("general.architecture", &Value::Str("llama"))
        .unwrap();
    writer
        .key("general.name", &Value::Str("Tiny \u{1b}[31m"))
        .unwrap();
    writer.key("general.file_type", &Value::U32(15)).unwrap();
    writer.key("llama.block_count", &Value::U32(3)).unwrap();
    writer
        .key("llama.context_length", &Value::U32(8192))
        .unwrap();
    writer
        .key("llama.embedding_length", &Value::U32(64))
        .unwrap();
    writer
        .key("llama.attention.head_count", &Value::U32(4))
        .unwrap();
    let kv_heads = ArrayBuf::i32s([2, 0, 1]);
    writer
        .key(
            "llama.attention.head_count_kv",
            &Value::Array(kv_heads.as_array()),
        )
        .unwrap();
    let tokens = ArrayBuf::strings((0..100).map(|i| format!("t{i}")));
    writer
        .key("tokenizer.ggml.tokens", &Value::Array(tokens.as_array()))
        .unwrap();
    writer.tensor("w", TensorType::Q8_0, &[32, 2]).unwrap();
    let path = directory.join("tiny.gguf");
    let file = std::fs::File::create(&path).unwrap();
    let scale = 0x3800u16.to_le_bytes();
    let block: Vec<u8> = scale
        .into_iter()
        .chain((-16i8..16).map(|code| code as u8))
        .collect();
    let write = |_: &_, out: &mut dyn std::io::Write| {
        Ok::<_, WriteError>(out.write_all(&[&block[..], &block].concat())?)
    };
    writer.write(file, write).unwrap();
    path
}

#[test]
fn summary_shows_hyperparameters_and_memory() {
    let directory = tempfile::tempdir().unwrap();
    let path = write_model(directory.path());
    let text = stdout(&["inspect", path.to_str().unwrap()]);
    assert!(
        !text.contains('\u{1b}'),
        "a pipe gets no escape sequences: {text:?}"
    );
    // Rows of label and value with single spaces.
    let rows: Vec<String> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for row in [
        "format GGUF v3",
        "architecture llama",
        "parameters 64",
        "type Q4_K_M",
        "context 8192 tokens",
        "layers 3",
        "heads 4, 2 KV heads",
        "vocabulary 100 tokens",
        "chat template no",
        "Q8_0 1 68 B 100.0 %",
        "weights 68 B",
    ] {
        assert!(rows.iter().any(|line| line == row), "no `{row}` in\n{text}");
    }
}

#[test]
fn summary_shows_the_cache_of_a_complete_model() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fixtures/tiny/model.gguf"
    );
    let text = stdout(&["inspect", path]);
    // 256 tokens × 2 layers × 2 heads × (16 + 16) values × 2 bytes
    let row = text.lines().find(|line| line.contains("KV cache f16, 256"));
    assert!(row.is_some_and(|row| row.ends_with(" 64.0 KiB")), "{text}");
}

#[test]
fn tensor_list_metadata_and_json() {
    let directory = tempfile::tempdir().unwrap();
    let path = write_model(directory.path());
    let path = path.to_str().unwrap();
    let tensors = stdout(&["show", "--tensors", path]);
    assert!(
        tensors.starts_with("w  Q8_0") && tensors.contains("32 × 2"),
        "{tensors}"
    );
    let metadata = stdout(&["inspect", "--metadata", path]);
    assert_eq!(metadata.lines().count(), 9);
    assert!(metadata.contains("[string; 100]"), "{metadata}");

    let json: serde_json::Value =
        serde_json::from_str(&stdout(&["inspect", "--json", path])).unwrap();
    assert_eq!(json["architecture"], "llama");
    assert_eq!(json["parameters"], 64);
    assert_eq!(json["bytes"], std::fs::metadata(path).unwrap().len());
    let tokens = &json["metadata"]["tokenizer.ggml.tokens"];
    assert_eq!(
        (&tokens["type"], &tokens["len"]),
        (&"string".into(), &100.into())
    );
    assert_eq!(tokens["head"][63], "t63");
    assert_eq!(
        json["metadata"]["llama.attention.head_count_kv"],
        serde_json::json!([2, 0, 1])
    );
    let tensor = &json["tensors"][0];
    assert_eq!(tensor["shape"], serde_json::json!([32, 2]));
    assert_eq!(
        (&tensor["bytes"], &tensor["file"]),
        (&68.into(), &"tiny.gguf".into())
    );
    assert_eq!(tensor["offset"].as_u64().unwrap() % 32, 0);
}

#[test]
fn dump_writes_f32() {
    let directory = tempfile::tempdir().unwrap();
    let path = write_model(directory.path());
    let npy = directory.path().join("w.npy");
    let dump = |extra: &[&str]| {
        let fixed = [
            "inspect",
            path.to_str().unwrap(),
            "--dump",
            "w",
            "-o",
            npy.to_str().unwrap(),
        ];
        stdout(&[&fixed[..], extra].concat());
        std::fs::read(&npy).unwrap()
    };
    let bytes = dump(&[]);
    assert!(bytes.starts_with(b"\x93NUMPY\x01\x00"));
    let header_len = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = String::from_utf8_lossy(&bytes[10..header_len]);
    assert!(
        header.contains("'descr': '<f4'") && header.contains("(2,32,)"),
        "{header}"
    );
    let (floats, rest) = bytes[header_len..].as_chunks::<4>();
    assert!(rest.is_empty());
    let floats: Vec<f32> = floats
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect();
    let row = (-16..16).map(|code| code as f32 * 0.5);
    assert_eq!(floats, row.clone().chain(row).collect::<Vec<_>>());
    assert_eq!(dump(&["--no-mmap"]), bytes);
}

#[test]
fn errors_are_one_line_and_exit_code_one() {
    let directory = tempfile::tempdir().unwrap();
    let good = write_model(directory.path());
    let broken = directory.path().join("broken.gguf");
    let bytes = std::fs::read(&good).unwrap();
    std::fs::write(&broken, &bytes[..60]).unwrap();
    let good = good.to_str().unwrap();
    let nowhere = directory.path().join("none/w.npy");
    for (arguments, message) in [
        (&["inspect", broken.to_str().unwrap()][..], "at byte"),
        (&["inspect", "/no/such/model.gguf"], "/no/such/model.gguf"),
        (
            &["inspect", directory.path().to_str().unwrap()],
            "not a known model format",
        ),
        (
            &["inspect", good, "--dump", "v", "-o", "x.npy"],
            "tensor `v` not found",
        ),
        (
            &[
                "inspect",
                good,
                "--dump",
                "w",
                "-o",
                nowhere.to_str().unwrap(),
            ],
            "none/w.npy",
        ),
    ] {
        let output = oxidize(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            stderr.starts_with("error: ") && stderr.contains(message),
            "{stderr}"
        );
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(output.stdout.is_empty());
    }
}
