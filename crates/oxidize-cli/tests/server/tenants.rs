//! API keys: access, rate limits, priorities, and separate prefix caches.

use super::*;

fn ask(server: &Running, key: &str, body: &Value) -> Reply {
    let header = format!("Bearer {key}");
    let headers = [("Authorization", header.as_str())];
    http::request(
        server.address,
        "POST",
        "/v1/chat/completions",
        &headers,
        &body.to_string(),
    )
}

#[test]
fn all_but_the_public_endpoints_need_a_key() {
    let server = start(&["--api-key", "alpha", "--api-key", "beta"]);
    for path in ["/health", "/", "/docs", "/openapi.json"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    for path in [
        "/v1/models",
        "/metrics",
        "/slots",
        "/props",
        "/api/tags",
        "/nothing",
    ] {
        let reply = server.get(path);
        assert_eq!(
            (reply.status, reply.header("www-authenticate")),
            (401, Some("Bearer")),
            "{path}"
        );
    }
    for (key, status) in [
        ("alpha", 200),
        ("beta", 200),
        ("alph", 401),
        ("alphaa", 401),
        ("", 401),
    ] {
        assert_eq!(
            ask(&server, key, &question("Hello", 1)).status,
            status,
            "{key}"
        );
    }
    let anthropic = http::request(
        server.address,
        "POST",
        "/v1/messages",
        &[("x-api-key", "wrong")],
        "{}",
    );
    assert_eq!(anthropic.json()["error"]["type"], "authentication_error");
}

#[test]
fn keys_do_not_share_cached_prefixes() {
    let server = start(&["--api-key", "alpha", "--api-key", "beta"]);
    let secret = question(&"My password is hunter2. ".repeat(20), 2);
    let cached = |key: &str| {
        let answer = ask(&server, key, &secret).ok();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(cached("alpha"), 0);
    assert!(cached("alpha") > 0);
    assert_eq!(cached("beta"), 0);
    assert!(cached("beta") > 0);
}

#[test]
fn rate_limits_are_enforced() {
    let server = start(&["--api-key", "slow rpm=2", "--api-key", "frugal tpm=30"]);
    let small = question("Hi", 1);
    assert_eq!(ask(&server, "slow", &small).status, 200);
    assert_eq!(ask(&server, "slow", &small).status, 200);
    let refused = ask(&server, "slow", &small);
    assert!(refused.error(429).contains("requests per minute"));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(ask(&server, "frugal", &question("Hi", 60)).status, 200);
    assert!(
        ask(&server, "frugal", &small)
            .error(429)
            .contains("tokens per minute")
    );
}

#[test]
fn higher_priority_runs_first() {
    let server = start(&[
        "-np",
        "1",
        "--api-key",
        "low",
        "--api-key",
        "high priority=50",
    ]);
    let address = server.address;
    let body = |tokens| {
        let mut asked = question("Hello", tokens);
        asked["stream"] = true.into();
        asked.to_string()
    };
    let key = |key: &str| format!("Bearer {key}");
    let open = |who: &str, tokens| {
        http::open(
            address,
            "POST",
            "/v1/chat/completions",
            &[("Authorization", &key(who))],
            &body(tokens),
        )
    };
    // One request runs and one waits; then one with a higher priority arrives.
    let _running = open("low", 1500);
    let waiting = open("low", 200);
    std::thread::sleep(Duration::from_millis(50));
    let urgent = open("high", 5);
    let start = Instant::now();
    let done = http::read(urgent);
    let urgent_took = start.elapsed();
    assert!(done.body.ends_with("data: [DONE]\n\n"));
    let waited = std::thread::spawn(move || http::read(waiting));
    assert!(!waited.is_finished());
    assert!(waited.join().unwrap().body.ends_with("data: [DONE]\n\n"));
    assert!(urgent_took < start.elapsed());
}
