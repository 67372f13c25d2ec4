//! Cuts text into the pieces that byte-level BPE merges within: the rules that GGUF files name in
//! `tokenizer.ggml.pre`, and those of `tokenizer.json`. Hand-written linear scanners, no regex
//! engine: `words` holds the rules that tile a text, `runs` those that isolate parts of it.

mod names;
mod regex;
mod runs;
mod words;

use super::unicode::{Class, char_at, class_at, skip_at_most, skip_while};
use runs::{Ranges, Threes};
use words::{Cl100k, O200k, Tail};

/// A sequence of rules; each cuts the pieces of the one before.
#[derive(Clone, Debug, Default)]
pub struct PreTokenizer {
    rules: Vec<Rule>,
}

/// One way to cut a text. The pieces cover the text, except for [`Rule::Words`].
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
    Threes(Threes),
    /// `[\r\n]`
    Newline,
    /// `[^\n]+|[\n]+`
    Lines,
    /// `\s+$`
    TrailingSpace,
    /// `[ranges]+`, of the first set that has the character
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
    /// One character that is punctuation, in ASCII's sense or Unicode's
    PunctuationAlone,
    Bloom,
    Chameleon,
    /// `\S+`; white space is dropped
    Words,
    /// Cuts before each of this character, or after it
    Character {
        c: char,
        place: Place,
    },
}

/// What becomes of the character that a text is cut at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It ends the piece before it.
    Before,
    /// It begins the piece after it.
    After,
    /// It is a piece.
    Alone,
    /// It goes.
    Dropped,
}

impl PreTokenizer {
    /// The pre-tokenizer that a GGUF file calls `name`.
    pub fn named(name: &str) -> Option<PreTokenizer> {
        names::rules(name).map(|rules| PreTokenizer {
            rules: rules.to_vec(),
        })
    }

    /// The names that GGUF files have for these rules, the usual first.
    pub fn names(&self) -> Vec<&'static str> {
        // Rules are small values: what they print is what they are.
        let ours = format!("{:?}", self.rules);
        let same =
            |name: &&&str| names::rules(name).is_some_and(|rules| format!("{rules:?}") == ours);
        names::NAMES.iter().filter(same).copied().collect()
    }

    /// Regexes that cut as these rules do, one for each, if all have one.
    pub(super) fn patterns(&self) -> Option<Vec<String>> {
        self.rules
            .iter()
            .map(|&rule| regex::pattern(rule))
            .collect()
    }

    /// The rule that cuts as a regex of `tokenizer.json` does, if it is known.
    pub(super) fn rule_of_regex(pattern: &str) -> Option<Rule> {
        regex::rule(pattern)
    }

    /// The pieces are those of `rules`, one after another.
    pub(super) fn of(rules: Vec<Rule>) -> PreTokenizer {
        PreTokenizer { rules }
    }

    /// Calls `each` with every piece of `text`, in order.
    #[inline]
    pub fn split<'t>(&self, text: &'t str, mut each: impl FnMut(&'t str)) {
        split_by(&self.rules, text, &mut each);
    }
}

/// The depth of this recursion is the number of rules.
fn split_by<'t>(rules: &[Rule], text: &'t str, each: &mut impl FnMut(&'t str)) {
    match rules {
        [] => {
            if !text.is_empty() {
                each(text);
            }
        }
        [rule] => rule.split(text, each),
        [rule, rest @ ..] => {
            // A trait object, or each level would instantiate the next without end.
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
    /// Whether no text lies between matches.
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
            Character { c, place } => {
                let mut start = 0;
                for (at, found) in text.match_indices(c) {
                    let after = at + found.len();
                    match place {
                        Place::Before => emit(text, &mut start, after, each),
                        Place::After => emit(text, &mut start, at, each),
                        Place::Alone => {
                            emit(text, &mut start, at, each);
                            emit(text, &mut start, after, each);
                        }
                        Place::Dropped => {
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
            PunctuationAlone => isolate(text, each, |text, pos| {
                let c = char_at(text, pos)?;
                let found = c.is_ascii_punctuation() || Class::of(c).is(Class::PUNCTUATION);
                found.then_some(pos + c.len_utf8())
            }),
            Bloom => isolate(text, each, runs::bloom),
            Chameleon => isolate(text, each, runs::chameleon),
            Threes(threes) => {
                let mut start = 0;
                threes.cuts(text, &mut |cut| emit(text, &mut start, cut, each));
                emit(text, &mut start, text.len(), each);
            }
            TrailingSpace => {
                let mut start = 0;
                emit(text, &mut start, text.trim_end().len(), each);
                emit(text, &mut start, text.len(), each);
            }
            Words => {
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

/// Calls `each` with `text[*start..end]` unless it is empty, and moves on to `end`.
fn emit<'t>(text: &'t str, start: &mut usize, end: usize, each: &mut impl FnMut(&'t str)) {
    if let Some(piece) = text.get(*start..end).filter(|piece| !piece.is_empty()) {
        each(piece);
    }
    *start = end;
}

/// Every piece ends where `next` says.
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
            // Unreachable while every rule moves on by whole characters; never loop on a mistake.
            _ => return each(text.get(pos..).unwrap_or_default()),
        }
        pos = end;
    }
}

/// Matches are pieces, and so is the text between them.
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
