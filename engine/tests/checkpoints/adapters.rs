//! Conversion of low-rank adapters.

use engine::adapter::{Merge, ScaledFactors};
use engine::checkpoint::AdapterConversion;
use engine::gguf::GgufSet;

use super::*;

/// Rank of the adapters.
const RANK: usize = 2;

/// Names and shapes of the adapted modules.
const MODULES: [(&str, [usize; 2]); 3] = [
    ("model.layers.0.self_attn.q_proj", [8, 8]),
    ("model.layers.0.self_attn.k_proj", [4, 8]),
    ("model.layers.0.mlp.down_proj", [8, 16]),
];

/// Returns small integers, so that sums are exact.
fn small(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7 + seed * 3) % 5) as f32 - 2.0).collect()
}

fn factors() -> Vec<Source> {
    let tensor = |name: String, shape: [usize; 2], seed: usize| {
        let values = f32s(small(shape[0] * shape[1], seed));
        (name, "F32", shape.to_vec(), values)
    };
    let mut tensors = Vec::new();
    for (i, (module, [n_out, n_in])) in MODULES.into_iter().enumerate() {
        let name = |factor: &str| format!("base_model.model.{module}.{factor}.weight");
        tensors.push(tensor(name("lora_A"), [RANK, n_in], i));
        tensors.push(tensor(name("lora_B"), [n_out, RANK], i + 9));
    }
    let name = |factor: &str| format!("base_model.model.model.embed_tokens.{factor}");
    tensors.push(tensor(name("lora_embedding_A"), [RANK, 8], 20));
    tensors.push(tensor(name("lora_embedding_B"), [8, RANK], 21));
    tensors
}

/// Writes an adapter to a new directory.
fn adapter(settings: &Json, tensors: &[Source]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("adapter_config.json"), settings.to_string()).unwrap();
    fs::write(directory.path().join("adapter_model.safetensors"), safetensors(tensors)).unwrap();
    directory
}

fn settings() -> Json {
    json!({"peft_type": "LORA", "r": RANK, "lora_alpha": 4.0, "base_model_name_or_path": "someone/base"})
}

fn converted(adapter: &TempDir, base: &TempDir) -> Result<GgufFile, CheckpointError> {
    let conversion = AdapterConversion::open(adapter.path(), base.path(), archs::ALL)?;
    let mut bytes = Vec::new();
    conversion.write(&mut bytes, &|_| true)?;
    Ok(GgufFile::from_bytes("adapter.gguf", &bytes).unwrap())
}

/// Returns the checkpoint with `scale * B * A` added to each adapted matrix.
fn merged_checkpoint(scale: f32) -> Vec<Source> {
    let mut tensors = llama();
    for (name, _, shape, bytes) in &mut tensors {
        let module = name.trim_end_matches(".weight");
        let found = MODULES.iter().position(|(other, _)| *other == module);
        let is_embedding = module == "model.embed_tokens";
        let (Some([n_out, n_in]), true) = (shape.first_chunk().copied(), found.is_some() || is_embedding) else {
            continue;
        };
        let (a, b) = match found {
            Some(i) => (small(RANK * n_in, i), small(n_out * RANK, i + 9)),
            // Columns of the first factor belong to tokens.
            None => (small(n_in * RANK, 21), small(RANK * n_out, 20)),
        };
        let values = bytes.chunks_exact(4).enumerate().map(|(i, old)| {
            let (row, column) = (i / n_in, i % n_in);
            let sum: f32 = (0..RANK)
                .map(|r| match found {
                    Some(_) => b[row * RANK + r] * a[r * n_in + column],
                    None => b[r * n_out + row] * a[column * RANK + r],
                })
                .sum();
            f32::from_le_bytes([old[0], old[1], old[2], old[3]]) + scale * sum
        });
        let values: Vec<f32> = values.collect();
        *bytes = f32s(values);
    }
    tensors
}

