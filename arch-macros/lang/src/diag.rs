//! Diagnostics. They are collected instead of returned early, so that one expansion reports every error under
//! its own token.

use std::collections::BTreeSet;
use std::fmt;

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;

use crate::source::{Origin, Place, Range, SourceMap};

/// An error with its location.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// Message shown to the author of the declaration.
    pub message: String,
    /// First token of the erroneous range.
    pub start: Span,
    /// Last token of the erroneous range.
    pub end: Span,
    /// File, line, and column of the range, for printing.
    pub place: Place,
    /// Relation of the file to the declaration.
    pub origin: Origin,
    /// Tokens of the declaration under which the error is reported: the erroneous tokens, or the `use` or
    /// call that introduced them.
    pub anchor: Range,
    /// File, line, and column of the anchor.
    pub anchor_place: Place,
}

impl Diagnostic {
    /// Returns `(line, column)` of the first character, both starting at 1.
    pub fn line_column(&self) -> (usize, usize) {
        (self.place.line, self.place.column)
    }

    /// Returns the message that rustc shows at [`Diagnostic::anchor`]: with the location if it is in another
    /// file.
    pub fn text(&self) -> String {
        let text = match self.origin {
            Origin::Own => self.message.clone(),
            _ => format!("{}: {}\n{}", self.place, self.message, self.place.excerpt()),
        };
        text.trim_end().to_owned()
    }
}

impl fmt::Display for Diagnostic {
    /// Formats `file:line:column: message`, and the source line with carets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n{}", self.place, self.message, self.place.excerpt())
    }
}

/// Generates a `compile_error!` that rustc shows at a range of tokens.
pub fn compile_error(at: Range, message: &str) -> TokenStream {
    // `syn::Error` assigns the two spans to its tokens, which underlines a range on stable Rust.
    syn::Error::new_spanned(RangeTokens(at.start, at.end), message).to_compile_error()
}

/// Two empty tokens that carry the spans of a range.
struct RangeTokens(Span, Span);

impl ToTokens for RangeTokens {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        for span in [self.0, self.1] {
            tokens.extend([proc_macro2::TokenTree::Ident(proc_macro2::Ident::new("_x", span))]);
        }
    }
}

/// Number of errors after which no suggestion searches all names.
const MAX_HINTS: usize = 20;

/// Maximum length of a name with a suggestion, in bytes.
const MAX_NAME: usize = 64;

/// Maximum distance of a suggested name.
const MAX_DISTANCE: usize = 4;

/// An error before its spans are resolved.
#[derive(Debug)]
struct RecordedError {
    message: String,
    at: Range,
    /// Calls that were being checked, outermost first.
    calls: Vec<Range>,
}

/// Collects diagnostics. Dropping unread diagnostics is a bug in the compiler and panics, so that no error is
/// lost.
#[derive(Debug, Default)]
pub struct Errors {
    /// Source files that spans refer to.
    pub sources: SourceMap,
    list: Vec<RecordedError>,
    calls: Vec<Range>,
    read: bool,
}

impl Errors {
    /// Creates an empty collector.
    pub fn new() -> Errors {
        Errors::default()
    }

    /// Records an error at the tokens of `at`.
    pub fn at(&mut self, at: impl ToTokens, message: impl Into<String>) {
        self.at_range(Range::of(at), message);
    }

    /// Records an error at a single span.
    pub fn at_span(&mut self, span: Span, message: impl Into<String>) {
        self.at_range(span.into(), message);
    }

    /// Records an error at a range of tokens.
    pub fn at_range(&mut self, at: Range, message: impl Into<String>) {
        self.list.push(RecordedError {
            message: message.into(),
            at,
            calls: self.calls.clone(),
        });
    }

    /// Records errors of the `syn` parser.
    pub fn syntax(&mut self, error: &syn::Error) {
        for e in error {
            self.at_span(e.span(), e.to_string());
        }
    }

    /// Enters a call: errors up to [`Errors::leave_call`] belong to it.
    pub fn enter_call(&mut self, call: Range) {
        self.calls.push(call);
    }

    /// Leaves the innermost call.
    pub fn leave_call(&mut self) {
        self.calls.pop();
    }

    /// Returns the number of errors.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns `; did you mean `x`?` for the nearest of many names, or an empty string. After [`MAX_HINTS`] errors,
    /// returns no suggestion: each takes a comparison with all names.
    pub fn hint(&self, name: &str, candidates: impl FnOnce() -> Vec<String>) -> String {
        self.nearest(name, candidates)
            .map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
    }

    /// Like [`nearest`], within the limit of [`Errors::hint`].
    pub fn nearest(&self, name: &str, candidates: impl FnOnce() -> Vec<String>) -> Option<String> {
        if self.len() >= MAX_HINTS {
            return None;
        }
        nearest(name, candidates().iter().map(String::as_str)).map(str::to_owned)
    }

