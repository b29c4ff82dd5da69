//! Checkpoint directories as models: `llama logits DIR` and other commands use them in place.

use std::path::PathBuf;

use crate::common::{Ended, Home, ended, root};
use crate::serve::Serving;
use engine::gguf::logits::{Logits, nmse};

fn text(path: PathBuf) -> String {
    path.into_os_string().into_string().expect("a UTF-8 path")
}

/// Runs `llama logits` on the recorded tokens. Returns the values and the messages.
fn logits(home: &Home, model: &str, tokens: &str) -> (Vec<f32>, Ended) {
    let out = text(home.path("out.logits"));
    let fixed = [
        "logits", "-m", model, "-o", &out, "--tokens", tokens, "--ctk", "f32", "--ctv", "f32",
    ];
    let ended = ended(home.llama(&[&fixed[..], &["--precision", "exact"]].concat()));
    ended.succeeds();
    let values = Logits::read(home.path("out.logits")).unwrap().values().to_vec();
    (values, ended)
}

/// Names of the quantized checkpoints in the cache.
fn cached(home: &Home) -> Vec<String> {
    let directory = home.path(".cache/llama/checkpoints");
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn checkpoint_directories_give_recorded_logits() {
    let home = Home::new();
    let mut n_checkpoints = 0;
    for entry in std::fs::read_dir(root().join("tests/data/checkpoints")).unwrap() {
        let checkpoint = entry.unwrap().path();
        let recorded = Logits::read(checkpoint.join("logits")).unwrap();
        let tokens: Vec<String> = engine::conformance::tokens(&recorded)
            .iter()
            .map(ToString::to_string)
            .collect();
        let (found, _) = logits(&home, &text(checkpoint.clone()), &tokens.join(","));
        let error = nmse(recorded.values(), &found);
        assert!(error < 1e-9, "{}: {error:.1e}", checkpoint.display());
        n_checkpoints += 1;
    }
    assert!(cached(&home).is_empty(), "checkpoints are used in place");
    assert!(n_checkpoints >= 20);
}

/// Copies a recorded checkpoint.
fn copy(home: &Home, name: &str) -> PathBuf {
    let checkpoint = home.path("own");
    std::fs::create_dir(&checkpoint).unwrap();
    for entry in std::fs::read_dir(root().join("tests/data/checkpoints").join(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, checkpoint.join(path.file_name().unwrap())).unwrap();
    }
    checkpoint
}

/// Changes a setting of a checkpoint.
fn set(checkpoint: &std::path::Path, key: &str, value: serde_json::Value) {
    let path = checkpoint.join("config.json");
    let mut config: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    config[key] = value;
    std::fs::write(path, config.to_string()).unwrap();
}

#[test]
fn commands_accept_checkpoint_directories() {
    let home = Home::new();
    let checkpoint = text(copy(&home, "llama"));
    let inspected = ended(home.llama(&["inspect", &checkpoint, "--json"]));
    inspected.succeeds();
    let report: serde_json::Value = serde_json::from_str(&inspected.out).unwrap();
    assert_eq!(report["architecture"], "llama");
    assert_eq!(report["declaration"]["status"], "matches");
    assert_eq!((&report["missing_bytes"], &report["name"]), (&0.into(), &"own".into()));
    ended(home.llama(&["inspect", &checkpoint, "--plan"])).succeeds();
    ended(home.llama(&["tokenize", &checkpoint, "t1"])).succeeds();
    ended(home.llama(&["run", &checkpoint, "t1", "-n", "2"])).succeeds();
    let out = text(home.path("own-q8_0.gguf"));
    ended(home.llama(&["quantize", &checkpoint, &out, "q8_0"])).succeeds();
    ended(home.llama(&["logits", "-m", &out, "-o", &text(home.path("o")), "--tokens", "1,2"])).succeeds();
}

#[test]
fn measuring_commands_accept_checkpoint_directories() {
    let home = Home::new();
    let checkpoint = text(copy(&home, "llama"));
    let write = |name: &str, content: String| {
        std::fs::write(home.path(name), content).unwrap();
        text(home.path(name))
    };
    let corpus = write("corpus", "t1 t2 t3 t4 ".repeat(100));
    let (positive, negative) = (
        write("positive", "t1 t2\nt3\n".to_owned()),
        write("negative", "t4 t5\nt6\n".to_owned()),
    );
    let out = |name: &str| text(home.path(name));
    let (importance, vector, file) = (out("importance.gguf"), out("vector.gguf"), out("file.gguf"));
    ended(home.llama(&["convert", &checkpoint, &file])).succeeds();
    // Results equal the results of the converted file.
    let equal = |args: &dyn Fn(&str) -> Vec<String>| {
        let run = |model: &str| {
            let args = args(model);
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            ended(home.llama(&args)).succeeds().replace(model, "MODEL")
        };
        let (of_checkpoint, of_file) = (run(&checkpoint), run(&file));
        assert!(!of_file.is_empty());
        assert_eq!(of_checkpoint, of_file);
    };
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    equal(&|model| words(&format!("perplexity {model} -f {corpus} -c 32")));
    equal(&|model| words(&format!("embed {model} t1")));
    equal(&|model| words(&format!("run {model} t1 -n 4 --temp 0 --no-stats --draft {model}")));
    ended(home.llama(&["imatrix", &checkpoint, "-f", &corpus, "-o", &importance, "-c", "32"])).succeeds();
    let pairs = ["--positive", &positive, "--negative", &negative];
    ended(home.llama(&[&["cvector", &checkpoint, "-o", &vector], &pairs[..]].concat())).succeeds();
    let bench = ["bench", "-m", &checkpoint, "-p", "4", "-n", "2", "-r", "1"];
    ended(home.llama(&bench)).succeeds();
    let target = ["quantize", &checkpoint, &out("q.gguf"), "--target-bpw", "9"];
    let measured = ["-f", &corpus, "--imatrix", &importance];
    ended(home.llama(&[&target[..], &measured].concat())).succeeds();
    // The directory has recorded logits.
    let checked = ended(home.llama(&["arch", "check", &checkpoint]));
    let report = checked.succeeds();
    assert!(report.contains("recorded logits in"), "{report}");
}

#[test]
fn file_commands_reject_checkpoint_directories() {
    let home = Home::new();
    let checkpoint = text(copy(&home, "llama"));
    let out = text(home.path("out.gguf"));
    let says = format!("`llama convert {checkpoint} FILE.gguf` writes one");
    let cases: [&[&str]; 10] = [
        &["gguf", "dump", &checkpoint],
        &["gguf", "set", &checkpoint, "general.name=x"],
        &["gguf", "remove", &checkpoint, "general.name"],
        &["gguf", "rename", &checkpoint, "a", "b"],
        &["gguf", "split", &checkpoint, &out],
        &["gguf", "merge", &checkpoint, &out],
        &["gguf", "diff", &checkpoint, &checkpoint],
        &["gguf", "hash", &checkpoint],
        &["gguf", "verify", &checkpoint],
        &["export-lora", &checkpoint, &out, "--lora", &out],
    ];
    for args in cases {
        ended(home.llama(args)).fails_saying(&["is the directory of a checkpoint", &says]);
    }
}

#[test]
fn quantized_checkpoint_is_cached_until_it_changes() {
    let home = Home::new();
    let checkpoint = copy(&home, "llama");
    let out = text(home.path("out.logits"));
    let run = |kind: &str| {
        let path = text(checkpoint.clone());
        let ended = ended(home.llama(&[
            "logits",
            "-m",
            &path,
            "-o",
            &out,
            "--tokens",
            "1,2,3",
            "--quantize",
            kind,
        ]));
        ended.succeeds();
        (Logits::read(home.path("out.logits")).unwrap().values().to_vec(), ended)
    };
    let (first, ended_first) = run("q8_0");
    assert!(ended_first.err.contains("quantizing"), "{}", ended_first.err);
    let (again, ended_again) = run("q8_0");
    assert!(
        again == first && !ended_again.err.contains("quantizing"),
        "{}",
        ended_again.err
    );
    // The cached file is identical to the output of `llama quantize`.
    let (quantized, name) = (text(home.path("q.gguf")), cached(&home).remove(0));
    ended(home.llama(&["quantize", &text(checkpoint.clone()), &quantized, "q8_0"])).succeeds();
    let read = |path: PathBuf| std::fs::read(path).unwrap();
    assert!(
        read(home.path("q.gguf")) == read(home.path(".cache/llama/checkpoints").join(&name)),
        "{name}"
    );
    let (other, _) = run("f16");
    assert_ne!(other, first);
    assert_eq!(cached(&home).len(), 2);
    set(&checkpoint, "rms_norm_eps", 0.5.into());
    assert_ne!(run("q8_0").0, first);
    assert_eq!(cached(&home).len(), 2, "the older file is removed");
    ended(home.llama(&[
        "logits",
        "-m",
        &quantized,
        "-o",
        &out,
        "--tokens",
        "1",
        "--quantize",
        "q8_0",
    ]))
    .fails_saying(&["--quantize requires the directory of a checkpoint"]);
}

#[test]
fn changed_checkpoint_gives_other_logits() {
    let home = Home::new();
    let checkpoint = copy(&home, "llama");
    let (before, _) = logits(&home, &text(checkpoint.clone()), "1,2,3");
    set(&checkpoint, "rms_norm_eps", 0.5.into());
    let (after, _) = logits(&home, &text(checkpoint.clone()), "1,2,3");
    assert_ne!(before, after);
    set(&checkpoint, "architectures", serde_json::json!(["NoSuchForCausalLM"]));
    ended(home.llama(&["run", &text(checkpoint.clone()), "abc"])).fails_saying(&["NoSuchForCausalLM"]);
    let out = text(home.path("own.gguf"));
    let declaration = home.path("my_llama.rs");
    let section = "    checkpoint \"NoSuchForCausalLM\" like \"LlamaForCausalLM\" {}\n";
    let own = format!("arch_macros::arch! {{\n    name: \"my-llama\";\n    like: \"llama\";\n\n{section}}}\n");
    std::fs::write(&declaration, own).unwrap();
    let checkpoint = text(checkpoint);
    ended(home.llama(&["convert", &checkpoint, &out, "--arch", &text(declaration.clone())])).succeeds();
    // A declaration file maps a class that the binary does not know, in place.
    let (declared, out) = (text(declaration), text(home.path("out.logits")));
    let fixed = ["logits", "-m", &checkpoint, "-o", &out, "--tokens", "1,2,3"];
    let exact = [
        "--ctk",
        "f32",
        "--ctv",
        "f32",
        "--precision",
        "exact",
        "--arch",
        &declared,
    ];
    ended(home.llama(&[&fixed[..], &exact[..]].concat())).succeeds();
    assert_eq!(Logits::read(home.path("out.logits")).unwrap().values(), after);
    ended(home.llama(&["inspect", &checkpoint, "--arch", &declared])).succeeds();
}

/// Creates a directory with the checkpoints `small`, `llama`, and `broken`, and a file `llama.gguf`. Returns its path
/// and the text of the configuration that `broken` should have.
fn models_directory(home: &Home) -> (PathBuf, String) {
    let directory = home.path("models");
    let checkpoints = root().join("tests/data/checkpoints");
    // The file `llama.gguf` has the name of a checkpoint, and `broken` contradicts its weights.
    for (from, to) in [("llama", "small"), ("llama", "llama"), ("llama", "broken")] {
        std::fs::create_dir_all(directory.join(to)).unwrap();
        for entry in std::fs::read_dir(checkpoints.join(from)).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, directory.join(to).join(path.file_name().unwrap())).unwrap();
        }
    }
    let config = directory.join("broken/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["num_hidden_layers"] = 5.into();
    std::fs::write(&config, json.to_string()).unwrap();
    std::fs::copy(home.model_with_text("llama", None), directory.join("llama.gguf")).unwrap();
    // A directory without a configuration is not a model.
    std::fs::create_dir(directory.join("other")).unwrap();
    (directory, text)
}

