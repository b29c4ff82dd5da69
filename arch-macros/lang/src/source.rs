//! Where text comes from: the declaration itself, fragments and parents.
//!
//! A span is a place in a text that `proc-macro2` has parsed. The map says which file each text is and what brought it in, so that
//! a fault is told at `fragments/gated_ffn.rs:14:30` and shown under the `use` or the call in the declaration.

use std::fmt;
use std::str::FromStr;

use proc_macro2::{LexError, Span, TokenStream};
use quote::ToTokens;

/// From the first to the last token of some text.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// First token.
    pub start: Span,
    /// Last token.
    pub end: Span,
}

impl Range {
    /// Everything from the first to the last token of `at`.
    pub fn of(at: impl ToTokens) -> Range {
        let mut tokens = at.to_token_stream().into_iter();
        let start = tokens.next().map_or_else(Span::call_site, |t| t.span());
        let end = tokens.last().map_or(start, |t| t.span());
        Range { start, end }
    }

    /// `line` and `column` of the first character, both counted from 1.
    pub fn line_column(&self) -> (usize, usize) {
        let at = self.start.start();
        (at.line, at.column + 1)
    }
}

impl From<Span> for Range {
    fn from(span: Span) -> Range {
        Range { start: span, end: span }
    }
}

/// What a text is to the declaration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The declaration itself.
    Own,
    /// A fragment that it uses, or that one of its fragments or parents uses.
    Fragment,
    /// The architecture of this name, which it is `like`.
    Parent(String),
}

/// One text that was parsed.
#[derive(Debug)]
struct File {
    /// What `proc-macro2` calls it.
    id: String,
    name: String,
    text: String,
    origin: Origin,
    /// What brought it in: the name after `use`, or the string after `like:`.
    brought_by: Option<Range>,
}

/// A place for people.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// Name of the file; empty for a declaration that is given as tokens.
    pub file: String,
    /// Counted from 1.
    pub line: usize,
    /// Counted from 1, in characters.
    pub column: usize,
    /// The line of the file, if it is known.
    pub text: String,
    /// Number of characters of this line that are meant.
    pub width: usize,
}

impl fmt::Display for Place {
    /// `file:line:column`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

impl Place {
    /// The line with carets under what is meant, in the manner of rustc; nothing if the line is not known.
    pub fn excerpt(&self) -> String {
        if self.text.is_empty() {
            return String::new();
        }
        let number = self.line.to_string();
        let (margin, gap) = (" ".repeat(number.len()), " ".repeat(self.column - 1));
        let carets = "^".repeat(self.width);
        let text = &self.text;
        format!("{margin} |\n{number} | {text}\n{margin} | {gap}{carets}")
    }
}

/// The texts of one declaration.
#[derive(Debug, Default)]
pub struct SourceMap {
    files: Vec<File>,
}

impl SourceMap {
    /// Parses the declaration's own file.
    pub fn parse_own(&mut self, name: &str, text: &str) -> Result<TokenStream, LexError> {
        self.parse(name, text, Origin::Own, None)
    }

    /// Parses the text of a fragment or a parent, which `brought_by` names.
    pub fn parse_other(
        &mut self,
        name: &str,
        text: &str,
        origin: Origin,
        brought_by: Range,
    ) -> Result<TokenStream, LexError> {
        self.parse(name, text, origin, Some(brought_by))
    }

    fn parse(
        &mut self,
        name: &str,
        text: &str,
        origin: Origin,
        brought_by: Option<Range>,
    ) -> Result<TokenStream, LexError> {
        let tokens = TokenStream::from_str(text);
        let first = match &tokens {
            Ok(tokens) => tokens.clone().into_iter().next().map(|t| t.span()),
            Err(e) => Some(e.span()),
        };
        // A text without tokens has no places.
        self.files.extend(first.map(|span| File {
            id: span.file(),
            name: name.to_owned(),
            text: text.to_owned(),
            origin,
            brought_by,
        }));
        tokens
    }

    /// The file that a token stands in; `None` for a declaration that was given as tokens.
    fn file(&self, span: Span) -> Option<&File> {
        let id = span.file();
        self.files.iter().find(|f| f.id == id)
    }

    /// What the text of a token is to the declaration.
    pub fn origin(&self, span: Span) -> Origin {
        self.file(span).map_or(Origin::Own, |f| f.origin.clone())
    }

    /// The tokens of the declaration itself that brought in the text of `range`; those of the declaration stand for themselves.
    pub fn anchor(&self, range: Range) -> Range {
        let mut range = range;
        while let Some(by) = self.file(range.start).and_then(|f| f.brought_by) {
            range = by;
        }
        range
    }

    /// The place of the declaration itself that stands for a place in another file; `None` for its own.
    pub fn own_place(&self, span: Span) -> Option<Span> {
        match self.origin(span) {
            Origin::Own => None,
            _ => Some(self.anchor(span.into()).start),
        }
    }

    /// Where some text stands.
    pub fn place(&self, range: Range) -> Place {
        let file = self.file(range.start);
        let (line, column) = range.line_column();
        let text = file.and_then(|f| f.text.lines().nth(line - 1)).unwrap_or_default();
        let end = range.end.end();
        let last = match end.line == line {
            true => end.column,
            false => text.trim_end().chars().count(),
        };
        Place {
            file: file.map_or_else(String::new, |f| f.name.clone()),
            line,
            column,
            text: text.to_owned(),
            width: (last + 1).saturating_sub(column).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_name_the_file_and_anchors_the_declaration() {
        let mut sources = SourceMap::default();
        let own = sources.parse_own("my.rs", "use\n  inner;").unwrap();
        let used = Range::from(own.clone().into_iter().nth(1).unwrap().span());
        let inner = sources
            .parse_other("fragments/inner.rs", "// one\ndown(x) up", Origin::Fragment, used)
            .unwrap();
        let at = Range::of(inner.clone());
        let place = sources.place(at);
        assert_eq!(place.to_string(), "fragments/inner.rs:2:1");
        assert_eq!(place.excerpt(), "  |\n2 | down(x) up\n  | ^^^^^^^^^^");
        assert_eq!(sources.place(sources.anchor(at)).to_string(), "my.rs:2:3");
        assert_eq!(sources.origin(at.start), Origin::Fragment);
        assert_eq!(sources.origin(Span::call_site()), Origin::Own);
        let outside = Range::of(TokenStream::from_str("x").unwrap());
        assert_eq!(sources.place(outside).to_string(), ":1:1");
        assert_eq!(sources.place(outside).excerpt(), "");
    }

    #[test]
    fn texts_that_are_no_tokens_have_places() {
        let mut sources = SourceMap::default();
        let fault = sources.parse_own("my.rs", "a {\n (\n}").unwrap_err();
        assert_eq!(sources.place(fault.span().into()).file, "my.rs");
    }
}
