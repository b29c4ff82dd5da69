//! Sources: the text of the declaration, its fragments, and its parents.
//!
//! A span refers to a text that `proc-macro2` parsed. The map records the file of each text and the `use`,
//! call, or `like:` that introduced it. An error is thus located at `fragments/gated_ffn.rs:14:30` and
//! reported under the `use` or call in the declaration.

use std::fmt;
use std::str::FromStr;

use proc_macro2::{LexError, Span, TokenStream};
use quote::ToTokens;

use crate::braces;

/// A range of tokens.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub start: Span,
    pub end: Span,
}

impl Range {
    /// Returns the range from the first to the last token of `at`.
    pub fn of(at: impl ToTokens) -> Range {
        let mut tokens = at.to_token_stream().into_iter();
        let start = tokens.next().map_or_else(Span::call_site, |t| t.span());
        let end = tokens.last().map_or(start, |t| t.span());
        Range { start, end }
    }

    /// Returns line and column of the first character, both starting at 1.
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

/// Relation of a source text to the declaration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The text is the declaration's own.
    Own,
    /// Text of a fragment, used directly or through a fragment or parent.
    Fragment,
    /// The text belongs to the ancestor with this name.
    Parent(String),
}

/// A parsed source text.
#[derive(Debug)]
struct File {
    /// File name that `proc-macro2` assigned to the text.
    id: String,
    name: String,
    lines: Vec<String>,
    origin: Origin,
    /// The name after `use`, or the string after `like:`, that introduced the text.
    brought_by: Option<Range>,
}

/// A source location for printing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// File name; empty for a declaration given as tokens.
    pub file: String,
    /// Line, starting at 1.
    pub line: usize,
    /// Column in characters, starting at 1.
    pub column: usize,
    /// Text of the source line; empty if unknown.
    pub text: String,
    /// Number of characters of the line to underline.
    pub width: usize,
}

impl fmt::Display for Place {
    /// `file:line:column`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

impl Place {
    /// Returns the line with carets below the range, like rustc; empty if the line is unknown. Of a long line, only the
    /// part around the range is returned.
    pub fn excerpt(&self) -> String {
        if self.text.is_empty() {
            return String::new();
        }
        let number = self.line.to_string();
        let n_chars = self.text.chars().count();
        let first = if n_chars > EXCERPT {
            self.column.saturating_sub(BEFORE)
        } else {
            0
        };
        let shown: String = self.text.chars().skip(first).take(EXCERPT).collect();
        let (before, after) = (
            if first > 0 { ELLIPSIS } else { "" },
            if n_chars - first.min(n_chars) > EXCERPT {
                ELLIPSIS
            } else {
                ""
            },
        );
        let at = self.column - 1 - first.min(self.column - 1);
        let margin = " ".repeat(number.len());
        let gap = " ".repeat(before.chars().count() + at);
        let carets = "^".repeat(self.width.min(EXCERPT - at.min(EXCERPT - 1)));
        format!("{margin} |\n{number} | {before}{shown}{after}\n{margin} | {gap}{carets}")
    }
}

/// Maximum number of characters of a line in an excerpt.
const EXCERPT: usize = 160;
/// Number of characters before the range in the excerpt of a long line.
const BEFORE: usize = 60;
/// Mark of omitted text.
const ELLIPSIS: &str = "… ";

/// All source texts of one declaration.
#[derive(Debug, Default)]
pub struct SourceMap {
    files: Vec<File>,
}

impl SourceMap {
    /// Parses the file of the declaration.
    pub fn parse_own(&mut self, name: &str, text: &str) -> syn::Result<TokenStream> {
        self.parse(name, text, Origin::Own, None)
    }

    /// Parses the text of a fragment or parent, which `brought_by` refers to.
    pub fn parse_other(
        &mut self,
        name: &str,
        text: &str,
        origin: Origin,
        brought_by: Range,
    ) -> syn::Result<TokenStream> {
        self.parse(name, text, origin, Some(brought_by))
    }

