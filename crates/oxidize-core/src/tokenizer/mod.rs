//! Text to tokens and back, exactly as the model was trained: [`Tokenizer`].
//!
//! A [`VocabSpec`] is read from GGUF metadata (`gguf`) or from the files beside safetensors
//! (`huggingface`, `sentencepiece`, `tiktoken`). Encoding finds special tokens (`special`), then
//! normalises each stretch of text between them (`normalize`) and hands it to the model (`bpe`,
//! `unigram`, `wordpiece`, `rwkv`). No input makes it fail, recurse or take more than linear time
//! (n log n within a word).

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)
)]

mod base64;
mod bpe;
mod byte_level;
mod directory;
mod error;
mod export;
mod gguf;
mod heal;
mod huggingface;
mod merge;
mod normalize;
mod pretokenize;
mod rwkv;
mod sentencepiece;
mod sidecar;
mod spec;
mod special;
mod stream;
mod tiktoken;
mod trie;
mod unicode;
mod unicode_table;
mod unigram;
mod vocab;
mod wordpiece;

use std::borrow::Cow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::file::{ModelFile, OpenOptions};

pub use error::TokenizerError;
pub use heal::Healed;
pub use normalize::{Charsmap, Normalize};
pub use pretokenize::PreTokenizer;
pub use spec::{
    CharMerges, ModelSpec, SpecialIds, Strip, TokenId, TokenKind, VocabSpec, WordMarker,
};
pub use stream::StreamDecoder;
pub use vocab::StringTable;

use bpe::{Alphabet, Bpe, BpeConfig, ByteTokens, Fallback, MergeOrder};
use error::Result;
use rwkv::Rwkv;
use special::{Fragment, SpecialMatcher};
use unigram::Unigram;
use vocab::Vocab;
use wordpiece::WordPiece;

/// Turns text into tokens and tokens into text. Cheap to clone; shared between threads.
#[derive(Clone, Debug)]
pub struct Tokenizer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    vocab: Vocab,
    model: Model,
    specials: SpecialMatcher,
    normalizers: Vec<Normalize>,
    ids: SpecialIds,
    /// Tokens that end a generation, sorted.
    ends: Vec<TokenId>,
    prefix: Vec<TokenId>,
    suffix: Vec<TokenId>,
    /// What goes between the two texts of a pair.
    between: Vec<TokenId>,
    strip_leading_space: bool,
    /// Buffers of encoders that are not at work: one for each that ever ran at the same time.
    scratch: Mutex<Vec<Scratch>>,
}

#[derive(Debug)]
enum Model {
    Bpe(Bpe),
    Unigram(Unigram),
    WordPiece(WordPiece),
    Rwkv(Rwkv),
}

#[derive(Debug, Default)]
struct Scratch {
    bpe: bpe::Scratch,
    steps: Vec<unigram::Step>,
}

/// How to encode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Whether the tokens that the model expects around a text (BOS, EOS, …) are added.
    pub add_special: bool,
    /// Whether the names of special tokens in the text become those tokens. Not for text that a
    /// stranger wrote.
    pub parse_special: bool,
}

impl Default for EncodeOptions {
    /// Both.
    fn default() -> EncodeOptions {
        EncodeOptions {
            add_special: true,
            parse_special: true,
        }
    }
}

impl EncodeOptions {
    /// Text and nothing else: no tokens around it, no special tokens in it.
    pub const PLAIN: EncodeOptions = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
}

/// The tokens of two texts, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenPair {
    /// All of them.
    pub tokens: Vec<TokenId>,
    /// The first of the second text.
    pub second: usize,
}

/// How to decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Whether control tokens appear in the text, as their names.
    pub render_special: bool,
    /// Whether the tokens continue a text, so that a leading space is part of it.
    pub continuation: bool,
}

impl Tokenizer {
    /// The tokenizer of a model: from GGUF metadata, or from the files beside its weights.
    pub fn from_file(file: &ModelFile) -> crate::Result<Tokenizer> {
        let in_file = |error| crate::Error::Tokenizer {
            path: file.path().to_path_buf(),
            error,
        };
        Tokenizer::new(VocabSpec::of_file(file)?).map_err(in_file)
    }

    /// The tokenizer in a directory, in a tokenizer file (`tokenizer.json`, `tokenizer.model`, a
    /// tiktoken file, `tekken.json`, …) or in a GGUF file: no weights are needed.
    pub fn open(path: impl AsRef<Path>) -> crate::Result<Tokenizer> {
        let path = path.as_ref();
        if path
            .extension()
            .is_some_and(|extension| extension == "gguf")
        {
            return Tokenizer::from_file(&ModelFile::open(path, &OpenOptions::default())?);
        }
        sidecar::spec_at(path)
            .and_then(Tokenizer::new)
            .map_err(|error| crate::Error::Tokenizer {
                path: path.to_path_buf(),
                error,
            })
    }

