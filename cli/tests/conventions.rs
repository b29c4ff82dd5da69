//! Tests of command-line conventions from other engines. They work as expected, or an error suggests the
//! right flag.

use crate::common::{Home, ended, ended_with_input};

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/// Greedy and short, so that outputs can be compared.
const SHORT: [&str; 5] = ["--temp", "0", "-n", "6", "--no-stats"];

#[test]
fn command_defaults_to_run() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let answer = |args: &[&str]| ended(home.llama(&[args, &SHORT].concat())).succeeds().to_owned();
    let expected = answer(&["run", &model, "abc"]);
    assert_eq!(answer(&["-m", &model, "-p", "abc"]), expected);
    assert_eq!(answer(&[&model, "abc"]), expected);
}

#[test]
fn help_ignores_terminal_width_of_zero() {
    let home = Home::new();
    let help = |columns: &str| {
        let mut command = home.llama(&["run", "--help"]);
        ended({
            command.env("COLUMNS", columns);
            command
        })
        .succeeds()
        .to_owned()
    };
    assert_eq!(help("0"), help("100"));
    assert_ne!(help("0"), help("40"));
}

#[test]
fn multi_letter_flags_are_not_bundles() {
    let home = Home::new();
    let model = home.model("llama-moe", Some(TEMPLATE));
    let answer = |args: &[&str]| {
        let args = [&["run", "-m", &model, "-p", "abc"], args, &SHORT].concat();
        ended(home.llama(&args)).succeeds().to_owned()
    };
    let (plain, raw) = (answer(&[]), answer(&["--raw"]));
    assert_ne!(plain, raw);
    assert_eq!(answer(&["-no-cnv"]), raw);
    for same in [
        &["-st"][..],
        &["-cmoe"],
        &["-ncmoe", "1"],
        &["-fa", "on"],
        &["-fa", "off"],
        &["-t", "-1"],
        &["-c", "-1"],
    ] {
        assert_eq!(answer(same), plain, "{same:?}");
    }
    let told = ended(home.llama(&[&["run", "-m", &model, "-p", "abc", "-fa", "off"], &SHORT[..]].concat()));
    assert!(told.err.contains("-fa off has no effect"), "{}", told.err);
    let escaped = |prompt: &str, more: &[&str]| {
        let args = [&["run", "-m", &model, "--raw", "-p", prompt], more, &SHORT].concat();
        ended(home.llama(&args)).succeeds().to_owned()
    };
    assert_eq!(escaped("a\\nb", &["-e"]), escaped("a\nb", &[]));
    assert_ne!(escaped("a\\nb", &[]), escaped("a\nb", &[]));
}

#[test]
fn argument_like_model_name_is_not_a_prompt() {
    let home = Home::new();
    ended(home.llama(&["run", "smollm2:136m"])).fails_saying(&[
        "neither a file nor a model name",
        "smollm2:135m",
        "-p",
    ]);
}

#[test]
fn standard_input_is_appended_to_prompt() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let run = |prompt: &str| home.llama(&[&["run", &model, prompt], &SHORT[..]].concat());
    let joined = ended_with_input(run("say it again:"), "once upon\n")
        .succeeds()
        .to_owned();
    assert_eq!(joined, ended(run("say it again:\n\nonce upon")).succeeds());
    let alone = ended_with_input(run("say it again:"), " \n").succeeds().to_owned();
    assert_eq!(alone, ended(run("say it again:")).succeeds());
}

#[test]
fn mistyped_command_gets_suggestion() {
    let home = Home::new();
    for (typed, meant) in [("rnu", "run"), ("benhc", "bench"), ("tokenise", "tokenize")] {
        let refused = ended(home.llama(&[typed]));
        assert_eq!(refused.status, 2);
        assert!(refused.err.contains(&format!("'{meant}'")), "{typed}: {}", refused.err);
    }
    for (typed, meant) in [("chat", "run"), ("download", "pull"), ("delete", "rm")] {
        let refused = ended(home.llama(&[typed]));
        assert!(refused.err.contains(&format!("'{meant}'")), "{typed}: {}", refused.err);
    }
    let refused = ended(home.llama(&["xyzzy"]));
    assert!(!refused.err.contains("similar"), "{}", refused.err);
    for (asked, same) in [
        (&["help"][..], &["--help"][..]),
        (&["help", "arch", "check"], &["arch", "check", "--help"]),
    ] {
        assert_eq!(ended(home.llama(asked)).succeeds(), ended(home.llama(same)).succeeds());
    }
    ended(home.llama(&["arch", "qwem3"])).fails_saying(&["did you mean qwen3"]);
    let flag = ended(home.llama(&["run", "--tempp", "1", "abc"]));
    assert!(flag.status == 2 && flag.err.contains("'--temp'"), "{}", flag.err);
    let model = home.model("llama-dense", None);
    ended(home.llama(&["run", &model, "abc", "--arch", "lama"])).fails_saying(&["did you mean llama"]);
}

