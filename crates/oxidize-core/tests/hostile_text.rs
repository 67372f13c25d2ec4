//! Hostile grammars, schemas, regular expressions and chat templates, which would hang or crash an
//! engine without limits: each is rejected with a clear error, soon and with bounded memory. The test
//! prints the CPU time of each, which is below 50 ms on a machine of today.
//!
//! This is a single test in its own binary because it measures the CPU time of the whole process,
//! which other tests would add to.

#[allow(dead_code, reason = "shared with tests that use more of it")]
mod tiny;

use oxidize_core::chat::{ChatInput, ChatOptions, ChatTemplate, Message};
use oxidize_core::grammar::{Grammar, Grammars};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Time limit of a rejection, for the slowest machine: without limits, these take hours or never end.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Runs per measurement: the kernel counts CPU time in hundredths of a second.
const RUNS: u32 = 8;

#[test]
fn hostile_input_is_rejected_soon() {
    let model = tiny::model();
    let tokenizer = model.tokenizer().unwrap();
    let grammars = Grammars::new(tokenizer, model.n_vocab()).unwrap();
    let refuse = |grammar: &Grammar| grammars.compile(grammar).err().map(|e| e.to_string());
    let mut slow = Vec::new();
    let mut check = |name: &str, expected: &str, work: &dyn Fn() -> Option<String>| {
        let name: String = name.chars().take(70).collect();
        let Some(error) = work() else {
            panic!("{name} was not refused");
        };
        assert!(
            error.contains(expected) && error.len() < 1000,
            "{name}: {error:.300}"
        );
        let took = cpu_time(work);
        println!("{:>6.1} ms  {name}: {error:.60}", took.as_secs_f64() * 1e3);
        if took > TIME_LIMIT {
            slow.push(format!("{name}: {took:?}"));
        }
    };
    for grammar in grammar_cases() {
        check(&format!("{grammar:?}"), "", &|| refuse(&grammar));
    }
    // These are valid; deciding whether they are too large must be just as fast.
    for grammar in [
        Grammar::Gbnf("root ::= ((\"a\"{9999}){9999}){9999}".into()),
        Grammar::Regex("((a{9999}){9999}){9999}".into()),
    ] {
        check(&format!("{grammar:?}"), "", &|| {
            Some(refuse(&grammar).unwrap_or_default())
        });
    }
    for (schema, expected) in schema_cases() {
        let name = schema.to_string();
        let grammar = Grammar::JsonSchema(schema);
        check(&name, expected, &|| refuse(&grammar));
    }
    let messages = [Message::new("user", "Hello")];
    for source in template_cases() {
        check(&source, "", &|| {
            let input = ChatInput {
                messages: &messages,
                ..ChatInput::default()
            };
            ChatTemplate::new(&source, ChatOptions::default())
                .and_then(|template| template.render(&input))
                .err()
                .map(|error| error.to_string())
        });
    }
    assert!(
        slow.is_empty(),
        "longer than {TIME_LIMIT:?}:\n{}",
        slow.join("\n")
    );
    if let Some(peak) = peak_memory() {
        assert!(peak < 1 << 30, "{peak} bytes of memory");
    }
}

/// Average CPU time of `work`; the fastest wall time if the system does not report CPU time.
fn cpu_time(work: &dyn Fn() -> Option<String>) -> Duration {
    let Some(before) = ticks() else {
        let runs = (0..RUNS).map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        });
        return runs.min().unwrap_or_default();
    };
    (0..RUNS).for_each(|_| drop(work()));
    let spent = ticks().unwrap_or(before) - before;
    Duration::from_millis(10) * spent / RUNS
}

/// CPU time of this process in hundredths of a second, including finished threads.
fn ticks() -> Option<u32> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field, the name, may contain anything and ends with the last parenthesis.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u32>().ok();
    Some(next()? + next()?)
}

/// Peak memory of this process.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes << 10)
}

fn grammar_cases() -> Vec<Grammar> {
    let deep =
        |open: &str, close: &str, n: usize| format!("{}x{}", open.repeat(n), close.repeat(n));
    let chain: String = (0..100_000)
        .map(|i| format!("r{i} ::= r{}\n", i + 1))
        .collect();
    vec![
        Grammar::Gbnf(format!("root ::= {}", deep("(", ")", 100_000))),
        Grammar::Gbnf(format!("root ::= {}", deep("( \"a\" | ", ")", 10_000))),
        Grammar::Gbnf(format!("root ::= {}", "(".repeat(100_000))),
        Grammar::Gbnf("root ::= \"a\"{99999999999999999999}".into()),
        Grammar::Gbnf(format!("root ::= \"a\"*{}", "*".repeat(100_000))),
        Grammar::Gbnf(chain),
        Grammar::Regex(deep("(", ")", 100_000)),
        Grammar::Regex(deep("(", ")", 30_000)),
        Grammar::Regex("[".repeat(100_000)),
        Grammar::Regex("(".into()),
        Grammar::Regex("a(?=b)".into()),
        Grammar::Regex("a{99999999999}".into()),
        Grammar::Lark(format!("start: {}", deep("(", ")", 100_000))),
        Grammar::Lark(format!("start: {}", deep("(", ")", 30_000))),
        Grammar::Lark("start: nowhere".into()),
    ]
}

