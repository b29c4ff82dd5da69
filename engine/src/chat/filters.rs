//! Jinja's filters of values and sequences.

use super::args::{Call, bind, flag, integer, invalid, required, split, text};
use super::collections::{dict_items, sorted};
use super::compare::{equal, order};
use super::json::tojson;
use super::meter::{NODE, spend};
use super::methods::join_items;
use super::numbers::{Number, float, int, number, too_long, whole};
use super::ops::item;
use super::repr::text_of;
use super::text_filters::{self, lowered};
use super::values::{Group, Kind, items, kind, list, pairs, tuple, type_name};
use minijinja::{Error, State, Value};
use std::num::IntErrorKind;

/// Returns all filters.
pub(super) fn filters() -> Vec<(&'static str, Call)> {
    let mut all: Vec<(&'static str, Call)> = vec![
        ("abs", abs),
        ("attr", attr),
        ("batch", batch),
        ("bool", |_, args| Ok(Value::from(args[0].is_true()))),
        ("count", length),
        ("d", default),
        ("default", default),
        ("dictsort", dictsort),
        ("first", |_, args| {
            super::values::iterable(&args[0])?;
            Ok(args[0].try_iter()?.next().unwrap_or(Value::UNDEFINED))
        }),
        ("float", to_float),
        ("groupby", groupby),
        ("int", to_int),
        ("items", |state, args| match kind(&args[0]) {
            Kind::Undefined => Ok(list(Vec::new())),
            Kind::Dict => dict_items(state, &args[0]),
            _ => Err(invalid("can only get the items of a mapping")),
        }),
        ("join", join),
        ("last", |state, args| {
            Ok(items(state, &args[0])?.pop().unwrap_or(Value::UNDEFINED))
        }),
        ("length", length),
        ("list", |state, args| items(state, &args[0]).map(list)),
        ("map", map),
        ("max", |state, args| extreme(state, args, true)),
        ("min", |state, args| extreme(state, args, false)),
        ("random", |state, args| {
            Ok(items(state, &args[0])?.into_iter().next().unwrap_or(Value::UNDEFINED))
        }),
        ("reject", |state, args| select(state, args, false, false)),
        ("rejectattr", |state, args| select(state, args, true, false)),
        ("reverse", reverse),
        ("round", round),
        ("select", |state, args| select(state, args, false, true)),
        ("selectattr", |state, args| select(state, args, true, true)),
        ("slice", slices),
        ("sort", sort),
        ("sum", sum),
        ("tojson", tojson),
        ("unique", unique),
    ];
    all.extend(text_filters::filters());
    all
}

fn abs(_: &mut State, args: &[Value]) -> Result<Value, Error> {
    match number(&args[0]) {
        Some(Number::Int(n)) => Ok(int(n.saturating_abs())),
        Some(Number::Float(x)) => Ok(Value::from(x.abs())),
        None => Err(invalid(format!(
            "bad operand type for abs(): '{}'",
            type_name(&args[0])
        ))),
    }
}

/// Looks up an attribute, without falling back to items.
fn attr(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, name] = bind(args, ["", "name"])?;
    let (value, name) = (required(value)?, required(name)?);
    match kind(&value) {
        Kind::Object | Kind::Undefined => value.get_item(&name),
        // The empty list has no items, so only its methods are found.
        _ => item(state, &list(Vec::new()), &name).map(|_| Value::UNDEFINED),
    }
}

fn batch(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, size, fill] = bind(args, ["", "linecount", "fill_with"])?;
    let all = items(state, &required(value)?)?;
    let size = integer(size)?.unwrap_or(0);
    let size = usize::try_from(size)
        .ok()
        .filter(|size| *size > 0)
        .ok_or_else(|| invalid("expected a positive number"))?;
    let mut rows: Vec<Vec<Value>> = all.chunks(size).map(<[Value]>::to_vec).collect();
    if let (Some(fill), Some(last)) = (fill.filter(|fill| !fill.is_none()), rows.last_mut()) {
        spend(state, (size - last.len()) as u64 * NODE)?;
        last.resize(size, fill);
    }
    Ok(list(rows.into_iter().map(list).collect()))
}

