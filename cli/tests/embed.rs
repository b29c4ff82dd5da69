//! Tests of `llama embed` with tiny models.

use crate::common::{Home, ended, ended_with_input};

/// Parses lines of numbers.
fn vectors(text: &str) -> Vec<Vec<f32>> {
    let numbers = |line: &str| line.split(' ').map(|x| x.parse().expect("a number")).collect();
    text.lines().map(numbers).collect()
}

#[test]
fn embed_prints_unit_vectors() {
    let home = Home::new();
    let model = home.model("bert-dense", None);
    let by_arguments = ended(home.llama(&["embed", &model, "one", "two words"]));
    let found = vectors(by_arguments.succeeds());
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [256, 256]);
    for vector in &found {
        let length: f32 = vector.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-3, "{length}");
    }
    let by_input = ended_with_input(home.llama(&["embed", &model]), "one\n\ntwo words\n");
    assert_eq!(by_input.succeeds(), by_arguments.out);
    let by_flags = ended(home.llama(&["embed", &model, "-p", "one", "-p", "two words", "-b", "1"]));
    let in_two_batches = vectors(by_flags.succeeds());
    for (a, b) in found.iter().flatten().zip(in_two_batches.iter().flatten()) {
        assert!((a - b).abs() < 1e-4, "{a} {b}");
    }
}

#[test]
fn embed_formats_have_equal_numbers() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let run = |format| ended(home.llama(&["embed", &model, "one", "--format", format, "--normalize", "none"]));
    let text = vectors(run("text").succeeds());
    let array: Vec<Vec<f32>> = serde_json::from_str(run("array").succeeds()).unwrap();
    let list: serde_json::Value = serde_json::from_str(run("json").succeeds()).unwrap();
    let of_list = list["data"][0]["embedding"].as_array().unwrap();
    assert_eq!((text[0].len(), array[0].len(), of_list.len()), (256, 256, 256));
    for i in 0..256 {
        assert!((text[0][i] - array[0][i]).abs() < 1e-5);
        assert_eq!(of_list[i].as_f64().map(|x| x as f32), Some(array[0][i]));
    }
}

#[test]
fn embed_similarity_prints_cosines() {
    let home = Home::new();
    let model = home.model("bert-dense", None);
    let args = [
        "embed",
        &model,
        "one",
        "other",
        "one",
        "--similarity",
        "--format",
        "array",
    ];
    let rows: Vec<Vec<f32>> = serde_json::from_str(ended(home.llama(&args)).succeeds()).unwrap();
    for i in 0..3 {
        assert!((rows[i][i] - 1.0).abs() < 1e-4);
        assert!(
            (rows[i][0] - rows[i][2]).abs() < 1e-4,
            "the first and third text are equal"
        );
    }
    let each_token = ended(home.llama(&["embed", &model, "several tokens", "--similarity", "--pooling", "none"]));
    each_token.fails_saying(&["--pooling"]);
}

#[test]
fn embed_rerank_orders_documents() {
    let home = Home::new();
    let model = home.model("bert-dense", None);
    let result = ended(home.llama(&["embed", &model, "--rerank", "q", "a", "b", "c", "--format", "json"]));
    let list: serde_json::Value = serde_json::from_str(result.succeeds()).unwrap();
    let scores: Vec<f64> = list["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["relevance_score"].as_f64().unwrap())
        .collect();
    assert!(scores.len() == 3 && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    let without = home.model("llama-dense", None);
    ended(home.llama(&["embed", &without, "--rerank", "q", "a"])).fails_saying(&["no classifier", "cls.output"]);
}

#[test]
fn embed_truncates_long_texts_only_with_flag() {
    let home = Home::new();
    let model = home.model("bert-dense", None);
    let long = "word ".repeat(400);
    let args = ["embed", &model, long.as_str()];
    ended(home.llama(&args)).fails_saying(&["text 1", "at most 256", "--truncate"]);
    let cut = ended(home.llama(&[&args[..], &["--truncate"]].concat()));
    assert_eq!(vectors(cut.succeeds()).len(), 1);
    ended(home.llama(&["embed", &model, "-p", ""])).fails_saying(&["text 1 has no tokens"]);
}
