//! The `arch!` macro: a thin door to the compiler in `arch-lang`, which never sees rustc's tokens.

mod door;

use std::path::PathBuf;

use proc_macro::{Span, TokenStream};

/// Declares a model architecture; see CONTRIBUTING.md for the language.
#[proc_macro]
pub fn arch(input: TokenStream) -> TokenStream {
    let library = arch_lang::Folder(folder());
    door::through(input, |tokens| arch_lang::expand_with(tokens, &library))
}

/// Where the other declarations are: beside the file of this one, or, where that is not known, in the folder of the crate.
fn folder() -> PathBuf {
    let file = Span::call_site().local_file();
    let beside = file.and_then(|file| file.parent().map(PathBuf::from));
    beside.unwrap_or_else(|| std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default().into())
}
