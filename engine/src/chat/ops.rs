//! Operators of the template language with Python's semantics.

use super::args::{Call, invalid};
use super::compare::{contains, equal, order};
use super::lower;
use super::meter::{NODE, spend};
use super::method_names::has_method;
use super::numbers::{Number, float, int, number, too_long};
use super::printf::percent;
use super::repr::{escaped, write_text};
use super::values::{
    BoundMethod, Kind, Visit, fresh, hashable, items, iterable, kind, list, text_len, tuple, type_name, visit,
};
use minijinja::{Error, State, Value};

/// Returns the filters that replace operators.
pub(super) fn operators() -> Vec<(&'static str, Call)> {
    vec![
        (lower::ADD, |state, args| add(state, &args[0], &args[1])),
        (lower::SUB, |_, args| {
            arithmetic("-", &args[0], &args[1], i128::checked_sub, |x, y| x - y)
        }),
        (lower::MUL, |state, args| mul(state, &args[0], &args[1])),
        (lower::DIV, |_, args| div(&args[0], &args[1])),
        (lower::FLOOR_DIV, |_, args| floor_div(&args[0], &args[1])),
        (lower::REM, |state, args| rem(state, &args[0], &args[1])),
        (lower::POW, |_, args| pow(&args[0], &args[1])),
        (lower::NEG, |_, args| {
            arithmetic("-", &Value::from(0), &args[0], i128::checked_sub, |_, y| -y)
        }),
        (lower::CONCAT, |state, args| concat(state, &args[0], &args[1])),
        (lower::COMPARE, compare_all),
        (lower::ITEM, |state, args| item(state, &args[0], &args[1])),
        (lower::SLICE, slice),
        (lower::ATTRIBUTE, |_, args| attribute(&args[0], &args[1])),
        (lower::FRESH, |state, args| {
            let copy = fresh(state, &args[0])?;
            read(state, &copy)?;
            Ok(copy)
        }),
        (lower::READ, |state, args| {
            read(state, &args[0]).map(|()| args[0].clone())
        }),
        (lower::ITERATED, |state, args| {
            iterable(&args[0])?;
            // A loop over a dictionary copies its keys first.
            let n = if kind(&args[0]) == Kind::Dict {
                args[0].len().unwrap_or(1)
            } else {
                1
            };
            spend(state, NODE * n as u64)?;
            Ok(args[0].clone())
        }),
        (lower::SPREAD, |state, args| match kind(&args[0]) {
            Kind::Dict => Ok(args[0].clone()),
            _ => items(state, &args[0]).map(list),
        }),
        (lower::STORED, |state, args| {
            let how = Visit {
                stores: true,
                ..Visit::default()
            };
            visit(state, &args[0], how).map(|()| args[0].clone())
        }),
    ]
}

/// Charges for everything inside a value.
fn read(state: &mut State, value: &Value) -> Result<(), Error> {
    visit(state, value, Visit::default())
}

fn add(state: &mut State, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        spend(state, (x.len() + y.len()) as u64)?;
        if a.is_safe() || b.is_safe() {
            return add_safe(state, a, b);
        }
        return Ok(Value::from([x, y].concat()));
    }
    match (kind(a), kind(b)) {
        (Kind::List, Kind::List) | (Kind::Tuple, Kind::Tuple) => {
            let mut all = items(state, a)?;
            all.extend(items(state, b)?);
            Ok(if kind(a) == Kind::List { list(all) } else { tuple(all) })
        }
        _ => arithmetic("+", a, b, i128::checked_add, |x, y| x + y),
    }
}

/// Adds two strings and escapes the one that is not marked as safe.
fn add_safe(state: &mut State, a: &Value, b: &Value) -> Result<Value, Error> {
    let mut sum = String::new();
    for text in [a, b] {
        let safe = if text.is_safe() {
            text.clone()
        } else {
            escaped(text.as_str().unwrap_or_default())
        };
        write_text(state, &mut sum, &safe)?;
    }
    Ok(Value::from_safe_string(sum))
}

