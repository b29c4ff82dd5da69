//! Compiler errors of invalid declarations: one error per file, located at its tokens.
//!
//! Expected output is stored next to each case. `TRYBUILD=overwrite cargo test -p llama-tests --test arch_ui`
//! rewrites it.

#[test]
fn invalid_declarations_give_compile_errors() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
