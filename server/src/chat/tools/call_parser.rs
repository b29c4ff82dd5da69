//! Splits tool calls from streamed model output.

use std::sync::Arc;

use engine::vocab::partial_match_len;
use serde_json::Value as Json;

use super::definition::Function;
use super::format::{CallSyntax, Marker, ToolFormat};
use super::header::{HeaderMatch, parse_header};
use super::markers::{MAX_GAP, MarkerMatch, at_start, first_part, last_part};
use super::scan::Scan;
use super::types::ValueTypes;
use crate::chat::event::{Ending, OutputEvent, push_arguments, push_text};

/// Incremental parser for tool calls. Text that only resembles a call is passed through unchanged.
#[derive(Clone, Debug)]
pub struct ToolCallParser {
    format: Arc<ToolFormat>,
    functions: Arc<[Function]>,
    /// Several calls are allowed; otherwise the output after the first call is dropped.
    parallel: bool,
    n_calls: usize,
    /// Function whose arguments are being parsed.
    function: usize,
    state: State,
    pending: String,
    scan: Scan,
    /// Text was emitted.
    has_text: bool,
    /// A call ended, and no text followed.
    is_after_call: bool,
    /// Whitespace between the text and the following call, which is emitted if more text follows.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The output is empty or only whitespace.
    Start,
    Text,
    /// The pending text may be the start of a call.
    Header,
    /// Arguments as JSON, passed through.
    Json,
    /// Rest of a JSON object after its arguments.
    Rest,
    /// Before an argument or the end of the arguments.
    Arguments {
        is_first: bool,
    },
    /// Value of an argument.
    Value {
        kind: ValueTypes,
        can_continue: bool,
    },
    /// After the arguments of a call.
    Behind,
    /// After a call and its marker.
    Between,
    /// Further calls are dropped.
    Over,
}

/// Start of a value that markers delimit a second time, as in XML.
const CDATA: &str = "<![CDATA[";
/// End of the value.
const CDATA_END: &str = "]]>";

/// Characters between calls, in addition to markers.
const SEPARATORS: &[char] = &[',', ';', ' ', '\n', '\t', '\r'];

impl ToolCallParser {
    /// Creates a parser.
    pub fn new(format: Arc<ToolFormat>, functions: Arc<[Function]>, parallel: bool) -> ToolCallParser {
        ToolCallParser {
            format,
            functions,
            parallel,
            n_calls: 0,
            function: 0,
            state: State::Start,
            pending: String::new(),
            scan: Scan::default(),
            has_text: false,
            is_after_call: false,
            held: String::new(),
        }
    }

    /// Parses the next piece of output and appends the events that are certain.
    pub fn push(&mut self, text: &str, events: &mut Vec<OutputEvent>) {
        self.pending.push_str(text);
        while self.advance(events) {}
    }

    /// Appends the events of the remaining text at the end of the output.
    pub fn finish(&mut self, ending: Ending, events: &mut Vec<OutputEvent>) {
        match self.state {
            _ if ending == Ending::CutOff && self.is_inside_header() => {}
            State::Start if self.n_calls > 0 && self.pending.trim().is_empty() => {}
            State::Start | State::Text | State::Header => self.emit_text(self.pending.len(), events),
            // The end of the output may complete a call, but not a value.
            State::Arguments { .. } => push_arguments(events, "}"),
            State::Value { kind, can_continue } => {
                if self.value(kind, can_continue, true, events) {
                    push_arguments(events, "}");
                }
            }
            State::Json | State::Rest | State::Over => {}
            State::Behind | State::Between => {
                let marks = [&self.format.tail, &self.format.close, &self.format.head];
                let is_cut = marks
                    .iter()
                    .any(|mark| at_start(&self.pending, mark) == MarkerMatch::Partial);
                if !is_cut && !self.pending.trim_matches(SEPARATORS).is_empty() {
                    self.emit_text(self.pending.len(), events);
                }
            }
        }
        self.pending.clear();
    }