fn mul(state: &mut State, a: &Value, b: &Value) -> Result<Value, Error> {
    let is_sequence = |value: &Value| matches!(kind(value), Kind::Str | Kind::List | Kind::Tuple);
    let (sequence, times) = if is_sequence(a) { (a, b) } else { (b, a) };
    let count = match number(times) {
        Some(Number::Int(n)) => n.clamp(0, i128::from(u32::MAX)) as u64,
        _ => return arithmetic("*", a, b, i128::checked_mul, |x, y| x * y),
    };
    if let Some(text) = sequence.as_str() {
        spend(state, count.saturating_mul(text.len() as u64))?;
        return Ok(Value::from(text.repeat(if text.is_empty() {
            0
        } else {
            count as usize
        })));
    }
    if !is_sequence(sequence) {
        return arithmetic("*", a, b, i128::checked_mul, |x, y| x * y);
    }
    let one = items(state, sequence)?;
    spend(state, count.saturating_mul(one.len() as u64 * NODE))?;
    let count = if one.is_empty() { 0 } else { count };
    let all = (0..count).flat_map(|_| one.iter().cloned()).collect();
    Ok(if kind(sequence) == Kind::List {
        list(all)
    } else {
        tuple(all)
    })
}

fn arithmetic(
    op: &str,
    a: &Value,
    b: &Value,
    ints: fn(i128, i128) -> Option<i128>,
    floats: fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    match (number(a), number(b)) {
        (Some(Number::Int(x)), Some(Number::Int(y))) => match ints(x, y) {
            Some(n) => Ok(int(n)),
            None => Err(too_long(&format!("the result of {op}"))),
        },
        (Some(x), Some(y)) => Ok(Value::from(floats(float(x), float(y)))),
        _ => Err(impossible(op, a, b)),
    }
}

fn impossible(op: &str, a: &Value, b: &Value) -> Error {
    invalid(format!(
        "unsupported operand types for {op}: '{}' and '{}'",
        type_name(a),
        type_name(b)
    ))
}

fn nonzero(op: &str, a: &Value, b: &Value) -> Result<(Number, Number), Error> {
    match (number(a), number(b)) {
        (Some(_), Some(y)) if float(y) == 0.0 => Err(invalid("division by zero")),
        (Some(x), Some(y)) => Ok((x, y)),
        _ => Err(impossible(op, a, b)),
    }
}

fn div(a: &Value, b: &Value) -> Result<Value, Error> {
    let (x, y) = nonzero("/", a, b)?;
    Ok(Value::from(float(x) / float(y)))
}

fn floor_div(a: &Value, b: &Value) -> Result<Value, Error> {
    Ok(match nonzero("//", a, b)? {
        (Number::Int(x), Number::Int(y)) => {
            let quotient = x.checked_div(y).ok_or_else(|| too_long("the result of //"))?;
            int(quotient - i128::from(x % y != 0 && (x < 0) != (y < 0)))
        }
        (x, y) => Value::from((float(x) / float(y)).floor()),
    })
}

fn rem(state: &mut State, a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(format) = a.as_str() {
        return percent(state, format, b);
    }
    Ok(match nonzero("%", a, b)? {
        (Number::Int(x), Number::Int(y)) => {
            let rest = x.wrapping_rem(y);
            int(if rest != 0 && (rest < 0) != (y < 0) {
                rest + y
            } else {
                rest
            })
        }
        (x, y) => {
            let (x, y) = (float(x), float(y));
            let rest = x % y;
            Value::from(if rest != 0.0 && (rest < 0.0) != (y < 0.0) {
                rest + y
            } else {
                rest
            })
        }
    })
}

fn pow(a: &Value, b: &Value) -> Result<Value, Error> {
    match (number(a), number(b)) {
        (Some(Number::Int(x)), Some(Number::Int(y))) if y >= 0 => {
            let power = u32::try_from(y).ok().and_then(|y| x.checked_pow(y));
            power.map(int).ok_or_else(|| too_long("the result of **"))
        }
        (Some(x), Some(y)) => Ok(Value::from(float(x).powf(float(y)))),
        _ => Err(impossible("**", a, b)),
    }
}

