//! Jinja's filters of strings.

use super::args::{Call, bind, flag, integer, invalid, required, text};
use super::collections::sorted;
use super::meter::{LimitReached, spend};
use super::methods::{self, capitalize};
use super::printf;
use super::repr::{escaped, repr_of, text_of};
use super::values::{Kind, deep, dict, items, kind, list, pairs, tuple};
use minijinja::{Error, State, Value};

/// Maximum width for the `indent` filter.
const MAX_INDENT: u64 = 256;

/// Returns the filters of strings.
pub(super) fn filters() -> Vec<(&'static str, Call)> {
    vec![
        ("capitalize", |state, args| on_text(state, args, capitalize)),
        ("center", center),
        ("e", escape),
        ("escape", escape),
        ("filesizeformat", file_size),
        ("forceescape", |state, args| {
            let text = text_of(state, &args[0])?;
            Ok(escaped(&text))
        }),
        ("format", format),
        ("indent", indent),
        ("lower", |state, args| on_text(state, args, |text| text.to_lowercase())),
        ("pprint", |state, args| {
            let sorted = with_sorted_keys(state, &args[0], 0)?;
            repr_of(state, &sorted).map(Value::from)
        }),
        ("replace", |state, args| {
            let texts = args.iter().enumerate().map(|(i, arg)| {
                if i < 3 && !arg.is_kwargs() {
                    text_of(state, arg).map(Value::from)
                } else {
                    Ok(arg.clone())
                }
            });
            let texts = texts.collect::<Result<Vec<_>, _>>()?;
            methods::call(state, &texts[0], "replace", &texts[1..])
        }),
        ("safe", |state, args| {
            Ok(Value::from_safe_string(text_of(state, &args[0])?))
        }),
        ("string", |state, args| match args[0].as_str() {
            Some(_) => Ok(args[0].clone()),
            None => text_of(state, &args[0]).map(Value::from),
        }),
        ("striptags", |state, args| on_text(state, args, without_tags)),
        ("title", |state, args| on_text(state, args, title)),
        ("trim", |state, args| {
            let [_, chars] = bind(args, ["", "chars"])?;
            let text = Value::from(text_of(state, &args[0])?);
            methods::call(state, &text, "strip", chars.as_slice())
        }),
        ("truncate", truncate),
        ("upper", |state, args| on_text(state, args, |text| text.to_uppercase())),
        ("urlencode", url_encode),
        ("wordcount", |state, args| {
            let text = text_of(state, &args[0])?;
            let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
            Ok(Value::from(words.filter(|word| !word.is_empty()).count()))
        }),
        ("wordwrap", word_wrap),
        ("xmlattr", xml_attributes),
    ]
}

/// Returns a string in lower case; other values are unchanged.
pub(super) fn lowered(state: &mut State, value: &Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => {
            spend(state, text.len() as u64)?;
            Ok(Value::from(text.to_lowercase()))
        }
        None => Ok(value.clone()),
    }
}

fn on_text(state: &mut State, args: &[Value], change: fn(&str) -> String) -> Result<Value, Error> {
    let [value] = bind(args, [""])?;
    let text = text_of(state, &required(value)?)?;
    Ok(Value::from(change(&text)))
}

fn center(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, width] = bind(args, ["", "width"])?;
    let text = Value::from(text_of(state, &required(value)?)?);
    methods::call(state, &text, "center", &[width.unwrap_or_else(|| Value::from(80))])
}

fn escape(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    if args[0].is_safe() {
        return Ok(args[0].clone());
    }
    let text = text_of(state, &args[0])?;
    spend(state, text.len() as u64 * 6)?;
    Ok(escaped(&text))
}

