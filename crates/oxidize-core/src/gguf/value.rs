//! Metadata values: [`Value`], and [`Array`], which is decoded only as it is walked.
//!
//! Both borrow from the bytes of the header, so that a vocabulary of 150,000 tokens costs nothing
//! until somebody reads it. The bytes were checked by [`super::read`]; nothing here can panic on
//! bytes that were not.

use std::borrow::Cow;

/// A metadata value.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the variants are the types of the format")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Str(&'a str),
    /// A string that is not UTF-8, as tokens of some vocabularies are.
    Bytes(&'a [u8]),
    Array(Array<'a>),
}

impl<'a> Value<'a> {
    /// The type that the format gives the value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F32(_) => ValueType::F32,
            Value::F64(_) => ValueType::F64,
            Value::Bool(_) => ValueType::Bool,
            Value::Str(_) | Value::Bytes(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
        }
    }

    /// An integer of any width that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U64(v) => Some(v),
            _ => self.as_i64().and_then(|v| u64::try_from(v).ok()),
        }
    }

    /// An integer of any width that fits.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::I8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U64(v) => i64::try_from(v).ok(),
            Value::I64(v) => Some(v),
            _ => None,
        }
    }

    /// A number of any kind, rounded to `f32`.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            Value::U64(v) => Some(v as f32),
            _ => self.as_i64().map(|v| v as f32),
        }
    }

    /// A bool.
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(v) = *self {
            Some(v)
        } else {
            None
        }
    }

    /// A string that is UTF-8.
    pub fn as_str(&self) -> Option<&'a str> {
        if let Value::Str(v) = *self {
            Some(v)
        } else {
            None
        }
    }

    /// A string, as its bytes.
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        match *self {
            Value::Str(v) => Some(v.as_bytes()),
            Value::Bytes(v) => Some(v),
            _ => None,
        }
    }

    /// An array.
    pub fn as_array(&self) -> Option<Array<'a>> {
        if let Value::Array(v) = *self {
            Some(v)
        } else {
            None
        }
    }

    /// Decodes a value of type `ty` from the front of `input` and moves `input` past it.
    pub(super) fn decode(ty: ValueType, input: &mut &'a [u8], layout: Layout) -> Option<Value<'a>> {
        Some(match ty {
            ValueType::U8 => Value::U8(u8::from_le_bytes(take(input)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(take(input)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(take(input)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(take(input)?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(take(input)?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(take(input)?)),
            ValueType::U64 => Value::U64(u64::from_le_bytes(take(input)?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(take(input)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(take(input)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(take(input)?)),
            ValueType::Bool => Value::Bool(take::<1>(input)? != [0]),
            ValueType::String => {
                let bytes = take_string(input, layout)?;
                match str::from_utf8(bytes) {
                    Ok(text) => Value::Str(text),
                    Err(_) => Value::Bytes(bytes),
                }
            }
            ValueType::Array => {
                let element = ValueType::from_id(u32::from_le_bytes(take(input)?))?;
                let len = take_length(input, layout)?;
                let payload = *input;
                skip_elements(element, len, input, layout, MAX_NESTING)?;
                let payload = payload.get(..payload.len() - input.len())?;
                Value::Array(Array {
                    element,
                    len,
                    payload,
                    layout,
                })
            }
        })
    }
}

/// The types of metadata values, with the ids of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the variants are the types of the format")]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [ValueType; 13] = {
        use ValueType::*;
        [
            U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64,
        ]
    };

    /// The type with this id in the format.
    pub fn from_id(id: u32) -> Option<ValueType> {
        ValueType::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The type's id in the format.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// The name that the format's documentation uses, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "uint8",
            ValueType::I8 => "int8",
            ValueType::U16 => "uint16",
            ValueType::I16 => "int16",
            ValueType::U32 => "uint32",
            ValueType::I32 => "int32",
            ValueType::F32 => "float32",
            ValueType::Bool => "bool",
            ValueType::String => "string",
            ValueType::Array => "array",
            ValueType::U64 => "uint64",
            ValueType::I64 => "int64",
            ValueType::F64 => "float64",
        }
    }

    /// Bytes of a value; `None` for strings and arrays, whose size is their own.
    pub fn size(self) -> Option<u64> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::String | ValueType::Array => None,
        }
    }

    /// Whether values are integers or floats.
    pub fn is_number(self) -> bool {
        !matches!(self, ValueType::Bool | ValueType::String | ValueType::Array)
    }
}

/// How wide lengths are: 32 bits in version 1, 64 since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    V1,
    V2,
}

impl Layout {
    pub(super) fn length_bytes(self) -> u64 {
        match self {
            Layout::V1 => 4,
            Layout::V2 => 8,
        }
    }
}

/// An array of metadata values, decoded as it is walked.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    element: ValueType,
    len: usize,
    payload: &'a [u8],
    layout: Layout,
}

impl<'a> Array<'a> {
    /// Elements in the array.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The type of every element.
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// All elements, in order.
    pub fn iter(&self) -> Values<'a> {
        Values {
            element: self.element,
            left: self.len,
            input: self.payload,
            layout: self.layout,
        }
    }

    /// One element. Numbers are found at once; strings and arrays by walking over those before.
    pub fn get(&self, index: usize) -> Option<Value<'a>> {
        if index >= self.len {
            return None;
        }
        match self.element.size() {
            Some(size) => {
                let start = index.checked_mul(usize::try_from(size).ok()?)?;
                Value::decode(self.element, &mut self.payload.get(start..)?, self.layout)
            }
            None => self.iter().nth(index),
        }
    }

    /// The elements of an array of strings, as bytes.
    pub fn byte_strings(&self) -> Option<impl Iterator<Item = &'a [u8]> + use<'a>> {
        let strings = (self.element == ValueType::String).then(|| self.iter())?;
        Some(strings.filter_map(|value| value.as_bytes()))
    }

    /// The elements of an array of strings; what is not UTF-8 is replaced by U+FFFD.
    pub fn strings(&self) -> Option<impl Iterator<Item = Cow<'a, str>> + use<'a>> {
        Some(self.byte_strings()?.map(String::from_utf8_lossy))
    }

    /// The elements of an array of numbers, rounded to `f32`.
    pub fn iter_f32(&self) -> Option<impl Iterator<Item = f32> + use<'a>> {
        let numbers = self.element.is_number().then(|| self.iter())?;
        Some(numbers.filter_map(|value| value.as_f32()))
    }

    /// The elements of an array of integers or bools; `u64` beyond `i64` saturate.
    pub fn iter_i64(&self) -> Option<impl Iterator<Item = i64> + use<'a>> {
        if matches!(
            self.element,
            ValueType::F32 | ValueType::F64 | ValueType::String | ValueType::Array
        ) {
            return None;
        }
        Some(self.iter().map(|value| match value {
            Value::Bool(v) => v.into(),
            other => other.as_i64().unwrap_or(i64::MAX),
        }))
    }

    /// An array whose elements were laid out as in a file of version 2 or 3.
    pub(super) fn from_payload(element: ValueType, len: usize, payload: &'a [u8]) -> Array<'a> {
        Array {
            element,
            len,
            payload,
            layout: Layout::V2,
        }
    }

    /// The bytes that hold the elements in a file of version 2 or 3.
    pub(super) fn payload(&self) -> Option<&'a [u8]> {
        let same = self.layout == Layout::V2 || self.element.size().is_some();
        same.then_some(self.payload)
    }
}

