//! Time to compute the mask of one token with real vocabularies; the target is a median of 1 ms for
//! 128k tokens. `cargo bench -p oxidize-core --bench grammar -- VOCABULARY…` takes GGUF files or
//! tokenizer directories; the default is those of the test cache.

use oxidize_core::grammar::{Grammar, Grammars};
use oxidize_core::tokenizer::{EncodeOptions, Tokenizer};
use std::path::PathBuf;
use std::time::{Duration, Instant};

fn main() {
    let given: Vec<PathBuf> = std::env::args_os()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .map(PathBuf::from)
        .collect();
    let paths = if given.is_empty() { cached() } else { given };
    println!(
        "{:<28} {:>7} {:<8} {:>9} {:>9} {:>9} {:>9}",
        "vocabulary", "tokens", "grammar", "compile", "median", "p99", "worst"
    );
    for path in paths.iter().filter(|path| path.exists()) {
        let tokenizer = Tokenizer::open(path).expect("a vocabulary");
        let start = Instant::now();
        let grammars = Grammars::new(&tokenizer, tokenizer.vocab_size()).expect("grammars");
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        println!("{name:<28} prepared in {:.0?}", start.elapsed());
        for (kind, grammar, text) in cases() {
            measure(&name, &tokenizer, &grammars, kind, &grammar, &text);
        }
    }
}

fn cached() -> Vec<PathBuf> {
    let cache = std::env::var_os("OXIDIZE_TEST_CACHE").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/oxidize"));
    let cache = cache.or_else(home).unwrap_or_default();
    [
        "models/SmolLM2-135M-Instruct.Q4_1.gguf",
        "vocab/ggml-vocab-llama-bpe.gguf",
    ]
    .map(|name| cache.join(name))
    .into()
}

/// Grammars, each with an answer that matches it.
fn cases() -> Vec<(&'static str, Grammar, String)> {
    let person = serde_json::json!({
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}},
            "kind": {"enum": ["human", "robot", "other"]},
        },
        "required": ["name", "age", "tags", "kind"],
        "additionalProperties": false,
    });
    let answer = r#"{"name": "Ada Lovelace, countess of things", "age": 36, "tags": ["first programmer", "poet's child", "mathematics"], "kind": "human"}"#;
    let json = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"#;
    let list = "root ::= item+\nitem ::= \"- \" [^\\r\\n]+ \"\\n\"";
    let items = "- one thing after another\n- and the next thing\n".repeat(2);
    vec![
        ("schema", Grammar::JsonSchema(person), answer.into()),
        ("object", Grammar::JsonObject, answer.into()),
        ("gbnf", Grammar::Gbnf(json.into()), answer.into()),
        ("list", Grammar::Gbnf(list.into()), items),
        (
            "regex",
            Grammar::Regex("[a-z ]{10,200}\\.".into()),
            "it is what it is and that is that.".into(),
        ),
    ]
}

fn measure(
    name: &str,
    tokenizer: &Tokenizer,
    grammars: &Grammars,
    kind: &str,
    grammar: &Grammar,
    text: &str,
) {
    let tokens = tokenizer.encode(text, EncodeOptions::PLAIN);
    let start = Instant::now();
    grammars.compile(grammar).expect("a good grammar");
    let compile = start.elapsed();
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..10 {
        // Recompile for each answer, so that nothing is cached.
        let mut constraint = grammars.compile(grammar).expect("a good grammar");
        for &token in &tokens {
            let start = Instant::now();
            let allowed = constraint.mask().expect("a mask").allows(token);
            times.push(start.elapsed());
            assert!(
                allowed,
                "{kind} does not allow {:?}",
                tokenizer.token_text(token)
            );
            constraint.accept(token).expect("an allowed token");
        }
    }
    times.sort_unstable();
    let at = |quantile: f64| times[((times.len() - 1) as f64 * quantile) as usize];
    println!(
        "{name:<28} {:>7} {kind:<8} {compile:>9.1?} {:>9.1?} {:>9.1?} {:>9.1?}",
        tokenizer.vocab_size(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}
