//! Reads a [`VocabSpec`] from a `tokenizer.json` of the `tokenizers` library. Its sections become
//! normalizers, split rules and a model; an unsupported step is an error that names it.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::error::{Result, TokenizerError};
use super::normalize::{Charsmap, Normalize};
use super::pretokenize::{PreTokenizer, Rule, SplitBehavior};
use super::spec::{CharMerges, ModelSpec, Strip, TokenId, TokenKind, VocabSpec, WordMarker};
use super::vocab::StringTable;
use super::{MAX_TOKENS, base64, byte_token};

/// Reads the vocabulary from `bytes`, the contents of the file at `path`.
pub(super) fn spec(bytes: &[u8], path: &Path) -> Result<VocabSpec> {
    let file: File = serde_json::from_slice(bytes).map_err(|error| TokenizerError::Format {
        path: path.to_path_buf(),
        offset: offset(bytes, error.line(), error.column()),
        problem: error.to_string(),
    })?;
    let mut normalizers = Vec::new();
    read_normalizer(&file.normalizer, &mut normalizers)?;
    let mut pre = PreTokenizerSection {
        rules: Vec::new(),
        normalizers,
        byte_level: false,
    };
    pre.read(&file.pre_tokenizer)?;

    let (tokens, scores) = file.model.vocab.by_id(&file.added_tokens)?;
    let unknown = file.model.unknown(&tokens);
    let byte_fallback = file.model.byte_fallback;
    let model = file.model.into_spec(&pre, scores, unknown, &file.decoder)?;
    let mut spec = VocabSpec::new(model, tokens);
    spec.normalizers = pre.normalizers;
    spec.special.unk = unknown;
    spec.kinds = kinds(&spec.tokens, byte_fallback, unknown, &file.added_tokens);
    for token in &file.added_tokens {
        if token.lstrip || token.rstrip {
            spec.strip.push((
                token.id,
                Strip {
                    left: token.lstrip,
                    right: token.rstrip,
                },
            ));
        }
    }
    spec.strip_leading_space = strips_space(&file.decoder);
    read_template(&file.post_processor, &mut spec)?;
    Ok(spec)
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: Model,
}

#[derive(Deserialize)]
pub(super) struct AddedToken {
    #[serde(default)]
    pub(super) id: TokenId,
    pub(super) content: String,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    #[serde(default)]
    pub(super) special: bool,
}

/// Fields of all model types; `kind` selects the relevant ones.
#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: VocabList,
    #[serde(default)]
    merges: MergeList,
    unk_token: Option<String>,
    unk_id: Option<TokenId>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    max_input_chars_per_word: Option<usize>,
}

impl Model {
    fn unknown(&self, tokens: &StringTable) -> Option<TokenId> {
        self.unk_id.or_else(|| {
            let name = self.unk_token.as_ref()?.as_bytes();
            tokens
                .iter()
                .position(|token| token == name)
                .map(|id| id as TokenId)
        })
    }

    fn into_spec(
        self,
        pre: &PreTokenizerSection,
        scores: Vec<f32>,
        unknown: Option<TokenId>,
        decoder: &Value,
    ) -> Result<ModelSpec> {
        // Old files have no type.
        let kind = self.kind.as_deref().unwrap_or(match &self.vocab {
            VocabList {
                scores: Some(_), ..
            } => "Unigram",
            _ if self.max_input_chars_per_word.is_some() => "WordPiece",
            _ => "BPE",
        });
        let rules = || PreTokenizer::of(pre.rules.clone());
        let some_rules = || (!pre.rules.is_empty()).then(rules);
        let affix = |name: &str, affix: &Option<String>| match affix.as_deref() {
            None | Some("") => Ok(()),
            Some(affix) => Err(unsupported("model", format!("{name} {affix:?}"))),
        };
        match kind {
            "BPE" => {
                affix("continuing_subword_prefix", &self.continuing_subword_prefix)?;
                affix("end_of_word_suffix", &self.end_of_word_suffix)?;
                let byte_level = pre.byte_level || name_of(decoder) == "ByteLevel";
                Ok(if byte_level {
                    ModelSpec::ByteBpe {
                        pre: rules(),
                        merges: self.merges.0,
                        ignore_merges: self.ignore_merges,
                        unknown,
                    }
                } else {
                    ModelSpec::CharBpe {
                        pre: some_rules(),
                        order: CharMerges::Pairs(self.merges.0),
                        ignore_merges: self.ignore_merges,
                        fuse_unknown: self.fuse_unk,
                        byte_fallback: self.byte_fallback,
                    }
                })
            }
            "Unigram" => Ok(ModelSpec::Unigram {
                pre: some_rules(),
                scores,
                byte_fallback: self.byte_fallback,
            }),
            "WordPiece" => Ok(ModelSpec::WordPiece {
                marker: WordMarker::Continuation(
                    self.continuing_subword_prefix
                        .unwrap_or_else(|| "##".into()),
                ),
                max_word_chars: self.max_input_chars_per_word.unwrap_or(100),
            }),
            other => Err(TokenizerError::UnknownModel(other.into())),
        }
    }
}