    /// Returns true if no error has been recorded.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns all errors in source order, without duplicates.
    pub fn finish(self) -> Vec<Diagnostic> {
        self.finish_with_sources().0
    }

    /// Like [`Errors::finish`], but also returns the sources that the locations refer to.
    pub fn finish_with_sources(mut self) -> (Vec<Diagnostic>, SourceMap) {
        self.read = true;
        let faults = std::mem::take(&mut self.list);
        let mut list: Vec<Diagnostic> = faults.into_iter().map(|f| self.diagnostic(f)).collect();
        let key = |d: &Diagnostic| (d.anchor.line_column(), d.place.clone(), d.message.clone());
        list.sort_by_cached_key(key);
        let mut seen = BTreeSet::new();
        list.retain(|d| seen.insert((d.place.clone(), d.message.clone())));
        (list, std::mem::take(&mut self.sources))
    }

    /// Discards the errors of an attempt. Returns true if there were none.
    pub fn discard(mut self) -> bool {
        self.read = true;
        self.is_empty()
    }

    fn diagnostic(&self, fault: RecordedError) -> Diagnostic {
        let sources = &self.sources;
        let origin = sources.origin(fault.at.start);
        let own = |r: &&Range| sources.origin(r.start) == Origin::Own;
        let anchor = match origin {
            Origin::Own => fault.at,
            _ => fault
                .calls
                .iter()
                .rev()
                .find(own)
                .copied()
                .unwrap_or_else(|| sources.anchor(fault.at)),
        };
        Diagnostic {
            message: fault.message,
            start: fault.at.start,
            end: fault.at.end,
            place: sources.place(fault.at),
            origin,
            anchor,
            anchor_place: sources.place(anchor),
        }
    }
}

impl Drop for Errors {
    fn drop(&mut self) {
        if !self.read && !std::thread::panicking() {
            panic!("diagnostics were dropped without being reported: {:?}", self.list);
        }
    }
}

/// Returns the candidate nearest to `name`, if it is near enough to be a likely typo.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Names of one or two letters are too similar to each other for a suggestion.
    let limit = match name.chars().count() {
        0..=2 => 0,
        n => (n / 3).clamp(1, MAX_DISTANCE),
    };
    candidates
        .into_iter()
        .filter(|c| name.len().max(c.len()) <= MAX_NAME)
        .filter_map(|c| Some((distance(name, c, limit)?, c)))
        .filter(|&(d, _)| d > 0)
        .min_by_key(|&(d, c)| (d, c))
        .map(|(_, c)| c)
}

/// Formats a list of alternatives: `` `a`, `b`, or `c` ``.
pub fn one_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.into_iter().map(|n| format!("`{n}`")).collect();
    match names.as_slice() {
        [] => String::new(),
        [name] => name.clone(),
        [first, second] => format!("{first} or {second}"),
        [others @ .., last] => format!("{}, or {last}", others.join(", ")),
    }
}

/// Returns `; did you mean `x`?` for the nearest candidate, or an empty string.
pub fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, candidates).map_or_else(String::new, |c| format!("; did you mean `{c}`?"))
}

/// Returns the edit distance (insertions, deletions, replacements, transpositions) between two words, or `None` if it
/// exceeds `limit`.
pub fn distance(a: &str, b: &str, limit: usize) -> Option<usize> {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // Cells farther than `limit` from the diagonal exceed it.
    let beyond = limit + 1;
    let mut rows = [
        vec![beyond; b.len() + 1],
        vec![beyond; b.len() + 1],
        vec![beyond; b.len() + 1],
    ];
    for (j, cell) in rows[2].iter_mut().enumerate().take(beyond) {
        *cell = j;
    }
    for i in 1..=a.len() {
        rows.rotate_left(1);
        let [before, above, row] = &mut rows;
        row.fill(beyond);
        if i <= limit {
            row[0] = i;
        }
        for j in i.saturating_sub(limit).max(1)..=(i + limit).min(b.len()) {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row[j] = best;
        }
        if row.iter().min().is_some_and(|&least| least > limit) {
            return None;
        }
    }
    Some(rows[2][b.len()]).filter(|&d| d <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_suggests_only_likely_typos() {
        let names = ["rms_norm", "rope", "n_head", "n_head_kv"];
        assert_eq!(nearest("rmsnorm", names), Some("rms_norm"));
        assert_eq!(nearest("reop", names), None);
        assert_eq!(nearest("rpoe", names), Some("rope"));
        assert_eq!(nearest("n_heads", names), Some("n_head"));
        assert_eq!(nearest("xyz", names), None);
    }

    #[test]
    #[should_panic(expected = "dropped without being reported")]
    fn dropping_unread_errors_panics() {
        let mut e = Errors::new();
        e.at_span(Span::call_site(), "lost");
        drop(e);
    }
}