fn slices(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, n, fill] = bind(args, ["", "slices", "fill_with"])?;
    let all = items(state, &required(value)?)?;
    let n = integer(n)?.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
    let n = n.ok_or_else(|| invalid("expected a positive number"))?;
    spend(state, n as u64 * NODE)?;
    let (each, more) = (all.len() / n, all.len() % n);
    let (mut rows, mut start) = (Vec::with_capacity(n), 0);
    for i in 0..n {
        let end = start + each + usize::from(i < more);
        let mut row = all[start..end].to_vec();
        if let Some(fill) = fill.as_ref().filter(|fill| !fill.is_none() && i >= more) {
            row.push(fill.clone());
        }
        rows.push(list(row));
        start = end;
    }
    Ok(list(rows))
}

fn default(_: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, default, boolean] = bind(args, ["", "default_value", "boolean"])?;
    let value = value.unwrap_or(Value::UNDEFINED);
    let is_missing = value.is_undefined() || (flag(&boolean) && !value.is_true());
    Ok(if is_missing {
        default.unwrap_or_else(|| Value::from(""))
    } else {
        value
    })
}

/// Returns the keys that a case-insensitive comparison uses.
fn folded(state: &mut State, keys: Vec<Value>, case_sensitive: bool) -> Result<Vec<Value>, Error> {
    keys.into_iter()
        .map(|key| if case_sensitive { Ok(key) } else { lowered(state, &key) })
        .collect()
}

fn dictsort(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, case_sensitive, by, reverse] = bind(args, ["", "case_sensitive", "by", "reverse"])?;
    let value = required(value)?;
    let by_value = match text(&by)?.unwrap_or("key") {
        "key" => false,
        "value" => true,
        _ => return Err(invalid("dictsort sorts by \"key\" or \"value\"")),
    };
    if kind(&value) != Kind::Dict {
        return Err(invalid("dictsort needs a mapping"));
    }
    let entries = pairs(state, &value)?;
    let keys = entries
        .iter()
        .map(|(key, value)| if by_value { value } else { key }.clone())
        .collect();
    let keys = folded(state, keys, flag(&case_sensitive))?;
    let order = sorted(state, &keys, flag(&reverse))?;
    let pair = |i: usize| tuple(vec![entries[i].0.clone(), entries[i].1.clone()]);
    Ok(list(order.into_iter().map(pair).collect()))
}

/// Looks up an attribute path, such as `a.b` or `0`.
fn path(state: &mut State, value: &Value, path: &Value, default: &Option<Value>) -> Result<Value, Error> {
    let parts: Vec<Value> = match path.as_str() {
        None => vec![path.clone()],
        Some(path) => path
            .split('.')
            .map(|part| part.parse::<i64>().map_or_else(|_| Value::from(part), Value::from))
            .collect(),
    };
    let mut found = value.clone();
    for part in &parts {
        found = item(state, &found, part)?;
        if let (true, Some(default)) = (found.is_undefined(), default) {
            found = default.clone();
        }
    }
    Ok(found)
}

/// Returns the attribute of each value, or the values themselves without an attribute.
fn attributes(
    state: &mut State,
    all: &[Value],
    attribute: &Option<Value>,
    default: &Option<Value>,
) -> Result<Vec<Value>, Error> {
    match attribute {
        Some(name) if !name.is_none() => all.iter().map(|value| path(state, value, name, default)).collect(),
        _ => Ok(all.to_vec()),
    }
}

