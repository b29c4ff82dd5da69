//! Calls of functions, told from what a model says as it comes.

use std::sync::Arc;

use engine::vocab::n_begun;
use serde_json::{Map, Value as Json};

use super::Function;
use super::format::{Form, Gap, ToolFormat};
use super::header::{Begun, begun};
use super::literal::value_of;
use super::marks::{Found, at_start, first_part, last_part};

/// What a piece of an answer is.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// What is thought.
    Reasoning(String),
    /// Text.
    Text(String),
    /// A function of this name is called; its arguments follow.
    Call(String),
    /// A piece of the arguments of the last call, which together are an object of JSON.
    Arguments(String),
}

/// Tells calls from text. What looks like a call and is none stays text: nothing is lost.
#[derive(Clone, Debug)]
pub struct ToolSplit {
    format: Arc<ToolFormat>,
    functions: Arc<[Function]>,
    /// Several may be called; otherwise what follows the first call is left out.
    parallel: bool,
    n_calls: usize,
    /// The function whose arguments come.
    function: usize,
    state: State,
    held: String,
    scan: Scan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space has come.
    Start,
    Text,
    /// What is held may be the beginning of a call.
    Header,
    /// Arguments as they are.
    Json,
    /// The rest of an object behind its arguments.
    Rest,
    /// Arguments one by one: the next one or the end.
    Arguments {
        is_first: bool,
    },
    /// The value of an argument.
    Value {
        kind: Kind,
        is_begun: bool,
    },
    /// Behind a call.
    Behind,
    /// Behind a call and its mark.
    Between,
    /// No more calls are wanted.
    Over,
}

/// What the schema says of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is a text.
    Text,
    /// Another value, or nothing is known.
    Other,
}

/// Between calls, besides marks.
const SEPARATORS: &[char] = &[',', ';', ' ', '\n', '\t', '\r'];
/// Most bytes of what differs from call to call in a mark.
const MAX_GAP: usize = 256;