fn file_size(_: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, binary] = bind(args, ["", "binary"])?;
    let value = required(value)?;
    let x = match value.as_str() {
        Some(text) => text.trim().parse().ok(),
        None => super::numbers::number(&value).map(super::numbers::float),
    };
    let x = x.ok_or_else(|| invalid("expected a number of bytes"))?;
    let (base, units) = if flag(&binary) {
        (1024.0, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"])
    } else {
        (1000.0, ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"])
    };
    if x == 1.0 {
        return Ok(Value::from("1 Byte"));
    }
    if x < base {
        return Ok(Value::from(format!("{} Bytes", x as i64)));
    }
    let mut unit = base;
    for name in &units[..units.len() - 1] {
        unit *= base;
        if x < unit {
            return Ok(Value::from(format!("{:.1} {name}", base * x / unit)));
        }
    }
    Ok(Value::from(format!("{:.1} {}", x / unit, units[units.len() - 1])))
}

fn format(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let text = text_of(state, &args[0])?;
    let values = match args.get(1) {
        Some(named) if named.is_kwargs() => named.clone(),
        _ => tuple(args[1..].to_vec()),
    };
    printf::percent(state, &text, &values)
}

fn indent(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, width, first, blank] = bind(args, ["", "width", "first", "blank"])?;
    let text = text_of(state, &required(value)?)?;
    let prefix = match &width {
        Some(width) if width.as_str().is_some() => width.as_str().unwrap_or_default().to_owned(),
        _ => {
            let width = integer(width)?.unwrap_or(4).max(0) as u64;
            if width > MAX_INDENT {
                let (what, limit) = ("columns of indentation", MAX_INDENT);
                return Err(LimitReached { what, limit }.into());
            }
            " ".repeat(width as usize)
        }
    };
    spend(state, prefix.len() as u64 * (text.matches('\n').count() as u64 + 1))?;
    let mut out = String::new();
    // Python's `splitlines` also breaks at other characters, and Jinja joins the lines with newlines.
    let lines = methods::call(state, &Value::from(format!("{text}\n")), "splitlines", &[])?;
    for (i, line) in lines.try_iter()?.enumerate() {
        let line = line.as_str().unwrap_or_default();
        if i > 0 {
            out.push('\n');
        }
        let is_indented = if i == 0 {
            flag(&first)
        } else {
            !line.is_empty() || flag(&blank)
        };
        out.push_str(if is_indented { &prefix } else { "" });
        out.push_str(line);
    }
    Ok(Value::from(out))
}

/// Removes tags and comments, and merges white space.
fn without_tags(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        out.push_str(&rest[..at]);
        let is_comment = rest[at..].starts_with("<!--");
        let end = if is_comment {
            rest[at..].find("-->").map(|n| n + 3)
        } else {
            rest[at..].find('>').map(|n| n + 1)
        };
        match end {
            Some(n) => rest = &rest[at + n..],
            None => {
                out.push('<');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    let words: Vec<&str> = out.split(methods::is_space).filter(|word| !word.is_empty()).collect();
    let text = words.join(" ");
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ];
    entities.iter().fold(text, |text, (entity, c)| text.replace(entity, c))
}

/// Converts the first letter of each word to upper case; words are separated by white space and brackets.
fn title(text: &str) -> String {
    let is_separator = |c: char| methods::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        if in_word {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        in_word = !is_separator(c);
    }
    out
}

fn truncate(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, length, kill_words, end, leeway] = bind(args, ["", "length", "killwords", "end", "leeway"])?;
    let value = required(value)?;
    let source = match kind(&value) {
        Kind::Str | Kind::Undefined => text_of(state, &value)?,
        _ => String::new(),
    };
    let size = |value| Ok::<_, Error>(integer(value)?.map(|n| usize::try_from(n).unwrap_or(0)));
    let length = size(length)?.unwrap_or(255);
    let leeway = size(leeway)?.unwrap_or(5);
    let end = text(&end)?.unwrap_or("...");
    let n_end = end.chars().count();
    if length < n_end {
        return Err(invalid("`length` is less than the length of `end`"));
    }
    let n = value.len().unwrap_or_else(|| source.chars().count());
    match kind(&value) {
        Kind::Undefined => return Ok(Value::from(source)),
        Kind::Str | Kind::List | Kind::Tuple | Kind::Dict | Kind::Range if n <= length.saturating_add(leeway) => {
            return Ok(value);
        }
        Kind::Str => {}
        _ => return Err(invalid("truncate needs a string")),
    }
    let kept: String = source.chars().take(length - n_end).collect();
    let kept = match (flag(&kill_words), kept.rsplit_once(' ')) {
        (false, Some((before, _))) => before,
        _ => &kept,
    };
    Ok(Value::from(format!("{kept}{end}")))
}

/// Copies a value with its dictionaries in the order of their keys.
fn with_sorted_keys(state: &mut State, value: &Value, depth: usize) -> Result<Value, Error> {
    deep(depth)?;
    match kind(value) {
        Kind::List => {
            let all = items(state, value)?.into_iter();
            let all = all.map(|item| with_sorted_keys(state, &item, depth + 1));
            Ok(list(all.collect::<Result<_, _>>()?))
        }
        Kind::Dict => {
            let keys = items(state, value)?;
            let order = sorted(state, &keys, false)?.into_iter();
            let entries = order.map(|i| {
                let item = with_sorted_keys(state, &value.get_item(&keys[i])?, depth + 1)?;
                Ok((keys[i].clone(), item))
            });
            Ok(dict(entries.collect::<Result<Vec<_>, Error>>()?))
        }
        _ => Ok(value.clone()),
    }
}

