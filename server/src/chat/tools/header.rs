//! Parses the start of a tool call: its markers and the function name. Formats whose arguments cannot be
//! streamed are parsed completely.

use engine::vocab::partial_match_len;
use serde_json::{Map, Value as Json};

use super::definition::Function;
use super::elements;
use super::format::{CallSyntax, Marker, ToolFormat};
use super::literal::{ParseStop, Reader};
use super::markers::{MAX_GAP, MarkerMatch, at_start, last_part};
use super::scan::Scan;

/// Result of parsing the start of a tool call.
#[derive(Debug, PartialEq)]
pub enum HeaderMatch {
    /// The text is incomplete.
    More,
    /// The text is not a tool call.
    Not,
    /// The text is a tool call.
    Call {
        /// Offset of the arguments, or of the end if `arguments` is set.
        n: usize,
        /// Index of the function.
        function: usize,
        /// The arguments as a JSON object, if the whole call was parsed.
        arguments: Option<String>,
    },
}

/// Parses the start of a text. `is_next` is true after another call.
pub fn parse_header(text: &str, format: &ToolFormat, functions: &[Function], is_next: bool) -> HeaderMatch {
    let mut can_continue = false;
    for mark in openings(format, is_next) {
        match at_start(text, &mark) {
            MarkerMatch::Not => {}
            MarkerMatch::Partial => can_continue = true,
            MarkerMatch::Whole(n) => match behind_marks(&text[n..], format, functions) {
                HeaderMatch::Not => {}
                HeaderMatch::More => can_continue = true,
                HeaderMatch::Call {
                    n: more,
                    function,
                    arguments,
                } => {
                    return HeaderMatch::Call {
                        n: n + more,
                        function,
                        arguments,
                    };
                }
            },
        }
    }
    if can_continue {
        HeaderMatch::More
    } else {
        HeaderMatch::Not
    }
}

