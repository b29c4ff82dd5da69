//! The layout of declarations and fragments: `llama arch fmt`.
//!
//! As gofmt does, it keeps the line breaks and blank lines that an author chose and decides the rest: indentation, spaces, where blocks
//! open and close, the columns of tensors. A line that is still too long is broken behind a comma, or a block in it is opened. Comments
//! stay where they are. What stands around the macro and the Rust inside of `rust!(…)` are left as they are.
//!
//! Text becomes [`tokens`] with what stands between them, which [`layout`] prints; [`spacing`] says where a space stands.

mod layout;
mod spacing;
mod tokens;

use std::collections::BTreeSet;
use std::str::FromStr;

use proc_macro2::{Span, TokenStream};

use crate::diag::{Diagnostic, Errors};
use tokens::Tree;

/// Longest line, in characters, of what has a place to break at.
pub const MAX_WIDTH: usize = 140;

/// The text of a file, laid out anew; the faults of one that is not made of tokens or holds no `arch!` or `fragment!`.
///
/// The tokens stay the same, and what is laid out already stays as it is.
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
        let message = format!("{file} holds no `arch! {{ … }}` and no `fragment! {{ … }}`");
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
        // Where Rust holds a string of several lines.
        return Err(syn::Error::new(
            body.span_open(),
            "this cannot be laid out anew without changing it",
        ));
    }
    Ok(formatted)
}

/// Prints, and breaks the first line that is too long, until none is or can be.
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
