//! Tests of `llama doctor`.

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
fn doctor_reports_machine() {
    let text = doctor(&[]);
    for part in [
        "instructions",
        "CPUs",
        "memory",
        "GB/s (memory reads)",
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
fn doctor_measures_with_little_memory() {
    let llama = Home::new().llama(&[]);
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "ulimit -v 250000 && exec \"$0\" doctor"])
        .arg(llama.get_program());
    let text = ended(command);
    assert!(text.succeeds().contains("GB/s (memory reads)"), "{}", text.out);
}

#[test]
fn doctor_reports_instruction_set_limit() {
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

/// The model has 28 layers with 8 KV heads of 128 elements. The estimate is the measured bandwidth divided by
/// the bytes read per token.
#[test]
fn doctor_estimates_speed_of_fitting_model() {
    let report = report(&["-dev", "cpu", "-c", "2048", &header()]);
    let model = &report["model"];
    assert_eq!((&model["fits"], &model["context"]), (&true.into(), &2048.into()));
    let kv: u64 = 28 * 2048 * 2 * 8 * 128 * 2;
    assert_eq!(model["kv_bytes"], kv);
    let number = |value: &Value| value.as_f64().expect("a number");
    let (read, estimate) = (number(&report["machine"]["speed"]["read_bytes"]), &model["estimate"]);
    let bytes = number(&estimate["bytes_per_token"]);
    // The embedding matrix counts once: it is also the output matrix in this file.
    assert!((0.9e9..1.5e9).contains(&bytes), "{bytes}");
    let is_near = |key: &str, bytes: f64| (number(&estimate[key]) / (read / bytes) - 1.0).abs() < 1e-9;
    assert!(is_near("tokens_per_s", bytes) && is_near("tokens_per_s_full", bytes + kv as f64));
    let text = doctor(&["-dev", "cpu", &header()]);
    for part in ["fits; at most", "KV cache: 4096 tokens, 448.00 MiB"] {
        assert!(text.succeeds().contains(part), "{part:?} in {}", text.out);
    }
}

/// An f16 cache of 2048 tokens needs 224 MiB, which the device lacks; a q8_0 cache fits.
#[test]
fn doctor_suggests_changes_that_fit() {
    let advice = |args: &[&str]| {
        let header = header();
        let all = [&["-dev", "reference:1400", "-ngl", "all", &header], args].concat();
        let report = report(&all);
        let is_estimated = report["model"].get("estimate").is_some();
        assert!(!is_estimated, "the bandwidth of the device was not measured: {report}");
        let last = report["advice"]
            .as_array()
            .and_then(|a| a.last()?.as_str().map(str::to_owned));
        (report["model"]["fits"].as_bool(), last.unwrap_or_default())
    };
    // 1050.43 MiB of weights leave 349 MiB for the cache, which needs 448 MiB in f16 and 238 MiB in q8_0.
    assert_eq!(advice(&["-c", "2048"]).0, Some(true));
    assert_eq!(
        advice(&["-c", "4096"]),
        (Some(false), "fits with -ctk q8_0 -ctv q8_0".into())
    );
    assert_eq!(
        advice(&["-c", "16384"]),
        (Some(false), "fits with -ctk q8_0 -ctv q8_0 -c 4096".into())
    );
    assert_eq!(
        advice(&["-c", "16384", "-ctk", "q8_0", "-ctv", "q4_0"]),
        (Some(false), "fits with -c 4096".into())
    );
    // The advice never exceeds the training context of 40960 tokens.
    let huge = report(&["-dev", "reference:99999", "-ngl", "all", "-c", "2000000000", &header()]);
    assert_eq!(
        huge["advice"].as_array().and_then(|a| a.last()),
        Some(&"fits with -ctk q8_0 -ctv q8_0 -c 40960".into())
    );
    let (fits, none) = advice(&["-dev", "reference:900"]);
    assert!(fits == Some(false) && none.contains("more quantized"), "{none}");
    doctor(&["missing.gguf"]).fails_saying(&["missing.gguf"]);
}
