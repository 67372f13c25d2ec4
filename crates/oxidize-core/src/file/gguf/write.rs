//! [`Writer`]: writes GGUF files tensor by tensor.
//!
//! Metadata and the tensor table are kept in memory; tensor data is written directly by a callback.
//! The output is deterministic.

use std::collections::HashSet;
use std::io::{self, Write};

use oxidize_kernels::quant::TensorType;

use super::value::{Array, Value, ValueType};
use super::{DEFAULT_ALIGNMENT, INT8_KEY, MAGIC};
use crate::limits::Limits;

/// Version of the written files.
const VERSION: u32 = 3;

/// Builder of a GGUF file: add all keys and tensors, then call [`Writer::write`].
///
/// ```
/// use oxidize_core::gguf::{Value, Writer};
/// use oxidize_kernels::quant::TensorType;
///
/// let mut writer = Writer::new();
/// writer.key("general.architecture", &Value::Str("llama"))?;
/// writer.tensor("output.weight", TensorType::F32, &[2, 1])?;
/// let mut file = Vec::new();
/// writer.write(&mut file, |_, out| {
///     out.write_all(&1f32.to_le_bytes())?;
///     out.write_all(&2f32.to_le_bytes())?;
///     Ok::<_, Box<dyn std::error::Error>>(())
/// })?;
/// assert!(file.starts_with(b"GGUF"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Writer {
    keys: HashSet<String>,
    metadata: Vec<u8>,
    alignment: Option<u64>,
    names: HashSet<String>,
    tensors: Vec<Planned>,
}

/// Tensor that will be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Name.
    pub name: String,
    /// Type.
    pub ty: TensorType,
    /// Shape, fastest-varying dimension first.
    pub shape: Vec<u64>,
    /// Bytes of the data.
    pub bytes: u64,
}

