//! Reads and writes SentencePiece's `tokenizer.model`, with a minimal protobuf parser. Field
//! numbers are those of `sentencepiece_model.proto`.

use std::path::Path;

use super::error::{Result, TokenizerError};
use super::normalize::{Charsmap, Normalize};
use super::spec::{CharMerges, ModelSpec, SpecialIds, TokenId, TokenKind, VocabSpec};
use super::vocab::StringTable;

/// Reads the vocabulary from `bytes`, the contents of the file at `path`.
pub(super) fn spec(bytes: &[u8], path: &Path) -> Result<VocabSpec> {
    let mut proto = Proto::default();
    proto
        .read(bytes)
        .map_err(|Malformed { offset, problem }| TokenizerError::Format {
            path: path.to_path_buf(),
            offset,
            problem: problem.into(),
        })?;
    let mut tokens = StringTable::default();
    for (piece, kind) in proto.pieces.iter().zip(&proto.kinds) {
        // User-defined tokens are matched before spaces become `▁`.
        match (kind, std::str::from_utf8(piece)) {
            (TokenKind::UserDefined, Ok(text)) => tokens.push(text.replace('▁', " "))?,
            _ => tokens.push(piece)?,
        }
    }
    let model = match proto.model_type {
        UNIGRAM => ModelSpec::Unigram {
            pre: None,
            scores: proto.scores,
            byte_fallback: proto.byte_fallback,
        },
        BPE => ModelSpec::CharBpe {
            pre: None,
            order: CharMerges::Scores(proto.scores),
            ignore_merges: false,
            fuse_unknown: true,
            byte_fallback: proto.byte_fallback,
        },
        other => {
            return Err(TokenizerError::UnknownModel(format!(
                "SentencePiece type {other}"
            )));
        }
    };
    let mut spec = VocabSpec::new(model, tokens);
    spec.kinds = proto.kinds;
    let id = |id: i64| TokenId::try_from(id).ok();
    spec.special = SpecialIds {
        unk: id(proto.unk),
        bos: id(proto.bos),
        eos: id(proto.eos),
        pad: id(proto.pad),
        ..SpecialIds::default()
    };
    if !proto.charsmap.is_empty() {
        spec.normalizers
            .push(Normalize::Charsmap(Charsmap::parse(&proto.charsmap)?));
    }
    if proto.remove_extra_spaces {
        spec.normalizers.push(Normalize::CollapseSpaces);
    }
    if proto.add_prefix && !proto.suffix_spaces {
        spec.normalizers.push(Normalize::Prepend(" ".into()));
        spec.strip_leading_space = true;
    }
    if proto.escape_spaces {
        spec.normalizers.push(Normalize::Replace {
            from: " ".into(),
            to: "▁".into(),
        });
    }
    Ok(spec)
}

const UNIGRAM: u64 = 1;
const BPE: u64 = 2;