/// Implements `a ~ b`.
fn concat(state: &mut State, a: &Value, b: &Value) -> Result<Value, Error> {
    let mut text = String::new();
    write_text(state, &mut text, a)?;
    write_text(state, &mut text, b)?;
    Ok(Value::from(text))
}

/// Implements `a < b < c`, with the operators as strings between the operands.
fn compare_all(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let mut left = &args[0];
    for pair in args[1..].chunks_exact(2) {
        let right = &pair[1];
        let holds = match pair[0].as_str().unwrap_or_default() {
            "==" => equal(state, left, right)?,
            "!=" => !equal(state, left, right)?,
            "in" => contains(state, right, left)?,
            "not in" => !contains(state, right, left)?,
            op => {
                let order = order(state, left, right, op)?;
                match (op, order) {
                    (_, None) => false,
                    ("<", Some(order)) => order.is_lt(),
                    ("<=", Some(order)) => order.is_le(),
                    (">", Some(order)) => order.is_gt(),
                    (_, Some(order)) => order.is_ge(),
                }
            }
        };
        if !holds {
            return Ok(Value::from(false));
        }
        left = right;
    }
    Ok(Value::from(true))
}

/// Implements `value[key]`.
pub(super) fn item(state: &mut State, value: &Value, key: &Value) -> Result<Value, Error> {
    spend(state, text_len(key))?;
    match kind(value) {
        Kind::Undefined => return Err(Error::from(minijinja::ErrorKind::UndefinedError)),
        Kind::Dict => {
            hashable(key)?;
            let found = value.get_item(key)?;
            if !found.is_undefined() {
                return Ok(found);
            }
        }
        Kind::Str | Kind::List | Kind::Tuple | Kind::Range => {
            let index = match number(key) {
                Some(Number::Int(i)) => Some(i),
                _ => None,
            };
            if let Some(i) = index {
                if kind(value) == Kind::Str {
                    spend(state, text_len(value))?;
                }
                let i = i64::try_from(i).unwrap_or(i64::MAX);
                return value.get_item(&Value::from(i));
            }
        }
        _ => return value.get_item(key),
    }
    // Like Jinja, a missing item is looked up as an attribute.
    if key.as_str().is_some() {
        attribute(value, key)
    } else {
        Ok(Value::UNDEFINED)
    }
}

/// Looks up an attribute that may be a method.
fn attribute(value: &Value, name: &Value) -> Result<Value, Error> {
    let name = name.as_str().unwrap_or_default();
    if has_method(kind(value), name) {
        let value = value.clone();
        return Ok(Value::from_object(BoundMethod {
            value,
            name: name.to_owned(),
        }));
    }
    value.get_attr(name)
}

/// Implements `value[start:stop:step]` for strings and sequences, with Python's semantics.
fn slice(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let bound = |v: &Value| match number(v) {
        _ if v.is_none() || v.is_undefined() => Ok(None),
        Some(Number::Int(i)) => Ok(Some(i64::try_from(i).unwrap_or(if i > 0 {
            i64::MAX
        } else {
            i64::MIN
        }))),
        _ => Err(invalid("slice bounds must be integers")),
    };
    let value = &args[0];
    let (start, stop, step) = (bound(&args[1])?, bound(&args[2])?, bound(&args[3])?.unwrap_or(1));
    if step == 0 {
        return Err(invalid("slice step must not be 0"));
    }
    match kind(value) {
        Kind::Str => {
            let text = value.as_str().unwrap_or_default();
            spend(state, text.len() as u64)?;
            let chars: Vec<char> = text.chars().collect();
            let selected = indices(chars.len(), start, stop, step).map(|i| chars[i]);
            Ok(Value::from(selected.collect::<String>()))
        }
        Kind::Undefined | Kind::None => Ok(list(Vec::new())),
        Kind::List | Kind::Tuple | Kind::Range => {
            let all = items(state, value)?;
            let selected = indices(all.len(), start, stop, step).map(|i| all[i].clone()).collect();
            Ok(if kind(value) == Kind::Tuple {
                tuple(selected)
            } else {
                list(selected)
            })
        }
        _ => Err(invalid(format!("cannot slice a value of type {}", type_name(value)))),
    }
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
