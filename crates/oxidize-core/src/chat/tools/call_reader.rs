//! [`CallReader`]: streams tool calls written as JSON.

use super::is_name;
use super::json::{ARGUMENT_KEYS, ID_KEYS, NAME_KEYS};

/// Streaming reader of calls of the form `{"name": …, "arguments": {…}}`: one, several in a row, or
/// a list. It stops at the first text of another form, so its output is always a prefix of the
/// calls.
#[derive(Clone, Debug, Default)]
pub struct CallReader {
    depth: usize,
    /// Nesting depth of the fields of a call; one deeper in a list.
    field_depth: usize,
    in_string: bool,
    escaped: bool,
    /// Current or last string: a key, a name or an id.
    string: String,
    field: Option<String>,
    name: Option<String>,
    id: Option<String>,
    in_arguments: bool,
    /// True once the arguments of the current call were emitted.
    emitted: bool,
    /// True once text of another form stopped the reader.
    stopped: bool,
    n_calls: usize,
}

/// Increment of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallDelta {
    /// Start of a call.
    Start {
        /// Id, if the model generated one.
        id: Option<String>,
        /// Function name.
        name: String,
    },
    /// Arguments of the current call, as JSON text.
    Arguments(String),
}

impl CallReader {
    /// Reads the next text.
    pub fn push(&mut self, text: &str) -> Vec<CallDelta> {
        let mut deltas = Vec::new();
        let mut arguments = String::new();
        for c in text.chars() {
            if self.stopped {
                break;
            }
            let was_inside = self.in_arguments;
            self.step(c, &mut deltas);
            if was_inside || self.in_arguments {
                arguments.push(c);
            }
            if was_inside && !self.in_arguments {
                deltas.push(CallDelta::Arguments(std::mem::take(&mut arguments)));
            }
        }
        if !arguments.is_empty() {
            deltas.push(CallDelta::Arguments(arguments));
        }
        deltas
    }

    /// Number of calls emitted.
    pub fn n_calls(&self) -> usize {
        self.n_calls
    }

    /// True if all opened brackets are closed.
    pub(in crate::chat) fn is_closed(&self) -> bool {
        self.depth == 0
    }

    fn step(&mut self, c: char, deltas: &mut Vec<CallDelta>) {
        if self.in_string {
            return self.step_string(c);
        }
        let in_fields = self.depth > 0 && self.depth == self.field_depth;
        match c {
            '"' => {
                self.in_string = true;
                self.string.clear();
            }
            ':' if in_fields => self.field = Some(std::mem::take(&mut self.string)),
            ',' if in_fields => self.field = None,
            '{' | '[' => self.open(c, deltas),
            '}' | ']' => self.close(),
            ',' | ';' => {}
            // Prose where a call could start.
            c if self.depth == 0 && !c.is_whitespace() => self.stopped = true,
            _ => {}
        }
    }

    fn open(&mut self, c: char, deltas: &mut Vec<CallDelta>) {
        if self.depth == 0 {
            self.field_depth = if c == '[' { 2 } else { 1 };
        }
        if self.depth + 1 == self.field_depth {
            (self.field, self.name, self.id) = (None, None, None);
            self.emitted = false;
        }
        let is_arguments = self.depth == self.field_depth && is(&self.field, &ARGUMENT_KEYS);
        if c == '{' && is_arguments && !self.emitted {
            match self.name.take().filter(|name| is_name(name)) {
                Some(name) => {
                    let id = self.id.take();
                    deltas.push(CallDelta::Start { id, name });
                    self.n_calls += 1;
                    (self.in_arguments, self.emitted) = (true, true);
                }
                None => self.stopped = true,
            }
        }
        self.depth += 1;
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        if self.depth == self.field_depth {
            self.in_arguments = false;
            self.field = None;
        } else if self.depth + 1 == self.field_depth && !self.emitted {
            // The arguments of the call are not an object, or came before its name.
            self.stopped = true;
        }
    }

    fn step_string(&mut self, c: char) {
        match c {
            _ if self.escaped => self.escaped = false,
            '\\' => self.escaped = true,
            '"' => {
                self.in_string = false;
                if self.depth == self.field_depth {
                    let text = || Some(self.string.clone());
                    if is(&self.field, &NAME_KEYS) {
                        self.name = text();
                    } else if is(&self.field, &ID_KEYS) {
                        self.id = text();
                    }
                }
                return;
            }
            _ => {}
        }
        if self.depth == self.field_depth {
            self.string.push(c);
        }
    }
}

fn is(field: &Option<String>, keys: &[&str]) -> bool {
    field.as_deref().is_some_and(|field| keys.contains(&field))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Emitted calls when the text arrives in chunks of `size` characters.
    fn read(text: &str, size: usize) -> Vec<(Option<String>, String, String)> {
        let mut reader = CallReader::default();
        let mut calls = Vec::new();
        let chars: Vec<char> = text.chars().collect();
        for chunk in chars.chunks(size) {
            for delta in reader.push(&chunk.iter().collect::<String>()) {
                match delta {
                    CallDelta::Start { id, name } => calls.push((id, name, String::new())),
                    CallDelta::Arguments(text) => calls.last_mut().unwrap().2.push_str(&text),
                }
            }
        }
        assert_eq!(reader.n_calls(), calls.len());
        calls
    }

    fn emitted(text: &str) -> Vec<(Option<String>, String, String)> {
        let whole = read(text, text.len());
        for size in [1, 2, 3, 7] {
            assert_eq!(read(text, size), whole, "{text} in pieces of {size}");
        }
        whole
    }

    fn call(name: &str, arguments: &str) -> (Option<String>, String, String) {
        (None, name.into(), arguments.into())
    }

    #[test]
    fn calls_do_not_depend_on_chunk_size() {
        let first = r#"{"x": "}\"{", "y": [1, {"name": "no"}]}"#;
        let list =
            format!(r#"[ {{"name": "a", "arguments": {first}}}, {{"name":"b","arguments":{{}}}}]"#);
        assert_eq!(emitted(&list), [call("a", first), call("b", "{}")]);
        let row = "{\"name\": \"a\", \"parameters\": {\"x\": 1}}\n{\"id\": \"7\", \"name\": \"b\", \"arguments\": {}}";
        assert_eq!(
            emitted(row),
            [
                call("a", r#"{"x": 1}"#),
                (Some("7".into()), "b".into(), "{}".into())
            ]
        );
        // Emitted as soon as possible.
        let mut reader = CallReader::default();
        let deltas = reader.push(r#"{"name":"a","arguments":{"x":1"#);
        assert_eq!(deltas.len(), 2);
        assert_eq!(reader.push(",2"), [CallDelta::Arguments(",2".into())]);
    }

    #[test]
    fn other_forms_are_skipped() {
        for text in [
            "weather[ARGS]{\"city\": \"Bern\"}",
            "```json\n{\"name\": \"a\", \"arguments\": {}}",
            r#"{"arguments": {"x": 1}, "name": "a"}"#,
            r#"{"name": "a", "arguments": "{}"}, {"name": "b", "arguments": {}}"#,
            r#"{"function": {"name": "a", "arguments": {}}}"#,
            r#"{"name": "not a name", "arguments": {}}"#,
            r#"[1, 2, {"x": {"name": "a", "arguments": {}}}]"#,
            "}]}{",
        ] {
            assert_eq!(emitted(text), [], "{text}");
        }
        let mixed =
            r#"[{"name": "a", "arguments": {}}, {"name": "b"}, {"name": "c", "arguments": {}}]"#;
        assert_eq!(emitted(mixed), [call("a", "{}")]);
    }
}
