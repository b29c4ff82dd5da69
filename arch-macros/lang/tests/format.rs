//! Formatter: preserved and normalized layout, and a check that the project's own files are formatted.

use std::path::Path;

use arch_lang::format::{MAX_WIDTH, format};

fn formatted(text: &str) -> String {
    match format("my.rs", text) {
        Ok(text) => text,
        Err(faults) => panic!("{faults:?}"),
    }
}

/// Formats `inside` within an `arch! { … }` and returns the lines between the braces.
fn laid_out(inside: &str) -> String {
    let text = formatted(&format!("arch! {{{inside}}}"));
    let lines: Vec<&str> = text.lines().collect();
    lines[1..lines.len() - 1].join("\n")
}

#[test]
fn archs_files_are_formatted() {
    let archs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../archs");
    let mut n = 0;
    let folders = ["fragments", "parents", "encoders", "encoders/fragments", ""];
    for folder in folders.map(|folder| archs.join(folder)) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let formatted = formatted(&text);
                if std::env::var_os("LLAMA_UPDATE").is_some() {
                    std::fs::write(&path, &formatted).unwrap();
                } else {
                    assert!(text == formatted, "{}: run `llama arch fmt`", path.display());
                }
                n += 1;
            }
        }
    }
    assert!(n > 180, "{n} files");
}

/// Strips line breaks and columns from each of the project's files. Formatting the result must be stable.
#[test]
fn format_is_idempotent() {
    let archs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../archs");
    for entry in std::fs::read_dir(archs).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text
                .lines()
                .filter(|l| !l.trim_start().starts_with("//"))
                .map(|l| l.split(" // ").next().unwrap().trim());
            for flat in [
                code.clone().collect::<Vec<_>>().join(" "),
                code.collect::<Vec<_>>().join("\n\n\n"),
            ] {
                let once = formatted(&flat);
                assert_eq!(formatted(&once), once, "{}", path.display());
            }
        }
    }
}

#[test]
fn format_normalizes_spaces_and_indentation() {
    let shown = laid_out(
        r#"
  name:"my" ;   rope : neox or   mrope;
hparams{eps:f32="e" or 1e-5;let a=if x>0{ -1 }else{x-1};check !a&&(a==0),"text";lists:[usize;4 ..]="l";}


tensors { use a ,b( width=n_ff*2 );q_norm ?:vector"q"[n];
layer enc "enc" n_layer {w:linear [a->b ; c] or"other";if has (x){ignore "y";}else if z{ use v;}}
}
fn f( x,scale ? ,.. ){let y=rust!( [n , T]=>f ( y ) );y+=x[.. n]*w(x ,..)[a .. b];y}
graph { for _ in 0 .. n{for layer{x=x;}} }
test{n_embd:256,a: -1.0}
"#,
    );
    let expected = r#"    name: "my";
    rope: neox or mrope;
    hparams {
        eps: f32 = "e" or 1e-5;
        let a = if x > 0 { -1 } else { x - 1 };
        check !a && (a == 0), "text";
        lists: [usize; 4..] = "l";
    }

    tensors {
        use a, b(width = n_ff * 2);
        q_norm?: vector "q" [n];
        layer enc "enc" n_layer {
            w: linear [a -> b; c] or "other";
            if has(x) {
                ignore "y";
            } else if z {
                use v;
            }
        }
    }
    fn f(x, scale?, ..) {
        let y = rust!( [n , T]=>f ( y ) );
        y += x[..n] * w(x, ..)[a..b];
        y
    }
    graph {
        for _ in 0..n {
            for layer {
                x = x;
            }
        }
    }
    test { n_embd: 256, a: -1.0 }"#;
    assert_eq!(shown, expected);
}

