//! Python's methods of strings.

use super::args::{bind, flag, integer, invalid, required, text as text_arg};
use super::collections::{self, Found};
use super::meter::spend;
use super::printf;
use super::repr::{is_printable, write_text};
use super::values::{Kind, charge_new, items, kind, list, tuple};
use minijinja::{Error, ErrorKind, State, Value};
use unicode_normalization::UnicodeNormalization;

/// Calls a method that minijinja's value does not provide.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let result = match kind(value) {
        Kind::Str => {
            let text = value.as_str().unwrap_or_default();
            // Every method reads the string once. Methods that create larger strings charge separately.
            spend(state, text.len() as u64)?;
            string_method(state, text, method, args)?
        }
        Kind::Dict => collections::dict_method(state, value, method, args)?,
        Kind::List | Kind::Tuple | Kind::Range => collections::list_method(state, value, method, args)?,
        _ => None,
    };
    let result = result.ok_or_else(|| Error::from(ErrorKind::UnknownMethod))?;
    if kind(value) == Kind::Str {
        charge_new(state, &result)?;
    }
    Ok(result)
}

fn string_method(state: &mut State, text: &str, method: &str, args: &[Value]) -> Found {
    let value = match method {
        "strip" | "lstrip" | "rstrip" => strip(text, method, args)?,
        "upper" => none(args, || text.to_uppercase())?,
        "lower" => none(args, || text.to_lowercase())?,
        "casefold" => none(args, || text.to_lowercase().replace('ß', "ss"))?,
        "title" => none(args, || title(text))?,
        "capitalize" => none(args, || capitalize(text))?,
        "swapcase" => none(args, || text.chars().flat_map(swap_case).collect::<String>())?,
        "startswith" => Value::from(any_of(text, args, |text, affix| text.starts_with(affix))?),
        "endswith" => Value::from(any_of(text, args, |text, affix| text.ends_with(affix))?),
        "removeprefix" => one(args, |prefix| text.strip_prefix(prefix).unwrap_or(text).into())?,
        "removesuffix" => one(args, |suffix| text.strip_suffix(suffix).unwrap_or(text).into())?,
        "split" | "rsplit" => split(text, method == "rsplit", args)?,
        "splitlines" => {
            let [keep_ends] = bind(args, ["keepends"])?;
            split_lines(text, flag(&keep_ends))
        }
        "partition" | "rpartition" => partition(text, method == "rpartition", args)?,
        "replace" => return replace(state, text, args).map(Some),
        "join" => {
            let [parts] = bind(args, [""])?;
            let parts = items(state, &required(parts)?)?;
            if let Some(part) = parts.iter().find(|part| part.as_str().is_none()) {
                return Err(invalid(format!("join expects strings, found {}", part.kind())));
            }
            return join_items(state, text, parts).map(Some);
        }
        "find" | "index" | "rfind" | "rindex" => find(text, method, args)?,
        "count" => {
            let (text, [part]) = part_of(text, args)?;
            Value::from(count(text, &part))
        }
        "center" | "ljust" | "rjust" => justify(state, text, method, args)?,
        "zfill" => {
            let [width] = bind(args, [""])?;
            zero_filled(state, text, integer(width)?.unwrap_or(0))?
        }
        "expandtabs" => {
            let [size] = bind(args, ["tabsize"])?;
            expand_tabs(state, text, integer(size)?.unwrap_or(8))?
        }
        "format" => return printf::format(state, text, args).map(Some),
        name if name.starts_with("is") => return is(text, name, args),
        _ => return Ok(None),
    };
    Ok(Some(value))
}

