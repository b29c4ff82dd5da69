//! Python's methods of strings, dictionaries, and lists.

use super::meter::{Visit, charge_new, spend, visit};
use super::ops::{items, write_text};
use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// Calls a method that minijinja's value does not provide.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let result = match value.kind() {
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            // Every method reads the string once. Methods that create larger strings charge separately.
            spend(state, text.len() as u64)?;
            string_method(state, text, method, args)?
        }
        ValueKind::Map => map_method(state, value, method, args)?,
        ValueKind::Seq | ValueKind::Iterable => list_method(state, value, method, args)?,
        _ => None,
    };
    let result = result.ok_or_else(|| Error::from(ErrorKind::UnknownMethod))?;
    if value.kind() == ValueKind::String {
        charge_new(state, &result)?;
    }
    Ok(result)
}

type Found = Result<Option<Value>, Error>;

fn string_method(state: &mut State, text: &str, method: &str, args: &[Value]) -> Found {
    let value = match method {
        "strip" | "lstrip" | "rstrip" => strip(text, method, args)?,
        "upper" => none(args, || text.to_uppercase())?,
        "lower" | "casefold" => none(args, || text.to_lowercase())?,
        "title" => none(args, || title(text))?,
        "capitalize" => none(args, || capitalize(text))?,
        "swapcase" => none(args, || text.chars().flat_map(swap_case).collect::<String>())?,
        "startswith" => Value::from(any_of(args, |affix| text.starts_with(affix))?),
        "endswith" => Value::from(any_of(args, |affix| text.ends_with(affix))?),
        "removeprefix" => from_args::<(&str,)>(args).map(|(p,)| text.strip_prefix(p).unwrap_or(text).into())?,
        "removesuffix" => from_args::<(&str,)>(args).map(|(s,)| text.strip_suffix(s).unwrap_or(text).into())?,
        "split" | "rsplit" => split(text, method == "rsplit", args)?,
        "splitlines" => split_lines(text, args)?,
        "partition" | "rpartition" => partition(text, method == "rpartition", args)?,
        "replace" => return replace(state, text, args).map(Some),
        "join" => return join(state, text, args).map(Some),
        "find" | "index" | "rfind" | "rindex" => find(text, method, args)?,
        "count" => from_args::<(&str,)>(args).map(|(part,)| count(text, part).into())?,
        "isdigit" | "isnumeric" | "isdecimal" => all(text, args, char::is_numeric)?,
        "isalpha" => all(text, args, char::is_alphabetic)?,
        "isalnum" => all(text, args, char::is_alphanumeric)?,
        "isspace" => all(text, args, char::is_whitespace)?,
        "isupper" => none(args, || is_cased(text, char::is_uppercase, char::is_lowercase))?,
        "islower" => none(args, || is_cased(text, char::is_lowercase, char::is_uppercase))?,
        "format" => return format(state, text, args).map(Some),
        _ => return Ok(None),
    };
    Ok(Some(value))
}

fn map_method(state: &mut State, map: &Value, method: &str, args: &[Value]) -> Found {
    // For calls, methods take precedence over map items of the same name, as in Python.
    let value = match method {
        "get" => {
            let (key, default): (&Value, Option<Value>) = from_args(args)?;
            visit(
                state,
                key,
                Visit {
                    text: true,
                    no_namespace: false,
                },
            )?;
            let found = map.get_item(key).ok().filter(|v| !v.is_undefined());
            found.unwrap_or_else(|| default.unwrap_or_else(|| Value::from(())))
        }
        "keys" | "values" | "items" => {
            from_args::<()>(args)?;
            let mut list = Vec::new();
            for key in items(state, map)? {
                spend(state, 64)?;
                list.push(match method {
                    "keys" => key,
                    "values" => map.get_item(&key)?,
                    _ => Value::from(vec![key.clone(), map.get_item(&key)?]),
                });
            }
            let list = Value::from(list);
            if method == "items" {
                // A list of lists increases the nesting depth.
                visit(state, &list, Visit::default())?;
            }
            list
        }
        "copy" => none(args, || map.clone())?,
        _ => return Ok(None),
    };
    Ok(Some(value))
}

fn list_method(state: &mut State, list: &Value, method: &str, args: &[Value]) -> Found {
    let value = match method {
        "count" | "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            visit(
                state,
                list,
                Visit {
                    text: true,
                    no_namespace: false,
                },
            )?;
            let mut positions = list
                .try_iter()?
                .enumerate()
                .filter(|(_, item)| item == wanted)
                .map(|(i, _)| i);
            match method {
                "count" => Value::from(positions.count()),
                _ => Value::from(positions.next().ok_or_else(|| invalid("value not found in list"))?),
            }
        }
        "copy" => none(args, || list.clone())?,
        _ => return Ok(None),
    };
    Ok(Some(value))
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Returns the result of a method without arguments.
fn none<T: Into<Value>>(args: &[Value], result: impl FnOnce() -> T) -> Result<Value, Error> {
    from_args::<()>(args)?;
    Ok(result().into())
}

fn all(text: &str, args: &[Value], holds: impl Fn(char) -> bool) -> Result<Value, Error> {
    none(args, || !text.is_empty() && text.chars().all(holds))
}

fn is_cased(text: &str, wanted: fn(char) -> bool, other: fn(char) -> bool) -> bool {
    text.contains(wanted) && !text.contains(other)
}