#[test]
fn format_aligns_tensors_on_consecutive_lines() {
    let shown = laid_out(
        r#"tensors {
a: vector "long_name" [n];
long?: linear "b" [n -> m];
// Others.
x: vector "x" [n];
y, z: vector "y", "z" [n];
layer: vector "u" [n];
one: raw "u.bias" [n];
}"#,
    );
    let expected = r#"    tensors {
        a:     vector "long_name" [n];
        long?: linear "b"         [n -> m];
        // Others.
        x: vector "x" [n];
        y, z: vector "y", "z" [n];
        layer: vector "u"      [n];
        one:   raw    "u.bias" [n];
    }"#;
    assert_eq!(shown, expected);
}

#[test]
fn format_keeps_comments_and_line_breaks() {
    let text = r#"    // First.
    graph {
        // On its own line.
        let x = f(a, // behind an argument
                  // alone
                  b);
        let y = g(
            a,
            /* inside */ b
        );
        x + y // behind the result
        // last
    }

    // Before the end."#;
    assert_eq!(laid_out(&format!("\n{text}\n")), text);
    assert_eq!(laid_out("\n\n\n    a;\n\n\n\n    b;\n\n"), "    a;\n\n    b;");
}

#[test]
fn format_breaks_long_lines_after_commas_and_at_blocks() {
    let long = |n: usize| "a".repeat(n);
    let call = format!("graph {{ let x = f(g({0}, {0}), {0}, {0}); x }}", long(40));
    let shown = laid_out(&call);
    assert_eq!(shown.lines().count(), 5, "{shown}");
    assert!(shown.lines().all(|l| l.len() <= MAX_WIDTH), "{shown}");
    let second = format!("                  {0}, {0});", long(40));
    assert_eq!(shown.lines().nth(2), Some(second.as_str()));
    let branches = format!("graph {{ let x = if c {{ {0} }} else {{ {0} }}; x }}", long(70));
    let shown = laid_out(&branches);
    let opened = format!(
        "        let x = if c {{\n            {0}\n        }} else {{\n            {0}\n        }};",
        long(70)
    );
    assert!(shown.contains(&opened), "{shown}");
    // A trailing comment does not make a line too long.
    let commented = format!("    let x = f(a, b); // {}", long(140));
    assert_eq!(laid_out(&format!("{commented}\n")), commented);
}

#[test]
fn format_rejects_file_without_macro() {
    let refused = |text: &str| format("my.rs", text).unwrap_err()[0].to_string();
    assert!(refused("fn main() {}").contains("my.rs contains no `arch! { … }`, `fragment! { … }`, or `parent! { … }`"));
    assert!(refused("arch! {\n  (\n}").starts_with("my.rs:"));
    let text = "arch! {\n graph {\nrust!([n, T] => \"a  \n  b\") } }";
    assert!(refused(text).contains("without changing its tokens"));
}

#[test]
fn models_and_shapes_of_parameters_are_formatted() {
    let models = r#"models{"27B":n_layer==62;  "9B" :n_layer == 42;}"#;
    let expected = "    models {\n        \"27B\": n_layer == 62;\n        \"9B\": n_layer == 42;\n    }";
    assert_eq!(laid_out(models), expected);
    let function = "fn f(x:[n_embd,T],y :[ _ , T ],act=silu,..){let z=x+y;act(z)}";
    let expected =
        "    fn f(x: [n_embd, T], y: [_, T], act = silu, ..) {\n        let z = x + y;\n        act(z)\n    }";
    assert_eq!(laid_out(function), expected);
    // The body of a function is indented from `fn`, even if its parameters take several lines.
    let long = "fn f(x: [n_embd, T],\ny: [n_embd, T]) {\nlet z = x + y;\nz\n}";
    let expected = "    fn f(x: [n_embd, T],\n         y: [n_embd, T]) {\n        let z = x + y;\n        z\n    }";
    assert_eq!(laid_out(long), expected);
    assert_eq!(formatted("parent! {like:\"a\";}"), "parent! {\n    like: \"a\";\n}\n");
}
