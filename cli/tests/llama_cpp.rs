//! Tests that accepted llama.cpp options have the expected effect. Unit tests in `cli/app/src/llama_cpp` cover
//! the complete option table.

use crate::common::{Ended, Home, ended};

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/// Greedy and short, so that outputs can be compared.
const SHORT: [&str; 4] = ["--temp", "0", "-n", "6"];

fn run(home: &Home, model: &str, args: &[&str]) -> Ended {
    ended(home.llama(&[&["-m", model, "-p", "abc"], &SHORT[..], args].concat()))
}

#[test]
fn prompt_and_tokens_are_printed_with_flags() {
    let home = Home::new();
    let model = home.model("llama-dense", Some(TEMPLATE));
    let plain = run(&home, &model, &["--no-show-timings"]);
    assert_eq!(plain.err, "");
    let shown = run(&home, &model, &["--no-perf", "--display-prompt"]);
    assert_eq!(shown.succeeds(), format!("<user>abc<assistant>{}", plain.succeeds()));
    let hidden = run(
        &home,
        &model,
        &["--display-prompt", "--no-display-prompt", "--show-timings"],
    );
    assert_eq!(hidden.succeeds(), plain.out);
    assert!(hidden.err.contains("tok/s"));
    let tokens = run(&home, &model, &["--no-stats", "--verbose-prompt"]);
    let (head, rows) = tokens.err.split_once('\n').expect("lines");
    let n: usize = head.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number");
    assert!(
        head.starts_with("prompt: ") && rows.lines().count() == n,
        "{}",
        tokens.err
    );
}

#[test]
fn special_tokens_are_printed_with_flag() {
    let home = Home::new();
    let model = home.model_with_text("llama", None);
    // The bias forces the BOS token.
    let answer = |args: &[&str]| {
        let args = [&["--logit-bias", "1+inf", "--no-loop-detection", "--raw"], args].concat();
        run(&home, &model, &args).succeeds().trim_end().to_owned()
    };
    assert_eq!(answer(&[]), "");
    assert_eq!(answer(&["--special"]), "<s>".repeat(6));
}

#[test]
fn log_flags_redirect_messages() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let file = home.path("log.txt");
    let file = file.to_str().unwrap();
    let read = || std::fs::read_to_string(file).unwrap_or_default();
    let silent = run(&home, &model, &["--log-disable", "-c", "100000", "--log-file", file]);
    assert_eq!((silent.status, silent.err.as_str()), (0, ""));
    assert!(
        read().contains("exceeds the model's training context") && read().contains("tok/s"),
        "{}",
        read()
    );
    let warned = run(&home, &model, &["-lv", "2", "-c", "100000", "--log-prefix"]);
    assert!(
        warned.err.starts_with("W warning: ") && warned.err.lines().count() == 1,
        "{}",
        warned.err
    );
    let all = run(&home, &model, &["-lv", "4"]);
    assert!(
        all.err.contains("memory   weights") && all.err.contains("tok/s"),
        "{}",
        all.err
    );
    let json = run(&home, &model, &["--log-jsonl", "--log-timestamps"]);
    let line: serde_json::Value = serde_json::from_str(json.err.trim()).expect("one JSON object per line");
    assert!(
        line["message"].as_str().is_some_and(|text| text.contains("tok/s")),
        "{line}"
    );
    assert!(line["level"] == "info" && line["seconds"].is_f64(), "{line}");
    run(&home, &model, &["--log-file", "/no/such/directory/log"])
        .fails_saying(&["--log-file", "/no/such/directory/log"]);
}

#[test]
fn llama_cpp_variables_are_accepted() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let said = |variables: &[(&str, &str)], args: &[&str]| {
        let mut command = home.llama(&[&["-m", &model, "-p", "abc", "-v"], args].concat());
        command.envs(variables.iter().copied());
        let ended = ended(command);
        ended.succeeds();
        ended.err
    };
    let theirs = [("LLAMA_ARG_UBATCH", "16"), ("LLAMA_ARG_N_PREDICT", "3")];
    let by_theirs = said(&theirs, &[]);
    assert!(
        by_theirs.contains("ubatch size 16") && by_theirs.contains("generated 3"),
        "{by_theirs}"
    );
    let both = [theirs[0], ("LLAMA_ARG_UBATCH_SIZE", "8"), ("LLAMA_ARG_PREDICT", "1")];
    assert!(said(&both, &[]).contains("ubatch size 8"));
    assert!(said(&theirs, &["-ub", "4"]).contains("ubatch size 4"));
}