impl PartialEq for Array<'_> {
    fn eq(&self, other: &Array<'_>) -> bool {
        self.element == other.element && self.len == other.len && self.iter().eq(other.iter())
    }
}

impl std::fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{}; {}]", self.element.name(), self.len)
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Value<'a>;
    type IntoIter = Values<'a>;

    fn into_iter(self) -> Values<'a> {
        self.iter()
    }
}

/// The elements of an [`Array`], in order.
#[derive(Clone, Debug)]
pub struct Values<'a> {
    element: ValueType,
    left: usize,
    input: &'a [u8],
    layout: Layout,
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        Value::decode(self.element, &mut self.input, self.layout)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // The bytes were checked when the file was opened, so none of `left` can be missing.
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Values<'_> {}

/// Deeper than any limit in use; the reader has already refused what is deeper than its own.
const MAX_NESTING: u32 = 64;

fn skip_elements(
    element: ValueType,
    len: usize,
    input: &mut &[u8],
    layout: Layout,
    nesting_left: u32,
) -> Option<()> {
    match element {
        ValueType::String => {
            for _ in 0..len {
                take_string(input, layout)?;
            }
        }
        ValueType::Array => {
            let nesting_left = nesting_left.checked_sub(1)?;
            for _ in 0..len {
                let inner = ValueType::from_id(u32::from_le_bytes(take(input)?))?;
                let inner_len = take_length(input, layout)?;
                skip_elements(inner, inner_len, input, layout, nesting_left)?;
            }
        }
        _ => {
            let bytes = len.checked_mul(usize::try_from(element.size()?).ok()?)?;
            *input = input.get(bytes..)?;
        }
    }
    Some(())
}

fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = input.split_first_chunk::<N>()?;
    *input = tail;
    Some(*head)
}

fn take_length(input: &mut &[u8], layout: Layout) -> Option<usize> {
    match layout {
        Layout::V1 => usize::try_from(u32::from_le_bytes(take(input)?)).ok(),
        Layout::V2 => usize::try_from(u64::from_le_bytes(take(input)?)).ok(),
    }
}

fn take_string<'a>(input: &mut &'a [u8], layout: Layout) -> Option<&'a [u8]> {
    let len = take_length(input, layout)?;
    let (head, tail) = input.split_at_checked(len)?;
    *input = tail;
    Some(head)
}