    /// The tokenizer in the contents of a tokenizer file called `name`: see [`Tokenizer::open`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Tokenizer, TokenizerError> {
        sidecar::spec_in(name, bytes).and_then(Tokenizer::new)
    }

    /// A tokenizer from plain data.
    pub fn new(spec: VocabSpec) -> Result<Tokenizer> {
        let count = spec.tokens.len();
        if count == 0 {
            return Err(TokenizerError::Missing("every token".into()));
        }
        if count > MOST_TOKENS {
            return Err(TokenizerError::Limit {
                what: "the number of tokens",
                limit: MOST_TOKENS as u64,
                asked: count as u64,
            });
        }
        let mut kinds = spec.kinds;
        kinds.resize(count, TokenKind::Normal);
        let pieces = pieces(&spec.model, &spec.tokens, &kinds)?;
        let mut vocab = Vocab::new(spec.tokens, pieces, kinds);

        let in_range = |id: TokenId| (id as usize) < count;
        let mut ids = spec.special;
        ids.retain(in_range);
        let model = model(spec.model, &vocab, &ids)?;
        let ends = special::detect(&mut vocab, &mut ids, spec.correct_kinds);
        let specials = SpecialMatcher::new(&vocab, spec.strip);
        let within = |mut list: Vec<TokenId>| {
            list.retain(|&id| in_range(id));
            list
        };
        let (prefix, suffix) = (within(spec.prefix), within(spec.suffix));
        // RoBERTa and those after it say the end of the first text twice.
        let twice = ids.bos.is_some_and(|bos| vocab.text(bos) == b"<s>");
        let usual = || suffix.repeat(if twice { 2 } else { 1 });
        let between = spec.between.map_or_else(usual, within);
        Ok(Tokenizer(Arc::new(Inner {
            vocab,
            model,
            specials,
            normalizers: spec.normalizers,
            ids,
            ends,
            prefix,
            suffix,
            between,
            strip_leading_space: spec.strip_leading_space,
            scratch: Mutex::default(),
        })))
    }

    /// The tokens of `text`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<TokenId> {
        let inner = &*self.0;
        let mut out = Vec::with_capacity(text.len() / 4 + 8);
        let mut scratch = inner.take_scratch();
        if options.add_special {
            out.extend_from_slice(&inner.prefix);
        }
        let mut first = true;
        inner
            .specials
            .split(text, options.parse_special, |fragment| {
                match fragment {
                    Fragment::Token(id) => out.push(id),
                    Fragment::Text(text) => inner.encode_text(text, first, &mut scratch, &mut out),
                }
                first = false;
            });
        if options.add_special {
            out.extend_from_slice(&inner.suffix);
        }
        inner.put_back(scratch);
        out
    }

    /// The tokens of two texts that a model judges together, such as a question and a document, with
    /// those that it expects around and between them.
    pub fn encode_pair(&self, first: &str, second: &str, parse_special: bool) -> TokenPair {
        let options = EncodeOptions {
            add_special: false,
            parse_special,
        };
        let mut tokens = self.0.prefix.clone();
        tokens.extend(self.encode(first, options));
        tokens.extend_from_slice(&self.0.between);
        let second_at = tokens.len();
        tokens.extend(self.encode(second, options));
        tokens.extend_from_slice(&self.0.suffix);
        TokenPair {
            tokens,
            second: second_at,
        }
    }

    /// The prompt that asks a model trained for it to fill the gap between `before` and `after`. `None`
    /// if the vocabulary has no tokens for this.
    pub fn infill_prompt(&self, before: &str, after: &str) -> Option<Vec<TokenId>> {
        let ids = self.special_ids();
        let (prefix, suffix, middle) = (ids.fim_prefix?, ids.fim_suffix?, ids.fim_middle?);
        let options = EncodeOptions {
            add_special: false,
            parse_special: false,
        };
        let mut tokens: Vec<TokenId> = self.bos().filter(|_| self.adds_bos()).into_iter().collect();
        tokens.push(prefix);
        tokens.extend(self.encode(before, options));
        tokens.push(suffix);
        tokens.extend(self.encode(after, options));
        tokens.push(middle);
        Some(tokens)
    }

    /// The text of `tokens`, without control tokens; bytes that are no text become U+FFFD.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        self.decode_with(tokens, DecodeOptions::default())
    }

    /// The text of `tokens`; bytes that are no text become U+FFFD.
    pub fn decode_with(&self, tokens: &[TokenId], options: DecodeOptions) -> String {
        let mut bytes = Vec::with_capacity(tokens.len() * 4);
        for &id in tokens {
            if options.render_special || !self.is_special(id) {
                bytes.extend_from_slice(self.0.vocab.piece(id));
            }
        }
        let strip = self.0.strip_leading_space && !options.continuation;
        let bytes = bytes.strip_prefix(b" ").filter(|_| strip).unwrap_or(&bytes);
        String::from_utf8_lossy(bytes).into_owned()
    }

    /// Decodes tokens one by one, as a generation gives them.
    pub fn stream(&self) -> StreamDecoder {
        StreamDecoder::new(self.clone())
    }

    /// The bytes that `token` adds to a text; for a special token, its name.
    pub fn piece(&self, token: TokenId) -> Option<&[u8]> {
        self.contains(token).then(|| self.0.vocab.piece(token))
    }

    /// `token` as the vocabulary spells it.
    pub fn token_text(&self, token: TokenId) -> Option<&str> {
        let text = self.contains(token).then(|| self.0.vocab.text(token))?;
        std::str::from_utf8(text).ok()
    }

    /// The token that the vocabulary spells `text`.
    pub fn token_id(&self, text: &str) -> Option<TokenId> {
        self.0.vocab.find(text.as_bytes())
    }

    /// What `token` is for.
    pub fn kind(&self, token: TokenId) -> Option<TokenKind> {
        self.contains(token).then(|| self.0.vocab.kind(token))
    }

    /// How many tokens there are; their numbers are below this.
    pub fn vocab_size(&self) -> usize {
        self.0.vocab.len()
    }

    /// Every token with a job.
    pub fn special_ids(&self) -> &SpecialIds {
        &self.0.ids
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<TokenId> {
        self.0.ids.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<TokenId> {
        self.0.ids.eos
    }

    /// The token that ends a turn.
    pub fn eot(&self) -> Option<TokenId> {
        self.0.ids.eot
    }

    /// The token that fills up a batch.
    pub fn pad(&self) -> Option<TokenId> {
        self.0.ids.pad
    }

    /// The token for what is not in the vocabulary.
    pub fn unk(&self) -> Option<TokenId> {
        self.0.ids.unk
    }

    /// Whether encoding with `add_special` puts BOS first.
    pub fn adds_bos(&self) -> bool {
        self.0.ids.bos.is_some() && self.0.prefix.first() == self.0.ids.bos.as_ref()
    }

    /// Whether encoding with `add_special` puts EOS last.
    pub fn adds_eos(&self) -> bool {
        self.0.ids.eos.is_some() && self.0.suffix.last() == self.0.ids.eos.as_ref()
    }

    /// Whether `token` is no text: a control token, or the unknown one.
    pub fn is_special(&self, token: TokenId) -> bool {
        matches!(
            self.0.vocab.kind(token),
            TokenKind::Control | TokenKind::Unknown
        )
    }

    /// Whether a generation is over with `token`.
    pub fn is_end_of_generation(&self, token: TokenId) -> bool {
        self.0.ends.binary_search(&token).is_ok()
    }

    /// The tokens that end a generation, in order of their number.
    pub fn ends_of_generation(&self) -> &[TokenId] {
        &self.0.ends
    }

    fn contains(&self, token: TokenId) -> bool {
        (token as usize) < self.0.vocab.len()
    }
}

/// Ids are 32 bits wide and two values are taken; no real vocabulary comes near.
const MOST_TOKENS: usize = 1 << 24;

impl Inner {
    fn encode_text(&self, text: &str, first: bool, scratch: &mut Scratch, out: &mut Vec<TokenId>) {
        let mut text = Cow::Borrowed(text);
        for step in &self.normalizers {
            text = step.apply(text, first);
        }
        match &self.model {
            Model::Bpe(model) => model.encode(&self.vocab, &text, &mut scratch.bpe, out),
            Model::Unigram(model) => model.encode(&self.vocab, &text, &mut scratch.steps, out),
            Model::WordPiece(model) => model.encode(&text, out),
            Model::Rwkv(model) => model.encode(&text, out),
        }
    }

    fn take_scratch(&self) -> Scratch {
        self.scratch
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
            .unwrap_or_default()
    }

    fn put_back(&self, scratch: Scratch) {
        self.scratch
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(scratch);
    }
}

fn model(spec: ModelSpec, vocab: &Vocab, ids: &SpecialIds) -> Result<Model> {
    let fallback = |bytes: bool, fuse: bool| Fallback {
        bytes: if bytes { ByteTokens::of(vocab) } else { None },
        unknown: ids.unk,
        fuse,
    };
    Ok(match spec {
        ModelSpec::ByteBpe {
            pre,
            merges,
            ignore_merges,
            unknown,
        } => Model::Bpe(Bpe::new(
            vocab,
            BpeConfig {
                alphabet: Alphabet::Bytes,
                pre: Some(pre),
                order: if merges.is_empty() {
                    MergeOrder::Ids
                } else {
                    MergeOrder::Pairs(merges)
                },
                whole_words: ignore_merges,
                fallback: Fallback {
                    bytes: None,
                    unknown,
                    fuse: false,
                },
            },
        )),
        ModelSpec::CharBpe {
            pre,
            order,
            ignore_merges,
            fuse_unknown,
            byte_fallback,
        } => Model::Bpe(Bpe::new(
            vocab,
            BpeConfig {
                alphabet: Alphabet::Characters,
                pre,
                order: match order {
                    CharMerges::Scores(scores) => MergeOrder::Scores(scores),
                    CharMerges::Pairs(pairs) => MergeOrder::Pairs(pairs),
                },
                whole_words: ignore_merges,
                fallback: fallback(byte_fallback, fuse_unknown),
            },
        )),
        ModelSpec::Unigram {
            pre,
            scores,
            byte_fallback,
        } => {
            let bytes = fallback(byte_fallback, true).bytes;
            Model::Unigram(Unigram::new(vocab, pre, scores, ids.unk, bytes)?)
        }
        ModelSpec::WordPiece {
            marker,
            longest_word,
        } => Model::WordPiece(WordPiece::new(vocab, &marker, ids.unk, longest_word)?),
        ModelSpec::Rwkv => Model::Rwkv(Rwkv::new(vocab, ids.unk)),
    })
}

/// The bytes that each token adds to a text.
fn pieces(model: &ModelSpec, tokens: &StringTable, kinds: &[TokenKind]) -> Result<StringTable> {
    let mut pieces = StringTable::default();
    for (text, kind) in tokens.iter().zip(kinds) {
        match kind {
            TokenKind::Normal | TokenKind::Unused => pieces.push(normal_piece(model, text))?,
            TokenKind::Byte => match byte_token(text) {
                Some(byte) => pieces.push([byte])?,
                None => pieces.push(text)?,
            },
            TokenKind::UserDefined => pieces.push(user_piece(model, text))?,
            TokenKind::Control | TokenKind::Unknown => pieces.push(text)?,
        }
    }
    Ok(pieces)
}

/// A user-defined token is text as it stands, but for the marks of spaces.
fn user_piece<'t>(model: &ModelSpec, text: &'t [u8]) -> Cow<'t, [u8]> {
    match model {
        ModelSpec::CharBpe { .. } | ModelSpec::Unigram { .. } => normal_piece(model, text),
        _ => text.into(),
    }
}