/// Serializes the vocabulary as a `tokenizer.model`.
pub(super) fn write(spec: &VocabSpec, scores: &[f32]) -> Vec<u8> {
    let mut file = Message::default();
    for (id, token) in spec.tokens.iter().enumerate() {
        let kind = spec.kinds.get(id).copied().unwrap_or(TokenKind::Normal);
        let mut piece = Message::default();
        match (kind, std::str::from_utf8(token)) {
            (TokenKind::UserDefined, Ok(text)) => piece.bytes(1, text.replace(' ', "▁").as_bytes()),
            _ => piece.bytes(1, token),
        }
        piece.float(2, scores.get(id).copied().unwrap_or(0.0));
        let number = match kind {
            TokenKind::Normal => 1,
            TokenKind::Unknown => 2,
            TokenKind::Control => 3,
            TokenKind::UserDefined => 4,
            TokenKind::Unused => 5,
            TokenKind::Byte => 6,
        };
        piece.integer(3, number);
        file.bytes(1, &piece.0);
    }
    let mut trainer = Message::default();
    let (model_type, byte_fallback) = match spec.model {
        ModelSpec::Unigram { byte_fallback, .. } => (UNIGRAM, byte_fallback),
        ModelSpec::CharBpe { byte_fallback, .. } => (BPE, byte_fallback),
        _ => (BPE, false),
    };
    trainer.integer(3, model_type);
    trainer.integer(35, byte_fallback.into());
    let special = &spec.special;
    let ids = [special.unk, special.bos, special.eos, special.pad];
    for (field, id) in (40..).zip(ids) {
        // Protobuf encodes a negative integer as its 64-bit two's complement.
        trainer.integer(field, id.map_or(u64::MAX, u64::from));
    }
    file.bytes(2, &trainer.0);
    let mut normalizer = Message::default();
    let mut has = [false; 3];
    for step in &spec.normalizers {
        match step {
            Normalize::Charsmap(map) => normalizer.bytes(2, &map.to_bytes()),
            Normalize::Prepend(_) | Normalize::PrependFirst(_) => has[0] = true,
            Normalize::CollapseSpaces => has[1] = true,
            Normalize::Replace { .. } => has[2] = true,
            _ => {}
        }
    }
    for (field, has) in (3..).zip(has) {
        normalizer.integer(field, has.into());
    }
    file.bytes(3, &normalizer.0);
    file.0
}

/// Protobuf message being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn integer(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn float(&mut self, field: u64, value: f32) {
        self.varint(field << 3 | 5);
        self.0.extend(value.to_le_bytes());
    }
}

/// Relevant fields, with the defaults of the format.
struct Proto {
    pieces: StringTable,
    scores: Vec<f32>,
    kinds: Vec<TokenKind>,
    model_type: u64,
    byte_fallback: bool,
    suffix_spaces: bool,
    unk: i64,
    bos: i64,
    eos: i64,
    pad: i64,
    charsmap: Vec<u8>,
    add_prefix: bool,
    remove_extra_spaces: bool,
    escape_spaces: bool,
}

impl Default for Proto {
    fn default() -> Proto {
        Proto {
            pieces: StringTable::default(),
            scores: Vec::new(),
            kinds: Vec::new(),
            model_type: UNIGRAM,
            byte_fallback: false,
            suffix_spaces: false,
            unk: 0,
            bos: 1,
            eos: 2,
            pad: -1,
            charsmap: Vec::new(),
            add_prefix: true,
            remove_extra_spaces: true,
            escape_spaces: true,
        }
    }
}

/// Problem and its byte offset.
#[derive(Debug)]
struct Malformed {
    offset: usize,
    problem: &'static str,
}

type Parsed<T> = std::result::Result<T, Malformed>;

