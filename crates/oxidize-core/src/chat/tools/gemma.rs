//! Gemma's call syntax: `call:name{key:<|"|>text<|"|>,n:3}`. FunctionGemma uses `<escape>` as the
//! quote.

use serde_json::{Map, Value as Json};

use super::reader::Reader;
use super::{Schemas, call, is_name};
use crate::chat::ToolCall;

/// Limit on the nesting of lists and maps.
const MAX_DEPTH: usize = 64;
const QUOTES: [&str; 3] = ["<|\"|>", "<escape>", "\""];

pub(super) fn parse(body: &str, _: &Schemas) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    let mut rest = body.trim();
    while let Some(tail) = rest.strip_prefix("call:") {
        let (name, _) = tail.split_once('{')?;
        let mut reader = Reader::new(tail.get(name.len()..)?);
        let arguments = reader.value(0)?;
        calls.push(is_name(name.trim()).then(|| call(name.trim(), arguments, None))?);
        rest = reader.rest.trim();
    }
    rest.is_empty().then_some(calls)
}

impl<'a> Reader<'a> {
    fn quoted(&mut self) -> Option<&'a str> {
        let text = self.rest.trim_start();
        let quote = QUOTES.into_iter().find(|quote| text.starts_with(quote))?;
        let (inner, rest) = text.strip_prefix(quote)?.split_once(quote)?;
        self.rest = rest;
        Some(inner)
    }

    fn bare(&mut self, ends: &[char]) -> Option<&'a str> {
        let text = self.rest.trim_start();
        let (word, rest) = text.split_at_checked(text.find(ends)?)?;
        self.rest = rest;
        Some(word.trim())
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
        if depth > MAX_DEPTH {
            return None;
        }
        if let Some(text) = self.quoted() {
            return Some(text.into());
        }
        if self.take("{") {
            let mut map = Map::new();
            while !self.take("}") {
                let key = match self.quoted() {
                    Some(key) => key,
                    None => self.bare(&[':'])?,
                };
                self.take(":").then_some(())?;
                map.insert(key.to_owned(), self.value(depth + 1)?);
                if !self.take(",") {
                    self.take("}").then_some(())?;
                    break;
                }
            }
            return Some(Json::Object(map));
        }
        if self.take("[") {
            let mut items = Vec::new();
            while !self.take("]") {
                items.push(self.value(depth + 1)?);
                if !self.take(",") {
                    self.take("]").then_some(())?;
                    break;
                }
            }
            return Some(Json::Array(items));
        }
        let word = self.bare(&[',', '}', ']'])?;
        match word {
            "True" | "true" => Some(true.into()),
            "False" | "false" => Some(false.into()),
            "None" | "null" => Some(Json::Null),
            word => Some(serde_json::from_str(word).unwrap_or_else(|_| word.into())),
        }
    }
}
