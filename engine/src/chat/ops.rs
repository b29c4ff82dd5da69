//! Metered operators of the template language that create values, and Python's string representation of
//! values.

use super::meter::{self, LimitReached, Visit, charge_new, spend, visit};
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};
use std::fmt::Write;

/// Returns the operators as functions.
pub(super) fn operators() -> [(&'static str, Value); 5] {
    [
        (meter::ADD, Value::from_function(add)),
        (meter::MUL, Value::from_function(mul)),
        (meter::POW, Value::from_function(pow)),
        (meter::CONCAT, Value::from_function(concat)),
        (meter::SLICE, Value::from_function(slice)),
    ]
}

fn add(state: &mut State, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        spend(state, (a.len() + b.len()) as u64)?;
        return Ok(Value::from([a, b].concat()));
    }
    if is_list(a) && is_list(b) {
        let mut list = items(state, a)?;
        list.extend(items(state, b)?);
        return Ok(Value::from(list));
    }
    match numbers(a, b) {
        Some(Numbers::Int(x, y)) => x.checked_add(y).map(int).ok_or_else(|| impossible("+", a, b)),
        Some(Numbers::Float(x, y)) => Ok(Value::from(x + y)),
        None => Err(impossible("+", a, b)),
    }
}

fn mul(state: &mut State, a: &Value, b: &Value) -> Result<Value, Error> {
    let (sequence, times) = if a.as_str().is_some() || is_list(a) {
        (a, b)
    } else {
        (b, a)
    };
    if let (Some(text), Some(n)) = (sequence.as_str(), times.as_i64()) {
        let n = n.max(0) as u64;
        spend(state, n.saturating_mul(text.len() as u64))?;
        return Ok(Value::from(text.repeat(n as usize)));
    }
    if let (true, Some(n)) = (is_list(sequence), times.as_i64()) {
        let one = items(state, sequence)?;
        let n = n.max(0) as u64;
        spend(state, n.saturating_mul(one.len() as u64 * 32))?;
        return Ok(Value::from_iter((0..n).flat_map(|_| one.iter().cloned())));
    }
    match numbers(a, b) {
        Some(Numbers::Int(x, y)) => x.checked_mul(y).map(int).ok_or_else(|| impossible("*", a, b)),
        Some(Numbers::Float(x, y)) => Ok(Value::from(x * y)),
        None => Err(impossible("*", a, b)),
    }
}

fn pow(_: &mut State, a: &Value, b: &Value) -> Result<Value, Error> {
    match numbers(a, b) {
        Some(Numbers::Int(x, y)) if y >= 0 => {
            let power = u32::try_from(y).ok().and_then(|y| x.checked_pow(y));
            power.map(int).ok_or_else(|| impossible("**", a, b))
        }
        Some(Numbers::Int(x, y)) => Ok(Value::from((x as f64).powf(y as f64))),
        Some(Numbers::Float(x, y)) => Ok(Value::from(x.powf(y))),
        None => Err(impossible("**", a, b)),
    }
}

/// Implements `a ~ b`.
fn concat(state: &mut State, a: &Value, b: &Value) -> Result<Value, Error> {
    let mut text = String::new();
    write_text(state, &mut text, a)?;
    write_text(state, &mut text, b)?;
    Ok(Value::from(text))
}

/// Implements `value[start:stop:step]` for strings and sequences, with Python's semantics.
fn slice(state: &mut State, value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let bound = |v: &Value| {
        if v.is_none() || v.is_undefined() {
            return Ok(None);
        }
        v.as_i64()
            .map(Some)
            .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "slice bounds must be integers"))
    };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "slice step must not be 0"));
    }
    if let Some(text) = value.as_str() {
        spend(state, text.len() as u64)?;
        if text.is_ascii() {
            let bytes = text.as_bytes();
            return Ok(Value::from(
                indices(bytes.len(), start, stop, step)
                    .map(|i| char::from(bytes[i]))
                    .collect::<String>(),
            ));
        }
        let chars: Vec<char> = text.chars().collect();
        return Ok(Value::from(
            indices(chars.len(), start, stop, step)
                .map(|i| chars[i])
                .collect::<String>(),
        ));
    }
    if value.is_undefined() || value.is_none() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if !is_list(value) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("cannot slice a value of type {}", value.kind()),
        ));
    }
    let list = items(state, value)?;
    Ok(Value::from(
        indices(list.len(), start, stop, step)
            .map(|i| list[i].clone())
            .collect::<Vec<_>>(),
    ))
}

