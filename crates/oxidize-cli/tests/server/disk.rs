//! The prefix cache on disk: it survives restarts, and damage to it never changes an answer.

use super::*;
use sha2::{Digest, Sha256};
use std::fs;

const CHAT: &str = "/v1/chat/completions";

fn story(n: usize) -> Value {
    question(
        &format!(
            "Chapter {n}. {}",
            "It was a dark and stormy night. ".repeat(15)
        ),
        8,
    )
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap()
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

/// The files of all blocks below a directory.
fn blocks(directory: &Path) -> Vec<PathBuf> {
    let Ok(models) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let files = models.flat_map(|model| fs::read_dir(model.unwrap().path()).unwrap());
    let paths = files.map(|file| file.unwrap().path());
    paths.filter(|path| path.extension().is_none()).collect()
}

fn is_intact(path: &Path) -> bool {
    let bytes = fs::read(path).unwrap();
    let (body, checksum) = bytes.split_at(bytes.len().saturating_sub(32));
    Sha256::digest(body).as_slice() == checksum
}

#[test]
fn cached_prefixes_survive_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let args = [
        "--cache-dir",
        directory.path().to_str().unwrap(),
        "--api-key",
        "a",
        "--api-key",
        "b",
    ];
    let ask = |server: &Running, key: &str| {
        let headers = [("Authorization", key)];
        http::request(
            server.address,
            "POST",
            CHAT,
            &headers,
            &story(1).to_string(),
        )
        .ok()
    };
    let mut server = start(&args);
    let first = ask(&server, "Bearer a");
    assert_eq!(cached(&first), 0);
    server.terminate();
    assert!(server.wait().success());
    assert!(!blocks(directory.path()).is_empty());
    let server = start(&args);
    assert_eq!(cached(&ask(&server, "Bearer b")), 0, "another tenant");
    let second = ask(&server, "Bearer a");
    assert!(cached(&second) > 100, "{second}");
    assert_eq!(text(&first), text(&second));
}

#[test]
fn damaged_blocks_are_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let args = ["--cache-dir", directory.path().to_str().unwrap()];
    let mut server = start(&args);
    let first = server.post(CHAT, &story(1)).ok();
    server.terminate();
    server.wait();
    for path in blocks(directory.path()) {
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x40;
        fs::write(&path, bytes).unwrap();
    }
    let server = start(&args);
    let second = server.post(CHAT, &story(1)).ok();
    assert_eq!(cached(&second), 0);
    assert_eq!(text(&first), text(&second));
}

#[test]
fn a_killed_server_leaves_no_damaged_block() {
    // OXIDIZE_KILLS sets the number of rounds; `make soak` raises it.
    let kills = std::env::var("OXIDIZE_KILLS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(12);
    let directory = tempfile::tempdir().unwrap();
    let args = [
        "--cache-dir",
        directory.path().to_str().unwrap(),
        "-c",
        "512",
    ];
    let mut wait = 3u64;
    for round in 0..kills {
        let mut server = start(&args);
        let clients: Vec<_> = (0..4)
            .map(|n| {
                http::open(
                    server.address,
                    "POST",
                    CHAT,
                    &[],
                    &story(4 * round + n).to_string(),
                )
            })
            .collect();
        // Kills the server between the first and the last write, at another time in each round.
        let before = blocks(directory.path()).len();
        wait_until("a block is written", || {
            blocks(directory.path()).len() > before
        });
        wait = wait
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        std::thread::sleep(Duration::from_micros((wait >> 33) % 40_000));
        server.child.kill().unwrap();
        server.wait();
        drop(clients);
        for path in blocks(directory.path()) {
            assert!(is_intact(&path), "round {round}: {}", path.display());
        }
    }
    assert!(!blocks(directory.path()).is_empty());
    let server = start(&args);
    server.post(CHAT, &story(0)).ok();
}