fn is(text: &str, name: &str, args: &[Value]) -> Found {
    let all = |holds: fn(char) -> bool| !text.is_empty() && text.chars().all(holds);
    let holds = match name {
        "isdecimal" => all(|c| c.is_numeric() && std::iter::once(c).nfkc().eq(std::iter::once(c)) && is_digit(c)),
        "isdigit" => all(is_digit),
        "isnumeric" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isspace" => all(is_space),
        "isprintable" => text.chars().all(is_printable),
        "isascii" => text.is_ascii(),
        "isupper" => is_upper(text),
        "islower" => is_lower(text),
        "istitle" => is_title(text),
        "isidentifier" => {
            let is_start = |c: char| c == '_' || c.is_alphabetic();
            text.starts_with(is_start) && text.chars().all(|c| c == '_' || c.is_alphanumeric())
        }
        _ => return Ok(None),
    };
    none(args, || holds).map(Some)
}

/// Returns true for digits, including superscripts.
fn is_digit(c: char) -> bool {
    let mut normal = std::iter::once(c).nfkc();
    match (normal.next(), normal.next()) {
        (Some(first), None) => c.is_numeric() && !first.is_alphabetic(),
        _ => false,
    }
}

/// Returns true if `str.isupper` holds.
pub(super) fn is_upper(text: &str) -> bool {
    text.contains(char::is_uppercase) && !text.contains(char::is_lowercase)
}

/// Returns true if `str.islower` holds.
pub(super) fn is_lower(text: &str) -> bool {
    text.contains(char::is_lowercase) && !text.contains(char::is_uppercase)
}

fn is_title(text: &str) -> bool {
    let (mut in_word, mut has_word) = (false, false);
    for c in text.chars() {
        if c.is_uppercase() && in_word || c.is_lowercase() && !in_word {
            return false;
        }
        in_word = c.is_uppercase() || c.is_lowercase();
        has_word |= in_word;
    }
    has_word
}

/// Returns true for Python's white space.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Returns the result of a method without arguments.
fn none<T: Into<Value>>(args: &[Value], result: impl FnOnce() -> T) -> Result<Value, Error> {
    let [] = bind(args, [])?;
    Ok(result().into())
}

/// Returns the result of a method with one string.
fn one(args: &[Value], result: impl FnOnce(&str) -> Value) -> Result<Value, Error> {
    let arg = bind(args, [""])?;
    match text_arg(&arg[0])? {
        Some(text) => Ok(result(text)),
        None => Err(Error::from(ErrorKind::MissingArgument)),
    }
}

/// Returns the part of a text between two optional bounds in characters, and a string argument before them.
fn part_of<'a>(text: &'a str, args: &[Value]) -> Result<(&'a str, [String; 1]), Error> {
    let [part, start, end] = bind(args, ["", "", ""])?;
    let part = text_arg(&part)?
        .ok_or_else(|| Error::from(ErrorKind::MissingArgument))?
        .to_owned();
    Ok((bounded(text, integer(start)?, integer(end)?), [part]))
}

/// Returns the part of a text between two bounds in characters; negative ones count from the end.
fn bounded(text: &str, start: Option<i64>, end: Option<i64>) -> &str {
    if start.is_none() && end.is_none() {
        return text;
    }
    let n = text.chars().count() as i64;
    let at = |bound: i64| {
        let i = if bound < 0 { bound.saturating_add(n) } else { bound }.clamp(0, n);
        text.char_indices().nth(i as usize).map_or(text.len(), |(at, _)| at)
    };
    let (start, end) = (start.map_or(0, at), end.map_or(text.len(), at));
    text.get(start..end).unwrap_or_default()
}

