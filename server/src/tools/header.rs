//! How a call begins: its marks and its name, or the whole of it where its arguments cannot be told as they come.

use engine::vocab::n_begun;
use serde_json::{Map, Value as Json};

use super::Function;
use super::format::{Form, Gap, ToolFormat};
use super::literal::{Reader, Stop};
use super::marks::{Found, at_start, last_part};
use super::split::{Scan, arguments_of};

/// What a text that may begin with a call turns out to be.
#[derive(Debug, PartialEq)]
pub enum Begun {
    /// More has to come.
    More,
    /// It is none.
    Not,
    /// It is one.
    Call {
        /// Where its arguments begin; behind all of it, if they are told here.
        n: usize,
        /// Index of the function.
        function: usize,
        /// The arguments as an object of JSON, if the call is whole.
        arguments: Option<String>,
    },
}

/// Most bytes of what differs from call to call in a mark.
const MAX_GAP: usize = 256;

/// Looks at the beginning of a text. `is_next`: it follows another call.
pub fn begun(text: &str, format: &ToolFormat, functions: &[Function], is_next: bool) -> Begun {
    let mut is_begun = false;
    for mark in openings(format, is_next) {
        match at_start(text, &mark) {
            Found::Not => {}
            Found::Begun => is_begun = true,
            Found::Whole(n) => match behind_marks(&text[n..], format, functions) {
                Begun::Not => {}
                Begun::More => is_begun = true,
                Begun::Call {
                    n: more,
                    function,
                    arguments,
                } => {
                    return Begun::Call {
                        n: n + more,
                        function,
                        arguments,
                    };
                }
            },
        }
    }
    if is_begun { Begun::More } else { Begun::Not }
}

/// What may stand before a name or an object: models leave out some of it.
fn openings(format: &ToolFormat, is_next: bool) -> Vec<String> {
    let is_object = matches!(format.form, Form::Object { .. });
    // A list of one is often written without its brackets.
    let open = if is_object {
        format.open.trim_end().trim_end_matches('[')
    } else {
        &format.open
    };
    let mut all = vec![format!("{open}{}", format.head)];
    all.extend(format.lead.clone());
    all.extend(last_part(&format.head).map(str::to_owned));
    if is_next || format.open.is_empty() {
        all.push(format.head.clone());
    }
    all
}

fn behind_marks(text: &str, format: &ToolFormat, functions: &[Function]) -> Begun {
    if let Form::Object { name, arguments, .. } = &format.form {
        let n = text.len() - text.trim_start_matches(['[', ' ', '\n', '\t', '\r']).len();
        return moved(object(&text[n..], name.as_deref(), arguments, functions), n);
    }
    let n = text.len() - text.trim_start().len();
    let (function, n_name) = match name_of(&text[n..], functions) {
        Ok(found) => found,
        Err(stop) => return stopped(stop),
    };
    let n = n + n_name;
    let rest = &text[n..];
    let call = |n: usize| Begun::Call {
        n,
        function,
        arguments: None,
    };
    let whole = |read: Result<Map<String, Json>, Stop>, at: usize| match read {
        Ok(arguments) => Begun::Call {
            n: at,
            function,
            arguments: Some(Json::Object(arguments).to_string()),
        },
        Err(stop) => stopped(stop),
    };
    let found = match &format.form {
        Form::Named { middle } => match behind_gap(rest, middle) {
            Ok(n) => match rest[n..].trim_start().chars().next() {
                None => Begun::More,
                Some('{') => call(rest.len() - rest[n..].trim_start().len()),
                Some(_) => Begun::Not,
            },
            Err(stop) => stopped(stop),
        },
        Form::Tagged { begin, .. } => behind_gap(rest, begin).map_or_else(stopped, call),
        Form::Bare { quote } => {
            let mut reader = Reader::new(rest, quote);
            let read = reader.bare_object();
            whole(read, reader.at)
        }
        Form::Python => {
            let mut reader = Reader::new(rest, "");
            let read = reader.keywords();
            whole(read, reader.at)
        }
        Form::Object { .. } | Form::Harmony => Begun::Not,
    };
    moved(found, n)
}

fn stopped(stop: Stop) -> Begun {
    match stop {
        Stop::More => Begun::More,
        Stop::Wrong => Begun::Not,
    }
}