    /// Returns true if the pending text is the start of a call. An answer can also be an object, so an object without a
    /// marker must start with a key of calls.
    fn is_inside_header(&self) -> bool {
        let triggers = self.triggers();
        match self.state {
            State::Start | State::Text => triggers.iter().any(|t| partial_match_len(&self.pending, t) > 0),
            State::Header if triggers.is_empty() => self.starts_with_key(),
            State::Header => true,
            _ => false,
        }
    }

    /// Returns false if the pending text is an object whose first key does not belong to calls.
    fn starts_with_key(&self) -> bool {
        let CallSyntax::Object { name, arguments, ids } = &self.format.form else {
            return true;
        };
        let text = self.pending.trim_start_matches(['[', ' ', '\n', '\t', '\r']);
        let Some(text) = text.strip_prefix('{').map(str::trim_start) else {
            return true;
        };
        let is_key = |key: &str| {
            let key = Json::from(key).to_string();
            text.starts_with(&key) || key.starts_with(text)
        };
        match name {
            Some(name) => [name, arguments].into_iter().chain(ids).any(|key| is_key(key)),
            None => self.functions.iter().any(|function| is_key(&function.name)),
        }
    }

    /// Emits the first `n` bytes of the pending text. Whitespace around a call is emitted only between texts.
    fn emit_text(&mut self, n: usize, events: &mut Vec<OutputEvent>) {
        let text: String = self.pending.drain(..n).collect();
        let text = match (std::mem::take(&mut self.is_after_call), self.has_text) {
            (false, _) => text,
            (true, true) => std::mem::take(&mut self.held) + &text,
            (true, false) => text.trim_start().to_owned(),
        };
        self.has_text |= !text.trim().is_empty();
        push_text(events, text);
    }

    /// Processes the pending text in the current state. Returns false if more text is needed.
    fn advance(&mut self, events: &mut Vec<OutputEvent>) -> bool {
        match self.state {
            State::Start | State::Text => self.text(events),
            State::Header => self.header(events),
            State::Json => self.json(events),
            State::Rest => self.rest(),
            State::Arguments { is_first } => self.argument(is_first, events),
            State::Value { kind, can_continue } => self.value(kind, can_continue, false, events),
            State::Behind => self.behind(),
            State::Between => self.between(),
            State::Over => {
                self.pending.clear();
                false
            }
        }
    }

    /// Returns the markers that start a call; empty if any output that starts with an object is a call.
    fn triggers(&self) -> Vec<String> {
        let mark = format!("{}{}", self.format.open, self.format.head);
        let parts = [
            Some(first_part(&mark)),
            last_part(&self.format.head),
            self.format.lead.as_deref(),
        ];
        let is_bare = first_part(&mark).trim_matches('[').is_empty();
        if is_bare {
            return Vec::new();
        }
        let parts = parts.into_iter().flatten().filter(|part| !part.is_empty());
        parts.map(str::to_owned).collect()
    }

    fn text(&mut self, events: &mut Vec<OutputEvent>) -> bool {
        let triggers = self.triggers();
        if triggers.is_empty() {
            return self.bare(events);
        }
        let found = triggers.iter().filter_map(|trigger| self.pending.find(trigger)).min();
        let n = match found {
            Some(at) => at,
            None => {
                self.pending.len()
                    - triggers
                        .iter()
                        .map(|t| partial_match_len(&self.pending, t))
                        .max()
                        .unwrap_or(0)
            }
        };
        // Whitespace around calls belongs to their format and is withheld.
        let n = self.pending[..n].trim_end().len();
        if n > 0 {
            self.state = State::Text;
            self.emit_text(n, events);
        }
        if found.is_some() {
            self.state = State::Header;
        }
        found.is_some()
    }

