//! Parses and checks the header of a safetensors file. Afterwards, the tensors cover the data
//! exactly, each matches its type and shape, and names are unique.
//!
//! The JSON is not stored as a tree: a visitor converts each entry to a [`TensorInfo`].

use std::borrow::Cow;
use std::fmt;

use oxidize_kernels::quant::TensorType;
use serde::Deserialize;
use serde::de::{
    self, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess,
};

use super::error::{Problem, SafetensorsError};
use crate::file::{DimOrder, TensorInfo};
use crate::limits::{LimitExceeded, Limits};
use crate::names::sorted_without_duplicates;

/// Checked header of a safetensors file.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// Tensors in the order of the header, with absolute offsets.
    pub tensors: Vec<TensorInfo>,
    /// Entries of `__metadata__`.
    pub annotations: Vec<(String, String)>,
}

/// Bytes of the header length at the start of a file.
pub(super) const LENGTH_BYTES: u64 = 8;

/// Length of the JSON header, from the first eight bytes of a file of `file_len` bytes.
pub(super) fn header_len(
    first: &[u8],
    file_len: u64,
    limits: &Limits,
) -> Result<u64, SafetensorsError> {
    let error = |problem| SafetensorsError {
        tensor: None,
        offset: 0,
        problem,
    };
    let Some(&length) = first.first_chunk::<8>() else {
        return Err(error(Problem::Truncated {
            needed: LENGTH_BYTES,
            left: file_len,
        }));
    };
    let len = u64::from_le_bytes(length);
    LimitExceeded::check("bytes of header", len, limits.safetensors_header_bytes)
        .map_err(|limit| error(Problem::Limit(limit)))?;
    let left = file_len.saturating_sub(LENGTH_BYTES);
    if len > left {
        return Err(error(Problem::Truncated { needed: len, left }));
    }
    Ok(len)
}

/// Parses the JSON header of a file of `file_len` bytes; `json` follows the first eight bytes.
pub fn parse(json: &[u8], file_len: u64, limits: &Limits) -> Result<Header, SafetensorsError> {
    let data_start = LENGTH_BYTES.saturating_add(json.len() as u64);
    let mut visitor = HeaderVisitor {
        header: Header::default(),
        failed: None,
        limits,
    };
    let mut input = serde_json::Deserializer::from_slice(json);
    let parsed = (&mut visitor)
        .deserialize(&mut input)
        .and_then(|()| input.end());
    if let Err(error) = parsed {
        let offset = LENGTH_BYTES + json_offset(json, &error);
        let (tensor, problem) = visitor.failed.unwrap_or((None, None));
        let problem = problem.unwrap_or_else(|| Problem::Json(without_position(&error)));
        return Err(SafetensorsError {
            tensor,
            offset,
            problem,
        });
    }
    let mut header = visitor.header;
    let data_len = file_len.saturating_sub(data_start);
    for tensor in &header.tensors {
        check_size(tensor, data_len).map_err(|problem| SafetensorsError {
            tensor: Some(tensor.name.clone()),
            offset: data_start.saturating_add(tensor.offset),
            problem,
        })?;
    }
    check_names(&header.tensors, data_start)?;
    check_cover(&header.tensors, data_start, data_len)?;
    for tensor in &mut header.tensors {
        // The offset was checked above.
        tensor.offset += data_start;
    }
    Ok(header)
}

fn check_size(tensor: &TensorInfo, data_len: u64) -> Result<(), Problem> {
    let (start, len) = (tensor.offset, data_len);
    let end = start.saturating_add(tensor.bytes);
    if end > len {
        return Err(Problem::OutOfFile { start, end, len });
    }
    let too_many = || Problem::TooManyElements(tensor.shape.clone());
    // A dimension of zero would hide an overflow of the others.
    let mut others = tensor.shape.iter().filter(|&&dim| dim > 0);
    others
        .try_fold(1u64, |n, &dim| n.checked_mul(dim))
        .filter(|&n| n <= i64::MAX as u64)
        .ok_or_else(too_many)?;
    let expected = tensor
        .ty
        .bytes_for(tensor.elements())
        .ok_or_else(too_many)?;
    if expected != tensor.bytes {
        return Err(Problem::Size {
            expected,
            actual: tensor.bytes,
        });
    }
    Ok(())
}

fn check_names(tensors: &[TensorInfo], data_start: u64) -> Result<(), SafetensorsError> {
    let name = |i: usize| {
        tensors
            .get(i)
            .map_or(&[][..], |tensor| tensor.name.as_bytes())
    };
    sorted_without_duplicates(tensors.len(), name)
        .map(drop)
        .map_err(|twice| {
            let tensor = tensors.get(twice);
            SafetensorsError {
                tensor: tensor.map(|tensor| tensor.name.clone()),
                offset: data_start + tensor.map_or(0, |tensor| tensor.offset),
                problem: Problem::Duplicate,
            }
        })
}

/// Checks that every byte of data belongs to exactly one tensor.
fn check_cover(
    tensors: &[TensorInfo],
    data_start: u64,
    data_len: u64,
) -> Result<(), SafetensorsError> {
    let mut by_offset: Vec<_> = tensors.iter().collect();
    by_offset.sort_unstable_by_key(|tensor| (tensor.offset, tensor.bytes));
    let mut covered = 0;
    let mut before = "";
    for tensor in by_offset {
        let problem = if tensor.offset < covered {
            Problem::Overlap(before.to_owned())
        } else if tensor.offset > covered {
            Problem::Hole(tensor.offset - covered)
        } else {
            covered += tensor.bytes;
            before = &tensor.name;
            continue;
        };
        let offset = data_start + tensor.offset;
        return Err(SafetensorsError {
            tensor: Some(tensor.name.clone()),
            offset,
            problem,
        });
    }
    if covered < data_len {
        let problem = Problem::Tail(data_len - covered);
        return Err(SafetensorsError {
            tensor: None,
            offset: data_start + covered,
            problem,
        });
    }
    Ok(())
}

