//! Output that nobody reads, or that does not fit.

use std::process::Stdio;

use super::{command, model};

/// Verbs that print a result, and take little time.
fn printing() -> Vec<Vec<String>> {
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

/// As behind `| head`, which has seen enough.
#[test]
fn whoever_stops_reading_is_no_error() {
    for args in printing() {
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
fn a_result_that_does_not_fit_is_an_error() {
    for args in printing() {
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

/// Work is not lost because nobody wants to hear how far it is.
#[test]
fn unheard_remarks_stop_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made.gguf");
    let mut child = command(&["quantize", &model(), made.to_str().unwrap(), "Q8_0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(made.exists());
}