#[test]
fn convert_names_the_wrong_input() {
    let home = Home::new();
    let convert = |input: &str| ended(home.llama(&["convert", input, "out.gguf"]));
    convert("/no/such").fails_saying(&["cannot read /no/such: No such file"]);
    let model = home.model("llama-dense", None);
    convert(&model).fails_saying(&[&model, "expected the directory of a checkpoint"]);
}

#[test]
fn models_dir_serves_checkpoints() {
    let home = Home::new();
    let (directory, config) = models_directory(&home);
    let path = directory.to_str().unwrap();
    let server = Serving::start(home.llama(&["serve", "--models-dir", path, "--port", "0", "-c", "32", "-np", "1"]));
    let json = |request: &str, body: &str| {
        let response = server.request(request, body);
        let (head, body) = response.split_once("\r\n\r\n").expect("a body");
        let status = head.split(' ').nth(1).unwrap_or_default().to_owned();
        (status, serde_json::from_str::<serde_json::Value>(body).expect("JSON"))
    };
    let statuses = || {
        let (_, listed) = json("GET /v1/models", "");
        let models = listed["data"].as_array().unwrap().clone();
        let of = |m: &serde_json::Value| {
            format!(
                "{} {}",
                m["id"].as_str().unwrap(),
                m["status"]["value"].as_str().unwrap()
            )
        };
        models.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(statuses(), ["broken failed", "llama unloaded", "small unloaded"]);
    let (_, shown) = json("POST /api/show", "{\"model\": \"small\"}");
    assert_eq!(shown["model_info"]["general.architecture"], "llama", "{shown}");
    let (_, tags) = json("GET /api/tags", "");
    let digests: Vec<&str> = tags["models"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|m| m["digest"].as_str())
        .collect();
    assert!(
        digests.iter().filter(|digest| digest.len() == 48).count() == 2,
        "{tags}"
    );
    let body = "{\"model\": \"small\", \"prompt\": \"t1\", \"max_tokens\": 2}";
    let (status, completed) = json("POST /v1/completions", body);
    assert_eq!(
        (status.as_str(), completed["model"].as_str()),
        ("200", Some("small")),
        "{completed}"
    );
    assert_eq!(statuses(), ["broken failed", "llama unloaded", "small loaded"]);
    let (status, failed) = json("POST /v1/completions", &body.replace("small", "broken"));
    assert!(
        status == "422" && failed.to_string().contains("blk.2."),
        "{status} {failed}"
    );
    let (status, _) = json("POST /models/unload", "{\"model\": \"small\"}");
    assert_eq!(status, "200");
    assert_eq!(statuses(), ["broken failed", "llama unloaded", "small unloaded"]);
    // A repaired checkpoint is listed without a restart.
    std::fs::write(directory.join("broken/config.json"), config).unwrap();
    assert_eq!(statuses(), ["broken unloaded", "llama unloaded", "small unloaded"]);
    assert!(
        server
            .said
            .contains("serving llama.gguf instead of the checkpoint llama"),
        "{}",
        server.said
    );
    server.signal(libc::SIGTERM);
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn models_dir_rejects_checkpoint_directory() {
    let home = Home::new();
    let (directory, _) = models_directory(&home);
    let checkpoint = directory.join("small");
    ended(home.llama(&["serve", "--models-dir", checkpoint.to_str().unwrap()]))
        .fails_saying(&["the directory is a checkpoint; serve it with `llama serve"]);
}