/// The values are those that llama.cpp's `is_truthy`, `is_falsey`, and `is_autoy` accept.
#[test]
fn on_off_values_of_llama_cpp_are_accepted() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let said = |variables: &[(&str, &str)], args: &[&str]| {
        let mut command = home.llama(&[&["-m", &model, "-p", "abc"], &SHORT[..], args].concat());
        command.envs(variables.iter().copied());
        ended(command)
    };
    for (value, is_off) in [
        ("on", false),
        ("true", false),
        ("enabled", false),
        ("1", false),
        ("auto", false),
        ("-1", false),
        ("off", true),
        ("false", true),
        ("disabled", true),
        ("0", true),
    ] {
        for ended in [
            said(&[("LLAMA_ARG_FLASH_ATTN", value)], &[]),
            said(&[], &[&format!("--flash-attn={value}")]),
        ] {
            ended.succeeds();
            assert_eq!(
                ended.err.contains("-fa off has no effect"),
                is_off,
                "{value}: {}",
                ended.err
            );
        }
        for flag in ["--color", "--log-colors", "--reasoning"] {
            said(&[], &[&format!("{flag}={value}")]).succeeds();
        }
        if !["auto", "-1"].contains(&value) {
            said(&[], &["--fit", value]).succeeds();
        }
    }
    for (flag, value) in [("--fit", "auto"), ("--flash-attn", "perhaps"), ("--color", "")] {
        let refused = said(&[], &[&format!("{flag}={value}")]);
        assert_eq!(refused.status, 2, "{flag}={value}");
    }
}

#[test]
fn boolean_variables_set_or_negate_flags() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let run = |variable: &str, value: &str| {
        let mut command = home.llama(&[&["-m", &model, "-p", "abc"], &SHORT[..]].concat());
        command.env(variable, value);
        ended(command)
    };
    for (variable, value, has_stats) in [
        ("LLAMA_ARG_NO_STATS", "1", false),
        ("LLAMA_ARG_NO_STATS", "enabled", false),
        ("LLAMA_ARG_NO_STATS", "0", true),
        ("LLAMA_ARG_NO_STATS", "", true),
        ("LLAMA_ARG_STATS", "false", false),
        ("LLAMA_ARG_STATS", "disabled", false),
        ("LLAMA_ARG_STATS", "on", true),
        ("LLAMA_ARG_PERF", "0", false),
        ("LLAMA_ARG_SHOW_TIMINGS", "off", false),
        ("LLAMA_ARG_SHOW_TIMINGS", "True", true),
        ("LLAMA_ARG_NO_PERF", "1", false),
        ("LLAMA_ARG_MMAP", "0", true),
        ("LLAMA_ARG_MLOCK", "false", true),
        ("LLAMA_ARG_CTX_SIZE", "", true),
    ] {
        let ended = run(variable, value);
        ended.succeeds();
        assert_eq!(
            ended.err.contains("tok/s"),
            has_stats,
            "{variable}={value}: {}",
            ended.err
        );
    }
    // --mmap does not exist, so the variable sets --no-mmap, which --load-mode excludes.
    let refused = |variables: &[(&str, &str)]| {
        let mut command = home.llama(&["-m", &model, "-p", "abc"]);
        command.envs(variables.iter().copied());
        let refused = ended(command);
        assert_eq!(refused.status, 2, "{variables:?}: {}", refused.err);
        refused.err
    };
    let error = refused(&[("LLAMA_ARG_MMAP", "0"), ("LLAMA_ARG_LOAD_MODE", "mmap")]);
    assert!(
        error.contains("LLAMA_ARG_MMAP") && error.contains("LLAMA_ARG_LOAD_MODE"),
        "{error}"
    );
    let error = refused(&[("LLAMA_ARG_NO_STATS", "perhaps")]);
    assert!(error.contains("LLAMA_ARG_NO_STATS (--no-stats)"), "{error}");
}

#[test]
fn numbers_of_llama_cpp_for_automatic_values_are_accepted() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let plain = run(&home, &model, &[]).succeeds().to_owned();
    for args in [
        ["-t", "0"],
        ["-t", "-1"],
        ["-ngl", "-1"],
        ["-ngl", "-2"],
        ["-dev", "none"],
    ] {
        assert_eq!(run(&home, &model, &args).succeeds(), plain, "{args:?}");
    }
}

#[test]
fn every_cache_type_generates_text() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let exact = run(&home, &model, &["-ctk", "f32", "-ctv", "f32"]);
    for ty in ["f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"] {
        let answer = run(&home, &model, &["-ctk", ty, "-ctv", ty, "-v"]);
        answer.succeeds();
        assert!(
            answer.err.contains(&format!("KV cache {ty} and {ty}")),
            "{}",
            answer.err
        );
    }
    assert_eq!(
        run(&home, &model, &["-ctk", "f16", "-ctv", "f16"]).succeeds(),
        exact.succeeds()
    );
    let refused = run(&home, &model, &["-ctk", "q4_K"]);
    assert!(refused.status == 2 && refused.err.contains("iq4_nl"), "{}", refused.err);
}