    /// Detects a call without markers, which is possible only at the start of the output.
    fn bare(&mut self, events: &mut Vec<OutputEvent>) -> bool {
        let text = self.pending.trim_start();
        let lead = self.format.lead.as_deref().unwrap_or_default();
        let is_lead = !lead.is_empty() && at_start(text, lead) != MarkerMatch::Not;
        if self.state == State::Start && (text.starts_with(['{', '[']) || is_lead) {
            self.state = State::Header;
            return true;
        }
        if self.state == State::Text || !text.is_empty() {
            self.state = State::Text;
            self.emit_text(self.pending.len(), events);
        }
        false
    }

    fn header(&mut self, events: &mut Vec<OutputEvent>) -> bool {
        let header = parse_header(&self.pending, &self.format, &self.functions, self.n_calls > 0);
        let (n, function, whole) = match header {
            HeaderMatch::More => return false,
            HeaderMatch::Not => {
                self.give_up(events);
                return true;
            }
            HeaderMatch::Call { n, function, arguments } => (n, function, arguments),
        };
        let n_space = self.pending.len() - self.pending.trim_start().len();
        if self.has_text && !self.is_after_call {
            self.held = self.pending[..n_space].to_owned();
        }
        self.is_after_call = true;
        self.pending.drain(..n);
        self.function = function;
        self.n_calls += 1;
        self.scan = Scan::default();
        events.push(OutputEvent::Call(self.functions[function].name.clone()));
        self.state = match (&self.format.form, whole) {
            (_, Some(arguments)) => {
                push_arguments(events, &arguments);
                State::Behind
            }
            (CallSyntax::Tagged { .. }, None) => {
                push_arguments(events, "{");
                State::Arguments { is_first: true }
            }
            _ => State::Json,
        };
        true
    }

    /// Returns a rejected marker as text and continues after it.
    fn give_up(&mut self, events: &mut Vec<OutputEvent>) {
        let n_space = self.pending.len() - self.pending.trim_start().len();
        let text = &self.pending[n_space..];
        let trigger = self
            .triggers()
            .into_iter()
            .filter(|t| text.starts_with(t.as_str()))
            .map(|t| t.len())
            .max();
        let n = trigger.or_else(|| text.chars().next().map(char::len_utf8)).unwrap_or(0);
        self.emit_text(n_space + n, events);
        self.state = State::Text;
    }

    fn json(&mut self, events: &mut Vec<OutputEvent>) -> bool {
        let end = self.scan.end(&self.pending);
        let piece: String = self.pending.drain(..self.scan.take()).collect();
        push_arguments(events, &piece);
        if end.is_none() {
            return false;
        }
        self.state = match self.format.form {
            CallSyntax::Object { .. } => State::Rest,
            _ => State::Behind,
        };
        self.scan = Scan::inside();
        true
    }

    fn rest(&mut self) -> bool {
        let end = self.scan.end(&self.pending);
        self.pending.drain(..self.scan.take());
        if end.is_some() {
            self.state = State::Behind;
        }
        end.is_some()
    }

    fn argument(&mut self, is_first: bool, events: &mut Vec<OutputEvent>) -> bool {
        let format = self.format.clone();
        let CallSyntax::Tagged { key, value, .. } = &format.form else {
            return false;
        };
        let ends = [&format.tail, &format.close].map(|mark| at_start(&self.pending, mark));
        match (at_start(&self.pending, key), ends) {
            (MarkerMatch::Whole(n), _) => match key_of(&self.pending[n..], value) {
                KeyMatch::More => return false,
                KeyMatch::Not => {}
                KeyMatch::Key { name, n: n_key } => {
                    self.pending.drain(..n + n_key);
                    let kind = ValueTypes::of(&self.functions[self.function].parameters, &name);
                    let comma = if is_first { "" } else { ", " };
                    push_arguments(events, &format!("{comma}{}: ", Json::from(name)));
                    self.state = State::Value {
                        kind,
                        can_continue: false,
                    };
                    return true;
                }
            },
            (MarkerMatch::Partial, _) => return false,
            (_, [MarkerMatch::Whole(_), _] | [_, MarkerMatch::Whole(_)]) => {}
            (_, [MarkerMatch::Partial, _] | [_, MarkerMatch::Partial]) => return false,
            _ => {}
        }
        // The arguments end here, or the text is not an argument.
        push_arguments(events, "}");
        self.state = State::Behind;
        true
    }

