//! Reasoning in `run` and `chat`.

use super::{fixture, model, oxidize, oxidize_with, text_file};

/// A template of a family that reasons, which can be switched off and shows earlier reasoning to the model.
const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>\
    {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\n{% endfor %}\
    <assistant>\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n\
    {% else %}<think>\n{% endif %}";

fn run(args: &[&str]) -> super::Outcome {
    let (_dir, template) = text_file(TEMPLATE);
    let model = model();
    let fixed = ["run", &model, "Which number?", "--temp", "0"];
    let template = ["--chat-template-file", &template];
    oxidize(&[&fixed, &template[..], args].concat())
}

#[test]
fn the_answer_follows_the_budget_and_the_reasoning_is_apart() {
    let constrained = ["-n", "40", "--regex", "[0-9]{3}"];
    let budget = [&constrained[..], &["--think-budget", "5"]].concat();
    let outcome = run(&budget);
    let reasoning = outcome.stderr.clone();
    assert!(reasoning.contains("5 reasoning"), "{reasoning}");
    let answer = outcome.ok();
    let is_number = |text: &str| text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit());
    assert!(is_number(answer.trim_end()), "{answer:?}");
    let report = run(&[&budget[..], &["--json"]].concat()).json();
    assert!(is_number(report["text"].as_str().unwrap()), "{report}");
    let thought = report["reasoning"].as_str().unwrap();
    assert!(!thought.is_empty() && reasoning.contains(thought));
    assert_eq!(report["timings"]["reasoning_n"], 5);
    for off in [["--think", "off"], ["--think-budget", "0"]] {
        let report = run(&[&constrained[..], &off, &["--json"]].concat()).json();
        assert!(is_number(report["text"].as_str().unwrap()), "{report}");
        assert_eq!(report.get("reasoning"), None, "{report}");
        assert_eq!(report["tokens"].as_array().unwrap().len(), 3, "{report}");
    }
}

#[test]
fn an_unknown_setting_is_an_error_that_lists_the_known_ones() {
    let outcome = run(&["--think", "perhaps"]);
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("expected on, off or auto"));
}

#[test]
fn chat_keeps_the_reasoning_out_of_the_answer() {
    let (_dir, template) = text_file(TEMPLATE);
    let (_other, saved) = text_file("");
    let model = model();
    let args = [
        "chat", &model, "-n", "30", "--temp", "0", "--regex", "[0-9]{2}",
    ];
    let template = ["--chat-template-file", &template];
    let input = format!(
        "/think 4\nHello\n/think off\nAnd more\n/think\n/think auto\n/think 9\n/think\n\
         /think sometimes\n/save {saved}\n"
    );
    let outcome = oxidize_with(&[&args[..], &template].concat(), &input);
    assert!(
        outcome.stderr.contains("expected on, off or auto"),
        "{}",
        outcome.stderr
    );
    let out = outcome.ok();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 4, "{out}");
    assert_eq!(lines[2..], ["off", "auto, at most 9 tokens"]);
    let saved: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&saved).unwrap()).unwrap();
    let answers: Vec<&serde_json::Value> = saved
        .as_array()
        .unwrap()
        .iter()
        .skip(1)
        .step_by(2)
        .collect();
    assert_eq!(answers.len(), 2, "{saved}");
    for (answer, line) in answers.iter().zip(lines) {
        assert_eq!(answer["content"], line);
        assert!(line.len() == 2 && line.bytes().all(|b| b.is_ascii_digit()));
    }
    assert!(!answers[0]["reasoning_content"].as_str().unwrap().is_empty());
    assert_eq!(answers[1].get("reasoning_content"), None);
}

#[test]
fn models_without_reasoning_answer_as_before() {
    let model = fixture("model.gguf").to_string_lossy().into_owned();
    let args = ["run", &model, "Hello", "-n", "8", "--temp", "0", "--json"];
    let text = |extra: &[&str]| oxidize(&[&args[..], extra].concat()).json()["text"].clone();
    assert_eq!(text(&["--think", "off"]), text(&[]));
    assert_eq!(text(&["--think-budget", "3"]), text(&[]));
}
