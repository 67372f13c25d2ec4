//! Answers of every family, whole and in chunks, and answers that only resemble the formats.

use serde_json::json;

use super::*;
use crate::chat::ChatOptions;
use crate::sampling::Rng;

/// Format of a template that contains `markers`.
fn format_of(markers: &str) -> MessageFormat {
    let source =
        format!("{{# {markers} #}}{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}");
    MessageFormat::of(&ChatTemplate::new(&source, ChatOptions::default()).unwrap())
}

fn weather_tools() -> Json {
    json!([{"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "zip": {"type": "string"}},
    }}}])
}

/// Parses whole, one character at a time, and in random chunks. All results must agree.
fn parse(format: &MessageFormat, prompt: &str, text: &str) -> ParsedMessage {
    let tools = weather_tools();
    let options = MessageParserOptions {
        reasoning: true,
        tools: Some(&tools),
        prompt,
        stream_calls: false,
    };
    let whole = in_chunks(format, &options, text);
    let options = MessageParserOptions {
        stream_calls: true,
        ..options
    };
    let mut streamed = in_chunks(format, &options, text);
    // Streamed calls must equal the complete ones.
    if !whole.tool_calls.is_empty() {
        for (call, whole) in streamed.tool_calls.iter_mut().zip(&whole.tool_calls) {
            // An id after the arguments is not streamed.
            call.id = call.id.take().or_else(|| whole.id.clone());
            if let Json::String(text) = &call.function.arguments {
                call.function.arguments = serde_json::from_str(text).unwrap();
            }
        }
        assert_eq!(streamed, whole, "{text:?}");
    }
    whole
}

fn in_chunks(
    format: &MessageFormat,
    options: &MessageParserOptions<'_>,
    text: &str,
) -> ParsedMessage {
    let whole = ParsedMessage::parse(format, options, text);
    let mut rng = Rng::new(text.len() as u64);
    for round in 0..8 {
        let mut parser = MessageParser::new(format, options);
        let mut answer = ParsedMessage::default();
        let mut chunk = String::new();
        for c in text.chars() {
            chunk.push(c);
            if round == 0 || rng.next_u64().is_multiple_of(4) {
                answer.extend(parser.push(&chunk));
                chunk.clear();
            }
        }
        answer.extend(parser.push(&chunk));
        answer.extend(parser.finish());
        assert_eq!(answer, whole, "pieces of {text:?}");
    }
    whole
}

fn calls(answer: &ParsedMessage) -> Vec<(&str, &Json)> {
    answer
        .tool_calls
        .iter()
        .map(|call| (call.function.name.as_str(), &call.function.arguments))
        .collect()
}

#[test]
fn one_call_in_every_format() {
    let cases = [
        (
            "<tool_call>",
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}\n</tool_call>",
        ),
        (
            "<tool_call>",
            "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        ),
        (
            "<tool_call>",
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        ),
        (
            "<minimax:tool_call>",
            "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Bern</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n</minimax:tool_call>",
        ),
        (
            "<｜DSML｜function_calls>",
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Bern</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        ),
        (
            "<seed:tool_call>",
            "<seed:tool_call>\n<function=weather>\n<parameter=city>Bern</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
        ),
        (
            "<function=",
            "<function=weather>{\"city\": \"Bern\", \"days\": 3}</function>",
        ),
        (
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Bern\", \"days\": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Bern\", \"days\": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"Bern\", \"days\": 3}<|tool_call_end|><|tool_calls_section_end|>",
        ),
        (
            "<|python_tag|>",
            "<|python_tag|>{\"type\": \"function\", \"name\": \"weather\", \"parameters\": {\"city\": \"Bern\", \"days\": 3}}",
        ),
        (
            "<|python_tag|>",
            "<|python_tag|>weather.call(city=\"Bern\", days=3)",
        ),
        (
            "<|python_tag|>",
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"Bern\", \"days\": 3}}",
        ),
        (
            "no marks",
            "{\"tool_call\": {\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}}",
        ),
        (
            "no marks",
            "[{\"function\": {\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": \\\"Bern\\\", \\\"days\\\": 3}\"}}]",
        ),
        (
            "[TOOL_CALLS]",
            "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}, \"id\": \"abcdefghi\"}]",
        ),
        (
            "[TOOL_CALLS]",
            "[TOOL_CALLS]weather[ARGS]{\"city\": \"Bern\", \"days\": 3}",
        ),
        (
            "[TOOL_CALLS]",
            "[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{\"city\": \"Bern\", \"days\": 3}",
        ),
        (
            "<|START_ACTION|>",
            "<|START_ACTION|>[\n  {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Bern\", \"days\": 3}}\n]<|END_ACTION|>",
        ),
        (
            "<|tool_call|>",
            "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}]",
        ),
        (
            "<TOOLCALL>",
            "<TOOLCALL>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}]</TOOLCALL>",
        ),
        (
            "<|tools_prefix|>",
            "<|tools_prefix|>[{\"weather\": {\"city\": \"Bern\", \"days\": 3}}]<|tools_suffix|>",
        ),
        (
            "<|tool_call_start|>",
            "<|tool_call_start|>[weather(city='Bern', days=3)]<|tool_call_end|>",
        ),
        (
            "<|tool_call>",
            "<|tool_call>call:weather{city:<|\"|>Bern<|\"|>,days:3}<tool_call|>",
        ),
        (
            "<start_function_call>",
            "<start_function_call>call:weather{city:<escape>Bern<escape>,days:3}<end_function_call>",
        ),
        (
            "<|channel|><|message|>",
            "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Bern\", \"days\": 3}<|call|>",
        ),
        (
            "<|channel|><|message|>",
            " to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Bern\", \"days\": 3}",
        ),
    ];
    for (markers, text) in cases {
        let answer = parse(&format_of(markers), "", text);
        assert_eq!(
            calls(&answer),
            [("weather", &json!({"city": "Bern", "days": 3}))],
            "{text}"
        );
        assert_eq!(answer.content, "", "{text}");
    }
}

