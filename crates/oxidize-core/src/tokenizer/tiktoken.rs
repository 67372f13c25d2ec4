//! Reads tiktoken vocabularies (`qwen.tiktoken`, Meta's `tokenizer.model`, Kimi's `tiktoken.model`:
//! lines of base64 and rank) and Mistral's `tekken.json`. Ranks are ids, and the lower id merges
//! first. tiktoken files contain neither special tokens nor a split rule; both follow from the
//! family, which is recognized by the number of tokens.

use std::path::Path;

use serde::Deserialize;

use super::error::{Result, TokenizerError};
use super::normalize::Normalize;
use super::pretokenize::PreTokenizer;
use super::spec::{ModelSpec, TokenId, TokenKind, VocabSpec};
use super::vocab::StringTable;
use super::{MAX_TOKENS, base64, byte_level};

/// True if the file starts like a tiktoken file: base64, a space, a number.
pub(super) fn is_tiktoken(bytes: &[u8]) -> bool {
    let line = bytes
        .split(|&byte| byte == b'\n')
        .next()
        .unwrap_or_default();
    line.len() < 256 && parse_line(line).is_some()
}

/// Reads the vocabulary from `bytes`, the contents of the file at `path`.
pub(super) fn spec(bytes: &[u8], path: &Path) -> Result<VocabSpec> {
    let mut entries = Vec::new();
    let mut offset = 0;
    for line in bytes.split(|&byte| byte == b'\n') {
        if !line.trim_ascii().is_empty() {
            entries.push(parse_line(line).ok_or_else(|| TokenizerError::Format {
                path: path.to_path_buf(),
                offset,
                problem: "not base64, a space and a rank".into(),
            })?);
        }
        offset += line.len() + 1;
    }
    let family = Family::of_size(entries.len());
    if let Family::OpenAi(encoding) = family {
        return encoding.spec(entries);
    }
    let mut tokens = by_rank(entries)?;
    let first_special = tokens.len();
    for name in family.special_tokens() {
        tokens.push(name)?;
    }
    let mut spec = byte_bpe(tokens, family.pre_tokenizer())?;
    spec.kinds = vec![TokenKind::Normal; first_special];
    spec.kinds.resize(spec.tokens.len(), TokenKind::Control);
    let id = |at: usize| {
        (first_special + at < spec.tokens.len()).then_some((first_special + at) as TokenId)
    };
    match family {
        Family::Qwen => {
            spec.normalizers.push(Normalize::Nfc);
            spec.special.eos = id(0);
            spec.special.pad = id(0);
        }
        Family::Llama3 | Family::Llama4 => {
            spec.special.bos = id(0);
            spec.special.eos = id(1);
            spec.prefix.extend(id(0));
        }
        Family::Kimi | Family::Other(_) | Family::OpenAi(_) => {}
    }
    Ok(spec)
}

/// Family of a tiktoken file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Qwen,
    Llama3,
    Llama4,
    Kimi,
    OpenAi(&'static Encoding),
    /// Unknown family, with the name of the likeliest pre-tokenizer.
    Other(&'static str),
}

impl Family {
    fn of_size(tokens: usize) -> Family {
        if let Some(encoding) = ENCODINGS.iter().find(|e| e.n_tokens == tokens) {
            return Family::OpenAi(encoding);
        }
        match tokens {
            151_643 => Family::Qwen,
            128_000 => Family::Llama3,
            200_000 => Family::Llama4,
            163_584 => Family::Kimi,
            0..100_000 => Family::Other("gpt-2"),
            100_000..150_000 => Family::Other("llama3"),
            _ => Family::Other("gpt-4o"),
        }
    }

    fn pre_tokenizer(self) -> &'static str {
        match self {
            Family::Qwen => "qwen2",
            Family::Llama3 => "llama3",
            Family::Llama4 => "llama4",
            Family::Kimi => "kimi-k2",
            Family::OpenAi(encoding) => encoding.rule,
            Family::Other(name) => name,
        }
    }

    fn special_tokens(self) -> Vec<String> {
        let fixed = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let mut names: Vec<String> = match self {
            Family::Qwen => fixed(&["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
            Family::Llama3 => fixed(LLAMA3_SPECIAL),
            // `tokenizer_config.json` defines the others.
            Family::Llama4 => fixed(&["<|begin_of_text|>", "<|end_of_text|>"]),
            Family::Kimi | Family::OpenAi(_) | Family::Other(_) => Vec::new(),
        };
        match self {
            Family::Qwen => names.extend((0..205).map(|i| format!("<|extra_{i}|>"))),
            Family::Llama3 => {
                let left = 256 - names.len();
                names.extend((2..2 + left).map(|i| format!("<|reserved_special_token_{i}|>")));
            }
            _ => {}
        }
        names
    }
}

/// OpenAI encoding. Its special tokens have fixed ids, with gaps.
#[derive(Debug, PartialEq, Eq)]
struct Encoding {
    /// Number of lines in the file.
    n_tokens: usize,
    rule: &'static str,
    special: &'static [(&'static str, usize)],
}

