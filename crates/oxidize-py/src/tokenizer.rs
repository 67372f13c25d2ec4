//! The Python class `Tokenizer`.

use std::path::PathBuf;

use oxidize_core::tokenizer::{EncodeOptions, TokenKind};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::exception;

/// Converts text to tokens and back.
#[pyclass(frozen, module = "oxidize._oxidize")]
pub(crate) struct Tokenizer(pub(crate) oxidize_core::Tokenizer);

#[pymethods]
impl Tokenizer {
    /// Opens the tokenizer of a model without its weights.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Tokenizer> {
        let opened = py.detach(|| oxidize_core::Tokenizer::open(path));
        opened.map(Tokenizer).map_err(exception)
    }

    /// Number of tokens.
    #[getter]
    fn n_vocab(&self) -> usize {
        self.0.vocab_size()
    }

    #[getter]
    fn bos(&self) -> Option<u32> {
        self.0.bos()
    }

    #[getter]
    fn eos(&self) -> Option<u32> {
        self.0.eos()
    }

    #[getter]
    fn eot(&self) -> Option<u32> {
        self.0.eot()
    }

    #[getter]
    fn cls(&self) -> Option<u32> {
        self.0.token_id("[CLS]")
    }

    #[getter]
    fn sep(&self) -> Option<u32> {
        self.0.token_id("[SEP]")
    }

    /// The newline token.
    #[getter]
    fn newline(&self) -> Option<u32> {
        let newline = self.0.encode("\n", EncodeOptions::PLAIN);
        newline.last().copied()
    }

    /// True if BOS is added to texts.
    #[getter]
    fn adds_bos(&self) -> bool {
        self.0.adds_bos()
    }

    /// True if EOS is added to texts.
    #[getter]
    fn adds_eos(&self) -> bool {
        self.0.adds_eos()
    }

    /// The tokens of `text`; bytes that are not UTF-8 are replaced.
    fn encode(
        &self,
        py: Python<'_>,
        text: &[u8],
        add_special: bool,
        parse_special: bool,
    ) -> Vec<u32> {
        let text = String::from_utf8_lossy(text);
        let options = EncodeOptions {
            add_special,
            parse_special,
        };
        py.detach(|| self.0.encode(&text, options))
    }

    /// The bytes of `tokens`, without those of control tokens unless `special`. Ids outside the vocabulary are
    /// skipped.
    fn decode<'py>(&self, py: Python<'py>, tokens: Vec<u32>, special: bool) -> Bound<'py, PyBytes> {
        let mut bytes = Vec::new();
        for token in tokens {
            if special || !self.0.is_special(token) {
                bytes.extend_from_slice(self.0.piece(token).unwrap_or_default());
            }
        }
        PyBytes::new(py, &bytes)
    }

    /// The bytes that `token` adds to a text; the name of a control token.
    fn piece<'py>(&self, py: Python<'py>, token: u32) -> Option<Bound<'py, PyBytes>> {
        self.0.piece(token).map(|piece| PyBytes::new(py, piece))
    }

    /// The text of `token` as stored in the vocabulary.
    fn token_text(&self, token: u32) -> Option<&str> {
        self.0.token_text(token)
    }

    /// The id of the token that is stored as `text`.
    fn token_id(&self, text: &str) -> Option<u32> {
        self.0.token_id(text)
    }

    /// True for control tokens.
    fn is_special(&self, token: u32) -> bool {
        self.0.is_special(token)
    }

    /// True for tokens that end an answer.
    fn is_end(&self, token: u32) -> bool {
        self.0.is_end_of_generation(token)
    }

    /// The kind of `token`, numbered as in GGUF's `tokenizer.ggml.token_type`; 0 outside the vocabulary.
    fn kind(&self, token: u32) -> u32 {
        match self.0.kind(token) {
            None => 0,
            Some(TokenKind::Normal) => 1,
            Some(TokenKind::Unknown) => 2,
            Some(TokenKind::Control) => 3,
            Some(TokenKind::UserDefined) => 4,
            Some(TokenKind::Unused) => 5,
            Some(TokenKind::Byte) => 6,
        }
    }

    /// The prompt for the gap between two texts, which begins with the second text if `suffix_first`; None if the
    /// vocabulary has no tokens for it.
    #[pyo3(signature = (before, after, suffix_first=false))]
    fn infill(&self, before: &str, after: &str, suffix_first: bool) -> Option<Vec<u32>> {
        if !suffix_first {
            return self.0.infill_prompt(before, after);
        }
        let ids = self.0.special_ids();
        let (prefix, suffix, middle) = (ids.fim_prefix?, ids.fim_suffix?, ids.fim_middle?);
        let bos = self.0.bos().filter(|_| self.0.adds_bos());
        let mut tokens: Vec<u32> = bos.into_iter().collect();
        tokens.push(suffix);
        tokens.extend(self.0.encode(after, EncodeOptions::PLAIN));
        tokens.push(prefix);
        tokens.extend(self.0.encode(before, EncodeOptions::PLAIN));
        tokens.push(middle);
        Some(tokens)
    }
}