/// Error of writing a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// A key or tensor was added twice.
    #[error("`{0}` was added twice")]
    Duplicate(String),
    /// `general.alignment` is not a power of two within [`Limits`].
    #[error("the alignment is not a power of two that readers accept")]
    Alignment,
    /// The format does not have the type.
    #[error("tensor `{0}`: GGUF has no type {1}")]
    TensorType(String, TensorType),
    /// The rows are not whole blocks, or the shape is too large or has too many dimensions.
    #[error("tensor `{name}`: {shape:?} is not up to four dimensions in whole blocks of {ty}")]
    Shape {
        /// Tensor.
        name: String,
        /// Type.
        ty: TensorType,
        /// Shape.
        shape: Vec<u64>,
    },
    /// The callback wrote a wrong number of bytes.
    #[error("tensor `{name}`: {written} bytes written, {expected} announced")]
    Size {
        /// Tensor.
        name: String,
        /// Bytes of the tensor.
        expected: u64,
        /// Bytes written.
        written: u64,
    },
    /// The size of the file exceeds 64 bits.
    #[error("the tensors are larger than a file can be")]
    TooLarge,
    /// An array of strings or arrays comes from a file of version 1.
    #[error("key `{0}`: arrays of version 1 cannot be copied")]
    OldArray(String),
    /// The output failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Writer {
    /// Creates an empty file.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Adds a key. `general.alignment` applies to the tensors.
    pub fn key(&mut self, key: &str, value: &Value<'_>) -> Result<(), WriteError> {
        let alignment = match key {
            "general.alignment" => {
                let most = Limits::default().alignment;
                let alignment = value.as_u64().filter(|n| n.is_power_of_two() && *n <= most);
                Some(alignment.ok_or(WriteError::Alignment)?)
            }
            _ => self.alignment,
        };
        let mut encoded = Vec::new();
        put_string(&mut encoded, key.as_bytes());
        encoded.extend(value.value_type().id().to_le_bytes());
        put_value(&mut encoded, value).ok_or_else(|| WriteError::OldArray(key.to_owned()))?;
        if !self.keys.insert(key.to_owned()) {
            return Err(WriteError::Duplicate(key.to_owned()));
        }
        self.alignment = alignment;
        self.metadata.extend(encoded);
        Ok(())
    }

    /// Adds a tensor; the fastest-varying dimension comes first in its shape.
    pub fn tensor(&mut self, name: &str, ty: TensorType, shape: &[u64]) -> Result<(), WriteError> {
        if ty.gguf_id().is_none() {
            return Err(WriteError::TensorType(name.to_owned(), ty));
        }
        if ty == TensorType::INT8 && !self.keys.contains(INT8_KEY) {
            self.key(INT8_KEY, &Value::Bool(true))?;
        }
        let whole_rows = shape
            .first()
            .unwrap_or(&1)
            .is_multiple_of(ty.block_len() as u64);
        let elements = shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim));
        let few_dims = shape.len() as u64 <= Limits::default().gguf_dimensions.into();
        let bytes = elements
            .and_then(|n| ty.bytes_for(n))
            .filter(|_| whole_rows && few_dims);
        let (name, shape) = (name.to_owned(), shape.to_vec());
        let Some(bytes) = bytes else {
            return Err(WriteError::Shape { name, ty, shape });
        };
        if !self.names.insert(name.clone()) {
            return Err(WriteError::Duplicate(name));
        }
        self.tensors.push(Planned {
            name,
            ty,
            shape,
            bytes,
        });
        Ok(())
    }

    /// Tensors that will be written, in order.
    pub fn tensors(&self) -> &[Planned] {
        &self.tensors
    }

    /// Size of the file in bytes.
    pub fn file_len(&self) -> Result<u64, WriteError> {
        let header = self.header()?.len() as u64;
        let last = self.tensors.len().checked_sub(1);
        let data = last.map_or(Ok(0), |last| {
            let end = self.offsets()?.get(last).copied().unwrap_or(0);
            let bytes = self.tensors.get(last).map_or(0, |tensor| tensor.bytes);
            let padded = bytes.checked_next_multiple_of(self.alignment());
            padded
                .and_then(|bytes| bytes.checked_add(end))
                .ok_or(WriteError::TooLarge)
        })?;
        header.checked_add(data).ok_or(WriteError::TooLarge)
    }

    /// Writes the file. `data` is called for each tensor in order to write its bytes.
    pub fn write<W: Write, E: From<WriteError>>(
        &self,
        mut out: W,
        mut data: impl FnMut(&Planned, &mut dyn Write) -> Result<(), E>,
    ) -> Result<(), E> {
        let io_error = |error| E::from(WriteError::Io(error));
        out.write_all(&self.header().map_err(E::from)?)
            .map_err(io_error)?;
        for tensor in &self.tensors {
            let mut counted = Counted {
                out: &mut out,
                written: 0,
            };
            data(tensor, &mut counted)?;
            if counted.written != tensor.bytes {
                let (name, expected) = (tensor.name.clone(), tensor.bytes);
                let written = counted.written;
                return Err(E::from(WriteError::Size {
                    name,
                    expected,
                    written,
                }));
            }
            pad(&mut out, tensor.bytes, self.alignment()).map_err(io_error)?;
        }
        out.flush().map_err(io_error)
    }

    /// Writes everything before the tensor data.
    ///
    /// With values of the same lengths, the header has the same length and can replace that of a
    /// written file.
    pub fn write_header(&self, out: &mut impl Write) -> Result<(), WriteError> {
        Ok(out.write_all(&self.header()?)?)
    }

    /// Alignment of the tensor data.
    pub fn alignment(&self) -> u64 {
        self.alignment.unwrap_or(DEFAULT_ALIGNMENT)
    }

    /// Everything before the data, including the padding if there is data.
    fn header(&self) -> Result<Vec<u8>, WriteError> {
        let mut header = Vec::new();
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.keys.len() as u64).to_le_bytes());
        header.extend(&self.metadata);
        for (tensor, offset) in self.tensors.iter().zip(self.offsets()?) {
            let Some(id) = tensor.ty.gguf_id() else {
                return Err(WriteError::TensorType(tensor.name.clone(), tensor.ty));
            };
            put_string(&mut header, tensor.name.as_bytes());
            header.extend((tensor.shape.len() as u32).to_le_bytes());
            header.extend(tensor.shape.iter().flat_map(|dim| dim.to_le_bytes()));
            header.extend(id.to_le_bytes());
            header.extend(offset.to_le_bytes());
        }
        if !self.tensors.is_empty() {
            let len = header.len() as u64;
            pad(&mut header, len, self.alignment())?;
        }
        Ok(header)
    }

    /// Offsets of the tensors in the data.
    fn offsets(&self) -> Result<Vec<u64>, WriteError> {
        let mut next = 0u64;
        let mut offsets = Vec::with_capacity(self.tensors.len());
        for tensor in &self.tensors {
            offsets.push(next);
            let end = next.checked_add(tensor.bytes);
            let padded = end.and_then(|end| end.checked_next_multiple_of(self.alignment()));
            next = padded.ok_or(WriteError::TooLarge)?;
        }
        Ok(offsets)
    }
}

