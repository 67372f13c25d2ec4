//! Special tokens: matching them in a text, and detecting their role by name where the file does
//! not specify it.

use super::spec::{SpecialIds, Strip};
use super::trie::Trie;
use super::vocab::Vocab;
use super::{TokenId, TokenKind};

/// Matches special tokens in a text: leftmost first, then longest.
#[derive(Debug)]
pub(super) struct SpecialMatcher {
    all: Trie,
    /// User-defined tokens only. They are text, and match even if special tokens are not parsed.
    text: Trie,
    /// Sorted by id.
    strip: Vec<(TokenId, Strip)>,
}

/// Part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fragment<'t> {
    Text(&'t str),
    Token(TokenId),
}

impl SpecialMatcher {
    pub(super) fn new(vocab: &Vocab, mut strip: Vec<(TokenId, Strip)>) -> SpecialMatcher {
        let of = |wanted: &dyn Fn(TokenKind) -> bool| {
            Trie::new(
                vocab
                    .ids()
                    .filter(|&id| wanted(vocab.kind(id)))
                    .map(|id| (vocab.text(id), id)),
            )
        };
        strip.sort_by_key(|(id, _)| *id);
        SpecialMatcher {
            all: of(&|kind| {
                matches!(
                    kind,
                    TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined
                )
            }),
            text: of(&|kind| kind == TokenKind::UserDefined),
            strip,
        }
    }

    /// Calls `each` with the parts of `text` in order. Text parts are never empty.
    pub(super) fn split<'t>(
        &self,
        text: &'t str,
        parse_special: bool,
        mut each: impl FnMut(Fragment<'t>),
    ) {
        let trie = if parse_special { &self.all } else { &self.text };
        let bytes = text.as_bytes();
        let mut start = 0;
        let mut pos = 0;
        while let Some(&byte) = bytes.get(pos) {
            let found = if trie.may_start(byte) {
                trie.longest(bytes.get(pos..).unwrap_or_default())
            } else {
                None
            };
            // A token of a non-UTF-8 vocabulary that ends inside a character does not match.
            let Some((len, id)) = found.filter(|(len, _)| text.is_char_boundary(pos + len)) else {
                pos += 1;
                continue;
            };
            let strip = self.strip(id);
            let before = text.get(start..pos).unwrap_or_default();
            let before = if strip.left {
                before.trim_end()
            } else {
                before
            };
            if !before.is_empty() {
                each(Fragment::Text(before));
            }
            each(Fragment::Token(id));
            pos += len;
            if strip.right {
                let after = text.get(pos..).unwrap_or_default();
                pos += after.len() - after.trim_start().len();
            }
            start = pos;
        }
        if let Some(rest) = text.get(start..).filter(|rest| !rest.is_empty()) {
            each(Fragment::Text(rest));
        }
    }

    fn strip(&self, id: TokenId) -> Strip {
        let found = self.strip.binary_search_by_key(&id, |(id, _)| *id);
        found
            .ok()
            .and_then(|at| self.strip.get(at))
            .map(|(_, strip)| *strip)
            .unwrap_or_default()
    }
}

/// Completes `ids` by well-known token names and returns the tokens that end a generation, sorted.
/// With `correct`, tokens with such a name become control tokens.
pub(super) fn detect(vocab: &mut Vocab, ids: &mut SpecialIds, correct: bool) -> Vec<TokenId> {
    let first = |vocab: &mut Vocab, slot: &mut Option<TokenId>, names: &[&str]| {
        if slot.is_none() {
            *slot = names.iter().find_map(|name| vocab.find(name.as_bytes()));
            if let Some(id) = slot.filter(|_| correct) {
                vocab.set_kind(id, TokenKind::Control);
            }
        }
    };
    first(vocab, &mut ids.eot, END_OF_TURN);
    first(vocab, &mut ids.eom, &["<|eom_id|>"]);
    first(vocab, &mut ids.fim_prefix, FIM_PREFIX);
    first(vocab, &mut ids.fim_suffix, FIM_SUFFIX);
    first(vocab, &mut ids.fim_middle, FIM_MIDDLE);
    first(vocab, &mut ids.fim_pad, FIM_PAD);
    first(vocab, &mut ids.fim_repo, FIM_REPO);
    first(vocab, &mut ids.fim_separator, &["<|file_sep|>"]);

    let mut eog = Vec::new();
    for name in END_OF_GENERATION {
        if let Some(id) = vocab.find(name.as_bytes()) {
            if correct {
                vocab.set_kind(id, TokenKind::Control);
            }
            eog.push(id);
        }
    }
    // An HTML tag in some vocabularies (Gemma), the end of a text in others.
    let closing_s = vocab
        .find(b"</s>")
        .filter(|&id| vocab.kind(id) == TokenKind::Control);
    if vocab.find(b"<|tool_response>").is_none() {
        eog.extend(closing_s);
    }
    eog.extend(
        [ids.fim_pad, ids.fim_repo, ids.fim_separator]
            .into_iter()
            .flatten(),
    );
    eog.extend([ids.eos, ids.eot, ids.eom].into_iter().flatten());

    // In the harmony format (gpt-oss) and Solar's, `<|end|>` ends one of several messages, and the
    // caller parses the markers.
    let has = |name: &str| vocab.find(name.as_bytes()).is_some();
    let harmony = has("<|return|>") && has("<|call|>");
    let solar = has("<|flush|>") && (has("<|call|>") || has("<|calls|>"));
    if let Some(end) = vocab.find(b"<|end|>").filter(|_| harmony || solar) {
        eog.retain(|&id| id != end);
        vocab.set_kind(end, TokenKind::UserDefined);
        if ids.eot == Some(end) {
            ids.eot = None;
        }
    }
    for name in ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"] {
        if let Some(id) = vocab.find(name.as_bytes()) {
            vocab.set_kind(id, TokenKind::UserDefined);
        }
    }
    eog.sort_unstable();
    eog.dedup();
    eog
}

