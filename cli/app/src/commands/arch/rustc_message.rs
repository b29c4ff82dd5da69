//! Errors of declarations as JSON objects of rustc, which editors read.

use std::path::Path;

use arch_lang::source::Place;
use arch_runtime::{Fault, limits};
use serde::Serialize;

/// Diagnostic of rustc (`--error-format=json`).
#[derive(Serialize)]
pub struct RustcMessage<'a> {
    #[serde(rename = "$message_type")]
    kind: &'static str,
    message: String,
    /// Error code; declarations have none.
    code: Option<&'static str>,
    level: &'static str,
    spans: Vec<Span<'a>>,
    children: [(); 0],
    /// Text for terminals.
    rendered: String,
}

/// Location in a file. Lines and columns start at 1, columns count characters, and ends are exclusive.
#[derive(Serialize)]
struct Span<'a> {
    file_name: &'a str,
    byte_start: usize,
    byte_end: usize,
    line_start: usize,
    line_end: usize,
    column_start: usize,
    column_end: usize,
    is_primary: bool,
    text: [Line<'a>; 1],
    label: Option<&'static str>,
    suggested_replacement: Option<&'static str>,
    suggestion_applicability: Option<&'static str>,
    expansion: Option<()>,
}

/// Source line of a location.
#[derive(Serialize)]
struct Line<'a> {
    text: &'a str,
    highlight_start: usize,
    highlight_end: usize,
}

impl<'a> RustcMessage<'a> {
    /// Converts an error. If its file is built in, the location is that of the `use`, call, or `like:`.
    pub fn new(error: &'a Fault) -> RustcMessage<'a> {
        let (place, anchor) = (&error.place, &error.anchor);
        let is_own = place.file == anchor.file;
        let (message, spans) = if is_own {
            (error.message.clone(), vec![Span::new(place, true)])
        } else if Path::new(&place.file).is_file() {
            let spans = vec![Span::new(place, true), Span::new(anchor, false)];
            (error.message.clone(), spans)
        } else {
            (format!("{}: {}", place, error.message), vec![Span::new(anchor, true)])
        };
        RustcMessage {
            kind: "diagnostic",
            message,
            code: None,
            level: "error",
            spans,
            children: [],
            rendered: format!("{error}\n"),
        }
    }
}

impl<'a> Span<'a> {
    fn new(place: &'a Place, is_primary: bool) -> Span<'a> {
        let text = limits::read(Path::new(&place.file)).unwrap_or_default();
        let line_start: usize = text
            .split_inclusive('\n')
            .take(place.line.saturating_sub(1))
            .map(str::len)
            .sum();
        let byte_of = |column: usize| {
            let before = place.text.chars().take(column.saturating_sub(1));
            line_start + before.map(char::len_utf8).sum::<usize>()
        };
        let end = place.column + place.width;
        Span {
            file_name: &place.file,
            byte_start: byte_of(place.column),
            byte_end: byte_of(end),
            line_start: place.line,
            line_end: place.line,
            column_start: place.column,
            column_end: end,
            is_primary,
            text: [Line {
                text: &place.text,
                highlight_start: place.column,
                highlight_end: end,
            }],
            label: (!is_primary).then_some("used here"),
            suggested_replacement: None,
            suggestion_applicability: None,
            expansion: None,
        }
    }
}
