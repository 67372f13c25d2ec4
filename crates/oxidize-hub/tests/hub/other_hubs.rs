//! Ollama's registry, ModelScope and web servers.

use oxidize_hub::{Hub, PullOptions};
use serde_json::json;

use crate::server::{Notes, Server, bytes, failure, fault, files, name, pull};

pub(crate) fn ollama() {
    let server = Server::start();
    server.write("ollama/library/tiny/latest.gguf", &bytes(1, 50_000));
    server.write(
        "ollama/me/tiny/1b.gguf",
        &[&b"tokenizer.chat_template"[..], &bytes(2, 5000)].concat(),
    );
    let layer = |kind: &str| {
        let digest = format!("sha256:{}", "a".repeat(64));
        json!({ "layers": [{ "mediaType": format!("application/vnd.ollama.image.{kind}"), "digest": digest, "size": 4 }] })
    };
    server.write(
        "ollama/library/safe/latest.json",
        layer("tensor").to_string().as_bytes(),
    );
    server.write(
        "ollama/library/adapter/latest.json",
        layer("adapter").to_string().as_bytes(),
    );
    let cache = tempfile::tempdir().unwrap();
    let settings = server.settings(cache.path());
    let notes = Notes::default();
    let hub = Hub::new(settings.clone(), None).unwrap();
    let options = PullOptions {
        observer: &notes,
        memory: None,
    };
    let pulled = hub.pull(&name("ollama:tiny"), &options).unwrap();
    assert_eq!(std::fs::read(&pulled.path).unwrap(), bytes(1, 50_000));
    assert!(
        notes
            .0
            .lock()
            .unwrap()
            .iter()
            .any(|note| note.contains("chat template") && note.contains("ollama:tiny"))
    );
    notes.0.lock().unwrap().clear();
    hub.pull(&name("ollama:me/tiny:1b"), &options).unwrap();
    assert!(
        !notes
            .0
            .lock()
            .unwrap()
            .iter()
            .any(|note| note.contains("chat template"))
    );
    server.log();
    assert_eq!(
        hub.open(&name("ollama:tiny:latest"), &options).unwrap(),
        pulled
    );
    assert!(server.log().is_empty());
    // A pull asks the registry, and fetches a blob only if it is another one.
    hub.pull(&name("ollama:tiny"), &options).unwrap();
    assert!(server.cdn_log().is_empty());
    for model in ["ollama:safe", "ollama:adapter"] {
        let error = failure(&settings, model);
        assert!(
            error.contains("not supported") && error.contains(model),
            "{error}"
        );
    }
    server.write("ollama/library/other/latest.gguf", &bytes(3, 5000));
    server.faults(&json!([fault("cdn", "blob", "corrupt", json!({}))]));
    assert!(failure(&settings, "ollama:other").contains("SHA-256"));
    assert!(
        !files(cache.path())
            .iter()
            .any(|file| file.to_string_lossy().contains("incomplete"))
    );
    let bad = json!({ "layers": [{ "mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../x", "size": 4 }] });
    server.write(
        "ollama/library/evil/latest.json",
        bad.to_string().as_bytes(),
    );
    assert!(failure(&settings, "ollama:evil").contains("not a digest"));
}

pub(crate) fn modelscope() {
    let server = Server::start();
    server.write("ms/u/r/sub/m-Q4_K_M.gguf", &bytes(1, 50_000));
    server.write("ms/u/r/m-Q8_0.gguf", &bytes(2, 5000));
    let cache = tempfile::tempdir().unwrap();
    let settings = server.settings(cache.path());
    let pulled = pull(&settings, "ms:u/r").unwrap();
    assert_eq!(std::fs::read(&pulled.path).unwrap(), bytes(1, 50_000));
    assert!(!cache.path().join("hub").exists());
    let hub = Hub::new(settings.clone(), None).unwrap();
    server.log();
    assert_eq!(
        hub.open(&name("ms:u/r:q4_k_m"), &PullOptions::default())
            .unwrap(),
        pulled
    );
    assert!(server.log().is_empty());
    server.faults(&json!([fault("hub", "FilePath", "corrupt", json!({}))]));
    assert!(failure(&settings, "ms:u/r:q8_0").contains("SHA-256"));
}

pub(crate) fn web_servers() {
    let server = Server::start();
    server.write("web/a/m.gguf", &bytes(1, 50_000));
    server.write("web/s-00001-of-00002.gguf", &bytes(2, 5000));
    server.write("web/s-00002-of-00002.gguf", &bytes(3, 5000));
    let cache = tempfile::tempdir().unwrap();
    let settings = server.settings(cache.path());
    let address = format!("{}/web/a/m.gguf?signature=secret", server.address());
    // A cut is resumed only if the server's validator is still that of the first bytes.
    let mut impatient = settings.clone();
    impatient.tries = 1;
    server.faults(&json!([fault(
        "hub",
        "/web/",
        "cut",
        json!({ "after": 1000 })
    )]));
    let error = failure(&impatient, &address);
    assert!(
        !error.contains("secret") && error.contains("/web/a/m.gguf"),
        "{error}"
    );
    server.write("web/a/m.gguf", &bytes(4, 50_000));
    server.faults(&json!([]));
    let pulled = pull(&settings, &address).unwrap();
    assert_eq!(std::fs::read(&pulled.path).unwrap(), bytes(4, 50_000));
    assert!(pulled.path.ends_with("m.gguf"));
    server.log();
    pull(&settings, &address).unwrap();
    assert_eq!(server.log().len(), 1, "only the length is asked for");
    server.write("web/a/m.gguf", &bytes(5, 40_000));
    assert_eq!(
        std::fs::read(pull(&settings, &address).unwrap().path).unwrap(),
        bytes(5, 40_000)
    );
    let split = pull(
        &settings,
        &format!("{}/web/s-00002-of-00002.gguf", server.address()),
    )
    .unwrap();
    assert!(split.path.ends_with("s-00001-of-00002.gguf") && split.files.len() == 2);
    let missing = failure(&settings, &format!("{}/web/none.gguf", server.address()));
    assert!(
        missing.contains("404") && missing.contains("/web/none.gguf"),
        "{missing}"
    );
    for wrong in ["/web/", "/web/x.zip", "/web/%2e%2e%2fx.gguf"] {
        let error = failure(&settings, &format!("{}{wrong}", server.address()));
        assert!(error.contains("address"), "{error}");
    }
}
