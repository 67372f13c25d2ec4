//! Reads JSON strings, one a line, and writes the tokens of each as a JSON array:
//! `tokenize MODEL [--add-special] [--parse-special]`, where MODEL is a GGUF file, a directory or a
//! tokenizer file. With `--decode` it reads arrays and writes strings; with `--pre NAME` it writes
//! the pieces of a pre-tokenizer. `scripts/check-tokenizers.py` drives it.

use std::error::Error;
use std::io::{BufRead, BufWriter, Write};

use oxidize_core::tokenizer::{DecodeOptions, EncodeOptions, PreTokenizer, TokenId, Tokenizer};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let first = arguments
        .first()
        .ok_or("usage: tokenize MODEL [--add-special] …")?;
    if first == "--pre" {
        let name = arguments.get(1).ok_or("--pre needs a name")?;
        let pre = PreTokenizer::named(name).ok_or("no such pre-tokenizer")?;
        return each_line(|line| {
            let text: String = serde_json::from_str(line)?;
            let mut pieces = Vec::new();
            pre.split(&text, |piece| pieces.push(piece));
            Ok(serde_json::to_string(&pieces)?)
        });
    }
    let tokenizer = Tokenizer::open(first)?;
    if has("--decode") {
        let options = DecodeOptions {
            render_special: has("--parse-special"),
            ..Default::default()
        };
        return each_line(|line| {
            let tokens: Vec<TokenId> = serde_json::from_str(line)?;
            Ok(serde_json::to_string(
                &tokenizer.decode_with(&tokens, options),
            )?)
        });
    }
    let options = EncodeOptions {
        add_special: has("--add-special"),
        parse_special: has("--parse-special"),
    };
    each_line(|line| {
        let text: String = serde_json::from_str(line)?;
        Ok(serde_json::to_string(&tokenizer.encode(&text, options))?)
    })
}

/// Writes what `answer` makes of each line of the standard input.
fn each_line(
    answer: impl Fn(&str) -> Result<String, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let mut output = BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        writeln!(output, "{}", answer(&line?)?)?;
    }
    Ok(())
}
