//! Arguments of filters, tests, methods, and functions: binding by position and by name, and conversions.

use minijinja::{Error, ErrorKind, Value};

/// Signature of filters, tests, and functions.
pub(super) type Call = fn(&mut minijinja::State, &[Value]) -> Result<Value, Error>;

/// Creates the error of an operation that Python rejects.
pub(super) fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Separates positional arguments from named ones, which minijinja passes as one value at the end.
pub(super) fn split(args: &[Value]) -> (&[Value], Option<&Value>) {
    match args.split_last() {
        Some((named, positional)) if named.is_kwargs() => (positional, Some(named)),
        _ => (args, None),
    }
}

/// Assigns arguments to parameters. Parameters with an empty name are positional only; missing ones are
/// `None`.
pub(super) fn bind<const N: usize>(args: &[Value], names: [&str; N]) -> Result<[Option<Value>; N], Error> {
    let (positional, named) = split(args);
    if positional.len() > N {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut bound = [const { None }; N];
    for (slot, value) in bound.iter_mut().zip(positional) {
        *slot = Some(value.clone());
    }
    let Some(named) = named else { return Ok(bound) };
    for key in named.try_iter()? {
        let name = key.as_str().unwrap_or_default();
        let at = names.iter().position(|n| !name.is_empty() && *n == name);
        let slot = at.map(|at| &mut bound[at]);
        match slot {
            Some(slot @ None) => *slot = Some(named.get_item(&key)?),
            Some(Some(_)) => return Err(invalid(format!("two values for the argument `{name}`"))),
            None => return Err(invalid(format!("unknown argument `{name}`"))),
        }
    }
    Ok(bound)
}

/// Returns a required argument.
pub(super) fn required(value: Option<Value>) -> Result<Value, Error> {
    value.ok_or_else(|| Error::from(ErrorKind::MissingArgument))
}

/// Returns an integer argument; `None` if it is missing or none.
pub(super) fn integer(value: Option<Value>) -> Result<Option<i64>, Error> {
    match value {
        None => Ok(None),
        Some(value) if value.is_none() => Ok(None),
        Some(value) if value.is_integer() => Ok(Some(value.as_i64().unwrap_or(i64::MAX))),
        Some(value) if value.kind() == minijinja::value::ValueKind::Bool => Ok(Some(i64::from(value.is_true()))),
        Some(value) => Err(invalid(format!("expected an integer, found {}", value.kind()))),
    }
}

/// Returns the truth of an optional argument.
pub(super) fn flag(value: &Option<Value>) -> bool {
    value.as_ref().is_some_and(Value::is_true)
}

/// Returns a string argument; `None` if it is missing or none.
pub(super) fn text(value: &Option<Value>) -> Result<Option<&str>, Error> {
    match value {
        None => Ok(None),
        Some(value) if value.is_none() => Ok(None),
        Some(value) => match value.as_str() {
            Some(text) => Ok(Some(text)),
            None => Err(invalid(format!("expected a string, found {}", value.kind()))),
        },
    }
}
