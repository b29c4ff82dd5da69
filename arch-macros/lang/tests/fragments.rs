//! Fragments and functions: their expansion, and the errors reported for them.

mod common;

use std::collections::BTreeMap;
use std::str::FromStr;

use arch_lang::{Library, Source};
use proc_macro2::TokenStream;

const BASE: &str = r#"
name: "base";
rope: neox;
hparams { eps: f32 = "attention.layer_norm_rms_epsilon"; n_ff_exp: usize = "expert_feed_forward_length" or 8; cap: f32 = "cap" or 1.0; check n_ff_exp > 0, "wide"; }
tensors {
    token_embd: embed [n_embd, n_vocab];
    output_norm: vector [n_embd];
    output: linear [n_embd -> n_vocab];
    layer {
        TENSORS
        attn_norm, ffn_norm: vector [n_embd];
    }
}
graph {
    let x = token_embd[tokens];
    for layer {
        let h = rms_norm(x, attn_norm, eps);
        let y = rms_norm(x, ffn_norm, cap);
        GRAPH
    }
    output(rms_norm(x, output_norm, eps))
}
FUNCTIONS
test { n_embd: 64, n_head: 2, n_layer: 2, n_ff: 96, n_vocab: 32 }
"#;

const WRITTEN_OUT: &str = "gate, up: linear \"ffn_gate\", \"ffn_up\" [n_embd -> n_ff_exp * 2]; down: linear \"ffn_down\" [n_ff_exp * 2 -> n_embd];";

/// Functions whose parameters declare shapes.
const SHAPED: &str = "options(width = n_embd); fn once(x: [n_embd, T]) { x } fn narrow(x: [width, T]) { x }
    fn first(x: [n, T], n = width) { x } fn any(x: [_, T]) { x }";

/// Fragment with its own layers.
const GROUP: &str = "tensors { layer side \"side\" 2 { w: linear \"w\" [n_embd -> n_embd]; } }
    fn through(x: [n_embd, T]) { let y = x; for side { y += w(y); } y }";

struct Memory(BTreeMap<&'static str, &'static str>);

impl Library for Memory {
    fn find(&self, name: &str) -> Option<Source> {
        let text = format!("arch! {{ {} }}", self.0.get(name)?);
        let file = format!("{name}.rs");
        Some(Source { file, text })
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn fragment(&self, name: &str) -> Option<Source> {
        let text = format!("//! About.\nfragment! {{ {} }}", self.0.get(name)?);
        let file = format!("fragments/{name}.rs");
        Some(Source { file, text })
    }

    fn fragments(&self) -> Vec<String> {
        self.0.keys().map(ToString::to_string).collect()
    }

    fn files(&self) -> Box<dyn Iterator<Item = Source> + '_> {
        Box::new(self.fragments().into_iter().filter_map(|name| self.fragment(&name)))
    }
}

