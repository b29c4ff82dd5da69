//! Tests of `llama cvector`.

use engine::gguf::{Gguf, GgufFile};

use crate::common::{Ended, Home, ended};

fn path(home: &Home, name: &str) -> String {
    home.path(name).into_os_string().into_string().unwrap()
}

fn prompts(home: &Home, name: &str, text: &str) -> String {
    let path = path(home, name);
    std::fs::write(&path, text).unwrap();
    path
}

fn cvector(home: &Home, args: &[&str]) -> Ended {
    ended(home.llama(&[&["cvector"][..], args].concat()))
}

fn directions(path: &str) -> Vec<(String, Vec<f32>)> {
    let file = GgufFile::open(path).unwrap();
    let floats = |bytes: &[u8]| {
        bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect()
    };
    let tensors = file.tensors().iter();
    tensors.map(|t| (t.name.clone(), floats(file.tensor_data(t)))).collect()
}

#[test]
fn cvector_writes_a_file_that_changes_logits() {
    let home = Home::new();
    let model = home.model_with_text("gpt2", None);
    let good = prompts(&home, "good.txt", "I am one yes\n\nI am true, yes one\\nyes\n");
    let bad = prompts(&home, "bad.txt", "I am two no\nI am false, no no one\n");
    let out = path(&home, "v.gguf");
    let pair = ["--positive", &good, "--negative-file", &bad, "-o", &out];
    for method in ["pca", "mean"] {
        let result = cvector(
            &home,
            &[&[&model[..], "--method", method, "--force"], &pair[..]].concat(),
        );
        assert!(result.succeeds().contains("from 2 pairs"), "{}", result.out);
        let file = GgufFile::open(&out).unwrap();
        assert_eq!(file.require::<&str>("general.architecture").unwrap(), "controlvector");
        assert_eq!(file.require::<&str>("controlvector.model_hint").unwrap(), "llama");
        let n_layers = Gguf::open_header(&model)
            .unwrap()
            .metadata
            .require::<u32>("llama.block_count")
            .unwrap();
        assert_eq!(
            file.require::<i32>("controlvector.layer_count").unwrap() as u32,
            n_layers - 1
        );
        let found = directions(&out);
        let names: Vec<_> = found.iter().map(|(name, _)| name.clone()).collect();
        let expected: Vec<_> = (1..n_layers).map(|layer| format!("direction.{layer}")).collect();
        assert_eq!(names, expected);
        for (name, direction) in &found {
            let norm: f32 = direction.iter().map(|x| x * x).sum();
            assert!((norm - 1.0).abs() < 1e-5, "{name}: {norm}");
        }
    }
    let logits = |name: &str, args: &[&str]| {
        let out = path(&home, name);
        ended(home.llama(&[&["logits", &model, "--tokens", "1,9,20", "-o", &out][..], args].concat())).succeeds();
        std::fs::read(&out).unwrap()
    };
    assert!(logits("a", &[]) != logits("b", &["--control-vector", &out]));
}

/// With one pair of one token, both methods return the normalized difference of the two outputs. Exchanged files give
/// the opposite direction.
#[test]
fn cvector_of_one_token_is_antisymmetric_in_both_methods() {
    let home = Home::new();
    let model = home.model_with_text("gpt2", None);
    let (good, bad) = (prompts(&home, "good.txt", "y\n"), prompts(&home, "bad.txt", "n\n"));
    let mut found = Vec::new();
    for (name, positive, negative, method) in [
        ("1", &good, &bad, "pca"),
        ("2", &good, &bad, "mean"),
        ("3", &bad, &good, "pca"),
    ] {
        let out = path(&home, name);
        let args = [
            &model,
            "--positive",
            positive,
            "--negative",
            negative,
            "--method",
            method,
            "-o",
            &out,
        ];
        cvector(&home, &args).succeeds();
        found.push(directions(&out));
    }
    for ((a, b), c) in found[0].iter().zip(&found[1]).zip(&found[2]) {
        for ((x, y), z) in a.1.iter().zip(&b.1).zip(&c.1) {
            assert!((x - y).abs() < 1e-5 && (x + z).abs() < 1e-5, "{x} {y} {z}");
        }
    }
}

#[test]
fn cvector_reports_invalid_prompts() {
    let home = Home::new();
    let model = home.model_with_text("gpt2", None);
    let (one, two) = (
        prompts(&home, "one.txt", "yes\n"),
        prompts(&home, "two.txt", "yes\nno\n"),
    );
    let empty = prompts(&home, "empty.txt", "\n\n");
    let out = path(&home, "v.gguf");
    let run = |positive: &str, negative: &str| {
        cvector(
            &home,
            &[&model, "--positive", positive, "--negative", negative, "-o", &out],
        )
    };
    run(&one, &two).fails_saying(&["one.txt has 1 prompt,", "two.txt has 2"]);
    run(&empty, &two).fails_saying(&["empty.txt: no prompts"]);
    run(&one, &one).fails_saying(&["the same outputs for positive and negative prompts"]);
    assert!(!std::path::Path::new(&out).exists());
}
