//! Reads the tokenizer of a model directory: finds its file and completes it with
//! `tokenizer_config.json` and `config.json`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::error::{Result, TokenizerError};
use super::huggingface::{self, AddedToken};
use super::normalize::Normalize;
use super::spec::{ModelSpec, SpecialIds, Strip, TokenId, TokenKind, VocabSpec, WordMarker};
use super::vocab::StringTable;
use super::{MAX_TOKENS, rwkv, sentencepiece, tiktoken};
use crate::file::ModelFile;

/// Reads the vocabulary of the model that `file` belongs to.
pub(super) fn spec(file: &ModelFile) -> Result<VocabSpec> {
    let beside = |name: &str| file.sidecar(name);
    read_directory(&beside, file.config().unwrap_or(&Value::Null))
}

/// Reads the vocabulary of a directory or a tokenizer file.
pub(super) fn spec_at(path: &Path) -> Result<VocabSpec> {
    let directory = if path.is_dir() {
        path
    } else {
        path.parent().unwrap_or(Path::new(""))
    };
    let beside = |name: &str| Some(directory.join(name)).filter(|path| path.is_file());
    if path.is_dir() {
        if FILES.iter().all(|(name, _)| beside(name).is_none())
            && let Some(tiktoken) = find_tiktoken(directory)
        {
            return spec_at(&tiktoken);
        }
        let config = beside("config.json").map_or(Ok(Value::Null), |path| json(&path))?;
        return read_directory(&beside, &config);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    read_with(
        reader_of(&name),
        path.to_path_buf(),
        read(path)?,
        &beside,
        &Value::Null,
    )
}

/// First file with the extension `tiktoken` in a directory.
fn find_tiktoken(directory: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(directory).ok()?.flatten();
    let paths = files
        .map(|entry| entry.path())
        .filter(|path| path.is_file());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "tiktoken"))
        .min()
}

/// Reads the vocabulary from the contents of a file called `name`.
pub(super) fn spec_in(name: &str, bytes: Vec<u8>) -> Result<VocabSpec> {
    read_with(
        reader_of(name),
        PathBuf::from(name),
        bytes,
        &|_| None,
        &Value::Null,
    )
}

/// Selects the reader for a file name; files with unknown names are detected by content.
fn reader_of(name: &str) -> Reader {
    let known = FILES.iter().find(|(known, _)| *known == name);
    match known {
        Some((_, reader)) => *reader,
        None if name.contains("tekken") => |s| tiktoken::tekken(&s.bytes, &s.path),
        None if name.ends_with(".json") => |s| huggingface::spec(&s.bytes, &s.path),
        None if name.contains("rwkv") => |s| rwkv::spec(&s.bytes, &s.path),
        None => sentencepiece_or_tiktoken,
    }
}

/// Returns the path of a file beside the model, if it exists.
type SiblingPath<'s> = &'s dyn Fn(&str) -> Option<PathBuf>;

fn read_directory(beside: SiblingPath, model: &Value) -> Result<VocabSpec> {
    let found = FILES
        .iter()
        .find_map(|&(name, reader)| Some((beside(name)?, reader)));
    let Some((path, reader)) = found else {
        let names: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        return Err(TokenizerError::Missing(format!(
            "one of {}",
            names.join(", ")
        )));
    };
    let bytes = read(&path)?;
    read_with(reader, path, bytes, beside, model)
}

fn read_with(
    reader: Reader,
    path: PathBuf,
    bytes: Vec<u8>,
    beside: SiblingPath,
    model: &Value,
) -> Result<VocabSpec> {
    let config = beside("tokenizer_config.json").map_or(Ok(Value::Null), |path| json(&path))?;
    let mut spec = reader(&Source {
        bytes,
        path,
        beside,
        config: &config,
    })?;
    apply_config(&mut spec, &config, model)?;
    Ok(spec)
}

/// Tokenizer file and the files beside it.
struct Source<'s> {
    bytes: Vec<u8>,
    path: PathBuf,
    beside: SiblingPath<'s>,
    config: &'s Value,
}

type Reader = fn(&Source) -> Result<VocabSpec>;

/// Names of tokenizer files, in order of preference.
const FILES: &[(&str, Reader)] = &[
    ("tokenizer.json", |source| {
        huggingface::spec(&source.bytes, &source.path)
    }),
    ("tekken.json", |source| {
        tiktoken::tekken(&source.bytes, &source.path)
    }),
    ("tokenizer.model", sentencepiece_or_tiktoken),
    ("spiece.model", sentencepiece_or_tiktoken),
    ("sentencepiece.bpe.model", fairseq),
    ("tiktoken.model", sentencepiece_or_tiktoken),
    ("qwen.tiktoken", sentencepiece_or_tiktoken),
    ("vocab.txt", wordpiece),
    ("vocab.json", gpt2),
    ("rwkv_vocab_v20230424.txt", |source| {
        rwkv::spec(&source.bytes, &source.path)
    }),
];

