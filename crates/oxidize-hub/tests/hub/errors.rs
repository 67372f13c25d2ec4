//! Bad input: each has an error that names the model, and leaves nothing behind.

use oxidize_hub::{Error, Settings};
use serde_json::json;
use tempfile::TempDir;

use crate::server::{Server, bytes, failure, fault, files, pull, with_token};

/// A server with the model `hf:u/r`, and a cache.
fn with_model(len: usize) -> (Server, TempDir, Settings) {
    let server = Server::start();
    server.write("hf/u/r/m.gguf", &bytes(1, len));
    let cache = tempfile::tempdir().unwrap();
    let mut settings = server.settings(cache.path());
    settings.tries = 3;
    (server, cache, settings)
}

/// True if no bytes of a model are in the cache, whole or in part.
fn has_no_bytes(cache: &TempDir) -> bool {
    let files = files(cache.path());
    files.iter().all(|file| {
        let name = file.to_string_lossy();
        ["CACHEDIR.TAG", ".lock"]
            .iter()
            .any(|end| name.ends_with(end))
            || name.contains(".no_exist")
    })
}

pub(crate) fn repositories_that_cannot_be_read() {
    let (server, cache, settings) = with_model(5000);
    for (repo, config) in [
        ("private", json!({ "private": true, "token": "hf_good" })),
        ("gated", json!({ "gated": true, "token": "hf_good" })),
        ("disabled", json!({ "disabled": true })),
    ] {
        server.write(&format!("hf/u/{repo}/m.gguf"), b"x");
        server.configure(&format!("hf/u/{repo}"), &config);
    }
    let stranger = with_token(settings.clone(), "hf_stranger");
    let bad = with_token(settings.clone(), "hf_bad");
    for (settings, model, parts) in [
        (
            &settings,
            "hf:u/missing",
            ["no such repository", "private", "set HF_TOKEN"],
        ),
        (
            &stranger,
            "hf:u/missing",
            ["no such repository", "private", "the token has no access"],
        ),
        (
            &settings,
            "hf:u/private",
            ["no such repository", "private", "set HF_TOKEN"],
        ),
        (
            &stranger,
            "hf:u/private",
            ["no such repository", "private", "the token has no access"],
        ),
        (
            &settings,
            "hf:u/gated",
            ["gated", "accept the terms", "set HF_TOKEN"],
        ),
        (
            &stranger,
            "hf:u/gated",
            ["gated", "/u/gated", "token is in HF_TOKEN"],
        ),
        (
            &bad,
            "hf:u/r",
            ["refused the token", "HF_TOKEN", "make a new one"],
        ),
        (
            &settings,
            "hf:u/disabled",
            ["disabled", "Access to this resource", "127.0.0.1"],
        ),
        (
            &settings,
            "hf:u/r@v9",
            ["no revision", "\"v9\"", "hf:u/r@v9"],
        ),
        (
            &settings,
            "ollama:missing",
            ["no such repository", "ollama:missing", "127.0.0.1"],
        ),
        (
            &settings,
            "ms:u/missing",
            ["no such repository", "ms:u/missing", "127.0.0.1"],
        ),
    ] {
        let error = failure(settings, model);
        assert!(
            error.contains(model) && parts.iter().all(|part| error.contains(part)),
            "{model}: {error}"
        );
        assert!(
            !error.contains("hf_stranger") && !error.contains("hf_bad"),
            "{error}"
        );
    }
    assert!(has_no_bytes(&cache));
    let good = with_token(settings, "hf_good");
    assert!(pull(&good, "hf:u/gated").is_ok() && pull(&good, "hf:u/private").is_ok());
}

pub(crate) fn names_that_match_nothing_or_several_files() {
    let (server, cache, settings) = with_model(5000);
    for file in ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "a-Q8_0.gguf"] {
        server.write(&format!("hf/u/many/{file}"), b"x");
    }
    server.write("hf/u/none/pytorch_model.bin", b"x");
    for model in ["hf:u/many", "hf:u/many:q4_k_m"] {
        let error = failure(&settings, model);
        assert!(
            error.contains("a-Q4_K_M.gguf")
                && error.contains("b-Q4_K_M.gguf")
                && error.contains(model),
            "{error}"
        );
    }
    let error = failure(&settings, "hf:u/many:Q3_K_S");
    assert!(
        error.contains("\"Q3_K_S\"") && error.contains("a-Q8_0.gguf"),
        "{error}"
    );
    let error = failure(&settings, "hf:u/none");
    assert!(
        error.contains("neither GGUF nor safetensors") && error.contains("pytorch_model.bin"),
        "{error}"
    );
    assert!(matches!(
        pull(&settings, "hf:u/r:sub/x.gguf"),
        Err(Error::NoMatch { .. })
    ));
    assert!(has_no_bytes(&cache));
    // What the repository lacks is recorded as other tools record it.
    assert!(
        files(cache.path())
            .iter()
            .any(|file| file.ends_with("sub/x.gguf"))
    );
}

