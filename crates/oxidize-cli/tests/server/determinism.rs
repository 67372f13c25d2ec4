//! With --deterministic, answers do not depend on the other requests in the batch.

use super::*;

const CHAT: &str = "/v1/chat/completions";

#[test]
fn answers_are_batch_invariant() {
    let server = start(&["--deterministic", "-np", "8", "-b", "64"]);
    // Prompts span several batches, which they share with others, and differ from the first token on.
    let asked = |n: usize, seed: u64| {
        let mut asked = question(
            &format!("{n}: {}", "Over hill, over dale. ".repeat(10 + 3 * n)),
            120,
        );
        asked["temperature"] = 1.into();
        asked["seed"] = seed.into();
        asked["logprobs"] = true.into();
        asked["top_logprobs"] = 5.into();
        asked
    };
    let alone: Vec<Value> = (0..8)
        .map(|n| server.post(CHAT, &asked(n, 7)).ok()["choices"].clone())
        .collect();
    for round in 0..2 {
        // In the second round, prompts are at least partly cached.
        let address = server.address;
        let clients: Vec<_> = (0..8)
            .map(|n| {
                let body = asked(n, 7).to_string();
                std::thread::spawn(move || http::request(address, "POST", CHAT, &[], &body).ok())
            })
            .collect();
        for (n, client) in clients.into_iter().enumerate() {
            let answer = client.join().unwrap();
            assert_eq!(answer["choices"], alone[n], "request {n} in round {round}");
        }
    }
    assert_ne!(
        server.post(CHAT, &asked(0, 8)).ok()["choices"],
        alone[0],
        "another seed"
    );
}

#[test]
fn preemption_does_not_change_answers() {
    // The cache has room for two of the four long answers.
    let server = start(&[
        "--deterministic",
        "-np",
        "4",
        "-c",
        "512",
        "--cache-tokens",
        "1100",
    ]);
    let asked = |n: usize| question(&format!("Story {n}"), 420);
    let text = |answer: &Value| {
        answer["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let alone: Vec<String> = (0..4)
        .map(|n| text(&server.post(CHAT, &asked(n)).ok()))
        .collect();
    let address = server.address;
    let clients: Vec<_> = (0..4)
        .map(|n| {
            let body = asked(n).to_string();
            std::thread::spawn(move || http::request(address, "POST", CHAT, &[], &body).ok())
        })
        .collect();
    for (client, alone) in clients.into_iter().zip(&alone) {
        assert_eq!(&text(&client.join().unwrap()), alone);
    }
    assert!(
        server.metric("oxidize_preemptions_total") > 0.0,
        "blocks never ran out"
    );
}