    fn parse(&mut self, name: &str, text: &str, origin: Origin, brought_by: Option<Range>) -> syn::Result<TokenStream> {
        let tokens = TokenStream::from_str(text).map_err(|e| lexical_error(text, &e));
        let first = match &tokens {
            Ok(tokens) => tokens.clone().into_iter().next().map(|t| t.span()),
            Err(e) => Some(e.span()),
        };
        // A text without tokens has no spans.
        self.files.extend(first.map(|span| File {
            id: span.file(),
            name: name.to_owned(),
            lines: text.lines().map(str::to_owned).collect(),
            origin,
            brought_by,
        }));
        tokens
    }

    /// Returns the file of a token; `None` for a declaration given as tokens.
    fn file(&self, span: Span) -> Option<&File> {
        let id = span.file();
        self.files.iter().find(|f| f.id == id)
    }

    /// Returns the relation of a token's file to the declaration.
    pub fn origin(&self, span: Span) -> Origin {
        self.file(span).map_or(Origin::Own, |f| f.origin.clone())
    }

    /// Returns the tokens of the declaration that introduced the text of `range`, or `range` if it is part of
    /// the declaration.
    pub fn anchor(&self, range: Range) -> Range {
        let mut range = range;
        while let Some(by) = self.file(range.start).and_then(|f| f.brought_by) {
            range = by;
        }
        range
    }

    /// Returns the span in the declaration that represents a span in another file; `None` for spans of the
    /// declaration.
    pub fn own_place(&self, span: Span) -> Option<Span> {
        match self.origin(span) {
            Origin::Own => None,
            _ => Some(self.anchor(span.into()).start),
        }
    }

    /// Returns the location of a range.
    pub fn place(&self, range: Range) -> Place {
        let file = self.file(range.start);
        let (line, column) = range.line_column();
        let text = file.and_then(|f| f.lines.get(line - 1)).map_or("", String::as_str);
        let end = range.end.end();
        let last = if end.line == line {
            end.column
        } else {
            text.trim_end().chars().count()
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

/// Returns the error for text that cannot be tokenized, located at the unclosed delimiter.
fn lexical_error(text: &str, error: &LexError) -> syn::Error {
    let Some((at, delimiter)) = braces::unbalanced(text) else {
        return syn::Error::new(error.span(), "unexpected character");
    };
    let message = if "([{".contains(delimiter) {
        format!("this `{delimiter}` is never closed")
    } else {
        format!("this `{delimiter}` closes nothing")
    };
    // Only a parsed token has a span: a text of the same length that is blank except for one token.
    let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
    let before: String = text[..at].chars().map(blank).collect();
    let span = TokenStream::from_str(&format!("{before};"))
        .ok()
        .and_then(|tokens| tokens.into_iter().next())
        .map_or_else(|| error.span(), |token| token.span());
    syn::Error::new(span, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_name_file_and_anchors_point_to_declaration() {
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
    fn excerpts_of_long_lines_are_truncated() {
        let place = |column, width| Place {
            file: "my.rs".to_owned(),
            line: 1,
            column,
            text: "é".repeat(70) + &"x".repeat(200_000),
            width,
        };
        for (column, width) in [(1, 1), (71, 500), (150_000, 3), (200_070, 1), (200_071, 9)] {
            let excerpt = place(column, width).excerpt();
            let [_, line, carets] = excerpt.lines().collect::<Vec<_>>()[..] else {
                panic!("{excerpt}");
            };
            assert!(line.chars().count() < 180 && carets.len() < 180, "{excerpt}");
            assert!(carets.ends_with('^'), "{excerpt}");
            let at = carets.find('^').unwrap();
            let marked = line.chars().nth(at);
            let expected = place(column, width).text.chars().nth(column - 1);
            assert_eq!(marked, expected, "{excerpt}");
        }
    }

    #[test]
    fn unlexable_text_error_has_location() {
        let mut sources = SourceMap::default();
        let fault = sources.parse_own("my.rs", "a {\n (\n}").unwrap_err();
        assert_eq!(sources.place(fault.span().into()).to_string(), "my.rs:2:2");
        assert_eq!(fault.to_string(), "this `(` is never closed");
    }
}
