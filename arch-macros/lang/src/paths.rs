//! Where the expansion finds the engine: the only place that knows.

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote;

/// A type or function of the runtime, such as `::engine::arch::Builder`.
pub fn runtime(name: &str) -> TokenStream {
    let name = Ident::new(name, Span::call_site());
    quote!(::engine::arch::#name)
}
