//! The `oxidize` program: output and errors of each subcommand, mostly on the tiny model of the repository.

mod archs;
mod cache;
mod chat;
mod completions;
mod embed;
mod measure;
#[cfg(unix)]
mod quantize;
mod reasoning;
mod run;
mod stdio;
mod tokenize;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Path of a file of the tiny model.
fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/tiny")
        .join(name)
}

fn model() -> String {
    fixture("model.gguf").to_string_lossy().into_owned()
}

/// Output and exit code of a run.
struct Outcome {
    stdout: String,
    stderr: String,
    code: Option<i32>,
}

impl Outcome {
    /// Standard output; panics if the run failed.
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// The error line; panics if the run did not fail.
    fn error(self) -> String {
        assert_eq!(self.code, Some(1), "{}{}", self.stdout, self.stderr);
        let mut errors = self.stderr.lines().filter(|line| line.starts_with("error"));
        let error = errors.next_back().unwrap_or_default().to_owned();
        assert!(!error.is_empty(), "{}", self.stderr);
        error
    }
}

/// The program with these arguments, without `OXIDIZE_` variables and with an empty cache.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxidize"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OXIDIZE_") {
            command.env_remove(name);
        }
    }
    let no_cache = std::env::temp_dir().join("oxidize-no-such-cache");
    command
        .env("OXIDIZE_TEST_CACHE", no_cache)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[test]
fn variables_of_flags_take_numbers_and_words() {
    let model = model();
    let load = |name: &str, value: &str| {
        let mut command = command(&["run", &model, "Hello", "-n", "1"]);
        outcome(
            command
                .env(name, value)
                .stdin(Stdio::null())
                .output()
                .unwrap(),
        )
    };
    for value in ["1", "0", "true", "false", "on", "off", "yes", "no", ""] {
        load("OXIDIZE_NO_MMAP", value).ok();
    }
    let wrong = load("OXIDIZE_NO_MMAP", "maybe");
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.stderr.contains("expected 1 or 0"), "{}", wrong.stderr);
    for name in [
        "OXIDIZE_ANY_MODEL",
        "OXIDIZE_LOG_PROMPTS",
        "OXIDIZE_NO_AUTH",
    ] {
        let mut serve = command(&["serve", "/no/such/model.gguf"]);
        let failed = outcome(serve.env(name, "1").output().unwrap());
        assert!(failed.error().contains("/no/such/model.gguf"), "{name}");
    }
}

/// Runs the program with this text on standard input.
fn oxidize_with(args: &[&str], input: &str) -> Outcome {
    let mut child = command(args).spawn().unwrap();
    // A program that fails early does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    outcome(child.wait_with_output().unwrap())
}

fn oxidize(args: &[&str]) -> Outcome {
    oxidize_with(args, "")
}

fn outcome(output: Output) -> Outcome {
    Outcome {
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
        code: output.status.code(),
    }
}

/// A text file in a temporary directory.
fn text_file(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.txt");
    std::fs::write(&path, text).unwrap();
    let path = path.to_string_lossy().into_owned();
    (dir, path)
}

/// Gives programs started from now on the default action for a signal that this process ignores because its parent
/// does, as with `nohup`: a signal with a handler has the default action after `exec`. Detected on Linux only.
#[cfg(unix)]
fn do_not_ignore(signal: i32) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    if mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1) {
        let noted = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        signal_hook::flag::register(signal, noted).unwrap();
    }
}

#[test]
fn help_lists_the_subcommands() {
    let help = oxidize(&["--help"]).ok();
    for name in [
        "run",
        "chat",
        "serve",
        "bench",
        "perplexity",
        "logits",
        "tokenize",
        "inspect",
        "quantize",
        "eval",
    ] {
        assert!(
            help.lines().any(|line| line.trim_start().starts_with(name)),
            "{name}: {help}"
        );
    }
    assert!(
        oxidize(&["--version"])
            .ok()
            .contains(env!("CARGO_PKG_VERSION"))
    );
}

/// Former names of subcommands, flags, values and variables still work and are not shown.
#[test]
fn former_names_are_hidden_aliases() {
    assert!(oxidize(&["choice", "--help"]).ok().contains("oxidize eval"));
    let model = model();
    let run = |flags: &[&str], variable: &str| {
        let args = ["run", &model, "Hello", "-n", "1"];
        let output = command(&[&args, flags].concat())
            .env("OXIDIZE_SPELL_OUT", variable)
            .output();
        outcome(output.unwrap())
    };
    run(&["--spell-out", "off"], "off").ok();
    run(&["--repack", "off"], "none").ok();
    let wrong = run(&[], "none");
    assert!(
        wrong.code == Some(2) && wrong.stderr.contains("--repack"),
        "{}",
        wrong.stderr
    );
    let help = oxidize(&["run", "--help"]).ok();
    assert!(!help.contains("spell"), "{help}");
}
