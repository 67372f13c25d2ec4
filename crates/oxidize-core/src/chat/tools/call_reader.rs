//! [`CallReader`]: calls written as JSON, told while they are written.

use super::is_name;
use super::json::{ARGUMENT_KEYS, ID_KEYS, NAME_KEYS};

/// Reads calls of the form `{"name": …, "arguments": {…}}`, one, several in a row or a list of them, as their text
/// comes. What has another form is passed over, and so is all that follows it: what was told is always the
/// beginning of what was called.
#[derive(Clone, Debug, Default)]
pub struct CallReader {
    depth: usize,
    /// How deep the fields of a call are: in a list one deeper.
    fields_at: usize,
    in_string: bool,
    escaped: bool,
    /// The string being read, and the one read last: a key, a name, an id.
    string: String,
    field: Option<String>,
    name: Option<String>,
    id: Option<String>,
    in_arguments: bool,
    /// The arguments of the call that is being read have been told.
    told: bool,
    /// Something came that is told no more.
    lost: bool,
    n_calls: usize,
}

/// A piece of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallPiece {
    /// A call begins.
    Start {
        /// Its id, if the model wrote one.
        id: Option<String>,
        /// What is called.
        name: String,
    },
    /// More of the arguments of the call that began last, as JSON text.
    Arguments(String),
}

impl CallReader {
    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) -> Vec<CallPiece> {
        let mut pieces = Vec::new();
        let mut arguments = String::new();
        for c in text.chars() {
            if self.lost {
                break;
            }
            let was_inside = self.in_arguments;
            self.step(c, &mut pieces);
            if was_inside || self.in_arguments {
                arguments.push(c);
            }
            if was_inside && !self.in_arguments {
                pieces.push(CallPiece::Arguments(std::mem::take(&mut arguments)));
            }
        }
        if !arguments.is_empty() {
            pieces.push(CallPiece::Arguments(arguments));
        }
        pieces
    }

    /// How many calls have begun.
    pub fn n_calls(&self) -> usize {
        self.n_calls
    }

    /// Whether everything that was opened has been closed.
    pub(in crate::chat) fn is_closed(&self) -> bool {
        self.depth == 0
    }

    fn step(&mut self, c: char, pieces: &mut Vec<CallPiece>) {
        if self.in_string {
            return self.step_string(c);
        }
        let in_fields = self.depth > 0 && self.depth == self.fields_at;
        match c {
            '"' => {
                self.in_string = true;
                self.string.clear();
            }
            ':' if in_fields => self.field = Some(std::mem::take(&mut self.string)),
            ',' if in_fields => self.field = None,
            '{' | '[' => self.open(c, pieces),
            '}' | ']' => self.close(),
            ',' | ';' => {}
            // Prose, where a call could begin.
            c if self.depth == 0 && !c.is_whitespace() => self.lost = true,
            _ => {}
        }
    }

    fn open(&mut self, c: char, pieces: &mut Vec<CallPiece>) {
        if self.depth == 0 {
            self.fields_at = if c == '[' { 2 } else { 1 };
        }
        if self.depth + 1 == self.fields_at {
            (self.field, self.name, self.id) = (None, None, None);
            self.told = false;
        }
        let is_arguments = self.depth == self.fields_at && is(&self.field, &ARGUMENT_KEYS);
        if c == '{' && is_arguments && !self.told {
            match self.name.take().filter(|name| is_name(name)) {
                Some(name) => {
                    let id = self.id.take();
                    pieces.push(CallPiece::Start { id, name });
                    self.n_calls += 1;
                    (self.in_arguments, self.told) = (true, true);
                }
                None => self.lost = true,
            }
        }
        self.depth += 1;
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        if self.depth == self.fields_at {
            self.in_arguments = false;
            self.field = None;
        } else if self.depth + 1 == self.fields_at && !self.told {
            // A call whose arguments were not an object, or came before its name.
            self.lost = true;
        }
    }

    fn step_string(&mut self, c: char) {
        match c {
            _ if self.escaped => self.escaped = false,
            '\\' => self.escaped = true,
            '"' => {
                self.in_string = false;
                if self.depth == self.fields_at {
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
        if self.depth == self.fields_at {
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

    /// The calls as they were told, in pieces of `size` characters.
    fn read(text: &str, size: usize) -> Vec<(Option<String>, String, String)> {
        let mut reader = CallReader::default();
        let mut calls = Vec::new();
        let chars: Vec<char> = text.chars().collect();
        for chunk in chars.chunks(size) {
            for piece in reader.push(&chunk.iter().collect::<String>()) {
                match piece {
                    CallPiece::Start { id, name } => calls.push((id, name, String::new())),
                    CallPiece::Arguments(text) => calls.last_mut().unwrap().2.push_str(&text),
                }
            }
        }
        assert_eq!(reader.n_calls(), calls.len());
        calls
    }

    fn told(text: &str) -> Vec<(Option<String>, String, String)> {
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
    fn calls_stream_however_the_text_is_cut() {
        let first = r#"{"x": "}\"{", "y": [1, {"name": "no"}]}"#;
        let list =
            format!(r#"[ {{"name": "a", "arguments": {first}}}, {{"name":"b","arguments":{{}}}}]"#);
        assert_eq!(told(&list), [call("a", first), call("b", "{}")]);
        let row = "{\"name\": \"a\", \"parameters\": {\"x\": 1}}\n{\"id\": \"7\", \"name\": \"b\", \"arguments\": {}}";
        assert_eq!(
            told(row),
            [
                call("a", r#"{"x": 1}"#),
                (Some("7".into()), "b".into(), "{}".into())
            ]
        );
        // As soon as it is there.
        let mut reader = CallReader::default();
        let pieces = reader.push(r#"{"name":"a","arguments":{"x":1"#);
        assert_eq!(pieces.len(), 2);
        assert_eq!(reader.push(",2"), [CallPiece::Arguments(",2".into())]);
    }

    #[test]
    fn what_has_another_form_is_passed_over() {
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
            assert_eq!(told(text), [], "{text}");
        }
        let mixed =
            r#"[{"name": "a", "arguments": {}}, {"name": "b"}, {"name": "c", "arguments": {}}]"#;
        assert_eq!(told(mixed), [call("a", "{}")]);
    }
}