    /// Parses a value. With `is_last`, the output ends after the pending text. Returns true if the value ended.
    fn value(&mut self, kind: ValueTypes, can_continue: bool, is_last: bool, events: &mut Vec<OutputEvent>) -> bool {
        let format = self.format.clone();
        let CallSyntax::Tagged { end, .. } = &format.form else {
            return false;
        };
        let begun = self.pending.trim_start();
        let is_cdata = !can_continue && begun.starts_with(CDATA);
        if !can_continue && !is_last && CDATA.starts_with(begun) {
            return false;
        }
        let (n, found) = self.value_end(end, is_cdata, is_last);
        let space = &end[..end.len() - end.trim_start().len()];
        let text = &self.pending[..n];
        let text = match found {
            Some(_) => text.strip_suffix(space).unwrap_or(text),
            // The whitespace may belong to the marker.
            None => text.trim_end(),
        };
        let is_streamed = kind.is_text() && !is_cdata;
        if is_streamed {
            let quoted = Json::from(text).to_string();
            let quoted = &quoted[1..quoted.len() - 1];
            push_arguments(events, if can_continue { "" } else { "\"" });
            push_arguments(events, quoted);
            push_arguments(events, if found.is_some() { "\"" } else { "" });
        } else if found.is_some() {
            let text = without_cdata(text);
            push_arguments(events, &kind.value(&text).to_string());
        }
        let n_text = text.len();
        if let Some(end) = found {
            self.pending.drain(..end);
            self.state = State::Arguments { is_first: false };
        } else if is_streamed {
            self.pending.drain(..n_text);
            self.state = State::Value {
                kind,
                can_continue: true,
            };
        }
        found.is_some()
    }

    /// Returns the length of the value, and the end of the marker after it if that is certain. A marker ends the value
    /// only if another argument or the end of the call follows; other markers are part of the value.
    fn value_end(&self, end: &str, is_cdata: bool, is_last: bool) -> (usize, Option<usize>) {
        let mark = first_part(end);
        for (at, _) in self.pending.match_indices(mark) {
            if is_cdata && !self.pending[..at].trim_end().ends_with(CDATA_END) {
                continue;
            }
            match at_start(&self.pending[at..], end) {
                MarkerMatch::Not => {}
                MarkerMatch::Partial => return (at, None),
                MarkerMatch::Whole(n) => match self.behind_value(&self.pending[at + n..]) {
                    MarkerMatch::Whole(_) => return (at, Some(at + n)),
                    MarkerMatch::Partial if is_last => return (at, Some(at + n)),
                    MarkerMatch::Partial => return (at, None),
                    MarkerMatch::Not => {}
                },
            }
        }
        (self.pending.len() - partial_match_len(&self.pending, mark), None)
    }

    /// Matches the text after the marker of a value with the next argument and the end of the call.
    fn behind_value(&self, rest: &str) -> MarkerMatch {
        let marks = behind_arguments(&self.format);
        if marks.is_empty() {
            return MarkerMatch::Whole(0);
        }
        let CallSyntax::Tagged { key, .. } = &self.format.form else {
            return MarkerMatch::Not;
        };
        let all = marks.iter().chain([key]);
        let found: Vec<MarkerMatch> = all.map(|mark| at_start(rest, mark)).collect();
        let whole = found.iter().find(|found| matches!(found, MarkerMatch::Whole(_)));
        match whole {
            Some(whole) => *whole,
            None if rest.trim().is_empty() || found.contains(&MarkerMatch::Partial) => MarkerMatch::Partial,
            None => MarkerMatch::Not,
        }
    }