pub(crate) fn unsafe_file_names() {
    let (server, cache, settings) = with_model(5000);
    for name in [
        "../evil.gguf",
        "a/../../evil.gguf",
        "/etc/evil.gguf",
        "C:/evil.gguf",
        "a\\..\\evil.gguf",
        "a\u{0}.gguf",
        "./a.gguf",
    ] {
        server.configure("hf/u/r", &json!({ "extra_files": [name] }));
        assert!(
            matches!(pull(&settings, "hf:u/r"), Err(Error::UnsafePath { .. })),
            "{name:?}"
        );
        server.configure(
            "hf/u/r",
            &json!({ "extra_files": [name], "plain_listing": true }),
        );
        assert!(
            matches!(pull(&settings, "hf:u/r"), Err(Error::UnsafePath { .. })),
            "{name:?}"
        );
        server.write("ms/u/r/m.gguf", b"x");
        server.configure("ms/u/r", &json!({ "extra_files": [name] }));
        assert!(
            matches!(pull(&settings, "ms:u/r"), Err(Error::UnsafePath { .. })),
            "{name:?}"
        );
    }
    assert_eq!(files(cache.path()), Vec::<std::path::PathBuf>::new());
}

pub(crate) fn bodies_longer_than_announced() {
    let (server, cache, settings) = with_model(50_000);
    for fault in [
        fault("cdn", "blob", "longer", json!({})),
        fault("cdn", "blob", "endless", json!({})),
        // Without ranges.
        fault("cdn", "blob", "longer", json!({ "no_ranges": true })),
    ] {
        server.faults(&json!([fault]));
        let error = pull(&settings, "hf:u/r").unwrap_err();
        assert!(
            matches!(
                error,
                Error::TooLong {
                    announced: 50_000,
                    ..
                } | Error::BadAnswer { .. }
            ),
            "{error}"
        );
        assert!(error.to_string().contains("hf:u/r"));
        assert!(
            !files(cache.path())
                .iter()
                .any(|file| std::fs::metadata(file).is_ok_and(|data| data.len() > 50_000))
        );
    }
    server.faults(&json!([]));
    assert_eq!(
        std::fs::read(pull(&settings, "hf:u/r").unwrap().path).unwrap(),
        bytes(1, 50_000)
    );
}

pub(crate) fn wrong_checksums() {
    let (server, cache, settings) = with_model(50_000);
    server.faults(&json!([fault("cdn", "blob", "corrupt", json!({}))]));
    let error = failure(&settings, "hf:u/r");
    assert!(
        error.contains("SHA-256") && error.contains("m.gguf") && error.contains("hf:u/r"),
        "{error}"
    );
    assert!(has_no_bytes(&cache));
    server.faults(&json!([]));
    assert!(pull(&settings, "hf:u/r").is_ok());
}

pub(crate) fn redirects_that_are_refused() {
    let (server, cache, settings) = with_model(5000);
    for (location, part) in [
        ("file:///etc/passwd", "only http and https"),
        ("ftp://127.0.0.1/m.gguf", "only http and https"),
        ("/u/r/resolve/loop", "more than 5 redirects"),
        ("http://user:password@127.0.0.1/", "user name"),
    ] {
        server.faults(&json!([fault(
            "hub",
            "/resolve/",
            "redirect",
            json!({ "location": location })
        )]));
        let error = failure(&settings, "hf:u/r");
        assert!(error.contains("hf:u/r") && error.contains(part), "{error}");
    }
    // A listing that redirects to another origin does not take the token along.
    let location = format!("{}/api/models/u/r", server.cdn());
    server.faults(&json!([fault(
        "hub",
        "/api/",
        "redirect",
        json!({ "location": location })
    )]));
    server.log();
    let _ = pull(&with_token(settings.clone(), "hf_good"), "hf:u/r");
    let log = server.log();
    let foreign: Vec<_> = log
        .iter()
        .filter(|entry| entry["server"] == "cdn")
        .collect();
    assert!(
        !foreign.is_empty() && foreign.iter().all(|entry| entry["authorization"].is_null()),
        "{log:?}"
    );
    assert!(has_no_bytes(&cache));
}

