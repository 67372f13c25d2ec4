//! Calls written as Python: `[weather(city="Bern", days=3), now()]`.

use serde_json::{Map, Value as Json};

use super::reader::Reader;
use super::{Schemas, call, is_name, json};
use crate::chat::ToolCall;

/// Limit on the nesting of lists and dictionaries.
const MAX_DEPTH: usize = 64;

/// Parses JSON or, if that fails, Python calls.
pub(super) fn parse_or_json(body: &str, schemas: &Schemas) -> Option<Vec<ToolCall>> {
    json::parse(body, schemas).or_else(|| parse(body))
}

fn parse(body: &str) -> Option<Vec<ToolCall>> {
    let mut reader = Reader::new(body.trim());
    let listed = reader.take("[");
    let mut calls = Vec::new();
    loop {
        calls.push(reader.call()?);
        if !reader.take(",") && !reader.take(";") {
            break;
        }
    }
    if listed {
        reader.take("]").then_some(())?;
    }
    reader.rest.trim().is_empty().then_some(calls)
}

impl<'a> Reader<'a> {
    fn word(&mut self) -> Option<&'a str> {
        let text = self.rest.trim_start();
        let end = text
            .find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '.' | '-')))
            .unwrap_or(text.len());
        let (word, rest) = text.split_at_checked(end)?;
        self.rest = rest;
        (!word.is_empty()).then_some(word)
    }

    fn call(&mut self) -> Option<ToolCall> {
        let name = self.word()?;
        // Llama writes calls of built-in tools as `brave_search.call(query="…")`.
        let name = name.strip_suffix(".call").unwrap_or(name);
        self.take("(").then_some(())?;
        let mut arguments = Map::new();
        while !self.take(")") {
            let key = self.word()?;
            self.take("=").then_some(())?;
            arguments.insert(key.to_owned(), self.expression(0)?);
            if !self.take(",") {
                self.take(")").then_some(())?;
                break;
            }
        }
        is_name(name).then(|| call(name, Json::Object(arguments), None))
    }

    fn expression(&mut self, depth: usize) -> Option<Json> {
        if depth > MAX_DEPTH {
            return None;
        }
        let text = self.rest.trim_start();
        match text.chars().next()? {
            quote @ ('"' | '\'') => self.string(quote).map(Json::String),
            '[' | '(' => {
                let close = if self.take("[") {
                    "]"
                } else {
                    self.take("(").then_some(")")?
                };
                let mut items = Vec::new();
                while !self.take(close) {
                    items.push(self.expression(depth + 1)?);
                    if !self.take(",") {
                        self.take(close).then_some(())?;
                        break;
                    }
                }
                Some(Json::Array(items))
            }
            '{' => {
                self.take("{");
                let mut map = Map::new();
                while !self.take("}") {
                    let quote = self.rest.trim_start().chars().next()?;
                    let key = self.string(quote)?;
                    self.take(":").then_some(())?;
                    map.insert(key, self.expression(depth + 1)?);
                    if !self.take(",") {
                        self.take("}").then_some(())?;
                        break;
                    }
                }
                Some(Json::Object(map))
            }
            _ => self.literal(),
        }
    }

    fn literal(&mut self) -> Option<Json> {
        let text = self.rest.trim_start();
        let end = text
            .find([',', ')', ']', '}', ' ', '\n'])
            .unwrap_or(text.len());
        let (word, rest) = text.split_at_checked(end)?;
        self.rest = rest;
        match word {
            "True" | "true" => Some(true.into()),
            "False" | "false" => Some(false.into()),
            "None" | "null" => Some(Json::Null),
            number => serde_json::from_str::<serde_json::Number>(number)
                .ok()
                .map(Json::Number),
        }
    }

    fn string(&mut self, quote: char) -> Option<String> {
        let text = self
            .rest
            .trim_start()
            .strip_prefix(quote)
            .filter(|_| matches!(quote, '"' | '\''))?;
        let mut out = String::new();
        let mut chars = text.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => match chars.next()?.1 {
                    'n' => out.push('\n'),
                    't' => out.push('\t'),
                    'r' => out.push('\r'),
                    other => out.push(other),
                },
                c if c == quote => {
                    self.rest = text.get(at + c.len_utf8()..)?;
                    return Some(out);
                }
                c => out.push(c),
            }
        }
        None
    }
}
