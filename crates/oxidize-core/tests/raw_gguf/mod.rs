//! GGUF files built byte by byte, without the writer under test, with the positions of their integers.

use std::ops::Range;

/// Builder of a GGUF file.
#[derive(Clone, Default)]
pub(crate) struct RawGguf {
    pub(crate) bytes: Vec<u8>,
    /// Ranges of all counts, lengths, types, dimensions and offsets.
    pub(crate) integers: Vec<Range<usize>>,
    /// Bytes before the tensor data.
    pub(crate) header_len: usize,
    version: u32,
}

impl RawGguf {
    pub(crate) fn new(version: u32, n_tensors: u64, n_keys: u64) -> RawGguf {
        let mut file = RawGguf {
            version,
            ..RawGguf::default()
        };
        file.raw(b"GGUF");
        file.u32(version);
        file.length(n_tensors);
        file.length(n_keys);
        file
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut RawGguf {
        self.bytes.extend(bytes);
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut RawGguf {
        self.integer(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut RawGguf {
        self.integer(&value.to_le_bytes())
    }

    /// A length, which has 32 bits in version 1 and 64 bits since.
    pub(crate) fn length(&mut self, value: u64) -> &mut RawGguf {
        if self.version == 1 {
            self.u32(value as u32)
        } else {
            self.u64(value)
        }
    }

    fn integer(&mut self, bytes: &[u8]) -> &mut RawGguf {
        self.integers
            .push(self.bytes.len()..self.bytes.len() + bytes.len());
        self.raw(bytes)
    }

    pub(crate) fn string(&mut self, text: &[u8]) -> &mut RawGguf {
        self.length(text.len() as u64).raw(text)
    }

    /// A key and the type of its value, which must follow.
    pub(crate) fn key(&mut self, key: &str, ty: u32) -> &mut RawGguf {
        self.string(key.as_bytes()).u32(ty)
    }

    /// Element type and length of an array, whose elements must follow.
    pub(crate) fn array(&mut self, element: u32, len: u64) -> &mut RawGguf {
        self.u32(element).length(len)
    }

    pub(crate) fn tensor(
        &mut self,
        name: &str,
        shape: &[u64],
        ty: u32,
        offset: u64,
    ) -> &mut RawGguf {
        self.string(name.as_bytes()).u32(shape.len() as u32);
        for &dim in shape {
            self.length(dim);
        }
        self.u32(ty).u64(offset)
    }

    /// Ends the header and appends `n` bytes of data.
    pub(crate) fn data(&mut self, alignment: usize, n: usize) -> &mut RawGguf {
        self.header_len = self.bytes.len();
        self.bytes
            .resize(self.header_len.next_multiple_of(alignment), 0);
        self.bytes.extend((0..n).map(|i| i as u8));
        self
    }
}

pub(crate) const STRING: u32 = 8;
pub(crate) const ARRAY: u32 = 9;

/// A small file with every value type, nested arrays and four tensors.
pub(crate) fn small(version: u32) -> RawGguf {
    let mut file = RawGguf::new(version, 4, 19);
    file.key("general.architecture", STRING).string(b"llama");
    file.key("general.alignment", 4).u32(64);
    file.key("a.u8", 0).raw(&[200]);
    file.key("a.i8", 1).raw(&[0x80]);
    file.key("a.u16", 2).raw(&60_000u16.to_le_bytes());
    file.key("a.i16", 3).raw(&(-2i16).to_le_bytes());
    file.key("a.i32", 5).raw(&(-3i32).to_le_bytes());
    file.key("a.f32", 6).raw(&1.5f32.to_le_bytes());
    file.key("a.bool", 7).raw(&[1]);
    file.key("a.u64", 10).raw(&u64::MAX.to_le_bytes());
    file.key("a.i64", 11).raw(&i64::MIN.to_le_bytes());
    file.key("a.f64", 12).raw(&0.1f64.to_le_bytes());
    file.key("a.empty", STRING).string(b"");
    file.key("a.odd", STRING).string(b"\xff\xfe");
    file.key("tokens", ARRAY).array(STRING, 4);
    file.string(b"<s>")
        .string("Ġé".as_bytes())
        .string(b"\xf0\x9f")
        .string(b"");
    file.key("scores", ARRAY).array(6, 3);
    file.raw(&[-1.0f32, 0.0, 2.5].map(f32::to_le_bytes).concat());
    file.key("flags", ARRAY).array(7, 3).raw(&[0, 1, 1]);
    file.key("nested", ARRAY).array(ARRAY, 2);
    file.array(ARRAY, 2);
    file.array(ARRAY, 1).array(0, 2).raw(&[1, 2]);
    file.array(STRING, 1).string(b"deep");
    file.array(4, 0);
    file.key("none", ARRAY).array(ARRAY, 0);
    file.tensor("token_embd.weight", &[32, 3], 2, 0);
    file.tensor("output_norm.weight", &[32], 0, 64);
    file.tensor("scalar", &[], 1, 192);
    file.tensor("experts", &[4, 2, 2, 1], 30, 256);
    file.data(64, 320);
    file
}