fn sentencepiece_or_tiktoken(source: &Source) -> Result<VocabSpec> {
    if tiktoken::is_tiktoken(&source.bytes) {
        tiktoken::spec(&source.bytes, &source.path)
    } else {
        let mut spec = sentencepiece::spec(&source.bytes, &source.path)?;
        match spec.model {
            // T5-style models end a text with EOS; Llama-style models start it with BOS.
            ModelSpec::Unigram { .. } => spec.suffix.extend(spec.special.eos),
            _ => spec.prefix.extend(spec.special.bos),
        }
        Ok(spec)
    }
}

/// XLM-R uses fairseq ids: `<s> <pad> </s> <unk>`, then all pieces but the first three, then
/// `<mask>`.
fn fairseq(source: &Source) -> Result<VocabSpec> {
    let mut spec = sentencepiece::spec(&source.bytes, &source.path)?;
    let mut tokens = StringTable::default();
    for name in ["<s>", "<pad>", "</s>", "<unk>"] {
        tokens.push(name)?;
    }
    for piece in spec.tokens.iter().skip(3) {
        tokens.push(piece)?;
    }
    tokens.push("<mask>")?;
    let mut kinds = vec![TokenKind::Control; 3];
    kinds.push(TokenKind::Unknown);
    kinds.extend(spec.kinds.iter().skip(3));
    kinds.push(TokenKind::Control);
    if let ModelSpec::Unigram { scores, .. } = &mut spec.model {
        scores.insert(0, 0.0);
        scores.push(0.0);
    }
    let mask = (tokens.len() - 1) as TokenId;
    spec.special = SpecialIds {
        bos: Some(0),
        pad: Some(1),
        eos: Some(2),
        unk: Some(3),
        sep: Some(2),
        mask: Some(mask),
        ..SpecialIds::default()
    };
    spec.strip.push((
        mask,
        Strip {
            left: true,
            right: false,
        },
    ));
    spec.prefix = vec![0];
    spec.suffix = vec![2];
    Ok(VocabSpec {
        tokens,
        kinds,
        ..spec
    })
}

/// BERT's `vocab.txt`: one token per line.
fn wordpiece(source: &Source) -> Result<VocabSpec> {
    let mut tokens = StringTable::default();
    for line in source.bytes.split(|&byte| byte == b'\n') {
        tokens.push(line.strip_suffix(b"\r").unwrap_or(line))?;
    }
    let marker = WordMarker::Continuation("##".into());
    let mut spec = VocabSpec::new(
        ModelSpec::WordPiece {
            marker,
            max_word_chars: 100,
        },
        tokens,
    );
    let option = |name: &str| source.config.get(name).and_then(Value::as_bool);
    let lowercase = option("do_lower_case").unwrap_or(true);
    spec.normalizers.push(Normalize::Bert {
        clean_text: true,
        handle_chinese_chars: option("tokenize_chinese_chars").unwrap_or(true),
        strip_accents: option("strip_accents").unwrap_or(lowercase),
        lowercase,
    });
    let tokens = &spec.tokens;
    let id = |name: &str| find(tokens, name);
    let unknown = id("[UNK]");
    spec.special = SpecialIds {
        bos: id("[CLS]"),
        eos: id("[SEP]"),
        sep: id("[SEP]"),
        unk: unknown,
        pad: id("[PAD]"),
        mask: id("[MASK]"),
        ..SpecialIds::default()
    };
    spec.prefix.extend(spec.special.bos);
    spec.suffix.extend(spec.special.sep);
    spec.strip_leading_space = true;
    let special = [
        spec.special.bos,
        spec.special.sep,
        spec.special.pad,
        spec.special.mask,
    ];
    set_kind(&mut spec, special.into_iter().flatten(), TokenKind::Control);
    set_kind(&mut spec, unknown, TokenKind::Unknown);
    Ok(spec)
}

/// GPT-2's pair of files: `vocab.json` and `merges.txt`.
fn gpt2(source: &Source) -> Result<VocabSpec> {
    let vocab = String::from_utf8_lossy(&source.bytes);
    let path = (source.beside)("merges.txt")
        .ok_or_else(|| TokenizerError::Missing("merges.txt".into()))?;
    let merges = read(&path)?;
    let merges = String::from_utf8_lossy(&merges);
    let merges: Vec<&str> = merges
        .lines()
        .filter(|line| !line.starts_with("#version") && !line.is_empty())
        .collect();
    // Equivalent `tokenizer.json`.
    let json = format!(
        r#"{{"pre_tokenizer":{{"type":"ByteLevel","add_prefix_space":false}},"model":{{"type":"BPE","vocab":{vocab},"merges":{}}}}}"#,
        Value::from(merges)
    );
    huggingface::spec(json.as_bytes(), &source.path)
}