/// Returns true if the predicate holds for the argument, or for any element of a tuple argument.
fn any_of(args: &[Value], holds: impl Fn(&str) -> bool) -> Result<bool, Error> {
    let (affix,): (&Value,) = from_args(args)?;
    if let Some(affix) = affix.as_str() {
        return Ok(holds(affix));
    }
    for affix in affix.try_iter()? {
        if holds(
            affix
                .as_str()
                .ok_or_else(|| invalid("expected a string or a tuple of strings"))?,
        ) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn strip(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    let strips = |c: char| chars.map_or(c.is_whitespace(), |chars| chars.contains(c));
    Ok(Value::from(match method {
        "strip" => text.trim_matches(strips),
        "lstrip" => text.trim_start_matches(strips),
        _ => text.trim_end_matches(strips),
    }))
}

fn split(text: &str, from_end: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator, max, kwargs): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.or(kwargs.get("sep")?);
    let max = max
        .or(kwargs.get("maxsplit")?)
        .and_then(|max| usize::try_from(max).ok())
        .unwrap_or(usize::MAX);
    kwargs.assert_all_used()?;
    let n = max.saturating_add(1);
    let mut parts: Vec<&str> = match (separator, from_end) {
        (Some(""), _) => return Err(invalid("empty separator")),
        (Some(separator), false) => text.splitn(n, separator).collect(),
        (Some(separator), true) => text.rsplitn(n, separator).collect(),
        (None, false) => split_words(text, max),
        (None, true) => rsplit_words(text, max),
    };
    if from_end {
        parts.reverse();
    }
    Ok(Value::from_iter(parts))
}

/// Splits at white space, at most `max` times; the rest is not split.
fn split_words(text: &str, max: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let end = if parts.len() < max {
            rest.find(char::is_whitespace).unwrap_or(rest.len())
        } else {
            rest.len()
        };
        parts.push(if parts.len() < max {
            &rest[..end]
        } else {
            rest.trim_end()
        });
        rest = rest[end..].trim_start();
    }
    parts
}

/// Splits at white space from the end, at most `max` times; the last part comes first.
fn rsplit_words(text: &str, max: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end();
    while !rest.is_empty() {
        let word = rest
            .char_indices()
            .rev()
            .find(|(_, c)| c.is_whitespace())
            .map_or(0, |(i, c)| i + c.len_utf8());
        let start = if parts.len() < max { word } else { 0 };
        parts.push(if parts.len() < max {
            &rest[start..]
        } else {
            rest.trim_start()
        });
        rest = rest[..start].trim_end();
    }
    parts
}

fn split_lines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keep_ends, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
    let keep_ends = keep_ends.or(kwargs.get("keepends")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let cut = |line: &str| {
        if keep_ends {
            return line.len();
        }
        line.strip_suffix('\n')
            .map_or(line, |l| l.strip_suffix('\r').unwrap_or(l))
            .len()
    };
    Ok(Value::from_iter(
        text.split_inclusive('\n').map(|line| Value::from(&line[..cut(line)])),
    ))
}

fn partition(text: &str, from_end: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    let parts = match (text.split_once(separator), text.rsplit_once(separator)) {
        (Some((a, b)), _) if !from_end => [a, separator, b],
        (_, Some((a, b))) if from_end => [a, separator, b],
        _ if from_end => ["", "", text],
        _ => [text, "", ""],
    };
    Ok(Value::from_iter(parts))
}

fn count(text: &str, part: &str) -> usize {
    match part {
        "" => text.chars().count() + 1,
        _ => text.matches(part).count(),
    }
}

fn replace(state: &mut State, text: &str, args: &[Value]) -> Result<Value, Error> {
    let (from, to, max): (&str, &str, Option<i64>) = from_args(args)?;
    let max = max.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
    let n = count(text, from).min(max) as u64;
    spend(state, n.saturating_mul(to.len() as u64))?;
    Ok(Value::from(text.replacen(from, to, n as usize)))
}

fn join(state: &mut State, separator: &str, args: &[Value]) -> Result<Value, Error> {
    let (list,): (&Value,) = from_args(args)?;
    let list = items(state, list)?;
    join_items(state, separator, list)
}

/// Joins the string representations of values.
pub(super) fn join_items(state: &mut State, separator: &str, list: Vec<Value>) -> Result<Value, Error> {
    let mut out = String::new();
    for (i, item) in list.iter().enumerate() {
        if i > 0 {
            spend(state, separator.len() as u64)?;
            out.push_str(separator);
        }
        write_text(state, &mut out, item)?;
    }
    Ok(Value::from(out))
}

/// Returns the position in characters. If not found, returns -1, or an error for `index` and `rindex`.
fn find(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (part,): (&str,) = from_args(args)?;
    let byte = if method.starts_with('r') {
        text.rfind(part)
    } else {
        text.find(part)
    };
    match byte {
        Some(byte) => Ok(Value::from(text[..byte].chars().count())),
        None if method.ends_with("find") => Ok(Value::from(-1)),
        None => Err(invalid("substring not found")),
    }
}

/// Implements `"{} {}".format(a, b)`, without format specifications.
fn format(state: &mut State, text: &str, args: &[Value]) -> Result<Value, Error> {
    let mut out = String::new();
    let mut args = args.iter();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("{}") {
            write_text(
                state,
                &mut out,
                args.next().ok_or_else(|| invalid("too few arguments for `format`"))?,
            )?;
            rest = after;
        } else if rest.starts_with("{{") || rest.starts_with("}}") {
            out.push_str(&rest[..1]);
            rest = &rest[2..];
        } else {
            return Err(invalid("format fields other than {} are not supported"));
        }
    }
    out.push_str(rest);
    Ok(Value::from(out))
}

fn title(text: &str) -> String {
    let mut in_word = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if in_word {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        in_word = c.is_alphabetic();
    }
    out
}

fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().into_iter().flat_map(char::to_uppercase);
    first.chain(chars.flat_map(char::to_lowercase)).collect()
}

fn swap_case(c: char) -> Vec<char> {
    if c.is_uppercase() {
        c.to_lowercase().collect()
    } else {
        c.to_uppercase().collect()
    }
}
