//! Invalid input gives a clear error; no output is left and the source is unchanged.

use std::process::Command;

use super::{directory, files, importance, path, program, synthetic, tiny};

/// All parts are open until the last is complete, which may exceed the soft limit of open files.
#[test]
fn split_raises_the_limit_of_open_files() {
    let dir = tempfile::tempdir().unwrap();
    synthetic(&dir.path().join("in.gguf"), "Q8_0", 8);
    let script = "ulimit -Sn 40 && \"$0\" split in.gguf part --max-tensors 1 \
        && \"$0\" merge part-00001-of-*.gguf out.gguf && cmp in.gguf out.gguf";
    let done = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_oxidize")])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{error}");
    assert!(files(dir.path()).len() > 60);
}

/// Checks outputs against every input, also under the names of parts.
#[test]
fn inputs_are_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (model, imatrix, text) = (place("m.gguf"), place("i.gguf"), place("t.txt"));
    std::fs::copy(tiny(), &model).unwrap();
    importance(&tiny(), |_| 1.0).save(imatrix.as_ref()).unwrap();
    std::fs::write(&text, "Keep this file.").unwrap();
    assert!(
        program(&["split", &model, &place("part"), "--max-tensors", "5"])
            .status
            .success()
    );
    let first = files(dir.path())
        .into_iter()
        .find(|name| name.starts_with("part-00001-of-"))
        .unwrap();
    let (first, out) = (place(&first), place("out.gguf"));
    let before: Vec<Vec<u8>> = files(dir.path())
        .iter()
        .map(|name| std::fs::read(dir.path().join(name)).unwrap())
        .collect();
    let cases: &[&[&str]] = &[
        &[
            "quantize",
            &first,
            &place("part.gguf"),
            "Q8_0",
            "--keep-split",
        ],
        &[
            "quantize",
            &first,
            &place("part"),
            "Q8_0",
            "--split-max-tensors",
            "5",
        ],
        &["quantize", &model, &imatrix, "Q8_0", "--imatrix", &imatrix],
        &["quantize", &model, &text, "Q8_0", "-f", &text],
        &["quantize", &model, &out, "Q8_0", "--html", &model],
        &["quantize", &model, &out, "Q8_0", "--html", &out],
        &[
            "quantize",
            &model,
            &out,
            "Q8_0",
            "--imatrix",
            &imatrix,
            "--html",
            &imatrix,
        ],
        &["quantize", &model, &model, "Q8_0", "--dry-run"],
        &["merge", &model, &imatrix, "--lora", &imatrix],
    ];
    for args in cases {
        let done = program(args);
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(
            error.contains("the output is also the input"),
            "{args:?}: {error}"
        );
        assert_eq!(done.status.code(), Some(1), "{args:?}");
    }
    let after: Vec<Vec<u8>> = files(dir.path())
        .iter()
        .map(|name| std::fs::read(dir.path().join(name)).unwrap())
        .collect();
    assert!(before == after, "{:?}", files(dir.path()));
}

/// A page that cannot be written is an error before the model is quantized.
#[test]
fn unwritable_html_page_fails_early() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let out = place("out.gguf");
    let model = tiny();
    let args = ["quantize", path(&model), &out, "Q8_0", "--html"];
    for page in [
        place("nowhere/page.html"),
        dir.path().to_str().unwrap().to_owned(),
    ] {
        let done = program(&[&args[..], &[&page]].concat());
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(error.contains(&page), "{error}");
        assert_eq!(done.status.code(), Some(1));
        assert!(files(dir.path()).is_empty());
    }
}

#[test]
fn low_bit_types_require_importance() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    synthetic(&input, "F16", 1);
    let run = program(&["quantize", path(&input), path(&output), "IQ2_XS"]);
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(
        !run.status.success() && text.contains("importance matrix"),
        "{text}"
    );
    assert_eq!(files(dir.path()), ["in.gguf"]);
}

#[test]
fn invalid_directory_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let (model, output) = (dir.path().join("model"), dir.path().join("out.gguf"));
    directory(dir.path(), |_, _| {});
    let convert = || {
        let run = program(&[
            "convert",
            path(&model),
            "-o",
            path(&output),
            "--type",
            "F16",
        ]);
        (
            run.status.success(),
            String::from_utf8_lossy(&run.stderr).into_owned(),
        )
    };
    let (ok, text) = convert();
    assert!(ok, "{text}");
    std::fs::remove_file(&output).unwrap();
    // Truncated weights.
    let weights = model.join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &whole[..whole.len() / 2]).unwrap();
    let (ok, text) = convert();
    assert!(!ok && text.contains("model.safetensors"), "{text}");
    // The output is an input.
    std::fs::write(&weights, &whole).unwrap();
    let run = program(&["convert", path(&model), "-o", path(&weights)]);
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(text.contains("also the input"), "{text}");
    assert_eq!(std::fs::read(&weights).unwrap(), whole);
    // A configuration that does not match the weights.
    let config = model.join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let wider = text.replace("\"intermediate_size\": ", "\"intermediate_size\": 1");
    assert_ne!(text, wider);
    std::fs::write(&config, wider).unwrap();
    let (ok, text) = convert();
    assert!(!ok && text.contains("blk.0.ffn_"), "{text}");
    assert_eq!(files(dir.path()), ["model"]);
}

#[test]
fn nan_weights_of_a_directory_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let (model, output) = (dir.path().join("model"), dir.path().join("out.gguf"));
    directory(dir.path(), |name, floats| {
        if name.ends_with("layers.0.mlp.down_proj.weight") {
            floats[77] = f32::NAN;
        }
    });
    let run = program(&["convert", path(&model), "-o", path(&output)]);
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    let expected = "tensor `blk.0.ffn_down.weight`, in the source `model.layers.0.mlp.down_proj.weight`: element 77 is NaN";
    assert!(!run.status.success() && text.contains(expected), "{text}");
    assert_eq!(files(dir.path()), ["model"]);
}

#[test]
fn target_size_is_met_or_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out.gguf");
    let tiny = tiny();
    let run = program(&[
        "quantize",
        path(&tiny),
        path(&output),
        "--target-size",
        "1kB",
    ]);
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(
        !run.status.success() && text.contains("target size too small"),
        "{text}"
    );

    let size = std::fs::metadata(&tiny).unwrap().len() * 2 / 3;
    let asked = size.to_string();
    let run = program(&[
        "quantize",
        path(&tiny),
        path(&output),
        "--target-size",
        &asked,
    ]);
    assert!(run.status.success(), "{run:?}");
    let made = std::fs::metadata(&output).unwrap().len();
    assert!(made <= size, "{made} of {size}");
}
