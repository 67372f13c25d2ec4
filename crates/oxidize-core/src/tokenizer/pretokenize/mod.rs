//! Pre-tokenization: splits text into the pieces that BPE merges within, by the rules that GGUF
//! files name in `tokenizer.ggml.pre` and those of `tokenizer.json`. Hand-written linear scanners
//! replace a regex engine: `words` has the rules that cover a text, `runs` those that isolate parts
//! of it.

mod names;
mod regex;
mod runs;
mod words;

use super::unicode::{Class, char_at, class_at, skip_at_most, skip_while};
use runs::{DigitGroups, Ranges};
use words::{Cl100k, O200k, Tail};

/// Sequence of split rules; each splits the pieces of the previous one.
#[derive(Clone, Debug, Default)]
pub struct PreTokenizer {
    rules: Vec<Rule>,
}

/// Split rule. Its pieces cover the text, except for [`Rule::WhitespaceSplit`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    Gpt2,
    Cl100k(Cl100k),
    O200k(O200k),
    DeepSeekV3,
    ExaoneMoe,
    Jais2,
    /// `\p{N}{1,limit}`
    Numbers {
        limit: usize,
    },
    DigitGroups(DigitGroups),
    /// `[\r\n]`
    Newline,
    /// `[^\n]+|[\n]+`
    Lines,
    /// `\s+$`
    TrailingSpace,
    /// `[ranges]+`, of the first set that contains the character
    Ranges(&'static [Ranges]),
    /// `\s?[ranges]+`
    SpacedRanges(Ranges),
    /// `\s?\p{L}+`
    SpacedLetters,
    /// `\s?\p{P}+`
    SpacedPunctuation,
    /// `[0-9][0-9][0-9]`
    AsciiTriple,
    Punctuation {
        back_quote: bool,
    },
    /// A single ASCII or Unicode punctuation character
    PunctuationIsolated,
    Bloom,
    Chameleon,
    /// `\S+`; whitespace is removed
    WhitespaceSplit,
    /// Splits at each occurrence of a character
    Character {
        c: char,
        behavior: SplitBehavior,
    },
}

/// Handling of the character that a text is split at, as in the `tokenizers` library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitBehavior {
    /// It ends the previous piece.
    MergedWithPrevious,
    /// It starts the next piece.
    MergedWithNext,
    /// It is a piece of its own.
    Isolated,
    /// It is dropped.
    Removed,
}

impl PreTokenizer {
    /// Returns the pre-tokenizer with a GGUF name (`tokenizer.ggml.pre`).
    pub fn named(name: &str) -> Option<PreTokenizer> {
        names::rules(name).map(|rules| PreTokenizer {
            rules: rules.to_vec(),
        })
    }

    /// GGUF names with these rules, the preferred name first.
    pub fn names(&self) -> Vec<&'static str> {
        // Rules have no equality; their debug output identifies them.
        let debug = format!("{:?}", self.rules);
        let same =
            |name: &&&str| names::rules(name).is_some_and(|rules| format!("{rules:?}") == debug);
        names::NAMES.iter().filter(same).copied().collect()
    }

    /// Regexes equivalent to the rules, one per rule, or `None` if a rule has no known regex.
    pub(super) fn patterns(&self) -> Option<Vec<String>> {
        self.rules
            .iter()
            .map(|&rule| regex::pattern(rule))
            .collect()
    }

    /// Rule equivalent to a regex of `tokenizer.json`, if it is a known one.
    pub(super) fn rule_of_regex(pattern: &str) -> Option<Rule> {
        regex::rule(pattern)
    }

    /// Creates a pre-tokenizer that applies `rules` in order.
    pub(super) fn of(rules: Vec<Rule>) -> PreTokenizer {
        PreTokenizer { rules }
    }

    /// Calls `each` with every piece of `text`, in order.
    #[inline]
    pub fn split<'t>(&self, text: &'t str, mut each: impl FnMut(&'t str)) {
        split_by(&self.rules, text, &mut each);
    }
}

