//! Operation: limits, overload, clients that disconnect or do not read, shutdown.

use super::*;
use std::io::{Read, Write};
use std::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";

/// A request with a long answer.
fn long(stream: bool) -> String {
    asked(1900, stream)
}

/// A request with an answer that is not over before the test is.
fn longest(stream: bool) -> String {
    asked(ENDLESS - 1000, stream)
}

fn asked(max_tokens: usize, stream: bool) -> String {
    let mut asked = question("Tell me everything", max_tokens);
    asked["stream"] = stream.into();
    asked.to_string()
}

/// Waits for the first byte of a streamed answer: then the request runs.
fn wait_until_it_streams(client: &TcpStream) {
    assert_eq!(client.peek(&mut [0]).unwrap(), 1);
}

#[test]
fn a_full_queue_refuses_with_a_retry_time() {
    let server = start_endless(&["-np", "1", "--queue", "1"]);
    let running = http::open(server.address, "POST", CHAT, &[], &longest(true));
    let waiting = http::open(server.address, "POST", CHAT, &[], &longest(true));
    let n_admitted = || {
        let slots = server.get("/slots").ok();
        let busy = |slot: &&Value| slot["is_processing"] == true;
        slots.as_array().unwrap().iter().filter(busy).count()
    };
    wait_until("both were admitted", || n_admitted() == 2);
    for _ in 0..20 {
        let reply = server.post(CHAT, &question("Hello", 4));
        assert!(reply.error(429).contains("queue is full"));
        assert!(reply.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
        // It was refused at once, not when a place became free.
        assert_eq!(n_admitted(), 2);
        assert_eq!(server.get("/health").status, 200);
    }
    drop((running, waiting));
    wait_until("both were cancelled", || server.is_idle());
    server.post(CHAT, &question("Hello", 4)).ok();
    assert!(server.metric("oxidize_rejected_total") >= 20.0);
}

#[test]
fn requests_of_disconnected_clients_are_cancelled() {
    let server = start_endless(&["-np", "4"]);
    for stream in [true, false] {
        let clients: Vec<TcpStream> = (0..4)
            .map(|_| http::open(server.address, "POST", CHAT, &[], &longest(stream)))
            .collect();
        wait_until("all run", || {
            server.metric("oxidize_requests_running") == 4.0
        });
        drop(clients);
        wait_until("none run", || server.is_idle());
    }
    assert!(server.metric("oxidize_cancelled_total") >= 4.0);
    assert!(server.metric("oxidize_engine_cancelled_total") >= 8.0);
}

#[test]
fn disconnects_do_not_change_other_answers() {
    let server = start(&["-np", "8", "--deterministic"]);
    let mut asked = question("Hello", 200);
    asked["logprobs"] = true.into();
    asked["top_logprobs"] = 3.into();
    // All log probabilities must agree to the last bit.
    let answer = || server.post(CHAT, &asked).ok()["choices"].clone();
    let alone = answer();
    let address = server.address;
    let disconnecting = std::thread::spawn(move || {
        for _ in 0..30 {
            let client = http::open(address, "POST", CHAT, &[], &long(true));
            std::thread::sleep(Duration::from_millis(7));
            drop(client);
        }
    });
    for _ in 0..3 {
        assert_eq!(answer(), alone);
    }
    disconnecting.join().unwrap();
    wait_until("none run", || server.is_idle());
}

#[test]
fn clients_that_do_not_read_are_disconnected() {
    let server = start(&["--io-timeout", "1", "-np", "16"]);
    // Log probabilities make long events, which the client does not read.
    let asked = json!({
        "messages": [{"role": "user", "content": "Hello"}], "ignore_eos": true, "stream": true,
        "n": 16, "logprobs": true, "top_logprobs": 20, "max_tokens": 1900,
    });
    let mut client = http::open(server.address, "POST", CHAT, &[], &asked.to_string());
    wait_until("it is disconnected", || {
        server.metric("oxidize_stalled_clients_total") == 1.0
    });
    wait_until("none run", || server.is_idle());
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest);
    assert!(!rest.ends_with(b"0\r\n\r\n"));
}

