//! Replays the stored corpus of the fuzz targets for model files and text.

#[allow(unreachable_pub, reason = "public for the fuzz targets")]
#[path = "../../../fuzz/src/files.rs"]
mod files;
#[allow(unreachable_pub, reason = "public for the fuzz targets")]
#[path = "../../../fuzz/src/language.rs"]
mod language;
#[allow(unreachable_pub, reason = "public for the fuzz targets")]
#[path = "../../../fuzz/src/text.rs"]
mod text;

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

#[test]
fn vocabulary() {
    replay("vocabulary", text::vocabulary);
}

#[test]
fn tokenizer() {
    replay("tokenizer", text::tokenizer);
}

#[test]
fn gbnf() {
    replay("gbnf", language::gbnf);
}

#[test]
fn json_schema() {
    replay("json_schema", language::json_schema);
}

#[test]
fn template() {
    replay("template", language::template);
}

#[test]
fn answer() {
    replay("answer", language::answer);
}

/// Random bytes from a fixed seed: more cases than the corpus holds, in every build.
#[test]
fn random_vocabularies() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..3000 {
        let len = random() as usize % 300;
        // Few distinct letters, so that tokens occur in the text.
        let bytes: Vec<u8> = (0..len)
            .map(|_| b"aab \n\xe2\x96\x81<0xA>\x00\x01\x05\x80"[random() as usize % 17])
            .collect();
        text::tokenizer(&bytes);
    }
}