#[test]
fn oversized_context_error_names_kv_cache() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    ended(home.llama(&["run", &model, "abc", "-c", "2000000000"])).fails_saying(&[
        "cannot allocate the KV cache: 2000000000 tokens need",
        "TiB",
        "-c",
    ]);
}

#[test]
fn fractional_values_of_integer_flags_are_rejected() {
    let home = Home::new();
    for (flag, value) in [("--top-k", "1.5"), ("-s", "abc"), ("-n", "1.5"), ("-c", "much")] {
        let refused = ended(home.llama(&["run", "x.gguf", "hi", flag, value]));
        assert_eq!(refused.status, 2, "{flag}");
        let says = ["an integer", "a number of tokens", "invalid digit"]
            .iter()
            .any(|part| refused.err.contains(part));
        assert!(says && !refused.err.contains("finite"), "{}", refused.err);
    }
}

#[test]
fn questionable_settings_print_warnings() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let run = |args: &[&str]| ended(home.llama(&[&["run", &model, "abc", "-n", "1", "--no-stats"], args].concat()));
    assert_eq!(run(&[]).err, "");
    let long = run(&["-c", "100000"]).err;
    assert!(
        long.contains("100000 tokens") && long.contains("exceeds the model's training context"),
        "{long}"
    );
    let other = run(&["--arch", "mistral3"]).err;
    assert!(other.contains("architecture is llama"), "{other}");
}

#[test]
fn tokenize_keeps_trailing_newline() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let ids = |input: &str| {
        let args = ["tokenize", "-m", &model, "--ids", "--no-special"];
        ended_with_input(home.llama(&args), input).succeeds().to_owned()
    };
    assert_ne!(ids("a\n"), ids("a"));
}

#[test]
fn flags_override_recommended_sampling() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let run = |args: &[&str]| {
        let args = [&["run", &model, "abc", "-n", "24", "--no-stats", "-s", "1"], args].concat();
        ended(home.llama(&args)).succeeds().to_owned()
    };
    let (greedy, sampled) = (run(&["--temp", "0"]), run(&[]));
    assert_ne!(greedy, sampled);
    let says = ["--override-kv", "general.sampling.temp=float:0"];
    assert_eq!(run(&says), greedy);
    assert_eq!(run(&[&says[..], &["--temp", "0.8"]].concat()), sampled);
    let absurd = [
        "run",
        &model,
        "abc",
        "-n",
        "1",
        "--override-kv",
        "general.sampling.top_p=float:7",
    ];
    let warned = ended(home.llama(&absurd));
    warned.succeeds();
    assert!(
        warned.err.contains("ignoring general.sampling.top_p of the file"),
        "{}",
        warned.err
    );
}

#[test]
fn looping_output_stops() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    // The bias repeats one token forever.
    let looping = [
        "run",
        &model,
        "abc",
        "-n",
        "400",
        "-c",
        "1024",
        "--temp",
        "0",
        "--logit-bias",
        "100+inf",
    ];
    let stopped = ended(home.llama(&looping));
    stopped.succeeds();
    assert!(stopped.err.contains("repeats its last 1 token;"), "{}", stopped.err);
    assert!(stopped.err.contains("generated 160 tokens"), "{}", stopped.err);
    let on = ended(home.llama(&[&looping[..], &["--no-loop-detection"]].concat()));
    on.succeeds();
    assert!(on.err.contains("generated 400 tokens"), "{}", on.err);
}

