//! Writes a [`VocabSpec`] as the files of a Hugging Face directory, which [`super::sidecar`] reads:
//! byte-level vocabularies as `tokenizer.json`, SentencePiece ones as `tokenizer.model`, BERT's as
//! `vocab.txt`; the rest goes into `tokenizer_config.json`.

use serde_json::{Map, Value, json};

use super::error::{Result, TokenizerError};
use super::normalize::Normalize;
use super::pretokenize::PreTokenizer;
use super::sentencepiece;
use super::spec::{CharMerges, ModelSpec, TokenId, TokenKind, VocabSpec, WordMarker};
use super::vocab::StringTable;

impl VocabSpec {
    /// Returns the names and contents of the files that describe the vocabulary in a model
    /// directory. `template` is the model's chat template.
    pub fn directory_files(&self, template: Option<&str>) -> Result<Vec<(String, Vec<u8>)>> {
        let (name, bytes) = match &self.model {
            ModelSpec::ByteBpe {
                pre,
                merges,
                ignore_merges,
                unknown,
            } => {
                let model = json!({
                    "type": "BPE",
                    "dropout": null,
                    "unk_token": unknown.map(|id| self.text_of(id)),
                    "continuing_subword_prefix": null,
                    "end_of_word_suffix": null,
                    "fuse_unk": false,
                    "byte_fallback": false,
                    "ignore_merges": ignore_merges,
                    "vocab": self.vocabulary(),
                    "merges": pairs(merges),
                });
                let file = self.tokenizer_json(model, pre)?;
                ("tokenizer.json", file.to_string().into_bytes())
            }
            ModelSpec::CharBpe {
                order: CharMerges::Scores(scores),
                ..
            }
            | ModelSpec::Unigram { scores, .. } => {
                ("tokenizer.model", sentencepiece::write(self, scores))
            }
            ModelSpec::WordPiece { marker, .. } => ("vocab.txt", self.word_list(marker)),
            ModelSpec::CharBpe { .. } | ModelSpec::Rwkv => {
                return Err(TokenizerError::UnknownModel(
                    "one that no tokenizer file of a directory can hold".into(),
                ));
            }
        };
        let config = self.tokenizer_config(template).to_string().into_bytes();
        Ok(vec![
            (name.to_owned(), bytes),
            ("tokenizer_config.json".to_owned(), config),
        ])
    }

    fn text_of(&self, id: TokenId) -> String {
        let bytes = self.tokens.bytes(id as usize).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    }

    fn kind(&self, id: usize) -> TokenKind {
        self.kinds.get(id).copied().unwrap_or(TokenKind::Normal)
    }

    fn vocabulary(&self) -> Value {
        let mut map = Map::new();
        for id in 0..self.tokens.len() {
            // Text encodes to the first of two tokens with the same text.
            let text_of = self.text_of(id as TokenId);
            map.entry(text_of).or_insert_with(|| Value::from(id));
        }
        Value::Object(map)
    }

