//! Chat templates of the test cache render exactly as with Jinja2. `scripts/template_vectors.py`
//! generates the vectors; a few small ones are committed in `fixtures/`.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use oxidize_core::chat::{
    ChatError, ChatInput, ChatOptions, ChatTemplate, Conversation, Message, MessageFormat,
    MessageParserOptions, ParsedMessage, Thinking,
};
use oxidize_core::tokenizer::Tokenizer;
use oxidize_testing::cached_files;
use serde_json::{Value as Json, json};

oxidize_testing::main!(
    cached_templates_render_as_jinja2,
    rendered_calls_are_parsed_back,
    committed_templates_render_as_jinja2,
    thinking_is_off_in_every_template_when_asked,
);

/// Options with the time at which the vectors were rendered.
fn options() -> ChatOptions {
    ChatOptions {
        now: Some(UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
        ..Default::default()
    }
}

/// Checks one file of vectors. Returns the number of equal renderings and the failures.
fn check(path: &Path) -> (usize, Vec<String>) {
    let name = path.file_stem().unwrap().to_string_lossy().into_owned();
    let vectors: Json = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let template = match ChatTemplate::new(vectors["source"].as_str().unwrap(), options()) {
        Ok(template) => template,
        Err(error) => return (0, vec![format!("{name}: {error}")]),
    };
    let mut rendered = 0;
    let mut failures = Vec::new();
    for case in vectors["cases"].as_array().unwrap() {
        let ours = template.render_variables(case["variables"].as_object().unwrap());
        match (case["expected"].as_str(), ours) {
            (Some(want), Ok(got)) if got == want => rendered += 1,
            (Some(want), Ok(got)) => {
                let at = want
                    .bytes()
                    .zip(got.bytes())
                    .take_while(|(a, b)| a == b)
                    .count();
                let tail = |text: &str| {
                    let from = text.floor_char_boundary(at.saturating_sub(20));
                    text[from..].chars().take(80).collect::<String>()
                };
                failures.push(format!(
                    "{name} {}: differs at byte {at}\n    want …{:?}\n    got  …{:?}",
                    case["name"],
                    tail(want),
                    tail(&got)
                ));
            }
            (Some(_), Err(error)) => failures.push(format!("{name} {}: {error}", case["name"])),
            // An intentional refusal must have the same message. Where Python fails with a type
            // error (such as a loop over None), rendering may succeed.
            (None, ours) => {
                let error = case["error"].as_str().unwrap();
                if let Some(message) = error.strip_prefix("TemplateError: ")
                    && !matches!(&ours, Err(ChatError::Refused(refused)) if refused == message)
                {
                    failures.push(format!(
                        "{name} {}: {ours:?} instead of {error}",
                        case["name"]
                    ));
                }
            }
        }
    }
    (rendered, failures)
}

/// Round trip of a tool call: the template renders it and the answer parser reads it back.
fn call_round_trip(path: &Path) -> Result<bool, String> {
    let name = path.file_stem().unwrap().to_string_lossy().into_owned();
    let vectors: Json = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let template = ChatTemplate::new(vectors["source"].as_str().unwrap(), options()).unwrap();
    if !template.capabilities().tool_calls {
        return Ok(false);
    }
    let tools = json!([{"type": "function", "function": {
        "name": "weather", "description": "d", "parameters": {
            "type": "object", "required": ["city"],
            "properties": {"city": {"type": "string", "description": "c"}, "days": {"type": "integer", "description": "n"}},
        },
    }}]);
    let arguments = json!({"city": "Bern, \"old\" town", "days": 3});
    let assistant: Message = serde_json::from_value(json!({
        "role": "assistant",
        "tool_calls": [{"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": arguments}}],
    }))
    .unwrap();
    let messages = [Message::new("user", "Weather?"), assistant];
    let render = |messages: &[Message], add_generation_prompt: bool| {
        let input = ChatInput {
            messages,
            tools: Some(&tools),
            add_generation_prompt,
            ..Default::default()
        };
        template
            .render(&input)
            .map_err(|error| format!("{name}: {error}"))
    };
    let text = render(&messages, false)?;
    // The turn follows the generation prompt, or the conversation if that prompt opens the
    // reasoning.
    let prompt = render(&messages[..1], true)?;
    let prompt = if text.starts_with(&prompt) {
        prompt
    } else {
        render(&messages[..1], false)?
    };
    let common = prompt
        .bytes()
        .zip(text.bytes())
        .take_while(|(a, b)| a == b)
        .count();
    let turn = &text[text.floor_char_boundary(common)..];
    // The engine stops at this token and does not return it.
    let turn = turn.strip_suffix("<|eot_id|>").unwrap_or(turn);
    // The Harmony parser starts where the prompt ends.
    let turn = turn.strip_prefix("<|start|>assistant").unwrap_or(turn);
    let answer_options = MessageParserOptions {
        reasoning: true,
        tools: Some(&tools),
        prompt: &prompt,
        ..MessageParserOptions::default()
    };
    let answer = ParsedMessage::parse(&MessageFormat::of(&template), &answer_options, turn);
    match answer.tool_calls.as_slice() {
        [call] if call.function.name == "weather" && call.function.arguments == arguments => {
            Ok(true)
        }
        _ => Err(format!("{name}: {turn:?} was read as {answer:?}")),
    }
}

