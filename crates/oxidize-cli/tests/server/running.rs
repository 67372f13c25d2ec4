//! A server process of `oxidize serve`, on a free port.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use oxidize_core::synth::{QuantRecipe, Shape, Synthesis};
use serde_json::Value;

use crate::http::{self, Reply};

/// Time after which a test fails instead of waiting any longer. No test is faster or slower because of it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);

/// Time that a server has to end after its test. A killed process writes no coverage.
const DRAIN: Duration = Duration::from_secs(5);

/// A server process that is ended when it is dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
}

/// `oxidize serve` with these arguments and without OXIDIZE_* variables.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxidize"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OXIDIZE_") {
            command.env_remove(name);
        }
    }
    command
        .arg("serve")
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// Starts a server of the tiny model on a free port and waits until it is ready.
pub(crate) fn start(args: &[&str]) -> Running {
    start_with(&[&["--port", "0", tiny().to_str().unwrap()], args].concat())
}

/// Starts a server of [`endless`] with its whole context.
pub(crate) fn start_endless(args: &[&str]) -> Running {
    let model = endless().to_str().unwrap();
    start_with(&[&["--port", "0", "-c", "0", model], args].concat())
}

pub(crate) fn start_with(args: &[&str]) -> Running {
    start_command(command(args))
}

pub(crate) fn start_command(mut command: Command) -> Running {
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let address = line.trim().rsplit("//").next().unwrap();
    let address = address
        .parse()
        .unwrap_or_else(|_| panic!("no address in {line:?}"));
    // The pipe has to stay open, so the rest is read and dropped.
    std::thread::spawn(move || stdout.read_to_end(&mut Vec::new()));
    let server = Running { child, address };
    wait_until("the model is loaded", || {
        server.get("/health").status == 200
    });
    server
}

impl Running {
    pub(crate) fn get(&self, path: &str) -> Reply {
        http::request(self.address, "GET", path, &[], "")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        http::request(self.address, "POST", path, &[], &body.to_string())
    }

    /// The JSON of the events of a streamed answer, in order.
    pub(crate) fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut body = body.clone();
        body["stream"] = true.into();
        let reply = self.post(path, &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert!(
            reply
                .header("content-type")
                .unwrap()
                .starts_with("text/event-stream")
        );
        let data = reply
            .body
            .lines()
            .filter_map(|line| line.strip_prefix("data: "));
        let data = data.filter(|data| *data != "[DONE]");
        data.map(|data| serde_json::from_str(data).unwrap())
            .collect()
    }

    /// The value of a metric, summed over its labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let lines = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with([' ', '{']))
        });
        lines
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.metric("oxidize_requests_running") + self.metric("oxidize_requests_waiting") == 0.0
            && self.metric("oxidize_used_blocks") == 0.0
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status();
        assert!(sent.unwrap().success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < TIMEOUT, "the server does not exit");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.terminate();
        }
        let start = Instant::now();
        while start.elapsed() < DRAIN && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A model of random weights with a context of 2048 tokens, created once.
pub(crate) fn tiny() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| synthesize("tiny.gguf", 2048))
}

/// The same model with a context of [`ENDLESS`] tokens.
pub(crate) fn endless() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| synthesize("endless.gguf", ENDLESS))
}

/// Tokens of an answer that is not over before a test ends it, however busy the machine is.
pub(crate) const ENDLESS: usize = 1 << 17;

fn synthesize(name: &str, n_ctx: usize) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let synthesis = Synthesis {
        shape: Shape {
            n_ctx,
            ..Shape::named("tiny").unwrap()
        },
        recipe: QuantRecipe::named("Q8_0").unwrap(),
        seed: 1,
    };
    synthesis.save(&path, |_, _| {}).unwrap();
    path
}

/// The checked-in model, which has a chat template.
pub(crate) fn fixture() -> String {
    concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fixtures/tiny/model.gguf"
    )
    .to_owned()
}

pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
