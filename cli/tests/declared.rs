//! Declarations that the binary does not contain: checked, seeded, run, and served from their text alone.

use std::path::PathBuf;

use crate::common::{Ended, Home, ended, root};
use engine::gguf::logits::Logits;

/// Qwen 3 under another name, and with additional tensors.
const OWN: &str = r#"//! My model: a test declaration.

arch_macros::arch! {
    name: "my-model";
    like: "decoder";
    rope: neox;

    hparams {
        my_scale: f32 = "residual_scale" or 0.5;
    }

    tensors {
        layer {
            use qk_norm_attention;
        }
    }

    graph {
        let x = token_embd[tokens] * my_scale;
        for layer {
            x += attend(rms_norm(x, attn_norm));
            x += ffn(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }
}
"#;

fn text(path: PathBuf) -> String {
    path.into_os_string().into_string().expect("a UTF-8 path")
}

/// Writes a file to the home directory and returns its path.
fn write(home: &Home, name: &str, content: &str) -> String {
    let path = home.path(name);
    std::fs::create_dir_all(path.parent().expect("a directory")).unwrap();
    std::fs::write(&path, content).unwrap();
    text(path)
}

/// Seeds the test model of a declaration and returns its path.
fn seed(home: &Home, declaration: &str, name: &str) -> String {
    let out = text(home.path("seeds"));
    ended(home.llama(&["arch", "seed", declaration, "-o", &out])).succeeds();
    text(home.path("seeds").join(format!("{name}.gguf")))
}

/// Returns the logits of a model, computed with these options.
fn logits(home: &Home, model: &str, args: &[&str]) -> Vec<f32> {
    let out = text(home.path("out.logits"));
    let fixed = ["logits", "-m", model, "-o", &out, "--tokens", "1,2,3,4"];
    ended(home.llama(&[&fixed[..], args].concat())).succeeds();
    Logits::read(home.path("out.logits")).unwrap().values().to_vec()
}

/// Asserts exit status 1, empty standard output, and each part in the errors, which show lines of the declaration.
#[track_caller]
fn fails(ended: &Ended, parts: &[&str]) {
    assert_eq!((ended.status, ended.out.as_str()), (1, ""), "{}", ended.err);
    assert!(ended.err.starts_with("error: "), "{}", ended.err);
    for part in parts {
        assert!(ended.err.contains(part), "{part:?} in {}", ended.err);
    }
}

#[test]
fn unknown_declaration_is_checked_seeded_and_run() {
    let home = Home::new();
    let declaration = write(&home, "my_model.rs", OWN);
    let checked = ended(home.llama(&["arch", "check", &declaration]));
    let report = checked.succeeds();
    assert!(
        report.contains("architecture my-model") && report.contains("ok"),
        "{report}"
    );
    let model = seed(&home, &declaration, "my-model");
    let shown = ended(home.llama(&["arch", &declaration]));
    assert!(shown.succeeds().contains("residual_scale"));
    ended(home.llama(&["arch", &declaration, "--draw", "mermaid"])).succeeds();
    let inspected = ended(home.llama(&["inspect", &model, "--arch", &declaration]));
    assert!(inspected.succeeds().contains("matches: every tensor"));
    ended(home.llama(&["arch", "check", &declaration, &model])).succeeds();
    let plain = logits(&home, &model, &["--arch", &declaration]);
    let scaled = logits(
        &home,
        &model,
        &[
            "--arch",
            &declaration,
            "--override-kv",
            "my-model.residual_scale=float:1.0",
        ],
    );
    assert!(plain.iter().all(|x| x.is_finite()) && plain != scaled);
    // With a factor of 1, the model is Qwen 3.
    assert_eq!(scaled, logits(&home, &model, &["--arch", "qwen3"]));
    fails(
        &ended(home.llama(&["inspect", &model, "--plan"])),
        &["unsupported architecture `my-model`"],
    );
}

#[test]
fn checkpoints_are_mapped_by_declarations_of_directory() {
    let home = Home::new();
    let from = root().join("tests/data/checkpoints/llama");
    let checkpoint = home.path("mine");
    std::fs::create_dir(&checkpoint).unwrap();
    for entry in std::fs::read_dir(&from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, checkpoint.join(path.file_name().unwrap())).unwrap();
    }
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    std::fs::write(
        checkpoint.join("config.json"),
        config.replace("LlamaForCausalLM", "MineForCausalLM"),
    )
    .unwrap();
    let checkpoint = text(checkpoint);
    let declaration = "arch_macros::arch! {\n    name: \"mine\";\n    like: \"llama\";\n\n    \
                       checkpoint \"MineForCausalLM\" like \"LlamaForCausalLM\" {}\n}\n";
    let path = write(&home, "archs/mine.rs", declaration);
    // A declaration that does not name the class is not compiled.
    write(
        &home,
        "archs/other.rs",
        "arch_macros::arch! {\n    name: \"other\";\n    nonsense\n}\n",
    );
    let expected = logits(&home, &text(from), &[]);
    assert_eq!(logits(&home, &checkpoint, &["--arch", &path]), expected);
    let out = text(home.path("found.logits"));
    let args = ["logits", "-m", &checkpoint, "-o", &out, "--tokens", "1,2,3,4"];
    fails(
        &ended(home.llama(&args)),
        &["no architecture reads checkpoints of class `MineForCausalLM`"],
    );
    let mut command = home.llama(&args);
    command.env("LLAMA_ARCHS", home.path("archs"));
    ended(command).succeeds();
    assert_eq!(Logits::read(home.path("found.logits")).unwrap().values(), expected);
    // `llama quantize` also computes with the declaration.
    let corpus = write(&home, "corpus", &"t1 t2 t3 t4 ".repeat(100));
    let quantized = text(home.path("quantized.gguf"));
    let quantize = [
        "quantize",
        &checkpoint,
        &quantized,
        "--target-bpw",
        "9",
        "-f",
        &corpus,
        "--measure",
        &corpus,
        "--arch",
        &path,
    ];
    let report = ended(home.llama(&quantize));
    assert!(report.succeeds().contains("KL divergence"), "{}", report.out);
    for args in [["inspect", &checkpoint].as_slice(), &["arch", "check", &checkpoint]] {
        let mut command = home.llama(args);
        command.env("LLAMA_ARCHS", home.path("archs"));
        assert!(ended(command).succeeds().contains("mine"));
    }
}

#[test]
fn children_read_checkpoints_of_their_parent() {
    let home = Home::new();
    let checkpoint = |name: &str| text(root().join("tests/data/checkpoints").join(name));
    let path = write(&home, "my_llama.rs", LLAMA);
    let model = checkpoint("llama");
    assert_eq!(logits(&home, &model, &["--arch", &path]), logits(&home, &model, &[]));
    fails(
        &ended(home.llama(&["run", &checkpoint("phi3"), "t1", "--arch", &path])),
        &["add `checkpoint \"Phi3ForCausalLM\" { … }` to the declaration of `my-llama`"],
    );
    for (option, part) in [
        ("--lora", "`llama convert-lora` converts the directory"),
        ("--mmproj", "expected the GGUF file of a projector"),
        ("--control-vector", "`llama cvector` computes one"),
    ] {
        let args = ["run", &model, "t1", "--arch", &path, option, &model];
        fails(&ended(home.llama(&args)), &[option, "found the directory", part]);
    }
}

#[test]
#[cfg(unix)]
fn model_list_reads_checkpoints_with_their_declarations() {
    let home = Home::new();
    let from = root().join("tests/data/checkpoints/llama");
    let checkpoint = home.path("models/mine");
    std::fs::create_dir_all(&checkpoint).unwrap();
    for entry in std::fs::read_dir(&from).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let name = path.file_name().unwrap();
        match std::str::from_utf8(&bytes) {
            Ok(text) => std::fs::write(
                checkpoint.join(name),
                text.replace("LlamaForCausalLM", "MineForCausalLM"),
            ),
            Err(_) => std::fs::write(checkpoint.join(name), bytes),
        }
        .unwrap();
    }
    let declaration = "arch_macros::arch! {\n    name: \"mine\";\n    like: \"llama\";\n\n    \
                       checkpoint \"MineForCausalLM\" like \"LlamaForCausalLM\" {}\n}\n";
    let path = write(&home, "archs/mine.rs", declaration);
    let directory = text(home.path("models"));
    let serve = ["serve", "--models-dir", &directory, "--port", "0", "-c", "32"];
    let json = |server: &crate::serve::Serving, request: &str, body: &str| {
        let response = server.request(request, body);
        let (_, body) = response.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str::<serde_json::Value>(body).unwrap_or_else(|e| panic!("{e}: {response}"))
    };
    let status = |server: &crate::serve::Serving| {
        let listed = json(server, "GET /v1/models", "");
        let model = &listed["data"][0];
        (model["status"]["value"].clone(), model["meta"]["architecture"].clone())
    };
    let mut by_variable = home.llama(&serve);
    by_variable.env("LLAMA_ARCHS", home.path("archs"));
    let by_option = home.llama(&[&serve[..], &["--arch", &path]].concat());
    for command in [by_variable, by_option] {
        let server = crate::serve::Serving::start(command);
        assert_eq!(status(&server), ("unloaded".into(), "mine".into()));
        let shown = json(&server, "POST /api/show", "{\"model\": \"mine\"}");
        assert_eq!(shown["model_info"]["general.architecture"], "mine", "{shown}");
        let body = "{\"model\": \"mine\", \"prompt\": \"t1\", \"max_tokens\": 2}";
        let completed = json(&server, "POST /v1/completions", body);
        assert_eq!(completed["model"], "mine", "{completed}");
        assert_eq!(status(&server).0, "loaded");
    }
    let server = crate::serve::Serving::start(home.llama(&serve));
    assert_eq!(status(&server), ("failed".into(), serde_json::Value::Null));
}