/// Array built from values, for writing.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayBuf {
    element: ValueType,
    len: usize,
    payload: Vec<u8>,
}

impl ArrayBuf {
    /// Creates an array of strings.
    pub fn strings<S: AsRef<[u8]>>(strings: impl IntoIterator<Item = S>) -> ArrayBuf {
        let mut array = ArrayBuf::empty(ValueType::String);
        for string in strings {
            put_string(&mut array.payload, string.as_ref());
            array.len += 1;
        }
        array
    }

    /// Creates an array of type `element`; `None` if a value has another type.
    pub fn values<'a>(
        element: ValueType,
        values: impl IntoIterator<Item = Value<'a>>,
    ) -> Option<ArrayBuf> {
        let mut array = ArrayBuf::empty(element);
        for value in values {
            if value.value_type() != element {
                return None;
            }
            put_value(&mut array.payload, &value)?;
            array.len += 1;
        }
        Some(array)
    }

    /// Array as a metadata value, for `Value::Array(buf.as_array())`.
    pub fn as_array(&self) -> Array<'_> {
        Array::from_payload(self.element, self.len, &self.payload)
    }

    fn empty(element: ValueType) -> ArrayBuf {
        ArrayBuf {
            element,
            len: 0,
            payload: Vec::new(),
        }
    }
}

/// Owned [`Value`].
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variants are those of Value")]
pub enum ValueBuf {
    U16(u16),
    U32(u32),
    I32(i32),
    U64(u64),
    F32(f32),
    Bool(bool),
    Str(String),
    Array(ArrayBuf),
}

impl ValueBuf {
    /// Borrows the value.
    pub fn as_value(&self) -> Value<'_> {
        match self {
            ValueBuf::U16(n) => Value::U16(*n),
            ValueBuf::U32(n) => Value::U32(*n),
            ValueBuf::I32(n) => Value::I32(*n),
            ValueBuf::U64(n) => Value::U64(*n),
            ValueBuf::F32(x) => Value::F32(*x),
            ValueBuf::Bool(flag) => Value::Bool(*flag),
            ValueBuf::Str(text) => Value::Str(text),
            ValueBuf::Array(list) => Value::Array(list.as_array()),
        }
    }
}

impl From<&str> for ValueBuf {
    fn from(text: &str) -> ValueBuf {
        ValueBuf::Str(text.to_owned())
    }
}

macro_rules! array_of_numbers {
    ($($name:ident: $number:ty => $element:ident),*) => {
        impl ArrayBuf {
            $(
                #[doc = concat!("An array of `", stringify!($number), "`.")]
                pub fn $name(numbers: impl IntoIterator<Item = $number>) -> ArrayBuf {
                    let mut array = ArrayBuf::empty(ValueType::$element);
                    for number in numbers {
                        array.payload.extend(number.to_le_bytes());
                        array.len += 1;
                    }
                    array
                }
            )*
        }
    };
}
array_of_numbers!(u32s: u32 => U32, i32s: i32 => I32, u64s: u64 => U64, f32s: f32 => F32);

/// Appends a value; `None` for an array encoded as in version 1.
fn put_value(out: &mut Vec<u8>, value: &Value<'_>) -> Option<()> {
    match *value {
        Value::U8(v) => out.push(v),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(v.into()),
        Value::Str(v) => put_string(out, v.as_bytes()),
        Value::Bytes(v) => put_string(out, v),
        Value::Array(array) => {
            let payload = array.payload()?;
            out.extend(array.element_type().id().to_le_bytes());
            out.extend((array.len() as u64).to_le_bytes());
            out.extend(payload);
        }
    }
    Some(())
}

fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

/// Writes zeros from `len` to the next multiple of `alignment`.
fn pad(out: &mut impl Write, len: u64, alignment: u64) -> io::Result<()> {
    let zeros = len
        .checked_next_multiple_of(alignment)
        .map_or(0, |end| end - len);
    io::copy(&mut io::Read::take(io::repeat(0), zeros), out).map(drop)
}

struct Counted<W> {
    out: W,
    written: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.written = self.written.saturating_add(n as u64);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
