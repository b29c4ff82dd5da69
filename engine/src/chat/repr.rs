//! Python's string representation of values.

use super::meter::{NODE, spend};
use super::values::{BoundMethod, Kind, Range, deep, kind};
use minijinja::{Error, ErrorKind, State, Value};
use std::fmt::Write;

/// Returns the string representation that `{{ value }}` prints, and charges for it.
pub(super) fn text_of(state: &mut State, value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    write_text(state, &mut text, value)?;
    Ok(text)
}

/// Returns Python's `repr` of a value.
pub(super) fn repr_of(state: &mut State, value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    write_repr(state, &mut text, value, 0)?;
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
        None if value.is_undefined() => Ok(()),
        None => write_repr(state, out, value, 0),
    }
}

/// Appends a value's representation, like Python's `repr`.
fn write_repr(state: &mut State, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    deep(depth)?;
    let before = out.len();
    match kind(value) {
        Kind::Str => write_quoted(out, value.as_str().unwrap_or_default()),
        Kind::Undefined => out.push_str("Undefined"),
        Kind::None => out.push_str("None"),
        Kind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        Kind::Float => out.push_str(&float_text(f64::try_from(value.clone())?)),
        Kind::List => return write_items(state, out, value, depth, ["[", "]"]),
        Kind::Tuple => return write_items(state, out, value, depth, ["(", ")"]),
        Kind::Dict => {
            out.push('{');
            write_pairs(state, out, value, depth)?;
            out.push('}');
            return spend(state, NODE);
        }
        Kind::Range => {
            if let Some(Range { start, stop, step, .. }) = value.downcast_object_ref() {
                out.push_str(&match step {
                    1 => format!("range({start}, {stop})"),
                    _ => format!("range({start}, {stop}, {step})"),
                });
            }
        }
        Kind::Object if is_namespace(value) => {
            out.push_str("<Namespace {");
            write_pairs(state, out, value, depth)?;
            out.push_str("}>");
            return spend(state, NODE);
        }
        Kind::Object
            if value.downcast_object_ref::<BoundMethod>().is_none()
                && value.kind() != minijinja::value::ValueKind::Map =>
        {
            out.push_str("<function>");
        }
        Kind::Int | Kind::Object => write!(out, "{value}").map_err(|_| Error::from(ErrorKind::WriteFailure))?,
    }
    spend(state, NODE + (out.len() - before) as u64)
}

/// Returns true for a namespace, whose type is private in minijinja.
pub(super) fn is_namespace(value: &Value) -> bool {
    value
        .as_object()
        .is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

fn write_items(
    state: &mut State,
    out: &mut String,
    list: &Value,
    depth: usize,
    [open, close]: [&str; 2],
) -> Result<(), Error> {
    out.push_str(open);
    let mut n = 0;
    for item in list.try_iter()? {
        out.push_str(if n == 0 { "" } else { ", " });
        write_repr(state, out, &item, depth + 1)?;
        n += 1;
    }
    // A tuple of one item has a comma.
    out.push_str(if n == 1 && open == "(" { "," } else { "" });
    out.push_str(close);
    spend(state, NODE)
}

fn write_pairs(state: &mut State, out: &mut String, map: &Value, depth: usize) -> Result<(), Error> {
    for (n, key) in map.try_iter()?.enumerate() {
        out.push_str(if n == 0 { "" } else { ", " });
        write_repr(state, out, &key, depth + 1)?;
        out.push_str(": ");
        write_repr(state, out, &map.get_item(&key)?, depth + 1)?;
    }
    Ok(())
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
            c if is_printable(c) => out.push(c),
            c => out.push_str(&code_point(c)),
        }
    }
    out.push(quote);
}

/// Returns the escape sequence of a character.
pub(super) fn code_point(c: char) -> String {
    match u32::from(c) {
        code @ 0..=0xff => format!("\\x{code:02x}"),
        code @ 0x100..=0xffff => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}

/// Returns true if Python prints a character in a `repr`.
pub(super) fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // Rust and Python escape the same characters, except for combining characters. A preceding letter makes Rust treat
    // them like Python.
    let mut buffer = [b'a'; 5];
    let n = 1 + c.encode_utf8(&mut buffer[1..]).len();
    let text = std::str::from_utf8(&buffer[..n]).unwrap_or_default();
    text.escape_debug().count() == 2
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
        return python_exponent(&format!("{x:e}"));
    }
    let text = x.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

/// Converts an exponent to Python's form, with a sign and at least two digits.
pub(super) fn python_exponent(text: &str) -> String {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (sign, digits) = exponent
        .strip_prefix('-')
        .map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// Escapes a text for HTML, as Jinja does.
pub(super) fn escaped(text: &str) -> Value {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    Value::from_safe_string(out)
}
