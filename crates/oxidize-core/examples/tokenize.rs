//! Reads JSON strings, one a line, and writes the tokens of each as a JSON array:
//! `tokenize MODEL [--add-special] [--parse-special]`, where MODEL is a GGUF file, a directory or a
//! tokenizer file. With `--decode` it reads arrays and writes strings; with `--pre NAME` it writes
//! the pieces of a pre-tokenizer. `scripts/check-tokenizers.py` drives it. With `--time FILE…` it tells how fast the
//! text of each file is encoded, by the best of seven runs on one thread.

use std::error::Error;
use std::io::{BufRead, BufWriter, Write};
use std::time::Instant;

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
    if let Some(at) = arguments.iter().position(|argument| argument == "--time") {
        return arguments.iter().skip(at + 1).try_for_each(|path| {
            let text = std::fs::read_to_string(path)?;
            let runs = (0..7).map(|_| {
                let start = Instant::now();
                let n_tokens = tokenizer.encode(&text, EncodeOptions::PLAIN).len();
                (start.elapsed(), n_tokens)
            });
            let (best, n_tokens) = runs.min().ok_or("no run")?;
            let speed = text.len() as f64 / best.as_secs_f64() / 1e6;
            println!("{path}: {n_tokens} tokens in {best:.2?}, {speed:.1} MB/s");
            Ok(())
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