/// The fallback model with default settings stops on its own, without the token limit or loop detection.
#[test]
#[ignore = "downloads a model (94 MB) and generates 20 responses: one minute"]
fn fallback_model_stops_without_limits() {
    let home = Home::new();
    let model = ::tests::published::path(::tests::published::SMOLLM2);
    let model = model.to_str().expect("a UTF-8 path");
    for question in ["Why is the sky blue?", "haiku", "Introduce yourself.", "hi"] {
        for seed in ["1", "2", "3", "4", "5"] {
            let answer = ended(home.llama(&["run", model, question, "-s", seed]));
            assert!(!answer.succeeds().trim().is_empty(), "{question} {seed}");
            let stats: Vec<_> = answer.err.lines().collect();
            assert!(
                stats.len() == 1 && stats[0].starts_with("prompt "),
                "{question:?} with seed {seed} did not end with an end-of-sequence token: {}",
                answer.err
            );
        }
    }
}

#[test]
fn commands_accept_model_as_argument_or_flag() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let same = |a: &[&str], b: &[&str]| {
        let (a, b) = (ended(home.llama(a)), ended(home.llama(b)));
        assert_eq!(a.succeeds(), b.succeeds());
        assert!(!a.out.is_empty());
    };
    same(&["tokenize", &model, "abc"], &["tokenize", "-m", &model, "-p", "abc"]);
    same(&["embed", &model, "abc"], &["embed", "-m", &model, "abc"]);
    let out = home.path("logits");
    let out = out.to_str().unwrap();
    for args in [&["logits", &model][..], &["logits", "-m", &model]] {
        let args = [args, &["--tokens", "1,2", "-o", out, "-ctk", "f32", "-ub", "1"]].concat();
        ended(home.llama(&args)).succeeds();
    }
    let two = ended(home.llama(&["run", "how", "are you?"]));
    two.fails_saying(&["unexpected argument", "are you?", "name the model with -m"]);
}

#[test]
fn negative_values_are_rejected_by_range() {
    let home = Home::new();
    for (args, reason) in [
        (&["serve", "--port", "-1"][..], "-1 is not in 0..=65535"),
        (&["run", "--rope-freq-scale", "-1"], "expected a positive number"),
        (&["run", "-b", "-1"], "invalid value '-1'"),
        (&["run", "--nothing", "-1"], "unexpected argument"),
    ] {
        let ended = ended(home.llama(args));
        assert!(
            ended.status == 2 && ended.err.contains(reason),
            "{args:?}: {}",
            ended.err
        );
    }
}

#[test]
fn environment_variables_set_missing_flags() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let run = |variables: &[(&str, &str)], args: &[&str]| {
        let mut command = home.llama(&[&["run", &model, "abc"], args].concat());
        command.envs(variables.iter().copied());
        ended(command)
    };
    let small = [
        ("LLAMA_ARG_CTX_SIZE", "64"),
        ("LLAMA_ARG_PREDICT", "3"),
        ("LLAMA_ARG_TEMP", "0"),
    ];
    let by_environment = run(&small, &[]);
    assert!(
        by_environment.err.contains("of 64") && by_environment.err.contains("generated 3"),
        "{}",
        by_environment.err
    );
    assert_eq!(
        run(&[], &["-c", "64", "-n", "3", "--temp", "0"]).succeeds(),
        by_environment.succeeds()
    );
    let by_flag = run(&small, &["-c", "96"]);
    assert!(by_flag.err.contains("of 96"), "{}", by_flag.err);
    let quiet = run(&[("LLAMA_ARG_NO_STATS", "1"), ("LLAMA_ARG_PREDICT", "1")], &[]);
    assert_eq!((quiet.status, quiet.err.as_str()), (0, ""));
    let wrong = run(&[("LLAMA_ARG_CTX_SIZE", "much")], &[]);
    let message = "'much' for 'LLAMA_ARG_CTX_SIZE (--ctx-size <N>)'";
    assert!(wrong.status == 2 && wrong.err.contains(message), "{}", wrong.err);
    let on_line = run(&[("LLAMA_ARG_CTX_SIZE", "64")], &["-c", "much"]);
    assert!(!on_line.err.contains("LLAMA_ARG_CTX_SIZE"), "{}", on_line.err);
    run(&[("LLAMA_ARG_DEVICE", "no-such")], &[]).fails_saying(&["no-such", "(set by LLAMA_ARG_DEVICE)"]);
    let device = run(&[("LLAMA_ARG_TEMP", "0")], &["--device", "no-such"]);
    assert!(!device.err.contains("set by"), "{}", device.err);
}

