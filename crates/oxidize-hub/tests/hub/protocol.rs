//! The protocol of the hub and the layout of its cache.

use std::path::Path;
use std::process::Command;

use oxidize_hub::{Candidate, Hub, Memory, PullOptions};
use oxidize_testing::skip;
use serde_json::json;

use crate::server::{Notes, Server, bytes, failure, fault, files, name, pull, with_token};

pub(crate) fn a_model_lands_in_the_layout_of_the_hub() {
    let server = Server::start();
    let model = bytes(1, 30_000);
    server.write("hf/u/r/sub/m-Q4_K_M.gguf", &model);
    server.write("hf/u/r/m-Q8_0.gguf", b"no");
    let cache = tempfile::tempdir().unwrap();
    let notes = Notes::default();
    let hub = Hub::new(server.settings(cache.path()), None).unwrap();
    let options = PullOptions {
        observer: &notes,
        memory: None,
    };
    let pulled = hub.pull(&name("hf:u/r"), &options).unwrap();
    assert_eq!(std::fs::read(&pulled.path).unwrap(), model);
    assert!(notes.0.lock().unwrap()[0].contains("Q8_0"));
    let repo = cache.path().join("hub/models--u--r");
    let commit = std::fs::read_to_string(repo.join("refs/main")).unwrap();
    assert!(commit.len() == 40, "{commit:?}");
    assert_eq!(
        pulled.path,
        repo.join("snapshots")
            .join(&commit)
            .join("sub/m-Q4_K_M.gguf")
    );
    let link = std::fs::read_link(&pulled.path).unwrap();
    assert!(link.starts_with("../../../blobs"), "{}", link.display());
    assert_eq!(link.file_name().unwrap().len(), 64);
    assert!(cache.path().join("hub/CACHEDIR.TAG").exists());
    let leftovers = files(&cache.path().join("hub"));
    assert!(
        !leftovers
            .iter()
            .any(|file| file.to_string_lossy().contains("oxidize")),
        "{leftovers:?}"
    );
}

pub(crate) fn a_second_pull_fetches_nothing() {
    let server = Server::start();
    server.write("hf/u/r/m.gguf", &bytes(2, 20_000));
    let cache = tempfile::tempdir().unwrap();
    let settings = server.settings(cache.path());
    pull(&settings, "hf:u/r").unwrap();
    assert!(!server.cdn_log().is_empty());
    pull(&settings, "hf:u/r:m.gguf").unwrap();
    assert!(server.cdn_log().is_empty());
    // A name that says all needs no network; another commit of the same bytes needs no download.
    let hub = Hub::new(settings.clone(), None).unwrap();
    hub.open(&name("hf:u/r:m.gguf"), &PullOptions::default())
        .unwrap();
    assert!(server.log().is_empty());
    server.write("hf/u/r/README.md", b"new");
    pull(&settings, "hf:u/r").unwrap();
    assert!(server.cdn_log().is_empty());
}

pub(crate) fn a_large_file_comes_over_several_connections() {
    let server = Server::start();
    let model = bytes(3, 1_000_001);
    server.write("hf/u/r/m.gguf", &model);
    let cache = tempfile::tempdir().unwrap();
    let pulled = pull(&server.settings(cache.path()), "hf:u/r").unwrap();
    assert_eq!(std::fs::read(pulled.path).unwrap(), model);
    let log = server.log();
    let first: Vec<_> = log
        .iter()
        .filter(|entry| entry["path"].as_str().unwrap().contains("/resolve/"))
        .collect();
    // Each connection asks the hub at most once; then it knows the address of the content network.
    assert!((1..=4).contains(&first.len()), "{}", first.len());
    let ranges = log.iter().filter(|entry| entry["server"] == "cdn");
    assert!(ranges.clone().count() > 4 && ranges.clone().all(|entry| entry["range"].is_string()));
}

pub(crate) fn a_token_stays_with_its_origin() {
    let server = Server::start();
    server.write("hf/u/private/m.gguf", &bytes(4, 9000));
    server.configure(
        "hf/u/private",
        &json!({ "private": true, "token": "hf_good" }),
    );
    let cache = tempfile::tempdir().unwrap();
    let settings = with_token(server.settings(cache.path()), "hf_good");
    pull(&settings, "hf:u/private").unwrap();
    let log = server.log();
    assert!(
        log.iter()
            .filter(|entry| entry["server"] == "hub")
            .all(|entry| entry["authorization"] == "Bearer hf_good")
    );
    assert!(
        log.iter()
            .filter(|entry| entry["server"] == "cdn")
            .all(|entry| entry["authorization"].is_null())
    );
    // Nor do other hubs and web servers get it.
    server.write("web/m.gguf", b"web");
    server.write("ollama/library/m/latest.gguf", b"ollama");
    pull(&settings, &format!("{}/web/m.gguf", server.address())).unwrap();
    pull(&settings, "ollama:m").unwrap();
    assert!(
        server
            .log()
            .iter()
            .all(|entry| entry["authorization"].is_null())
    );
}

