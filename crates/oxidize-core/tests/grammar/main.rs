//! Constrained output: texts and tokens that grammars accept, and grammars that are rejected.
//! `hostile_text` tests how fast hostile grammars are rejected.
//!
//! All grammars are tested with the tiny model's vocabulary, and again with a real one if it was downloaded.

mod language;
mod schemas;
mod suite;
#[allow(dead_code, reason = "shared with tests that use more of it")]
#[path = "../tiny/mod.rs"]
mod tiny;

use oxidize_core::grammar::{Constraint, Grammar, GrammarError, Grammars};
use oxidize_core::sampling::Rng;
use oxidize_core::tokenizer::{EncodeOptions, Tokenizer};
use oxidize_testing::cached;
use std::sync::LazyLock;

oxidize_testing::main!(
    gbnf_syntax_is_supported,
    lexemes_do_not_consume_what_follows_them,
    gbnf_errors_report_the_line,
    large_grammars_do_not_overflow_the_stack,
    regex_and_lark_constrain,
    corrupted_grammars_compile_or_are_errors,
    gbnf_can_reference_tokens,
    special_tokens_do_not_match_text,
    language::grammar_accepts_exactly_its_words,
    schemas::texts_sampled_under_a_schema_match_it,
    schemas::validator_detects_mismatches,
    schemas::schemas_accept_matching_values_only,
    schemas::date_formats_accept_valid_dates_only,
    suite::texts_sampled_under_a_thousand_schemas_validate,
    llama_cpp_example_grammars_work,
    real_vocabulary_has_the_same_results,
);

/// Vocabulary with its grammar compiler.
pub(crate) struct Vocabulary {
    pub(crate) tokenizer: Tokenizer,
    grammars: Grammars,
    /// Token of each byte, if there is one.
    bytes: Vec<Option<u32>>,
}

impl Vocabulary {
    fn new(tokenizer: Tokenizer, n_vocab: usize) -> Vocabulary {
        let grammars = Grammars::new(&tokenizer, n_vocab).unwrap();
        let mut bytes = vec![None; 256];
        for token in (0..tokenizer.vocab_size() as u32).filter(|&t| !tokenizer.is_special(t)) {
            if let Some(&[byte]) = tokenizer.piece(token) {
                bytes[usize::from(byte)].get_or_insert(token);
            }
        }
        Vocabulary {
            tokenizer,
            grammars,
            bytes,
        }
    }

    pub(crate) fn compile(&self, grammar: &Grammar) -> Constraint {
        self.grammars.compile(grammar).unwrap()
    }

    fn compile_error(&self, grammar: &Grammar) -> GrammarError {
        self.grammars.compile(grammar).unwrap_err()
    }

    /// True if every token is allowed and the answer may end after the last one.
    fn accepts_tokens(&self, grammar: &Grammar, tokens: &[u32]) -> bool {
        let mut constraint = self.compile(grammar);
        tokens.iter().all(|&token| step(&mut constraint, token)) && constraint.may_end()
    }

    /// Like `accepts_tokens`, with one token per byte of `text`.
    pub(crate) fn accepts(&self, grammar: &Grammar, text: &str) -> bool {
        let tokens = text.bytes().map(|byte| self.bytes[usize::from(byte)]);
        self.accepts_tokens(grammar, &tokens.collect::<Option<Vec<u32>>>().unwrap())
    }

    /// Checks which texts are accepted, as the tokenizer divides them and byte by byte.
    pub(crate) fn check(&self, grammar: &Grammar, good: &[&str], bad: &[&str]) {
        let good = good.iter().map(|text| (text, true));
        for (text, expected) in good.chain(bad.iter().map(|text| (text, false))) {
            let tokens = self.tokenizer.encode(text, EncodeOptions::PLAIN);
            let found = self.accepts_tokens(grammar, &tokens);
            assert_eq!(found, expected, "{grammar:?}: the tokens of {text:?}");
            let bytes = text.bytes().map(|byte| self.bytes[usize::from(byte)]);
            if let Some(bytes) = bytes.collect::<Option<Vec<u32>>>() {
                let found = self.accepts_tokens(grammar, &bytes);
                assert_eq!(found, expected, "{grammar:?}: the bytes of {text:?}");
            }
        }
    }
}