/// `{"token": id}` or `[["token", score]]`, read without allocating a `String` per token.
#[derive(Default)]
struct VocabList {
    texts: StringTable,
    /// Id of each text; for a list, its index.
    ids: Vec<TokenId>,
    scores: Option<Vec<f32>>,
}

impl VocabList {
    /// Tokens by id, including the added ones; gaps are empty.
    fn by_id(&self, added: &[AddedToken]) -> Result<(StringTable, Vec<f32>)> {
        let ids = self
            .ids
            .iter()
            .copied()
            .chain(added.iter().map(|token| token.id));
        let count = ids.max().map_or(0, |id| id as usize + 1);
        if count > MAX_TOKENS {
            return Err(TokenizerError::Limit {
                what: "the largest token id",
                limit: MAX_TOKENS as u64,
                requested: count as u64,
            });
        }
        let mut slots: Vec<Option<&[u8]>> = vec![None; count];
        for (text, &id) in self.texts.iter().zip(&self.ids) {
            if let Some(slot) = slots.get_mut(id as usize) {
                *slot = Some(text);
            }
        }
        for token in added {
            if let Some(slot) = slots.get_mut(token.id as usize) {
                *slot = Some(token.content.as_bytes());
            }
        }
        let mut table = StringTable::default();
        for slot in slots {
            table.push(slot.unwrap_or_default())?;
        }
        let mut scores = self.scores.clone().unwrap_or_default();
        scores.resize(count, 0.0);
        Ok((table, scores))
    }
}