/// Returns true if the predicate holds for the argument, or for any element of a tuple argument.
fn any_of(text: &str, args: &[Value], holds: impl Fn(&str, &str) -> bool) -> Result<bool, Error> {
    let [affix, start, end] = bind(args, ["", "", ""])?;
    let (affix, text) = (required(affix)?, bounded(text, integer(start)?, integer(end)?));
    if let Some(affix) = affix.as_str() {
        return Ok(holds(text, affix));
    }
    if kind(&affix) != Kind::Tuple {
        return Err(invalid("expected a string or a tuple of strings"));
    }
    for affix in affix.try_iter()? {
        let affix = affix
            .as_str()
            .ok_or_else(|| invalid("expected a string or a tuple of strings"))?;
        if holds(text, affix) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn strip(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [chars] = bind(args, [""])?;
    let chars = text_arg(&chars)?;
    let strips = |c: char| chars.map_or(is_space(c), |chars| chars.contains(c));
    Ok(Value::from(match method {
        "strip" => text.trim_matches(strips),
        "lstrip" => text.trim_start_matches(strips),
        _ => text.trim_end_matches(strips),
    }))
}

fn split(text: &str, from_end: bool, args: &[Value]) -> Result<Value, Error> {
    let [separator, max] = bind(args, ["sep", "maxsplit"])?;
    let max = integer(max)?
        .and_then(|max| usize::try_from(max).ok())
        .unwrap_or(usize::MAX);
    let n = max.saturating_add(1);
    let mut parts: Vec<&str> = match (text_arg(&separator)?, from_end) {
        (Some(""), _) => return Err(invalid("empty separator")),
        (Some(separator), false) => text.splitn(n, separator).collect(),
        (Some(separator), true) => text.rsplitn(n, separator).collect(),
        (None, false) => split_words(text, max),
        (None, true) => rsplit_words(text, max),
    };
    if from_end {
        parts.reverse();
    }
    Ok(list(parts.into_iter().map(Value::from).collect()))
}

/// Splits at white space, at most `max` times; the rest is not split.
fn split_words(text: &str, max: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() && parts.len() < max {
        let end = rest.find(is_space).unwrap_or(rest.len());
        parts.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_space);
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    parts
}

/// Splits at white space from the end, at most `max` times; the last part comes first.
fn rsplit_words(text: &str, max: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() && parts.len() < max {
        let spaces = rest.char_indices().rev().find(|(_, c)| is_space(*c));
        let start = spaces.map_or(0, |(i, c)| i + c.len_utf8());
        parts.push(&rest[start..]);
        rest = rest[..start].trim_end_matches(is_space);
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    parts
}

fn split_lines(text: &str, keep_ends: bool) -> Value {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(is_end).unwrap_or(rest.len());
        let n_end = match rest[end..].chars().next() {
            Some('\r') if rest[end + 1..].starts_with('\n') => 2,
            Some(c) => c.len_utf8(),
            None => 0,
        };
        lines.push(Value::from(&rest[..if keep_ends { end + n_end } else { end }]));
        rest = &rest[end + n_end..];
    }
    list(lines)
}

fn partition(text: &str, from_end: bool, args: &[Value]) -> Result<Value, Error> {
    let separator = bind(args, [""])?;
    let separator = text_arg(&separator[0])?.filter(|separator| !separator.is_empty());
    let separator = separator.ok_or_else(|| invalid("empty separator"))?;
    let found = if from_end {
        text.rsplit_once(separator)
    } else {
        text.split_once(separator)
    };
    let parts = match found {
        Some((a, b)) => [a, separator, b],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    Ok(tuple(parts.map(Value::from).to_vec()))
}

fn count(text: &str, part: &str) -> usize {
    match part {
        "" => text.chars().count() + 1,
        _ => text.matches(part).count(),
    }
}

fn replace(state: &mut State, text: &str, args: &[Value]) -> Result<Value, Error> {
    let [from, to, max] = bind(args, ["old", "new", "count"])?;
    let missing = || Error::from(ErrorKind::MissingArgument);
    let (from, to) = (
        text_arg(&from)?.ok_or_else(missing)?,
        text_arg(&to)?.ok_or_else(missing)?,
    );
    let max = integer(max)?
        .and_then(|max| usize::try_from(max).ok())
        .unwrap_or(usize::MAX);
    let n = count(text, from).min(max);
    spend(state, (n as u64).saturating_mul(to.len() as u64))?;
    Ok(Value::from(text.replacen(from, to, n)))
}

/// Joins the string representations of values.
pub(super) fn join_items(state: &mut State, separator: &str, parts: Vec<Value>) -> Result<Value, Error> {
    let mut out = String::new();
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            spend(state, separator.len() as u64)?;
            out.push_str(separator);
        }
        write_text(state, &mut out, part)?;
    }
    Ok(Value::from(out))
}

/// Returns the position in characters. If not found, returns -1, or an error for `index` and `rindex`.
fn find(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (searched, [part]) = part_of(text, args)?;
    let byte = if method.starts_with('r') {
        searched.rfind(&part)
    } else {
        searched.find(&part)
    };
    // Both texts are parts of the same string, so their addresses give the offset.
    let start = searched.as_ptr() as usize - text.as_ptr() as usize;
    match byte {
        Some(byte) if start <= text.len() => Ok(Value::from(text[..start + byte].chars().count())),
        _ if method.ends_with("find") => Ok(Value::from(-1)),
        _ => Err(invalid("substring not found")),
    }
}

fn justify(state: &mut State, text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [width, fill] = bind(args, ["", ""])?;
    let fill = text_arg(&fill)?.unwrap_or(" ");
    let missing = missing(state, text, integer(width)?.unwrap_or(0))?;
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        // The extra character of odd padding goes to the left if the width is odd.
        _ => missing / 2 + (missing & (missing + text.chars().count()) & 1),
    };
    Ok(Value::from(format!(
        "{}{text}{}",
        fill.repeat(left),
        fill.repeat(missing - left)
    )))
}

