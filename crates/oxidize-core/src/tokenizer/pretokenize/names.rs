//! Rules of the pre-tokenizers that GGUF files name, and the character ranges that they need.

use super::runs::{DigitGroups, Ranges};
use super::{Cl100k, O200k, Rule, Tail};

use Rule::*;

const NO_LIMIT: usize = usize::MAX;

const GPT2: &[Rule] = &[Gpt2];
const DIGITS_GPT2: &[Rule] = &[Numbers { limit: 1 }, Gpt2];
const LLAMA3: &[Rule] = &[Cl100k(Cl100k::LLAMA3)];
const QWEN2: &[Rule] = &[Cl100k(Cl100k::QWEN2)];
const GPT4O: &[Rule] = &[O200k(O200k::GPT4O)];
const DEEPSEEK3: &[Rule] = &[Numbers { limit: 3 }, Ranges(CJK_KANA_ONLY), DeepSeekV3];

/// All names. The preferred name of equal rules comes first.
#[rustfmt::skip]
pub(super) const NAMES: &[&str] = &[
    "gpt-2", "llama-bpe", "qwen2", "smollm", "gpt-4o", "deepseek-v3", "stablelm2", "dbrx",
    "starcoder", "command-r", "bloom", "bailingmoe", "default", "phi-2", "mpt", "olmo", "jais",
    "trillion", "granite-docling", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de",
    "jina-v1-en", "jina-v2-code", "roberta-bpe", "gigachat", "a.x-4.0", "mellum", "modern-bert",
    "exaone4", "refact", "codeshell", "exaone", "minerva-7b", "mellum2", "llama3", "llama-v3",
    "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "smaug-bpe",
    "chatglm-bpe", "glm4", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "hunyuan",
    "solar-open", "grok-2", "bailingmoe2", "llada-moe", "qwen35", "seed-coder", "minicpm5",
    "laguna", "jais-2", "llama4", "kanana2", "talkie", "minimax-m2", "granite-embed-multi-97m",
    "tiny_aya", "cohere2moe", "tekken", "kimi-k2", "youtu", "deepseek-llm", "deepseek-coder",
    "hunyuan-dense", "joyai-llm", "afmoe", "falcon", "poro-chat", "gpt3-finnish", "viking",
    "exaone-moe", "superbpe", "chameleon", "gemma4", "granite-embed-multi-311m", "sarvam-moe",
    "whitespace",
];

/// Rules of the pre-tokenizer `name`.
pub(super) fn rules(name: &str) -> Option<&'static [Rule]> {
    Some(match name {
        "default" => &[
            Punctuation { back_quote: false },
            Gpt2,
            Numbers { limit: NO_LIMIT },
            AsciiTriple,
        ],
        "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling"
        | "jina-es" | "jina-de" | "jina-v2-es" | "jina-v2-de" | "jina-v1-en" | "jina-v2-code"
        | "roberta-bpe" | "gigachat" | "a.x-4.0" | "mellum" | "modern-bert" | "exaone4" => GPT2,
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b"
        | "mellum2" => DIGITS_GPT2,
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
        | "lfm2" | "jina-v5-nano" | "dbrx" | "smaug-bpe" | "chatglm-bpe" | "glm4" => LLAMA3,
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "stablelm2" | "megrez" | "hunyuan"
        | "solar-open" | "grok-2" | "bailingmoe" | "bailingmoe2" | "llada-moe" => QWEN2,
        "qwen35" => &[Cl100k(Cl100k {
            marks: true,
            ..Cl100k::QWEN2
        })],
        "seed-coder" => &[Cl100k(Cl100k {
            tail: Tail::Nothing,
            ..Cl100k::QWEN2
        })],
        "minicpm5" => &[
            Numbers { limit: 3 },
            Cl100k(Cl100k {
                digits: NO_LIMIT,
                ..Cl100k::LLAMA3
            }),
        ],
        "laguna" => &[Lines, Cl100k(Cl100k::QWEN2)],
        "jais-2" => &[Jais2],
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" | "granite-embed-multi-97m" => {
            GPT4O
        }
        "tiny_aya" | "cohere2moe" => &[DigitGroups(DigitGroups::WordBoundary), O200k(O200k::GPT4O)],
        "tekken" => &[O200k(O200k {
            digits: 1,
            contractions: false,
            ..O200k::GPT4O
        })],
        "kimi-k2" => &[O200k(O200k {
            han: true,
            tail: Tail::Newlines,
            ..O200k::GPT4O
        })],
        "youtu" => &[
            Ranges(&[HANGUL, CJK_PUNCTUATION, BOPOMOFO, CJK_KANA]),
            O200k(O200k {
                digits: 1,
                ..O200k::GPT4O
            }),
        ],
        "deepseek-llm" => &[
            Newline,
            SpacedRanges(DEEPSEEK_LETTERS),
            SpacedRanges(DEEPSEEK_PUNCTUATION),
            TrailingSpace,
            Ranges(DEEPSEEK_CJK_ONLY),
            Numbers { limit: NO_LIMIT },
        ],
        "deepseek-coder" => &[
            Newline,
            SpacedLetters,
            SpacedPunctuation,
            Ranges(DEEPSEEK_CJK_ONLY),
            Numbers { limit: 1 },
        ],
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" => DEEPSEEK3,
        "afmoe" => &[
            DigitGroups(DigitGroups::Numbers),
            Ranges(&[AFMOE_ASIAN]),
            DeepSeekV3,
        ],
        "falcon" => &[Punctuation { back_quote: true }, Gpt2, AsciiTriple],
        "bloom" | "poro-chat" | "gpt3-finnish" => &[Bloom],
        "viking" => &[Bloom, Numbers { limit: 1 }],
        "exaone-moe" => &[ExaoneMoe],
        "superbpe" => &[Numbers { limit: NO_LIMIT }, DigitGroups(DigitGroups::Split)],
        "chameleon" => &[Chameleon, Gpt2],
        "gemma4" | "granite-embed-multi-311m" | "sarvam-moe" => &[Lines],
        "whitespace" => &[WhitespaceSplit],
        _ => return None,
    })
}

