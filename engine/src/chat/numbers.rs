//! Python's numbers.

use super::args::invalid;
use super::values::{Kind, kind};
use minijinja::{Error, Value};

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

/// Returns the integer part of a number; `None` if it is not finite. `what` names the number in errors.
pub(super) fn whole(x: f64, what: &str) -> Result<Option<i128>, Error> {
    const END: f64 = (1_u128 << 127) as f64;
    match x {
        x if !x.is_finite() => Ok(None),
        x if (-END..END).contains(&x) => Ok(Some(x as i128)),
        _ => Err(too_long(what)),
    }
}

/// Returns the error of an integer that Python could represent.
pub(super) fn too_long(what: &str) -> Error {
    invalid(format!("{what} exceeds 128 bits"))
}

/// Returns the value of an integer.
pub(super) fn int(n: i128) -> Value {
    i64::try_from(n).map_or_else(|_| Value::from(n), Value::from)
}
