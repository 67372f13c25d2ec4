//! Downloads that are interrupted: by statuses, cut and silent connections, kills.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oxidize_hub::{Error, Hub, Observer, Progress, PullOptions};
use serde_json::{Value, json};

use crate::server::{PIECE, Server, bytes, fault, files, name, pull};

/// The range of a request, as first and last byte.
fn range(entry: &Value) -> (u64, u64) {
    let text = entry["range"]
        .as_str()
        .unwrap()
        .strip_prefix("bytes=")
        .unwrap();
    let (first, last) = text.split_once('-').unwrap();
    (first.parse().unwrap(), last.parse().unwrap())
}

pub(crate) fn statuses_that_pass_are_tried_again() {
    let server = Server::start();
    server.write("hf/u/r/m.gguf", &bytes(1, 50_000));
    for status in [408, 429, 500, 502, 503, 504] {
        let cache = tempfile::tempdir().unwrap();
        let twice = json!({ "status": status, "times": 2 });
        server.faults(&json!([
            fault("hub", "/api/", "status", twice.clone()),
            fault("hub", "/resolve/", "status", twice.clone()),
            fault("cdn", "blob", "status", twice),
        ]));
        let pulled = pull(&server.settings(cache.path()), "hf:u/r").unwrap();
        assert_eq!(std::fs::read(pulled.path).unwrap(), bytes(1, 50_000));
    }
}

pub(crate) fn cut_connections_go_on_at_the_last_byte() {
    let server = Server::start();
    server.write("hf/u/r/m.gguf", &bytes(1, 50_000));
    let cache = tempfile::tempdir().unwrap();
    let mut settings = server.settings(cache.path());
    settings.connections = 1;
    // One request for all, so that the cuts are within it. More cuts than tries: each one has progress.
    settings.piece = 1 << 20;
    server.faults(&json!([fault(
        "cdn",
        "blob",
        "cut",
        json!({ "after": 5000, "times": 9 })
    )]));
    let pulled = pull(&settings, "hf:u/r").unwrap();
    assert_eq!(std::fs::read(pulled.path).unwrap(), bytes(1, 50_000));
    let starts: Vec<u64> = server
        .cdn_log()
        .iter()
        .map(|entry| range(entry).0)
        .collect();
    assert_eq!(starts, (0..10).map(|n| n * 5000).collect::<Vec<_>>());
}

pub(crate) fn silent_connections_are_replaced() {
    let server = Server::start();
    server.write("hf/u/r/m.gguf", &bytes(1, 50_000));
    let cache = tempfile::tempdir().unwrap();
    let mut settings = server.settings(cache.path());
    settings.download_timeout = Duration::from_millis(300);
    server.faults(&json!([fault(
        "cdn",
        "blob",
        "hang",
        json!({ "after": 3000, "seconds": 600, "times": 3 })
    )]));
    let pulled = pull(&settings, "hf:u/r").unwrap();
    assert_eq!(std::fs::read(pulled.path).unwrap(), bytes(1, 50_000));
}

pub(crate) fn expired_addresses_are_renewed() {
    let server = Server::start();
    server.write("hf/u/r/m.gguf", &bytes(1, 200_000));
    let cache = tempfile::tempdir().unwrap();
    let mut settings = server.settings(cache.path());
    settings.connections = 1;
    // Some requests of the content network find their signature expired.
    server.faults(&json!([
        fault("cdn", "blob", "none", json!({ "times": 2 })),
        fault("cdn", "blob", "expire", json!({ "times": 2 })),
    ]));
    let pulled = pull(&settings, "hf:u/r").unwrap();
    assert_eq!(std::fs::read(pulled.path).unwrap(), bytes(1, 200_000));
    let log = server.log();
    let asked = log
        .iter()
        .filter(|entry| entry["path"].as_str().unwrap().contains("/resolve/"))
        .count();
    assert_eq!(asked, 3, "{log:?}");
}

pub(crate) fn servers_without_ranges_work() {
    let server = Server::start();
    server.write("hf/u/r/m.gguf", &bytes(1, 50_000));
    let cache = tempfile::tempdir().unwrap();
    let settings = server.settings(cache.path());
    // A partial file from ranges, then a server that ignores them: the file starts anew.
    server.faults(&json!([
        fault("cdn", "blob", "none", json!({ "times": 3 })),
        fault("cdn", "blob", "cut", json!({ "after": 1000 })),
    ]));
    let mut impatient = settings.clone();
    impatient.tries = 1;
    assert!(pull(&impatient, "hf:u/r").is_err());
    assert!(
        files(cache.path())
            .iter()
            .any(|file| file.to_string_lossy().ends_with(".oxidize.incomplete"))
    );
    server.faults(&json!([
        fault(
            "cdn",
            "blob",
            "cut",
            json!({ "after": 20_000, "times": 5, "no_ranges": true })
        ),
        fault("cdn", "blob", "none", json!({ "no_ranges": true })),
    ]));
    let pulled = pull(&settings, "hf:u/r").unwrap();
    assert_eq!(std::fs::read(pulled.path).unwrap(), bytes(1, 50_000));
}

/// Cancels a pull when some bytes are there.
struct CancelAfter(u64, Arc<AtomicBool>);

impl Observer for CancelAfter {
    fn progress(&self, at: Progress<'_>) {
        if at.done >= self.0 {
            self.1.store(true, Ordering::Relaxed);
        }
    }
}

