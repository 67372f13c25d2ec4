//! `oxidize convert`: what it refuses, what it says, and what it keeps of what it is given.

use std::path::{Path, PathBuf};

use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::gguf::{ArrayBuf, ValueBuf};
use oxidize_kernels::quant::TensorType;
use oxidize_quantize::convert::convert;
use oxidize_quantize::convert::directory::{DirectoryOptions, SHARD_BYTES, to_directory};
use oxidize_quantize::encode::Workers;
use oxidize_quantize::plan::{Plan, traits_of};
use oxidize_quantize::quantize::{self, Options, quantize, tensors_of};
use oxidize_quantize::source::Source;
use serde_json::Value;

use super::bad_input::{directory, files, path, program};
use super::golden::folders;
use super::{importance, open, synthetic, tiny, wishes};

/// Converts by the program, with further arguments: whether that went well, and what it said.
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
fn few_bits_want_importance_of_a_directory_too() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let [source, folder, matrix, output] =
        ["in.gguf", "model", "in.imatrix", "out.gguf"].map(place);
    synthetic(&source, "F16", 1);
    let (ok, text) = converted(&source, &folder, &[]);
    assert!(ok, "{text}");
    for ty in ["IQ1_S", "IQ2_XXS", "Q2_K_S", "IQ3_XXS"] {
        let (ok, text) = converted(&folder, &output, &["--type", ty]);
        assert!(!ok && text.contains("importance matrix"), "{ty}: {text}");
    }
    assert_eq!(files(dir.path()), ["in.gguf", "model"]);
    // With one, the file says which.
    importance(&source, |_| 1.0).save(&matrix).unwrap();
    let more = ["--type", "IQ2_XXS", "--imatrix", path(&matrix)];
    let (ok, text) = converted(&folder, &output, &more);
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
fn rows_that_no_block_fills_are_mentioned() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path(), |_, _| {});
    let (folder, output) = (dir.path().join("model"), dir.path().join("out.gguf"));
    let (ok, text) = converted(&folder, &output, &["--type", "Q4_K_M"]);
    assert!(ok && text.contains("not whole blocks"), "{text}");
    let (ok, text) = converted(&folder, &output, &["--type", "F16"]);
    assert!(ok && !text.contains("not whole blocks"), "{text}");
}

#[test]
fn flags_that_mean_nothing_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (file, folder) = (dir.path().join("out.gguf"), dir.path().join("out"));
    let (ok, text) = converted(&tiny(), &file, &["--type", "F16"]);
    assert!(!ok && text.contains("`oxidize quantize`"), "{text}");
    let base = tiny();
    for (output, more) in [
        (&folder, vec!["--imatrix", "nosuchfile"]),
        (&folder, vec!["--tensor-type", "((=zz"]),
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
        assert!(!ok && text.contains("means nothing"), "{more:?}: {text}");
    }
    assert_eq!(files(dir.path()), Vec::<String>::new());
}

#[test]
fn no_file_of_the_source_is_written_over() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path(), |_, _| {});
    let folder = dir.path().join("model");
    let pooling = folder.join("1_Pooling");
    std::fs::create_dir(&pooling).unwrap();
    std::fs::write(pooling.join("config.json"), "{}").unwrap();
    std::fs::write(folder.join("tokenizer.model"), "other").unwrap();
    let link = dir.path().join("link.gguf");
    std::os::unix::fs::symlink(folder.join("config.json"), &link).unwrap();
    let other = dir.path().join("other");
    std::os::unix::fs::symlink(&folder, &other).unwrap();
    let snapshot = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let before = ["config.json", "tokenizer.model"].map(snapshot);
    for output in [
        folder.join("config.json"),
        folder.join("tokenizer.model"),
        other.join("config.json"),
        pooling.join("config.json"),
        link.clone(),
    ] {
        let (ok, text) = converted(&folder, &output, &[]);
        assert!(!ok && text.contains("also the input"), "{text}");
    }
    let (ok, text) = converted(&folder, &folder, &[]);
    assert!(!ok && text.contains("is a directory"), "{text}");
    assert_eq!(before, ["config.json", "tokenizer.model"].map(snapshot));
    // What is new there, or was made there before, is no input.
    std::fs::remove_file(folder.join("tokenizer.model")).unwrap();
    for _ in 0..2 {
        let (ok, text) = converted(&folder, &folder.join("model.gguf"), &[]);
        assert!(ok, "{text}");
    }
}

