//! Tests quantized checkpoints of GPTQ, AWQ, and NVFP4, whose values were computed before packing.

use std::fs;
use std::path::{Path, PathBuf};

use engine::checkpoint::{Conversion, OutputType, open_model, parse_safetensors};
use engine::gguf::GgufFile;
use kernels::GgmlType;
use serde_json::Value as Json;

use super::{convert_as, values};

/// Recorded checkpoints, with the type of their matrices.
const CHECKPOINTS: [(&str, GgmlType); 8] = [
    ("awq", GgmlType::F16),
    ("gptq_2_bits", GgmlType::F16),
    ("gptq_8_bits", GgmlType::Q8_0),
    ("gptq_act_order", GgmlType::F16),
    ("gptq_symmetric", GgmlType::Q4_0),
    ("gptq_v2", GgmlType::Q4_0),
    ("nvfp4", GgmlType::NVFP4),
    ("nvfp4_compressed", GgmlType::NVFP4),
];

fn recorded(name: &str) -> PathBuf {
    crate::root::root().join("tests/data/quantized_checkpoints").join(name)
}

fn converted(path: &Path, ty: OutputType) -> GgufFile {
    convert_as(path, ty).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the values of a matrix, times its scale.
fn scaled(file: &GgufFile, name: &str) -> Vec<f32> {
    let scale = name.replace(".weight", ".scale");
    let scale = file.tensor(&scale).map_or(1.0, |_| values(file, &scale)[0]);
    values(file, name).iter().map(|x| x * scale).collect()
}

#[test]
fn packed_weights_have_values_of_dense_checkpoint() {
    for (name, ty) in CHECKPOINTS {
        let dense = converted(&recorded(name).join("dense"), OutputType::Auto);
        let decoded = converted(&recorded(name), OutputType::F32);
        assert_eq!(decoded.tensors().len(), dense.tensors().len(), "{name}");
        for info in dense.tensors() {
            assert!(
                values(&decoded, &info.name) == values(&dense, &info.name),
                "{name} {}",
                info.name
            );
        }
        let file = converted(&recorded(name), OutputType::Auto);
        for part in [
            "attn_q",
            "attn_k",
            "attn_v",
            "attn_output",
            "ffn_gate",
            "ffn_up",
            "ffn_down",
        ] {
            let tensor = format!("blk.0.{part}.weight");
            assert_eq!(file.tensor(&tensor).unwrap().ty, ty, "{name} {part}");
            let (found, expected) = (scaled(&file, &tensor), values(&dense, &tensor));
            assert_eq!(found.len(), expected.len());
            // 11 bits in F16; types that hold the codes have the exact values.
            let bound = if ty == GgmlType::F16 { 1.0 / 2048.0 } else { 0.0 };
            for (a, b) in found.iter().zip(&expected) {
                assert!(
                    (a - b).abs() <= bound * b.abs() + 1e-8 * bound,
                    "{name} {part}: {a}, expected {b}"
                );
            }
        }
    }
}

#[test]
fn packed_weights_in_place_equal_those_of_file() {
    for (name, _) in CHECKPOINTS {
        let (file, set) = (
            converted(&recorded(name), OutputType::Auto),
            open_model(&recorded(name), archs::ALL).unwrap(),
        );
        for info in file.tensors() {
            let found = set.read_tensor(&info.name).unwrap();
            assert!(found == file.tensor_data(info), "{name} {}", info.name);
        }
    }
}

/// Changes bytes of a tensor of a checkpoint, and returns the message of its conversion.
fn damaged(name: &str, tensor: &str, at: usize, bytes: &[u8]) -> String {
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json"] {
        fs::copy(recorded(name).join(file), directory.path().join(file)).unwrap();
    }
    let mut file = fs::read(recorded(name).join("model.safetensors")).unwrap();
    let tensors = parse_safetensors(&file).unwrap();
    let found = tensors.iter().find(|t| t.name == tensor).unwrap();
    file[found.data.start + at..][..bytes.len()].copy_from_slice(bytes);
    fs::write(directory.path().join("model.safetensors"), file).unwrap();
    let error = convert_as(directory.path(), OutputType::Auto).expect_err("the scale is invalid");
    let message = error.to_string();
    // A tensor that is converted on access reports the same error.
    let set = open_model(directory.path(), archs::ALL).unwrap();
    let mut errors = set.tensors().filter_map(|(_, info)| set.read_tensor(&info.name).err());
    let in_place = errors.next().expect("the scale is invalid").to_string();
    assert!(
        in_place.contains(message.rsplit('/').next().unwrap()),
        "{in_place}; {message}"
    );
    message
}

