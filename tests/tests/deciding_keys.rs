//! Files that lack a key that decides the result: they are rejected, or load with a warning that names the key.

use engine::gguf::{Gguf, GgufFile, Value, seeded};
use engine::model::{Model, ModelError};
use tests::{data_dir, exact};

/// Loads a fixture with changed metadata.
fn load(fixture: &str, removed: &[&str], set: &[(&str, Value)]) -> Result<Model, ModelError> {
    let path = data_dir().join(format!("archs/{fixture}.header.gguf"));
    let mut header = Gguf::open_header(&path).expect("a fixture");
    let kept = header.metadata.iter().filter(|(key, _)| !removed.contains(key));
    header.metadata = kept.map(|(key, value)| (key, value.clone())).collect();
    for (key, value) in set {
        header.metadata.insert(*key, value.clone());
    }
    let bytes = seeded::seeded_model(&header, 1).expect("a small model");
    let file = GgufFile::from_bytes("changed.gguf", &bytes).expect("a model");
    Model::from_file(file, archs::ALL, &exact().load)
}

fn error(fixture: &str, removed: &[&str], set: &[(&str, Value)]) -> String {
    match load(fixture, removed, set) {
        Ok(_) => panic!("{fixture} without {removed:?} loads"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn missing_gating_function_is_an_error() {
    for (fixture, prefix) in [
        ("dots1-moe", "dots1"),
        ("minimax-m2-moe", "minimax-m2"),
        ("smallthinker-moe", "smallthinker"),
    ] {
        let key = format!("{prefix}.expert_gating_func");
        let found = error(fixture, &[key.as_str()], &[]);
        assert!(found.contains(&format!("missing key `{key}`")), "{found}");
    }
}

#[test]
fn missing_key_with_uncertain_default_is_a_warning() {
    let warnings = |fixture: &str, removed: &[&str], set: &[(&str, Value)]| -> Vec<String> {
        let model = load(fixture, removed, set).unwrap_or_else(|e| panic!("{fixture}: {e}"));
        let about_keys = model.warnings().iter().filter(|w| w.contains(" is missing: "));
        about_keys.cloned().collect()
    };
    let of_afmoe = warnings("afmoe-moe", &[], &[]);
    assert!(
        of_afmoe[0].starts_with("expert_weights_norm is missing: "),
        "{of_afmoe:?}"
    );
    let given = [("afmoe.expert_weights_norm", Value::Bool(true))];
    assert_eq!(warnings("afmoe-moe", &[], &given), Vec::<String>::new());
    // The depth of the fixture is not that of a published model.
    let of_gemma = warnings("gemma2-dense", &["gemma2.attention.scale"], &[]);
    assert!(of_gemma[0].starts_with("attention.scale is missing: "), "{of_gemma:?}");
    assert_eq!(warnings("gemma2-dense", &[], &[]), Vec::<String>::new());
    let size = [("llama4.attention.sliding_window", Value::U32(64))];
    let of_llama4 = warnings("llama4-moe", &["llama4.attention.sliding_window"], &[]);
    assert!(
        of_llama4[0].starts_with("attention.sliding_window is missing: "),
        "{of_llama4:?}"
    );
    assert_eq!(warnings("llama4-moe", &[], &size), Vec::<String>::new());
    let size = [("exaone4.attention.sliding_window", Value::U32(64))];
    let pattern = "exaone4.attention.sliding_window_pattern";
    let of_exaone4 = warnings("exaone4-dense", &[pattern], &size);
    assert!(
        of_exaone4[0].starts_with("attention.sliding_window_pattern is missing: "),
        "{of_exaone4:?}"
    );
    let listed = [size[0].clone(), (pattern, Value::U32(2))];
    assert_eq!(warnings("exaone4-dense", &[], &listed), Vec::<String>::new());
    // Only files of the size of version 3 are suspicious.
    assert_eq!(
        warnings("deepseek2-moe", &["deepseek2.expert_gating_func"], &[]),
        Vec::<String>::new()
    );
}

#[test]
fn numbers_out_of_range_are_errors() {
    let cases = [
        ("qwen3-dense", "qwen3.attention.layer_norm_rms_epsilon", -1.0),
        ("qwen3-dense", "qwen3.attention.layer_norm_rms_epsilon", 0.0),
        ("bert-dense", "bert.attention.layer_norm_epsilon", f32::NAN),
        ("qwen3-dense", "qwen3.rope.freq_base", -10000.0),
        ("olmo-dense", "olmo.attention.clamp_kqv", -1.0),
        ("granite-dense", "granite.logit_scale", 1e38),
    ];
    for (fixture, key, value) in cases {
        let found = error(fixture, &[], &[(key, Value::F32(value))]);
        let (_, short) = key.split_once('.').expect("a prefix");
        assert!(found.contains(short), "{key}: {found}");
    }
}