/// Recursion depth is the number of rules.
fn split_by<'t>(rules: &[Rule], text: &'t str, each: &mut impl FnMut(&'t str)) {
    match rules {
        [] => {
            if !text.is_empty() {
                each(text);
            }
        }
        [rule] => rule.split(text, each),
        [rule, rest @ ..] => {
            // A trait object, because generic recursion would instantiate without end.
            let each: &mut dyn FnMut(&'t str) = each;
            let mut deeper = |piece: &'t str| split_dyn(rest, piece, each);
            rule.split(text, &mut deeper);
        }
    }
}

fn split_dyn<'t>(rules: &[Rule], text: &'t str, mut each: &mut dyn FnMut(&'t str)) {
    split_by(rules, text, &mut each);
}

impl Rule {
    /// True if the matches of the rule cover every text.
    pub(super) fn covers_everything(self) -> bool {
        matches!(
            self,
            Rule::Gpt2
                | Rule::Cl100k(_)
                | Rule::O200k(_)
                | Rule::ExaoneMoe
                | Rule::Jais2
                | Rule::Lines
        )
    }

    #[inline]
    fn split<'t>(self, text: &'t str, each: &mut impl FnMut(&'t str)) {
        use Rule::*;
        match self {
            Gpt2 => tile(text, each, words::gpt2),
            Cl100k(rule) => tile(text, each, |text, pos| rule.next(text, pos)),
            O200k(rule) => tile(text, each, |text, pos| rule.next(text, pos)),
            ExaoneMoe => tile(text, each, words::exaone_moe),
            Jais2 => {
                let mut state = words::Jais2::default();
                tile(text, each, |text, pos| state.next(text, pos));
            }
            Lines => tile(text, each, runs::lines),
            Character { c, behavior } => {
                let mut start = 0;
                for (at, found) in text.match_indices(c) {
                    let after = at + found.len();
                    match behavior {
                        SplitBehavior::MergedWithPrevious => emit(text, &mut start, after, each),
                        SplitBehavior::MergedWithNext => emit(text, &mut start, at, each),
                        SplitBehavior::Isolated => {
                            emit(text, &mut start, at, each);
                            emit(text, &mut start, after, each);
                        }
                        SplitBehavior::Removed => {
                            emit(text, &mut start, at, each);
                            start = after;
                        }
                    }
                }
                emit(text, &mut start, text.len(), each);
            }
            DeepSeekV3 => isolate(text, each, words::deepseek_v3),
            Numbers { limit } => isolate(text, each, |text, pos| {
                let end = skip_at_most(text, pos, Class::NUMBER, limit);
                (end > pos).then_some(end)
            }),
            Newline => isolate(text, each, runs::newline),
            Ranges(sets) => isolate(text, each, |text, pos| {
                sets.iter().find_map(|set| runs::ranges(text, pos, set))
            }),
            SpacedRanges(set) => isolate(text, each, |t, pos| runs::spaced_ranges(t, pos, set)),
            SpacedLetters => {
                isolate(text, each, |t, pos| {
                    runs::spaced_class(t, pos, Class::LETTER)
                });
            }
            SpacedPunctuation => {
                isolate(text, each, |t, pos| {
                    runs::spaced_class(t, pos, Class::PUNCTUATION)
                });
            }
            AsciiTriple => isolate(text, each, runs::ascii_triple),
            Punctuation { back_quote } => {
                isolate(text, each, |text, pos| {
                    runs::punctuation(text, pos, back_quote)
                });
            }
            PunctuationIsolated => isolate(text, each, |text, pos| {
                let c = char_at(text, pos)?;
                let found = c.is_ascii_punctuation() || Class::of(c).is(Class::PUNCTUATION);
                found.then_some(pos + c.len_utf8())
            }),
            Bloom => isolate(text, each, runs::bloom),
            Chameleon => isolate(text, each, runs::chameleon),
            DigitGroups(groups) => {
                let mut start = 0;
                groups.boundaries(text, &mut |cut| emit(text, &mut start, cut, each));
                emit(text, &mut start, text.len(), each);
            }
            TrailingSpace => {
                let mut start = 0;
                emit(text, &mut start, text.trim_end().len(), each);
                emit(text, &mut start, text.len(), each);
            }
            WhitespaceSplit => {
                let mut pos = skip_while(text, 0, Class::SPACE);
                while pos < text.len() {
                    let mut start = pos;
                    while let Some(c) = char_at(text, pos).filter(|c| !c.is_whitespace()) {
                        pos += c.len_utf8();
                    }
                    emit(text, &mut start, pos, each);
                    pos = skip_while(text, pos, Class::SPACE);
                }
            }
        }
    }
}

/// Calls `each` with `text[*start..end]` unless it is empty, and sets `start` to `end`.
fn emit<'t>(text: &'t str, start: &mut usize, end: usize, each: &mut impl FnMut(&'t str)) {
    if let Some(piece) = text.get(*start..end).filter(|piece| !piece.is_empty()) {
        each(piece);
    }
    *start = end;
}

/// Splits `text` into pieces that end where `next` returns.
#[inline]
fn tile<'t>(
    text: &'t str,
    each: &mut impl FnMut(&'t str),
    mut next: impl FnMut(&'t str, usize) -> usize,
) {
    let mut pos = 0;
    while pos < text.len() {
        let end = next(text, pos);
        match text.get(pos..end) {
            Some(piece) if end > pos => each(piece),
            // Unreachable, since every rule advances by whole characters; avoids an infinite loop.
            _ => return each(text.get(pos..).unwrap_or_default()),
        }
        pos = end;
    }
}

/// Makes pieces of the matches of `find` and of the text between them.
#[inline]
fn isolate<'t>(
    text: &'t str,
    each: &mut impl FnMut(&'t str),
    find: impl Fn(&'t str, usize) -> Option<usize>,
) {
    let (mut start, mut pos) = (0, 0);
    while pos < text.len() {
        match find(text, pos) {
            Some(end) if end > pos => {
                emit(text, &mut start, pos, each);
                emit(text, &mut start, end, each);
                pos = end;
            }
            _ => pos += class_at(text, pos).1.max(1),
        }
    }
    emit(text, &mut start, text.len(), each);
}

#[cfg(test)]
mod tests;
