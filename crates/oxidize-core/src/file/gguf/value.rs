//! Metadata values: [`Value`], and [`Array`], whose elements are decoded on access.
//!
//! Both borrow from the bytes of the header, so that large vocabularies are not copied.
//! [`super::read`] checks the bytes before; unchecked bytes do not cause panics here.

use std::borrow::Cow;

/// Metadata value.
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
    /// String that is not UTF-8, such as tokens of some vocabularies.
    Bytes(&'a [u8]),
    Array(Array<'a>),
}

impl<'a> Value<'a> {
    /// Type of the value.
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

    /// Non-negative integer of any width.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U64(v) => Some(v),
            _ => self.as_i64().and_then(|v| u64::try_from(v).ok()),
        }
    }

    /// Integer of any width that fits.
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

    /// Number of any type, rounded to `f32`.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            Value::U64(v) => Some(v as f32),
            _ => self.as_i64().map(|v| v as f32),
        }
    }

    /// Boolean.
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(v) = *self {
            Some(v)
        } else {
            None
        }
    }

    /// UTF-8 string.
    pub fn as_str(&self) -> Option<&'a str> {
        if let Value::Str(v) = *self {
            Some(v)
        } else {
            None
        }
    }

    /// Bytes of a string.
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        match *self {
            Value::Str(v) => Some(v.as_bytes()),
            Value::Bytes(v) => Some(v),
            _ => None,
        }
    }

    /// Array.
    pub fn as_array(&self) -> Option<Array<'a>> {
        if let Value::Array(v) = *self {
            Some(v)
        } else {
            None
        }
    }

    /// Decodes a value of type `ty` from the front of `input` and advances `input`.
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

/// Types of metadata values, with their ids.
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

    /// Type with this id.
    pub fn from_id(id: u32) -> Option<ValueType> {
        ValueType::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// Id of the type.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Name of the type in the format's documentation, in lower case.
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

    /// Bytes of a value; `None` for strings and arrays.
    pub fn size(self) -> Option<u64> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::String | ValueType::Array => None,
        }
    }

    /// True for integers and floats.
    pub fn is_number(self) -> bool {
        !matches!(self, ValueType::Bool | ValueType::String | ValueType::Array)
    }
}

/// Width of lengths: 32 bits in version 1, 64 bits in later ones.
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

/// Array of metadata values, decoded on access.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    element: ValueType,
    len: usize,
    payload: &'a [u8],
    layout: Layout,
}

impl<'a> Array<'a> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the array is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Type of the elements.
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// Elements in order.
    pub fn iter(&self) -> Values<'a> {
        Values {
            element: self.element,
            left: self.len,
            input: self.payload,
            layout: self.layout,
        }
    }

    /// Element at `index`: constant time for numbers; linear time for strings and arrays.
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

    /// Elements of an array of strings, as bytes.
    pub fn byte_strings(&self) -> Option<impl Iterator<Item = &'a [u8]> + use<'a>> {
        let strings = (self.element == ValueType::String).then(|| self.iter())?;
        Some(strings.filter_map(|value| value.as_bytes()))
    }

    /// Elements of an array of strings; invalid UTF-8 is replaced by U+FFFD.
    pub fn strings(&self) -> Option<impl Iterator<Item = Cow<'a, str>> + use<'a>> {
        Some(self.byte_strings()?.map(String::from_utf8_lossy))
    }

    /// Elements of an array of numbers, rounded to `f32`.
    pub fn iter_f32(&self) -> Option<impl Iterator<Item = f32> + use<'a>> {
        let numbers = self.element.is_number().then(|| self.iter())?;
        Some(numbers.filter_map(|value| value.as_f32()))
    }

    /// Elements of an array of integers or booleans; `u64` values beyond `i64` saturate.
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

    /// Array from elements encoded as in version 2 or 3.
    pub(super) fn from_payload(element: ValueType, len: usize, payload: &'a [u8]) -> Array<'a> {
        Array {
            element,
            len,
            payload,
            layout: Layout::V2,
        }
    }

    /// Encoded elements, if they are encoded as in version 2 or 3.
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

/// Elements of an [`Array`], in order.
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
        // The bytes were checked when the file was opened, so all of `left` exist.
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Values<'_> {}

/// Higher than all limits in use; the reader has already refused deeper nesting.
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
