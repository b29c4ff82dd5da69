//! Declarations as untrusted input: mutated and growing texts never panic, and compile or fail in time.

use std::path::Path;
use std::time::{Duration, Instant};

use arch_lang::{Library, Source};
use arch_runtime::library::{BuiltIn, BuiltInEncoders};
use arch_runtime::{DeclarationError, declare, embedded, library};
use engine::conformance::Draft;
use engine::gguf::Gguf;
use engine::model::{LoadParams, declare_header, plan};
use engine::random::SplitMix64;

const CASES: usize = 300;
const TIME_MAX: Duration = Duration::from_secs(2);

/// Compiles a text. Panics if the compiler panicked or took too long.
fn compiled(text: &str, library: &(dyn Library + Sync)) -> Option<String> {
    let start = Instant::now();
    let error = declare("a.rs", text, library)
        .err()
        .map(|e| (e.to_string(), matches!(e, DeclarationError::Io { .. })));
    assert!(start.elapsed() < TIME_MAX, "{:?}: {text:.2000}", start.elapsed());
    let (error, panicked) = error?;
    assert!(!panicked && !error.is_empty(), "{error}: {text:.2000}");
    Some(error)
}

/// Deletes, repeats, or exchanges words of a text.
fn mutated(text: &str, random: &mut SplitMix64) -> String {
    let mut words: Vec<&str> = text
        .split_inclusive(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    for _ in 0..=random.below(3) {
        let (i, j) = (random.below(words.len()), random.below(words.len()));
        match random.below(4) {
            0 => drop(words.remove(i)),
            1 => words.insert(i, words[j]),
            2 => words.swap(i, j),
            _ => words[i] = words[j],
        }
    }
    words.concat()
}

/// Plans the test model of a declaration, and loads the headers of other models with it.
fn planned(text: &str, headers: &[Gguf]) {
    let start = Instant::now();
    let registered = embedded("a.rs", text).expect("a valid declaration");
    let (arch, path) = (registered.arch, Path::new("a.gguf"));
    let own = Draft::of_declaration(arch, &[registered], true).ok();
    let own = own.and_then(|draft| draft.header().ok());
    for header in own.iter().chain(headers) {
        // The memory is probed only if the keys and tensors match.
        let prefix = arch.key_prefix(arch.file_arch());
        if declare_header(header, path, arch, prefix).is_ok() {
            let params = LoadParams {
                arch: Some(arch.name.to_owned()),
                ..LoadParams::default()
            };
            let _ = plan(header, path, &[registered], &params);
        }
    }
    assert!(start.elapsed() < TIME_MAX, "{:?}: {text:.2000}", start.elapsed());
}

#[test]
fn mutated_declarations_never_panic() {
    let architectures = BuiltIn.all().filter(|(file, _)| !file.contains('/'));
    let texts: Vec<&str> = architectures
        .chain(BuiltInEncoders.encoders())
        .map(|(_, text)| text)
        .collect();
    let header = |text: &str| {
        let registered = embedded("a.rs", text).expect("a built-in declaration");
        let draft = Draft::of_declaration(registered.arch, &[registered], true).expect("sound sizes");
        draft.header().expect("a header")
    };
    let mut random = SplitMix64(7);
    let mut n_valid = 0;
    for i in 0..CASES {
        let text = texts[i % texts.len()];
        let changed = mutated(text, &mut random);
        if compiled(&changed, &*library::built_in(&changed)).is_none() {
            planned(&changed, &[header(text)]);
            n_valid += 1;
        }
    }
    assert!((1..CASES / 2).contains(&n_valid), "{n_valid} of {CASES} are valid");
}

/// Returns a declaration with functions and statements in its graph.
fn with_graph(functions: &str, statements: &str) -> String {
    format!(
        "arch_macros::arch! {{\nname: \"a\";\nlike: \"llama\";\ngraph {{\n{functions}\nlet x = token_embd[tokens];\nfor layer {{\n\
         {statements}\nx += attend(rms_norm(x, attn_norm));\nx += ffn(rms_norm(x, ffn_norm));\n}}\n\
         output(rms_norm(x, output_norm))\n}}\n}}\n"
    )
}

#[test]
fn growing_declarations_are_rejected() {
    let calls = |n: usize, body: &dyn Fn(usize) -> String| -> String {
        let of = |i| format!("fn f{i}(x, o = 1.0) {{ {} }}\n", body(i));
        "fn f0(x, o = 1.0) { x * o }\n".to_owned() + &(1..n).map(of).collect::<String>()
    };
    let doubled = calls(60, &|i| format!("f{0}(f{0}(x, o = o), o = o)", i - 1));
    let options = calls(60, &|i| format!("f{}(x, o = o + o)", i - 1));
    let chained = calls(2000, &|i| format!("f{}(x)", i - 1));
    for (functions, n, part) in [
        (doubled, 59, "expand to more than"),
        (options, 59, "tokens"),
        (chained, 1999, "nested too deeply"),
    ] {
        let text = with_graph("", &format!("x = f{n}(x);")).replace("graph {", &format!("{functions}graph {{"));
        let error = compiled(&text, &BuiltIn).expect("the declaration should be rejected");
        assert!(error.contains(part), "{part}: {error:.500}");
    }
    let powers: String = (1..200).map(|i| format!("let n{i} = n{0} * n{0};\n", i - 1)).collect();
    let sums: String = (0..40)
        .map(|i| format!("a{i}: usize = \"a{i}\";\nb{i}: usize = \"b{i}\";\n"))
        .collect();
    let product: Vec<String> = (0..40).map(|i| format!("(a{i} + b{i})")).collect();
    for hparams in [
        format!("let n0 = n_embd + n_ff;\n{powers}"),
        format!("{sums}let n0 = {};", product.join(" * ")),
    ] {
        let text = with_graph("", "").replace("graph {", &format!("hparams {{\n{hparams}\n}}\ngraph {{"));
        compiled(&text, &BuiltIn);
    }
}

/// The values of all layers are bounded, also for a small declaration and a header with many layers.
#[test]
fn values_per_layer_are_bounded() {
    let lets: String = (0..5_000)
        .map(|i| format!("let a{i} = il + {i};\ncheck a{i} < 9999, \"a\";\n"))
        .collect();
    let text = "arch_macros::arch! {\nname: \"a\";\nlike: \"llama\";\nhparams {\nLETS}\n}\n".replace("LETS", &lets);
    let registered = embedded("a.rs", &text).expect("a valid declaration");
    let mut draft = Draft::of_declaration(registered.arch, &[registered], true).expect("sound sizes");
    draft.metadata.insert("a.block_count", 1024u32);
    let header = draft.header().expect("a header");
    let start = Instant::now();
    let error = declare_header(&header, Path::new("a.gguf"), registered.arch, "a")
        .err()
        .map(|e| e.to_string());
    assert!(start.elapsed() < TIME_MAX, "{:?}", start.elapsed());
    assert!(
        error.as_ref().is_some_and(|e| e.contains("values per layer")),
        "{error:?}"
    );
}

/// The tensors of all layers are bounded, since each missing one is an error.
#[test]
fn tensors_of_all_layers_are_bounded() {
    let error_with = |n: usize| {
        let tensors: String = (0..n).map(|i| format!("t{i}: vector [n_embd];\n")).collect();
        let uses: String = (0..n).map(|i| format!("x = x + t{i};\n")).collect();
        let text = format!(
            "arch_macros::arch! {{\nname: \"a\";\nlike: \"decoder\";\nrope: neox;\ntensors {{\nlayer {{\n\
             use qk_norm_attention;\n{tensors}}}\n}}\ngraph {{\nlet x = token_embd[tokens];\nfor layer {{\n{uses}\
             x += attend(rms_norm(x, attn_norm));\nx += ffn(rms_norm(x, ffn_norm));\n}}\n\
             output(rms_norm(x, output_norm))\n}}\n}}\n"
        );
        let registered = embedded("a.rs", &text).expect("a valid declaration");
        let mut draft = Draft::of_declaration(registered.arch, &[registered], true).expect("sound sizes");
        draft.metadata.insert("a.block_count", 1024u32);
        let header = draft.header().expect("a header");
        let start = Instant::now();
        let result = declare_header(&header, Path::new("a.gguf"), registered.arch, "a");
        let elapsed = start.elapsed();
        (result.err().map_or(String::new(), |e| e.to_string()), elapsed)
    };
    let ((allowed, _), (refused, elapsed)) = (error_with(200), error_with(300));
    assert!(
        allowed.contains("is missing") && !allowed.contains("the maximum is"),
        "{allowed:.500}"
    );
    assert!(refused.contains("tensors; the maximum is 262144"), "{refused:.500}");
    assert!(elapsed < TIME_MAX, "{elapsed:?}");
}

/// A loop over a size of the file ends when the graph has too many tensors.
#[test]
fn sums_over_many_heads_are_bounded() {
    let text = with_graph("", "x = x + sum_heads(repeat_heads(heads(x, 1), n_many));");
    let text = text.replace("graph {", "hparams {\nn_many: usize = \"many\" or 4;\n}\ngraph {");
    let text = text.replace("like: \"llama\";", "like: \"decoder\";\nrope: neox;");
    let registered = embedded("a.rs", &text).expect("a valid declaration");
    let mut draft = Draft::of_declaration(registered.arch, &[registered], true).expect("sound sizes");
    draft.metadata.insert("a.many", 1u32 << 24);
    let header = draft.header().expect("a header");
    let params = LoadParams {
        arch: Some("a".to_owned()),
        ..LoadParams::default()
    };
    let start = Instant::now();
    let planned = plan(&header, Path::new("a.gguf"), &[registered], &params);
    let error = planned.err().map_or(String::new(), |e| e.to_string());
    assert!(start.elapsed() < TIME_MAX, "{:?}", start.elapsed());
    assert!(error.contains("the maximum is"), "{error:.500}");
}

/// Fragments that use each other twice.
struct Doubling;

impl Library for Doubling {
    fn find(&self, name: &str) -> Option<Source> {
        BuiltIn.find(name)
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn fragment(&self, name: &str) -> Option<Source> {
        let n: usize = name.strip_prefix('f')?.parse().ok()?;
        let text = format!(
            "arch_macros::fragment! {{ options(o = 1); tensors {{ use f{0}(o = o + o); use f{0}(o = o * o); }} }}",
            n + 1
        );
        Some(Source {
            file: format!("fragments/{name}.rs"),
            text,
        })
    }

    fn fragments(&self) -> Vec<String> {
        Vec::new()
    }

    fn files(&self) -> Box<dyn Iterator<Item = Source> + '_> {
        Box::new(std::iter::empty())
    }
}

#[test]
fn growing_fragments_are_rejected() {
    let text = "arch_macros::arch! {\nname: \"a\";\nlike: \"llama\";\ntensors {\nuse f0;\n}\n}\n";
    let error = compiled(text, &Doubling).expect("the declaration should be rejected");
    assert!(
        error.contains("tokens") || error.contains("nested too deeply") || error.contains("more than"),
        "{error:.500}"
    );
}

#[test]
fn deep_text_does_not_overflow_stack() {
    for (open, close) in [
        ("(", ")"),
        ("-", ""),
        ("!", ""),
        ("if true { ", " } else { x }"),
        ("f(x, ", ")"),
        ("x + ", ""),
    ] {
        for n in [50, 300, 900, 100_000] {
            let value = format!(
                "{}x{}",
                open.repeat(n).replace(' ', "\n"),
                close.repeat(n).replace(' ', "\n")
            );
            compiled(&with_graph("", &format!("x = {value};")), &BuiltIn);
        }
    }
    // Functions multiply the depth of the text.
    let open = "let y = if n_ff > 1 {\n".repeat(200);
    let close = "};\ny\n".repeat(200);
    let of = |i: usize| format!("fn f{i}(x) {{\n{open}f{}(x)\n{close}}}\n", i - 1);
    let functions = "fn f0(x) { x }\n".to_owned() + &(1..8).map(of).collect::<String>();
    let text = with_graph("", "x = f7(x);").replace("graph {", &format!("{functions}graph {{"));
    let error = compiled(&text, &BuiltIn).expect("the declaration should be rejected");
    assert!(error.contains("this code is nested too deeply"), "{error:.500}");
    let branches = "if n_ff > 1 {\n x = x;\n} else ".repeat(20_000);
    compiled(&with_graph("", &format!("{branches} {{ x = x; }}")), &BuiltIn);
}

#[test]
fn declarations_with_many_layer_groups_are_rejected_in_time() {
    let groups: String = (0..3000)
        .map(|i| format!("layer g{i} \"g{i}\" n_layer {{ t{i}: vector [n_embd]; }}\n"))
        .collect();
    let text = with_graph("", "").replace("graph {", &format!("tensors {{\n{groups}}}\ngraph {{"));
    let error = compiled(&text, &BuiltIn).expect("an error");
    assert!(error.contains("at most 64 groups of layers"), "{error:.2000}");
}

/// Returns a declaration with items of layers and of hyperparameters, and statements for each layer.
fn repeated(items: &str, hparams: &str, statements: &str) -> String {
    let text = with_graph("", statements).replace("like: \"llama\";", "like: \"decoder\";\nrope: neox;");
    let sections =
        format!("hparams {{\n{hparams}\n}}\ntensors {{\nlayer {{\nuse qk_norm_attention;\n{items}\n}}\n}}\ngraph {{");
    text.replacen("graph {", &sections, 1)
}

#[test]
fn repeated_items_compile_in_time() {
    let lines = |n: usize, line: &dyn Fn(usize) -> String| (0..n).map(line).collect::<String>();
    let tensors = lines(1500, &|i| format!("t{i}: vector [n_embd];\n"));
    let uses = lines(1500, &|i| format!("x = x + t{i};\n"));
    assert_eq!(compiled(&repeated(&tensors, "", &uses), &BuiltIn), None);
    let sums = lines(1500, &|i| {
        format!("k{i}: usize = \"k{i}\" or 1;\nlet s{0} = s{i} + k{i};\n", i + 1)
    });
    for (items, hparams, statements, part) in [
        (&*tensors, "", "", "`t0` is never used"),
        (
            &*lines(1500, &|i| format!("t{i}: vector [size{i}];\n")),
            "",
            "",
            "size0",
        ),
        ("", &*format!("let s0 = n_ff;\n{sums}"), "", "`s1500` is never used"),
        ("", "", &*lines(1500, &|i| format!("unknown{i} = x;\n")), "unknown0"),
    ] {
        let error = compiled(&repeated(items, hparams, statements), &BuiltIn).expect("an error");
        assert!(error.contains(part), "{part}: {error:.500}");
    }
}

#[test]
fn nested_branches_and_conditions_are_bounded() {
    let nested = |open: &str, inner: &str| format!("{}{inner}{}", open.repeat(150), "}".repeat(150));
    let branches = nested("if n_ff > 1 {\n", &"x = x;\n".repeat(2000));
    let conditions = nested("if n_expert > 1 {\n", "t: vector [n_embd];\n");
    for (items, statements, part) in [
        ("", &*branches, "this code is nested too deeply"),
        (&*conditions, "", "these conditions are nested too deeply"),
    ] {
        let error = compiled(&repeated(items, "", statements), &BuiltIn).expect("an error");
        assert!(error.contains(part), "{part}: {error:.500}");
    }
}
