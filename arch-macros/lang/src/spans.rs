//! Maps tokens of other files to spans of the declaration, so that rustc and editors can locate them.

use proc_macro2::{Group, Span, TokenStream, TokenTree};

/// Replaces the span of each token by the result of `to`, if any.
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