#[test]
fn rope_scaling_options_change_output() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let logits = |args: &[&str]| {
        let text = format!("abc {}", "de fg ".repeat(12));
        let args = [
            &["-m", &model, "-p", &text, "-n", "24", "--temp", "0", "--no-stats"],
            args,
        ]
        .concat();
        ended(home.llama(&args)).succeeds().to_owned()
    };
    let plain = logits(&[]);
    let stretched = logits(&["--rope-scale", "8"]);
    assert_ne!(plain, stretched);
    assert_eq!(logits(&["--rope-freq-scale", "0.125"]), stretched);
    assert_eq!(logits(&["--rope-scale", "8", "--rope-scaling", "linear"]), stretched);
    assert_eq!(logits(&["--rope-scale", "8", "--rope-scaling", "none"]), plain);
    let yarn = logits(&["--rope-scale", "8", "--rope-scaling", "yarn", "--yarn-orig-ctx", "64"]);
    assert!(yarn != plain && yarn != stretched);
    let by_factor = ["--rope-scale", "8", "--yarn-ext-factor", "1", "--yarn-orig-ctx", "64"];
    assert_eq!(logits(&by_factor), yarn);
    for more in [
        ["--yarn-beta-slow", "8"],
        ["--yarn-attn-factor", "3"],
        ["--yarn-ext-factor", "0.2"],
    ] {
        let args = [
            &["--rope-scale", "8", "--rope-scaling", "yarn", "--yarn-orig-ctx", "64"],
            &more[..],
        ]
        .concat();
        assert_ne!(logits(&args), yarn, "{more:?}");
    }
}

#[test]
fn ffn_of_first_layers_stays_on_cpu() {
    let home = Home::new();
    let (dense, experts) = (home.model("llama-dense", None), home.model("llama-moe", None));
    let on_device = |model: &str, args: &[&str]| {
        let args = [
            &["inspect", model, "--plan-tensors", "-dev", "reference", "-ngl", "all"],
            args,
        ]
        .concat();
        let plan = ended(home.llama(&args)).succeeds().to_owned();
        let of_ffn = plan
            .lines()
            .filter(|line| line.contains(".ffn_") && line.contains("reference"));
        of_ffn
            .map(|line| line.split_whitespace().next().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    let has = |names: &[String], part: &str| names.iter().any(|name| name.contains(part));
    let all = on_device(&dense, &[]);
    assert!(has(&all, "blk.0.ffn_up") && has(&all, "blk.1.ffn_up"), "{all:?}");
    let rest = on_device(&dense, &["-ncffn", "1"]);
    assert!(
        !has(&rest, "blk.0.ffn_up") && has(&rest, "blk.0.ffn_norm") && has(&rest, "blk.1.ffn_up"),
        "{rest:?}"
    );
    let kept = on_device(&experts, &["-ncffn", "1"]);
    assert!(has(&kept, "blk.0.ffn_up_exps"), "{kept:?}");
}

#[test]
fn spec_type_names_are_accepted() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let plain = run(&home, &model, &[]).succeeds().to_owned();
    for kind in ["ngram-simple", "ngram-mod"] {
        let guessed = run(&home, &model, &["--spec-type", kind]);
        assert_eq!(guessed.succeeds(), plain);
        assert!(guessed.err.contains("draft"), "{}", guessed.err);
    }
    let none = run(&home, &model, &["--prompt-lookup", "--spec-type", "none"]);
    assert!(none.status == 0 && !none.err.contains("draft"), "{}", none.err);
    let smaller = run(
        &home,
        &model,
        &["--spec-type", "draft-simple", "-md", &model, "-ngld", "0"],
    );
    assert_eq!(smaller.succeeds(), plain);
    run(&home, &model, &["--spec-type", "draft-simple"]).fails_saying(&["--spec-type", "--draft"]);
    run(&home, &model, &["--spec-type", "ngram-mod", "-md", &model]).fails_saying(&["another drafting method"]);
    run(&home, &model, &["--spec-type", "draft-mtp"]).fails_saying(&["--mtp"]);
}

#[test]
fn read_only_prompt_cache_is_not_written() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let file = home.path("session");
    let file = file.to_str().unwrap();
    let long = ["-p", "once upon a time there was", "--prompt-cache", file];
    run(&home, &model, &long).succeeds();
    let before = std::fs::read(file).unwrap();
    let only_read = ["--prompt-cache-ro", "--prompt-cache-all", "-n", "9"];
    let read = run(&home, &model, &[&long[..], &only_read].concat());
    read.succeeds();
    assert!(read.err.contains(" cached)"), "{}", read.err);
    assert_eq!(std::fs::read(file).unwrap(), before);
}

