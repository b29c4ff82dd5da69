//! Slips that have a meaning: each is found, and is accepted where the declaration says that it is meant.

mod common;

use std::str::FromStr;

use proc_macro2::TokenStream;

/// Two blocks of a layer; `HEAD` and `GRAPH` are put in.
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
fn layers_add_to_what_they_are_given() {
    let found = |graph: &str| faults("", ROTATED, graph);
    let message =
        "layer: these layers add nothing to what they are given: `x += …` (if that is meant: `allow: no_residual;`)";
    let none = Vec::<String>::new();
    assert_eq!(found(ADDED), none);
    // Norms behind the sum, and sums of what was named before.
    assert_eq!(
        found("let y = x * 2.0; x = rms_norm(wo(attention(q, k, k)) + y, eps); x = down(silu(up(x)));"),
        none
    );
    assert_eq!(found("x = wo(attention(q, k, k)); x = down(silu(up(x)));"), [message]);
    // A sum of two blocks, neither of which holds what the layer is given.
    let parallel = "x = wo(attention(q, k, k)) + down(silu(up(h)));";
    assert_eq!(found(parallel), [message]);
    assert_eq!(faults("allow: no_residual;", ROTATED, parallel), none);
    let unneeded = faults("allow: no_residual;", ROTATED, ADDED);
    assert_eq!(unneeded, ["no_residual: there is nothing to allow"]);
}

#[test]
fn queries_and_keys_rotate_together() {
    let none = Vec::<String>::new();
    let half = "let q = rms_norm(rope(heads(wq(h), n_head)), eps); let k = heads(wk(h), n_head);";
    let found = faults("", half, ADDED);
    let message = "attention: the queries of `attention` have rotary positions, its keys have none (if that is meant: `allow: half_rotated;`)";
    assert_eq!(found, [message]);
    assert_eq!(faults("allow: half_rotated;", half, ADDED), none);
    // Through functions, branches and assignments.
    let rotated = "fn rotated(x, yes) { if yes { rope(x) } else { x } }";
    let same = "let q = heads(wq(h), n_head); let k = rotated(heads(wk(h), n_head), n_layer > 1); if n_layer > 1 { q = rope(q); }";
    assert_eq!(faults(rotated, same, ADDED), none);
    let keys = "let q = heads(wq(h), n_head); let k = rotated(heads(wk(h), n_head), n_layer > 1);";
    let found = faults(rotated, keys, ADDED);
    assert!(
        found[0].contains("the keys of `attention` have rotary positions, its queries have none"),
        "{found:?}"
    );
}

#[test]
fn names_of_lints_are_told() {
    let found = faults("allow: half_rotatd;", ROTATED, ADDED);
    assert_eq!(
        found,
        [
            "half_rotatd: expected `half_rotated`, `no_residual` or `unknown_tensor`, found `half_rotatd`; did you mean `half_rotated`?"
        ]
    );
    assert!(arch_lang::lint::LINTS.iter().all(|l| !l.doc.is_empty()));
}

/// Two files beside the declaration.
struct Beside;

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
        let other = "//! Another.\narch! {\n name: \"other\";\n token_embd: embed [n];\n output?, wq, wk, wo: linear [n];\n attn_norm: vector [n];\n ignore \"up\", \"down\"; }";
        let texts = [own, other.to_owned()].into_iter();
        Box::new(texts.map(|text| arch_lang::Source {
            file: String::new(),
            text,
        }))
    }
}

#[test]
fn names_of_tensors_are_those_of_other_files() {
    let text = BASE.replace("let (q, k) = HEADS;", ROTATED).replace("GRAPH", ADDED);
    let found = |text: String| -> Vec<String> {
        let compiled = arch_lang::compile_with(TokenStream::from_str(&text).unwrap(), &Beside);
        compiled.err().unwrap_or_default().iter().map(common::shown).collect()
    };
    let none = Vec::<String>::new();
    assert_eq!(found(text.replace("HEAD\n", "\n")), none);
    let slip = text.replace("attn_norm", "atn_norm");
    // The declaration's own file, which has the same slip, does not count.
    assert_eq!(
        found(slip.replace("HEAD\n", "\n")),
        [
            "atn_norm: no other architecture has a tensor \"atn_norm\"; did you mean \"attn_norm\"? (if that is meant: `allow: unknown_tensor;`)"
        ]
    );
    assert_eq!(found(slip.replace("HEAD\n", "allow: unknown_tensor;\n")), none);
    // A name that is like no other is a new one.
    assert_eq!(
        found(text.replace("attn_norm", "pre_mixer_norm").replace("HEAD\n", "\n")),
        none
    );
}
