//! Diagnostics: collected, never thrown, so that one expansion reports every fault under its own token.

use std::collections::BTreeSet;
use std::fmt;

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;

use crate::source::{Origin, Place, Range, SourceMap};

/// One fault: what was expected and found, and where.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// The sentence shown to the author of the declaration.
    pub message: String,
    /// First token of the offending text.
    pub start: Span,
    /// Last token of the offending text.
    pub end: Span,
    /// The offending text for people: file, line, column.
    pub place: Place,
    /// What that file is to the declaration.
    pub origin: Origin,
    /// The tokens of the declaration itself that the fault is shown under: the offending ones, or what brought those in.
    pub anchor: Range,
    /// More places that matter: what to look at, and where.
    pub notes: Vec<(String, Place)>,
}

impl Diagnostic {
    /// `line:column` of the first character, both counted from 1.
    pub fn line_column(&self) -> (usize, usize) {
        (self.place.line, self.place.column)
    }

    /// The message as rustc shows it under [`Diagnostic::anchor`]: with the place, if that is in another file, and the notes.
    pub fn text(&self) -> String {
        let mut text = match self.origin {
            Origin::Own => self.message.clone(),
            _ => format!("{}: {}\n{}", self.place, self.message, self.place.excerpt()),
        };
        for (what, place) in &self.notes {
            text += &format!("\n{place}: {what}\n{}", place.excerpt());
        }
        text.trim_end().to_owned()
    }
}

impl fmt::Display for Diagnostic {
    /// `file:line:column: message`, the line with carets, and the notes in the same manner.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n{}", self.place, self.message, self.place.excerpt())?;
        for (what, place) in &self.notes {
            write!(f, "\n{place}: {what}\n{}", place.excerpt())?;
        }
        Ok(())
    }
}

/// A `compile_error!` that rustc shows under some tokens.
pub fn compile_error(at: Range, message: &str) -> TokenStream {
    // `syn::Error` spreads the two spans over its tokens, which is how stable Rust underlines a range.
    syn::Error::new_spanned(RangeTokens(at.start, at.end), message).to_compile_error()
}

/// Two tokens that carry the ends of a range.
struct RangeTokens(Span, Span);

impl ToTokens for RangeTokens {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        for span in [self.0, self.1] {
            tokens.extend([proc_macro2::TokenTree::Ident(proc_macro2::Ident::new("_x", span))]);
        }
    }
}

/// A fault as it was noted.
#[derive(Debug)]
struct Fault {
    message: String,
    at: Range,
    /// The calls that the checker was inside of, outermost first.
    calls: Vec<Range>,
    notes: Vec<(String, Range)>,
}

/// Collects diagnostics. Dropping it unread is a bug of the compiler and panics, so that no error is ever lost.
#[derive(Debug, Default)]
pub struct Errors {
    /// The texts that places are in.
    pub sources: SourceMap,
    list: Vec<Fault>,
    calls: Vec<Range>,
    read: bool,
}

impl Errors {
    /// An empty collector.
    pub fn new() -> Errors {
        Errors::default()
    }

    /// Notes a fault under the tokens of `at`.
    pub fn at(&mut self, at: impl ToTokens, message: impl Into<String>) {
        self.note(Range::of(at), message, Vec::new());
    }

    /// Notes a fault under one span.
    pub fn at_span(&mut self, span: Span, message: impl Into<String>) {
        self.note(span.into(), message, Vec::new());
    }

    /// Notes a fault with other places to look at.
    pub fn note(&mut self, at: Range, message: impl Into<String>, notes: Vec<(String, Range)>) {
        self.list.push(Fault {
            message: message.into(),
            at,
            calls: self.calls.clone(),
            notes,
        });
    }

    /// Notes a fault that the token parser found.
    pub fn syntax(&mut self, error: &syn::Error) {
        for e in error {
            self.at_span(e.span(), e.to_string());
        }
    }

    /// From here to [`Errors::leave_call`] faults are found in what a call does.
    pub fn enter_call(&mut self, call: Range) {
        self.calls.push(call);
    }

    /// The end of what the innermost call does.
    pub fn leave_call(&mut self) {
        self.calls.pop();
    }

    /// Takes the faults from number `first` on out of the list, as notes for another.
    pub fn take_from(&mut self, first: usize) -> Vec<(String, Range)> {
        let taken = self.list.split_off(first.min(self.list.len()));
        let notes = |f: Fault| std::iter::once((f.message, f.at)).chain(f.notes);
        taken.into_iter().flat_map(notes).collect()
    }

    /// Number of faults so far.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// True if there is no fault so far.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All faults in the order of the source text, each once.
    pub fn finish(self) -> Vec<Diagnostic> {
        self.finish_with_sources().0
    }

    /// The same, and the texts that the places are in.
    pub fn finish_with_sources(mut self) -> (Vec<Diagnostic>, SourceMap) {
        self.read = true;
        let faults = std::mem::take(&mut self.list);
        let mut list: Vec<Diagnostic> = faults.into_iter().map(|f| self.diagnostic(f)).collect();
        let key = |d: &Diagnostic| (d.anchor.line_column(), d.place.clone(), d.message.clone());
        list.sort_by_key(key);
        let mut seen = BTreeSet::new();
        list.retain(|d| seen.insert((d.place.clone(), d.message.clone())));
        (list, std::mem::take(&mut self.sources))
    }

    fn diagnostic(&self, fault: Fault) -> Diagnostic {
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
        let place = |(what, at): (String, Range)| (what, sources.place(at));
        Diagnostic {
            message: fault.message,
            start: fault.at.start,
            end: fault.at.end,
            place: sources.place(fault.at),
            origin,
            anchor,
            notes: fault.notes.into_iter().map(place).collect(),
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

/// The candidate nearest to `name`, if one is near enough to be a likely slip.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // One or two letters are near to everything of their length.
    let limit = match name.chars().count() {
        0..=2 => 0,
        n => (n / 3).max(1),
    };
    candidates
        .into_iter()
        .map(|c| (distance(name, c), c))
        .filter(|&(d, _)| d > 0 && d <= limit)
        .min_by_key(|&(d, c)| (d, c))
        .map(|(_, c)| c)
}

/// `` `a`, `b` or `c` ``.
pub fn one_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.into_iter().map(|n| format!("`{n}`")).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// `; did you mean `x`?` for the nearest candidate, else nothing.
pub fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, candidates).map_or_else(String::new, |c| format!("; did you mean `{c}`?"))
}

/// Edits (insert, delete, replace, swap of neighbours) between two short words.
pub fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, _) => j,
                (_, 0) => i,
                _ => {
                    let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                    if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                        best = best.min(rows[i - 2][j - 2] + 1);
                    }
                    best
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_slips_only() {
        let names = ["rms_norm", "rope", "n_head", "n_head_kv"];
        assert_eq!(nearest("rmsnorm", names), Some("rms_norm"));
        assert_eq!(nearest("reop", names), None);
        assert_eq!(nearest("rpoe", names), Some("rope"));
        assert_eq!(nearest("n_heads", names), Some("n_head"));
        assert_eq!(nearest("xyz", names), None);
    }

    #[test]
    #[should_panic(expected = "dropped without being reported")]
    fn unread_errors_panic() {
        let mut e = Errors::new();
        e.at_span(Span::call_site(), "lost");
        drop(e);
    }
}
