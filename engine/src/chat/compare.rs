//! Comparisons of values with Python's semantics.

use super::args::invalid;
use super::meter::spend;
use super::numbers::{Number, float, number};
use super::values::{Dict, Kind, deep, hashable, is_same, iterable, kind, text_len, type_name};
use minijinja::{Error, State, Value};
use std::cmp::Ordering;

/// Returns true if two values are equal.
pub(super) fn equal(state: &mut State, a: &Value, b: &Value) -> Result<bool, Error> {
    equal_at(state, a, b, 0)
}

fn equal_at(state: &mut State, a: &Value, b: &Value, depth: usize) -> Result<bool, Error> {
    deep(depth)?;
    spend(state, 1 + text_len(a).min(text_len(b)))?;
    if let (Some(x), Some(y)) = (number(a), number(b)) {
        return Ok(match (x, y) {
            (Number::Int(x), Number::Int(y)) => x == y,
            (x, y) => float(x) == float(y),
        });
    }
    if kind(a) != kind(b) {
        return Ok(false);
    }
    match kind(a) {
        Kind::List | Kind::Tuple | Kind::Range => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (x, y) in a.try_iter()?.zip(b.try_iter()?) {
                if !equal_at(state, &x, &y, depth + 1)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        Kind::Dict => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for key in a.try_iter()? {
                let other = b.get_item(&key)?;
                if other.is_undefined() || !equal_at(state, &a.get_item(&key)?, &other, depth + 1)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        Kind::Object => Ok(is_same(a, b)),
        _ => Ok(a == b),
    }
}

/// Returns the order of two values; `None` if one is not a number.
pub(super) fn order(state: &mut State, a: &Value, b: &Value, op: &str) -> Result<Option<Ordering>, Error> {
    order_at(state, a, b, op, 0)
}

fn order_at(state: &mut State, a: &Value, b: &Value, op: &str, depth: usize) -> Result<Option<Ordering>, Error> {
    deep(depth)?;
    spend(state, 1 + text_len(a).min(text_len(b)))?;
    match (number(a), number(b)) {
        (Some(Number::Int(x)), Some(Number::Int(y))) => return Ok(Some(x.cmp(&y))),
        (Some(x), Some(y)) => return Ok(float(x).partial_cmp(&float(y))),
        _ => {}
    }
    match (kind(a), kind(b)) {
        (Kind::Str, Kind::Str) => Ok(Some(a.as_str().cmp(&b.as_str()))),
        (Kind::List, Kind::List) | (Kind::Tuple, Kind::Tuple) => {
            for (x, y) in a.try_iter()?.zip(b.try_iter()?) {
                if !equal_at(state, &x, &y, depth + 1)? {
                    return order_at(state, &x, &y, op, depth + 1);
                }
            }
            Ok(Some(a.len().cmp(&b.len())))
        }
        _ => Err(invalid(format!(
            "'{op}' not supported between instances of '{}' and '{}'",
            type_name(a),
            type_name(b)
        ))),
    }
}

/// Implements `item in container`.
pub(super) fn contains(state: &mut State, container: &Value, item: &Value) -> Result<bool, Error> {
    match kind(container) {
        Kind::Str => match item.as_str() {
            Some(part) => {
                let text = container.as_str().unwrap_or_default();
                spend(state, text.len() as u64)?;
                Ok(text.contains(part))
            }
            None => Err(invalid(format!(
                "'in <string>' requires a string, not {}",
                type_name(item)
            ))),
        },
        Kind::Dict => {
            hashable(item)?;
            spend(state, text_len(item))?;
            Ok(match container.downcast_object_ref::<Dict>() {
                Some(dict) => dict.entries().contains_key(item),
                None => !container.get_item(item)?.is_undefined(),
            })
        }
        _ => {
            iterable(container)?;
            for other in container.try_iter()? {
                if equal(state, &other, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}
