//! Tokenizers: [`Tokenizer`] turns text into tokens and back exactly as in training.
//!
//! A [`VocabSpec`] is read from GGUF metadata (`gguf`) or from the files beside safetensors
//! (`huggingface`, `sentencepiece`, `tiktoken`). Encoding splits the text at special tokens
//! (`special`), normalizes each part between them (`normalize`) and tokenizes it with the model
//! (`bpe`, `unigram`, `wordpiece`, `rwkv`). Encoding never fails or recurses, and takes linear time
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

/// Converts text to tokens and tokens to text.
///
/// Clones are cheap and share the vocabulary; one tokenizer serves any number of threads.
///
/// ```no_run
/// use oxidize::Tokenizer;
/// use oxidize::tokenizer::EncodeOptions;
///
/// let tokenizer = Tokenizer::open("model.gguf")?;
/// let tokens = tokenizer.encode("Hello, world", EncodeOptions::default());
/// assert_eq!(tokenizer.decode(&tokens), "Hello, world");
/// # Ok::<(), oxidize::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tokenizer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    vocab: Vocab,
    model: Model,
    specials: SpecialMatcher,
    normalizers: Vec<Normalize>,
    ids: SpecialIds,
    /// End-of-generation tokens, sorted.
    eog: Vec<TokenId>,
    prefix: Vec<TokenId>,
    suffix: Vec<TokenId>,
    /// Tokens between the two texts of a pair.
    pair_separator: Vec<TokenId>,
    strip_leading_space: bool,
    /// Idle buffers, one per encoder that ever ran concurrently.
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

/// Options of [`Tokenizer::encode`].
///
/// The default adds special tokens and parses them; use it for trusted text such as a rendered chat
/// template, and [`EncodeOptions::PLAIN`] for user input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct EncodeOptions {
    /// Adds the special tokens around the text (BOS, EOS, …) that the model expects.
    pub add_special: bool,
    /// Turns names of special tokens in the text, such as `<|im_end|>`, into those tokens. Leave it
    /// off for untrusted text.
    pub parse_special: bool,
}

impl Default for EncodeOptions {
    /// Adds and parses special tokens.
    fn default() -> EncodeOptions {
        EncodeOptions {
            add_special: true,
            parse_special: true,
        }
    }
}

impl EncodeOptions {
    /// Text only: no special tokens added, none parsed.
    pub const PLAIN: EncodeOptions = EncodeOptions {
        add_special: false,
        parse_special: false,
    };

    /// Adds the special tokens around the text, or leaves them out.
    pub fn add_special(self, add_special: bool) -> EncodeOptions {
        EncodeOptions {
            add_special,
            ..self
        }
    }

    /// Parses special tokens in the text, or treats them as plain text.
    pub fn parse_special(self, parse_special: bool) -> EncodeOptions {
        EncodeOptions {
            parse_special,
            ..self
        }
    }
}

/// Tokens of two concatenated texts; see [`Tokenizer::encode_pair`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct TokenPair {
    /// Tokens of both texts, with special tokens.
    pub tokens: Vec<TokenId>,
    /// Index of the first token of the second text.
    pub second: usize,
}

/// Options of [`Tokenizer::decode_with`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct DecodeOptions {
    /// Includes control tokens in the text, by name.
    pub render_special: bool,
    /// Treats the tokens as the continuation of a text and so keeps a leading space.
    pub continuation: bool,
}

impl DecodeOptions {
    /// Includes control tokens in the text, or leaves them out.
    pub fn render_special(self, render_special: bool) -> DecodeOptions {
        DecodeOptions {
            render_special,
            ..self
        }
    }

    /// Treats the tokens as the continuation of a text.
    pub fn continuation(self, continuation: bool) -> DecodeOptions {
        DecodeOptions {
            continuation,
            ..self
        }
    }
}

