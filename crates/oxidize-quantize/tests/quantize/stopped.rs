//! A program that is asked to stop, or killed, in the middle of its work.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use oxidize_quantize::commands::is_ignored;

use super::bad_input::{files, path};
use super::synthetic;

/// What each verb makes of `in.gguf`, slowly enough to be stopped.
const VERBS: &[&[&str]] = &[
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
fn a_run_that_is_asked_to_stop_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    synthetic(&dir.path().join("in.gguf"), "F16", 24);
    for verb in VERBS {
        for (signal, number) in [("-INT", 2), ("-TERM", 15), ("-HUP", 1)] {
            if is_ignored(number) {
                eprintln!("SKIPPED: whoever started the tests has them ignore {signal}");
                continue;
            }
            let status = stopped(verb, dir.path(), signal);
            assert_eq!(status.code(), Some(128 + number), "{verb:?} {signal}");
            assert_eq!(files(dir.path()), ["in.gguf"], "{verb:?} {signal}");
        }
    }
}

/// A program that is killed can tidy up nothing, but has not named its file yet.
#[test]
fn a_killed_run_leaves_nothing_under_the_final_name() {
    let dir = tempfile::tempdir().unwrap();
    synthetic(&dir.path().join("in.gguf"), "F16", 24);
    for verb in VERBS {
        let status = stopped(verb, dir.path(), "-KILL");
        assert_eq!(status.signal(), Some(9), "{verb:?}");
        let left = files(dir.path());
        assert!(!left.iter().any(|name| name == "out.gguf"), "{left:?}");
        let folder = dir.path().join("out");
        if folder.exists() {
            assert!(!folder.join("model/config.json").exists());
            std::fs::remove_dir_all(&folder).unwrap();
        }
        if cfg!(target_os = "linux") && supports_unnamed(dir.path()) {
            assert_eq!(files(dir.path()), ["in.gguf"], "{verb:?}");
        }
    }
}

/// What was left by a program that was killed goes with the next run, and only that.
#[test]
fn the_next_run_tidies_up() {
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

/// `nohup` makes a program deaf to the end of its terminal, and it stays so.
#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let dir = tempfile::tempdir().unwrap();
    synthetic(&dir.path().join("in.gguf"), "F16", 4);
    if !cfg!(target_os = "linux") {
        eprintln!("SKIPPED: only Linux tells a program what it ignores");
        return;
    }
    let program = env!("CARGO_BIN_EXE_oxidize-quantize");
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
    Command::new(env!("CARGO_BIN_EXE_oxidize-quantize"))
        .args(arguments)
        .current_dir(dir)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Sends a run a signal as soon as it writes.
fn stopped(arguments: &[&str], dir: &Path, signal: &str) -> ExitStatus {
    let mut child = start(arguments, dir);
    wait_until_it_writes(&mut child, dir);
    // It does not get to the end before the signal is there.
    send(&child, "-STOP");
    send(&child, signal);
    send(&child, "-CONT");
    child.wait().unwrap()
}

fn wait_until_it_writes(child: &mut Child, dir: &Path) {
    let start = Instant::now();
    while !writes(child, dir) {
        assert_eq!(child.try_wait().unwrap(), None, "ended before it wrote");
        assert!(start.elapsed() < Duration::from_secs(60), "never wrote");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Whether there is a file in `dir` that is not under its name yet, or under none.
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

/// Whether files here can be without a name.
fn supports_unnamed(dir: &Path) -> bool {
    let pending = oxidize_core::io::PendingFile::create(&dir.join("probe")).unwrap();
    let found = files(dir).iter().any(|name| name.ends_with(".partial"));
    drop(pending);
    !found
}