fn normal_piece<'t>(model: &ModelSpec, text: &'t [u8]) -> Cow<'t, [u8]> {
    let Ok(spelled) = std::str::from_utf8(text) else {
        return text.into();
    };
    match model {
        ModelSpec::ByteBpe { .. } => byte_level::decode(spelled).map_or(text.into(), Cow::Owned),
        ModelSpec::CharBpe { .. } | ModelSpec::Unigram { .. } => {
            if spelled.contains('▁') {
                spelled.replace('▁', " ").into_bytes().into()
            } else {
                text.into()
            }
        }
        ModelSpec::WordPiece { marker, .. } => {
            let (rest, begins) = match marker {
                WordMarker::Beginning(mark) => (
                    spelled.strip_prefix(mark.as_str()),
                    spelled.starts_with(mark.as_str()),
                ),
                WordMarker::Continuation(mark) => (
                    spelled.strip_prefix(mark.as_str()),
                    !spelled.starts_with(mark.as_str()),
                ),
            };
            let word = rest.unwrap_or(spelled);
            if begins {
                format!(" {word}").into_bytes().into()
            } else {
                word.as_bytes().into()
            }
        }
        ModelSpec::Rwkv => rwkv::unescape(text).into(),
    }
}

/// The byte of a token such as `<0x0A>`.
fn byte_token(text: &[u8]) -> Option<u8> {
    let digits: &[u8; 2] = text
        .strip_prefix(b"<0x")?
        .strip_suffix(b">")?
        .try_into()
        .ok()?;
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    u8::try_from(high? << 4 | low?).ok()
}

#[cfg(test)]
mod tests;
