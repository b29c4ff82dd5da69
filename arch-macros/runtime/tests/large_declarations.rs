//! Declarations at the limit of their size. Their time must not grow with its square.

use std::time::{Duration, Instant};

use arch_runtime::declare;
use arch_runtime::library::BuiltIn;
use arch_runtime::limits::{MAX_TOKENS, check};

/// Maximum time of a compilation. In release mode, each takes less than a second of CPU time.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Returns a declaration with additional statements and functions.
fn declaration(statements: &str, functions: &str) -> String {
    format!(
        "arch_macros::arch! {{\nname: \"a\";\nlike: \"decoder\";\nrope: norm;\ngraph {{\n\
         let x = token_embd[tokens];\nfor layer {{\n{statements}x += attend(rms_norm(x, attn_norm));\n\
         x += ffn(rms_norm(x, ffn_norm));\n}}\noutput(rms_norm(x, output_norm))\n}}\n{functions}}}\n"
    )
}

/// Repeats a statement and a function nearly as often as the limit of tokens allows, and returns the message for the
/// declaration.
fn compiled(statement: &dyn Fn(usize) -> String, function: &dyn Fn(usize) -> String) -> String {
    let text_of = |n: usize| {
        let statements: String = (0..n).map(statement).collect();
        let functions: String = (0..n).map(function).collect();
        declaration(&statements, &functions)
    };
    let mut n = 1;
    while check(&text_of(n + n / 4 + 1)).is_ok() {
        n += n / 4 + 1;
    }
    // The tokens of the parent and of its fragments also count.
    let text = text_of(n - n / 10);
    let start = Instant::now();
    let error = declare("a.rs", &text, &BuiltIn).err().map(|e| e.to_string());
    let elapsed = start.elapsed();
    assert!(elapsed < TIME_MAX, "{elapsed:?} for {n} repetitions: {text:.1000}");
    let error = error.unwrap_or_default();
    assert!(!error.contains(&format!("more than {MAX_TOKENS}")), "{error:.500}");
    error
}

#[test]
fn many_functions_compile_in_time() {
    let function = |i: usize| format!("fn f{i}(x) {{ x }}\n");
    let call = |i: usize| format!("x = f{i}(x);\n");
    assert_eq!(compiled(&call, &function), "");
}

#[test]
fn chains_of_forwarded_options_are_rejected_in_time() {
    let forwarding = |i: usize| match i {
        0 => "fn f0(x, o = 1.0) { x * o }\n".to_owned(),
        i => format!("fn f{i}(x, ..) {{ f{}(f{}(x, ..), ..) }}\n", i - 1, i / 2),
    };
    let first = |i: usize| {
        if i == 0 {
            "x = f40(x, o = 2.0);\n".to_owned()
        } else {
            String::new()
        }
    };
    let error = compiled(&first, &forwarding);
    assert!(error.contains("expand to more than 60000 tokens"), "{error:.500}");
}
