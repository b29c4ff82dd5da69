//! The macros `arch!` and `encoder!`: thin wrappers around the compiler in `arch-lang`, which never handles
//! rustc's tokens.

mod door;

use std::path::PathBuf;

use proc_macro::{Span, TokenStream};

/// Declares a model architecture; see docs/architecture-language.md.
#[proc_macro]
pub fn arch(input: TokenStream) -> TokenStream {
    let library = arch_lang::Directory(source_dir());
    door::through(input, |tokens| arch_lang::expand_with(tokens, &library))
}

/// Declares a media encoder; see docs/encoders.md.
#[proc_macro]
pub fn encoder(input: TokenStream) -> TokenStream {
    // Encoders are in a subdirectory of the architectures.
    let archs = source_dir().parent().map(PathBuf::from).unwrap_or_default();
    let library = arch_lang::EncoderDirectory(archs);
    door::through(input, |tokens| arch_lang::expand_encoder(tokens, &library))
}

/// Returns the directory of the file that contains the macro call, or the crate's directory if the file is
/// unknown.
fn source_dir() -> PathBuf {
    let file = Span::call_site().local_file();
    let beside = file.and_then(|file| file.parent().map(PathBuf::from));
    beside.unwrap_or_else(|| std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default().into())
}