#[test]
fn several_calls_between_text() {
    let hermes = format_of("<tool_call>");
    let text = "I'll look.\n\n<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"b\", \"arguments\": {\"x\": [1]}}\n</tool_call>\nDone";
    let answer = parse(&hermes, "", text);
    assert_eq!(
        calls(&answer),
        [("a", &json!({})), ("b", &json!({"x": [1]}))]
    );
    assert_eq!(answer.content, "I'll look.Done");

    let mistral = format_of("[TOOL_CALLS]");
    let answer = parse(
        &mistral,
        "",
        "[TOOL_CALLS]a[ARGS]{}[TOOL_CALLS]b[ARGS]{\"x\": 1}",
    );
    assert_eq!(calls(&answer), [("a", &json!({})), ("b", &json!({"x": 1}))]);

    let kimi = format_of("<|tool_calls_section_begin|>");
    let text = "<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>functions.b:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
    let answer = parse(&kimi, "", text);
    assert_eq!(answer.tool_calls[1].id.as_deref(), Some("functions.b:1"));
}

#[test]
fn section_opened_by_the_prompt() {
    let format = format_of(">>>");
    let answer = parse(
        &format,
        "<|assistant|>\n\n>>>",
        "weather\n{\"city\": \"Bern\"}\n>>>all\nDone.",
    );
    assert_eq!(calls(&answer), [("weather", &json!({"city": "Bern"}))]);
    assert_eq!(answer.content, "Done.");
    assert_eq!(
        parse(&format, ">>>", "all\nHello >> you").content,
        "Hello >> you"
    );
    assert_eq!(parse(&format, ">>>", "not a call").content, "not a call");
}

#[test]
fn schema_types_decide_which_values_are_strings() {
    let format = format_of("<tool_call>");
    let text = "<tool_call><function=weather><parameter=zip>01234</parameter><parameter=days>3</parameter><parameter=city>7</parameter></function></tool_call>";
    let answer = parse(&format, "", text);
    assert_eq!(
        calls(&answer),
        [("weather", &json!({"zip": "01234", "days": 3, "city": "7"}))]
    );
}

#[test]
fn reasoning_of_every_family() {
    let cases = [
        ("</think>", "<think>\nHm. Yes.\n</think>\n\nAnswer."),
        ("[/THINK]", "[THINK]Hm. Yes.[/THINK]Answer."),
        ("</seed:think>", "<seed:think>Hm. Yes.</seed:think>Answer."),
        (
            "<|END_THINKING|><|START_RESPONSE|><|END_RESPONSE|>",
            "<|START_THINKING|>Hm. Yes.<|END_THINKING|><|START_RESPONSE|>Answer.<|END_RESPONSE|>",
        ),
        (
            "<|inner_suffix|>",
            "<|inner_prefix|>Hm. Yes.<|inner_suffix|>Answer.",
        ),
        (
            "<channel|>",
            "<|channel>thought\nHm. Yes.\n<channel|>Answer.",
        ),
        (
            "<|channel|><|message|>",
            "<|channel|>analysis<|message|>Hm. Yes.<|end|><|start|>assistant<|channel|>final<|message|>Answer.<|return|>",
        ),
        ("no marks at all", "<think>Hm. Yes.</think>Answer."),
    ];
    for (markers, text) in cases {
        let answer = parse(&format_of(markers), "", text);
        assert_eq!(
            (answer.reasoning.as_str(), answer.content.as_str()),
            ("Hm. Yes.", "Answer."),
            "{text}"
        );
    }
}

