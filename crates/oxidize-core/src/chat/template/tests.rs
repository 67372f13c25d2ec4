//! Rendering: Python semantics, adaptation to the template, limits.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::json;

use super::*;

fn template(source: &str) -> ChatTemplate {
    let now = Some(UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    ChatTemplate::new(
        source,
        ChatOptions {
            now,
            ..Default::default()
        },
    )
    .unwrap()
}

fn evaluate(source: &str, variables: Json) -> Result<String, ChatError> {
    template(source).render_variables(variables.as_object().unwrap())
}

#[test]
fn python_values_and_methods() {
    let cases = [
        (
            "{{ none }} {{ true }} {{ 1.0 }} {{ [1, 'a', {'k': none}] }} {{ x }}|",
            "None True 1.0 [1, 'a', {'k': None}] |",
        ),
        ("{{ 'a' ~ true ~ none ~ 1 }}", "aTrueNone1"),
        ("{{ ' a b '.strip().split(' ') }}", "['a', 'b']"),
        (
            "{{ 'a,b,c'.rsplit(',', 1) }} {{ 'abc'.removeprefix('a') }}",
            "['a,b', 'c'] bc",
        ),
        (
            "{{ ['a', 'b'] | join(', ') }} {{ [1, none] | join('-') }}",
            "a, b 1-None",
        ),
        (
            "{{ {'a': [1, 2.5, none, true], 'é': '<'} | tojson }}",
            r#"{"a": [1, 2.5, null, true], "é": "<"}"#,
        ),
        (
            "{{ {'b': 1, 'a': {}} | tojson(indent=2) }}",
            "{\n  \"b\": 1,\n  \"a\": {}\n}",
        ),
        (
            "{{ 'x' is sequence }} {{ {} is sequence }} {{ 1 is sequence }} {{ 'x' is iterable }}",
            "True True False True",
        ),
        ("{{ strftime_now('%d %b %Y') }}", "14 Nov 2023"),
        (
            "{{ 'a' * 3 }} {{ [0] * 2 }} {{ 7 % 3 }} {{ '%s-%d' % ('a', 5) }} {{ -7 % 3 }}",
            "aaa [0, 0] 1 a-5 2",
        ),
        (
            "{% set ns = namespace(n=0) %}{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
            "3",
        ),
        ("{%- generation -%} hi {%- endgeneration -%}", "hi"),
        (
            "{{ 'a\nb' | indent(2, first=true) }}|{{ 'a\n\nb' | indent }}",
            "  a\n  b|a\n\n    b",
        ),
        (
            "{{ [1,2,3][::-1] }} {{ 'abc'[-2:] }} {{ (1, 'a') }} {{ [1] + [2] }}",
            "[3, 2, 1] bc (1, 'a') [1, 2]",
        ),
        (
            "{{ 'hello world' | title }} {{ 'x'.upper() }} {{ 'a-b'.replace('-', '+') }}",
            "Hello World X a+b",
        ),
        (
            "{{ {'a': 1}.items() | list }} {{ {'a': 1}.get('b', 2) }} {{ dict(a=1) }}",
            "[('a', 1)] 2 {'a': 1}",
        ),
        (
            "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
            "z=1;a=2;",
        ),
        ("  {% if true %}\n  x\n  {% endif %}\ny\n", "  x\ny"),
    ];
    for (source, want) in cases {
        assert_eq!(
            evaluate(source, json!({"d": {"z": 1, "a": 2}})).unwrap(),
            want,
            "{source}"
        );
    }
}

#[test]
fn raised_exceptions_refuse_the_conversation() {
    let error = evaluate("{{ raise_exception('roles must alternate') }}", json!({})).unwrap_err();
    assert_eq!(error, ChatError::Refused("roles must alternate".into()));
}

#[test]
fn errors_report_the_line() {
    assert!(matches!(
        ChatTemplate::new("a\n{% if %}", ChatOptions::default()),
        Err(ChatError::Syntax { line: 2, .. })
    ));
    assert!(matches!(
        evaluate("\n\n{{ x.y.z }}", json!({})),
        Err(ChatError::Render { line: 3, .. })
    ));
}

#[test]
fn system_text_is_folded_into_the_user_turn() {
    let source = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let messages = [
        Message::new("system", "S"),
        Message::new("user", "U"),
        Message::new("assistant", "A"),
    ];
    let input = ChatInput {
        messages: &messages,
        ..Default::default()
    };
    assert_eq!(
        template(source).render(&input).unwrap(),
        "<user>S\n\nU<assistant>A"
    );
    let only_system = [Message::new("system", "S")];
    let input = ChatInput {
        messages: &only_system,
        ..Default::default()
    };
    assert_eq!(template(source).render(&input).unwrap(), "<user>S");
}

#[test]
fn arguments_take_the_expected_form() {
    let message: Message = serde_json::from_value(json!({
        "role": "assistant", "content": null,
        "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": 1}"}}],
    }))
    .unwrap();
    let messages = [message];
    let input = ChatInput {
        messages: &messages,
        ..Default::default()
    };
    let loops = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}";
    let as_object =
        format!("{loops}{{{{ c.function.arguments | tojson }}}}{{% endfor %}}{{% endfor %}}");
    assert_eq!(template(&as_object).render(&input).unwrap(), r#"{"a": 1}"#);
    let as_text = format!("{loops}{{{{ c.function.arguments }}}}{{% endfor %}}{{% endfor %}}");
    assert_eq!(template(&as_text).render(&input).unwrap(), r#"{"a": 1}"#);
}

#[test]
fn content_parts_are_joined_or_passed_on() {
    let messages: Vec<Message> =
        serde_json::from_value(json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]))
            .unwrap();
    let input = ChatInput {
        messages: &messages,
        ..Default::default()
    };
    let plain = template("{% for m in messages %}{{ m.content }}{% endfor %}");
    assert_eq!(plain.render(&input).unwrap(), "a\nb");
    let typed = template(
        "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}",
    );
    assert_eq!(typed.render(&input).unwrap(), "[a][b]");
    // A template that requires parts receives plain text as one part.
    let text = [Message::new("user", "x")];
    assert_eq!(
        typed
            .render(&ChatInput {
                messages: &text,
                ..Default::default()
            })
            .unwrap(),
        "[x]"
    );
}