#[test]
fn reasoning_ends_when_budget_is_exhausted() {
    let home = Home::new();
    let template = "{{ messages[0].content }}{% if false %}</think>{% endif %}<think>";
    let model = home.model_with_text("gpt2", Some(template));
    let answer = |args: &[&str]| {
        run(
            &home,
            &model,
            &[&["-n", "48", "--no-loop-detection", "--logit-bias", "127-inf"], args].concat(),
        )
        .succeeds()
        .to_owned()
    };
    let free = answer(&[]);
    assert!(!free.contains("</think>"), "{free}");
    let cut = answer(&["--reasoning-budget", "3", "--reasoning-budget-message", "enough"]);
    let (thought, _) = cut
        .split_once("\nenough\n</think>")
        .unwrap_or_else(|| panic!("{cut:?}"));
    assert!(free.starts_with(thought) && !thought.is_empty(), "{free:?} {cut:?}");
    assert!(answer(&["--reasoning-budget", "0"]).starts_with("<think>\n</think>"));
    // The closing tag is a special token and is printed anyway.
    assert_eq!(answer(&["--reasoning-budget", "0", "-n", "2"]), "<think>\n</think>\n");
    assert_eq!(answer(&["--reasoning-budget", "-1"]), free);
    assert!(!answer(&["--reasoning-budget", "0", "--hide-reasoning"]).contains("think"));
}

#[test]
fn default_token_limit_is_reported() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let run = |args: &[&str]| {
        let args = [
            &[
                "run",
                &model,
                "abc",
                "-c",
                "4096",
                "--no-loop-detection",
                "--ignore-eos",
            ],
            args,
        ]
        .concat();
        ended(home.llama(&args))
    };
    let stopped = run(&[]);
    stopped.succeeds();
    for part in [
        "generated 2048 tokens",
        "reached the default limit of 2048 tokens",
        "-n -1",
    ] {
        assert!(stopped.err.contains(part), "{part}: {}", stopped.err);
    }
    let asked = run(&["-n", "20"]);
    assert!(
        asked.err.contains("generated 20 tokens") && !asked.err.contains("may have"),
        "{}",
        asked.err
    );
    assert!(run(&["-n", "-1"]).err.contains("is full"));
    assert!(
        run(&["-n", "-2", "--context-shift", "-c", "64"])
            .err
            .contains("is full")
    );
}

#[test]
fn layers_and_context_are_fitted_to_memory() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let on = |device: &str, args: &[&str]| run(&home, &model, &[&["-dev", device, "-ub", "16"], args].concat());
    let none = on("cpu,reference:16", &[]);
    none.succeeds();
    assert!(
        none.err.contains("0 of 3 layers fit in free device memory"),
        "{}",
        none.err
    );
    // Without `cpu` in --device it is an error if no layer fits.
    let named = on("reference:16", &["-fitt", "4"]);
    named.succeeds();
    assert!(!named.err.contains("0 of 3"), "{}", named.err);
    let some = on("reference:12", &["-fitt", "4"]);
    some.succeeds();
    assert!(
        some.err.contains("of 3 layers fit in free device memory"),
        "{}",
        some.err
    );
    on("reference:16", &[]).fails_saying(&["cannot offload a single layer to reference"]);
    on("reference:2", &["-ngl", "all"]).fails_saying(&["reference"]);
    // -fitt sets the free memory. A model that does not fit is an error.
    let some = on("cpu,reference:16", &["-fitt", "4"]);
    some.succeeds();
    assert!(!some.err.contains("0 of 3"), "{}", some.err);
    on("cpu,reference:2", &["-fit", "off"]).fails_saying(&["reference"]);
    // A cache of 4096 tokens takes 8 MiB, and the weights take half of that.
    let small = on("reference:10", &["-ngl", "all"]);
    small.succeeds();
    let told = "context reduced to 2048 tokens: not enough memory for 4096";
    assert!(
        small.err.contains(told) && small.err.contains("of 2048"),
        "{}",
        small.err
    );
    for fixed in [&["-c", "4096"][..], &["-fit", "off"], &["-fitc", "4096"]] {
        let refused = on("reference:10", &[&["-ngl", "all"], fixed].concat());
        refused.fails_saying(&["cannot allocate the KV cache: 4096 tokens"]);
    }
}
