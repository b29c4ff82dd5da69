//! The `arch!` macro: a thin door to the compiler in `arch-lang`.

use proc_macro::TokenStream;

/// Declares a model architecture; see CONTRIBUTING.md for the language.
#[proc_macro]
pub fn arch(input: TokenStream) -> TokenStream {
    arch_lang::expand(input.into()).into()
}
