//! Tests of `llama synth` and `llama bench`.

use std::collections::BTreeSet;

use crate::common::{Ended, Home, ended};

/// Synthetic models load, match their declarations, have the requested types, and accept size overrides.
#[test]
fn synth_writes_all_types() {
    let home = Home::new();
    let path = home.path("synth.gguf");
    let path = path.to_str().unwrap();
    for (arch, ty, more, types) in [
        ("llama", "q4_k_m", &[][..], &["q4_K", "q6_K", "f32"][..]),
        ("qwen3", "q4_0", &["--output-type", "q6_k"], &["q4_0", "q6_K", "f32"]),
        ("gemma3", "f16", &[], &["f16", "f32"]),
        ("llama", "iq2_xs", &[], &["iq2_xs", "f32"]),
    ] {
        let args = ["synth", "--arch", arch, "--shape", "tiny", "--type", ty, "-o", path];
        let written = ended(home.llama(&[&args[..], &["--set", "n_layer=3"], more].concat()));
        assert!(written.succeeds().contains("parameters"), "{}", written.out);
        let report = ended(home.llama(&["inspect", "--json", path]));
        let report: serde_json::Value = serde_json::from_str(report.succeeds()).unwrap();
        assert_eq!(report["declaration"]["status"], "matches");
        assert_eq!(report["hyper_parameters"][format!("{arch}.block_count")], 3);
        let found: BTreeSet<_> = report["types"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(found, types.iter().map(|ty| (*ty).to_owned()).collect(), "{arch} {ty}");
        let run = ["run", path, "--raw", "abc", "-n", "4", "--temp", "0", "--no-stats"];
        assert!(!ended(home.llama(&run)).succeeds().is_empty());
    }
}

#[test]
fn synth_rejects_invalid_settings() {
    let home = Home::new();
    let path = home.path("no.gguf");
    let path = path.to_str().unwrap();
    let synth = |more: &[&str]| ended(home.llama(&[&["synth", "-o", path, "--type", "q8_0"], more].concat()));
    synth(&["--shape", "tiny", "--set", "n_heads=3"]).fails_saying(&["`n_heads`", "n_head_kv"]);
    synth(&["--shape", "tiny", "--set", "n_vocab=100"]).fails_saying(&["100 tokens", "259"]);
    synth(&["--shape", "tiny", "--arch", "lama"]).fails_saying(&["did you mean llama"]);
    for wrong in [&["--shape", "2b"][..], &["--shape", "tiny", "--set", "n_layer"]] {
        assert_eq!(synth(wrong).status, 2, "{wrong:?}");
    }
}

const COLUMNS: [&str; 4] = ["test", "tok/s", "of memory", "of f32"];

fn tiny(home: &Home) -> String {
    let path = home.path("tiny.gguf").into_os_string().into_string().unwrap();
    let args = ["synth", "--shape", "tiny", "--type", "q8_0", "-o", &path];
    ended(home.llama(&args)).succeeds();
    path
}

fn bench(home: &Home, model: &str, more: &[&str]) -> Ended {
    let args = ["bench", "-m", model, "-p", "16", "-n", "4", "-r", "3", "-t", "1"];
    ended(home.llama(&[&args[..], more].concat()))
}

fn rows(ended: &Ended) -> Vec<serde_json::Value> {
    serde_json::from_str(ended.succeeds()).expect("a JSON list of objects")
}

#[test]
fn bench_measures_every_combination() {
    let home = Home::new();
    let model = tiny(&home);
    let found = rows(&bench(&home, &model, &["-d", "0,70", "-np", "1,2", "-o", "json"]));
    let number = |row: &serde_json::Value, name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name} in {row}"));
    let key =
        |row: &serde_json::Value| ["n_parallel", "n_depth", "n_prompt", "n_gen"].map(|name| number(row, name) as usize);
    let expected = [
        [1, 0, 16, 0],
        [1, 0, 0, 4],
        [1, 70, 16, 0],
        [1, 70, 0, 4],
        [2, 0, 16, 0],
        [2, 0, 0, 4],
        [2, 70, 16, 0],
        [2, 70, 0, 4],
    ];
    assert_eq!(found.iter().map(key).collect::<Vec<_>>(), expected);
    for row in &found {
        let samples: Vec<f64> = row["samples_ts"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|x| x.as_f64())
            .collect();
        assert_eq!(samples.len(), 3);
        let median = number(row, "median_ts");
        assert!(
            samples.contains(&median) && samples.iter().filter(|&&x| x <= median).count() >= 2,
            "{row}"
        );
        for name in [
            "read_limit",
            "f32_limit",
            "multiply_adds_per_s",
            "load_ms",
            "first_token_ms",
            "avg_ts",
        ] {
            assert!(number(row, name) > 0.0, "{name} in {row}");
        }
        assert_eq!(row["read_bytes_per_s"].is_null(), number(row, "n_gen") == 0.0, "{row}");
    }
    // Two sequences read the same weights once; a larger depth reads more KV cells.
    let bytes = |row: &serde_json::Value| {
        number(row, "read_bytes_per_s") / number(row, "median_ts") * number(row, "n_parallel")
    };
    assert!(bytes(&found[3]) > bytes(&found[1]));
    assert!(bytes(&found[5]) < 1.5 * bytes(&found[1]));
}

