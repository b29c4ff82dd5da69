//! Paths of the engine in the generated code. Only this module names the engine's crate.

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote;

/// Returns the path of a type or function of the engine, such as `::engine::arch::Builder`.
pub fn runtime(name: &str) -> TokenStream {
    runtime_at(name, Span::call_site())
}

/// Like [`runtime`], with the span of a name in the declaration.
pub fn runtime_at(name: &str, at: Span) -> TokenStream {
    let name = Ident::new(name, at);
    quote!(::engine::arch::#name)
}