#[test]
fn directory_of_declarations_is_searched() {
    let home = Home::new();
    let declaration = write(&home, "archs/my_model.rs", OWN);
    let model = seed(&home, &declaration, "my-model");
    let expected = logits(&home, &model, &["--arch", &declaration]);
    let out = text(home.path("found.logits"));
    let args = ["logits", "-m", &model, "-o", &out, "--tokens", "1,2,3,4"];
    fails(&ended(home.llama(&args)), &["unsupported architecture `my-model`"]);
    let mut command = home.llama(&args);
    command.env("LLAMA_ARCHS", home.path("archs"));
    ended(command).succeeds();
    assert_eq!(Logits::read(home.path("found.logits")).unwrap().values(), expected);
    let mut list = home.llama(&["arch", "list"]);
    list.env("LLAMA_ARCHS", home.path("archs"));
    let listed = ended(list);
    assert!(listed.succeeds().contains("my-model"), "{}", listed.out);
    // A built-in architecture takes precedence, and an error of an unused file does not matter.
    write(
        &home,
        "archs/llama.rs",
        "arch_macros::arch! {\n    name: \"llama\";\n    nonsense\n}\n",
    );
    let mut command = home.llama(&args);
    command.env("LLAMA_ARCHS", home.path("archs"));
    ended(command).succeeds();
    write(&home, "archs/my_model.rs", &OWN.replace("my_scale;", "no_scale;"));
    let mut command = home.llama(&args);
    command.env("LLAMA_ARCHS", home.path("archs"));
    fails(&ended(command), &["my_model.rs:", "no_scale"]);
}