pub(crate) fn a_canceled_pull_goes_on_later() {
    let server = Server::start();
    server.write("hf/u/r/m.gguf", &bytes(1, 100_000));
    let cache = tempfile::tempdir().unwrap();
    let settings = server.settings(cache.path());
    server.faults(&json!([fault(
        "cdn",
        "blob",
        "slow",
        json!({ "step": 1000, "seconds": 0.001 })
    )]));
    let flag = Arc::new(AtomicBool::new(false));
    let cancel = {
        let flag = flag.clone();
        Arc::new(move || flag.load(Ordering::Relaxed))
    };
    let hub = Hub::new(settings.clone(), Some(cancel)).unwrap();
    let observer = CancelAfter(30_000, flag);
    let result = hub.pull(
        &name("hf:u/r"),
        &PullOptions {
            observer: &observer,
            memory: None,
        },
    );
    assert!(matches!(result, Err(Error::Canceled { .. })), "{result:?}");
    server.faults(&json!([]));
    server.log();
    assert_eq!(
        std::fs::read(pull(&settings, "hf:u/r").unwrap().path).unwrap(),
        bytes(1, 100_000)
    );
    let fetched: u64 = server
        .cdn_log()
        .iter()
        .map(range)
        .map(|(first, last)| last + 1 - first)
        .sum();
    // At most a piece of each connection is lost.
    assert!(fetched <= 100_000 - 30_000 + 4 * PIECE, "{fetched}");
}

pub(crate) fn two_processes_share_a_download() {
    let server = Server::start();
    server.write("hf/u/r/m.gguf", &bytes(1, 100_000));
    let cache = tempfile::tempdir().unwrap();
    server.faults(&json!([fault(
        "cdn",
        "blob",
        "slow",
        json!({ "step": 4096, "seconds": 0.005 })
    )]));
    let mut children: Vec<_> = (0..3)
        .map(|_| server.puller(cache.path(), "hf:u/r").spawn().unwrap())
        .collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    let fetched: u64 = server
        .cdn_log()
        .iter()
        .map(range)
        .map(|(first, last)| last + 1 - first)
        .sum();
    assert_eq!(fetched, 100_000);
    let pulled = pull(&server.settings(cache.path()), "hf:u/r").unwrap();
    assert_eq!(std::fs::read(pulled.path).unwrap(), bytes(1, 100_000));
}

/// Bytes of the pieces that a killed download has marked.
fn bytes_there(cache: &Path, size: u64) -> u64 {
    let state = files(cache)
        .into_iter()
        .find(|file| file.to_string_lossy().ends_with(".oxidize.state"));
    let text = state
        .and_then(|state| std::fs::read(state).ok())
        .unwrap_or_default();
    let marks = text
        .iter()
        .position(|byte| *byte == b'\n')
        .map_or(&[][..], |end| &text[end + 1..]);
    let there = marks.iter().enumerate().filter(|(_, mark)| **mark == b'+');
    there
        .map(|(index, _)| PIECE.min(size - index as u64 * PIECE))
        .sum()
}

/// 200 downloads, each killed at a random point and run again. What was marked is not fetched again, and the bytes
/// are right.
pub(crate) fn killed_downloads_resume_to_the_right_bytes() {
    const KILLS: u64 = 200;
    const SIZE: u64 = 150_001;
    let server = Server::start();
    let model = bytes(9, SIZE as usize);
    server.write("hf/u/r/m.gguf", &model);
    server.faults(&json!([fault(
        "cdn",
        "blob",
        "slow",
        json!({ "step": 2048, "seconds": 0.0005 })
    )]));
    let mut partial = 0;
    let mut random = bytes(17, KILLS as usize * 8).into_iter();
    for _ in 0..KILLS {
        let cache = tempfile::tempdir().unwrap();
        let mut child = server.puller(cache.path(), "hf:u/r").spawn().unwrap();
        // At a random amount of finished pieces, a random moment later.
        let target = u64::from(random.next().unwrap()) * SIZE / 256;
        let delay = u64::from(random.next().unwrap()) * 8;
        let deadline = Instant::now() + Duration::from_secs(60);
        while bytes_there(cache.path(), SIZE) < target
            && child.try_wait().unwrap().is_none()
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(delay));
        // SIGKILL on Unix.
        let _ = child.kill();
        child.wait().unwrap();
        let there = bytes_there(cache.path(), SIZE);
        let is_done = files(cache.path())
            .iter()
            .any(|file| file.ends_with("m.gguf"));
        partial += u64::from(there > 0 && !is_done);
        server.wait_until_idle();
        server.log();
        let mut second = server.puller(cache.path(), "hf:u/r").spawn().unwrap();
        let status = second.wait().unwrap();
        let (mut path, mut error) = (String::new(), String::new());
        second
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut path)
            .unwrap();
        second
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut error)
            .unwrap();
        assert!(status.success(), "{error}");
        assert_eq!(std::fs::read(path.trim()).unwrap(), model);
        let fetched: u64 = server
            .cdn_log()
            .iter()
            .map(range)
            .map(|(first, last)| last + 1 - first)
            .sum();
        match is_done || blob_is_there(cache.path()) && fetched == 0 {
            true => assert_eq!(fetched, 0),
            false => assert_eq!(fetched, SIZE - there, "of {SIZE}, {there} were there"),
        }
        let left = files(cache.path());
        assert!(
            !left
                .iter()
                .any(|file| file.to_string_lossy().contains(".oxidize.")),
            "{left:?}"
        );
    }
    // Most kills must hit a download in progress, or this shows nothing.
    assert!(
        partial > KILLS / 2,
        "{partial} of {KILLS} kills hit a partial file"
    );
}

/// True if the bytes have their final name.
fn blob_is_there(cache: &Path) -> bool {
    files(&cache.join("hub/models--u--r/blobs"))
        .iter()
        .any(|file| file.extension().is_none())
}
