//! Inheritance with `like: "…";`: the merged declaration, and errors.

mod common;

use std::collections::BTreeMap;
use std::str::FromStr;

use arch_lang::{Directory, Library, Source};
use proc_macro2::TokenStream;

const BASE: &str = r#"
name: "base";
rope: neox;
hparams {
    eps: f32 = "attention.layer_norm_rms_epsilon";
    scale: f32 = "attention.scale" or 1.0;
    let twice = scale * 2.0; check eps > 0.0, "eps must be positive";
}
tensors {
    token_embd: embed "token_embd" [n_embd, n_vocab];
    output_norm: vector "output_norm" [n_embd];
    output: linear "output" [n_embd -> n_vocab] or token_embd;
    ignore "cls", "cls.output";
    layer {
        norm: vector "attn_norm" [n_embd];
        if n_expert == 0 {
            up: linear "ffn_up" [n_embd -> n_ff];
        }
        down: linear "ffn_down" [n_ff -> n_embd];
    }
}
graph {
    let x = token_embd[tokens];
    for layer {
        if n_expert == 0 {
            x += down(silu(up(rms_norm(x, norm, eps)))) * twice;
        }
    }
    output(rms_norm(x, output_norm, eps))
}
test { n_embd: 64, n_head: 2, n_layer: 2, n_ff: 96, n_vocab: 32 }
"#;

/// Graph that uses `up` unconditionally.
const PLAIN_GRAPH: &str = "graph {
    let x = token_embd[tokens];
    for layer { x += down(silu(up(rms_norm(x, norm, eps)))) * twice; }
    output(rms_norm(x, output_norm, eps))
}";

/// Graph without the output projection, the layer's norm, and the scale.
const BARE_GRAPH: &str = "graph {
    let x = token_embd[tokens];
    for layer { if n_expert == 0 { x += down(silu(up(rms_norm(x, a, eps)))); } }
    rms_norm(x, output_norm, eps)
}";

/// In-memory library: maps a name to the contents of its `arch!`.
struct Memory(BTreeMap<&'static str, String>);

impl Library for Memory {
    fn find(&self, name: &str) -> Option<Source> {
        let inner = self.0.get(name)?;
        Some(Source {
            file: format!("{name}.rs"),
            text: format!("//! About.\n\narch_macros::arch! {{ {inner} }}\n"),
        })
    }

    fn names(&self) -> Vec<String> {
        self.0.keys().map(ToString::to_string).collect()
    }

    fn fragment(&self, _: &str) -> Option<Source> {
        None
    }

    fn fragments(&self) -> Vec<String> {
        Vec::new()
    }

    fn files(&self) -> Box<dyn Iterator<Item = Source> + '_> {
        Box::new(self.names().into_iter().filter_map(|name| self.find(&name)))
    }
}

fn library() -> Memory {
    Memory(BTreeMap::from([
        ("base", BASE.to_string()),
        ("middle", "name: \"middle\"; like: \"base\"; rope: norm;".to_string()),
        ("circle", "name: \"circle\"; like: \"round\";".to_string()),
        ("round", "name: \"round\"; like: \"circle\";".to_string()),
        ("broken", "name: \"broken\"; graph { let x = ; }".to_string()),
        ("orphan", "name: \"orphan\"; like: \"nobody\";".to_string()),
    ]))
}

fn tokens(text: &str) -> TokenStream {
    TokenStream::from_str(text).unwrap()
}

/// Expands a child, without the lines that refer to source files.
fn expansion(text: &str) -> String {
    let items = arch_lang::expand_with(tokens(text), &library());
    let mut file: syn::File = syn::parse2(items).unwrap();
    file.items.retain(|item| !matches!(item, syn::Item::Const(_)));
    prettyplease::unparse(&file)
}

/// Returns each error as `tokens: message`.
fn faults(text: &str) -> Vec<String> {
    let list = match arch_lang::compile_with(tokens(text), &library()) {
        Ok(arch) => panic!("{} should be rejected", arch.name),
        Err(list) => list,
    };
    list.iter().map(common::shown).collect()
}