#[test]
fn reasoning_opened_by_the_prompt_or_left_open() {
    let format = format_of("</think>");
    let answer = parse(&format, "<|assistant|><think>\n", "Hm.\n</think>\nAnswer");
    assert_eq!(
        (answer.reasoning.as_str(), answer.content.as_str()),
        ("Hm.", "Answer")
    );
    let answer = parse(&format, "<think>", "still thinking");
    assert_eq!(
        (answer.reasoning.as_str(), answer.content.as_str()),
        ("still thinking", "")
    );
    let answer = parse(&format, "", "<think>a</think><tool_call>");
    assert_eq!(answer.reasoning, "a");
}

#[test]
fn reasoning_then_call() {
    let format = format_of("</think> <tool_call>");
    let answer = parse(
        &format,
        "<think>\n",
        "Need weather.\n</think>\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>",
    );
    assert_eq!(answer.reasoning, "Need weather.");
    assert_eq!(answer.content, "");
    assert_eq!(calls(&answer), [("weather", &json!({"city": "Bern"}))]);
    let harmony = format_of("<|channel|><|message|>");
    let text = "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Bern\"}<|call|>";
    let answer = parse(&harmony, "", text);
    assert_eq!(
        (
            answer.reasoning.as_str(),
            answer.content.as_str(),
            answer.tool_calls.len()
        ),
        ("Need it.", "", 1)
    );
}

#[test]
fn unparsable_text_stays_content() {
    let cases = [
        (
            "<tool_call>",
            "<tool_call>\nnot a call, really\n</tool_call>",
        ),
        (
            "<tool_call>",
            "<tool_call>{\"name\": \"weather\", \"arguments\": {\"ci",
        ),
        ("<tool_call>", "Use <tool_call> like this: a < b"),
        ("<tool_call>", "<tool_call></tool_call>"),
        (
            "<tool_call>",
            "<tool_call>{\"arguments\": {}}</tool_call> and more",
        ),
        ("[TOOL_CALLS]", "[TOOL_CALLS]what"),
        (
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁begin｜>broken<｜tool▁calls▁end｜>",
        ),
        (
            "<|tool_call_start|>",
            "<|tool_call_start|>[weather(city=)]<|tool_call_end|>",
        ),
        ("<|tool_call>", "<|tool_call>call:weather{city:<tool_call|>"),
        ("no marks", "{\"answer\": 42}"),
        ("no marks", "{\"name\": \"Bob\", \"age\": 3}"),
        ("no marks", "[1, 2, 3]"),
        ("no marks", "{ this is no json"),
        ("no marks", "plain text, <b>tags</b> and {braces} \n\n"),
        ("no marks", "text first <think>not reasoning</think>"),
        ("<|channel|><|message|>", "no header at all"),
        (
            "<|channel|><|message|>",
            "<|channel|>final<|message|>a <| b",
        ),
    ];
    for (markers, text) in cases {
        let answer = parse(&format_of(markers), "", text);
        assert!(answer.tool_calls.is_empty(), "{text}");
        assert_eq!(
            answer.content,
            text.replace("<|channel|>final<|message|>", ""),
            "{text}"
        );
        assert_eq!(answer.reasoning, "");
    }
    let harmony = format_of("<|channel|><|message|>");
    let answer = parse(
        &harmony,
        "",
        "<|channel|>commentary to=functions.f<|message|>{broken<|call|>",
    );
    assert!(answer.content.contains("functions.f") && answer.content.contains("{broken"));
}

#[test]
fn nothing_is_extracted_without_tools_and_reasoning() {
    let format = format_of("<tool_call> </think>");
    let text = "<think>x</think><tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let answer = ParsedMessage::parse(&format, &MessageParserOptions::default(), text);
    assert_eq!(
        answer,
        ParsedMessage {
            content: text.into(),
            ..Default::default()
        }
    );
}

#[test]
fn content_streams_without_delay() {
    let format = format_of("<tool_call>");
    let tools = weather_tools();
    let mut parser = MessageParser::new(
        &format,
        &MessageParserOptions {
            reasoning: true,
            tools: Some(&tools),
            prompt: "",
            ..MessageParserOptions::default()
        },
    );
    assert_eq!(
        parser.push("Hello"),
        [MessageDelta::Content("Hello".into())]
    );
    assert_eq!(parser.push(" <tool"), []);
    assert_eq!(
        parser.push("s>"),
        [MessageDelta::Content(" <tools>".into())]
    );
    // JSON that cannot be a call is not held back.
    let mut parser = MessageParser::new(
        &format_of("none"),
        &MessageParserOptions {
            reasoning: true,
            tools: Some(&tools),
            prompt: "",
            ..MessageParserOptions::default()
        },
    );
    assert_eq!(parser.push("{\"na"), []);
    assert_eq!(
        parser.push("tion\": 1"),
        [MessageDelta::Content("{\"nation\": 1".into())]
    );
}

