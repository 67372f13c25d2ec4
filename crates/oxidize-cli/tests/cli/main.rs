//! The `oxidize` program as a user meets it: what each verb prints, and what it says when
//! something is wrong. All of it runs on the tiny model that is checked in.

mod archs;
mod chat;
mod measure;
mod perplexity_bars;
mod run;
mod tokenize;
mod unheard;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// The folder of the checked-in model.
fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/tiny")
        .join(name)
}

fn model() -> String {
    fixture("model.gguf").to_string_lossy().into_owned()
}

/// What a run of the program left.
struct Outcome {
    stdout: String,
    stderr: String,
    code: Option<i32>,
}

impl Outcome {
    /// What it printed; panics where it failed.
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// What it complained of, in one line; panics where it did not fail.
    fn error(self) -> String {
        assert_eq!(self.code, Some(1), "{}{}", self.stdout, self.stderr);
        let mut errors = self.stderr.lines().filter(|line| line.starts_with("error"));
        let error = errors.next_back().unwrap_or_default().to_owned();
        assert!(!error.is_empty(), "{}", self.stderr);
        error
    }
}

/// The program with these arguments, in an environment where nothing is set and nothing is cached.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxidize"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OXIDIZE_") {
            command.env_remove(name);
        }
    }
    let nowhere = std::env::temp_dir().join("oxidize-no-such-cache");
    command
        .env("OXIDIZE_TEST_CACHE", nowhere)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs it with this text on its standard input.
fn oxidize_with(args: &[&str], input: &str) -> Outcome {
    let mut child = command(args).spawn().unwrap();
    // A program that fails early does not read it.
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

/// A file in a folder that goes away with it.
fn text_file(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    std::fs::write(&path, text).unwrap();
    let path = path.to_string_lossy().into_owned();
    (folder, path)
}

#[test]
fn help_lists_the_verbs() {
    let help = oxidize(&["--help"]).ok();
    for verb in [
        "run",
        "chat",
        "serve",
        "bench",
        "perplexity",
        "logits",
        "tokenize",
        "inspect",
    ] {
        assert!(
            help.lines().any(|line| line.trim_start().starts_with(verb)),
            "{verb}: {help}"
        );
    }
    assert!(
        oxidize(&["--version"])
            .ok()
            .contains(env!("CARGO_PKG_VERSION"))
    );
}