/// How far a value of JSON has been read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scan {
    /// Bytes looked at.
    n: usize,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl ToolSplit {
    /// Nothing has come yet.
    pub fn new(format: Arc<ToolFormat>, functions: Arc<[Function]>, parallel: bool) -> ToolSplit {
        ToolSplit {
            format,
            functions,
            parallel,
            n_calls: 0,
            function: 0,
            state: State::Start,
            held: String::new(),
            scan: Scan::default(),
        }
    }

    /// Takes text, and gives what is sure.
    pub fn push(&mut self, text: &str, said: &mut Vec<Said>) {
        self.held.push_str(text);
        while self.advance(said) {}
    }

    /// Gives what is left when no text follows.
    pub fn finish(&mut self, said: &mut Vec<Said>) {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Start if self.n_calls > 0 && rest.trim().is_empty() => {}
            State::Start | State::Text | State::Header => say(said, rest),
            // The end of an answer may be the end of a call, but half a value is none.
            State::Arguments { .. } => tell(said, "}"),
            State::Json | State::Rest | State::Value { .. } | State::Over => {}
            State::Behind | State::Between => {
                let marks = [&self.format.tail, &self.format.close, &self.format.head];
                let is_cut = marks.iter().any(|mark| at_start(&rest, mark) == Found::Begun);
                if !is_cut && !rest.trim_matches(SEPARATORS).is_empty() {
                    say(said, rest);
                }
            }
        }
    }

    /// Goes on by a state. False if more has to come first.
    fn advance(&mut self, said: &mut Vec<Said>) -> bool {
        match self.state {
            State::Start | State::Text => self.text(said),
            State::Header => self.header(said),
            State::Json => self.json(said),
            State::Rest => self.rest(),
            State::Arguments { is_first } => self.argument(is_first, said),
            State::Value { kind, is_begun } => self.value(kind, is_begun, said),
            State::Behind => self.behind(),
            State::Between => self.between(),
            State::Over => {
                self.held.clear();
                false
            }
        }
    }

    /// What calls begin with; none if an answer that begins with an object is one.
    fn triggers(&self) -> Vec<String> {
        let mark = format!("{}{}", self.format.open, self.format.head);
        let parts = [
            Some(first_part(&mark)),
            last_part(&self.format.head),
            self.format.lead.as_deref(),
        ];
        let is_bare = first_part(&mark).trim_matches('[').is_empty();
        let parts = parts.into_iter().flatten().filter(|part| !is_bare && !part.is_empty());
        parts.map(str::to_owned).collect()
    }

    fn text(&mut self, said: &mut Vec<Said>) -> bool {
        let triggers = self.triggers();
        if triggers.is_empty() {
            return self.bare(said);
        }
        let found = triggers.iter().filter_map(|trigger| self.held.find(trigger)).min();
        let n = match found {
            Some(at) => at,
            None => self.held.len() - triggers.iter().map(|t| n_begun(&self.held, t)).max().unwrap_or(0),
        };
        // White space around calls is part of their form, and waits.
        let n = self.held[..n].trim_end().len();
        if n > 0 {
            self.state = State::Text;
        }
        say(said, self.held.drain(..n).collect());
        if found.is_some() {
            self.state = State::Header;
        }
        found.is_some()
    }

    /// Where nothing but its place tells a call: at the beginning.
    fn bare(&mut self, said: &mut Vec<Said>) -> bool {
        let text = self.held.trim_start();
        let lead = self.format.lead.as_deref().unwrap_or_default();
        let is_lead = !lead.is_empty() && at_start(text, lead) != Found::Not;
        if self.state == State::Start && (text.starts_with(['{', '[']) || is_lead) {
            self.state = State::Header;
            return true;
        }
        if self.state == State::Text || !text.is_empty() {
            self.state = State::Text;
            say(said, std::mem::take(&mut self.held));
        }
        false
    }

    fn header(&mut self, said: &mut Vec<Said>) -> bool {
        let header = begun(&self.held, &self.format, &self.functions, self.n_calls > 0);
        let (n, function, whole) = match header {
            Begun::More => return false,
            Begun::Not => {
                self.give_up(said);
                return true;
            }
            Begun::Call { n, function, arguments } => (n, function, arguments),
        };
        self.held.drain(..n);
        self.function = function;
        self.n_calls += 1;
        self.scan = Scan::default();
        said.push(Said::Call(self.functions[function].name.clone()));
        self.state = match (&self.format.form, whole) {
            (_, Some(arguments)) => {
                tell(said, &arguments);
                State::Behind
            }
            (Form::Tagged { .. }, None) => {
                tell(said, "{");
                State::Arguments { is_first: true }
            }
            _ => State::Json,
        };
        true
    }

    /// It was none: what looked like its beginning is text, and what follows is looked at.
    fn give_up(&mut self, said: &mut Vec<Said>) {
        let n_space = self.held.len() - self.held.trim_start().len();
        let text = &self.held[n_space..];
        let trigger = self
            .triggers()
            .into_iter()
            .filter(|t| text.starts_with(t.as_str()))
            .map(|t| t.len())
            .max();
        let n = trigger.or_else(|| text.chars().next().map(char::len_utf8)).unwrap_or(0);
        say(said, self.held.drain(..n_space + n).collect());
        self.state = State::Text;
    }

    fn json(&mut self, said: &mut Vec<Said>) -> bool {
        let end = self.scan.end(&self.held);
        let piece: String = self.held.drain(..self.scan.n).collect();
        self.scan.n = 0;
        tell(said, &piece);
        if end.is_none() {
            return false;
        }
        self.state = match self.format.form {
            Form::Object { .. } => State::Rest,
            _ => State::Behind,
        };
        self.scan = Scan {
            depth: 1,
            ..Scan::default()
        };
        true
    }

    fn rest(&mut self) -> bool {
        let end = self.scan.end(&self.held);
        self.held.drain(..self.scan.n);
        self.scan.n = 0;
        if end.is_some() {
            self.state = State::Behind;
        }
        end.is_some()
    }

    fn argument(&mut self, is_first: bool, said: &mut Vec<Said>) -> bool {
        let format = self.format.clone();
        let Form::Tagged { key, value, .. } = &format.form else {
            return false;
        };
        let ends = [&format.tail, &format.close].map(|mark| at_start(&self.held, mark));
        match (at_start(&self.held, key), ends) {
            (Found::Whole(n), _) => match key_of(&self.held[n..], value) {
                Begin::More => return false,
                Begin::Not => {}
                Begin::Key { name, n: n_key } => {
                    self.held.drain(..n + n_key);
                    let kind = self.functions[self.function].kind(&name);
                    let comma = if is_first { "" } else { ", " };
                    tell(said, &format!("{comma}{}: ", Json::from(name)));
                    self.state = State::Value { kind, is_begun: false };
                    return true;
                }
            },
            (Found::Begun, _) => return false,
            (_, [Found::Whole(_), _] | [_, Found::Whole(_)]) => {}
            (_, [Found::Begun, _] | [_, Found::Begun]) => return false,
            _ => {}
        }
        // They end, or what comes is no argument.
        tell(said, "}");
        self.state = State::Behind;
        true
    }

    fn value(&mut self, kind: Kind, is_begun: bool, said: &mut Vec<Said>) -> bool {
        let format = self.format.clone();
        let Form::Tagged { end, .. } = &format.form else {
            return false;
        };
        let mark = first_part(end);
        let space = &end[..end.len() - end.trim_start().len()];
        let mut places = self
            .held
            .match_indices(mark)
            .map(|(at, _)| (at, at_start(&self.held[at..], end)));
        let (n, found) = match places.find(|(_, found)| *found != Found::Not) {
            Some((at, Found::Whole(n_end))) => (at, Some(at + n_end)),
            Some((at, _)) => (at, None),
            None => (self.held.len() - n_begun(&self.held, mark), None),
        };
        let text = &self.held[..n];
        let text = match found {
            Some(_) => text.strip_suffix(space).unwrap_or(text),
            // White space may belong to the mark.
            None => text.trim_end(),
        };
        if kind == Kind::Text {
            let quoted = Json::from(text).to_string();
            let quoted = &quoted[1..quoted.len() - 1];
            tell(said, if is_begun { "" } else { "\"" });
            tell(said, quoted);
            tell(said, if found.is_some() { "\"" } else { "" });
        } else if found.is_some() {
            let value = value_of(text.trim()).unwrap_or_else(|| text.into());
            tell(said, &value.to_string());
        }
        let n_text = text.len();
        if let Some(end) = found {
            self.held.drain(..end);
            self.state = State::Arguments { is_first: false };
        } else if kind == Kind::Text {
            self.held.drain(..n_text);
            self.state = State::Value { kind, is_begun: true };
        }
        found.is_some()
    }

    fn behind(&mut self) -> bool {
        if !self.parallel {
            self.state = State::Over;
            return true;
        }
        match at_start(&self.held, &self.format.tail) {
            Found::Begun => return false,
            Found::Whole(n) => _ = self.held.drain(..n),
            Found::Not => {}
        }
        self.state = State::Between;
        true
    }

    fn between(&mut self) -> bool {
        let rest = self.held.trim_start_matches(SEPARATORS).to_owned();
        if rest.is_empty() {
            return false;
        }
        let is_next = match &self.format.form {
            Form::Object { .. } => rest.starts_with('{'),
            form => *form == Form::Python,
        };
        let mark = |mark: &str| match mark.trim().is_empty() {
            true => Found::Not,
            false => at_start(&rest, mark),
        };
        (self.state, self.held) = match (mark(&self.format.close), mark(&self.format.head)) {
            (Found::Whole(n), _) => (State::Start, rest[n..].trim_start().to_owned()),
            (_, Found::Whole(_)) => (State::Header, rest),
            (Found::Begun, _) | (_, Found::Begun) => return false,
            _ if is_next => (State::Header, rest),
            _ => (State::Start, self.held.trim_start().to_owned()),
        };
        true
    }
}

