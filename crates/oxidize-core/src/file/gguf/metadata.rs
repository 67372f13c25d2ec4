//! [`Metadata`]: keys and values of a GGUF file.

use std::ops::Range;

use super::overrides::MetadataValue;
use super::value::{Array, Layout, Value, ValueType};
use crate::io::SharedBytes;

/// Keys and values, in the order of the file. Values are decoded on access.
#[derive(Clone, Debug)]
pub struct Metadata {
    header: SharedBytes,
    layout: Layout,
    entries: Vec<Entry>,
    /// Indices of `entries`, sorted by key.
    by_key: Vec<u32>,
    /// Values that replace those of the file, or add to them.
    overrides: Vec<(String, MetadataValue)>,
}

/// Ranges of a key and its value in the header.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: Range<usize>,
    pub(super) ty: ValueType,
    pub(super) value: Range<usize>,
}

impl Metadata {
    /// `by_key` contains the indices of `entries`, sorted by key.
    pub(super) fn new(
        header: SharedBytes,
        layout: Layout,
        entries: Vec<Entry>,
        by_key: Vec<u32>,
    ) -> Metadata {
        Metadata {
            header,
            layout,
            entries,
            by_key,
            overrides: Vec::new(),
        }
    }

    /// Replaces values, or adds them; of several for one key, the last counts. The error has the key and the problem.
    pub(super) fn override_with(
        &mut self,
        overrides: &[(String, MetadataValue)],
    ) -> Result<(), (String, String)> {
        for (key, value) in overrides {
            self.overrides.retain(|(other, _)| other != key);
            let value = value.replacing(self.get(key));
            let value = value.map_err(|problem| (key.clone(), problem))?;
            self.overrides.push((key.clone(), value));
        }
        Ok(())
    }

    fn overridden(&self, key: &str) -> Option<Value<'_>> {
        let mut overrides = self.overrides.iter();
        let (_, value) = overrides.find(|(other, _)| other == key)?;
        Some(value.as_value())
    }

    /// Value of `key`.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        match self.overridden(key) {
            Some(value) => Some(value),
            None => self.value(self.entry(key)?),
        }
    }

    /// Offset of the value of `key` in the file.
    pub fn value_offset(&self, key: &str) -> Option<u64> {
        Some(self.entry(key)?.value.start as u64)
    }

    /// Keys and values, in the order of the file; added ones follow.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        let stored = self.entries.iter().filter_map(|entry| {
            let key = str::from_utf8(self.key_bytes(entry)).ok()?;
            Some((key, self.overridden(key).or_else(|| self.value(entry))?))
        });
        let added = self.overrides.iter();
        let added = added.filter(|(key, _)| self.entry(key).is_none());
        stored.chain(added.map(|(key, value)| (key.as_str(), value.as_value())))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        let overrides = self.overrides.iter();
        let added = overrides.filter(|(key, _)| self.entry(key).is_none());
        self.entries.len() + added.count()
    }

    /// True if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.overrides.is_empty()
    }

    /// String value of `key`; `None` if it is missing or has another type.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    /// Non-negative integer value of `key`, of any width.
    pub fn u64(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_u64()
    }

    /// Integer value of `key`, of any width.
    pub fn i64(&self, key: &str) -> Option<i64> {
        self.get(key)?.as_i64()
    }

    /// Numeric value of `key`, rounded to `f32`.
    pub fn f32(&self, key: &str) -> Option<f32> {
        self.get(key)?.as_f32()
    }

    /// Boolean value of `key`.
    pub fn bool(&self, key: &str) -> Option<bool> {
        self.get(key)?.as_bool()
    }

    /// Array value of `key`.
    pub fn array(&self, key: &str) -> Option<Array<'_>> {
        self.get(key)?.as_array()
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        let entry_at = |index: &u32| self.entries.get(usize::try_from(*index).ok()?);
        let found = self.by_key.binary_search_by(|index| {
            entry_at(index)
                .map_or(&[][..], |entry| self.key_bytes(entry))
                .cmp(key.as_bytes())
        });
        entry_at(self.by_key.get(found.ok()?)?)
    }

    fn key_bytes(&self, entry: &Entry) -> &[u8] {
        self.header.get(entry.key.clone()).unwrap_or_default()
    }

    fn value(&self, entry: &Entry) -> Option<Value<'_>> {
        let mut input = self.header.get(entry.value.clone())?;
        Value::decode(entry.ty, &mut input, self.layout)
    }
}

/// Empty metadata, for formats without any.
impl Default for Metadata {
    fn default() -> Metadata {
        Metadata::new(
            SharedBytes::from(Vec::new()),
            Layout::V2,
            Vec::new(),
            Vec::new(),
        )
    }
}