impl Tokenizer {
    /// Creates the tokenizer of a model file, from GGUF metadata or from the files beside the
    /// weights.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn from_file(file: &ModelFile) -> crate::Result<Tokenizer> {
        let in_file = |error| crate::Error::Tokenizer {
            path: file.path().to_path_buf(),
            error,
        };
        Tokenizer::new(VocabSpec::of_file(file)?).map_err(in_file)
    }

    /// Opens a tokenizer without loading weights. `path` is a model directory, a tokenizer file
    /// (`tokenizer.json`, `tokenizer.model`, a tiktoken file, `tekken.json`, …) or a GGUF file.
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

    /// Creates a tokenizer from the contents of a tokenizer file. The file name selects the format,
    /// as in [`Tokenizer::open`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Tokenizer, TokenizerError> {
        sidecar::spec_in(name, bytes).and_then(Tokenizer::new)
    }

    /// Creates a tokenizer from a vocabulary.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn new(spec: VocabSpec) -> Result<Tokenizer> {
        let count = spec.tokens.len();
        if count == 0 {
            return Err(TokenizerError::Missing("every token".into()));
        }
        if count > MAX_TOKENS {
            return Err(TokenizerError::Limit {
                what: "the number of tokens",
                limit: MAX_TOKENS as u64,
                requested: count as u64,
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
        let eog = special::detect(&mut vocab, &mut ids, spec.correct_kinds);
        let specials = SpecialMatcher::new(&vocab, spec.strip);
        let within = |mut list: Vec<TokenId>| {
            list.retain(|&id| in_range(id));
            list
        };
        let (prefix, suffix) = (within(spec.prefix), within(spec.suffix));
        // RoBERTa-style models separate a pair with two end tokens.
        let doubled = ids.bos.is_some_and(|bos| vocab.text(bos) == b"<s>");
        let default_separator = || suffix.repeat(if doubled { 2 } else { 1 });
        let pair_separator = spec.pair_separator.map_or_else(default_separator, within);
        Ok(Tokenizer(Arc::new(Inner {
            vocab,
            model,
            specials,
            normalizers: spec.normalizers,
            ids,
            eog,
            prefix,
            suffix,
            pair_separator,
            strip_leading_space: spec.strip_leading_space,
            scratch: Mutex::default(),
        })))
    }

    /// Encodes `text`.
    ///
    /// ```no_run
    /// use oxidize::Tokenizer;
    /// use oxidize::tokenizer::EncodeOptions;
    ///
    /// let tokenizer = Tokenizer::open("model.gguf")?;
    /// let tokens = tokenizer.encode("user input <|im_end|>", EncodeOptions::PLAIN);
    /// assert!(tokens.iter().all(|&token| !tokenizer.is_special(token)));
    /// # Ok::<(), oxidize::Error>(())
    /// ```
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

    /// Encodes two texts for a model that compares them, such as a question and a document, with
    /// the special tokens around and between them.
    pub fn encode_pair(&self, first: &str, second: &str, parse_special: bool) -> TokenPair {
        let options = EncodeOptions {
            add_special: false,
            parse_special,
        };
        let mut tokens = self.0.prefix.clone();
        tokens.extend(self.encode(first, options));
        tokens.extend_from_slice(&self.0.pair_separator);
        let second_at = tokens.len();
        tokens.extend(self.encode(second, options));
        tokens.extend_from_slice(&self.0.suffix);
        TokenPair {
            tokens,
            second: second_at,
        }
    }

    /// Builds a fill-in-the-middle prompt for the gap between `before` and `after`. Returns `None`
    /// if the vocabulary has no infill tokens.
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

    /// Decodes `tokens` without control tokens. Invalid UTF-8 becomes U+FFFD.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        self.decode_with(tokens, DecodeOptions::default())
    }

    /// Decodes `tokens` with options. Invalid UTF-8 becomes U+FFFD.
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

    /// Returns a decoder for tokens that arrive one at a time.
    ///
    /// ```no_run
    /// # let tokenizer = oxidize::Tokenizer::open("model.gguf")?;
    /// # let tokens: [u32; 0] = [];
    /// let mut stream = tokenizer.stream();
    /// for token in tokens {
    ///     print!("{}", stream.push(token));
    /// }
    /// print!("{}", stream.finish());
    /// # Ok::<(), oxidize::Error>(())
    /// ```
    pub fn stream(&self) -> StreamDecoder {
        StreamDecoder::new(self.clone())
    }

    /// Bytes that `token` adds to a text; the name of a special token.
    pub fn piece(&self, token: TokenId) -> Option<&[u8]> {
        self.contains(token).then(|| self.0.vocab.piece(token))
    }

    /// Text of `token` as stored in the vocabulary (`Ġhello`, `▁hello`, `<0x0A>`).
    pub fn token_text(&self, token: TokenId) -> Option<&str> {
        let text = self.contains(token).then(|| self.0.vocab.text(token))?;
        std::str::from_utf8(text).ok()
    }

    /// Id of the token stored in the vocabulary as `text`.
    pub fn token_id(&self, text: &str) -> Option<TokenId> {
        self.0.vocab.find(text.as_bytes())
    }

    /// Kind of `token`.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn kind(&self, token: TokenId) -> Option<TokenKind> {
        self.contains(token).then(|| self.0.vocab.kind(token))
    }

    /// Number of tokens. Ids are below this.
    pub fn vocab_size(&self) -> usize {
        self.0.vocab.len()
    }

    /// Special tokens by role.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn special_ids(&self) -> &SpecialIds {
        &self.0.ids
    }

    /// Beginning-of-sequence token.
    pub fn bos(&self) -> Option<TokenId> {
        self.0.ids.bos
    }

    /// End-of-sequence token.
    pub fn eos(&self) -> Option<TokenId> {
        self.0.ids.eos
    }

    /// End-of-turn token.
    pub fn eot(&self) -> Option<TokenId> {
        self.0.ids.eot
    }

    /// Padding token.
    pub fn pad(&self) -> Option<TokenId> {
        self.0.ids.pad
    }

    /// Unknown token.
    pub fn unk(&self) -> Option<TokenId> {
        self.0.ids.unk
    }

    /// True if encoding with `add_special` starts with BOS.
    pub fn adds_bos(&self) -> bool {
        self.0.ids.bos.is_some() && self.0.prefix.first() == self.0.ids.bos.as_ref()
    }

    /// True if encoding with `add_special` ends with EOS.
    pub fn adds_eos(&self) -> bool {
        self.0.ids.eos.is_some() && self.0.suffix.last() == self.0.ids.eos.as_ref()
    }

    /// True if `token` is not text: a control token or the unknown token.
    pub fn is_special(&self, token: TokenId) -> bool {
        matches!(
            self.0.vocab.kind(token),
            TokenKind::Control | TokenKind::Unknown
        )
    }

    /// True if `token` ends a generation.
    pub fn is_end_of_generation(&self, token: TokenId) -> bool {
        self.0.eog.binary_search(&token).is_ok()
    }

    /// Tokens that end a generation, sorted by id.
    pub fn end_of_generation_tokens(&self) -> &[TokenId] {
        &self.0.eog
    }

    fn contains(&self, token: TokenId) -> bool {
        (token as usize) < self.0.vocab.len()
    }
}

