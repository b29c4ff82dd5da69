//! Execution environment of templates: filters, tests, functions, and a metered rendering on a separate
//! stack.

use super::ChatError;
use super::args::{Call, bind, required};
use super::filters::filters;
use super::functions::functions;
use super::lower::{NAME, program};
use super::meter::{self, LimitReached, spend};
use super::methods;
use super::ops::operators;
use super::predicates::predicates;
use super::repr::{escaped, text_of};
use super::time::strftime;
use super::values::text_len;
use minijinja::machinery::make_string_output;
use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};
use std::time::SystemTime;

/// Stack size for rendering, sufficient for the maximum nesting in debug and release builds.
const STACK_BYTES: usize = 64 << 20;
/// Maximum depth of macros, loops, and conditions, as counted by minijinja.
const MAX_RECURSION: usize = 200;

/// Arguments of a call; named arguments are one value at the end.
type Args = Rest<ValueOrKwargs>;

/// The template called `raise_exception`; source of a minijinja error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// Maximum number of characters in the message of an exception, which may contain whole conversations.
const MAX_RAISED: usize = 1000;

/// Creates the environment with everything except the variables of a rendering.
pub(super) fn environment(now: fn() -> SystemTime) -> Environment<'static> {
    let mut env = Environment::empty();
    env.set_fuel(Some(meter::MAX_FUEL));
    env.set_recursion_limit(MAX_RECURSION);
    env.set_unknown_method_callback(methods::call);
    env.set_formatter(|out, state, value| {
        let text = text_of(state, value)?;
        if matches!(state.auto_escape(), AutoEscape::Html) && !value.is_safe() {
            spend(state, text.len() as u64 * 6)?;
            let text = escaped(&text);
            return out.write_str(text.as_str().unwrap_or_default()).map_err(Error::from);
        }
        out.write_str(&text).map_err(Error::from)
    });
    for (name, function) in functions() {
        env.add_function(name, move |state: &mut State, args: Args| {
            metered(state, function, &args.into_values())
        });
    }
    for (name, filter) in operators().into_iter().chain(filters()) {
        env.add_filter(name, move |state: &mut State, args: Args| {
            on_value(state, filter, &args.into_values())
        });
    }
    for (name, test) in predicates() {
        env.add_test(name, move |state: &mut State, args: Args| {
            on_value(state, test, &args.into_values()).map(|holds| holds.is_true())
        });
    }
    env.add_function("raise_exception", |mut message: String| -> Result<Value, Error> {
        if let Some((end, _)) = message.char_indices().nth(MAX_RAISED) {
            message.truncate(end);
            message.push('…');
        }
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    env.add_function("strftime_now", move |args: Args| {
        let [format] = bind(&args.into_values(), ["format"])?;
        let format = required(format)?;
        strftime(format.as_str().unwrap_or_default(), now()).map(Value::from)
    });
    env
}

/// Calls a filter or a test, whose first argument is its value.
fn on_value(state: &mut State, call: Call, args: &[Value]) -> Result<Value, Error> {
    if args.is_empty() {
        return Err(Error::from(ErrorKind::MissingArgument));
    }
    metered(state, call, args)
}

/// Calls a function and charges for the bytes of its arguments and its result.
fn metered(state: &mut State, call: Call, args: &[Value]) -> Result<Value, Error> {
    let n: u64 = args.iter().map(text_len).sum();
    spend(state, n)?;
    let result = call(state, args)?;
    // New lists are charged where they are created.
    spend(state, meter::NODE + text_len(&result))?;
    Ok(result)
}

/// Checks a template. After success, [`render`] can execute it.
pub(super) fn compile(source: &str) -> Result<(), ChatError> {
    on_own_stack(|| program(source).map(drop).map_err(chat_error))
}

/// Renders a template with the variables in `root`.
pub(super) fn render(env: &Environment<'static>, source: &str, root: &Value) -> Result<String, ChatError> {
    on_own_stack(|| {
        let run = || -> Result<String, Error> {
            let instructions = program(source)?;
            let mut text = String::new();
            let mut out = make_string_output(&mut text);
            let blocks = Default::default();
            minijinja::machinery::eval(env, &instructions, root.clone(), &blocks, &mut out, AutoEscape::None)?;
            drop(out);
            Ok(text)
        };
        run().map_err(chat_error)
    })
}

/// Runs a closure on a thread with a large stack, because the parser, the compiler, and values recurse.
/// Converts a panic to an error.
fn on_own_stack<T: Send>(run: impl FnOnce() -> Result<T, ChatError> + Send) -> Result<T, ChatError> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name(NAME.into()).stack_size(STACK_BYTES);
        let no_thread = |e: std::io::Error| ChatError::Thread { reason: e.to_string() };
        let thread = builder.spawn_scoped(scope, run).map_err(no_thread)?;
        thread.join().unwrap_or(Err(ChatError::Engine))
    })
}

/// Converts a minijinja error; exceptions raised by the template and exceeded limits are extracted from its
/// sources.
fn chat_error(error: Error) -> ChatError {
    if error.kind() == ErrorKind::OutOfFuel {
        return ChatError::Limit {
            what: "instructions",
            limit: meter::MAX_FUEL,
        };
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(e) = cause {
        if let Some(limit) = e.downcast_ref::<LimitReached>() {
            return ChatError::Limit {
                what: limit.what,
                limit: limit.limit,
            };
        }
        if let Some(Raised(message)) = e.downcast_ref::<Raised>() {
            return ChatError::Rejected {
                message: message.clone(),
            };
        }
        cause = e.source();
    }
    let (line, message) = (error.line(), error.detail().unwrap_or("unknown cause").to_string());
    let message = if error.detail().is_some() {
        message
    } else {
        error.kind().to_string()
    };
    match error.kind() {
        ErrorKind::SyntaxError => ChatError::Syntax { line, message },
        _ => ChatError::Render { line, message },
    }
}
