//! Fields of requests that the engine honors: constraints, ends of answers, searches, scores of prompts.

use super::*;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn greedy(prompt: &str, max_tokens: usize) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true})
}

/// `body` with the fields of `more`.
fn with(mut body: Value, more: Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

#[test]
fn constraints_have_the_names_of_all_servers() {
    let server = start(&[]);
    let schema = json!({"const": 17});
    let digits = |text: &str| text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
    let yes_or_no = |text: &str| text == "yes" || text == "no";
    let number = |text: &str| text.trim() == "17";
    type Check<'a> = &'a dyn Fn(&str) -> bool;
    let cases: [(Value, Check<'_>); 13] = [
        (json!({"regex": "[0-9]{3}"}), &digits),
        (json!({"guided_regex": "[0-9]{3}"}), &digits),
        (
            json!({"structured_outputs": {"regex": "[0-9]{3}"}}),
            &digits,
        ),
        (json!({"lark": "start: /[0-9]{3}/"}), &digits),
        (json!({"guided_grammar": "start: /[0-9]{3}/"}), &digits),
        (
            json!({"guided_grammar": "root ::= [0-9] [0-9] [0-9]"}),
            &digits,
        ),
        (
            json!({"structured_outputs": {"grammar": "root ::= [0-9]{3}"}}),
            &digits,
        ),
        (json!({"choice": ["yes", "no"]}), &yes_or_no),
        (json!({"guided_choice": ["yes", "no"]}), &yes_or_no),
        (
            json!({"structured_outputs": {"choice": ["yes", "no"]}}),
            &yes_or_no,
        ),
        (json!({"guided_json": schema}), &number),
        (json!({"guided_json": schema.to_string()}), &number),
        (json!({"structured_outputs": {"json": schema}}), &number),
    ];
    for (fields, check) in cases {
        let asked = json!({"prompt": "a", "max_tokens": 30, "seed": 1});
        let answer = server.post(COMPLETIONS, &with(asked, fields.clone())).ok();
        assert!(check(text(&answer)), "{fields}: {:?}", text(&answer));
        let asked = with(question("a", 30), json!({"ignore_eos": false}));
        let answer = server.post(CHAT, &with(asked, fields.clone())).ok();
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(check(content), "{fields}: {content:?}");
        let asked = json!({"prompt": "a", "n_predict": 30, "seed": 1});
        let answer = server
            .post("/completion", &with(asked, fields.clone()))
            .ok();
        assert!(check(answer["content"].as_str().unwrap()), "{fields}");
    }
    let two = json!({"prompt": "a", "regex": "a", "guided_choice": ["b"]});
    let error = server.post(COMPLETIONS, &two).error(400);
    assert!(
        error.contains("`regex`") && error.contains("`guided_choice`"),
        "{error}"
    );
}

#[test]
fn banned_strings_stop_tokens_and_minimum_lengths_hold() {
    let server = start(&[]);
    let plain = server
        .post(
            COMPLETIONS,
            &with(greedy("Hello", 40), json!({"logprobs": 0})),
        )
        .ok();
    let whole = text(&plain).to_owned();
    let banned: String = whole.chars().skip(3).take(2).collect();
    for name in ["banned_strings", "bad_words"] {
        let asked = with(greedy("Hello", 40), json!({name: [banned]}));
        let answer = server.post(COMPLETIONS, &asked).ok();
        assert!(
            !text(&answer).contains(&banned),
            "{banned:?} in {:?}",
            text(&answer)
        );
    }
    let native = json!({"prompt": "Hello", "n_predict": 40, "temperature": 0, "ignore_eos": true, "return_tokens": true});
    let ids = server.post("/completion", &native).ok()["tokens"].clone();
    let ids: Vec<u64> = ids
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap())
        .collect();
    let at = (3..).find(|&i| !ids[..i].contains(&ids[i])).unwrap();
    let stopping = with(greedy("Hello", 40), json!({"stop_token_ids": [ids[at]]}));
    let stopped = server.post(COMPLETIONS, &stopping).ok();
    assert_eq!(stopped["usage"]["completion_tokens"], at);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert!(whole.starts_with(text(&stopped)));
    let longer = server
        .post(COMPLETIONS, &with(stopping, json!({"min_tokens": at + 5})))
        .ok();
    assert!(longer["usage"]["completion_tokens"].as_u64().unwrap() >= at as u64 + 5);
    let outside = with(greedy("Hello", 4), json!({"stop_token_ids": [4_000_000]}));
    assert!(
        server
            .post(COMPLETIONS, &outside)
            .error(400)
            .contains("stop_token")
    );
}

#[test]
fn the_cache_is_left_out_on_request() {
    let server = start(&[]);
    let long = "one two three four five six seven eight nine ten ".repeat(8);
    let cached = |fields: Value| {
        let answer = server
            .post(COMPLETIONS, &with(greedy(&long, 2), fields))
            .ok();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    cached(json!({}));
    assert!(cached(json!({})) > 0);
    assert_eq!(cached(json!({"cache_prompt": false})), 0);
    assert_eq!(cached(json!({"cache_salt": "other"})), 0);
    assert!(cached(json!({"cache_salt": "other"})) > 0);
}

#[test]
fn beams_are_at_least_as_likely_as_the_greedy_answer() {
    let server = start(&[]);
    let sum = |prompt: &str, answer: &str| -> f64 {
        let scored = with(
            greedy(&format!("{prompt}{answer}"), 0),
            json!({"echo": true, "logprobs": 0}),
        );
        let scored = server.post(COMPLETIONS, &scored).ok();
        let list = scored["choices"][0]["logprobs"]["token_logprobs"]
            .as_array()
            .unwrap()
            .clone();
        list.iter().filter_map(Value::as_f64).sum()
    };
    let plain = server.post(COMPLETIONS, &greedy("Hello", 5)).ok();
    let search = json!({"use_beam_search": true, "best_of": 6, "n": 2, "length_penalty": 0.0});
    let found = server
        .post(COMPLETIONS, &with(greedy("Hello", 5), search.clone()))
        .ok();
    let choices = found["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    assert_eq!(
        (&choices[0]["index"], &choices[1]["index"]),
        (&json!(0), &json!(1))
    );
    assert_ne!(choices[0]["text"], choices[1]["text"]);
    assert!(sum("Hello", text(&found)) >= sum("Hello", text(&plain)) - 1e-2);
    // Fewer answers than beams, for two prompts: the text is one of two tokens.
    let few = json!({"prompt": ["a", "b"], "choice": ["x"], "max_tokens": 9});
    let few = server.post(COMPLETIONS, &with(few, search.clone())).ok();
    let indices: Vec<u64> = few["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["index"].as_u64().unwrap())
        .collect();
    assert_eq!(indices, [0, 1, 2, 3], "{few}");
    let chat = server
        .post(CHAT, &with(question("Hello", 5), search.clone()))
        .ok();
    assert_eq!(chat["choices"].as_array().unwrap().len(), 2);
    // The most likely of several random answers, by the mean of their tokens.
    let random = json!({"temperature": 1.5, "seed": 3, "logprobs": 0});
    let all = server
        .post(
            COMPLETIONS,
            &with(greedy("Hello", 5), with(random.clone(), json!({"n": 4}))),
        )
        .ok();
    let mean = |choice: &Value| -> f64 {
        let list = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        list.iter().map(|x| x.as_f64().unwrap()).sum::<f64>() / list.len() as f64
    };
    let best = all["choices"]
        .as_array()
        .unwrap()
        .iter()
        .max_by(|a, b| mean(a).total_cmp(&mean(b)))
        .unwrap();
    let chosen = server
        .post(
            COMPLETIONS,
            &with(greedy("Hello", 5), with(random, json!({"best_of": 4}))),
        )
        .ok();
    assert_eq!(chosen["choices"].as_array().unwrap().len(), 1);
    assert_eq!(text(&chosen), best["text"].as_str().unwrap());
    for (fields, part) in [
        (
            with(search.clone(), json!({"stream": true})),
            "use_beam_search",
        ),
        (
            with(search.clone(), json!({"logprobs": 1})),
            "use_beam_search",
        ),
        (with(search, json!({"best_of": 65})), "64"),
        (json!({"n": 3, "best_of": 2}), "best_of"),
    ] {
        let error = server
            .post(COMPLETIONS, &with(greedy("Hello", 5), fields.clone()))
            .error(400);
        assert!(error.contains(part), "{fields}: {error}");
    }
}

/// Scores of a prompt: each is the log probability that the same token has when it is generated.
#[test]
fn prompts_are_scored() {
    let server = start(&[]);
    let asked = json!({"prompt": "Once upon", "echo": true, "logprobs": 1, "max_tokens": 0});
    let scored = server.post(COMPLETIONS, &asked).ok();
    let choice = &scored["choices"][0];
    assert_eq!(choice["text"], "Once upon");
    assert_eq!(scored["usage"]["completion_tokens"], 0);
    let logprobs = &choice["logprobs"];
    let list = |name: &str| logprobs[name].as_array().unwrap().clone();
    let n = scored["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    assert!(n > 1);
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(list(name).len(), n, "{name}: {logprobs}");
    }
    assert!(list("token_logprobs")[0].is_null() && list("top_logprobs")[0].is_null());
    assert!(
        list("token_logprobs")[1..]
            .iter()
            .all(|x| x.as_f64().unwrap() < 0.0)
    );

    // A generated answer, scored as a prompt, has the log probabilities with which it was generated.
    let native = json!({"prompt": "Once upon", "n_predict": 12, "temperature": 0, "ignore_eos": true, "n_probs": 2});
    let generated = server.post("/completion", &native).ok();
    let generated = generated["completion_probabilities"].as_array().unwrap();
    let start = server
        .post(
            "/tokenize",
            &json!({"content": "Once upon", "add_special": true}),
        )
        .ok();
    let mut tokens = start["tokens"].as_array().unwrap().clone();
    let n_start = tokens.len();
    tokens.extend(generated.iter().map(|token| token["id"].clone()));
    let again = json!({"prompt": tokens, "echo": true, "logprobs": 2, "max_tokens": 1, "prompt_logprobs": 2, "ignore_eos": true});
    let again = server.post(COMPLETIONS, &again).ok();
    let choice = &again["choices"][0];
    let scores = choice["logprobs"]["token_logprobs"].as_array().unwrap();
    assert_eq!(scores.len(), tokens.len() + 1);
    let vllm = choice["prompt_logprobs"].as_array().unwrap();
    assert_eq!(vllm.len(), tokens.len());
    assert!(vllm[0].is_null());
    for (index, token) in generated.iter().enumerate() {
        let at = n_start + index;
        let wanted = token["logprob"].as_f64().unwrap();
        assert!(
            (scores[at].as_f64().unwrap() - wanted).abs() < 2e-2,
            "{index}: {choice}"
        );
        // It was the most likely one.
        let entry = &vllm[at][token["id"].to_string()];
        assert_eq!(entry["rank"], 1, "{entry}");
        assert!((entry["logprob"].as_f64().unwrap() - wanted).abs() < 2e-2);
        let top = choice["logprobs"]["top_logprobs"][at].as_object().unwrap();
        let best = top
            .values()
            .map(|x| x.as_f64().unwrap())
            .fold(f64::MIN, f64::max);
        assert_eq!(best, scores[at].as_f64().unwrap());
    }
    // Streamed, the scores come with the echo.
    let asked = with(
        asked,
        json!({"max_tokens": 2, "ignore_eos": true, "temperature": 0}),
    );
    let events = server.events(COMPLETIONS, &asked);
    let first = &events[0]["choices"][0];
    assert_eq!(first["text"], "Once upon");
    assert_eq!(
        first["logprobs"]["token_logprobs"]
            .as_array()
            .unwrap()
            .len(),
        n
    );
    let chat = with(question("Hello", 2), json!({"prompt_logprobs": 1}));
    let chat = server.post(CHAT, &chat).ok();
    let n_prompt = chat["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!(chat["prompt_logprobs"].as_array().unwrap().len(), n_prompt);
    // A prompt that fills the context can be scored, and not continued.
    let full = json!({"prompt": vec![5; 2048], "echo": true, "logprobs": 0, "max_tokens": 0});
    let full = server.post(COMPLETIONS, &full).ok();
    assert_eq!(full["usage"]["prompt_tokens"], 2048);
}

#[test]
fn progress_of_a_long_prompt_is_streamed() {
    let server = start(&["-b", "64"]);
    let long = "one two three four five six seven eight nine ten ".repeat(12);
    let asked =
        json!({"prompt": long, "n_predict": 2, "return_progress": true, "cache_prompt": false});
    let check = |events: &[Value], total: u64| {
        let progress: Vec<&Value> = events
            .iter()
            .filter_map(|event| event.get("prompt_progress"))
            .collect();
        assert!(progress.len() > 1, "{events:?}");
        let processed: Vec<u64> = progress
            .iter()
            .map(|p| p["processed"].as_u64().unwrap())
            .collect();
        assert!(
            processed.windows(2).all(|pair| pair[0] < pair[1]),
            "{processed:?}"
        );
        assert_eq!(*processed.last().unwrap(), total);
        assert!(
            progress
                .iter()
                .all(|p| p["total"] == total && p["cache"] == 0 && p["time_ms"].is_u64())
        );
    };
    let events = server.events("/completion", &asked);
    check(
        &events,
        events.last().unwrap()["tokens_evaluated"].as_u64().unwrap(),
    );
    let chat = with(
        question(&long, 2),
        json!({
        "return_progress": true, "cache_prompt": false, "stream_options": {"include_usage": true}}),
    );
    let events = server.events(CHAT, &chat);
    check(
        &events,
        events.last().unwrap()["usage"]["prompt_tokens"]
            .as_u64()
            .unwrap(),
    );
    let plain = server.events("/completion", &json!({"prompt": long, "n_predict": 2}));
    assert!(
        plain
            .iter()
            .all(|event| event.get("prompt_progress").is_none())
    );
}

#[test]
fn functions_are_the_older_form_of_tools() {
    let server = start(&[]);
    let function = json!({"name": "time", "parameters": {"type": "object", "properties": {"zone": {"enum": ["UTC"]}},
        "required": ["zone"], "additionalProperties": false}});
    let asked = json!({"messages": [{"role": "user", "content": "What time is it?"}], "max_tokens": 400,
        "temperature": 0, "functions": [function], "function_call": {"name": "time"}});
    let whole = server.post(CHAT, &asked).ok();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "function_call");
    let call = &choice["message"]["function_call"];
    assert_eq!(call["name"], "time");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"zone": "UTC"}));
    assert!(choice["message"].get("tool_calls").is_none());
    let events = server.events(CHAT, &asked);
    let deltas: Vec<&Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"].get("function_call"))
        .collect();
    assert_eq!(deltas[0]["name"], "time");
    let streamed: String = deltas
        .iter()
        .filter_map(|delta| delta["arguments"].as_str())
        .collect();
    assert_eq!(streamed, call["arguments"].as_str().unwrap());
    // The call and its result can be sent back.
    let history = json!([
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": null, "function_call": call},
        {"role": "function", "name": "time", "content": "noon"},
    ]);
    let rendered = server
        .post("/apply-template", &json!({"messages": [history[0]]}))
        .ok();
    let answered = with(
        asked.clone(),
        json!({"messages": history, "function_call": "none", "max_tokens": 2}),
    );
    let answered = server.post(CHAT, &answered).ok();
    assert!(
        answered["usage"]["prompt_tokens"].as_u64().unwrap() > 20,
        "{rendered}"
    );
    let both = with(asked, json!({"tools": []}));
    assert!(server.post(CHAT, &both).error(400).contains("`functions`"));
}