pub(crate) fn rate_limits() {
    let (server, _cache, settings) = with_model(5000);
    for headers in [
        json!({ "Retry-After": "300" }),
        json!({ "RateLimit": "\"api\";r=0;t=300" }),
    ] {
        server.faults(&json!([fault(
            "hub",
            "/api/",
            "status",
            json!({ "status": 429, "headers": headers })
        )]));
        server.log();
        let error = failure(&settings, "hf:u/r");
        assert!(
            error.contains("hf:u/r") && error.contains("300 s"),
            "{error}"
        );
        assert_eq!(server.log().len(), 1);
    }
    // A short wait is obeyed.
    let wait = json!({ "status": 429, "times": 1, "headers": { "Retry-After": "0" } });
    server.faults(&json!([fault("hub", "/api/", "status", wait)]));
    assert!(pull(&settings, "hf:u/r").is_ok());
}

pub(crate) fn a_full_disk() {
    let (server, cache, settings) = with_model(5000);
    // No disk has 40 PB; the announced size is refused before anything is written.
    server.write(
        "ollama/library/huge/latest.json",
        json!({ "layers": [{
        "mediaType": "application/vnd.ollama.image.model",
        "digest": format!("sha256:{}", "a".repeat(64)),
        "size": 40_000_000_000_000_000u64,
    }] })
        .to_string()
        .as_bytes(),
    );
    let error = pull(&settings, "ollama:huge").unwrap_err();
    assert!(matches!(&error, Error::DiskFull { .. }), "{error}");
    assert!(error.to_string().contains("40.0 PB needed"), "{error}");
    let large = files(cache.path())
        .into_iter()
        .find(|file| std::fs::metadata(file).is_ok_and(|data| data.len() > 0));
    assert_eq!(large, None);
    // The hub itself serves files of this size by another protocol only.
    server.configure(
        "hf/u/r",
        &json!({ "sizes": { "m.gguf": 60_000_000_000u64 } }),
    );
    let error = failure(&settings, "hf:u/r");
    assert!(
        error.contains("60.0 GB") && error.contains("50 GB"),
        "{error}"
    );
}

pub(crate) fn answers_that_are_no_listings() {
    let (server, cache, settings) = with_model(5000);
    let long = "x".repeat(5000);
    for body in [
        "",
        "null",
        "<html>",
        "{\"sha\":\"../../x\",\"siblings\":[]}",
        "{\"sha\":3}",
        long.as_str(),
        &"[".repeat(4000),
    ] {
        server.faults(&json!([fault(
            "hub",
            "/api/",
            "status",
            json!({ "status": 200, "body": body })
        )]));
        let error = pull(&settings, "hf:u/r").unwrap_err();
        assert!(
            matches!(error, Error::BadAnswer { .. }) && error.to_string().contains("hf:u/r"),
            "{body:.20}: {error}"
        );
        let error = pull(&settings, "ms:u/r").unwrap_err();
        assert!(
            matches!(error, Error::BadAnswer { .. }),
            "{body:.20}: {error}"
        );
    }
    server.faults(&json!([fault(
        "hub",
        "/v2/",
        "status",
        json!({ "status": 200, "body": "{\"layers\":[]}" })
    )]));
    let error = failure(&settings, "ollama:m");
    assert!(
        error.contains("ollama:m") && error.contains("no layer"),
        "{error}"
    );
    assert_eq!(files(cache.path()), Vec::<std::path::PathBuf>::new());
}

pub(crate) fn endless_failures_end() {
    let (server, _cache, settings) = with_model(50_000);
    server.faults(&json!([fault(
        "hub",
        "/api/",
        "status",
        json!({ "status": 503 })
    )]));
    server.log();
    let error = failure(&settings, "hf:u/r");
    assert!(error.contains("503") && server.log().len() == 3, "{error}");
    server.faults(&json!([fault("cdn", "blob", "cut", json!({ "after": 0 }))]));
    let error = failure(&settings, "hf:u/r");
    assert!(error.contains("hf:u/r"), "{error}");
    server.faults(&json!([fault(
        "cdn",
        "blob",
        "status",
        json!({ "status": 403 })
    )]));
    let error = failure(&settings, "hf:u/r");
    assert!(error.contains("403") && error.contains("hf:u/r"), "{error}");
}
