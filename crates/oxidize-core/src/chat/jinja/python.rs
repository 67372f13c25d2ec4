//! Python's `str()`, `repr()` and `json.dumps()` of values, whose output template authors expect.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::budget::{Budget, BudgetWriter};

/// `str(value)`; an undefined value is empty, as in Jinja.
pub(super) fn to_str(value: &Value, budget: &Budget) -> Result<String, Error> {
    let mut out = budget.writer();
    write_str(value, &mut out)?;
    Ok(out.finish())
}

fn write_str(value: &Value, out: &mut BudgetWriter) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.push(text),
        None if value.is_undefined() => Ok(()),
        None => write_repr(value, out),
    }
}

fn write_repr(value: &Value, out: &mut BudgetWriter) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => out.push("Undefined"),
        ValueKind::None => out.push("None"),
        ValueKind::Bool => out.push(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push(&number(value)),
        ValueKind::String => out.push(&quote(value.as_str().unwrap_or(""))),
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() {
                ("(", ")")
            } else {
                ("[", "]")
            };
            out.enter()?;
            out.push(open)?;
            let mut n = 0;
            for item in value.try_iter()? {
                if n > 0 {
                    out.push(", ")?;
                }
                write_repr(&item, out)?;
                n += 1;
            }
            if n == 1 && value.is_tuple() {
                out.push(",")?;
            }
            out.push(close)?;
            out.leave();
            Ok(())
        }
        ValueKind::Map => {
            out.enter()?;
            out.push("{")?;
            for (n, (key, item)) in pairs(value).enumerate() {
                if n > 0 {
                    out.push(", ")?;
                }
                write_repr(&key, out)?;
                out.push(": ")?;
                write_repr(&item, out)?;
            }
            out.push("}")?;
            out.leave();
            Ok(())
        }
        _ => out.push(&value.to_string()),
    }
}

/// Arguments of `json.dumps` used by templates.
#[derive(Debug, Clone, Default)]
pub(super) struct JsonStyle {
    pub(super) indent: Option<usize>,
    pub(super) ensure_ascii: bool,
    pub(super) sort_keys: bool,
    /// Separator of items, and of key and value.
    pub(super) separators: Option<(String, String)>,
}

/// `json.dumps(value, ensure_ascii=False, …)`.
pub(super) fn to_json(value: &Value, style: &JsonStyle, budget: &Budget) -> Result<String, Error> {
    let mut out = budget.writer();
    write_json(value, style, &mut out)?;
    Ok(out.finish())
}

fn write_json(value: &Value, style: &JsonStyle, out: &mut BudgetWriter) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push("null"),
        ValueKind::Bool => out.push(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push(&json_number(value)),
        ValueKind::String => out.push(&json_string(
            value.as_str().unwrap_or(""),
            style.ensure_ascii,
        )),
        ValueKind::Seq | ValueKind::Iterable => write_items(
            value.try_iter()?.collect(),
            ("[", "]"),
            style,
            out,
            |item: &Value, out| write_json(item, style, out),
        ),
        ValueKind::Map => {
            let mut items: Vec<(Value, Value)> = pairs(value).collect();
            if style.sort_keys {
                items.sort_by(|a, b| a.0.cmp(&b.0));
            }
            let colon = style
                .separators
                .as_ref()
                .map_or(": ", |separators| separators.1.as_str());
            write_items(items, ("{", "}"), style, out, |(key, item), out| {
                let key = match key.kind() {
                    ValueKind::String => {
                        json_string(key.as_str().unwrap_or(""), style.ensure_ascii)
                    }
                    ValueKind::None => "\"null\"".to_owned(),
                    ValueKind::Bool => format!("\"{}\"", key.is_true()),
                    _ => format!("\"{}\"", json_number(key)),
                };
                out.push(&key)?;
                out.push(colon)?;
                write_json(item, style, out)
            })
        }
        kind => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a value of kind {kind} is not JSON serializable"),
        )),
    }
}

fn write_items<T>(
    items: Vec<T>,
    brackets: (&str, &str),
    style: &JsonStyle,
    out: &mut BudgetWriter,
    write: impl Fn(&T, &mut BudgetWriter) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(brackets.0)?;
    if items.is_empty() {
        return out.push(brackets.1);
    }
    out.enter()?;
    let comma = match (&style.separators, style.indent) {
        (Some(separators), _) => separators.0.as_str(),
        (None, Some(_)) => ",",
        (None, None) => ", ",
    };
    for (n, item) in items.iter().enumerate() {
        if n > 0 {
            out.push(comma)?;
        }
        new_line(style, out)?;
        write(item, out)?;
    }
    out.leave();
    new_line(style, out)?;
    out.push(brackets.1)
}

