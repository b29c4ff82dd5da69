//! Where the expansion finds the engine: the only place that knows.

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote;

/// A type or function of the runtime, such as `::engine::arch::Builder`.
pub fn runtime(name: &str) -> TokenStream {
    runtime_at(name, Span::call_site())
}

/// The same, its name at a place of the declaration.
pub fn runtime_at(name: &str, at: Span) -> TokenStream {
    let name = Ident::new(name, at);
    quote!(::engine::arch::#name)
}
