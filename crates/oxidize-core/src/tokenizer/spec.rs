//! Vocabulary as plain data, independent of its file format. `gguf`, `huggingface`, `sentencepiece`
//! and `tiktoken` produce it; [`Tokenizer::new`](super::Tokenizer::new) turns it into a tokenizer.

use super::normalize::Normalize;
use super::pretokenize::PreTokenizer;
use super::vocab::StringTable;

/// Token id: index into the vocabulary.
pub type TokenId = u32;

/// Kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Text.
    Normal,
    /// Stands for text that the vocabulary lacks.
    Unknown,
    /// Marks structure (beginning, end, turns); not text.
    Control,
    /// Text that is always one token.
    UserDefined,
    /// Never produced.
    Unused,
    /// Single byte, stored as `<0x0A>`.
    Byte,
}

/// Vocabulary and settings of a tokenizer.
#[derive(Clone, Debug)]
pub struct VocabSpec {
    /// Tokenization algorithm.
    pub model: ModelSpec,
    /// Tokens as stored in the vocabulary, by id.
    pub tokens: StringTable,
    /// Kind of each token; tokens past the end of the list are normal.
    pub kinds: Vec<TokenKind>,
    /// Makes tokens with the name of a control token control tokens, whatever `kinds` says: many
    /// GGUF files mark them as normal.
    pub correct_kinds: bool,
    /// Special tokens by role.
    pub special: SpecialIds,
    /// Whitespace that special tokens in a text consume.
    pub strip: Vec<(TokenId, Strip)>,
    /// Normalization steps, applied to each part of the text before it is tokenized.
    pub normalizers: Vec<Normalize>,
    /// Drops the leading space that encoding added when decoding.
    pub strip_leading_space: bool,
    /// Tokens before a text.
    pub prefix: Vec<TokenId>,
    /// Tokens after a text.
    pub suffix: Vec<TokenId>,
    /// Tokens between the two texts of a pair, if the file specifies them.
    pub pair_separator: Option<Vec<TokenId>>,
}

/// Tokenization algorithm.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ModelSpec {
    /// Byte-level BPE (GPT-2) within the pieces of `pre`.
    ByteBpe {
        /// Pre-tokenizer.
        pre: PreTokenizer,
        /// Merges by priority, two strings each. If empty, the pair with the lower resulting id
        /// merges first, as in tiktoken.
        merges: StringTable,
        /// Takes a piece that is a token as that token, without merging.
        ignore_merges: bool,
        /// Token for a byte that has none; without it the byte is dropped.
        unknown: Option<TokenId>,
    },
    /// Character-level BPE with `<0x0A>` tokens as fallback.
    CharBpe {
        /// Pre-tokenizer, if any.
        pre: Option<PreTokenizer>,
        /// Merge priority.
        order: CharMerges,
        /// Takes a piece that is a token as that token, without merging.
        ignore_merges: bool,
        /// Fuses adjacent unknown tokens into one.
        fuse_unknown: bool,
        /// Encodes characters without a token as bytes.
        byte_fallback: bool,
    },
    /// Unigram: the most likely segmentation by token scores.
    Unigram {
        /// Pre-tokenizer, if any.
        pre: Option<PreTokenizer>,
        /// Log probability of each token.
        scores: Vec<f32>,
        /// Encodes characters without a token as bytes.
        byte_fallback: bool,
    },
    /// WordPiece (BERT): greedy longest match within words.
    WordPiece {
        /// Marks the tokens that begin a word, or those that continue one.
        marker: WordMarker,
        /// Longer words become the unknown token.
        max_word_chars: usize,
    },
    /// RWKV: greedy longest match over bytes; tokens are stored with escapes.
    Rwkv,
}

/// Merge priority of a [`ModelSpec::CharBpe`].
#[derive(Clone, Debug)]
pub enum CharMerges {
    /// By the score of the resulting token, highest first (SentencePiece).
    Scores(Vec<f32>),
    /// By position in a list of pairs, two strings each.
    Pairs(StringTable),
}

/// Marker that separates word-initial tokens of a WordPiece vocabulary from the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WordMarker {
    /// Prefix of tokens that begin a word (`▁` in GGUF files).
    Beginning(String),
    /// Prefix of tokens that continue a word (`##`).
    Continuation(String),
}

/// Whitespace that a special token in a text consumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strip {
    /// Whitespace before it.
    pub left: bool,
    /// Whitespace after it.
    pub right: bool,
}

/// Special tokens by role, where the vocabulary has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Beginning of sequence.
    pub bos: Option<TokenId>,
    /// End of sequence.
    pub eos: Option<TokenId>,
    /// End of turn.
    pub eot: Option<TokenId>,
    /// End of a message that waits for a tool result.
    pub eom: Option<TokenId>,
    /// Unknown token.
    pub unk: Option<TokenId>,
    /// Separator of two texts.
    pub sep: Option<TokenId>,
    /// Padding.
    pub pad: Option<TokenId>,
    /// Masked word.
    pub mask: Option<TokenId>,
    /// Infill: marks the text before the gap.
    pub fim_prefix: Option<TokenId>,
    /// Infill: marks the text after the gap.
    pub fim_suffix: Option<TokenId>,
    /// Infill: marks the start of the generated middle.
    pub fim_middle: Option<TokenId>,
    /// Infill: padding.
    pub fim_pad: Option<TokenId>,
    /// Infill: repository name.
    pub fim_repo: Option<TokenId>,
    /// Infill: file separator.
    pub fim_separator: Option<TokenId>,
}

impl VocabSpec {
    /// Creates a vocabulary of normal tokens without normalization or special tokens.
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
            pair_separator: None,
        }
    }
}

impl SpecialIds {
    /// Clears every id for which `keep` returns false.
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