fn new_line(style: &JsonStyle, out: &mut BudgetWriter) -> Result<(), Error> {
    match style.indent {
        Some(indent) => {
            out.push("\n")?;
            out.push(&" ".repeat(indent.min(64) * out.depth()))
        }
        None => Ok(()),
    }
}

fn json_string(text: &str, ensure_ascii: bool) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c if ensure_ascii && !c.is_ascii() => {
                let mut units = [0u16; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn json_number(value: &Value) -> String {
    match number(value).as_str() {
        "nan" => "NaN".to_owned(),
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        text => text.to_owned(),
    }
}

/// `repr` of an int or a float.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(float) = f64::try_from(value.clone()) else {
        return value.to_string();
    };
    float_repr(float)
}

/// `repr(float)`: shortest digits that round-trip, with an exponent outside 1e-4 … 1e16.
fn float_repr(float: f64) -> String {
    if float.is_nan() {
        return "nan".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let magnitude = float.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{float:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let text = format!("{float}");
    if text.contains('.') {
        text
    } else {
        text + ".0"
    }
}

/// `repr(str)`: in double quotes if the text contains single but no double quotes, else in single quotes.
fn quote(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                out.push_str(&format!("\\x{:02x}", c as u32))
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// Entries of a map, in order.
pub(super) fn pairs(value: &Value) -> impl Iterator<Item = (Value, Value)> {
    value
        .as_object()
        .and_then(|object| object.try_iter_pairs())
        .into_iter()
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> Budget {
        Budget::new(1 << 20, 1 << 16)
    }

    #[test]
    fn floats_print_as_in_python() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (1e-5, "1e-05"),
            (1e-4, "0.0001"),
            (-2.5e-7, "-2.5e-07"),
            (1.5e300, "1.5e+300"),
            (0.0, "0.0"),
        ];
        for (float, text) in cases {
            assert_eq!(float_repr(float), text);
        }
    }

    #[test]
    fn strings_and_containers_print_as_in_python() {
        let list = Value::from(vec![
            Value::from("it's"),
            Value::from("a\n\"'"),
            Value::from(true),
            Value::from(()),
        ]);
        assert_eq!(
            to_str(&list, &budget()).unwrap(),
            r#"["it's", 'a\n"\'', True, None]"#
        );
        assert_eq!(to_str(&Value::UNDEFINED, &budget()).unwrap(), "");
        let map = Value::from_pairs([("a", Value::from(1)), ("b", Value::from(2.0))]);
        assert_eq!(to_str(&map, &budget()).unwrap(), "{'a': 1, 'b': 2.0}");
    }

    #[test]
    fn json_matches_json_dumps() {
        let map = Value::from_pairs([
            ("é", Value::from(vec![1, 2])),
            ("b", Value::from("<\u{1}\">")),
        ]);
        let json = |style: &JsonStyle| to_json(&map, style, &budget()).unwrap();
        assert_eq!(
            json(&JsonStyle::default()),
            r#"{"é": [1, 2], "b": "<\u0001\">"}"#
        );
        let indented = JsonStyle {
            indent: Some(2),
            sort_keys: true,
            ..Default::default()
        };
        assert_eq!(
            json(&indented),
            "{\n  \"b\": \"<\\u0001\\\">\",\n  \"é\": [\n    1,\n    2\n  ]\n}"
        );
        let ascii = JsonStyle {
            ensure_ascii: true,
            ..Default::default()
        };
        assert!(json(&ascii).starts_with(r#"{"\u00e9": "#));
    }

    #[test]
    fn nesting_and_size_are_limited() {
        let mut deep = Value::from(1);
        for _ in 0..200 {
            deep = Value::from(vec![deep]);
        }
        assert!(to_str(&deep, &budget()).is_err());
        assert!(to_json(&deep, &JsonStyle::default(), &budget()).is_err());
        // Small in memory, 2⁴⁰ items when printed.
        let mut wide = Value::from("x");
        for _ in 0..40 {
            wide = Value::from(vec![wide.clone(), wide]);
        }
        assert!(to_str(&wide, &budget()).is_err());
        assert!(budget().check_shape(&wide).is_err());
    }
}
