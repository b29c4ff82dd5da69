//! Tests of structured output, stop strings, and chat templates with models of random weights.

use crate::common::{Ended, Home, ended};

fn run(home: &Home, model: &str, args: &[&str]) -> Ended {
    ended(home.llama(&[&["run", model, "abc", "--no-stats"], args].concat()))
}

/// Returns the response without the trailing newline.
fn answer(home: &Home, model: &str, args: &[&str]) -> String {
    let ended = run(home, model, args);
    ended.succeeds().strip_suffix('\n').unwrap_or_default().to_owned()
}

#[test]
fn responses_match_constraints() {
    let home = Home::new();
    for kind in ["llama", "gpt2"] {
        let model = home.model_with_text(kind, None);
        let of = |args: &[&str]| answer(&home, &model, &[args, &["-n", "60"]].concat());
        for seed in ["1", "2", "3"] {
            let digits = of(&["--regex", "[0-9]{3}-[0-9]", "-s", seed]);
            assert!(digits.len() == 5 && digits.as_bytes()[3] == b'-', "{digits}");
            assert!(["yes", "no"].contains(&of(&["--choice", "yes", "--choice", "no", "-s", seed]).as_str()));
            assert_eq!(
                of(&["--grammar", "root ::= \"x\" y\ny ::= \"z\"{2}", "-s", seed]),
                "xzz"
            );
            let schema = r#"{"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": [1, "c"]}}, "required": ["a", "b"], "additionalProperties": false}"#;
            let json: serde_json::Value = serde_json::from_str(&of(&["-j", schema, "-s", seed])).unwrap();
            assert!(json["a"].is_boolean() && (json["b"] == 1 || json["b"] == "c"), "{json}");
        }
    }
}

