//! Diagnostics: collected, never thrown, so that one expansion reports every fault under its own token.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;

/// One fault: what was expected and found, and the tokens it stands under.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// The sentence shown to the author of the declaration.
    pub message: String,
    /// First token of the offending text.
    pub start: Span,
    /// Last token of the offending text.
    pub end: Span,
}

impl Diagnostic {
    /// A diagnostic under everything from the first to the last token of `at`.
    pub fn new(at: impl ToTokens, message: impl Into<String>) -> Diagnostic {
        let mut tokens = at.to_token_stream().into_iter();
        let start = tokens.next().map_or_else(Span::call_site, |t| t.span());
        let end = tokens.last().map_or(start, |t| t.span());
        Diagnostic {
            message: message.into(),
            start,
            end,
        }
    }

    /// `line:column` of the first character, both counted from 1.
    pub fn line_column(&self) -> (usize, usize) {
        let at = self.start.start();
        (at.line, at.column + 1)
    }

    /// A `compile_error!` that rustc shows under the tokens.
    pub fn to_compile_error(&self) -> TokenStream {
        // `syn::Error` spreads the two spans over its tokens, which is how stable Rust underlines a range.
        syn::Error::new_spanned(RangeTokens(self.start, self.end), &self.message).to_compile_error()
    }
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

/// Collects diagnostics. Dropping it unread is a bug of the compiler and panics, so that no error is ever lost.
#[derive(Debug, Default)]
pub struct Errors {
    list: Vec<Diagnostic>,
    read: bool,
}

impl Errors {
    /// An empty collector.
    pub fn new() -> Errors {
        Errors::default()
    }

    /// Notes a fault under the tokens of `at`.
    pub fn at(&mut self, at: impl ToTokens, message: impl Into<String>) {
        self.list.push(Diagnostic::new(at, message));
    }

    /// Notes a fault under one span.
    pub fn at_span(&mut self, span: Span, message: impl Into<String>) {
        self.list.push(Diagnostic {
            message: message.into(),
            start: span,
            end: span,
        });
    }

    /// Notes a fault that the token parser found.
    pub fn syntax(&mut self, error: &syn::Error) {
        for e in error {
            self.at_span(e.span(), e.to_string());
        }
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
    pub fn finish(mut self) -> Vec<Diagnostic> {
        self.read = true;
        let mut list = std::mem::take(&mut self.list);
        list.sort_by_key(|d| (d.line_column(), d.message.clone()));
        list.dedup_by(|a, b| a.message == b.message && a.line_column() == b.line_column());
        list
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

/// `; did you mean `x`?` for the nearest candidate, else nothing.
pub fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, candidates).map_or_else(String::new, |c| format!("; did you mean `{c}`?"))
}

/// Edits (insert, delete, replace, swap of neighbours) between two short words.
fn distance(a: &str, b: &str) -> usize {
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
