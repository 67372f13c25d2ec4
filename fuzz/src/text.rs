//! Checks of the fuzz targets for text. The test `fuzz_corpus` of oxidize-core runs the same functions on the
//! stored corpus.

use arbitrary::{Arbitrary, Unstructured};
use oxidize_core::tokenizer::{
    CharMerges, EncodeOptions, ModelSpec, PreTokenizer, StringTable, TokenKind, Tokenizer,
    VocabSpec, WordMarker,
};

/// Reads any bytes as each kind of tokenizer file, and uses a valid tokenizer.
pub fn vocabulary(data: &[u8]) {
    for name in [
        "tokenizer.json",
        "tokenizer.model",
        "tekken.json",
        "vocab.txt",
        "rwkv.txt",
    ] {
        if let Ok(tokenizer) = Tokenizer::from_bytes(name, data.to_vec()) {
            exercise(&tokenizer, "Hello, wörld! 漢字 🚀  12\n");
        }
    }
}

/// Encodes a text with a small vocabulary of any kind.
pub fn tokenizer(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Ok(case) = Case::arbitrary(&mut input) else {
        return;
    };
    if let Ok(tokenizer) = Tokenizer::new(case.spec()) {
        exercise(&tokenizer, case.text);
    }
}

#[derive(Arbitrary, Debug)]
struct Case<'a> {
    model: u8,
    rule: u8,
    tokens: Vec<(&'a str, u8, f32)>,
    merges: Vec<(&'a str, &'a str)>,
    text: &'a str,
}

impl Case<'_> {
    fn spec(&self) -> VocabSpec {
        let tokens: StringTable = self.tokens.iter().map(|token| token.0).collect();
        let merges = || {
            self.merges
                .iter()
                .flat_map(|(left, right)| [left, right])
                .collect()
        };
        let scores = || self.tokens.iter().map(|token| token.2).collect();
        let rules = [
            "gpt-2",
            "llama-bpe",
            "gpt-4o",
            "deepseek-v3",
            "jais-2",
            "superbpe",
            "gemma4",
        ];
        let name = rules[usize::from(self.rule) % rules.len()];
        let pre = PreTokenizer::named(name).expect("a known name");
        let model = match self.model % 6 {
            0 => ModelSpec::ByteBpe {
                pre,
                merges: merges(),
                ignore_merges: self.rule > 127,
                unknown: Some(0),
            },
            1 | 2 => ModelSpec::CharBpe {
                pre: Some(pre).filter(|_| self.rule > 127),
                order: match self.model % 2 {
                    1 => CharMerges::Scores(scores()),
                    _ => CharMerges::Pairs(merges()),
                },
                ignore_merges: false,
                fuse_unknown: true,
                byte_fallback: true,
            },
            3 => ModelSpec::Unigram {
                pre: None,
                scores: scores(),
                byte_fallback: self.rule > 127,
            },
            4 => ModelSpec::WordPiece {
                marker: WordMarker::Continuation("##".into()),
                max_word_chars: 100,
            },
            _ => ModelSpec::Rwkv,
        };
        let mut spec = VocabSpec::new(model, tokens);
        spec.correct_kinds = self.rule.is_multiple_of(2);
        spec.special.unk = Some(0);
        spec.kinds = self
            .tokens
            .iter()
            .map(|token| match token.1 % 6 {
                0 => TokenKind::Normal,
                1 => TokenKind::Unknown,
                2 => TokenKind::Control,
                3 => TokenKind::UserDefined,
                4 => TokenKind::Unused,
                _ => TokenKind::Byte,
            })
            .collect();
        spec
    }
}

/// Encodes, decodes and streams a text; all tokens must be in the vocabulary.
fn exercise(tokenizer: &Tokenizer, text: &str) {
    for options in [EncodeOptions::PLAIN, EncodeOptions::default()] {
        let tokens = tokenizer.encode(text, options);
        assert_eq!(tokens, tokenizer.encode(text, options));
        assert!(
            tokens
                .iter()
                .all(|&token| (token as usize) < tokenizer.vocab_size())
        );
        let mut stream = tokenizer.stream();
        let mut streamed = String::new();
        for &token in &tokens {
            streamed.push_str(stream.push(token));
        }
        streamed.push_str(stream.finish());
        let decoded = tokenizer.decode(&tokens);
        assert!(streamed == decoded || streamed.strip_prefix(' ') == Some(&decoded));
        let healed = tokenizer.heal(&tokens);
        assert!(healed.kept <= tokens.len());
    }
}
