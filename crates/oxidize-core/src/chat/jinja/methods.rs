//! Filters, tests and methods with Jinja2 and Python semantics, where minijinja's differ or where
//! the output can be larger than the input.

use std::sync::Arc;

use minijinja::value::{ArgType, Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::budget::{Budget, CALL, ITEM};
use super::operators::{printf, str_format};
use super::python::{JsonStyle, pairs, to_json, to_str};

pub(super) fn register(env: &mut Environment<'_>, budget: &Budget) {
    let b = budget.clone();
    env.set_formatter(move |out, _, value| {
        if let Some(text) = value.as_str() {
            b.charge(text.len())?;
            return out.write_str(text).map_err(Error::from);
        }
        out.write_str(&to_str(value, &b)?).map_err(Error::from)
    });
    let b = budget.clone();
    env.set_unknown_method_callback(move |state, value, name, args| {
        method(state, value, name, args, &b)
    });

    let b = budget.clone();
    env.add_filter("tojson", move |value: Value, kwargs: Kwargs| {
        tojson(&value, &kwargs, &b)
    });
    let b = budget.clone();
    env.add_filter("string", move |value: Value| to_str(&value, &b));
    let b = budget.clone();
    env.add_filter(
        "join",
        move |value: Value, separator: Option<Value>, kwargs: Kwargs| {
            let separator =
                separator.map_or(Ok(String::new()), |separator| to_str(&separator, &b))?;
            let attribute: Option<Value> = kwargs.get("attribute")?;
            join(&value, &separator, attribute.as_ref(), &b)
        },
    );
    let b = budget.clone();
    env.add_filter(
        "replace",
        move |value: Value, old: Value, new: Value, count: Option<i64>| {
            let (text, old, new) = (to_str(&value, &b)?, to_str(&old, &b)?, to_str(&new, &b)?);
            replace(&text, &old, &new, count, &b)
        },
    );
    let b = budget.clone();
    env.add_filter(
        "indent",
        move |value: Value, width: Option<Value>, first: Option<bool>, kwargs: Kwargs| {
            let width = kwargs.get::<Option<Value>>("width")?.or(width);
            let first = kwargs
                .get::<Option<bool>>("first")?
                .or(first)
                .unwrap_or(false);
            let blank = kwargs.get::<Option<bool>>("blank")?.unwrap_or(false);
            indent(&to_str(&value, &b)?, width.as_ref(), first, blank, &b)
        },
    );
    let b = budget.clone();
    env.add_filter(
        "format",
        move |value: Value, args: minijinja::value::Rest<Value>| {
            printf(&to_str(&value, &b)?, &args, &b)
        },
    );
    let b = budget.clone();
    env.add_filter(
        "trim",
        move |value: Value, chars: Option<Arc<str>>| -> Result<String, Error> {
            Ok(strip(&to_str(&value, &b)?, chars.as_deref()).to_owned())
        },
    );
    register_readers(env, budget);
    register_sorters(env, budget);
    let b = budget.clone();
    env.add_filter("list", move |value: Value| list(&value, &b));
    let b = budget.clone();
    env.add_function(
        "dict",
        move |value: Option<Value>, kwargs: Kwargs| -> Result<Value, Error> {
            let mut entries: Vec<(Value, Value)> = value.iter().flat_map(pairs).collect();
            for name in kwargs.args() {
                entries.push((Value::from(name), kwargs.peek(name)?));
            }
            kwargs.assert_all_used().ok();
            let dict = Value::from_pairs(entries);
            b.check_shape(&dict)?;
            Ok(dict)
        },
    );

    // Jinja2 tests for a length and item access: strings, lists and maps are sequences.
    env.add_test("sequence", |value: Value| {
        matches!(
            value.kind(),
            ValueKind::String | ValueKind::Seq | ValueKind::Map
        )
    });
    env.add_test("iterable", |value: Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), String | Seq | Map | Iterable | Undefined)
    });
    // In Python, a whole float is not an integer, and a boolean is a number.
    env.add_test("integer", |value: Value| {
        value.kind() == ValueKind::Number && value.is_integer()
    });
    env.add_test("number", |value: Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
    env.add_test("callable", |value: Value| {
        value.to_string().starts_with("<macro") || value.kind() == ValueKind::Plain
    });
}