/// Limit on the vocabulary size, far above any real one. Two 32-bit ids are reserved as sentinels.
const MAX_TOKENS: usize = 1 << 24;

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
                ignore_merges,
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
                ignore_merges,
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
            max_word_chars,
        } => Model::WordPiece(WordPiece::new(vocab, &marker, ids.unk, max_word_chars)?),
        ModelSpec::Rwkv => Model::Rwkv(Rwkv::new(vocab, ids.unk)),
    })
}

/// Computes the bytes that each token adds to a text.
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

/// Text of a user-defined token: literal except for `▁`, which stands for a space.
fn user_piece<'t>(model: &ModelSpec, text: &'t [u8]) -> Cow<'t, [u8]> {
    match model {
        ModelSpec::CharBpe { .. } | ModelSpec::Unigram { .. } => normal_piece(model, text),
        _ => text.into(),
    }
}

fn normal_piece<'t>(model: &ModelSpec, text: &'t [u8]) -> Cow<'t, [u8]> {
    let Ok(text_str) = std::str::from_utf8(text) else {
        return text.into();
    };
    match model {
        ModelSpec::ByteBpe { .. } => byte_level::decode(text_str).map_or(text.into(), Cow::Owned),
        ModelSpec::CharBpe { .. } | ModelSpec::Unigram { .. } => {
            if text_str.contains('▁') {
                text_str.replace('▁', " ").into_bytes().into()
            } else {
                text.into()
            }
        }
        ModelSpec::WordPiece { marker, .. } => {
            let (rest, begins) = match marker {
                WordMarker::Beginning(mark) => (
                    text_str.strip_prefix(mark.as_str()),
                    text_str.starts_with(mark.as_str()),
                ),
                WordMarker::Continuation(mark) => (
                    text_str.strip_prefix(mark.as_str()),
                    !text_str.starts_with(mark.as_str()),
                ),
            };
            let word = rest.unwrap_or(text_str);
            if begins {
                format!(" {word}").into_bytes().into()
            } else {
                word.as_bytes().into()
            }
        }
        ModelSpec::Rwkv => rwkv::unescape(text).into(),
    }
}

/// Byte of a token such as `<0x0A>`.
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