#[test]
fn arguments_stream_incrementally() {
    let tools = weather_tools();
    let options = MessageParserOptions {
        tools: Some(&tools),
        stream_calls: true,
        ..MessageParserOptions::default()
    };
    let start = |name: &str| MessageDelta::CallStart {
        id: None,
        name: name.into(),
    };
    let arguments = |text: &str| MessageDelta::CallArguments(text.into());
    let mut parser = MessageParser::new(&format_of("<tool_call>"), &options);
    assert_eq!(parser.push("<tool_call>\n{\"name\": \"weather\", "), []);
    assert_eq!(
        parser.push("\"arguments\": {\"city\": \"Be"),
        [start("weather"), arguments("{\"city\": \"Be")]
    );
    assert_eq!(parser.push("rn\"}}</tool"), [arguments("rn\"}")]);
    assert_eq!(parser.push("_call>\n<tool_call>{\"name\": \"b\","), []);
    assert_eq!(
        parser.push("\"arguments\":{}}</tool_call>"),
        [start("b"), arguments("{}")]
    );
    assert_eq!(parser.finish(), []);
    // Without markers, followed by text.
    let mut parser = MessageParser::new(&format_of("none"), &options);
    let deltas = parser.push("{\"name\": \"f\", \"parameters\": {\"x\": 1");
    assert_eq!(deltas, [start("f"), arguments("{\"x\": 1")]);
    assert_eq!(parser.push("}} so there"), [arguments("}")]);
    assert_eq!(parser.finish(), [MessageDelta::Content(" so there".into())]);
    // A truncated call stays a call.
    let mut parser = MessageParser::new(&format_of("<tool_call>"), &options);
    parser.push("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"");
    assert_eq!(parser.finish(), []);
}

/// Random mixtures of markers, JSON and text: parsing does not panic, does not depend on the
/// chunks, and preserves every word.
#[test]
fn random_mixtures_lose_no_text() {
    let parts = [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "{\"name\": \"f\"",
        "}",
        "{",
        "[",
        "]",
        ": ",
        "\"",
        "<function=f>",
        "</function>",
        "call:f{",
        "<|tool_call>",
        "<tool_call|>",
        "<|python_tag|>",
        "\n",
        " ",
        "é",
        "<|channel|>",
        "<|message|>",
        "final",
        "analysis",
        " to=functions.f",
        "<|end|>",
        "<",
        "|",
        "```tool_call",
        "```",
    ];
    let formats = [
        "<tool_call> </think> <|tool_call>",
        "[TOOL_CALLS] [/THINK]",
        "none",
        "<|python_tag|>",
        "<|channel|><|message|>",
    ];
    let mut rng = Rng::new(77);
    for round in 0..3000 {
        let format = &formats[round % formats.len()];
        let mut text = String::new();
        for word in 0..rng.next_u64() % 12 {
            text += parts[(rng.next_u64() % parts.len() as u64) as usize];
            if rng.next_u64().is_multiple_of(3) {
                text += &format!("word{word};");
            }
        }
        // Detecting a format is slow, so formats are cached.
        let format = FORMATS.with(|cache| {
            cache
                .borrow_mut()
                .entry(format)
                .or_insert_with(|| format_of(format))
                .clone()
        });
        let answer = parse(&format, "", &text);
        let all = format!(
            "{}{}{:?}",
            answer.reasoning, answer.content, answer.tool_calls
        );
        let headers =
            text.contains("<|channel|>") || text.contains("<|message|>") || text.contains("<|");
        if !headers {
            for word in text
                .split_inclusive(';')
                .filter_map(|chunk| chunk.rfind("word").map(|at| &chunk[at..]))
            {
                assert!(
                    all.contains(word),
                    "{word} is lost from {text:?}: {answer:?}"
                );
            }
        }
    }
}

thread_local! {
    static FORMATS: std::cell::RefCell<std::collections::HashMap<&'static str, MessageFormat>> = Default::default();
}

#[test]
fn deeply_nested_calls_stay_content() {
    let format = format_of("<tool_call> <|tool_call> <|tool_call_start|>");
    for text in [
        format!(
            "<tool_call>{{\"name\": \"f\", \"arguments\": {}</tool_call>",
            "[".repeat(100_000)
        ),
        format!(
            "<|tool_call>call:f{{a:{}<tool_call|>",
            "{a:".repeat(100_000)
        ),
        format!(
            "<|tool_call_start|>[f(a={})]<|tool_call_end|>",
            "[".repeat(100_000)
        ),
    ] {
        let tools = weather_tools();
        let options = MessageParserOptions {
            reasoning: true,
            tools: Some(&tools),
            prompt: "",
            ..MessageParserOptions::default()
        };
        let answer = ParsedMessage::parse(&format, &options, &text);
        assert_eq!(answer.content, text);
    }
}
