//! Lints: each finding is reported as an error.

mod common;

use std::str::FromStr;

use proc_macro2::TokenStream;

/// Declaration whose layers have two blocks. `HEAD` and `GRAPH` are placeholders.
const BASE: &str = r#"
name: "base";
rope: neox;
HEAD
hparams { eps: f32 = "attention.layer_norm_rms_epsilon"; }
tensors {
    token_embd: embed [n_embd, n_vocab];
    output: linear [n_embd -> n_vocab] or token_embd;
    layer {
        attn_norm: vector [n_embd];
        wq, wk: linear [n_embd -> n_head * head_dim];
        wo: linear [n_head * head_dim -> n_embd];
        up, down: linear [n_embd -> n_embd];
    }
}
graph {
    let x = token_embd[tokens];
    for layer {
        let h = rms_norm(x, attn_norm, eps);
        let (q, k) = HEADS;
        GRAPH
    }
    output(x)
}
test { n_embd: 64, n_head: 2, n_layer: 2, n_ff: 96, n_vocab: 32 }
"#;

const ADDED: &str = "x += wo(attention(q, k, k)); x += down(silu(up(x)));";
const ROTATED: &str = "let q = rope(heads(wq(h), n_head)); let k = rope(heads(wk(h), n_head));";

fn faults(head: &str, heads: &str, graph: &str) -> Vec<String> {
    let text = BASE
        .replace("HEAD\n", &format!("{head}\n"))
        .replace("let (q, k) = HEADS;", heads)
        .replace("GRAPH", graph);
    let compiled = arch_lang::compile(TokenStream::from_str(&text).unwrap());
    compiled.err().unwrap_or_default().iter().map(common::shown).collect()
}

#[test]
fn layers_without_residual_are_reported() {
    let found = |graph: &str| faults("", ROTATED, graph);
    let message = "layer: these layers never add to their input; expected `x += …`";
    let none = Vec::<String>::new();
    assert_eq!(found(ADDED), none);
    // Norms after the sum, and sums of named values.
    assert_eq!(
        found("let y = x * 2.0; x = rms_norm(wo(attention(q, k, k)) + y, eps); x = down(silu(up(x)));"),
        none
    );
    assert_eq!(found("x = wo(attention(q, k, k)); x = down(silu(up(x)));"), [message]);
    // A sum of two blocks that does not include the layer's input.
    let parallel = "x = wo(attention(q, k, k)) + down(silu(up(h)));";
    assert_eq!(found(parallel), [message]);
}

#[test]
fn half_rotated_attention_is_reported() {
    let none = Vec::<String>::new();
    let half = "let q = rms_norm(rope(heads(wq(h), n_head)), eps); let k = heads(wk(h), n_head);";
    let found = faults("", half, ADDED);
    let message = "attention: `attention` rotates its queries but not its keys";
    assert_eq!(found, [message]);
    // Tests rotation through functions, branches, and assignments.
    let rotated = "fn rotated(x, yes) { if yes { rope(x) } else { x } }";
    let same = "let q = heads(wq(h), n_head); let k = rotated(heads(wk(h), n_head), n_layer > 1); if n_layer > 1 { q = rope(q); }";
    assert_eq!(faults(rotated, same, ADDED), none);
    let keys = "let q = heads(wq(h), n_head); let k = rotated(heads(wk(h), n_head), n_layer > 1);";
    let found = faults(rotated, keys, ADDED);
    assert!(
        found[0].contains("`attention` rotates its keys but not its queries"),
        "{found:?}"
    );
}

/// Library with two files next to the declaration.
struct Beside;

/// Contents of the second file.
const OTHER: &str = "//! Another.\narch! {\n name: \"other\";\n n_x: usize = \"attention.window_length\" or 0;\n token_embd: embed [n];\n output?, wq, wk, wo: linear [n];\n attn_norm: vector [n];\n ignore \"up\", \"down\"; }";

impl arch_lang::Library for Beside {
    fn find(&self, _: &str) -> Option<arch_lang::Source> {
        None
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn fragment(&self, _: &str) -> Option<arch_lang::Source> {
        None
    }

    fn fragments(&self) -> Vec<String> {
        Vec::new()
    }

    fn files(&self) -> Box<dyn Iterator<Item = arch_lang::Source> + '_> {
        let own = BASE.replace("attn_norm", "atn_norm");
        let other = OTHER;
        let texts = [own, other.to_owned()].into_iter();
        Box::new(
            texts
                .zip(["base.rs", "other.rs"])
                .map(|(text, file)| arch_lang::Source {
                    file: file.to_owned(),
                    text,
                }),
        )
    }
}