pub(crate) fn split_and_safetensors_models_come_whole() {
    let server = Server::start();
    for part in 1..=3 {
        server.write(
            &format!("hf/u/split/m-Q4_K_M-0000{part}-of-00003.gguf"),
            &bytes(part, 9000),
        );
    }
    for file in [
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "1_Pooling/config.json",
        "README.md",
    ] {
        server.write(&format!("hf/u/st/{file}"), file.as_bytes());
    }
    let cache = tempfile::tempdir().unwrap();
    let settings = server.settings(cache.path());
    let split = pull(&settings, "hf:u/split:q4_k_m").unwrap();
    assert_eq!(split.files.len(), 3);
    assert!(split.path.ends_with("m-Q4_K_M-00001-of-00003.gguf"));
    assert_eq!(std::fs::read(&split.files[2]).unwrap(), bytes(3, 9000));
    let directory = pull(&settings, "hf:u/st").unwrap();
    assert_eq!(
        std::fs::read(directory.path.join("1_Pooling/config.json")).unwrap(),
        b"1_Pooling/config.json"
    );
    assert!(!directory.path.join("README.md").exists());
    // The small files are checked by the SHA-1 of git.
    server.faults(&json!([fault("hub", "config.json", "corrupt", json!({}))]));
    let other = tempfile::tempdir().unwrap();
    let error = failure(&server.settings(other.path()), "hf:u/st");
    assert!(
        error.contains("git SHA-1") && error.contains("hf:u/st"),
        "{error}"
    );
}

pub(crate) fn renamed_repositories_and_paged_listings_work() {
    let server = Server::start();
    server.write("hf/old/r/x.gguf", b"x");
    server.configure("hf/old/r", &json!({ "moved_to": "new/r" }));
    for file in 0..5 {
        server.write(
            &format!("hf/new/r/m-Q{}_0.gguf", file + 4),
            &bytes(file, 5000),
        );
    }
    server.configure("hf/new/r", &json!({ "plain_listing": true, "page": 2 }));
    let cache = tempfile::tempdir().unwrap();
    let settings = server.settings(cache.path());
    let pulled = pull(&settings, "hf:new/r:Q8_0").unwrap();
    assert_eq!(std::fs::read(pulled.path).unwrap(), bytes(4, 5000));
    assert!(
        server
            .log()
            .iter()
            .filter(|entry| entry["path"].as_str().unwrap().contains("/tree/"))
            .count()
            == 3
    );
    server.faults(&json!([fault(
        "hub",
        "/old/r/resolve",
        "redirect",
        json!({ "location": "/new/r/resolve/main/m-Q8_0.gguf" })
    )]));
    server.configure("hf/new/r", &json!({}));
    assert!(pull(&settings, "hf:old/r:Q8_0").is_ok());
}

pub(crate) fn without_links_the_snapshot_holds_the_file() {
    let server = Server::start();
    server.write("hf/u/r/sub/m.gguf", &bytes(7, 9000));
    let cache = tempfile::tempdir().unwrap();
    let mut settings = server.settings(cache.path());
    settings.no_symlinks = true;
    for _ in 0..2 {
        let pulled = pull(&settings, "hf:u/r").unwrap();
        assert!(!pulled.path.is_symlink());
        assert_eq!(std::fs::read(pulled.path).unwrap(), bytes(7, 9000));
    }
    assert_eq!(
        files(&cache.path().join("hub/models--u--r/blobs")),
        Vec::<std::path::PathBuf>::new()
    );
}

pub(crate) fn the_best_quantization_that_fits_is_chosen() {
    let server = Server::start();
    for (quantization, size) in [("Q2_K", 10_000), ("Q4_K_M", 20_000), ("Q8_0", 40_000)] {
        server.write(
            &format!("hf/u/r/m-{quantization}.gguf"),
            &bytes(size, size as usize),
        );
    }
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub::new(server.settings(cache.path()), None).unwrap();
    let pulled = |available| {
        // The smallest file is read to know what all of them need.
        let needed = |model: &Candidate, start: &[u8]| {
            assert_eq!(start, bytes(10_000, 10_000));
            model.size + 5000
        };
        let memory = Some(Memory {
            available,
            needed: &needed,
        });
        hub.pull(
            &name("hf:u/r:auto"),
            &PullOptions {
                observer: &(),
                memory,
            },
        )
    };
    assert!(pulled(100_000).unwrap().path.ends_with("m-Q8_0.gguf"));
    assert!(pulled(44_999).unwrap().path.ends_with("m-Q4_K_M.gguf"));
    let error = pulled(14_999).unwrap_err().to_string();
    assert!(
        error.contains("hf:u/r:auto") && error.contains("m-Q2_K.gguf (10.0 kB)"),
        "{error}"
    );
}