#[test]
fn bench_prints_tables_and_csv() {
    let home = Home::new();
    let model = tiny(&home);
    let table = bench(&home, &model, &["-np", "2", "-d", "3"]);
    for part in COLUMNS.iter().chain(&["first token after", "pp16x2@d3", "tg4x2@d3"]) {
        assert!(table.succeeds().contains(part), "{part} in {}", table.out);
    }
    let md = bench(&home, &model, &["-o", "md"]);
    assert!(
        md.succeeds().contains("| pp16 | 1 |") && md.out.contains("|---|"),
        "{}",
        md.out
    );
    let csv = bench(&home, &model, &["-o", "csv"]);
    let lines: Vec<Vec<&str>> = csv.succeeds().lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 3, "{}", csv.out);
    assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{}", csv.out);
    let at = lines[0].iter().position(|name| *name == "n_prompt").unwrap();
    assert_eq!((lines[1][at], lines[2][at]), ("16", "0"));
}

/// The shares of a profile add up to the time of all repetitions; resetting the context is excluded.
#[test]
fn profile_adds_up_to_total_time() {
    let home = Home::new();
    let model = tiny(&home);
    let found = rows(&bench(&home, &model, &["--profile", "-d", "0,70", "-o", "json"]));
    assert_eq!(found.len(), 4);
    for row in &found {
        let number = |value: &serde_json::Value| value.as_f64().unwrap_or_else(|| panic!("a number in {row}"));
        let parts = row["profile"].as_array().unwrap();
        let sum = |name: &str| parts.iter().map(|part| number(&part[name])).sum::<f64>();
        assert!((sum("share") - 1.0).abs() < 1e-9, "{row}");
        let n_tokens = number(&row["n_prompt"]) + number(&row["n_gen"]);
        let samples = row["samples_ts"].as_array().unwrap();
        let wall: f64 = samples.iter().map(|speed| n_tokens / number(speed)).sum();
        assert!(
            (sum("seconds") / wall - 1.0).abs() < 1e-6,
            "{} of {wall}: {row}",
            sum("seconds")
        );
        let names: Vec<&str> = parts.iter().filter_map(|part| part["op"].as_str()).collect();
        for name in ["mul_mat q8_0", "attention", "graph", "inputs", "results"] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        assert_eq!(names.last(), Some(&"rest"));
        // The number of matmuls depends only on the test, not on earlier computations.
        let n_runs = number(&row["n_gen"]).max(1.0) * samples.len() as f64;
        let of = |name: &str| number(&parts.iter().find(|part| part["op"] == name).unwrap()["n"]);
        assert_eq!((of("inputs"), of("results")), (n_runs, n_runs), "{row}");
    }
    let table = bench(&home, &model, &["--profile"]);
    let lines = table
        .succeeds()
        .lines()
        .filter(|line| line.contains(" % ") && line.ends_with(" x"));
    assert!(
        lines.filter(|line| line.trim_start().starts_with("rest ")).count() == 2,
        "{}",
        table.out
    );
}

