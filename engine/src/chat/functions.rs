//! Jinja's global functions.

use super::args::{Call, bind, integer, invalid, split};
use super::collections::entries_of;
use super::values::{Range, Visit, check_store, dict, visit};
use minijinja::value::{Object, ObjectRepr};
use minijinja::{Error, State, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum length of a range, as in Jinja's sandbox.
const MAX_RANGE: usize = 100_000;

/// Returns the functions that need no state of the environment.
pub(super) fn functions() -> Vec<(&'static str, Call)> {
    vec![
        ("cycler", |_, args| {
            let (items, at) = (args.to_vec(), AtomicUsize::new(0));
            if items.is_empty() {
                return Err(invalid("cycler needs at least one value"));
            }
            Ok(Value::from_object(Cycler { items, at }))
        }),
        ("dict", |state, args| {
            let entries = entries_of(state, args)?;
            let created = dict([]);
            for (_, value) in &entries {
                check_store(state, &created, value)?;
            }
            Ok(dict(entries))
        }),
        ("joiner", |_, args| {
            let [separator] = bind(args, ["sep"])?;
            let separator = separator.unwrap_or_else(|| Value::from(", "));
            Ok(Value::from_object(Cycler {
                items: vec![Value::from(""), separator],
                at: AtomicUsize::new(0),
            }))
        }),
        ("namespace", |state, args| {
            let (_, named) = split(args);
            for value in args {
                let how = Visit {
                    stores: true,
                    ..Visit::default()
                };
                if named.is_none() || !value.is_kwargs() {
                    visit(state, value, how)?;
                    continue;
                }
                for key in value.try_iter()? {
                    visit(state, &value.get_item(&key)?, how)?;
                }
            }
            Value::from_function(minijinja::functions::namespace).call(state, args)
        }),
        ("range", range),
    ]
}

fn range(_: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [first, second, step] = bind(args, ["", "", ""])?;
    let (first, second) = (integer(first)?, integer(second)?);
    let first = first.ok_or_else(|| invalid("range needs an integer"))?;
    let (start, stop) = second.map_or((0, first), |stop| (first, stop));
    let step = integer(step)?.unwrap_or(1);
    let distance = i128::from(stop) - i128::from(start);
    let len = match step {
        0 => return Err(invalid("range() arg 3 must not be zero")),
        step if (step > 0) != (distance > 0) => 0,
        step => distance.unsigned_abs().div_ceil(u128::from(step.unsigned_abs())),
    };
    match usize::try_from(len) {
        Ok(len) if len <= MAX_RANGE => Ok(Value::from_object(Range { start, stop, step, len })),
        _ => Err(invalid(format!("range too big, at most {MAX_RANGE} numbers"))),
    }
}

/// Values that are returned cyclically (`cycler`), or the texts for the first and for all further uses (`joiner`).
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Cycler {
    fn current(&self) -> Value {
        self.items
            .get(self.at.load(Ordering::Relaxed))
            .cloned()
            .unwrap_or_default()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        if key.as_str() == Some("current") {
            Some(self.current())
        } else {
            None
        }
    }

    /// Implements a call of a joiner.
    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, _: &[Value]) -> Result<Value, Error> {
        let current = self.current();
        self.at.store(1, Ordering::Relaxed);
        Ok(current)
    }

    fn call_method(self: &Arc<Self>, _: &mut State<'_, '_>, method: &str, _: &[Value]) -> Result<Value, Error> {
        let current = self.current();
        let next = (self.at.load(Ordering::Relaxed) + 1) % self.items.len();
        match method {
            "next" => self.at.store(next, Ordering::Relaxed),
            "reset" => self.at.store(0, Ordering::Relaxed),
            _ => return Err(Error::from(minijinja::ErrorKind::UnknownMethod)),
        }
        Ok(current)
    }
}