fn library() -> Memory {
    Memory(BTreeMap::from([
        (
            "ffn",
            r#"options(width = n_ff); tensors {
                gate, up: linear "ffn_gate", "ffn_up" [n_embd -> width];
                down: linear "ffn_down" [width -> n_embd];
            }
            fn ffn(x, act = silu, lo = 0.0, hi?) {
                let h = act(gate(x)) * up(x);
                down(clamp(h, lo, hi))
            }"#,
        ),
        (
            "plain",
            "tensors { w: linear \"w\" [n_embd -> n_embd]; } fn twice(x) { w(once(x)) } fn once(x) { w(x) }",
        ),
        (
            "normed",
            "fn normed(x, weight?) { rms_norm(x, eps) + rms_norm(x, weight, eps = 1) }",
        ),
        ("shaped", SHAPED),
        ("broken", "tensor { }"),
        (
            "unknown_size",
            "tensors { w: linear \"w\" [n_embd -> n_wide]; } fn once(x) { w(x) }",
        ),
        (
            "misspelt",
            "tensors { w: linear \"w\" [n_embd -> n_embd]; } fn wrong(x) { silu(w(x)) + vw(x) }",
        ),
        ("circle", "fn circle(x) { circle(x) }"),
        (
            "wide",
            r#"hparams { n_wide: usize = "wide" or 4; }
            tensors { if n_wide > 1 { use ffn(width = n_wide), plain; override up: vector "ffn_gain" [n_wide]; } }
            fn once(x) { ffn(x, act = gelu, hi = 1.0) }
            fn ffn(x, act = silu, hi?) { down(act(clamp(gate(x), 0.0, hi)) * up) }"#,
        ),
        ("hen", "tensors { use egg; }"),
        ("egg", "tensors { use hen; }"),
        ("nest", "tensors { use unknown_size; } fn nested(x) { once(x) }"),
        ("parent", ""),
        ("group", GROUP),
        (
            "window",
            r#"options(length?, kind = pattern, period?); hparams {
                n_swa: usize = "swa" or length;
                swa: kind = "swa_pattern" or period;
                let unused = n_swa + 1;
            }"#,
        ),
        (
            "needy",
            "options(n = 2); needs(cap: f32, attn_norm: vector [n_embd], side: linear [n_embd -> n * n_embd], act(x, y));
            fn needy(x) { act(x, side(x)[..n_embd]) * cap }",
        ),
        (
            "attention",
            r#"tensors { w: linear "w" [n_embd -> n_head * head_dim]; wo: linear "wo" [n_head * head_dim -> n_embd]; }
            fn attend(x, ..) { wo(inner(x, gain = 2.0, ..)) }
            fn inner(x, rotated = true, gain = 1.0, rope_scale?, ..) {
                let q = heads(w(x), n_head);
                if rotated { q = rope(q, scale = rope_scale, ..); }
                let y = attention(q, q, q, ..);
                if rotated { y * gain } else { y }
            }"#,
        ),
    ]))
}

fn source(tensors: &str, graph: &str, functions: &str) -> String {
    BASE.replace("TENSORS", tensors)
        .replace("GRAPH", graph)
        .replace("FUNCTIONS", functions)
}

fn tokens(text: &str) -> TokenStream {
    TokenStream::from_str(text).unwrap()
}

fn description(text: &str) -> arch_lang::Description {
    match arch_lang::compile_with(tokens(text), &library()) {
        Ok(arch) => arch_lang::describe(&arch),
        Err(list) => panic!("{text}: {list:?}"),
    }
}

fn faults(text: &str) -> Vec<String> {
    let list = match arch_lang::compile_with(tokens(text), &library()) {
        Ok(arch) => panic!("{} should be rejected: {text}", arch.name),
        Err(list) => list,
    };
    list.iter().map(common::shown).collect()
}