pub(crate) fn offline_finds_what_is_there() {
    let server = Server::start();
    server.write("hf/u/r/m-Q8_0.gguf", &bytes(1, 5000));
    let cache = tempfile::tempdir().unwrap();
    let mut settings = server.settings(cache.path());
    let first = pull(&settings, "hf:u/r").unwrap();
    server.log();
    settings.offline = true;
    assert_eq!(pull(&settings, "hf:u/r").unwrap(), first);
    assert_eq!(pull(&settings, "hf:u/r:q8_0").unwrap(), first);
    for missing in [
        "hf:u/r:Q4_K_M",
        "hf:u/other",
        "ollama:m",
        "ms:u/r",
        "https://127.0.0.1:1/m.gguf",
    ] {
        let error = failure(&settings, missing);
        assert!(
            error.contains(&name(missing).to_string()) && error.contains("offline"),
            "{error}"
        );
    }
    assert!(server.log().is_empty());
}

pub(crate) fn an_unreachable_hub_leaves_the_cache() {
    let server = Server::start();
    server.write("hf/u/r/m.gguf", &bytes(1, 5000));
    let cache = tempfile::tempdir().unwrap();
    let mut settings = server.settings(cache.path());
    let first = pull(&settings, "hf:u/r").unwrap();
    // Nothing listens on port 1.
    settings.hf_endpoint = "http://127.0.0.1:1".into();
    assert_eq!(pull(&settings, "hf:u/r").unwrap(), first);
    let error = failure(&settings, "hf:u/other");
    assert!(
        error.contains("hf:u/other") && error.contains("127.0.0.1:1"),
        "{error}"
    );
}

pub(crate) fn a_search_lists_sizes() {
    let server = Server::start();
    server.write("hf/u/nice-model/m-Q4_K_M.gguf", &bytes(1, 5000));
    server.write("hf/u/other/m.safetensors", b"x");
    server.write("hf/u/gated-model/m-Q8_0.gguf", b"x");
    server.configure("hf/u/gated-model", &json!({ "gated": true }));
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub::new(server.settings(cache.path()), None).unwrap();
    let found = hub.search("model", 10).unwrap();
    let names: Vec<&str> = found.iter().map(|found| found.repo.as_str()).collect();
    assert_eq!(names, ["u/gated-model", "u/nice-model"]);
    assert!(found[0].gated && !found[1].gated);
    let model = &found[1].models[0];
    assert_eq!(
        (model.size, model.quantization.as_deref()),
        (5000, Some("Q4_K_M"))
    );
    assert_eq!(found[1].license.as_deref(), Some("mit"));
    assert!(hub.search("nothing like it", 10).unwrap().is_empty());
}

/// Certificates come from `SSL_CERT_FILE`, and a redirect to plain http is refused.
pub(crate) fn tls_is_checked_and_not_left() {
    let directory = tempfile::tempdir().unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|file| directory.path().join(file));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "30",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
        ])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output();
    if !made.is_ok_and(|output| output.status.success()) {
        skip("openssl cannot make a certificate");
    }
    let server = Server::start_with(&[&certificate as &Path, &key]);
    server.write("hf/u/small/config.json", b"{}");
    server.write("hf/u/small/model.safetensors", b"weights");
    server.write("web/m.gguf", b"a model");
    let cache = tempfile::tempdir().unwrap();
    let mut settings = server.settings(cache.path());
    settings.hf_endpoint = server.tls();
    settings.tries = 1;
    let untrusted = failure(&settings, "hf:u/small");
    assert!(
        untrusted.contains("cannot reach") && untrusted.contains("hf:u/small"),
        "{untrusted}"
    );
    settings.certificates = Some(certificate);
    let address = format!("{}/web/m.gguf", server.tls());
    let pulled = pull(&settings, &address).unwrap();
    assert_eq!(std::fs::read(pulled.path).unwrap(), b"a model");
    // The content network of the server is plain http.
    let error = failure(&settings, "hf:u/small");
    assert!(error.contains("https to http"), "{error}");
}
