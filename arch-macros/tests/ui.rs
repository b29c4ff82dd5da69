//! Compiler errors of invalid declarations: one error per file, located at its tokens.
//!
//! The expected output is stored next to each case. `TRYBUILD=overwrite cargo test -p llama-arch-macros --test ui`
//! rewrites it.
//!
//! These tests belong to the crate of the macro because `trybuild` builds all dependencies of their crate again.

#[test]
fn invalid_declarations_give_compile_errors() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
