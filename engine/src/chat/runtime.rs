//! Execution environment of templates: filters, tests, functions, and a metered rendering on a separate
//! stack.

use super::ChatError;
use super::json::tojson;
use super::meter::{self, LimitReached, spend, visit};
use super::methods::{self, join_items};
use super::ops::{items, metered, operators, text_of};
use super::time::strftime;
use minijinja::machinery::{CompiledTemplate, TemplateConfig, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value, filters, functions, tests};
use std::sync::Arc;
use std::time::SystemTime;

/// Stack size for rendering, sufficient for the maximum nesting in debug and release builds.
const STACK_BYTES: usize = 64 << 20;
/// Maximum depth of macros, loops, and conditions, as counted by minijinja.
const MAX_RECURSION: usize = 200;
/// Maximum width for the `indent` filter.
const MAX_INDENT: u64 = 256;
const NAME: &str = "chat_template";

/// Arguments of a call; named arguments are one value at the end.
type Args = Rest<ValueOrKwargs>;

/// The template called `raise_exception`; source of a minijinja error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// Creates the environment with everything except the variables of a rendering.
pub(super) fn environment(now: fn() -> SystemTime) -> Environment<'static> {
    let mut env = Environment::empty();
    env.set_fuel(Some(meter::MAX_FUEL));
    env.set_recursion_limit(MAX_RECURSION);
    env.set_unknown_method_callback(methods::call);
    env.set_formatter(|out, state, value| {
        let text = text_of(state, value)?;
        out.write_str(&text).map_err(Error::from)
    });
    for (name, function) in meter::checks().into_iter().chain(operators()) {
        env.add_global(name, function);
    }
    add_functions(&mut env, now);
    add_filters(&mut env);
    add_tests(&mut env);
    env
}

fn add_functions(env: &mut Environment<'static>, now: fn() -> SystemTime) {
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    env.add_function("strftime_now", move |format: &str| strftime(format, now()));
    // `range` is lazy and limited to 100000 numbers.
    env.add_function("range", functions::range);
    let dict = metered(Value::from_function(functions::dict), true);
    env.add_function("dict", move |state: &mut State, args: Args| {
        dict(state, &args.into_values())
    });
    env.add_function("namespace", |state: &mut State, args: Args| {
        let args = args.into_values();
        for arg in &args {
            visit(
                state,
                arg,
                meter::Visit {
                    text: false,
                    no_namespace: true,
                },
            )?;
        }
        Value::from_function(functions::namespace).call(state, &args)
    });
}

/// Adds minijinja's metered filters, and reimplementations where Python differs or where the result can be
/// much larger than the input.
fn add_filters(env: &mut Environment<'static>) {
    env.add_filter("tojson", tojson);
    env.add_filter("string", |state: &mut State, value: Value| text_of(state, &value));
    for name in ["length", "count"] {
        // The length of an undefined value is 0 in Jinja.
        env.add_filter(name, |value: Value| {
            if value.is_undefined() {
                Ok(0)
            } else {
                filters::length(&value)
            }
        });
    }
    env.add_filter(
        "join",
        |state: &mut State, list: Value, separator: Option<String>, kwargs: Kwargs| {
            let attribute: Option<String> = kwargs.get("attribute")?;
            kwargs.assert_all_used()?;
            let mut list = items(state, &list)?;
            if let Some(name) = attribute {
                list = list.iter().map(|item| item.get_attr(&name)).collect::<Result<_, _>>()?;
            }
            join_items(state, separator.as_deref().unwrap_or_default(), list)
        },
    );
    env.add_filter("replace", |state: &mut State, text: Value, args: Args| {
        let text = Value::from(text_of(state, &text)?);
        methods::call(state, &text, "replace", &args.into_values())
    });
    env.add_filter("trim", |state: &mut State, text: Value, args: Args| {
        let text = Value::from(text_of(state, &text)?);
        methods::call(state, &text, "strip", &args.into_values())
    });
    env.add_filter("items", |state: &mut State, map: Value| {
        methods::call(state, &map, "items", &[])
    });
    env.add_filter("indent", |state: &mut State, text: Value, args: Args| {
        let text = text_of(state, &text)?;
        let args = args.into_values();
        // The width is the first argument or a named one; named arguments are passed as a map.
        let width = args.first().map(|a| {
            a.get_attr("width")
                .ok()
                .filter(|w| !w.is_undefined())
                .unwrap_or(a.clone())
        });
        let width = width.and_then(|w| w.as_i64()).unwrap_or(4).unsigned_abs();
        if width > MAX_INDENT {
            return Err(Error::from(LimitReached {
                what: "columns of indentation",
                limit: MAX_INDENT,
            }));
        }
        spend(state, width * (text.matches('\n').count() as u64 + 1))?;
        let args: Vec<Value> = std::iter::once(Value::from(text)).chain(args).collect();
        Value::from_function(filters::indent).call(state, &args)
    });
    for (name, function, deep) in filter_table() {
        let call = metered(function, deep);
        env.add_filter(name, move |state: &mut State, args: Args| {
            call(state, &args.into_values())
        });
    }
}