const ENCODINGS: &[Encoding] = &[
    // r50k_base
    Encoding {
        n_tokens: 50_256,
        rule: "gpt-2",
        special: &[("<|endoftext|>", 50_256)],
    },
    // p50k_base
    Encoding {
        n_tokens: 50_280,
        rule: "gpt-2",
        special: &[("<|endoftext|>", 50_256)],
    },
    // cl100k_base
    Encoding {
        n_tokens: 100_256,
        rule: "llama3",
        special: &[
            ("<|endoftext|>", 100_257),
            ("<|fim_prefix|>", 100_258),
            ("<|fim_middle|>", 100_259),
            ("<|fim_suffix|>", 100_260),
            ("<|endofprompt|>", 100_276),
        ],
    },
    // o200k_base
    Encoding {
        n_tokens: 199_998,
        rule: "gpt-4o",
        special: &[("<|endoftext|>", 199_999), ("<|endofprompt|>", 200_018)],
    },
];

impl Encoding {
    fn spec(&self, mut entries: Vec<(Vec<u8>, usize)>) -> Result<VocabSpec> {
        let names = self.special.iter();
        entries.extend(names.map(|(name, id)| (name.as_bytes().to_vec(), *id)));
        let mut spec = byte_bpe(by_rank(entries)?, self.rule)?;
        spec.kinds = vec![TokenKind::Normal; spec.tokens.len()];
        for (_, id) in self.special {
            if let Some(kind) = spec.kinds.get_mut(*id) {
                *kind = TokenKind::Control;
            }
        }
        spec.special.eos = self.special.first().map(|(_, id)| *id as TokenId);
        Ok(spec)
    }
}

const LLAMA3_SPECIAL: &[&str] = &[
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|image|>",
];

/// Reads the vocabulary of a `tekken.json`.
pub(super) fn tekken(bytes: &[u8], path: &Path) -> Result<VocabSpec> {
    let file: Tekken = serde_json::from_slice(bytes).map_err(|error| TokenizerError::Format {
        path: path.to_path_buf(),
        offset: 0,
        problem: error.to_string(),
    })?;
    let config = file.config;
    let n_special = config.default_num_special_tokens;
    let n_regular = config.default_vocab_size.saturating_sub(n_special);
    if config.default_vocab_size > MAX_TOKENS || n_special > config.default_vocab_size {
        return Err(TokenizerError::invalid(
            "tekken.json: config",
            "sizes out of range",
        ));
    }
    let mut tokens = StringTable::default();
    for id in 0..n_special {
        let given = file
            .special_tokens
            .iter()
            .flatten()
            .find(|token| token.rank == id);
        match (given, TEKKEN_SPECIAL.get(id)) {
            (Some(token), _) => tokens.push(&token.token_str)?,
            (None, Some(name)) if file.special_tokens.is_none() => tokens.push(name)?,
            _ => tokens.push(format!("<SPECIAL_{id}>"))?,
        }
    }
    let entries = file
        .vocab
        .iter()
        .filter(|token| token.rank < n_regular)
        .map(|token| {
            let bytes = base64::decode(token.token_bytes.as_bytes());
            bytes.map(|bytes| (bytes, token.rank))
        });
    let entries: Option<Vec<_>> = entries.collect();
    let entries =
        entries.ok_or_else(|| TokenizerError::invalid("tekken.json: vocab", "not base64"))?;
    for text in by_rank(entries)?.iter() {
        tokens.push(text)?;
    }
    let rule = PreTokenizer::rule_of_regex(&config.pattern).ok_or_else(|| {
        TokenizerError::Unsupported {
            part: "pattern",
            what: config.pattern.clone(),
        }
    })?;
    let mut spec = VocabSpec::new(
        ModelSpec::ByteBpe {
            pre: PreTokenizer::of(vec![rule]),
            merges: StringTable::default(),
            ignore_merges: true,
            unknown: None,
        },
        tokens,
    );
    spec.kinds = vec![TokenKind::Control; n_special];
    spec.special.unk = Some(0);
    spec.special.bos = Some(1);
    spec.special.eos = Some(2);
    spec.prefix = vec![1];
    Ok(spec)
}

