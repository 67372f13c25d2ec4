//! Replays the stored corpus of the fuzz targets for model files through the checks they make.

#[allow(unreachable_pub, reason = "public for the fuzz targets")]
#[path = "../../../fuzz/src/files.rs"]
mod files;

use std::path::Path;

fn replay(target: &str, check: impl Fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut n = 0;
    for entry in std::fs::read_dir(&corpus).unwrap() {
        let path = entry.unwrap().path();
        eprintln!("{}", path.display());
        check(&std::fs::read(path).unwrap());
        n += 1;
    }
    assert!(n > 0, "{} is empty", corpus.display());
}

#[test]
fn gguf_raw() {
    replay("gguf_raw", files::gguf_raw);
}

#[test]
fn gguf_structured() {
    replay("gguf_structured", files::gguf_structured);
}

#[test]
fn safetensors() {
    replay("safetensors", files::safetensors);
}

#[test]
fn dequantize_block() {
    replay("dequantize_block", files::dequantize_block);
}