#[test]
fn a_model_that_does_not_load_is_named_as_the_source_is() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path(), |_, _| {});
    let (folder, output) = (dir.path().join("model"), dir.path().join("out.gguf"));
    let config = folder.join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let wider = text.replace("\"intermediate_size\": ", "\"intermediate_size\": 1");
    std::fs::write(&config, wider).unwrap();
    let (ok, text) = converted(&folder, &output, &[]);
    assert!(
        !ok && !text.contains("/proc/") && !text.contains(".partial"),
        "{text}"
    );
    for part in [path(&folder), "config.json", "`model.layers.0.mlp."] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn what_is_left_out_is_said() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path(), |_, _| {});
    let (folder, output) = (dir.path().join("model"), dir.path().join("out.gguf"));
    let (ok, text) = converted(&folder, &output, &[]);
    assert!(ok && !text.contains("left out"), "{text}");
    let weights = folder.join("model.safetensors");
    for name in [
        "model.layers.98.mlp.up_proj.weight",
        "model.layers.99.mlp.up_proj.weight",
        "vision_tower.blocks.99.weight",
    ] {
        add_tensor(&weights, name);
    }
    std::fs::write(folder.join("generation_config.json"), "{\"top_k\": }").unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "tokenizer.model"] {
        let _ = std::fs::remove_file(folder.join(name));
    }
    let (ok, text) = converted(&folder, &output, &[]);
    assert!(ok, "{text}");
    for part in [
        "2 tensors of layers beyond those that config.json counts, such as model.layers.98.mlp",
        "1 tensor outside the text model, such as vision_tower.blocks.99.weight",
        "generation_config.json, which cannot be read",
        "there is no tokenizer",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Of the golden directories, everything is used, but for what the first layer of RWKV 7 looks back by.
#[test]
fn golden_directories_have_nothing_to_say_but_of_tokenizers() {
    let mut problems = Vec::new();
    for folder in folders() {
        let weights = folder.join("model.safetensors");
        let Ok(file) = ModelFile::open(&weights, &OpenOptions::default()) else {
            continue;
        };
        if oxidize_core::arch::Arch::detect(&file).is_err() || folder.ends_with("rwkv7") {
            continue;
        }
        let source = Source::new(&file).unwrap();
        let said = source
            .remarks()
            .iter()
            .filter(|line| !line.contains("no tokenizer"));
        problems.extend(said.map(|line| format!("{}: {line}", folder.display())));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_missing_or_odd_configuration_is_named() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path(), |_, _| {});
    let (folder, output) = (dir.path().join("model"), dir.path().join("out.gguf"));
    let config = folder.join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut json: Value = serde_json::from_str(&text).unwrap();
    json["num_attention_heads"] = Value::from(0);
    std::fs::write(&config, json.to_string()).unwrap();
    let (ok, text) = converted(&folder, &output, &[]);
    assert!(!ok && text.contains("\"num_attention_heads\""), "{text}");
    json["num_attention_heads"] = Value::Null;
    std::fs::write(&config, json.to_string()).unwrap();
    let (ok, text) = converted(&folder, &output, &[]);
    assert!(
        !ok && text.contains("\"num_attention_heads\" is missing"),
        "{text}"
    );
    std::fs::remove_file(&config).unwrap();
    let (ok, text) = converted(&folder, &output, &[]);
    assert!(
        !ok && text.contains("config.json: there is no such file"),
        "{text}"
    );
}

#[test]
fn a_name_and_a_licence_go_there_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let [named, folder, again] = ["named.gguf", "model", "again.gguf"].map(place);
    let texts = [
        ("general.name", "A \"small\" model: no. 1"),
        ("general.license", "apache-2.0"),
        ("general.license.link", "https://example.com/LICENSE"),
        ("general.author", "Ada, Grace"),
        ("general.organization", "Analytical Engines"),
        (
            "general.base_model.0.repo_url",
            "https://huggingface.co/engines/base",
        ),
        ("general.base_model.0.name", "base"),
        ("general.base_model.0.organization", "engines"),
    ];
    let lists = [
        ("general.languages", ["no", "en"]),
        ("general.tags", ["a", "b"]),
    ];
    {
        let file = open(&tiny());
        let tensors = tensors_of(&file);
        let plan = Plan::new(&tensors, &wishes("F32"), &traits_of(&file, false));
        let mut recipe = quantize::recipe(&file, tensors, plan, ("F32", 0), None);
        for (key, text) in texts {
            recipe.output.set(key, text.into());
        }
        for (key, list) in lists {
            recipe
                .output
                .set(key, ValueBuf::Array(ArrayBuf::strings(list)));
        }
        let count = ValueBuf::U32(1);
        recipe.output.set("general.base_model.count", count);
        quantize(&file, recipe, &named, &Options::default(), |_| {}).unwrap();
    }
    let options = DirectoryOptions {
        ty: TensorType::F32,
        shard_bytes: SHARD_BYTES,
        workers: Workers::default(),
    };
    let (files, _) = to_directory(&open(&named), &folder, &options, |_, _, _| {}).unwrap();
    assert!(files.contains(&folder.join("README.md")), "{files:?}");
    let source: PathBuf = folder.clone();
    convert(
        &open(&source),
        &again,
        &wishes("F32"),
        &Options::default(),
        |_| {},
    )
    .unwrap();
    let made = open(&again);
    for (key, text) in texts {
        assert_eq!(made.metadata().str(key), Some(text), "{key}");
    }
    for (key, list) in lists {
        let ours = made.metadata().array(key).unwrap();
        let ours: Vec<String> = ours.strings().unwrap().map(String::from).collect();
        assert_eq!(ours, list, "{key}");
    }
}