#[test]
fn headers_and_bodies_are_limited() {
    let server = start(&["--io-timeout", "1", "--max-body", "100000"]);
    let big = question(&"x".repeat(200_000), 1);
    assert!(server.post(CHAT, &big).error(413).contains("100000"));
    // Headers that exceed the limit.
    let mut client = http::connect(server.address);
    let _ =
        client.write_all(format!("GET /health HTTP/1.1\r\nX: {}", "y".repeat(100_000)).as_bytes());
    assert_eq!(http::read(client).status, 431);
    let many: Vec<(String, String)> = (0..200).map(|i| (format!("X-{i}"), "y".into())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    assert_eq!(
        http::request(server.address, "GET", "/health", &many, "").status,
        431
    );
    // Headers and a body that do not arrive.
    let mut client = http::connect(server.address);
    client.write_all(b"GET /health HT").unwrap();
    client.read_to_end(&mut Vec::new()).unwrap();
    let mut client = http::connect(server.address);
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 50\r\n\r\n{{"
    );
    client.write_all(head.as_bytes()).unwrap();
    assert_eq!(http::read(client).status, 408);
}

#[test]
fn malformed_requests_are_harmless() {
    let server = start(&[]);
    let deep = format!(
        "{{\"messages\":{}1{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    for body in [
        "",
        "{",
        "null",
        "[]",
        "\"x\"",
        "{\"messages\":{}}",
        "\u{0}",
        &deep,
    ] {
        for path in [
            CHAT,
            "/v1/completions",
            "/v1/messages",
            "/api/chat",
            "/v1/embeddings",
            "/tokenize",
        ] {
            let reply = http::request(server.address, "POST", path, &[], body);
            assert_eq!(reply.status, 400, "{path}: {}", reply.body);
        }
    }
    for junk in [
        &b"\x16\x03\x01\x02\x00"[..],
        b"GET\r\n\r\n",
        b"POST / HTTP/9.9\r\n\r\n",
        &[0xff; 4096],
    ] {
        let mut client = http::connect(server.address);
        let _ = client.write_all(junk);
        let _ = client.shutdown(std::net::Shutdown::Write);
        let _ = client.read_to_end(&mut Vec::new());
    }
    // Paths of files are not names of models.
    for name in ["../../etc/passwd", "/etc/passwd", tiny().to_str().unwrap()] {
        let mut asked = question("x", 1);
        asked["model"] = name.into();
        server.post(CHAT, &asked).error(404);
    }
    server.post(CHAT, &question("Hello", 2)).ok();
}

#[test]
fn running_requests_finish_after_sigterm() {
    let mut server = start(&[]);
    let client = http::open(server.address, "POST", CHAT, &[], &long(true));
    wait_until_it_streams(&client);
    server.terminate();
    let reply = http::read(client);
    assert!(reply.body.ends_with("data: [DONE]\n\n"));
    assert_eq!(
        reply.body.matches("\"finish_reason\":\"length\"").count(),
        1
    );
    assert!(server.wait().success());
}

#[test]
fn shutdown_after_sigterm_has_a_time_limit() {
    let mut server = start_endless(&["--drain", "1"]);
    let mut client = http::open(server.address, "POST", CHAT, &[], &longest(true));
    wait_until_it_streams(&client);
    server.terminate();
    assert!(server.wait().success());
    // The answer is cut off.
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(!answer.contains("\"finish_reason\":\"length\""));
}

#[test]
fn hosts_and_origins_are_checked() {
    for args in [&["--host", "0.0.0.0"][..], &["--host", "::"]] {
        let all = [&["--port", "0", tiny().to_str().unwrap()], args].concat();
        let output = command(&all).stderr(Stdio::piped()).output().unwrap();
        assert!(!output.status.success());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains("--api-key"), "{stderr}");
    }
    let server = start(&[
        "--cors-origin",
        "https://friend.example",
        "--allowed-host",
        "box.lan",
    ]);
    let get =
        |headers: &[(&str, &str)]| http::request(server.address, "GET", "/v1/models", headers, "");
    assert_eq!(get(&[("Host", "evil.example")]).status, 403);
    assert_eq!(get(&[("Host", "localhost:1234")]).status, 200);
    assert_eq!(get(&[("Host", "box.lan")]).status, 200);
    let friend = get(&[("Origin", "https://friend.example")]);
    assert_eq!(
        friend.header("access-control-allow-origin"),
        Some("https://friend.example")
    );
    assert_eq!(
        get(&[("Origin", "https://evil.example")]).header("access-control-allow-origin"),
        None
    );
    let body = question("x", 1).to_string();
    let post = |origin: &str| {
        http::request(server.address, "POST", CHAT, &[("Origin", origin)], &body).status
    };
    assert_eq!(post("https://evil.example"), 403);
    assert_eq!(post("https://friend.example"), 200);
    assert_eq!(post(&format!("http://{}", server.address)), 200);
}

#[test]
fn idle_models_are_unloaded_and_loaded_again() {
    let server = start(&["--idle-unload", "1"]);
    let loaded = || {
        !server.get("/api/ps").ok()["models"]
            .as_array()
            .unwrap()
            .is_empty()
    };
    wait_until("it is unloaded", || !loaded());
    assert_eq!(server.get("/health").status, 200);
    server.post(CHAT, &question("Hello", 2)).ok();
}

#[test]
fn idle_models_are_unloaded_to_make_room() {
    let (first, second) = (
        format!("a={}", endless().display()),
        format!("b={}", endless().display()),
    );
    let args = ["--port", "0", "-c", "0", "-np", "1", &first, &second];
    let ask = |server: &Running, model: &str| {
        let mut asked = question("Hello", 2);
        asked["model"] = model.into();
        server.post(CHAT, &asked)
    };
    let loaded = |server: &Running| {
        let models = server.get("/api/ps").ok()["models"].clone();
        let name = |model: &Value| model["name"].as_str().unwrap().to_owned();
        models
            .as_array()
            .unwrap()
            .iter()
            .map(name)
            .collect::<Vec<_>>()
    };
    let server = start_with(&args);
    ask(&server, "b").ok();
    assert_eq!(loaded(&server), ["a", "b"]);
    let megabytes = server.metric("oxidize_model_bytes") / 2e6;
    // Room for one and a half models.
    let limit = format!("{}", (1.5 * megabytes).ceil());
    let server = start_with(&[&args[..], &["--memory-limit", &limit]].concat());
    assert_eq!(loaded(&server), ["a"]);
    ask(&server, "b").ok();
    assert_eq!(loaded(&server), ["b"]);
    ask(&server, "a").ok();
    assert_eq!(loaded(&server), ["a"]);
    // A busy model is not unloaded.
    let running = http::open(server.address, "POST", CHAT, &[], &longest(true));
    wait_until_it_streams(&running);
    let refused = ask(&server, "b");
    assert!(refused.error(503).contains("memory"), "{}", refused.body);
    assert!(refused.header("retry-after").is_some());
    assert_eq!(loaded(&server), ["a"]);
    drop(running);
}

#[test]
fn the_log_has_no_prompts_and_no_keys() {
    let args = [
        "--port",
        "0",
        "--log-format",
        "json",
        "--api-key",
        "topsecret name=alice",
        tiny().to_str().unwrap(),
    ];
    let mut child = command(&args).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let address: SocketAddr = line.trim().rsplit("//").next().unwrap().parse().unwrap();
    let body = question("a private matter", 2).to_string();
    let key = [("Authorization", "Bearer topsecret")];
    assert_eq!(
        http::request(address, "POST", CHAT, &key, &body).status,
        200
    );
    child.kill().unwrap();
    let log = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
    let entries: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let entry = entries
        .iter()
        .find(|entry| entry["message"] == "request")
        .unwrap();
    assert_eq!(
        (&entry["client"], &entry["status"]),
        (&json!("alice"), &json!(200))
    );
    assert_eq!(entry["endpoint"], CHAT);
    assert!(
        !log.contains("private") && !log.contains("topsecret"),
        "{log}"
    );
}

#[test]
fn weights_are_quantized_at_load() {
    let bytes = |args: &[&str]| {
        let server = start(args);
        let answer = server.post(CHAT, &question("Hello", 4)).ok();
        assert_eq!(answer["usage"]["completion_tokens"], 4);
        server.metric("oxidize_model_bytes")
    };
    // 8.5 and 4.5 bits per weight; the cache has the same size.
    let saved = bytes(&[]) - bytes(&["--quantize", "q4_0", "--threads", "1"]);
    let weights = std::fs::metadata(tiny()).unwrap().len() as f64;
    assert!((0.3..0.5).contains(&(saved / weights)), "{saved}");
    let refused = command(&[&fixture(), "--quantize", "Q4_Q"]).output();
    assert!(!refused.unwrap().status.success());
}