impl<'de> Deserialize<'de> for VocabList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = VocabList;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map from tokens to ids, or a list of tokens with scores")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<VocabList, A::Error> {
                let mut vocab = VocabList::default();
                while let Some((text, id)) = map.next_entry::<std::borrow::Cow<str>, TokenId>()? {
                    vocab
                        .texts
                        .push(text.as_bytes())
                        .map_err(serde::de::Error::custom)?;
                    vocab.ids.push(id);
                }
                Ok(vocab)
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> std::result::Result<VocabList, A::Error> {
                let mut vocab = VocabList::default();
                let mut scores = Vec::new();
                while let Some((text, score)) = list.next_element::<(String, f32)>()? {
                    vocab.ids.push(vocab.ids.len() as TokenId);
                    vocab.texts.push(text).map_err(serde::de::Error::custom)?;
                    scores.push(score);
                }
                vocab.scores = Some(scores);
                Ok(vocab)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// `["a b"]` or `[["a", "b"]]`, stored as two strings per merge.
#[derive(Default)]
struct MergeList(StringTable);

impl<'de> Deserialize<'de> for MergeList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Reader;
        struct Pair<'t>(&'t mut StringTable);
        impl<'de> Visitor<'de> for Reader {
            type Value = MergeList;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list of merges")
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> std::result::Result<MergeList, A::Error> {
                let mut table = StringTable::default();
                while list.next_element_seed(Pair(&mut table))?.is_some() {}
                Ok(MergeList(table))
            }

            fn visit_unit<E>(self) -> std::result::Result<MergeList, E> {
                Ok(MergeList::default())
            }
        }
        impl<'de> serde::de::DeserializeSeed<'de> for Pair<'_> {
            type Value = ();

            fn deserialize<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> std::result::Result<(), D::Error> {
                deserializer.deserialize_any(self)
            }
        }
        impl<'de> Visitor<'de> for Pair<'_> {
            type Value = ();

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("two tokens, with a space between or as a list")
            }

            fn visit_str<E: serde::de::Error>(self, line: &str) -> std::result::Result<(), E> {
                let (left, right) = line.split_once(' ').unwrap_or((line, ""));
                self.0
                    .push(left)
                    .and_then(|()| self.0.push(right))
                    .map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> std::result::Result<(), A::Error> {
                for _ in 0..2 {
                    let part = list
                        .next_element::<std::borrow::Cow<str>>()?
                        .unwrap_or_default();
                    self.0
                        .push(part.as_bytes())
                        .map_err(serde::de::Error::custom)?;
                }
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(())
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

fn unsupported(part: &'static str, what: impl Into<String>) -> TokenizerError {
    TokenizerError::Unsupported {
        part,
        what: what.into(),
    }
}

/// `type` of a section.
fn name_of(part: &Value) -> &str {
    part.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn flag(part: &Value, name: &str, default: bool) -> bool {
    part.get(name).and_then(Value::as_bool).unwrap_or(default)
}

fn text<'v>(part: &'v Value, name: &str) -> &'v str {
    part.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Elements of a sequence.
fn parts<'v>(part: &'v Value, name: &str) -> &'v [Value] {
    part.get(name)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Recursion depth is bounded by that of the JSON parser.
fn read_normalizer(part: &Value, out: &mut Vec<Normalize>) -> Result<()> {
    if part.is_null() {
        return Ok(());
    }
    out.push(match name_of(part) {
        "Sequence" => {
            return parts(part, "normalizers")
                .iter()
                .try_for_each(|p| read_normalizer(p, out));
        }
        "NFC" => Normalize::Nfc,
        "NFD" => Normalize::Nfd,
        "NFKC" => Normalize::Nfkc,
        "NFKD" => Normalize::Nfkd,
        "Lowercase" => Normalize::Lowercase,
        "StripAccents" => Normalize::StripAccents,
        "Prepend" => Normalize::Prepend(text(part, "prepend").into()),
        "Strip" => Normalize::Trim {
            left: flag(part, "strip_left", true),
            right: flag(part, "strip_right", true),
        },
        "Replace" => {
            let pattern = part.get("pattern").unwrap_or(&Value::Null);
            let to = text(part, "content").to_owned();
            match (text(pattern, "String"), text(pattern, "Regex")) {
                ("", " {2,}") => Normalize::ReplaceSpaceRuns(to),
                ("", regex) => return Err(unsupported("normalizer", format!("regex {regex:?}"))),
                (from, _) => Normalize::Replace {
                    from: from.into(),
                    to,
                },
            }
        }
        "Precompiled" => {
            let blob = base64::decode(text(part, "precompiled_charsmap").as_bytes())
                .ok_or_else(|| TokenizerError::invalid("precompiled_charsmap", "not base64"))?;
            if blob.is_empty() {
                return Ok(());
            }
            Normalize::Charsmap(Charsmap::parse(&blob)?)
        }
        "BertNormalizer" => {
            let lowercase = flag(part, "lowercase", true);
            Normalize::Bert {
                clean_text: flag(part, "clean_text", true),
                handle_chinese_chars: flag(part, "handle_chinese_chars", true),
                strip_accents: flag(part, "strip_accents", lowercase),
                lowercase,
            }
        }
        other => return Err(unsupported("normalizer", other)),
    });
    Ok(())
}

/// Result of reading the `pre_tokenizer` section.
struct PreTokenizerSection {
    rules: Vec<Rule>,
    normalizers: Vec<Normalize>,
    byte_level: bool,
}

impl PreTokenizerSection {
    fn read(&mut self, part: &Value) -> Result<()> {
        if part.is_null() {
            return Ok(());
        }
        match name_of(part) {
            "Sequence" => parts(part, "pretokenizers")
                .iter()
                .try_for_each(|p| self.read(p)),
            "ByteLevel" => {
                self.byte_level = true;
                if flag(part, "add_prefix_space", true) {
                    self.normalizers
                        .push(Normalize::PrependIfAbsent(" ".into()));
                }
                if flag(part, "use_regex", true) {
                    self.rules.push(Rule::Gpt2);
                }
                Ok(())
            }
            "Digits" => {
                let individual = flag(part, "individual_digits", false);
                self.rules.push(Rule::Numbers {
                    limit: if individual { 1 } else { usize::MAX },
                });
                Ok(())
            }
            "Punctuation" => {
                let rule = match part.get("behavior").and_then(Value::as_str) {
                    Some("Contiguous") => Rule::Punctuation { back_quote: true },
                    None | Some("Isolated") => Rule::PunctuationIsolated,
                    Some(other) => return Err(unsupported("pre_tokenizer", other)),
                };
                self.rules.push(rule);
                Ok(())
            }
            "Split" => self.read_split(part),
            "Metaspace" => {
                self.read_metaspace(part);
                Ok(())
            }
            "WhitespaceSplit" => {
                self.rules.push(Rule::WhitespaceSplit);
                Ok(())
            }
            // The WordPiece model splits words itself.
            "BertPreTokenizer" => Ok(()),
            other => Err(unsupported("pre_tokenizer", other)),
        }
    }

    fn read_split(&mut self, part: &Value) -> Result<()> {
        let pattern = part.get("pattern").unwrap_or(&Value::Null);
        let behavior = text(part, "behavior");
        let invert = flag(part, "invert", false);
        let string = text(pattern, "String");
        let mut characters = string.chars();
        let rule = match (characters.next(), characters.next()) {
            (Some(c), None) => match (behavior, invert) {
                ("MergedWithPrevious", false) => Some(SplitBehavior::MergedWithPrevious),
                ("MergedWithNext", false) => Some(SplitBehavior::MergedWithNext),
                ("Isolated", false) => Some(SplitBehavior::Isolated),
                ("Removed", false) => Some(SplitBehavior::Removed),
                _ => None,
            }
            .map(|behavior| Rule::Character { c, behavior }),
            (Some(_), Some(_)) => None,
            (None, _) => PreTokenizer::rule_of_regex(text(pattern, "Regex")).filter(|rule| {
                // Removing unmatched text is the same as isolating matches if the rule matches
                // everything.
                behavior == "Isolated" && !invert
                    || behavior == "Removed" && invert && rule.covers_everything()
            }),
        };
        let rule = rule.ok_or_else(|| unsupported("pre_tokenizer", part.to_string()))?;
        self.rules.push(rule);
        Ok(())
    }

    fn read_metaspace(&mut self, part: &Value) {
        let mark = part
            .get("replacement")
            .and_then(Value::as_str)
            .unwrap_or("▁")
            .to_owned();
        let scheme = part.get("prepend_scheme").and_then(Value::as_str);
        let always = flag(part, "add_prefix_space", true);
        let first_of_mark = mark.chars().next().unwrap_or('▁');
        let after_words = matches!(self.rules.last(), Some(Rule::WhitespaceSplit));
        if after_words && scheme.unwrap_or("always") == "always" {
            // Every word gets the mark, so it can be added before the text is split.
            self.rules.pop();
            self.normalizers.push(Normalize::PrefixWords(mark));
        } else {
            self.normalizers.push(Normalize::Replace {
                from: " ".into(),
                to: mark.clone(),
            });
            match scheme {
                Some("first") => self.normalizers.push(Normalize::PrependFirst(mark)),
                Some("never") => {}
                None if !always => {}
                _ => self.normalizers.push(Normalize::PrependIfAbsent(mark)),
            }
        }
        if flag(part, "split", true) {
            self.rules.push(Rule::Character {
                c: first_of_mark,
                behavior: SplitBehavior::MergedWithNext,
            });
        }
    }
}

fn kinds(
    tokens: &StringTable,
    byte_fallback: bool,
    unknown: Option<TokenId>,
    added: &[AddedToken],
) -> Vec<TokenKind> {
    let mut kinds: Vec<TokenKind> = tokens
        .iter()
        .map(|text| match byte_token(text) {
            Some(_) if byte_fallback => TokenKind::Byte,
            _ => TokenKind::Normal,
        })
        .collect();
    for token in added {
        if let Some(kind) = kinds.get_mut(token.id as usize) {
            *kind = if token.special {
                TokenKind::Control
            } else {
                TokenKind::UserDefined
            };
        }
    }
    let unknown = unknown.and_then(|id| kinds.get_mut(id as usize));
    if let Some(kind) = unknown.filter(|kind| **kind != TokenKind::Normal) {
        *kind = TokenKind::Unknown;
    }
    kinds
}

/// True if decoding drops a leading space.
fn strips_space(decoder: &Value) -> bool {
    match name_of(decoder) {
        "Sequence" => parts(decoder, "decoders").iter().any(strips_space),
        "Strip" => decoder.get("start").and_then(Value::as_u64).unwrap_or(0) > 0,
        "Metaspace" => {
            text(decoder, "prepend_scheme") != "never" && flag(decoder, "add_prefix_space", true)
        }
        "WordPiece" => true,
        _ => false,
    }
}

/// Reads the special tokens around a text.
fn read_template(part: &Value, spec: &mut VocabSpec) -> Result<()> {
    match name_of(part) {
        "Sequence" => parts(part, "processors")
            .iter()
            .try_for_each(|part| read_template(part, spec)),
        "TemplateProcessing" => {
            let mut after_text = false;
            for piece in parts(part, "single") {
                let Some(name) = piece.get("SpecialToken").map(|token| text(token, "id")) else {
                    after_text = true;
                    continue;
                };
                let list = if after_text {
                    &mut spec.suffix
                } else {
                    &mut spec.prefix
                };
                list.extend(special_ids(part, name));
            }
            spec.pair_separator = Some(pair_separator(part));
            Ok(())
        }
        "RobertaProcessing" | "BertProcessing" => {
            let id = |name: &str| {
                part.get(name)
                    .and_then(|pair| pair.get(1)?.as_u64())
                    .and_then(|id| TokenId::try_from(id).ok())
            };
            let n_separators = if name_of(part) == "BertProcessing" {
                1
            } else {
                2
            };
            spec.prefix.extend(id("cls"));
            spec.suffix.extend(id("sep"));
            spec.pair_separator = id("sep").map(|sep| vec![sep; n_separators]);
            Ok(())
        }
        // Changes offsets only.
        "ByteLevel" | "" => Ok(()),
        other => Err(unsupported("post_processor", other)),
    }
}

/// Ids of special token `name` in a template.
fn special_ids(template: &Value, name: &str) -> impl Iterator<Item = TokenId> {
    let special = template
        .get("special_tokens")
        .and_then(|tokens| tokens.get(name));
    let ids = special.map_or(&[][..], |special| parts(special, "ids"));
    ids.iter()
        .filter_map(|id| TokenId::try_from(id.as_u64()?).ok())
}

/// Tokens between the two texts of a pair.
fn pair_separator(template: &Value) -> Vec<TokenId> {
    let pieces = parts(template, "pair").iter();
    let inside = pieces
        .skip_while(|piece| piece.get("Sequence").is_none())
        .skip(1)
        .map_while(|piece| piece.get("SpecialToken"));
    inside
        .flat_map(|token| special_ids(template, text(token, "id")))
        .collect()
}

/// Byte offset of a line and column.
fn offset(text: &[u8], line: usize, column: usize) -> usize {
    let lines = text
        .split_inclusive(|&byte| byte == b'\n')
        .take(line.saturating_sub(1));
    lines.map(<[u8]>::len).sum::<usize>() + column
}
