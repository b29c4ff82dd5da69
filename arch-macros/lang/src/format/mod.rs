//! Formatter for declarations and fragments: `llama arch fmt`.
//!
//! Like gofmt, the formatter keeps the author's line breaks and blank lines. It sets the indentation, the
//! spacing, the layout of blocks, and the columns of tensor declarations. An overlong line is broken after a
//! comma, or a block in the line is expanded. Comments keep their positions. Code outside the macro and Rust
//! code inside `rust!(…)` are unchanged.
//!
//! The source is split into [`tokens`] with the gaps between them. [`layout`] prints the tokens; [`spacing`]
//! decides where spaces go.

mod layout;
mod spacing;
mod tokens;

use std::collections::BTreeSet;
use std::str::FromStr;

use proc_macro2::{Span, TokenStream};

use crate::diag::{Diagnostic, Errors};
use tokens::Tree;

/// Maximum line width in characters. Lines without a possible break may be longer.
pub const MAX_WIDTH: usize = 140;

/// Formats the text of a file. Fails if the file cannot be tokenized or contains no `arch!` or `fragment!`.
///
/// Formatting preserves all tokens and is idempotent.
pub fn format(file: &str, text: &str) -> Result<String, Vec<Diagnostic>> {
    let mut errors = Errors::new();
    let formatted = format_tokens(file, text, &mut errors);
    match formatted {
        Ok(text) => {
            errors.finish();
            Ok(text)
        }
        Err(e) => {
            errors.syntax(&e);
            Err(errors.finish())
        }
    }
}

fn format_tokens(file: &str, text: &str, errors: &mut Errors) -> syn::Result<String> {
    let tokens = errors.sources.parse_own(file, text)?;
    let body = tokens::macro_body(tokens.clone()).ok_or_else(|| {
        let message = format!("{file} contains no `arch! {{ … }}`, `fragment! {{ … }}`, or `parent! {{ … }}`");
        syn::Error::new(Span::call_site(), message)
    })?;
    let (trees, end) = tokens::read(text, &body);
    let inside = body.span_open().byte_range().end..body.span_close().byte_range().start;
    let (before, behind) = (&text[..inside.start], text[inside.end..].trim_end());
    let formatted = format!("{before}{}{behind}\n", print(&trees, &end));
    let words = |tokens| {
        let mut list = Vec::new();
        tokens::words(tokens, &mut list);
        list
    };
    if words(tokens) != words(TokenStream::from_str(&formatted)?) {
        // This occurs if the Rust code contains a multi-line string.
        return Err(syn::Error::new(
            body.span_open(),
            "cannot format this code without changing its tokens",
        ));
    }
    Ok(formatted)
}

/// Prints the tokens and breaks the first overlong line, until no line is overlong or breakable.
fn print(trees: &[Tree], end: &tokens::Gap) -> String {
    let mut breaks = BTreeSet::new();
    loop {
        let printed = layout::print(trees, end, &breaks);
        match printed.place_to_break() {
            Some(place) if breaks.insert(place) => {}
            _ => return printed.text,
        }
    }
}