/// `[一-龥぀-ゟ゠-ヿ]`
const CJK_KANA: Ranges = &[('\u{3040}', '\u{30ff}'), ('一', '龥')];
/// `[一-龥ࠀ-一가-퟿]`
const DEEPSEEK_CJK: Ranges = &[('\u{800}', '龥'), ('가', '\u{d7ff}')];
pub(super) const CJK_KANA_ONLY: &[Ranges] = &[CJK_KANA];
pub(super) const DEEPSEEK_CJK_ONLY: &[Ranges] = &[DEEPSEEK_CJK];
/// `[가-힣ㄱ-ㆎ]`
const HANGUL: Ranges = &[('ㄱ', 'ㆎ'), ('가', '힣')];
/// `[！…“”‘’—：；，、-〿︰-﹏]`
const CJK_PUNCTUATION: Ranges = &[
    ('—', '—'),
    ('‘', '’'),
    ('“', '”'),
    ('…', '…'),
    ('、', '〿'),
    ('︰', '﹏'),
    ('！', '！'),
    ('，', '，'),
    ('：', '；'),
];
/// `[ㄅ-ㄯ]`
const BOPOMOFO: Ranges = &[('ㄅ', 'ㄯ')];
/// `[!-/:-~！-／：-～‘-‟　-。]`
pub(super) const DEEPSEEK_PUNCTUATION: Ranges = &[
    ('!', '/'),
    (':', '~'),
    ('‘', '‟'),
    ('\u{3000}', '。'),
    ('！', '／'),
    ('：', '～'),
];
/// `[一-鿿㐀-䶿\uf900-\ufaff぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]`
const AFMOE_ASIAN: Ranges = &[
    ('เ', '\u{eff}'),
    ('က', '႟'),
    ('ᄀ', 'ᇿ'),
    ('ក', '\u{17ff}'),
    ('⼀', '\u{2fdf}'),
    ('\u{3040}', 'ヿ'),
    ('㐀', '䶿'),
    ('一', '鿿'),
    ('ꧠ', '\u{a9ff}'),
    ('ꩠ', 'ꩿ'),
    ('가', '\u{d7af}'),
    ('\u{f900}', '\u{faff}'),
    ('･', 'ﾟ'),
];
/// Cased Unicode letters as listed by DeepSeek's first tokenizer.
pub(super) const DEEPSEEK_LETTERS: Ranges = &[
    ('\u{41}', '\u{5a}'),
    ('\u{61}', '\u{7a}'),
    ('\u{b5}', '\u{b5}'),
    ('\u{c0}', '\u{d6}'),
    ('\u{d8}', '\u{f6}'),
    ('\u{f8}', '\u{1ba}'),
    ('\u{1bc}', '\u{1bf}'),
    ('\u{1c4}', '\u{293}'),
    ('\u{295}', '\u{2af}'),
    ('\u{370}', '\u{373}'),
    ('\u{376}', '\u{376}'),
    ('\u{377}', '\u{377}'),
    ('\u{37b}', '\u{37d}'),
    ('\u{37f}', '\u{37f}'),
    ('\u{386}', '\u{386}'),
    ('\u{388}', '\u{38a}'),
    ('\u{38c}', '\u{38c}'),
    ('\u{38e}', '\u{3a1}'),
    ('\u{3a3}', '\u{3f5}'),
    ('\u{3f7}', '\u{481}'),
    ('\u{48a}', '\u{52f}'),
    ('\u{531}', '\u{556}'),
    ('\u{10a0}', '\u{10c5}'),
    ('\u{13a0}', '\u{13f5}'),
    ('\u{13f8}', '\u{13fd}'),
    ('\u{1c90}', '\u{1cba}'),
    ('\u{1cbd}', '\u{1cbf}'),
    ('\u{1d00}', '\u{1d2b}'),
    ('\u{1d6b}', '\u{1d77}'),
    ('\u{1d79}', '\u{1d9a}'),
    ('\u{1e00}', '\u{1f15}'),
    ('\u{1f18}', '\u{1f1d}'),
    ('\u{1f20}', '\u{1f45}'),
    ('\u{1f48}', '\u{1f4d}'),
    ('\u{1f50}', '\u{1f57}'),
    ('\u{1f59}', '\u{1f59}'),
    ('\u{1f5b}', '\u{1f5b}'),
    ('\u{1f5d}', '\u{1f5d}'),
    ('\u{1f5f}', '\u{1f7d}'),
    ('\u{1f80}', '\u{1fb4}'),
    ('\u{1fb6}', '\u{1fbc}'),
    ('\u{1fbe}', '\u{1fbe}'),
    ('\u{1fc2}', '\u{1fc4}'),
    ('\u{1fc6}', '\u{1fcc}'),
    ('\u{1fd0}', '\u{1fd3}'),
    ('\u{1fd6}', '\u{1fdb}'),
    ('\u{1fe0}', '\u{1fec}'),
    ('\u{1ff2}', '\u{1ff4}'),
    ('\u{1ff6}', '\u{1ffc}'),
    ('\u{2102}', '\u{2102}'),
    ('\u{2107}', '\u{2107}'),
    ('\u{210a}', '\u{2113}'),
    ('\u{2115}', '\u{2115}'),
    ('\u{2119}', '\u{211d}'),
    ('\u{2124}', '\u{2124}'),
    ('\u{2126}', '\u{2126}'),
    ('\u{2128}', '\u{2128}'),
    ('\u{212a}', '\u{212d}'),
    ('\u{212f}', '\u{2134}'),
    ('\u{2139}', '\u{2139}'),
    ('\u{213c}', '\u{213f}'),
    ('\u{2145}', '\u{2149}'),
    ('\u{214e}', '\u{214e}'),
    ('\u{2183}', '\u{2183}'),
    ('\u{2184}', '\u{2184}'),
    ('\u{2c00}', '\u{2c7b}'),
    ('\u{2c7e}', '\u{2ce4}'),
    ('\u{2ceb}', '\u{2cee}'),
    ('\u{2cf2}', '\u{2cf2}'),
    ('\u{2cf3}', '\u{2cf3}'),
    ('\u{a640}', '\u{a66d}'),
    ('\u{a680}', '\u{a69b}'),
    ('\u{a722}', '\u{a76f}'),
    ('\u{a771}', '\u{a787}'),
    ('\u{a78b}', '\u{a78e}'),
    ('\u{ab70}', '\u{abbf}'),
    ('\u{fb00}', '\u{fb06}'),
    ('\u{fb13}', '\u{fb17}'),
    ('\u{ff21}', '\u{ff3a}'),
    ('\u{ff41}', '\u{ff5a}'),
    ('\u{10400}', '\u{1044f}'),
    ('\u{104b0}', '\u{104d3}'),
    ('\u{104d8}', '\u{104fb}'),
    ('\u{10c80}', '\u{10cb2}'),
    ('\u{10cc0}', '\u{10cf2}'),
    ('\u{118a0}', '\u{118df}'),
    ('\u{1e900}', '\u{1e943}'),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_rules() {
        for name in NAMES {
            assert!(rules(name).is_some(), "{name}");
        }
    }
}
