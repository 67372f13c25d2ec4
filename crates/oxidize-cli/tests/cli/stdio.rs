//! Closed pipes and full disks on standard output and standard error.

use std::process::Stdio;

use super::{command, model};

/// Short command lines that print a result.
fn command_lines() -> Vec<Vec<String>> {
    let model = model();
    let lines = [
        format!("tokenize -m {model} hello"),
        format!("tokenize -m {model} --json hello"),
        format!("inspect {model}"),
        "archs llama".to_owned(),
        format!("run {model} -n 4 hello"),
        format!("bench -m {model} -p 4 -n 2 -r 1"),
        format!("bench -m {model} -p 4 -n 2 -r 1 -o json"),
        format!("quantize {model} never.gguf Q8_0 --dry-run"),
    ];
    let words = |line: &String| line.split(' ').map(str::to_owned).collect();
    lines.iter().map(words).collect()
}

/// The reader closes the pipe, as `| head` does.
#[test]
fn closed_stdout_is_not_an_error() {
    for args in command_lines() {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut child = command(&args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let done = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
        assert_eq!(done.status.code(), Some(0), "{args:?}: {stderr}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_on_stdout_is_an_error() {
    for args in command_lines() {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let full = std::fs::File::create("/dev/full").unwrap();
        let done = command(&args)
            .stdin(Stdio::null())
            .stdout(full)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert!(stderr.contains("error: "), "{args:?}: {stderr}");
        assert!(stderr.contains("No space left"), "{args:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
        assert_eq!(done.status.code(), Some(1), "{args:?}");
    }
}

/// A closed standard error does not stop the work.
#[test]
fn closed_stderr_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("made.gguf");
    let mut child = command(&["quantize", &model(), output.to_str().unwrap(), "Q8_0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(output.exists());
}
