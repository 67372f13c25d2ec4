//! Examples for each rule. `scripts/check-tokenizers.py` compares the rules with the reference
//! implementation on many texts.

use super::*;

fn pieces<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
    let mut pieces = Vec::new();
    PreTokenizer::named(name)
        .unwrap()
        .split(text, |piece| pieces.push(piece));
    pieces
}

/// Pieces joined with bars.
fn split(name: &str, text: &str) -> String {
    pieces(name, text).join("|")
}

#[test]
fn gpt2_joins_one_space_to_a_word() {
    assert_eq!(
        split("gpt-2", "Hello  world's 123 !?\n\n x "),
        "Hello| | world|'s| 123| !?|\n\n| x| "
    );
    assert_eq!(split("gpt-2", "we'll'S   "), "we|'ll|'|S|   ");
    assert_eq!(split("gpt-2", "\u{3000}\u{3000}a"), "\u{3000}|\u{3000}|a");
}

#[test]
fn llama3_folds_case_and_groups_digits() {
    assert_eq!(
        split("llama-bpe", "I'LL 12345 don'T"),
        "I|'LL| |123|45| don|'T"
    );
    assert_eq!(split("llama-bpe", "it'ſ"), "it|'ſ");
    assert_eq!(
        split("llama-bpe", "a\n \n  b!\r\n\n"),
        "a|\n \n| | b|!\r\n\n"
    );
    assert_eq!(split("llama-bpe", "(foo) .bar"), "(foo|)| .|bar");
    assert_eq!(split("qwen2", "12 3"), "1|2| |3");
    assert_eq!(split("qwen35", "नमस्ते"), "नमस्ते");
    assert_eq!(split("qwen2", "नमस्ते"), "नमस|्त|े");
}

#[test]
fn gpt4o_splits_where_the_case_changes() {
    assert_eq!(
        split("gpt-4o", "camelCase HTTPServer's"),
        "camel|Case| HTTPServer's"
    );
    assert_eq!(split("gpt-4o", "ABC漢字DEF"), "ABC漢字|DEF");
    assert_eq!(split("gpt-4o", "\u{301}ABC"), "\u{301}|ABC");
    assert_eq!(split("gpt-4o", "a//\n/b"), "a|//\n/|b");
    assert_eq!(split("tekken", "it's 12"), "it|'s| |1|2");
    assert_eq!(split("kimi-k2", "ab漢字cd 漢"), "ab|漢字|cd| |漢");
}

#[test]
fn deepseek_keeps_unmatched_characters_together() {
    assert_eq!(
        split("deepseek-v3", "a_b 1234\u{1}\u{2}x漢あz"),
        "a|_b| |123|4|\u{1}|\u{2}x|漢あ|z"
    );
    assert_eq!(
        split("deepseek-llm", "Hi, 漢字 12!  "),
        "Hi|,| |漢字| |12|!|  "
    );
    assert_eq!(split("deepseek-coder", "x = 12;\n"), "x| = |1|2|;|\n");
}

#[test]
fn partial_rules_isolate_matches_and_keep_the_rest() {
    assert_eq!(split("falcon", "a<b 1234"), "a|<|b| |123|4");
    assert_eq!(split("starcoder", "ab 12c"), "ab| |1|2|c");
    assert_eq!(split("bloom", "Hi, you (all)."), "Hi|,| you| (|all|).");
    assert_eq!(split("superbpe", "a 1234567 b"), "a |1|234|567| b");
    assert_eq!(split("tiny_aya", "1234567 12345x"), "1|234|567| |123|45|x");
    assert_eq!(split("afmoe", "1234 ab"), "1|234| ab");
    assert_eq!(split("gemma4", "a b\n\nc"), "a b|\n\n|c");
    assert_eq!(split("whitespace", " a  b\tc "), "a|b|c");
    assert_eq!(
        split("exaone-moe", "one two 3 four//"),
        "one two| |3| four|//"
    );
    assert_eq!(split("chameleon", "a    b1!"), "a|    |b|1|!");
}

#[test]
fn jais2_splits_spaces_by_powers_of_two() {
    let lengths = |spaces: usize, after: &str| -> Vec<usize> {
        pieces("jais-2", &(" ".repeat(spaces) + after))
            .iter()
            .map(|p| p.len())
            .collect()
    };
    assert_eq!(lengths(7, ""), [4, 2, 1]);
    assert_eq!(lengths(8, ""), [8]);
    assert_eq!(lengths(8, "1"), [4, 2, 1, 1, 1]);
    assert_eq!(lengths(600, ""), [512, 64, 16, 8]);
}

#[test]
fn every_pre_tokenizer_covers_every_text() {
    let text = "Hello, wörld's 12345  \t\n\n don'T `x` 漢字かな 한국어 🚀\u{200d}👩 \u{301}\u{378}\u{1} \r\n  ";
    for name in NAMES {
        let pieces = pieces(name, text);
        assert!(pieces.iter().all(|piece| !piece.is_empty()), "{name}");
        if *name == "whitespace" {
            assert_eq!(pieces.concat(), text.split_whitespace().collect::<String>());
        } else {
            assert_eq!(pieces.concat(), text, "{name}");
        }
        // Any substring must be covered, too.
        for (at, _) in text.char_indices() {
            let _ = self::pieces(name, &text[at..]);
            let _ = self::pieces(name, &text[..at]);
        }
    }
    assert!(PreTokenizer::named("no-such-rule").is_none());
}

#[test]
fn long_runs_take_linear_time() {
    for unit in [
        "a", " ", "1", "'", "\n", "漢", "\u{301}", "A", "<", "\u{1}", " a", "1 ", "aA",
    ] {
        let text = unit.repeat(200_000);
        for name in NAMES {
            let mut total = 0;
            PreTokenizer::named(name)
                .unwrap()
                .split(&text, |piece| total += piece.len());
            assert!(total <= text.len());
        }
    }
}

/// One name per distinct sequence of rules.
const NAMES: &[&str] = &[
    "default",
    "gpt-2",
    "starcoder",
    "llama-bpe",
    "qwen2",
    "qwen35",
    "seed-coder",
    "minicpm5",
    "laguna",
    "jais-2",
    "gpt-4o",
    "tiny_aya",
    "tekken",
    "kimi-k2",
    "youtu",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "afmoe",
    "falcon",
    "bloom",
    "viking",
    "exaone-moe",
    "superbpe",
    "chameleon",
    "gemma4",
    "whitespace",
];
