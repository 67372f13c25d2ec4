//! Writes a [`VocabSpec`] as the `tokenizer.ggml.*` keys of a GGUF file, which [`super::gguf`]
//! reads.
//!
//! The pre-tokenizer name follows from its rules: vocabularies with the same rules get the same
//! name, whatever their source.

use super::error::{Result, TokenizerError};
use super::normalize::Normalize;
use super::spec::{CharMerges, ModelSpec, SpecialIds, TokenId, TokenKind, VocabSpec, WordMarker};
use super::vocab::StringTable;
use super::{gguf, sidecar};
use crate::file::gguf::{ArrayBuf, ValueBuf};
use crate::file::{Format, ModelFile};

impl VocabSpec {
    /// Reads the vocabulary of a model, from GGUF metadata or from the files beside the weights.
    pub fn of_file(file: &ModelFile) -> crate::Result<VocabSpec> {
        let spec = match file.format() {
            Format::Gguf { .. } => gguf::spec(file.metadata()),
            _ => sidecar::spec(file),
        };
        spec.map_err(|error| crate::Error::Tokenizer {
            path: file.path().to_path_buf(),
            error,
        })
    }

    /// Returns the GGUF keys that describe the vocabulary. Padding tokens, which are never
    /// produced, extend it to `n_vocab`, the number of embedding rows.
    pub fn gguf_keys(&self, n_vocab: usize) -> Result<Vec<(String, ValueBuf)>> {
        let mut keys = Keys::default();
        let scores = match &self.model {
            ModelSpec::ByteBpe { merges, .. } => {
                keys.set("model", "gpt2".into());
                keys.set("pre", self.pre_name()?.into());
                keys.merges(merges);
                None
            }
            ModelSpec::CharBpe {
                order: CharMerges::Scores(scores),
                ..
            } => {
                keys.set("model", "llama".into());
                keys.set("pre", "default".into());
                Some(scores)
            }
            ModelSpec::CharBpe {
                order: CharMerges::Pairs(_),
                ..
            } => return self.ranked_keys(n_vocab),
            ModelSpec::Unigram { scores, .. } => {
                keys.set("model", "t5".into());
                keys.set("pre", "default".into());
                let collapses = |n: &Normalize| matches!(n, Normalize::CollapseSpaces);
                let collapses = self.normalizers.iter().any(collapses);
                keys.set("remove_extra_whitespaces", ValueBuf::Bool(collapses));
                for normalize in &self.normalizers {
                    if let Normalize::Charsmap(map) = normalize {
                        let bytes = map.to_bytes().into_iter().map(crate::file::gguf::Value::U8);
                        let list = ArrayBuf::values(crate::file::gguf::ValueType::U8, bytes);
                        let list = list.ok_or_else(no_gguf_name)?;
                        keys.set("precompiled_charsmap", ValueBuf::Array(list));
                    }
                }
                Some(scores)
            }
            ModelSpec::WordPiece { .. } => {
                keys.set("model", "bert".into());
                keys.set("pre", "default".into());
                for normalize in &self.normalizers {
                    if let Normalize::Bert { lowercase, .. } = normalize {
                        keys.set("normalizer.lowercase", ValueBuf::Bool(*lowercase));
                    }
                }
                None
            }
            ModelSpec::Rwkv => {
                keys.set("model", "rwkv".into());
                None
            }
        };
        keys.tokens(self, n_vocab)?;
        if let Some(scores) = scores {
            let missing = n_vocab.max(self.tokens.len()) - scores.len().min(n_vocab);
            let scores = scores.iter().copied();
            let filled = scores.chain(std::iter::repeat_n(-1000.0, missing));
            keys.set("scores", ValueBuf::Array(ArrayBuf::f32s(filled)));
        }
        keys.special(self);
        if matches!(
            self.model,
            ModelSpec::CharBpe { .. } | ModelSpec::Unigram { .. }
        ) {
            let prepends = |n: &Normalize| matches!(n, Normalize::Prepend(_));
            let prepends = self.normalizers.iter().any(prepends);
            keys.set("add_space_prefix", ValueBuf::Bool(prepends));
        }
        Ok(keys.list)
    }

    /// Keys of character-level BPE with ranked merges, which is how `tokenizer.json` stores
    /// SentencePiece vocabularies. GGUF stores scores instead: the earlier the merge, the higher
    /// the score.
    fn ranked_keys(&self, n_vocab: usize) -> Result<Vec<(String, ValueBuf)>> {
        let ModelSpec::CharBpe {
            order: CharMerges::Pairs(pairs),
            ..
        } = &self.model
        else {
            return Err(no_gguf_name());
        };
        let mut ranks = std::collections::HashMap::new();
        for rank in 0..pairs.len() / 2 {
            let part = |i: usize| pairs.bytes(i).unwrap_or_default();
            let joined = [part(2 * rank), part(2 * rank + 1)].concat();
            ranks.entry(joined).or_insert(rank);
        }
        let score = |token: &[u8]| match ranks.get(token) {
            Some(rank) => -(*rank as f32),
            // Single characters result from no merge.
            None => 0.0,
        };
        let scores = self.tokens.iter().map(score).collect();
        let ModelSpec::CharBpe {
            ignore_merges,
            fuse_unknown,
            byte_fallback,
            ..
        } = self.model
        else {
            return Err(no_gguf_name());
        };
        let spec = VocabSpec {
            model: ModelSpec::CharBpe {
                pre: None,
                order: CharMerges::Scores(scores),
                ignore_merges,
                fuse_unknown,
                byte_fallback,
            },
            ..self.clone()
        };
        spec.gguf_keys(n_vocab)
    }