/// The baseline is a script that prints fixed speeds.
#[test]
fn bench_compares_baseline_per_round() {
    let home = Home::new();
    let model = tiny(&home);
    let rival =
        r#"echo run >> rounds; echo '[{"n_prompt":16,"n_gen":0,"avg_ts":2.0},{"n_prompt":0,"n_gen":4,"avg_ts":4.0}]'"#;
    let rival = rival.replace("rounds", home.path("rounds").to_str().unwrap());
    let found = rows(&bench(&home, &model, &["--compare", &rival, "-o", "json"]));
    for (row, theirs) in found.iter().zip([2.0, 4.0]) {
        let list = |name: &str| -> Vec<f64> {
            row[name]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(|x| x.as_f64())
                .collect()
        };
        assert_eq!(list("rival_ts"), [theirs; 3]);
        let samples = list("samples_ts");
        let is_ratio = |(ratio, ours): (&f64, &f64)| (ratio * theirs / ours - 1.0).abs() < 1e-9;
        assert!(
            samples.len() == 3 && list("ratios").iter().zip(&samples).all(is_ratio),
            "{row}"
        );
        // The measurement of the memory bandwidth reads 256 MiB.
        assert!(row["peak_bytes"].as_u64().is_some_and(|n| n < 128 << 20), "{row}");
    }
    assert_eq!(std::fs::read_to_string(home.path("rounds")).unwrap().lines().count(), 3);
    let failed = bench(&home, &model, &["--compare", "echo broken >&2; false", "-o", "json"]);
    failed.fails_saying(&["--compare", "broken"]);
    let other = r#"echo '{"n_prompt":512,"avg_ts":2.0}'"#;
    bench(&home, &model, &["--compare", other, "-o", "json"]).fails_saying(&["n_prompt 16"]);
}

#[test]
fn bench_rejects_unsupported_tests() {
    let home = Home::new();
    let model = tiny(&home);
    let nothing = ["bench", "-m", &model, "-p", "0", "-n", "0"];
    ended(home.llama(&nothing)).fails_saying(&["-p and -n are both 0"]);
    let t5 = home.model("t5-dense", None);
    bench(&home, &t5, &["-o", "json"]).fails_saying(&["t5", "encoder"]);
    for wrong in [["-np", "0"], ["-p", "x"], ["-r", "0"], ["-o", "xml"]] {
        assert_eq!(bench(&home, &model, &wrong).status, 2, "{wrong:?}");
    }
}

/// Embedding models only support prefill tests. Other tests are skipped; it is an error if none remain.
#[test]
fn bench_measures_prefill_of_embedding_models() {
    let home = Home::new();
    let model = home.model("bert-dense", None);
    let found = rows(&bench(&home, &model, &["-np", "1,3", "-b", "8", "-o", "json"]));
    let prompts: Vec<_> = found
        .iter()
        .map(|row| (&row["n_prompt"], &row["n_gen"], &row["n_parallel"]))
        .collect();
    assert_eq!(
        format!("{prompts:?}"),
        "[(Number(16), Number(0), Number(1)), (Number(16), Number(0), Number(3))]"
    );
    let alone = |test: &[&str]| ended(home.llama(&[&["bench", "-m", &model, "-o", "json"], test].concat()));
    alone(&["-p", "0", "-n", "4"]).fails_saying(&["bert", "-p"]);
    alone(&["-p", "16", "-d", "64"]).fails_saying(&["bert", "-d"]);
    alone(&["-p", "100000"]).fails_saying(&["position"]);
}