#[derive(Deserialize)]
struct Tekken {
    config: TekkenConfig,
    vocab: Vec<TekkenToken>,
    special_tokens: Option<Vec<TekkenSpecial>>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct TekkenToken {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct TekkenSpecial {
    rank: usize,
    token_str: String,
}

/// Special tokens of files that do not list them.
const TEKKEN_SPECIAL: &[&str] = &[
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

fn byte_bpe(tokens: StringTable, pre: &str) -> Result<VocabSpec> {
    let pre = PreTokenizer::named(pre)
        .ok_or_else(|| TokenizerError::UnknownPreTokenizer(pre.to_owned()))?;
    let merges = StringTable::default();
    Ok(VocabSpec::new(
        ModelSpec::ByteBpe {
            pre,
            merges,
            ignore_merges: true,
            unknown: None,
        },
        tokens,
    ))
}

fn parse_line(line: &[u8]) -> Option<(Vec<u8>, usize)> {
    let line = line.trim_ascii();
    let space = line.iter().position(|&byte| byte == b' ')?;
    let (token, rank) = line.split_at_checked(space)?;
    let rank = std::str::from_utf8(rank.trim_ascii()).ok()?.parse().ok()?;
    Some((base64::decode(token)?, rank))
}

/// Byte-level text of each token in order of rank; missing ranks are empty.
fn by_rank(entries: Vec<(Vec<u8>, usize)>) -> Result<StringTable> {
    let count = entries
        .iter()
        .map(|(_, rank)| rank.saturating_add(1))
        .max()
        .unwrap_or(0);
    if count > MAX_TOKENS {
        return Err(TokenizerError::Limit {
            what: "the largest rank",
            limit: MAX_TOKENS as u64,
            requested: count as u64,
        });
    }
    let mut slots = vec![Vec::new(); count];
    for (bytes, rank) in entries {
        if let Some(slot) = slots.get_mut(rank) {
            *slot = bytes;
        }
    }
    let mut table = StringTable::default();
    for bytes in slots {
        table.push(byte_level::encode(&bytes))?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::{EncodeOptions, Tokenizer};

    #[test]
    fn ranks_are_ids_and_merge_in_order() {
        // a, b, c, bc, ab, abc
        let file = b"YQ== 0\nYg== 1\nYw== 2\nYmM= 3\nYWI= 4\nYWJj 5\n";
        assert!(is_tiktoken(file));
        assert!(!is_tiktoken(b"\x0a\x0e\x0a\x05<unk>"));
        let tokenizer = Tokenizer::new(spec(file, Path::new("t")).unwrap()).unwrap();
        assert_eq!(tokenizer.encode("abc", EncodeOptions::PLAIN), [5]);
        assert_eq!(tokenizer.encode("aabcb", EncodeOptions::PLAIN), [0, 5, 1]);
        assert_eq!(tokenizer.encode("abb", EncodeOptions::PLAIN), [4, 1]);
    }

    #[test]
    fn openai_special_tokens_have_fixed_ids() {
        // Synthetic file of the right size: four letters per token, and no token at the id of the
        // special one.
        let letter = |n: usize| char::from(b'a' + (n % 26) as u8);
        let lines = (0..50_281).filter(|&rank| rank != 50_256).map(|rank| {
            let text: String = (0..4).map(|i| letter(rank / 26usize.pow(i))).collect();
            format!("{} {rank}\n", encode_base64(text.as_bytes()))
        });
        let file: String = lines.collect();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("p50k_base.tiktoken"), &file).unwrap();
        let tokenizer = Tokenizer::open(directory.path()).unwrap();
        assert_eq!(tokenizer.vocab_size(), 50_281);
        let tokens = tokenizer.encode("baaa<|endoftext|>", EncodeOptions::default());
        assert_eq!(tokens, [1, 50_256]);
        assert!(tokenizer.is_end_of_generation(50_256));
    }

    fn encode_base64(bytes: &[u8]) -> String {
        const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut out = String::new();
        for chunk in bytes.chunks(3) {
            let mut word = [0; 4];
            word[1..=chunk.len()].copy_from_slice(chunk);
            let word = u32::from_be_bytes(word);
            for i in 0..4 {
                let letter = LETTERS[(word >> (18 - 6 * i)) as usize & 63];
                out.push(if i <= chunk.len() {
                    char::from(letter)
                } else {
                    '='
                });
            }
        }
        out
    }

    #[test]
    fn malformed_files_are_errors() {
        let error = spec(b"YQ== 0\nYg==1\n", Path::new("t")).unwrap_err();
        assert!(error.to_string().contains("byte 7"), "{error}");
        let huge = spec(b"YQ== 99999999999\n", Path::new("t"));
        assert!(matches!(huge, Err(TokenizerError::Limit { .. })));
        assert!(tekken(b"{}", Path::new("t")).is_err());
    }
}
