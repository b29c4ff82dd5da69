//! Tests of `llama quantize`.

use engine::gguf::GgufFile;
use kernels::GgmlType;

use crate::common::{Ended, Home, ended};

fn quantize(home: &Home, input: &str, output: &str, args: &[&str]) -> Ended {
    ended(home.llama(&[&["quantize", input, output][..], args].concat()))
}

/// Returns the names in a directory, without caches and settings.
fn written(home: &Home) -> Vec<String> {
    let files = std::fs::read_dir(home.path("")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains("small")).collect()
}

#[test]
fn quantize_writes_a_file_that_runs() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let output = home.path("small.gguf").into_os_string().into_string().unwrap();
    let result = quantize(&home, &model, &output, &["q8_0", "--tensor-type", "attn_v=f16"]);
    assert!(result.succeeds().contains("bits per weight"), "{}", result.out);
    let file = GgufFile::open(&output).unwrap();
    assert_eq!(file.require::<u32>("general.file_type").unwrap(), 7);
    assert_eq!(file.tensor("blk.0.attn_v.weight").unwrap().ty, GgmlType::F16);
    assert_eq!(file.tensor("output_norm.weight").unwrap().ty, GgmlType::F32);
    let logits = home.path("logits").into_os_string().into_string().unwrap();
    ended(home.llama(&["logits", &output, "--tokens", "1,2,3", "-o", &logits])).succeeds();
    assert_eq!(written(&home), ["small.gguf"]);
}

#[test]
fn quantize_dry_run_lists_types_and_writes_nothing() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let result = quantize(&home, &model, "small.gguf", &["q4_k_m", "--dry-run", "--json"]);
    let report: serde_json::Value = serde_json::from_str(result.succeeds()).unwrap();
    assert_eq!(report["type"], "q4_k_m");
    let tensors = report["tensors"].as_array().unwrap();
    let bytes: u64 = tensors.iter().map(|tensor| tensor["bytes"].as_u64().unwrap()).sum();
    assert_eq!(report["tensor_bytes"], bytes);
    let norm = tensors
        .iter()
        .find(|tensor| tensor["name"] == "output_norm.weight")
        .unwrap();
    assert_eq!(
        (&norm["to"], &norm["wanted"]),
        (&"f32".into(), &serde_json::Value::Null)
    );
    let result = quantize(&home, &model, "small.gguf", &["q4_k_m", "--dry-run"]);
    assert!(result.succeeds().contains("output_norm.weight"), "{}", result.out);
    assert_eq!(written(&home), [""; 0]);
}

#[test]
fn quantize_override_kv_replaces_metadata_with_the_type_of_the_key() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let output = home.path("small.gguf").into_os_string().into_string().unwrap();
    let keys = [
        "--override-kv",
        "qwen3.context_length=int:77",
        "--override-kv",
        "general.name=str:Mine",
    ];
    quantize(&home, &model, &output, &[&["f16"][..], &keys].concat()).succeeds();
    let file = GgufFile::open(&output).unwrap();
    assert_eq!(file.require::<u32>("qwen3.context_length").unwrap(), 77);
    assert_eq!(file.require::<&str>("general.name").unwrap(), "Mine");
}

#[test]
fn quantize_explains_refusals() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let output = home.path("small.gguf").into_os_string().into_string().unwrap();
    quantize(&home, &model, &output, &["q8_0"]).succeeds();
    let again = home.path("small2.gguf").into_os_string().into_string().unwrap();
    let result = quantize(&home, &output, &again, &["q4_0"]);
    result.fails_saying(&["is already quantized (q8_0)", "--allow-requantize"]);
    quantize(&home, &model, &model, &["q8_0"]).fails_saying(&["is the source"]);
    let nowhere = home.path("missing/small.gguf").into_os_string().into_string().unwrap();
    quantize(&home, &model, &nowhere, &["q8_0"]).fails_saying(&["cannot write"]);
    assert_eq!(written(&home), ["small.gguf"]);
    let result = quantize(&home, &model, &again, &["q9_k"]);
    assert_eq!(result.status, 2);
    assert!(result.err.contains("expected one of f32, f16"), "{}", result.err);
}

#[test]
fn quantize_weights_errors_by_an_importance_matrix() {
    let home = Home::new();
    let model = home.model_with_text("gpt2", None);
    let path = |name: &str| home.path(name).into_os_string().into_string().unwrap();
    let (text, matrix, output) = (path("text.txt"), path("m.gguf"), path("small.gguf"));
    std::fs::write(&text, "The ships sail on the wide sea. ".repeat(80)).unwrap();
    ended(home.llama(&["imatrix", &model, "-f", &text, "-o", &matrix])).succeeds();
    let args = ["iq4_nl", "--imatrix", &matrix];
    let result = quantize(&home, &model, &output, &args);
    assert!(result.succeeds().contains("bits per weight"), "{}", result.out);
    let file = GgufFile::open(&output).unwrap();
    assert_eq!(file.require::<&str>("quantize.imatrix.file").unwrap(), matrix);
    assert_eq!(file.require::<u32>("quantize.imatrix.chunks_count").unwrap(), 5);
    let plain = path("small-plain.gguf");
    quantize(&home, &model, &plain, &["iq4_nl"]).succeeds();
    let plain = GgufFile::open(&plain).unwrap();
    let name = "blk.0.ffn_down.weight";
    let data = |file: &GgufFile| file.tensor_data(file.tensor(name).unwrap()).to_vec();
    assert_ne!(data(&file), data(&plain));
    let other = home.model("mamba-dense", None);
    let refused = path("small-refused.gguf");
    let result = quantize(&home, &other, &refused, &["q4_0", "--imatrix", &matrix]);
    result.fails_saying(&["belongs to another model"]);
    let result = quantize(&home, &model, &refused, &["q4_0", "--imatrix", &text]);
    result.fails_saying(&["text.txt", "not a valid importance matrix"]);
    assert!(!std::path::Path::new(&refused).exists());
}