    fn behind(&mut self) -> bool {
        if !self.parallel {
            self.state = State::Over;
            return true;
        }
        match at_start(&self.pending, &self.format.tail) {
            MarkerMatch::Partial => return false,
            MarkerMatch::Whole(n) => _ = self.pending.drain(..n),
            MarkerMatch::Not => {}
        }
        self.state = State::Between;
        true
    }

    fn between(&mut self) -> bool {
        let rest = self.pending.trim_start_matches(SEPARATORS).to_owned();
        if rest.is_empty() {
            return false;
        }
        let is_next = match &self.format.form {
            CallSyntax::Object { .. } => rest.starts_with('{'),
            form => *form == CallSyntax::Python,
        };
        let mark = |mark: &str| {
            if mark.trim().is_empty() {
                MarkerMatch::Not
            } else {
                at_start(&rest, mark)
            }
        };
        (self.state, self.pending) = match (mark(&self.format.close), mark(&self.format.head)) {
            (MarkerMatch::Whole(n), _) => (State::Start, rest[n..].to_owned()),
            (_, MarkerMatch::Whole(_)) => (State::Header, rest),
            (MarkerMatch::Partial, _) | (_, MarkerMatch::Partial) => return false,
            _ if is_next => (State::Header, rest),
            _ => (State::Start, std::mem::take(&mut self.pending)),
        };
        true
    }
}

/// Result of parsing a key and the marker before its value.
enum KeyMatch {
    More,
    Not,
    /// The key, and the offset of its value.
    Key {
        name: String,
        n: usize,
    },
}

fn key_of(text: &str, value: &Marker) -> KeyMatch {
    let mark = first_part(&value.before);
    let Some(at) = text.find(mark) else {
        return if text.len() > MAX_GAP {
            KeyMatch::Not
        } else {
            KeyMatch::More
        };
    };
    let name = text[..at].trim().to_owned();
    let MarkerMatch::Whole(mut n) = at_start(&text[at..], &value.before) else {
        return if text.len() > at + MAX_GAP {
            KeyMatch::Not
        } else {
            KeyMatch::More
        };
    };
    n += at;
    let mut last = value.before.as_str();
    if let Some(after) = &value.after {
        let Some(found) = text[n..].find(after.trim_end()) else {
            return if text.len() > n + MAX_GAP {
                KeyMatch::Not
            } else {
                KeyMatch::More
            };
        };
        n += found + after.trim_end().len();
        last = after;
    }
    // Whitespace of the marker is not part of the value.
    let space = &last[last.trim_end().len()..];
    if !space.is_empty() && space.starts_with(&text[n..]) && text[n..] != *space {
        return KeyMatch::More;
    }
    if text[n..].starts_with(space) {
        n += space.len();
    }
    KeyMatch::Key { name, n }
}

/// Returns the markers that end a call after its arguments: each tag, because models omit some of them. A tag of the
/// last value can continue in the marker after it.
pub fn behind_arguments(format: &ToolFormat) -> Vec<String> {
    let begin = format.tail.find(['<', '[']).unwrap_or(0);
    let lead = &format.tail[..begin];
    let tags = format.tail[begin..]
        .split_whitespace()
        .chain(format.close.split_whitespace());
    let tags: Vec<String> = tags
        .filter(|tag| tag.starts_with(['<', '[']))
        .map(|tag| format!("{lead}{tag}"))
        .collect();
    if !tags.is_empty() {
        return tags;
    }
    let ends = [&format.tail, &format.close].into_iter();
    ends.filter(|end| !end.trim().is_empty()).cloned().collect()
}

/// Removes the delimiters of a `CDATA` section, and joins sections that were split because of its end marker.
fn without_cdata(text: &str) -> std::borrow::Cow<'_, str> {
    let inner = text
        .trim()
        .strip_prefix(CDATA)
        .and_then(|text| text.strip_suffix(CDATA_END));
    match inner {
        None => text.into(),
        Some(inner) => inner.replace("]]]]><![CDATA[>", CDATA_END).into(),
    }
}
