//! Tests of `llama serve` with several models: directories and presets.

use engine::gguf::GgufWriter;

use crate::common::{Home, ended};
use crate::serve::{Serving, body_of};

#[test]
fn models_dir_serves_models_by_name() {
    let home = Home::new();
    let model = home.model_with_text("llama", None);
    let directory = home.path("models");
    std::fs::create_dir(&directory).expect("a directory");
    for name in ["one", "two"] {
        std::fs::copy(&model, directory.join(format!("{name}.gguf"))).expect("a copy");
    }
    std::fs::write(directory.join("broken.gguf"), "no model").expect("a file");
    for (name, key, value) in [
        ("lora", "general.type", "adapter"),
        ("vector", "general.architecture", "controlvector"),
        ("images", "general.type", "mmproj"),
    ] {
        let mut writer = GgufWriter::new();
        writer.set(key, value);
        let path = directory.join(format!("{name}.gguf"));
        writer.write_file(path).expect("a file that is not a model");
    }
    let directory = directory.to_str().expect("UTF-8");
    let args = [
        "serve",
        "--models-dir",
        directory,
        "--models-pin",
        "two",
        "--port",
        "0",
        "-c",
        "128",
        "-np",
        "1",
    ];
    let server = Serving::start(home.llama(&args));
    let ask = |name: &str| {
        let body = format!("{{\"model\": \"{name}\", \"prompt\": \"a\", \"max_tokens\": 2}}");
        server.request("POST /v1/completions", &body)
    };
    assert!(server.request("GET /", "").contains("<!doctype html>"));
    let listed = server.request("GET /v1/models", "");
    for part in [
        "\"one\"",
        "\"two\"",
        "\"broken\"",
        "unloaded",
        "failed",
        "max_model_len",
    ] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    for name in ["one", "two", "one"] {
        assert!(ask(name).contains(&format!("\"model\":\"{name}\"")), "{}", ask(name));
    }
    let unknown = ask("three");
    assert!(
        unknown.starts_with("HTTP/1.1 404") && unknown.contains("broken, one, two"),
        "{unknown}"
    );
    let broken = ask("broken");
    assert!(
        broken.starts_with("HTTP/1.1 422") && broken.contains("cannot load the model"),
        "{broken}"
    );
    assert!(ask("two").starts_with("HTTP/1.1 200"));
    server.signal(libc::SIGTERM);
    assert_eq!(server.end().0, Some(0));
    let wrong = |pin: &str| ended(home.llama(&["serve", "--models-dir", directory, "--models-pin", pin]));
    wrong("nobody").fails_saying(&["--models-pin nobody"]);
}

#[test]
fn preset_models_have_separate_options() {
    let home = Home::new();
    let model = home.model_with_text("llama", None);
    let presets = home.path("models.ini");
    let write = |text: &str| std::fs::write(&presets, text).expect("a file");
    write(&format!(
        "version = 1\n[*]\nc = 96\nnp = 1\n[one]\nmodel = {model}\nalias = first,uno\nload-on-startup = true\n; more\n[two]\nmodel = {model}\nctx-size = 160\nprompt-lookup = true\n"
    ));
    let file = presets.to_str().expect("UTF-8");
    let args = [
        "serve",
        "--models-preset",
        file,
        "--port",
        "0",
        "--api-prefix",
        "/llama",
        "-n",
        "3",
    ];
    let mut server = Serving::start(home.llama(&args));
    // The printed address includes the prefix.
    server.address = server.address.trim_end_matches("/llama").to_owned();
    let body = body_of;
    let listed = body(&server.request("GET /llama/v1/models", ""));
    let status = |i: usize| {
        (
            listed["data"][i]["id"].clone(),
            listed["data"][i]["status"]["value"].clone(),
        )
    };
    assert_eq!(status(0), ("one".into(), "loaded".into()));
    assert_eq!(status(1), ("two".into(), "unloaded".into()));
    for (name, id, n_ctx) in [("uno", "one", 96), ("two", "two", 160)] {
        let asked = format!("{{\"model\": \"{name}\", \"prompt\": \"a\", \"ignore_eos\": true}}");
        let answer = body(&server.request("POST /llama/v1/completions", &asked));
        assert_eq!(
            (&answer["model"], &answer["usage"]["completion_tokens"]),
            (&id.into(), &3.into()),
            "{answer}"
        );
        let props = body(&server.request(&format!("GET /llama/props?model={name}"), ""));
        assert_eq!(props["default_generation_settings"]["n_ctx"], n_ctx);
    }
    server.signal(libc::SIGTERM);
    assert_eq!(server.end().0, Some(0));
    let wrong = |text: &str, parts: &[&str]| {
        write(text);
        ended(home.llama(&["serve", "--models-preset", file, "--port", "0"])).fails_saying(parts);
    };
    wrong("[a]\nctx-sizes = 3\n", &["models.ini", "line 2", "ctx-sizes"]);
    wrong("[a]\nc = 3\n", &["models.ini", "[a]", "model = FILE"]);
    wrong(
        &format!("[a]\nmodel = {model}\nalias = b\n[b]\nmodel = {model}\n"),
        &["duplicate model name b"],
    );
    for one in [&["-m", &model][..], &["--alias", "x"], &["--draft", &model]] {
        let flags = [&["serve", "--models-preset", file], one].concat();
        ended(home.llama(&flags)).fails_saying(&["selects a single model"]);
    }
    ended(home.llama(&["serve", &model, "--path", "/no/such/directory"]))
        .fails_saying(&["--path", "directory does not exist"]);
}
