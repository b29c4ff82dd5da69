//! `llama doctor`: the machine, and whether models fit.

use serde_json::Value;

use crate::common::{Ended, Home, ended, root};

fn header() -> String {
    let path = root().join("tests/data/headers/qwen3-1.7b-q4_k_m.header.gguf");
    path.into_os_string().into_string().expect("a UTF-8 path")
}

fn doctor(args: &[&str]) -> Ended {
    ended(Home::new().llama(&[&["doctor"], args].concat()))
}

fn report(args: &[&str]) -> Value {
    serde_json::from_str(doctor(&[&["--json"], args].concat()).succeeds()).expect("JSON")
}

#[test]
fn the_machine_is_told() {
    let text = doctor(&[]);
    for part in [
        "instructions",
        "CPUs",
        "memory",
        "GB/s from memory",
        "multiply-adds",
        "devices\n",
        "reference",
    ] {
        assert!(text.succeeds().contains(part), "{part:?} in {}", text.out);
    }
    assert!(!text.out.contains("estimate"), "{}", text.out);
    let machine = &report(&[])["machine"];
    let names = |key: &str| machine["isa"][key].as_array().expect("names").len();
    assert_eq!(names("available") + names("missing"), kernels::Isa::ALL.len());
    assert!(machine["cpus"]["threads"].as_u64() > Some(0));
    assert!(machine["speed"]["read_bytes"].as_f64() > Some(1e8));
    assert!(machine["devices"].as_array().is_some_and(|devices| devices.len() > 1));
}

#[test]
fn a_cap_on_instructions_is_told() {
    let home = Home::new();
    let mut command = home.llama(&["doctor", "--json"]);
    command.env("LLAMA_CPU_ISA", "scalar");
    let report: Value = serde_json::from_str(ended(command).succeeds()).expect("JSON");
    assert_eq!(report["machine"]["isa"]["in_use"], "scalar");
    let advice = report["advice"].as_array().expect("advice");
    let is_said = advice
        .iter()
        .any(|a| a.as_str().is_some_and(|a| a.contains("LLAMA_CPU_ISA")));
    let has_more = report["machine"]["isa"]["available"]
        .as_array()
        .is_some_and(|a| a.len() > 1);
    assert_eq!(is_said, has_more, "{report}");
}

/// 28 layers with 8 heads of 128 keys and as many values; the estimate is what was measured by what a token reads.
#[test]
fn a_model_that_fits_has_an_estimate() {
    let report = report(&["-dev", "cpu", "-c", "2048", &header()]);
    let model = &report["model"];
    assert_eq!((&model["fits"], &model["context"]), (&true.into(), &2048.into()));
    let kv: u64 = 28 * 2048 * 2 * 8 * 128 * 2;
    assert_eq!(model["kv_bytes"], kv);
    let number = |value: &Value| value.as_f64().expect("a number");
    let (read, estimate) = (number(&report["machine"]["speed"]["read_bytes"]), &model["estimate"]);
    let bytes = number(&estimate["bytes_per_token"]);
    // All weights but the rows that are looked up: embeddings are the output, too, in this file.
    assert!((0.9e9..1.5e9).contains(&bytes), "{bytes}");
    let is_near = |key: &str, bytes: f64| (number(&estimate[key]) / (read / bytes) - 1.0).abs() < 1e-9;
    assert!(is_near("tokens_per_s", bytes) && is_near("tokens_per_s_full", bytes + kv as f64));
    let text = doctor(&["-dev", "cpu", &header()]);
    for part in [
        "it fits; estimate: about",
        "keys and values of 4096 tokens take 448.00 MiB",
    ] {
        assert!(text.succeeds().contains(part), "{part:?} in {}", text.out);
    }
}

/// The keys and values of 2048 tokens take 224 MiB, which the device has not; half as many of 8 bits fit.
#[test]
fn what_would_make_a_model_fit_is_said() {
    let advice = |args: &[&str]| {
        let header = header();
        let all = [&["-dev", "reference:1400", "-ngl", "all", &header], args].concat();
        let report = report(&all);
        let is_estimated = report["model"].get("estimate").is_some();
        assert!(!is_estimated, "nobody has measured the device: {report}");
        let last = report["advice"]
            .as_array()
            .and_then(|a| a.last()?.as_str().map(str::to_owned));
        (report["model"]["fits"].as_bool(), last.unwrap_or_default())
    };
    // 1050.43 MiB of weights leave 349 for keys and values: 448 at 16 bits, 238 at 8.5.
    assert_eq!(advice(&["-c", "2048"]).0, Some(true));
    assert_eq!(
        advice(&["-c", "4096"]),
        (Some(false), "it fits with -ctk q8_0 -ctv q8_0".into())
    );
    assert_eq!(
        advice(&["-c", "16384"]),
        (Some(false), "it fits with -ctk q8_0 -ctv q8_0 -c 4096".into())
    );
    assert_eq!(
        advice(&["-c", "16384", "-ctk", "q8_0", "-ctv", "q4_0"]),
        (Some(false), "it fits with -c 4096".into())
    );
    // Nothing beyond the 40960 tokens that the model was trained for is said to fit, however much there is.
    let huge = report(&["-dev", "reference:99999", "-ngl", "all", "-c", "2000000000", &header()]);
    assert_eq!(
        huge["advice"].as_array().and_then(|a| a.last()),
        Some(&"it fits with -ctk q8_0 -ctv q8_0 -c 40960".into())
    );
    let (fits, none) = advice(&["-dev", "reference:900"]);
    assert!(fits == Some(false) && none.contains("fewer bits"), "{none}");
    doctor(&["missing.gguf"]).fails_saying(&["missing.gguf"]);
}