#[test]
fn unknown_tensor_names_are_reported() {
    let text = BASE.replace("let (q, k) = HEADS;", ROTATED).replace("GRAPH", ADDED);
    let found = |text: String| -> Vec<String> {
        let compiled = arch_lang::compile_with(TokenStream::from_str(&text).unwrap(), &Beside);
        compiled.err().unwrap_or_default().iter().map(common::shown).collect()
    };
    let none = Vec::<String>::new();
    assert_eq!(found(text.replace("HEAD\n", "\n")), none);
    let slip = text.replace("attn_norm", "atn_norm");
    // The declaration's own file, which has the same typo, is not counted.
    assert_eq!(
        found(slip.replace("HEAD\n", "\n")),
        ["atn_norm: no other architecture has a tensor \"atn_norm\"; did you mean \"attn_norm\"?"]
    );
    // A name that resembles no known name is accepted as new.
    assert_eq!(
        found(text.replace("attn_norm", "pre_mixer_norm").replace("HEAD\n", "\n")),
        none
    );
}

#[test]
fn misspelled_keys_are_reported() {
    let text = BASE.replace("let (q, k) = HEADS;", ROTATED).replace("GRAPH", ADDED);
    let found = |key: &str| -> Vec<String> {
        let hparams = format!("eps: f32 = \"attention.layer_norm_rms_epsilon\"; n_own: usize = \"{key}\" or 2;");
        let text = text
            .replace("HEAD\n", "\n")
            .replace("eps: f32 = \"attention.layer_norm_rms_epsilon\";", &hparams)
            .replace(
                "x += wo(attention(q, k, k));",
                "x += wo(attention(q, k, k)) * (1.0 * n_own);",
            );
        let compiled = arch_lang::compile_with(TokenStream::from_str(&text).unwrap(), &Beside);
        compiled.err().unwrap_or_default().iter().map(common::shown).collect()
    };
    let none = Vec::<String>::new();
    assert_eq!(found("attention.window_length"), none);
    assert_eq!(found("mixer.rank"), none, "a name that resembles no known key is new");
    assert_eq!(
        found("attention.windw_length"),
        [
            "n_own: no other architecture reads the key \"attention.windw_length\"; did you mean \"attention.window_length\"?"
        ]
    );
    // Keys of built-in symbols are also known.
    assert_eq!(
        found("attention.haed_count"),
        ["n_own: no other architecture reads the key \"attention.haed_count\"; did you mean \"attention.head_count\"?"]
    );
}

#[test]
fn name_of_another_file_is_reported() {
    let text = BASE.replace("let (q, k) = HEADS;", ROTATED).replace("GRAPH", ADDED);
    let text = text
        .replace("HEAD\n", "\n")
        .replace("name: \"base\"", "name: \"other\"");
    // The file under test is `other.rs` or a third file; `base.rs` has the first name.
    let compiled = arch_lang::compile_with(TokenStream::from_str(&text).unwrap(), &Twice);
    let found: Vec<String> = compiled.err().unwrap_or_default().iter().map(common::shown).collect();
    assert_eq!(
        found,
        ["\"other\": the name \"other\" is declared in `a.rs` and `b.rs`; names must be unique"]
    );
}

/// Library of two files that declare the same name.
struct Twice;

impl arch_lang::Library for Twice {
    fn find(&self, _: &str) -> Option<arch_lang::Source> {
        None
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn fragment(&self, _: &str) -> Option<arch_lang::Source> {
        None
    }

    fn fragments(&self) -> Vec<String> {
        Vec::new()
    }

    fn files(&self) -> Box<dyn Iterator<Item = arch_lang::Source> + '_> {
        // A library may list a file twice.
        Box::new(["a.rs", "b.rs", "a.rs"].into_iter().map(|file| arch_lang::Source {
            file: file.to_owned(),
            text: OTHER.to_owned(),
        }))
    }
}

#[test]
fn unclosed_brace_is_reported_where_it_opens() {
    let text = "//! About.\n\narch! {\n    name: \"x\";\n\n    tensors {\n        layer {\n            a: vector [n_embd];\n    }\n\n    graph {\n    }\n}\n";
    let found = arch_lang::check_file("archs/x.rs", text, &());
    let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(shown.len(), 1, "{shown:?}");
    assert!(
        shown[0].starts_with("archs/x.rs:7:15: this `{` is never closed"),
        "{shown:?}"
    );
}
