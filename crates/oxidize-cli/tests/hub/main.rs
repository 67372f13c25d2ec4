//! Models by name, on the command line and in the server, against a local hub: the server of `oxidize-hub`'s tests.

#[allow(dead_code, reason = "the tests of the server use the rest")]
#[path = "../server/http.rs"]
mod http;
#[allow(dead_code, reason = "the tests of the server use the rest")]
#[path = "../server/running.rs"]
mod running;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use oxidize_testing::skip;
use running::{Running, fixture, start_command};
use serde_json::{Value, json};
use tempfile::TempDir;

oxidize_testing::main!(
    names_are_fetched_listed_copied_and_removed,
    the_best_that_fits_runs,
    errors_name_the_repository,
    search_and_recommend,
    the_server_fetches_and_removes_models,
    a_server_may_forbid_it,
);

/// A hub with the repository `u/r`, whose GGUF files are the model of the repository, and an empty cache.
struct Hub {
    child: Child,
    address: String,
    directory: TempDir,
}

impl Hub {
    fn start() -> Hub {
        let directory = tempfile::tempdir().unwrap();
        let model = std::fs::read(fixture()).unwrap();
        for path in [
            "hf/u/r/m-Q4_K_M.gguf",
            "hf/u/r/m-Q8_0.gguf",
            "ollama/library/tiny/latest.gguf",
        ] {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, &model).unwrap();
        }
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../oxidize-hub/tests/server/hub_server.py");
        let mut command = Command::new("python3");
        command
            .arg(script)
            .arg(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            skip("python3 is missing");
        };
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let port = line.split_whitespace().next().unwrap();
        Hub {
            child,
            address: format!("http://127.0.0.1:{port}"),
            directory,
        }
    }

    fn cache(&self) -> PathBuf {
        self.directory.path().join("cache")
    }

    /// Sets the variables of this hub and its cache.
    fn with_variables(&self, mut command: Command) -> Command {
        for name in [
            "HF_TOKEN",
            "HF_HUB_OFFLINE",
            "HF_HOME",
            "HTTP_PROXY",
            "http_proxy",
            "ALL_PROXY",
            "all_proxy",
        ] {
            command.env_remove(name);
        }
        command
            .env("HF_ENDPOINT", &self.address)
            .env("OXIDIZE_OLLAMA_REGISTRY", &self.address)
            .env("MODELSCOPE_ENDPOINT", &self.address)
            .env("HF_HUB_CACHE", self.cache().join("hub"))
            .env("OXIDIZE_HOME", self.cache().join("own"))
            .env("HOME", self.directory.path());
        command
    }

    fn oxidize(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oxidize"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("OXIDIZE_") {
                command.env_remove(name);
            }
        }
        self.with_variables(command)
            .args(args)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Standard output of a run that succeeds.
    fn ok(&self, args: &[&str]) -> String {
        let output = self.oxidize(args);
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    /// The error of a run that fails with status 1 and prints nothing else.
    fn error(&self, args: &[&str]) -> String {
        let output = self.oxidize(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(output.stdout.is_empty());
        let text = String::from_utf8(output.stderr).unwrap();
        let errors: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("error: "))
            .collect();
        assert_eq!(errors.len(), 1, "{text}");
        errors[0].to_owned()
    }

    fn serve(&self, args: &[&str]) -> Running {
        start_command(self.with_variables(running::command(&[&["--port", "0"], args].concat())))
    }

    /// Number of requests since the last call.
    fn n_requests(&self) -> usize {
        let address = self.address.trim_start_matches("http://").parse().unwrap();
        http::request(address, "GET", "/_log", &[], "")
            .json()
            .as_array()
            .unwrap()
            .len()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn names_are_fetched_listed_copied_and_removed() {
    let hub = Hub::start();
    let path = hub.ok(&["pull", "hf:u/r"]);
    assert!(
        path.ends_with("m-Q4_K_M.gguf\n") && path.lines().count() == 1,
        "{path}"
    );
    assert_eq!(
        std::fs::read(path.trim()).unwrap(),
        std::fs::read(fixture()).unwrap()
    );
    hub.n_requests();
    // What is there runs without the network, by every form of its name.
    for name in ["hf:u/r", "hf:u/r:q4_k_m", "hf.co/u/r", "m-Q4_K_M"] {
        hub.ok(&["run", name, "Hello", "-n", "2"]);
        assert!(hub.ok(&["show", name]).contains("GGUF"), "{name}");
    }
    hub.ok(&[
        "--offline",
        "run",
        "-hf",
        "u/r:Q4_K_M",
        "-p",
        "Hello",
        "-n",
        "2",
    ]);
    hub.ok(&["inspect", "-hf", "u/r"]);
    assert_eq!(hub.n_requests(), 0);
    // What is not there is fetched by the subcommand that needs it.
    hub.ok(&["tokenize", "-m", "hf:u/r:q8_0", "Hello"]);
    hub.ok(&["run", "ollama:tiny", "Hello", "-n", "2"]);
    let list = hub.json(&["list", "--json"]);
    let names: Vec<&str> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["hf:u/r:Q4_K_M", "hf:u/r:Q8_0", "ollama:tiny:latest"]
    );
    assert_eq!(
        (&list[0]["quantization"], &list[0]["shared"]),
        (&json!("Q4_K_M"), &json!("hub cache"))
    );
    assert!(list[0]["used"].as_u64() > Some(1_700_000_000));
    let text = hub.ok(&["list", "q8"]);
    assert!(
        text.contains("Q8_0") && text.contains("hub cache") && text.lines().count() == 2,
        "{text}"
    );
    hub.ok(&["cp", "hf:u/r:q4_k_m", "mine"]);
    hub.ok(&["run", "mine", "Hello", "-n", "2"]);
    assert_eq!(hub.ok(&["rm", "--unused", "90d"]), "");
    assert!(
        hub.ok(&["rm", "hf:u/r:Q4_K_M", "--dry-run"])
            .starts_with("would remove hf:u/r:Q4_K_M")
    );
    assert!(
        hub.ok(&["rm", "hf:u/r:Q4_K_M"])
            .starts_with("removed hf:u/r:Q4_K_M")
    );
    // The copy keeps the bytes.
    hub.ok(&["run", "mine", "Hello", "-n", "2"]);
    let freed = hub.json(&["rm", "mine", "hf:u/r", "--json"]);
    // Both have the same bytes, which the last name frees.
    let bytes = [0, 1].map(|nth| freed[nth]["freed"].as_u64().unwrap());
    assert!(bytes[0] == 0 && bytes[1] > 100_000, "{freed}");
    assert_eq!(hub.json(&["list", "--json"]).as_array().unwrap().len(), 1);
}

fn the_best_that_fits_runs() {
    let hub = Hub::start();
    // Both fit; of two sizes that are equal, one is chosen, and it runs.
    let path = hub.ok(&["pull", "hf:u/r:auto"]);
    assert!(path.contains("m-Q"), "{path}");
    // A size that no machine has, for a file that need not exist to be refused.
    let config = json!({ "sizes": { "m-Q4_K_M.gguf": 40_000_000_000_000_000u64 } });
    std::fs::write(
        hub.directory.path().join("hf/u/r/.repo.json"),
        config.to_string(),
    )
    .unwrap();
    let path = hub.ok(&["pull", "hf:u/r:auto"]);
    assert!(path.ends_with("m-Q8_0.gguf\n"), "{path}");
}

fn errors_name_the_repository() {
    let hub = Hub::start();
    for (args, parts) in [
        (
            &["pull", "hf:u/none"][..],
            ["hf:u/none", "no such repository", "HF_TOKEN"],
        ),
        (
            &["run", "hf:u/r:Q2_K", "Hello"],
            ["hf:u/r:Q2_K", "no file matches", "m-Q8_0.gguf"],
        ),
        (
            &["--offline", "pull", "hf:u/r"],
            ["hf:u/r", "not in the cache", "--offline"],
        ),
        (&["pull", "hf:u"], ["hf:u", "expected USER/REPO", ""]),
        (
            &["pull", "model.gguf"],
            ["model.gguf", "expected a name", ""],
        ),
        (
            &["rm", "hf:u/none"],
            ["hf:u/none", "no such model", "oxidize list"],
        ),
        (&["cp", "none", "x"], ["none", "no such model", ""]),
        (&["--offline", "search", "x"], ["search", "network", "off"]),
    ] {
        let error = hub.error(args);
        assert!(
            parts.iter().all(|part| error.contains(part)),
            "{args:?}: {error}"
        );
    }
}

fn search_and_recommend() {
    let hub = Hub::start();
    let text = hub.ok(&["search", "r"]);
    assert!(
        text.contains("hf:u/r") && text.contains("mit") && text.contains("kB"),
        "{text}"
    );
    assert_eq!(
        hub.json(&["search", "r", "--json"])[0]["models"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    hub.n_requests();
    let text = hub.ok(&["recommend", "code", "--memory", "8GB"]);
    assert!(
        text.contains("Qwen2.5-Coder-7B") && !text.contains("30B"),
        "{text}"
    );
    let list = hub.json(&["recommend", "--memory", "8GB", "-n", "2", "--json"]);
    assert!(list.as_array().unwrap().len() == 2 && list[0]["reason"].is_string());
    assert_eq!(hub.n_requests(), 0);
}

/// The lines of a streamed answer.
fn lines(server: &Running, path: &str, body: &Value) -> Vec<Value> {
    let reply = server.post(path, body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply
        .body
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn the_server_fetches_and_removes_models() {
    let hub = Hub::start();
    let server = hub.serve(&["first=hf:u/r"]);
    let chat = |model: &str| {
        let body = json!({
            "model": model, "stream": false, "messages": [{ "role": "user", "content": "Hello" }],
            "options": { "num_predict": 2 },
        });
        server.post("/api/chat", &body)
    };
    assert_eq!(chat("tiny").status, 404);
    let progress = lines(&server, "/api/pull", &json!({ "model": "tiny" }));
    assert_eq!(progress.last().unwrap(), &json!({ "status": "success" }));
    let pulling = progress.iter().find(|line| line["total"].is_u64()).unwrap();
    assert!(
        pulling["digest"].as_str().unwrap().starts_with("sha256:"),
        "{pulling}"
    );
    assert_eq!(chat("tiny:latest").status, 200);
    let whole = server
        .post(
            "/api/pull",
            &json!({ "model": "hf.co/u/r:Q8_0", "stream": false }),
        )
        .ok();
    assert_eq!(whole["status"], "success");
    assert_eq!(chat("hf.co/u/r:Q8_0").status, 200);
    // A copy, and a model of the local library by its name there.
    assert_eq!(
        server
            .post(
                "/api/copy",
                &json!({ "source": "tiny", "destination": "copy" })
            )
            .status,
        200
    );
    assert_eq!(chat("copy").status, 200);
    let created = lines(
        &server,
        "/api/create",
        &json!({ "model": "made", "from": "hf:u/r:Q8_0" }),
    );
    assert_eq!(created.last().unwrap()["status"], "success");
    assert_eq!(chat("made").status, 200);
    hub.ok(&["cp", "hf:u/r:q8_0", "later"]);
    assert_eq!(server.get("/v1/models/later").ok()["loaded"], false);
    assert_eq!(
        server.post("/v1/models/later", &json!(null)).ok()["loaded"],
        true
    );
    assert_eq!(
        server.get("/v1/models/hf:u/r:Q8_0").ok()["id"],
        "hf:u/r:Q8_0"
    );
    // Errors.
    let missing = lines(&server, "/api/pull", &json!({ "model": "hf:u/none" }));
    assert!(
        missing.last().unwrap()["error"]
            .as_str()
            .unwrap()
            .contains("hf:u/none")
    );
    for (body, status) in [
        (json!({ "model": "none", "stream": false }), 404),
        (json!({ "model": "hf:x", "stream": false }), 400),
        (json!({ "model": "https://127.0.0.1/m.gguf" }), 400),
        (json!({}), 400),
    ] {
        assert_eq!(server.post("/api/pull", &body).status, status, "{body}");
    }
    assert_eq!(
        server
            .post(
                "/api/create",
                &json!({ "model": "x", "from": "tiny", "system": "s" })
            )
            .status,
        400
    );
    assert_eq!(
        server
            .post(
                "/api/copy",
                &json!({ "source": "none", "destination": "x" })
            )
            .status,
        404
    );
    assert_eq!(
        server
            .post(
                "/api/copy",
                &json!({ "source": "tiny", "destination": "../x" })
            )
            .status,
        400
    );
    let delete = |model: &str| {
        http::request(
            server.address,
            "DELETE",
            "/api/delete",
            &[],
            &json!({ "model": model }).to_string(),
        )
        .status
    };
    assert_eq!(delete("tiny"), 200);
    assert_eq!((chat("tiny").status, delete("tiny")), (404, 404));
    assert_eq!(chat("copy").status, 200);
    assert_eq!(delete("made"), 200);
    let foreign = [("Origin", "https://evil.example")];
    let refused = http::request(
        server.address,
        "DELETE",
        "/api/delete",
        &foreign,
        &json!({ "model": "copy" }).to_string(),
    );
    assert_eq!(refused.status, 403);
}

fn a_server_may_forbid_it() {
    let hub = Hub::start();
    let server = hub.serve(&["hf:u/r", "--manage-models", "off"]);
    assert_eq!(server.get("/v1/models").ok()["data"][0]["id"], "m-Q4_K_M");
    hub.n_requests();
    for path in ["/api/pull", "/api/create"] {
        assert_eq!(
            server
                .post(path, &json!({ "model": "tiny", "from": "m-Q4_K_M" }))
                .status,
            403,
            "{path}"
        );
    }
    let copy = json!({ "source": "m-Q4_K_M", "destination": "x" });
    assert_eq!(server.post("/api/copy", &copy).status, 403);
    let gone = http::request(
        server.address,
        "DELETE",
        "/api/delete",
        &[],
        "{\"model\":\"m-Q4_K_M\"}",
    );
    assert_eq!(gone.status, 403);
    assert_eq!(server.get("/v1/models/hf:u/r:Q4_K_M").status, 404);
    assert_eq!(hub.n_requests(), 0);
}
