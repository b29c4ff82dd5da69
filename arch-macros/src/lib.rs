//! The `arch!` macro: a thin door to the compiler in `arch-lang`.

use proc_macro::TokenStream;

/// Declares a model architecture; see CONTRIBUTING.md for the language.
#[proc_macro]
pub fn arch(input: TokenStream) -> TokenStream {
    // Cargo sets it to the folder of the crate being compiled, where the other declarations are.
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    arch_lang::expand_with(input.into(), &arch_lang::Folder(folder.into())).into()
}