fn url_quoted(text: &str, safe: &str) -> String {
    let quote = |byte: u8| {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || "-._~".contains(c) || safe.contains(c) {
            c.to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    text.bytes().map(quote).collect()
}

fn url_encode(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let value = &args[0];
    if matches!(kind(value), Kind::Dict | Kind::List | Kind::Tuple) {
        let entries = super::collections::entries_of(state, std::slice::from_ref(value))?;
        let mut parts = Vec::new();
        for (key, value) in entries {
            let quoted =
                [text_of(state, &key)?, text_of(state, &value)?].map(|text| url_quoted(&text, "").replace("%20", "+"));
            parts.push(quoted.join("="));
        }
        return Ok(Value::from(parts.join("&")));
    }
    let text = text_of(state, value)?;
    spend(state, text.len() as u64 * 3)?;
    Ok(Value::from(url_quoted(&text, "/")))
}

fn word_wrap(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, width, breaks, separator, hyphens] = bind(
        args,
        ["", "width", "break_long_words", "wrapstring", "break_on_hyphens"],
    )?;
    let source = text_of(state, &required(value)?)?;
    let width = integer(width)?.unwrap_or(79).max(1) as usize;
    let breaks = breaks.is_none_or(|breaks| breaks.is_true());
    let hyphens = hyphens.is_none_or(|hyphens| hyphens.is_true());
    let separator = text(&separator)?.unwrap_or("\n");
    spend(state, (source.len() as u64).saturating_mul(1 + separator.len() as u64))?;
    let lines: Vec<String> = source
        .split('\n')
        .map(|line| wrapped(line, width, breaks, hyphens).join(separator))
        .collect();
    Ok(Value::from(lines.join(separator)))
}

/// Wraps a line like Python's `textwrap`.
fn wrapped(line: &str, width: usize, breaks: bool, hyphens: bool) -> Vec<String> {
    let mut chunks: Vec<String> = Vec::new();
    for c in line.chars() {
        let is_space = methods::is_space(c);
        match chunks.last_mut() {
            Some(last)
                if last.starts_with(methods::is_space) == is_space
                    && !(hyphens && last.ends_with('-') && last.len() > 1 && c.is_alphabetic()) =>
            {
                last.push(c)
            }
            _ => chunks.push(c.to_string()),
        }
    }
    let count = |text: &str| text.chars().count();
    let (mut lines, mut current) = (Vec::new(), String::new());
    for chunk in chunks {
        let mut chunk = chunk;
        let is_space = chunk.starts_with(methods::is_space);
        if count(&current) + count(&chunk) <= width {
            if !(is_space && current.is_empty() && !lines.is_empty()) {
                current.push_str(&chunk);
            }
            continue;
        }
        while breaks && !is_space && count(&chunk) > width {
            let room = width.saturating_sub(count(&current));
            let at = chunk.char_indices().nth(room).map_or(chunk.len(), |(at, _)| at);
            current.push_str(&chunk[..at]);
            chunk.drain(..at);
            lines.push(current.trim_end_matches(methods::is_space).to_owned());
            current.clear();
        }
        if count(&current) + count(&chunk) > width && !current.trim().is_empty() {
            lines.push(current.trim_end_matches(methods::is_space).to_owned());
            current.clear();
        }
        if !is_space {
            current.push_str(&chunk);
        }
    }
    if !current.trim().is_empty() {
        lines.push(current.trim_end_matches(methods::is_space).to_owned());
    }
    lines
}

fn xml_attributes(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, space] = bind(args, ["", "autospace"])?;
    let value = required(value)?;
    if kind(&value) != Kind::Dict {
        return Err(invalid("xmlattr needs a mapping"));
    }
    let mut out = String::new();
    for (key, value) in pairs(state, &value)? {
        if value.is_none() || value.is_undefined() {
            continue;
        }
        let key = text_of(state, &key)?;
        if key.contains(|c: char| methods::is_space(c) || matches!(c, '/' | '>' | '=')) {
            return Err(invalid(format!("invalid character in the attribute name {key:?}")));
        }
        let value = text_of(state, &value)?;
        spend(state, value.len() as u64 * 6)?;
        let [key, value] = [key, value].map(|text| escaped(&text).to_string());
        out.push_str(&format!(" {key}=\"{value}\""));
    }
    if space.is_some_and(|space| !space.is_true()) {
        out = out.trim_start().to_owned();
    }
    Ok(Value::from(out))
}
