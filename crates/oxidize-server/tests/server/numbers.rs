//! Every number in a request is bounded: what is far off is a 400, and never anything worse.

use super::*;

/// Every numeric field of the endpoints that generate, and the strange values that mean something there.
fn fields() -> Vec<(&'static str, &'static str, &'static [&'static str])> {
    let chat = "/v1/chat/completions";
    let mut fields: Vec<(&str, &str, &[&str])> = vec![
        (chat, "max_tokens", &[]),
        (chat, "max_completion_tokens", &[]),
        (chat, "n", &[]),
        (chat, "top_logprobs", &[]),
        // Below zero is a random seed, and any number below 2⁶³ is one.
        (chat, "seed", &["-1", "2147483648"]),
        (chat, "top_k", &[]),
        (chat, "repeat_last_n", &["-1"]),
        (chat, "dry_penalty_last_n", &["-1"]),
        (chat, "dry_allowed_length", &[]),
        (chat, "mirostat", &[]),
        (chat, "priority", &["-1"]),
        (chat, "frequency_penalty", &["-1"]),
        (chat, "presence_penalty", &["-1"]),
        ("/v1/completions", "max_tokens", &[]),
        ("/v1/completions", "n", &[]),
        ("/v1/completions", "logprobs", &[]),
        ("/completion", "n_predict", &["-1"]),
        ("/completion", "n_probs", &[]),
        ("/v1/messages", "max_tokens", &[]),
        ("/v1/messages", "top_k", &[]),
        ("/v1/messages", "temperature", &[]),
        ("/v1/responses", "max_output_tokens", &[]),
        ("/v1/embeddings", "dimensions", &[]),
        ("/v1/rerank", "top_n", &["2147483648"]),
    ];
    for name in [
        "temperature",
        "top_p",
        "min_p",
        "typical_p",
        "tfs_z",
        "top_n_sigma",
        "xtc_probability",
        "xtc_threshold",
        "dynatemp_range",
        "dynatemp_exponent",
        "mirostat_tau",
        "mirostat_eta",
        "dry_multiplier",
        "dry_base",
        "repeat_penalty",
    ] {
        fields.push((chat, name, &[]));
    }
    fields
}

#[test]
fn numbers_far_off_are_refused() {
    let server = start(&["-c", "256"]);
    let base = r#""messages":[{"role":"user","content":"x"}],"prompt":"x","input":"x","query":"x","documents":["y"]"#;
    for (path, field, meant) in fields() {
        let limit = if path == "/v1/messages" && field != "max_tokens" {
            r#","max_tokens":1"#
        } else {
            ""
        };
        for value in [
            "-1",
            "2147483648",
            "9223372036854775808",
            "NaN",
            "1e400",
            "-1e400",
            "1e39",
        ] {
            let logprobs = if field == "top_logprobs" {
                r#","logprobs":true"#
            } else {
                ""
            };
            let body = format!("{{{base}{limit}{logprobs},\"{field}\":{value}}}");
            let reply = http::request(server.address, "POST", path, &[], &body);
            let expected = if meant.contains(&value) { 200 } else { 400 };
            assert_eq!(
                reply.status, expected,
                "{path} {field} = {value}: {}",
                reply.body
            );
        }
    }
    assert!(server.is_idle());
}

#[test]
fn token_ids_are_checked() {
    let server = start(&["-c", "256"]);
    for tokens in [
        "[-1]",
        "[2147483648]",
        "[9223372036854775808]",
        "[1e400]",
        "[1.5]",
        "[1024]",
    ] {
        for path in [
            "/v1/completions",
            "/completion",
            "/v1/embeddings",
            "/detokenize",
        ] {
            let body = format!(r#"{{"prompt":{tokens},"input":{tokens},"tokens":{tokens}}}"#);
            let reply = http::request(server.address, "POST", path, &[], &body);
            assert_eq!(reply.status, 400, "{path} {tokens}: {}", reply.body);
        }
        let token = tokens.trim_matches(['[', ']']);
        let body = format!(r#"{{"prompt":"x","logit_bias":{{"{token}":1}}}}"#);
        let reply = http::request(server.address, "POST", "/v1/completions", &[], &body);
        assert_eq!(reply.status, 400, "logit_bias {token}: {}", reply.body);
    }
}