/// A child expands exactly like the merged declaration.
#[test]
fn child_expands_like_merged_declaration() {
    let graph = &BASE[BASE.find("graph {").unwrap()..BASE.find("test {").unwrap()];
    let cases: [(&str, &[(&str, &str)]); 10] = [
        (
            "hparams { without check \"eps must be positive\"; }",
            &[("check eps > 0.0, \"eps must be positive\";", "")],
        ),
        ("", &[]),
        ("rope: norm;", &[("rope: neox", "rope: norm")]),
        (
            "test { n_embd: 8, n_layer: 1, n_ff: 8, n_vocab: 8, n_head: 1 }",
            &[(
                "{ n_embd: 64, n_head: 2, n_layer: 2, n_ff: 96, n_vocab: 32 }",
                "{ n_embd: 8, n_layer: 1, n_ff: 8, n_vocab: 8, n_head: 1 }",
            )],
        ),
        (
            "tensors { output: linear \"output\" [n_embd -> n_vocab]; }",
            &[(" or token_embd", "")],
        ),
        // New items that precede a replaced one are inserted before it, so that it can refer to them. Other
        // items are appended.
        (
            "hparams { gain: f32 = \"gain\" or 3.0; let twice = scale * gain; scale: f32 = \"other\"; check n_ff > 1, \"wide\"; }",
            &[
                ("\"attention.scale\" or 1.0;", "\"other\";"),
                (
                    "let twice = scale * 2.0; check eps > 0.0, \"eps must be positive\";",
                    "gain: f32 = \"gain\" or 3.0; let twice = scale * gain; check eps > 0.0, \"eps must be positive\"; check n_ff > 1, \"wide\";",
                ),
            ],
        ),
        // Tests a tensor redeclared without the inherited condition.
        (
            &format!("tensors {{ layer {{ up: linear \"up\" [n_embd -> n_ff]; }} }} {PLAIN_GRAPH}"),
            &[
                (
                    "if n_expert == 0 {\n            up: linear \"ffn_up\" [n_embd -> n_ff];\n        }\n",
                    "",
                ),
                (
                    "down: linear \"ffn_down\" [n_ff -> n_embd];",
                    "down: linear \"ffn_down\" [n_ff -> n_embd]; up: linear \"up\" [n_embd -> n_ff];",
                ),
                (graph, PLAIN_GRAPH),
            ],
        ),
        // Tests a tensor moved from the layers to the model.
        (
            "tensors { norm: vector \"norm\" [n_embd]; }",
            &[
                ("norm: vector \"attn_norm\" [n_embd];", ""),
                ("ignore", "norm: vector \"norm\" [n_embd]; ignore"),
            ],
        ),
        // A child may declare a tensor that the parent ignores.
        (
            "tensors { output: linear \"cls\" [n_embd -> n_vocab]; }",
            &[
                (
                    "linear \"output\" [n_embd -> n_vocab] or token_embd",
                    "linear \"cls\" [n_embd -> n_vocab]",
                ),
                ("\"cls\", \"cls.output\"", "\"cls.output\""),
            ],
        ),
        (
            &format!(
                "hparams {{ without scale, twice; }} tensors {{ without output; layer {{ without norm; a: vector \"a\" [n_embd]; }} }} {BARE_GRAPH}"
            ),
            &[
                ("scale: f32 = \"attention.scale\" or 1.0;", ""),
                ("let twice = scale * 2.0;", ""),
                ("output: linear \"output\" [n_embd -> n_vocab] or token_embd;", ""),
                ("norm: vector \"attn_norm\" [n_embd];", ""),
                (
                    "down: linear \"ffn_down\" [n_ff -> n_embd];",
                    "down: linear \"ffn_down\" [n_ff -> n_embd]; a: vector \"a\" [n_embd];",
                ),
                (graph, BARE_GRAPH),
            ],
        ),
    ];
    for (i, (own, edits)) in cases.iter().enumerate() {
        let child = format!("name: \"base\"; like: \"base\"; {own}");
        let child = child.replace("name: \"base\"", "name: \"child\"");
        let mut whole = BASE.replace("name: \"base\"", "name: \"child\"");
        for (from, to) in *edits {
            assert_eq!(whole.matches(from).count(), 1, "case {i}: {from}");
            whole = whole.replace(from, to);
        }
        let (is, written_out) = (expansion(&child), expansion(&whole));
        // Generated code may differ only in the list of ancestors.
        assert!(is.contains("like: &[\"base\"]"), "case {i}: {is}");
        let is = is.replace("like: &[\"base\"]", "like: &[]");
        assert!(!written_out.contains("compile_error"), "case {i}: {written_out}");
        assert_eq!(is, written_out, "case {i}");
    }
}