/// Filters of minijinja that read a whole string; reading is charged like writing.
fn register_readers(env: &mut Environment<'_>, budget: &Budget) {
    use minijinja::filters::{capitalize, length, lower, reverse, title, upper};
    let charge_text =
        |budget: &Budget, value: &Value| budget.charge(value.as_str().map_or(0, str::len));
    for (name, filter) in [
        (
            "upper",
            (|v| from_text(v, upper)) as fn(&Value) -> Result<Value, Error>,
        ),
        ("lower", |v| from_text(v, lower)),
        ("capitalize", |v| from_text(v, capitalize)),
        ("title", |v| from_text(v, title).map(Value::from)),
        ("reverse", reverse),
        ("length", |v| length(v).map(Value::from)),
        ("count", |v| length(v).map(Value::from)),
    ] {
        let b = budget.clone();
        env.add_filter(name, move |value: &Value| {
            charge_text(&b, value)?;
            filter(value)
        });
    }
}

/// Filters of minijinja that compare list entries with each other.
fn register_sorters(env: &mut Environment<'_>, budget: &Budget) {
    use minijinja::filters::{sort, unique};
    type Sorter = fn(&State, Value, Kwargs) -> Result<Value, Error>;
    for (name, filter) in [("sort", sort as Sorter), ("unique", unique)] {
        let b = budget.clone();
        env.add_filter(name, move |state: &State, value: Value, kwargs: Kwargs| {
            b.charge(value.len().unwrap_or(0).saturating_mul(2 * ITEM))?;
            filter(state, value, kwargs)
        });
    }
}

/// Calls a minijinja filter that takes a string.
fn from_text<'v, T: ArgType<'v, Output = T>, R>(
    value: &'v Value,
    filter: impl FnOnce(T) -> R,
) -> Result<R, Error> {
    T::from_value(Some(value)).map(filter)
}

fn tojson(value: &Value, kwargs: &Kwargs, budget: &Budget) -> Result<String, Error> {
    budget.charge(2 * CALL)?;
    let separators: Option<Value> = kwargs.get("separators")?;
    let separators = match separators.filter(|value| !value.is_none()) {
        Some(pair) => {
            let part = |i: usize| {
                pair.get_item_by_index(i)
                    .and_then(|part| to_str(&part, budget))
            };
            Some((part(0)?, part(1)?))
        }
        None => None,
    };
    let style = JsonStyle {
        indent: kwargs.get("indent")?,
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators,
    };
    kwargs.assert_all_used()?;
    to_json(value, &style, budget)
}

fn join(
    value: &Value,
    separator: &str,
    attribute: Option<&Value>,
    budget: &Budget,
) -> Result<String, Error> {
    let mut out = budget.writer();
    for (n, item) in value.try_iter()?.enumerate() {
        if n > 0 {
            out.push(separator)?;
        }
        let item = match attribute {
            Some(attribute) => item.get_item(attribute)?,
            None => item,
        };
        match item.as_str() {
            Some(text) => out.push(text)?,
            None => out.push(&to_str(&item, budget)?)?,
        }
    }
    Ok(out.finish())
}

fn replace(
    text: &str,
    old: &str,
    new: &str,
    count: Option<i64>,
    budget: &Budget,
) -> Result<String, Error> {
    let limit = count.and_then(|count| usize::try_from(count).ok());
    let occurrences = text.matches(old).take(limit.unwrap_or(usize::MAX)).count();
    budget.charge(
        text.len()
            .saturating_add(occurrences.saturating_mul(new.len())),
    )?;
    Ok(match limit {
        Some(limit) => text.replacen(old, new, limit),
        None => text.replace(old, new),
    })
}

