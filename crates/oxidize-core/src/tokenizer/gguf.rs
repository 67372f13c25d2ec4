//! Reads a [`VocabSpec`] from the `tokenizer.ggml.*` keys of a GGUF file. Defaults for missing keys
//! depend on the model and pre-tokenizer, as in llama.cpp.

use super::error::{Result, TokenizerError};
use super::normalize::{Charsmap, Normalize};
use super::pretokenize::PreTokenizer;
use super::spec::{
    CharMerges, ModelSpec, SpecialIds, Strip, TokenId, TokenKind, VocabSpec, WordMarker,
};
use super::vocab::StringTable;
use crate::file::gguf::Metadata;

/// Reads the vocabulary from `metadata`.
pub(super) fn spec(metadata: &Metadata) -> Result<VocabSpec> {
    let reader = Reader { metadata };
    let model = metadata
        .str("tokenizer.ggml.model")
        .ok_or_else(|| TokenizerError::Missing("tokenizer.ggml.model".into()))?;
    let tokens = reader.tokens()?;
    let kinds = reader.kinds(tokens.len())?;
    let (mut spec, add) = match model {
        "gpt2" | "gemma4" | "whitespace" => reader.bpe(model, tokens)?,
        "llama" => reader.sentencepiece(tokens)?,
        "t5" => reader.unigram(tokens)?,
        "bert" => reader.wordpiece(tokens),
        "rwkv" => (
            VocabSpec::new(ModelSpec::Rwkv, tokens),
            AddSpecial::default(),
        ),
        other => return Err(TokenizerError::UnknownModel(other.into())),
    };
    spec.kinds = kinds;
    spec.correct_kinds = true;
    reader.read_ids(&mut spec);
    reader.set_prefix_and_suffix(&mut spec, add);
    reader.set_strip(&mut spec);
    Ok(spec)
}

struct Reader<'m> {
    metadata: &'m Metadata,
}