/// A key, and what stands before its value.
enum Begin {
    More,
    Not,
    /// The key, and where its value begins.
    Key {
        name: String,
        n: usize,
    },
}

fn key_of(text: &str, value: &Gap) -> Begin {
    let mark = first_part(&value.before);
    let Some(at) = text.find(mark) else {
        return if text.len() > MAX_GAP { Begin::Not } else { Begin::More };
    };
    let name = text[..at].trim().to_owned();
    let Found::Whole(mut n) = at_start(&text[at..], &value.before) else {
        return if text.len() > at + MAX_GAP {
            Begin::Not
        } else {
            Begin::More
        };
    };
    n += at;
    let mut last = value.before.as_str();
    if let Some(after) = &value.after {
        let Some(found) = text[n..].find(after.trim_end()) else {
            return if text.len() > n + MAX_GAP {
                Begin::Not
            } else {
                Begin::More
            };
        };
        n += found + after.trim_end().len();
        last = after;
    }
    // White space of the mark is no part of the value.
    let space = &last[last.trim_end().len()..];
    if !space.is_empty() && space.starts_with(&text[n..]) && text[n..] != *space {
        return Begin::More;
    }
    if text[n..].starts_with(space) {
        n += space.len();
    }
    Begin::Key { name, n }
}

impl Function {
    /// What the schema says of an argument.
    fn kind(&self, name: &str) -> Kind {
        let schema = &self.parameters["properties"][name];
        let texts = |list: &Vec<Json>| !list.is_empty() && list.iter().all(Json::is_string);
        let is_text = schema["type"] == "string" || schema["enum"].as_array().is_some_and(texts);
        if is_text { Kind::Text } else { Kind::Other }
    }
}

impl Scan {
    /// The end of the object or list that a text begins with; goes on where it was.
    pub fn end(&mut self, text: &str) -> Option<usize> {
        while let Some(&byte) = text.as_bytes().get(self.n) {
            self.n += 1;
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.in_string => self.is_escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.n);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// Adds text.
pub fn say(said: &mut Vec<Said>, text: String) {
    match said.last_mut() {
        _ if text.is_empty() => {}
        Some(Said::Text(before)) => before.push_str(&text),
        _ => said.push(Said::Text(text)),
    }
}

/// Adds a piece of arguments.
pub fn tell(said: &mut Vec<Said>, text: &str) {
    match said.last_mut() {
        _ if text.is_empty() => {}
        Some(Said::Arguments(before)) => before.push_str(text),
        _ => said.push(Said::Arguments(text.to_owned())),
    }
}

/// The arguments of an object that is a call, as JSON.
pub fn arguments_of(mut object: Map<String, Json>, key: &str) -> String {
    let found = [key, "arguments", "parameters"]
        .iter()
        .find_map(|key| object.remove(*key));
    match found {
        None => "{}".to_owned(),
        Some(Json::String(text)) => text,
        Some(object) => object.to_string(),
    }
}
