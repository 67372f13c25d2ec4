//! Speculative decoding: drafts from n-grams, a draft model and predicted answers change no answer.

use super::*;

/// A greedy completion of 60 tokens.
fn completion(fields: Value) -> Value {
    let mut body = json!({
        "prompt": "one two three four five six seven eight one two three", "temperature": 0, "max_tokens": 60,
        "ignore_eos": true,
    });
    let map = body.as_object_mut().unwrap();
    map.extend(fields.as_object().unwrap().clone());
    body
}

fn text(answer: &Value) -> String {
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn drafts_do_not_change_answers_and_are_counted() {
    let plain = start(&[]);
    let expected = plain.post("/v1/completions", &completion(json!({}))).json();
    assert_eq!(expected["timings"]["draft_n"], 0, "{expected}");
    let tiny = tiny().to_str().unwrap();
    for args in [
        &["--spec-type", "ngram"][..],
        &["-md", tiny, "--draft-p-min", "0"],
    ] {
        let server = start(&[args, &["--draft-always"]].concat());
        let answer = server
            .post("/v1/completions", &completion(json!({})))
            .json();
        assert_eq!(text(&answer), text(&expected), "{args:?}");
        let timings = &answer["timings"];
        let (drafted, accepted) = (
            timings["draft_n"].as_f64(),
            timings["draft_n_accepted"].as_f64(),
        );
        assert!(
            drafted > Some(0.0) && accepted <= drafted,
            "{args:?}: {timings}"
        );
        assert_eq!(Some(server.metric("oxidize_drafted_tokens_total")), drafted);
        assert_eq!(
            Some(server.metric("oxidize_accepted_drafts_total")),
            accepted
        );
        // A request can turn drafts off, and many at once have the answers that they have alone.
        let off = completion(json!({"speculative.n_max": 0}));
        let off = server.post("/v1/completions", &off).json();
        assert_eq!(
            (text(&off), &off["timings"]["draft_n"]),
            (text(&expected), &json!(0))
        );
        std::thread::scope(|scope| {
            let ask = || {
                server
                    .post("/v1/completions", &completion(json!({})))
                    .json()
            };
            let answers: Vec<_> = (0..6).map(|_| scope.spawn(ask)).collect();
            for answer in answers {
                assert_eq!(text(&answer.join().unwrap()), text(&expected), "{args:?}");
            }
        });
    }
}

#[test]
fn predicted_answers_are_drafted_without_flags() {
    let server = start(&["--draft-always"]);
    let chat = |fields: Value| {
        let mut body = json!({
            "messages": [{"role": "user", "content": "Repeat."}], "temperature": 0, "max_tokens": 50,
            "ignore_eos": true,
        });
        let map = body.as_object_mut().unwrap();
        map.extend(fields.as_object().unwrap().clone());
        server.post("/v1/chat/completions", &body)
    };
    let expected = chat(json!({})).json();
    let content = expected["choices"][0]["message"]["content"].clone();
    assert_eq!(expected["timings"]["draft_n"], 0);
    let predicted = json!({"prediction": {"type": "content", "content": content}});
    let reply = chat(predicted);
    assert_eq!(reply.header("x-oxidize-ignored"), None);
    let answer = reply.json();
    assert_eq!(answer["choices"][0]["message"]["content"], content);
    let details = &answer["usage"]["completion_tokens_details"];
    assert!(
        details["accepted_prediction_tokens"].as_u64() > Some(10),
        "{answer}"
    );
    let wrong = chat(json!({"prediction": {"type": "image", "content": ""}}));
    assert_eq!(wrong.status, 400);
    assert!(wrong.body.contains("prediction.type"), "{}", wrong.body);
}
