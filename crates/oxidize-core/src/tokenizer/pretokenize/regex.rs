//! Maps the regexes of `tokenizer.json` to rules. Each regex belongs to one of a few families,
//! written in several ways, and becomes the hand-written rule of its family. No text is matched
//! here.

use super::names;
use super::runs::DigitGroups;
use super::{Cl100k, O200k, Rule, Tail};

/// Rule equivalent to `pattern`, if it is known.
pub(super) fn rule(pattern: &str) -> Option<Rule> {
    let pattern = canonical(pattern);
    let alternatives = alternatives(&pattern);
    let alternatives: Vec<&str> = alternatives.iter().map(String::as_str).collect();
    single(&pattern)
        .or_else(|| gpt2(&alternatives))
        .or_else(|| cl100k(&alternatives))
        .or_else(|| o200k(&alternatives))
}

/// Removes differences that do not change matches: literal newlines, possessive quantifiers (no
/// alternative of these families backtracks into them), and the ways to write `'s|'t|…`.
fn canonical(pattern: &str) -> String {
    let mut text = without_possessives(&pattern.replace('\r', r"\r").replace('\n', r"\n"));
    for (from, to) in [
        ("(?:\\r\\n|\\r|\\n)", "[\\r\\n]"),
        ("'(?i:[sdmt]|ll|ve|re)", FOLDED),
        ("(?i:'s|'t|'re|'ve|'m|'ll|'d)", FOLDED),
        ("(?i:'s|'t|'re|'ve|'m|'d|'ll)", FOLDED),
        (
            "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])",
            FOLDED,
        ),
        ("(?:'s|'t|'re|'ve|'m|'ll|'d)", EXACT),
        ("'s|'t|'re|'ve|'m|'ll|'d", EXACT),
        ("'(?:[sdmt]|ll|ve|re)", EXACT),
    ] {
        text = text.replace(from, to);
    }
    text
}

/// Removes the `+` after a quantifier, outside brackets.
fn without_possessives(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let (mut class, mut escaped, mut quantified) = (false, false, false);
    for c in pattern.chars() {
        if quantified && c == '+' {
            quantified = false;
            continue;
        }
        match c {
            '[' if !escaped => class = true,
            ']' if !escaped => class = false,
            _ => {}
        }
        // `{1,3}` is a quantifier, the braces of `\p{L}` are not.
        let repeats = || {
            let (_, inside) = out.rsplit_once('{').unwrap_or_default();
            inside.chars().all(|c| c.is_ascii_digit() || c == ',')
        };
        quantified = !class && !escaped && (matches!(c, '?' | '*' | '+') || c == '}' && repeats());
        escaped = c == '\\' && !escaped;
        out.push(c);
    }
    out
}

/// Placeholder for `'s|'t|'re|'ve|'m|'ll|'d` in a canonical pattern.
const EXACT: &str = "«'s»";
/// Placeholder for the case-insensitive form.
const FOLDED: &str = "«'S»";

