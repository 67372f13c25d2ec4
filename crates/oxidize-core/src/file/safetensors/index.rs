//! Index of a sharded model, `model.safetensors.index.json`: maps tensors to files.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess};

use super::error::{Problem, SafetensorsError};
use super::read::{json_offset, without_position};
use crate::limits::{LimitExceeded, Limits};

/// Map from tensors to files.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// File names, sorted and without duplicates.
    pub(super) shards: Vec<String>,
    /// Tensor names, with indices into `shards`.
    pub(super) tensors: Vec<(String, usize)>,
}

impl Index {
    pub(super) fn parse(json: &[u8], limits: &Limits) -> Result<Index, SafetensorsError> {
        let mut input = serde_json::Deserializer::from_slice(json);
        let root = Table {
            limits,
            inner: false,
        };
        let parsed = root.deserialize(&mut input).and_then(|map| {
            input.end()?;
            Ok(map)
        });
        let pairs = parsed.map_err(|error| SafetensorsError {
            tensor: None,
            offset: json_offset(json, &error),
            problem: Problem::Json(without_position(&error)),
        })?;

        let mut shards: Vec<&str> = pairs.iter().map(|(_, shard)| shard.as_ref()).collect();
        shards.sort_unstable();
        shards.dedup();
        let error = |problem| SafetensorsError {
            tensor: None,
            offset: 0,
            problem,
        };
        LimitExceeded::check("parts", shards.len() as u64, limits.parts)
            .map_err(|limit| error(Problem::Limit(limit)))?;
        if let Some(bad) = shards.iter().find(|name| !is_plain_file_name(name)) {
            return Err(error(Problem::ShardName((*bad).to_owned())));
        }
        let shards: Vec<String> = shards.into_iter().map(str::to_owned).collect();
        let file_of = |shard: &str| shards.binary_search_by(|name| name.as_str().cmp(shard));
        let tensors = pairs
            .into_iter()
            .filter_map(|(tensor, shard)| Some((tensor, file_of(&shard).ok()?)))
            .collect();
        Ok(Index { shards, tensors })
    }
}

/// True for names of files in the same directory.
fn is_plain_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', ':', '\0'])
}

/// Parser of `{"metadata": …, "weight_map": {"tensor": "file", …}}`, or of the inner map.
#[derive(Clone, Copy)]
struct Table<'l> {
    limits: &'l Limits,
    /// True for the inner map.
    inner: bool,
}

type Pairs<'de> = Vec<(String, Cow<'de, str>)>;

impl<'de> DeserializeSeed<'de> for Table<'_> {
    type Value = Pairs<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Pairs<'de>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> de::Visitor<'de> for Table<'_> {
    type Value = Pairs<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.inner {
            false => "an object with a weight_map",
            true => "an object from tensor names to file names",
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
        if !self.inner {
            let mut pairs = None;
            while let Some(field) = map.next_key::<Cow<'de, str>>()? {
                if field == "weight_map" && pairs.is_none() {
                    pairs = Some(map.next_value_seed(Table {
                        inner: true,
                        ..self
                    })?);
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            return pairs.ok_or_else(|| A::Error::missing_field("weight_map"));
        }
        let mut pairs = Pairs::new();
        while let Some(pair) = map.next_entry::<String, Cow<'de, str>>()? {
            let n = pairs.len() as u64 + 1;
            LimitExceeded::check("tensors", n, self.limits.tensors).map_err(A::Error::custom)?;
            pairs.push(pair);
        }
        Ok(pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_shards_once() {
        let json = br#"{"metadata":{"total_size":8},"weight_map":{"a":"2.safetensors","b":"1.safetensors","c":"2.safetensors"}}"#;
        let index = Index::parse(json, &Limits::default()).unwrap();
        assert_eq!(index.shards, ["1.safetensors", "2.safetensors"]);
        assert_eq!(
            index.tensors,
            [("a".into(), 1), ("b".into(), 0), ("c".into(), 1)]
        );
    }

    #[test]
    fn refuses_paths_outside_the_directory() {
        for name in [
            "../x.safetensors",
            "/etc/passwd",
            "a/b",
            "..",
            "",
            "c:x",
            r"a\\b",
        ] {
            let json = format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#);
            let error = Index::parse(json.as_bytes(), &Limits::default()).unwrap_err();
            assert!(
                matches!(error.problem, Problem::ShardName(_)),
                "{name}: {error}"
            );
        }
    }
}