fn vectors_in(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .collect();
    paths.sort();
    paths
}

fn assert_all(paths: &[PathBuf]) -> usize {
    let mut rendered = 0;
    let mut failures = Vec::new();
    for path in paths {
        let (n, failed) = check(path);
        rendered += n;
        failures.extend(failed);
    }
    assert!(
        failures.is_empty(),
        "{} differences:\n{}",
        failures.len(),
        failures.join("\n")
    );
    rendered
}

fn cached_templates_render_as_jinja2() {
    let paths = cached_files("vectors/templates", "json");
    let rendered = assert_all(&paths);
    eprintln!("{} templates, {rendered} renderings equal", paths.len());
    assert!(
        rendered > paths.len() * 5,
        "most conversations should render"
    );
}

fn rendered_calls_are_parsed_back() {
    let paths = cached_files("vectors/templates", "json");
    let results: Vec<Result<bool, String>> =
        paths.iter().map(|path| call_round_trip(path)).collect();
    let read = results.iter().filter(|result| **result == Ok(true)).count();
    let failures: Vec<&String> = results
        .iter()
        .filter_map(|result| result.as_ref().err())
        .collect();
    eprintln!(
        "{read} of {} templates write calls that are read back",
        paths.len()
    );
    assert!(
        failures.is_empty(),
        "{} failures:\n{failures:#?}",
        failures.len()
    );
}

fn committed_templates_render_as_jinja2() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/chat_templates");
    let paths = vectors_in(&directory);
    assert!(!paths.is_empty(), "no fixtures in {}", directory.display());
    assert!(assert_all(&paths) >= 10);
}

fn thinking_is_off_in_every_template_when_asked() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/model.gguf");
    let tokenizer = Tokenizer::open(model).unwrap();
    let (mut n_reasoning, mut n_refused, mut failures) = (0, 0, Vec::new());
    let paths = cached_files("templates", "jinja");
    for path in &paths {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let source = std::fs::read_to_string(path).unwrap();
        let template = ChatTemplate::new(&source, options()).unwrap();
        let render = |thinking| {
            let conversation = Conversation::from("Hi").thinking(thinking);
            conversation.render(&template, &tokenizer)
        };
        let (Ok(on), Ok(off)) = (render(Thinking::On), render(Thinking::Off)) else {
            // Some templates need tools.
            n_refused += 1;
            continue;
        };
        let tags = template.format().reasoning_tags();
        let end = off.text.trim_end();
        if off.reasoning.is_some() || end.ends_with(tags.open) {
            failures.push(format!("{name}: thinking is not off at {:?}", tail(end)));
        }
        if on.reasoning.is_some() {
            n_reasoning += 1;
            if on.text == off.text {
                failures.push(format!("{name}: no difference at {:?}", tail(end)));
            }
        }
    }
    eprintln!("{n_reasoning} of {} templates reason", paths.len());
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(n_refused <= 2, "{n_refused} templates do not render");
    assert!(n_reasoning >= 25);
}

fn tail(text: &str) -> &str {
    &text[text.floor_char_boundary(text.len().saturating_sub(60))..]
}