#[test]
fn damaged_packed_weights_are_reported() {
    let base = "model.layers.0.self_attn.v_proj";
    let expected = |value: &str, row: usize, column: usize| {
        format!("tensor `{base}.weight` has the value {value} at row {row}, column {column}; expected finite numbers")
    };
    let (nan, infinity) = (0x7e00u16.to_le_bytes(), 0xfc00u16.to_le_bytes());
    // Scales are stored by group of columns; element 3 belongs to row 3 in the first group.
    for name in ["gptq_symmetric", "gptq_8_bits", "gptq_v2"] {
        let message = damaged(name, &format!("{base}.scales"), 2 * 3, &nan);
        assert!(message.contains(&expected("NaN", 3, 0)), "{name}: {message}");
        let message = damaged(name, &format!("{base}.scales"), 2 * 3, &infinity);
        assert!(message.contains(&expected("-inf", 3, 0)), "{name}: {message}");
    }
    let message = damaged("awq", &format!("{base}.scales"), 0, &nan);
    assert!(message.contains(&expected("NaN", 0, 0)), "{message}");
    // The scales of NVFP4 have no sign in GGUF files. A block has four scales.
    let scales = format!("{base}.weight_scale");
    let message = damaged("nvfp4", &scales, 2, &[0x7f]);
    assert!(message.contains(&expected("NaN", 0, 0)), "{message}");
    let message = damaged("nvfp4_compressed", &scales, 2, &[0xb8]);
    let expected = format!("tensor `{base}.weight` has the scale -1 at row 0, column 0; expected positive numbers");
    assert!(message.contains(&expected), "{message}");
}

/// Copies a checkpoint and changes its configuration.
fn fault(name: &str, change: impl Fn(&mut Json)) -> String {
    let directory = tempfile::tempdir().unwrap();
    for file in ["model.safetensors", "tokenizer.json"] {
        fs::copy(recorded(name).join(file), directory.path().join(file)).unwrap();
    }
    let config = fs::read_to_string(recorded(name).join("config.json")).unwrap();
    let mut config: Json = serde_json::from_str(&config).unwrap();
    change(&mut config["quantization_config"]);
    fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    let error = Conversion::open(directory.path(), archs::ALL, OutputType::Auto).err();
    error.expect("the settings contradict the tensors").to_string()
}

#[test]
fn settings_that_contradict_packed_weights_are_reported() {
    let message = fault("gptq_symmetric", |c| c["bits"] = 3.into());
    assert!(message.contains("weights of 3 bits cannot be converted"), "{message}");
    let message = fault("gptq_symmetric", |c| c["group_size"] = 16.into());
    assert!(
        message.contains("qweight` has `model.layers.0.") && message.contains("of shape"),
        "{message}"
    );
    let message = fault("gptq_symmetric", |c| c["bits"] = 8.into());
    assert!(message.contains("of shape"), "{message}");
    let message = fault("awq", |c| c["version"] = "gemv".into());
    assert!(message.contains("AWQ weights of version `gemv`"), "{message}");
    let message = fault("awq", |c| c["quant_method"] = "bitsandbytes".into());
    assert!(message.contains("weights quantized with `bitsandbytes`"), "{message}");
    // Without the method, nothing reads the packed tensors.
    let message = fault("awq", |c| c["quant_method"] = Json::Null);
    assert!(message.contains("does not read"), "{message}");
}