/// Metadata key of a special token and the field that it sets; a later key wins.
type SpecialKey = (&'static str, fn(&mut SpecialIds) -> &mut Option<TokenId>);
const SPECIAL_KEYS: &[SpecialKey] = &[
    ("bos_token_id", |ids| &mut ids.bos),
    ("eos_token_id", |ids| &mut ids.eos),
    ("eot_token_id", |ids| &mut ids.eot),
    ("eom_token_id", |ids| &mut ids.eom),
    ("unknown_token_id", |ids| &mut ids.unk),
    ("seperator_token_id", |ids| &mut ids.sep),
    ("padding_token_id", |ids| &mut ids.pad),
    ("mask_token_id", |ids| &mut ids.mask),
    ("prefix_token_id", |ids| &mut ids.fim_prefix),
    ("suffix_token_id", |ids| &mut ids.fim_suffix),
    ("middle_token_id", |ids| &mut ids.fim_middle),
    ("fim_pre_token_id", |ids| &mut ids.fim_prefix),
    ("fim_suf_token_id", |ids| &mut ids.fim_suffix),
    ("fim_mid_token_id", |ids| &mut ids.fim_middle),
    ("fim_pad_token_id", |ids| &mut ids.fim_pad),
    ("fim_rep_token_id", |ids| &mut ids.fim_repo),
    ("fim_sep_token_id", |ids| &mut ids.fim_separator),
];

impl Reader<'_> {
    fn flag(&self, name: &str) -> Option<bool> {
        self.metadata.bool(&format!("tokenizer.ggml.{name}"))
    }

    fn tokens(&self) -> Result<StringTable> {
        self.strings("tokenizer.ggml.tokens")?
            .ok_or_else(|| TokenizerError::Missing("tokenizer.ggml.tokens".into()))
    }

    fn strings(&self, key: &str) -> Result<Option<StringTable>> {
        let Some(array) = self.metadata.array(key) else {
            return Ok(None);
        };
        let strings = array
            .byte_strings()
            .ok_or_else(|| TokenizerError::invalid(key, "not an array of strings"))?;
        let mut table = StringTable::default();
        for string in strings {
            table.push(string)?;
        }
        Ok(Some(table))
    }

    fn scores(&self, count: usize) -> Result<Vec<f32>> {
        let key = "tokenizer.ggml.scores";
        let Some(array) = self.metadata.array(key) else {
            return Ok(vec![0.0; count]);
        };
        let scores: Vec<f32> = match (array.iter_f32(), array.iter_i64()) {
            (Some(scores), _) => scores.collect(),
            (None, Some(scores)) => scores.map(|score| score as f32).collect(),
            (None, None) => {
                return Err(TokenizerError::invalid(key, "not an array of numbers"));
            }
        };
        if scores.len() < count {
            let problem = format!("{} scores for {count} tokens", scores.len());
            return Err(TokenizerError::invalid(key, problem));
        }
        Ok(scores)
    }

    fn kinds(&self, count: usize) -> Result<Vec<TokenKind>> {
        let key = "tokenizer.ggml.token_type";
        let Some(array) = self.metadata.array(key) else {
            return Ok(Vec::new());
        };
        let kinds = array
            .iter_i64()
            .ok_or_else(|| TokenizerError::invalid(key, "not an array of integers"))?;
        let kinds: Vec<TokenKind> = kinds
            .map(|kind| match kind {
                1 => TokenKind::Normal,
                2 => TokenKind::Unknown,
                3 => TokenKind::Control,
                4 => TokenKind::UserDefined,
                6 => TokenKind::Byte,
                _ => TokenKind::Unused,
            })
            .collect();
        if kinds.len() < count {
            let problem = format!("{} types for {count} tokens", kinds.len());
            return Err(TokenizerError::invalid(key, problem));
        }
        Ok(kinds)
    }

    /// Pairs of strings, split from strings with a space between.
    fn merges(&self) -> Result<Option<StringTable>> {
        let Some(lines) = self.strings("tokenizer.ggml.merges")? else {
            return Ok(None);
        };
        let mut merges = StringTable::default();
        for line in lines.iter() {
            // A space may start the left part, but never ends it.
            let space = line
                .iter()
                .skip(1)
                .position(|&byte| byte == b' ')
                .map(|at| at + 1);
            let (left, right) = match space.and_then(|at| line.split_at_checked(at)) {
                Some((left, right)) => (left, right.get(1..).unwrap_or_default()),
                // Kept, so that the ranks of later merges do not shift.
                None => (line, &b""[..]),
            };
            merges.push(left)?;
            merges.push(right)?;
        }
        Ok(Some(merges))
    }

    fn bpe(&self, model: &str, tokens: StringTable) -> Result<(VocabSpec, AddSpecial)> {
        let name = match self.metadata.str("tokenizer.ggml.pre") {
            _ if model == "gemma4" => "gemma4",
            Some(name) => name,
            None => {
                tracing::warn!("no tokenizer.ggml.pre: text may be split in the wrong places");
                "default"
            }
        };
        let pre = PreTokenizer::named(name)
            .ok_or_else(|| TokenizerError::UnknownPreTokenizer(name.into()))?;
        let merges = match self.merges()? {
            Some(merges) => merges,
            // Kimi K2 files have no merges: ranks are ids, as in tiktoken.
            None if name == "kimi-k2" => StringTable::default(),
            None => return Err(TokenizerError::Missing("tokenizer.ggml.merges".into())),
        };
        let ignore_merges = IGNORE_MERGES.contains(&name);
        let model_spec = if CHARACTER_BPE.contains(&name) {
            ModelSpec::CharBpe {
                pre: Some(pre),
                order: CharMerges::Pairs(merges),
                ignore_merges,
                fuse_unknown: true,
                byte_fallback: true,
            }
        } else {
            ModelSpec::ByteBpe {
                pre,
                merges,
                ignore_merges,
                unknown: None,
            }
        };
        let mut spec = VocabSpec::new(model_spec, tokens);
        spec.normalizers.extend(match name {
            "whitespace" => {
                (self.flag("normalizer.lowercase") == Some(true)).then_some(Normalize::Lowercase)
            }
            // Missing in GGUF files, but present in the original tokenizers.
            "qwen2" | "command-r" => Some(Normalize::Nfc),
            _ if CHARACTER_BPE.contains(&name) => Some(escape_spaces()),
            _ => None,
        });
        let default = (model == "gpt2").then_some(11);
        spec.special.bos = default.filter(|_| !matches!(name, "chatglm-bpe" | "glm4"));
        spec.special.eos = default;
        let add = AddSpecial {
            bos: ADD_BOS.contains(&name),
            // Gemma 4 files set add_bos_token to false although the model needs BOS.
            always_bos: matches!(name, "gemma4" | "granite-embed-multi-311m"),
            eos: false,
            sep: matches!(name, "jina-v1-en" | "jina-v2-code" | "roberta-bpe"),
        };
        Ok((spec, add))
    }

    fn sentencepiece(&self, tokens: StringTable) -> Result<(VocabSpec, AddSpecial)> {
        let scores = self.scores(tokens.len())?;
        let model = ModelSpec::CharBpe {
            pre: None,
            order: CharMerges::Scores(scores),
            ignore_merges: false,
            fuse_unknown: false,
            byte_fallback: true,
        };
        let mut spec = VocabSpec::new(model, tokens);
        spec.special = SpecialIds {
            bos: Some(1),
            eos: Some(2),
            unk: Some(0),
            ..SpecialIds::default()
        };
        self.mark_spaces(&mut spec, true);
        let add = AddSpecial {
            bos: true,
            ..AddSpecial::default()
        };
        Ok((spec, add))
    }

    fn unigram(&self, tokens: StringTable) -> Result<(VocabSpec, AddSpecial)> {
        let scores = self.scores(tokens.len())?;
        let mut spec = VocabSpec::new(
            ModelSpec::Unigram {
                pre: None,
                scores,
                byte_fallback: false,
            },
            tokens,
        );
        spec.special = SpecialIds {
            eos: Some(1),
            unk: Some(2),
            pad: Some(0),
            ..SpecialIds::default()
        };
        let key = "tokenizer.ggml.precompiled_charsmap";
        if let Some(array) = self.metadata.array(key).filter(|array| !array.is_empty()) {
            let bytes = array
                .iter_i64()
                .ok_or_else(|| TokenizerError::invalid(key, "not an array of bytes"))?;
            let blob: Vec<u8> = bytes.map(|byte| byte as u8).collect();
            spec.normalizers
                .push(Normalize::Charsmap(Charsmap::parse(&blob)?));
        }
        if self.flag("remove_extra_whitespaces").unwrap_or(false) {
            spec.normalizers.push(Normalize::CollapseSpaces);
        }
        self.mark_spaces(&mut spec, false);
        let add = AddSpecial {
            eos: true,
            ..AddSpecial::default()
        };
        Ok((spec, add))
    }

    /// Replaces spaces with `▁`. Adds one in front if the file says so; `prefix` is the default.
    fn mark_spaces(&self, spec: &mut VocabSpec, prefix: bool) {
        if self.flag("add_space_prefix").unwrap_or(prefix) {
            spec.normalizers.push(Normalize::Prepend(" ".into()));
            spec.strip_leading_space = true;
        }
        spec.normalizers.push(escape_spaces());
    }

    fn wordpiece(&self, tokens: StringTable) -> (VocabSpec, AddSpecial) {
        let marker = WordMarker::Beginning("▁".into());
        let mut spec = VocabSpec::new(
            ModelSpec::WordPiece {
                marker,
                max_word_chars: 100,
            },
            tokens,
        );
        spec.special = SpecialIds {
            bos: Some(101),
            unk: Some(100),
            sep: Some(102),
            pad: Some(0),
            mask: Some(103),
            ..SpecialIds::default()
        };
        let lowercase = self.flag("normalizer.lowercase").unwrap_or(true);
        spec.normalizers.push(Normalize::Bert {
            clean_text: true,
            handle_chinese_chars: true,
            strip_accents: self.flag("normalizer.strip_accents").unwrap_or(lowercase),
            lowercase,
        });
        spec.strip_leading_space = true;
        (
            spec,
            AddSpecial {
                bos: true,
                sep: true,
                ..AddSpecial::default()
            },
        )
    }

    /// Sets the special tokens before and after a text.
    fn set_prefix_and_suffix(&self, spec: &mut VocabSpec, add: AddSpecial) {
        let bos = self.flag("add_bos_token").unwrap_or(add.bos) || add.always_bos;
        let eos = self.flag("add_eos_token").unwrap_or(add.eos);
        let sep = self.flag("add_sep_token").unwrap_or(add.sep);
        if bos {
            spec.prefix.extend(spec.special.bos);
        }
        if sep {
            spec.suffix.extend(spec.special.sep.or(spec.special.eos));
        } else if eos {
            spec.suffix.extend(spec.special.eos);
        }
    }

    /// Reads special token ids, which override the defaults of the model.
    fn read_ids(&self, spec: &mut VocabSpec) {
        // A token type is more reliable than a default.
        if let Some(id) = spec
            .kinds
            .iter()
            .position(|kind| *kind == TokenKind::Unknown)
        {
            spec.special.unk = Some(id as TokenId);
        }
        for (name, field) in SPECIAL_KEYS {
            let key = format!("tokenizer.ggml.{name}");
            let id = self
                .metadata
                .u64(&key)
                .and_then(|id| TokenId::try_from(id).ok());
            match id.filter(|&id| (id as usize) < spec.tokens.len()) {
                Some(id) => *field(&mut spec.special) = Some(id),
                None => {
                    if self.metadata.get(&key).is_some() {
                        tracing::warn!("{key} is not the number of a token: ignored");
                    }
                }
            }
        }
    }

    /// Sets `strip` for models whose special tokens consume whitespace; GGUF has no key for it.
    fn set_strip(&self, spec: &mut VocabSpec) {
        let text = |key| self.metadata.str(key).unwrap_or_default();
        let id_of = |name: &str| {
            spec.tokens
                .iter()
                .position(|token| token == name.as_bytes())
        };
        let pre = text("tokenizer.ggml.pre");
        let name = text("general.name").to_lowercase();
        let left = Strip {
            left: true,
            right: false,
        };
        let strips_before_mask = ["jina-v2-de", "jina-v2-es", "jina-v2-code"].contains(&pre)
            || ["nomic-bert-moe", "jina-bert-v3"].contains(&text("general.architecture"));
        if strips_before_mask {
            spec.strip
                .extend(id_of("<mask>").map(|id| (id as TokenId, left)));
        } else if name.contains("phi-3") || name.contains("phi3") {
            let excluded = ["<unk>", "<s>", "<|endoftext|>"].map(&id_of);
            let special = spec.kinds.iter().enumerate().filter(|(id, kind)| {
                !excluded.contains(&Some(*id))
                    && matches!(
                        kind,
                        TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined
                    )
            });
            let right = Strip {
                left: false,
                right: true,
            };
            spec.strip = special.map(|(id, _)| (id as TokenId, right)).collect();
            if let Some(end) = id_of("</s>") {
                spec.strip.push((end as TokenId, right));
            }
        } else if name.contains("modern-bert") {
            spec.strip
                .extend(id_of("[MASK]").map(|id| (id as TokenId, left)));
        }
    }
}

/// Pre-tokenizers used with character-level BPE, where `▁` stands for a space.
const CHARACTER_BPE: &[&str] = &[
    "gemma4",
    "granite-embed-multi-311m",
    "sarvam-moe",
    "whitespace",
];
/// Pre-tokenizers of vocabularies with `ignore_merges`.
const IGNORE_MERGES: &[&str] = &[
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
    "minicpm5",
    "youtu",
    "tekken",
    "granite-embed-multi-97m",
];

/// True if vocabularies with the pre-tokenizer `pre` have `ignore_merges`.
pub(super) fn ignores_merges(pre: &str) -> bool {
    IGNORE_MERGES.contains(&pre)
}

/// Pre-tokenizers of models that add BOS by default.
const ADD_BOS: &[&str] = &[
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
    "tekken",
    "chameleon",
];

/// Default special tokens around a text.
#[derive(Clone, Copy, Default)]
struct AddSpecial {
    bos: bool,
    always_bos: bool,
    eos: bool,
    sep: bool,
}

fn escape_spaces() -> Normalize {
    Normalize::Replace {
        from: " ".into(),
        to: "▁".into(),
    }
}