#[test]
fn flags_override_variables_that_exclude_them() {
    let home = Home::new();
    let model = home.model_with_text("llama", None);
    let run = |variables: &[(&str, &str)], args: &[&str]| {
        let mut command = home.llama(&[&["run"], args, &SHORT].concat());
        command.envs(variables.iter().copied());
        ended(command)
    };
    let expected = run(&[], &[&model, "abc"]).succeeds().to_owned();
    let other = [
        ("LLAMA_ARG_HF_REPO", "user/none"),
        ("LLAMA_ARG_HF_FILE", "none.gguf"),
        ("LLAMA_ARG_MODEL", "/none.gguf"),
        ("LLAMA_ARG_CHOICE", "x"),
    ];
    let free = ["--regex", "[^x]*"];
    let free = run(&[], &[&[&model, "abc"], &free[..]].concat()).succeeds().to_owned();
    for args in [
        &["-m", &model, "abc"][..],
        &[&model, "abc"],
        &["-m", &model, "-p", "abc"],
    ] {
        assert_eq!(run(&other[..3], args).succeeds(), expected, "{args:?}");
        let args = [args, &["--regex", "[^x]*"]].concat();
        assert_eq!(run(&other, &args).succeeds(), free, "{args:?}");
    }
    // If two variables exclude each other, neither takes precedence.
    let model_variable = [("LLAMA_ARG_MODEL", model.as_str())];
    assert_eq!(run(&model_variable, &["abc"]).succeeds(), expected);
    let both = run(&[model_variable[0], other[0]], &["abc"]);
    both.fails_saying(&["only one model", "LLAMA_ARG_MODEL", "LLAMA_ARG_HF_REPO"]);
    let grammars = [("LLAMA_ARG_GRAMMAR", "root ::= \"a\""), ("LLAMA_ARG_REGEX", "a")];
    let both = run(&grammars, &[&model, "abc"]);
    assert!(
        both.status == 2 && both.err.contains("LLAMA_ARG_GRAMMAR") && both.err.contains("LLAMA_ARG_REGEX"),
        "{}",
        both.err
    );
}

#[test]
fn errors_name_the_variable_of_a_value() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let run = |variable: (&str, &str), args: &[&str]| {
        let mut command = home.llama(&[&["run", &model, "abc"], args].concat());
        command.env(variable.0, variable.1);
        ended(command)
    };
    for variable in [
        ("LLAMA_ARG_CTX_SIZE", "2000000000"),
        ("LLAMA_ARG_LORA", "/none.gguf"),
        ("LLAMA_ARG_GRAMMAR", "root ::= ("),
        ("LLAMA_ARG_DEVICE", "no-such"),
        ("LLAMA_ARG_SPEC_DRAFT_MODEL", "/none.gguf"),
        ("LLAMA_ARG_CHAT_TEMPLATE_FILE", "/none.jinja"),
    ] {
        run(variable, &[]).fails_saying(&[variable.0]);
    }
    let on_line = run(("LLAMA_ARG_DEVICE", "cuda"), &["--device", "no-such"]);
    assert!(!on_line.err.contains("set by"), "{}", on_line.err);
    for (variable, part) in [
        (("LLAMA_ARG_CTX_SIZE", "much"), "'LLAMA_ARG_CTX_SIZE (--ctx-size <N>)'"),
        (("LLAMA_ARG_TEMP", "hot"), "'LLAMA_ARG_TEMP (--temp <N>)'"),
        (("LLAMA_ARG_TEMPERATURE", "hot"), "'LLAMA_ARG_TEMPERATURE (--temp <N>)'"),
        (
            ("LLAMA_ARG_HF_FILE", "a.gguf"),
            "LLAMA_ARG_HF_FILE sets --hf-file <PATH>",
        ),
        (
            ("LLAMA_ARG_CHAT_TEMPLATE_KWARGS", "[]"),
            "LLAMA_ARG_CHAT_TEMPLATE_KWARGS (--chat",
        ),
    ] {
        let mut command = home.llama(&["run", "-p", "abc"]);
        command.env(variable.0, variable.1);
        let refused = ended(command);
        assert!(
            refused.status == 2 && refused.err.contains(part),
            "{variable:?}: {}",
            refused.err
        );
    }
}

