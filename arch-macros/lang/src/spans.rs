//! Tokens of other files at places of the declaration, where rustc and editors find them.

use proc_macro2::{Group, Span, TokenStream, TokenTree};

/// The tokens, each at the place that `to` gives for its own, if it gives any.
pub fn moved(tokens: TokenStream, to: &dyn Fn(Span) -> Option<Span>) -> TokenStream {
    let token = |token: TokenTree| {
        let place = to(token.span());
        let mut token = match token {
            TokenTree::Group(g) => {
                let mut group = Group::new(g.delimiter(), moved(g.stream(), to));
                group.set_span(g.span());
                group.into()
            }
            other => other,
        };
        if let Some(place) = place {
            token.set_span(place);
        }
        token
    };
    tokens.into_iter().map(token).collect()
}
