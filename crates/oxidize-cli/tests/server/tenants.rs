//! API keys: access, rate limits, priorities, and separate prefix caches.

use super::faults::serve_with;
use super::faulty_backend::FaultyBackend;
use super::*;
use oxidize_server::ServerConfig;

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

/// A request that arrives last runs before one that waits, if its key has a higher priority.
#[test]
fn higher_priority_runs_first() {
    let backend = FaultyBackend::gated();
    let mut config = ServerConfig::default();
    config.engine.parallel = 1;
    config.network.api_key = ["low", "high priority=50"].map(String::from).to_vec();
    let server = serve_with(config, backend.clone());
    let key = |key: &str| format!("Bearer {key}");
    let open = |who: &str, tokens| {
        let mut asked = question("Hello", tokens);
        asked["stream"] = true.into();
        let headers = [("Authorization", &*key(who))];
        let (path, body) = ("/v1/chat/completions", asked.to_string());
        http::open(server.address, "POST", path, &headers, &body)
    };
    let has = |line: &str| {
        let headers = [("Authorization", &*key("low"))];
        let metrics = http::request(server.address, "GET", "/metrics", &headers, "");
        metrics.body.lines().any(|known| known == line)
    };
    let step_until = |what: &str, condition: &dyn Fn() -> bool| {
        wait_until(what, || {
            backend.allow(1);
            condition()
        });
    };
    // From here on, the backend waits for each step to be allowed.
    backend.allow(0);
    let running = open("low", 1900);
    let one_runs = || has("oxidize_requests_running{model=\"tiny\"} 1");
    step_until("one runs", &one_runs);
    let waiting = open("low", 1000);
    let n_waiting = |n: usize| has(&format!("oxidize_requests_waiting{{model=\"tiny\"}} {n}"));
    step_until("one waits", &|| n_waiting(1));
    let urgent = open("high", 1000);
    step_until("two wait", &|| n_waiting(2));
    drop(running);
    urgent.set_nonblocking(true).unwrap();
    step_until("the urgent one runs", &|| urgent.peek(&mut [0]).is_ok());
    urgent.set_nonblocking(false).unwrap();
    // The first of them has had no step.
    assert!(n_waiting(1));
    backend.allow_all();
    for client in [urgent, waiting] {
        assert!(http::read(client).body.ends_with("data: [DONE]\n\n"));
    }
}
