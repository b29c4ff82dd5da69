//! Python's numbers.

use super::values::{Kind, kind};
use minijinja::Value;

/// A number as Python computes with it.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

/// Returns the number of a value; booleans are 0 and 1.
pub(super) fn number(value: &Value) -> Option<Number> {
    match kind(value) {
        Kind::Bool => Some(Number::Int(i128::from(value.is_true()))),
        Kind::Int => match i128::try_from(value.clone()) {
            Ok(n) => Some(Number::Int(n)),
            Err(_) => f64::try_from(value.clone()).ok().map(Number::Float),
        },
        Kind::Float => f64::try_from(value.clone()).ok().map(Number::Float),
        _ => None,
    }
}

/// Returns a number as a float.
pub(super) fn float(number: Number) -> f64 {
    match number {
        Number::Int(n) => n as f64,
        Number::Float(x) => x,
    }
}

/// Returns the value of an integer.
pub(super) fn int(n: i128) -> Value {
    i64::try_from(n).map_or_else(|_| Value::from(n), Value::from)
}
