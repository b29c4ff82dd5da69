//! Checkpoint directories as models: `llama logits DIR` and other commands convert them once.

use std::path::PathBuf;

use crate::common::{Ended, Home, ended, root};
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

/// Names of the converted checkpoints in the cache.
fn converted(home: &Home) -> Vec<String> {
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
        let (found, first) = logits(&home, &text(checkpoint.clone()), &tokens.join(","));
        let error = nmse(recorded.values(), &found);
        assert!(error < 1e-9, "{}: {error:.1e}", checkpoint.display());
        assert!(first.err.contains("converting"), "{}", first.err);
        // The second run uses the converted file.
        let (again, second) = logits(&home, &text(checkpoint.clone()), &tokens.join(","));
        assert!(again == found && !second.err.contains("converting"), "{}", second.err);
        n_checkpoints += 1;
    }
    assert_eq!(converted(&home).len(), n_checkpoints);
    assert!(n_checkpoints >= 6);
}

#[test]
fn changed_checkpoint_is_converted_again() {
    let home = Home::new();
    let checkpoint = home.path("own");
    std::fs::create_dir(&checkpoint).unwrap();
    for entry in std::fs::read_dir(root().join("tests/data/checkpoints/llama")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, checkpoint.join(path.file_name().unwrap())).unwrap();
    }
    let (before, _) = logits(&home, &text(checkpoint.clone()), "1,2,3");
    let config = std::fs::read_to_string(checkpoint.join("config.json")).unwrap();
    let mut changed: serde_json::Value = serde_json::from_str(&config).unwrap();
    changed["rms_norm_eps"] = 0.5.into();
    std::fs::write(checkpoint.join("config.json"), changed.to_string()).unwrap();
    let (after, _) = logits(&home, &text(checkpoint.clone()), "1,2,3");
    assert_ne!(before, after);
    assert_eq!(converted(&home).len(), 1, "the older file is removed");
    changed["architectures"][0] = "NoSuchForCausalLM".into();
    std::fs::write(checkpoint.join("config.json"), changed.to_string()).unwrap();
    ended(home.llama(&["run", &text(checkpoint.clone()), "abc"])).fails_saying(&["NoSuchForCausalLM"]);
    let out = text(home.path("own.gguf"));
    let declaration = home.path("my_llama.rs");
    let layer = "layer { attn_norm <- \".input_layernorm\"; ffn_norm <- \".post_attention_layernorm\"; }";
    let section = format!("    checkpoint \"NoSuchForCausalLM\" {{ {layer} }}\n");
    let own = format!("arch_macros::arch! {{\n    name: \"my-llama\";\n    like: \"llama\";\n\n{section}}}\n");
    std::fs::write(&declaration, own).unwrap();
    ended(home.llama(&["convert", &text(checkpoint), &out, "--arch", &text(declaration)])).succeeds();
}