fn groupby(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, attribute, default, case_sensitive] = bind(args, ["", "attribute", "default", "case_sensitive"])?;
    let all = items(state, &required(value)?)?;
    let keys = attributes(state, &all, &Some(required(attribute)?), &default)?;
    let folded = folded(state, keys.clone(), flag(&case_sensitive))?;
    let mut groups: Vec<(usize, Vec<Value>)> = Vec::new();
    for i in sorted(state, &folded, false)? {
        match groups.last_mut() {
            Some((first, group)) if equal(state, &folded[*first], &folded[i])? => group.push(all[i].clone()),
            _ => groups.push((i, vec![all[i].clone()])),
        }
    }
    let group = |(first, group): (usize, Vec<Value>)| {
        let key = keys[first].clone();
        Value::from_object(Group { key, list: list(group) })
    };
    Ok(list(groups.into_iter().map(group).collect()))
}

/// Parses a string as Python's `float`.
fn parsed_float(text: &str) -> Option<f64> {
    let text = digits(text.trim_matches(super::methods::is_space))?;
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
        || ["inf", "infinity", "nan"].contains(&text.to_ascii_lowercase().as_str());
    if is_number { text.parse().ok() } else { None }
}

/// Removes the underscores between digits; `None` if there are other underscores.
fn digits(text: &str) -> Option<String> {
    let mut before = '_';
    for (i, c) in text.char_indices() {
        if c == '_' && (!before.is_alphanumeric() || !text[i + 1..].starts_with(char::is_alphanumeric)) {
            return None;
        }
        before = c;
    }
    Some(text.replace('_', ""))
}

/// Parses a string as Python's `int` with a base.
fn parsed_int(text: &str, base: u32) -> Result<Option<i128>, Error> {
    let Some(text) = digits(text.trim_matches(super::methods::is_space)) else {
        return Ok(None);
    };
    let text = text.to_ascii_lowercase();
    let (is_negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
    };
    let prefixes = [("0x", 16), ("0o", 8), ("0b", 2)];
    let prefixed = prefixes
        .iter()
        .find(|(prefix, of)| text.starts_with(prefix) && (base == 0 || base == *of));
    let (digits, base) = match prefixed {
        Some((prefix, base)) => (&text[prefix.len()..], *base),
        None => (text, if base == 0 { 10 } else { base }),
    };
    if digits.starts_with(['+', '-']) || !(2..=36).contains(&base) {
        return Ok(None);
    }
    match i128::from_str_radix(digits, base) {
        Ok(n) => Ok(Some(if is_negative { -n } else { n })),
        Err(e) if *e.kind() == IntErrorKind::PosOverflow => Err(too_long("the integer of a text")),
        Err(_) => Ok(None),
    }
}

fn undefined(value: &Value) -> Result<(), Error> {
    if value.is_undefined() {
        return Err(Error::from(minijinja::ErrorKind::UndefinedError));
    }
    Ok(())
}

fn to_int(_: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, default, base] = bind(args, ["", "default", "base"])?;
    let value = required(value)?;
    undefined(&value)?;
    let base = integer(base)?.and_then(|base| u32::try_from(base).ok()).unwrap_or(10);
    let truncated = |x| whole(x, "the integer of a number");
    let n = match (value.as_str(), number(&value)) {
        (Some(text), _) => match parsed_int(text, base)? {
            Some(n) => Some(n),
            None => parsed_float(text).map(truncated).transpose()?.flatten(),
        },
        (None, Some(Number::Int(n))) => Some(n),
        (None, Some(Number::Float(x))) => truncated(x)?,
        (None, None) => None,
    };
    Ok(n.map(int).or(default).unwrap_or_else(|| Value::from(0)))
}

fn to_float(_: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, default] = bind(args, ["", "default"])?;
    let value = required(value)?;
    undefined(&value)?;
    let x = match value.as_str() {
        Some(text) => parsed_float(text),
        None => number(&value).map(float),
    };
    Ok(x.map(Value::from).or(default).unwrap_or_else(|| Value::from(0.0)))
}