#[test]
fn ancestors_are_known_and_tracked() {
    let text = "name: \"child\"; like: \"middle\";";
    let arch = arch_lang::compile_with(tokens(text), &library()).unwrap();
    let description = arch_lang::describe(&arch);
    assert_eq!(description.like, ["middle", "base"]);
    assert_eq!(description.tensors.len(), 6);
    assert_eq!(description.flow.len(), 11, "{:?}", description.flow);
    assert!(matches!(arch.rope, arch_lang::model::RopeKind::Norm));
    let items = arch_lang::expand_with(tokens(text), &library()).to_string();
    for file in ["/middle.rs", "/base.rs"] {
        let tracked =
            format!("include_str ! (:: core :: concat ! (:: core :: env ! (\"CARGO_MANIFEST_DIR\") , \"{file}\"))");
        assert_eq!(items.matches(&tracked).count(), 1, "{items}");
    }
}

#[test]
fn errors_in_parent_are_reported_at_like() {
    let child = |rest: &str| faults(&format!("name: \"child\"; {rest}"));
    for (rest, expected) in [
        (
            "like: \"bose\";",
            vec!["\"bose\": no architecture named `bose`; did you mean `base`?"],
        ),
        (
            "like: \"child\";",
            vec!["\"child\": cyclic inheritance: `child` is like `child`"],
        ),
        (
            "like: \"circle\";",
            vec![
                "\"circle\": round.rs:3:43: cyclic inheritance: `child` is like `circle` is like `round` is like `circle`",
            ],
        ),
        (
            "like: \"broken\";",
            vec!["\"broken\": broken.rs:3:54: expected an expression"],
        ),
        (
            "like: \"orphan\";",
            vec!["\"orphan\": orphan.rs:3:44: no architecture named `nobody`"],
        ),
        (
            "like: \"base\"; hparams { without scales; } tensors { layer { without nrm; } without x; }",
            vec![
                "scales: no inherited hyperparameter named `scales`; did you mean `scale`?",
                "nrm: no inherited tensor named `nrm`; did you mean `norm`?",
                "x: no inherited tensor named `x`",
            ],
        ),
        (
            "like: \"base\"; hparams { without check \"eps must be positiv\"; }",
            vec!["\"eps must be positiv\": no inherited check with this message; did you mean `eps must be positive`?"],
        ),
        (
            "hparams { without check \"eps must be positive\"; }",
            vec![
                "\"eps must be positive\": `without check` has no effect: the declaration inherits nothing; add `like: \"…\";`",
            ],
        ),
        (
            "like: \"base\"; hparams { without chekc \"eps must be positive\"; }",
            vec!["chekc: expected `check` before the message of a check"],
        ),
        (
            "hparams { without eps; } tensors { without output; }",
            vec![
                "eps: `without eps` has no effect: the declaration inherits nothing; add `like: \"…\";`",
                "output: `without output` has no effect: the declaration inherits nothing; add `like: \"…\";`",
            ],
        ),
        (
            "like: \"base\"; tensors { extra: vector \"extra\" [n_embd]; } hparams { without scale; }",
            vec![
                "\"base\": base.rs:9:17: no hyperparameter named `scale`",
                "extra: `extra` is never used",
            ],
        ),
        (
            "like: \"base\"; graph { let x = token_embd[tokens]; for layer { x += rms_norm(x, norm, eps) * twice; } x }",
            vec![
                "\"base\": base.rs:13:5: `output_norm` is never used",
                "\"base\": base.rs:14:5: `output` is never used",
                "\"base\": base.rs:19:13: `up` is never used",
                "\"base\": base.rs:21:9: `down` is never used",
            ],
        ),
        (
            "like: \"base\"; graph { let x = token_embd[tokens]; for layer { x += rms_norm(x, nrm, eps) * twice; } x }",
            vec!["nrm: no tensor named `nrm`; did you mean `norm`?"],
        ),
        (
            "like: \"base\"; tensors { output: linear \"a\" [n_embd -> n_vocab]; output: linear \"b\" [n_embd -> n_vocab]; }",
            vec!["output: `output` is already the name of a tensor"],
        ),
        (
            "like: \"base\"; tensors { layer { if n_expert == 0 { without norm; } } }",
            vec!["norm: `without` must be at the top level of `tensors` or `layer`, not under a condition"],
        ),
        (
            "like: base;",
            vec!["base: expected the name of another architecture, in quotes"],
        ),
        (
            "like: \"base\"; like: \"middle\";",
            vec!["like: duplicate section `like`"],
        ),
    ] {
        let found = child(rest);
        let same = found.iter().zip(&expected).all(|(f, e)| f.starts_with(e));
        assert!(same && found.len() == expected.len(), "{rest}: {found:#?}");
    }
}