#[test]
fn named_file_takes_precedence_over_files_of_its_name() {
    let home = Home::new();
    let mine = write(&home, "mine.rs", OWN);
    let variant = write(&home, "mine2.rs", &OWN.replace("or 0.5", "or 0.25"));
    let note = |file: &str, other: &str| {
        format!("\n{file}: note: ignored {other}, which also declares the name \"my-model\"\n")
    };
    for (file, other) in [(&mine, "mine2.rs"), (&variant, "mine.rs")] {
        let checked = ended(home.llama(&["arch", "check", file]));
        let report = checked.succeeds();
        assert!(report.contains(&note(file, other)), "{report}");
    }
    let model = seed(&home, &mine, "my-model");
    let outputs = [&mine, &variant].map(|file| logits(&home, &model, &["--arch", file]));
    let factor = "my-model.residual_scale=float:0.25";
    assert_ne!(outputs[0], outputs[1]);
    assert_eq!(
        outputs[1],
        logits(&home, &model, &["--arch", &mine, "--override-kv", factor])
    );
    let bench = [
        "bench", "-m", &model, "-p", "4", "-n", "1", "-r", "1", "--arch", &variant,
    ];
    ended(home.llama(&bench)).succeeds();
    // A lookup by name finds neither.
    let child = "arch_macros::arch! {\n    name: \"child\";\n    like: \"my-model\";\n}\n";
    let child = write(&home, "child.rs", child);
    let ambiguous = "3:11: the name `my-model` is declared in `mine.rs` and `mine2.rs`; rename all but one of them";
    let checked = ended(home.llama(&["arch", "check", &child]));
    assert!(checked.out.contains(ambiguous), "{}", checked.out);
    fails(
        &ended(home.llama(&["run", &model, "t1", "--arch", &child])),
        &[ambiguous],
    );
    // Built-in names take precedence over files of other names, so nothing is ignored.
    let llama = write(
        &home,
        "llama_like.rs",
        &LLAMA.replace("my-llama", "gemma").replace("\"llama", "\"qwen3"),
    );
    write(&home, "other.rs", &OWN.replace("my-model", "gemma"));
    let checked = ended(home.llama(&["arch", "check", "--file", &llama]));
    assert!(
        checked.out.contains("no errors") && !checked.out.contains("note"),
        "{}",
        checked.out
    );
}