/// Splits at bars outside brackets and parentheses.
fn alternatives(pattern: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let (mut class, mut group, mut escaped) = (false, 0_usize, false);
    for c in pattern.chars() {
        match c {
            _ if escaped => {}
            '[' => class = true,
            ']' => class = false,
            '(' if !class => group += 1,
            ')' if !class => group = group.saturating_sub(1),
            '|' if !class && group == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        escaped = c == '\\' && !escaped;
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts
}

fn gpt2(alternatives: &[&str]) -> Option<Rule> {
    let known = [
        EXACT,
        r" ?\p{L}+",
        r" ?\p{N}+",
        r" ?[^\s\p{L}\p{N}]+",
        r"\s+(?!\S)",
        r"\s+",
    ];
    (alternatives == known).then_some(Rule::Gpt2)
}

fn cl100k(alternatives: &[&str]) -> Option<Rule> {
    let [FOLDED, letters, numbers, others] = before_spaces(alternatives)? else {
        return None;
    };
    let marks = match *letters {
        r"[^\r\n\p{L}\p{N}]?\p{L}+" => false,
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+" => true,
        _ => return None,
    };
    let (others_have_marks, tail) = tail(others)?;
    (others_have_marks != marks).then_some(Rule::Cl100k(Cl100k {
        digits: digits(numbers)?,
        marks,
        tail,
    }))
}

fn o200k(alternatives: &[&str]) -> Option<Rule> {
    let (han, alternatives) = match alternatives {
        [r"[\p{Han}]+" | r"\p{Han}+", rest @ ..] => (true, rest),
        all => (false, all),
    };
    let [lower, upper, numbers, others] = before_spaces(alternatives)? else {
        return None;
    };
    let suffix = format!("{FOLDED}?");
    let (lower, contractions) = match lower.strip_suffix(suffix.as_str()) {
        Some(lower) => (lower, true),
        None => (*lower, false),
    };
    let upper = match contractions {
        true => upper.strip_suffix(suffix.as_str())?,
        false => upper,
    };
    // Letters of one case and uncased letters; Kimi excludes Han characters.
    let (uncased, without) = match han {
        true => (r"\p{Lm}\p{Lo}\p{M}", r"&&[^\p{Han}]"),
        false => (r"\p{Lm}\p{Lo}\p{M}", ""),
    };
    let lead = r"[^\r\n\p{L}\p{N}]?";
    let upper_class = format!(r"[\p{{Lu}}\p{{Lt}}{uncased}{without}]");
    let lower_class = format!(r"[\p{{Ll}}{uncased}{without}]");
    let known = lower == format!("{lead}{upper_class}*{lower_class}+")
        && upper == format!("{lead}{upper_class}+{lower_class}*");
    let (others_have_marks, tail) = tail(others)?;
    (known && others_have_marks).then_some(Rule::O200k(O200k {
        digits: digits(numbers)?,
        contractions,
        han,
        tail,
    }))
}

/// Parses `\p{N}` with its maximum count.
fn digits(pattern: &str) -> Option<usize> {
    Some(match pattern.strip_prefix(r"\p{N}")? {
        "" | "{1}" | "{1,1}" => 1,
        "{1,2}" => 2,
        "{1,3}" => 3,
        "+" => usize::MAX,
        _ => return None,
    })
}

/// Parses a run of other characters: whether it may contain marks, and what may follow it.
fn tail(pattern: &str) -> Option<(bool, Tail)> {
    let classes = [
        (r" ?[^\s\p{L}\p{N}]+", true),
        (r" ?[^\s\p{L}\p{M}\p{N}]+", false),
        (r" ?[^\s\p{L}\p{N}\r\n]+", true),
    ];
    let (rest, marks) = classes
        .iter()
        .find_map(|(class, marks)| pattern.strip_prefix(class).map(|rest| (rest, *marks)))?;
    let tail = match rest {
        "" => Tail::Nothing,
        r"[\r\n]*" => Tail::Newlines,
        r"[\r\n/]*" => Tail::NewlinesAndSlashes,
        r"[\r\n/]?" => Tail::OneNewlineOrSlash,
        _ => return None,
    };
    Some((marks, tail))
}

/// Alternatives before the whitespace alternatives that end these families. The two forms for
/// newlines are equivalent: `\s*` takes every newline but the last.
fn before_spaces<'a, 't>(alternatives: &'a [&'t str]) -> Option<&'a [&'t str]> {
    match alternatives {
        [
            rest @ ..,
            r"\s*[\r\n]+" | r"\s*[\r\n]",
            r"\s+(?!\S)",
            r"\s+",
        ] => Some(rest),
        _ => None,
    }
}

/// Patterns that are a rule by themselves.
fn single(pattern: &str) -> Option<Rule> {
    Some(match pattern {
        r"\p{N}" | r"\d" => Rule::Numbers { limit: 1 },
        r"\p{N}{1,3}" => Rule::Numbers { limit: 3 },
        r"\p{N}+" => Rule::Numbers { limit: usize::MAX },
        r"[0-9][0-9][0-9]" => Rule::AsciiTriple,
        r"[\r\n]" => Rule::Newline,
        r"\s+$" => Rule::TrailingSpace,
        r"\s?\p{L}+" => Rule::SpacedLetters,
        r"\s?\p{P}+" => Rule::SpacedPunctuation,
        r"[^\n]+|[\n]+" | r"[^\n]+|\n+" => Rule::Lines,
        r"\d{1,3}(?=(?:\d{3})*\b)" => Rule::DigitGroups(DigitGroups::WordBoundary),
        r"(?=(\d{3})+(?!\d))" => Rule::DigitGroups(DigitGroups::Split),
        " ?[^(\\s|[.,!?…。，、।۔،])]+" | " ?[^(\\s|.,!?…。，、।۔،)]+" => {
            Rule::Bloom
        }
        "[一-龥\u{3040}-ゟ゠-ヿ]+" => Rule::Ranges(names::CJK_KANA_ONLY),
        "[一-龥\u{800}-一가-\u{d7ff}]+" => Rule::Ranges(names::DEEPSEEK_CJK_ONLY),
        "\\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+" => {
            Rule::SpacedRanges(names::DEEPSEEK_PUNCTUATION)
        }
        _ if pattern.starts_with(r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿ") => {
            Rule::SpacedRanges(names::DEEPSEEK_LETTERS)
        }
        DEEPSEEK_V3 => Rule::DeepSeekV3,
        _ => return None,
    })
}