/// Returns the number of padding characters that a text needs for a width, and charges for them.
pub(super) fn missing(state: &mut State, text: &str, width: i64) -> Result<usize, Error> {
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
    spend(state, (missing as u64).saturating_mul(4))?;
    Ok(missing)
}

fn zero_filled(state: &mut State, text: &str, width: i64) -> Result<Value, Error> {
    let zeros = "0".repeat(missing(state, text, width)?);
    let n_sign = usize::from(text.starts_with(['+', '-']));
    Ok(Value::from(format!("{}{zeros}{}", &text[..n_sign], &text[n_sign..])))
}

fn expand_tabs(state: &mut State, text: &str, size: i64) -> Result<Value, Error> {
    let size = usize::try_from(size).unwrap_or(0);
    spend(state, (count(text, "\t") as u64).saturating_mul(size as u64))?;
    let (mut out, mut column) = (String::new(), 0);
    for c in text.chars() {
        match c {
            '\t' if size > 0 => {
                let n = size - column % size;
                out.extend(std::iter::repeat_n(' ', n));
                column += n;
            }
            '\t' => {}
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
    }
    Ok(Value::from(out))
}

/// Returns a character in title case.
fn title_case(c: char) -> String {
    match c {
        'Ǆ' | 'ǅ' | 'ǆ' => "ǅ".into(),
        'Ǉ' | 'ǈ' | 'ǉ' => "ǈ".into(),
        'Ǌ' | 'ǋ' | 'ǌ' => "ǋ".into(),
        'Ǳ' | 'ǲ' | 'ǳ' => "ǲ".into(),
        c => {
            let mut upper = c.to_uppercase();
            let first = upper.next().into_iter();
            first.chain(upper.flat_map(char::to_lowercase)).collect()
        }
    }
}

fn title(text: &str) -> String {
    let mut in_word = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if in_word {
            out.extend(c.to_lowercase());
        } else {
            out.push_str(&title_case(c));
        }
        in_word = c.is_alphabetic();
    }
    out
}

/// Returns a text with its first character in title case, and all other characters in lower case.
pub(super) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(title_case).unwrap_or_default();
    first + &chars.as_str().to_lowercase()
}

fn swap_case(c: char) -> Vec<char> {
    if c.is_uppercase() {
        c.to_lowercase().collect()
    } else {
        c.to_uppercase().collect()
    }
}
