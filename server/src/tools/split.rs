//! Calls of functions, told from what a model says as it comes.

use engine::vocab::n_begun;
use serde_json::{Map, Value as Json};

use super::format::ToolFormat;

/// What a piece of an answer is.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// Text.
    Text(String),
    /// A call, whole.
    Call(Call),
}

/// A call of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The function.
    pub name: String,
    /// An object of JSON.
    pub arguments: String,
}

/// Tells calls from text. What looks like a call and is none stays text: nothing is lost.
#[derive(Clone, Debug)]
pub struct ToolSplit {
    format: ToolFormat,
    /// The functions that there are.
    names: Vec<String>,
    /// Several may be called; otherwise what follows the first call is left out.
    parallel: bool,
    n_calls: usize,
    state: State,
    held: String,
    scan: Scan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space has come.
    Start,
    Text,
    /// An object is to come, or under way.
    Object,
    /// Behind an object.
    Behind,
}

/// Between calls that are not in tags, the first one there alone.
const SEPARATORS: &[char] = &[';', ' ', '\n', '\t', '\r'];

/// How far an object has been read.
#[derive(Clone, Copy, Debug, Default)]
struct Scan {
    /// Bytes looked at.
    n: usize,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl ToolSplit {
    /// Nothing has come yet.
    pub fn new(format: ToolFormat, names: Vec<String>, parallel: bool) -> ToolSplit {
        ToolSplit {
            format,
            names,
            parallel,
            n_calls: 0,
            state: State::Start,
            held: String::new(),
            scan: Scan::default(),
        }
    }

    /// Takes text, and gives what is sure.
    pub fn push(&mut self, text: &str, said: &mut Vec<Said>) {
        if self.parallel || self.n_calls == 0 {
            self.held.push_str(text);
            while self.advance(said) {}
        }
    }

    /// How many calls there were.
    pub fn n_calls(&self) -> usize {
        self.n_calls
    }

    /// Gives what is left when no text follows.
    pub fn finish(&mut self, said: &mut Vec<Said>) {
        let rest = std::mem::take(&mut self.held);
        let open = match self.state {
            State::Object => self.mark(),
            // What stands around calls.
            State::Start | State::Behind if self.n_calls > 0 && rest.trim_matches(SEPARATORS).is_empty() => return,
            _ => String::new(),
        };
        say(said, open + &rest);
    }

    /// What opens a call, without white space around it.
    fn mark(&self) -> String {
        self.format.open.trim().to_owned()
    }

    /// Goes on by a state. False if more has to come first.
    fn advance(&mut self, said: &mut Vec<Said>) -> bool {
        match self.state {
            State::Start if self.mark().is_empty() => {
                // As some models separate calls.
                let between = if self.n_calls > 0 { SEPARATORS } else { &SEPARATORS[1..] };
                let begun = self.held.trim_start_matches(between).to_owned();
                self.state = match begun.chars().next() {
                    None => return false,
                    Some('{') => State::Object,
                    Some(_) => State::Text,
                };
                if self.state == State::Object {
                    self.held = begun;
                }
                true
            }
            State::Start | State::Text => self.text(said),
            State::Object => self.object(said),
            State::Behind => self.behind(),
        }
    }

    fn text(&mut self, said: &mut Vec<Said>) -> bool {
        let mark = self.mark();
        if self.state == State::Start && self.n_calls > 0 {
            self.held = self.held.trim_start().to_owned();
        }
        let found = self.held.find(&mark).filter(|_| !mark.is_empty());
        if let Some(at) = found {
            let before: String = self.held.drain(..at).collect();
            self.held.drain(..mark.len());
            // White space around calls is part of their form.
            say(said, before.trim_end().to_owned());
            (self.state, self.scan) = (State::Object, Scan::default());
            return true;
        }
        // White space waits, too: a call may follow.
        let n = self.held.len() - n_begun(&self.held, &mark);
        let n = if mark.is_empty() {
            n
        } else {
            self.held[..n].trim_end().len()
        };
        if n > 0 {
            self.state = State::Text;
        }
        say(said, self.held.drain(..n).collect());
        false
    }

    fn object(&mut self, said: &mut Vec<Said>) -> bool {
        if self.scan.n == 0 {
            let n = self.held.len() - self.held.trim_start().len();
            match self.held[n..].chars().next() {
                None => return false,
                Some('{') => {
                    self.held.drain(..n);
                }
                Some(_) => {
                    self.give_up(said);
                    return true;
                }
            }
        }
        let Some(end) = self.scan.end(&self.held) else {
            return false;
        };
        let text: String = self.held.drain(..end).collect();
        match self.call(&text) {
            Some(call) => {
                said.push(Said::Call(call));
                self.n_calls += 1;
                self.state = State::Behind;
                if !self.parallel {
                    self.held.clear();
                    return false;
                }
            }
            None => {
                self.held.insert_str(0, &text);
                self.give_up(said);
            }
        }
        true
    }

    /// It was none: what opened it is text.
    fn give_up(&mut self, said: &mut Vec<Said>) {
        say(said, self.mark());
        // What follows is looked at, but not the same object again.
        let n = self.scan.n.min(self.held.len());
        say(said, self.held.drain(..n).collect());
        (self.state, self.scan) = (State::Text, Scan::default());
    }

    fn behind(&mut self) -> bool {
        let close = self.format.close.trim();
        let rest = self.held.trim_start();
        if !close.is_empty() && rest.len() < close.len() && close.starts_with(rest) {
            return false;
        }
        let rest = rest.strip_prefix(close).unwrap_or(rest).trim_start();
        // As some models separate calls.
        let rest = if close.is_empty() {
            rest.trim_start_matches([';', ' ', '\n'])
        } else {
            rest
        };
        self.held = rest.to_owned();
        self.scan = Scan::default();
        self.state = State::Start;
        true
    }

    fn call(&self, text: &str) -> Option<Call> {
        let mut object: Map<String, Json> = serde_json::from_str(text).ok()?;
        let name = object.get(&self.format.name)?.as_str()?.to_owned();
        let keys = [self.format.arguments.as_str(), "arguments", "parameters"];
        let arguments = keys.iter().find_map(|key| object.remove(*key));
        let arguments = match arguments {
            None => "{}".to_owned(),
            Some(Json::String(text)) => text,
            Some(object) => object.to_string(),
        };
        self.names.contains(&name).then_some(Call { name, arguments })
    }
}

impl Scan {
    /// The end of the object that a text begins with; goes on where it was.
    fn end(&mut self, text: &str) -> Option<usize> {
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

fn say(said: &mut Vec<Said>, text: String) {
    match said.last_mut() {
        _ if text.is_empty() => {}
        Some(Said::Text(before)) => before.push_str(&text),
        _ => said.push(Said::Text(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::tests::{BARE, TAGGED, format};
    use super::*;

    /// What is said, the same whether text comes whole or by characters.
    #[track_caller]
    fn split(template: &str, text: &str) -> Vec<Said> {
        split_of(template, text, true)
    }

    #[track_caller]
    fn split_of(template: &str, text: &str, parallel: bool) -> Vec<Said> {
        let run = |pieces: &[&str]| {
            let mut split = ToolSplit::new(
                format(template).unwrap(),
                vec!["f".to_owned(), "g".to_owned()],
                parallel,
            );
            let mut said = Vec::new();
            pieces.iter().for_each(|piece| split.push(piece, &mut said));
            split.finish(&mut said);
            said
        };
        let characters: Vec<&str> = text.split("").collect();
        let whole = run(&[text]);
        assert_eq!(run(&characters), whole, "{text:?}");
        whole
    }

    fn text(text: &str) -> Said {
        Said::Text(text.to_owned())
    }

    fn call(name: &str, arguments: &str) -> Said {
        Said::Call(Call {
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        })
    }

    #[test]
    fn calls_between_tags() {
        let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}</tool_call>\\\"\"}}\n</tool_call>";
        let two = "<tool_call>{\"arguments\": {}, \"name\": \"g\"}</tool_call>";
        let f = || call("f", "{\"a\":\"}</tool_call>\\\"\"}");
        assert_eq!(split(TAGGED, one), [f()]);
        assert_eq!(
            split(TAGGED, &format!("Let me see.\n{one}\n{two}\n")),
            [text("Let me see."), f(), call("g", "{}")]
        );
        assert_eq!(split(TAGGED, &format!("{two} Done.")), [call("g", "{}"), text("Done.")]);
        assert_eq!(
            split_of(TAGGED, &format!("{two}{one}"), false),
            [call("g", "{}")],
            "one at most"
        );
        // The end of an answer may be the end of a call.
        assert_eq!(split(TAGGED, one.trim_end_matches("\n</tool_call>")), [f()]);
    }

    #[test]
    fn calls_that_are_the_answer() {
        assert_eq!(
            split(BARE, "\n{\"name\": \"f\", \"parameters\": {\"a\": [1]}}"),
            [call("f", "{\"a\":[1]}")]
        );
        let both = "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\"}";
        assert_eq!(split(BARE, both), [call("f", "{}"), call("g", "{}")]);
        assert_eq!(
            split(BARE, "An object: {\"name\": \"f\"}"),
            [text("An object: {\"name\": \"f\"}")]
        );
    }

    #[test]
    fn what_is_no_call_is_text() {
        for other in [
            "Nothing to call.",
            "a < b <tool",
            "<tool_call>no</tool_call>",
            "<tool_call>{\"name\": \"unheard_of\", \"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\": 7}</tool_call>",
            "<tool_call>{\"name\": \"f\"",
            "{\"name\": \"f\"}",
            "<tool_call>",
            "",
        ] {
            let said: String = split(TAGGED, other)
                .into_iter()
                .map(|said| match said {
                    Said::Text(text) => text,
                    Said::Call(call) => panic!("{other}: {call:?}"),
                })
                .collect();
            assert_eq!(said, other);
        }
        assert_eq!(split(BARE, "{\"a\": 1} and more"), [text("{\"a\": 1} and more")]);
    }
}