/// Advances by a token if it is allowed.
pub(crate) fn step(constraint: &mut Constraint, token: u32) -> bool {
    if constraint.is_complete() || !constraint.mask().unwrap().allows(token) {
        return false;
    }
    constraint.accept(token).unwrap();
    true
}

/// The tiny model's 320 tokens, which include all bytes.
pub(crate) static TINY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let model = tiny::model();
    Vocabulary::new(model.tokenizer().unwrap().clone(), model.n_vocab())
});

/// Vocabulary of a real model. The running test is skipped if it was not downloaded.
fn real() -> Vocabulary {
    let tokenizer = Tokenizer::open(cached("models/SmolLM2-135M-Instruct.Q4_1.gguf")).unwrap();
    let n_vocab = tokenizer.vocab_size();
    Vocabulary::new(tokenizer, n_vocab)
}

fn gbnf(source: &str) -> Grammar {
    Grammar::Gbnf(source.into())
}

fn gbnf_syntax_is_supported() {
    gbnf_syntax(&TINY);
}

fn gbnf_syntax(vocabulary: &Vocabulary) {
    vocabulary.check(
        &gbnf("root ::= \"a\" | \"b\""),
        &["a", "b"],
        &["", "c", "ab"],
    );
    vocabulary.check(
        &gbnf("root ::= [a-c]+ [^a-c]"),
        &["ad", "abcé"],
        &["a", "d", "aa"],
    );
    vocabulary.check(&gbnf("root ::= . .?"), &["x", "é\n", "😀"], &["", "abc"]);
    vocabulary.check(
        &gbnf("root ::= \"a\"{2} \"b\"{1,2} \"c\"{2,}"),
        &["aabcc", "aabbcccc"],
        &["aabc", "abcc", "aabbbcc"],
    );
    vocabulary.check(
        &gbnf("root ::= \"ab\"*"),
        &["", "ab", "abab"],
        &["a", "aba"],
    );
    vocabulary.check(
        &gbnf(r#"root ::= "\"\\\n\t\x41\u00e9\U0001F600" [\]\\\-]"#),
        &["\"\\\n\tAé😀]", "\"\\\n\tAé😀-"],
        &["\"\\"],
    );
    vocabulary.check(
        &gbnf(
            "# first\nroot ::= ( # inside\n  my-rule-1 |\n  \"y\"\n) \"z\" # last\n\nmy-rule-1 ::= \"x\" |\n  \"w\"\n",
        ),
        &["xz", "yz", "wz"],
        &["z", "x"],
    );
    vocabulary.check(
        &gbnf("root ::= ws \"x\" ws\nws ::= ([ \\t] ws)?"),
        &["x", "  x \t"],
        &["", " "],
    );
    vocabulary.check(
        &gbnf("root ::= \"(\" root \")\" | \"\""),
        &["", "()", "((()))"],
        &["(", "())"],
    );
    // Left recursion, which llama.cpp does not support.
    vocabulary.check(
        &gbnf("root ::= root \",\" [0-9] | [0-9]"),
        &["1", "1,2,3"],
        &["", "1,", ",1"],
    );
}

fn lexemes_do_not_consume_what_follows_them() {
    lexemes(&TINY);
}

fn lexemes(vocabulary: &Vocabulary) {
    // Inside recursion, the longest match of `[a-z]+` would consume the `x`.
    vocabulary.check(
        &gbnf("root ::= \"(\" root \")\" | [a-z]+ tail\ntail ::= \"x\" | \"x\" root \"!\""),
        &["ax", "(axx)", "xxx", "abxabx!"],
        &["x", "ab", "(ab)"],
    );
    vocabulary.check(
        &gbnf("root ::= item root \";\" | item\nitem ::= \"a\" | \"ab\" | \"bc\""),
        &["a", "abc;", "ab", "aab;", "aabc;;"],
        &["abc", "b"],
    );
    vocabulary.check(
        &gbnf(
            "root ::= ws value ws\nvalue ::= \"[\" ws (value (ws \",\" ws value)*)? ws \"]\" | [0-9]+\nws ::= [ \\n]*",
        ),
        &["[ 1 , [ ] , 23 ]", " 5\n"],
        &["[1 2]", "[,]"],
    );
    // The same words in unrelated places.
    vocabulary.check(
        &gbnf("root ::= \"{\" root \"}\" | \"if\" [ ] name | name \"=\" root\nname ::= [a-z]+"),
        &["if if", "{a=if b}", "if=b=if x"],
        &["=", "{if b"],
    );
}

fn gbnf_errors_report_the_line() {
    for (source, expected) in [
        ("", "grammar, line 1: there is no rule `root`"),
        (
            "root ::= \"a\"\nroot ::= \"b\"",
            "grammar, line 2: rule `root` is defined twice",
        ),
        (
            "root ::=\n  nowhere",
            "grammar, line 2: rule `nowhere` is used but not defined",
        ),
        ("root ::= \"a", "grammar, line 1: unterminated string"),
        (
            "root ::= [a",
            "grammar, line 1: unterminated character class",
        ),
        (
            "root ::= []",
            "grammar, line 1: the character class is empty",
        ),
        (
            "root ::= [z-a]",
            "grammar, line 1: the range 'z'-'a' is reversed",
        ),
        (
            "root ::= (\"a\"",
            "grammar, line 1: expected `)`, found the end of the grammar",
        ),
        (
            "root ::= * \"a\"",
            "grammar, line 1: nothing to repeat before '*'",
        ),
        (
            "root ::= \"a\"{3,2}",
            "grammar, line 1: the minimum count exceeds the maximum",
        ),
        ("root ::= \"\\q\"", "grammar, line 1: unknown escape `\\q`"),
        (
            "root ::= \"\\ud800\"",
            "grammar, line 1: 0xd800 is not a character",
        ),
        (
            "root = \"a\"",
            "grammar, line 1: expected `::=` after `root`, found '='",
        ),
        (
            "root ::= <[100000]>",
            "grammar, line 1: the vocabulary has no token <[100000]>",
        ),
        (
            "root ::= \"a\"\n  | !<nothing>",
            "grammar, line 2: the vocabulary has no token <nothing>",
        ),
        (
            "root ::= <open",
            "grammar, line 1: expected a token, `<name>` or `<[number]>`",
        ),
        ("root ::= \"a\" root", "grammar: rule `root` never ends"),
        (
            "root ::= \"a\" | b\nb ::= c\nc ::= \"x\" b \"y\"",
            "grammar: rule `b` never ends",
        ),
        (
            "root ::= \"a\"{0,1000000}",
            "grammar: 1000000 repetitions exceed the limit of 10000",
        ),
    ] {
        assert_eq!(
            TINY.compile_error(&gbnf(source)).to_string(),
            expected,
            "{source}"
        );
    }
}

fn large_grammars_do_not_overflow_the_stack() {
    large_grammars(&TINY);
}

fn large_grammars(vocabulary: &Vocabulary) {
    let chain = |n: usize| -> String {
        let links = (0..n).map(|i| format!("r{i} ::= \"a\" r{} | \"b\"\n", i + 1));
        format!("root ::= r0\n{}r{n} ::= \"c\"", links.collect::<String>())
    };
    vocabulary.check(&gbnf(&chain(100)), &["b", "aab"], &["a"]);
    // Each rule is twice as long as the next.
    let doubled = |n: usize| {
        let rules: String = (0..n)
            .map(|i| format!("r{i} ::= r{0} r{0}?\n", i + 1))
            .collect();
        format!("root ::= r0\n{rules}r{n} ::= \"a\"")
    };
    vocabulary.check(&gbnf(&doubled(4)), &["a", "aaa"], &["", "b"]);
    // These may be too large for the engine. The words of the second have up to 2^40 letters.
    for source in [chain(2000), doubled(40)] {
        drop(vocabulary.grammars.compile(&gbnf(&source)));
    }
    let ring: String = (0..300)
        .map(|i| format!("r{i} ::= \"a\" r{} \"b\" | \"c\"\n", (i + 1) % 300))
        .collect();
    vocabulary.check(
        &gbnf(&format!("root ::= r0\n{ring}")),
        &["c", "aacbb"],
        &["acbb"],
    );
    let lark: String = (0..3000)
        .map(|i| format!("r{i}: \"a\" r{}\n", i + 1))
        .collect();
    let _ = vocabulary
        .grammars
        .compile(&Grammar::Lark(format!("start: r0\n{lark}r3000: \"b\"")));
}

fn regex_and_lark_constrain() {
    regex_and_lark(&TINY);
}

fn regex_and_lark(vocabulary: &Vocabulary) {
    vocabulary.check(
        &Grammar::Regex("[0-9]{3}-[a-f]+/".into()),
        &["123-abc/"],
        &["12-a/", "123-"],
    );
    vocabulary.check(
        &Grammar::Lark("start: expr\nexpr: term (\"+\" term)*\nterm: NUMBER | \"(\" expr \")\"\nNUMBER: /[0-9]+/\n%ignore /[ ]/".into()),
        &["1+2", "(1 + 23)+4"],
        &["1+", "(1"],
    );
    vocabulary.check(
        &Grammar::JsonObject,
        &["{}", "{\"a\": [1, null]}", "{\n  \"a\": 1\n}"],
        &["[]", "1", "{\"a\"}", "{  }"],
    );
}

fn corrupted_grammars_compile_or_are_errors() {
    let gbnf = "root ::= \"a\" ([b-d\\x41] | x){1,3} . # c\nx ::= \"(\" root* \")\" | [^\\n\\u00e9-]+ \"\\\"\"?\n";
    let lark = "start: x+ | \"(\" start \")\"\nx: A B{1,3} /[a-z]+/i\nA: \"a\"..\"z\"\nB: (A | \"1\")*\n%ignore / /\n";
    let schema = r##"{"type":"object","properties":{"a":{"type":["integer","null"],"minimum":-3},"b":{"$ref":"#/$defs/s"}},"required":["a"],"$defs":{"s":{"type":"string","pattern":"^a+$","maxLength":9}},"additionalProperties":false}"##;
    let regex = "(a|b[^c-e]){2,4}\\d?[\\w.]+x*";
    let junk = b"()[]{}|*+?\\\"^-.,:=#/<>ax19 \n\xff";
    let mut rng = Rng::new(11);
    let mut below = |n: usize| (rng.next_u64() % n.max(1) as u64) as usize;
    let (mut good, mut bad) = (0, 0);
    for round in 0..1200 {
        let source = [gbnf, lark, schema, regex][round % 4];
        let mut bytes = source.as_bytes().to_vec();
        for _ in 0..=below(4) {
            let (at, end) = (below(bytes.len()), below(bytes.len() + 1));
            match below(4) {
                0 => bytes[at] = junk[below(junk.len())],
                1 => bytes.insert(at, junk[below(junk.len())]),
                2 => drop(bytes.drain(at.min(end)..end.min(at + 8).max(at.min(end)))),
                _ => bytes.extend_from_within(at.min(end)..end),
            }
            bytes.push(b' ');
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let grammar = match round % 4 {
            0 => Grammar::Gbnf(text),
            1 => Grammar::Lark(text),
            2 => match serde_json::from_str(&text) {
                Ok(schema) => Grammar::JsonSchema(schema),
                Err(_) => continue,
            },
            _ => Grammar::Regex(text),
        };
        match TINY.grammars.compile(&grammar) {
            Ok(mut constraint) => {
                constraint.mask().unwrap();
                good += 1;
            }
            Err(error) => {
                assert!(!error.to_string().contains("panic"), "{grammar:?}: {error}");
                bad += 1;
            }
        }
    }
    assert!(good > 20 && bad > 20, "{good} good, {bad} bad");
}

/// llama.cpp's example grammars compile, classify texts correctly, and accept what they generate.
fn llama_cpp_example_grammars_work() {
    example_grammars(&TINY, 20);
}

fn example_grammars(vocabulary: &Vocabulary, n_samples: usize) {
    let directory = cached("grammars");
    let cases: [(&str, &[&str], &[&str]); 8] = [
        (
            "arithmetic",
            &["1+2=3\n", "(a +10) *x_1 = 5\n", "1=1\n2*3=6\n"],
            &["1+=2\n", "1=1", "(1=2\n"],
        ),
        (
            "c",
            &[
                "",
                "int main(){return 1+f(x, 2);}",
                "float g(int a){while(a<10){a = a+1;}if(a==2){f ();}else{// hi\n}}",
                "int f(){/* a * b */}",
            ],
            &["int main(", "main(){}", "int f(){return 1}"],
        ),
        (
            "chess",
            &["1. e4 e5\n2. Nf3 Nc6\n", "1. d4 O-O-O+\n10. exd8=Q# Rae1\n"],
            &["1. e4 e5\n", "1. e9 e5\n2. a3 a6\n"],
        ),
        ("english", &["Hello, world!", "a b"], &["", "a  b", "é"]),
        ("japanese", &["こんにちは", "日本 カナ"], &["hello", ""]),
        (
            "json",
            &[
                "{}",
                "{\"a\": [1, 2.5e3, \"x\\n\\u00e9\"], \"b\": {\"c\": null}}",
                "{\n  \"a\":true}",
            ],
            &["[1]", "{\"a\":}", "{\"a\": 01}"],
        ),
        (
            "json_arr",
            &["[\n]", "[\n{\"a\": 1},\n[true, false]]"],
            &["{}", "[1]"],
        ),
        ("list", &["- a\n- b c\n"], &["", "a\n", "- \n", "- a"]),
    ];
    for (name, good, bad) in cases {
        let path = directory.join(format!("{name}.gbnf"));
        let source = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let grammar = gbnf(&source);
        vocabulary.check(&grammar, good, bad);
        let mut rng = Rng::new(3);
        let answers: Vec<String> = (0..n_samples)
            .filter_map(|_| schemas::sample(vocabulary, &grammar, &mut rng))
            .collect();
        assert!(!answers.is_empty(), "{name}: no answer came to an end");
        for answer in answers {
            assert!(TINY.accepts(&grammar, &answer), "{name}: {answer:?}");
        }
    }
}

/// Tokens by name or id, between text and on their own.
fn gbnf_can_reference_tokens() {
    let tokenizer = &TINY.tokenizer;
    let (start, end) = (
        tokenizer.token_id("<|im_start|>").unwrap(),
        tokenizer.token_id("<|im_end|>").unwrap(),
    );
    let text = |text: &str| tokenizer.encode(text, EncodeOptions::PLAIN);
    let (hello, x, z) = (text("hello"), text("x"), text("z"));
    let join = |parts: &[&[u32]]| parts.concat();
    let check = |source: &str, good: &[Vec<u32>], bad: &[Vec<u32>]| {
        for (tokens, accepted) in good
            .iter()
            .map(|tokens| (tokens, true))
            .chain(bad.iter().map(|tokens| (tokens, false)))
        {
            let grammar = gbnf(source);
            assert_eq!(
                TINY.accepts_tokens(&grammar, tokens),
                accepted,
                "{source}: {tokens:?}"
            );
        }
    };
    check(
        &format!("root ::= [a-z]+ <|im_start|> inner <[{start}]>*\ninner ::= \"x\" | \"yy\""),
        &[
            join(&[&hello, &[start], &x]),
            join(&[&hello, &[start], &x, &[start, start]]),
        ],
        &[
            hello.clone(),
            join(&[&hello, &[end], &x]),
            join(&[&hello, &[start, start], &x]),
            join(&[&hello, &text("<|im_start|>x")]),
            join(&[&hello, &[start], &x, &z]),
        ],
    );
    check(
        "root ::= \"x\" !<|im_start|> \"z\"",
        &[join(&[&x, &text("7"), &z]), join(&[&x, &z, &z])],
        &[join(&[&x, &[start], &z]), join(&[&x, &z])],
    );
}

fn special_tokens_do_not_match_text() {
    special_tokens(&TINY);
}

fn special_tokens(vocabulary: &Vocabulary) {
    let mut constraint = vocabulary.compile(&Grammar::Regex("(?s:.*)".into()));
    let mask = constraint.mask().unwrap();
    for token in 0..vocabulary.tokenizer.vocab_size() as u32 {
        if vocabulary.tokenizer.is_special(token) {
            assert_eq!(
                mask.allows(token),
                vocabulary.tokenizer.is_end_of_generation(token),
                "{token}"
            );
        }
    }
    // The name of a special token is ordinary text.
    let name = vocabulary
        .tokenizer
        .token_text(vocabulary.tokenizer.eos().unwrap())
        .unwrap();
    assert!(vocabulary.accepts(&Grammar::Regex("<.*>".into()), name));
}

/// Tokens of several bytes and many words: grammars accept the same texts as with the tiny vocabulary.
fn real_vocabulary_has_the_same_results() {
    let real = real();
    for test in [
        gbnf_syntax,
        lexemes,
        large_grammars,
        regex_and_lark,
        special_tokens,
    ] {
        test(&real);
    }
    schemas::sampled_texts(&real, 2);
    schemas::matching_values(&real);
    schemas::date_formats(&real);
    example_grammars(&real, 3);
}
