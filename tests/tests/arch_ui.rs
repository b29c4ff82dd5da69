//! What rustc shows for faulty declarations: one fault a file, each under its own tokens.
//!
//! The expected texts lie beside the cases; `TRYBUILD=overwrite cargo test -p llama-tests --test arch_ui` writes them anew.

#[test]
fn faulty_declarations_do_not_compile_and_say_why() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
