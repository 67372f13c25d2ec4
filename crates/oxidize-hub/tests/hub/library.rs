//! The list of local models, and what removing one leaves.

use std::time::{Duration, SystemTime};

use oxidize_hub::{Library, Settings, Sharing};
use serde_json::json;

use crate::server::{Server, bytes, files, pull};

/// A cache with a model of each kind.
fn filled(server: &Server, settings: &Settings) -> Library {
    server.write("hf/u/r/m-Q4_K_M.gguf", &bytes(1, 9000));
    server.write("hf/u/r/m-Q8_0.gguf", &bytes(2, 5000));
    server.write("hf/u/st/model.safetensors", b"weights");
    server.write("hf/u/st/config.json", b"{}");
    server.write("ms/u/r/m-Q4_0.gguf", &bytes(3, 5000));
    server.write("ollama/library/tiny/latest.gguf", &bytes(4, 5000));
    server.write("ollama/library/tiny/again.gguf", &bytes(4, 5000));
    server.write("web/w.gguf", &bytes(5, 5000));
    let web = format!("{}/web/w.gguf", server.address());
    for model in [
        "hf:u/r",
        "hf:u/r:q8_0",
        "hf:u/st",
        "ms:u/r",
        "ollama:tiny",
        "ollama:tiny:again",
        &web,
    ] {
        pull(settings, model).unwrap();
    }
    Library::new(settings)
}

pub(crate) fn models_are_listed_and_removed() {
    let server = Server::start();
    let cache = tempfile::tempdir().unwrap();
    let settings = server.settings(cache.path());
    let library = filled(&server, &settings);
    let web = format!("{}/web/w.gguf", server.address());
    let list = library.list();
    let mut names: Vec<&str> = list.iter().map(|model| model.name.as_str()).collect();
    names.sort();
    let mut expected = [
        "hf:u/r:Q4_K_M",
        "hf:u/r:Q8_0",
        "hf:u/st",
        "ms:u/r:Q4_0",
        "ollama:tiny:again",
        "ollama:tiny:latest",
        &web,
    ];
    expected.sort();
    assert_eq!(names, expected);
    let model = &library.matching("hf:u/r:q4_k_m")[0];
    assert_eq!(
        (model.size, model.quantization.as_deref()),
        (9000, Some("Q4_K_M"))
    );
    assert_eq!(model.sharing, Sharing::HubCache);
    assert!(model.used.is_some());
    assert_eq!(library.matching("hf:u/r").len(), 2);
    assert!(library.matching("hf:u/none").is_empty());
    assert!(library.unused(Duration::from_secs(3600)).is_empty());
    // A model that was last used long ago.
    let old = SystemTime::now() - Duration::from_secs(100 * 86_400);
    let times = std::fs::FileTimes::new()
        .set_accessed(old)
        .set_modified(old);
    let file = std::fs::OpenOptions::new()
        .append(true)
        .open(&model.path)
        .unwrap();
    file.set_times(times).unwrap();
    let unused = library.unused(Duration::from_secs(90 * 86_400));
    assert_eq!(
        unused,
        std::slice::from_ref(&library.matching("hf:u/r:q4_k_m")[0])
    );
    oxidize_hub::touch(&model.path);
    assert!(library.unused(Duration::from_secs(90 * 86_400)).is_empty());
    // The second of two names frees the bytes.
    let remove = |name: &str| library.remove(&library.matching(name)[0]).unwrap();
    assert_eq!(remove("ollama:tiny"), 0);
    assert_eq!(remove("ollama:tiny:again"), 5000);
    assert_eq!(remove("hf:u/r:Q8_0"), 5000);
    assert_eq!(library.matching("hf:u/r").len(), 1);
    assert_eq!(remove("hf:u/r:Q4_K_M"), 9000);
    assert!(!cache.path().join("hub/models--u--r").exists());
    assert_eq!(remove("hf:u/st"), 9);
    assert_eq!(remove("ms:u/r"), 5000);
    assert_eq!(remove(&web), 5000);
    assert!(library.list().is_empty());
    let left = files(cache.path());
    assert!(
        left.iter()
            .all(|file| std::fs::metadata(file).unwrap().len() < 200),
        "{left:?}"
    );
}

pub(crate) fn other_names_keep_the_bytes() {
    let server = Server::start();
    let cache = tempfile::tempdir().unwrap();
    let settings = server.settings(cache.path());
    server.configure("hf/u/r", &json!({}));
    let library = filled(&server, &settings);
    let model = library.matching("hf:u/r:q4_k_m").remove(0);
    let copy = library.copy(&model.path, &model.files, "mine").unwrap();
    assert!(copy.ends_with("models/mine.gguf"));
    for wrong in ["mine", "MINE", "../x", "a/b", "", "hf:u/r"] {
        assert!(
            library.copy(&model.path, &model.files, wrong).is_err(),
            "{wrong}"
        );
    }
    let directory = library.matching("hf:u/st").remove(0);
    library
        .copy(&directory.path, &directory.files, "st")
        .unwrap();
    assert_eq!(library.remove(&model).unwrap(), 0);
    assert_eq!(std::fs::read(&copy).unwrap(), bytes(1, 9000));
    assert_eq!(library.remove(&library.matching("mine")[0]).unwrap(), 9000);
    library.remove(&directory).unwrap();
    let st = library.matching("st").remove(0);
    assert_eq!(std::fs::read(st.path.join("config.json")).unwrap(), b"{}");
    library.remove(&st).unwrap();
    assert!(library.matching("st").is_empty());
}
