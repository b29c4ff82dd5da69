//! The `tojson` filter of `transformers`: Python's `json.dumps` without HTML escaping.

use super::args::{bind, flag, integer, invalid, required};
use super::collections::sorted;
use super::meter::spend;
use super::numbers::{Number, number};
use super::repr::float_text;
use super::values::{Kind, deep, items, kind, type_name};
use minijinja::{Error, ErrorKind, State, Value};
use std::fmt::Write;

/// Maximum indentation width.
const MAX_INDENT: usize = 64;

/// Implements `value | tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn tojson(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, ensure_ascii, indent, separators, sort_keys] =
        bind(args, ["", "ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match indent {
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
        indent => integer(indent)?.map(|n| " ".repeat(usize::try_from(n).unwrap_or(0).min(MAX_INDENT + 1))),
    };
    if indent.as_ref().is_some_and(|indent| indent.len() > MAX_INDENT) {
        return Err(invalid("indent must be at most 64"));
    }
    let separators = match separators.filter(|pair| !pair.is_none()) {
        Some(pair) => items(state, &pair)?,
        None => vec![
            Value::from(if indent.is_some() { "," } else { ", " }),
            Value::from(": "),
        ],
    };
    let [Some(item), Some(key)] = [0, 1].map(|i| separators.get(i).and_then(Value::as_str).map(str::to_owned)) else {
        return Err(invalid("separators must be a pair of strings"));
    };
    let mut writer = Writer {
        out: String::new(),
        paid: 0,
        indent,
        item,
        key,
        ensure_ascii: flag(&ensure_ascii),
        sort_keys: flag(&sort_keys),
    };
    writer.value(state, &required(value)?, 0)?;
    Ok(Value::from(writer.out))
}

struct Writer {
    out: String,
    /// Bytes of `out` that were charged to the budget.
    paid: usize,
    indent: Option<String>,
    /// Separators between items, and between key and value.
    item: String,
    key: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

impl Writer {
    fn value(&mut self, state: &mut State, value: &Value, depth: usize) -> Result<(), Error> {
        spend(state, 32 + (self.out.len() - self.paid) as u64)?;
        self.paid = self.out.len();
        deep(depth)?;
        match kind(value) {
            Kind::Undefined | Kind::None => self.out.push_str("null"),
            Kind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            Kind::Int | Kind::Float => self.number(value)?,
            Kind::List | Kind::Tuple => self.list(state, value, depth)?,
            Kind::Dict => self.map(state, value, depth)?,
            Kind::Str => self.string(value.as_str().unwrap_or_default()),
            Kind::Range | Kind::Object => {
                let message = format!("Object of type {} is not JSON serializable", type_name(value));
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        match number(value) {
            Some(Number::Float(x)) => self.out.push_str(&match float_text(x).as_str() {
                "nan" => "NaN".into(),
                "inf" => "Infinity".into(),
                "-inf" => "-Infinity".into(),
                text => text.to_string(),
            }),
            _ => write!(self.out, "{value}").map_err(|_| Error::from(ErrorKind::WriteFailure))?,
        }
        Ok(())
    }

    fn list(&mut self, state: &mut State, list: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in list.try_iter()? {
            self.next_item(&mut empty, depth);
            self.value(state, &item, depth + 1)?;
        }
        self.close(']', empty, depth);
        Ok(())
    }

    fn map(&mut self, state: &mut State, map: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('{');
        let mut empty = true;
        let mut keys = items(state, map)?;
        if self.sort_keys {
            keys = sorted(state, &keys, false)?
                .into_iter()
                .map(|i| keys[i].clone())
                .collect();
        }
        for key in keys {
            self.next_item(&mut empty, depth);
            match kind(&key) {
                Kind::Str => self.string(key.as_str().unwrap_or_default()),
                Kind::None | Kind::Bool | Kind::Int | Kind::Float => {
                    self.out.push('"');
                    self.value(state, &key, 0)?;
                    self.out.push('"');
                }
                _ => {
                    return Err(invalid(format!(
                        "keys must be strings or numbers, not {}",
                        type_name(&key)
                    )));
                }
            }
            self.out.push_str(&self.key);
            self.value(state, &map.get_item(&key)?, depth + 1)?;
        }
        self.close('}', empty, depth);
        Ok(())
    }

    fn next_item(&mut self, empty: &mut bool, depth: usize) {
        if !*empty {
            self.out.push_str(&self.item);
        }
        *empty = false;
        self.new_line(depth + 1);
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if u32::from(c) < 0x20 || (self.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}
