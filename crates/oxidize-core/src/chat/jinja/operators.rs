//! Operators that can enlarge values, charged to the budget, with Python semantics for strings.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::budget::{Budget, ITEM};
use super::python::to_str;

/// `a ~ b`
pub(super) const CONCAT: &str = "~";
/// `a + b`
pub(super) const ADD: &str = "+";
/// `a * b`
pub(super) const MULTIPLY: &str = "*";
/// `a % b`
pub(super) const REMAINDER: &str = "%";
/// `a in b`
pub(super) const IN: &str = "in";
/// `[a, b, …]`
pub(super) const LIST: &str = "[]";

/// Limit on the field width of a format string; Python has none.
const MAX_WIDTH: usize = 4096;

pub(super) fn register(env: &mut Environment<'_>, budget: &Budget) {
    let b = budget.clone();
    env.add_function(CONCAT, move |left: Value, right: Value| {
        concat(&left, &right, &b)
    });
    let b = budget.clone();
    env.add_function(ADD, move |left: Value, right: Value| add(&left, &right, &b));
    let b = budget.clone();
    env.add_function(MULTIPLY, move |left: Value, right: Value| {
        multiply(&left, &right, &b)
    });
    let b = budget.clone();
    env.add_function(REMAINDER, move |left: Value, right: Value| {
        remainder(&left, &right, &b)
    });
    let b = budget.clone();
    env.add_function(
        IN,
        move |state: &State, value: &Value, container: &Value| is_in(state, value, container, &b),
    );
    let b = budget.clone();
    env.add_function(
        LIST,
        move |items: minijinja::value::Rest<Value>| -> Result<Value, Error> {
            b.charge(items.len().saturating_mul(ITEM))?;
            let list = Value::from(items.to_vec());
            b.check_shape(&list)?;
            Ok(list)
        },
    );
}

fn is_in(state: &State, value: &Value, container: &Value, budget: &Budget) -> Result<bool, Error> {
    match container.kind() {
        ValueKind::String => budget.charge(container.as_str().map_or(0, str::len))?,
        ValueKind::Seq => {
            // Entries may be lists, which are compared as a whole.
            let items = container.len().unwrap_or(0).saturating_add(4);
            budget.charge(items.saturating_mul(ITEM))?;
        }
        ValueKind::Bool | ValueKind::Number | ValueKind::None => {
            let message = format!("a {} holds nothing", container.kind());
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        _ => {}
    }
    minijinja::tests::is_in(state, value, container)
}

fn concat(left: &Value, right: &Value, budget: &Budget) -> Result<Value, Error> {
    let mut text = to_str(left, budget)?;
    text.push_str(&to_str(right, budget)?);
    Ok(Value::from(text))
}

fn add(left: &Value, right: &Value, budget: &Budget) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        budget.charge(a.len() + b.len())?;
        return match (left.is_safe(), right.is_safe()) {
            (false, false) => Ok(Value::from([a, b].concat())),
            // In Jinja2, a safe string escapes what is added to it, even if nothing else is
            // escaped.
            (true, false) => escape(b, budget).map(|b| Value::from_safe_string(a.to_owned() + &b)),
            (false, true) => escape(a, budget).map(|a| Value::from_safe_string(a + b)),
            (true, true) => Ok(Value::from_safe_string([a, b].concat())),
        };
    }
    let list = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    if list(left) && list(right) {
        let items = items(left, budget)?
            .into_iter()
            .chain(items(right, budget)?);
        return Ok(match left.is_tuple() {
            true => Value::from(Tuple::from(items.collect::<Vec<_>>())),
            false => Value::from(items.collect::<Vec<_>>()),
        });
    }
    arithmetic("+", left, right, i128::checked_add, |a, b| a + b)
}

fn escape(text: &str, budget: &Budget) -> Result<String, Error> {
    let mut out = budget.writer();
    let mut plain = 0;
    for (at, c) in text.char_indices() {
        let entity = match c {
            '&' => "&amp;",
            '<' => "&lt;",
            '>' => "&gt;",
            '"' => "&#34;",
            '\'' => "&#39;",
            _ => continue,
        };
        out.push(text.get(plain..at).unwrap_or(""))?;
        out.push(entity)?;
        plain = at + 1;
    }
    out.push(text.get(plain..).unwrap_or(""))?;
    Ok(out.finish())
}

