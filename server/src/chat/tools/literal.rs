//! Parses values of models that do not write JSON: Python literals, and objects with unquoted keys and
//! specially quoted strings.

use serde_json::{Map, Number, Value as Json};

/// Maximum nesting depth.
const MAX_DEPTH: usize = 64;

/// Reason why parsing failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseStop {
    /// The text is incomplete.
    More,
    /// The text is not a value.
    Wrong,
}

/// Parser for values at the start of a text.
pub struct Reader<'a> {
    text: &'a str,
    /// Current offset.
    pub at: usize,
    /// Additional quotation marker of strings.
    quote: &'a str,
}

impl<'a> Reader<'a> {
    /// Creates a reader; `quote` may be empty.
    pub fn new(text: &'a str, quote: &'a str) -> Reader<'a> {
        Reader { text, at: 0, quote }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Returns the next character after whitespace.
    fn peek(&mut self) -> Result<char, ParseStop> {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
        self.rest().chars().next().ok_or(ParseStop::More)
    }

    fn take(&mut self, expected: char) -> Result<bool, ParseStop> {
        let found = self.peek()? == expected;
        if found {
            self.at += expected.len_utf8();
        }
        Ok(found)
    }

    fn expect(&mut self, expected: char) -> Result<(), ParseStop> {
        if self.take(expected)? {
            Ok(())
        } else {
            Err(ParseStop::Wrong)
        }
    }

    /// Parses a value.
    pub fn value(&mut self) -> Result<Json, ParseStop> {
        self.value_at(0)
    }

    fn value_at(&mut self, depth: usize) -> Result<Json, ParseStop> {
        if depth > MAX_DEPTH {
            return Err(ParseStop::Wrong);
        }
        let c = self.peek()?;
        if !self.quote.is_empty() && self.rest().starts_with(self.quote) {
            return self.marked().map(Json::String);
        }
        match c {
            '"' | '\'' => self.quoted(c).map(Json::String),
            '[' | '(' => self.list(if c == '[' { ']' } else { ')' }, depth),
            '{' => self.object(depth),
            // The text may end inside a quotation marker.
            '<' if self.quote.starts_with(self.rest()) => Err(ParseStop::More),
            _ => self.word(),
        }
    }

    /// Parses an object, whose keys may be unquoted.
    fn object(&mut self, depth: usize) -> Result<Json, ParseStop> {
        self.members('{', ':', '}', depth).map(Json::Object)
    }

    /// Parses Python keyword arguments: `(key=value, …)`.
    pub fn keywords(&mut self) -> Result<Map<String, Json>, ParseStop> {
        self.members('(', '=', ')', 0)
    }

    /// Parses an object with unquoted keys.
    pub fn bare_object(&mut self) -> Result<Map<String, Json>, ParseStop> {
        self.members('{', ':', '}', 0)
    }

    fn members(
        &mut self,
        open: char,
        between: char,
        close: char,
        depth: usize,
    ) -> Result<Map<String, Json>, ParseStop> {
        self.expect(open)?;
        let mut all = Map::new();
        while !self.take(close)? {
            let key = self.key()?;
            self.expect(between)?;
            all.insert(key, self.value_at(depth + 1)?);
            if !self.take(',')? && self.peek()? != close {
                return Err(ParseStop::Wrong);
            }
        }
        Ok(all)
    }

    fn key(&mut self) -> Result<String, ParseStop> {
        let c = self.peek()?;
        if c == '"' || c == '\'' {
            return self.quoted(c);
        }
        if !self.quote.is_empty() && self.rest().starts_with(self.quote) {
            return self.marked();
        }
        let rest = self.rest();
        let is_end = |c: char| matches!(c, ':' | '=' | ',' | '{' | '}' | '(' | ')' | '"') || c.is_whitespace();
        let end = rest.find(is_end).ok_or(ParseStop::More)?;
        self.at += end;
        if end == 0 {
            return Err(ParseStop::Wrong);
        }
        Ok(rest[..end].to_owned())
    }

    fn list(&mut self, close: char, depth: usize) -> Result<Json, ParseStop> {
        self.at += 1;
        let mut all = Vec::new();
        while !self.take(close)? {
            all.push(self.value_at(depth + 1)?);
            if !self.take(',')? && self.peek()? != close {
                return Err(ParseStop::Wrong);
            }
        }
        Ok(all.into())
    }

    /// Parses a string between quotation markers.
    fn marked(&mut self) -> Result<String, ParseStop> {
        let rest = &self.rest()[self.quote.len()..];
        let end = rest.find(self.quote).ok_or(ParseStop::More)?;
        self.at += end + 2 * self.quote.len();
        Ok(rest[..end].to_owned())
    }

    fn quoted(&mut self, quote: char) -> Result<String, ParseStop> {
        let mut text = String::new();
        let mut chars = self.rest().char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.at += at + 1;
                    return Ok(text);
                }
                '\\' => match chars.next().ok_or(ParseStop::More)?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'u' => {
                        let digits: String = chars.by_ref().take(4).map(|(_, c)| c).collect();
                        let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                        text.push(code.ok_or(if digits.len() < 4 {
                            ParseStop::More
                        } else {
                            ParseStop::Wrong
                        })?);
                    }
                    c @ ('\\' | '\'' | '"' | '/') => text.push(c),
                    c => text.extend(['\\', c]),
                },
                c => text.push(c),
            }
        }
        Err(ParseStop::More)
    }

    /// Parses a number or a literal such as `true` or `None`.
    fn word(&mut self) -> Result<Json, ParseStop> {
        let rest = self.rest();
        let is_end = |c: char| matches!(c, ',' | ']' | '}' | ')' | ':') || c.is_whitespace();
        let end = rest.find(is_end).ok_or(ParseStop::More)?;
        self.at += end;
        match &rest[..end] {
            "true" | "True" => Ok(true.into()),
            "false" | "False" => Ok(false.into()),
            "null" | "None" => Ok(Json::Null),
            word => word.parse::<Number>().map(Json::Number).map_err(|_| ParseStop::Wrong),
        }
    }
}

/// Parses a complete text as a JSON or Python value.
pub fn value_of(text: &str) -> Option<Json> {
    if let Ok(value) = serde_json::from_str(text) {
        return Some(value);
    }
    // The parser recognizes the end of a word only by the next character.
    let text = format!("{} ", text.trim());
    let mut reader = Reader::new(&text, "");
    let value = reader.value().ok()?;
    if reader.rest().trim().is_empty() {
        Some(value)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reader_parses_python_literals() {
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
    fn reader_parses_unquoted_keys_and_custom_quotes() {
        let text = "{a:[<|\"|>x, \"y\"<|\"|>],b:{z:true}} rest";
        let mut reader = Reader::new(text, "<|\"|>");
        let object = reader.bare_object().unwrap();
        assert_eq!(Json::Object(object), json!({"a": ["x, \"y\""], "b": {"z": true}}));
        assert_eq!(&text[reader.at..], " rest");
        for n in (1..text.len() - 5).filter(|&n| text.is_char_boundary(n)) {
            assert_eq!(
                Reader::new(&text[..n], "<|\"|>").bare_object(),
                Err(ParseStop::More),
                "{}",
                &text[..n]
            );
        }
        let keywords = Reader::new("(a='b', n=1)", "").keywords().unwrap();
        assert_eq!(Json::Object(keywords), json!({"a": "b", "n": 1}));
    }
}