#[test]
fn ambiguous_name_in_directory_is_rejected() {
    let home = Home::new();
    let [mine, variant] = ["archs/mine.rs", "archs/mine2.rs"].map(|name| write(&home, name, OWN));
    let model = seed(&home, &mine, "my-model");
    let run = |args: &[&str]| {
        let mut command = home.llama(args);
        command.env("LLAMA_ARCHS", home.path("archs"));
        ended(command)
    };
    let out = text(home.path("out.logits"));
    let args = ["logits", "-m", &model, "-o", &out, "--tokens", "1"];
    let message = format!(
        "the name \"my-model\" is declared in {mine} and {variant}; rename all but one of them, or pass one with --arch"
    );
    fails(&run(&args), &[&message]);
    run(&[&args[..], &["--arch", &variant]].concat()).succeeds();
    let listed = run(&["arch", "list"]);
    assert!(
        listed.succeeds().contains(&mine) && listed.out.contains(&variant),
        "{}",
        listed.out
    );
    // Other names are found.
    let other = home.model("llama-dense", None);
    run(&["logits", "-m", &other, "-o", &out, "--tokens", "1"]).succeeds();
    write(&home, "archs/own.rs", &OWN.replace("my-model", "own"));
    run(&["arch", "own"]).succeeds();
}