#[test]
fn merged_adapter_equals_the_converted_merged_checkpoint() {
    let base = directory(&config(), &llama());
    let adapter = converted(&adapter(&settings(), &factors()), &base).unwrap();
    assert_eq!(adapter.require::<f32>("adapter.lora.alpha").unwrap(), 4.0);
    assert_eq!(adapter.tensors().len(), 8);
    let model = GgufSet::from_file(convert(&base).unwrap()).unwrap();
    let adapters = [ScaledFactors {
        file: &adapter,
        scale: 1.0,
    }];
    let mut bytes = Vec::new();
    Merge::new(&model, &adapters)
        .unwrap()
        .write(&mut bytes, &|_| true)
        .unwrap();
    let merged = GgufFile::from_bytes("merged.gguf", &bytes).unwrap();
    // The scale is alpha / rank.
    let expected = convert(&directory(&config(), &merged_checkpoint(2.0))).unwrap();
    let mut n_changed = 0;
    for tensor in expected.tensors() {
        let found = values(&merged, &tensor.name);
        assert_eq!(found, values(&expected, &tensor.name), "{}", tensor.name);
        let old = GgufFile::from_bytes("old.gguf", model.first().mapping().bytes()).unwrap();
        n_changed += usize::from(found != values(&old, &tensor.name));
    }
    assert_eq!(n_changed, 4);
}

#[test]
fn scales_follow_the_settings_of_the_adapter() {
    let base = directory(&config(), &llama());
    let of = |change: &dyn Fn(&mut Json)| {
        let mut settings = settings();
        change(&mut settings);
        converted(&adapter(&settings, &factors()), &base).unwrap()
    };
    let plain = of(&|_| ());
    let q = "blk.0.attn_q.weight.lora_b";
    // Alpha divided by the square root of the rank.
    let stabilized = of(&|settings| settings["use_rslora"] = json!(true));
    let alpha: f32 = stabilized.require("adapter.lora.alpha").unwrap();
    assert!((alpha / RANK as f32 - 4.0 / (RANK as f32).sqrt()).abs() < 1e-6);
    assert_eq!(values(&stabilized, q), values(&plain, q));
    // The alpha of a single module scales its second factor.
    let own = of(&|settings| settings["alpha_pattern"] = json!({"q_proj": 12.0}));
    let tripled: Vec<f32> = values(&plain, q).iter().map(|x| 3.0 * x).collect();
    assert_eq!(values(&own, q), tripled);
    let k = "blk.0.attn_k.weight.lora_b";
    assert_eq!(values(&own, k), values(&plain, k));
}

#[test]
fn convert_rejects_unsupported_and_damaged_adapters() {
    let base = directory(&config(), &llama());
    let fault = |settings: &Json, tensors: &[Source]| {
        let message = converted(&adapter(settings, tensors), &base).expect_err("the conversion fails");
        message.to_string()
    };
    let mut dora = settings();
    dora["use_dora"] = json!(true);
    assert!(fault(&dora, &factors()).contains("adapter_config.json: `use_dora` is true"));
    let mut kind = settings();
    kind["peft_type"] = json!("IA3");
    assert!(fault(&kind, &factors()).contains("only \"LORA\" can be converted"));
    assert!(fault(&json!({}), &factors()).contains("missing field"));
    let all = factors();
    assert!(fault(&settings(), &all[1..]).contains("`model.layers.0.self_attn.q_proj` has no first factor"));
    let without_second = [&all[..1], &all[2..]].concat();
    assert!(fault(&settings(), &without_second).contains("`model.layers.0.self_attn.q_proj` has no second factor"));
    let mut foreign = all.clone();
    foreign[1].0 = "base_model.model.model.layers.0.other.lora_B.weight".to_owned();
    assert!(fault(&settings(), &foreign).contains("does not read `model.layers.0.other.weight`"));
    let extra = [all, vec![counting("base_model.model.lm_head.weight", &[8, 8], 0)]].concat();
    assert!(fault(&settings(), &extra).contains("is not a factor of a low-rank adapter"));
}