#[test]
fn prefilled_turn_stays_open() {
    let chatml = ChatTemplate::builtin("chatml", ChatOptions::default()).unwrap();
    let messages = [
        Message::new("user", "Count"),
        Message::new("assistant", "One, two, "),
    ];
    let input = ChatInput {
        messages: &messages,
        continue_final_message: true,
        ..Default::default()
    };
    assert!(
        chatml
            .render(&input)
            .unwrap()
            .ends_with("<|im_start|>assistant\nOne, two, ")
    );
    let llama3 = ChatTemplate::builtin("llama3", ChatOptions::default()).unwrap();
    assert!(
        llama3
            .render(&input)
            .unwrap()
            .ends_with("<|end_header_id|>\n\nOne, two,")
    );
    let empty = [Message::new("user", "Count"), Message::new("assistant", "")];
    let input = ChatInput {
        messages: &empty,
        continue_final_message: true,
        ..Default::default()
    };
    assert!(
        chatml
            .render(&input)
            .unwrap()
            .ends_with("Count<|im_end|>\n<|im_start|>assistant\n")
    );
}

#[test]
fn empty_conversation_is_refused() {
    let chatml = ChatTemplate::builtin("chatml", ChatOptions::default()).unwrap();
    assert!(matches!(
        chatml.render(&ChatInput::default()),
        Err(ChatError::Conversation(_))
    ));
}

#[test]
fn output_size_is_limited() {
    let chat = ChatTemplate::new(
        "{{ 'x' * n }}",
        ChatOptions {
            max_output: 10,
            now: None,
        },
    )
    .unwrap();
    let render = |n: u32| chat.render_variables(json!({ "n": n }).as_object().unwrap());
    assert!(render(10).is_ok());
    assert!(matches!(
        render(11),
        Err(ChatError::Limit { limit: 10, .. })
    ));
}

#[test]
fn deeply_nested_values_drop_without_stack_overflow() {
    let source = "{% set ns = namespace(x=1) %}{% for i in range(9999) %}{% set ns.x = namespace(y=ns.x) %}{% endfor %}ok";
    assert_eq!(evaluate(source, json!({})).unwrap(), "ok");
}
