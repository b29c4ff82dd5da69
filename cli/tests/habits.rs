//! What people type who know other engines: it means what they mean, or an error says what to type instead. Nothing is silently something else.

use crate::common::{Home, ended, ended_with_input};

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/// Greedy and short, so that answers can be compared.
const SHORT: [&str; 5] = ["--temp", "0", "-n", "6", "--no-stats"];

#[test]
fn without_a_command_it_is_run() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let answer = |args: &[&str]| ended(home.llama(&[args, &SHORT].concat())).succeeds().to_owned();
    let expected = answer(&["run", &model, "abc"]);
    assert_eq!(answer(&["-m", &model, "-p", "abc"]), expected);
    assert_eq!(answer(&[&model, "abc"]), expected);
}

#[test]
fn flags_of_several_letters_are_never_bundles_of_others() {
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
    assert!(told.err.contains("-fa off changes nothing"), "{}", told.err);
    let escaped = |prompt: &str, more: &[&str]| {
        let args = [&["run", "-m", &model, "--raw", "-p", prompt], more, &SHORT].concat();
        ended(home.llama(&args)).succeeds().to_owned()
    };
    assert_eq!(escaped("a\\nb", &["-e"]), escaped("a\nb", &[]));
    assert_ne!(escaped("a\\nb", &[]), escaped("a\nb", &[]));
}

#[test]
fn what_looks_like_a_name_is_never_a_prompt() {
    let home = Home::new();
    ended(home.llama(&["run", "smollm2:136m"])).fails_saying(&[
        "neither a file nor the name of a model",
        "smollm2:135m",
        "-p",
    ]);
}

#[test]
fn standard_input_is_joined_to_a_prompt() {
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
fn the_nearest_command_is_suggested() {
    let home = Home::new();
    for (typed, meant) in [("rnu", "run"), ("benhc", "bench"), ("tokenise", "tokenize")] {
        let refused = ended(home.llama(&[typed]));
        assert_eq!(refused.status, 2);
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
fn a_context_that_cannot_be_had_is_told_by_its_cache() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    ended(home.llama(&["run", &model, "abc", "-c", "2000000000"])).fails_saying(&[
        "the KV cache of 2000000000 tokens takes",
        "TiB",
        "-c",
    ]);
}

#[test]
fn whole_numbers_are_asked_for_where_they_are_meant() {
    let home = Home::new();
    for (flag, value) in [("--top-k", "1.5"), ("-s", "abc"), ("-n", "1.5"), ("-c", "much")] {
        let refused = ended(home.llama(&["run", "x.gguf", "hi", flag, value]));
        assert_eq!(refused.status, 2, "{flag}");
        let says = ["a whole number", "invalid digit"]
            .iter()
            .any(|part| refused.err.contains(part));
        assert!(says && !refused.err.contains("finite"), "{}", refused.err);
    }
}

#[test]
fn what_makes_answers_meaningless_is_warned_of() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let run = |args: &[&str]| ended(home.llama(&[&["run", &model, "abc", "-n", "1", "--no-stats"], args].concat()));
    assert_eq!(run(&[]).err, "");
    let long = run(&["-c", "100000"]).err;
    assert!(
        long.contains("100000 tokens") && long.contains("was trained for"),
        "{long}"
    );
    let other = run(&["--arch", "mistral3"]).err;
    assert!(other.contains("architecture is llama"), "{other}");
}

#[test]
fn tokenize_keeps_the_line_break_of_its_input() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let ids = |input: &str| {
        let args = ["tokenize", "-m", &model, "--ids", "--no-special"];
        ended_with_input(home.llama(&args), input).succeeds().to_owned()
    };
    assert_ne!(ids("a\n"), ids("a"));
}

#[test]
fn the_file_says_how_it_is_sampled_and_flags_have_the_last_word() {
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
        warned.err.contains("general.sampling.top_p is left out"),
        "{}",
        warned.err
    );
}

#[test]
fn an_answer_that_repeats_itself_ends() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    // The bias makes the answer one token again and again.
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
    assert!(
        stopped.err.contains("repeats its last 1 token again and again"),
        "{}",
        stopped.err
    );
    assert!(stopped.err.contains("generated 160 tokens"), "{}", stopped.err);
    let on = ended(home.llama(&[&looping[..], &["--allow-loops"]].concat()));
    on.succeeds();
    assert!(on.err.contains("generated 400 tokens"), "{}", on.err);
}

/// The model that answers where no hub can be reached, at defaults: it comes to an end of its own, without the limit or the detector of loops.
#[test]
#[ignore = "fetches a model, 94 MB, and answers twenty questions: a minute"]
fn answers_of_the_fallback_end_by_themselves() {
    let home = Home::new();
    let model = ::tests::published::path(::tests::published::SMOLLM2);
    let model = model.to_str().expect("a UTF-8 path");
    for question in ["Why is the sky blue?", "haiku", "Who are you?", "hi"] {
        for seed in ["1", "2", "3", "4", "5"] {
            let answer = ended(home.llama(&["run", model, question, "-s", seed]));
            assert!(!answer.succeeds().trim().is_empty(), "{question} {seed}");
            let stats: Vec<_> = answer.err.lines().collect();
            assert!(
                stats.len() == 1 && stats[0].starts_with("prompt "),
                "{question:?} with seed {seed} is not ended by the model: {}",
                answer.err
            );
        }
    }
}

#[test]
fn every_command_takes_a_model_as_its_first_word_or_by_m() {
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
    ended(home.llama(&["run", "how", "are you?"])).fails_saying(&["unexpected argument", "are you?"]);
}

#[test]
fn the_environment_gives_flags_that_the_command_line_does_not() {
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
    assert!(wrong.status == 2 && wrong.err.contains("much"), "{}", wrong.err);
}

#[test]
fn the_version_tells_the_commit_and_what_there_is() {
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

/// What a vocabulary has odd does not concern who only wants an answer.
#[test]
fn oddities_of_a_vocabulary_are_told_to_who_asks() {
    let home = Home::new();
    let mut kinds = vec![1_i32; 128];
    kinds[..2].copy_from_slice(&[2, 3]);
    let bytes = tests::text_model_with("llama", None, |metadata| {
        metadata.insert("tokenizer.ggml.token_type", kinds);
    });
    let path = home.path("odd.gguf");
    std::fs::write(&path, bytes).unwrap();
    let args = ["run", path.to_str().unwrap(), "-p", "abc", "--temp", "0", "-n", "2"];
    let told = "\"</s>\" is treated as a control token";
    let plain = ended(home.llama(&args));
    plain.succeeds();
    assert!(!plain.err.contains(told), "{}", plain.err);
    let verbose = ended(home.llama(&[&args[..], &["-v"]].concat()));
    verbose.succeeds();
    assert_eq!(verbose.err.matches(told).count(), 1, "{}", verbose.err);
}