#[test]
fn constraint_files_equal_flags_and_drafts_change_nothing() {
    let home = Home::new();
    let model = home.model_with_text("llama", None);
    let write = |name: &str, text: &str| {
        let path = home.path(name);
        std::fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let grammar = "root ::= (\"ab\" | [c-f])+ \".\"";
    let file = write("a.gbnf", grammar);
    let base = ["-n", "40", "--temp", "0"];
    let plain = answer(&home, &model, &[&base[..], &["--grammar", grammar]].concat());
    assert_eq!(
        answer(&home, &model, &[&base[..], &["--grammar-file", &file]].concat()),
        plain
    );
    assert_eq!(
        answer(
            &home,
            &model,
            &[&base[..], &["--grammar", grammar, "--prompt-lookup"]].concat()
        ),
        plain
    );
    assert!(
        plain.chars().all(|c| ('a'..='f').contains(&c) || c == '.') && !plain.is_empty(),
        "{plain}"
    );
    let schema = write("a.json", r#"{"const": [1]}"#);
    let json: serde_json::Value = serde_json::from_str(&answer(&home, &model, &["-jf", &schema])).unwrap();
    assert_eq!(json, serde_json::json!([1]));
}

#[test]
fn invalid_constraints_are_rejected() {
    let home = Home::new();
    let model = home.model_with_text("llama", None);
    for (args, told) in [
        (["--grammar", "root ::= \"a"], &["--grammar: line 1, column 10"][..]),
        (
            ["--json-schema", r#"{"items": {"not": {}}}"#],
            &["#/items", "unsupported keyword \"not\""],
        ),
        (["--json-schema", "{"], &["--json-schema: line 1"]),
        (["--regex", "a("], &["--regex", "unclosed"]),
        (["--grammar-file", "/no/such"], &["/no/such"]),
        (["-r", ""], &["-r must not be empty"]),
        (["--chat-template", "{% if %}"], &["--raw"]),
        (["--chat-template", "nosuch"], &["nosuch", "chatml"]),
        (["--chat-template", "{{ bos_token }}"], &["the user's message"]),
    ] {
        let refused = run(&home, &model, &args);
        assert_eq!((refused.status, refused.out.as_str()), (1, ""), "{args:?}");
        for part in told {
            assert!(refused.err.contains(part), "{part:?} in {}", refused.err);
        }
    }
    for args in [
        &["--regex", "a", "--choice", "b"][..],
        &["--ignore-eos", "--regex", "a"],
        &["--chat-template-kwargs", "[]"],
    ] {
        assert_eq!(run(&home, &model, args).status, 2, "{args:?}");
    }
}

#[test]
fn stop_strings_and_ignore_eos_determine_the_end() {
    let home = Home::new();
    let model = home.model_with_text("llama", None);
    let base = [
        "--grammar",
        "root ::= \"one two three four\" [a-z]*",
        "-n",
        "30",
        "-s",
        "1",
    ];
    let of = |args: &[&str]| answer(&home, &model, &[&base[..], args].concat());
    assert_eq!(of(&["-r", "three"]), "one two ");
    assert_eq!(of(&["-r", "wo t", "-r", "e t"]), "on");
    assert_eq!(of(&["-e", "-r", "\\x20t"]), "one");
    assert!(of(&[]).starts_with("one two three four"));
    // The bias makes the end-of-sequence token certain.
    let ends = ["--logit-bias", "2+inf", "--temp", "0", "-n", "5"];
    let count = |args: &[&str]| {
        let told = ended(home.llama(&[&["run", &model, "abc"], &ends[..], args].concat()));
        told.succeeds();
        told.err
    };
    assert!(count(&["--ignore-eos"]).contains("generated 5 tokens"));
}

#[test]
fn template_flags_replace_template_and_variables() {
    let home = Home::new();
    let model = home.model_with_text("gpt2", Some("{{ messages[0].content }}"));
    let file = |name: &str, text: &str| {
        let path = home.path(name);
        std::fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let base = ["-n", "5", "--temp", "0"];
    let of = |args: &[&str]| answer(&home, &model, &[&base[..], args].concat());
    let jinja =
        "{{ messages[-1].content }}{{ 'x' if enable_thinking is defined and enable_thinking else 'y' }}{{ more }}";
    let path = file("t.jinja", jinja);
    let raw = |prompt: &str| {
        let args = ["run", &model, prompt, "--no-stats", "--raw"];
        let ended = ended(home.llama(&[&args, &base[..]].concat()));
        ended.succeeds().strip_suffix('\n').unwrap_or_default().to_owned()
    };
    assert_eq!(of(&[]), raw("abc"));
    // As in llama-server, templates that can think do so by default.
    assert_eq!(of(&["--chat-template", jinja]), raw("abcx"));
    assert_eq!(of(&["--chat-template-file", &path, "--reasoning", "on"]), raw("abcx"));
    assert_eq!(of(&["--chat-template-file", &path, "--reasoning", "off"]), raw("abcy"));
    assert_eq!(
        of(&[
            "--chat-template",
            jinja,
            "--chat-template-kwargs",
            r#"{"more": 12, "enable_thinking": true}"#
        ]),
        raw("abcx12")
    );
    let windows = file(
        "w.jinja",
        &format!("\u{feff}{{% if true %}}\r\n{jinja}{{% endif %}}\r\n"),
    );
    assert_eq!(of(&["--chat-template-file", &windows]), raw("abcx"));
    assert_eq!(
        of(&["--chat-template", "chatml"]),
        raw("<|im_start|>user\nabc<|im_end|>\n<|im_start|>assistant\n")
    );
    let system = file("s.txt", "be\\nkind\n");
    let with_system = "{% for m in messages %}{{ m.content }};{% endfor %}";
    assert_eq!(
        of(&["--chat-template", with_system, "-sysf", &system]),
        raw("be\\nkind;abc;")
    );
    assert_eq!(
        of(&["--chat-template", with_system, "-sysf", &system, "-e"]),
        raw("be\nkind;abc;")
    );
}

/// A model with random weights generates favored tokens and never banned ones.
#[test]
fn logit_bias_text_favors_and_bans_tokens() {
    let home = Home::new();
    for kind in ["llama", "gpt2"] {
        let model = home.model_with_text(kind, None);
        let of = |args: &[&str]| {
            answer(
                &home,
                &model,
                &[&["-n", "3", "--temp", "0", "--no-loop-detection"], args].concat(),
            )
        };
        assert_eq!(of(&["--logit-bias-text", "yes=1000"]), "yesyesyes");
        assert_eq!(of(&["--logit-bias-text", "==1000"]), "===");
        assert_eq!(of(&["--logit-bias-text", " =1000", "--regex", "[x ]{3}"]), "   ");
        let both = ["--logit-bias-text", "yes=1000", "--logit-bias-text", "yes=-inf"];
        assert!(!of(&both).contains("yes"));
        assert_eq!(of(&["-e", "--logit-bias-text", "\\x6eo=1000"]), "nonono");
        let several = run(&home, &model, &["--logit-bias-text", "yes no=1"]);
        several.fails_saying(&[
            "--logit-bias-text",
            "\"yes no\" is not a single token of this model",
            "\"y\", \"e\", \"s\"",
        ]);
        assert_eq!(run(&home, &model, &["--logit-bias-text", "yes=much"]).status, 2);
    }
}

/// Reasoning is dimmed on terminals, hidden with a flag, and otherwise printed as plain text.
#[test]
fn reasoning_is_dimmed_on_terminal_or_hidden() {
    let home = Home::new();
    let template = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}";
    let grammar = ["--grammar", "root ::= \"<think>ab</think>\\nyes\""];
    let model = home.model_with_text("llama", Some(template));
    let thought = "<think>ab</think>\nyes";
    assert_eq!(answer(&home, &model, &grammar), thought);
    assert_eq!(
        answer(&home, &model, &[&grammar[..], &["--hide-reasoning"]].concat()),
        "yes"
    );
    // Without a chat template, the tags are plain text.
    let raw = answer(&home, &model, &[&grammar[..], &["--hide-reasoning", "--raw"]].concat());
    assert_eq!(raw, thought);
    #[cfg(unix)]
    for (name, value, is_dimmed) in [
        ("NO_COLOR", "", true),
        ("NO_COLOR", "1", false),
        ("TERM", "dumb", false),
    ] {
        let seen = if is_dimmed {
            "\x1b[2m<think>ab</think>\x1b[0m\r\nyes\r\n"
        } else {
            "<think>ab</think>\r\nyes\r\n"
        };
        let mut command = home.llama(&[&["run", &model, "abc", "--no-stats"], &grammar[..]].concat());
        command.env_remove("NO_COLOR").env(name, value);
        let mut terminal = crate::common::terminal::Terminal::start(command);
        let all = terminal.wait_for("yes\r\n");
        assert!(all.ends_with(seen), "{all:?}");
        assert_eq!(all.contains("\x1b[2m"), is_dimmed, "{all:?}");
        assert!(terminal.end().success());
    }
}
