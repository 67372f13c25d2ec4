//! A vocabulary as plain data, wherever it was read from. `gguf`, `huggingface`, `sentencepiece`
//! and `tiktoken` fill it in; [`Tokenizer::new`](super::Tokenizer::new) turns it into a tokenizer.

use super::normalize::Normalize;
use super::pretokenize::PreTokenizer;
use super::vocab::StringTable;

/// The number of a token.
pub type TokenId = u32;

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A piece of text.
    Normal,
    /// Stands for what the vocabulary lacks.
    Unknown,
    /// Marks structure (begin, end, turns); no part of the text.
    Control,
    /// Text that is always one token.
    UserDefined,
    /// Never produced.
    Unused,
    /// One byte, spelled `<0x0A>`.
    Byte,
}

/// All that a tokenizer is made from.
#[derive(Clone, Debug)]
pub struct VocabSpec {
    /// How text becomes tokens.
    pub model: ModelSpec,
    /// The tokens as the vocabulary spells them; the number of a token is its place here.
    pub tokens: StringTable,
    /// What each token is for; all are normal where the list ends early.
    pub kinds: Vec<TokenKind>,
    /// Whether a token with the name of a control token is one, whatever `kinds` say. Many GGUF
    /// files were made without saying so.
    pub correct_kinds: bool,
    /// Tokens with a job.
    pub special: SpecialIds,
    /// How special tokens that stand in a text treat the spaces around them.
    pub strip: Vec<(TokenId, Strip)>,
    /// What is done to each stretch of text before it is cut into tokens.
    pub normalizers: Vec<Normalize>,
    /// Whether decoding drops the one space that encoding put before the text.
    pub strip_leading_space: bool,
    /// Tokens that go before a text.
    pub prefix: Vec<TokenId>,
    /// Tokens that go after a text.
    pub suffix: Vec<TokenId>,
    /// Tokens between the two texts of a pair, where the file says which.
    pub between: Option<Vec<TokenId>>,
}

/// How text becomes tokens.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ModelSpec {
    /// Byte-pair encoding over bytes, spelled as GPT-2 does, within the pieces of `pre`.
    ByteBpe {
        /// What cuts the text.
        pre: PreTokenizer,
        /// Pairs that merge, best first: two strings each. Without any, the lower id merges
        /// first, as tiktoken does it.
        merges: StringTable,
        /// Whether a piece that is a token is taken as it is.
        ignore_merges: bool,
        /// What stands for a byte that is no token; without it the byte is dropped.
        unknown: Option<TokenId>,
    },
    /// Byte-pair encoding over characters, with `<0x0A>` tokens for the rest.
    CharBpe {
        /// What cuts the text, if anything.
        pre: Option<PreTokenizer>,
        /// What merges first.
        order: CharMerges,
        /// Whether a piece that is a token is taken as it is.
        ignore_merges: bool,
        /// Whether neighbouring unknowns become one.
        fuse_unknown: bool,
        /// Whether bytes stand in for characters that are no token.
        byte_fallback: bool,
    },
    /// The most likely cut, by the score of each token.
    Unigram {
        /// What cuts the text, if anything.
        pre: Option<PreTokenizer>,
        /// The logarithm of each token's probability.
        scores: Vec<f32>,
        /// Whether bytes stand in for characters that are no token.
        byte_fallback: bool,
    },
    /// BERT's: the longest token first.
    WordPiece {
        /// What marks a token: the beginning of a word, or its continuation.
        marker: WordMarker,
        /// Words with more characters are unknown.
        longest_word: usize,
    },
    /// RWKV's: the longest token first, over bytes; tokens are spelled with escapes.
    Rwkv,
}

/// What decides which neighbours merge first in a [`ModelSpec::CharBpe`].
#[derive(Clone, Debug)]
pub enum CharMerges {
    /// The higher the score of the resulting token, the earlier (SentencePiece).
    Scores(Vec<f32>),
    /// A list of pairs, best first: two strings each.
    Pairs(StringTable),
}

/// How a WordPiece vocabulary tells beginnings of words from the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WordMarker {
    /// This string stands before a token that begins a word (`▁` in GGUF files).
    Beginning(String),
    /// This string stands before a token that continues one (`##`).
    Continuation(String),
}

/// Whether a special token swallows the spaces beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strip {
    /// Spaces before it.
    pub left: bool,
    /// Spaces after it.
    pub right: bool,
}

/// The tokens with a job, as far as the vocabulary has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Begins a text.
    pub bos: Option<TokenId>,
    /// Ends a text.
    pub eos: Option<TokenId>,
    /// Ends a turn.
    pub eot: Option<TokenId>,
    /// Ends a message that expects an answer of a tool.
    pub eom: Option<TokenId>,
    /// Stands for what is not in the vocabulary.
    pub unk: Option<TokenId>,
    /// Separates two texts.
    pub sep: Option<TokenId>,
    /// Fills up a batch.
    pub pad: Option<TokenId>,
    /// Stands for a hidden word.
    pub mask: Option<TokenId>,
    /// Infilling: what goes before the gap.
    pub fim_prefix: Option<TokenId>,
    /// Infilling: what goes after the gap.
    pub fim_suffix: Option<TokenId>,
    /// Infilling: where the gap is filled.
    pub fim_middle: Option<TokenId>,
    /// Infilling: padding.
    pub fim_pad: Option<TokenId>,
    /// Infilling: names a repository.
    pub fim_repo: Option<TokenId>,
    /// Infilling: separates files.
    pub fim_separator: Option<TokenId>,
}

impl VocabSpec {
    /// A vocabulary of normal tokens, with nothing done before or after.
    pub fn new(model: ModelSpec, tokens: StringTable) -> VocabSpec {
        VocabSpec {
            model,
            tokens,
            kinds: Vec::new(),
            correct_kinds: false,
            special: SpecialIds::default(),
            strip: Vec::new(),
            normalizers: Vec::new(),
            strip_leading_space: false,
            prefix: Vec::new(),
            suffix: Vec::new(),
            between: None,
        }
    }
}

impl SpecialIds {
    /// Drops every id that `keep` is false for.
    pub(super) fn retain(&mut self, keep: impl Fn(TokenId) -> bool) {
        for slot in [
            &mut self.bos,
            &mut self.eos,
            &mut self.eot,
            &mut self.eom,
            &mut self.unk,
            &mut self.sep,
            &mut self.pad,
            &mut self.mask,
            &mut self.fim_prefix,
            &mut self.fim_suffix,
            &mut self.fim_middle,
            &mut self.fim_pad,
            &mut self.fim_repo,
            &mut self.fim_separator,
        ] {
            *slot = slot.filter(|&id| keep(id));
        }
    }
}