/// In order of preference: specific names before those that also end a document.
const END_OF_TURN: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<end_of_utterance>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
];
const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];
const FIM_PREFIX: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUFFIX: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MIDDLE: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const FIM_PAD: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REPO: &[&str] = &[
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::vocab::StringTable;

    fn vocab(tokens: &[(&str, TokenKind)]) -> Vocab {
        let table: StringTable = tokens.iter().map(|(text, _)| text).collect();
        Vocab::new(
            table.clone(),
            table,
            tokens.iter().map(|(_, kind)| *kind).collect(),
        )
    }

    fn split<'t>(matcher: &SpecialMatcher, text: &'t str, parse: bool) -> Vec<Fragment<'t>> {
        let mut parts = Vec::new();
        matcher.split(text, parse, |part| parts.push(part));
        parts
    }

    #[test]
    fn longest_token_at_the_leftmost_position_wins() {
        use Fragment::*;
        use TokenKind::*;
        let vocab = vocab(&[
            ("<a>", Control),
            ("<a><b>", Control),
            ("\n", UserDefined),
            ("\n\n", UserDefined),
            ("x", Normal),
        ]);
        let matcher = SpecialMatcher::new(&vocab, Vec::new());
        assert_eq!(
            split(&matcher, "x<a><a><b>\n\n\ny", true),
            [Text("x"), Token(0), Token(1), Token(3), Token(2), Text("y")]
        );
        assert_eq!(split(&matcher, "x<a>\n", false), [Text("x<a>"), Token(2)]);
        assert_eq!(split(&matcher, "", true), []);
    }

    #[test]
    fn stripping_tokens_consume_spaces() {
        use Fragment::*;
        let vocab = vocab(&[("<m>", TokenKind::Control), ("<n>", TokenKind::Control)]);
        let strip = vec![
            (
                1,
                Strip {
                    left: false,
                    right: true,
                },
            ),
            (
                0,
                Strip {
                    left: true,
                    right: false,
                },
            ),
        ];
        let matcher = SpecialMatcher::new(&vocab, strip);
        assert_eq!(
            split(&matcher, "a <m> b <n>  c", true),
            [Text("a"), Token(0), Text(" b "), Token(1), Text("c")]
        );
        assert_eq!(split(&matcher, "  <m><n>  ", true), [Token(0), Token(1)]);
    }

    #[test]
    fn end_of_generation_tokens_are_detected_by_name() {
        use TokenKind::*;
        let mut plain = vocab(&[
            ("a", Normal),
            ("<|im_end|>", Normal),
            ("<|endoftext|>", Control),
        ]);
        let mut ids = SpecialIds {
            eos: Some(2),
            ..SpecialIds::default()
        };
        assert_eq!(detect(&mut plain, &mut ids, true), [1, 2]);
        assert_eq!(ids.eot, Some(1));
        assert_eq!(plain.kind(1), Control);

        let mut harmony = vocab(&[
            ("<|end|>", Control),
            ("<|return|>", Control),
            ("<|call|>", Control),
            ("<|channel|>", Control),
        ]);
        assert_eq!(
            detect(&mut harmony, &mut SpecialIds::default(), true),
            [1, 2]
        );
        assert_eq!(harmony.kind(0), UserDefined);
        assert_eq!(harmony.kind(3), UserDefined);

        let mut gemma = vocab(&[("</s>", Normal), ("<eos>", Control)]);
        assert_eq!(detect(&mut gemma, &mut SpecialIds::default(), true), [1]);
    }
}
