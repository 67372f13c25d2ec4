//! Python clients (`openai`, `anthropic`, `ollama`, `litellm`), the chat page in Chromium, and schemathesis,
//! which generates requests from the OpenAPI document. `scripts/setup` installs them.

use super::*;

/// The directory that `scripts/setup` installs into.
fn cache() -> Result<PathBuf, String> {
    let set = |name| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    };
    let cache = set("OXIDIZE_TEST_CACHE").or_else(|| Some(set("HOME")?.join(".cache/oxidize")));
    cache.ok_or_else(|| "no home directory".to_owned())
}

/// A file in the cache, or the reason why it is missing.
fn cached(name: &str) -> Result<PathBuf, String> {
    let path = cache()?.join(name);
    if path.exists() {
        Ok(path)
    } else {
        Err(format!("{} not found", path.display()))
    }
}

fn run(script: &str, server: &Running) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/clients")
        .join(script);
    let python = match cached("venv/bin/python") {
        Ok(python) => python,
        Err(reason) => {
            eprintln!("SKIPPED: {script}: {reason}; `make setup` installs the clients");
            return;
        }
    };
    let output = Command::new(python)
        .arg(path)
        .arg(format!("http://{}", server.address))
        .output()
        .unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    // Exit status 77 means "skipped" in test suites.
    if output.status.code() == Some(77) {
        eprintln!("SKIPPED: {script}: {text}");
        return;
    }
    assert!(output.status.success(), "{script}: {text}");
}

#[test]
fn openai() {
    run("openai_client.py", &start(&["--api-key", "secret"]));
}

#[test]
fn anthropic() {
    run("anthropic_client.py", &start(&["--api-key", "secret"]));
}

#[test]
fn ollama() {
    run("ollama_client.py", &start(&[]));
}

#[test]
fn litellm() {
    run("litellm_client.py", &start(&["--api-key", "secret"]));
}

#[test]
fn chromium() {
    // A model of random weights may generate no text; this one generates some.
    match cached("models/SmolLM2-135M-Instruct.Q4_1.gguf") {
        Ok(model) => run(
            "browser.py",
            &start_with(&["--port", "0", model.to_str().unwrap()]),
        ),
        Err(reason) => eprintln!("SKIPPED: browser.py: {reason}; `make setup` fetches it"),
    }
}

#[test]
fn schemathesis() {
    run(
        "schemathesis_run.py",
        &start(&["-c", "512", "--queue", "1000"]),
    );
}