    /// Name of the pre-tokenizer: the first name with the same rules whose other properties also
    /// match.
    fn pre_name(&self) -> Result<&'static str> {
        let ModelSpec::ByteBpe {
            pre, ignore_merges, ..
        } = &self.model
        else {
            return Err(no_gguf_name());
        };
        let nfc = self.normalizers.iter().any(|n| matches!(n, Normalize::Nfc));
        let matches_properties = |name: &&str| {
            gguf::ignores_merges(name) == *ignore_merges
                && (matches!(*name, "qwen2" | "command-r") == nfc)
        };
        let names = pre.names();
        let exact = names.iter().find(|name| matches_properties(name));
        // The other properties matter little; the split rules do.
        exact.or(names.first()).copied().ok_or_else(no_gguf_name)
    }
}

fn no_gguf_name() -> TokenizerError {
    TokenizerError::UnknownPreTokenizer("one without a GGUF name".into())
}

#[derive(Default)]
struct Keys {
    list: Vec<(String, ValueBuf)>,
}

impl Keys {
    fn set(&mut self, name: &str, value: ValueBuf) {
        self.list.push((format!("tokenizer.ggml.{name}"), value));
    }

    fn merges(&mut self, pairs: &StringTable) {
        let part = |i: usize| pairs.bytes(i).unwrap_or_default();
        let lines = (0..pairs.len() / 2).map(|i| [part(2 * i), b" ", part(2 * i + 1)].concat());
        self.set("merges", ValueBuf::Array(ArrayBuf::strings(lines)));
    }

    /// Tokens and their kinds.
    fn tokens(&mut self, spec: &VocabSpec, n_vocab: usize) -> Result<()> {
        let marker = match &spec.model {
            ModelSpec::WordPiece {
                marker: WordMarker::Continuation(marker),
                ..
            } => Some(marker.as_bytes()),
            _ => None,
        };
        let kind = |id: usize| spec.kinds.get(id).copied().unwrap_or(TokenKind::Normal);
        let mut tokens: Vec<Vec<u8>> = Vec::with_capacity(n_vocab);
        let mut kinds = Vec::with_capacity(n_vocab);
        for (id, token) in spec.tokens.iter().enumerate() {
            tokens.push(match marker {
                // GGUF marks tokens that begin a word, not those that continue one.
                Some(marker) if kind(id) == TokenKind::Normal => match token.strip_prefix(marker) {
                    Some(rest) => rest.to_vec(),
                    None => ["▁".as_bytes(), token].concat(),
                },
                _ => token.to_vec(),
            });
            kinds.push(match kind(id) {
                TokenKind::Normal => 1,
                // BERT's unknown token is a control token in GGUF.
                TokenKind::Unknown if marker.is_some() => 3,
                TokenKind::Unknown => 2,
                TokenKind::Control => 3,
                TokenKind::UserDefined => 4,
                TokenKind::Unused => 5,
                TokenKind::Byte => 6,
            });
        }
        for id in tokens.len()..n_vocab {
            tokens.push(format!("[PAD{id}]").into_bytes());
            kinds.push(5);
        }
        self.set("tokens", ValueBuf::Array(ArrayBuf::strings(tokens)));
        self.set("token_type", ValueBuf::Array(ArrayBuf::i32s(kinds)));
        Ok(())
    }

    fn special(&mut self, spec: &VocabSpec) {
        let SpecialIds {
            bos,
            eos,
            eot,
            eom,
            unk,
            sep,
            pad,
            mask,
            fim_prefix,
            fim_suffix,
            fim_middle,
            fim_pad,
            fim_repo,
            fim_separator,
        } = spec.special;
        // BERT vocabularies name no BOS or EOS; the tokens around a text serve as both.
        let is_wordpiece = matches!(spec.model, ModelSpec::WordPiece { .. });
        let first_if_wordpiece = |list: &[TokenId]| list.first().copied().filter(|_| is_wordpiece);
        let (bos, eos) = (
            bos.or(first_if_wordpiece(&spec.prefix)),
            eos.or(first_if_wordpiece(&spec.suffix)),
        );
        for (name, id) in [
            ("bos", bos),
            ("eos", eos),
            ("eot", eot),
            ("eom", eom),
            ("unknown", unk),
            ("seperator", sep),
            ("padding", pad),
            ("mask", mask),
            ("fim_pre", fim_prefix),
            ("fim_suf", fim_suffix),
            ("fim_mid", fim_middle),
            ("fim_pad", fim_pad),
            ("fim_rep", fim_repo),
            ("fim_sep", fim_separator),
        ] {
            if let Some(id) = id {
                self.set(&format!("{name}_token_id"), ValueBuf::U32(id));
            }
        }
        let first =
            |list: &[TokenId], id: Option<TokenId>| id.is_some() && list.first() == id.as_ref();
        let adds_bos = first(&spec.prefix, bos);
        self.set("add_bos_token", ValueBuf::Bool(adds_bos));
        let adds_sep = first(&spec.suffix, sep) && sep != eos;
        if adds_sep {
            self.set("add_sep_token", ValueBuf::Bool(true));
        }
        let adds_eos = first(&spec.suffix, eos);
        self.set("add_eos_token", ValueBuf::Bool(adds_eos));
    }
}