/// A call is equivalent to the inlined body.
#[test]
fn fragments_equal_inlined_code() {
    let used = description(&source(
        "use ffn(width = n_ff_exp * 2);",
        "x += ffn(h, act = gelu, hi = cap * 2.0) + y;",
        "",
    ));
    let whole = description(&source(
        WRITTEN_OUT,
        "x += down(clamp(gelu(gate(h)) * up(h), 0.0, cap * 2.0)) + y;",
        "",
    ));
    assert_eq!(used.tensors, whole.tensors);
    // The function binds its value `h`; the inlined version leaves the value unnamed.
    let labels = |d: &arch_lang::Description| {
        let bare = |l: &str| l.split(" = ").last().unwrap_or_default().to_string();
        d.flow
            .iter()
            .map(|n| (bare(&n.label), n.shape.clone(), n.inputs.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(labels(&used), labels(&whole));
}

#[test]
fn function_arguments_do_not_capture_names() {
    // The function's `y` is the caller's `h`, and the reverse.
    let swapped = "x += mix(h, y); ";
    let own = "fn mix(y, h) { let x = y - h; x }";
    let text = source("", swapped, own);
    description(&text);
    let items = arch_lang::expand_with(tokens(&text), &library()).to_string();
    assert!(items.contains("let (y , h ,) = (h , y ,)"), "{items}");
}

/// Returns the description's layer tensors with shapes and conditions.
fn layer_table(d: &arch_lang::Description) -> Vec<String> {
    let of_layer = |row: &&[String; 5]| row[1].starts_with("blk.");
    let row = |[field, gguf, _, shape, when]: &[String; 5]| format!("{field} {gguf} {shape} {when}").trim().to_owned();
    d.tensors.iter().filter(of_layer).map(row).collect()
}

/// A fragment provides the items of the fragments that it uses, except those that it overrides.
#[test]
fn fragments_may_use_fragments() {
    let used = description(&source("use wide;", "if n_wide > 1 { x += twice(h) + y; }", ""));
    let expected = [
        "gate blk.N.ffn_gate [n_embd -> n_wide] if n_wide > 1",
        "up blk.N.ffn_gain [n_wide] if n_wide > 1",
        "down blk.N.ffn_down [n_wide -> n_embd] if n_wide > 1",
        "w blk.N.w [n_embd -> n_embd] if n_wide > 1",
        "attn_norm blk.N.attn_norm [n_embd]",
        "ffn_norm blk.N.ffn_norm [n_embd]",
    ];
    assert_eq!(layer_table(&used), expected);
    let operations: Vec<&str> = used.flow.iter().map(|n| n.label.as_str()).collect();
    assert!(
        operations.contains(&"clamp") && operations.contains(&"linear w"),
        "{operations:?}"
    );
}

/// A tensor of the declaration replaces a fragment's tensor of the same name in its position.
/// A function may contain the loop over a group of its fragment.
#[test]
fn fragments_may_have_groups_of_layers() {
    let text = source("", "x += h + y;", "").replacen("tensors {", "tensors { use group;", 1);
    let used = description(&text.replacen("rms_norm(x, output", "rms_norm(through(x), output", 1));
    let own = used.tensors.iter().find(|row| row[1].starts_with("side."));
    assert_eq!(own.map(|row| row[1].as_str()), Some("side.N.w"));
}

#[test]
fn override_replaces_tensor_in_position() {
    let call = "if n_wide > 1 { x += twice(h) + y; }";
    let table = layer_table(&description(&source(
        "use wide; override gate: linear \"ffn_gate_b\" [n_embd -> n_wide];",
        call,
        "",
    )));
    assert_eq!(table[0], "gate blk.N.ffn_gate_b [n_embd -> n_wide] if n_wide > 1");
    assert_eq!(table.len(), 6);
    // Outside the condition of the `use`, the tensor is a second one with the same name.
    let tensors = "if n_ff_exp > 1 { use plain; } w: linear \"v\" [n_embd -> n_embd];";
    let found = faults(&source(tensors, "if n_ff_exp > 1 { x += twice(h) + y; }", ""));
    assert_eq!(found, ["w: `w` is already the name of a tensor"]);
}

/// A tensor may exist only if another one does; the graph then checks for the other tensor.
#[test]
fn tensors_may_depend_on_tensors() {
    let tensors = "v?: linear \"v\" [n_embd -> n_embd]; if has(v) { use plain; } else { use ffn; }";
    let graph = "if has(v) { x += twice(v(h)) + y; } else { x += ffn(h, hi = 1.0); }";
    let text = source(tensors, graph, "");
    let table = layer_table(&description(&text));
    assert_eq!(
        table[..3],
        [
            "v blk.N.v [n_embd -> n_embd] optional",
            "w blk.N.w [n_embd -> n_embd] if has(v)",
            "gate blk.N.ffn_gate [n_embd -> n_ff] if !has(v)",
        ]
    );
    let items = arch_lang::expand_with(tokens(&text), &library()).to_string();
    assert!(items.contains("let v = __t . linear_opt"), "{items}");
    assert!(items.contains("if v . is_some ()"), "{items}");
    let above = tensors.replace("if has(v) { use plain; }", "if has(w) { use plain; }");
    assert_eq!(faults(&source(&above, graph, ""))[0], "w: no tensor named `w`");
    let without = graph.replace("has(v)", "n_ff_exp > 1");
    let found = faults(&source(tensors, &without, ""));
    let in_fragment =
        "ffn: fragments/ffn.rs:7:29: `gate` exists only if not `has(v)`; use it under the same condition".to_owned();
    assert!(found.contains(&in_fragment), "{found:#?}");
}

#[test]
fn fragment_files_are_tracked() {
    let items = arch_lang::expand_with(tokens(&source("use plain;", "x += twice(h) + y;", "")), &library());
    assert!(items.to_string().contains("\"/fragments/plain.rs\""));
}

#[test]
fn errors_name_the_fragment_file() {
    let call = "x += h + y;";
    for (tensors, graph, functions, expected) in [
        (
            "use ffm;",
            call,
            "",
            vec!["ffm: no fragment named `ffm`; did you mean `ffn`?"],
        ),
        (
            "use broken;",
            call,
            "",
            vec![
                "broken: fragments/broken.rs:2:13: expected `options`, `needs`, `hparams`, `tensors`, `checkpoint`, or `fn`, found `tensor`",
            ],
        ),
        (
            "use ffn(widht = 3);",
            "x += ffn(h, hi = 1.0) + y;",
            "",
            vec!["widht: `ffn` has no option `widht` (available: width); did you mean `width`?"],
        ),
        (
            "use unknown_size;",
            "x += h + y;",
            "",
            vec![
                "unknown_size: fragments/unknown_size.rs:2:23: `w` is never used; if the graph does not need the tensor, write `ignore \"w\";`",
                "unknown_size: fragments/unknown_size.rs:2:48: no hyperparameter named `n_wide`",
            ],
        ),
        (
            "use nest;",
            "x += nested(h) + y;",
            "",
            vec!["nest: fragments/unknown_size.rs:2:48: no hyperparameter named `n_wide`"],
        ),
        (
            "use group;",
            call,
            "",
            vec![
                "group: fragments/group.rs:2:23: `layer` blocks must be at the top level of `tensors`, not in another block",
            ],
        ),
        (
            "use hen;",
            call,
            "",
            vec!["hen: fragments/egg.rs:2:27: cyclic use of fragments: `hen` uses `egg` uses `hen`"],
        ),
        (
            "use ffn;",
            "x += ffn(h) + y;",
            "",
            vec!["ffn: fragments/ffn.rs:8:35: no value, tensor, or hyperparameter named `hi`"],
        ),
        (
            "use ffn;",
            "x += ffn(h, h, act = gelu, hi = 1.0) + y;",
            "",
            vec!["ffn: `ffn` takes 1 argument (`x`), found 2"],
        ),
        (
            "use ffn;",
            "x += ffn(h, art = gelu, hi = 1.0) + y;",
            "",
            vec!["art: `ffn` has no option `art` (available: act, lo, hi); did you mean `act`?"],
        ),
        (
            "use ffn;",
            "let h = 2.0; x += ffn(y, hi = h);",
            "",
            vec![
                "h: `h` is never used",
                "ffn: `ffn` defines a value `h`, which would shadow yours; rename your value",
            ],
        ),
        (
            "use circle;",
            "x += circle(h) + y;",
            "",
            vec!["circle: fragments/circle.rs:2:28: recursive call of `circle`"],
        ),
        (
            "",
            "x += h + y;",
            "fn lost(x) { x }",
            vec!["lost: function `lost` is never called"],
        ),
        (
            "",
            "x += silu(h) + y;",
            "fn silu(x) { x }",
            vec!["silu: `silu` is the name of an operation"],
        ),
        (
            "",
            "x += f(h) + y;",
            "fn f(x) { h }",
            vec![
                "x: `x` is never used",
                "h: no value, tensor, or hyperparameter named `h`",
            ],
        ),
        (
            "",
            "x += f(h) + y;",
            "fn f(x, a = 1.0, b) { x }",
            vec!["b: required parameter `b` after an optional one; add a default, or move it to the front"],
        ),
        (
            "a, b: vector \"a\" [n_embd];",
            "x += h + y;",
            "",
            vec!["\"a\": found 1 GGUF names for 2 tensors"],
        ),
    ] {
        let found = faults(&source(tensors, graph, functions));
        assert_eq!(found, expected, "{tensors} {graph} {functions}");
    }
}

/// Returns the builder calls in the layer, without spaces.
fn calls(tensors: &str, graph: &str) -> String {
    let items = arch_lang::expand_with(tokens(&source(tensors, graph, "")), &library());
    let text = items.to_string().replace(' ', "");
    assert!(!text.contains("compile_error"), "{text}");
    text
}

/// `..` forwards options through functions to the calls that accept them, except to calls that name them.
#[test]
fn options_are_forwarded_to_calls() {
    let text = calls(
        "use attention;",
        "x += attend(h, base = cap, scale = 0.5, softcap = 3.0) + y;",
    );
    assert!(
        text.contains("RopeArgs{base:::core::option::Option::Some(m.hp.cap)"),
        "{text}"
    );
    assert!(
        text.contains("AttentionArgs{scale:::core::option::Option::Some(0.5f32),softcap:3f32"),
        "{text}"
    );
    // `rope` names `scale`, so the `scale` for `attention` is not forwarded to it.
    let rope = &text[text.find("RopeArgs").expect("calls should contain RopeArgs")..];
    assert!(
        !rope[..rope.find('}').expect("RopeArgs should be closed")].contains("scale:"),
        "{rope}"
    );
    // An unknown option is reported at the call in the declaration.
    let found = faults(&source("use attention;", "x += attend(h, bass = cap) + y;", ""));
    assert!(found[0].starts_with("bass: `attend` has no option `bass`"), "{found:?}");
    assert!(
        found[0].contains("rotated") && found[0].ends_with("did you mean `base`?"),
        "{found:?}"
    );
    // An option that all calls name explicitly cannot be forwarded.
    let found = faults(&source("use attention;", "x += attend(h, gain = cap) + y;", ""));
    assert!(found[0].starts_with("gain: `attend` has no option `gain`"), "{found:?}");
}

/// A literal `true` or `false` as an option selects a branch at compile time. The other branch may be
/// invalid.
#[test]
fn literal_condition_selects_branch() {
    let graph = "x += attend(h, rotated = false) + y;";
    let text = source("use attention;", graph, "").replace("rope: neox", "rope: none");
    description(&text);
    let rotated = calls("use attention;", "x += attend(h) + y;");
    assert!(rotated.contains(".rope(") && !rotated.contains("iftrue"), "{rotated}");
    assert!(!calls("use attention;", graph).contains(".rope("));
    let found = faults(&text.replace("rotated = false", "rotated = n_head > 1"));
    assert!(found[0].contains("`rope` needs a pairing of dimensions"), "{found:?}");
}

/// An `if` without `else` as an argument passes the argument only if the condition holds.
#[test]
fn arguments_may_depend_on_conditions() {
    let tensors = "use attention; f?: vector \"f\" [head_dim / 2];";
    let text = calls(
        tensors,
        "x += attend(h, base = if cap > 2.0 { cap }, factors = if n_ff_exp > 1 { f }) + y;",
    );
    assert!(
        text.contains("ifm.hp.cap>2f32{::core::option::Option::Some(m.hp.cap)}else{::core::option::Option::None}"),
        "{text}"
    );
    assert!(text.contains("{l.f}else{::core::option::Option::None}"), "{text}");
    let found = faults(&source(
        "use attention;",
        "x += attend(h, softcap = if cap > 2.0 { cap }) + y;",
        "",
    ));
    assert_eq!(
        found,
        ["if: `softcap` of `attention` is required; add an `else` branch"]
    );
    let found = faults(&source(
        "use attention;",
        "x += attend(h, base = if cap { cap }) + y;",
        "",
    ));
    assert_eq!(found, ["cap: expected `bool`, found `f32`"]);
}

/// If an option is omitted, the `or` default that it provides is also omitted. An option may be a type.
#[test]
fn defaults_of_keys_may_be_options() {
    let graph = "x += h * n_swa + y * (if swa { 1.0 } else { 0.0 });";
    let read = |tensors: &str| {
        arch_lang::expand_with(tokens(&source(tensors, graph, "")), &library())
            .to_string()
            .replace(' ', "")
    };
    let required = source("use window;", graph, "");
    assert_eq!(faults(&required), ["test: missing size of the test model: `n_swa`"]);
    let given = read("use window(length = 7, kind = dense_first);");
    assert!(
        given.contains("usize(\"swa\",::core::option::Option::Some(7))"),
        "{given}"
    );
    assert!(given.contains("dense_first(\"swa_pattern\""), "{given}");
    let listed = read("use window(length = 7, kind = [bool]);");
    assert!(
        listed.contains("bools(\"swa_pattern\",::core::option::Option::None)"),
        "{listed}"
    );
}

#[test]
fn parameter_shadowing_caller_value_is_rejected() {
    let found = faults(&source(
        "",
        "x += mix(h, by = x * 2.0);",
        "fn mix(x, by = 1.0) { x * by }",
    ));
    assert_eq!(
        found[1],
        "mix: `mix` has a parameter `x`, which would shadow your value; rename your value"
    );
}

/// An argument of the wrong shape is reported at the call. Options of the fragment and of the function may occur in
/// shapes.
#[test]
fn wrong_argument_shape_is_reported_at_call() {
    let text = |call: &str| source("use shaped(width = n_head);", call, "");
    for valid in [
        "x += once(h) * sum_rows(narrow(y[..n_head]));",
        "x += y * sum_rows(first(h, n = n_embd));",
        "x += y * sum_rows(any(h[..3]));",
    ] {
        description(&text(valid));
    }
    for (call, expected) in [
        (
            "x += once(h[..n_head]) + y;",
            "h[..n_head]: `once` expects shape [n_embd, T] for `x`, found [n_head, T]",
        ),
        (
            "x += y * sum_rows(narrow(h));",
            "h: `narrow` expects shape [n_head, T] for `x`, found [n_embd, T]",
        ),
        (
            "x += y * sum_rows(first(h, n = 4));",
            "h: `first` expects shape [4, T] for `x`, found [n_embd, T]",
        ),
        (
            "x += y * sum_rows(any(heads(h, 1)));",
            "heads(h, 1): `any` expects shape [_, T] for `x`, found [n_embd, 1, T]",
        ),
    ] {
        assert_eq!(faults(&text(call)), [expected]);
    }
}

/// A size that only the shape of a parameter uses is not a field of the model.
#[test]
fn shapes_of_parameters_keep_no_values() {
    let functions = "fn wide(x: [n_ff_exp, T]) { x }";
    let text = source(
        "use ffn(width = n_ff_exp);",
        "x += down(wide(up(h)) * gate(y));",
        functions,
    );
    let expanded = arch_lang::expand_with(tokens(&text), &library()).to_string();
    let (_, hparams) = expanded.split_once("struct Hparams").unwrap();
    let (fields, _) = hparams.split_once('}').unwrap();
    assert!(fields.contains("cap") && !fields.contains("n_ff_exp"), "{fields}");
}

/// Locations use the file name of the declaration, if known, and of its fragments.
#[test]
fn files_are_checked_without_building() {
    let file = |tensors: &str, graph: &str| {
        let text = format!("//! Mine.\n\narch! {{{}}}\n", source(tensors, graph, ""));
        let faults = arch_lang::check_file("my.rs", &text, &library());
        faults.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(file("use plain;", "x += twice(h) + y;"), Vec::<String>::new());
    let found = file("use unknown_size;", "x += once(k) + y;");
    assert_eq!(found.len(), 3, "{found:#?}");
    let expected = "my.rs:21:19: no value, tensor, or hyperparameter named `k`\n   |\n21 |         x += once(k) + y;\n   |                   ^";
    assert!(found.contains(&expected.to_owned()), "{found:#?}");
    assert!(
        found.iter().any(|f| f.starts_with("fragments/unknown_size.rs:2:48: ")),
        "{found:#?}"
    );
    let faults = arch_lang::check_file("my.rs", "arch! { name: \"x\"; ( }", &library());
    assert_eq!(faults[0].place.to_string(), "my.rs:1:20");
    let faults = arch_lang::check_file("my.rs", "fn main() {}", &library());
    assert_eq!(faults[0].message, "my.rs contains no `arch! { … }` or `encoder! { … }`");
}

/// A build reports each error of a fragment once, with its line. Later users of the fragment refer to the
/// first.
#[test]
fn build_reports_fragment_errors_once() {
    let text =
        |name: &str| source("use misspelt;", "x += wrong(h) + y;", "").replace("\"base\"", &format!("\"{name}\""));
    let errors = |name: &str| {
        let items: syn::File = syn::parse2(arch_lang::expand_with(tokens(&text(name)), &library())).unwrap();
        let macros = items.items.into_iter().filter_map(|item| match item {
            syn::Item::Macro(m) if m.mac.path.segments.last()?.ident == "compile_error" => {
                Some(m.mac.parse_body::<syn::LitStr>())
            }
            _ => None,
        });
        macros.map(|text| text.unwrap().value()).collect::<Vec<_>>()
    };
    let whole = "fragments/misspelt.rs:2:86: no operation or tensor named `vw`\n  |\n2 | fragment! {";
    let first = errors("first");
    assert_eq!(first.len(), 1, "{first:#?}");
    assert!(first[0].starts_with(whole) && first[0].ends_with('^'), "{}", first[0]);
    assert_eq!(errors("second"), ["fragments/misspelt.rs has errors; see `first`"]);
    assert_eq!(errors("first"), first, "asked again");
}

/// Requirements are checked by name, kind, and sizes. A missing requirement is reported once, under the
/// `use`.
#[test]
fn missing_requirements_are_reported_once() {
    let side = "use needy; side: linear \"side\" [n_embd -> 2 * n_embd];";
    let act = "fn act(x, y) { x + y }";
    description(&source(side, "x += needy(h) + y;", act));
    let told = |tensors: &str, functions: &str| {
        let found = faults(&source(tensors, "x += needy(h) + y;", functions));
        let at = |f: &str| {
            f.rsplit_once("needy: ")
                .map_or_else(|| f.to_owned(), |(_, message)| message.to_owned())
        };
        found.iter().map(|f| at(f)).collect::<Vec<_>>()
    };
    assert_eq!(
        told(side, ""),
        ["`needy` needs function `act(x, y)`, which is not declared"]
    );
    assert_eq!(
        told("use needy;", act),
        ["`needy` needs tensor `side: linear`, which is not declared"]
    );
    assert_eq!(
        told(&side.replace("2 *", "3 *"), act),
        ["`needy` needs tensor `side: linear`, but it is declared as `linear [n_embd -> 3 * n_embd]`"]
    );
    let without =
        source(side, "x += needy(h) + y;", act).replace("cap: f32 = \"cap\" or 1.0;", "cap: usize = \"cap\" or 1;");
    description(&without);
    let text =
        source(side, "x += needy(h) + y;", act).replace("cap: f32 = \"cap\" or 1.0;", "cap: bool = \"cap\" or true;");
    let found = faults(&text);
    assert!(
        found
            .iter()
            .any(|f| f.ends_with("`needy` needs hyperparameter `cap: f32`, but `cap` is declared as `bool`")),
        "{found:?}"
    );
}

/// The argument or default of an option is computed once, even if the function uses it several times.
#[test]
fn options_are_computed_once() {
    let n_projections = |graph: &str, function: &str| {
        let items = arch_lang::expand_with(tokens(&source("use plain;", graph, function)), &library()).to_string();
        assert!(!items.contains("compile_error"), "{items}");
        items.matches("b . linear (l . w ,").count()
    };
    assert_eq!(
        n_projections(
            "x += both(h, y = once(h)) + y;",
            "fn both(x, y = 1.0) { x * y + silu(y) * y }"
        ),
        1
    );
    assert_eq!(
        n_projections("x += both(h) + y;", "fn both(x, y = once(x) * 2.0) { x * y + silu(y) }"),
        1
    );
    // Numbers, and arguments used once, are substituted directly.
    assert_eq!(
        n_projections("x += both(h, y = once(h)) + y;", "fn both(x, y = 1.0) { x * y }"),
        1
    );
    assert_eq!(
        n_projections(
            "x += both(h, y = cap * 2.0) + once(h) + y;",
            "fn both(x, y = 1.0) { x * y + y }"
        ),
        1
    );
}
