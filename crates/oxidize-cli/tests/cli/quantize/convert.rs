//! `oxidize convert`: rejected inputs, messages, and preserved metadata.

use std::path::Path;

use serde_json::Value;

use super::{directory, files, importance, open, path, program, synthetic, tiny};

/// Runs `oxidize convert` and returns its success and its messages.
fn converted(input: &Path, output: &Path, more: &[&str]) -> (bool, String) {
    let mut arguments = vec!["convert", path(input), "-o", path(output)];
    arguments.extend(more);
    let run = program(&arguments);
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    (run.status.success(), text)
}

/// Changes the header of a safetensors file and appends bytes to it.
fn with_header(path: &Path, change: impl Fn(&mut serde_json::Map<String, Value>, u64) -> Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    let (head, rest) = bytes.split_at(8);
    let len = u64::from_le_bytes(head.try_into().unwrap()) as usize;
    let mut header = serde_json::from_slice(&rest[..len]).unwrap();
    let more = change(&mut header, (rest.len() - len) as u64);
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(&rest[len..]);
    file.extend(more);
    std::fs::write(path, file).unwrap();
}

/// Adds a tensor of one element.
fn add_tensor(path: &Path, name: &str) {
    with_header(path, |header, end| {
        let entry =
            serde_json::json!({"dtype": "F32", "shape": [1], "data_offsets": [end, end + 4]});
        header.insert(name.to_owned(), entry);
        vec![0; 4]
    });
}

#[test]
fn low_bit_types_require_importance() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let [source, model, matrix, output] = ["in.gguf", "model", "in.imatrix", "out.gguf"].map(place);
    synthetic(&source, "F16", 1);
    let (ok, text) = converted(&source, &model, &[]);
    assert!(ok, "{text}");
    for ty in ["IQ1_S", "IQ2_XXS", "Q2_K_S", "IQ3_XXS"] {
        let (ok, text) = converted(&model, &output, &["--type", ty]);
        assert!(!ok && text.contains("importance matrix"), "{ty}: {text}");
    }
    assert_eq!(files(dir.path()), ["in.gguf", "model"]);
    // With a matrix, the metadata names it.
    importance(&source, |_| 1.0).save(&matrix).unwrap();
    let more = ["--type", "IQ2_XXS", "--imatrix", path(&matrix)];
    let (ok, text) = converted(&model, &output, &more);
    assert!(ok, "{text}");
    let file = open(&output);
    let name = file.metadata().str("quantize.imatrix.file");
    assert_eq!(name, Some("in.imatrix"));
    assert!(
        file.metadata()
            .u64("quantize.imatrix.entries_count")
            .is_some()
    );
}

#[test]
fn fallback_types_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path(), |_, _| {});
    let (model, output) = (dir.path().join("model"), dir.path().join("out.gguf"));
    let (ok, text) = converted(&model, &output, &["--type", "Q4_K_M"]);
    assert!(ok && text.contains("fallback type"), "{text}");
    let (ok, text) = converted(&model, &output, &["--type", "F16"]);
    assert!(ok && !text.contains("fallback type"), "{text}");
}

#[test]
fn unsupported_flags_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let (file, model) = (dir.path().join("out.gguf"), dir.path().join("out"));
    let (ok, text) = converted(&tiny(), &file, &["--type", "F16"]);
    assert!(!ok && text.contains("`oxidize quantize`"), "{text}");
    let base = tiny();
    for (output, more) in [
        (&model, vec!["--imatrix", "nosuchfile"]),
        (&model, vec!["--tensor-type", "((=zz"]),
        (
            &file,
            vec!["--base", path(&base), "--imatrix", "nosuchfile"],
        ),
        (&file, vec!["--base", path(&base), "--tensor-type", "((=zz"]),
        (
            &file,
            vec!["--base", path(&base), "--split-max-size", "1MB"],
        ),
    ] {
        let (ok, text) = converted(&tiny(), output, &more);
        assert!(!ok && text.contains("is not supported"), "{more:?}: {text}");
    }
    assert_eq!(files(dir.path()), Vec::<String>::new());
}

