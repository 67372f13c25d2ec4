//! Reads JSON strings, one a line, and writes the tokens of each as a JSON array:
//! `tokenize MODEL [--add-special] [--parse-special]`. Also what `scripts/check-tokenizers.py` runs.

use std::io::{BufRead, BufWriter, Write};

use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::tokenizer::{EncodeOptions, Tokenizer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let model = arguments
        .first()
        .ok_or("usage: tokenize MODEL [--add-special] [--parse-special]")?;
    let options = EncodeOptions {
        add_special: arguments.iter().any(|a| a == "--add-special"),
        parse_special: arguments.iter().any(|a| a == "--parse-special"),
    };
    let tokenizer = Tokenizer::from_file(&ModelFile::open(model, &OpenOptions::default())?)?;
    let mut output = BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let text: String = serde_json::from_str(&line?)?;
        let tokens = tokenizer.encode(&text, options);
        serde_json::to_writer(&mut output, &tokens)?;
        output.write_all(b"\n")?;
    }
    Ok(())
}
