//! Named expressions and ranges of the facts of encoders.

use syn::parse::ParseStream;
use syn::{Expr, ExprRange, Ident, RangeLimits, Token};

/// Parses `name = expression`.
pub(super) fn named(input: ParseStream<'_>, name: &str) -> syn::Result<Expr> {
    let word: Ident = input.parse()?;
    if word != name {
        let message = format!("expected `{name} = …`, found `{word}`");
        return Err(syn::Error::new(word.span(), message));
    }
    input.parse::<Token![=]>()?;
    input.parse()
}

/// Returns both limits of a range.
pub(super) fn limits(range: Expr) -> syn::Result<(Expr, Expr)> {
    match range {
        Expr::Range(ExprRange {
            start: Some(min),
            limits: RangeLimits::HalfOpen(_),
            end: Some(max),
            ..
        }) => Ok((*min, *max)),
        other => Err(syn::Error::new_spanned(other, "expected a range, such as `4..1024`")),
    }
}
