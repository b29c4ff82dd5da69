//! Tests of `llama perplexity`.

use engine::gguf::logits::Logits;
use serde_json::Value;

use crate::common::{Ended, Home, ended};

/// Returns a text of a few hundred tokens for a vocabulary of characters.
fn text(home: &Home) -> String {
    let text: String = (0..60).map(|i| format!("{} ships sail on the sea. ", i * i)).collect();
    let path = home.path("text.txt");
    std::fs::write(&path, text).unwrap();
    path.into_os_string().into_string().unwrap()
}

fn perplexity(home: &Home, model: &str, args: &[&str]) -> Ended {
    ended(home.llama(&[&["perplexity", model][..], args].concat()))
}

fn json(result: &Ended) -> Value {
    serde_json::from_str(result.succeeds()).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Returns negative log-probabilities of the scored tokens, from the logits of whole chunks.
fn recomputed(home: &Home, model: &str, text: &str) -> Vec<f64> {
    let ids = ended(home.llama(&["tokenize", model, "--ids", &std::fs::read_to_string(text).unwrap()]));
    let ids: Vec<usize> = ids.succeeds().trim().split(',').map(|id| id.parse().unwrap()).collect();
    let mut nlls = Vec::new();
    for chunk in ids.chunks_exact(32) {
        let list: Vec<_> = chunk.iter().map(usize::to_string).collect();
        let out = home.path("logits").into_os_string().into_string().unwrap();
        ended(home.llama(&["logits", model, "--tokens", &list.join(","), "-o", &out])).succeeds();
        let logits = Logits::read(&out).unwrap();
        for pos in 16..31 {
            let row: Vec<f64> = logits.row(pos).iter().map(|&x| f64::from(x)).collect();
            let max = row.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
            nlls.push(max + sum.ln() - row[chunk[pos + 1]]);
        }
    }
    nlls
}

#[test]
fn perplexity_equals_that_of_recorded_logits() {
    let home = Home::new();
    let (model, text) = (home.model_with_text("gpt2", None), text(&home));
    let nlls = recomputed(&home, &model, &text);
    let expected = (nlls.iter().sum::<f64>() / nlls.len() as f64).exp();
    for batch in ["7", "32", "100"] {
        let result = json(&perplexity(
            &home,
            &model,
            &["-f", &text, "-c", "32", "-ub", batch, "--json"],
        ));
        assert_eq!(result["scored_tokens"], nlls.len());
        let found = number(&result["perplexity"]["value"]);
        assert!((found / expected - 1.0).abs() < 1e-3, "{found} {expected}");
    }
}

#[test]
fn base_files_and_a_second_model_give_the_same_divergence() {
    let home = Home::new();
    let (model, text) = (home.model_with_text("gpt2", None), text(&home));
    let path = |name: &str| home.path(name).into_os_string().into_string().unwrap();
    let small = path("small.gguf");
    ended(home.llama(&["quantize", &model, &small, "q4_0"])).succeeds();
    let common = ["-f", &text, "-c", "32", "--json"];
    let direct = json(&perplexity(
        &home,
        &small,
        &[&common[..], &["--against", &model]].concat(),
    ));
    let kld = number(&direct["kld"]["value"]);
    assert!(kld > 0.0 && number(&direct["kld_error_bound"]) == 0.0, "{direct}");
    for (name, flag) in [("full", None), ("compact", Some("--compact"))] {
        let base = path(name);
        let write = ["--kl-divergence-base", &base].into_iter().chain(flag);
        perplexity(&home, &model, &common.into_iter().chain(write).collect::<Vec<_>>()).succeeds();
        let read = ["--kl-divergence", "--kl-divergence-base", &base, "--json"];
        let found = json(&perplexity(&home, &small, &read));
        for key in ["kld", "perplexity", "base_perplexity", "delta_p_rms", "same_top"] {
            let [a, b] = [&direct, &found].map(|report| number(&report[key]["value"]));
            assert!((a - b).abs() <= 1e-3 * a.abs(), "{name}, {key}: {a} {b}");
        }
        let own = json(&perplexity(&home, &model, &read));
        assert!(number(&own["kld"]["value"]).abs() < 1e-6 && number(&own["same_top"]["value"]) == 1.0);
    }
    let shown = perplexity(&home, &small, &["-f", &text, "-c", "32", "--against", &model]);
    for part in ["Perplexity", "KL divergence", "99.9%", "RMS Δp", "Same top token"] {
        assert!(shown.succeeds().contains(part), "{part}: {}", shown.out);
    }
}

#[test]
fn tasks_are_scored_by_the_mean_of_their_answers() {
    let home = Home::new();
    let model = home.model_with_text("gpt2", None);
    let file = home.path("tasks").into_os_string().into_string().unwrap();
    std::fs::write(&file, "A man\n1\nruns\nis\nsleeps\nate\nA dog\n0\nbit\na\nbarks\nran\n").unwrap();
    let result = json(&perplexity(&home, &model, &["-f", &file, "--hellaswag", "--json"]));
    let scores = result["scores"].as_array().unwrap();
    assert_eq!((scores.len(), &result["tasks"]), (2, &Value::from(2)));
    // Tasks that are scored one at a time get the same scores, in the order of llama.cpp's selection.
    let one = json(&perplexity(
        &home,
        &model,
        &["-f", &file, "--hellaswag", "--tasks", "1", "--json"],
    ));
    assert_eq!(one["scores"][0]["choice"], scores[0]["choice"]);
    for (a, b) in one["scores"][0]["answers"]
        .as_array()
        .unwrap()
        .iter()
        .zip(scores[0]["answers"].as_array().unwrap())
    {
        assert!((number(a) - number(b)).abs() < 1e-3, "{a} {b}");
    }
    std::fs::write(&file, "0,Ann saw that _ was late.,Bob,Eve,2\n").unwrap();
    let shown = perplexity(&home, &model, &["-f", &file, "--winogrande"]);
    assert!(shown.succeeds().starts_with("WinoGrande: "), "{}", shown.out);
}

#[test]
fn single_chunk_is_singular() {
    let home = Home::new();
    let (model, text) = (home.model_with_text("gpt2", None), text(&home));
    let args = |n_chunks: &str| perplexity(&home, &model, &["-f", &text, "-c", "32", "--chunks", n_chunks]);
    assert!(args("1").succeeds().contains("; 1 chunk of 32)"), "{}", args("1").out);
    assert!(args("2").succeeds().contains("; 2 chunks of 32)"), "{}", args("2").out);
}

#[test]
fn perplexity_explains_bad_input() {
    let home = Home::new();
    let (model, text) = (home.model_with_text("gpt2", None), text(&home));
    let fails = |args: &[&str], parts: &[&str]| perplexity(&home, &model, args).fails_saying(parts);
    fails(&[], &["no text given"]);
    fails(
        &["-f", &text, "-c", "100000"],
        &["text.txt", "shorter than one chunk (", " of 100000 tokens)"],
    );
    fails(&["-f", &text, "-c", "3"], &["--ctx-size must be at least 4"]);
    fails(&["-f", &text, "--hellaswag"], &["text.txt", "six lines"]);
    fails(&["-f", &text, "--tasks", "3"], &["--tasks needs"]);
    fails(
        &["--kl-divergence", "--kl-divergence-base", &text],
        &["text.txt", "log-probabilities"],
    );
    let missing = home.path("no/such/base").into_os_string().into_string().unwrap();
    fails(
        &["-f", &text, "-c", "32", "--kl-divergence-base", &missing],
        &["cannot write", "no/such/base"],
    );
    let other = home.model("bert-dense", None);
    perplexity(&home, &other, &["-f", &text]).fails_saying(&["bert", "does not predict the next token"]);
}