#[test]
fn fragments_next_to_declaration_take_precedence() {
    let home = Home::new();
    let fragment = std::fs::read_to_string(root().join("archs/fragments/logit_scale.rs")).unwrap();
    let declaration = OWN.replace("        layer {", "        use my_fragment;\n        layer {");
    let path = write(&home, "my_model.rs", &declaration);
    let checked = ended(home.llama(&["arch", "check", &path]));
    assert!(
        checked.out.contains("no fragment named `my_fragment`"),
        "{}",
        checked.out
    );
    write(&home, "fragments/my_fragment.rs", &fragment);
    let checked = ended(home.llama(&["arch", "check", "--file", &path]));
    assert!(!checked.out.contains("no fragment named"), "{}", checked.out);
}

#[test]
fn errors_equal_those_of_arch_check() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let out = text(home.path("out.logits"));
    let cases = [
        ("unknown.rs", OWN.replace("attn_norm", "attn_nrom"), "attn_nrom"),
        (
            "rust.rs",
            OWN.replace("or 0.5;", "or 0.5;\n        let n = rust!(usize => 2);")
                .replace("* my_scale", "* my_scale * n"),
            "`rust!` needs a compiler",
        ),
        (
            "like.rs",
            OWN.replace("like: \"decoder\"", "like: \"decodr\""),
            "no architecture named `decodr`; did you mean `decoder`?",
        ),
        (
            "none.rs",
            "fn main() {}\n".to_owned(),
            "none.rs:1:1: none.rs contains no `arch! { … }`",
        ),
        (
            "two.rs",
            format!("{OWN}{}", LLAMA.replace("//!", "//")),
            "a second declaration, `arch! { … }`",
        ),
        ("open.rs", OWN.replace("hparams {", "hparams ("), "open.rs"),
        (
            "fragment.rs",
            "arch_macros::fragment! {\n    tensors {}\n}\n".to_owned(),
            "no `arch! { … }`",
        ),
        (
            "deep.rs",
            OWN.replace("my_scale;", &format!("{}my_scale;", "-".repeat(3000))),
            "line 19",
        ),
    ];
    for (name, declaration, part) in cases {
        let path = write(&home, name, &declaration);
        let run = ended(home.llama(&["logits", "-m", &model, "-o", &out, "--tokens", "1", "--arch", &path]));
        fails(&run, &[name]);
        let checked = ended(home.llama(&["arch", "check", "--file", &path]));
        let errors: Vec<&str> = checked
            .out
            .lines()
            .filter(|l| l.starts_with(&path) && !l.contains("ms)") && !l.contains(": note: "))
            .collect();
        for error in &errors {
            assert!(run.err.contains(error), "{}\n{error}", run.err);
        }
        let printed = run.err.replace(&path, name);
        assert!(printed.contains(part), "{part:?} in {printed}");
    }
    fails(
        &ended(home.llama(&["run", &model, "abc", "--arch", &text(home.path("missing.rs"))])),
        &["missing.rs"],
    );
    fails(
        &ended(home.llama(&["run", &model, "abc", "--arch", &text(root().join("archs/qwen3.rs"))])),
        &["does not match architecture `qwen3`"],
    );
}

#[test]
fn files_of_other_names_are_found_or_rejected() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let text_file = write(&home, "declaration.txt", OWN);
    fails(
        &ended(home.llama(&["run", &model, "abc", "--arch", &text_file])),
        &["declaration.txt: expected the name of an architecture, or a declaration file (*.rs)"],
    );
    // A parent may have another file name than its architecture.
    write(&home, "parent.rs", OWN);
    let child = "arch_macros::arch! {\n    name: \"child\";\n    like: \"my-model\";\n}\n";
    let child = write(&home, "child.rs", child);
    assert!(
        ended(home.llama(&["arch", &child]))
            .succeeds()
            .contains("residual_scale")
    );
}

