//! The `tojson` filter of `transformers`: Python's `json.dumps` without HTML escaping.

use super::meter::{LimitReached, MAX_DEPTH, spend};
use super::ops::float_text;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use std::fmt::Write;

/// Maximum indentation width.
const MAX_INDENT: usize = 64;

/// Implements `value | tojson(indent=none, ensure_ascii=false, separators=none, sort_keys=false)`.
pub(super) fn tojson(state: &mut State, value: &Value, indent: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = indent.or(kwargs.get("indent")?).filter(|v| !v.is_none());
    let indent = match indent.map(|v| v.as_i64()) {
        None => None,
        Some(n) => {
            let n = n.and_then(|n| usize::try_from(n).ok()).filter(|n| *n <= MAX_INDENT);
            Some(n.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "indent must be 0 to 64"))?)
        }
    };
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "separators must be a pair")),
        None => (if indent.is_some() { "," } else { ", " }.into(), ": ".into()),
    };
    let ensure_ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let mut writer = Writer {
        out: String::new(),
        paid: 0,
        indent,
        item,
        key,
        ensure_ascii,
        sort_keys,
    };
    writer.value(state, value, 0)?;
    Ok(Value::from(writer.out))
}

struct Writer {
    out: String,
    /// Bytes of `out` that were charged to the budget.
    paid: usize,
    indent: Option<usize>,
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
        if depth > MAX_DEPTH {
            return Err(LimitReached {
                what: "levels of nesting in a value",
                limit: MAX_DEPTH as u64,
            }
            .into());
        }
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::Seq | ValueKind::Iterable => self.list(state, value, depth)?,
            ValueKind::Map => self.map(state, value, depth)?,
            _ => match value.as_str() {
                Some(text) => self.string(text),
                None => {
                    return Err(Error::new(
                        ErrorKind::BadSerialization,
                        format!("{} cannot be serialized as JSON", value.kind()),
                    ));
                }
            },
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            return write!(self.out, "{value}").map_err(|_| Error::from(ErrorKind::WriteFailure));
        }
        self.out
            .push_str(&match float_text(f64::try_from(value.clone())?).as_str() {
                "nan" => "NaN".into(),
                "inf" => "Infinity".into(),
                "-inf" => "-Infinity".into(),
                text => text.to_string(),
            });
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
        let mut keys = super::ops::items(state, map)?;
        if self.sort_keys {
            keys.sort();
        }
        for key in keys {
            self.next_item(&mut empty, depth);
            match key.as_str() {
                Some(text) => self.string(text),
                None => {
                    self.out.push('"');
                    self.value(state, &key, MAX_DEPTH)?;
                    self.out.push('"');
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
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
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
