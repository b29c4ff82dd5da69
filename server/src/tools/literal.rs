//! Values as models write them that do not write JSON: literals of Python, and objects with bare keys and marks for quotes.

use serde_json::{Map, Number, Value as Json};

/// Depth of values.
const MAX_DEPTH: usize = 64;

/// Why there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The text ends too early.
    More,
    /// It is no value.
    Wrong,
}

/// Reads values from the beginning of a text.
pub struct Reader<'a> {
    text: &'a str,
    /// How far it has read.
    pub at: usize,
    /// What stands around texts besides quotes.
    quote: &'a str,
}

impl<'a> Reader<'a> {
    /// Begins to read; `quote` may be empty.
    pub fn new(text: &'a str, quote: &'a str) -> Reader<'a> {
        Reader { text, at: 0, quote }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// The next character that is no white space.
    fn peek(&mut self) -> Result<char, Stop> {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
        self.rest().chars().next().ok_or(Stop::More)
    }

    fn take(&mut self, wanted: char) -> Result<bool, Stop> {
        let found = self.peek()? == wanted;
        if found {
            self.at += wanted.len_utf8();
        }
        Ok(found)
    }

    fn expect(&mut self, wanted: char) -> Result<(), Stop> {
        self.take(wanted)?.then_some(()).ok_or(Stop::Wrong)
    }

    /// A value.
    pub fn value(&mut self) -> Result<Json, Stop> {
        self.value_at(0)
    }

    fn value_at(&mut self, depth: usize) -> Result<Json, Stop> {
        if depth > MAX_DEPTH {
            return Err(Stop::Wrong);
        }
        let c = self.peek()?;
        if !self.quote.is_empty() && self.rest().starts_with(self.quote) {
            return self.marked().map(Json::String);
        }
        match c {
            '"' | '\'' => self.quoted(c).map(Json::String),
            '[' | '(' => self.list(if c == '[' { ']' } else { ')' }, depth),
            '{' => self.object(depth),
            // What may be the beginning of a mark.
            '<' if self.quote.starts_with(self.rest()) => Err(Stop::More),
            _ => self.word(),
        }
    }

    /// An object, whose keys may be bare.
    fn object(&mut self, depth: usize) -> Result<Json, Stop> {
        self.members('{', ':', '}', depth).map(Json::Object)
    }

    /// Arguments of a call as Python has them: `(key=value, …)`.
    pub fn keywords(&mut self) -> Result<Map<String, Json>, Stop> {
        self.members('(', '=', ')', 0)
    }

    /// Arguments as an object with bare keys.
    pub fn bare_object(&mut self) -> Result<Map<String, Json>, Stop> {
        self.members('{', ':', '}', 0)
    }

    fn members(&mut self, open: char, between: char, close: char, depth: usize) -> Result<Map<String, Json>, Stop> {
        self.expect(open)?;
        let mut all = Map::new();
        while !self.take(close)? {
            let key = self.key()?;
            self.expect(between)?;
            all.insert(key, self.value_at(depth + 1)?);
            if !self.take(',')? && self.peek()? != close {
                return Err(Stop::Wrong);
            }
        }
        Ok(all)
    }

    fn key(&mut self) -> Result<String, Stop> {
        let c = self.peek()?;
        if c == '"' || c == '\'' {
            return self.quoted(c);
        }
        if !self.quote.is_empty() && self.rest().starts_with(self.quote) {
            return self.marked();
        }
        let rest = self.rest();
        let is_end = |c: char| matches!(c, ':' | '=' | ',' | '{' | '}' | '(' | ')' | '"') || c.is_whitespace();
        let end = rest.find(is_end).ok_or(Stop::More)?;
        self.at += end;
        (end > 0).then(|| rest[..end].to_owned()).ok_or(Stop::Wrong)
    }

