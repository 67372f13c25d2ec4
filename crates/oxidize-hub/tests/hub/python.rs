//! The Python package `huggingface_hub`, an independent client of the server and reader of the cache.

use std::path::Path;
use std::process::Command;

use oxidize_testing::{cached, skip};

use crate::server::{Server, bytes, failure, fault, pull};

fn python(server: &Server, cache: &Path, step: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/hub_client.py");
    let output = Command::new(cached("venv/bin/python"))
        .arg(script)
        .arg(step)
        .env("HF_ENDPOINT", server.address())
        .env("HF_HUB_CACHE", cache.join("hub"))
        .env("HF_HUB_DISABLE_XET", "1")
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .env("NO_PROXY", "127.0.0.1,localhost")
        .env_remove("HF_TOKEN")
        .env_remove("HF_HUB_OFFLINE")
        .output()
        .unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    if output.status.code() == Some(77) {
        skip(format!("hub_client.py: {}", text.trim()));
    }
    assert!(output.status.success(), "{step}: {text}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

pub(crate) fn huggingface_hub_reads_and_fills_the_same_cache() {
    let server = Server::start();
    server.write("hf/u/r/m-Q4_K_M.gguf", &bytes(1, 50_000));
    server.write("hf/u/r/m-Q8_0.gguf", &bytes(2, 50_000));
    server.write("hf/u/r/config.json", b"{}");
    let cache = tempfile::tempdir().unwrap();
    let settings = server.settings(cache.path());
    let ours = pull(&settings, "hf:u/r").unwrap();
    server.log();
    // It finds our file, and fetches none of its bytes.
    assert_eq!(
        Path::new(&python(&server, cache.path(), "m-Q4_K_M.gguf")),
        ours.path
    );
    assert!(server.cdn_log().is_empty());
    // We find its file.
    let theirs = python(&server, cache.path(), "m-Q8_0.gguf");
    server.log();
    let found = pull(&settings, "hf:u/r:q8_0").unwrap();
    assert_eq!(found.path, Path::new(&theirs));
    assert!(server.cdn_log().is_empty());
    assert!(python(&server, cache.path(), "scan").contains("2 files"));
    // After failures of every kind, the cache still has nothing that it warns of.
    server.write("hf/u/new/m.gguf", &bytes(3, 50_000));
    let mut impatient = settings.clone();
    impatient.tries = 1;
    for kind in ["cut", "corrupt", "longer"] {
        server.faults(&serde_json::json!([fault(
            "cdn",
            "blob",
            kind,
            serde_json::json!({ "after": 100 })
        )]));
        failure(&impatient, "hf:u/new");
        python(&server, cache.path(), "scan");
    }
    server.faults(&serde_json::json!([]));
    pull(&settings, "hf:u/new").unwrap();
    failure(&settings, "hf:u/new:none.gguf");
    assert!(python(&server, cache.path(), "scan").contains("3 files"));
}