/// Returns the markers that may precede a name or an object; models omit some of them.
fn openings(format: &ToolFormat, is_next: bool) -> Vec<String> {
    let is_object = matches!(format.form, CallSyntax::Object { .. });
    // The brackets of a list with one element are often omitted.
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

fn behind_marks(text: &str, format: &ToolFormat, functions: &[Function]) -> HeaderMatch {
    if let CallSyntax::Object { name, arguments, .. } = &format.form {
        let n = text.len() - text.trim_start_matches(['[', ' ', '\n', '\t', '\r']).len();
        return moved(object(&text[n..], name.as_deref(), arguments, functions), n);
    }
    let n_id = match &format.id {
        Some(id) => match behind_gap(text, &any_until(id)) {
            Ok(n) => n,
            Err(stop) => return stopped(stop),
        },
        None => 0,
    };
    let n = text.len() - text[n_id..].trim_start().len();
    let (function, n_name) = match name_of(&text[n..], functions) {
        Ok(found) => found,
        Err(stop) => return stopped(stop),
    };
    let n = n + n_name;
    let rest = &text[n..];
    let call = |n: usize| HeaderMatch::Call {
        n,
        function,
        arguments: None,
    };
    let whole = |read: Result<Map<String, Json>, ParseStop>, at: usize| match read {
        Ok(arguments) => HeaderMatch::Call {
            n: at,
            function,
            arguments: Some(Json::Object(arguments).to_string()),
        },
        Err(stop) => stopped(stop),
    };
    let found = match &format.form {
        CallSyntax::Named { middle } => match behind_gap(rest, middle) {
            Ok(n) => match rest[n..].trim_start().chars().next() {
                None => HeaderMatch::More,
                Some('{') => call(rest.len() - rest[n..].trim_start().len()),
                Some(_) => HeaderMatch::Not,
            },
            Err(stop) => stopped(stop),
        },
        CallSyntax::Elements { begin, mark } => match at_start(rest, begin) {
            MarkerMatch::Whole(n) => match elements::arguments(&rest[n..], mark, &functions[function].parameters) {
                Ok((arguments, end)) => whole(Ok(arguments), n + end),
                Err(stop) => stopped(stop),
            },
            MarkerMatch::Partial => HeaderMatch::More,
            MarkerMatch::Not => HeaderMatch::Not,
        },
        CallSyntax::Tagged { begin, .. } => behind_gap(rest, begin).map_or_else(stopped, call),
        CallSyntax::Bare { quote } => {
            let mut reader = Reader::new(rest, quote);
            let read = reader.bare_object();
            whole(read, reader.at)
        }
        CallSyntax::Python => {
            let mut reader = Reader::new(rest, "");
            let read = reader.keywords();
            whole(read, reader.at)
        }
        CallSyntax::Object { .. } | CallSyntax::Harmony => HeaderMatch::Not,
    };
    moved(found, n)
}

/// Returns a marker of any text that ends with `end`.
fn any_until(end: &str) -> Marker {
    Marker {
        before: String::new(),
        after: Some(end.to_owned()),
    }
}

fn stopped(stop: ParseStop) -> HeaderMatch {
    match stop {
        ParseStop::More => HeaderMatch::More,
        ParseStop::Wrong => HeaderMatch::Not,
    }
}

fn moved(found: HeaderMatch, by: usize) -> HeaderMatch {
    match found {
        HeaderMatch::Call { n, function, arguments } => HeaderMatch::Call {
            n: n + by,
            function,
            arguments,
        },
        other => other,
    }
}

/// Returns the function whose name the text starts with, and the end of the name.
fn name_of(text: &str, functions: &[Function]) -> Result<(usize, usize), ParseStop> {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    let Some(end) = text.find(|c| !is_name(c)) else {
        let may_be = functions.iter().any(|f| f.name.starts_with(text));
        return Err(if may_be { ParseStop::More } else { ParseStop::Wrong });
    };
    // Function names may contain characters other than letters and digits.
    let found = functions
        .iter()
        .enumerate()
        .filter(|(_, f)| f.name.len() >= end && text.starts_with(&f.name));
    let longest = found.max_by_key(|(_, f)| f.name.len());
    match longest {
        Some((i, f)) => Ok((i, f.name.len())),
        None if functions.iter().any(|f| f.name.starts_with(text)) => Err(ParseStop::More),
        None => Err(ParseStop::Wrong),
    }
}

/// Returns the end of a marker with a variable part.
fn behind_gap(text: &str, gap: &Marker) -> Result<usize, ParseStop> {
    let n = match at_start(text, &gap.before) {
        MarkerMatch::Whole(n) => n,
        MarkerMatch::Partial => return Err(ParseStop::More),
        MarkerMatch::Not => return Err(ParseStop::Wrong),
    };
    let Some(after) = gap.after.as_deref().map(str::trim) else {
        return Ok(n);
    };
    match text[n..].find(after) {
        Some(at) => Ok(n + at + after.len()),
        None if text.len() - n - partial_match_len(text, after) > MAX_GAP => Err(ParseStop::Wrong),
        None => Err(ParseStop::More),
    }
}

/// Parses a call that is a JSON object: up to its arguments if the name precedes them, otherwise completely.
fn object(text: &str, name_key: Option<&str>, arguments_key: &str, functions: &[Function]) -> HeaderMatch {
    let space = |at: usize| at + text[at..].len() - text[at..].trim_start().len();
    let known = |name: &str| functions.iter().position(|f| f.name == name);
    match text.chars().next() {
        None => return HeaderMatch::More,
        Some('{') => {}
        Some(_) => return HeaderMatch::Not,
    }
    let (mut at, mut function) = (1, None);
    loop {
        at = space(at);
        match text[at..].chars().next() {
            None => return HeaderMatch::More,
            Some(',') => {
                at += 1;
                continue;
            }
            Some('}') => return whole_object(&text[..=at], arguments_key, function),
            Some('"') => {}
            Some(_) => return HeaderMatch::Not,
        }
        let Some(end) = string_end(&text[at..]) else {
            return HeaderMatch::More;
        };
        let Ok(key) = serde_json::from_str::<String>(&text[at..at + end]) else {
            return HeaderMatch::Not;
        };
        at = space(at + end);
        match text[at..].chars().next() {
            None => return HeaderMatch::More,
            Some(':') => at = space(at + 1),
            Some(_) => return HeaderMatch::Not,
        }
        let Some(first) = text[at..].chars().next() else {
            return HeaderMatch::More;
        };
        let is_arguments = match name_key {
            None => {
                function = known(&key);
                if function.is_none() {
                    return HeaderMatch::Not;
                }
                true
            }
            Some(_) => [arguments_key, "arguments", "parameters"].contains(&key.as_str()),
        };
        if let Some(function) = function
            && is_arguments
            && first == '{'
        {
            return HeaderMatch::Call {
                n: at,
                function,
                arguments: None,
            };
        }
        let Some(end) = value_end(&text[at..], first) else {
            return HeaderMatch::More;
        };
        if name_key == Some(key.as_str()) {
            let name = serde_json::from_str::<String>(&text[at..at + end]).unwrap_or_default();
            function = known(&name);
            if function.is_none() {
                return HeaderMatch::Not;
            }
        }
        at += end;
    }
}

fn whole_object(text: &str, key: &str, function: Option<usize>) -> HeaderMatch {
    match (serde_json::from_str::<Map<String, Json>>(text), function) {
        (Ok(object), Some(function)) => HeaderMatch::Call {
            n: text.len(),
            function,
            arguments: Some(arguments_of(object, key)),
        },
        _ => HeaderMatch::Not,
    }
}

/// Returns the arguments of a call object as JSON.
fn arguments_of(mut object: Map<String, Json>, key: &str) -> String {
    let found = [key, "arguments", "parameters"]
        .iter()
        .find_map(|key| object.remove(*key));
    match found {
        None => "{}".to_owned(),
        Some(Json::String(text)) => text,
        Some(object) => object.to_string(),
    }
}

/// Returns the end of a quoted string.
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