fn moved(begun: Begun, by: usize) -> Begun {
    match begun {
        Begun::Call { n, function, arguments } => Begun::Call {
            n: n + by,
            function,
            arguments,
        },
        other => other,
    }
}

/// The function whose name a text begins with, and where the name ends.
fn name_of(text: &str, functions: &[Function]) -> Result<(usize, usize), Stop> {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    let Some(end) = text.find(|c| !is_name(c)) else {
        let may_be = functions.iter().any(|f| f.name.starts_with(text));
        return Err(if may_be { Stop::More } else { Stop::Wrong });
    };
    // Names may have other characters, too.
    let found = functions
        .iter()
        .enumerate()
        .filter(|(_, f)| f.name.len() >= end && text.starts_with(&f.name));
    let longest = found.max_by_key(|(_, f)| f.name.len());
    match longest {
        Some((i, f)) => Ok((i, f.name.len())),
        None if functions.iter().any(|f| f.name.starts_with(text)) => Err(Stop::More),
        None => Err(Stop::Wrong),
    }
}

/// Where a mark ends that has something in it that may be anything.
fn behind_gap(text: &str, gap: &Gap) -> Result<usize, Stop> {
    let n = match at_start(text, &gap.before) {
        Found::Whole(n) => n,
        Found::Begun => return Err(Stop::More),
        Found::Not => return Err(Stop::Wrong),
    };
    let Some(after) = gap.after.as_deref().map(str::trim) else {
        return Ok(n);
    };
    match text[n..].find(after) {
        Some(at) => Ok(n + at + after.len()),
        None if text.len() - n - n_begun(text, after) > MAX_GAP => Err(Stop::Wrong),
        None => Err(Stop::More),
    }
}

/// A call that is an object: to where its arguments begin if its name stands before them, and to its end otherwise.
fn object(text: &str, name_key: Option<&str>, arguments_key: &str, functions: &[Function]) -> Begun {
    let space = |at: usize| at + text[at..].len() - text[at..].trim_start().len();
    let known = |name: &str| functions.iter().position(|f| f.name == name);
    match text.chars().next() {
        None => return Begun::More,
        Some('{') => {}
        Some(_) => return Begun::Not,
    }
    let (mut at, mut function) = (1, None);
    loop {
        at = space(at);
        match text[at..].chars().next() {
            None => return Begun::More,
            Some(',') => {
                at += 1;
                continue;
            }
            Some('}') => return whole_object(&text[..=at], arguments_key, function),
            Some('"') => {}
            Some(_) => return Begun::Not,
        }
        let Some(end) = string_end(&text[at..]) else {
            return Begun::More;
        };
        let Ok(key) = serde_json::from_str::<String>(&text[at..at + end]) else {
            return Begun::Not;
        };
        at = space(at + end);
        match text[at..].chars().next() {
            None => return Begun::More,
            Some(':') => at = space(at + 1),
            Some(_) => return Begun::Not,
        }
        let Some(first) = text[at..].chars().next() else {
            return Begun::More;
        };
        let is_arguments = match name_key {
            None => {
                function = known(&key);
                if function.is_none() {
                    return Begun::Not;
                }
                true
            }
            Some(_) => [arguments_key, "arguments", "parameters"].contains(&key.as_str()),
        };
        if let Some(function) = function.filter(|_| is_arguments && first == '{') {
            return Begun::Call {
                n: at,
                function,
                arguments: None,
            };
        }
        let Some(end) = value_end(&text[at..], first) else {
            return Begun::More;
        };
        if name_key == Some(key.as_str()) {
            let name = serde_json::from_str::<String>(&text[at..at + end]).unwrap_or_default();
            function = known(&name);
            if function.is_none() {
                return Begun::Not;
            }
        }
        at += end;
    }
}

fn whole_object(text: &str, key: &str, function: Option<usize>) -> Begun {
    match (serde_json::from_str::<Map<String, Json>>(text), function) {
        (Ok(object), Some(function)) => Begun::Call {
            n: text.len(),
            function,
            arguments: Some(arguments_of(object, key)),
        },
        _ => Begun::Not,
    }
}

/// Where a text in quotes ends.
fn string_end(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

fn value_end(text: &str, first: char) -> Option<usize> {
    match first {
        '{' | '[' => Scan::default().end(text),
        '"' => string_end(text),
        _ => text.find(|c: char| matches!(c, ',' | '}' | ']') || c.is_whitespace()),
    }
}