#[test]
fn directory_library_finds_files_by_declared_name() {
    let dir = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
    write("a_b_c.rs", "arch! {\n    name: \"a-b.c\";\n}\n");
    write("other.rs", "arch! {\n    name: \"odd\";\n}\n");
    write("odd.rs", "arch! {\n    name: \"third\";\n}\n");
    write("notes.txt", "name: \"fourth\"");
    let folder = Directory(dir.path().to_owned());
    let file = |name: &str| folder.find(name).map(|s| s.file);
    assert_eq!(file("a-b.c").as_deref(), Some("a_b_c.rs"));
    assert_eq!(file("odd").as_deref(), Some("other.rs"));
    assert_eq!(file("third").as_deref(), Some("odd.rs"));
    assert_eq!([file("fourth"), file("a_b_c"), file("../a_b_c")], [None, None, None]);
    assert_eq!(folder.names(), ["a-b.c", "third", "odd"]);
    assert!(Directory(dir.path().join("no such")).names().is_empty());
}

/// An abstract parent is found by its file name, is checked without a child, and has no name.
#[test]
fn abstract_parent_serves_children_only() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("parents")).unwrap();
    let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
    let (_, sections) = BASE.split_once("rope: neox;").unwrap();
    write("parents/plain.rs", &format!("parent! {{{sections}}}"));
    write(
        "mine.rs",
        "arch! {\n    name: \"mine\"; like: \"plain\"; rope: norm;\n}\n",
    );
    let library = Directory(dir.path().to_owned());
    let file = |name: &str| library.find(name).map(|s| s.file);
    assert_eq!(file("plain").as_deref(), Some("parents/plain.rs"));
    assert_eq!([file("../mine"), file("parents/plain")], [None, None]);
    assert_eq!(library.names(), ["mine", "plain"]);

    let compile = |file: &str| {
        let text = std::fs::read_to_string(dir.path().join(file)).unwrap();
        arch_lang::compile_file(file, &text, &library)
    };
    assert!(compile("parents/plain.rs").unwrap().is_none());
    let arch = compile("mine.rs").unwrap().unwrap();
    let ancestors: Vec<_> = arch
        .ancestors
        .iter()
        .map(|a| (a.name.as_str(), a.file.as_str()))
        .collect();
    assert_eq!(ancestors, [("plain", "parents/plain.rs")]);

    let faults = |text: String| {
        write("parents/plain.rs", &text);
        let found = compile("parents/plain.rs").unwrap_err();
        found.iter().map(common::shown).collect::<Vec<_>>()
    };
    assert_eq!(
        faults(format!("parent! {{ name: \"plain\";{sections}}}")),
        ["\"plain\": a `parent!` has no `name:`; children refer to it by its file name"]
    );
    assert_eq!(
        faults(format!("parent! {{{}}}", sections.replace("silu(", "sil(")))[0],
        "sil: no operation or tensor named `sil`; did you mean `silu`?"
    );
    write("parents/plain.rs", "fn main() {}");
    let found = compile("mine.rs").unwrap_err();
    assert_eq!(
        found[0].message,
        "parents/plain.rs contains no `arch! { … }` or `parent! { … }`"
    );
}

/// A child inherits models and may replace or ignore them.
#[test]
fn models_are_inherited_by_name() {
    let parent = BASE
        .replace(
            "rope: neox;",
            "rope: neox; models { \"7B\": n_layer == 32; \"13B\": n_layer == 40; }",
        )
        .replace(
            "scale * 2.0",
            "if model_is(\"7B\") || model_is(\"13B\") { scale } else { 2.0 * scale }",
        );
    let library = Memory(BTreeMap::from([("base", parent)]));
    let models = |rest: &str| {
        let tokens = TokenStream::from_str(&format!("name: \"child\"; like: \"base\"; {rest}")).unwrap();
        let arch = arch_lang::compile_with(tokens, &library).unwrap();
        let texts = arch.models.iter().map(|(name, cond)| format!("{name}: {}", cond.text));
        texts.collect::<Vec<_>>()
    };
    assert_eq!(models(""), ["7B: n_layer == 32", "13B: n_layer == 40"]);
    let both = ["7B: n_layer < 36", "13B: n_layer == 40"];
    assert_eq!(models("models { \"7B\": n_layer < 36; }"), both);
    // An inherited model may be unused.
    assert_eq!(models("hparams { let twice = scale; }").len(), 2);
}