/// Applies the special tokens of `tokenizer_config.json` and `config.json`.
fn apply_config(spec: &mut VocabSpec, tokenizer: &Value, model: &Value) -> Result<()> {
    let added = tokenizer
        .get("added_tokens_decoder")
        .and_then(Value::as_object);
    for (id, token) in added.into_iter().flatten() {
        let (Ok(id), Ok(token)) = (id.parse(), AddedToken::deserialize(token)) else {
            return Err(TokenizerError::invalid(
                "added_tokens_decoder",
                format!("token {id:?}"),
            ));
        };
        add(spec, id, &token)?;
    }
    let tokens = &spec.tokens;
    let named = |name: &str| {
        let token = tokenizer.get(name)?;
        let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
        find(tokens, text)
    };
    let numbered = |name: &str| {
        let id = model.get(name)?;
        TokenId::try_from(id.as_u64().or_else(|| id.get(0)?.as_u64())?).ok()
    };
    let bos = named("bos_token")
        .or(spec.special.bos)
        .or_else(|| numbered("bos_token_id"));
    let eos = named("eos_token")
        .or(spec.special.eos)
        .or_else(|| numbered("eos_token_id"));
    let special = SpecialIds {
        bos,
        eos,
        pad: named("pad_token")
            .or(spec.special.pad)
            .or_else(|| numbered("pad_token_id")),
        unk: spec.special.unk.or_else(|| named("unk_token")),
        sep: named("sep_token").or(spec.special.sep),
        mask: named("mask_token").or(spec.special.mask),
        ..spec.special.clone()
    };
    spec.special = special;
    let ids = [
        bos,
        eos,
        spec.special.pad,
        spec.special.sep,
        spec.special.mask,
    ];
    set_kind(spec, ids.into_iter().flatten(), TokenKind::Control);

    let option = |name: &str| tokenizer.get(name).and_then(Value::as_bool);
    let (bos, eos) = (spec.special.bos, spec.special.eos);
    match (option("add_bos_token"), bos) {
        (Some(true), Some(bos)) if spec.prefix.is_empty() => spec.prefix.push(bos),
        (Some(false), Some(bos)) if spec.prefix == [bos] => spec.prefix.clear(),
        _ => {}
    }
    match (option("add_eos_token"), eos) {
        (Some(true), Some(eos)) if spec.suffix.is_empty() => spec.suffix.push(eos),
        (Some(false), Some(eos)) if spec.suffix == [eos] => spec.suffix.clear(),
        _ => {}
    }
    Ok(())
}

/// Adds a token, or updates one that exists.
fn add(spec: &mut VocabSpec, id: TokenId, token: &AddedToken) -> Result<()> {
    let index = id as usize;
    if index >= MAX_TOKENS {
        return Err(TokenizerError::Limit {
            what: "the largest token id",
            limit: MAX_TOKENS as u64,
            requested: u64::from(id),
        });
    }
    if index >= spec.tokens.len() {
        while spec.tokens.len() < index {
            spec.tokens.push("")?;
        }
        spec.tokens.push(&token.content)?;
        spec.kinds.resize(index, TokenKind::Normal);
        if let ModelSpec::Unigram { scores, .. } = &mut spec.model {
            scores.resize(index + 1, 0.0);
        }
    } else if spec.tokens.bytes(index) != Some(token.content.as_bytes()) {
        // The vocabulary takes precedence over a different name in the configuration.
        return Ok(());
    }
    let kind = if token.special {
        TokenKind::Control
    } else {
        TokenKind::UserDefined
    };
    if spec.special.unk != Some(id) {
        set_kind(spec, [id], kind);
    }
    if token.lstrip || token.rstrip {
        spec.strip.retain(|(other, _)| *other != id);
        spec.strip.push((
            id,
            Strip {
                left: token.lstrip,
                right: token.rstrip,
            },
        ));
    }
    Ok(())
}

/// Sets the kind of tokens.
fn set_kind(spec: &mut VocabSpec, ids: impl IntoIterator<Item = TokenId>, kind: TokenKind) {
    let count = spec.tokens.len();
    spec.kinds.resize(count, TokenKind::Normal);
    for id in ids {
        if let Some(slot) = spec
            .kinds
            .get_mut(id as usize)
            .filter(|k| **k != TokenKind::Unknown)
        {
            *slot = kind;
        }
    }
}

fn find(tokens: &StringTable, text: &str) -> Option<TokenId> {
    tokens
        .iter()
        .position(|token| token == text.as_bytes())
        .map(|id| id as TokenId)
}

/// Limit on the size of a tokenizer file, far above any real one.
const MAX_FILE_SIZE: u64 = 1 << 29;

fn read(path: &Path) -> Result<Vec<u8>> {
    let io = |source| TokenizerError::Io {
        path: path.to_path_buf(),
        source,
    };
    let size = std::fs::metadata(path).map_err(io)?.len();
    if size > MAX_FILE_SIZE {
        return Err(TokenizerError::Limit {
            what: "the size of a tokenizer file in bytes",
            limit: MAX_FILE_SIZE,
            requested: size,
        });
    }
    std::fs::read(path).map_err(io)
}

fn json(path: &Path) -> Result<Value> {
    serde_json::from_slice(&read(path)?).map_err(|error| TokenizerError::Format {
        path: path.to_path_buf(),
        offset: 0,
        problem: error.to_string(),
    })
}
