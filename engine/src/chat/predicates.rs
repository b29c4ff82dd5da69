//! Jinja's tests.

use super::args::{Call, bind, invalid, required};
use super::compare::{contains, equal, order};
use super::methods::{is_lower, is_upper};
use super::numbers::{Number, float, number};
use super::repr::{is_namespace, text_of};
use super::values::{BoundMethod, Kind, is_same, kind};
use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

/// Returns all tests. Those of [`Call`]s return a boolean.
pub(super) fn predicates() -> Vec<(&'static str, Call)> {
    macro_rules! kinds {
        ($($kind:ident)|+) => {
            |_, args| Ok(Value::from(matches!(kind(&args[0]), $(Kind::$kind)|+)))
        };
    }
    vec![
        ("boolean", kinds!(Bool)),
        ("callable", |_, args| Ok(Value::from(is_callable(&args[0])))),
        ("defined", |_, args| Ok(Value::from(!args[0].is_undefined()))),
        ("divisibleby", |_, args| {
            let [value, by] = bind(args, ["", "num"])?;
            rest(&required(value)?, &required(by)?).map(|rest| Value::from(rest == 0.0))
        }),
        ("escaped", |_, args| Ok(Value::from(args[0].is_safe()))),
        ("even", |_, args| {
            rest(&args[0], &Value::from(2)).map(|rest| Value::from(rest == 0.0))
        }),
        ("false", |_, args| {
            Ok(Value::from(kind(&args[0]) == Kind::Bool && !args[0].is_true()))
        }),
        ("filter", |state, args| is_known(state, &args[0], true)),
        ("float", kinds!(Float)),
        ("in", |state, args| {
            let [value, container] = bind(args, ["", ""])?;
            contains(state, &required(container)?, &required(value)?).map(Value::from)
        }),
        ("integer", kinds!(Int)),
        ("iterable", kinds!(Undefined | Str | List | Tuple | Dict | Range)),
        ("lower", |state, args| {
            text_of(state, &args[0]).map(|text| Value::from(is_lower(&text)))
        }),
        ("mapping", kinds!(Dict)),
        ("none", kinds!(None)),
        ("number", kinds!(Bool | Int | Float)),
        ("odd", |_, args| {
            rest(&args[0], &Value::from(2)).map(|rest| Value::from(rest == 1.0))
        }),
        ("sameas", |_, args| {
            let [value, other] = bind(args, ["", "other"])?;
            Ok(Value::from(is_same(&required(value)?, &required(other)?)))
        }),
        ("sequence", kinds!(Undefined | Str | List | Tuple | Dict | Range)),
        ("string", kinds!(Str)),
        ("test", |state, args| is_known(state, &args[0], false)),
        ("true", |_, args| {
            Ok(Value::from(kind(&args[0]) == Kind::Bool && args[0].is_true()))
        }),
        ("undefined", kinds!(Undefined)),
        ("upper", |state, args| {
            text_of(state, &args[0]).map(|text| Value::from(is_upper(&text)))
        }),
        ("==", |state, args| compare(state, args, "==")),
        ("eq", |state, args| compare(state, args, "==")),
        ("equalto", |state, args| compare(state, args, "==")),
        ("!=", |state, args| compare(state, args, "!=")),
        ("ne", |state, args| compare(state, args, "!=")),
        ("<", |state, args| compare(state, args, "<")),
        ("lt", |state, args| compare(state, args, "<")),
        ("lessthan", |state, args| compare(state, args, "<")),
        ("<=", |state, args| compare(state, args, "<=")),
        ("le", |state, args| compare(state, args, "<=")),
        (">", |state, args| compare(state, args, ">")),
        ("gt", |state, args| compare(state, args, ">")),
        ("greaterthan", |state, args| compare(state, args, ">")),
        (">=", |state, args| compare(state, args, ">=")),
        ("ge", |state, args| compare(state, args, ">=")),
    ]
}

fn compare(state: &mut State, args: &[Value], op: &str) -> Result<Value, Error> {
    let [a, b] = bind(args, ["", ""])?;
    let (a, b) = (required(a)?, required(b)?);
    let holds = match op {
        "==" => equal(state, &a, &b)?,
        "!=" => !equal(state, &a, &b)?,
        op => order(state, &a, &b, op)?.is_some_and(|order| match op {
            "<" => order.is_lt(),
            "<=" => order.is_le(),
            ">" => order.is_gt(),
            _ => order.is_ge(),
        }),
    };
    Ok(Value::from(holds))
}

fn is_callable(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Undefined => true,
        ValueKind::Plain => value.downcast_object_ref::<BoundMethod>().is_some() || !is_namespace(value),
        _ => kind(value) == Kind::Object && !is_namespace(value),
    }
}

/// Returns the remainder of a division.
fn rest(value: &Value, by: &Value) -> Result<f64, Error> {
    match (number(value), number(by)) {
        (Some(Number::Int(_)), Some(Number::Int(0))) => Err(invalid("division by zero")),
        (Some(Number::Int(n)), Some(Number::Int(by))) => Ok(n.wrapping_rem(by).unsigned_abs() as f64),
        (Some(x), Some(by)) => Ok((float(x) % float(by)).abs()),
        _ => Err(invalid(format!("expected a number, found {}", value.kind()))),
    }
}

/// Returns true for the name of a filter or a test.
fn is_known(state: &mut State, name: &Value, is_filter: bool) -> Result<Value, Error> {
    let name = name.as_str().ok_or_else(|| invalid("expected a name"))?;
    let unknown = if is_filter {
        minijinja::ErrorKind::UnknownFilter
    } else {
        minijinja::ErrorKind::UnknownTest
    };
    let found = if is_filter {
        state.apply_filter(name, &[]).map(drop)
    } else {
        state.perform_test(name, &[]).map(drop)
    };
    Ok(Value::from(!found.is_err_and(|e| e.kind() == unknown)))
}