    fn list(&mut self, close: char, depth: usize) -> Result<Json, Stop> {
        self.at += 1;
        let mut all = Vec::new();
        while !self.take(close)? {
            all.push(self.value_at(depth + 1)?);
            if !self.take(',')? && self.peek()? != close {
                return Err(Stop::Wrong);
            }
        }
        Ok(all.into())
    }

    /// A text between marks.
    fn marked(&mut self) -> Result<String, Stop> {
        let rest = &self.rest()[self.quote.len()..];
        let end = rest.find(self.quote).ok_or(Stop::More)?;
        self.at += end + 2 * self.quote.len();
        Ok(rest[..end].to_owned())
    }

    fn quoted(&mut self, quote: char) -> Result<String, Stop> {
        let mut text = String::new();
        let mut chars = self.rest().char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.at += at + 1;
                    return Ok(text);
                }
                '\\' => match chars.next().ok_or(Stop::More)?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'u' => {
                        let digits: String = chars.by_ref().take(4).map(|(_, c)| c).collect();
                        let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                        text.push(code.ok_or(if digits.len() < 4 { Stop::More } else { Stop::Wrong })?);
                    }
                    c @ ('\\' | '\'' | '"' | '/') => text.push(c),
                    c => text.extend(['\\', c]),
                },
                c => text.push(c),
            }
        }
        Err(Stop::More)
    }

    /// A number or a word for true, false or nothing.
    fn word(&mut self) -> Result<Json, Stop> {
        let rest = self.rest();
        let is_end = |c: char| matches!(c, ',' | ']' | '}' | ')' | ':') || c.is_whitespace();
        let end = rest.find(is_end).ok_or(Stop::More)?;
        self.at += end;
        match &rest[..end] {
            "true" | "True" => Ok(true.into()),
            "false" | "False" => Ok(false.into()),
            "null" | "None" => Ok(Json::Null),
            word => word.parse::<Number>().map(Json::Number).map_err(|_| Stop::Wrong),
        }
    }
}

/// The value of a text that is one, in JSON or in Python.
pub fn value_of(text: &str) -> Option<Json> {
    if let Ok(value) = serde_json::from_str(text) {
        return Some(value);
    }
    // A word ends where something else begins.
    let text = format!("{} ", text.trim());
    let mut reader = Reader::new(&text, "");
    let value = reader.value().ok()?;
    (reader.rest().trim().is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn literals_of_python_are_values() {
        for (text, value) in [
            (
                "{'a': True, \"b\": [None, -1.5e3,],}",
                json!({"a": true, "b": [null, -1500.0]}),
            ),
            ("'it\\'s\\n'", json!("it's\n")),
            ("(1, 2)", json!([1, 2])),
            ("\"\\u00e9\"", json!("é")),
            ("17", json!(17)),
        ] {
            assert_eq!(value_of(text), Some(value), "{text}");
        }
        for text in ["", "f(1)", "{'a'}", "[1", "1 2", "'", "{1,2}", &"[".repeat(10_000)] {
            assert_eq!(value_of(text), None, "{text}");
        }
    }

    #[test]
    fn objects_may_have_bare_keys_and_marks_for_quotes() {
        let text = "{a:[<|\"|>x, \"y\"<|\"|>],b:{z:true}} rest";
        let mut reader = Reader::new(text, "<|\"|>");
        let object = reader.bare_object().unwrap();
        assert_eq!(Json::Object(object), json!({"a": ["x, \"y\""], "b": {"z": true}}));
        assert_eq!(&text[reader.at..], " rest");
        for n in (1..text.len() - 5).filter(|&n| text.is_char_boundary(n)) {
            assert_eq!(
                Reader::new(&text[..n], "<|\"|>").bare_object(),
                Err(Stop::More),
                "{}",
                &text[..n]
            );
        }
        let keywords = Reader::new("(a='b', n=1)", "").keywords().unwrap();
        assert_eq!(Json::Object(keywords), json!({"a": "b", "n": 1}));
    }
}