fn join(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, separator, attribute] = bind(args, ["", "d", "attribute"])?;
    let all = items(state, &required(value)?)?;
    let parts = attributes(state, &all, &attribute, &None)?;
    let separator = separator.map_or(Ok(String::new()), |separator| text_of(state, &separator))?;
    join_items(state, &separator, parts)
}

fn length(_: &mut State, args: &[Value]) -> Result<Value, Error> {
    match kind(&args[0]) {
        Kind::Undefined => Ok(Value::from(0)),
        Kind::Str | Kind::List | Kind::Tuple | Kind::Dict | Kind::Range => Ok(Value::from(args[0].len().unwrap_or(0))),
        _ => Err(invalid(format!(
            "object of type '{}' has no len()",
            type_name(&args[0])
        ))),
    }
}

/// Returns the items of a value. Jinja's `map` and `select` accept all values that are false.
fn items_if_true(state: &mut State, value: Option<&Value>) -> Result<Vec<Value>, Error> {
    match value {
        Some(value) if value.is_true() => items(state, value),
        _ => Ok(Vec::new()),
    }
}

fn map(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let (positional, named) = split(args);
    let all = items_if_true(state, positional.first())?;
    if let ([_], Some(_)) = (positional, named) {
        let [_, attribute, default] = bind(args, ["", "attribute", "default"])?;
        let attribute = Some(required(attribute)?);
        return attributes(state, &all, &attribute, &default).map(list);
    }
    let name = positional
        .get(1)
        .and_then(Value::as_str)
        .ok_or_else(|| invalid("map needs a filter or an attribute"))?;
    let mapped = all.into_iter().map(|value| {
        let args: Vec<Value> = std::iter::once(value).chain(args[2..].iter().cloned()).collect();
        state.apply_filter(name, &args)
    });
    mapped.collect::<Result<_, _>>().map(list)
}

/// Returns the largest or smallest item.
fn extreme(state: &mut State, args: &[Value], largest: bool) -> Result<Value, Error> {
    let [value, case_sensitive, attribute] = bind(args, ["", "case_sensitive", "attribute"])?;
    let all = items(state, &required(value)?)?;
    let keys = attributes(state, &all, &attribute, &None)?;
    let keys = folded(state, keys, flag(&case_sensitive))?;
    let mut best = 0;
    for i in 1..keys.len() {
        let op = if largest { ">" } else { "<" };
        let order = order(state, &keys[i], &keys[best], op)?;
        if order.is_some_and(|order| if largest { order.is_gt() } else { order.is_lt() }) {
            best = i;
        }
    }
    Ok(all.get(best).cloned().unwrap_or(Value::UNDEFINED))
}

fn reverse(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = args[0].as_str() {
        return Ok(Value::from(text.chars().rev().collect::<String>()));
    }
    let mut all = items(state, &args[0])?;
    all.reverse();
    Ok(list(all))
}

fn round(_: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, precision, method] = bind(args, ["", "precision", "method"])?;
    let (value, precision) = (required(value)?, integer(precision)?.unwrap_or(0));
    let n = number(&value).ok_or_else(|| invalid(format!("cannot round a value of type {}", type_name(&value))))?;
    let scale = 10f64.powi(precision.clamp(-400, 400) as i32);
    Ok(match (text(&method)?.unwrap_or("common"), n) {
        ("common", Number::Int(n)) if precision >= 0 => int(n),
        ("common", Number::Int(n)) => {
            let unit = u32::try_from(-precision).ok().and_then(|p| 10i128.checked_pow(p));
            let rounded = unit.map_or(Some(0), |unit| rounded(n, unit));
            int(rounded.ok_or_else(|| too_long("the rounded number"))?)
        }
        ("common", Number::Float(x)) if precision >= 0 => {
            // Formatting rounds the exact value to the nearest, halves to even, like Python.
            let digits = precision.min(350) as usize;
            Value::from(format!("{x:.digits$}").parse().unwrap_or(x))
        }
        ("common", Number::Float(x)) => Value::from((x * scale).round_ties_even() / scale),
        ("ceil", n) => Value::from((float(n) * scale).ceil() / scale),
        ("floor", n) => Value::from((float(n) * scale).floor() / scale),
        _ => return Err(invalid("method must be common, ceil, or floor")),
    })
}