impl Proto {
    fn read(&mut self, bytes: &[u8]) -> Parsed<()> {
        let mut fields = Fields {
            bytes,
            at: 0,
            base: 0,
        };
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(piece)) => self.read_piece(piece)?,
                (2, Value::Bytes(trainer)) => self.read_trainer(trainer)?,
                (3, Value::Bytes(normalizer)) => self.read_normalizer(normalizer)?,
                _ => {}
            }
        }
        if self.pieces.is_empty() {
            return Err(fields.error("it has no pieces"));
        }
        Ok(())
    }

    fn read_piece(&mut self, mut fields: Fields<'_>) -> Parsed<()> {
        let (mut piece, mut score, mut kind) = (&b""[..], 0.0, TokenKind::Normal);
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(text)) => piece = text.bytes,
                (2, Value::Fixed32(bits)) => score = f32::from_bits(bits),
                (3, Value::Integer(value)) => {
                    kind = match value {
                        1 => TokenKind::Normal,
                        2 => TokenKind::Unknown,
                        3 => TokenKind::Control,
                        4 => TokenKind::UserDefined,
                        6 => TokenKind::Byte,
                        _ => TokenKind::Unused,
                    }
                }
                _ => {}
            }
        }
        self.pieces
            .push(piece)
            .map_err(|_| fields.error("more than 4 GiB of pieces"))?;
        self.scores.push(score);
        self.kinds.push(kind);
        Ok(())
    }

    fn read_trainer(&mut self, mut fields: Fields<'_>) -> Parsed<()> {
        while let Some(field) = fields.next()? {
            match field {
                (3, Value::Integer(value)) => self.model_type = value,
                (24, Value::Integer(value)) => self.suffix_spaces = value != 0,
                (35, Value::Integer(value)) => self.byte_fallback = value != 0,
                (40, Value::Integer(value)) => self.unk = value as i64,
                (41, Value::Integer(value)) => self.bos = value as i64,
                (42, Value::Integer(value)) => self.eos = value as i64,
                (43, Value::Integer(value)) => self.pad = value as i64,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_normalizer(&mut self, mut fields: Fields<'_>) -> Parsed<()> {
        while let Some(field) = fields.next()? {
            match field {
                (2, Value::Bytes(map)) => self.charsmap = map.bytes.to_vec(),
                (3, Value::Integer(value)) => self.add_prefix = value != 0,
                (4, Value::Integer(value)) => self.remove_extra_spaces = value != 0,
                (5, Value::Integer(value)) => self.escape_spaces = value != 0,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Fields of a protobuf message.
#[derive(Clone, Copy)]
struct Fields<'b> {
    bytes: &'b [u8],
    at: usize,
    /// Offset of the message in the file.
    base: usize,
}

enum Value<'b> {
    Integer(u64),
    Fixed64,
    Bytes(Fields<'b>),
    Fixed32(u32),
}

impl<'b> Fields<'b> {
    /// Reads the number and value of the next field.
    fn next(&mut self) -> Parsed<Option<(u64, Value<'b>)>> {
        if self.at >= self.bytes.len() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Integer(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Fixed64
            }
            2 => {
                let len = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
                let base = self.base + self.at;
                Value::Bytes(Fields {
                    bytes: self.take(len)?,
                    at: 0,
                    base,
                })
            }
            5 => {
                let bits = self.take(4)?.try_into().map_or(0, u32::from_le_bytes);
                Value::Fixed32(bits)
            }
            _ => return Err(self.error("unknown protobuf wire type")),
        };
        Ok(Some((tag >> 3, value)))
    }

    fn varint(&mut self) -> Parsed<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?.first().copied().unwrap_or(0);
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.error("varint longer than ten bytes"))
    }

    fn take(&mut self, len: usize) -> Parsed<&'b [u8]> {
        let end = self
            .at
            .checked_add(len)
            .filter(|&end| end <= self.bytes.len());
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| self.error("the file ends inside a field"))?;
        self.at += len;
        Ok(taken)
    }

    fn error(&self, problem: &'static str) -> Malformed {
        Malformed {
            offset: self.base + self.at,
            problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pieces, and a trainer section with model type BPE.
    const SMALL: &[u8] =
        b"\x0a\x0c\x0a\x05<unk>\x15\0\0\0\0\x0a\x08\x0a\x01a\x15\0\0\x80\xbf\x12\x02\x18\x02";

    #[test]
    fn reads_relevant_fields() {
        let mut proto = Proto::default();
        proto.read(SMALL).unwrap();
        assert_eq!(proto.model_type, BPE);
        assert_eq!(proto.scores, [0.0, -1.0]);
        assert_eq!(proto.pieces.get(1), Some("a"));
    }

    #[test]
    fn truncated_and_mutated_files_do_not_panic() {
        for end in 0..SMALL.len() {
            let _ = Proto::default().read(&SMALL[..end]);
        }
        for at in 0..SMALL.len() {
            for value in 0..=255 {
                let mut bytes = SMALL.to_vec();
                bytes[at] = value;
                let _ = spec(&bytes, Path::new("m"));
            }
        }
        let unterminated = [0xff; 32];
        assert!(Proto::default().read(&unterminated).is_err());
    }
}
