//! Signals during the work: the program stops, and leaves no incomplete output.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::super::do_not_ignore;
use super::{files, path, synthetic};

/// Command lines that take long enough to be stopped.
const COMMANDS: &[&[&str]] = &[
    &[
        "quantize", "in.gguf", "out.gguf", "IQ3_S", "--pure", "-t", "1",
    ],
    &[
        "convert",
        "in.gguf",
        "-o",
        "out/model",
        "--type",
        "F32",
        "-t",
        "1",
    ],
    &["split", "in.gguf", "out.gguf", "--max-size", "20M"],
    &["merge", "in.gguf", "out.gguf"],
];

#[test]
fn stopped_run_leaves_no_files() {
    let dir = tempfile::tempdir().unwrap();
    synthetic(&dir.path().join("in.gguf"), "F16", 24);
    for args in COMMANDS {
        for (signal, number) in [("-INT", 2), ("-TERM", 15), ("-HUP", 1)] {
            do_not_ignore(number);
            let status = stopped(args, dir.path(), signal);
            assert_eq!(status.code(), Some(128 + number), "{args:?} {signal}");
            assert_eq!(files(dir.path()), ["in.gguf"], "{args:?} {signal}");
        }
    }
}

/// A killed program cannot clean up, but its output has no final name yet.
#[test]
fn killed_run_leaves_no_output() {
    let dir = tempfile::tempdir().unwrap();
    synthetic(&dir.path().join("in.gguf"), "F16", 24);
    for args in COMMANDS {
        let status = stopped(args, dir.path(), "-KILL");
        assert_eq!(status.signal(), Some(9), "{args:?}");
        let left = files(dir.path());
        assert!(!left.iter().any(|name| name == "out.gguf"), "{left:?}");
        let out = dir.path().join("out");
        if out.exists() {
            assert!(!out.join("model/config.json").exists());
            std::fs::remove_dir_all(&out).unwrap();
        }
        if cfg!(target_os = "linux") && supports_unnamed(dir.path()) {
            assert_eq!(files(dir.path()), ["in.gguf"], "{args:?}");
        }
    }
}

/// The next run removes temporary files of a killed run for the same output only.
#[test]
fn next_run_removes_temporary_files() {
    let dir = tempfile::tempdir().unwrap();
    synthetic(&dir.path().join("in.gguf"), "F16", 1);
    std::fs::write(dir.path().join(".out.gguf.7.0.partial"), "half").unwrap();
    std::fs::write(dir.path().join(".in.gguf.7.0.partial"), "another").unwrap();
    let status = start(&["merge", "in.gguf", "out.gguf"], dir.path())
        .wait()
        .unwrap();
    assert!(status.success());
    let left = files(dir.path());
    assert_eq!(left, [".in.gguf.7.0.partial", "in.gguf", "out.gguf"]);
}

/// A signal ignored by the parent process, as with `nohup`, stays ignored. The program detects it on Linux only.
#[test]
#[cfg(target_os = "linux")]
fn ignored_signal_stays_ignored() {
    let dir = tempfile::tempdir().unwrap();
    synthetic(&dir.path().join("in.gguf"), "F16", 4);
    let program = env!("CARGO_BIN_EXE_oxidize");
    let line = format!("trap '' HUP; exec {program} quantize in.gguf out.gguf IQ3_S --pure -t 1");
    let mut child = Command::new("sh")
        .args(["-c", &line])
        .current_dir(dir.path())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until_it_writes(&mut child, dir.path());
    send(&child, "-HUP");
    assert!(child.wait().unwrap().success());
    assert_eq!(files(dir.path()), ["in.gguf", "out.gguf"]);
}

fn start(arguments: &[&str], dir: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_oxidize"))
        .args(arguments)
        .current_dir(dir)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Sends a signal to a run as soon as it writes.
fn stopped(arguments: &[&str], dir: &Path, signal: &str) -> ExitStatus {
    let mut child = start(arguments, dir);
    wait_until_it_writes(&mut child, dir);
    // Paused, so that it cannot finish before the signal arrives.
    send(&child, "-STOP");
    send(&child, signal);
    send(&child, "-CONT");
    child.wait().unwrap()
}

fn wait_until_it_writes(child: &mut Child, dir: &Path) {
    let start = Instant::now();
    while !writes(child, dir) {
        assert_eq!(child.try_wait().unwrap(), None, "ended before it wrote");
        assert!(start.elapsed() < Duration::from_secs(300), "never wrote");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// True if the program has an open temporary file in `dir`, with or without a name.
fn writes(child: &Child, dir: &Path) -> bool {
    let partial = |dir: &Path| {
        let names = files(dir);
        names.iter().any(|name| name.ends_with(".partial"))
    };
    let out = dir.join("out/model");
    if partial(dir) || (out.exists() && partial(&out)) {
        return true;
    }
    let open = std::fs::read_dir(format!("/proc/{}/fd", child.id()));
    let targets = open.into_iter().flatten().flatten();
    let mut targets = targets.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.any(|target| {
        let text = target.to_string_lossy();
        text.starts_with(path(dir)) && text.ends_with(" (deleted)")
    })
}

fn send(child: &Child, signal: &str) {
    let id = child.id().to_string();
    let sent = Command::new("kill").args([signal, &id]).status().unwrap();
    assert!(sent.success());
}

/// True if the file system supports files without a name (O_TMPFILE).
fn supports_unnamed(dir: &Path) -> bool {
    let pending = oxidize_core::io::PendingFile::create(&dir.join("probe")).unwrap();
    let found = files(dir).iter().any(|name| name.ends_with(".partial"));
    drop(pending);
    !found
}