fn multiply(left: &Value, right: &Value, budget: &Budget) -> Result<Value, Error> {
    // String times integer repeats the string; a negative integer yields an empty one.
    let times = |value: &Value| value.as_i64().map(|n| n.max(0) as usize);
    for (value, count) in [(left, right), (right, left)] {
        let Some(n) = times(count) else { continue };
        if let Some(text) = value.as_str() {
            budget.charge(text.len().saturating_mul(n))?;
            return Ok(Value::from(text.repeat(n)));
        }
        if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
            let items = items(value, budget)?;
            budget.charge(items.len().saturating_mul(n).saturating_mul(ITEM))?;
            let total = items.len() * n;
            return Ok(items.into_iter().cycle().take(total).collect());
        }
    }
    arithmetic("*", left, right, i128::checked_mul, |a, b| a * b)
}

fn remainder(left: &Value, right: &Value, budget: &Budget) -> Result<Value, Error> {
    if let Some(pattern) = left.as_str() {
        let args = if right.is_tuple() {
            right.try_iter()?.collect()
        } else {
            vec![right.clone()]
        };
        return printf(pattern, &args, budget).map(Value::from);
    }
    let modulo = |a: i128, b: i128| {
        a.checked_rem_euclid(b)
            .map(|r| if b < 0 && r > 0 { r + b } else { r })
    };
    arithmetic("%", left, right, modulo, |a, b| a - b * (a / b).floor())
}

fn arithmetic(
    operator: &str,
    left: &Value,
    right: &Value,
    integers: impl Fn(i128, i128) -> Option<i128>,
    floats: impl Fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    let failed = || {
        let message = format!(
            "{} {operator} {} is not possible",
            left.kind(),
            right.kind()
        );
        Error::new(ErrorKind::InvalidOperation, message)
    };
    let integer = |value: &Value| match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    };
    if let (Some(a), Some(b)) = (integer(left), integer(right)) {
        let result = integers(a, b).ok_or_else(failed)?;
        return Ok(i64::try_from(result).map_or_else(|_| Value::from(result), Value::from));
    }
    let float = |value: &Value| {
        integer(value)
            .map(|n| n as f64)
            .or_else(|| f64::try_from(value.clone()).ok())
    };
    match (float(left), float(right)) {
        (Some(a), Some(b)) => Ok(Value::from(floats(a, b))),
        _ => Err(failed()),
    }
}

/// Items of a list, charged to the budget.
fn items(value: &Value, budget: &Budget) -> Result<Vec<Value>, Error> {
    let mut items = Vec::new();
    for item in value.try_iter()? {
        budget.charge(ITEM)?;
        items.push(item);
    }
    Ok(items)
}

/// `pattern % args`, with arguments printed as in Python.
pub(super) fn printf(pattern: &str, args: &[Value], budget: &Budget) -> Result<String, Error> {
    formatted(FormatStyle::Printf, pattern, args, budget)
}

/// `pattern.format(*args)`.
pub(super) fn str_format(pattern: &str, args: &[Value], budget: &Budget) -> Result<String, Error> {
    formatted(FormatStyle::StrFormat, pattern, args, budget)
}

fn formatted(
    style: FormatStyle,
    pattern: &str,
    args: &[Value],
    budget: &Budget,
) -> Result<String, Error> {
    // Numbers in the pattern can only be widths, precisions and positions.
    let widest = pattern
        .split(|c: char| !c.is_ascii_digit())
        .map(|digits| {
            if digits.len() > 9 {
                usize::MAX
            } else {
                digits.parse().unwrap_or(0)
            }
        })
        .max()
        .unwrap_or(0);
    if widest > MAX_WIDTH || pattern.contains('*') {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "the field width is too large",
        ));
    }
    let mut printable = Vec::with_capacity(args.len());
    for arg in args {
        let plain = matches!(arg.kind(), ValueKind::Number | ValueKind::String);
        printable.push(if plain || arg.is_kwargs() {
            arg.clone()
        } else {
            Value::from(to_str(arg, budget)?)
        });
        // A pattern may reference an argument as often as it has characters.
        budget.charge(
            arg.as_str()
                .map_or(0, str::len)
                .saturating_mul(pattern.len()),
        )?;
    }
    let text = format(style, pattern, &printable)?;
    budget.charge(text.len())?;
    Ok(text)
}