/// Regex equivalent to `wanted`, if one is known; it is checked by parsing it back.
pub(super) fn pattern(wanted: Rule) -> Option<String> {
    let digits = |n: usize| match n {
        1 => r"\p{N}",
        2 => r"\p{N}{1,2}",
        3 => r"\p{N}{1,3}",
        _ => r"\p{N}+",
    };
    let tail_of = |tail: Tail| match tail {
        Tail::Nothing => "",
        Tail::Newlines => r"[\r\n]*",
        Tail::NewlinesAndSlashes => r"[\r\n/]*",
        Tail::OneNewlineOrSlash => r"[\r\n/]?",
    };
    let folded = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
    let whitespace = r"\s*[\r\n]+|\s+(?!\S)|\s+";
    let pattern = match wanted {
        Rule::Gpt2 => {
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+".to_owned()
        }
        Rule::Cl100k(rule) => {
            let (letters, others) = match rule.marks {
                false => (r"\p{L}", r"[^\s\p{L}\p{N}]"),
                true => (r"[\p{L}\p{M}]", r"[^\s\p{L}\p{M}\p{N}]"),
            };
            let (numbers, tail) = (digits(rule.digits), tail_of(rule.tail));
            format!(
                r"{folded}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{numbers}| ?{others}+{tail}|{whitespace}"
            )
        }
        Rule::O200k(rule) => {
            let (first, without) = match rule.han {
                true => (r"[\p{Han}]+|", r"&&[^\p{Han}]"),
                false => ("", ""),
            };
            let suffix = match rule.contractions {
                true => format!("{folded}?"),
                false => String::new(),
            };
            let lead = r"[^\r\n\p{L}\p{N}]?";
            let upper_class = format!(r"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]");
            let lower_class = format!(r"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]");
            let (numbers, tail) = (digits(rule.digits), tail_of(rule.tail));
            format!(
                r"{first}{lead}{upper_class}*{lower_class}+{suffix}|{lead}{upper_class}+{lower_class}*{suffix}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+{tail}|{whitespace}"
            )
        }
        Rule::DeepSeekV3 => DEEPSEEK_V3.to_owned(),
        Rule::Numbers { limit } => digits(limit).to_owned(),
        Rule::AsciiTriple => "[0-9][0-9][0-9]".to_owned(),
        Rule::Newline => r"[\r\n]".to_owned(),
        Rule::TrailingSpace => r"\s+$".to_owned(),
        Rule::SpacedLetters => r"\s?\p{L}+".to_owned(),
        Rule::SpacedPunctuation => r"\s?\p{P}+".to_owned(),
        Rule::Lines => r"[^\n]+|[\n]+".to_owned(),
        Rule::DigitGroups(DigitGroups::WordBoundary) => r"\d{1,3}(?=(?:\d{3})*\b)".to_owned(),
        Rule::DigitGroups(DigitGroups::Split) => r"(?=(\d{3})+(?!\d))".to_owned(),
        Rule::Bloom => " ?[^(\\s|[.,!?…。，、।۔،])]+".to_owned(),
        Rule::Ranges(sets) if sets == names::CJK_KANA_ONLY => "[一-龥\u{3040}-ゟ゠-ヿ]+".to_owned(),
        Rule::Ranges(_) => "[一-龥\u{800}-一가-\u{d7ff}]+".to_owned(),
        _ => return None,
    };
    let read = rule(&pattern)?;
    (format!("{read:?}") == format!("{wanted:?}")).then_some(pattern)
}

const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_of_a_family_are_one_rule() {
        for (digits, pattern) in [
            (
                3,
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ),
            (
                1,
                "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
            ),
            (
                3,
                r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]|\s+(?!\S)|\s+",
            ),
        ] {
            match rule(pattern) {
                Some(Rule::Cl100k(rule)) => {
                    assert_eq!(
                        (rule.digits, rule.marks, rule.tail),
                        (digits, false, Tail::Newlines)
                    );
                }
                other => panic!("{other:?} for {pattern}"),
            }
        }
    }

    #[test]
    fn deepseek_rules_are_recognized() {
        let newlines = DEEPSEEK_V3.replace(r"\r", "\r").replace(r"\n", "\n");
        assert!(matches!(rule(&newlines), Some(Rule::DeepSeekV3)));
        assert!(matches!(
            rule("[一-龥\u{3040}-ゟ゠-ヿ]+"),
            Some(Rule::Ranges(_))
        ));
    }

    #[test]
    fn similar_patterns_are_other_rules_or_unknown() {
        let marks = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        assert!(matches!(
            rule(marks),
            Some(Rule::Cl100k(Cl100k { marks: true, .. }))
        ));
        assert!(rule(&marks.replace(r"\p{M}\p{N}", r"\p{N}")).is_none());
        assert!(rule(&marks.replace(r"\s+(?!\S)|", "")).is_none());
        assert!(rule("a+b").is_none());
        assert!(rule("((((((").is_none());
        let tekken = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        assert!(matches!(
            rule(tekken),
            Some(Rule::O200k(O200k {
                digits: 1,
                contractions: false,
                han: false,
                ..
            }))
        ));
    }
}
