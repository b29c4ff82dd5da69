//! Settings of encoders, each given at most once, and their values: named expressions and ranges.

use syn::parse::{Parse, ParseStream};
use syn::{Expr, ExprRange, Ident, RangeLimits, Token};

use super::line;
use crate::diag::did_you_mean;

/// Parses `: content ;` after the name of a setting into an empty slot.
pub(super) fn set<T>(
    slot: &mut Option<T>,
    name: &Ident,
    input: ParseStream<'_>,
    content: impl FnOnce(ParseStream<'_>) -> syn::Result<T>,
) -> syn::Result<()> {
    if slot.is_some() {
        return Err(syn::Error::new(name.span(), format!("`{name}` is given twice")));
    }
    *slot = Some(line(input, content)?);
    Ok(())
}

/// Returns the error for an unknown setting.
pub(super) fn unknown<T>(name: &Ident, settings: &[&str]) -> syn::Result<T> {
    let hint = did_you_mean(&name.to_string(), settings.iter().copied());
    let message = format!("expected `{}`, found `{name}`{hint}", settings.join("`, `"));
    Err(syn::Error::new(name.span(), message))
}

/// Parses `name = expression`.
pub(super) fn named<T: Parse>(input: ParseStream<'_>, name: &str) -> syn::Result<T> {
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
