//! Tests of `llama convert-lora` and `llama export-lora`.

use engine::gguf::logits::Logits;
use engine::gguf::{GgufFile, GgufWriter};
use kernels::GgmlType;

use crate::common::{Home, ended};

/// Writes an adapter of rank 2 for two weights of a model.
fn adapter(home: &Home, model: &str) -> String {
    let model = GgufFile::open(model).unwrap();
    let mut writer = GgufWriter::new();
    writer.set("general.type", "adapter").set("adapter.type", "lora");
    writer.set(
        "general.architecture",
        model.require::<&str>("general.architecture").unwrap(),
    );
    writer.set("adapter.lora.alpha", 4f32);
    for name in ["blk.0.attn_q.weight", "blk.1.ffn_down.weight"] {
        let ne = model.tensor(name).unwrap().ne;
        for (suffix, shape) in [("lora_a", [ne[0], 2]), ("lora_b", [2, ne[1]])] {
            let n: usize = shape.iter().product();
            let values = (0..n).map(|i| ((i * 7919 % 101) as f32 - 50.0) / 400.0);
            let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
            writer
                .add_tensor(format!("{name}.{suffix}"), GgmlType::F32, &shape, bytes)
                .unwrap();
        }
    }
    let path = home.path("adapter.gguf");
    writer.write_file(&path).unwrap();
    path.into_os_string().into_string().unwrap()
}

#[test]
fn exported_model_computes_like_the_model_with_its_adapter() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let adapter = adapter(&home, &model);
    let path = |name: &str| home.path(name).into_os_string().into_string().unwrap();
    let merged = path("merged.gguf");
    let scaled = format!("{adapter}=0.5");
    let result = ended(home.llama(&["export-lora", &model, &merged, "--lora", &scaled]));
    assert!(result.succeeds().contains("2 weights changed"), "{}", result.out);
    let logits = |model: &str, name: &str, args: &[&str]| {
        let output = path(name);
        let line = [
            &[
                "logits",
                model,
                "--tokens",
                "1,2,3",
                "--precision",
                "exact",
                "-o",
                &output,
            ][..],
            args,
        ]
        .concat();
        ended(home.llama(&line)).succeeds();
        Logits::read(&output).unwrap()
    };
    let expected = logits(&model, "with", &["--lora", &scaled]);
    let found = logits(&merged, "merged", &[]);
    let plain = logits(&model, "without", &[]);
    assert!(
        expected.nmse(found.values()) < 1e-9,
        "{}",
        expected.nmse(found.values())
    );
    assert!(
        expected.nmse(plain.values()) > 1e-4,
        "{}",
        expected.nmse(plain.values())
    );
    let again = ended(home.llama(&["export-lora", &model, &merged, "--lora", &adapter]));
    again.fails_saying(&["exists", "--force"]);
    // The same merge in llama.cpp's syntax, which names the files by flags.
    let (same, scaled) = (path("same.gguf"), format!("{adapter}:0.5"));
    let line = ["export-lora", "-m", &model, "-o", &same, "--lora-scaled", &scaled];
    ended(home.llama(&line)).succeeds();
    assert_eq!(std::fs::read(&same).unwrap(), std::fs::read(&merged).unwrap());
    let result = ended(home.llama(&["export-lora", "-m", &model, "-o", &same]));
    assert!(result.status == 2 && result.err.contains("--lora"), "{}", result.err);
    let other = home.model("llama-dense", None);
    let result = ended(home.llama(&["export-lora", &other, &path("no.gguf"), "--lora", &adapter]));
    result.fails_saying(&["the adapter is for architecture qwen3, but the model is llama"]);
}

#[test]
fn convert_lora_explains_missing_files() {
    let home = Home::new();
    let path = |name: &str| home.path(name).into_os_string().into_string().unwrap();
    let (input, output) = (path("adapter"), path("out.gguf"));
    std::fs::create_dir(&input).unwrap();
    let result = ended(home.llama(&["convert-lora", &input, &output, "--base", &input]));
    result.fails_saying(&["cannot read", "adapter_config.json"]);
    std::fs::write(
        home.path("adapter/adapter_config.json"),
        "{\"r\": 2, \"lora_alpha\": 4}",
    )
    .unwrap();
    let result = ended(home.llama(&["convert-lora", &input, &output, "--base", &input]));
    result.fails_saying(&["adapter_model.safetensors"]);
    assert!(!home.path("out.gguf").exists());
}