fn indent(
    text: &str,
    width: Option<&Value>,
    first: bool,
    blank: bool,
    budget: &Budget,
) -> Result<String, Error> {
    let prefix = match width {
        Some(width) if width.as_str().is_some() => width.as_str().unwrap_or("").to_owned(),
        Some(width) => {
            let width = width.as_usize().unwrap_or(4);
            budget.charge(width)?;
            " ".repeat(width)
        }
        None => "    ".to_owned(),
    };
    let mut out = budget.writer();
    for (n, line) in text.split('\n').enumerate() {
        if n > 0 {
            out.push("\n")?;
        }
        if (n > 0 || first) && (blank || !line.is_empty()) {
            out.push(&prefix)?;
        }
        out.push(line)?;
    }
    Ok(out.finish())
}

fn list(value: &Value, budget: &Budget) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        budget.charge(text.len().saturating_mul(size_of::<Value>()))?;
        return Ok(text.chars().map(|c| Value::from(c.to_string())).collect());
    }
    let mut items = Vec::new();
    for item in value.try_iter()? {
        budget.charge(size_of::<Value>())?;
        items.push(item);
    }
    Ok(Value::from(items))
}

fn strip<'a>(text: &'a str, chars: Option<&str>) -> &'a str {
    match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)),
        None => text.trim(),
    }
}

/// Methods of Python types that minijinja's compatibility layer lacks or does not bound.
fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
    budget: &Budget,
) -> Result<Value, Error> {
    budget.charge(CALL)?;
    let Some(text) = value.as_str() else {
        return match (value.kind(), name) {
            (ValueKind::Map, "copy") => Ok(Value::from_pairs(pairs(value))),
            (ValueKind::Seq, "copy") => list(value, budget),
            (ValueKind::Seq, "index") => {
                let (what,): (&Value,) = from_args(args)?;
                let position = value.try_iter()?.position(|item| item == *what);
                position
                    .map(Value::from)
                    .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "not in list"))
            }
            _ => pycompat::unknown_method_callback(state, value, name, args),
        };
    };
    match name {
        "replace" => {
            let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
            replace(text, old, new, count, budget).map(Value::from)
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            join(items, text, None, budget).map(Value::from)
        }
        "format" => str_format(text, args, budget).map(Value::from),
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "rsplit" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
            let limit = limit
                .and_then(|limit| usize::try_from(limit).ok())
                .unwrap_or(usize::MAX)
                .saturating_add(1);
            let mut parts: Vec<&str> = match separator {
                Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
                Some(separator) => text.rsplitn(limit, separator).collect(),
                None => text
                    .trim()
                    .rsplitn(limit, char::is_whitespace)
                    .filter(|part| !part.is_empty())
                    .collect(),
            };
            parts.reverse();
            Ok(parts.into_iter().map(Value::from).collect())
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let found = if name == "partition" {
                text.split_once(separator)
            } else {
                text.rsplit_once(separator)
            };
            let parts = match (found, name) {
                (Some((head, tail)), _) => [head, separator, tail],
                (None, "partition") => [text, "", ""],
                (None, _) => ["", "", text],
            };
            Ok(Value::from(Tuple::from(parts.map(Value::from))))
        }
        "index" => {
            let (what,): (&str,) = from_args(args)?;
            let at = text
                .find(what)
                .and_then(|at| text.get(..at))
                .map(|head| head.chars().count());
            at.map(Value::from)
                .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))
        }
        "zfill" | "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            budget.charge(width)?;
            Ok(Value::from(pad(
                text,
                name,
                width,
                fill.and_then(|fill| fill.chars().next()),
            )))
        }
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn pad(text: &str, how: &str, width: usize, fill: Option<char>) -> String {
    let missing = width.saturating_sub(text.chars().count());
    let run = |c: char, n: usize| c.to_string().repeat(n);
    let space = fill.unwrap_or(' ');
    match how {
        "ljust" => text.to_owned() + &run(space, missing),
        "rjust" => run(space, missing) + text,
        "center" => {
            // Python puts the extra space on the left if both counts are odd.
            let left = missing / 2 + (missing & width & 1);
            run(space, left) + text + &run(space, missing - left)
        }
        _ => {
            let (sign, digits) = match text.strip_prefix(['+', '-']) {
                Some(digits) => (text.get(..1).unwrap_or(""), digits),
                None => ("", text),
            };
            format!("{sign}{}{digits}", run('0', missing))
        }
    }
}
