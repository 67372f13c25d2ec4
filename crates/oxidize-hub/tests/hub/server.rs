//! [`Server`]: the Python server with a directory of files, and a cache to pull into.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use oxidize_hub::{Hub, ModelRef, Observer, PullOptions, Pulled, Settings, Token};
use oxidize_testing::skip;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Size of a piece in tests.
pub(crate) const PIECE: u64 = 4096;

/// A running server.
pub(crate) struct Server {
    child: Child,
    directory: TempDir,
    ports: Vec<u16>,
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::start_with(&[])
    }

    /// Starts a server, over TLS too if a certificate and a key are given.
    pub(crate) fn start_with(tls: &[&Path]) -> Server {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("hf")).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/hub_server.py");
        let mut command = Command::new("python3");
        command
            .arg(script)
            .arg(directory.path())
            .args(tls)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            skip("python3 is missing");
        };
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let ports = line
            .split_whitespace()
            .map(|port| port.parse().unwrap())
            .collect();
        Server {
            child,
            directory,
            ports,
        }
    }

    /// Writes a file of a repository, such as `hf/u/r/m.gguf`.
    pub(crate) fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// Sets properties of a repository.
    pub(crate) fn configure(&self, repo: &str, config: &Value) {
        self.write(&format!("{repo}/.repo.json"), config.to_string().as_bytes());
    }

    pub(crate) fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    pub(crate) fn cdn(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[1])
    }

    pub(crate) fn tls(&self) -> String {
        format!("https://localhost:{}", self.ports[2])
    }

    /// Sets the faults, which replace the earlier ones.
    pub(crate) fn faults(&self, faults: &Value) {
        ureq::post(format!("{}/_faults", self.address()))
            .send(faults.to_string())
            .unwrap();
    }

    /// The requests since the last call.
    pub(crate) fn log(&self) -> Vec<Value> {
        let text = ureq::get(format!("{}/_log", self.address()))
            .call()
            .unwrap()
            .body_mut()
            .read_to_string()
            .unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Waits until the servers have noticed that all clients are gone.
    pub(crate) fn wait_until_idle(&self) {
        for address in [self.address(), self.cdn()] {
            ureq::get(format!("{address}/_idle")).call().unwrap();
        }
    }

    /// The requests for bytes of the content network since the last call.
    pub(crate) fn cdn_log(&self) -> Vec<Value> {
        let mut log = self.log();
        log.retain(|entry| entry["server"] == "cdn" && entry["method"] == "GET");
        log
    }

    /// Settings with this server as every hub, and a cache in `cache`.
    pub(crate) fn settings(&self, cache: &Path) -> Settings {
        let mut settings = Settings::default();
        settings.hf_endpoint = self.address();
        settings.ollama_registry = self.address();
        settings.modelscope_endpoint = self.address();
        settings.hub_cache = Some(cache.join("hub"));
        settings.own_cache = Some(cache.join("own"));
        settings.piece = PIECE;
        settings.first_wait = Duration::from_millis(1);
        settings
    }

    /// This program as another process that pulls a model from this server.
    pub(crate) fn puller(&self, cache: &Path, model: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .env_clear()
            .env("HF_ENDPOINT", self.address())
            .env("HF_HUB_CACHE", cache.join("hub"))
            .env("OXIDIZE_HOME", cache.join("own"))
            .env(PULL, model)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Variable that makes this program pull a model.
const PULL: &str = "OXIDIZE_TEST_PULL";

/// Pulls the model of [`PULL`] and prints its path; `None` if there is none, so that the tests run.
pub(crate) fn pull_if_asked() -> Option<ExitCode> {
    let model = std::env::var(PULL).ok()?;
    let mut settings = Settings::from_environment();
    settings.piece = PIECE;
    settings.first_wait = Duration::from_millis(1);
    Some(match pull(&settings, &model) {
        Ok(pulled) => {
            println!("{}", pulled.path.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    })
}

/// Records the notes of a pull.
#[derive(Default)]
pub(crate) struct Notes(pub(crate) std::sync::Mutex<Vec<String>>);

impl Observer for Notes {
    fn note(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

pub(crate) fn name(text: &str) -> ModelRef {
    ModelRef::parse(text).unwrap().unwrap()
}

/// Pulls a model.
pub(crate) fn pull(settings: &Settings, model: &str) -> oxidize_hub::Result<Pulled> {
    Hub::new(settings.clone(), None)?.pull(&name(model), &PullOptions::default())
}

/// The message of a pull that fails.
pub(crate) fn failure(settings: &Settings, model: &str) -> String {
    pull(settings, model).unwrap_err().to_string()
}

pub(crate) fn with_token(mut settings: Settings, token: &str) -> Settings {
    settings.token = Some(Token::new(token, "HF_TOKEN"));
    settings
}

/// Bytes that look random and are the same each time.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(&mut next)
        .flatten()
        .take(len)
        .collect()
}

/// All files below a directory, links included.
pub(crate) fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

/// A fault.
pub(crate) fn fault(server: &str, pattern: &str, kind: &str, more: Value) -> Value {
    let mut fault = json!({ "server": server, "match": pattern, "kind": kind });
    for (key, value) in more.as_object().into_iter().flatten() {
        fault[key] = value.clone();
    }
    fault
}