fn schema_cases() -> Vec<(Value, &'static str)> {
    let nested = |n: usize| {
        (0..n).fold(
            json!({}),
            |inner, _| json!({"type": "array", "items": inner, "minItems": 1}),
        )
    };
    let chain = |n: usize| {
        let links = (0..n).map(|i| {
            (
                format!("d{i}"),
                json!({"$ref": format!("#/$defs/d{}", i + 1)}),
            )
        });
        json!({"$defs": links.collect::<serde_json::Map<_, _>>(), "$ref": "#/$defs/d0"})
    };
    let doubled = (0..60).fold(
        json!({"type": "integer"}),
        |inner, _| json!({"anyOf": [inner, {"type": "null"}]}),
    );
    vec![
        (nested(300), "levels of a schema"),
        (chain(100_000), "exceed the limit of"),
        (chain(5), ""),
        (
            json!({"allOf": [doubled.clone(), doubled, {"type": "string"}]}),
            "schema: ",
        ),
        (
            json!({"type": "integer", "minimum": 5, "maximum": 3}),
            "schema: ",
        ),
        (
            json!({"allOf": [{"type": "string"}, {"type": "integer"}]}),
            "schema: ",
        ),
        (json!({"enum": []}), "schema: "),
        (json!({"const": 1, "type": "string"}), "schema: "),
        (json!({"$ref": "#/nowhere"}), "schema: "),
        (json!({"$ref": "http://example.com/x"}), "schema: "),
        (json!({"$ref": "#"}), ""),
        (
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
            "",
        ),
        (
            json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
            "",
        ),
        (
            json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
            "",
        ),
        (
            json!({"oneOf": [{"type": "integer"}, {"minimum": 3}]}),
            "`oneOf`",
        ),
        (
            json!({"type": "string", "format": "no-such-format"}),
            "no-such-format",
        ),
        (json!({"type": "string", "pattern": "(?=a)b"}), "schema: "),
        (
            json!({"type": "string", "pattern": "(".repeat(100_000)}),
            "schema: ",
        ),
        (
            json!({"type": "array", "uniqueItems": true}),
            "`uniqueItems` at # is not supported",
        ),
        (json!({"type": "wrong"}), "schema: "),
        (json!(17), "expected an object or a boolean, found a number"),
        (json!(false), "`false` allows nothing"),
    ]
}

fn template_cases() -> Vec<String> {
    let forever = |body: &str| {
        format!(
            "{{% for a in range(9999) %}}{{% for b in range(9999) %}}{body}{{% endfor %}}{{% endfor %}}"
        )
    };
    let set_twice = |expression: &str| {
        format!(
            "{{% set ns = namespace(x='ab', y=['a']) %}}{{% for i in range(90) %}}{expression}{{% endfor %}}{{{{ ns.x }}}}{{{{ ns.y }}}}"
        )
    };
    vec![
        format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)),
        format!("{{{{ {}{} }}}}", "[".repeat(100_000), "]".repeat(100_000)),
        "{% if x %}".repeat(20_000),
        "{% for x in y %}".repeat(15_000),
        "{% macro m() %}".repeat(15_000),
        format!("{{{{ a{} }}}}", "|upper".repeat(2000)) + &"{% for i in range(9999) %}".repeat(3),
        "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}".into(),
        set_twice("{% set ns.x = ns.x ~ ns.x %}"),
        set_twice("{% set ns.x = ns.x + ns.x %}"),
        set_twice("{% set ns.x = ns.x * 99 %}"),
        set_twice("{% set ns.x = ns.x.replace('a', ns.x) %}"),
        set_twice("{% set ns.x = [ns.x, ns.x] | join(ns.x) %}"),
        set_twice("{% set ns.x = '%s%s' % (ns.x, ns.x) %}"),
        set_twice("{% set ns.x = '{0}{0}'.format(ns.x) %}"),
        set_twice("{% set ns.y = ns.y + ns.y %}"),
        set_twice("{% set ns.y = [ns.y, ns.y] %}"),
        set_twice("{% set ns.y = {'a': ns.y, 'b': ns.y} %}"),
        set_twice("{% set c %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = c %}"),
        "{{ 'x' * 100000000 * 100000000 }}".into(),
        "{{ 'a' | indent(99999999999) }}{{ '%99999999999d' % 5 }}".into(),
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".into(),
        "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}{{ ns | tojson }}".into(),
        forever(""),
        forever("{% set x = messages[0].content.split('l') | list | tojson %}"),
        forever("{{ messages | tojson }}"),
        forever("{% if messages[0].content in [messages] %}{% endif %}"),
        forever(&"text".repeat(40_000)),
        "{% set ns = namespace(l=[]) %}{% for b in range(9999) %}{% set ns.l = ns.l + [1] %}{% endfor %}{{ ns.l }}"
            .into(),
        "{% set l = range(9999) | list %}{% for b in range(9999) %}{% set x = l | sort | list %}{% endfor %}"
            .into(),
        "{% set s = 'x' * 1000000 %}{% for b in range(9999) %}{% if 'xy' in s %}{% endif %}{% endfor %}"
            .into(),
        "{% set s = 'x' * 1000000 %}{% for b in range(9999) %}{% set t = s | upper | length %}{% endfor %}"
            .into(),
    ]
}