#[test]
fn errors_are_printed_as_json_of_rustc() {
    let home = Home::new();
    let fragment =
        "//! Äußere.\n\nfragment! {\n    tensors {\n        /* ä */ w: linear \"w\" [n_embd -> n_embbd];\n    }\n}\n";
    write(&home, "fragments/my_fragment.rs", fragment);
    let declaration = OWN
        .replace("my_scale;", "no_scale;")
        .replace("        layer {", "        use my_fragment;\n        layer {");
    let path = write(&home, "my_model.rs", &declaration);
    let errors = |args: &[&str]| -> Vec<serde_json::Value> {
        let checked = ended(home.llama(&[&["arch", "check"][..], args, &["--message-format", "json"]].concat()));
        let lines = checked.out.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("a JSON object per line"))
            .collect()
    };
    let all = errors(&["--file", &path]);
    let with = |part: &str| {
        let mut found = all.iter().filter(|e| e["message"].as_str().unwrap().contains(part));
        found.next().unwrap_or_else(|| panic!("{part}: {all:?}"))
    };
    let (own, of_fragment) = (with("no_scale"), with("n_embbd"));
    let fragment_path = text(home.path("fragments/my_fragment.rs"));
    for (error, file, text, part) in [
        (own, path.as_str(), declaration.as_str(), "no_scale"),
        (of_fragment, fragment_path.as_str(), fragment, "n_embbd"),
    ] {
        assert_eq!(
            (&error["level"], &error["$message_type"]),
            (&"error".into(), &"diagnostic".into())
        );
        let span = &error["spans"][0];
        assert_eq!(
            (&span["file_name"], &span["is_primary"]),
            (&file.into(), &true.into()),
            "{error}"
        );
        let at = |name: &str| span[name].as_u64().expect("a number") as usize;
        assert_eq!(&text[at("byte_start")..at("byte_end")], part);
        let line: Vec<char> = text.lines().nth(at("line_start") - 1).unwrap().chars().collect();
        let found: String = line[at("column_start") - 1..at("column_end") - 1].iter().collect();
        assert_eq!(found, part);
        assert!(error["rendered"].as_str().unwrap().contains(part), "{error}");
    }
    // The second location of an error in a fragment is the `use` in the declaration.
    let used = &of_fragment["spans"][1];
    assert_eq!(
        (&used["file_name"], &used["is_primary"]),
        (&path.as_str().into(), &false.into())
    );
    assert_eq!(used["text"][0]["text"], "        use my_fragment;");
    // Errors in built-in texts are at the declaration.
    let unused = OWN.replace("            x += ffn(rms_norm(x, ffn_norm));\n", "");
    let path = write(&home, "my_model.rs", &unused);
    let errors_of_unused = errors(&[&path]);
    assert!(
        errors_of_unused
            .iter()
            .all(|e| e["spans"][0]["file_name"] == path.as_str())
    );
    let is_located = |e: &serde_json::Value| e["message"].as_str().unwrap().starts_with("fragments/gated_ffn.rs:");
    assert!(errors_of_unused.iter().any(is_located), "{errors_of_unused:?}");
    let valid = write(&home, "my_model.rs", OWN);
    assert_eq!(errors(&[&valid]), Vec::<serde_json::Value>::new());
}

#[test]
fn new_declaration_passes_check() {
    let home = Home::new();
    let directory = text(home.path(""));
    ended(home.llama(&["arch", "new", "my-own", "--like", "llama", "-o", &directory])).succeeds();
    let path = text(home.path("my_own.rs"));
    ended(home.llama(&["arch", "check", &path])).succeeds();
    fails(
        &ended(home.llama(&["arch", "new", "my-own", "--like", "llama", "-o", &directory])),
        &["my_own.rs", "exists"],
    );
    fails(
        &ended(home.llama(&["arch", "new", "other", "--like", "lama", "-o", &directory])),
        &["did you mean llama"],
    );
    fails(
        &ended(home.llama(&["arch", "new", "qwen3", "--like", "llama", "-o", &directory])),
        &["`qwen3`", "built-in"],
    );
}