/// Byte offset of an error in `json`; serde_json counts lines and columns from 1.
pub(super) fn json_offset(json: &[u8], error: &serde_json::Error) -> u64 {
    let lines = json
        .split_inclusive(|&byte| byte == b'\n')
        .take(error.line().saturating_sub(1));
    let before: usize = lines.map(<[u8]>::len).sum();
    (before + error.column().saturating_sub(1)) as u64
}

/// Message of a JSON error without line and column.
pub(super) fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let end = text.rfind(" at line ").unwrap_or(text.len());
    text.get(..end).unwrap_or_default().to_owned()
}

/// Fills a [`Header`]; `failed` stores problems that serde errors cannot represent.
struct HeaderVisitor<'l> {
    header: Header,
    failed: Option<(Option<String>, Option<Problem>)>,
    limits: &'l Limits,
}

impl HeaderVisitor<'_> {
    fn check<E: de::Error>(
        &mut self,
        what: &'static str,
        requested: usize,
        limit: u64,
    ) -> Result<(), E> {
        LimitExceeded::check(what, requested as u64, limit).map_err(|limit| {
            let message = E::custom(limit);
            self.failed = Some((None, Some(Problem::Limit(limit))));
            message
        })
    }
}

impl<'de> DeserializeSeed<'de> for &mut HeaderVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> de::Visitor<'de> for &mut HeaderVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value_seed(Annotations(self))?;
                continue;
            }
            self.check(
                "tensors",
                self.header.tensors.len() + 1,
                self.limits.tensors,
            )?;
            self.check("bytes in a name", name.len(), self.limits.string_bytes)?;
            let max_dims = self.limits.safetensors_dimensions;
            match map.next_value_seed(Entry {
                name: &name,
                max_dims,
            }) {
                Ok(tensor) => self.header.tensors.push(TensorInfo { name, ..tensor }),
                Err(error) => {
                    self.failed.get_or_insert((None, None)).0 = Some(name);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

struct Annotations<'v, 'l>(&'v mut HeaderVisitor<'l>);

impl<'de> DeserializeSeed<'de> for Annotations<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        // MLX writes `null` for empty metadata.
        deserializer.deserialize_option(self)
    }
}

impl<'de> de::Visitor<'de> for Annotations<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_none<E: de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(entry) = map.next_entry::<String, String>()? {
            let n = self.0.header.annotations.len() + 1;
            self.0.check(
                "__metadata__ entries",
                n,
                self.0.limits.safetensors_metadata_keys,
            )?;
            self.0.header.annotations.push(entry);
        }
        Ok(())
    }
}

/// Entry of one tensor. Its offset is relative to the data.
struct Entry<'n> {
    name: &'n str,
    max_dims: u32,
}

impl<'de> DeserializeSeed<'de> for Entry<'_> {
    type Value = TensorInfo;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<TensorInfo, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> de::Visitor<'de> for Entry<'_> {
    type Value = TensorInfo;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "an object with dtype, shape and data_offsets for `{}`",
            self.name
        )
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TensorInfo, A::Error> {
        let (mut ty, mut shape, mut offsets) = (None, None, None);
        while let Some(field) = map.next_key::<Cow<'de, str>>()? {
            let again = match &*field {
                "dtype" => ty.replace(map.next_value::<Dtype>()?.0).is_some(),
                "shape" => shape
                    .replace(map.next_value_seed(Shape(self.max_dims))?)
                    .is_some(),
                "data_offsets" => offsets.replace(map.next_value::<(u64, u64)>()?).is_some(),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    false
                }
            };
            if again {
                return Err(A::Error::custom(format!(
                    "the field `{field}` occurs twice"
                )));
            }
        }
        let ty = ty.ok_or_else(|| A::Error::missing_field("dtype"))?;
        let shape = shape.ok_or_else(|| A::Error::missing_field("shape"))?;
        let (start, end) = offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?;
        let Some(bytes) = end.checked_sub(start) else {
            return Err(A::Error::custom(format!(
                "data_offsets {start}..{end} run backwards"
            )));
        };
        let order = DimOrder::FastestLast;
        Ok(TensorInfo {
            name: String::new(),
            ty,
            shape,
            file: 0,
            offset: start,
            bytes,
            order,
        })
    }
}

struct Dtype(TensorType);

impl<'de> Deserialize<'de> for Dtype {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Dtype, D::Error> {
        let name = Cow::<'de, str>::deserialize(deserializer)?;
        let known =
            TensorType::from_name(&name).filter(|ty| !ty.is_quantized() && ty.name() == name);
        known
            .map(Dtype)
            .ok_or_else(|| D::Error::custom(format!("unknown dtype `{name}`")))
    }
}

/// Shape with a maximum number of dimensions.
struct Shape(u32);

impl<'de> DeserializeSeed<'de> for Shape {
    type Value = Vec<u64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<u64>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> de::Visitor<'de> for Shape {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} dimensions", self.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u64>, A::Error> {
        let mut shape = Vec::new();
        while let Some(dim) = seq.next_element()? {
            if shape.len() as u64 == u64::from(self.0) {
                return Err(A::Error::invalid_length(shape.len() + 1, &self));
            }
            shape.push(dim);
        }
        Ok(shape)
    }
}