/// Returns the indices that a slice of a sequence of length `len` selects.
fn indices(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> impl Iterator<Item = usize> {
    let len = len as i64;
    // Negative bounds count from the end. Bounds are clamped to the sequence, or for a negative step to one
    // position before it.
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let hold = |i: i64| (if i < 0 { i.saturating_add(len) } else { i }).clamp(low, high);
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let (start, stop) = (start.map_or(first, hold), stop.map_or(last, hold));
    let inside = move |i: &i64| if step > 0 { *i < stop } else { *i > stop };
    std::iter::successors(Some(start), move |i| i.checked_add(step))
        .take_while(inside)
        .map(|i| i as usize)
}

/// Returns the items of a sequence and charges for them.
pub(super) fn items(state: &mut State, list: &Value) -> Result<Vec<Value>, Error> {
    let mut items = Vec::new();
    for item in list.try_iter()? {
        spend(state, 32)?;
        items.push(item);
    }
    Ok(items)
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

enum Numbers {
    Int(i128, i128),
    Float(f64, f64),
}

fn numbers(a: &Value, b: &Value) -> Option<Numbers> {
    let int = |v: &Value| {
        if is_float(v) {
            return None;
        }
        i128::try_from(v.clone()).ok()
    };
    let float = |v: &Value| f64::try_from(v.clone()).ok();
    match (int(a), int(b)) {
        (Some(a), Some(b)) => Some(Numbers::Int(a, b)),
        _ => Some(Numbers::Float(float(a)?, float(b)?)),
    }
}

fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer()
}

fn int(n: i128) -> Value {
    i64::try_from(n).map_or_else(|_| Value::from(n), Value::from)
}

fn impossible(op: &str, a: &Value, b: &Value) -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("unsupported operands: {} {op} {}", a.kind(), b.kind()),
    )
}

/// Returns the string representation that `{{ value }}` prints, and charges for it.
pub(super) fn text_of(state: &mut State, value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    write_text(state, &mut text, value)?;
    Ok(text)
}

/// Appends a value's string representation, like Python's `str`.
pub(super) fn write_text(state: &mut State, out: &mut String, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => {
            spend(state, text.len() as u64)?;
            out.push_str(text);
            Ok(())
        }
        None => write_repr(state, out, value, 0),
    }
}

/// Appends a value's representation, like Python's `repr`.
fn write_repr(state: &mut State, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > meter::MAX_DEPTH {
        return Err(LimitReached {
            what: "levels of nesting in a value",
            limit: meter::MAX_DEPTH as u64,
        }
        .into());
    }
    let before = out.len();
    match value.kind() {
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            let mut n = 0;
            for item in value.try_iter()? {
                out.push_str(if n == 0 { "" } else { ", " });
                write_repr(state, out, &item, depth + 1)?;
                n += 1;
            }
            out.push_str(if tuple && n == 1 { "," } else { "" });
            out.push(if tuple { ')' } else { ']' });
            return spend(state, 32);
        }
        ValueKind::Map => {
            out.push('{');
            for (n, key) in value.try_iter()?.enumerate() {
                out.push_str(if n == 0 { "" } else { ", " });
                write_repr(state, out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(state, out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
            return spend(state, 32);
        }
        ValueKind::Number if is_float(value) => out.push_str(&float_text(f64::try_from(value.clone())?)),
        // Numbers, booleans, none, and undefined take a few bytes.
        _ => write!(out, "{value}").map_err(|_| Error::from(ErrorKind::WriteFailure))?,
    }
    spend(state, 32 + (out.len() - before) as u64)
}

fn write_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Formats a float like Python, always with a fraction or an exponent.
pub(super) fn float_text(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.into();
    }
    let magnitude = x.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{x:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) = exponent
            .strip_prefix('-')
            .map_or(('+', exponent), |digits| ('-', digits));
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    let text = x.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

/// Wraps a minijinja function so that its arguments and result are charged.
///
/// With `deep`, the function may read or nest everything inside its arguments, so all of it is visited.
pub(super) fn metered(function: Value, deep: bool) -> impl Fn(&mut State, &[Value]) -> Result<Value, Error> {
    move |state, args| {
        if !deep {
            let result = function.call(state, args)?;
            charge_new(state, &result)?;
            return Ok(result);
        }
        let everything = || Visit {
            text: true,
            no_namespace: false,
        };
        for arg in args {
            visit(state, arg, everything())?;
        }
        let result = function.call(state, args)?;
        visit(state, &result, everything())?;
        Ok(result)
    }
}