#[test]
fn the_end_of_a_conversation_is_controlled() {
    let server = start(&[]);
    let messages =
        json!([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Well,"}]);
    let prompt = |fields: Value| {
        let body = with(json!({"messages": messages}), fields);
        server.post("/apply-template", &body).ok()["prompt"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(prompt(json!({})).ends_with("Well,"));
    let continued = json!({"continue_final_message": true, "add_generation_prompt": false});
    assert!(prompt(continued.clone()).ends_with("Well,"));
    let closed = prompt(json!({"continue_final_message": false, "add_generation_prompt": false}));
    assert!(
        closed.contains("Well,<|im_end|>") && !closed.trim_end().ends_with("assistant"),
        "{closed}"
    );
    let next = prompt(json!({"add_generation_prompt": true}));
    assert!(
        next.contains("Well,<|im_end|>") && next.trim_end().ends_with("assistant"),
        "{next}"
    );
    let chat = |fields: Value| with(json!({"messages": messages, "max_tokens": 2}), fields);
    server.post(CHAT, &chat(continued)).ok();
    let both = chat(json!({"continue_final_message": true, "add_generation_prompt": true}));
    assert!(
        server
            .post(CHAT, &both)
            .error(400)
            .contains("exclude each other")
    );
    let user = json!({"messages": [messages[0]], "continue_final_message": true});
    assert!(server.post(CHAT, &user).error(400).contains("assistant"));
}

#[test]
fn models_are_unloaded_and_contexts_compared() {
    let server = start(&["-c", "256"]);
    let loaded = || {
        !server.get("/api/ps").ok()["models"]
            .as_array()
            .unwrap()
            .is_empty()
    };
    assert!(loaded());
    for path in ["/api/generate", "/api/chat"] {
        let reply = server
            .post(path, &json!({"model": "tiny", "keep_alive": 0}))
            .ok();
        assert_eq!(reply["done_reason"], "unload");
        assert!(!loaded(), "{path}");
        let reply = server.post(path, &json!({"model": "tiny"})).ok();
        assert_eq!(reply["done_reason"], "load");
        assert!(loaded(), "{path}");
    }
    // After an answer, and after a time.
    let asked = |keep_alive: Value| {
        json!({"model": "tiny", "prompt": "a", "stream": false, "keep_alive": keep_alive,
        "options": {"num_predict": 2, "num_ctx": 256}})
    };
    server.post("/api/generate", &asked(json!("0s"))).ok();
    wait_until("the model is unloaded", || !loaded());
    server.post("/api/generate", &asked(json!("300ms"))).ok();
    wait_until("the model is unloaded", || !loaded());
    server.post("/api/generate", &asked(json!("1h"))).ok();
    std::thread::sleep(Duration::from_millis(700));
    assert!(loaded());
    assert!(
        server
            .post("/api/generate", &asked(json!("soon")))
            .ollama_error(400)
            .contains("keep_alive")
    );
    let large = json!({"model": "tiny", "prompt": "a", "options": {"num_ctx": 512}});
    let error = server.post("/api/generate", &large).ollama_error(400);
    assert!(
        error.contains("512") && error.contains("256") && error.contains("num_ctx"),
        "{error}"
    );
    let images = json!({"model": "tiny", "prompt": "a", "images": ["aGk="]});
    assert!(
        server
            .post("/api/generate", &images)
            .ollama_error(400)
            .contains("images")
    );
}

/// A tool call that `max_tokens` cuts off is no call.
#[test]
fn calls_that_are_cut_off_are_left_out() {
    let server = start(&[]);
    let tool = json!({"name": "time", "input_schema": {"type": "object", "properties": {"zone": {"enum": ["a".repeat(300)]}},
        "required": ["zone"], "additionalProperties": false}});
    let asked = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 24, "temperature": 0,
        "tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": true}});
    let whole = server.post("/v1/messages", &asked).ok();
    assert_eq!(whole["stop_reason"], "max_tokens", "{whole}");
    let blocks = whole["content"].as_array().unwrap();
    assert!(
        blocks.iter().all(|block| block["type"] != "tool_use"),
        "{whole}"
    );
    let events = server.events("/v1/messages", &asked);
    let delta = events
        .iter()
        .find(|event| event["type"] == "message_delta")
        .unwrap();
    assert_eq!(delta["delta"]["stop_reason"], "max_tokens");
}

#[test]
fn free_blocks_are_known_before_the_first_request() {
    let server = start(&[]);
    assert!(server.metric("oxidize_free_blocks") > 0.0);
}

#[test]
fn answers_are_logged_with_prompts() {
    let log = |flags: &[&str]| {
        let mut command = command(&[&["--port", "0", tiny().to_str().unwrap()], flags].concat());
        command.stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut stderr = child.stderr.take().unwrap();
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().rsplit("//").next().unwrap().parse().unwrap();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        let mut server = Running { child, address };
        wait_until("the model is loaded", || {
            server.get("/health").status == 200
        });
        let asked = with(greedy("A prompt of words", 6), json!({"regex": "[x]{5}"}));
        server.post(COMPLETIONS, &asked).ok();
        server.terminate();
        assert!(server.wait().success());
        reader.join().unwrap()
    };
    let with_prompts = log(&["--log-prompts"]);
    assert!(with_prompts.contains("A prompt of words"), "{with_prompts}");
    assert!(with_prompts.contains("answer=\"xxxxx\""), "{with_prompts}");
    let without = log(&[]);
    assert!(!without.contains("A prompt of words") && !without.contains("xxxxx"));
}