#[test]
fn sampler_errors_end_with_usage_of_their_command() {
    let home = Home::new();
    for command in ["run", "serve"] {
        for (flag, value, expected) in [
            ("--top-p", "1.5", "expected 0 to 1"),
            ("--temp", "hot", "expected a finite number"),
            ("--seed", "x", "expected an integer from -2^63"),
            ("--samplers", "best", "temperature"),
            ("--logit-bias", "x", "TOKEN+BIAS"),
        ] {
            let refused = ended(home.llama(&[command, "a.gguf", flag, value]));
            assert_eq!(refused.status, 2, "{}", refused.err);
            let invalid = format!("invalid value '{value}' for '{flag} <");
            for part in [invalid.as_str(), expected] {
                assert!(refused.err.contains(part), "{part:?} in {}", refused.err);
            }
            assert!(!refused.err.contains("llama <COMMAND>"), "{}", refused.err);
        }
    }
}

#[test]
fn too_many_threads_print_a_warning() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let err = |args: &[&str]| {
        let ended = ended(home.llama(args));
        ended.succeeds();
        ended.err
    };
    let n_cpus = std::thread::available_parallelism().unwrap().get();
    let fine = n_cpus.to_string();
    let run = ["run", &model, "abc", "-n", "1", "--no-stats"];
    assert_eq!(err(&[&run[..], &["-t", &fine]].concat()), "");
    let warning = format!("on {n_cpus} CPU");
    let many = (n_cpus + 3).to_string();
    for args in [
        &[&run[..], &["-t", &many]].concat()[..],
        &[&run[..], &["-tb", &many]].concat(),
        &["embed", &model, "abc", "-t", &many],
        &["logits", &model, "--tokens", "1", "-o", "/dev/null", "-t", &many],
        &["bench", "-m", &model, "-p", "1", "-n", "0", "-r", "1", "-t", &many],
    ] {
        let said = err(args);
        let n_warnings = said.matches(&warning).count();
        assert!(
            n_warnings == 1 && said.contains(&format!("-t {n_cpus}")),
            "{args:?}: {said}"
        );
    }
}

#[test]
fn variables_of_old_flag_spellings_are_accepted() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let cache = home.path("cache");
    let mut command = home.llama(&["run", &model, "abc", "-n", "2"]);
    ended({
        command.env("LLAMA_ARG_SESSION", &cache);
        command
    })
    .succeeds();
    assert!(cache.is_file());
}

#[test]
fn version_prints_commit_and_devices() {
    let home = Home::new();
    let short = ended(home.llama(&["-V"])).succeeds().to_owned();
    assert!(
        short.starts_with("llama 0.1.0 (commit ") && short.lines().count() == 1,
        "{short}"
    );
    let long = ended(home.llama(&["--version"]));
    for part in [short.trim(), "architectures", "device cpu: "] {
        assert!(long.succeeds().contains(part), "{part:?} in {}", long.out);
    }
}

/// Vocabulary warnings are only printed with -v.
#[test]
fn vocabulary_warnings_require_verbose() {
    let home = Home::new();
    let mut kinds = vec![1_i32; 128];
    kinds[..2].copy_from_slice(&[2, 3]);
    let bytes = tests::text_model_with("llama", None, |metadata| {
        metadata.insert("tokenizer.ggml.token_type", kinds);
    });
    let path = home.path("odd.gguf");
    std::fs::write(&path, bytes).unwrap();
    let args = ["run", path.to_str().unwrap(), "-p", "abc", "--temp", "0", "-n", "2"];
    let told = "\"</s>\" is not typed as a control token";
    let plain = ended(home.llama(&args));
    plain.succeeds();
    assert!(!plain.err.contains(told), "{}", plain.err);
    let verbose = ended(home.llama(&[&args[..], &["-v"]].concat()));
    verbose.succeeds();
    assert_eq!(verbose.err.matches(told).count(), 1, "{}", verbose.err);
}