/// Returns name, function, and whether the filter may read or nest everything in its arguments.
fn filter_table() -> Vec<(&'static str, Value, bool)> {
    macro_rules! table {
        ($($name:literal => $function:ident, $deep:literal;)*) => {
            vec![$(($name, Value::from_function(filters::$function), $deep)),*]
        };
    }
    table! {
        "abs" => abs, false;
        "attr" => attr, false;
        "bool" => bool, false;
        "capitalize" => capitalize, false;
        "d" => default, false;
        "default" => default, false;
        "dictsort" => dictsort, true;
        "e" => escape, false;
        "escape" => escape, false;
        "first" => first, false;
        "float" => float, false;
        "int" => int, false;
        "last" => last, false;
        "list" => list, false;
        "lower" => lower, false;
        "map" => map, false;
        "max" => max, true;
        "min" => min, true;
        "reject" => reject, false;
        "rejectattr" => rejectattr, false;
        "reverse" => reverse, false;
        "round" => round, false;
        "safe" => safe, false;
        "select" => select, false;
        "selectattr" => selectattr, false;
        "sort" => sort, true;
        "sum" => sum, true;
        "title" => title, false;
        "unique" => unique, true;
        "upper" => upper, false;
    }
}

fn add_tests(env: &mut Environment<'static>) {
    macro_rules! table {
        ($($name:literal => $function:ident, $deep:literal;)*) => {
            [$(($name, Value::from_function(tests::$function), $deep)),*]
        };
    }
    let table = table! {
        "boolean" => is_boolean, false;
        "defined" => is_defined, false;
        "divisibleby" => is_divisibleby, false;
        "eq" => is_eq, true;
        "equalto" => is_eq, true;
        "==" => is_eq, true;
        "even" => is_even, false;
        "false" => is_false, false;
        "float" => is_float, false;
        "ge" => is_ge, true;
        "gt" => is_gt, true;
        "in" => is_in, true;
        "integer" => is_integer, false;
        "iterable" => is_iterable, false;
        "le" => is_le, true;
        "lower" => is_lower, false;
        "lt" => is_lt, true;
        "mapping" => is_mapping, false;
        "ne" => is_ne, true;
        "!=" => is_ne, true;
        "none" => is_none, false;
        "number" => is_number, false;
        "odd" => is_odd, false;
        "sameas" => is_sameas, true;
        "sequence" => is_sequence, false;
        "string" => is_string, false;
        "true" => is_true, false;
        "undefined" => is_undefined, false;
        "upper" => is_upper, false;
    };
    for (name, function, deep) in table {
        let call = metered(function, deep);
        env.add_test(name, move |state: &mut State, args: Args| {
            call(state, &args.into_values()).map(|v| v.is_true())
        });
    }
}

/// Checks a template. After success, [`render`] can execute it.
pub(super) fn compile(source: &str) -> Result<(), ChatError> {
    on_own_stack(|| program(source).map(drop).map_err(chat_error))
}

/// Renders a template with the variables in `root`.
pub(super) fn render(env: &Environment<'static>, source: &str, root: &Value) -> Result<String, ChatError> {
    on_own_stack(|| {
        let run = || -> Result<String, Error> {
            let program = program(source)?;
            let mut text = String::new();
            let mut out = make_string_output(&mut text);
            let blocks = Default::default();
            let instructions = &program.instructions;
            minijinja::machinery::eval(env, instructions, root.clone(), &blocks, &mut out, AutoEscape::None)?;
            drop(out);
            Ok(text)
        };
        run().map_err(chat_error)
    })
}

/// Compiles a template and inserts the checks.
fn program(source: &str) -> Result<CompiledTemplate<'_>, Error> {
    // `transformers` uses these settings for chat templates.
    let syntax_config = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    let config = TemplateConfig {
        syntax_config,
        default_auto_escape: Arc::new(|_| AutoEscape::None),
    };
    let mut program = CompiledTemplate::new(NAME, source, &config)?;
    program.instructions = meter::rewrite(&program.instructions)?;
    Ok(program)
}

/// Runs a closure on a thread with a large stack, because the parser, the compiler, and values recurse.
/// Converts a panic to an error.
fn on_own_stack<T: Send>(run: impl FnOnce() -> Result<T, ChatError> + Send) -> Result<T, ChatError> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name(NAME.into()).stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, run).map_err(|_| ChatError::Engine)?;
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