#[test]
fn declaration_in_model_file_is_used_on_request() {
    let home = Home::new();
    let declaration = write(&home, "my_model.rs", OWN);
    let model = seed(&home, &declaration, "my-model");
    let expected = logits(&home, &model, &["--arch", &declaration]);
    let with = text(home.path("with.gguf"));
    let key = "general.architecture.declaration";
    let embed = |from: &str, file: &str, to: &str| {
        let value = format!("{key}={file}");
        ended(home.llama(&["gguf", "set", from, "--file", &value, "-o", to])).succeeds();
    };
    embed(&model, &declaration, &with);
    let inspected = ended(home.llama(&["inspect", &with, "--arch", "file:"]));
    let shown = inspected.succeeds();
    assert!(
        shown.contains("matches: every tensor") && shown.contains("the file contains a declaration"),
        "{shown}"
    );
    assert_eq!(logits(&home, &with, &["--arch", "file:"]), expected);
    // The file is untrusted, so its declaration has no effect without the option.
    let out = text(home.path("out.logits"));
    let run = |model: &str, args: &[&str]| {
        let fixed = ["logits", "-m", model, "-o", &out, "--tokens", "1"];
        ended(home.llama(&[&fixed[..], args].concat()))
    };
    fails(&run(&with, &[]), &["unsupported architecture `my-model`"]);
    fails(&run(&model, &["--arch", "file:"]), &["has no declaration", key]);
    // Files next to the model are not part of it.
    let near = write(
        &home,
        "near.rs",
        &OWN.replace("        layer {", "        use my_fragment;\n        layer {"),
    );
    let fragment = std::fs::read_to_string(root().join("archs/fragments/logit_scale.rs")).unwrap();
    write(&home, "fragments/my_fragment.rs", &fragment);
    let other = text(home.path("other.gguf"));
    embed(&model, &near, &other);
    fails(
        &run(&other, &["--arch", "file:"]),
        &[
            "other.gguf:general.architecture.declaration:",
            "no fragment named `my_fragment`",
        ],
    );
}

/// Llama under another name: outputs equal those of the built-in architecture.
const LLAMA: &str =
    "//! Llama under another name.\n\narch_macros::arch! {\n    name: \"my-llama\";\n    like: \"llama\";\n}\n";

#[test]
#[cfg(unix)]
fn declaration_runs_and_serves_text() {
    let home = Home::new();
    let model = home.model_with_text("llama", None);
    let path = write(&home, "my_llama.rs", LLAMA);
    let run = |args: &[&str]| -> String {
        let fixed = ["run", &model, "abc", "--temp", "0", "-n", "12", "--no-stats"];
        let ended = ended(home.llama(&[&fixed[..], args].concat()));
        ended.succeeds().to_owned()
    };
    assert_eq!(run(&["--arch", &path]), run(&[]));
    let complete = |args: &[&str]| -> serde_json::Value {
        let fixed = ["serve", &model, "--port", "0", "-c", "256"];
        let server = crate::serve::Serving::start(home.llama(&[&fixed[..], args].concat()));
        // A change of the file has no effect on the server.
        std::fs::write(&path, "nonsense").unwrap();
        let body = r#"{"prompt": "abc", "max_tokens": 12, "temperature": 0}"#;
        let response = server.request("POST /v1/completions", body);
        std::fs::write(&path, LLAMA).unwrap();
        let (_, body) = response.split_once("\r\n\r\n").expect("a body");
        let parsed: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {response}"));
        parsed["choices"][0]["text"].clone()
    };
    let text = complete(&["--arch", &path]);
    assert!(text.is_string(), "{text}");
    assert_eq!(text, complete(&[]));
}

#[test]
fn variable_that_names_no_directory_is_an_error() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    ended(home.llama(&["gguf", "set", &model, "general.architecture=mine", "--force"])).succeeds();
    let mut command = home.llama(&["run", &model, "hi", "-n", "1"]);
    command.env("LLAMA_ARCHS", home.path("missing"));
    ended(command).fails_saying(&["LLAMA_ARCHS=", "missing: not a directory"]);
}
