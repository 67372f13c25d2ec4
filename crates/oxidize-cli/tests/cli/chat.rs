//! `oxidize chat` through a pipe.

use super::{model, oxidize_with, text_file};

fn chat(input: &str) -> super::Outcome {
    oxidize_with(&["chat", &model(), "-n", "8", "--temp", "0"], input)
}

#[test]
fn conversation_is_saved_and_loaded() {
    let (_dir, path) = text_file("");
    let outcome = chat(&format!(
        "/system Be brief.\nHello\nAnd more\n/save {path}\n"
    ));
    assert!(outcome.stderr.contains("tok/s"));
    let answers = outcome.ok();
    let saved: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let roles: Vec<&str> = saved
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    assert_eq!(saved[0]["content"], "Be brief.");
    assert_eq!(saved[3]["content"], "And more");
    assert!(answers.contains(saved[2]["content"].as_str().unwrap()));

    // A loaded conversation continues as the original one.
    let further = chat("/system Be brief.\nHello\nAnd more\nAnd on\n").ok();
    let loaded = chat(&format!("/load {path}\nAnd on\n")).ok();
    assert!(further.ends_with(&loaded), "{further:?} and {loaded:?}");
    // /clear starts a new conversation.
    let cleared = chat(&format!("/load {path}\n/clear\nHello\n")).ok();
    assert!(answers.starts_with(&cleared), "{answers:?} and {cleared:?}");
}

#[test]
fn commands_take_effect() {
    let help = chat("/help\n").ok();
    for command in [
        "/help", "/clear", "/system", "/set", "/save", "/load", "/quit",
    ] {
        assert!(help.contains(command), "{command}");
    }
    assert_eq!(
        chat("/system\n/system Be brief.\n/system\n").ok(),
        "(none)\nBe brief.\n"
    );
    let settings = chat("/set temp 0.5\n/set top-k 7\n/set seed 9\n/set n 3\n/set\n").ok();
    for line in ["temp 0.5", "top-k 7", "seed 9", "n 3"] {
        assert!(settings.lines().any(|l| l == line), "{line}: {settings}");
    }
    // Input after /quit is ignored.
    let outcome = chat("/quit\n/system\n");
    assert_eq!((outcome.stdout.as_str(), outcome.code), ("", Some(0)));
}

#[test]
fn errors_do_not_end_the_conversation() {
    let outcome = chat(
        "/nonsense\n/set\n/set bogus 1\n/set temp warm\n/set temp -3\n/load no/such.json\n/save\n/system still here\n/system\n",
    );
    for problem in [
        "/nonsense",
        "bogus",
        "warm",
        "temperature",
        "no/such.json",
        "/save FILE",
    ] {
        assert!(
            outcome.stderr.contains(problem),
            "{problem}: {}",
            outcome.stderr
        );
    }
    assert!(outcome.ok().ends_with("still here\n"));

    // A question that is too long is removed, and the next one is answered.
    let long = "word ".repeat(400);
    let outcome = chat(&format!("{long}\nHello\n"));
    assert!(
        outcome.stderr.contains("the limit is 256"),
        "{}",
        outcome.stderr
    );
    assert_eq!(outcome.ok(), chat("Hello\n").ok());
}

#[test]
fn multi_line_input() {
    let (_dir, path) = text_file("");
    chat(&format!(
        "one\\\ntwo\n\"\"\"\nthree\n\nfour\n\"\"\"\n/save {path}\n"
    ))
    .ok();
    let saved: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(saved[0]["content"], "one\ntwo");
    assert_eq!(saved[2]["content"], "three\n\nfour");
}

/// A conversation longer than the context goes on without its oldest turns.
#[test]
fn a_full_context_drops_the_oldest_turns() {
    let (_dir, path) = text_file("");
    let turns: String = (0..12).map(|n| format!("question number {n}\n")).collect();
    let args = [
        "chat",
        &model(),
        "-n",
        "8",
        "--temp",
        "0",
        "-c",
        "96",
        "-sys",
        "Be brief.",
    ];
    let outcome = oxidize_with(&args, &format!("{turns}/save {path}\n"));
    assert!(!outcome.stderr.contains("error"), "{}", outcome.stderr);
    let told = outcome.stderr.matches("the context of 96 tokens is full");
    assert_eq!(told.count(), 1, "{}", outcome.stderr);
    assert_eq!(outcome.stderr.matches("tok/s · answer").count(), 12);
    // Nothing is lost of the conversation that is saved.
    let text = std::fs::read_to_string(&path).unwrap();
    let saved: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(saved.len(), 25);

    // The last answer is that to the system message and the last turns.
    let answer = saved[24]["content"].as_str().unwrap();
    let is_window = |n_turns: usize| {
        let window = [&saved[..1], &saved[24 - 2 * n_turns..23]].concat();
        std::fs::write(&path, serde_json::to_string(&window).unwrap()).unwrap();
        let input = format!("/load {path}\nquestion number 11\n");
        oxidize_with(&args, &input).ok().trim_end() == answer.trim_end()
    };
    assert!((1..=4).any(is_window), "{answer:?}");
}