#[test]
fn source_files_are_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path(), |_, _| {});
    let model = dir.path().join("model");
    let pooling = model.join("1_Pooling");
    std::fs::create_dir(&pooling).unwrap();
    std::fs::write(pooling.join("config.json"), "{}").unwrap();
    std::fs::write(model.join("tokenizer.model"), "other").unwrap();
    let link = dir.path().join("link.gguf");
    std::os::unix::fs::symlink(model.join("config.json"), &link).unwrap();
    let other = dir.path().join("other");
    std::os::unix::fs::symlink(&model, &other).unwrap();
    let snapshot = |name: &str| std::fs::read(model.join(name)).unwrap();
    let before = ["config.json", "tokenizer.model"].map(snapshot);
    for output in [
        model.join("config.json"),
        model.join("tokenizer.model"),
        other.join("config.json"),
        pooling.join("config.json"),
        link.clone(),
    ] {
        let (ok, text) = converted(&model, &output, &[]);
        assert!(!ok && text.contains("also the input"), "{text}");
    }
    let (ok, text) = converted(&model, &model, &[]);
    assert!(!ok && text.contains("is a directory"), "{text}");
    assert_eq!(before, ["config.json", "tokenizer.model"].map(snapshot));
    // A new GGUF file, or one of an earlier run, is no input.
    std::fs::remove_file(model.join("tokenizer.model")).unwrap();
    for _ in 0..2 {
        let (ok, text) = converted(&model, &model.join("model.gguf"), &[]);
        assert!(ok, "{text}");
    }
}

#[test]
fn load_errors_name_the_source() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path(), |_, _| {});
    let (model, output) = (dir.path().join("model"), dir.path().join("out.gguf"));
    let config = model.join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let wider = text.replace("\"intermediate_size\": ", "\"intermediate_size\": 1");
    std::fs::write(&config, wider).unwrap();
    let (ok, text) = converted(&model, &output, &[]);
    assert!(
        !ok && !text.contains("/proc/") && !text.contains(".partial"),
        "{text}"
    );
    for part in [path(&model), "config.json", "`model.layers.0.mlp."] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn left_out_tensors_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path(), |_, _| {});
    let (model, output) = (dir.path().join("model"), dir.path().join("out.gguf"));
    let (ok, text) = converted(&model, &output, &[]);
    assert!(ok && !text.contains("left out"), "{text}");
    let weights = model.join("model.safetensors");
    for name in [
        "model.layers.98.mlp.up_proj.weight",
        "model.layers.99.mlp.up_proj.weight",
        "vision_tower.blocks.99.weight",
    ] {
        add_tensor(&weights, name);
    }
    std::fs::write(model.join("generation_config.json"), "{\"top_k\": }").unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "tokenizer.model"] {
        let _ = std::fs::remove_file(model.join(name));
    }
    let (ok, text) = converted(&model, &output, &[]);
    assert!(ok, "{text}");
    for part in [
        "2 tensors of layers beyond the layer count in config.json, such as model.layers.98.mlp",
        "1 tensor outside the text model, such as vision_tower.blocks.99.weight",
        "generation_config.json: ",
        "no tokenizer found",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn invalid_configuration_is_named() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path(), |_, _| {});
    let (model, output) = (dir.path().join("model"), dir.path().join("out.gguf"));
    let config = model.join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut json: Value = serde_json::from_str(&text).unwrap();
    json["num_attention_heads"] = Value::from(0);
    std::fs::write(&config, json.to_string()).unwrap();
    let (ok, text) = converted(&model, &output, &[]);
    assert!(!ok && text.contains("\"num_attention_heads\""), "{text}");
    json["num_attention_heads"] = Value::Null;
    std::fs::write(&config, json.to_string()).unwrap();
    let (ok, text) = converted(&model, &output, &[]);
    assert!(
        !ok && text.contains("\"num_attention_heads\" is missing"),
        "{text}"
    );
    std::fs::remove_file(&config).unwrap();
    let (ok, text) = converted(&model, &output, &[]);
    assert!(!ok && text.contains("config.json not found"), "{text}");
}