/// Rounds to a multiple of `unit`, halves to even. `None` if the result exceeds 128 bits.
fn rounded(n: i128, unit: i128) -> Option<i128> {
    let (whole, rest) = (n.div_euclid(unit), n.rem_euclid(unit));
    let missing = unit - rest;
    let up = rest > missing || (rest == missing && whole % 2 != 0);
    (whole + i128::from(up)).checked_mul(unit)
}

/// Selects or rejects items by a test, which may apply to an attribute.
fn select(state: &mut State, args: &[Value], by_attribute: bool, wanted: bool) -> Result<Value, Error> {
    let (positional, _) = split(args);
    let all = items_if_true(state, positional.first())?;
    let attribute = match (by_attribute, positional.get(1)) {
        (false, _) => None,
        (true, Some(name)) => Some(name.clone()),
        (true, None) => return Err(invalid("missing attribute")),
    };
    let keys = attributes(state, &all, &attribute, &None)?;
    let at = 1 + usize::from(by_attribute);
    let test = match args.get(at) {
        None => None,
        Some(name) => Some(name.as_str().ok_or_else(|| invalid("expected the name of a test"))?),
    };
    let mut selected = Vec::new();
    for (value, key) in all.into_iter().zip(keys) {
        let holds = match test {
            None => key.is_true(),
            Some(test) => {
                let args: Vec<Value> = std::iter::once(key).chain(args[at + 1..].iter().cloned()).collect();
                state.perform_test(test, &args)?
            }
        };
        if holds == wanted {
            selected.push(value);
        }
    }
    Ok(list(selected))
}

fn sort(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, reverse, case_sensitive, attribute] = bind(args, ["", "reverse", "case_sensitive", "attribute"])?;
    let all = items(state, &required(value)?)?;
    // Several attributes are separated by commas.
    let names: Vec<Option<Value>> = match attribute.as_ref().and_then(Value::as_str) {
        Some(names) => names.split(',').map(|name| Some(Value::from(name))).collect(),
        None => vec![attribute],
    };
    let mut rows = vec![Vec::with_capacity(names.len()); all.len()];
    for name in &names {
        let column = attributes(state, &all, name, &None)?;
        let column = folded(state, column, flag(&case_sensitive))?;
        rows.iter_mut().zip(column).for_each(|(row, key)| row.push(key));
    }
    let keys: Vec<Value> = rows.into_iter().map(list).collect();
    let order = sorted(state, &keys, flag(&reverse))?;
    Ok(list(order.into_iter().map(|i| all[i].clone()).collect()))
}

fn sum(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, attribute, start] = bind(args, ["", "attribute", "start"])?;
    let all = items(state, &required(value)?)?;
    let mut total = start.unwrap_or_else(|| Value::from(0));
    for value in attributes(state, &all, &attribute, &None)? {
        total = state.apply_filter(super::lower::ADD, &[total, value])?;
    }
    Ok(total)
}

fn unique(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, case_sensitive, attribute] = bind(args, ["", "case_sensitive", "attribute"])?;
    let all = items(state, &required(value)?)?;
    let keys = attributes(state, &all, &attribute, &None)?;
    let keys = folded(state, keys, flag(&case_sensitive))?;
    let mut seen = super::values::Entries::default();
    let mut kept = Vec::new();
    for (value, key) in all.into_iter().zip(keys) {
        super::values::hashable(&key)?;
        if seen.insert(key, Value::from(())).is_none() {
            kept.push(value);
        }
    }
    Ok(list(kept))
}
