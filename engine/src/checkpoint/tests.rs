//! Tests of settings.

use std::fs;

use super::config::{Config, Evaluator, Setting};
use crate::model::{Checkpoint, CheckpointSetting, ConfigTerm, SettingType};

use ConfigTerm::{Call, Float, Int, Path, Symbol, Text};

const N_LAYER: CheckpointSetting = CheckpointSetting {
    symbol: "n_layer",
    key: "block_count",
    ty: SettingType::Int,
    required: true,
    value: &[Path("num_hidden_layers")],
};
const LOOP: CheckpointSetting = CheckpointSetting {
    symbol: "loop",
    key: "loop",
    value: &[Symbol("loop")],
    ..N_LAYER
};
const SECTION: Checkpoint = Checkpoint {
    classes: &[],
    settings: &[N_LAYER, LOOP],
    checks: &[],
    sources: &[],
    ignored: &[],
    mtp: None,
};

fn evaluated(json: &str, term: ConfigTerm) -> Result<Option<Setting>, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config.json");
    fs::write(&path, json).unwrap();
    let config = Config::read(&path).unwrap();
    Evaluator::new(&config, &SECTION).term(&term).map_err(|e| e.to_string())
}

#[test]
fn values_prefer_the_text_model() {
    let json = r#"{"a": 1, "b": 2, "c": null, "text_config": {"a": 3, "c": 4}}"#;
    let int = |path| evaluated(json, Path(path)).unwrap();
    assert_eq!(int("a"), Some(Setting::Int(3)));
    assert_eq!(int("b"), Some(Setting::Int(2)));
    assert_eq!(int("c"), Some(Setting::Int(4)));
    assert_eq!(int("d"), None);
    assert_eq!(int("text_config.a"), Some(Setting::Int(3)));
}

#[test]
fn operators_apply_to_lists_and_skip_missing_values() {
    let json = r#"{"kinds": ["x", "y", "x"], "num_hidden_layers": 3, "inf": Infinity, "text": "NaN"}"#;
    let of = |term| evaluated(json, term).unwrap();
    let bools = |list: [bool; 3]| Some(Setting::List(list.map(Setting::Bool).to_vec()));
    assert_eq!(of(Call("==", &[Path("kinds"), Text("x")])), bools([true, false, true]));
    let odd = Call("==", &[Call("%", &[Call("il", &[]), Int(2)]), Int(1)]);
    assert_eq!(of(odd), bools([false, true, false]));
    let chosen = Call("if", &[Call("==", &[Path("kinds"), Text("y")]), Int(7), Int(8)]);
    assert_eq!(of(chosen), Some(Setting::List([8, 7, 8].map(Setting::Int).to_vec())));
    assert_eq!(of(Call("*", &[Path("missing"), Float(2.0)])), None);
    assert_eq!(of(Call("given", &[Path("inf")])), Some(Setting::Bool(false)));
    assert_eq!(of(Path("text")), Some(Setting::Text("NaN".to_owned())));
    assert_eq!(of(Call("/", &[Int(6), Int(3)])), Some(Setting::Int(2)));
    assert_eq!(of(Call("/", &[Int(7), Int(2)])), Some(Setting::Float(3.5)));
}

#[test]
fn impossible_values_are_errors_without_recursion() {
    assert_eq!(evaluated("{}", Symbol("loop")).unwrap(), None);
    let overflow = Call("*", &[Int(u64::MAX), Int(2)]);
    assert!(evaluated("{}", overflow).is_err());
    assert!(evaluated("{}", Call("%", &[Int(1), Int(0)])).is_err());
    assert!(
        evaluated("{}", Call("il", &[]))
            .unwrap_err()
            .contains("the number of layers is missing")
    );
    let many = r#"{"num_hidden_layers": 1000000000}"#;
    assert!(
        evaluated(many, Call("each_layer", &[Int(1)]))
            .unwrap_err()
            .contains("expected 1 to 1024")
    );
}