    fn tokenizer_json(&self, model: Value, pre: &PreTokenizer) -> Result<Value> {
        let no_regex = || TokenizerError::UnknownPreTokenizer("one without a known regex".into());
        let mut splitters: Vec<Value> = Vec::new();
        for pattern in pre.patterns().ok_or_else(no_regex)? {
            splitters.push(json!({
                "type": "Split",
                "pattern": { "Regex": pattern },
                "behavior": "Isolated",
                "invert": false,
            }));
        }
        splitters.push(json!({
            "type": "ByteLevel",
            "add_prefix_space": false,
            "trim_offsets": false,
            "use_regex": false,
        }));
        let nfc = self.normalizers.iter().any(|n| matches!(n, Normalize::Nfc));
        Ok(json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": self.added_tokens(),
            "normalizer": if nfc { json!({ "type": "NFC" }) } else { Value::Null },
            "pre_tokenizer": { "type": "Sequence", "pretokenizers": splitters },
            "post_processor": self.template(),
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": false,
                "trim_offsets": false,
                "use_regex": false,
            },
            "model": model,
        }))
    }

    fn added_tokens(&self) -> Vec<Value> {
        let mut added = Vec::new();
        for id in 0..self.tokens.len() {
            let special = match self.kind(id) {
                TokenKind::Control | TokenKind::Unknown => true,
                TokenKind::UserDefined => false,
                _ => continue,
            };
            let strip = self.strip.iter().find(|(other, _)| *other as usize == id);
            let strip = strip.map(|(_, strip)| *strip).unwrap_or_default();
            added.push(json!({
                "id": id,
                "content": self.text_of(id as TokenId),
                "single_word": false,
                "lstrip": strip.left,
                "rstrip": strip.right,
                "normalized": false,
                "special": special,
            }));
        }
        added
    }

    /// Post-processor that adds the special tokens around a text.
    fn template(&self) -> Value {
        if self.prefix.is_empty() && self.suffix.is_empty() {
            return json!({
                "type": "ByteLevel",
                "add_prefix_space": false,
                "trim_offsets": false,
                "use_regex": false,
            });
        }
        let token =
            |id: &TokenId| json!({ "SpecialToken": { "id": self.text_of(*id), "type_id": 0 } });
        let surround = |text: &[Value]| -> Vec<Value> {
            let (before, after) = (self.prefix.iter().map(token), self.suffix.iter().map(token));
            before.chain(text.iter().cloned()).chain(after).collect()
        };
        let text = |name: &str| json!({ "Sequence": { "id": name, "type_id": 0 } });
        let mut tokens = Map::new();
        for id in self.prefix.iter().chain(&self.suffix) {
            let name = self.text_of(*id);
            let entry = json!({ "id": name, "ids": [id], "tokens": [name] });
            tokens.insert(name, entry);
        }
        json!({
            "type": "TemplateProcessing",
            "single": surround(&[text("A")]),
            "pair": surround(&[text("A"), text("B")]),
            "special_tokens": tokens,
        })
    }

    /// `vocab.txt`: one token per line, with `##` before those that continue a word.
    fn word_list(&self, marker: &WordMarker) -> Vec<u8> {
        let mut out = Vec::new();
        for (id, token) in self.tokens.iter().enumerate() {
            let line = match marker {
                WordMarker::Beginning(mark) if self.kind(id) == TokenKind::Normal => {
                    match token.strip_prefix(mark.as_bytes()) {
                        Some(word) => word.to_vec(),
                        None => [b"##", token].concat(),
                    }
                }
                _ => token.to_vec(),
            };
            if id > 0 {
                out.push(b'\n');
            }
            out.extend(line);
        }
        out
    }

    fn tokenizer_config(&self, template: Option<&str>) -> Value {
        let mut config = Map::new();
        let special = &self.special;
        for (name, id) in [
            ("bos_token", special.bos),
            ("eos_token", special.eos),
            ("unk_token", special.unk),
            ("sep_token", special.sep),
            ("pad_token", special.pad),
            ("mask_token", special.mask),
        ] {
            if let Some(id) = id {
                config.insert(name.to_owned(), Value::from(self.text_of(id)));
            }
        }
        let surround = |list: &[TokenId], id: Option<TokenId>| id.is_some_and(|id| list == [id]);
        let add = surround(&self.prefix, special.bos);
        config.insert("add_bos_token".into(), Value::from(add));
        let add = surround(&self.suffix, special.eos);
        config.insert("add_eos_token".into(), Value::from(add));
        let class = match &self.model {
            ModelSpec::CharBpe { .. } => "LlamaTokenizer",
            ModelSpec::Unigram { .. } => "T5Tokenizer",
            ModelSpec::WordPiece { .. } => "BertTokenizer",
            _ => "PreTrainedTokenizerFast",
        };
        config.insert("tokenizer_class".into(), Value::from(class));
        for normalize in &self.normalizers {
            if let Normalize::Bert { lowercase, .. } = normalize {
                config.insert("do_lower_case".into(), Value::from(*lowercase));
            }
        }
        if let Some(template) = template {
            config.insert("chat_template".into(), Value::from(template));
        }
        Value::Object(config)
    }
}

/// Merges in the format of `tokenizer.json`.
fn pairs(merges: &StringTable) -> Vec<Value> {
    let part = |i: usize| String::from_utf8_lossy(merges.bytes(i).unwrap_or_default()).into_owned();
    let pair = |i: usize| json!([part(2 * i), part(2 * i + 1)]);
    (0..merges.len() / 2).map(pair).collect()
}
